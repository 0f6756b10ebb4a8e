/* own_model.c: hy_train_own: a run with the caller's parameters and callbacks, from the first step
 * to the last. See own_model.h.
 *
 * Each turn of the loop is an optimizer step or a jump; then, in this order: the observer, validation
 * when it is due, the line of metrics. A callback that fails ends the run with its status; the
 * weights are then those of the last step that was done. */
#include "own/own_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "base/say.h"

/* ---- the record: OUT/metrics.jsonl as the built-in trainer writes it, and OUT/summary.json ------ */

static hy_status record_open(hy_own_run *run, const char *command) {
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
    static const char *const files[] = {"metrics.jsonl", "summary.json"};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        char path[HY_PATH_MAX];
        HY_TRY(hy_path_join(path, sizeof path, r->out, files[i]));
        HY_FAIL_IF(hy_path_exists(path) && !s->save.overwrite, HY_ERR_INPUT,
                   "%s holds a run already (%s); set overwrite to begin anew there, or choose "
                   "another out",
                   r->out, files[i]);
    }
    HY_TRY(hy_dir_make(r->out));
    HY_TRY(hy_record_lock(r));
    r->observer = run->observer;
    r->conditions = HY_IF_OWN;
    return hy_record_open(r, s, &start, &(hy_moment){0});
}

static hy_status write_summary(const hy_own_run *run, bool is_finished) {
    const hy_own_summary *s = &run->summary;
    hy_text text = {0};
    hy_json_writer w;
    hy_json_begin(&w, &text, true);
    hy_json_open_object(&w, NULL);
    hy_json_put_string(&w, "program", "hybrid " HYBRID_VERSION);
    hy_json_put_bool(&w, "finished", is_finished);
    hy_json_put_string(&w, "model", "own");
    hy_json_put_int(&w, "parameters", run->loop->elements);
    hy_json_put_string(&w, "device", "cpu");
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
    hy_json_open_object(&w, "phases");
    for (int i = 0; i < HY_PHASE_COUNT; i++) {
        hy_json_open_object(&w, hy_phase_name((hy_phase)i));
        hy_json_put_int(&w, "steps", s->phase_steps[i]);
        hy_json_put_double(&w, "seconds", run->phase_seconds[i]);
        hy_json_put_string(&w, "precision", hy_dtype_name(run->precision[i]));
        hy_json_put_int(&w, "vram_peak_bytes", (int64_t)run->ledger.phase_peak[i]);
        hy_json_put_double(&w, "wait_seconds", run->phase_wait[i]);
        hy_json_put_int(&w, "bytes_moved", (int64_t)run->phase_moved[i]);
        hy_json_put_int(&w, "optimizer_bytes", (int64_t)s->optimizer_bytes[i]);
        hy_json_close_object(&w);
    }
    hy_json_close_object(&w);
    hy_json_close_object(&w);
    hy_text_add(&text, "\n");
    hy_status status = hy_text_status(&text);
    if (status == HY_OK) status = hy_record_write(&run->record, "summary.json", text.data);
    hy_text_free(&text);
    return status;
}

/* ---- from a configuration to a run that can begin ----------------------------------------------- */

/* Everything that can be wrong is checked before anything is written; all memory is taken here. */

#define FIRST_LOSS_SCALE 0x1p16

/* Gradients of Warmup and Correct cannot be coarser than those of Full, and the guard cannot judge weights
 * finer than Full computes with. auto is fp32, as everywhere on a CPU. */
static hy_status choose_precision(hy_own_run *run) {
    hy_dtype *of = run->precision;
    for (int i = 0; i < HY_PHASE_COUNT; i++) {
        hy_dtype_choice asked = hy_settings_precision(&run->settings, (hy_phase)i);
        of[i] = hy_dtype_chosen(asked, asked == HY_DTYPE_16BIT ? HY_BF16 : HY_F32);
    }
    for (int i = 0; i < HY_PHASE_COUNT; i++) {
        hy_dtype finer = i == HY_PREDICT ? of[i] : of[HY_FULL];
        hy_dtype coarser = i == HY_PREDICT ? of[HY_FULL] : of[i];
        HY_FAIL_IF(finer == HY_F32 && coarser != HY_F32, HY_ERR_INPUT,
                   "precision_%s is %s and precision_full %s; %s cannot be %s than full",
                   hy_phase_name((hy_phase)i), hy_dtype_name(of[i]), hy_dtype_name(of[HY_FULL]),
                   hy_phase_name((hy_phase)i), i == HY_PREDICT ? "finer" : "coarser");
    }
    return HY_OK;
}

static hy_status take_buffers(hy_own_run *run) {
    size_t elements = (size_t)run->loop->elements;
    bool sums_means = !run->settings.train.normalize && run->settings.train.grad_accum_steps > 1;
    bool is_any_low = false;
    for (int i = 0; i < HY_PHASE_COUNT; i++) is_any_low |= run->precision[i] != HY_F32;
    if (is_any_low) {
        run->exact = malloc(elements * sizeof *run->exact);
        if (!run->exact) return hy_fail(HY_ERR_MEMORY, "no memory for the exact weights");
    }
    if (sums_means) {
        run->mean_grads = malloc(elements * sizeof *run->mean_grads);
        if (!run->mean_grads) return hy_fail(HY_ERR_MEMORY, "no memory for sums of gradients");
    }
    return hy_own_offload_init(run);
}

static hy_status build(hy_own_run *run, const hy_config *config) {
    const hy_settings *s = &run->settings;
    HY_FAIL_IF(!run->model.forward || !run->model.backward, HY_ERR_INPUT,
               "a model of your own needs a %s callback, it is NULL",
               run->model.forward ? "backward" : "forward");
    HY_FAIL_IF(s->save.resume[0], HY_ERR_INPUT,
               "resume is \"%s\", but runs of your own model have no checkpoints: their weights "
               "are yours to save",
               s->save.resume);
    HY_TRY(hy_loop_create(config, run->model.parameters, run->model.parameter_count, &run->loop));
    double batches = (double)s->train.grad_accum_steps;
    if (s->train.scale_lr) run->loop->schedule.lr *= batches;
    run->guard_batches = (int64_t)ceil(s->phases.guard_share * batches);
    run->loop->guard_cost = (double)run->guard_batches / batches / 3; /* whole micro-batches */
    run->scale.scale = FIRST_LOSS_SCALE;
    run->summary.val_loss = run->summary.final_loss = NAN;
    HY_TRY(choose_precision(run));
    HY_TRY(take_buffers(run));
    /* What is kept beside the caller's arrays. Only m and v ever change places. */
    const hy_loop *loop = run->loop;
    uint64_t copy = (uint64_t)loop->elements * sizeof(float);
    int buffers = hy_predictor_buffers(loop->predictor.kind);
    for (int i = 0; i < HY_PHASE_COUNT; i++) {
        hy_ledger_plan(&run->ledger, HY_OPTIM, (hy_phase)i, HY_DEVICE, HY_F32, 2 * copy);
    }
    hy_ledger_enter(&run->ledger, loop->state.phase);
    hy_ledger_take(&run->ledger, HY_OPTIM, HY_DEVICE, 2 * copy);
    hy_ledger_take(&run->ledger, HY_PREDICTOR, HY_HOST, (uint64_t)buffers * copy);
    if (loop->snapshot) hy_ledger_take(&run->ledger, HY_SNAPSHOT, HY_HOST, copy);
    if (run->exact) hy_ledger_take(&run->ledger, HY_MASTER, HY_DEVICE, copy);
    return record_open(run, hy_config_command(config));
}

/* ---- an optimizer step ----------------------------------------------------------------------- */

static hy_status optimizer_step(hy_own_run *run, hy_step_line *line) {
    hy_step_info *info = &line->step;
    hy_own_losses losses;
    hy_loop_outcome done;
    double begin = hy_clock(), grad_scale;
    hy_ledger_enter(&run->ledger, info->phase);
    info->bytes_moved = hy_own_offload_move(run, false);
    info->wait_seconds = hy_clock() - begin;
    /* The loss scale takes the blame when gradients are not finite. */
    bool is_scaled = info->precision == HY_F16 && run->scale.scale > 1;
    if (is_scaled) line->loss_scale = run->scale.scale;
    HY_TRY(hy_own_backward(run, info->phase, &losses, &grad_scale));
    info->loss = losses.sum / (double)losses.counted;
    hy_status status = hy_loop_update_scaled(run->loop, info->loss, grad_scale, is_scaled, &done);
    if (info->precision == HY_F16) hy_loss_scale_adapt(&run->scale, done.was_skipped);
    hy_health health = run->loop->health;
    long long step = (long long)run->summary.steps + 1;
    if (is_scaled && done.was_skipped && isfinite(info->loss)) {
        hy_say_to(&run->observer, HY_NOTE,
                  "step %lld: the gradient overflowed; the loss scale is now %g", step,
                  run->scale.scale);
    } else if (health != HY_HEALTHY) {
        hy_say_to(&run->observer, HY_WARNING, "step %lld: %s (loss %.4g, gradient norm %.3g)%s",
                  step, hy_health_text(health), info->loss, done.grad_norm,
                  done.was_rolled_back ? "; the last jump was undone" : "");
    }
    info->grad_norm = done.grad_norm;
    info->was_skipped = done.was_skipped;
    info->was_rolled_back = done.was_rolled_back;
    info->residual_cosine = done.residual_cosine;
    info->residual_length = done.residual_length;
    double rate = (double)losses.counted / fmax(hy_clock() - begin, 1e-9);
    run->loss_tail[run->summary.steps++ % HY_LOSS_TAIL] = info->loss;
    run->summary.skipped_steps += done.was_skipped;
    run->tokens += losses.counted;
    run->rate = run->rate > 0 ? 0.9 * run->rate + 0.1 * rate : rate;
    return status;
}

/* ---- a jump ---------------------------------------------------------------------------------- */

static hy_status jump(hy_own_run *run, hy_step_line *line) {
    hy_step_info *info = &line->step;
    double begin = hy_clock();
    hy_loop_outcome done;
    info->bytes_moved = hy_own_offload_move(run, true);
    info->wait_seconds = hy_clock() - begin;
    hy_ledger_enter(&run->ledger, HY_PREDICT);
    /* Both guard passes, with the jump between them; a callback that fails takes it back. */
    HY_TRY(hy_own_guard_pass(run, &line->guard_before));
    HY_TRY(hy_loop_propose(run->loop));
    hy_status status = hy_own_guard_pass(run, &line->guard_after);
    if (status != HY_OK) {
        hy_loop_judge(run->loop, NAN, NAN, NULL);
        return status;
    }
    HY_TRY(hy_loop_judge(run->loop, line->guard_before, line->guard_after, &done));
    info->was_rejected = !done.was_accepted;
    info->loss = done.was_accepted ? line->guard_after : line->guard_before;
    info->predicted_steps = done.was_accepted ? done.predicted_steps : 0;
    run->summary.moves += done.was_accepted;
    run->summary.rejected_moves += !done.was_accepted;
    run->summary.predicted_steps += info->predicted_steps;
    if (done.was_accepted) return HY_OK;
    hy_say_to(&run->observer, HY_NOTE,
              "step %lld: a jump of %.1f predicted steps was rejected: the loss would go from "
              "%.4f to %.4f",
              (long long)run->summary.steps, done.predicted_steps, line->guard_before,
              line->guard_after);
    return HY_OK;
}

/* ---- the run --------------------------------------------------------------------------------- */

/* Where it is due: at the end, and after every so many steps. */
static hy_status validate(hy_own_run *run, hy_step_line *line) {
    int64_t every = run->settings.eval.eval_every;
    bool is_over = hy_loop_is_over(run->loop), is_jump = line->step.phase == HY_PREDICT;
    bool is_due = is_over || (!is_jump && every > 0 && run->summary.steps % every == 0);
    hy_own_losses losses;
    double begin = hy_clock();
    if (!run->model.evaluate || !is_due) return HY_OK;
    HY_TRY(hy_own_evaluate(run, &losses));
    run->summary.val_loss = line->val_loss = losses.sum / (double)losses.counted;
    hy_eval_info info = {.step = run->summary.steps,
                         .loss = line->val_loss,
                         .tokens = losses.counted,
                         .seconds = hy_clock() - begin,
                         .is_final = is_over};
    if (run->observer.on_eval) run->observer.on_eval(run->observer.user, &info);
    return HY_OK;
}

static hy_status train(hy_own_run *run) {
    hy_loop_step step;
    HY_TRY(hy_loop_next(run->loop, &step));
    while (!step.is_over) {
        double begin = hy_clock();
        hy_step_line line = {.step = {.steps_total = run->settings.train.steps,
                                      .phase = step.phase,
                                      .reason = step.reason,
                                      .obstacle = step.obstacle,
                                      .lr = step.lr,
                                      .confidence = step.confidence,
                                      .precision = run->precision[step.phase],
                                      .grad_accum = run->settings.train.grad_accum_steps,
                                      .residual_cosine = NAN,
                                      .residual_length = NAN},
                             .loss_scale = NAN,
                             .val_loss = NAN};
        hy_step_info *info = &line.step;
        HY_TRY(step.wants_backward ? optimizer_step(run, &line) : jump(run, &line));
        double seconds = hy_clock() - begin;
        double spent = run->loop->spent;
        run->summary.seconds += seconds;
        run->summary.phase_steps[info->phase]++;
        run->phase_seconds[info->phase] += seconds;
        run->phase_wait[info->phase] += info->wait_seconds;
        run->phase_moved[info->phase] += info->bytes_moved;
        info->step = run->summary.steps;
        info->spent = spent;
        info->seconds = seconds;
        info->elapsed = run->summary.seconds;
        info->remaining = fmax(run->loop->budget - spent, 0) * run->summary.seconds / spent;
        info->tokens = run->tokens;
        info->tokens_per_second = run->rate;
        info->vram_bytes = run->ledger.live_in[HY_DEVICE];
        info->vram_peak_bytes = run->ledger.peak_in[HY_DEVICE];
        info->host_pinned_bytes = run->ledger.live_in[HY_PINNED];
        if (run->observer.on_step) run->observer.on_step(run->observer.user, info);
        hy_status status = validate(run, &line);
        hy_record_step(&run->record, &line, &run->ledger);
        HY_TRY(status);
        HY_TRY(hy_loop_next(run->loop, &step));
    }
    return HY_OK;
}

/* The first failure counts: a record that cannot be written does not hide why the run ended. */
static hy_status finish(hy_own_run *run, hy_status status) {
    char message[HY_ERROR_MESSAGE_MAX];
    snprintf(message, sizeof message, "%s", hy_error_message());
    hy_own_summary *s = &run->summary;
    int64_t count = s->steps < HY_LOSS_TAIL ? s->steps : HY_LOSS_TAIL;
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += run->loss_tail[i];
    if (count) s->final_loss = sum / (double)count;
    s->spent = run->loop->spent;
    s->confidence = hy_confidence_value(&run->loop->confidence);
    for (int i = 0; i < HY_PHASE_COUNT; i++) {
        s->optimizer_bytes[i] = run->ledger.cell[HY_OPTIM][i].measured;
    }
    hy_status recorded = HY_OK, closed = HY_OK;
    if (run->record.out[0]) {
        closed = hy_record_close(&run->record);
        recorded = write_summary(run, status == HY_OK);
    }
    if (status != HY_OK) return hy_fail(status, "%s", message);
    return recorded != HY_OK ? recorded : closed;
}

hy_status hy_train_own(const hy_config *config, const hy_own_model *model,
                       const hy_observer *observer, hy_own_summary *summary) {
    HY_FAIL_IF(!config || !model, HY_ERR_INPUT,
               "hy_train_own needs a configuration and a model, one is NULL");
    hy_own_run *run = calloc(1, sizeof *run);
    if (!run) return hy_fail(HY_ERR_MEMORY, "no memory for a run");
    run->settings = *hy_config_settings(config);
    run->model = *model;
    if (observer) run->observer = *observer;
    hy_status status = build(run, config);
    if (status == HY_OK) status = finish(run, train(run));
    if (summary) *summary = run->summary;
    hy_record_release(&run->record);
    free(run->offload.away);
    free(run->exact);
    free(run->mean_grads);
    hy_loop_destroy(run->loop);
    free(run);
    return status;
}
