/* wrap.cu: stores bf16 numbers in a byte each, and recovers them with numbers near them. See
 * grid.h.
 *
 * Eight elements per thread: 16 bytes of numbers and a word of 8 bytes, if addresses allow it. */
#include "kernels/cuda/cuda.cuh"
#include "kernels/grid.h"

#define THREADS 256
#define EACH 8

typedef struct hy_code_pack {
    alignas(8) uint8_t v[EACH];
} hy_code_pack;

__global__ void __launch_bounds__(THREADS)
    wrap_kernel(const uint16_t *x, uint8_t *codes, int64_t count, int32_t exponent,
                bool is_packed) {
    int64_t at = EACH * ((int64_t)blockIdx.x * THREADS + threadIdx.x);
    if (!is_packed || at + EACH > count) {
        for (int64_t i = at; i < min(at + EACH, count); i++)
            codes[i] = hy_grid_wrap(x[i], exponent);
        return;
    }
    hy_pack<uint16_t> in = hy_load_pack(x + at);
    hy_code_pack made;
    HY_EACH(i, EACH) made.v[i] = hy_grid_wrap(in.v[i], exponent);
    *(uint2 *)(codes + at) = *(const uint2 *)&made;
}

__global__ void __launch_bounds__(THREADS)
    unwrap_kernel(const uint8_t *codes, const uint16_t *near, uint16_t *x, int64_t count,
                  int32_t exponent, bool is_packed) {
    int64_t at = EACH * ((int64_t)blockIdx.x * THREADS + threadIdx.x);
    if (!is_packed || at + EACH > count) {
        for (int64_t i = at; i < min(at + EACH, count); i++)
            x[i] = hy_grid_unwrap(codes[i], near[i], exponent);
        return;
    }
    hy_pack<uint16_t> here = hy_load_pack(near + at), made;
    hy_code_pack in;
    *(uint2 *)&in = *(const uint2 *)(codes + at);
    HY_EACH(i, EACH) made.v[i] = hy_grid_unwrap(in.v[i], here.v[i], exponent);
    hy_store_pack(x + at, made);
}

static bool is_round(const hy_tensor *t) { return (uintptr_t)t->data % 16 == 0; }

hy_status hy_cuda_wrap(const hy_cuda_run *run) {
    const hy_tensor *x = &run->call->t[HY_WRAP_X], *codes = &run->call->t[HY_WRAP_CODES];
    int64_t count = hy_tensor_count(x);
    wrap_kernel<<<(unsigned)hy_ceil_div(count, EACH * THREADS), THREADS, 0, run->stream>>>(
        (const uint16_t *)x->data, (uint8_t *)codes->data, count, run->call->attr.grid.exponent,
        is_round(x) && is_round(codes));
    return hy_cuda_launched(run);
}

hy_status hy_cuda_unwrap(const hy_cuda_run *run) {
    const hy_tensor *codes = &run->call->t[HY_UNWRAP_CODES], *x = &run->call->t[HY_UNWRAP_X];
    const hy_tensor *near = &run->call->t[HY_UNWRAP_NEAR];
    int64_t count = hy_tensor_count(codes);
    unwrap_kernel<<<(unsigned)hy_ceil_div(count, EACH * THREADS), THREADS, 0, run->stream>>>(
        (const uint8_t *)codes->data, (const uint16_t *)near->data, (uint16_t *)x->data, count,
        run->call->attr.grid.exponent, is_round(codes) && is_round(near) && is_round(x));
    return hy_cuda_launched(run);
}
