/* predictor.h: predictors as formulas.
 *
 * A predictor moves the weights along a predicted trajectory without a gradient. All predictors
 * here are linear: for a block of weights theta and the predictor's own state (up to two copies of
 * the weights, called buffers), each assignment is a row of coefficients, and a jump is a short
 * list of assignments. So predictors own no memory, do no I/O and never see a pointer: the trainer
 * applies the rows block by block to its own memory. Buffers, by kind:
 *     outer   phi (slow weights), b (velocity): b = mu b + D, theta = phi + eta (mu b + D),
 *             D = theta - phi (Nesterov momentum on windows: SNOO, or DiLoCo with one worker)
 *     line    phi: theta + length (theta - phi)
 * phi is the weights at the start of the window: those after the last jump, if one began it. So D
 * is the displacement by the window's optimizer steps. */
#pragma once

#include "hybrid_types.h"

typedef enum hy_predictor_kind {
    HY_PREDICTOR_NONE = 0,
    HY_PREDICTOR_OUTER,
    HY_PREDICTOR_LINE,
    HY_PREDICTOR_COUNT
} hy_predictor_kind;

#define HY_PREDICTOR_BUFFERS 2

typedef struct hy_predictor {
    hy_predictor_kind kind;
    double mu, eta;    /* outer */
    int64_t max_steps; /* a jump counts as at most this many predicted steps */
    /* slow weights in 8 bits: exponent of their grid step, hy_predictor_exponent */
    int32_t exponent;
} hy_predictor;

int hy_predictor_buffers(hy_predictor_kind kind); /* copies of the weights */

/* Slow weights in 8 bits are stored relative to the weights (kernels/grid.h), so a weight must not
 * move by more than 128 grid steps within a window. The grid step is the smallest power of two
 * 2^exponent with which AdamW stays well below that. */
int32_t hy_predictor_exponent(double lr, double beta1, double beta2, int64_t window);

/* target = sum of the coefficients times the previous values. */
typedef struct hy_formula {
    int target; /* -1: theta; else a buffer */
    double theta;
    double buffer[HY_PREDICTOR_BUFFERS];
} hy_formula;

#define HY_FORMULAS_MAX 3
typedef struct hy_formulas {
    hy_formula list[HY_FORMULAS_MAX]; /* run in order; each sees the results of the earlier ones */
    int count;
} hy_formulas;

/* Begins a window at the current weights with velocity 0. After an accepted jump,
 * hy_predictor_accept begins the window and keeps the velocity. */
hy_formulas hy_predictor_begin(const hy_predictor *p);

/* The proposed weights in terms of the current theta and buffers: only reads, target theta.
 * `window` is the number of optimizer steps in the window. */
hy_formula hy_predictor_candidate(const hy_predictor *p, int64_t window);

/* The length of a jump in predicted steps: its projection on the window's displacement, in steps
 * of the window. dot = <jump, displacement>, square = |displacement|^2. */
double hy_predicted_steps(double dot, double square, int64_t window);
/* The factor that limits the jump to max_steps. */
double hy_predictor_cap(const hy_predictor *p, double predicted_steps);

/* The assignments after acceptance, with the jump scaled by `scale`. */
hy_formulas hy_predictor_accept(const hy_predictor *p, int64_t window, double scale);
/* theta + scale (candidate - theta) */
hy_formula hy_formula_scaled(hy_formula candidate, double scale);
