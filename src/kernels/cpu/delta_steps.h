/* delta_steps.h: one token of the gated delta rule on some columns of a state, in vectors.
 *
 * Forward keeps rows of the state contiguous, so that sums over rows need no sums within vectors.
 * Backward sums over both, over rows for gradients of the state's columns and over columns for those
 * of q and k; it keeps columns contiguous, which are longer. The number of rows is padded to a
 * multiple of HY_DELTA_ROWS; what is padded is 0.
 *
 * Near 1 a decay is applied as s + change s: a rounded decay would be wrong in the same direction at
 * each of thousands of tokens. */
#pragma once

#include <stdint.h>

/* Columns of a block in forward and in backward; both fit into an L1 cache. */
enum { HY_DELTA_COLS = 32, HY_DELTA_BACK_COLS = 16, HY_DELTA_ROWS = 16 };

typedef struct hy_delta_token {
    const float *q, *k;  /* (rows); q is read by `forward` and `back` */
    const float *v;      /* (columns) */
    float decay, change; /* change: decay - 1, precise if decay is near 1 */
    float strength;
} hy_delta_token;

/* A token on the way back. */
typedef struct hy_delta_back {
    hy_delta_token token;
    const float *before, *after; /* the state (columns, rows) */
    const float *error, *dout;   /* (columns) */
    float *gradient;             /* of the state: after the token, then before it */
    float *dq, *dk;              /* (rows), added to */
    float *dv;                   /* (columns) */
    float dstrength, dlog;       /* of the strength, and of the log of the decay */
} hy_delta_back;

typedef struct hy_delta_steps {
    /* state (rows, HY_DELTA_COLS); out (HY_DELTA_COLS) may be v. */
    void (*forward)(const hy_delta_token *t, int64_t rows, float *state, float *out);
    /* States (HY_DELTA_BACK_COLS, rows), which may be the same memory; error = v - decay S' k. */
    void (*advance)(const hy_delta_token *t, int64_t rows, const float *before, float *after,
                    float *error);
    void (*back)(hy_delta_back *b, int64_t rows);
} hy_delta_steps;

/* The fastest of this machine. */
const hy_delta_steps *hy_delta_steps_get(void);
