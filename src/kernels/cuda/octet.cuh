/* octet.cuh: eight consecutive elements of a tensor whose type is known only at run time.
 *
 * Elementwise ops over large tensors give each thread an octet: 16 bytes of a 16-bit type, 32 of
 * fp32. The type is the same for all threads, so its branches split no warp, and one kernel serves
 * every mixture of types at the speed of memory. Fetching is apart from widening, so that a thread
 * has all its loads under way before it looks at the first. Octets that are cut off by the tensor's
 * end, or whose tensor is not aligned to 16 bytes, go element by element. */
#ifndef HY_KERNELS_CUDA_OCTET_CUH
#define HY_KERNELS_CUDA_OCTET_CUH

#include "kernels/cuda/cuda.cuh"

#define HY_OCTET 8

/* A tensor as kernels see it. */
typedef struct hy_view {
    void *data; /* NULL: absent */
    hy_dtype dtype;
    bool is_packed; /* aligned for 16-byte accesses */
} hy_view;

static inline hy_view hy_view_of(const hy_tensor *t) {
    return hy_view{t->data, t->dtype, (uintptr_t)t->data % 16 == 0};
}

/* The bits of an octet: fp32 in w[0..7], two 16-bit elements a word in w[0..3]. */
typedef struct hy_octet_bits {
    uint32_t w[HY_OCTET];
} hy_octet_bits;

__device__ __forceinline__ void hy_put_words(uint32_t *w, uint4 four) {
    w[0] = four.x, w[1] = four.y, w[2] = four.z, w[3] = four.w;
}

/* Element by element: those from n on read as zero. */
__device__ __forceinline__ hy_octet_bits hy_fetch_slowly(const hy_view &t, int64_t at, int n) {
    hy_octet_bits bits = {};
    if (t.dtype == HY_F32) {
#pragma unroll
        for (int i = 0; i < HY_OCTET; i++) {
            if (i < n) bits.w[i] = ((const uint32_t *)t.data)[at + i];
        }
    } else {
#pragma unroll
        for (int i = 0; i < HY_OCTET; i++) {
            if (i < n) bits.w[i / 2] |= (uint32_t)((const uint16_t *)t.data)[at + i] << i % 2 * 16;
        }
    }
    return bits;
}

/* Elements [at, at + n) of t, n at most 8; at is a multiple of 8. */
__device__ __forceinline__ hy_octet_bits hy_fetch(const hy_view &t, int64_t at, int n) {
    if (n < HY_OCTET || !t.is_packed) return hy_fetch_slowly(t, at, n);
    hy_octet_bits bits;
    const uint4 *p = (const uint4 *)((const char *)t.data + at * (t.dtype == HY_F32 ? 4 : 2));
    hy_put_words(bits.w, p[0]);
    if (t.dtype == HY_F32) hy_put_words(bits.w + 4, p[1]);
    return bits;
}

__device__ __forceinline__ void hy_store_slowly(const hy_view &t, int64_t at, int n,
                                                const hy_octet_bits &bits) {
#pragma unroll
    for (int i = 0; i < HY_OCTET; i++) {
        if (i >= n) continue;
        if (t.dtype == HY_F32)
            ((uint32_t *)t.data)[at + i] = bits.w[i];
        else
            ((uint16_t *)t.data)[at + i] = (uint16_t)(bits.w[i / 2] >> i % 2 * 16);
    }
}

__device__ __forceinline__ void hy_store(const hy_view &t, int64_t at, int n,
                                         const hy_octet_bits &bits) {
    if (n < HY_OCTET || !t.is_packed) return hy_store_slowly(t, at, n, bits);
    uint4 *p = (uint4 *)((char *)t.data + at * (t.dtype == HY_F32 ? 4 : 2));
    p[0] = make_uint4(bits.w[0], bits.w[1], bits.w[2], bits.w[3]);
    if (t.dtype == HY_F32) p[1] = make_uint4(bits.w[4], bits.w[5], bits.w[6], bits.w[7]);
}

__device__ __forceinline__ void hy_widen(const hy_octet_bits &bits, hy_dtype dtype,
                                         float x[HY_OCTET]) {
    if (dtype == HY_F32) {
#pragma unroll
        for (int i = 0; i < HY_OCTET; i++) x[i] = __uint_as_float(bits.w[i]);
    } else if (dtype == HY_BF16) {
#pragma unroll
        for (int i = 0; i < HY_OCTET; i++) {
            uint32_t word = bits.w[i / 2];
            x[i] = __uint_as_float(i % 2 ? word & 0xffff0000u : word << 16);
        }
    } else {
#pragma unroll
        for (int i = 0; i < HY_OCTET; i++) {
            x[i] = __half2float(__ushort_as_half((uint16_t)(bits.w[i / 2] >> i % 2 * 16)));
        }
    }
}

/* Rounds to nearest, ties to even. */
__device__ __forceinline__ hy_octet_bits hy_narrow(const float x[HY_OCTET], hy_dtype dtype) {
    hy_octet_bits bits;
    if (dtype == HY_F32) {
#pragma unroll
        for (int i = 0; i < HY_OCTET; i++) bits.w[i] = __float_as_uint(x[i]);
    } else if (dtype == HY_BF16) {
#pragma unroll
        for (int i = 0; i < HY_OCTET / 2; i++) {
            __nv_bfloat162 pair = __floats2bfloat162_rn(x[2 * i], x[2 * i + 1]);
            bits.w[i] = *(const uint32_t *)&pair;
        }
    } else {
#pragma unroll
        for (int i = 0; i < HY_OCTET / 2; i++) {
            __half2 pair = __floats2half2_rn(x[2 * i], x[2 * i + 1]);
            bits.w[i] = *(const uint32_t *)&pair;
        }
    }
    return bits;
}

/* How many elements of octet `at` the tensor has: 8, fewer at its end, 0 behind it. */
__device__ __forceinline__ int hy_octet_length(int64_t at, int64_t count) {
    return (int)max((int64_t)0, min((int64_t)HY_OCTET, count - at));
}

#endif
