/* loop_update.c: what a true step does. See loop.h.
 *
 * A loss or gradient that is not finite leaves weights, m and v as they were. Where the step was a
 * Correct one and the run diverged in it, the last move is undone. */
#include <math.h>

#include "base/error.h"
#include "own/loop.h"

/* After this many updates in a row with numbers that are not finite, the run cannot recover. */
#define MOST_SKIPS_IN_A_ROW 20

/* The first parameter whose gradient is not finite; NULL: none. */
static const char *broken_parameter(const hy_loop *loop) {
    for (int32_t i = 0; i < loop->count; i++) {
        const hy_parameter *p = &loop->parameters[i];
        for (int64_t j = 0; j < p->count; j++) {
            if (!isfinite(p->grads[j])) return p->name;
        }
    }
    return NULL;
}

hy_status hy_loop_update_scaled(hy_loop *loop, double loss, double grad_scale, bool may_overflow,
                                hy_loop_outcome *out) {
    HY_TRY(hy_loop_expect(loop, HY_TURN_UPDATE));
    hy_loop_outcome outcome = {.grad_norm = hy_loop_grad_norm(loop, grad_scale),
                               .residual_cosine = NAN,
                               .residual_length = NAN};
    outcome.was_skipped = !isfinite(loss) || !isfinite(outcome.grad_norm);
    hy_loop_begin_window(loop);
    if (!outcome.was_skipped) hy_loop_adamw_step(loop, grad_scale, outcome.grad_norm);
    loop->spent += 1;
    /* What the step showed; the phase machine takes it in with the next hy_loop_next. */
    loop->health =
        (outcome.was_skipped && may_overflow && isfinite(loss))
            ? HY_HEALTHY
            : hy_divergence_observe(&loop->divergence, &loop->limits, loss, outcome.grad_norm);
    loop->seen = (hy_observation){.started = loop->started,
                                  .spent = loop->spent / loop->budget,
                                  .confidence = hy_confidence_value(&loop->confidence),
                                  .has_diverged = loop->health != HY_HEALTHY};
    loop->has_news = true;
    /* The end of Correct shows how the prediction did; a divergence in Correct takes it back. */
    hy_phase_state next = hy_phase_next(&loop->rules, loop->state, &loop->seen);
    if (loop->state.phase == HY_CORRECT && next.phase != HY_CORRECT) {
        if (next.rolls_back) {
            hy_loop_roll_back(loop);
            outcome.was_rolled_back = true;
        } else {
            hy_loop_measure_residual(loop, &outcome.residual_cosine, &outcome.residual_length);
        }
    }
    loop->turn = HY_TURN_NEXT;
    if (out) *out = outcome;
    loop->skips_in_a_row = outcome.was_skipped ? loop->skips_in_a_row + 1 : 0;
    if (loop->skips_in_a_row < MOST_SKIPS_IN_A_ROW) return HY_OK;
    const char *name = broken_parameter(loop);
    return hy_fail(
        HY_ERR_NUMERIC,
        "the numbers were not finite in %d steps in a row (now step %lld, loss %g, %s%s); "
        "a lower learning rate or fp32 may help",
        loop->skips_in_a_row, (long long)loop->state.done + 1, loss,
        name ? "gradient of " : "all gradients finite", name ? name : "");
}

hy_status hy_loop_update(hy_loop *loop, double loss, hy_loop_outcome *out) {
    if (!loop) return hy_fail(HY_ERR_INPUT, "hy_loop_update needs a loop, it is NULL");
    return hy_loop_update_scaled(loop, loss, 1, false, out);
}
