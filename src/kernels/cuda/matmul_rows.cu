/* matmul_rows.cu: batch-invariant matmuls: what they accept, which kernel runs, and a plain kernel.
 *
 * On sm_80 and newer, 16-bit a with aligned operands runs on tensor cores (matmul_rows.cuh). All
 * else runs in the plain kernel: fp32, K that is no multiple of 16, a and b of different real
 * types, older cards. Which of the two runs does not depend on the number of rows. */
#include "kernels/cuda/matmul_rows.cuh"

#include "kernels/cuda/matmul.cuh"
#include "kernels/fp8.h"

/* ---- the plain kernel ------------------------------------------------------------------------ */

enum { WARPS = 4, THREADS = 32 * WARPS, TOKENS = 8 };

/* Readers of b: element k of row n before it is rounded to a's type. */
struct real_reader {
    const void *data;
    hy_dtype dtype;
    int64_t K;
    static real_reader of(const hy_tensor *b) { return {b->data, b->dtype, hy_width(b)}; }
    __device__ __forceinline__ float at(int64_t n, int64_t k) const {
        return hy_load_any(data, n * K + k, dtype);
    }
};
struct int8_reader {
    const int8_t *codes;
    const float *scales;
    int64_t K;
    static int8_reader of(const hy_tensor *b) {
        return {(const int8_t *)b->data, b->quant.scale, hy_width(b)};
    }
    __device__ __forceinline__ float at(int64_t n, int64_t k) const {
        return __fmul_rn(__ldg(scales + n), (float)codes[n * K + k]);
    }
};
struct nf4_reader {
    hy_nf4_codes codes;
    int64_t K;
    static nf4_reader of(const hy_tensor *b) { return {hy_nf4_codes_of(b), hy_width(b)}; }
    __device__ __forceinline__ float at(int64_t n, int64_t k) const {
        return hy_nf4_at(codes, n * K + k);
    }
};
struct e4m3_reader {
    const uint8_t *codes;
    const float *scale;
    int64_t K;
    static e4m3_reader of(const hy_tensor *b) {
        return {(const uint8_t *)b->data, b->quant.scale, hy_width(b)};
    }
    __device__ __forceinline__ float at(int64_t n, int64_t k) const {
        return __fmul_rn(hy_fp8_decode(HY_E4M3, codes[n * K + k]), __ldg(scale));
    }
};

/* A warp takes a row of b and TOKENS rows of a; a lane every 32nd element, in order, and the sums
 * of lanes are added in a tree. Rows that are not there repeat the last one. */
template <typename T, typename Reader>
static __global__ void __launch_bounds__(THREADS) plain_rows_kernel(hy_rows_call c, Reader b) {
    int lane = threadIdx.x % 32;
    int64_t n = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32,
            first = (int64_t)blockIdx.y * TOKENS;
    const T *a[TOKENS];
    float sum[TOKENS] = {};
    if (n >= c.N) return;
    HY_EACH(i, TOKENS) a[i] = (const T *)c.a + min(first + i, (int64_t)c.M - 1) * c.K;
#pragma unroll 4
    for (int k = lane; k < c.K; k += 32) {
        float x = hy_to_float(hy_from_float<T>(b.at(n, k)));
        HY_EACH(i, TOKENS) sum[i] = __fmaf_rn(hy_to_float(a[i][k]), x, sum[i]);
    }
    HY_EACH(i, TOKENS) {
        float total[HY_QUAD] = {hy_warp_sum(sum[i])};
        if (lane == i && first + i < c.M) hy_rows_finish(c, (int)first + i, (int)n, 1, total);
    }
}

template <typename Reader>
static hy_status run_plain(const hy_cuda_run *run, const hy_rows_call &c) {
    dim3 grid((unsigned)hy_ceil_div(c.N, WARPS), (unsigned)hy_ceil_div(c.M, TOKENS));
    Reader reader = Reader::of(&run->call->t[HY_MATMUL_B]);
    hy_by_type(c.in, [&](auto zero) {
        using T = decltype(zero);
        plain_rows_kernel<T, Reader><<<grid, THREADS, 0, run->stream>>>(c, reader);
    });
    return hy_cuda_launched(run);
}

/* ---- choosing -------------------------------------------------------------------------------- */

hy_status hy_cuda_matmul_rows_supports(const hy_cuda *cuda, const hy_op_call *call) {
    const hy_tensor *t = call->t, *d = &t[HY_MATMUL_D], *c = &t[HY_MATMUL_C];
    hy_dtype in = t[HY_MATMUL_A].dtype;
    if (d->dtype != in && d->dtype != HY_F32) {
        return hy_cuda_fail(cuda, HY_ERR_INPUT,
                            "matmul: d is %s, expected %s (the type of a) or fp32",
                            hy_dtype_name(d->dtype), hy_dtype_name(in));
    }
    if (hy_has(c) && c->dtype != d->dtype) {
        return hy_cuda_fail(cuda, HY_ERR_INPUT, "matmul: c is %s, expected %s (the type of d)",
                            hy_dtype_name(c->dtype), hy_dtype_name(d->dtype));
    }
    return HY_OK;
}

static bool is_aligned(const hy_tensor *t) { return (uintptr_t)t->data % 16 == 0; }

/* The same K for all types of b, so that a quantised b has the bits of the b that it represents. */
static bool has_tiles(const hy_cuda *cuda, const hy_op_call *call) {
    const hy_tensor *a = &call->t[HY_MATMUL_A], *b = &call->t[HY_MATMUL_B];
    return cuda->card.capability >= 80 && a->dtype != HY_F32 && hy_width(a) % 16 == 0 &&
           (b->dtype == a->dtype || hy_is_coded(b->dtype)) && is_aligned(a) && is_aligned(b);
}

static hy_rows_call describe(const hy_op_call *call) {
    const hy_tensor *a = &call->t[HY_MATMUL_A], *b = &call->t[HY_MATMUL_B];
    const hy_tensor *d = &call->t[HY_MATMUL_D], *bias = &call->t[HY_MATMUL_BIAS];
    hy_rows_call c = {};
    c.M = (int)hy_height(d), c.N = (int)hy_width(d), c.K = (int)hy_width(a);
    c.a = a->data, c.b = b->data, c.d = d->data;
    c.bias = bias->data, c.bias_dtype = bias->dtype;
    c.c = call->attr.accumulate ? d->data : call->t[HY_MATMUL_C].data;
    c.in = a->dtype, c.out = d->dtype;
    c.alpha = call->attr.matmul.alpha;
    c.scales = b->quant.scale;
    c.waits = call->attr.matmul.has_computed_b;
    c.has_fours = c.N % HY_QUAD == 0 && is_aligned(d) && is_aligned(bias) &&
                  (uintptr_t)c.c % 16 == 0; /* NULL is aligned */
    if (b->dtype == HY_NF4) c.nf4 = hy_nf4_codes_of(b);
    return c;
}

hy_status hy_cuda_matmul_rows(const hy_cuda_run *run) {
    HY_TRY(hy_cuda_matmul_rows_supports(run->cuda, run->call));
    hy_rows_call c = describe(run->call);
    bool is_fast = has_tiles(run->cuda, run->call);
    switch (run->call->t[HY_MATMUL_B].dtype) {
    case HY_I8: return is_fast ? hy_rows_by_int8(run, &c) : run_plain<int8_reader>(run, c);
    case HY_NF4: return is_fast ? hy_rows_by_nf4(run, &c) : run_plain<nf4_reader>(run, c);
    case HY_E4M3: return is_fast ? hy_rows_by_e4m3(run, &c) : run_plain<e4m3_reader>(run, c);
    default: return is_fast ? hy_rows_by_real(run, &c) : run_plain<real_reader>(run, c);
    }
}
