/* own_report.c: the record of a run with a model of the caller's: OUT/metrics.jsonl, as the built-in
 * trainer writes it, and OUT/summary.json, written whole at the end. See own_model.h. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "own/own_model.h"

static hy_status check_unused(const hy_own_run *run, const char *name) {
    char path[HY_PATH_MAX];
    HY_TRY(hy_path_join(path, sizeof path, run->record.out, name));
    if (!hy_path_exists(path) || run->settings.save.overwrite) return HY_OK;
    return hy_fail(
        HY_ERR_INPUT,
        "%s holds a run already (%s); set overwrite to begin anew there, or choose another "
        "out",
        run->record.out, name);
}

hy_status hy_own_record_open(hy_own_run *run, const char *command) {
    const hy_settings *s = &run->settings;
    hy_record *r = &run->record;
    hy_start_line start = {.command = command,
                           .model = "own",
                           .device = "cpu",
                           .predictor = hy_choice_name("predictor", (int)run->loop->predictor.kind),
                           .parameters = run->loop->elements,
                           .steps_total = s->train.steps};
    if (strcmp(s->out, "none") == 0) return HY_OK;
    if (s->out[0]) {
        snprintf(r->out, sizeof r->out, "%s", s->out);
    } else {
        hy_default_folder("own", r->out);
    }
    HY_TRY(check_unused(run, "metrics.jsonl"));
    HY_TRY(check_unused(run, "summary.json"));
    HY_TRY(hy_dir_make(r->out));
    r->observer = run->observer;
    r->conditions = HY_IF_OWN;
    return hy_record_open(r, s, &start, &(hy_moment){0});
}

/* ---- summary.json ---------------------------------------------------------------------------- */

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

static hy_status write_summary(const hy_own_run *run, bool is_finished) {
    hy_text text = {0};
    hy_json_writer w;
    hy_json_begin(&w, &text, true);
    hy_json_open_object(&w, NULL);
    hy_json_put_string(&w, "program", "hybrid " HYBRID_VERSION);
    hy_json_put_bool(&w, "finished", is_finished);
    hy_json_put_string(&w, "model", "own");
    hy_json_put_int(&w, "parameters", run->loop->elements);
    hy_json_put_string(&w, "device", "cpu");
    const hy_own_summary *s = &run->summary;
    hy_json_put_int(&w, "steps", s->steps);
    hy_json_put_int(&w, "steps_total", run->settings.train.steps);
    hy_json_put_int(&w, "full_steps", s->phase_steps[HY_WARMUP] + s->phase_steps[HY_FULL]);
    hy_json_put_double(&w, "predicted_steps", s->predicted_steps);
    hy_json_put_int(&w, "correct_steps", s->phase_steps[HY_CORRECT]);
    hy_json_put_int(&w, "backward_passes", s->backward_passes);
    hy_json_put_int(&w, "skipped_steps", s->skipped_steps);
    hy_json_put_string(&w, "predictor", hy_choice_name("predictor", run->loop->predictor.kind));
    hy_json_put_int(&w, "moves", s->moves);
    hy_json_put_int(&w, "rejected_moves", s->rejected_moves);
    hy_json_put_int(&w, "divergences", run->loop->state.divergences);
    hy_json_put_double(&w, "spent", s->spent);
    hy_json_put_int(&w, "tokens", run->tokens);
    hy_json_put_double(&w, "seconds", s->seconds);
    hy_json_put_double(&w, "tokens_per_second",
                       s->seconds > 0 ? (double)run->tokens / s->seconds : 0);
    hy_json_put_double(&w, "final_loss", s->final_loss);
    hy_json_put_double(&w, "val_loss", s->val_loss);
    hy_json_put_double(&w, "confidence", s->confidence);
    put_phases(&w, run);
    hy_json_close_object(&w);
    hy_text_add(&text, "\n");
    hy_status status = hy_text_status(&text);
    if (status == HY_OK) status = hy_record_write(&run->record, "summary.json", text.data);
    hy_text_free(&text);
    return status;
}

hy_status hy_own_record_close(hy_own_run *run, bool is_finished) {
    if (!run->record.out[0]) return HY_OK;
    hy_status closed = hy_record_close(&run->record);
    HY_TRY(write_summary(run, is_finished));
    return closed;
}
