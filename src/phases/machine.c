/* machine.c: the transitions between phases. See machine.h. */
#include "phases/machine.h"

#define LONGEST_COOLDOWN_FACTOR 64

static const char *const reason_texts[HY_WHY_REASON_COUNT] = {
    [HY_WHY_SAME] = "",
    [HY_WHY_BEGIN] = "the learning rate is rising",
    [HY_WHY_WARM] = "warm-up is over",
    [HY_WHY_WINDOW_FULL] = "a window of optimizer steps is complete",
    [HY_WHY_ACCEPTED] = "the guard accepted the jump",
    [HY_WHY_REJECTED] = "the guard rejected the jump",
    [HY_WHY_CORRECTED] = "the jump is corrected",
    [HY_WHY_DIVERGED] = "the loss or the gradient diverged",
};

static const char *const obstacle_texts[HY_PREDICT_OBSTACLE_COUNT] = {
    [HY_PREDICT_OPEN] = "",
    [HY_PREDICT_NO_PREDICTOR] = "", /* nothing to wait for */
    [HY_PREDICT_TOO_EARLY] = "the run has not reached predict_from or the end of Warmup",
    [HY_PREDICT_TOO_LATE] = "the run is past predict_until",
    [HY_PREDICT_LOW_CONFIDENCE] = "confidence is below confidence_threshold",
    [HY_PREDICT_COOLING] = "waiting after a rejected jump or a divergence (cooldown_steps)",
    [HY_PREDICT_WINDOW_SHORT] = "the window of optimizer steps is not complete",
};

const char *hy_phase_reason_text(hy_phase_reason reason) { return reason_texts[reason]; }
const char *hy_phase_obstacle_text(hy_phase_obstacle obstacle) { return obstacle_texts[obstacle]; }

hy_phase_state hy_phase_begin(const hy_phase_rules *rules) {
    bool has_warmup = rules->warmup_steps > 0;
    return (hy_phase_state){.phase = has_warmup ? HY_WARMUP : HY_FULL,
                            .reason = has_warmup ? HY_WHY_BEGIN : HY_WHY_WARM,
                            .next_cooldown = rules->cooldown_steps};
}

hy_phase_obstacle hy_phase_obstacle_now(const hy_phase_rules *rules, const hy_phase_state *state,
                                        const hy_observation *seen) {
    if (!rules->has_predictor) return HY_PREDICT_NO_PREDICTOR;
    if (state->done < rules->warmup_steps) return HY_PREDICT_TOO_EARLY;
    if (!(seen->spent >= rules->predict_from)) return HY_PREDICT_TOO_EARLY;
    if (!(seen->spent < rules->predict_until)) return HY_PREDICT_TOO_LATE;
    if (state->cooldown > 0) return HY_PREDICT_COOLING;
    if (!(seen->confidence >= rules->confidence_threshold)) return HY_PREDICT_LOW_CONFIDENCE;
    if (state->window < rules->full_steps + rules->correct_steps) return HY_PREDICT_WINDOW_SHORT;
    return HY_PREDICT_OPEN;
}

int64_t hy_phase_step_in_window(const hy_phase_rules *rules, const hy_phase_state *state) {
    bool is_complete = state->window >= rules->full_steps + rules->correct_steps;
    return state->phase == HY_FULL && is_complete ? 1 : state->window + 1;
}

/* After a rejected jump or a divergence: back to Full, a new window, and a cooldown that
 * doubles. */
static void cool_down(const hy_phase_rules *rules, hy_phase_state *state) {
    int64_t longest = rules->cooldown_steps * LONGEST_COOLDOWN_FACTOR;
    state->phase = HY_FULL;
    state->window = 0;
    state->correct_left = 0;
    state->cooldown = state->next_cooldown;
    if (state->next_cooldown < longest) state->next_cooldown *= 2;
}

static void after_move(const hy_phase_rules *rules, hy_phase_state *state,
                       const hy_observation *seen) {
    if (seen->verdict == HY_ACCEPTED && !seen->has_diverged) {
        state->moves++;
        state->window = 0;
        state->phase = HY_CORRECT;
        state->correct_left = rules->correct_steps > 0 ? rules->correct_steps : 1;
        state->reason = HY_WHY_ACCEPTED;
        return;
    }
    state->rejections++;
    cool_down(rules, state);
    state->reason = seen->has_diverged ? HY_WHY_DIVERGED : HY_WHY_REJECTED;
}

static void after_true_step(const hy_phase_rules *rules, hy_phase_state *state,
                            const hy_observation *seen) {
    hy_phase was = state->phase;
    bool counts = was != HY_WARMUP && seen->started >= rules->predict_from;
    state->done++;
    state->window = counts ? hy_phase_step_in_window(rules, state) : 0;
    if (state->cooldown > 0) state->cooldown--;
    if (seen->has_diverged && was != HY_WARMUP) {
        state->divergences++;
        state->rolls_back = was == HY_CORRECT;
        cool_down(rules, state);
        state->reason = HY_WHY_DIVERGED;
        return;
    }
    if (was == HY_WARMUP) {
        if (state->done < rules->warmup_steps) return;
        state->phase = HY_FULL;
        state->reason = HY_WHY_WARM;
    } else if (was == HY_CORRECT && --state->correct_left <= 0) {
        state->phase = HY_FULL;
        state->reason = HY_WHY_CORRECTED;
        state->next_cooldown = rules->cooldown_steps; /* a successful jump resets the cooldown */
    }
    if (state->phase == HY_FULL && hy_phase_obstacle_now(rules, state, seen) == HY_PREDICT_OPEN) {
        state->phase = HY_PREDICT;
        state->reason = HY_WHY_WINDOW_FULL;
    }
}

hy_phase_state hy_phase_next(const hy_phase_rules *rules, hy_phase_state state,
                             const hy_observation *seen) {
    state.reason = HY_WHY_SAME;
    state.rolls_back = false;
    if (state.phase == HY_PREDICT) {
        after_move(rules, &state, seen);
    } else {
        after_true_step(rules, &state, seen);
    }
    return state;
}
