/* adapter.cu: ops of low-rank adapters other than matmuls: block-diagonal layout, and dropout.
 *
 * The matrices have a few thousand rows and some dozen columns: one element per thread. Dropout
 * works in quads; a quad uses the four random numbers of one counter, as on the CPU. */
#include "kernels/cuda/noise.cuh"
#include "kernels/cuda/quad.cuh"

#define THREADS 256

typedef struct spread_args {
    hy_view b, full;
    hy_spread_attr pieces;
    int64_t rank, width, count; /* count: elements of full */
    bool accumulate;
} spread_args;

template <bool is_collect>
__global__ void __launch_bounds__(THREADS) spread_kernel(const __grid_constant__ spread_args a) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, column;
    if (i >= a.count) return;
    int64_t row = hy_spread_row(&a.pieces, i / a.width, a.rank, &column);
    int64_t k = i % a.width - column;
    bool is_of_b = row >= 0 && k >= 0 && k < a.rank;
    if (!is_collect) {
        float x = is_of_b ? hy_load_any(a.b.data, row * a.rank + k, a.b.dtype) : 0;
        hy_store_any(a.full.data, i, a.full.dtype, x);
    } else if (is_of_b) {
        float x = hy_load_any(a.full.data, i, a.full.dtype);
        if (a.accumulate) x += hy_load_any(a.b.data, row * a.rank + k, a.b.dtype);
        hy_store_any(a.b.data, row * a.rank + k, a.b.dtype, x);
    }
}

static spread_args spread_args_of(const hy_cuda_run *run, int b, int full) {
    const hy_tensor *t = run->call->t;
    spread_args a = {};
    a.b = hy_view_of(&t[b]), a.full = hy_view_of(&t[full]);
    a.pieces = run->call->attr.spread;
    a.rank = hy_width(&t[b]), a.width = hy_width(&t[full]);
    a.count = hy_tensor_count(&t[full]);
    a.accumulate = run->call->attr.accumulate;
    return a;
}

static unsigned blocks_of(const spread_args &a) {
    return (unsigned)hy_ceil_div(a.count, (int64_t)THREADS);
}

hy_status hy_cuda_spread(const hy_cuda_run *run) {
    spread_args a = spread_args_of(run, HY_SPREAD_B, HY_SPREAD_FULL);
    spread_kernel<false><<<blocks_of(a), THREADS, 0, run->stream>>>(a);
    return hy_cuda_launched(run);
}

hy_status hy_cuda_collect(const hy_cuda_run *run) {
    spread_args a = spread_args_of(run, HY_COLLECT_B, HY_COLLECT_FULL);
    spread_kernel<true><<<blocks_of(a), THREADS, 0, run->stream>>>(a);
    return hy_cuda_launched(run);
}

/* ---- dropout --------------------------------------------------------------------------------- */

typedef struct dropout_args {
    hy_view x, c, y;
    const uint32_t *seed;
    uint64_t first;
    int64_t count;
    float rate, scale;
} dropout_args;

__global__ void __launch_bounds__(THREADS) dropout_kernel(dropout_args a) {
    int64_t thread = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    uint64_t seed = a.seed ? (uint64_t)a.seed[1] << 32 | a.seed[0] : 0;
    HY_EACH(k, HY_QUADS) {
        int64_t at = hy_quad_at(thread, k);
        int n = hy_quad_length(at, a.count);
        if (n == 0) continue;
        float x[HY_QUAD], before[HY_QUAD] = {};
        hy_widen(hy_fetch(a.x, at, n), a.x.dtype, x);
        if (a.c.data) hy_widen(hy_fetch(a.c, at, n), a.c.dtype, before);
        uint4 four = make_uint4(0, 0, 0, 0);
        if (a.rate > 0)
            four = hy_device_philox(seed, HY_RNG_DROPOUT, a.first + (uint64_t)at / HY_QUAD);
        uint32_t word[HY_QUAD] = {four.x, four.y, four.z, four.w};
        HY_EACH(i, HY_QUAD) {
            bool is_dropped = (float)word[i] * 0x1p-32f < a.rate;
            float kept = is_dropped ? 0 : __fmul_rn(a.scale, x[i]);
            x[i] = a.c.data ? __fadd_rn(kept, before[i]) : kept;
        }
        hy_store(a.y, at, n, hy_narrow(x, a.y.dtype));
    }
}

hy_status hy_cuda_dropout(const hy_cuda_run *run) {
    const hy_op_call *call = run->call;
    dropout_args a = {};
    a.x = hy_view_of(&call->t[HY_DROPOUT_X]), a.y = hy_view_of(&call->t[HY_DROPOUT_Y]);
    a.seed = (const uint32_t *)call->t[HY_DROPOUT_SEED].data;
    a.first = call->attr.dropout.first;
    a.rate = call->attr.dropout.rate, a.scale = 1 / (1 - a.rate);
    a.c = hy_view_of(&call->t[HY_DROPOUT_C]);
    a.count = hy_tensor_count(&call->t[HY_DROPOUT_X]);
    dropout_kernel<<<hy_quad_blocks(a.count, THREADS), THREADS, 0, run->stream>>>(a);
    return hy_cuda_launched(run);
}
