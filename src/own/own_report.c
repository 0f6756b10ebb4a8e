/* own_report.c: the record of a run with a model of the caller's: OUT/metrics.jsonl, one object a
 * line: how it began, then a line a step or move; and OUT/summary.json, written whole at the end. See
 * own_model.h.
 *
 * Keys are those of the built-in trainer where they apply. A disk that fails ends the record, not
 * the run. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "own/own_model.h"
#include "trainer/record.h"

#define FLUSH_SECONDS 1.0

/* ---- the folder ------------------------------------------------------------------------------ */

static void choose_folder(hy_own_run *run) {
    char stamp[32];
    if (run->settings.out[0]) {
        snprintf(run->out, sizeof run->out, "%s", run->settings.out);
        return;
    }
    hy_clock_stamp(stamp, sizeof stamp);
    snprintf(run->out, sizeof run->out, "runs/own-%s", stamp);
    for (int i = 2; hy_path_exists(run->out) && i < 1000; i++) {
        snprintf(run->out, sizeof run->out, "runs/own-%s-%d", stamp, i);
    }
}

static hy_status check_unused(const hy_own_run *run, const char *name) {
    char path[HY_PATH_MAX];
    HY_TRY(hy_path_join(path, sizeof path, run->out, name));
    if (!hy_path_exists(path) || run->settings.save.overwrite) return HY_OK;
    return hy_fail(
        HY_ERR_INPUT,
        "%s holds a run already (%s); set overwrite to begin anew there, or choose another "
        "out",
        run->out, name);
}

static void end_record(hy_own_run *run) {
    hy_own_say(run, HY_WARNING, "%s; the run goes on without metrics", hy_error_message());
    hy_writer_abandon(run->metrics);
    run->metrics = NULL;
}

static hy_status put_start(hy_own_run *run, const char *command) {
    hy_record_start start = {.settings = &run->settings,
                             .command = command,
                             .model = "own",
                             .device = "cpu",
                             .predictor = hy_predictor_name(run->loop->predictor.kind),
                             .parameters = run->loop->elements,
                             .steps_total = run->settings.train.steps};
    hy_record_put_start(&start, &(hy_record_moment){0}, &run->line);
    HY_TRY(hy_text_status(&run->line));
    HY_TRY(hy_writer_put(run->metrics, run->line.data, run->line.size));
    return hy_writer_flush(run->metrics);
}

hy_status hy_own_record_open(hy_own_run *run, const char *command) {
    char path[HY_PATH_MAX];
    if (strcmp(run->settings.out, "none") == 0) return HY_OK;
    choose_folder(run);
    HY_TRY(check_unused(run, "metrics.jsonl"));
    HY_TRY(check_unused(run, "summary.json"));
    HY_TRY(hy_dir_make(run->out));
    HY_TRY(hy_path_join(path, sizeof path, run->out, "metrics.jsonl"));
    HY_TRY(hy_writer_create(path, &run->metrics));
    if (put_start(run, command) != HY_OK) end_record(run);
    return HY_OK;
}

/* ---- metrics.jsonl --------------------------------------------------------------------------- */

static void put_step(hy_json_writer *w, const hy_step_info *i) {
    hy_json_put_int(w, "step", i->step);
    hy_json_put_string(w, "phase", hy_phase_name(i->phase));
    hy_json_put_double(w, "loss", i->loss);
    hy_json_put_double(w, "lr", i->lr);
    hy_json_put_double(w, "grad_norm", i->grad_norm);
    hy_json_put_int(w, "tokens", i->tokens);
    hy_json_put_double(w, "tokens_per_second", i->tokens_per_second);
    hy_json_put_double(w, "seconds", i->seconds);
    hy_json_put_double(w, "elapsed", i->elapsed);
    hy_json_put_double(w, "confidence", i->confidence);
    hy_json_put_string(w, "precision", hy_dtype_name(i->precision));
    hy_json_put_int(w, "grad_accum", i->grad_accum);
    hy_json_put_int(w, "vram_bytes", (int64_t)i->vram_bytes);
    hy_json_put_int(w, "vram_peak_bytes", (int64_t)i->vram_peak_bytes);
    hy_json_put_int(w, "host_pinned_bytes", (int64_t)i->host_pinned_bytes);
    hy_json_put_double(w, "wait_seconds", i->wait_seconds);
    hy_json_put_int(w, "bytes_moved", (int64_t)i->bytes_moved);
}

static void put_move(hy_json_writer *w, const hy_step_info *i, const hy_own_note *note) {
    hy_json_put_double(w, "predicted_steps", i->predicted_steps);
    hy_json_put_bool(w, "rejected", i->was_rejected);
    hy_json_put_double(w, "guard_before", note->before);
    hy_json_put_double(w, "guard_after", note->after);
}

static void put_phase(hy_json_writer *w, const hy_step_info *i, const hy_own_note *note) {
    hy_json_put_double(w, "spent", i->spent);
    if (i->reason[0]) hy_json_put_string(w, "reason", i->reason);
    if (i->obstacle[0]) hy_json_put_string(w, "obstacle", i->obstacle);
    if (i->phase == HY_PREDICT) put_move(w, i, note);
    if (i->was_skipped) hy_json_put_bool(w, "skipped", true);
    if (i->was_rolled_back) hy_json_put_bool(w, "rolled_back", true);
    if (!isnan(i->residual_cosine)) hy_json_put_double(w, "residual_cosine", i->residual_cosine);
    if (!isnan(i->residual_length)) hy_json_put_double(w, "residual_length", i->residual_length);
    if (note->loss_scale != 1) hy_json_put_double(w, "loss_scale", note->loss_scale);
    if (!isnan(note->val_loss)) hy_json_put_double(w, "val_loss", note->val_loss);
}

static hy_status write_line(hy_own_run *run, const hy_step_info *info, const hy_own_note *note) {
    hy_json_writer w;
    hy_text_clear(&run->line);
    hy_json_begin(&w, &run->line, false);
    hy_json_open_object(&w, NULL);
    put_step(&w, info);
    hy_record_put_memory(&run->ledger, &w);
    put_phase(&w, info, note);
    hy_json_close_object(&w);
    hy_text_add(&run->line, "\n");
    HY_TRY(hy_text_status(&run->line));
    HY_TRY(hy_writer_put(run->metrics, run->line.data, run->line.size));
    double now = hy_clock();
    if (now - run->flushed < FLUSH_SECONDS) return HY_OK;
    run->flushed = now;
    return hy_writer_flush(run->metrics);
}

void hy_own_record_step(hy_own_run *run, const hy_step_info *info, const hy_own_note *note) {
    if (run->metrics && write_line(run, info, note) != HY_OK) end_record(run);
}

/* ---- summary.json ---------------------------------------------------------------------------- */

static void put_results(hy_json_writer *w, const hy_own_run *run) {
    const hy_own_summary *s = &run->summary;
    hy_json_put_int(w, "steps", s->steps);
    hy_json_put_int(w, "steps_total", run->settings.train.steps);
    hy_json_put_int(w, "full_steps", s->phase_steps[HY_WARMUP] + s->phase_steps[HY_FULL]);
    hy_json_put_double(w, "predicted_steps", s->predicted_steps);
    hy_json_put_int(w, "correct_steps", s->phase_steps[HY_CORRECT]);
    hy_json_put_int(w, "backward_passes", s->backward_passes);
    hy_json_put_int(w, "skipped_steps", s->skipped_steps);
    hy_json_put_string(w, "predictor", hy_predictor_name(run->loop->predictor.kind));
    hy_json_put_int(w, "moves", s->moves);
    hy_json_put_int(w, "rejected_moves", s->rejected_moves);
    hy_json_put_int(w, "divergences", run->loop->state.divergences);
    hy_json_put_double(w, "spent", s->spent);
    hy_json_put_int(w, "tokens", run->tokens);
    hy_json_put_double(w, "seconds", s->seconds);
    hy_json_put_double(w, "tokens_per_second",
                       s->seconds > 0 ? (double)run->tokens / s->seconds : 0);
    hy_json_put_double(w, "final_loss", s->final_loss);
    hy_json_put_double(w, "val_loss", s->val_loss);
    hy_json_put_double(w, "confidence", s->confidence);
}

static void put_phases(hy_json_writer *w, const hy_own_run *run) {
    hy_json_open_object(w, "phases");
    for (int i = 0; i < HY_PHASE_COUNT; i++) {
        hy_json_open_object(w, hy_phase_name((hy_phase)i));
        hy_json_put_int(w, "steps", run->summary.phase_steps[i]);
        hy_json_put_double(w, "seconds", run->phase_seconds[i]);
        hy_json_put_string(w, "precision", hy_dtype_name(run->precision[i]));
        hy_json_put_int(w, "vram_peak_bytes", (int64_t)run->ledger.phase_peak[i]);
        hy_json_put_double(w, "wait_seconds", run->phase_wait[i]);
        hy_json_put_int(w, "bytes_moved", (int64_t)run->phase_moved[i]);
        hy_json_put_int(w, "optimizer_bytes", (int64_t)run->summary.optimizer_bytes[i]);
        hy_json_close_object(w);
    }
    hy_json_close_object(w);
}

static void put_summary(hy_text *text, const hy_own_run *run, bool is_finished) {
    hy_json_writer w;
    hy_json_begin(&w, text, true);
    hy_json_open_object(&w, NULL);
    hy_json_put_string(&w, "program", "hybrid " HYBRID_VERSION);
    hy_json_put_bool(&w, "finished", is_finished);
    hy_json_put_string(&w, "model", "own");
    hy_json_put_int(&w, "parameters", run->loop->elements);
    hy_json_put_string(&w, "device", "cpu");
    put_results(&w, run);
    put_phases(&w, run);
    hy_json_close_object(&w);
    hy_text_add(text, "\n");
}

static hy_status write_summary(const hy_own_run *run, bool is_finished) {
    char path[HY_PATH_MAX];
    hy_text text = {0};
    put_summary(&text, run, is_finished);
    hy_status status = hy_text_status(&text);
    if (status == HY_OK) status = hy_path_join(path, sizeof path, run->out, "summary.json");
    if (status == HY_OK) status = hy_file_write_atomic(path, text.data, text.size);
    hy_text_free(&text);
    return status;
}

hy_status hy_own_record_close(hy_own_run *run, bool is_finished) {
    if (!run->out[0]) return HY_OK;
    hy_status closed = hy_writer_close(run->metrics, true);
    run->metrics = NULL;
    HY_TRY(write_summary(run, is_finished));
    return closed;
}
