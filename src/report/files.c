/* files.c: reads the files next to the metrics: summary.json, plan.json, sample.json, exports.json,
 * config.cfg. See run.h.
 *
 * Each file is read again if its time or size has changed. All of them may be missing, and a file
 * that cannot be understood counts as missing: a report of a damaged run is better than none. Facts
 * in the newest start line replace those of summary.json; runs of older versions have only the
 * summary. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/error.h"
#include "base/file.h"
#include "report/run.h"

#define PATH_MAX_BYTES 4096

void hy_run_free_files(hy_run *run) {
    hy_json_free(run->summary);
    hy_json_free(run->plan);
    hy_json_free(run->sample);
    hy_json_free(run->exports);
    free(run->config);
    run->summary = run->plan = run->sample = run->exports = NULL;
    run->config = NULL;
}

/* Has the file changed since the last call? Fills `path`, and stores time and size of the file in
 * *seen. */
static bool is_new(const hy_run *run, const char *name, hy_run_file *seen, char *path) {
    struct stat info;
    hy_run_file now = {0};
    if (hy_path_join(path, PATH_MAX_BYTES, run->folder, name) != HY_OK) return false;
    if (stat(path, &info) == 0 && S_ISREG(info.st_mode)) {
        now.changed = (double)info.st_mtim.tv_sec + 1e-9 * (double)info.st_mtim.tv_nsec;
        now.size = (int64_t)info.st_size;
    }
    bool differs = now.changed != seen->changed || now.size != seen->size;
    *seen = now;
    return differs;
}

static hy_status read_json(hy_run *run, const char *name, hy_run_file *seen, hy_json **json,
                           bool *has_changed) {
    char path[PATH_MAX_BYTES];
    if (!is_new(run, name, seen, path)) return HY_OK;
    *has_changed = true;
    hy_json_free(*json);
    *json = NULL;
    if (seen->changed == 0) return HY_OK;
    hy_status status = hy_json_read_file(path, json);
    return status == HY_ERR_MEMORY ? status : HY_OK;
}

hy_status hy_run_read_files(hy_run *run, bool *has_changed) {
    HY_TRY(read_json(run, "summary.json", &run->summary_file, &run->summary, has_changed));
    HY_TRY(read_json(run, "plan.json", &run->plan_file, &run->plan, has_changed));
    HY_TRY(read_json(run, "sample.json", &run->sample_file, &run->sample, has_changed));
    HY_TRY(read_json(run, "exports.json", &run->exports_file, &run->exports, has_changed));
    char path[PATH_MAX_BYTES];
    size_t size;
    if (!is_new(run, "config.cfg", &run->config_file, path)) return HY_OK;
    *has_changed = true;
    free(run->config);
    run->config = NULL;
    if (run->config_file.changed == 0) return HY_OK;
    hy_status status = hy_file_read(path, &run->config, &size);
    return status == HY_ERR_MEMORY ? status : HY_OK;
}

/* ---- memory ---------------------------------------------------------------------------------- */

bool hy_planned_open(const hy_run *run, bool is_summary, hy_planned *out) {
    const hy_json *json = is_summary ? run->summary : run->plan;
    *out = (hy_planned){.has_measured = is_summary};
    if (json) out->phases = hy_json_get(hy_json_root(json), "phases");
    return out->phases && hy_json_type_of(out->phases) == HY_JSON_OBJECT;
}

bool hy_planned_read(const hy_planned *from, int phase, int cls, hy_planned_cell *out) {
    const hy_json_node *of_phase = hy_json_get(from->phases, hy_phase_name((hy_phase)phase));
    const hy_json_node *classes = hy_json_get(of_phase, "classes");
    const hy_json_node *node = hy_json_get(classes, hy_class_name((hy_class)cls));
    *out = (hy_planned_cell){"", "", NAN, NAN};
    hy_json_as_string(hy_json_get(node, "place"), &out->place, NULL);
    hy_json_as_string(hy_json_get(node, "dtype"), &out->dtype, NULL);
    hy_json_as_double(hy_json_get(node, from->has_measured ? "planned_bytes" : "bytes"),
                      &out->planned);
    hy_json_as_double(hy_json_get(node, "measured_bytes"), &out->measured);
    return out->planned > 0 || out->measured > 0;
}

int64_t hy_run_planned_bytes(const hy_run *run, hy_phase phase, hy_place place, hy_class cls) {
    hy_planned from;
    hy_planned_cell cell;
    if (!hy_planned_open(run, false, &from) && !hy_planned_open(run, true, &from)) return -1;
    if (!hy_planned_read(&from, (int)phase, (int)cls, &cell)) return 0;
    bool is_there = strcmp(cell.place, hy_place_name(place)) == 0;
    return is_there && cell.planned > 0 ? (int64_t)fmin(cell.planned, 0x1p53) : 0;
}

/* ---- facts ----------------------------------------------------------------------------------- */

static void fill_text(const char **fact, const hy_json_node *summary, const char *key) {
    if (!(*fact)[0]) hy_json_as_string(hy_json_get(summary, key), fact, NULL);
}

static void fill_count(int64_t *fact, const hy_json_node *summary, const char *key) {
    if (*fact < 0) hy_json_as_count(hy_json_get(summary, key), fact);
}

/* The summary describes the newest line if it counts the same steps and no compute was spent since.
 * If a session has just started, the summary must be newer than its start. */
static bool is_summary_newest(const hy_run *run, const hy_json_node *summary) {
    int64_t steps = -1;
    double spent = NAN;
    hy_json_as_int(hy_json_get(summary, "steps"), &steps);
    hy_json_as_double(hy_json_get(summary, "spent"), &spent);
    if (run->point_count == 0) return false;
    const hy_run_point *last = &run->points[run->point_count - 1];
    if (last->step != steps || last->spent > spent + 1e-6) return false;
    return !run->is_start_last || run->summary_file.changed >= run->lines.changed;
}

/* Older versions wrote seq_len = 1 for a custom run. If the program reports no token counts, each
 * micro-batch counts as one token. */
static void describe_custom(const hy_run *run, hy_run_facts *facts) {
    facts->is_custom = strcmp(facts->model, "own") == 0 && facts->seq_len <= 1;
    facts->is_own = facts->is_custom; /* the old name */
    facts->has_tokens = true;
    if (!facts->is_custom) return;
    facts->tokens_per_step = facts->seq_len = -1;
    if (run->point_count == 0) return;
    const hy_run_point *last = &run->points[run->point_count - 1];
    int64_t batches = last->grad_accum > 1 ? last->grad_accum : 1;
    facts->has_tokens = last->tokens / batches > last->step;
}

void hy_run_gather_facts(hy_run *run) {
    hy_run_facts facts = run->started;
    facts.size = sizeof facts;
    facts.lines_unreadable = run->facts.lines_unreadable;
    facts.folder = run->folder;
    hy_run_setting(run, "name", run->title, sizeof run->title);
    hy_run_setting(run, "notes", run->notes, sizeof run->notes);
    facts.name = run->title[0] ? run->title : run->name;
    facts.config = run->config ? run->config : "";
    facts.changed = run->lines.changed;
    facts.row_format = facts.row_losses = "";
    if (run->summary && hy_json_type_of(hy_json_root(run->summary)) == HY_JSON_OBJECT) {
        const hy_json_node *summary = hy_json_root(run->summary);
        fill_text(&facts.model, summary, "model");
        fill_text(&facts.device, summary, "device");
        fill_text(&facts.data, summary, "data");
        fill_text(&facts.row_format, summary, "row_format");
        fill_text(&facts.row_losses, summary, "row_losses");
        fill_text(&facts.predictor, summary, "predictor");
        fill_text(&facts.version, summary, "program");
        /* "hybrid-train 0.1.0" is version 0.1.0. */
        const char *version = facts.version;
        static const char program[] = "hybrid-train ";
        bool has_name = strncmp(version, program, sizeof program - 1) == 0;
        facts.version = has_name ? version + sizeof program - 1 : version;
        fill_count(&facts.parameters, summary, "parameters");
        fill_count(&facts.steps_total, summary, "steps_total");
        fill_count(&facts.tokens_per_step, summary, "tokens_per_step");
        facts.is_finished = is_summary_newest(run, summary);
        hy_json_as_bool(hy_json_get(summary, "finished"), &facts.is_complete);
        facts.is_complete &= facts.is_finished;
    }
    describe_custom(run, &facts);
    run->facts = facts;
}
