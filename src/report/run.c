/* run.c: opens, refreshes and queries a run. See hybrid_report.h and run.h.
 *
 * A refresh reads the lines that were added since the last one. If the metrics file was replaced,
 * everything that came from its lines is dropped first, so that points, events and ranks always
 * belong to one file. */
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "base/file.h"
#include "base/sized.h"
#include "report/run.h"

/* ---- the strings of a run, in one list ------------------------------------------------------- */

#define SHARED_MAX 64 /* hybrid-train writes fewer reasons; the file of another program may not */

const char *hy_words_keep(hy_run_words *words, const char *text) {
    if (hy_array_reserve(&words->word, &words->capacity, words->count + 1, sizeof *words->word,
                         "words of a run") != HY_OK)
        return NULL;
    char *copy = strdup(text);
    if (copy) words->word[words->count++] = copy;
    return copy;
}

const char *hy_words_share(hy_run_words *words, const char *text) {
    for (size_t i = 0; i < words->count; i++)
        if (strcmp(words->word[i], text) == 0) return words->word[i];
    return words->count < SHARED_MAX ? hy_words_keep(words, text) : "";
}

static void words_free(hy_run_words *words) {
    for (size_t i = 0; i < words->count; i++) free(words->word[i]);
    free(words->word);
    *words = (hy_run_words){0};
}

/* ---- ranks ----------------------------------------------------------------------------------- */

#define LATEST 64 /* steps, as in other live views */

void hy_run_forget_ranks(hy_run *run) {
    hy_rank_figures_fini(&run->ranks);
    hy_rank_figures_fini(&run->latest_ranks);
}

/* A jump is not a step. A line with arrays of different lengths is ignored. */
hy_status hy_run_take_ranks(hy_run *run, const hy_point_line *line) {
    const double *of_ranks[HY_RANK_FIGURES];
    int32_t count = line->of_ranks[0].count;
    bool is_used = count > 1 && line->point.phase != HY_PREDICT;
    for (int k = 0; k < HY_RANK_FIGURES; k++) {
        of_ranks[k] = line->of_ranks[k].values;
        is_used &= line->of_ranks[k].count == count;
    }
    if (!is_used) return HY_OK;
    if (count != run->ranks.ranks) {
        hy_run_forget_ranks(run);
        hy_status status = hy_rank_figures_init(&run->ranks, count, 0);
        if (status == HY_OK) status = hy_rank_figures_init(&run->latest_ranks, count, LATEST);
        if (status != HY_OK) {
            hy_run_forget_ranks(run);
            return status;
        }
    }
    hy_rank_figures_add(&run->ranks, of_ranks);
    hy_rank_figures_add(&run->latest_ranks, of_ranks);
    return HY_OK;
}

bool hy_run_rank_sized(const hy_run *run, int32_t rank, bool is_latest, hy_rank_cost *out,
                       size_t size) {
    hy_rank_cost cost;
    bool is_known = hy_rank_figures_of(is_latest ? &run->latest_ranks : &run->ranks, rank, &cost);
    if (is_known) hy_copy_sized(out, size, &cost, sizeof cost);
    return is_known;
}

/* ---- names ----------------------------------------------------------------------------------- */

/* The last part of a path without trailing slashes; for ".", ".." and "/" that of the real path. */
static char *name_of(const char *path) {
    char real[PATH_MAX];
    size_t end = strlen(path);
    while (end > 0 && path[end - 1] == '/') end--;
    size_t begin = end;
    while (begin > 0 && path[begin - 1] != '/') begin--;
    bool is_plain = end > begin && strspn(path + begin, ".") < end - begin;
    if (is_plain) return strndup(path + begin, end - begin);
    if (!realpath(path, real)) return strdup(path);
    const char *slash = strrchr(real, '/');
    return strdup(slash && slash[1] ? slash + 1 : real);
}

/* A run is identified by its folder or its metrics file. */
static hy_status find_run(hy_run *run, const char *where) {
    char folder[PATH_MAX], lines[PATH_MAX];
    HY_FAIL_IF(!hy_path_exists(where), HY_ERR_INPUT,
               "%s does not exist; expected a run folder or its metrics.jsonl", where);
    bool is_folder = hy_path_is_dir(where);
    if (!is_folder) HY_TRY(hy_path_parent(folder, sizeof folder, where));
    HY_TRY(is_folder ? hy_path_join(lines, sizeof lines, where, "metrics.jsonl")
                     : hy_path_join(lines, sizeof lines, "", where));
    run->folder = strdup(is_folder ? where : folder);
    run->name = name_of(run->folder ? run->folder : where);
    HY_FAIL_IF(!run->folder || !run->name, HY_ERR_MEMORY, "out of memory opening the run %s",
               where);
    return hy_follow_init(&run->lines, lines);
}

/* ---- reading --------------------------------------------------------------------------------- */

static hy_status restart(void *user) {
    hy_run *run = user;
    run->point_count = run->event_count = run->line_count = 0;
    run->is_start_last = false;
    run->facts.lines_unreadable = 0;
    words_free(&run->words);
    words_free(&run->reasons);
    hy_run_forget_ranks(run);
    run->started = *hy_run_describe(NULL);
    run->was_restarted = true;
    return HY_OK;
}

hy_status hy_run_refresh(hy_run *run, bool *has_changed) {
    hy_follow_sink sink = {.restart = restart, .line = hy_run_take_line, .user = run};
    size_t lines_before = run->line_count;
    bool are_files_new = false;
    run->was_restarted = false;
    hy_status status = hy_follow_read(&run->lines, &sink);
    if (status == HY_OK) status = hy_run_read_files(run, &are_files_new);
    hy_run_gather_facts(run);
    if (has_changed)
        *has_changed = run->was_restarted || are_files_new || run->line_count != lines_before;
    return status;
}

hy_status hy_run_open(const char *folder, hy_run **out) {
    *out = NULL;
    hy_run *run = calloc(1, sizeof *run);
    if (!run) return hy_fail(HY_ERR_MEMORY, "out of memory opening the run %s", folder);
    run->lines.fd = -1;
    run->started = *hy_run_describe(NULL);
    hy_status status = find_run(run, folder);
    if (status == HY_OK) status = hy_run_refresh(run, NULL);
    if (status != HY_OK) {
        hy_run_close(run);
        return status;
    }
    *out = run;
    return HY_OK;
}

void hy_run_close(hy_run *run) {
    if (!run) return;
    hy_follow_fini(&run->lines);
    hy_run_free_files(run);
    words_free(&run->words);
    words_free(&run->reasons);
    hy_run_forget_ranks(run);
    free(run->points);
    free(run->events);
    free(run->folder);
    free(run->name);
    free(run);
}

/* ---- queries --------------------------------------------------------------------------------- */

static const hy_run_facts unknown_facts = {.size = sizeof unknown_facts,
                                           .folder = "",
                                           .name = "",
                                           .model = "",
                                           .device = "",
                                           .data = "",
                                           .predictor = "",
                                           .command = "",
                                           .config = "",
                                           .version = "",
                                           .transport = "",
                                           .ranks = -1,
                                           .zero_stage = -1,
                                           .parameters = -1,
                                           .steps_total = -1,
                                           .tokens_per_step = -1,
                                           .seq_len = -1,
                                           .has_tokens = true,
                                           .thresholds = {NAN, NAN, NAN, NAN},
                                           .vram_budget_bytes = -1,
                                           .host_budget_bytes = -1,
                                           .began = NAN,
                                           .changed = NAN};

const hy_run_facts *hy_run_describe(const hy_run *run) {
    return run ? &run->facts : &unknown_facts;
}

size_t hy_run_points(const hy_run *run) { return run->point_count; }
const hy_run_point *hy_run_point_at(const hy_run *run, size_t i) { return &run->points[i]; }
size_t hy_run_events(const hy_run *run) { return run->event_count; }
const hy_run_event *hy_run_event_at(const hy_run *run, size_t i) { return &run->events[i]; }
