/* grouped.cu: matmuls of the rows of each expert, and their gradient: which kernel runs.
 *
 * Row counts are known on the device alone, so every kernel finds its tiles from offsets. 16-bit
 * types run on tensor cores: by wgmma on sm_90, otherwise by mma.sync (grouped.cuh). The kernel is
 * chosen by types, widths and addresses, never by the number of rows. fp32 and odd widths run by a
 * plain kernel here. Experts of another type are decoded, as many as fit into the workspace at a
 * time, and multiplied. */
#include "kernels/cuda/cast.cuh"
#include "kernels/cuda/grouped.cuh"
#include "kernels/grouped.h"

/* ---- plain ----------------------------------------------------------------------------------- */

enum { TILE = 64, DEPTH = 16, PLAIN_THREADS = 256 };

/* The expert of a block's tile, the positions of that expert, and the tile's first row in the
 * expert's result; false: there are fewer tiles. */
__device__ __forceinline__ bool find_tile(const hy_grouped_call &c, int *expert, int *begin,
                                          int *end, int *row) {
    int tile = blockIdx.x, each = (c.M + TILE - 1) / TILE;
    for (int e = 0; e < c.experts; e++) {
        *expert = e;
        *begin = c.offsets[e], *end = c.offsets[e + 1];
        if (c.form != HY_GROUPED_TN) each = (*end - *begin + TILE - 1) / TILE;
        *row = tile * TILE;
        if (tile < each) return true;
        tile -= each;
    }
    return false;
}

template <typename T> struct plain_operand {
    const T *data;
    const int32_t *rows;
    int share;
    int64_t width;

    __device__ __forceinline__ float at(int64_t position, int64_t column) const {
        int64_t row = rows ? rows[position] / share : position;
        return hy_to_float(data[row * width + column]);
    }
};

template <typename T>
static __global__ void __launch_bounds__(PLAIN_THREADS, 2) plain_kernel(hy_grouped_call c) {
    __shared__ float a[DEPTH][TILE + 1], b[DEPTH][TILE + 1];
    int expert, begin, end, row, col = blockIdx.y * TILE;
    int across = threadIdx.x % 16, down = threadIdx.x / 16;
    if (!find_tile(c, &expert, &begin, &end, &row)) return;
    bool is_gradient = c.form == HY_GROUPED_TN;
    plain_operand<T> of_a = {(const T *)c.a, c.rows_a, c.share_a, is_gradient ? c.M : c.K};
    plain_operand<T> of_b = {(const T *)c.b, c.rows_b, c.share_b, c.N};
    const T *own_b = (const T *)c.b + (int64_t)expert * c.N * c.K;
    int rows = is_gradient ? c.M : end - begin, depth = is_gradient ? end - begin : c.K;
    float sum[16] = {}; /* 4 rows of 4, 16 apart */
    for (int k = 0; k < depth; k += DEPTH) {
        for (int i = threadIdx.x; i < TILE * DEPTH; i += PLAIN_THREADS) {
            int line = is_gradient ? i % TILE : i / DEPTH, d = is_gradient ? i / TILE : i % DEPTH;
            bool is_there = row + line < rows && k + d < depth;
            a[d][line] = !is_there     ? 0.0f
                         : is_gradient ? of_a.at(begin + k + d, row + line)
                                       : of_a.at(begin + row + line, k + d);
        }
        for (int i = threadIdx.x; i < TILE * DEPTH; i += PLAIN_THREADS) {
            bool is_nt = c.form == HY_GROUPED_NT;
            int line = is_nt ? i / DEPTH : i % TILE, d = is_nt ? i % DEPTH : i / TILE;
            int64_t n = col + line, at = k + d;
            bool is_there = n < c.N && at < depth;
            b[d][line] = !is_there     ? 0.0f
                         : is_gradient ? of_b.at(begin + at, n)
                                       : hy_to_float(own_b[is_nt ? n * c.K + at : at * c.N + n]);
        }
        __syncthreads();
        for (int d = 0; d < DEPTH; d++) {
            HY_EACH(i, 16) sum[i] += a[d][down + i / 4 * 16] * b[d][across + i % 4 * 16];
        }
        __syncthreads();
    }
    HY_EACH(i, 16) {
        int r = row + down + i / 4 * 16, n = col + across + i % 4 * 16;
        if (r >= rows || n >= c.N) continue;
        int64_t at = ((is_gradient ? (int64_t)expert * c.M : begin) + r) * c.N + n;
        float x = c.alpha * sum[i];
        if (c.bias) x += hy_load_any(c.bias, (int64_t)expert * c.N + n, c.bias_dtype);
        if (c.accumulate) x += hy_load_any(c.d, at, c.out);
        hy_store_any(c.d, at, c.out, x);
    }
}

/* As many blocks as there can be tiles: each expert may have one that is not full. */
static hy_status run_plain(const hy_cuda_run *run, const hy_grouped_call *c) {
    int64_t tiles = c->form == HY_GROUPED_TN
                        ? hy_ceil_div(c->M, TILE) * c->experts
                        : hy_ceil_div(hy_grouped_rows(run->call), TILE) + c->experts;
    dim3 grid((unsigned)tiles, (unsigned)hy_ceil_div(c->N, TILE));
    hy_by_type(c->in, [&](auto zero) {
        using T = decltype(zero);
        plain_kernel<T><<<grid, PLAIN_THREADS, 0, run->stream>>>(*c);
    });
    return hy_cuda_launched(run);
}

/* ---- the call -------------------------------------------------------------------------------- */

static hy_grouped_call grouped_call_of(const hy_op_call *call) {
    const hy_tensor *t = call->t;
    hy_grouped_call c = {};
    c.alpha = call->attr.grouped.alpha;
    c.accumulate = call->attr.accumulate;
    c.a = t[HY_GROUPED_MATMUL_A].data;
    c.in = t[HY_GROUPED_MATMUL_A].dtype;
    if (call->kind == HY_OP_GROUPED_GRAD) {
        const hy_tensor *d = &t[HY_GROUPED_GRAD_D];
        c.form = HY_GROUPED_TN;
        c.b = t[HY_GROUPED_GRAD_B].data;
        c.offsets = (const int32_t *)t[HY_GROUPED_GRAD_OFFSETS].data;
        c.d = d->data, c.out = d->dtype;
        c.M = (int)d->shape[1], c.N = (int)d->shape[2];
        c.rows_a = (const int32_t *)t[HY_GROUPED_GRAD_ROWS_A].data;
        c.rows_b = (const int32_t *)t[HY_GROUPED_GRAD_ROWS_B].data;
        c.share_a = (int)hy_grouped_share(call, HY_GROUPED_GRAD_A, HY_GROUPED_GRAD_ROWS_A);
        c.share_b = (int)hy_grouped_share(call, HY_GROUPED_GRAD_B, HY_GROUPED_GRAD_ROWS_B);
        return c;
    }
    const hy_tensor *d = &t[HY_GROUPED_MATMUL_D], *bias = &t[HY_GROUPED_MATMUL_BIAS];
    c.form = call->attr.grouped.trans_b ? HY_GROUPED_NT : HY_GROUPED_NN;
    c.b = t[HY_GROUPED_MATMUL_B].data;
    c.offsets = (const int32_t *)t[HY_GROUPED_MATMUL_OFFSETS].data;
    c.d = d->data, c.out = d->dtype;
    c.bias = bias->data, c.bias_dtype = bias->dtype;
    c.K = (int)hy_width(&t[HY_GROUPED_MATMUL_A]), c.N = (int)hy_width(d);
    c.rows_a = (const int32_t *)t[HY_GROUPED_MATMUL_ROWS].data;
    c.share_a = (int)hy_grouped_share(call, HY_GROUPED_MATMUL_A, HY_GROUPED_MATMUL_ROWS);
    return c;
}

/* Whether the kernels for tensor cores can run it: chunks of 16 bytes everywhere. */
static bool fits_tiles(const hy_cuda *cuda, const hy_grouped_call *c) {
    int widths = c->form == HY_GROUPED_TN ? c->M | c->N : c->K | c->N;
    uintptr_t addresses = (uintptr_t)c->a | (uintptr_t)c->b | (uintptr_t)c->d;
    return c->in != HY_F32 && cuda->card.code >= 80 && widths % 8 == 0 && addresses % 16 == 0;
}

static hy_status run_experts(const hy_cuda_run *run, const hy_grouped_call *c) {
    if (!fits_tiles(run->cuda, c)) return run_plain(run, c);
    bool is_batch_invariant = run->call->attr.grouped.is_batch_invariant;
    if (is_batch_invariant || !hy_grouped_has_wgmma(run->cuda)) return hy_grouped_by_mma(run, c);
    return hy_grouped_by_wgmma(run, c);
}

static const void *behind(const void *data, int64_t elements, hy_dtype dtype) {
    return data ? (const char *)data + elements * (int64_t)hy_dtype_size(dtype) : NULL;
}

hy_status hy_cuda_grouped(const hy_cuda_run *run) {
    const hy_tensor *t = run->call->t, *b = &t[HY_GROUPED_MATMUL_B];
    hy_grouped_call all = grouped_call_of(run->call);
    hy_grouped_decode decode = hy_grouped_decode_of(run->call);
    bool is_gradient = all.form == HY_GROUPED_TN;
    int64_t E = is_gradient ? t[HY_GROUPED_GRAD_D].shape[0] : b->shape[0];
    int64_t most = decode.experts > 0 && decode.experts < HY_GROUPED_EXPERTS ? decode.experts
                                                                             : HY_GROUPED_EXPERTS;
    for (int64_t first = 0; first < E; first += most) {
        hy_grouped_call c = all;
        int64_t of_b = (int64_t)c.N * c.K, of_d = (int64_t)c.M * c.N;
        c.experts = (int)(E - first < most ? E - first : most);
        c.offsets += first;
        c.bias = behind(c.bias, first * c.N, c.bias_dtype);
        if (is_gradient) {
            c.d = (void *)behind(c.d, first * of_d, c.out);
        } else if (decode.experts > 0) {
            hy_tensor decoded = hy_tensor_1d(run->call->workspace.data, c.in, c.experts * of_b);
            hy_cast_filter with_rows = {c.offsets, (uint32_t)of_b};
            HY_TRY(hy_cuda_cast_part(run, b, first * of_b, &decoded, with_rows));
            c.b = decoded.data;
        } else {
            c.b = behind(c.b, first * of_b, c.in);
        }
        HY_TRY(run_experts(run, &c));
    }
    return HY_OK;
}

size_t hy_cuda_grouped_workspace(const hy_cuda *, const hy_op_call *call) {
    return hy_grouped_decode_of(call).bytes;
}

hy_status hy_cuda_grouped_supports(const hy_cuda *cuda, const hy_op_call *call) {
    const hy_tensor *t = call->t;
    hy_dtype in = t[HY_GROUPED_MATMUL_A].dtype, out = t[HY_GROUPED_MATMUL_D].dtype;
    hy_dtype other = t[HY_GROUPED_GRAD_B].dtype;
    const char *name = cuda->host.op_name(call->kind);
    if (out != in && out != HY_F32) {
        return hy_cuda_fail(cuda, HY_ERR_INPUT, "%s: d is %s, expected %s (the type of a) or fp32",
                            name, hy_dtype_name(out), hy_dtype_name(in));
    }
    if (call->kind == HY_OP_GROUPED_MATMUL || other == in) return HY_OK;
    return hy_cuda_fail(cuda, HY_ERR_INPUT, "%s: a is %s and b is %s, expected one type", name,
                        hy_dtype_name(in), hy_dtype_name(other));
}
