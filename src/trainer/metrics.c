/* metrics.c: OUT/metrics.jsonl, one object a line: a line a step, and lines of what happens between.
 *
 * The file only grows while a run goes on and is flushed about once a second. A resumed run first drops
 * the lines past its checkpoint, so that every step stands there once; then each sitting begins with a
 * line of its own. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "formats/tfevents.h"
#include "trainer/record.h"
#include "trainer/trainer.h"

#define FLUSH_SECONDS 1.0

/* Whether a line tells of something the checkpoint has seen. Lines cut by a crash do not. Compute spent
 * is compared, because a step and the move after it have the same number. What happened right after the
 * checkpoint's own step stays: it did happen, and how the run goes on is in the line that follows. */
static bool is_line_kept(const char *line, size_t size, double last_spent) {
    hy_json *json;
    double spent;
    if (hy_json_parse(line, size, "metrics.jsonl", &json) != HY_OK) return false;
    bool is_kept =
        hy_json_double(json, hy_json_root(json), "spent", &spent) == HY_OK && spent <= last_spent;
    hy_json_free(json);
    return is_kept;
}

/* Each line by itself: what happens while a fork is tried has a number ahead of the lines after it. */
static hy_status drop_later_lines(const char *path, double last_spent) {
    char *text;
    size_t size, kept = 0;
    HY_TRY(hy_file_read(path, &text, &size));
    for (size_t at = 0, length; at < size; at += length) {
        const char *newline = memchr(text + at, '\n', size - at);
        if (!newline) break;
        length = (size_t)(newline - (text + at)) + 1;
        if (!is_line_kept(text + at, length - 1, last_spent)) continue;
        memmove(text + kept, text + at, length);
        kept += length;
    }
    hy_status status = kept == size ? HY_OK : hy_file_write_atomic(path, text, kept);
    free(text);
    return status;
}

/* A disk that is full ends the record, not the run. */
static void end_record(hy_trainer *t) {
    hy_say(t, HY_WARNING, "%s; the run goes on without metrics", hy_error_message());
    hy_writer_abandon(t->metrics);
    t->metrics = NULL;
}

/* Writes the line that is ready. */
static hy_status put_ready_line(hy_trainer *t) {
    HY_TRY(hy_text_status(&t->line));
    return hy_writer_put(t->metrics, t->line.data, t->line.size);
}

static hy_status flush(hy_trainer *t) {
    t->metrics_flushed = hy_clock();
    hy_tensorboard_flush(t);
    return hy_writer_flush(t->metrics);
}

static hy_record_moment moment(const hy_trainer *t) {
    const hy_progress *p = &t->progress;
    return (hy_record_moment){.step = p->step, .spent = p->spent, .elapsed = p->seconds};
}

static hy_status put_start(hy_trainer *t) {
    const hy_settings *s = &t->settings;
    hy_record_moment now = moment(t);
    hy_record_start start = {
        .settings = s,
        .command = t->command,
        .model = s->model,
        .device = t->engine.backend->facts.name,
        .data = hy_dataset_describe(t->data.set)->description,
        .predictor = hy_predictor_name(t->engine.predictor.kind),
        .resumed = t->resumed[0] ? t->resumed : NULL,
        .parameters = t->engine.model->params.elements,
        .steps_total = t->course.steps_total,
        .tokens_per_step = s->train.batch_size * s->train.seq_len * s->train.grad_accum_steps,
        .vram_budget_bytes = hy_trainer_device_limit(t),
        .host_budget_bytes = hy_trainer_host_limit(t),
    };
    hy_text_clear(&t->line);
    hy_record_put_start(&start, &now, &t->line);
    HY_TRY(put_ready_line(t));
    return flush(t);
}

hy_status hy_metrics_open(hy_trainer *t) {
    char path[HY_PATH_MAX];
    HY_TRY(hy_path_join(path, sizeof path, t->out, "metrics.jsonl"));
    bool goes_on = t->resumed[0] && hy_path_exists(path);
    if (goes_on) HY_TRY(drop_later_lines(path, t->progress.spent));
    HY_TRY(goes_on ? hy_writer_append(path, &t->metrics) : hy_writer_create(path, &t->metrics));
    if (put_start(t) != HY_OK) end_record(t);
    return HY_OK;
}

/* ---- steps ------------------------------------------------------------------------------------- */

static void put_known(hy_json_writer *w, const char *key, double value) {
    if (!isnan(value)) hy_json_put_double(w, key, value);
}

static void put_gpu(const hy_step_info *i, hy_json_writer *w) {
    if (i->mfu > 0) hy_json_put_double(w, "mfu", i->mfu);
    if (i->sol > 0) hy_json_put_double(w, "sol", i->sol);
    if (!i->gpu.is_known) return;
    put_known(w, "gpu_power_watts", i->gpu.power_watts);
    put_known(w, "gpu_temperature_c", i->gpu.temperature_c);
    put_known(w, "gpu_sm_clock_mhz", i->gpu.sm_clock_mhz);
    put_known(w, "gpu_utilization", i->gpu.utilization);
}

static void put_bytes(hy_json_writer *w, const char *key, uint64_t bytes) {
    if (bytes) hy_json_put_int(w, key, (int64_t)bytes);
}

static void put_memory(const hy_trainer *t, const hy_step_info *i, hy_json_writer *w) {
    hy_json_put_int(w, "vram_bytes", (int64_t)i->vram_bytes);
    hy_json_put_int(w, "vram_peak_bytes", (int64_t)i->vram_peak_bytes);
    put_bytes(w, "vram_planned_bytes", i->vram_planned_bytes);
    put_bytes(w, "vram_reserved_bytes", i->vram_reserved_bytes);
    put_bytes(w, "vram_free_bytes", i->vram_free_bytes);
    hy_json_put_int(w, "host_pinned_bytes", (int64_t)i->host_pinned_bytes);
    put_bytes(w, "host_resident_bytes", i->host_resident_bytes);
    if (strcmp(t->settings.memory.monitor, "off") != 0) {
        hy_json_put_string(w, "memory_status", hy_memory_status_name(i->memory_status));
    }
    hy_record_put_memory(&t->engine.ledger, w);
}

static void put_line(const hy_trainer *t, const hy_step_info *i, double val_loss, hy_text *line) {
    hy_json_writer w;
    hy_json_begin(&w, line, false);
    hy_json_open_object(&w, NULL);
    hy_json_put_int(&w, "step", i->step);
    hy_json_put_string(&w, "phase", hy_phase_name(i->phase));
    hy_json_put_double(&w, "loss", i->loss);
    hy_json_put_double(&w, "lr", i->lr);
    hy_json_put_double(&w, "grad_norm", i->grad_norm);
    hy_json_put_int(&w, "tokens", i->tokens);
    hy_json_put_double(&w, "tokens_per_second", i->tokens_per_second);
    hy_json_put_double(&w, "seconds", i->seconds);
    hy_json_put_double(&w, "elapsed", i->elapsed);
    hy_json_put_double(&w, "confidence", i->confidence);
    hy_json_put_string(&w, "precision", hy_dtype_name(i->precision));
    hy_json_put_int(&w, "batch_size", i->batch_size);
    hy_json_put_int(&w, "grad_accum", i->grad_accum);
    put_memory(t, i, &w);
    hy_json_put_double(&w, "wait_seconds", i->wait_seconds);
    hy_json_put_int(&w, "bytes_moved", (int64_t)i->bytes_moved);
    hy_json_put_double(&w, "spent", i->spent);
    put_gpu(i, &w);
    if (i->phase == HY_PREDICT) {
        hy_json_put_double(&w, "predicted_steps", i->predicted_steps);
        hy_json_put_bool(&w, "rejected", i->was_rejected);
    }
    if (!isnan(i->residual_cosine)) {
        hy_json_put_double(&w, "residual_cosine", i->residual_cosine);
        hy_json_put_double(&w, "residual_length", i->residual_length);
    }
    if (i->was_rolled_back) hy_json_put_bool(&w, "rolled_back", true);
    if (i->reason[0]) hy_json_put_string(&w, "reason", i->reason);
    if (i->was_skipped) hy_json_put_bool(&w, "skipped", true);
    if (!isnan(val_loss)) hy_json_put_double(&w, "val_loss", val_loss);
    hy_json_close_object(&w);
    hy_text_add(line, "\n");
}

hy_status hy_metrics_line(hy_trainer *t, const hy_step_info *info, double val_loss) {
    hy_tensorboard_step(t, info, val_loss);
    if (!t->metrics) return HY_OK;
    hy_text_clear(&t->line);
    put_line(t, info, val_loss, &t->line);
    HY_TRY(put_ready_line(t));
    return hy_clock() - t->metrics_flushed < FLUSH_SECONDS ? HY_OK : flush(t);
}

/* ---- what happens between them ----------------------------------------------------------------- */

static hy_status put_event(hy_trainer *t, const hy_record_event *event) {
    hy_record_moment now = moment(t);
    hy_text_clear(&t->line);
    hy_record_put_event(event, &now, &t->line);
    HY_TRY(put_ready_line(t));
    return flush(t);
}

void hy_metrics_event(hy_trainer *t, const hy_record_event *event) {
    if (t->metrics && put_event(t, event) != HY_OK) end_record(t);
}

/* ---- the end ----------------------------------------------------------------------------------- */

hy_status hy_metrics_close(hy_trainer *t) {
    hy_tensorboard_close(t);
    hy_status status = hy_writer_close(t->metrics, true);
    t->metrics = NULL;
    return status;
}

void hy_metrics_release(hy_trainer *t) {
    hy_tfevents_close(t->tensorboard, false);
    t->tensorboard = NULL;
    hy_writer_close(t->metrics, false);
    t->metrics = NULL;
    hy_text_free(&t->line);
}
