/* predictor.h: predictors as formulas.
 *
 * A predictor moves the weights along a predicted trajectory without a gradient. Each of ours is linear:
 * what it does to a block of weights theta and of its own state (up to two fp32 copies, here called
 * slots) is a row of coefficients, and a move is a short list of such assignments. So predictors own no
 * memory, do no I/O and never see a pointer: the trainer runs the rows block by block on memory it
 * hands them. Slots, by kind:
 *   outer   phi (slow weights), b (velocity): b = mu b + D, theta = phi + eta (mu b + D), D = theta - phi
 *           (Nesterov momentum on windows: SNOO, or DiLoCo with one worker)
 *   line    phi: theta + length (theta - phi)
 *   lsq     sums of theta and of t theta over the window: a least-squares line per weight, extrapolated
 *   frozen  none: as many steps are skipped, nothing moves (control)
 *   random  as outer, but into a random direction of equal length (control)
 *   paid    as outer, everything computed and paid for, but the weights stay (control) */
#ifndef HY_PHASES_PREDICTOR_H
#define HY_PHASES_PREDICTOR_H

#include <stdbool.h>

#include "hybrid_types.h"

typedef enum hy_predictor_kind {
    HY_PREDICTOR_NONE = 0,
    HY_PREDICTOR_OUTER,
    HY_PREDICTOR_LINE,
    HY_PREDICTOR_LSQ,
    HY_PREDICTOR_FROZEN,
    HY_PREDICTOR_RANDOM,
    HY_PREDICTOR_PAID,
    HY_PREDICTOR_COUNT
} hy_predictor_kind;

#define HY_PREDICTOR_SLOTS 2

typedef struct hy_predictor {
    hy_predictor_kind kind;
    double mu, eta;    /* outer */
    int64_t max_steps; /* a move counts at most this many predicted steps */
} hy_predictor;

int hy_predictor_slots(hy_predictor_kind kind); /* fp32 copies of the weights: 4 bytes each */
bool hy_predictor_watches_steps(hy_predictor_kind kind); /* wants hy_predictor_observe each step */

/* target = sum of the coefficients times what was there before. */
typedef struct hy_formula {
    int target; /* -1: theta; else a slot */
    double theta;
    double slot[HY_PREDICTOR_SLOTS];
    double noise; /* times a standard normal number per element */
} hy_formula;

#define HY_FORMULAS_MAX 4
typedef struct hy_formulas {
    hy_formula list[HY_FORMULAS_MAX]; /* run in order; each sees what those before it wrote */
    int count;
} hy_formulas;

/* A window begins at these weights. */
hy_formulas hy_predictor_begin(const hy_predictor *p);
/* After true step number `step` (1, 2, ...) of the window; empty unless it watches steps. */
hy_formulas hy_predictor_observe(const hy_predictor *p, int64_t step);

/* The proposed weights in terms of theta and slots as they are: reads only, target theta. `window` is
 * the window's true steps. */
hy_formula hy_predictor_candidate(const hy_predictor *p, int64_t window);

/* The move in predicted steps: its projection on the window's displacement, in steps of the window.
 * dot = <move, displacement>, square = |displacement|^2. */
double hy_predicted_steps(double dot, double square, int64_t window);
/* By what the move is scaled so that it counts at most max_steps. */
double hy_predictor_cap(const hy_predictor *p, double predicted_steps);

/* What acceptance writes, the move scaled by `scale`; `noise` is the length per element of a random
 * move. What rejection writes: the window begins anew, velocity forgotten. */
hy_formulas hy_predictor_accept(const hy_predictor *p, int64_t window, double scale, double noise);
hy_formulas hy_predictor_reject(const hy_predictor *p);

#endif
