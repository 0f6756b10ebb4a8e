/* attention_bwd.cu: causal attention backward on tensor cores, for 16-bit types.
 *
 * The weights p are recomputed from the scores and the log-sum-exp. With delta = sum(dout out) of a
 * row, dp = dout v and ds = p (dp - delta):
 *     dq = scale ds k,   dk = scale ds^T q,   dv = p^T dout.
 * One kernel iterates over the queries of some keys and sums dk and dv, another over the keys of
 * some queries and sums dq. So every sum stays in registers, in a fixed order, and no block waits
 * for another. If every query sees all keys before it, the first kernel stores ds for the second,
 * some heads at a time: five matmuls, and two bytes written and read for each pair of tokens and
 * head. With windows, documents or gaps, or if the pieces of one head take too much memory, the second
 * kernel recomputes scores and dp: seven matmuls. */
#include "kernels/cuda/attention_bwd_dkv.cuh"
#include "kernels/cuda/attention_bwd_dq.cuh"
#include "kernels/cuda/attention_bwd_kept.cuh"

/* dk and dv of a key head: adds its parts in order. A thread takes four columns of dk or dv. */
template <typename T> __global__ void hy_attention_dkv_sum_kernel(hy_bwd_args<T> g) {
    int64_t wide = (int64_t)g.a.K * g.a.D, count = (int64_t)g.a.B * g.keys * wide;
    int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * 4, which = i / count;
    if (which >= 2) return;
    float4 sum = make_float4(0, 0, 0, 0);
    for (int part = 0; part < g.parts; part++) {
        float4 x = *(const float4 *)(g.partial + part * 2 * count + i);
        sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
    }
    int64_t at = i - which * count, row = at / wide, column = at % wide;
    row = row / g.keys * g.a.T + row % g.keys;
    T *to = g.dqkv + row * ((int64_t)g.a.H * g.a.D + 2 * wide) + (int64_t)g.a.H * g.a.D +
            which * wide + column;
    T four[4] = {hy_from_float<T>(sum.x), hy_from_float<T>(sum.y), hy_from_float<T>(sum.z),
                 hy_from_float<T>(sum.w)};
    *(uint2 *)to = *(const uint2 *)four;
}

/* ---- launching ------------------------------------------------------------------------------- */

static hy_attention_bwd_layout layout_of(const hy_cuda *cuda, const hy_op_call *call) {
    return hy_attention_bwd_layout_of(call, cuda->card.multiprocessors,
                                      cuda->backend.facts.memory_total);
}

size_t hy_cuda_attention_bwd_tiles_workspace(const hy_cuda *cuda, const hy_op_call *call) {
    return layout_of(cuda, call).bytes;
}

template <typename T> static hy_bwd_args<T> args_of(const hy_cuda_run *run) {
    hy_attention_bwd_layout l = layout_of(run->cuda, run->call);
    const hy_tensor *t = run->call->t;
    char *workspace = (char *)run->call->workspace.data;
    hy_bwd_args<T> g = {};
    g.a = hy_cuda_heads_of(run->call);
    g.dout = (const T *)t[HY_ATTENTION_BWD_DOUT].data;
    g.qkv = (const T *)t[HY_ATTENTION_BWD_QKV].data;
    g.out = (const T *)t[HY_ATTENTION_BWD_OUT].data;
    g.dqkv = (T *)t[HY_ATTENTION_BWD_DQKV].data;
    g.lse = (const float *)t[HY_ATTENTION_BWD_LSE].data;
    g.lse2 = (float *)workspace;
    g.delta = (float *)(workspace + l.delta);
    g.first_keys = (int2 *)(workspace + l.first_keys);
    g.partial = (float *)(workspace + l.partial);
    g.kept = l.units ? (uint4 *)(workspace + l.kept) : NULL;
    g.units = l.units ? l.units : g.a.B * g.a.K;
    g.spans = l.spans;
    g.padded = l.padded;
    g.parts = l.parts;
    g.keys = l.keys;
    g.scale2 = (g.a.softcap > 0 ? g.a.softcap : g.a.scale) * HY_LOG2E;
    g.inner = g.a.softcap > 0 ? g.a.scale / g.a.softcap : 0;
    return g;
}

template <typename S, bool KEEPS, bool IS_CAPPED, bool IS_SPARSE, typename T>
static hy_status launch_dkv(const hy_cuda_run *run, const hy_bwd_args<T> &g) {
    int64_t tiles = hy_ceil_div(g.a.T, S::OWN), shared = IS_SPARSE ? g.keys / S::OWN : tiles;
    int64_t blocks = g.units * (tiles + (g.parts - 1) * shared);
    return hy_launch_with_shared(run, hy_attention_dkv_kernel<S, T, KEEPS, IS_CAPPED, IS_SPARSE>,
                                 blocks, S::THREADS, S::SHARED, g);
}

template <typename T>
static hy_status launch_delta(const hy_cuda_run *run, const hy_bwd_args<T> &g) {
    enum { THREADS = 256 };
    int64_t rows = (int64_t)g.a.B * g.padded * g.a.H;
    int lanes = g.a.D <= 64 ? 8 : g.a.D <= 128 ? 16 : 32;
    unsigned blocks = (unsigned)hy_ceil_div(rows * lanes, THREADS);
    if (lanes == 8) hy_attention_delta_kernel<T, 8><<<blocks, THREADS, 0, run->stream>>>(g);
    if (lanes == 16) hy_attention_delta_kernel<T, 16><<<blocks, THREADS, 0, run->stream>>>(g);
    if (lanes == 32) hy_attention_delta_kernel<T, 32><<<blocks, THREADS, 0, run->stream>>>(g);
    return hy_cuda_launched(run);
}

/* dk and dv, then dq, for some heads at a time. */
template <typename Q, typename K, bool IS_CAPPED, typename T>
static hy_status launch_kept(const hy_cuda_run *run, hy_bwd_args<T> g) {
    int at_a_time = g.units, all = g.a.B * g.a.K;
    HY_TRY(launch_delta<T>(run, g));
    for (g.first_unit = 0; g.first_unit < all; g.first_unit += at_a_time) {
        g.units = at_a_time < all - g.first_unit ? at_a_time : all - g.first_unit;
        int64_t blocks = (int64_t)g.units * (g.a.H / g.a.K) * hy_ceil_div(g.a.T, Q::OWN);
        HY_TRY((launch_dkv<K, true, IS_CAPPED, false>(run, g)));
        HY_TRY(hy_launch_with_shared(run, hy_attention_dq_kept_kernel<Q, T>, blocks, Q::THREADS,
                                     Q::SHARED, g));
    }
    return HY_OK;
}

template <typename Q, typename K, bool IS_CAPPED, bool IS_SPARSE, typename T>
static hy_status launch_twice(const hy_cuda_run *run, const hy_bwd_args<T> &g) {
    int64_t blocks = (int64_t)g.a.B * g.a.H * hy_ceil_div(g.a.T, Q::OWN);
    HY_TRY(hy_launch_with_shared(run, hy_attention_dq_kernel<Q, T, IS_CAPPED, IS_SPARSE>, blocks,
                                 Q::THREADS, Q::SHARED, g));
    return launch_dkv<K, false, IS_CAPPED, IS_SPARSE>(run, g);
}

template <typename DQ, typename KEPT, typename DKV, typename T, bool IS_CAPPED = false>
static hy_status launch_all(const hy_cuda_run *run) {
    typedef hy_dkv_shape<DKV> K;
    hy_bwd_args<T> g = args_of<T>(run);
    constexpr bool MAY_BE_SPARSE = !IS_CAPPED;
    if (g.kept) {
        HY_TRY((launch_kept<hy_kept_shape<KEPT>, K, IS_CAPPED>(run, g)));
    } else if (MAY_BE_SPARSE && g.a.local > 0) {
        HY_TRY((launch_twice<hy_dq_shape<DQ>, K, IS_CAPPED, MAY_BE_SPARSE>(run, g)));
    } else {
        HY_TRY((launch_twice<hy_dq_shape<DQ>, K, IS_CAPPED, false>(run, g)));
    }
    HY_TRY(hy_attention_sink_gradient(run, g.delta, g.padded));
    if (g.parts == 1) return HY_OK;
    int64_t fours = (int64_t)g.a.B * g.keys * g.a.K * g.a.D / 2; /* of dk and dv together */
    hy_attention_dkv_sum_kernel<T><<<(unsigned)hy_ceil_div(fours, 256), 256, 0, run->stream>>>(g);
    return hy_cuda_launched(run);
}

/* The fastest shapes without spills that were tried on an H200: D, OWN, ROWS, WARPS, TILE, CHUNK,
 * KEPT, BLOCKS and IS_FLAT. */
typedef hy_bwd_shape<64, 128, 32, 4, 64, 32, 4, 2> dq_64;
typedef hy_bwd_shape<80, 128, 32, 4, 32, 32, 0, 2> dq_80;
typedef hy_bwd_shape<96, 128, 32, 4, 32, 32, 0, 2> dq_96;
typedef hy_bwd_shape<128, 128, 32, 4, 32, 32, 0, 2, true> dq_128;
typedef hy_bwd_shape<256, 32, 16, 2, 16, 16, 8, 2> dq_256;

typedef hy_bwd_shape<64, 128, 32, 4, 64, 64, 0, 3> kept_64;
typedef hy_bwd_shape<80, 128, 32, 4, 64, 64, 0, 2> kept_80;
typedef hy_bwd_shape<96, 128, 32, 4, 64, 64, 0, 2> kept_96;
typedef hy_bwd_shape<128, 128, 32, 4, 64, 64, 0, 2> kept_128;
typedef hy_bwd_shape<256, 64, 16, 4, 32, 32, 0, 2> kept_256;

typedef hy_bwd_shape<64, 64, 32, 4, 64, 16, 4, 3> dkv_64;
typedef hy_bwd_shape<80, 64, 32, 4, 64, 16, 5, 2> dkv_80;
typedef hy_bwd_shape<96, 64, 32, 4, 64, 16, 6, 2> dkv_96;
typedef hy_bwd_shape<128, 64, 32, 4, 64, 16, 8, 2> dkv_128;
typedef hy_bwd_shape<256, 32, 16, 4, 32, 16, 16, 2> dkv_256;

/* Capped scores take more registers. */
typedef hy_bwd_shape<128, 128, 32, 4, 32, 16, 0, 2, true> capped_dq_128;
typedef hy_bwd_shape<128, 32, 16, 4, 32, 16, 8, 3> capped_dkv_128;

template <typename T> static hy_status launch_for_size(const hy_cuda_run *run) {
    int D = run->call->attr.heads.head_dim;
    if (run->call->attr.heads.softcap > 0) { /* as in hy_attention_has_tiles */
        return D == 128 ? launch_all<capped_dq_128, kept_128, capped_dkv_128, T, true>(run)
                        : launch_all<dq_256, kept_256, dkv_256, T, true>(run);
    }
    switch (D) {
    case 64: return launch_all<dq_64, kept_64, dkv_64, T>(run);
    case 80: return launch_all<dq_80, kept_80, dkv_80, T>(run);
    case 96: return launch_all<dq_96, kept_96, dkv_96, T>(run);
    case 128: return launch_all<dq_128, kept_128, dkv_128, T>(run);
    default: return launch_all<dq_256, kept_256, dkv_256, T>(run);
    }
}

hy_status hy_cuda_attention_bwd_tiles(const hy_cuda_run *run) {
    if (run->call->t[HY_ATTENTION_BWD_QKV].dtype == HY_BF16)
        return launch_for_size<__nv_bfloat16>(run);
    return launch_for_size<__half>(run);
}
