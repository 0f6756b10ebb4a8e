/* machine.h: the phase of the next step, and the reason.
 *
 * next(rules, state, observation) -> state is a pure function of what happened so far. The state is
 * a few numbers that checkpoints store. Always true, whatever is observed:
 *     - Predict never begins in Warmup, before predict_from, or from predict_until on;
 *     - Correct follows an accepted jump: true gradients always separate two jumps;
 *     - Full follows a divergence or a rejected jump, for at least a cooldown. */
#pragma once

#include <stdbool.h>

#include "hybrid_types.h"

typedef struct hy_phase_rules {
    bool has_predictor; /* false: Warmup and Full only */
    int64_t warmup_steps;
    /* their sum is a window: optimizer steps between two jumps */
    int64_t full_steps, correct_steps;
    double predict_from, predict_until; /* shares of the run's compute */
    double confidence_threshold;
    /* optimizer steps without Predict after a rejected jump or a divergence; doubles each time */
    int64_t cooldown_steps;
} hy_phase_rules;

/* The result of a proposed jump. */
typedef enum hy_verdict { HY_NO_MOVE = 0, HY_ACCEPTED = 1, HY_REJECTED = 2 } hy_verdict;

/* The reason for the phase; text: hy_phase_reason_text(). */
typedef enum hy_phase_reason {
    HY_WHY_SAME = 0, /* nothing changed */
    HY_WHY_BEGIN,    /* the learning rate is rising */
    HY_WHY_WARM,     /* warm-up is over */
    /* a window of optimizer steps is complete and prediction is expected to pay */
    HY_WHY_WINDOW_FULL,
    HY_WHY_ACCEPTED,  /* the guard accepted the jump */
    HY_WHY_REJECTED,  /* the guard rejected the jump */
    HY_WHY_CORRECTED, /* the jump is corrected */
    HY_WHY_DIVERGED,  /* the loss or the gradient diverged */
    HY_WHY_REASON_COUNT
} hy_phase_reason;

/* What prevents Predict, for the user. */
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
    hy_phase phase; /* of the next step */
    hy_phase_reason reason;
    bool rolls_back;       /* undo the last jump before the next step, if a snapshot is kept */
    int64_t done;          /* optimizer steps in total */
    int64_t window;        /* optimizer steps since the window began: hy_phase_step_in_window() */
    int64_t correct_left;  /* remaining Correct steps */
    int64_t cooldown;      /* optimizer steps until Predict may be tried */
    int64_t next_cooldown; /* length of the next cooldown */
    int64_t moves, rejections, divergences; /* accepted and rejected jumps; diverged steps */
} hy_phase_state;

/* What the last step observed. */
typedef struct hy_observation {
    double started;    /* share of the run's compute before the step */
    double spent;      /* share after the step */
    double confidence; /* probability that prediction pays */
    bool has_diverged;
    hy_verdict verdict; /* of a Predict step */
} hy_observation;

hy_phase_state hy_phase_begin(const hy_phase_rules *rules);
hy_phase_state hy_phase_next(const hy_phase_rules *rules, hy_phase_state state,
                             const hy_observation *seen);

/* The number of the next optimizer step in its window, from 1; the predictor restarts before the
 * first. Windows begin in Full, from predict_from on. If a window is complete while Predict is not
 * allowed, it is dropped and the next begins, so a jump never uses more than full_steps +
 * correct_steps. */
int64_t hy_phase_step_in_window(const hy_phase_rules *rules, const hy_phase_state *state);

/* What prevents Predict after a Full step. */
hy_phase_obstacle hy_phase_obstacle_now(const hy_phase_rules *rules, const hy_phase_state *state,
                                        const hy_observation *seen);

const char *hy_phase_reason_text(hy_phase_reason reason); /* "" for HY_WHY_SAME */
const char *hy_phase_obstacle_text(hy_phase_obstacle obstacle);
