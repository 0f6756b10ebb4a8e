/* grouped_mma.cu: grouped matmuls by mma.sync, on any card from sm_80 on. See grouped.cuh.
 *
 * Eight warps have 64 x 64 results of a tile each. Cards with 99 KB of shared memory have two
 * stages, larger ones four. */
#include "kernels/cuda/grouped.cuh"

enum { WARP_ROWS = 64, WARP_COLS = 64, M_TILES = WARP_ROWS / 16, N_TILES = WARP_COLS / 8 };
enum { MOST_STAGES = 4 };

#if HY_HAS_TILES

/* Where a lane reads its operands: those of the 16 numbers of step 0, first 16 rows or columns. */
template <hy_grouped_form form> struct operands {
    uint32_t a, b;

    __device__ __forceinline__ operands() {
        int lane = threadIdx.x % 32, warp = threadIdx.x / 32, low = lane & 7;
        int third = lane / 8 % 2, fourth = lane / 16;
        int down = warp % 2, across = warp / 2;
        if (form == HY_GROUPED_TN) /* pieces of 64 columns: [k][m] */
            a = down * 8192 + (low + 8 * fourth) * 128 + ((third ^ low) << 4);
        else
            a = (down * WARP_ROWS + lane % 16) * 128 + ((fourth ^ low) << 4);
        if (form == HY_GROUPED_NT)
            b = (across * WARP_COLS + low + 8 * fourth) * 128 + ((third ^ low) << 4);
        else /* [k][n] */
            b = across * 8192 + (low + 8 * third) * 128 + ((fourth ^ low) << 4);
        b += HY_GROUPED_A_BYTES;
    }

    __device__ __forceinline__ void load_a(uint32_t r[4], uint32_t stage, int step, int tile) {
        if (form == HY_GROUPED_TN)
            hy_load_tiles_transposed(r, stage + (a ^ tile * 32) + step * 2048);
        else
            hy_load_tiles(r, stage + (a ^ step * 32) + tile * 2048);
    }
    /* Two tiles of 8 columns. */
    __device__ __forceinline__ void load_b(uint32_t r[4], uint32_t stage, int step, int pair) {
        if (form == HY_GROUPED_NT)
            hy_load_tiles(r, stage + (b ^ step * 32) + pair * 2048);
        else
            hy_load_tiles_transposed(r, stage + (b ^ pair * 32) + step * 2048);
    }
};

/* sum += a b, of a stage and the first COUNT tiles of rows. */
template <hy_grouped_form form, typename T, int COUNT>
__device__ __forceinline__ void multiply(float sum[M_TILES][N_TILES][4], operands<form> &own,
                                         uint32_t stage) {
    HY_EACH(k, HY_GROUPED_BK / 16) {
        uint32_t a[COUNT][4];
        HY_EACH(m, COUNT) own.load_a(a[m], stage, k, m);
        HY_EACH(n, N_TILES / 2) {
            uint32_t b[4];
            own.load_b(b, stage, k, n);
            HY_EACH(m, COUNT) {
                hy_mma<T>(sum[m][2 * n], a[m], b[0], b[1]);
                hy_mma<T>(sum[m][2 * n + 1], a[m], b[2], b[3]);
            }
        }
    }
}

#endif

/* The number of stages is known at run time: a variant for each would double the code. */
template <hy_grouped_form form, typename T>
static __global__ void __launch_bounds__(HY_GROUPED_THREADS, 1)
    mma_kernel(hy_grouped_call c, int stages) {
#if HY_HAS_TILES && defined(__CUDA_ARCH__)
    extern __shared__ __align__(1024) char shared[];
    __shared__ int starts[HY_GROUPED_EXPERTS + 1];
    hy_grouped_count_tiles<form>(c, starts);
    hy_grouped_loader<form> loader;
    loader.init(c, starts);
    operands<form> own;
    uint32_t base = hy_shared_address(shared), end = base + stages * HY_GROUPED_STAGE_BYTES;
    uint32_t stage = base, next = end - HY_GROUPED_STAGE_BYTES; /* to multiply, and to load */
    int warp = threadIdx.x / 32;
    for (uint32_t at = base; at < next; at += HY_GROUPED_STAGE_BYTES) {
        loader.load(c, starts, at);
        hy_copy_commit();
    }
    for (int tile = blockIdx.x; tile < loader.tiles; tile += gridDim.x) {
        hy_grouped_place place = hy_grouped_find<form>(c, starts, tile);
        /* rows of this warp, which are few in a decoder */
        int there = hy_grouped_result_of<form>(c, place).rows - warp % 2 * WARP_ROWS;
        float sum[M_TILES][N_TILES][4];
        HY_EACH(m, M_TILES) {
            HY_EACH(n, N_TILES) {
                HY_EACH(e, 4) sum[m][n][e] = 0;
            }
        }
        for (int left = place.blocks; left > 0; left--) {
            if (stages > 2)
                hy_copy_wait<MOST_STAGES - 2>();
            else
                hy_copy_wait<0>();
            __syncthreads();
            loader.load(c, starts, next);
            hy_copy_commit();
            if (there > 16)
                multiply<form, T, M_TILES>(sum, own, stage);
            else if (there > 0)
                multiply<form, T, 1>(sum, own, stage);
            next = stage;
            stage += HY_GROUPED_STAGE_BYTES;
            if (stage == end) stage = base;
        }
        place = hy_grouped_find<form>(c, starts, tile); /* again: registers are scarce above */
        hy_grouped_result result = hy_grouped_result_of<form>(c, place);
        HY_EACH(m, M_TILES) {
            HY_EACH(n, N_TILES / 4) {
                hy_grouped_store<T>(c, result, warp % 2 * WARP_ROWS + 16 * m,
                                    warp / 2 * WARP_COLS + 32 * n, &sum[m][4 * n]);
            }
        }
    }
    hy_copy_wait<0>();
#endif
}

hy_status hy_grouped_by_mma(const hy_cuda_run *run, const hy_grouped_call *call) {
    bool has_room =
        run->cuda->card.shared_bytes >= MOST_STAGES * HY_GROUPED_STAGE_BYTES + HY_GROUPED_OWN_BYTES;
    int stages = has_room ? MOST_STAGES : 2;
    return hy_grouped_by_form(call->form, [&](auto constant) {
        constexpr hy_grouped_form form = decltype(constant)::value;
        auto kernel =
            call->in == HY_BF16 ? mma_kernel<form, __nv_bfloat16> : mma_kernel<form, __half>;
        return hy_launch_with_shared(run, kernel, (unsigned)run->cuda->card.multiprocessors,
                                     HY_GROUPED_THREADS, stages * HY_GROUPED_STAGE_BYTES, *call,
                                     stages);
    });
}
