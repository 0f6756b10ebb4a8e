/* quad.cuh: four consecutive elements of a tensor with a type known only at run time.
 *
 * Elementwise ops over large tensors work in quads: 16 bytes of fp32, 8 of a 16-bit type.
 * Neighbouring lanes have neighbouring quads, so a warp reads and writes whole lines. The type is
 * the same for all threads, so its branches cause no divergence, and one kernel supports every
 * mixture of types at memory speed. Loading is separate from converting, so a thread has all its
 * loads in flight before it uses the first. Quads at the end of a tensor, or of an unaligned
 * tensor, are processed element by element. */
#pragma once

#include "kernels/cuda/cuda.cuh"

#define HY_QUAD 4
#define HY_QUADS 2                                 /* quads per thread */
#define HY_WARP_ELEMENTS (32 * HY_QUAD * HY_QUADS) /* 256 */

/* A tensor as kernels see it. */
typedef struct hy_view {
    void *data; /* NULL: absent */
    hy_dtype dtype;
    bool is_packed; /* aligned for 16-byte accesses */
} hy_view;

static inline hy_view hy_view_of(const hy_tensor *t) {
    return hy_view{t->data, t->dtype, (uintptr_t)t->data % 16 == 0};
}

/* The blocks of `threads` threads that cover a tensor. */
static inline unsigned hy_quad_blocks(int64_t count, int threads) {
    return (unsigned)hy_ceil_div(count, (int64_t)threads * HY_QUAD * HY_QUADS);
}

/* Where quad k of a thread begins. The first quads of a warp are adjacent; its second quads
 * follow. */
__device__ __forceinline__ int64_t hy_quad_at(int64_t thread, int k) {
    return thread / 32 * HY_WARP_ELEMENTS + 32 * HY_QUAD * k + thread % 32 * HY_QUAD;
}

/* How many elements of the quad the tensor has: 4, fewer at its end, 0 after it. */
__device__ __forceinline__ int hy_quad_length(int64_t at, int64_t count) {
    return (int)max((int64_t)0, min((int64_t)HY_QUAD, count - at));
}

/* The bits of a quad: fp32 in w[0..3], two 16-bit elements per word in w[0..1]. */
typedef struct hy_quad_bits {
    uint32_t w[HY_QUAD];
} hy_quad_bits;

/* Element by element: those from n on read as zero. */
__device__ __forceinline__ hy_quad_bits hy_fetch_slowly(const hy_view &t, int64_t at, int n) {
    hy_quad_bits bits = {};
    HY_EACH(i, HY_QUAD) {
        if (i >= n) continue;
        if (t.dtype == HY_F32)
            bits.w[i] = ((const uint32_t *)t.data)[at + i];
        else
            bits.w[i / 2] |= (uint32_t)((const uint16_t *)t.data)[at + i] << i % 2 * 16;
    }
    return bits;
}

/* Elements [at, at + n) of t, n at most 4; at is a multiple of 4. */
__device__ __forceinline__ hy_quad_bits hy_fetch(const hy_view &t, int64_t at, int n) {
    if (n < HY_QUAD || !t.is_packed) return hy_fetch_slowly(t, at, n);
    hy_quad_bits bits;
    if (t.dtype == HY_F32) {
        uint4 four = *(const uint4 *)((const float *)t.data + at);
        bits.w[0] = four.x, bits.w[1] = four.y, bits.w[2] = four.z, bits.w[3] = four.w;
    } else {
        uint2 two = *(const uint2 *)((const uint16_t *)t.data + at);
        bits.w[0] = two.x, bits.w[1] = two.y;
    }
    return bits;
}

__device__ __forceinline__ void hy_store_slowly(const hy_view &t, int64_t at, int n,
                                                const hy_quad_bits &bits) {
    HY_EACH(i, HY_QUAD) {
        if (i >= n) continue;
        if (t.dtype == HY_F32)
            ((uint32_t *)t.data)[at + i] = bits.w[i];
        else
            ((uint16_t *)t.data)[at + i] = (uint16_t)(bits.w[i / 2] >> i % 2 * 16);
    }
}

__device__ __forceinline__ void hy_store(const hy_view &t, int64_t at, int n,
                                         const hy_quad_bits &bits) {
    if (n < HY_QUAD || !t.is_packed) return hy_store_slowly(t, at, n, bits);
    if (t.dtype == HY_F32) {
        uint4 four = make_uint4(bits.w[0], bits.w[1], bits.w[2], bits.w[3]);
        *(uint4 *)((float *)t.data + at) = four;
    } else {
        *(uint2 *)((uint16_t *)t.data + at) = make_uint2(bits.w[0], bits.w[1]);
    }
}

__device__ __forceinline__ void hy_widen(const hy_quad_bits &bits, hy_dtype dtype,
                                         float x[HY_QUAD]) {
    HY_EACH(i, HY_QUAD) {
        uint32_t word = bits.w[i / 2];
        if (dtype == HY_F32)
            x[i] = __uint_as_float(bits.w[i]);
        else if (dtype == HY_BF16)
            x[i] = __uint_as_float(i % 2 ? word & 0xffff0000u : word << 16);
        else
            x[i] = __half2float(__ushort_as_half((uint16_t)(word >> i % 2 * 16)));
    }
}

/* Rounds to nearest, ties to even. */
__device__ __forceinline__ hy_quad_bits hy_narrow(const float x[HY_QUAD], hy_dtype dtype) {
    hy_quad_bits bits;
    if (dtype == HY_F32) {
        HY_EACH(i, HY_QUAD) bits.w[i] = __float_as_uint(x[i]);
    } else if (dtype == HY_BF16) {
        HY_EACH(i, HY_QUAD / 2) {
            __nv_bfloat162 pair = __floats2bfloat162_rn(x[2 * i], x[2 * i + 1]);
            bits.w[i] = *(const uint32_t *)&pair;
        }
    } else {
        HY_EACH(i, HY_QUAD / 2) {
            __half2 pair = __floats2half2_rn(x[2 * i], x[2 * i + 1]);
            bits.w[i] = *(const uint32_t *)&pair;
        }
    }
    return bits;
}
