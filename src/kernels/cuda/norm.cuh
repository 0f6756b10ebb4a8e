/* norm.cuh: what the forward and the backward pass of norms share.
 *
 * A row belongs to a team: a warp (narrow rows, several teams in a block) or a whole block (wide
 * rows). Each thread of the team has the same packs of columns on every row, so sums over rows stay
 * in registers. Blocks are as many as the card holds at once and walk over the rows; rows to come
 * are on their way into shared memory while one is worked on. Weights wait there too, as fp32. */
#ifndef HY_KERNELS_CUDA_NORM_CUH
#define HY_KERNELS_CUDA_NORM_CUH

#include "kernels/cuda/pieces.cuh"
#include "kernels/cuda/tile.cuh"

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

/* ---- rows ahead ------------------------------------------------------------------------------ */

#define HY_MOST_STAGES 4

/* A thread's packs of the next rows: `count` of each row, for `stages` rows at once. No other
 * thread reads them, so no barrier is needed: the thread waits for its own copies. */
template <typename T, int count> struct hy_ahead {
    hy_pack<T> *own;
    int stages, stage; /* rows on their way at once; the one to be worked on next */

    __device__ __forceinline__ hy_ahead(void *shared, int stages_given) {
        own = (hy_pack<T> *)shared + threadIdx.x;
        stages = stages_given;
        stage = 0;
    }
    __device__ __forceinline__ hy_pack<T> *slot(int of_stage, int i) const {
        return own + (of_stage * count + i) * (int)blockDim.x;
    }
    __device__ __forceinline__ void bring(int of_stage, int i, const T *from) const {
#if HY_HAS_TILES
        hy_copy_async(hy_shared_address(slot(of_stage, i)), from, true);
#else
        *slot(of_stage, i) = hy_load_pack(from);
#endif
    }
    /* Ends the packs of one row; rows past the end are ended too, so that waiting can count. The
     * compiler does not see what copies read and write: it must not move reads of packs past this
     * and past wait. */
    __device__ __forceinline__ void end_row() const {
#if HY_HAS_TILES
        asm volatile("" ::: "memory");
        hy_copy_commit();
#endif
    }
    /* Waits until all but the last stages - 1 rows have come. */
    __device__ __forceinline__ void wait() const {
#if HY_HAS_TILES
        if (stages == 1)
            hy_copy_wait<0>();
        else if (stages == 2)
            hy_copy_wait<1>();
        else if (stages == 3)
            hy_copy_wait<2>();
        else
            hy_copy_wait<3>();
        asm volatile("" ::: "memory");
#endif
    }
    __device__ __forceinline__ int last_stage() const {
        return stage == 0 ? stages - 1 : stage - 1;
    }
    __device__ __forceinline__ void move() { stage = stage + 1 == stages ? 0 : stage + 1; }
};

/* ---- launching ------------------------------------------------------------------------------- */

/* How a kernel over teams is started. */
typedef struct hy_team_launch {
    int64_t blocks;
    int threads, stages;
    size_t bytes; /* of shared memory; 0: rows do not fit */
} hy_team_launch;

/* `resident` threads of a multiprocessor at once share its memory: `fixed` bytes a block and as
 * many stages as fit. No block takes more than 99 KB, which every card from sm_86 on has. */
static inline hy_team_launch hy_plan_teams(const hy_cuda *cuda, int64_t N, bool is_wide,
                                           int threads, int resident, size_t fixed,
                                           size_t stage_bytes) {
    hy_team_launch plan = {};
    size_t most = cuda->card.shared_bytes < 99 * 1024 ? cuda->card.shared_bytes : 99 * 1024;
    int per_processor = resident / threads;
    size_t share = cuda->card.shared_bytes / (size_t)per_processor - 1024;
    int64_t blocks = (int64_t)cuda->card.multiprocessors * per_processor;
    int64_t teams = is_wide ? N : hy_ceil_div(N, threads / 32);
    if (share > most) share = most;
    plan.blocks = blocks < teams ? blocks : teams;
    plan.threads = threads;
    if (fixed + stage_bytes > most) return plan;
    plan.stages = share < fixed + stage_bytes ? 1 : (int)((share - fixed) / stage_bytes);
    if (plan.stages > HY_MOST_STAGES) plan.stages = HY_MOST_STAGES;
    plan.bytes = fixed + (size_t)plan.stages * stage_bytes;
    return plan;
}

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
