/* attention_bwd.cu: causal attention backward on tensor cores, for 16-bit types.
 *
 * Weights p are computed again from the scores and the log-sum-exp. With delta = sum(dout out) of a
 * row, dp = dout v and ds = p (dp - delta):
 *   dq = scale ds k,   dk = scale ds^T q,   dv = p^T dout.
 * Two kernels: one walks over the keys of some queries and sums dq, the other over the queries of
 * some keys and sums dk and dv. Scores and dp are made in both, seven matmuls in place of five; in
 * return every sum stays in registers, in a fixed order, and no block waits for another. */
#include "kernels/cuda/attention_bwd_dkv.cuh"
#include "kernels/cuda/attention_bwd_dq.cuh"

/* dk and dv of a key head: its parts, added in order. A thread takes four columns of dk or dv. */
template <typename T> __global__ void hy_attention_dkv_sum_kernel(hy_bwd_args<T> g) {
    int64_t wide = (int64_t)g.a.K * g.a.D, count = (int64_t)g.a.B * g.a.T * wide;
    int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * 4, which = i / count;
    if (which >= 2) return;
    float4 sum = make_float4(0, 0, 0, 0);
    for (int part = 0; part < g.parts; part++) {
        float4 x = *(const float4 *)(g.partial + part * 2 * count + i);
        sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
    }
    int64_t at = i - which * count, row = at / wide, column = at % wide;
    T *to = g.dqkv + row * ((int64_t)g.a.H * g.a.D + 2 * wide) + (int64_t)g.a.H * g.a.D +
            which * wide + column;
    T four[4] = {hy_from_float<T>(sum.x), hy_from_float<T>(sum.y), hy_from_float<T>(sum.z),
                 hy_from_float<T>(sum.w)};
    *(uint2 *)to = *(const uint2 *)four;
}

/* ---- launching ------------------------------------------------------------------------------- */

size_t hy_cuda_attention_bwd_tiles_workspace(const hy_cuda *cuda, const hy_op_call *call) {
    return hy_attention_bwd_layout_of(call, cuda->card.multiprocessors).bytes;
}

template <typename T> static hy_bwd_args<T> args_of(const hy_cuda_run *run) {
    hy_attention_bwd_layout l =
        hy_attention_bwd_layout_of(run->call, run->cuda->card.multiprocessors);
    const hy_tensor *t = run->call->t;
    char *workspace = (char *)run->call->workspace.data;
    hy_bwd_args<T> g = {};
    g.a = hy_cuda_heads_of(run->call, &t[HY_ATTENTION_BWD_DOC_STARTS]);
    g.dout = (const T *)t[HY_ATTENTION_BWD_DOUT].data;
    g.qkv = (const T *)t[HY_ATTENTION_BWD_QKV].data;
    g.out = (const T *)t[HY_ATTENTION_BWD_OUT].data;
    g.dqkv = (T *)t[HY_ATTENTION_BWD_DQKV].data;
    g.lse = (const float *)t[HY_ATTENTION_BWD_LSE].data;
    g.lse2 = (float *)workspace;
    g.delta = (float *)(workspace + l.delta);
    g.first_keys = (int2 *)(workspace + l.first_keys);
    g.partial = (float *)(workspace + l.partial);
    g.spans = l.spans;
    g.padded = l.padded;
    g.parts = l.parts;
    g.scale2 = g.a.scale * HY_LOG2E;
    return g;
}

template <typename DQ, typename DKV, typename T>
static hy_status launch_all(const hy_cuda_run *run) {
    typedef hy_dq_shape<DQ> Q;
    typedef hy_dkv_shape<DKV> K;
    hy_bwd_args<T> g = args_of<T>(run);
    int64_t dq_blocks = g.a.B * g.a.H * hy_ceil_div(g.a.T, Q::OWN);
    int64_t dkv_blocks = g.a.B * g.a.K * g.parts * hy_ceil_div(g.a.T, K::OWN);
    HY_TRY(hy_launch_with_shared(run, hy_attention_dq_kernel<Q, T>, dq_blocks, Q::THREADS,
                                 Q::SHARED, g));
    HY_TRY(hy_launch_with_shared(run, hy_attention_dkv_kernel<K, T>, dkv_blocks, K::THREADS,
                                 K::SHARED, g));
    if (g.parts == 1) return HY_OK;
    int64_t fours = (int64_t)g.a.B * g.a.T * g.a.K * g.a.D / 2; /* of dk and dv together */
    hy_attention_dkv_sum_kernel<T><<<(unsigned)hy_ceil_div(fours, 256), 256, 0, run->stream>>>(g);
    return hy_cuda_launched(run);
}

/* The fastest without spills of those tried on an H200: D, OWN, ROWS, WARPS, TILE, CHUNK, KEPT,
 * BLOCKS and IS_FLAT. */
typedef hy_bwd_shape<64, 128, 32, 4, 64, 32, 4, 2> dq_64;
typedef hy_bwd_shape<80, 128, 32, 4, 32, 32, 0, 2> dq_80;
typedef hy_bwd_shape<96, 128, 32, 4, 32, 32, 0, 2> dq_96;
typedef hy_bwd_shape<128, 128, 32, 4, 32, 32, 0, 2, true> dq_128;
typedef hy_bwd_shape<256, 32, 16, 2, 16, 16, 8, 2> dq_256;

typedef hy_bwd_shape<64, 64, 32, 4, 64, 16, 4, 3> dkv_64;
typedef hy_bwd_shape<80, 64, 32, 4, 64, 16, 5, 2> dkv_80;
typedef hy_bwd_shape<96, 64, 32, 4, 64, 16, 6, 2> dkv_96;
typedef hy_bwd_shape<128, 64, 32, 4, 64, 16, 8, 2> dkv_128;
typedef hy_bwd_shape<256, 32, 16, 4, 32, 16, 16, 2> dkv_256;

template <typename T> static hy_status launch_for_size(const hy_cuda_run *run) {
    switch (run->call->attr.heads.head_dim) {
    case 64: return launch_all<dq_64, dkv_64, T>(run);
    case 80: return launch_all<dq_80, dkv_80, T>(run);
    case 96: return launch_all<dq_96, dkv_96, T>(run);
    case 128: return launch_all<dq_128, dkv_128, T>(run);
    default: return launch_all<dq_256, dkv_256, T>(run);
    }
}

hy_status hy_cuda_attention_bwd_tiles(const hy_cuda_run *run) {
    if (run->call->t[HY_ATTENTION_BWD_QKV].dtype == HY_BF16)
        return launch_for_size<__nv_bfloat16>(run);
    return launch_for_size<__half>(run);
}
