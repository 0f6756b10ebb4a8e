/* norm.cu: layernorm and rmsnorm of rows, forward.
 *
 * y = residual + (x - mean) rstd (offset + w) + b, for rmsnorm with mean 0. The variance is the mean of squared
 * deviations, computed from the registers that hold the row, so a row is read once and loses no
 * precision. Rows that do not fit (odd widths, mixed types, very wide) use norm_any, which reads
 * them three times. If the largest magnitude of y is requested, separate kernels compute it from
 * what they store; a residual has its own kernels, too. */
#include "kernels/cuda/largest.cuh"
#include "kernels/cuda/norm.cuh"

/* One call as the kernels see it; x and y of type T, or of any type for norm_any. */
typedef struct norm_call {
    const void *x, *w, *b, *residual; /* b and residual may be NULL; y may be residual */
    void *y;
    float *mean, *rstd; /* mean may be NULL */
    uint32_t *largest;  /* of y; NULL: not requested */
    int64_t N, apart;   /* rows, and elements from one to the next */
    int C, statistics;  /* the latter: numbers from the rstd of a row to the next */
    float eps, offset;
    bool is_rms, is_w_packed, is_b_packed; /* weights can be read in packs of x's type */
    hy_dtype x_type, w_type, b_type, y_type, residual_type;
} norm_call;

/* What a kernel does beside the norm. */
enum { PLAIN, LARGEST, RESIDUAL };

static __device__ __forceinline__ void keep_statistics(const norm_call &n, int64_t row, float mean,
                                                       float rstd) {
    if (n.mean) n.mean[row] = mean;
    n.rstd[row * n.statistics] = rstd;
}

/* ---- rows in registers ----------------------------------------------------------------------- */

#define NARROW_THREADS 128
#define WIDE_THREADS 256                                         /* at most */
#define MOST_CHUNKS 8                                            /* packs per thread */
#define ROWS(chunks) ((chunks) == 1 ? 4 : (chunks) == 2 ? 2 : 1) /* rows a team takes at a time */

/* The sum over this thread's packs: of x, or of (x - mean)^2. */
template <typename T, int chunks, bool is_square>
static __device__ __forceinline__ float own_sum(const hy_pack<T> *x, float mean, int rank, int size,
                                                int packs) {
    float sum = 0;
    HY_EACH(p, chunks) {
        float v[hy_pack<T>::count];
        if (rank + p * size >= packs) break;
        hy_unpack(x[p], v);
        HY_EACH(j, hy_pack<T>::count) {
            sum += is_square ? (v[j] - mean) * (v[j] - mean) : v[j];
        }
    }
    return sum;
}

/* A pack of weights as fp32. They usually have the type of the rows; all blocks read them, so they
 * stay in the caches. */
template <typename T>
static __device__ __forceinline__ void read_weights(const void *data, hy_dtype dtype,
                                                    bool is_packed, int first, float *v) {
    constexpr int width = hy_pack<T>::count;
    if (is_packed) {
        hy_unpack(hy_load_pack((const T *)data + first), v);
    } else {
        HY_EACH(j, width) v[j] = hy_load_any(data, first + j, dtype);
    }
}

/* y on this thread's packs of several rows; returns the largest magnitude. */
template <typename T, int chunks, int rows, int mode>
static __device__ __forceinline__ uint32_t write_rows(const norm_call &n,
                                                      const hy_pack<T> (*x)[chunks],
                                                      const hy_pack<T> (*residual)[chunks],
                                                      const float *mean, const float *rstd,
                                                      int64_t row, int rank, int size) {
    constexpr int width = hy_pack<T>::count;
    uint32_t largest = 0;
    HY_EACH(p, chunks) {
        int first = (rank + p * size) * width;
        float scale[width], shift[width] = {0};
        if (first >= n.C) break;
        read_weights<T>(n.w, n.w_type, n.is_w_packed, first, scale);
        if (n.b) read_weights<T>(n.b, n.b_type, n.is_b_packed, first, shift);
        HY_EACH(j, width) scale[j] += n.offset;
        HY_EACH(r, rows) {
            float v[width], added[width];
            if (row + r >= n.N) break;
            hy_unpack(x[r][p], v);
            HY_EACH(j, width) v[j] = (v[j] - mean[r]) * rstd[r] * scale[j] + shift[j];
            if (mode == RESIDUAL) {
                hy_unpack(residual[r][p], added);
                HY_EACH(j, width) v[j] += added[j];
            }
            hy_store_pack((T *)n.y + (row + r) * n.apart + first, hy_packed<T>(v));
            if (mode == LARGEST) largest = hy_largest_of<width>(largest, v);
        }
    }
    return largest;
}

/* The rows of a team. Wide teams use `buffer`. */
template <typename T, int chunks, bool is_wide, int mode>
static __device__ __forceinline__ uint32_t norm_team(const norm_call &n, float *buffer) {
    constexpr int width = hy_pack<T>::count, rows = ROWS(chunks);
    hy_team<is_wide> team;
    int packs = n.C / width, turn = 0;
    int64_t row = team.index * rows;
    hy_pack<T> x[rows][chunks], residual[rows][chunks];
    float mean[rows] = {0}, rstd[rows];
    if (row >= n.N) return 0;
    HY_EACH(r, rows) {
        HY_EACH(p, chunks) {
            int at = team.rank + p * team.size;
            if (row + r >= n.N || at >= packs) break;
            int64_t i = (row + r) * n.apart + at * width;
            x[r][p] = hy_load_pack((const T *)n.x + i);
            if (mode == RESIDUAL) residual[r][p] = hy_load_pack((const T *)n.residual + i);
            if (chunks <= 2 && n.is_w_packed) hy_prefetch((const T *)n.w + at * width);
        }
    }
    if (!n.is_rms) {
        HY_EACH(r, rows) {
            mean[r] = own_sum<T, chunks, false>(x[r], 0, team.rank, team.size, packs);
        }
        hy_team_sums<is_wide>(mean, buffer, &turn);
        HY_EACH(r, rows) mean[r] /= (float)n.C;
    }
    HY_EACH(r, rows) {
        rstd[r] = own_sum<T, chunks, true>(x[r], mean[r], team.rank, team.size, packs);
    }
    hy_team_sums<is_wide>(rstd, buffer, &turn);
    HY_EACH(r, rows) {
        rstd[r] = 1.0f / sqrtf(rstd[r] / (float)n.C + n.eps);
        if (team.rank == 0 && row + r < n.N) keep_statistics(n, row + r, mean[r], rstd[r]);
    }
    return write_rows<T, chunks, rows, mode>(n, x, residual, mean, rstd, row, team.rank, team.size);
}

template <typename T, int chunks, bool is_wide, int mode>
static __global__ void __launch_bounds__(is_wide ? WIDE_THREADS : NARROW_THREADS)
    norm_rows(norm_call n) {
    __shared__ float buffer[is_wide ? HY_TEAM_FLOATS : 1];
    hy_let_next_start();
    hy_wait_for_previous();
    uint32_t largest = norm_team<T, chunks, is_wide, mode>(n, buffer);
    if (mode == LARGEST) hy_keep_largest(hy_packs<T>{(T *)n.y}, largest, n.largest);
}

/* One team for a few rows: the card assigns blocks to free multiprocessors. */
template <typename T, int chunks, bool is_wide>
static hy_status launch_rows(const hy_cuda_run *run, const norm_call &n, int threads) {
    int64_t teams = hy_ceil_div(n.N, ROWS(chunks));
    unsigned blocks = (unsigned)(is_wide ? teams : hy_ceil_div(teams, NARROW_THREADS / 32));
    auto kernel = n.largest    ? norm_rows<T, chunks, is_wide, LARGEST>
                  : n.residual ? norm_rows<T, chunks, is_wide, RESIDUAL>
                               : norm_rows<T, chunks, is_wide, PLAIN>;
    if (run->call->attr.norm.has_few_rows)
        return hy_launch_early(run, kernel, 1, blocks, threads, 0, n);
    kernel<<<blocks, threads, 0, run->stream>>>(n);
    return hy_cuda_launched(run);
}

/* The fewest packs per thread that hold the row. */
template <typename T, int chunks>
static hy_status norm_packed(const hy_cuda_run *run, const norm_call &n, int warps) {
    if constexpr (chunks < MOST_CHUNKS) {
        if (n.C / hy_pack<T>::count > 32 * warps * chunks) {
            return norm_packed<T, chunks + 1>(run, n, warps);
        }
    }
    if (warps == 1) return launch_rows<T, chunks, false>(run, n, NARROW_THREADS);
    return launch_rows<T, chunks, true>(run, n, 32 * warps);
}

/* ---- any rows -------------------------------------------------------------------------------- */

#define ANY_THREADS 256

template <bool has_largest>
static __global__ void __launch_bounds__(ANY_THREADS) norm_any(norm_call n) {
    __shared__ float buffer[HY_TEAM_FLOATS];
    int64_t base = (int64_t)blockIdx.x * n.apart;
    int turn = 0;
    uint32_t largest = 0;
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
        float y = xhat * (n.offset + hy_load_any(n.w, c, n.w_type)) + shift;
        if (n.residual) y += hy_load_any(n.residual, base + c, n.residual_type);
        hy_store_any(n.y, base + c, n.y_type, y);
        if (has_largest) largest = max(largest, hy_magnitude(y));
    }
    if (threadIdx.x == 0) keep_statistics(n, blockIdx.x, mean[0], rstd);
    if (has_largest) hy_keep_largest(hy_singles{n.y, n.y_type}, largest, n.largest);
}

hy_status hy_cuda_norm_apart(const hy_cuda_run *run, int64_t apart, int statistics) {
    const hy_op_call *call = run->call;
    const hy_tensor *x = &call->t[HY_NORM_X], *w = &call->t[HY_NORM_WEIGHT],
                    *b = &call->t[HY_NORM_BIAS], *y = &call->t[HY_NORM_Y],
                    *residual = &call->t[HY_NORM_RESIDUAL];
    norm_call n = {};
    n.x = x->data, n.w = w->data, n.b = b->data, n.y = y->data, n.residual = residual->data;
    n.x_type = x->dtype, n.w_type = w->dtype, n.b_type = b->dtype, n.y_type = y->dtype;
    n.residual_type = residual->dtype;
    n.mean = (float *)call->t[HY_NORM_MEAN].data;
    n.rstd = (float *)call->t[HY_NORM_RSTD].data;
    HY_TRY(hy_begin_largest(run, HY_NORM_LARGEST, &n.largest));
    n.N = hy_height(x);
    n.C = (int)hy_width(x);
    n.apart = apart;
    n.statistics = statistics;
    n.eps = call->attr.norm.eps;
    n.offset = call->attr.norm.offset;
    n.is_rms = call->attr.norm.is_rms;
    n.is_w_packed = hy_fit_packs(n.C, {x, w});
    n.is_b_packed = hy_fit_packs(n.C, {x, b});
    int64_t packs = n.C / (x->dtype == HY_F32 ? 4 : 8);
    int warps = (int)hy_ceil_div(packs, 32 * MOST_CHUNKS);
    if (call->attr.norm.has_few_rows &&
        packs <= 2 * WIDE_THREADS) { /* one or two packs per thread */
        warps = (int)hy_ceil_div(packs, packs <= WIDE_THREADS ? 32 : 64);
    }
    if (32 * warps <= WIDE_THREADS && hy_fit_packs(n.C | apart, {x, y, residual})) {
        hy_status status = HY_OK;
        hy_by_type(x->dtype,
                   [&](auto zero) { status = norm_packed<decltype(zero), 1>(run, n, warps); });
        return status;
    }
    auto kernel = n.largest ? norm_any<true> : norm_any<false>;
    kernel<<<(unsigned)n.N, ANY_THREADS, 0, run->stream>>>(n);
    return hy_cuda_launched(run);
}

hy_status hy_cuda_norm(const hy_cuda_run *run) {
    return hy_cuda_norm_apart(run, hy_width(&run->call->t[HY_NORM_X]), 1);
}
