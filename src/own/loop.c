/* loop.c: making a loop, and which step comes next. See loop.h.
 *
 * A step's outcome is taken into the phase machine when the next step is asked for, not before:
 * what hy_loop_spend adds in between then counts, and Predict never begins past predict_until. */
#include "own/loop.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "config/derived.h"
#include "trainer/trainer.h"

/* Compute is a sum of thirds: it is spent when nothing but rounding is left of the budget. */
#define SPENT_ROUNDING 1e-9
#define MEMORY_ALIGNMENT 64

static const char *const turn_calls[] = {
    [HY_TURN_NEXT] = "hy_loop_next",
    [HY_TURN_UPDATE] = "hy_loop_update",
    [HY_TURN_PROPOSE] = "hy_loop_propose",
    [HY_TURN_JUDGE] = "hy_loop_judge",
};

/* Whether it is this call's turn; fails with what comes next instead. */
static hy_status expect(const hy_loop *loop, hy_loop_turn turn) {
    if (loop->turn == turn) return HY_OK;
    HY_FAIL_IF(loop->turn == HY_TURN_OVER, HY_ERR_STATE,
               "%s was called, but the run is over: the compute of %.0f steps is spent",
               turn_calls[turn], loop->budget);
    const char *in =
        loop->turn == HY_TURN_NEXT ? "between two steps" : hy_phase_name(loop->state.phase);
    return hy_fail(HY_ERR_STATE, "%s was called out of turn: the loop is %s%s and %s comes next",
                   turn_calls[turn], loop->turn == HY_TURN_NEXT ? "" : "in a step of phase ", in,
                   turn_calls[loop->turn]);
}

bool hy_loop_is_over(const hy_loop *loop) { return loop->spent >= loop->budget - SPENT_ROUNDING; }

/* ---- parameters and memory ------------------------------------------------------------------- */

static hy_status check_parameter(const hy_parameter *p, int32_t index, int64_t *elements) {
    HY_FAIL_IF(!p->name || !p->name[0], HY_ERR_INPUT, "parameter number %d has no name", index);
    HY_FAIL_IF(!p->weights || !p->grads, HY_ERR_INPUT, "parameter %s has no memory for its %s",
               p->name, p->weights ? "gradient" : "weights");
    HY_FAIL_IF(p->count < 1, HY_ERR_INPUT, "parameter %s has %lld elements; at least 1 is expected",
               p->name, (long long)p->count);
    int64_t most =
        INT64_MAX / (int64_t)(8 * sizeof(float)); /* bytes of all arrays stay countable */
    HY_FAIL_IF(p->count > most - *elements, HY_ERR_INPUT,
               "parameter %s: its %lld elements are more than can be counted", p->name,
               (long long)p->count);
    *elements += p->count;
    return HY_OK;
}

static hy_status set_rules(hy_loop *loop, const hy_settings *s) {
    HY_FAIL_IF((s->optimizer.optimizer & HY_OPTIMIZER_ID) != HY_ADAMW, HY_ERR_INPUT,
               "optimizer is %s; a model or loop of your own is trained with adamw",
               hy_settings_optimizer(s)->name);
    HY_FAIL_IF(s->train.steps < 1, HY_ERR_INPUT,
               "train.steps is %lld; a loop of your own gets its length in "
               "steps, at least 1",
               (long long)s->train.steps);
    loop->budget = (double)s->train.steps;
    loop->adamw = hy_optimizer_from_settings(s);
    loop->schedule = hy_schedule_from_settings(s, s->train.steps);
    loop->predictor = hy_predictor_from_settings(s);
    loop->rules = hy_rules_from_settings(s, loop->schedule.warmup);
    loop->limits = hy_limits_from_settings(s);
    loop->guard_cost = s->phases.guard_share / 3;
    bool is_tuning = s->phases.regime == HY_REGIME_TUNING;
    loop->confidence = hy_confidence_prior(is_tuning ? HY_FINE_TUNING : HY_FROM_SCRATCH);
    loop->state = hy_phase_begin(&loop->rules);
    return HY_OK;
}

/* ---- the handle ------------------------------------------------------------------------------ */

static hy_status set_up(hy_loop *loop, const hy_settings *settings, const hy_parameter *parameters,
                        int32_t count) {
    char asked[HY_TEXT_MAX];
    HY_FAIL_IF(hy_device_card(settings->device) >= 0, HY_ERR_INPUT,
               "device is %s, but parameters of your own are arrays in host memory and their "
               "updates run there; accepted are auto and cpu",
               hy_setting_format(hy_setting_find("device", NULL), settings, asked));
    HY_FAIL_IF(!parameters || count < 1, HY_ERR_INPUT,
               "a loop needs at least one parameter, %d were given", count);
    for (int32_t i = 0; i < count; i++) {
        HY_TRY(check_parameter(&parameters[i], i, &loop->elements));
    }
    loop->parameters = calloc((size_t)count, sizeof *loop->parameters);
    if (!loop->parameters) return hy_fail(HY_ERR_MEMORY, "no memory for a list of parameters");
    loop->count = count;
    for (int32_t i = 0; i < count; i++) {
        loop->parameters[i] = parameters[i];
        loop->parameters[i].name = strdup(parameters[i].name);
        if (!loop->parameters[i].name) return hy_fail(HY_ERR_MEMORY, "no memory for a name");
    }
    HY_TRY(set_rules(loop, settings));
    /* m, v, buffers and snapshot, zeroed, in one piece. */
    int buffers = hy_predictor_buffers(loop->predictor.kind);
    int arrays = 2 + buffers + (buffers > 0 ? 1 : 0);
    /* Each array begins on a cache line of its own. */
    size_t line = MEMORY_ALIGNMENT / sizeof(float);
    size_t stride = ((size_t)loop->elements + line - 1) / line * line;
    size_t bytes = (size_t)arrays * stride * sizeof(float);
    loop->memory = aligned_alloc(MEMORY_ALIGNMENT, bytes);
    HY_FAIL_IF(!loop->memory, HY_ERR_MEMORY, "no memory for the optimizer and predictor: %zu bytes",
               bytes);
    memset(loop->memory, 0, bytes);
    loop->m = loop->memory;
    loop->v = loop->memory + stride;
    for (int i = 0; i < buffers; i++) loop->buffer[i] = loop->memory + (size_t)(2 + i) * stride;
    if (buffers > 0) loop->snapshot = loop->memory + (size_t)(2 + buffers) * stride;
    return HY_OK;
}

hy_status hy_loop_create(const hy_config *config, const hy_parameter *parameters, int32_t count,
                         hy_loop **out) {
    HY_FAIL_IF(!config || !out, HY_ERR_INPUT,
               "hy_loop_create needs a configuration and a "
               "place for the loop; one is NULL");
    hy_loop *loop = calloc(1, sizeof *loop);
    if (!loop) return hy_fail(HY_ERR_MEMORY, "no memory for a loop");
    hy_status status = set_up(loop, hy_config_settings(config), parameters, count);
    if (status != HY_OK) {
        hy_loop_destroy(loop);
        return status;
    }
    *out = loop;
    return HY_OK;
}

void hy_loop_destroy(hy_loop *loop) {
    if (!loop) return;
    for (int32_t i = 0; i < loop->count; i++) free((char *)loop->parameters[i].name);
    free(loop->parameters);
    free(loop->memory);
    free(loop);
}

/* ---- the next step --------------------------------------------------------------------------- */

hy_status hy_loop_next(hy_loop *loop, hy_loop_step *out) {
    HY_FAIL_IF(!loop || !out, HY_ERR_INPUT,
               "hy_loop_next needs a loop and a place for the "
               "step; one is NULL");
    if (loop->turn != HY_TURN_OVER) HY_TRY(expect(loop, HY_TURN_NEXT));
    if (loop->has_news) {
        loop->seen.spent = loop->spent / loop->budget;
        loop->state = hy_phase_next(&loop->rules, loop->state, &loop->seen);
        loop->has_news = false;
    }
    bool is_over = hy_loop_is_over(loop), is_jump = loop->state.phase == HY_PREDICT;
    loop->turn = is_over ? HY_TURN_OVER : is_jump ? HY_TURN_PROPOSE : HY_TURN_UPDATE;
    loop->started = loop->spent / loop->budget;
    double confidence = hy_confidence_value(&loop->confidence);
    hy_observation now = {.spent = loop->started, .confidence = confidence};
    hy_phase_obstacle obstacle = hy_phase_obstacle_now(&loop->rules, &loop->state, &now);
    loop->lr = hy_schedule_rate(&loop->schedule, (int64_t)floor(loop->spent + SPENT_ROUNDING));
    *out = (hy_loop_step){.step = loop->state.done,
                          .phase = loop->state.phase,
                          .reason = hy_phase_reason_text(loop->state.reason),
                          .obstacle = hy_phase_obstacle_text(obstacle),
                          .wants_backward = loop->turn == HY_TURN_UPDATE,
                          .lr = loop->lr,
                          .confidence = confidence,
                          .is_over = is_over};
    return HY_OK;
}

hy_status hy_loop_spend(hy_loop *loop, double full_steps) {
    HY_FAIL_IF(!loop || !(full_steps >= 0) || !isfinite(full_steps), HY_ERR_INPUT,
               "hy_loop_spend was given %g full steps; expected a loop and a "
               "number that is not negative",
               full_steps);
    loop->spent += full_steps;
    return HY_OK;
}

/* ---- optimizer steps ------------------------------------------------------------------------- */

/* A loss or gradient that is not finite leaves weights, m and v as they were. Where the step was a Correct
 * one and the run diverged in it, the last jump is undone. */

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
    HY_TRY(expect(loop, HY_TURN_UPDATE));
    hy_loop_outcome outcome = {.grad_norm = hy_loop_grad_norm(loop, grad_scale),
                               .residual_cosine = NAN,
                               .residual_length = NAN};
    outcome.was_skipped = !isfinite(loss) || !isfinite(outcome.grad_norm);
    /* A window is what a predictor learns from: optimizer steps since the weights that its buffers begin
     * at. After an accepted jump the buffers are ready and keep their velocity; other windows begin anew. */
    bool is_first = hy_phase_step_in_window(&loop->rules, &loop->state) == 1;
    hy_formulas begin = hy_predictor_begin(&loop->predictor);
    if (is_first && loop->state.reason != HY_WHY_ACCEPTED) hy_loop_run(loop, &begin);
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
            hy_loop_scatter(loop, loop->snapshot); /* m and v are kept */
            hy_loop_run(loop, &begin);
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

/* ---- jumps ----------------------------------------------------------------------------------- */

/* A jump is measured first (its length in steps of the window), then written into the weights as a
 * candidate with the old ones in the snapshot, then kept or taken back. What is kept is computed again from
 * the old weights by the predictor's own formulas, so that weights and buffers agree to the last bit. */

hy_status hy_loop_propose(hy_loop *loop) {
    if (!loop) return hy_fail(HY_ERR_INPUT, "hy_loop_propose needs a loop, it is NULL");
    HY_TRY(expect(loop, HY_TURN_PROPOSE));
    loop->turn = HY_TURN_JUDGE;
    hy_formula candidate = hy_predictor_candidate(&loop->predictor, loop->state.window);
    /* How far the uncapped jump goes, and by what it is scaled. */
    hy_formula change = candidate;
    change.theta -= 1;
    double dot, square;
    hy_loop_measure(loop, &change, &dot, &square);
    double steps = hy_predicted_steps(dot, square, loop->state.window);
    loop->scale = hy_predictor_cap(&loop->predictor, steps);
    loop->predicted_steps = steps * loop->scale;
    hy_loop_gather(loop, loop->snapshot);
    hy_formulas jump = {.list = {hy_formula_scaled(candidate, loop->scale)}, .count = 1};
    hy_loop_run(loop, &jump);
    return HY_OK;
}

hy_status hy_loop_judge(hy_loop *loop, double before, double after, hy_loop_outcome *out) {
    if (!loop) return hy_fail(HY_ERR_INPUT, "hy_loop_judge needs a loop, it is NULL");
    HY_TRY(expect(loop, HY_TURN_JUDGE));
    hy_verdict verdict = hy_guard_judge(&loop->guard, before, after, 0);
    hy_formulas settled =
        verdict == HY_ACCEPTED
            ? hy_predictor_accept(&loop->predictor, loop->state.window, loop->scale)
            : hy_predictor_begin(&loop->predictor);
    hy_loop_scatter(loop, loop->snapshot);
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
