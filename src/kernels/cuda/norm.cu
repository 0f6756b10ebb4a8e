/* norm.cu: layernorm and rmsnorm of rows, forward.
 *
 * y = (x - mean) rstd w + b, for rmsnorm with mean 0. The variance is the mean of squared
 * deviations, taken from the registers that hold the row, so that a row is read once and loses
 * no digits. Rows that do not fit (odd widths, mixed types, very wide) take norm_any, which
 * reads them three times. */
#include "kernels/cuda/norm.cuh"

/* One call as the kernels see it; x and y of type T, or of any type for norm_any. */
typedef struct norm_call {
    const void *x, *w, *b; /* b may be NULL */
    void *y;
    float *mean, *rstd; /* mean may be NULL */
    int64_t N;
    int C;
    float eps;
    bool is_rms;
    hy_dtype x_type, w_type, b_type, y_type;
} norm_call;

static norm_call norm_call_of(const hy_op_call *call) {
    const hy_tensor *x = &call->t[0], *w = &call->t[1], *b = &call->t[2], *y = &call->t[3];
    norm_call n = {};
    n.x = x->data, n.w = w->data, n.b = b->data, n.y = y->data;
    n.x_type = x->dtype, n.w_type = w->dtype, n.b_type = b->dtype, n.y_type = y->dtype;
    n.mean = (float *)call->t[4].data;
    n.rstd = (float *)call->t[5].data;
    n.N = hy_height(x);
    n.C = (int)hy_width(x);
    n.eps = call->attr.norm.eps;
    n.is_rms = call->attr.norm.is_rms;
    return n;
}

static __device__ __forceinline__ void keep_statistics(const norm_call &n, int64_t row, float mean,
                                                       float rstd) {
    if (n.mean) n.mean[row] = mean;
    n.rstd[row] = rstd;
}

/* ---- rows in shared memory ------------------------------------------------------------------- */

/* Threads of a multiprocessor at once: fewer where a lane holds much, for registers are shared. */
static constexpr int resident(int pieces, bool is_wide) {
    return is_wide || pieces <= 4 ? 1024 : 512;
}
#define NARROW_THREADS 256
#define WIDE_THREADS 512 /* at most */
#define NARROW_PIECES 8  /* packs a lane takes at most: wider rows are a block's */

/* Sum over this thread's packs: of x, or of (x - mean)^2. */
template <typename T, int pieces, bool is_square>
static __device__ __forceinline__ float own_sum(const hy_pack<T> *x, float mean, int rank, int size,
                                                int packs) {
    float sum = 0;
#pragma unroll
    for (int p = 0; p < pieces; p++) {
        float v[hy_pack<T>::count];
        if (rank + p * size >= packs) break;
        hy_unpack(x[p], v);
#pragma unroll
        for (int j = 0; j < hy_pack<T>::count; j++) {
            sum += is_square ? (v[j] - mean) * (v[j] - mean) : v[j];
        }
    }
    return sum;
}

/* y = (x - mean) rstd w + b on this thread's packs. */
template <typename T, int pieces>
static __device__ __forceinline__ void write_row(const hy_pack<T> *x, float mean, float rstd,
                                                 const float *w, const float *b, int rank, int size,
                                                 int packs, T *y) {
    constexpr int width = hy_pack<T>::count;
#pragma unroll
    for (int p = 0; p < pieces; p++) {
        int at = rank + p * size;
        float v[width], scale[width], shift[width];
        if (at >= packs) break;
        hy_unpack(x[p], v);
        hy_read_weights<width>(w, at, packs, scale);
        hy_read_weights<width>(b, at, packs, shift);
#pragma unroll
        for (int j = 0; j < width; j++) v[j] = (v[j] - mean) * rstd * scale[j] + shift[j];
        hy_store_pack(y + at * width, hy_packed<T>(v));
    }
}

template <typename T, int pieces>
static __device__ __forceinline__ void bring_row(const hy_ahead<T, pieces> &ahead, int stage,
                                                 const norm_call &n, int64_t row, int rank,
                                                 int size, int packs) {
    const T *x = (const T *)n.x + row * n.C;
#pragma unroll
    for (int p = 0; p < pieces; p++) {
        int at = rank + p * size;
        if (row < n.N && at < packs) ahead.bring(stage, p, x + at * hy_pack<T>::count);
    }
    ahead.end_row();
}

template <typename T, int pieces, bool is_wide>
static __global__ void __launch_bounds__(is_wide ? WIDE_THREADS : NARROW_THREADS,
                                         resident(pieces, is_wide) /
                                             (is_wide ? WIDE_THREADS : NARROW_THREADS))
    norm_rows(norm_call n, int stages) {
    constexpr int width = hy_pack<T>::count;
    extern __shared__ float4 shared[];
    float *buffer = (float *)shared, *w = buffer + HY_TEAM_FLOATS, *b = w + n.C;
    int packs = n.C / width, turn = 0;
    hy_team<is_wide> team;
    hy_ahead<T, pieces> ahead(b + n.C, stages);
    for (int s = 0; s < stages - 1; s++) {
        bring_row(ahead, s, n, team.first + s * team.step, team.rank, team.size, packs);
    }
    hy_keep_weights<width>(w, n.w, n.w_type, 1, n.C);
    hy_keep_weights<width>(b, n.b, n.b_type, 0, n.C);
    __syncthreads();

    for (int64_t row = team.first; row < n.N; row += team.step) {
        bring_row(ahead, ahead.last_stage(), n, row + (stages - 1) * team.step, team.rank,
                  team.size, packs);
        ahead.wait();
        hy_pack<T> x[pieces];
#pragma unroll
        for (int p = 0; p < pieces; p++) x[p] = *ahead.slot(ahead.stage, p);
        float mean[1] = {0}, square[1];
        if (!n.is_rms) {
            mean[0] = own_sum<T, pieces, false>(x, 0, team.rank, team.size, packs);
            hy_team_sums<is_wide>(mean, buffer, &turn);
            mean[0] /= (float)n.C;
        }
        square[0] = own_sum<T, pieces, true>(x, mean[0], team.rank, team.size, packs);
        hy_team_sums<is_wide>(square, buffer, &turn);
        float rstd = 1.0f / sqrtf(square[0] / (float)n.C + n.eps);
        write_row<T, pieces>(x, mean[0], rstd, w, b, team.rank, team.size, packs,
                             (T *)n.y + row * n.C);
        if (team.rank == 0) keep_statistics(n, row, mean[0], rstd);
        ahead.move();
    }
}

/* Statistics, both weights and the stages of one thread block. */
template <typename T, int pieces, bool is_wide>
static hy_status launch_rows(const hy_cuda_run *run, const norm_call &n, bool *is_done) {
    int threads = is_wide ? hy_wide_threads(n.C / hy_pack<T>::count, pieces) : NARROW_THREADS;
    size_t fixed = (HY_TEAM_FLOATS + 2 * (size_t)n.C) * sizeof(float);
    hy_team_launch plan = hy_plan_teams(run->cuda, n.N, is_wide, threads, resident(pieces, is_wide),
                                        fixed, (size_t)threads * pieces * 16);
    if (plan.bytes == 0) return HY_OK;
    HY_CUDA_TRY(hy_want_shared(run->cuda, (const void *)norm_rows<T, pieces, is_wide>, plan.bytes));
    norm_rows<T, pieces, is_wide>
        <<<(unsigned)plan.blocks, plan.threads, plan.bytes, run->stream>>>(n, plan.stages);
    *is_done = true;
    return hy_cuda_launched(run);
}

/* The fewest packs a lane that hold the row. */
template <typename T, int pieces>
static hy_status norm_narrow(const hy_cuda_run *run, const norm_call &n, bool *is_done) {
    if constexpr (pieces < NARROW_PIECES) {
        if (n.C / hy_pack<T>::count > 32 * pieces)
            return norm_narrow<T, pieces + 1>(run, n, is_done);
    }
    return launch_rows<T, pieces, false>(run, n, is_done);
}

/* is_done stays false when rows are too wide. */
template <typename T>
static hy_status norm_packed(const hy_cuda_run *run, const norm_call &n, bool *is_done) {
    int packs = n.C / hy_pack<T>::count;
    if (packs <= 32 * NARROW_PIECES) return norm_narrow<T, 1>(run, n, is_done);
    if (packs <= 2 * WIDE_THREADS) return launch_rows<T, 2, true>(run, n, is_done);
    if (packs <= 4 * WIDE_THREADS) return launch_rows<T, 4, true>(run, n, is_done);
    return HY_OK;
}

/* ---- any rows -------------------------------------------------------------------------------- */

#define ANY_THREADS 256

static __global__ void __launch_bounds__(ANY_THREADS) norm_any(norm_call n) {
    __shared__ float buffer[HY_TEAM_FLOATS];
    int64_t base = (int64_t)blockIdx.x * n.C;
    int turn = 0;
    float mean[1] = {0}, square[1] = {0};
    if (!n.is_rms) {
        for (int c = threadIdx.x; c < n.C; c += ANY_THREADS) {
            mean[0] += hy_load_any(n.x, base + c, n.x_type);
        }
        hy_team_sums<true>(mean, buffer, &turn);
        mean[0] /= (float)n.C;
    }
    for (int c = threadIdx.x; c < n.C; c += ANY_THREADS) {
        float d = hy_load_any(n.x, base + c, n.x_type) - mean[0];
        square[0] += d * d;
    }
    hy_team_sums<true>(square, buffer, &turn);
    float rstd = 1.0f / sqrtf(square[0] / (float)n.C + n.eps);
    for (int c = threadIdx.x; c < n.C; c += ANY_THREADS) {
        float xhat = (hy_load_any(n.x, base + c, n.x_type) - mean[0]) * rstd;
        float shift = n.b ? hy_load_any(n.b, c, n.b_type) : 0.0f;
        hy_store_any(n.y, base + c, n.y_type, xhat * hy_load_any(n.w, c, n.w_type) + shift);
    }
    if (threadIdx.x == 0) keep_statistics(n, blockIdx.x, mean[0], rstd);
}

hy_status hy_cuda_norm(const hy_cuda_run *run) {
    const hy_tensor *x = &run->call->t[0], *y = &run->call->t[3];
    norm_call n = norm_call_of(run->call);
    bool is_done = false;
    if (hy_fit_packs(n.C, {x, y})) {
        hy_status status = HY_OK;
        hy_by_type(x->dtype,
                   [&](auto zero) { status = norm_packed<decltype(zero)>(run, n, &is_done); });
        if (status != HY_OK || is_done) return status;
    }
    norm_any<<<(unsigned)n.N, ANY_THREADS, 0, run->stream>>>(n);
    return hy_cuda_launched(run);
}
