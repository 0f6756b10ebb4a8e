/* record.c: the lines of events, and memory by class, as JSON. See record.h.
 *
 * Used by the trainer's own runs and by runs with a model of the caller's, so that readers find the same
 * keys in both. */
#include "trainer/record.h"

#include "base/clock.h"

static void put_text(hy_json_writer *w, const char *key, const char *text) {
    if (text) hy_json_put_string(w, key, text);
}

static void put_count(hy_json_writer *w, const char *key, int64_t count) {
    if (count > 0) hy_json_put_int(w, key, count);
}

static void open_event(hy_json_writer *w, hy_text *line, const char *event,
                       const hy_record_moment *when) {
    hy_json_begin(w, line, false);
    hy_json_open_object(w, NULL);
    hy_json_put_string(w, "event", event);
    hy_json_put_int(w, "step", when->step);
    hy_json_put_double(w, "spent", when->spent);
    hy_json_put_double(w, "elapsed", when->elapsed);
}

static void close_event(hy_json_writer *w) {
    hy_json_close_object(w);
    hy_text_add(w->text, "\n");
}

static void put_thresholds(const hy_settings *s, hy_json_writer *w) {
    hy_json_open_object(w, "thresholds");
    hy_json_put_double(w, "target", s->memory.target_usage);
    hy_json_put_double(w, "warning", s->memory.warning_usage);
    hy_json_put_double(w, "critical", s->memory.critical_usage);
    hy_json_put_double(w, "emergency", s->memory.emergency_usage);
    hy_json_close_object(w);
}

void hy_record_put_start(const hy_record_start *start, const hy_record_moment *when,
                         hy_text *line) {
    const hy_settings *s = start->settings;
    hy_json_writer w;
    open_event(&w, line, "start", when);
    hy_json_put_double(&w, "time", hy_clock_unix());
    hy_json_put_string(&w, "version", HYBRID_VERSION);
    put_text(&w, "command", start->command);
    put_text(&w, "model", start->model);
    hy_json_put_int(&w, "parameters", start->parameters);
    put_text(&w, "device", start->device);
    put_text(&w, "data", start->data);
    put_text(&w, "predictor", start->predictor);
    put_text(&w, "resumed", start->resumed);
    hy_json_put_int(&w, "steps_total", start->steps_total);
    if (start->tokens_per_step > 0) { /* a model of the caller's has batches of its own */
        hy_json_put_int(&w, "tokens_per_step", start->tokens_per_step);
        hy_json_put_int(&w, "seq_len", s->train.seq_len);
        hy_json_put_int(&w, "batch_size", s->train.batch_size);
    }
    hy_json_put_int(&w, "grad_accum", s->train.grad_accum_steps);
    put_count(&w, "vram_budget_bytes", (int64_t)start->vram_budget_bytes);
    put_count(&w, "host_budget_bytes", (int64_t)start->host_budget_bytes);
    put_thresholds(s, &w);
    close_event(&w);
}

void hy_record_put_event(const hy_record_event *e, const hy_record_moment *when, hy_text *line) {
    hy_json_writer w;
    open_event(&w, line, e->event, when);
    put_count(&w, "batch_size", e->batch_size);
    put_count(&w, "grad_accum", e->grad_accum);
    put_count(&w, "old_batch_size", e->old_batch_size);
    put_count(&w, "old_grad_accum", e->old_grad_accum);
    put_text(&w, "reason", e->reason);
    put_text(&w, "status", e->status);
    put_text(&w, "old_status", e->old_status);
    if (e->status) hy_json_put_double(&w, "utilization", e->utilization);
    put_text(&w, "text", e->text);
    close_event(&w);
}

static void put_place(const hy_ledger *ledger, const char *key, hy_place place, hy_json_writer *w) {
    hy_json_open_object(w, key);
    for (int cls = 0; cls < HY_CLASS_COUNT; cls++) {
        put_count(w, hy_class_name((hy_class)cls), (int64_t)ledger->most[cls][place]);
    }
    hy_json_close_object(w);
}

void hy_record_put_memory(const hy_ledger *ledger, hy_json_writer *w) {
    put_place(ledger, "memory", HY_DEVICE, w);
    put_place(ledger, "pinned", HY_PINNED, w);
}
