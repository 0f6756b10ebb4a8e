/* attention_layout.h: how the backward pass of attention on tensor cores is cut, and what of its workspace
 * goes where. The kernels (cuda/attention_bwd.cu) and plans for cards that are not here ask alike. */
#pragma once

#include "kernels/kernels.h"

/* First keys are summed up for so many queries. */
#define HY_BWD_SPAN 32

typedef struct hy_attention_bwd_layout {
    int spans, padded, parts;                 /* of hy_bwd_args in cuda/attention_bwd_tiles.cuh */
    size_t delta, first_keys, partial, bytes; /* lse2 is first */
} hy_attention_bwd_layout;

static inline size_t hy_attention_rounded(int64_t bytes) {
    return (size_t)(bytes + 255) / 256 * 256;
}

/* Query heads that share keys are summed by one block, unless the longest block would then
 * outlast the others: with two blocks at work on each multiprocessor it may take three quarters
 * of their common share. */
static inline hy_attention_bwd_layout hy_attention_bwd_layout_of(const hy_op_call *call,
                                                                 int multiprocessors) {
    int64_t B = call->attr.heads.batch, T = call->attr.heads.seq, H = call->attr.heads.heads;
    int64_t K = call->attr.heads.kv_heads, D = call->attr.heads.head_dim;
    int group = (int)(H / K);
    double tiles = (double)((T + 63) / 64), slots = 2.0 * multiprocessors;
    double share = (double)(B * H) * tiles * (tiles + 1) / 2 / slots;
    hy_attention_bwd_layout l = {0};
    l.padded = (int)((T + 127) / 128) * 128; /* whole tiles and whole blocks of every shape */
    l.spans = l.padded / HY_BWD_SPAN;
    for (l.parts = 1; l.parts < group; l.parts++) {
        if (group % l.parts == 0 && group / l.parts * tiles <= 0.75 * share) break;
    }
    l.delta = hy_attention_rounded(B * H * l.padded * 4);
    l.first_keys = 2 * l.delta;
    l.partial = l.first_keys + hy_attention_rounded(B * l.spans * 8);
    l.bytes = l.partial + (l.parts > 1 ? hy_attention_rounded(l.parts * 2 * B * T * K * D * 4) : 0);
    return l;
}
