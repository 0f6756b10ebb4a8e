/* export_trials.c: writes a file for llama.cpp in several ways, or a quantised folder, measures the
 * held-out loss of each, and keeps the best. See hybrid.h.
 *
 * What is written and opened is a path: hy_export_checkpoint writes it, and it is a value for
 * "model". At most two files are on the disk at a time, in hidden folders beside the name that was
 * asked for. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/error.h"
#include "base/file.h"
#include "base/say.h"
#include "base/sized.h"
#include "hub/gguf_export.h"
#include "hub/gguf_mix.h"
#include "hybrid_report.h"
#include "infer/calibrate.h"
#include "record/export.h"

#define MOST 5                       /* before, original base, calibrated, nearest, larger */
#define CALIBRATION_TOKENS (1 << 17) /* more changes little */
#define LARGER 20                    /* a larger file has at most one part in so many more */

typedef struct trials {
    const hy_export_options *options;
    char checkpoint[PATH_MAX]; /* the newest when the export began; "": it is a model */
    char asked[HY_PATH_MAX];   /* the file or folder to write */
    hy_measured model;         /* the model that the files are made of */
    const hy_observer *caller; /* gets all progress, and the warnings of the first export */
    hy_observer observer;
    bool is_heard; /* that export is running; the others would give the same warnings */
    hy_evaluation list[MOST];
    char folder[MOST][HY_PATH_MAX], path[MOST][HY_PATH_MAX]; /* of the files; "": none */
    int32_t count;
    int32_t source, best; /* the row of the model that is written, and of the best file; 0: none */
    hy_tensor_costs costs;
} trials;

static void pass_message(void *user, hy_message_level level, const char *text) {
    const trials *t = user;
    if (t->is_heard && level == HY_WARNING && t->caller->on_message)
        t->caller->on_message(t->caller->user, level, text);
}

static void pass_progress(void *user, const char *what, double fraction) {
    const trials *t = user;
    if (t->caller->on_progress) t->caller->on_progress(t->caller->user, what, fraction);
}

/* ---- one file -------------------------------------------------------------------------------- */

/* Removes the hidden folder of a file, if it is there. */
static hy_status remove_trial(const trials *t, int32_t i) {
    if (!t->options->gguf) HY_TRY(hy_hf_discard(t->path[i], t->asked));
    return hy_dir_remove(t->folder[i]);
}

/* Writes a file with the name that was asked for, in a hidden folder beside it. */
static hy_status write_trial(trials *t, const char *name, const hy_moments_source *moments) {
    hy_export_options options = *t->options;
    hy_export_request request = {&options, &t->observer, moments, t->asked};
    const char *slash = strrchr(t->asked, '/'), *base = slash ? slash + 1 : t->asked;
    char *folder = t->folder[t->count], *path = t->path[t->count];
    snprintf(t->list[t->count].rounding, sizeof t->list[0].rounding, "%s", name);
    int length =
        snprintf(folder, HY_PATH_MAX, "%.*s.%s.%s", (int)(base - t->asked), t->asked, base, name);
    HY_FAIL_IF(length >= HY_PATH_MAX, HY_ERR_INPUT, "path %s is too long", t->asked);
    HY_TRY(hy_path_join(path, HY_PATH_MAX, folder, base));
    HY_TRY(remove_trial(t, t->count)); /* of an export that was killed */
    HY_FAIL_IF(mkdir(folder, 0777) != 0, HY_ERR_IO, "cannot create %s: %s", folder,
               strerror(errno));
    t->is_heard = t->best == 0;
    t->count++;
    *(options.gguf ? &options.gguf : &options.out) = path;
    options.calibrate = NULL;
    hy_status status = hy_export_checkpoint(t->model.checkpoint, &request);
    t->is_heard = false;
    return status;
}

static hy_status write_calibrated(trials *t, const char *name) {
    hy_config *config = NULL;
    hy_calibration *calibration = NULL;
    hy_status status = hy_measured_configure(&t->model, t->options->calibrate, &config);
    if (status == HY_OK)
        status = hy_calibration_open(config, &t->observer, CALIBRATION_TOKENS, &calibration);
    if (status == HY_OK) {
        hy_moments_source source = hy_calibration_source(calibration);
        source.costs = &t->costs;
        status = write_trial(t, name, &source);
    }
    hy_calibration_close(calibration);
    hy_config_destroy(config);
    return status;
}

static double increase(const trials *t, int32_t i) {
    return t->list[i].loss - t->list[t->source].loss;
}

/* Of files of one size the one with the lower loss is better. A larger one is better if the
 * increase of the loss falls by a greater share than the size grows. */
static bool is_better(const trials *t, int32_t file) {
    const hy_evaluation *new = &t->list[file], *best = &t->list[t->best];
    if (t->best == 0) return true;
    if (new->bytes <= best->bytes) return new->loss < best->loss;
    return increase(t, t->best) > 0 &&
           increase(t, file) / increase(t, t->best) < 2 - (double)new->bytes / (double)best->bytes;
}

/* The bytes of a file, or of the files of a folder. */
static hy_status size_of(const char *path, uint64_t *out) {
    char **names, inside[HY_PATH_MAX];
    size_t count;
    struct stat info;
    HY_FAIL_IF(stat(path, &info) != 0, HY_ERR_IO, "%s is gone", path);
    *out = (uint64_t)info.st_size;
    if (!S_ISDIR(info.st_mode)) return HY_OK;
    *out = 0;
    HY_TRY(hy_dir_list(path, &names, &count));
    for (size_t i = 0; i < count; i++) {
        if (hy_path_join(inside, sizeof inside, path, names[i]) == HY_OK && !stat(inside, &info))
            *out += (uint64_t)info.st_size;
    }
    hy_dir_list_free(names, count);
    return HY_OK;
}

/* Measures the last file, and removes it or the best one so far. */
static hy_status measure_trial(trials *t) {
    int32_t file = t->count - 1;
    hy_evaluation named = t->list[file];
    hy_measured what = t->model;
    what.file = t->path[file];
    what.as_files = false;
    HY_TRY(size_of(what.file, &named.bytes));
    HY_TRY(hy_measure(&what, &t->observer, &t->list[file]));
    t->list[file].bytes = named.bytes;
    memcpy(t->list[file].rounding, named.rounding, sizeof named.rounding);
    int32_t worse = is_better(t, file) ? t->best : file;
    if (worse != file) t->best = file;
    return worse > 0 ? remove_trial(t, worse) : HY_OK;
}

/* ---- all files ------------------------------------------------------------------------------- */

static hy_status check(trials *t, const char *checkpoint) {
    const hy_export_options *o = t->options;
    hy_config *config = NULL;
    HY_TRY(hy_export_check_out(o));
    if (!o->gguf) HY_TRY(hy_hf_check_folder(o->out));
    bool is_int8 = o->type && strcmp(o->type, "int8") == 0;
    HY_FAIL_IF(o->calibrate && (!o->type || hy_gguf_is_plain(o->type) || is_int8), HY_ERR_INPUT,
               "calibration is for types in blocks, such as q4_k_m or nf4; %s has none",
               o->type ? o->type : "the model's own type");
    bool is_model = hy_export_is_model(checkpoint);
    HY_FAIL_IF(is_model && !t->model.how.data, HY_ERR_INPUT,
               "%s has no held-out data; name some (--data FILE)", checkpoint);
    if (is_model) HY_TRY(hy_export_check_apart(&(hy_export_request){.options = o}, checkpoint));
    /* A run may go on and write newer checkpoints. */
    if (!is_model) HY_TRY(hy_export_find(checkpoint, t->caller, t->checkpoint));
    t->model.checkpoint = is_model ? checkpoint : t->checkpoint;
    hy_status status = hy_measured_configure(&t->model, t->model.how.data, &config);
    bool is_adapter = status == HY_OK && hy_config_settings(config)->lora.lora;
    hy_config_destroy(config);
    HY_TRY(status);
    HY_FAIL_IF(is_adapter && !o->merge && !o->onto, HY_ERR_INPUT,
               "%s has adapters, which are not measured alone; use --merge", checkpoint);
    return HY_OK;
}

/* The model before; if it is a merge, on the other weights of the base, too. */
static hy_status measure_before(trials *t) {
    const char *onto = t->options->onto;
    bool has_folder = false;
    t->count = 1;
    if (!t->options->merge && !onto) return hy_measure(&t->model, &t->observer, &t->list[0]);
    HY_TRY(hy_measure_bases(&t->model, &t->observer, &t->list[0], &t->list[1], &has_folder));
    if (!has_folder) return HY_OK;
    snprintf(t->list[1].rounding, sizeof t->list[1].rounding, "original base");
    t->count = 2;
    t->model.as_files = onto && strcmp(onto, "folder") == 0;
    t->source = t->model.as_files;
    return HY_OK;
}

static hy_status run(trials *t, const char *checkpoint) {
    HY_TRY(check(t, checkpoint));
    HY_TRY(measure_before(t));
    if (t->options->calibrate) {
        HY_TRY(write_calibrated(t, "calibrated"));
        HY_TRY(measure_trial(t));
    }
    HY_TRY(write_trial(t, "nearest", NULL));
    HY_TRY(measure_trial(t));
    uint64_t room = t->list[t->best].bytes / LARGER;
    if (hy_gguf_raise(&t->costs, room) > 0) {
        HY_TRY(write_calibrated(t, "larger"));
        HY_TRY(measure_trial(t));
    }
    const char *best = t->path[t->best];
    HY_TRY(t->options->gguf ? hy_path_rename(best, t->asked) : hy_hf_rename(best, t->asked));
    t->list[t->best].is_written = true;
    return hy_path_sync_parent(t->asked);
}

/* Remembers the figures in the run's folder, and renews its report if it has one. A failure there
 * does not undo the export. */
static void remember(const trials *t) {
    char run[HY_PATH_MAX], page[HY_PATH_MAX];
    hy_run *of = NULL;
    if (!t->checkpoint[0]) return;
    hy_status status = hy_exports_add(t->checkpoint, t->options, t->list, t->count, run);
    if (status == HY_OK) status = hy_path_join(page, sizeof page, run, "report.html");
    if (status == HY_OK && run[0] && hy_path_exists(page)) {
        status = hy_run_open(run, &of);
        if (status == HY_OK) status = hy_report_write((const hy_run *const *)&of, 1, page);
        hy_run_close(of);
    }
    if (status != HY_OK)
        hy_say_to(t->caller, HY_WARNING,
                  "the losses are not kept in the run's folder, or not in its report: %s",
                  hy_error_message());
}

hy_status hy_export_evaluate_sized(const char *checkpoint, const hy_export_options *options,
                                   const hy_merge_options *losses, const hy_observer *observer,
                                   hy_evaluation **out, size_t *count, size_t size) {
    static const hy_observer nobody = {0};
    *out = NULL;
    *count = 0;
    const char *asked = options->gguf ? options->gguf : options->out;
    HY_FAIL_IF(!options->gguf && !options->type, HY_ERR_INPUT,
               "only files for llama.cpp (--gguf) and quantised folders (--type) are measured");
    HY_FAIL_IF(!asked || strlen(asked) >= HY_PATH_MAX, HY_ERR_INPUT,
               "the path of the export is missing or too long");
    trials *t = calloc(1, sizeof *t);
    char *copies = calloc(MOST, size);
    if (t) {
        *t = (trials){
            .options = options,
            .model = {.how = losses ? *losses : (hy_merge_options){0}},
            .caller = observer ? observer : &nobody,
            .observer = {.user = t, .on_message = pass_message, .on_progress = pass_progress}};
        t->model.how.base = options->base;
        strcpy(t->asked, asked);
        for (size_t end = strlen(asked); end > 1 && asked[end - 1] == '/'; end--)
            t->asked[end - 1] = 0;
    }
    hy_status status = t && copies ? run(t, checkpoint)
                                   : hy_fail(HY_ERR_MEMORY, "not enough memory for evaluations");
    for (int32_t i = 0; t && i < t->count; i++) {
        if (t->folder[i][0] && remove_trial(t, i) != HY_OK && status == HY_OK) status = HY_ERR_IO;
        if (copies) hy_copy_sized(copies + (size_t)i * size, size, &t->list[i], sizeof t->list[i]);
    }
    if (status == HY_OK) {
        remember(t);
        *count = (size_t)t->count;
        *out = (hy_evaluation *)(void *)copies;
        copies = NULL;
    }
    if (t) free(t->costs.list);
    free(copies);
    free(t);
    return status;
}
