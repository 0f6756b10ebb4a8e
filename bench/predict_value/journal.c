/* journal.c: finished runs, one JSON object per line. See runs.h.
 *
 * A line is appended as a whole and synced, so that a stop loses at most the run in progress. Lines
 * with other settings stay in the file and are ignored. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "runs.h"

static hy_status journal_path(const char *out, char path[1024]) {
    return hy_path_join(path, 1024, out, "runs.jsonl");
}

/* ---- writing --------------------------------------------------------------------------------- */

static void put_curve(hy_json_writer *w, const pv_run *run) {
    hy_json_open_array(w, "curve");
    for (int i = 0; i < run->points; i++) {
        hy_json_open_array(w, NULL);
        hy_json_put_double(w, NULL, run->curve[i].spent);
        hy_json_put_double(w, NULL, run->curve[i].loss);
        hy_json_close_array(w);
    }
    hy_json_close_array(w);
}

void pv_run_put_json(hy_json_writer *w, const pv_run *run, const pv_options *o) {
    char key[32];
    snprintf(key, sizeof key, "%016" PRIx64, run->key);
    hy_json_open_object(w, NULL);
    hy_json_put_string(w, "key", key);
    hy_json_put_string(w, "arm", o->arms[run->arm].label);
    hy_json_put_double(w, "lr", run->lr);
    hy_json_put_int(w, "seed", run->seed);
    hy_json_put_int(w, "budget", run->steps);
    hy_json_put_bool(w, "diverged", run->has_diverged);
    hy_json_put_double(w, "loss", run->loss);
    hy_json_put_double(w, "average_loss", run->average);
    hy_json_put_double(w, "spent", run->spent);
    hy_json_put_double(w, "seconds", run->seconds);
    hy_json_put_int(w, "true_steps", run->true_steps);
    hy_json_put_int(w, "moves", run->moves);
    hy_json_put_int(w, "rejected_moves", run->rejected_moves);
    hy_json_put_int(w, "predicted_steps", run->predicted_steps);
    hy_json_put_string(w, "device", run->device);
    put_curve(w, run);
    hy_json_close_object(w);
}

hy_status pv_journal_add(const char *out, const pv_run *run, const pv_options *o) {
    char path[1024];
    hy_text line = {0};
    hy_json_writer json;
    uint64_t at = HY_FILE_END;
    HY_TRY(journal_path(out, path));
    hy_json_begin(&json, &line, false);
    pv_run_put_json(&json, run, o);
    hy_text_add(&line, "\n");
    hy_status status = hy_text_status(&line);
    if (status == HY_OK) status = hy_file_put_at(path, &at, line.data, line.size);
    hy_text_free(&line);
    return status;
}

/* ---- reading --------------------------------------------------------------------------------- */

static double number_of(const hy_json_node *object, const char *key) {
    double value;
    return hy_json_as_double(hy_json_get(object, key), &value) ? value : NAN;
}

static void take_curve(const hy_json_node *object, pv_run *run) {
    const hy_json_node *curve = hy_json_get(object, "curve");
    run->points = 0;
    if (!curve) return;
    for (const hy_json_node *p = hy_json_first(curve); p; p = hy_json_next(p)) {
        const hy_json_node *x = hy_json_first(p), *y = x ? hy_json_next(x) : NULL;
        pv_point point = {NAN, NAN};
        if (run->points == PV_POINTS_MAX) return;
        hy_json_as_double(x, &point.spent);
        hy_json_as_double(y, &point.loss);
        run->curve[run->points++] = point;
    }
}

static hy_status take_line(const hy_json *json, pv_run *run) {
    const hy_json_node *root = hy_json_root(json);
    const char *device;
    HY_TRY(hy_json_bool(json, root, "diverged", &run->has_diverged));
    HY_TRY(hy_json_double(json, root, "spent", &run->spent));
    HY_TRY(hy_json_double(json, root, "seconds", &run->seconds));
    HY_TRY(hy_json_int(json, root, "true_steps", &run->true_steps));
    HY_TRY(hy_json_int(json, root, "moves", &run->moves));
    HY_TRY(hy_json_int(json, root, "rejected_moves", &run->rejected_moves));
    HY_TRY(hy_json_int(json, root, "predicted_steps", &run->predicted_steps));
    HY_TRY(hy_json_string(json, root, "device", &device, NULL));
    snprintf(run->device, sizeof run->device, "%s", device);
    run->loss = number_of(root, "loss");
    run->average = number_of(root, "average_loss");
    take_curve(root, run);
    run->is_done = true;
    return HY_OK;
}

static hy_status read_line(const char *line, size_t size, const char *name, pv_runs *runs) {
    hy_json *json;
    const char *text;
    HY_TRY(hy_json_parse(line, size, name, &json));
    hy_status status = hy_json_string(json, hy_json_root(json), "key", &text, NULL);
    uint64_t key = status == HY_OK ? strtoull(text, NULL, 16) : 0;
    for (int i = 0; i < runs->count && status == HY_OK; i++) {
        if (runs->list[i].key == key) status = take_line(json, &runs->list[i]);
    }
    hy_json_free(json);
    return status;
}

static hy_status read_lines(const char *path, const char *data, size_t size, pv_runs *runs) {
    size_t at = 0;
    for (int number = 1; at < size; number++) {
        const char *end = memchr(data + at, '\n', size - at);
        char name[1100];
        /* an incomplete line: stopped while writing */
        if (!end) return hy_file_write_atomic(path, data, at);
        size_t length = (size_t)(end - (data + at));
        snprintf(name, sizeof name, "%s:%d", path, number);
        HY_TRY(read_line(data + at, length, name, runs));
        at += length + 1;
    }
    return HY_OK;
}

hy_status pv_journal_load(const char *out, pv_runs *runs) {
    char path[1024];
    char *data;
    size_t size;
    HY_TRY(journal_path(out, path));
    if (!hy_path_exists(path)) return HY_OK;
    HY_TRY(hy_file_read(path, &data, &size));
    hy_status status = read_lines(path, data, size, runs);
    free(data);
    return status;
}
