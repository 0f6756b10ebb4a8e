/* attention_layout.h: how the backward pass of attention on tensor cores is divided, and the layout
 * of its workspace. Used by the kernels (cuda/attention_bwd.cu) and by plans for other cards. */
#pragma once

#include "kernels/kernels.h"

/* First keys are combined for this many queries. */
#define HY_BWD_SPAN 32

/* If every query sees all keys before it, the kernel of dk and dv stores ds for the kernel of dq,
 * in pieces of 16 queries and 16 keys, for as many heads at a time as fit into this share of the
 * card's memory. */
enum { HY_BWD_PIECE = 16, HY_BWD_PIECE_BYTES = HY_BWD_PIECE * HY_BWD_PIECE * 2 };
enum { HY_BWD_SHARE_OF_MEMORY = 64 };

typedef struct hy_attention_bwd_layout {
    int spans, padded, parts, keys; /* as in hy_bwd_args of cuda/attention_bwd_tiles.cuh */
    int units;                      /* heads of k and v at a time; 0: ds is not stored */
    size_t delta, first_keys, partial, kept, bytes; /* lse2 is first */
} hy_attention_bwd_layout;

/* Head sizes for which there are kernels on tensor cores; for capped scores those of Gemma 2, which
 * have no block-sparse attention. */
static inline bool hy_attention_has_tiles(const hy_heads_attr *a) {
    int D = a->head_dim;
    if (a->softcap > 0 && hy_heads_are_sparse(a)) return false;
    return D == 128 || D == 256 || (a->softcap == 0 && (D == 64 || D == 80 || D == 96));
}

static inline size_t hy_attention_rounded(int64_t bytes) {
    return (size_t)(bytes + 255) / 256 * 256;
}

/* The pieces of ds of one query head: those on and below the diagonal. */
static inline int64_t hy_attention_pieces(int64_t seq) {
    int64_t n = (seq + HY_BWD_PIECE - 1) / HY_BWD_PIECE;
    return n * (n + 1) / 2;
}

/* The load of the card: the work of one of two active blocks per multiprocessor, in tiles of
 * queries, and the work of the longest block of a head. */
static inline double hy_attention_share(int64_t heads, int64_t seq, int multiprocessors) {
    double tiles = (double)((seq + 63) / 64);
    return (double)heads * tiles * (tiles + 1) / 2 / (2.0 * multiprocessors);
}
static inline double hy_attention_longest(int64_t seq) { return (double)((seq + 63) / 64); }

/* Whether the longest block is short enough relative to the average load; otherwise the others wait
 * for it. */
static inline bool hy_attention_is_even(double longest, double share) {
    return longest <= 0.75 * share;
}

/* The number of heads of k and v for which ds is stored at a time; 0: ds is not stored. Few, so
 * that much of it is still in the card's cache when it is read, but enough that one block can sum
 * all query heads of its keys and is still one of many blocks. If memory does not allow that, the
 * partial sums would take more than ds. */
static inline int hy_attention_units(const hy_op_call *call, int multiprocessors,
                                     size_t memory_total) {
    enum { BLOCKS_IN_TURN = 4 };
    const hy_heads_attr *a = &call->attr.heads;
    int64_t units = (int64_t)a->batch * a->kv_heads, group = a->heads / a->kv_heads;
    int64_t bytes = hy_attention_pieces(a->seq) * HY_BWD_PIECE_BYTES * group;
    int64_t most = (int64_t)(memory_total / HY_BWD_SHARE_OF_MEMORY) / bytes;
    double longest = hy_attention_longest(a->seq);
    double of_unit = hy_attention_share(group, a->seq, multiprocessors);
    double wanted = longest * (BLOCKS_IN_TURN * 0.75 > (double)group ? (double)BLOCKS_IN_TURN
                                                                     : (double)group / 0.75);
    bool sees_all = !call->t[HY_ATTENTION_BWD_DOC_STARTS].data &&
                    (a->window <= 0 || a->window >= a->seq) && !hy_heads_are_sparse(a);
    if (!sees_all || most < 1) return 0;
    int64_t rounds = (int64_t)((double)units * of_unit / wanted);
    if (rounds < (units + most - 1) / most) rounds = (units + most - 1) / most;
    if (rounds < 1) rounds = 1;
    int64_t at_a_time = (units + rounds - 1) / rounds;
    bool is_even = hy_attention_is_even((double)group * longest, (double)at_a_time * of_unit);
    return rounds == 1 || is_even ? (int)at_a_time : 0;
}

/* Block-sparse attention: the number of blocks of threads that share the queries of global keys, which
 * all later queries see, so that none takes longer than half the average load. With documents the
 * global keys are everywhere, and one block takes all queries. */
static inline int hy_attention_sparse_parts(const hy_op_call *call, int multiprocessors) {
    enum { PARTS_MOST = 16 };
    const hy_heads_attr *a = &call->attr.heads;
    int64_t tiles = (a->seq + 63) / 64, group = a->heads / a->kv_heads;
    int64_t seen = a->sparse_global * tiles + (tiles - a->sparse_global) * a->sparse_local;
    double load = (double)a->batch * a->heads * (double)seen / (2.0 * multiprocessors);
    if (call->t[HY_ATTENTION_BWD_DOC_STARTS].data || a->sparse_global == 0) return 1;
    int parts = (int)((double)(group * tiles) / (0.5 * load)) + 1;
    int most = tiles - a->sparse_global < PARTS_MOST ? (int)(tiles - a->sparse_global) : PARTS_MOST;
    return parts < most ? parts : most;
}

/* One block sums the query heads that share keys, unless the longest block would then run longer
 * than the others. */
static inline hy_attention_bwd_layout
hy_attention_bwd_layout_of(const hy_op_call *call, int multiprocessors, size_t memory_total) {
    int64_t B = call->attr.heads.batch, T = call->attr.heads.seq, H = call->attr.heads.heads;
    int64_t K = call->attr.heads.kv_heads, D = call->attr.heads.head_dim;
    int group = (int)(H / K);
    hy_attention_bwd_layout l = {0};
    l.units = hy_attention_units(call, multiprocessors, memory_total);
    double share = hy_attention_share((l.units ? l.units : B * K) * group, T, multiprocessors);
    l.padded = (int)((T + 127) / 128) * 128; /* full tiles and blocks of every shape */
    l.spans = l.padded / HY_BWD_SPAN;
    for (l.parts = 1; l.parts < group; l.parts++) {
        if (group % l.parts != 0) continue;
        if (hy_attention_is_even(group / l.parts * hy_attention_longest(T), share)) break;
    }
    l.keys = (int)T;
    if (hy_heads_are_sparse(&call->attr.heads)) {
        l.parts = hy_attention_sparse_parts(call, multiprocessors);
        l.keys = call->attr.heads.sparse_global * HY_SPARSE_BLOCK;
    }
    l.delta = hy_attention_rounded(B * H * l.padded * 4);
    l.first_keys = 2 * l.delta;
    l.partial = l.first_keys + hy_attention_rounded(B * l.spans * 8);
    l.kept =
        l.partial + (l.parts > 1 ? hy_attention_rounded(l.parts * 2 * B * l.keys * K * D * 4) : 0);
    l.bytes = l.kept + (size_t)(l.units * group * hy_attention_pieces(T)) * HY_BWD_PIECE_BYTES;
    return l;
}
