/* norm.cuh: shared by the forward and the backward pass of norms.
 *
 * A row belongs to a team: a warp (narrow rows, several teams in a block) or a whole block (wide
 * rows). Each thread of the team has the same packs of columns in every row. A team takes a few
 * neighbouring rows at a time and loads all of them before it processes any: that keeps enough
 * loads in flight, and their sums are taken together, which needs fewer shuffles and barriers. */
#pragma once

#include "kernels/cuda/chunks.cuh"

/* ---- teams ----------------------------------------------------------------------------------- */

/* The position of a team in the grid. */
template <bool is_wide> struct hy_team {
    int rank, size;       /* of the thread in its team; threads of a team */
    int64_t index, count; /* of the team in the grid; teams of the grid */

    __device__ __forceinline__ hy_team() {
        int per_block = is_wide ? 1 : (int)blockDim.x / 32;
        rank = is_wide ? (int)threadIdx.x : (int)threadIdx.x % 32;
        size = is_wide ? (int)blockDim.x : 32;
        index = (int64_t)blockIdx.x * per_block + (is_wide ? 0 : threadIdx.x / 32);
        count = (int64_t)gridDim.x * per_block;
    }
};

/* Sums of `count` numbers (1, 2, 4 or 8) over a warp: lane i has the sum of number i count / 32.
 * While there are several numbers, half of the lanes pass on one half of them and the other lanes
 * the other half: count - 1 shuffles reduce `count` numbers to one. */
template <int count> __device__ __forceinline__ float hy_warp_sums(const float *v, int lane) {
    float rest[count];
    int distance = 16;
    HY_EACH(i, count) rest[i] = v[i];
#pragma unroll
    for (int n = count / 2; n > 0; n /= 2) {
        HY_EACH(i, n) {
            bool is_upper = lane & distance;
            float passed = is_upper ? rest[i] : rest[i + n];
            float kept = is_upper ? rest[i + n] : rest[i];
            rest[i] = kept + __shfl_xor_sync(0xffffffffu, passed, distance);
        }
        distance /= 2;
    }
    for (; distance > 0; distance /= 2) {
        rest[0] += __shfl_xor_sync(0xffffffffu, rest[0], distance);
    }
    return rest[0];
}

/* Floats of shared memory for the sums of a wide team: two turns of 8 numbers per warp. */
#define HY_TEAM_FLOATS 512

/* Sums of `count` numbers over the team, available to all of it. A wide team writes to one half of
 * `buffer` while slow threads may still read the other: one barrier per sum is enough. */
template <bool is_wide, int count>
__device__ __forceinline__ void hy_team_sums(float (&v)[count], float *buffer, int *turn) {
    constexpr int lanes = 32 / count; /* that share a number */
    int lane = threadIdx.x % 32;
    float sum = hy_warp_sums<count>(v, lane);
    if (is_wide) {
        int warps = blockDim.x / 32;
        float *half = buffer + (*turn ^= 1) * (HY_TEAM_FLOATS / 2) + lane / lanes * 32;
        if (lane % lanes == 0) half[threadIdx.x / 32] = sum;
        __syncthreads();
        sum = 0;
        for (int w = lane % lanes; w < warps; w += lanes) sum += half[w];
#pragma unroll
        for (int d = lanes / 2; d > 0; d /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, d);
    }
    HY_EACH(i, count) v[i] = __shfl_sync(0xffffffffu, sum, i * lanes);
}

/* ---- weights in shared memory ---------------------------------------------------------------- */

/* Four neighbours stay together; of packs of eight, all first fours come before all second fours,
 * so the lanes of a warp, each reading a pack, have no bank conflicts. */
template <int width> __device__ __forceinline__ int hy_weight_place(int column, int packs) {
    if (width == 4) return column;
    return (column / 4 % 2 * packs + column / 8) * 4 + column % 4;
}

/* Fills `shared` (C floats) with the numbers of a tensor plus `offset`. */
template <int width>
__device__ __forceinline__ void hy_keep_weights(float *shared, const void *data, hy_dtype dtype,
                                                float offset, int C) {
    for (int c = threadIdx.x; c < C; c += blockDim.x) {
        float w = hy_load_any(data, c, dtype);
        shared[hy_weight_place<width>(c, C / width)] = offset != 0 ? offset + w : w;
    }
}

template <int width>
__device__ __forceinline__ void hy_read_weights(const float *shared, int pack, int packs,
                                                float *v) {
    HY_EACH(q, width / 4) {
        float4 four = ((const float4 *)shared)[q * packs + pack];
        v[4 * q] = four.x;
        v[4 * q + 1] = four.y;
        v[4 * q + 2] = four.z;
        v[4 * q + 3] = four.w;
    }
}

/* ---- launching ------------------------------------------------------------------------------- */

/* Threads of a wide team with `chunks` packs each. */
static inline int hy_wide_threads(int64_t packs, int chunks) {
    return (int)hy_ceil_div(packs, 32 * chunks) * 32;
}

/* The ops on rows that are `apart` elements from each other, in all their large tensors, with
 * `statistics` numbers from the rstd of a row to the next: parts of wider rows (head_norm.cu). */
hy_status hy_cuda_norm_apart(const hy_cuda_run *run, int64_t apart, int statistics);
hy_status hy_cuda_norm_bwd_apart(const hy_cuda_run *run, int64_t apart, int statistics);
