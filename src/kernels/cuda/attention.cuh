/* attention.cuh: the parts of attention, and the masks.
 *
 * attention.cu chooses for each call: tiles on tensor cores (attention_tiles.cuh, attention_bwd.cu)
 * if type, head size and card allow it, otherwise plain kernels (attention_generic.cu). Query i of
 * a sequence sees keys [hy_first_key(i), i], in block-sparse attention without a gap (sparse.h), and
 * always at least itself. */
#pragma once

#include "kernels/cuda/cuda.cuh"

/* The layout of a call: qkv (B T, (H + 2 K) D), out (B T, H D), lse (B, H, T). */
typedef struct hy_cuda_heads {
    int B, T, H, K, D;
    int window;        /* visible tokens, including itself; 0: all before */
    int local, global; /* of sparse.h; local 0: no gaps */
    float scale;
    float softcap;             /* 0: none */
    const int32_t *doc_starts; /* (B T), or NULL */
    const void *sinks;         /* (H), or NULL */
    hy_dtype sinks_type;
} hy_cuda_heads;

/* Tensors that the forward and the backward pass have at different positions. */
static inline const hy_tensor *hy_attention_qkv(const hy_op_call *call) {
    bool is_forward = call->kind == HY_OP_ATTENTION;
    return is_forward ? &call->t[HY_ATTENTION_QKV] : &call->t[HY_ATTENTION_BWD_QKV];
}
static inline const hy_tensor *hy_attention_doc_starts(const hy_op_call *call) {
    bool is_forward = call->kind == HY_OP_ATTENTION;
    return is_forward ? &call->t[HY_ATTENTION_DOC_STARTS] : &call->t[HY_ATTENTION_BWD_DOC_STARTS];
}

static inline const hy_tensor *hy_attention_sinks(const hy_op_call *call) {
    return call->kind == HY_OP_ATTENTION       ? &call->t[HY_ATTENTION_SINKS]
           : call->kind == HY_OP_ATTENTION_BWD ? &call->t[HY_ATTENTION_BWD_SINKS]
                                               : &call->t[HY_ATTENTION_CACHED_SINKS];
}

static inline hy_cuda_heads hy_cuda_heads_of(const hy_op_call *call) {
    hy_cuda_heads a = {};
    a.B = call->attr.heads.batch;
    a.T = call->attr.heads.seq;
    a.H = call->attr.heads.heads;
    a.K = call->attr.heads.kv_heads;
    a.D = call->attr.heads.head_dim;
    a.window = call->attr.heads.window;
    a.scale = call->attr.heads.scale;
    a.softcap = call->attr.heads.softcap;
    a.sinks = hy_attention_sinks(call)->data;
    a.sinks_type = hy_attention_sinks(call)->dtype;
    /* A cache may be longer than the sequence. */
    bool is_cached = call->kind == HY_OP_ATTENTION_CACHED;
    bool is_sparse = is_cached || hy_heads_are_sparse(&call->attr.heads);
    a.local = is_sparse ? call->attr.heads.sparse_local : 0;
    a.global = call->attr.heads.sparse_global;
    if (is_cached) return a; /* it has no documents */
    a.doc_starts = (const int32_t *)hy_attention_doc_starts(call)->data;
    return a;
}

/* The first key that query i of sequence b sees. A document start after i counts as i. */
__device__ __forceinline__ int hy_first_key(const hy_cuda_heads &a, int b, int i) {
    int first = a.window > 0 ? max(0, i - a.window + 1) : 0;
    return a.doc_starts ? max(first, min(a.doc_starts[(int64_t)b * a.T + i], i)) : first;
}

/* Whether key `key` is in the gap of query i, of the document that begins at `document`. */
__device__ __forceinline__ bool hy_is_in_gap(const hy_cuda_heads &a, int document, int i, int key) {
    return a.local > 0 && hy_gap_hides(hy_sparse_gap(a.local, a.global, document, i), key, 1);
}

/* What none of queries [query, end) sees before the first of them; for all lanes of a warp. A query
 * whose document begins among them sees nothing before. */
__device__ __forceinline__ hy_gap hy_gap_of_rows(const hy_cuda_heads &a, int b, int query,
                                                 int end) {
    hy_gap gap = {0, a.local > 0 ? INT_MAX : 0};
    for (int i = query + (int)threadIdx.x % 32; i < end && a.local > 0; i += 32) {
        int document = hy_first_key(a, b, i);
        if (document < query || i == query)
            gap = hy_gap_join(gap, hy_sparse_gap(a.local, a.global, document, i));
    }
    for (int d = 16; d > 0; d >>= 1) {
        hy_gap other = {__shfl_xor_sync(0xffffffffu, gap.begin, d),
                        __shfl_xor_sync(0xffffffffu, gap.end, d)};
        gap = hy_gap_join(gap, other);
    }
    return gap;
}

__device__ __forceinline__ float hy_sink(const hy_cuda_heads &a, int h) {
    return hy_load_any(a.sinks, h, a.sinks_type);
}

/* Whether tiles support the call: bf16 or fp16 throughout, a head size of hy_attention_has_tiles,
 * capability 80 or more. */
bool hy_cuda_attention_is_fast(const hy_cuda *cuda, const hy_op_call *call);

hy_status hy_cuda_attention_tiles(const hy_cuda_run *run);
hy_status hy_cuda_attention_bwd_tiles(const hy_cuda_run *run);
size_t hy_cuda_attention_bwd_tiles_workspace(const hy_cuda *cuda, const hy_op_call *call);

/* Supports any real type and any head size up to 256. */
hy_status hy_cuda_attention_generic(const hy_cuda_run *run);
hy_status hy_cuda_attention_bwd_generic(const hy_cuda_run *run);
size_t hy_cuda_attention_bwd_generic_workspace(const hy_cuda *cuda, const hy_op_call *call);

/* Cached attention (attention_blocks.cu). */
hy_status hy_attention_blocks(const hy_cuda_run *run);
size_t hy_attention_blocks_workspace(const hy_op_call *call);

/* The gradient of the sinks of a backward call, if requested, from delta of its rows: (B, H) rows
 * that are `apart` numbers from each other. */
hy_status hy_attention_sink_gradient(const hy_cuda_run *run, const float *delta, int64_t apart);
