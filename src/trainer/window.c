/* window.c: what optimizer steps and jumps share. See window.h.
 *
 * A window is a sequence of optimizer steps from which a jump is predicted; slow weights hold
 * the weights of its start. The snapshot holds the weights from before a jump, so that it can be
 * undone. The residual compares the jump with the training after it. */
#include "trainer/window.h"

#include <math.h>

#include "trainer/recovery.h"

/* Starts a window at the current weights; may be repeated. */
hy_status hy_trainer_set_slow_weights(hy_trainer *t) {
    hy_formulas begin = hy_predictor_begin(&t->engine->plan->predictor);
    return hy_engine_apply(t->engine, &begin);
}

hy_status hy_trainer_begin_window(hy_trainer *t) {
    const hy_phase_state *machine = &t->progress->machine;
    const hy_phase_rules *rules = &t->loop->rules;
    double share = hy_trainer_share_done(t);
    bool is_open = rules->has_predictor && machine->phase != HY_WARMUP &&
                   share >= rules->predict_from && share < rules->predict_until;
    bool is_new = hy_phase_step_in_window(rules, machine) == 1 && machine->phase != HY_CORRECT;
    bool is_kept = !t->engine->plan->choice.prediction_is_disabled;
    return is_open && is_new && is_kept ? hy_trainer_set_slow_weights(t) : HY_OK;
}

static hy_status bring_snapshot(hy_trainer *t) {
    return hy_engine_copy_weights(t->engine, HY_ROW_SNAPSHOT, false);
}

hy_status hy_trainer_roll_back(hy_trainer *t) {
    if (!hy_has_row(t->engine, HY_ROW_SNAPSHOT) || !t->engine->progress.has_snapshot) return HY_OK;
    HY_TRY(hy_trainer_retry(t, bring_snapshot));
    t->engine->progress.has_snapshot = false;
    HY_TRY(hy_trainer_set_slow_weights(t));
    hy_say(t, HY_WARNING, "the last jump was undone: the weights from before it are restored");
    return t->engine->device.backend->stream_sync(t->engine->device.compute);
}

hy_status hy_trainer_measure_residual(hy_trainer *t) {
    double d[3];
    hy_progress *p = t->progress;
    if (!p->jumps.is_residual_due || p->machine.phase == HY_CORRECT) return HY_OK;
    if (!t->engine->progress.has_snapshot) {
        p->jumps.is_residual_due = false;
        return HY_OK;
    }
    HY_TRY(
        hy_engine_measure(t->engine, HY_ROW_SLOW, HY_ROW_SNAPSHOT, HY_ROW_MASTER, HY_ROW_SLOW, d));
    p->jumps.is_residual_due = false;
    p->jumps.residual_cosine = d[0] > 0 && d[1] > 0 ? d[2] / sqrt(d[0] * d[1]) : NAN;
    p->jumps.residual_length = d[0] > 0 ? sqrt(d[1] / d[0]) : NAN;
    /* The jump has been corrected, so it will not be undone. */
    t->engine->progress.has_snapshot = false;
    return HY_OK;
}

hy_status hy_trainer_observe(hy_trainer *t, double loss, double grad_norm, hy_verdict verdict) {
    hy_progress *p = t->progress;
    bool is_jump = p->machine.phase == HY_PREDICT;
    /* With fp16, a gradient that is not finite means that the loss scale is too large, not that
     * the run diverged. */
    bool is_overflow = hy_engine_scales(t->engine, t->engine->plan->types.of[p->machine.phase]) &&
                       isfinite(loss) && !isfinite(grad_norm);
    hy_health health =
        is_jump || is_overflow
            ? HY_HEALTHY
            : hy_divergence_observe(&p->divergence, &t->loop->limits, loss, grad_norm);
    hy_observation seen = {.started = (p->spent - (is_jump ? 0 : 1)) / (double)t->loop->steps_total,
                           .spent = hy_trainer_share_done(t),
                           .confidence = hy_confidence_value(&p->confidence),
                           .has_diverged = health != HY_HEALTHY,
                           .verdict = verdict};
    if (t->loop->is_in_fork) seen.confidence = 1; /* the arm with jumps ignores confidence */
    if (health != HY_HEALTHY) {
        hy_say(t, HY_WARNING, "step %lld: %s (loss %.4g, gradient norm %.3g)", (long long)p->step,
               hy_health_text(health), loss, grad_norm);
    }
    p->machine = hy_phase_next(&t->loop->rules, p->machine, &seen);
    return p->machine.rolls_back ? hy_trainer_roll_back(t) : HY_OK;
}
