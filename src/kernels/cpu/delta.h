/* delta.h: shared by forward and backward of the gated delta rule: the layout of a call, and tokens
 * as fp32.
 *
 * Columns of a state do not depend on each other. So a head's state is divided into blocks of a few
 * columns, which fit into the L1 cache and are walked token by token (delta_steps.h): that is the
 * definition itself, and takes less time than the matmuls alone of a form in chunks of 64 tokens. So
 * a document has the bits of a sequence, and a cached sequence the same bits in calls of any length.
 * Rows and columns are padded with zeros, which stay zero. */
#pragma once

#include "kernels/cpu/delta_steps.h"
#include "kernels/cpu/rows.h"

typedef struct hy_delta {
    int64_t B, T, Hk, H, Dk, Dv;
    int64_t rows;  /* of a state: Dk padded */
    int64_t group; /* value heads that share a query and a key head */
    float scale;   /* of queries: 1 / sqrt(Dk) */
    const hy_tensor *qkv, *gates, *a_log, *dt_bias;
    const int32_t *doc_starts; /* (N), or NULL */
} hy_delta;

/* Tensor `qkv` is at this position of the call; gates, a_log and dt_bias follow. */
hy_delta hy_delta_of(const hy_op_call *call, int qkv);

/* Tokens of one head; those of the tile begin at 0. */
typedef struct hy_delta_tokens {
    float *q, *k;                 /* (n, rows): q / |q| scale, k / |k| */
    float *q_inverse, *k_inverse; /* (n): 1 / |q|, 1 / |k| */
    float *decay, *change;        /* (n): change = decay - 1 */
    float *strength;              /* (n) */
} hy_delta_tokens;

hy_delta_tokens hy_delta_take_tokens(const hy_delta *d, int64_t n, hy_cpu_workspace *workspace);

/* Token i of the tile with values v. */
static inline hy_delta_token hy_delta_token_at(const hy_delta *d, const hy_delta_tokens *t,
                                               int64_t i, const float *v) {
    return (hy_delta_token){.q = t->q + i * d->rows,
                            .k = t->k + i * d->rows,
                            .v = v,
                            .decay = t->decay[i],
                            .change = t->change[i],
                            .strength = t->strength[i]};
}

/* Reads rows [row, row + n) of the call: queries and keys of a key head; decay and strength of a
 * value head. */
void hy_delta_read_keys(const hy_delta *d, int64_t row, int64_t n, int64_t key_head,
                        const hy_delta_tokens *t);
void hy_delta_read_gates(const hy_delta *d, int64_t row, int64_t n, int64_t head,
                         const hy_delta_tokens *t);

/* A block of columns of a tensor: `width` of them from column `at` on, of which `cols` exist; the
 * others are read as 0. */
typedef struct hy_delta_block {
    int64_t at, cols, width;
} hy_delta_block;

/* Block `i` of head `head` in a row whose heads of Dv numbers begin at `column`. */
static inline hy_delta_block hy_delta_block_at(const hy_delta *d, int64_t column, int64_t head,
                                               int64_t i, int64_t width) {
    return (hy_delta_block){column + head * d->Dv + i * width, hy_min64(width, d->Dv - i * width),
                            width};
}

void hy_delta_read_block(const hy_tensor *of, hy_delta_block block, int64_t row, int64_t n,
                         float *values);
void hy_delta_write_block(const hy_tensor *of, hy_delta_block block, int64_t row, int64_t n,
                          const float *values);

/* The column where the value heads begin in a row of qkv. */
static inline int64_t hy_delta_values(const hy_delta *d) { return 2 * d->Hk * d->Dk; }

/* Whether row n of the call is the first token of its document. */
static inline bool hy_delta_begins(const hy_delta *d, int64_t n) {
    return n % d->T == 0 || (d->doc_starts && d->doc_starts[n] == n % d->T);
}

/* -exp(a_log) softplus(x), and its parts */
typedef struct hy_decay {
    float rate, x, log;
} hy_decay;

hy_decay hy_delta_decay(const hy_delta *d, int64_t row, int64_t head);
