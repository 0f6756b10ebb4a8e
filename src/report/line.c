/* line.c: a line of metrics.jsonl becomes a point or an event. See run.h.
 *
 * Which key fills which member is a table; keys come in the same order line after line, so the search
 * begins where the last key was found. Unknown keys are passed over, values of another type are as good as
 * absent, and a line that is no object with a step is counted as unreadable: newer writers and broken
 * disks both leave the rest readable. */
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "report/run.h"

typedef enum field_kind {
    IS_INT,
    IS_NUMBER,
    IS_BOOL,
    IS_PHASE,
    IS_STATUS,
    IS_REASON,
    IS_CLASSES, /* an object of bytes by class */
    IS_WORD,    /* a string of the facts */
    IS_THRESHOLDS,
} field_kind;

typedef struct field {
    const char *key;
    field_kind kind;
    size_t at;
} field;

#define OF_POINT(key, kind, member)                                                                \
    { key, kind, offsetof(hy_run_point, member) }
#define OF_FACTS(key, kind, member)                                                                \
    { key, kind, offsetof(hy_run_facts, member) }

static const field point_fields[] = {
    OF_POINT("step", IS_INT, step),
    OF_POINT("phase", IS_PHASE, phase),
    OF_POINT("loss", IS_NUMBER, loss),
    OF_POINT("lr", IS_NUMBER, lr),
    OF_POINT("grad_norm", IS_NUMBER, grad_norm),
    OF_POINT("tokens", IS_INT, tokens),
    OF_POINT("tokens_per_second", IS_NUMBER, tokens_per_second),
    OF_POINT("seconds", IS_NUMBER, seconds),
    OF_POINT("elapsed", IS_NUMBER, elapsed),
    OF_POINT("confidence", IS_NUMBER, confidence),
    OF_POINT("batch_size", IS_INT, batch_size),
    OF_POINT("grad_accum", IS_INT, grad_accum),
    OF_POINT("vram_bytes", IS_INT, vram_bytes),
    OF_POINT("vram_peak_bytes", IS_INT, vram_peak_bytes),
    OF_POINT("host_pinned_bytes", IS_INT, host_pinned_bytes),
    OF_POINT("wait_seconds", IS_NUMBER, wait_seconds),
    OF_POINT("bytes_moved", IS_INT, bytes_moved),
    OF_POINT("spent", IS_NUMBER, spent),
    OF_POINT("mfu", IS_NUMBER, mfu),
    OF_POINT("gpu_power_watts", IS_NUMBER, gpu_power_watts),
    OF_POINT("gpu_temperature_c", IS_NUMBER, gpu_temperature_c),
    OF_POINT("gpu_utilization", IS_NUMBER, gpu_utilization),
    OF_POINT("memory", IS_CLASSES, device),
    OF_POINT("pinned", IS_CLASSES, pinned),
    OF_POINT("memory_status", IS_STATUS, memory_status),
    OF_POINT("vram_reserved_bytes", IS_INT, vram_reserved_bytes),
    OF_POINT("vram_free_bytes", IS_INT, vram_free_bytes),
    OF_POINT("host_resident_bytes", IS_INT, host_resident_bytes),
    OF_POINT("vram_planned_bytes", IS_INT, vram_planned_bytes),
    OF_POINT("predicted_steps", IS_NUMBER, predicted_steps),
    OF_POINT("rejected", IS_BOOL, was_rejected),
    OF_POINT("residual_cosine", IS_NUMBER, residual_cosine),
    OF_POINT("rolled_back", IS_BOOL, was_rolled_back),
    OF_POINT("reason", IS_REASON, reason),
    OF_POINT("skipped", IS_BOOL, was_skipped),
    OF_POINT("val_loss", IS_NUMBER, val_loss),
};

static const field start_fields[] = {
    OF_FACTS("time", IS_NUMBER, began),
    OF_FACTS("version", IS_WORD, version),
    OF_FACTS("command", IS_WORD, command),
    OF_FACTS("model", IS_WORD, model),
    OF_FACTS("parameters", IS_INT, parameters),
    OF_FACTS("device", IS_WORD, device),
    OF_FACTS("data", IS_WORD, data),
    OF_FACTS("predictor", IS_WORD, predictor),
    OF_FACTS("steps_total", IS_INT, steps_total),
    OF_FACTS("tokens_per_step", IS_INT, tokens_per_step),
    OF_FACTS("seq_len", IS_INT, seq_len),
    OF_FACTS("vram_budget_bytes", IS_INT, vram_budget_bytes),
    OF_FACTS("host_budget_bytes", IS_INT, host_budget_bytes),
    OF_FACTS("thresholds", IS_THRESHOLDS, thresholds),
};

#define COUNT_OF(table) (sizeof(table) / sizeof(table)[0])

/* ---- values -------------------------------------------------------------------------------------- */

static int find_name(const char *text, const char *(*name_of)(int), int count) {
    for (int i = 0; i < count; i++) {
        if (strcmp(text, name_of(i)) == 0) return i;
    }
    return -1;
}

static const char *phase_name(int i) { return hy_phase_name((hy_phase)i); }
static const char *class_name(int i) { return hy_class_name((hy_class)i); }
static const char *status_name(int i) { return hy_memory_status_name((hy_memory_status)i); }
static const char *threshold_name(int i) {
    static const char *const names[] = {"target", "warning", "critical", "emergency"};
    return names[i];
}

static void take_classes(const hy_json_node *node, int64_t *bytes) {
    for (const hy_json_node *m = hy_json_first(node); m; m = hy_json_next(m)) {
        int cls = find_name(hy_json_key(m), class_name, HY_CLASS_COUNT);
        int64_t value;
        if (cls >= 0 && hy_json_as_int(m, &value) && value >= 0) bytes[cls] = value;
    }
}

static void take_thresholds(const hy_json_node *node, double *out) {
    for (const hy_json_node *m = hy_json_first(node); m; m = hy_json_next(m)) {
        int level = find_name(hy_json_key(m), threshold_name, 4);
        if (level >= 0) hy_json_as_double(m, &out[level]);
    }
}

/* `kept` is what the word list answered: NULL when memory is out. */
static hy_status take_word(hy_run *run, const char *kept, const char **out) {
    if (!kept) return hy_fail(HY_ERR_MEMORY, "out of memory reading %s", run->lines.path);
    *out = kept;
    return HY_OK;
}

static hy_status take_text(hy_run *run, const field *f, const char *text, void *at) {
    int found;
    switch (f->kind) {
    case IS_PHASE:
        found = find_name(text, phase_name, HY_PHASE_COUNT);
        if (found >= 0) *(hy_phase *)at = (hy_phase)found;
        return HY_OK;
    case IS_STATUS: *(int *)at = find_name(text, status_name, 4); return HY_OK;
    case IS_REASON: return take_word(run, hy_words_share(&run->reasons, text), at);
    case IS_WORD: return take_word(run, hy_words_keep(&run->words, text), at);
    default: return HY_OK;
    }
}

/* Puts a value where the field says; a value of another type leaves it as it was. */
static hy_status take_value(hy_run *run, const field *f, const hy_json_node *node, void *target) {
    void *at = (char *)target + f->at;
    bool is_object = hy_json_type_of(node) == HY_JSON_OBJECT;
    const char *text;
    switch (f->kind) {
    case IS_INT: hy_json_as_int(node, at); return HY_OK;
    case IS_NUMBER: hy_json_as_double(node, at); return HY_OK;
    case IS_BOOL: hy_json_as_bool(node, at); return HY_OK;
    case IS_CLASSES:
        if (is_object) take_classes(node, at);
        return HY_OK;
    case IS_THRESHOLDS:
        if (is_object) take_thresholds(node, at);
        return HY_OK;
    default: return hy_json_as_string(node, &text, NULL) ? take_text(run, f, text, at) : HY_OK;
    }
}

static hy_status take_fields(hy_run *run, const hy_json_node *object, const field *table,
                             size_t count, void *target) {
    size_t next = 0;
    for (const hy_json_node *m = hy_json_first(object); m; m = hy_json_next(m)) {
        const char *key = hy_json_key(m);
        for (size_t tried = 0; tried < count; tried++) {
            size_t i = next + tried < count ? next + tried : next + tried - count;
            if (strcmp(table[i].key, key) != 0) continue;
            HY_TRY(take_value(run, &table[i], m, target));
            next = i + 1 < count ? i + 1 : 0;
            break;
        }
    }
    return HY_OK;
}

/* ---- points ---------------------------------------------------------------------------------------- */

/* Makes room for one more of `size` bytes each. */
static hy_status reserve(void **array, size_t *capacity, size_t count, size_t size) {
    if (count < *capacity) return HY_OK;
    size_t wanted = *capacity ? *capacity * 2 : 64;
    void *grown = wanted > SIZE_MAX / size ? NULL : realloc(*array, wanted * size);
    if (!grown) return hy_fail(HY_ERR_MEMORY, "out of memory for %zu lines of a run", wanted);
    *array = grown;
    *capacity = wanted;
    return HY_OK;
}

static const hy_run_point unknown_point = {
    .step = -1,
    .tokens = -1,
    .phase = HY_FULL,
    .loss = NAN,
    .val_loss = NAN,
    .lr = NAN,
    .grad_norm = NAN,
    .tokens_per_second = NAN,
    .seconds = NAN,
    .elapsed = NAN,
    .spent = NAN,
    .wait_seconds = NAN,
    .confidence = NAN,
    .predicted_steps = NAN,
    .residual_cosine = NAN,
    .mfu = NAN,
    .batch_size = -1,
    .grad_accum = -1,
    .bytes_moved = -1,
    .vram_bytes = -1,
    .vram_peak_bytes = -1,
    .vram_reserved_bytes = -1,
    .vram_free_bytes = -1,
    .vram_planned_bytes = -1,
    .host_pinned_bytes = -1,
    .host_resident_bytes = -1,
    .memory_status = -1,
    .reason = "",
    .gpu_power_watts = NAN,
    .gpu_temperature_c = NAN,
    .gpu_utilization = NAN,
};

static hy_status take_point(hy_run *run, const hy_json_node *object) {
    HY_TRY(reserve((void **)&run->points, &run->point_capacity, run->point_count,
                   sizeof *run->points));
    hy_run_point *point = &run->points[run->point_count];
    *point = unknown_point;
    HY_TRY(take_fields(run, object, point_fields, COUNT_OF(point_fields), point));
    if (point->step < 0) {
        run->facts.lines_unreadable++;
        return HY_OK;
    }
    run->point_count++;
    run->is_start_last = false;
    return HY_OK;
}

/* ---- events ------------------------------------------------------------------------------------------ */

static const char *text_of(const hy_json_node *object, const char *key) {
    const char *text = "";
    hy_json_as_string(hy_json_get(object, key), &text, NULL);
    return text;
}

static int64_t count_of(const hy_json_node *object, const char *key) {
    int64_t count = -1;
    hy_json_as_int(hy_json_get(object, key), &count);
    return count;
}

/* "micro-batch 8 x 4 became 6 x 6: REASON". */
static void describe_batch(const hy_json_node *object, hy_text *out) {
    const char *reason = text_of(object, "reason");
    hy_text_addf(out, "micro-batch %lld x %lld became %lld x %lld",
                 (long long)count_of(object, "old_batch_size"),
                 (long long)count_of(object, "old_grad_accum"),
                 (long long)count_of(object, "batch_size"),
                 (long long)count_of(object, "grad_accum"));
    if (reason[0]) hy_text_addf(out, ": %s", reason);
}

static void describe_event(const char *kind, const hy_json_node *object, hy_text *out) {
    const char *text = text_of(object, "text");
    hy_text_add(out, "");
    if (strcmp(kind, "start") == 0) {
        hy_text_add(out, text_of(object, "command"));
    } else if (text[0]) {
        hy_text_add(out, text);
    } else if (strcmp(kind, "batch") == 0) {
        describe_batch(object, out);
    } else if (strcmp(kind, "memory") == 0) {
        hy_text_addf(out, "memory %s after %s", text_of(object, "status"),
                     text_of(object, "old_status"));
    }
}

/* A sitting begins: it says anew what the run is; the first one tells when it began. */
static hy_status take_start(hy_run *run, const hy_json_node *object) {
    double began = run->started.began;
    run->started = *hy_run_describe(NULL);
    HY_TRY(take_fields(run, object, start_fields, COUNT_OF(start_fields), &run->started));
    if (!isnan(began)) run->started.began = began;
    run->is_start_last = true;
    return HY_OK;
}

static hy_status take_event(hy_run *run, const char *kind, const hy_json_node *object) {
    HY_TRY(reserve((void **)&run->events, &run->event_capacity, run->event_count,
                   sizeof *run->events));
    hy_text text = {0};
    describe_event(kind, object, &text);
    hy_run_event event = {.kind = hy_words_share(&run->reasons, kind),
                          .text = hy_words_keep(&run->words, hy_text_string(&text)),
                          .step = count_of(object, "step"),
                          .elapsed = NAN,
                          .points_before = run->point_count};
    bool has_failed = text.has_failed || !event.kind || !event.text;
    hy_text_free(&text);
    if (has_failed) return hy_fail(HY_ERR_MEMORY, "out of memory reading %s", run->lines.path);
    hy_json_as_double(hy_json_get(object, "elapsed"), &event.elapsed);
    run->events[run->event_count++] = event;
    run->is_start_last = false;
    return strcmp(kind, "start") == 0 ? take_start(run, object) : HY_OK;
}

hy_status hy_run_take_line(hy_run *run, const char *line, size_t size) {
    hy_json *json;
    const char *kind;
    run->line_count++;
    hy_status status = hy_json_parse(line, size, "metrics.jsonl", &json);
    if (status == HY_ERR_MEMORY) return status;
    if (status != HY_OK) {
        run->facts.lines_unreadable++;
        return HY_OK;
    }
    const hy_json_node *root = hy_json_root(json);
    if (hy_json_type_of(root) != HY_JSON_OBJECT) {
        run->facts.lines_unreadable++;
    } else if (hy_json_as_string(hy_json_get(root, "event"), &kind, NULL)) {
        status = take_event(run, kind, root);
    } else {
        status = take_point(run, root);
    }
    hy_json_free(json);
    return status;
}
