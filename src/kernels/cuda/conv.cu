/* conv.cu: the causal convolution of columns with silu, its backward, and the form for new tokens of
 * sequences whose last rows are kept.
 *
 * A thread has four columns of a run of rows; the last rows stay in registers, so that each is read
 * once. Rows are loaded several at a time before they are used. Gradients of the last rows of a run
 * need those of the rows behind it, which are computed twice; sums for the weights have each row
 * once, and are added over runs in order (columns.cuh). Rows are counted in their sequence. */
#include "kernels/cuda/columns.cuh"
#include "kernels/cuda/quad.cuh"

#define THREADS 128
#define ROWS 128 /* of a run; a function of shapes alone */
#define BATCH 4  /* rows loaded at once */

typedef struct conv_args {
    hy_view x, y, dy, dx, state;
    const void *weight;
    hy_dtype weight_type;
    const int32_t *doc_starts, *first, *slots; /* NULL: absent */
    float *partial;                            /* (runs, C, J): dweight; NULL: not wanted */
    int64_t C;
    int J, T, runs; /* runs of a sequence */
} conv_args;

/* Four columns of a run. weight[d] is for the row d before. */
template <int TAPS> struct conv_run {
    int64_t column, row; /* row: the first of the sequence */
    int count, sequence, first, end;
    float weight[TAPS][HY_QUAD];

    __device__ __forceinline__ conv_run(const conv_args &c) {
        column = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * HY_QUAD;
        count = hy_quad_length(column, c.C);
        sequence = blockIdx.y / c.runs;
        first = blockIdx.y % c.runs * ROWS;
        end = min(first + ROWS, c.T);
        row = (int64_t)sequence * c.T;
        HY_EACH(d, TAPS) {
            HY_EACH(j, HY_QUAD) {
                bool is_there = d < c.J && j < count;
                int64_t at = (column + j) * c.J + c.J - 1 - d;
                weight[d][j] = is_there ? hy_load_any(c.weight, at, c.weight_type) : 0.0f;
            }
        }
    }
    __device__ __forceinline__ hy_quad_bits fetch(const conv_args &c, const hy_view &t,
                                                  int at) const {
        if (at < 0 || at >= c.T) return hy_quad_bits{};
        return hy_fetch(t, (row + at) * c.C + column, count);
    }
    /* How many rows before this one count. */
    __device__ __forceinline__ int seen(const conv_args &c, int at) const {
        return c.doc_starts ? min(at - max(c.doc_starts[row + at], 0), c.J - 1) : c.J - 1;
    }
};

/* Makes room for a row at [0]. */
template <int TAPS>
static __device__ __forceinline__ void shift(float (&rows)[TAPS][HY_QUAD],
                                             const float (&next)[HY_QUAD]) {
#pragma unroll
    for (int d = TAPS - 1; d > 0; d--) {
        HY_EACH(j, HY_QUAD) rows[d][j] = rows[d - 1][j];
    }
    HY_EACH(j, HY_QUAD) rows[0][j] = next[j];
}

/* The convolution at the row that is rows[0], before silu. */
template <int TAPS>
static __device__ __forceinline__ void convolve(const conv_run<TAPS> &run,
                                                const float (&rows)[TAPS][HY_QUAD], int seen,
                                                float (&sum)[HY_QUAD]) {
    HY_EACH(j, HY_QUAD) sum[j] = 0;
#pragma unroll
    for (int d = TAPS - 1; d >= 0; d--) {
        if (d > seen) continue;
        HY_EACH(j, HY_QUAD) sum[j] += run.weight[d][j] * rows[d][j];
    }
}

static __device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + __expf(-x)); }

/* ---- forward --------------------------------------------------------------------------------- */

/* The kept row `at` < 0 of a cached sequence. */
template <int TAPS>
static __device__ __forceinline__ hy_quad_bits fetch_kept(const conv_args &c,
                                                          const conv_run<TAPS> &run, int at) {
    if (!c.first || c.first[run.sequence] == 0 || at < 1 - c.J) return hy_quad_bits{};
    int64_t line = (int64_t)c.slots[run.sequence] * (c.J - 1) + c.J - 1 + at;
    return hy_fetch(c.state, line * c.C + run.column, run.count);
}

/* Stores the last rows of a cached sequence. before[d - 1] is the kept row -d. */
template <int TAPS>
static __device__ __forceinline__ void keep_rows(const conv_args &c, const conv_run<TAPS> &run,
                                                 const float (&before)[TAPS][HY_QUAD]) {
    HY_EACH(i, TAPS) {
        float v[HY_QUAD];
        int at = c.T - c.J + 1 + i;
        if (i >= c.J - 1) break;
        if (at >= 0) {
            hy_widen(run.fetch(c, c.x, at), c.x.dtype, v);
        } else {
            HY_EACH(d, TAPS) {
                if (-at - 1 != d) continue;
                HY_EACH(j, HY_QUAD) v[j] = before[d][j];
            }
        }
        int64_t line = (int64_t)c.slots[run.sequence] * (c.J - 1) + i;
        hy_store(c.state, line * c.C + run.column, run.count, hy_narrow(v, c.state.dtype));
    }
}

template <int TAPS> static __global__ void __launch_bounds__(THREADS) conv_forward(conv_args c) {
    conv_run<TAPS> run(c);
    float rows[TAPS][HY_QUAD], before[TAPS][HY_QUAD];
    if (run.count == 0 || (c.first && c.first[run.sequence] < 0)) return;
    HY_EACH(d, TAPS) {
        int at = run.first - 1 - d;
        bool is_kept = at < 0;
        hy_quad_bits bits = is_kept ? fetch_kept(c, run, at) : run.fetch(c, c.x, at);
        hy_widen(bits, is_kept ? c.state.dtype : c.x.dtype, rows[d]);
        HY_EACH(j, HY_QUAD) before[d][j] = rows[d][j];
    }
    for (int at = run.first; at < run.end; at += BATCH) {
        hy_quad_bits batch[BATCH];
        HY_EACH(k, BATCH) batch[k] = run.fetch(c, c.x, at + k);
        HY_EACH(k, BATCH) {
            float v[HY_QUAD], sum[HY_QUAD];
            if (at + k >= run.end) break;
            hy_widen(batch[k], c.x.dtype, v);
            shift(rows, v);
            convolve(run, rows, run.seen(c, at + k), sum);
            HY_EACH(j, HY_QUAD) sum[j] *= sigmoid(sum[j]);
            hy_store(c.y, (run.row + at + k) * c.C + run.column, run.count,
                     hy_narrow(sum, c.y.dtype));
        }
    }
    if (c.first && run.first == 0) keep_rows(c, run, before);
}

/* ---- backward -------------------------------------------------------------------------------- */

/* The gradient before silu, given that behind it. */
static __device__ __forceinline__ float slope(float z, float dy) {
    float s = sigmoid(z);
    return dy * (s + z * s * (1.0f - s));
}

template <int TAPS> static __global__ void __launch_bounds__(THREADS) conv_backward(conv_args c) {
    conv_run<TAPS> run(c);
    /* dx[d] is the sum so far for the row d before. */
    float rows[TAPS][HY_QUAD], dx[TAPS][HY_QUAD], dweight[TAPS][HY_QUAD];
    if (run.count == 0) return;
    HY_EACH(d, TAPS) {
        hy_widen(run.fetch(c, c.x, run.first - 1 - d), c.x.dtype, rows[d]);
        HY_EACH(j, HY_QUAD) dx[d][j] = dweight[d][j] = 0;
    }
    for (int at = run.first; at < run.end + TAPS - 1; at += BATCH) {
        hy_quad_bits x[BATCH], dy[BATCH];
        HY_EACH(k, BATCH) {
            x[k] = run.fetch(c, c.x, at + k);
            dy[k] = run.fetch(c, c.dy, at + k);
        }
        HY_EACH(k, BATCH) {
            float v[HY_QUAD], z[HY_QUAD], dz[HY_QUAD], none[HY_QUAD] = {};
            int seen = at + k < c.T ? run.seen(c, at + k) : -1;
            hy_widen(x[k], c.x.dtype, v);
            hy_widen(dy[k], c.dy.dtype, dz);
            shift(rows, v);
            convolve(run, rows, seen, z);
            HY_EACH(j, HY_QUAD) dz[j] = slope(z[j], dz[j]);
            shift(dx, none);
            HY_EACH(d, TAPS) {
                if (d > seen) continue;
                HY_EACH(j, HY_QUAD) {
                    dx[d][j] += run.weight[d][j] * dz[j];
                    if (at + k < run.end) dweight[d][j] += rows[d][j] * dz[j];
                }
            }
            int done = at + k - (TAPS - 1);
            if (done >= run.first && done < run.end)
                hy_store(c.dx, (run.row + done) * c.C + run.column, run.count,
                         hy_narrow(dx[TAPS - 1], c.dx.dtype));
        }
    }
    if (!c.partial) return;
    HY_EACH(d, TAPS) {
        HY_EACH(j, HY_QUAD) {
            int64_t at = (run.column + j) * c.J + c.J - 1 - d;
            if (d < c.J && j < run.count) c.partial[blockIdx.y * c.C * c.J + at] = dweight[d][j];
        }
    }
}

/* ---- the ops --------------------------------------------------------------------------------- */

/* Rows of C elements that begin at quads. */
static hy_view rows_of(const hy_tensor *t) {
    hy_view view = hy_view_of(t);
    if (hy_width(t) % HY_QUAD != 0) view.is_packed = false;
    return view;
}

static conv_args args_of(const hy_op_call *call, const hy_tensor *x, const hy_tensor *weight) {
    conv_args c = {};
    c.x = rows_of(x);
    c.weight = weight->data, c.weight_type = weight->dtype;
    c.C = hy_width(x);
    c.J = (int)hy_width(weight);
    c.T = call->attr.conv.seq;
    c.runs = (int)hy_ceil_div(c.T, ROWS);
    return c;
}

static int64_t runs_of(const conv_args &c, const hy_tensor *x) {
    return hy_height(x) / c.T * c.runs;
}

static dim3 blocks_of(const conv_args &c, const hy_tensor *x) {
    return dim3((unsigned)hy_ceil_div(c.C, THREADS * HY_QUAD), (unsigned)runs_of(c, x));
}

hy_status hy_cuda_conv(const hy_cuda_run *run) {
    const hy_tensor *t = run->call->t;
    conv_args c = args_of(run->call, &t[HY_CONV_X], &t[HY_CONV_WEIGHT]);
    c.y = rows_of(&t[HY_CONV_Y]);
    c.doc_starts = (const int32_t *)t[HY_CONV_DOC_STARTS].data;
    auto kernel = c.J <= 4 ? conv_forward<4> : conv_forward<HY_CONV_TAPS_MAX>;
    kernel<<<blocks_of(c, &t[HY_CONV_X]), THREADS, 0, run->stream>>>(c);
    return hy_cuda_launched(run);
}

hy_status hy_cuda_conv_cached(const hy_cuda_run *run) {
    const hy_tensor *t = run->call->t;
    conv_args c = args_of(run->call, &t[HY_CONV_CACHED_X], &t[HY_CONV_CACHED_WEIGHT]);
    c.y = rows_of(&t[HY_CONV_CACHED_Y]);
    c.state = rows_of(&t[HY_CONV_CACHED_STATE]);
    c.first = (const int32_t *)t[HY_CONV_CACHED_FIRST].data;
    c.slots = (const int32_t *)t[HY_CONV_CACHED_SLOTS].data;
    auto kernel = c.J <= 4 ? conv_forward<4> : conv_forward<HY_CONV_TAPS_MAX>;
    kernel<<<blocks_of(c, &t[HY_CONV_CACHED_X]), THREADS, 0, run->stream>>>(c);
    return hy_cuda_launched(run);
}

size_t hy_cuda_conv_bwd_workspace(const hy_cuda *, const hy_op_call *call) {
    const hy_tensor *x = &call->t[HY_CONV_BWD_X], *weight = &call->t[HY_CONV_BWD_WEIGHT];
    if (!hy_has(&call->t[HY_CONV_BWD_DWEIGHT])) return 0;
    conv_args c = args_of(call, x, weight);
    return (size_t)(runs_of(c, x) * hy_tensor_count(weight)) * sizeof(float);
}

hy_status hy_cuda_conv_bwd(const hy_cuda_run *run) {
    const hy_tensor *t = run->call->t, *x = &t[HY_CONV_BWD_X], *dweight = &t[HY_CONV_BWD_DWEIGHT];
    conv_args c = args_of(run->call, x, &t[HY_CONV_BWD_WEIGHT]);
    hy_tensor none = {};
    c.dy = rows_of(&t[HY_CONV_BWD_DY]);
    c.dx = rows_of(&t[HY_CONV_BWD_DX]);
    c.doc_starts = (const int32_t *)t[HY_CONV_BWD_DOC_STARTS].data;
    if (hy_has(dweight)) c.partial = (float *)run->call->workspace.data;
    auto kernel = c.J <= 4 ? conv_backward<4> : conv_backward<HY_CONV_TAPS_MAX>;
    kernel<<<blocks_of(c, x), THREADS, 0, run->stream>>>(c);
    if (c.partial)
        hy_fold_columns(run, c.partial, runs_of(c, x), hy_tensor_count(dweight), dweight, &none);
    return hy_cuda_launched(run);
}
