/* predictor.h: predictors as formulas.
 *
 * A predictor moves the weights along a predicted trajectory without a gradient. Each of ours is linear:
 * what it does to a block of weights theta and of its own state (up to two copies, here called buffers) is a row of coefficients, and a jump is a short list of such assignments. So predictors own no
 * memory, do no I/O and never see a pointer: the trainer runs the rows block by block on memory it
 * hands them. Buffers, by kind:
 *   outer   phi (slow weights), b (velocity): b = mu b + D, theta = phi + eta (mu b + D), D = theta - phi
 *           (Nesterov momentum on windows: SNOO, or DiLoCo with one worker)
 *   line    phi: theta + length (theta - phi)
 *   ema     phi, b (mean of what windows moved, look-ahead included): b = g b + (1 - g) (beta b + D),
 *           theta = theta + beta b, with g = gamma^window (EMA-Nesterov, arXiv 2605.25395, whose window is
 *           one step: theta' = A(theta + beta m), m = gamma m + (1 - gamma) (theta' - theta))
 * phi is the weights after the last jump in all of them, so D is what true steps moved. */
#pragma once

#include "hybrid_types.h"

typedef enum hy_predictor_kind {
    HY_PREDICTOR_NONE = 0,
    HY_PREDICTOR_OUTER,
    HY_PREDICTOR_LINE,
    HY_PREDICTOR_EMA,
    HY_PREDICTOR_COUNT
} hy_predictor_kind;

#define HY_PREDICTOR_BUFFERS 2

typedef struct hy_predictor {
    hy_predictor_kind kind;
    double mu, eta;    /* outer */
    double beta;       /* ema: how much of b is looked ahead */
    double gamma;      /* ema: how much of b an optimizer step leaves */
    int64_t max_steps; /* a jump counts at most this many predicted steps */
    int32_t exponent;  /* slow weights in 8 bits: of their grid's step, hy_predictor_exponent */
} hy_predictor;

int hy_predictor_buffers(hy_predictor_kind kind); /* copies of the weights */

/* Slow weights in 8 bits are codes that are read beside the weights (kernels/grid.h): a weight must not move
 * by more than 128 steps of the grid while a window lasts. The step is the least power of two 2^exponent
 * with which AdamW stays well below that. */
int32_t hy_predictor_exponent(double lr, double beta1, double beta2, int64_t window);

/* target = sum of the coefficients times what was there before. */
typedef struct hy_formula {
    int target; /* -1: theta; else a buffer */
    double theta;
    double buffer[HY_PREDICTOR_BUFFERS];
} hy_formula;

#define HY_FORMULAS_MAX 3
typedef struct hy_formulas {
    hy_formula list[HY_FORMULAS_MAX]; /* run in order; each sees what those before it wrote */
    int count;
} hy_formulas;

/* A window begins at these weights: after a rejection too, the velocity forgotten. */
hy_formulas hy_predictor_begin(const hy_predictor *p);

/* The proposed weights in terms of theta and buffers as they are: reads only, target theta. `window` is
 * the window's optimizer steps. */
hy_formula hy_predictor_candidate(const hy_predictor *p, int64_t window);

/* The move in predicted steps: its projection on the window's displacement, in steps of the window.
 * dot = <move, displacement>, square = |displacement|^2. */
double hy_predicted_steps(double dot, double square, int64_t window);
/* By what the jump is scaled so that it counts at most max_steps. */
double hy_predictor_cap(const hy_predictor *p, double predicted_steps);

/* What acceptance writes, the jump scaled by `scale`. */
hy_formulas hy_predictor_accept(const hy_predictor *p, int64_t window, double scale);
/* theta + scale (candidate - theta) */
hy_formula hy_formula_scaled(hy_formula candidate, double scale);
