/* tile.cuh: tensor-core matmuls and copies into shared memory, for attention.
 *
 * Thin wrappers of the instructions that sm_80 to sm_120 share: cp.async, ldmatrix, mma.sync of
 * 16x8x16. On sm_75 these do not exist for bf16; kernels that use them compile to nothing there
 * (HY_HAS_TILES), and the generic ones run instead. */
#pragma once

#include "kernels/cuda/cuda.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
#define HY_HAS_TILES 1
#else
#define HY_HAS_TILES 0
#endif

__device__ __forceinline__ uint32_t hy_shared_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

#define HY_LOG2E 1.4426950408889634f

/* 2^x by the hardware; below the smallest normal number it is 0. */
__device__ __forceinline__ float hy_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* tanh within 4e-7 of it, relatively, with two approximate instructions; a polynomial near 0, where
 * the quotient loses digits. */
__device__ __forceinline__ float hy_tanh(float x) {
    float size = fabsf(x), x2 = x * x, e = hy_exp2(size * (-2 * HY_LOG2E));
    float large = __fdividef(1.0f - e, 1.0f + e), q = -8.8632355e-3f;
    q = q * x2 + 2.1869489e-2f;
    q = q * x2 - 5.3968254e-2f;
    q = q * x2 + 1.3333333e-1f;
    q = q * x2 - 3.3333333e-1f;
    return size < 0.35f ? x + x * (x2 * q) : copysignf(large, x);
}

#if HY_HAS_TILES

/* Copies 16 bytes from global to shared memory, bypassing the L1 cache; if is_there is false,
 * zeros. */
__device__ __forceinline__ void hy_copy_async(uint32_t shared, const void *global, bool is_there) {
    int bytes = is_there ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared), "l"(global),
                 "r"(bytes));
}
/* As above, 4 and 8 bytes. */
__device__ __forceinline__ void hy_copy_word(uint32_t shared, const void *global, bool is_there) {
    int bytes = is_there ? 4 : 0;
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(shared), "l"(global),
                 "r"(bytes));
}
__device__ __forceinline__ void hy_copy_two_words(uint32_t shared, const void *global,
                                                  bool is_there) {
    int bytes = is_there ? 8 : 0;
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;\n" ::"r"(shared), "l"(global),
                 "r"(bytes));
}
__device__ __forceinline__ void hy_copy_commit() { asm volatile("cp.async.commit_group;\n" ::); }
template <int pending> __device__ __forceinline__ void hy_copy_wait() {
    asm volatile("cp.async.wait_group %0;\n" ::"n"(pending));
}

/* Loads four 8x8 matrices of 16-bit elements; lane i has the address of a row of matrix i / 8. */
__device__ __forceinline__ void hy_load_tiles(uint32_t r[4], uint32_t shared) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared));
}
__device__ __forceinline__ void hy_load_tiles_transposed(uint32_t r[4], uint32_t shared) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared));
}

/* Transposes an 8x8 matrix of 16-bit elements that a warp holds. */
__device__ __forceinline__ uint32_t hy_transposed(uint32_t r) {
    uint32_t t;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;\n" : "=r"(t) : "r"(r));
    return t;
}

/* d (16x8 fp32) += a (16x16) b (16x8). */
template <typename T>
__device__ __forceinline__ void hy_mma(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1);
template <>
__device__ __forceinline__ void hy_mma<__nv_bfloat16>(float d[4], const uint32_t a[4], uint32_t b0,
                                                      uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ __forceinline__ void hy_mma<__half>(float d[4], const uint32_t a[4], uint32_t b0,
                                               uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Two fp32 numbers as a pair of 16-bit ones, the first in the low half. */
template <typename T> __device__ __forceinline__ uint32_t hy_pair(float low, float high);
template <> __device__ __forceinline__ uint32_t hy_pair<__nv_bfloat16>(float low, float high) {
    __nv_bfloat162 p = __floats2bfloat162_rn(low, high);
    return *(uint32_t *)&p;
}
template <> __device__ __forceinline__ uint32_t hy_pair<__half>(float low, float high) {
    __half2 p = __floats2half2_rn(low, high);
    return *(uint32_t *)&p;
}

#endif

/* ---- clusters -------------------------------------------------------------------------------- */

/* From sm_90 on, neighbouring blocks may form a cluster, whose blocks read each other's shared
 * memory. A cluster of 1 is a block, on any card. */

/* Waits for all threads of the cluster. */
template <int blocks> __device__ __forceinline__ void hy_meet_cluster() {
#if __CUDA_ARCH__ >= 900
    if (blocks > 1) {
        asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n" ::
                         : "memory");
        return;
    }
#endif
    __syncthreads();
}

/* Four numbers that block `rank` of the cluster has at this place of its shared memory. */
template <int blocks>
__device__ __forceinline__ float4 hy_read_cluster(const float *shared, int rank) {
#if __CUDA_ARCH__ >= 900
    if (blocks > 1) {
        uint32_t there;
        float4 x;
        asm volatile("mapa.shared::cluster.u32 %0, %1, %2;\n"
                     : "=r"(there)
                     : "r"(hy_shared_address(shared)), "r"(rank));
        asm volatile("ld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [%4];\n"
                     : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                     : "r"(there)
                     : "memory");
        return x;
    }
#endif
    return *(const float4 *)shared;
}
