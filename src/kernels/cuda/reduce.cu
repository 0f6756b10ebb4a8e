/* reduce.cu: sums over whole tensors (elements, squares, dot products of differences), clipping,
 * and scaling of rows to norm one.
 *
 * All sums use double precision. A small tensor takes one block and one launch; for a large one,
 * each block has a stripe and a partial sum in the workspace, and a second launch adds these. The
 * number of blocks depends on the count and the card, so the order of additions is fixed. */
#include "kernels/cuda/quad.cuh"

#define THREADS 256
#define QUADS_IN_FLIGHT 4 /* quads that a thread loads at once */

/* ---- the sums -------------------------------------------------------------------------------- */

/* Each kind says how many sums it has and adds the quad at `at` to them. Quads after the end have
 * length 0 and read as zeros. */
typedef struct reduce_args {
    hy_view x[4]; /* sum, squared norm: x[0]; dot product of differences: a, b?, c, d? */
    bool is_squared;
    bool accumulate;
    int64_t count;
    double *partial; /* one per sum and block; NULL: a single block writes the result */
    double *out;
} reduce_args;

/* Elements, or their squares. */
struct plain_sum {
    static constexpr int sums = 1;
    hy_quad_bits bits;

    __device__ __forceinline__ void fetch(const reduce_args &a, int64_t at) {
        bits = hy_fetch(a.x[0], at, hy_quad_length(at, a.count));
    }
    __device__ __forceinline__ void add(const reduce_args &a, double sum[1]) const {
        float x[HY_QUAD];
        hy_widen(bits, a.x[0].dtype, x);
        HY_EACH(i, HY_QUAD) {
            double value = (double)x[i];
            sum[0] += a.is_squared ? value * value : value;
        }
    }
};

/* {|a - b|^2, |c - d|^2, <a - b, c - d>}; the differences are fp32. */
struct difference_dots {
    static constexpr int sums = 3;
    hy_quad_bits bits[4];

    __device__ __forceinline__ void fetch(const reduce_args &a, int64_t at) {
        int n = hy_quad_length(at, a.count);
        HY_EACH(k, 4) {
            if (a.x[k].data) bits[k] = hy_fetch(a.x[k], at, n);
        }
    }
    __device__ __forceinline__ void difference(const reduce_args &a, int k,
                                               float out[HY_QUAD]) const {
        float minus[HY_QUAD];
        hy_widen(bits[k], a.x[k].dtype, out);
        if (!a.x[k + 1].data) return;
        hy_widen(bits[k + 1], a.x[k + 1].dtype, minus);
        HY_EACH(i, HY_QUAD) out[i] -= minus[i];
    }
    __device__ __forceinline__ void add(const reduce_args &a, double sum[3]) const {
        float x[HY_QUAD], y[HY_QUAD];
        difference(a, 0, x);
        difference(a, 2, y);
        HY_EACH(i, HY_QUAD) {
            double dx = (double)x[i], dy = (double)y[i];
            sum[0] += dx * dx;
            sum[1] += dy * dy;
            sum[2] += dx * dy;
        }
    }
};

/* ---- the kernels ----------------------------------------------------------------------------- */

__device__ __forceinline__ void put_sum(const reduce_args &a, int k, double sum) {
    a.out[k] = a.accumulate ? a.out[k] + sum : sum;
}

template <typename K, int in_flight>
__global__ void __launch_bounds__(THREADS) reduce_kernel(reduce_args a) {
    double sum[K::sums] = {};
    int64_t step = (int64_t)gridDim.x * THREADS * HY_QUAD;
    int64_t at = HY_QUAD * ((int64_t)blockIdx.x * THREADS + threadIdx.x);
    for (; at < a.count; at += in_flight * step) {
        K kind[in_flight];
        HY_EACH(i, in_flight) kind[i].fetch(a, at + i * step);
        HY_EACH(i, in_flight) kind[i].add(a, sum);
    }
    HY_EACH(k, K::sums) {
        double total = hy_block_sum<THREADS / 32>(sum[k]);
        if (threadIdx.x != 0) continue;
        if (a.partial)
            a.partial[k * (int64_t)gridDim.x + blockIdx.x] = total;
        else
            put_sum(a, k, total);
    }
}

/* One block per sum. */
__global__ void __launch_bounds__(THREADS) fold_kernel(reduce_args a, int blocks) {
    const double *partial = a.partial + (int64_t)blockIdx.x * blocks;
    double sum = 0;
    for (int i = threadIdx.x; i < blocks; i += THREADS) sum += partial[i];
    double total = hy_block_sum<THREADS / 32>(sum);
    if (threadIdx.x == 0) put_sum(a, blockIdx.x, total);
}

/* Up to 16 K elements, a single block is as fast as two launches; more blocks than fill the card
 * only give more sums to add. */
static int64_t blocks_of(const hy_cuda *cuda, int64_t count) {
    if (count <= 16 * 1024) return 1;
    int64_t wanted = hy_ceil_div(count, THREADS * HY_QUAD * QUADS_IN_FLIGHT);
    int64_t full = 8 * (int64_t)cuda->card.multiprocessors;
    return wanted < full ? wanted : full;
}

static size_t workspace_of(const hy_cuda *cuda, const hy_tensor *x, int sums) {
    int64_t blocks = blocks_of(cuda, hy_tensor_count(x));
    return blocks == 1 ? 0 : (size_t)(blocks * sums) * sizeof(double);
}

template <typename K, int in_flight>
static hy_status reduce(const hy_cuda_run *run, reduce_args a) {
    a.accumulate = run->call->attr.accumulate;
    int64_t blocks = blocks_of(run->cuda, a.count);
    a.partial = blocks > 1 ? (double *)run->call->workspace.data : NULL;
    reduce_kernel<K, in_flight><<<(unsigned)blocks, THREADS, 0, run->stream>>>(a);
    if (blocks > 1) fold_kernel<<<K::sums, THREADS, 0, run->stream>>>(a, (int)blocks);
    return hy_cuda_launched(run);
}

/* ---- the ops --------------------------------------------------------------------------------- */

size_t hy_cuda_reduce_workspace(const hy_cuda *cuda, const hy_op_call *call) {
    return workspace_of(cuda, &call->t[HY_REDUCE_X], plain_sum::sums);
}

size_t hy_cuda_diff_dot_workspace(const hy_cuda *cuda, const hy_op_call *call) {
    return workspace_of(cuda, &call->t[HY_DIFF_DOT_A], difference_dots::sums);
}

hy_status hy_cuda_reduce(const hy_cuda_run *run) {
    reduce_args a = {};
    a.x[0] = hy_view_of(&run->call->t[HY_REDUCE_X]);
    a.count = hy_tensor_count(&run->call->t[HY_REDUCE_X]);
    a.is_squared = run->call->kind == HY_OP_SQ_NORM;
    a.out = (double *)run->call->t[HY_REDUCE_OUT].data;
    return reduce<plain_sum, QUADS_IN_FLIGHT>(run, a);
}

hy_status hy_cuda_diff_dot(const hy_cuda_run *run) {
    reduce_args a = {};
    for (int k = 0; k < 4; k++) a.x[k] = hy_view_of(&run->call->t[HY_DIFF_DOT_A + k]);
    a.count = hy_tensor_count(&run->call->t[HY_DIFF_DOT_A]);
    a.out = (double *)run->call->t[HY_DIFF_DOT_OUT].data;
    return reduce<difference_dots, 2>(run, a); /* for four tensors */
}

__global__ void clip_kernel(const double *total, float *result, double max_norm, double scale) {
    double norm = sqrt(*total), true_norm = norm * fabs(scale);
    if (max_norm > 0 && true_norm > max_norm) scale *= max_norm / true_norm;
    result[0] = (float)norm;
    result[1] = isfinite(norm) ? (float)scale : 0.0f;
}

hy_status hy_cuda_clip(const hy_cuda_run *run) {
    const hy_op_call *call = run->call;
    clip_kernel<<<1, 1, 0, run->stream>>>(
        (const double *)call->t[HY_CLIP_TOTAL].data, (float *)call->t[HY_CLIP_RESULT].data,
        (double)call->attr.clip.max_norm, (double)call->attr.clip.grad_scale);
    return hy_cuda_launched(run);
}

/* ---- rows to norm one ------------------------------------------------------------------------ */

/* A row is divided into stripes, one block each; their number depends only on the length of the
 * row, so a row has the same bits in any batch. */
#define STRIPE_ELEMENTS (THREADS * HY_QUAD * 16)
#define MOST_STRIPES 128

typedef struct unit_args {
    hy_view x, y;
    int64_t cols;
    double *partial; /* for each row, its stripes */
    float eps;
} unit_args;

static int64_t stripes_of(int64_t cols) {
    int64_t wanted = hy_ceil_div(cols, STRIPE_ELEMENTS);
    return wanted < MOST_STRIPES ? wanted : MOST_STRIPES;
}

/* A row as a separate tensor. */
__device__ __forceinline__ hy_view row_of(hy_view t, int64_t first) {
    t.data = (char *)t.data + first * (t.dtype == HY_F32 ? 4 : 2);
    t.is_packed = (uintptr_t)t.data % 16 == 0;
    return t;
}

/* Blocks (stripes, rows). */
__global__ void __launch_bounds__(THREADS) unit_sums_kernel(unit_args a) {
    hy_view x = row_of(a.x, blockIdx.y * a.cols);
    int64_t step = (int64_t)gridDim.x * THREADS * HY_QUAD;
    double sum = 0;
    for (int64_t at = HY_QUAD * ((int64_t)blockIdx.x * THREADS + threadIdx.x); at < a.cols;
         at += step) {
        float values[HY_QUAD];
        hy_widen(hy_fetch(x, at, hy_quad_length(at, a.cols)), x.dtype, values);
        HY_EACH(i, HY_QUAD) sum += (double)values[i] * (double)values[i];
    }
    double total = hy_block_sum<THREADS / 32>(sum);
    if (threadIdx.x == 0) a.partial[blockIdx.y * (int64_t)gridDim.x + blockIdx.x] = total;
}

__global__ void __launch_bounds__(THREADS) unit_scale_kernel(unit_args a) {
    __shared__ float factor;
    hy_view x = row_of(a.x, blockIdx.y * a.cols), y = row_of(a.y, blockIdx.y * a.cols);
    int64_t step = (int64_t)gridDim.x * THREADS * HY_QUAD;
    const double *partial = a.partial + blockIdx.y * (int64_t)gridDim.x;
    double total = hy_block_sum<THREADS / 32>(threadIdx.x < gridDim.x ? partial[threadIdx.x] : 0);
    if (threadIdx.x == 0) factor = (float)(1.0 / (sqrt(total) + (double)a.eps));
    __syncthreads();
    for (int64_t at = HY_QUAD * ((int64_t)blockIdx.x * THREADS + threadIdx.x); at < a.cols;
         at += step) {
        int n = hy_quad_length(at, a.cols);
        float values[HY_QUAD];
        hy_widen(hy_fetch(x, at, n), x.dtype, values);
        HY_EACH(i, HY_QUAD) values[i] *= factor;
        hy_store(y, at, n, hy_narrow(values, y.dtype));
    }
}

size_t hy_cuda_to_unit_workspace(const hy_cuda *cuda, const hy_op_call *call) {
    (void)cuda;
    const hy_tensor *x = &call->t[HY_TO_UNIT_X];
    return (size_t)(hy_height(x) * stripes_of(hy_width(x))) * sizeof(double);
}

hy_status hy_cuda_to_unit(const hy_cuda_run *run) {
    const hy_tensor *x = &run->call->t[HY_TO_UNIT_X];
    unit_args a = {};
    a.x = hy_view_of(x), a.y = hy_view_of(&run->call->t[HY_TO_UNIT_Y]);
    a.cols = hy_width(x);
    a.partial = (double *)run->call->workspace.data;
    a.eps = run->call->attr.to_unit.eps;
    dim3 grid((unsigned)stripes_of(a.cols), (unsigned)hy_height(x));
    unit_sums_kernel<<<grid, THREADS, 0, run->stream>>>(a);
    unit_scale_kernel<<<grid, THREADS, 0, run->stream>>>(a);
    return hy_cuda_launched(run);
}
