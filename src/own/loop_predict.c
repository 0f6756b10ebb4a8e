/* loop_predict.c: windows and moves. See loop.h.
 *
 * A window is what a predictor learns from: true steps since the weights that its slots begin at.
 * A move is measured first (its length in steps of the window), then written into the weights as a
 * candidate with the old ones in the snapshot, then kept or taken back. What is kept is computed
 * again from the old weights by the predictor's own formulas, so that weights and slots agree to
 * the last bit. */
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "own/loop.h"

static void restore_weights(hy_loop *loop) {
    const float *from = loop->snapshot;
    for (int32_t i = 0; i < loop->count; i++) {
        size_t count = (size_t)loop->parameters[i].count;
        memcpy(loop->parameters[i].weights, from, count * sizeof *from);
        from += count;
    }
}

/* ---- windows --------------------------------------------------------------------------------- */

/* After an accepted move the slots are ready and keep their velocity; other windows begin anew. */
void hy_loop_begin_window(hy_loop *loop) {
    bool is_first = hy_phase_step_in_window(&loop->rules, &loop->state) == 1;
    if (!is_first || loop->state.reason == HY_WHY_ACCEPTED) return;
    hy_formulas begin = hy_predictor_begin(&loop->predictor);
    hy_loop_run(loop, &begin);
}

void hy_loop_roll_back(hy_loop *loop) {
    hy_formulas anew = hy_predictor_begin(&loop->predictor);
    restore_weights(loop);
    hy_loop_run(loop, &anew);
}

/* ---- a move ---------------------------------------------------------------------------------- */

/* How far the uncapped move goes, and by what it is scaled. */
static void measure(hy_loop *loop, const hy_formula *candidate) {
    hy_formula move = *candidate;
    hy_formula displaced = {.target = -1, .theta = 1, .slot = {-1, 0}}; /* theta - phi */
    hy_move_sums sums = {0};
    int64_t first = 0;
    move.theta -= 1;
    for (int32_t i = 0; i < loop->count; i++) {
        hy_formula_block block = hy_loop_block(loop, i, first);
        hy_formula_measure(&move, &displaced, &block, &sums);
        first += block.count;
    }
    double steps = hy_predicted_steps(sums.dot, sums.square, loop->state.window);
    loop->scale = hy_predictor_cap(&loop->predictor, steps);
    loop->predicted_steps = steps * loop->scale;
}

hy_status hy_loop_propose(hy_loop *loop) {
    if (!loop) return hy_fail(HY_ERR_INPUT, "hy_loop_propose needs a loop, it is NULL");
    HY_TRY(hy_loop_expect(loop, HY_TURN_PROPOSE));
    loop->turn = HY_TURN_JUDGE;
    hy_formula candidate = hy_predictor_candidate(&loop->predictor, loop->state.window);
    measure(loop, &candidate);
    float *to = loop->snapshot;
    for (int32_t i = 0; i < loop->count; i++) {
        size_t count = (size_t)loop->parameters[i].count;
        memcpy(to, loop->parameters[i].weights, count * sizeof *to);
        to += count;
    }
    hy_formulas move = {.list = {hy_formula_scaled(candidate, loop->scale)}, .count = 1};
    hy_loop_run(loop, &move);
    return HY_OK;
}

/* ---- how it did ------------------------------------------------------------------------------ */

/* The first slot holds the weights right after the move, the snapshot those before it. */
void hy_loop_measure_residual(const hy_loop *loop, double *cosine, double *length) {
    double moved = 0, gone = 0, dot = 0;
    int64_t first = 0;
    *cosine = *length = NAN;
    for (int32_t i = 0; i < loop->count; i++) {
        hy_formula_block block = hy_loop_block(loop, i, first);
        const float *before = loop->snapshot + first, *after = block.slot[0];
        for (int64_t j = 0; j < block.count; j++) {
            double move = (double)after[j] - (double)before[j];
            double way = (double)block.theta[j] - (double)after[j];
            moved += move * move;
            gone += way * way;
            dot += move * way;
        }
        first += block.count;
    }
    if (!(moved > 0)) return;
    *length = sqrt(gone / moved);
    if (gone > 0) *cosine = dot / sqrt(moved * gone);
}

/* ---- the verdict ----------------------------------------------------------------------------- */

hy_status hy_loop_judge(hy_loop *loop, double before, double after, hy_loop_outcome *out) {
    if (!loop) return hy_fail(HY_ERR_INPUT, "hy_loop_judge needs a loop, it is NULL");
    HY_TRY(hy_loop_expect(loop, HY_TURN_JUDGE));
    hy_verdict verdict = hy_guard_judge(&loop->guard, before, after, 0);
    hy_formulas settled =
        verdict == HY_ACCEPTED
            ? hy_predictor_accept(&loop->predictor, loop->state.window, loop->scale)
            : hy_predictor_begin(&loop->predictor);
    restore_weights(loop);
    hy_loop_run(loop, &settled);
    if (verdict == HY_ACCEPTED) hy_guard_remember(&loop->guard, after - before);
    loop->spent += 2 * loop->guard_cost;
    loop->seen = (hy_observation){.started = loop->started,
                                  .spent = loop->spent / loop->budget,
                                  .confidence = hy_confidence_value(&loop->confidence),
                                  .verdict = verdict};
    loop->has_news = true;
    loop->turn = HY_TURN_NEXT;
    if (out) {
        *out = (hy_loop_outcome){.was_accepted = verdict == HY_ACCEPTED,
                                 .predicted_steps = loop->predicted_steps,
                                 .residual_cosine = NAN,
                                 .residual_length = NAN};
    }
    return HY_OK;
}
