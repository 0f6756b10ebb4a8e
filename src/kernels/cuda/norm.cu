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

/* ---- rows in registers ----------------------------------------------------------------------- */

/* Sum over this thread's packs: of x, or of (x - mean)^2. Packs past the row hold zeros. */
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

/* Threads of a multiprocessor at once: fewer where a lane holds much, since registers are
 * shared. */
static constexpr int resident(int pieces, bool is_wide) {
    return is_wide || pieces <= 3 ? 1024 : pieces <= 4 ? 768 : 512;
}
static constexpr int most_threads(bool is_wide) { return is_wide ? 512 : 256; }

template <typename T, int pieces, bool is_wide>
static __global__ void __launch_bounds__(most_threads(is_wide),
                                         resident(pieces, is_wide) / most_threads(is_wide))
    norm_rows(norm_call n) {
    constexpr int width = hy_pack<T>::count;
    extern __shared__ float4 shared[];
    float *buffer = (float *)shared, *w = buffer + HY_TEAM_FLOATS, *b = w + n.C;
    int packs = n.C / width, turn = 0;
    hy_keep_weights<width>(w, n.w, n.w_type, 1, n.C);
    hy_keep_weights<width>(b, n.b, n.b_type, 0, n.C);
    __syncthreads();

    hy_team<is_wide> team;
    for (int64_t row = team.first; row < n.N; row += team.step) {
        const T *in = (const T *)n.x + row * n.C;
        T *out = (T *)n.y + row * n.C;
        hy_pack<T> x[pieces];
#pragma unroll
        for (int p = 0; p < pieces; p++) {
            int at = team.rank + p * team.size;
            if (at < packs) x[p] = hy_load_pack(in + at * width);
        }
        float mean[1] = {0}, square[1];
        if (!n.is_rms) {
            mean[0] = own_sum<T, pieces, false>(x, 0, team.rank, team.size, packs);
            hy_team_sums<is_wide>(mean, buffer, &turn);
            mean[0] /= (float)n.C;
        }
        square[0] = own_sum<T, pieces, true>(x, mean[0], team.rank, team.size, packs);
        hy_team_sums<is_wide>(square, buffer, &turn);
        float rstd = 1.0f / sqrtf(square[0] / (float)n.C + n.eps);
#pragma unroll
        for (int p = 0; p < pieces; p++) {
            int at = team.rank + p * team.size;
            float v[width], scale[width], shift[width];
            if (at >= packs) break;
            hy_unpack(x[p], v);
            hy_read_weights<width>(w, at, packs, scale);
            hy_read_weights<width>(b, at, packs, shift);
#pragma unroll
            for (int j = 0; j < width; j++) v[j] = (v[j] - mean[0]) * rstd * scale[j] + shift[j];
            hy_store_pack(out + at * width, hy_packed<T>(v));
        }
        if (team.rank == 0) keep_statistics(n, row, mean[0], rstd);
    }
}

template <typename T, int pieces, bool is_wide>
static hy_status launch_rows(const hy_cuda_run *run, const norm_call &n) {
    size_t bytes = (HY_TEAM_FLOATS + 2 * (size_t)n.C) * sizeof(float);
    int threads = is_wide ? hy_wide_threads(n.C / hy_pack<T>::count, pieces) : 256;
    int64_t teams = is_wide ? n.N : hy_ceil_div(n.N, 256 / 32);
    int64_t most = (int64_t)run->cuda->card.multiprocessors * (resident(pieces, is_wide) / threads);
    HY_CUDA_TRY(hy_want_shared(run->cuda, (const void *)norm_rows<T, pieces, is_wide>, bytes));
    norm_rows<T, pieces, is_wide><<<(unsigned)min(teams, most), threads, bytes, run->stream>>>(n);
    return hy_cuda_launched(run);
}

/* A warp takes up to eight packs a lane; wider rows a block with up to four packs a thread. */
template <typename T> static hy_status norm_packed(const hy_cuda_run *run, const norm_call &n) {
    int packs = n.C / hy_pack<T>::count;
    if (packs <= 32) return launch_rows<T, 1, false>(run, n);
    if (packs <= 64) return launch_rows<T, 2, false>(run, n);
    if (packs <= 96) return launch_rows<T, 3, false>(run, n);
    if (packs <= 128) return launch_rows<T, 4, false>(run, n);
    if (packs <= 192) return launch_rows<T, 6, false>(run, n);
    if (packs <= 256) return launch_rows<T, 8, false>(run, n);
    return packs <= 1024 ? launch_rows<T, 2, true>(run, n) : launch_rows<T, 4, true>(run, n);
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
    int64_t width = x->dtype == HY_F32 ? 4 : 8;
    /* 512 threads hold 2048 packs; both weights must fit into shared memory. */
    bool fits = n.C / width <= 2048 &&
                (HY_TEAM_FLOATS + 2 * (size_t)n.C) * sizeof(float) <= run->cuda->card.shared_bytes;
    if (fits && hy_fit_packs(n.C, {x, y})) {
        hy_status status = HY_OK;
        hy_by_type(x->dtype, [&](auto zero) { status = norm_packed<decltype(zero)>(run, n); });
        return status;
    }
    norm_any<<<(unsigned)n.N, ANY_THREADS, 0, run->stream>>>(n);
    return hy_cuda_launched(run);
}
