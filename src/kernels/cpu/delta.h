/* delta.h: shared by forward and backward of the gated delta rule: the layout of a call, and tokens
 * as fp32.
 *
 * Columns of a state do not depend on each other. So a head's state is divided into blocks of
 * HY_DELTA_WIDTH columns, which fit into the L1 cache and are walked token by token: that is the
 * definition itself, and as fast as a form in chunks. A document, a cached sequence and the rows of a
 * call of any length have the same bits. Rows and columns are padded with zeros, which stay zero. */
#pragma once

#include "kernels/cpu/rows.h"

/* WIDTH: columns of a block. ROWS: the number of rows is padded to a multiple of this. */
enum { HY_DELTA_WIDTH = 32, HY_DELTA_ROWS = 4, HY_DELTA_LANES = 16 };

typedef float hy_lanes __attribute__((vector_size(4 * HY_DELTA_LANES), aligned(4)));
enum { HY_DELTA_VECTORS = HY_DELTA_WIDTH / HY_DELTA_LANES }; /* of a row of a block */

typedef struct hy_delta {
    int64_t B, T, Hk, H, Dk, Dv;
    int64_t rows;   /* of a block: Dk padded */
    int64_t blocks; /* of a state */
    int64_t group;  /* value heads that share a query and a key head */
    float scale;    /* of queries: 1 / sqrt(Dk) */
    const hy_tensor *qkv, *gates, *a_log, *dt_bias;
    const int32_t *doc_starts; /* (N), or NULL */
} hy_delta;

static inline int64_t hy_delta_block_size(const hy_delta *d) { return d->rows * HY_DELTA_WIDTH; }

/* Tensor `qkv` is at this position of the call; gates, a_log and dt_bias follow. */
hy_delta hy_delta_of(const hy_op_call *call, int qkv);

/* Tokens of one head; those of the tile begin at 0. */
typedef struct hy_delta_tokens {
    float *q, *k;                 /* (n, rows): q / |q| scale, k / |k| */
    float *q_inverse, *k_inverse; /* (n): 1 / |q|, 1 / |k| */
    float *decay, *strength;      /* (n) */
    float *v;                     /* (n, WIDTH): a block of columns */
} hy_delta_tokens;

hy_delta_tokens hy_delta_take_tokens(const hy_delta *d, int64_t n, hy_cpu_workspace *workspace);

/* Reads rows [row, row + n) of the call: queries and keys of a key head; decay and strength of a
 * value head. */
void hy_delta_read_keys(const hy_delta *d, int64_t row, int64_t n, int64_t key_head,
                        const hy_delta_tokens *t);
void hy_delta_read_gates(const hy_delta *d, int64_t row, int64_t n, int64_t head,
                         const hy_delta_tokens *t);

/* Columns of block `block` of head `head` of a tensor (N, column + H Dv), with zeros up to WIDTH. */
void hy_delta_read_block(const hy_delta *d, const hy_tensor *of, int64_t column, int64_t row,
                         int64_t n, int64_t head, int64_t block, float *values);
void hy_delta_write_block(const hy_delta *d, const hy_tensor *of, int64_t column, int64_t row,
                          int64_t n, int64_t head, int64_t block, const float *values);

/* Whether row n of the call is the first token of its document. */
static inline bool hy_delta_begins(const hy_delta *d, int64_t n) {
    return n % d->T == 0 || (d->doc_starts && d->doc_starts[n] == n % d->T);
}

/* -exp(a_log) softplus(x), and its parts */
typedef struct hy_decay {
    float rate, x, log;
} hy_decay;

hy_decay hy_delta_decay(const hy_delta *d, int64_t row, int64_t head);

/* Takes a block of columns (rows, WIDTH) through token i of the tile: `from` becomes `to`, which may
 * be the same memory. out (WIDTH): S' q, or NULL. error (WIDTH): v - decay S k, or NULL. */
void hy_delta_step(const hy_delta_tokens *t, int64_t i, int64_t rows, const float *from, float *to,
                   float *out, float *error);
