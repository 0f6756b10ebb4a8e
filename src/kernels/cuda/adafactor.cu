/* adafactor.cu: one step of Adafactor. The formulas are at HY_OP_ADAFACTOR in kernels.h.
 *
 * A block of threads has a tile: 256 columns (quad.cuh) of some rows, which its warps take in turn.
 * The kernels in order: sum squares of the gradient by row and column, tile by tile; add the sums
 * to the state; compute the mean of the rows; sum squares of the update and of the parameter;
 * compute the size of the step; apply the step. State with one number per element is treated as
 * rows of 256 and changed by the kernel that measures the update; then the first three kernels are
 * not needed. Tiles depend only on the shape, and sums of tiles are added in order. With a clip
 * factor of 0, parameter and state do not change, and the workspace content is undefined. */
#include <math.h>

#include "kernels/cuda/rounding.cuh"

#define THREADS 256
#define WARPS (THREADS / 32)
#define TILE HY_WARP_ELEMENTS /* columns: as many as threads */
#define ROW_BLOCKS_MAX 256
#define BLOCK_ROWS_MIN 64

static_assert(TILE == THREADS, "a thread folds one column of its tile");

/* Values for the last pass. */
typedef struct step_size {
    float ratio; /* 1 / max(mean of r, eps1) */
    float step;  /* alpha / max(1, rms(u) / threshold) */
} step_size;

typedef struct adafactor_args {
    hy_view param, grad, master, state;
    const float *clip;
    hy_adafactor_attr attr;
    uint64_t seed, first; /* of the noise */
    bool needs_noise;
    int64_t count, rows, width; /* not factored: the last row may be shorter */
    int64_t tiles, block_rows, row_blocks;
    /* in the workspace */
    step_size *size;
    double *squares;    /* (2, tiles of all rows): of u, of the parameter */
    float *row_sums;    /* (tiles, rows): of g^2 */
    float *column_sums; /* (row_blocks, width) */
} adafactor_args;

/* ---- places ---------------------------------------------------------------------------------- */

/* Quad k of this thread in a row of its tile: its start, and how many elements it has. */
typedef struct place {
    int64_t column, at;
    int n;
} place;

__device__ __forceinline__ place place_of(const adafactor_args &a, int64_t row, int k) {
    place p;
    p.column = (int64_t)blockIdx.x * TILE + 32 * HY_QUAD * k + threadIdx.x % 32 * HY_QUAD;
    p.at = row * a.width + p.column;
    p.n = min(hy_quad_length(p.column, a.width), hy_quad_length(p.at, a.count));
    return p;
}

/* Rows of this block: its warps take them in turn. */
__device__ __forceinline__ int64_t first_row(const adafactor_args &a) {
    return blockIdx.y * a.block_rows + threadIdx.x / 32;
}
__device__ __forceinline__ int64_t end_row(const adafactor_args &a) {
    return min((blockIdx.y + 1) * a.block_rows, a.rows);
}

/* ---- factored state -------------------------------------------------------------------------- */

__global__ void __launch_bounds__(THREADS) squares_kernel(adafactor_args a) {
    __shared__ float of_warp[WARPS][TILE];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float scale = a.clip[1], sum[HY_QUADS][HY_QUAD] = {};
#pragma unroll 2
    for (int64_t row = first_row(a); row < end_row(a); row += WARPS) {
        float of_row = 0;
        HY_EACH(k, HY_QUADS) {
            place p = place_of(a, row, k);
            float g[HY_QUAD];
            hy_widen(hy_fetch(a.grad, p.at, p.n), a.grad.dtype, g);
            HY_EACH(i, HY_QUAD) {
                float x = scale * g[i];
                sum[k][i] += x * x;
                of_row += x * x;
            }
        }
        of_row = hy_warp_sum(of_row);
        if (lane == 0) a.row_sums[blockIdx.x * a.rows + row] = of_row;
    }
    HY_EACH(k, HY_QUADS) {
        HY_EACH(i, HY_QUAD) of_warp[warp][32 * HY_QUAD * k + HY_QUAD * lane + i] = sum[k][i];
    }
    __syncthreads();
    int64_t column = (int64_t)blockIdx.x * TILE + threadIdx.x;
    float total = 0;
    HY_EACH(w, WARPS) total += of_warp[w][threadIdx.x];
    if (column < a.width) a.column_sums[blockIdx.y * a.width + column] = total;
}

/* One thread per number of the state. */
__global__ void __launch_bounds__(THREADS) fold_kernel(adafactor_args a) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (a.clip[1] == 0 || i >= a.rows + a.width) return;
    bool is_row = i < a.rows;
    const float *parts = is_row ? a.row_sums + i : a.column_sums + (i - a.rows);
    int64_t stride = is_row ? a.rows : a.width, many = is_row ? a.tiles : a.row_blocks;
    double sum = 0;
    for (int64_t k = 0; k < many; k++) sum += (double)parts[k * stride];
    float *mean = (float *)a.state.data + i;
    *mean += a.attr.mix * ((float)(sum / (double)(is_row ? a.width : a.rows)) - *mean);
}

/* One block. */
__global__ void __launch_bounds__(THREADS) mean_kernel(adafactor_args a) {
    const float *rows = (const float *)a.state.data;
    double sum = 0;
    for (int64_t i = threadIdx.x; i < a.rows; i += THREADS) sum += (double)rows[i];
    sum = hy_block_sum<WARPS>(sum);
    if (threadIdx.x == 0) {
        a.size->ratio = (float)(1 / fmax(sum / (double)a.rows, (double)a.attr.eps1));
    }
}

/* ---- the update ------------------------------------------------------------------------------ */

/* The divisor of u, for the quads of a thread. Factored: its columns are loaded once and each row
 * has a factor; otherwise each row has its own numbers. */
template <bool is_factored> struct variances {
    float x[HY_QUADS][HY_QUAD];
    float factor;

    __device__ __forceinline__ void begin(const adafactor_args &a) {
        factor = 1;
        if (!is_factored) return;
        const float *columns = (const float *)a.state.data + a.rows;
        HY_EACH(k, HY_QUADS) {
            place p = place_of(a, 0, k);
            HY_EACH(i, HY_QUAD) x[k][i] = i < p.n ? columns[p.column + i] : 0;
        }
    }
    __device__ __forceinline__ void go_to(const adafactor_args &a, int64_t row) {
        if (is_factored) factor = ((const float *)a.state.data)[row] * a.size->ratio;
    }
    __device__ __forceinline__ void fetch(const adafactor_args &a, int k, const place &p) {
        if (!is_factored) hy_widen(hy_fetch(a.state, p.at, p.n), HY_F32, x[k]);
    }
    __device__ __forceinline__ float update(const adafactor_args &a, int k, int i, float g) const {
        return g * rsqrtf(fmaxf(factor * x[k][i], a.attr.eps1 * a.attr.eps1));
    }
};

__device__ __forceinline__ const hy_view &exact_of(const adafactor_args &a) {
    return a.master.data ? a.master : a.param;
}

/* Squares are summed in fp32 over the eight numbers of a thread in a row, then in double. */
template <bool is_factored>
__global__ void __launch_bounds__(THREADS) measure_kernel(adafactor_args a) {
    float scale = a.clip[1];
    double updates = 0, params = 0;
    variances<is_factored> v;
    if (scale == 0) return;
    v.begin(a);
    for (int64_t row = first_row(a); row < end_row(a); row += WARPS) {
        float of_updates = 0, of_params = 0;
        v.go_to(a, row);
        HY_EACH(k, HY_QUADS) {
            place p = place_of(a, row, k);
            float g[HY_QUAD], w[HY_QUAD] = {};
            hy_widen(hy_fetch(a.grad, p.at, p.n), a.grad.dtype, g);
            if (a.attr.is_relative) {
                hy_widen(hy_fetch(exact_of(a), p.at, p.n), exact_of(a).dtype, w);
            }
            HY_EACH(i, HY_QUAD) g[i] *= scale;
            v.fetch(a, k, p);
            if (!is_factored) {
                HY_EACH(i, HY_QUAD) v.x[k][i] += a.attr.mix * (g[i] * g[i] - v.x[k][i]);
                hy_store(a.state, p.at, p.n, hy_narrow(v.x[k], HY_F32));
            }
            HY_EACH(i, HY_QUAD) {
                float u = v.update(a, k, i, g[i]);
                of_updates += u * u;
                of_params += w[i] * w[i];
            }
        }
        updates += (double)of_updates;
        params += (double)of_params;
    }
    updates = hy_block_sum<WARPS>(updates);
    params = hy_block_sum<WARPS>(params);
    if (threadIdx.x != 0) return;
    int64_t block = blockIdx.y * (int64_t)gridDim.x + blockIdx.x;
    a.squares[block] = updates;
    a.squares[gridDim.x * (int64_t)gridDim.y + block] = params;
}

/* One block. */
__global__ void __launch_bounds__(THREADS) size_kernel(adafactor_args a) {
    int64_t blocks = a.tiles * a.row_blocks;
    double updates = 0, params = 0;
    if (a.clip[1] == 0) return;
    for (int64_t i = threadIdx.x; i < blocks; i += THREADS) {
        updates += a.squares[i];
        params += a.squares[blocks + i];
    }
    updates = hy_block_sum<WARPS>(updates);
    params = hy_block_sum<WARPS>(params);
    if (threadIdx.x != 0) return;
    double alpha = (double)a.attr.rate, length = sqrt(updates / (double)a.count);
    if (a.attr.is_relative) alpha *= fmax((double)a.attr.eps2, sqrt(params / (double)a.count));
    a.size->step = (float)(alpha / fmax(1.0, length / (double)a.attr.threshold));
}

template <bool is_factored>
__global__ void __launch_bounds__(THREADS, 3) apply_kernel(adafactor_args a) {
    float scale = a.clip[1], keep = 1.0f - a.attr.lr * a.attr.weight_decay;
    variances<is_factored> v;
    if (scale == 0) return;
    float step = a.size->step;
    v.begin(a);
#pragma unroll 1
    for (int64_t row = first_row(a); row < end_row(a); row += WARPS) {
        v.go_to(a, row);
        HY_EACH(k, HY_QUADS) {
            place p = place_of(a, row, k);
            float g[HY_QUAD], w[HY_QUAD];
            uint32_t words[HY_QUAD] = {};
            hy_quad_bits g_bits = hy_fetch(a.grad, p.at, p.n);
            hy_quad_bits w_bits = hy_fetch(exact_of(a), p.at, p.n);
            v.fetch(a, k, p);
            if (a.needs_noise) { /* computed while loads are in flight */
                hy_rounding_words(a.seed, a.first + (uint64_t)p.at, words);
            }
            hy_widen(g_bits, a.grad.dtype, g);
            hy_widen(w_bits, exact_of(a).dtype, w);
            HY_EACH(i, HY_QUAD) w[i] = w[i] * keep - step * v.update(a, k, i, scale * g[i]);
            hy_store_param(a.param, a.master, p.at, p.n, w, words);
        }
    }
}

/* ---- the op ---------------------------------------------------------------------------------- */

/* Allocates a part of the workspace; with base NULL it only counts. */
static void *take(char *base, size_t *used, size_t bytes) {
    void *part = base ? base + *used : NULL;
    *used += (bytes + 255) / 256 * 256;
    return part;
}

/* Computes shape, tiles and workspace; returns the bytes of the workspace. */
static size_t lay_out(const hy_op_call *call, adafactor_args *a) {
    const hy_tensor *param = &call->t[HY_UPDATE_PARAM];
    bool is_factored = call->attr.adafactor.is_factored;
    char *base = (char *)call->workspace.data;
    size_t used = 0;
    a->count = hy_tensor_count(param);
    a->width = is_factored ? hy_width(param) : TILE;
    a->rows = hy_ceil_div(a->count, a->width);
    a->tiles = hy_ceil_div(a->width, TILE);
    a->block_rows = hy_ceil_div(a->rows, ROW_BLOCKS_MAX);
    if (a->block_rows < BLOCK_ROWS_MIN) a->block_rows = BLOCK_ROWS_MIN;
    a->row_blocks = hy_ceil_div(a->rows, a->block_rows);
    a->size = (step_size *)take(base, &used, sizeof *a->size);
    a->squares =
        (double *)take(base, &used, (size_t)(2 * a->tiles * a->row_blocks) * sizeof(double));
    if (!is_factored) return used;
    a->row_sums = (float *)take(base, &used, (size_t)(a->tiles * a->rows) * sizeof(float));
    a->column_sums = (float *)take(base, &used, (size_t)(a->row_blocks * a->width) * sizeof(float));
    return used;
}

size_t hy_cuda_adafactor_workspace(const hy_cuda *cuda, const hy_op_call *call) {
    (void)cuda;
    hy_op_call unplaced = *call;
    adafactor_args a = {};
    unplaced.workspace.data = NULL;
    return lay_out(&unplaced, &a);
}

/* If the width is not a multiple of a quad, rows begin at any offset and are processed element by
 * element. */
static hy_view row_view(const hy_tensor *t, int64_t width) {
    hy_view view = hy_view_of(t);
    view.is_packed = view.is_packed && width % HY_QUAD == 0;
    return view;
}

template <bool is_factored>
static void launch_rest(const adafactor_args &a, dim3 grid, cudaStream_t stream) {
    measure_kernel<is_factored><<<grid, THREADS, 0, stream>>>(a);
    size_kernel<<<1, THREADS, 0, stream>>>(a);
    apply_kernel<is_factored><<<grid, THREADS, 0, stream>>>(a);
}

hy_status hy_cuda_adafactor(const hy_cuda_run *run) {
    const hy_tensor *t = run->call->t;
    adafactor_args a = {};
    lay_out(run->call, &a);
    a.attr = run->call->attr.adafactor;
    a.seed = run->call->attr.seed, a.first = run->call->attr.first;
    a.param = row_view(&t[HY_UPDATE_PARAM], a.width);
    a.grad = row_view(&t[HY_UPDATE_GRAD], a.width);
    a.master = row_view(&t[HY_UPDATE_MASTER], a.width);
    a.state = hy_view_of(&t[HY_UPDATE_M]);
    a.clip = (const float *)t[HY_UPDATE_CLIP].data;
    a.needs_noise = !a.master.data && a.param.dtype != HY_F32;
    dim3 grid((unsigned)a.tiles, (unsigned)a.row_blocks);
    if (a.attr.is_factored) {
        unsigned folds = (unsigned)hy_ceil_div(a.rows + a.width, THREADS);
        squares_kernel<<<grid, THREADS, 0, run->stream>>>(a);
        fold_kernel<<<folds, THREADS, 0, run->stream>>>(a);
        mean_kernel<<<1, THREADS, 0, run->stream>>>(a);
        launch_rest<true>(a, grid, run->stream);
    } else {
        launch_rest<false>(a, grid, run->stream);
    }
    return hy_cuda_launched(run);
}
