/* fork.c: a paired test shows whether prediction helps on this run. See fork.h and
 * phases/confidence.h.
 *
 * When confidence is below its threshold and a window is complete, the run's state is copied to the
 * host and a few windows are trained with jumps. Losses are measured on training sequences that
 * neither arm has reached, and the copy is restored. The run then trains on the same data without
 * jumps: it is the other arm. At the same step the same sequences are measured again, and
 * confidence is updated. The discarded arm counts as compute of the run; fork_budget limits it. */
#include "trainer/fork.h"

#include <math.h>

#include "trainer/fork_rules.h"
#include "trainer/predict.h"
#include "trainer/provider_weights.h"
#include "trainer/ranks.h"
#include "trainer/recovery.h"
#include "trainer/resize.h"
#include "trainer/step.h"

#define FIRST_WAIT 100 /* optimizer steps between two tests; doubles each time */

static hy_status keep_state(hy_trainer *t) {
    return hy_engine_copy_forked(t->engine, t->schedule->fork_state.data, true);
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* The memory of prediction and of the copy is allocated when a window begins that ends in a
 * test, and freed if the tests show no benefit. A test is optional: without enough host memory
 * it is skipped. */
static hy_status take_for_fork(hy_trainer *t) {
    hy_engine *e = t->engine;
    uint64_t bytes = hy_rows_forked_bytes(e->state->rows);
    hy_status status = hy_trainer_disable_prediction(t, false, bytes);
    if (status == HY_OK) {
        status = hy_arena_init(&t->schedule->fork_state, e->device.backend, &e->state->ledger,
                               HY_HOST, bytes, "the state before a paired test");
    }
    status = hy_ranks_agree(t, status);
    void *data;
    if (status == HY_OK) return hy_arena_push(&t->schedule->fork_state, HY_SNAPSHOT, bytes, &data);
    hy_arena_fini(&t->schedule->fork_state); /* another rank may have had no room */
    bool is_left_out = status == HY_ERR_MEMORY || status == HY_ERR_INPUT;
    double can_work = !e->work->is_gone; /* becomes 0 if one rank cannot work */
    hy_error kept;
    hy_error_save(&kept, status);
    HY_TRY(hy_ranks_least(t, &can_work, 1));
    if (!is_left_out || !can_work) return hy_error_restore(&kept);
    hy_say(t, HY_NOTE, "skipping the paired test; prediction stays disabled: %s", kept.text);
    hy_fork_end(t);
    return e->plan->choice.prediction_awaits_test ? HY_OK
                                                  : hy_trainer_disable_prediction(t, true, 0);
}

/* Before the first step of a window: allocates the memory of a test that is due at its end, or
 * frees it. */
static hy_status settle_memory(hy_trainer *t) {
    const hy_phase_state *m = &t->progress->machine;
    const hy_phase_rules *rules = &t->schedule->rules;
    double share = hy_trainer_share_done(t);
    bool begins = m->phase == HY_FULL && hy_phase_step_in_window(rules, m) == 1 &&
                  share >= rules->predict_from && share < rules->predict_until;
    if (!rules->has_predictor || !begins || hy_fork_is_sure(t) || t->schedule->fork.is_open)
        return HY_OK;
    if (hy_fork_is_allowed(t, hy_fork_window(t)))
        return t->schedule->fork_state.data ? HY_OK : take_for_fork(t);
    hy_fork_release(t);
    bool is_free =
        !t->engine->plan->choice.prediction_awaits_test && !t->engine->progress.has_snapshot;
    return is_free ? hy_trainer_disable_prediction(t, true, 0) : HY_OK;
}

static hy_status compare_pass(hy_trainer *t, double *each) {
    hy_dtype dtype = t->engine->plan->types.of[HY_FULL];
    hy_probe probe = {.data = t->data.set,
                      .split = HY_TRAIN,
                      .first = (uint64_t)t->schedule->fork.first,
                      .count = (uint64_t)hy_fork_sequences(t),
                      .dtype = dtype,
                      .each = each};
    hy_status status;
    while ((status = hy_trainer_probe(t, t->engine->work->eval[hy_plan_index(dtype)], &probe)) !=
           HY_OK) {
        HY_TRY(hy_trainer_prepare_retry(t, status));
    }
    t->progress->spent += hy_fork_pass_cost(t);
    t->progress->forks.spent += hy_fork_pass_cost(t);
    return HY_OK;
}

static hy_status run_arm(hy_trainer *t) {
    int64_t end = t->progress->step + hy_fork_arm_steps(t);
    hy_step_info info;
    t->progress->machine.phase = HY_PREDICT;
    while (t->progress->step < end) {
        HY_FAIL_IF(hy_ranks_stop(t), HY_STOPPED, "stopped on request during a paired test");
        bool is_jump = t->progress->machine.phase == HY_PREDICT;
        HY_TRY(is_jump ? hy_trainer_run_predict(t, &info) : hy_trainer_run_step(t, &info));
    }
    return hy_offload_await(t->engine->state);
}

/* Restores the run's state from before the arm; without it the run cannot continue. */
static hy_status put_back(hy_trainer *t) {
    hy_status status;
    /* An update of the arm may be pending. */
    t->engine->update.is_pending = t->engine->update.is_new = false;
    while ((status = hy_engine_copy_forked(t->engine, t->schedule->fork_state.data, false)) !=
           HY_OK) {
        if (hy_engine_prepare_retry(t->engine, status) == HY_OK) continue;
        t->status.life = HY_LIFE_FAILED;
        hy_error_save(&t->status.failure, status);
        return status;
    }
    t->status.life = HY_LIFE_READY;
    return HY_OK;
}

/* A test is optional, so a failure skips it; but one rank cannot skip it alone. */
static bool can_skip(const hy_trainer *t, hy_status status) {
    return status == HY_ERR_MEMORY && !t->team;
}

/* The next test comes after twice the wait. */
static void close_test(hy_trainer *t) {
    hy_fork_figures *f = &t->progress->forks;
    t->schedule->fork.is_open = false;
    f->next = t->progress->step + f->wait;
    f->wait *= 2;
}

static hy_status skip_fork(hy_trainer *t, const char *message) {
    hy_say(t, HY_WARNING, "skipping the paired test at step %lld: %s", (long long)t->progress->step,
           message);
    close_test(t);
    t->engine->retries.in_a_row = 0;
    return t->engine->work->is_gone ? hy_fail(HY_ERR_MEMORY, "%s", message) : HY_OK;
}

static hy_status open_fork(hy_trainer *t) {
    hy_progress before = *t->progress;
    hy_engine_progress engine = t->engine->progress;
    int64_t per_step = hy_step_sequences(t->engine);
    int64_t steps = hy_fork_arm_steps(t);
    hy_status kept = hy_trainer_retry(t, keep_state);
    if (can_skip(t, kept)) return skip_fork(t, hy_error_message());
    HY_TRY(kept);
    t->schedule->fork.first = t->progress->sequences + (steps + 1) * per_step;
    t->schedule->is_in_fork = true;
    hy_status status = run_arm(t);
    if (status == HY_OK) status = compare_pass(t, t->schedule->fork.with);
    t->schedule->is_in_fork = false;
    double spent = t->progress->spent - before.spent;
    double seconds = t->progress->seconds;
    int64_t passes = t->engine->progress.backward_passes;
    hy_error error;
    hy_error_save(&error, status);
    if (t->team && status != HY_ERR_NUMERIC && status != HY_STOPPED) HY_TRY(status);
    HY_TRY(put_back(t));
    *t->progress = before;
    t->progress->seconds = seconds;
    t->engine->progress = engine;
    t->engine->progress.has_snapshot = false;
    t->engine->progress.skipped_in_a_row = 0;
    /* As if it had not started: it will start after a resume. */
    if (hy_trainer_is_interrupted(t, status)) return hy_error_restore(&error);
    t->progress->spent += spent;
    t->progress->forks.spent += spent;
    t->engine->progress.backward_passes = passes;
    if (status == HY_ERR_NUMERIC) { /* the arm with jumps failed, which is also a result */
        hy_confidence_fork(&t->progress->confidence, NAN, 0);
        close_test(t);
        return HY_OK;
    }
    if (can_skip(t, status)) return skip_fork(t, error.text);
    HY_TRY(status);
    t->schedule->fork.is_open = true;
    t->schedule->fork.compare_at = before.step + steps;
    return HY_OK;
}

/* The fall of the loss per optimizer step: the negative least-squares slope of the last training
 * losses. */
static double fall_per_step(const hy_progress *p) {
    int64_t count = p->step < HY_LOSS_TAIL ? p->step : HY_LOSS_TAIL;
    double middle = 0.5 * (double)(count - 1), along = 0, spread = 0;
    for (int64_t i = 0; i < count; i++) {
        double off = (double)i - middle;
        along += off * p->loss_tail[(p->step - count + i) % HY_LOSS_TAIL];
        spread += off * off;
    }
    return spread > 0 ? -along / spread : 0;
}

static hy_status close_fork(hy_trainer *t) {
    double without[HY_FORK_SEQUENCES];
    int count = hy_fork_sequences(t);
    hy_progress *p = t->progress;
    double gain = 0, square = 0, before = hy_confidence_value(&p->confidence);
    hy_status status = compare_pass(t, without);
    if (can_skip(t, status)) return skip_fork(t, hy_error_message());
    HY_TRY(status);
    for (int i = 0; i < count; i++) gain += (without[i] - t->schedule->fork.with[i]) / count;
    for (int i = 0; i < count; i++) {
        double off = without[i] - t->schedule->fork.with[i] - gain;
        square += off * off / (count - 1);
    }
    double error = sqrt(square / count);
    hy_confidence_fork(&p->confidence, gain, error);
    double slope = fall_per_step(p), in_steps = slope > 0 ? gain / slope : 0;
    p->forks.gain_steps += in_steps;
    close_test(t);
    hy_say(
        t, HY_NOTE,
        "paired test at step %lld: with jumps the loss of unseen training sequences is %s by %.4f "
        "+- %.4f nats (worth %.1f steps); confidence in prediction changes from %.2f to %.2f",
        (long long)p->step, gain < 0 ? "higher" : "lower", fabs(gain), error, fabs(in_steps),
        before, hy_confidence_value(&p->confidence));
    return HY_OK;
}

hy_status hy_trainer_consider_fork(hy_trainer *t) {
    const hy_phase_state *m = &t->progress->machine;
    /* Only low confidence prevents a jump. */
    bool is_wanted = t->schedule->fork_state.data && m->phase == HY_FULL &&
                     m->window >= hy_fork_window(t) && hy_fork_is_allowed(t, 0) &&
                     hy_trainer_obstacle(t) == HY_PREDICT_LOW_CONFIDENCE;
    if (t->schedule->fork.is_open && t->progress->step >= t->schedule->fork.compare_at) {
        HY_TRY(close_fork(t));
        if (hy_fork_is_sure(t)) hy_fork_release(t); /* no further test is needed */
    } else if (is_wanted) {
        if (t->progress->forks.wait == 0) t->progress->forks.wait = FIRST_WAIT;
        HY_TRY(open_fork(t));
    }
    return settle_memory(t);
}

hy_status hy_fork_begin(hy_trainer *t) {
    bool is_coming = !t->engine->plan->choice.prediction_awaits_test && !hy_fork_is_sure(t) &&
                     !t->schedule->fork.is_open;
    return t->schedule->rules.has_predictor && is_coming ? take_for_fork(t) : settle_memory(t);
}
