/* columns.cuh: sums over the rows of a matrix, one per column, in a fixed order.
 *
 * There are two stages. First each block sums its share of the rows into partial sums in the
 * workspace: either inside a kernel that does other work on those rows (norm_bwd, head_norm_bwd),
 * or here (hy_column_sums). Then hy_fold_columns adds the partial sums in order. How rows are
 * divided depends only on the shapes and on the card's number of multiprocessors. */
#pragma once

#include "kernels/cuda/chunks.cuh"

/* ---- folding --------------------------------------------------------------------------------- */

/* Columns [first, first + count) of the partial sums are written or added to `out`. */
typedef struct hy_fold_target {
    void *out; /* NULL: nothing to do */
    hy_dtype dtype;
    int64_t first, count;
} hy_fold_target;

typedef struct hy_fold {
    const float *partial; /* (blocks, stride) */
    int64_t blocks, stride;
    hy_fold_target target[2];
    bool accumulate;
} hy_fold;

#define HY_FOLD_COLUMNS 32
#define HY_FOLD_SHARES 32

/* A warp reads a line of 32 columns; 32 warps divide the blocks and meet in shared memory. */
static __global__ void __launch_bounds__(HY_FOLD_COLUMNS *HY_FOLD_SHARES)
    hy_fold_partial(hy_fold f) {
    __shared__ float sums[HY_FOLD_SHARES][HY_FOLD_COLUMNS];
    hy_fold_target target = f.target[blockIdx.y];
    int64_t column = (int64_t)blockIdx.x * HY_FOLD_COLUMNS + threadIdx.x;
    bool is_there = target.out && column < target.count;
    float sum = 0;
    if (is_there) {
        const float *from = f.partial + target.first + column;
#pragma unroll 4
        for (int64_t i = threadIdx.y; i < f.blocks; i += HY_FOLD_SHARES) sum += from[i * f.stride];
    }
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y != 0 || !is_there) return;
    for (int i = 1; i < HY_FOLD_SHARES; i++) sum += sums[i][threadIdx.x];
    if (f.accumulate) sum += hy_load_any(target.out, column, target.dtype);
    hy_store_any(target.out, column, target.dtype, sum);
}

/* Folds columns [0, first's) into `first` and those from stride / 2 on into `second`; either may be
 * absent. */
static inline void hy_fold_columns(const hy_cuda_run *run, const float *partial, int64_t blocks,
                                   int64_t stride, const hy_tensor *first,
                                   const hy_tensor *second) {
    auto target = [](const hy_tensor *t, int64_t at) -> hy_fold_target {
        return {t->data, t->dtype, at, hy_has(t) ? hy_tensor_count(t) : 0};
    };
    hy_fold f = {partial,
                 blocks,
                 stride,
                 {target(first, 0), target(second, stride / 2)},
                 run->call->attr.accumulate};
    int64_t columns = f.target[0].count > f.target[1].count ? f.target[0].count : f.target[1].count;
    dim3 grid((unsigned)hy_ceil_div(columns, HY_FOLD_COLUMNS), f.target[1].out ? 2 : 1);
    hy_fold_partial<<<grid, dim3(HY_FOLD_COLUMNS, HY_FOLD_SHARES), 0, run->stream>>>(f);
}

/* ---- the first stage, alone ------------------------------------------------------------------ */

#define HY_COLUMN_THREADS 256

/* How a matrix of `rows` x `chunks` is divided: tiles of columns across, shares of the rows down. A
 * block reads `lines` rows of its tile at once. */
typedef struct hy_column_cut {
    int64_t rows, chunks;
    int tiles, tile_chunks, lines, shares;
} hy_column_cut;

#define HY_COLUMN_BLOCKS 4 /* blocks per multiprocessor */

/* Chunks per tile: a multiple of 8, so that lines begin at 128 bytes, with the fewest idle threads
 * in the last tile and line; the widest such. */
static inline int hy_tile_chunks(int64_t chunks) {
    int best = 0;
    double most = 0;
    for (int across = 64; across >= 32; across -= 8) {
        double tiles = (double)hy_ceil_div(chunks, across), lines = HY_COLUMN_THREADS / across;
        double used = (double)chunks / (tiles * across) * (lines * across / HY_COLUMN_THREADS);
        if (used > most) most = used, best = across;
    }
    return chunks < 32 ? (int)chunks : best;
}

/* Shares fill the card with blocks, once, unless that leaves fewer than eight rows per thread. */
static inline hy_column_cut hy_cut_columns(const hy_cuda *cuda, int64_t rows, int64_t chunks) {
    hy_column_cut cut = {};
    cut.rows = rows;
    cut.chunks = chunks;
    cut.tile_chunks = hy_tile_chunks(chunks);
    cut.tiles = (int)hy_ceil_div(chunks, cut.tile_chunks);
    cut.lines = HY_COLUMN_THREADS / cut.tile_chunks;
    int64_t wanted = (int64_t)cuda->card.multiprocessors * HY_COLUMN_BLOCKS / cut.tiles;
    int64_t most = hy_ceil_div(rows, (int64_t)cut.lines * 8);
    if (wanted > most) wanted = most;
    cut.shares = wanted < 1 ? 1 : (int)wanted;
    return cut;
}

static inline size_t hy_column_bytes(const hy_cuda *cuda, int64_t rows, int64_t chunks, int width) {
    return (size_t)hy_cut_columns(cuda, rows, chunks).shares * (size_t)(chunks * width) *
           sizeof(float);
}

/* Rows a thread loads at once. */
#define HY_COLUMN_BATCH 8

/* Source: `width`; `chunk`; fetch(row, column) loads the data for `width` numbers of a row;
 * add(chunk, sum) adds them. */
template <typename Source>
static __device__ __forceinline__ void hy_add_rows(const Source &source, int64_t row, int64_t end,
                                                   int64_t step, int64_t column, float *sum) {
    for (; row + (HY_COLUMN_BATCH - 1) * step < end; row += HY_COLUMN_BATCH * step) {
        typename Source::chunk batch[HY_COLUMN_BATCH];
        HY_EACH(k, HY_COLUMN_BATCH) batch[k] = source.fetch(row + k * step, column);
        HY_EACH(k, HY_COLUMN_BATCH) source.add(batch[k], sum);
    }
    if (row >= end) return;
    /* The remaining rows are also loaded at once: one by one, each would wait for the last. */
    typename Source::chunk rest[HY_COLUMN_BATCH - 1];
    HY_EACH(k, HY_COLUMN_BATCH - 1) {
        if (row + k * step < end) rest[k] = source.fetch(row + k * step, column);
    }
    HY_EACH(k, HY_COLUMN_BATCH - 1) {
        if (row + k * step < end) source.add(rest[k], sum);
    }
}

template <typename Source>
static __global__ void __launch_bounds__(HY_COLUMN_THREADS, HY_COLUMN_BLOCKS)
    hy_column_partial(Source source, hy_column_cut cut, float *partial) {
    constexpr int width = Source::width;
    __shared__ float sums[HY_COLUMN_THREADS * width];
    int chunk = threadIdx.x % cut.tile_chunks, line = threadIdx.x / cut.tile_chunks;
    int64_t column = (int64_t)blockIdx.x * cut.tile_chunks + chunk, C = cut.chunks * width;
    int64_t first = (int64_t)blockIdx.y * cut.lines + line, step = (int64_t)cut.shares * cut.lines;
    float sum[width] = {0};
    if (line < cut.lines && column < cut.chunks) {
        hy_add_rows(source, first, cut.rows, step, column * width, sum);
    }
    HY_EACH(j, width) sums[threadIdx.x * width + j] = sum[j];
    __syncthreads();
    int tile_width = cut.tile_chunks * width;
    for (int c = threadIdx.x; c < tile_width; c += HY_COLUMN_THREADS) {
        int64_t at = (int64_t)blockIdx.x * tile_width + c;
        float total = 0;
        for (int i = 0; i < cut.lines; i++) total += sums[i * tile_width + c];
        if (at < C) partial[blockIdx.y * C + at] = total;
    }
}

/* out (+)= column sums of the source. `partial` has hy_column_bytes. */
template <typename Source>
static void hy_column_sums(const hy_cuda_run *run, const Source &source, int64_t rows,
                           const hy_tensor *out, float *partial) {
    int64_t C = hy_tensor_count(out);
    hy_column_cut cut = hy_cut_columns(run->cuda, rows, C / Source::width);
    dim3 grid((unsigned)cut.tiles, (unsigned)cut.shares);
    hy_column_partial<<<grid, HY_COLUMN_THREADS, 0, run->stream>>>(source, cut, partial);
    hy_tensor none = {};
    hy_fold_columns(run, partial, cut.shares, C, out, &none);
}

/* The matrix itself. */
template <typename A> struct hy_matrix_source {
    static constexpr int width = A::width;
    typedef typename A::chunk chunk;
    A matrix;
    int64_t C;

    __device__ __forceinline__ chunk fetch(int64_t row, int64_t column) const {
        return matrix.fetch(row * C + column);
    }
    __device__ __forceinline__ void add(const chunk &p, float *sum) const {
        float v[width];
        matrix.open(p, v);
        HY_EACH(j, width) sum[j] += v[j];
    }
};
