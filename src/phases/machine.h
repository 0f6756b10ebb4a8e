/* machine.h: which phase the next step is in, and why.
 *
 * next(rules, state, observation) -> state: a pure function of what was done so far. The state is a few
 * numbers that a checkpoint keeps. Always true, whatever is observed:
 *   - Predict never begins in Warmup, before predict_from or from predict_until on;
 *   - after an accepted jump Correct follows: there are never two moves without true gradients between;
 *   - after a divergence or a rejected jump Full follows, for at least a cooldown. */
#pragma once

#include <stdbool.h>

#include "hybrid_types.h"

typedef struct hy_phase_rules {
    bool has_predictor; /* false: Warmup and Full only */
    int64_t warmup_steps;
    int64_t full_steps,
        correct_steps; /* a window is their sum: optimizer steps between two jumps */
    double predict_from, predict_until; /* shares of the run's compute */
    double confidence_threshold;
    int64_t cooldown_steps; /* optimizer steps without Predict after trouble; doubles each time */
} hy_phase_rules;

/* What became of a proposed jump. */
typedef enum hy_verdict { HY_NO_MOVE = 0, HY_ACCEPTED = 1, HY_REJECTED = 2 } hy_verdict;

/* Why the phase is what it is; text: hy_phase_reason_text(). */
typedef enum hy_phase_reason {
    HY_WHY_SAME = 0,    /* nothing changed */
    HY_WHY_BEGIN,       /* the learning rate is rising */
    HY_WHY_WARM,        /* warm-up is over */
    HY_WHY_WINDOW_FULL, /* a window of optimizer steps is there and predicting is expected to pay */
    HY_WHY_ACCEPTED,    /* the guard accepted the jump */
    HY_WHY_REJECTED,    /* the guard rejected the jump */
    HY_WHY_CORRECTED,   /* the jump is corrected */
    HY_WHY_DIVERGED,    /* the loss or the gradient diverged */
    HY_WHY_REASON_COUNT
} hy_phase_reason;

/* What keeps Predict away, for the user. */
typedef enum hy_phase_obstacle {
    HY_PREDICT_OPEN = 0,
    HY_PREDICT_NO_PREDICTOR,
    HY_PREDICT_TOO_EARLY,
    HY_PREDICT_TOO_LATE,
    HY_PREDICT_LOW_CONFIDENCE,
    HY_PREDICT_COOLING,
    HY_PREDICT_WINDOW_SHORT,
    HY_PREDICT_OBSTACLE_COUNT
} hy_phase_obstacle;

typedef struct hy_phase_state {
    hy_phase phase; /* of the step that comes next */
    hy_phase_reason reason;
    bool rolls_back;       /* undo the last jump before it, where a snapshot is kept */
    int64_t done;          /* optimizer steps in all */
    int64_t window;        /* optimizer steps since the window began: hy_phase_step_in_window() */
    int64_t correct_left;  /* Correct steps still to do */
    int64_t cooldown;      /* optimizer steps before Predict may be tried */
    int64_t next_cooldown; /* what the next trouble costs */
    int64_t moves, rejections, divergences;
} hy_phase_state;

/* What the step just done told. */
typedef struct hy_observation {
    double started;    /* share of the run's compute before the step, */
    double spent;      /* and after it */
    double confidence; /* that predicting pays */
    bool has_diverged;
    hy_verdict verdict; /* of a Predict step */
} hy_observation;

hy_phase_state hy_phase_begin(const hy_phase_rules *rules);
hy_phase_state hy_phase_next(const hy_phase_rules *rules, hy_phase_state state,
                             const hy_observation *seen);

/* Which step of its window the next optimizer step is, from 1; the predictor begins anew before the first.
 * Windows begin in Full, from predict_from on; one that is complete while Predict is kept away is
 * dropped and the next begins, so that a jump is never built on more than full_steps + correct_steps. */
int64_t hy_phase_step_in_window(const hy_phase_rules *rules, const hy_phase_state *state);

/* What keeps a Full step from being followed by Predict. */
hy_phase_obstacle hy_phase_obstacle_now(const hy_phase_rules *rules, const hy_phase_state *state,
                                        const hy_observation *seen);

const char *hy_phase_reason_text(hy_phase_reason reason); /* "" for HY_WHY_SAME */
const char *hy_phase_obstacle_text(hy_phase_obstacle obstacle);
