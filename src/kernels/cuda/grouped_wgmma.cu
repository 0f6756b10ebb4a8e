/* grouped_wgmma.cu: grouped matmuls by wgmma, for sm_90a alone. See grouped.cuh.
 *
 * Two groups of four warps have 64 x 256 results of a tile each. A stage is overwritten two blocks
 * after it was multiplied, when every group has waited for that. cp.async writes and wgmma reads
 * through different proxies, so a fence is between them. */
#include "kernels/cuda/grouped.cuh"

enum { STAGES = 4, AHEAD = STAGES - 2, GROUP_ROWS = 64, FRAGMENTS = HY_GROUPED_BN / 8 };

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* Where an operand is in shared memory: 128-byte swizzle, 1,024 bytes from 8 rows to the next 8,
 * 8,192 from a piece of 64 columns to the next (only if the summed dimension is not contiguous). */
__device__ __forceinline__ uint64_t describe(uint32_t shared) {
    return (uint64_t)1 << 62 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)(8192 >> 4) << 16 |
           (shared & 0x3ffff) >> 4;
}

/* d (64,256) = a (64,16) b (16,256), or d += with `adds`. trans: the operand is not contiguous along
 * the summed dimension. */
#define MULTIPLY(type)                                                                             \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"                                     \
                 "wgmma.mma_async.sync.aligned.m64n256k16.f32." type "." type "\n" SUMS            \
                 "%128, %129, p, 1, 1, %131, %132;\n}\n"                                           \
                 : EACH_SUM                                                                        \
                 : "l"(a), "l"(b), "r"((int)adds), "n"(trans_a), "n"(trans_b))
#define SUMS                                                                                       \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, \n"                    \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, \n"           \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, \n"           \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, \n"           \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, \n"           \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, \n"           \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
    "\n"                                                                                           \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, "   \
    "%127}, \n"
#define EACH_SUM                                                                                   \
    "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]),      \
        "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]),  \
        "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]),  \
        "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]),  \
        "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]), "+f"(d[7][0]), "+f"(d[7][1]),  \
        "+f"(d[7][2]), "+f"(d[7][3]), "+f"(d[8][0]), "+f"(d[8][1]), "+f"(d[8][2]), "+f"(d[8][3]),  \
        "+f"(d[9][0]), "+f"(d[9][1]), "+f"(d[9][2]), "+f"(d[9][3]), "+f"(d[10][0]),                \
        "+f"(d[10][1]), "+f"(d[10][2]), "+f"(d[10][3]), "+f"(d[11][0]), "+f"(d[11][1]),            \
        "+f"(d[11][2]), "+f"(d[11][3]), "+f"(d[12][0]), "+f"(d[12][1]), "+f"(d[12][2]),            \
        "+f"(d[12][3]), "+f"(d[13][0]), "+f"(d[13][1]), "+f"(d[13][2]), "+f"(d[13][3]),            \
        "+f"(d[14][0]), "+f"(d[14][1]), "+f"(d[14][2]), "+f"(d[14][3]), "+f"(d[15][0]),            \
        "+f"(d[15][1]), "+f"(d[15][2]), "+f"(d[15][3]), "+f"(d[16][0]), "+f"(d[16][1]),            \
        "+f"(d[16][2]), "+f"(d[16][3]), "+f"(d[17][0]), "+f"(d[17][1]), "+f"(d[17][2]),            \
        "+f"(d[17][3]), "+f"(d[18][0]), "+f"(d[18][1]), "+f"(d[18][2]), "+f"(d[18][3]),            \
        "+f"(d[19][0]), "+f"(d[19][1]), "+f"(d[19][2]), "+f"(d[19][3]), "+f"(d[20][0]),            \
        "+f"(d[20][1]), "+f"(d[20][2]), "+f"(d[20][3]), "+f"(d[21][0]), "+f"(d[21][1]),            \
        "+f"(d[21][2]), "+f"(d[21][3]), "+f"(d[22][0]), "+f"(d[22][1]), "+f"(d[22][2]),            \
        "+f"(d[22][3]), "+f"(d[23][0]), "+f"(d[23][1]), "+f"(d[23][2]), "+f"(d[23][3]),            \
        "+f"(d[24][0]), "+f"(d[24][1]), "+f"(d[24][2]), "+f"(d[24][3]), "+f"(d[25][0]),            \
        "+f"(d[25][1]), "+f"(d[25][2]), "+f"(d[25][3]), "+f"(d[26][0]), "+f"(d[26][1]),            \
        "+f"(d[26][2]), "+f"(d[26][3]), "+f"(d[27][0]), "+f"(d[27][1]), "+f"(d[27][2]),            \
        "+f"(d[27][3]), "+f"(d[28][0]), "+f"(d[28][1]), "+f"(d[28][2]), "+f"(d[28][3]),            \
        "+f"(d[29][0]), "+f"(d[29][1]), "+f"(d[29][2]), "+f"(d[29][3]), "+f"(d[30][0]),            \
        "+f"(d[30][1]), "+f"(d[30][2]), "+f"(d[30][3]), "+f"(d[31][0]), "+f"(d[31][1]),            \
        "+f"(d[31][2]), "+f"(d[31][3])

template <typename T, int trans_a, int trans_b>
__device__ __forceinline__ void multiply(float d[FRAGMENTS][4], uint64_t a, uint64_t b, bool adds) {
    if constexpr (std::is_same<T, __half>::value)
        MULTIPLY("f16");
    else
        MULTIPLY("bf16");
}

/* Sums stay where they are while wgmma writes them. */
__device__ __forceinline__ void keep_sums(float d[FRAGMENTS][4]) {
    HY_EACH(n, FRAGMENTS) {
        HY_EACH(e, 4) asm volatile("" : "+f"(d[n][e])::"memory");
    }
}

__device__ __forceinline__ void begin_group() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void end_group() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int pending> __device__ __forceinline__ void wait_group() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

#endif

template <hy_grouped_form form, typename T>
static __global__ void __launch_bounds__(HY_GROUPED_THREADS, 1) wgmma_kernel(hy_grouped_call c) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    constexpr int trans_a = form == HY_GROUPED_TN, trans_b = form != HY_GROUPED_NT;
    constexpr int A_STEP = trans_a ? 2048 : 32, B_STEP = trans_b ? 2048 : 32;
    extern __shared__ __align__(1024) char shared[];
    __shared__ int starts[HY_GROUPED_EXPERTS + 1];
    hy_grouped_count_tiles<form>(c, starts);
    hy_grouped_loader<form> loader;
    loader.init(c, starts);
    uint32_t base = hy_shared_address(shared);
    int group = threadIdx.x / 128, step = 0;
    HY_EACH(stage, AHEAD) {
        loader.load(c, starts, base + stage * HY_GROUPED_STAGE_BYTES);
        hy_copy_commit();
    }
    float sum[FRAGMENTS][4];
    for (int tile = blockIdx.x; tile < loader.tiles; tile += gridDim.x) {
        hy_grouped_place place = hy_grouped_find<form>(c, starts, tile);
        for (int block = 0; block < place.blocks; block++, step++) {
            hy_copy_wait<AHEAD - 1>();
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
            __syncthreads();
            uint32_t stage = base + step % STAGES * HY_GROUPED_STAGE_BYTES;
            keep_sums(sum);
            begin_group();
            HY_EACH(k, HY_GROUPED_BK / 16) {
                uint64_t a = describe(stage + group * GROUP_ROWS * 128 + k * A_STEP);
                uint64_t b = describe(stage + HY_GROUPED_A_BYTES + k * B_STEP);
                multiply<T, trans_a, trans_b>(sum, a, b, block > 0 || k > 0);
            }
            end_group();
            wait_group<1>();
            keep_sums(sum);
            loader.load(c, starts, base + (step + AHEAD) % STAGES * HY_GROUPED_STAGE_BYTES);
            hy_copy_commit();
        }
        wait_group<0>();
        keep_sums(sum);
        hy_grouped_result result = hy_grouped_result_of<form>(c, place);
        int row = group * GROUP_ROWS + threadIdx.x % 128 / 32 * 16;
        HY_EACH(n, FRAGMENTS / 4) hy_grouped_store<T>(c, result, row, 32 * n, &sum[4 * n]);
    }
    hy_copy_wait<0>();
#endif
}

bool hy_grouped_has_wgmma(const hy_cuda *cuda) {
    size_t bytes = STAGES * HY_GROUPED_STAGE_BYTES + HY_GROUPED_OWN_BYTES;
    return cuda->card.capability == 90 && cuda->card.code == 90 && cuda->card.shared_bytes >= bytes;
}

hy_status hy_grouped_by_wgmma(const hy_cuda_run *run, const hy_grouped_call *call) {
    return hy_grouped_by_form(call->form, [&](auto constant) {
        constexpr hy_grouped_form form = decltype(constant)::value;
        auto kernel =
            call->in == HY_BF16 ? wgmma_kernel<form, __nv_bfloat16> : wgmma_kernel<form, __half>;
        return hy_launch_with_shared(run, kernel, (unsigned)run->cuda->card.multiprocessors,
                                     HY_GROUPED_THREADS, STAGES * HY_GROUPED_STAGE_BYTES, *call);
    });
}
