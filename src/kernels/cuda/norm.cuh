/* norm.cuh: what the forward and the backward pass of norms share.
 *
 * A row belongs to a team: a warp (narrow rows, several teams in a block) or a whole block (wide
 * rows). Each thread of the team keeps the same packs of columns on every row, so a row is read
 * once into registers and sums over rows can stay there too. Blocks are as many as the card
 * holds at once and walk over the rows. Weights wait in shared memory as fp32, whatever their
 * type. */
#ifndef HY_KERNELS_CUDA_NORM_CUH
#define HY_KERNELS_CUDA_NORM_CUH

#include "kernels/cuda/pieces.cuh"

/* ---- teams ----------------------------------------------------------------------------------- */

/* A team's place in the grid. */
template <bool is_wide> struct hy_team {
    int rank, size;      /* of the thread in its team; threads of a team */
    int64_t first, step; /* rows of this team: first, first + step, ... */

    __device__ __forceinline__ hy_team() {
        int per_block = is_wide ? 1 : (int)blockDim.x / 32;
        rank = is_wide ? (int)threadIdx.x : (int)threadIdx.x % 32;
        size = is_wide ? (int)blockDim.x : 32;
        first = (int64_t)blockIdx.x * per_block + (is_wide ? 0 : threadIdx.x / 32);
        step = (int64_t)gridDim.x * per_block;
    }
};

/* Floats of shared memory that the sums of a wide team need: two turns of two numbers per warp. */
#define HY_TEAM_FLOATS 128

/* Sums of `count` (1 or 2) numbers over the team, known to all of it. A wide team writes to one
 * half of `buffer` while slow threads may still read the other: one barrier per sum is enough. */
template <bool is_wide, int count>
__device__ __forceinline__ void hy_team_sums(float (&v)[count], float *buffer, int *turn) {
#pragma unroll
    for (int i = 0; i < count; i++) v[i] = hy_warp_sum(v[i]);
    if (!is_wide) return;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    float *half = buffer + (*turn ^= 1) * (HY_TEAM_FLOATS / 2);
#pragma unroll
    for (int i = 0; i < count; i++) {
        if (lane == 0) half[i * 32 + warp] = v[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < count; i++) v[i] = hy_warp_sum(lane < warps ? half[i * 32 + lane] : 0.0f);
}

/* ---- weights in shared memory ---------------------------------------------------------------- */

/* Four neighbours stay together; of packs of eight, all first fours come before all second
 * fours, so that the lanes of a warp, each reading a pack, meet no bank twice. */
template <int width> __device__ __forceinline__ int hy_weight_place(int column, int packs) {
    if (width == 4) return column;
    return (column / 4 % 2 * packs + column / 8) * 4 + column % 4;
}

/* Fills `shared` (C floats) with a tensor's numbers, or with `absent` where there is no tensor. */
template <int width>
__device__ __forceinline__ void hy_keep_weights(float *shared, const void *data, hy_dtype dtype,
                                                float absent, int C) {
    for (int c = threadIdx.x; c < C; c += blockDim.x) {
        shared[hy_weight_place<width>(c, C / width)] = data ? hy_load_any(data, c, dtype) : absent;
    }
}

template <int width>
__device__ __forceinline__ void hy_read_weights(const float *shared, int pack, int packs,
                                                float *v) {
#pragma unroll
    for (int q = 0; q < width / 4; q++) {
        float4 four = ((const float4 *)shared)[q * packs + pack];
        v[4 * q] = four.x;
        v[4 * q + 1] = four.y;
        v[4 * q + 2] = four.z;
        v[4 * q + 3] = four.w;
    }
}

/* ---- launching ------------------------------------------------------------------------------- */

/* Lets a kernel have `bytes` of shared memory; what every kernel may have needs no asking. */
static inline hy_status hy_want_shared(const hy_cuda *cuda, const void *kernel, size_t bytes) {
    if (bytes <= 48 * 1024) return HY_OK;
    return hy_cuda_check(
        cuda, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes),
        "shared memory of a norm");
}

/* Threads of a wide team whose members hold `pieces` packs each. */
static inline int hy_wide_threads(int64_t packs, int pieces) {
    return (int)hy_ceil_div(packs, 32 * pieces) * 32;
}

#endif
