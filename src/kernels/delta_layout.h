/* delta_layout.h: how the gated delta rule is divided on a GPU, and the layout of its workspace.
 * Used by the kernels (cuda/delta*.cu) and by plans for other cards.
 *
 * On tensor cores a sequence is a row of chunks of HY_DELTA_CHUNK tokens; a cell is a chunk of one
 * value head. The plain kernels step from token to token; their backward pass keeps a state every
 * HY_DELTA_STEPS tokens. */
#pragma once

#include "kernels/kernels.h"

#define HY_DELTA_CHUNK 64
#define HY_DELTA_STEPS 32
#define HY_DELTA_COLUMNS 64 /* columns of a state in a block of the plain kernels */
#define HY_DELTA_FEW 16     /* cached calls of fewer tokens go step by step */

/* The numbers of a cell: one of each kind per token, then the decay of the whole chunk. */
enum {
    HY_CELL_IN,       /* k S counts so much: decay since the carried state, over the length of k */
    HY_CELL_QUERY,    /* q S likewise, over the length of q and sqrt(Dk) */
    HY_CELL_OUT,      /* k in the state that leaves: decay until then, over the length of k */
    HY_CELL_STRENGTH, /* sigmoid(b) */
    HY_CELL_LOG,      /* log2 of the decay since the chunk's start */
    HY_CELL_FROM,     /* the first token of its document, from the chunk's start; an integer */
    HY_CELL_Q,        /* 1 / (length of q sqrt(Dk)) */
    HY_CELL_K,        /* 1 / length of k */
    HY_CELL_KINDS,
    HY_CELL_KEEP = HY_CELL_KINDS * HY_DELTA_CHUNK,
    HY_CELL_NUMBERS = HY_CELL_KEEP + 32 /* a multiple of 128 bytes, as tiles are */
};

/* Offsets in the workspace, 0 where there is none (except of the first). */
typedef struct hy_delta_layout {
    bool has_tiles;
    int D;                  /* tiles: Dk and Dv, rounded up */
    int64_t chunks, cells;  /* of a sequence, of all */
    size_t qkv, dout;       /* fp16: as bf16 */
    size_t numbers;         /* (cells, HY_CELL_NUMBERS) fp32 */
    size_t inverse, scores; /* (cells, 64, 64) bf16: T, and q k with decay */
    size_t states, dstates; /* (cells, Dv, Dk) bf16: before a chunk; gradient after it */
    size_t values, dvalues; /* (cells, 64, Dv) bf16: V', and T' dV' */
    size_t products;        /* (cells, 8) fp32: state * its gradient */
    size_t heads;           /* fp32: dq and dk of value heads, before they are summed */
    size_t kept, steps;     /* plain: fp32 states every 32 tokens, and of 32 tokens */
    size_t gates;           /* plain: (slices, rows, H, 2) fp32 */
    size_t partial;         /* (chunks of all sequences, 2, H) fp32: da_log, ddt_bias */
    size_t bytes;
} hy_delta_layout;

static inline int64_t hy_delta_ceil(int64_t a, int64_t b) { return (a + b - 1) / b; }

static inline bool hy_delta_is_narrow(const hy_tensor *t, hy_dtype dtype) {
    return t->dtype == dtype && (dtype == HY_BF16 || dtype == HY_F16);
}

/* Whether a call runs on tensor cores. */
static inline bool hy_delta_has_tiles(const hy_op_call *call, int capability) {
    const hy_delta_attr *a = &call->attr.delta;
    const hy_tensor *t = call->t;
    hy_dtype dtype = t[0].dtype;
    bool is_fit = a->key_dim % 16 == 0 && a->value_dim % 16 == 0 && a->key_dim <= 128 &&
                  a->value_dim <= 128 && capability >= 80;
    switch (call->kind) {
    case HY_OP_DELTA: return is_fit && hy_delta_is_narrow(&t[HY_DELTA_OUT], dtype);
    case HY_OP_DELTA_BWD:
        return is_fit && hy_delta_is_narrow(&t[HY_DELTA_BWD_QKV], dtype) &&
               t[HY_DELTA_BWD_DQKV].dtype == dtype;
    default:
        return is_fit && a->seq >= HY_DELTA_FEW &&
               hy_delta_is_narrow(&t[HY_DELTA_CACHED_OUT], dtype);
    }
}

/* Takes `bytes` of the workspace. */
static inline size_t hy_delta_take(hy_delta_layout *l, int64_t bytes) {
    size_t at = l->bytes;
    l->bytes += ((size_t)bytes + 255) / 256 * 256;
    return at;
}

static inline void hy_delta_lay_tiles(hy_delta_layout *l, const hy_op_call *call) {
    const hy_delta_attr *a = &call->attr.delta;
    int64_t K = a->key_heads, H = a->heads, rows = (int64_t)a->batch * a->seq;
    int64_t square = HY_DELTA_CHUNK * HY_DELTA_CHUNK * 2, D = l->D;
    bool is_bwd = call->kind == HY_OP_DELTA_BWD;
    if (call->t[0].dtype == HY_F16) {
        l->qkv = hy_delta_take(l, rows * (2 * K * a->key_dim + H * a->value_dim) * 2);
        if (is_bwd) l->dout = hy_delta_take(l, rows * H * a->value_dim * 2);
    }
    l->numbers = hy_delta_take(l, l->cells * HY_CELL_NUMBERS * 4);
    l->inverse = hy_delta_take(l, l->cells * square);
    l->scores = hy_delta_take(l, l->cells * square);
    if (!is_bwd) return;
    l->states = hy_delta_take(l, l->cells * D * D * 2);
    l->dstates = hy_delta_take(l, l->cells * D * D * 2);
    l->values = hy_delta_take(l, l->cells * HY_DELTA_CHUNK * D * 2);
    l->dvalues = hy_delta_take(l, l->cells * HY_DELTA_CHUNK * D * 2);
    l->products = hy_delta_take(l, l->cells * 8 * 4);
    if (H > K) l->heads = hy_delta_take(l, rows * H * 2 * a->key_dim * 4);
}

/* Rows of a state that the plain kernels keep: those of their two shapes. */
static inline int64_t hy_delta_plain_rows(const hy_delta_attr *a) {
    return a->key_dim <= 128 ? 128 : HY_DELTA_DIM_MAX;
}

static inline void hy_delta_lay_plain(hy_delta_layout *l, const hy_op_call *call) {
    const hy_delta_attr *a = &call->attr.delta;
    int64_t rows = (int64_t)a->batch * a->seq, heads = (int64_t)a->batch * a->heads;
    int64_t slices = hy_delta_ceil(a->value_dim, HY_DELTA_COLUMNS);
    int64_t state = heads * slices * HY_DELTA_COLUMNS * hy_delta_plain_rows(a) * 4;
    l->kept = hy_delta_take(l, hy_delta_ceil(a->seq, HY_DELTA_STEPS) * state);
    l->steps = hy_delta_take(l, HY_DELTA_STEPS * state);
    l->heads = hy_delta_take(l, slices * rows * a->heads * 2 * a->key_dim * 4);
    l->gates = hy_delta_take(l, slices * rows * a->heads * 2 * 4);
}

static inline hy_delta_layout hy_delta_layout_of(const hy_op_call *call, int capability) {
    const hy_delta_attr *a = &call->attr.delta;
    hy_delta_layout l = {0};
    l.has_tiles = hy_delta_has_tiles(call, capability);
    l.D = a->key_dim <= 64 && a->value_dim <= 64 ? 64 : 128;
    l.chunks = hy_delta_ceil(a->seq, HY_DELTA_CHUNK);
    l.cells = a->batch * l.chunks * a->heads;
    if (l.has_tiles) hy_delta_lay_tiles(&l, call);
    if (call->kind != HY_OP_DELTA_BWD) return l;
    if (!l.has_tiles) hy_delta_lay_plain(&l, call);
    l.partial = hy_delta_take(&l, a->batch * l.chunks * 2 * a->heads * 4);
    return l;
}
