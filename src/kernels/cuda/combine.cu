/* combine.cu: linear combinations of tensors with noise, for the formulas of predictors.
 *
 * Elementwise, in quads (quad.cuh); terms are added in the order of their positions. The noise is a
 * function of the logical element, computed in double precision as on the CPU. */
#include "kernels/cuda/noise.cuh"
#include "kernels/cuda/quad.cuh"

#define THREADS 256
#define INPUTS 3

typedef struct combine_args {
    hy_view out, x[INPUTS];
    float coefficient[INPUTS], noise;
    uint64_t seed, first;
    int64_t count;
} combine_args;

template <bool has_noise>
__device__ __forceinline__ void combine_quad(const combine_args &a, const hy_quad_bits bits[INPUTS],
                                             int64_t at) {
    float sum[HY_QUAD] = {};
    HY_EACH(k, INPUTS) {
        float x[HY_QUAD];
        if (!a.x[k].data) continue;
        hy_widen(bits[k], a.x[k].dtype, x);
        HY_EACH(i, HY_QUAD) sum[i] += a.coefficient[k] * x[i];
    }
    if (has_noise) {
        uint64_t first = a.first + (uint64_t)at;
        HY_EACH(i, HY_QUAD) {
            sum[i] += a.noise * (float)hy_device_normal(a.seed, HY_RNG_PREDICT, first + i);
        }
    }
    hy_store(a.out, at, hy_quad_length(at, a.count), hy_narrow(sum, a.out.dtype));
}

template <bool has_noise>
__global__ void __launch_bounds__(THREADS) combine_kernel(combine_args a) {
    int64_t thread = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    hy_quad_bits bits[HY_QUADS][INPUTS];
    HY_EACH(k, HY_QUADS) {
        int64_t at = hy_quad_at(thread, k);
        HY_EACH(i, INPUTS) {
            if (a.x[i].data) bits[k][i] = hy_fetch(a.x[i], at, hy_quad_length(at, a.count));
        }
    }
    HY_EACH(k, HY_QUADS) combine_quad<has_noise>(a, bits[k], hy_quad_at(thread, k));
}

hy_status hy_cuda_combine(const hy_cuda_run *run) {
    const hy_op_call *call = run->call;
    combine_args a = {};
    a.out = hy_view_of(&call->t[HY_COMBINE_OUT]);
    for (int k = 0; k < INPUTS; k++) {
        a.x[k] = hy_view_of(&call->t[HY_COMBINE_X0 + k]);
        a.coefficient[k] = call->attr.combine.coefficient[k];
    }
    a.noise = call->attr.combine.noise;
    a.seed = call->attr.seed;
    a.first = call->attr.first;
    a.count = hy_tensor_count(&call->t[HY_COMBINE_OUT]);
    unsigned blocks = hy_quad_blocks(a.count, THREADS);
    if (a.noise != 0)
        combine_kernel<true><<<blocks, THREADS, 0, run->stream>>>(a);
    else
        combine_kernel<false><<<blocks, THREADS, 0, run->stream>>>(a);
    return hy_cuda_launched(run);
}
