/* weighted_rows.cu: swiglu of rows that have a weight each, and the sum of a token's rows, for
 * mixtures of experts.
 *
 * A warp takes a row of swiglu, so the gradient of its weight is a sum over one warp. The precise
 * exponential is used: that gradient is fp32. */
#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/largest.cuh"

enum { THREADS = 256, WARPS = THREADS / 32 };

/* The weights of rows, and where that of a row is. */
typedef struct row_weights {
    const float *weights;
    const int32_t *order; /* NULL: in the order of rows */
    float *dweights;      /* NULL: not wanted */
} row_weights;

__device__ __forceinline__ int64_t weight_at(const row_weights &w, int64_t row) {
    return w.order ? w.order[row] : row;
}

template <typename A>
static __global__ void __launch_bounds__(THREADS)
    weighted_swiglu(A gate_up, A y, row_weights w, uint32_t *out, int64_t rows, int64_t per_row,
                    hy_act kind) {
    int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32, F = per_row * A::width;
    uint32_t largest = 0;
    float weight = row < rows ? w.weights[weight_at(w, row)] : 0;
    for (int64_t i = threadIdx.x % 32; row < rows && i < per_row; i += 32) {
        int64_t at = row * 2 * F + i * A::width;
        float g[A::width], u[A::width];
        gate_up.open(gate_up.fetch(at), g);
        gate_up.open(gate_up.fetch(at + F), u);
        HY_EACH(j, A::width) g[j] = weight * (act<false>(kind, g[j]) * u[j]);
        y.store(row * F + i * A::width, g);
        largest = hy_largest_of<A::width>(largest, g);
    }
    if (out) hy_keep_largest(y, largest, out);
}

template <typename A>
static __global__ void __launch_bounds__(THREADS, 2)
    weighted_swiglu_bwd(A dy, A gate_up, A dgate_up, A active, row_weights w, uint32_t *out,
                        int64_t rows, int64_t per_row, hy_act kind) {
    int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32, F = per_row * A::width;
    int64_t of_weight = row < rows ? weight_at(w, row) : 0;
    uint32_t largest = 0;
    float weight = w.weights[of_weight], dweight = 0;
    for (int64_t i = threadIdx.x % 32; row < rows && i < per_row; i += 32) {
        int64_t at = row * 2 * F + i * A::width, narrow = row * F + i * A::width;
        float d[A::width], g[A::width], u[A::width], scaled[A::width];
        dy.open(dy.fetch(narrow), d);
        gate_up.open(gate_up.fetch(at), g);
        gate_up.open(gate_up.fetch(at + F), u);
        HY_EACH(j, A::width) scaled[j] = weight * d[j];
        gate_gradient<false, A::width>(kind, scaled, g, u);
        HY_EACH(j, A::width) {
            dweight += d[j] * scaled[j]; /* it holds y */
            scaled[j] *= weight;
        }
        dgate_up.store(at, g);
        dgate_up.store(at + F, u);
        if (active.data) active.store(narrow, scaled);
        largest = hy_largest_of<A::width>(largest, g);
        largest = hy_largest_of<A::width>(largest, u);
    }
    dweight = hy_warp_sum(dweight);
    if (w.dweights && row < rows && threadIdx.x % 32 == 0) w.dweights[of_weight] = dweight;
    if (out) hy_keep_largest(dgate_up, largest, out);
}

static hy_act gate_kind(const hy_op_call *call) {
    return call->attr.act.kind == HY_ACT_DEFAULT ? HY_ACT_SILU : call->attr.act.kind;
}

static row_weights weights_of(const hy_op_call *call, int weights) {
    return {(const float *)call->t[weights].data, (const int32_t *)call->t[weights + 1].data,
            (float *)call->t[weights + 2].data};
}

hy_status hy_cuda_weighted_swiglu(const hy_cuda_run *run) {
    const hy_tensor *gate_up = &run->call->t[HY_SWIGLU_GATE_UP], *y = &run->call->t[HY_SWIGLU_Y];
    int64_t rows = hy_height(y);
    uint32_t *largest;
    HY_TRY(hy_begin_largest(run, HY_SWIGLU_LARGEST, &largest));
    hy_by_chunks(hy_width(y), {y, gate_up}, [&](auto access) {
        using A = decltype(access);
        weighted_swiglu<A><<<(unsigned)hy_ceil_div(rows, WARPS), THREADS, 0, run->stream>>>(
            A::of(gate_up), A::of(y), weights_of(run->call, HY_SWIGLU_WEIGHTS), largest, rows,
            hy_width(y) / A::width, gate_kind(run->call));
    });
    return hy_cuda_launched(run);
}

hy_status hy_cuda_weighted_swiglu_bwd(const hy_cuda_run *run) {
    const hy_tensor *dy = &run->call->t[HY_SWIGLU_BWD_DY],
                    *gate_up = &run->call->t[HY_SWIGLU_BWD_GATE_UP],
                    *dgate_up = &run->call->t[HY_SWIGLU_BWD_DGATE_UP],
                    *active = &run->call->t[HY_SWIGLU_BWD_ACTIVE];
    int64_t rows = hy_height(dy);
    uint32_t *largest;
    HY_TRY(hy_begin_largest(run, HY_SWIGLU_BWD_LARGEST, &largest));
    hy_by_chunks(hy_width(dy), {dy, gate_up, dgate_up, active}, [&](auto access) {
        using A = decltype(access);
        weighted_swiglu_bwd<A><<<(unsigned)hy_ceil_div(rows, WARPS), THREADS, 0, run->stream>>>(
            A::of(dy), A::of(gate_up), A::of(dgate_up), A::of(active),
            weights_of(run->call, HY_SWIGLU_BWD_WEIGHTS), largest, rows, hy_width(dy) / A::width,
            gate_kind(run->call));
    });
    return hy_cuda_launched(run);
}

/* ---- the sum of a token's rows --------------------------------------------------------------- */

enum { AT_ONCE = 4 }; /* rows that are loaded before any is added */

template <typename A>
static __global__ void __launch_bounds__(THREADS)
    sum_rows(A y, A residual, A out, const int32_t *place, int k, int64_t chunks, int64_t per_row) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= chunks) return;
    hy_walk at(i, per_row);
    float sum[A::width] = {};
    if (residual.data) residual.open(residual.fetch(i * A::width), sum);
    for (int j = 0; j < k; j += AT_ONCE) {
        typename A::chunk in[AT_ONCE];
        HY_EACH(n, AT_ONCE) {
            if (j + n >= k) break;
            int64_t row = place[at.row * k + j + n];
            in[n] = y.fetch((row * per_row + at.chunk) * A::width);
        }
        HY_EACH(n, AT_ONCE) {
            float x[A::width];
            if (j + n >= k) break;
            y.open(in[n], x);
            HY_EACH(c, A::width) sum[c] += x[c];
        }
    }
    out.store(i * A::width, sum);
}

hy_status hy_cuda_sum_rows(const hy_cuda_run *run) {
    const hy_tensor *t = run->call->t, *y = &t[HY_SUM_ROWS_Y], *place = &t[HY_SUM_ROWS_PLACE];
    const hy_tensor *residual = &t[HY_SUM_ROWS_RESIDUAL], *out = &t[HY_SUM_ROWS_OUT];
    hy_by_chunks(hy_width(y), {y, residual, out}, [&](auto access) {
        using A = decltype(access);
        int64_t per_row = hy_width(y) / A::width, chunks = hy_height(out) * per_row;
        sum_rows<A><<<(unsigned)hy_ceil_div(chunks, THREADS), THREADS, 0, run->stream>>>(
            A::of(y), A::of(residual), A::of(out), (const int32_t *)place->data,
            (int)hy_width(place), chunks, per_row);
    });
    return hy_cuda_launched(run);
}
