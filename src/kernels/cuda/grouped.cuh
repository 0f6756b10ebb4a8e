/* grouped.cuh: what the kernels of grouped matmuls share. See grouped.cu.
 *
 * Persistent blocks take tiles of BM rows and BN columns of results in turn; they find the expert
 * of a tile from offsets. A tile's sum is made of blocks of BK numbers of the summed dimension,
 * which arrive by cp.async, several stages ahead and across tiles. In a stage, an operand whose
 * rows are contiguous along the summed dimension has BM or BN rows of 128 bytes; otherwise it has
 * 64-column pieces of BK rows of 128 bytes. The 16-byte chunks of a row are swizzled by its number
 * mod 8, as wgmma and ldmatrix like it.
 *
 * A result is summed over the summed dimension in order, whatever other rows there are: a row has
 * the same bits in any tile. */
#pragma once

#include <type_traits>

#include "kernels/cuda/tile.cuh"

#define HY_GROUPED_BM 128
#define HY_GROUPED_BN 256
#define HY_GROUPED_BK 64
#define HY_GROUPED_THREADS 256
#define HY_GROUPED_A_BYTES (HY_GROUPED_BM * HY_GROUPED_BK * 2)
#define HY_GROUPED_STAGE_BYTES (HY_GROUPED_A_BYTES + HY_GROUPED_BN * HY_GROUPED_BK * 2)
/* Beside the stages: where tiles begin, rounded up to the alignment of stages. */
#define HY_GROUPED_OWN_BYTES 3072
/* Experts of a launch: two stages and where their tiles begin fit into 99 KB. */
#define HY_GROUPED_EXPERTS 512

static_assert(2 * HY_GROUPED_STAGE_BYTES + HY_GROUPED_OWN_BYTES <= 99 * 1024,
              "the limit of sm_120");

/* b (N,K); b (K,N); the gradient, of which neither operand is contiguous along the summed
 * dimension. */
typedef enum hy_grouped_form { HY_GROUPED_NT, HY_GROUPED_NN, HY_GROUPED_TN } hy_grouped_form;

/* A launch for some experts: b, bias and offsets, or d, begin at the first of them. */
typedef struct hy_grouped_call {
    hy_grouped_form form;
    const void *a, *b, *bias;
    void *d;
    const int32_t *offsets, *rows_a, *rows_b;
    int experts;
    int share_a, share_b; /* positions that share a row of a, of b */
    int M, N, K;          /* the gradient has no K, the others no M */
    float alpha;
    bool accumulate;
    hy_dtype in, out, bias_dtype;
} hy_grouped_call;

/* For 16-bit types, addresses that are multiples of 16 bytes and widths that are multiples of 8. */
hy_status hy_grouped_by_mma(const hy_cuda_run *run, const hy_grouped_call *call);
hy_status hy_grouped_by_wgmma(const hy_cuda_run *run, const hy_grouped_call *call);
bool hy_grouped_has_wgmma(const hy_cuda *cuda);

/* ---- tiles ----------------------------------------------------------------------------------- */

/* The first tile of rows of each expert, in shared memory; starts[experts] is their number. Not for
 * the gradient, whose experts have equal numbers of tiles. */
template <hy_grouped_form form>
__device__ __forceinline__ void hy_grouped_count_tiles(const hy_grouped_call &c, int *starts) {
    constexpr int EACH = HY_GROUPED_EXPERTS / 32;
    if (form != HY_GROUPED_TN && threadIdx.x < 32) {
        int first = threadIdx.x * EACH, own = 0;
        for (int e = first; e < min(first + EACH, c.experts); e++) {
            own += (c.offsets[e + 1] - c.offsets[e] + HY_GROUPED_BM - 1) / HY_GROUPED_BM;
        }
        int end = own;
        for (int d = 1; d < 32; d <<= 1) {
            int before = __shfl_up_sync(0xffffffffu, end, d);
            if ((int)threadIdx.x >= d) end += before;
        }
        int at = end - own;
        for (int e = first; e < min(first + EACH, c.experts); e++) {
            starts[e] = at;
            at += (c.offsets[e + 1] - c.offsets[e] + HY_GROUPED_BM - 1) / HY_GROUPED_BM;
        }
        if (threadIdx.x == 31) starts[c.experts] = end;
    }
    __syncthreads();
}

template <hy_grouped_form form>
__device__ __forceinline__ int hy_grouped_tiles(const hy_grouped_call &c, const int *starts) {
    int across = (c.N + HY_GROUPED_BN - 1) / HY_GROUPED_BN;
    int down = form == HY_GROUPED_TN ? (c.M + HY_GROUPED_BM - 1) / HY_GROUPED_BM * c.experts
                                     : starts[c.experts];
    return across * down;
}

/* Where a tile is: its expert and that one's positions, the first row and column of the tile within
 * the expert's result, and the blocks of its sum. An expert without positions has one block, of
 * zeros. */
typedef struct hy_grouped_place {
    int expert, begin, end;
    int row, col, blocks;
} hy_grouped_place;

template <hy_grouped_form form>
__device__ __forceinline__ hy_grouped_place hy_grouped_find(const hy_grouped_call &c,
                                                            const int *starts, int tile) {
    hy_grouped_place p;
    int across = (c.N + HY_GROUPED_BN - 1) / HY_GROUPED_BN, down = tile / across;
    p.col = tile % across * HY_GROUPED_BN;
    if (form == HY_GROUPED_TN) {
        int each = (c.M + HY_GROUPED_BM - 1) / HY_GROUPED_BM;
        p.expert = down / each;
        p.row = down % each * HY_GROUPED_BM;
    } else {
        int low = 0, high = c.experts - 1; /* the last expert that begins at or before `down` */
        while (low < high) {
            int middle = (low + high + 1) / 2;
            if (starts[middle] <= down)
                low = middle;
            else
                high = middle - 1;
        }
        p.expert = low;
        p.row = (down - starts[low]) * HY_GROUPED_BM;
    }
    p.begin = c.offsets[p.expert];
    p.end = c.offsets[p.expert + 1];
    int depth = form == HY_GROUPED_TN ? p.end - p.begin : c.K;
    p.blocks = max(1, (depth + HY_GROUPED_BK - 1) / HY_GROUPED_BK);
    return p;
}

/* ---- loading --------------------------------------------------------------------------------- */

#if HY_HAS_TILES

/* Loads the blocks of this block's tiles, one after the other. A thread copies the chunk `chunk` of
 * rows `line` + 32 i of a stage. */
template <hy_grouped_form form> struct hy_grouped_loader {
    static constexpr int A_ROWS = HY_GROUPED_BM / 32, B_ROWS = HY_GROUPED_BN / 32;
    static constexpr int A_PIECES = HY_GROUPED_BM / 64, B_PIECES = HY_GROUPED_BN / 64;

    hy_grouped_place place;
    int tile, tiles, block; /* the next to be loaded */
    int line, chunk;
    uint32_t to;               /* within an operand of a stage */
    const char *a_row[A_ROWS]; /* the gradient: rows of two positions of a, then of b */
    const char *b_row;
    uint32_t are_there; /* bits of A_ROWS rows of a, then of B_ROWS rows of b */

    __device__ __forceinline__ void init(const hy_grouped_call &c, const int *starts) {
        line = threadIdx.x / 8;
        chunk = threadIdx.x % 8;
        to = line * 128 + ((chunk ^ (line & 7)) << 4);
        tile = blockIdx.x;
        tiles = hy_grouped_tiles<form>(c, starts);
        enter(c, starts);
    }

    /* A tile: the rows that this thread reads. */
    __device__ __forceinline__ void enter(const hy_grouped_call &c, const int *starts) {
        block = 0;
        if (tile >= tiles) return;
        place = hy_grouped_find<form>(c, starts, tile);
        if (form == HY_GROUPED_TN) {
            find_positions(c);
            return;
        }
        are_there = 0;
        HY_EACH(i, A_ROWS) {
            int position = place.begin + place.row + line + 32 * i;
            bool is_there = position < place.end;
            int64_t row = 0;
            if (is_there) row = c.rows_a ? c.rows_a[position] / c.share_a : position;
            a_row[i] = (const char *)c.a + row * c.K * 2;
            are_there |= (uint32_t)is_there << i;
        }
        int64_t first = (int64_t)place.expert * c.N * c.K;
        if (form == HY_GROUPED_NT) {
            HY_EACH(i, B_ROWS) {
                are_there |= (uint32_t)(place.col + line + 32 * i < c.N) << (A_ROWS + i);
            }
            first += (int64_t)(place.col + line) * c.K;
        } else {
            first += (int64_t)line * c.N;
        }
        b_row = (const char *)c.b + first * 2;
    }

    /* The gradient: the rows of the next block's two positions. */
    __device__ __forceinline__ void find_positions(const hy_grouped_call &c) {
        are_there = 0;
        HY_EACH(i, 2) {
            int position = place.begin + block * HY_GROUPED_BK + line + 32 * i;
            bool is_there = position < place.end;
            int64_t a = position, b = position;
            if (is_there && c.rows_a) a = c.rows_a[position] / c.share_a;
            if (is_there && c.rows_b) b = c.rows_b[position] / c.share_b;
            if (!is_there) a = b = 0;
            a_row[i] = (const char *)c.a + a * c.M * 2;
            a_row[2 + i] = (const char *)c.b + b * c.N * 2;
            are_there |= (uint32_t)is_there << i;
        }
    }

    /* 64-column pieces of two rows, from column `col` of `cols`. */
    template <int PIECES>
    __device__ __forceinline__ void load_pieces(uint32_t shared, const char *const rows[2],
                                                const bool there[2], int col, int cols) {
        HY_EACH(piece, PIECES) {
            int at = col + 64 * piece + 8 * chunk;
            HY_EACH(i, 2) {
                bool is_there = there[i] && at < cols;
                hy_copy_async(shared + piece * 8192 + i * 4096 + to,
                              rows[i] + (is_there ? at * 2 : 0), is_there);
            }
        }
    }

    /* Loads a block into a stage, if there is one left, and moves on. */
    __device__ __forceinline__ void load(const hy_grouped_call &c, const int *starts,
                                         uint32_t stage) {
        uint32_t b = stage + HY_GROUPED_A_BYTES;
        if (tile >= tiles) return;
        if (form == HY_GROUPED_TN) {
            bool there[2] = {(are_there & 1) != 0, (are_there & 2) != 0};
            load_pieces<A_PIECES>(stage, a_row, there, place.row, c.M);
            load_pieces<B_PIECES>(b, a_row + 2, there, place.col, c.N);
        } else {
            int k = block * HY_GROUPED_BK + 8 * chunk;
            HY_EACH(i, A_ROWS) {
                bool is_there = k < c.K && are_there >> i & 1;
                hy_copy_async(stage + i * 4096 + to, a_row[i] + (is_there ? k * 2 : 0), is_there);
            }
            if (form == HY_GROUPED_NT) {
                HY_EACH(i, B_ROWS) {
                    bool is_there = k < c.K && are_there >> (A_ROWS + i) & 1;
                    const char *from = b_row + ((int64_t)i * 32 * c.K + k) * 2;
                    hy_copy_async(b + i * 4096 + to, is_there ? from : (const char *)c.b, is_there);
                }
            } else {
                const char *rows[2];
                bool there[2];
                HY_EACH(i, 2) {
                    there[i] = block * HY_GROUPED_BK + line + 32 * i < c.K;
                    rows[i] = there[i] ? b_row + (int64_t)i * 64 * c.N : (const char *)c.b;
                }
                load_pieces<B_PIECES>(b, rows, there, place.col, c.N);
                b_row += (int64_t)HY_GROUPED_BK * c.N * 2;
            }
        }
        if (++block < place.blocks) {
            if (form == HY_GROUPED_TN) find_positions(c);
            return;
        }
        tile += gridDim.x;
        enter(c, starts);
    }
};

/* ---- storing --------------------------------------------------------------------------------- */

/* The part of d that a tile covers. */
typedef struct hy_grouped_result {
    char *d;
    const char *bias; /* of its first column */
    int rows, cols;   /* that exist */
} hy_grouped_result;

template <hy_grouped_form form>
__device__ __forceinline__ hy_grouped_result hy_grouped_result_of(const hy_grouped_call &c,
                                                                  const hy_grouped_place &p) {
    hy_grouped_result r;
    int size = c.out == HY_F32 ? 4 : 2, bias_size = c.bias_dtype == HY_F32 ? 4 : 2;
    int64_t first = form == HY_GROUPED_TN ? (int64_t)p.expert * c.M : p.begin;
    r.d = (char *)c.d + ((first + p.row) * c.N + p.col) * size;
    r.bias = c.bias ? (const char *)c.bias + ((int64_t)p.expert * c.N + p.col) * bias_size : NULL;
    r.rows = (form == HY_GROUPED_TN ? c.M : p.end - p.begin) - p.row;
    r.cols = c.N - p.col;
    return r;
}

/* w[i] of lane q of four neighbours becomes w[q] of lane i. */
__device__ __forceinline__ void hy_transpose_quad(uint32_t w[4]) {
    bool is_odd = threadIdx.x & 1, is_high = threadIdx.x & 2;
    HY_EACH(j, 2) {
        uint32_t got = __shfl_xor_sync(0xffffffffu, is_odd ? w[2 * j] : w[2 * j + 1], 1);
        w[2 * j] = is_odd ? got : w[2 * j];
        w[2 * j + 1] = is_odd ? w[2 * j + 1] : got;
    }
    HY_EACH(j, 2) {
        uint32_t got = __shfl_xor_sync(0xffffffffu, is_high ? w[j] : w[j + 2], 2);
        w[j] = is_high ? got : w[j];
        w[j + 2] = is_high ? w[j + 2] : got;
    }
}

/* Stores 16 rows of 32 columns from a warp's sums, four fragments of mma: a lane has rows row and
 * row + 8, and of each 8 columns from col on two. `row` and `col` are those of the fragments, in
 * the tile. Results of 16 bits are exchanged, so that a lane stores 16 bytes. */
template <typename T>
__device__ __forceinline__ void hy_grouped_store(const hy_grouped_call &c,
                                                 const hy_grouped_result &r, int row, int col,
                                                 float x[4][4]) {
    int lane = threadIdx.x % 32, own = col + lane % 4 * 2;
    row += lane / 4;
    HY_EACH(j, 4) {
        HY_EACH(e, 4) x[j][e] *= c.alpha;
        if (r.bias && own + 8 * j < r.cols) {
            HY_EACH(e, 4) x[j][e] += hy_load_any(r.bias, own + 8 * j + e % 2, c.bias_dtype);
        }
    }
    HY_EACH(half, 2) {
        int64_t at = (int64_t)(row + 8 * half) * c.N;
        bool is_there = row + 8 * half < r.rows;
        if (c.out == HY_F32) {
            HY_EACH(j, 4) {
                float2 *to = (float2 *)((float *)r.d + at + own + 8 * j);
                if (!is_there || own + 8 * j >= r.cols) continue;
                float2 sum = make_float2(x[j][2 * half], x[j][2 * half + 1]);
                if (c.accumulate) {
                    float2 old = *to;
                    sum.x += old.x, sum.y += old.y;
                }
                *to = sum;
            }
            continue;
        }
        uint32_t w[4];
        HY_EACH(j, 4) {
            float low = x[j][2 * half], high = x[j][2 * half + 1];
            if (c.accumulate && is_there && own + 8 * j < r.cols) {
                low += hy_load_any(r.d, at + own + 8 * j, c.out);
                high += hy_load_any(r.d, at + own + 8 * j + 1, c.out);
            }
            w[j] = hy_pair<T>(low, high);
        }
        hy_transpose_quad(w);
        int first = col + lane % 4 * 8;
        if (is_there && first < r.cols) {
            *(uint4 *)(r.d + (at + first) * 2) = make_uint4(w[0], w[1], w[2], w[3]);
        }
    }
}

#endif

/* ---- launching ------------------------------------------------------------------------------- */

/* Calls f with the form as a constant. */
template <typename F> static hy_status hy_grouped_by_form(hy_grouped_form form, F f) {
    if (form == HY_GROUPED_NT) return f(std::integral_constant<hy_grouped_form, HY_GROUPED_NT>{});
    if (form == HY_GROUPED_NN) return f(std::integral_constant<hy_grouped_form, HY_GROUPED_NN>{});
    return f(std::integral_constant<hy_grouped_form, HY_GROUPED_TN>{});
}
