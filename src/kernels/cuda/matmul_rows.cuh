/* matmul_rows.cuh: matmul of few rows, each with the same bits in any company, on tensor cores.
 *
 * d = alpha a b' + c + bias for 16-bit a (M,K), "tokens", and weights b (N,K) of any stored type.
 * The weights are the 16-row operand of mma.sync and 8 tokens its columns, so a column of the
 * result depends on its own token only. The order of sums is that of this file whatever M is: K is
 * cut into chunks of HY_ROWS_CHUNK, chunks into HY_ROWS_SLICES slices that differ by at most one
 * chunk. A slice is summed chunk by chunk, then the slices from the first to the last. How many
 * tokens and weights a block takes, and whether its warps share the slices or take all of them in
 * turn, does not change that order: hy_rows_shape is chosen for speed alone.
 *
 * In an mma, a lane multiplies four numbers of a row. The lane's numbers of a chunk are 32 that are
 * next to each other, for weights and tokens alike: the order within a chunk is the same for all
 * types, so quantised weights give the bits of the weights that they represent.
 *
 * Weights are read once, as they are stored, by cp.async into a ring of stages. Each warp reads
 * only the weights that it copied. */
#pragma once

#include <cuda_fp8.h>

#include "kernels/cuda/nf4.cuh"
#include "kernels/cuda/quad.cuh"
#include "kernels/cuda/tile.cuh"

#define HY_ROWS_CHUNK 128
#define HY_ROWS_SLICES 8

typedef struct hy_rows_call {
    int M, N, K;
    const void *a, *b, *bias, *c;
    void *d;
    hy_dtype in, out, bias_dtype; /* of a; of d and c */
    float alpha;
    const float *scales; /* int8: one per row; e4m3: one */
    hy_nf4_codes nf4;
    bool waits;     /* the op before may write b */
    bool has_fours; /* rows of d, c and bias can be read and written in fours */
} hy_rows_call;

/* Results of `count` neighbours in a row, at most four, from their sums: every kernel rounds in the
 * same places. */
__device__ __forceinline__ void hy_rows_finish(const hy_rows_call &c, int row, int col, int count,
                                               const float sum[HY_QUAD]) {
    int64_t at = (int64_t)row * c.N + col;
    float x[HY_QUAD], y[HY_QUAD];
    auto add = [&](const void *data, int64_t i, hy_dtype dtype) {
        hy_widen(hy_fetch({(void *)data, dtype, c.has_fours}, i, count), dtype, y);
        HY_EACH(e, HY_QUAD) x[e] = __fadd_rn(x[e], y[e]);
    };
    HY_EACH(e, HY_QUAD) x[e] = __fmul_rn(c.alpha, sum[e]);
    if (c.c) add(c.c, at, c.out);
    if (c.bias) add(c.bias, col, c.bias_dtype);
    hy_store({c.d, c.out, c.has_fours}, at, count, hy_narrow(x, c.out));
}

/* Kernels on tensor cores, for each stored type of b: a and b are aligned to 16 bytes, and K is a
 * multiple of 16. Each in its own file. */
hy_status hy_rows_by_real(const hy_cuda_run *run, const hy_rows_call *call);
hy_status hy_rows_by_int8(const hy_cuda_run *run, const hy_rows_call *call);
hy_status hy_rows_by_nf4(const hy_cuda_run *run, const hy_rows_call *call);
hy_status hy_rows_by_e4m3(const hy_cuda_run *run, const hy_rows_call *call);

/* ---- shapes ---------------------------------------------------------------------------------- */

/* A block takes 8 COLUMNS tokens and 16 TILES WIDE weights (rows of b): WIDE warps beside each
 * other, each with TILES tiles, and DEEP of these groups. These, in a cluster of ACROSS blocks,
 * share the slices. Only sm_90 and sm_100 have the shared memory that a large block takes. */
template <int COLUMNS_, int TILES_, int WIDE_, int DEEP_, int STAGES_, int ACROSS_ = 1>
struct hy_rows_shape {
    static constexpr int COLUMNS = COLUMNS_, TILES = TILES_, WIDE = WIDE_, DEEP = DEEP_;
    static constexpr int STAGES = STAGES_, ACROSS = ACROSS_;
    static constexpr int TOKENS = 8 * COLUMNS, OWN = 16 * TILES, WEIGHTS = OWN * WIDE;
    static constexpr int WARPS = WIDE * DEEP, THREADS = 32 * WARPS;
    static constexpr int ROUNDS = HY_ROWS_SLICES / (DEEP * ACROSS); /* slices of a warp */
    /* Sums that the block has at the end: of its slices, or of all if a warp has all of them. */
    static constexpr bool HAS_ALL = ROUNDS == HY_ROWS_SLICES;
    static constexpr bool IS_LARGE = TILES > 2;
    /* Tiles whose sums of slices are in registers; a large block has others in shared memory. */
    static constexpr int HELD = IS_LARGE ? 1 : TILES;
    static constexpr int COPYING = IS_LARGE ? 4 : WIDE; /* warps of a group that copy tokens */
#if defined(__CUDA_ARCH__)
    static constexpr bool IS_USED =
        __CUDA_ARCH__ >= 900 ? !IS_LARGE || __CUDA_ARCH__ < 1200 : !IS_LARGE && ACROSS == 1;
#endif
    static constexpr int PARTS = HAS_ALL ? 1 : HY_ROWS_SLICES / ACROSS;
    static constexpr int PITCH = WEIGHTS + 4; /* lanes write their sums to different banks */
    static constexpr int PARTS_BYTES = PARTS * TOKENS * PITCH * 4;
    static_assert(PITCH % 4 == 0 && ROUNDS * DEEP * ACROSS == HY_ROWS_SLICES &&
                      (ROUNDS <= 2 || HAS_ALL),
                  "");
};

/* ---- copying --------------------------------------------------------------------------------- */

/* A row of a chunk has 4 PIECES pieces of 16 bytes, PIECES for each of the four lanes that read it.
 * They are turned so that the eight lanes that read at once are in different banks. A lane's next
 * piece is at the exclusive or with 16, 32, 48 bytes. */
template <int PIECES> __device__ __forceinline__ uint32_t hy_rows_at(int row, int piece) {
    int turn = PIECES == 4 ? (piece >> 3 & 1) | (row & 1) << 1 : PIECES == 2 ? row & 1 : 0;
    return row * (64 * PIECES) + 16 * (piece ^ turn);
}

/* What one of THREADS threads copies of ROWS rows: a piece of every APART-th row. Pieces that the
 * matrix does not have become zeros; rows that it does not have are left as they are, because a row
 * only has effect on its own results. */
template <int PIECES, int ROWS, int THREADS> struct hy_rows_copier {
    static constexpr int IN_ROW = 4 * PIECES, APART = THREADS / IN_ROW;
    static_assert(APART % 2 == 0 && ROWS % APART == 0, "");
    const char *from; /* the thread's piece of its first row */
    int64_t row_bytes;
    uint32_t to;
    int piece, pieces, rows; /* the piece, of how many; rows there are from the thread's first on */

    __device__ __forceinline__ hy_rows_copier(const void *matrix, int64_t bytes, int first,
                                              int count, int thread) {
        int row = thread / IN_ROW;
        row_bytes = bytes;
        piece = thread % IN_ROW;
        pieces = (int)(bytes / 16);
        rows = count - first - row;
        from = (const char *)matrix + (first + row) * row_bytes + 16 * piece;
        to = hy_rows_at<PIECES>(row, piece);
    }
    __device__ __forceinline__ void copy(uint32_t shared, int chunk) const {
        bool is_there = chunk * IN_ROW + piece < pieces;
        const char *source = from + (is_there ? (int64_t)chunk * (16 * IN_ROW) : -16 * piece);
        HY_EACH(i, ROWS / APART) {
            if (i * APART < rows)
                hy_copy_async(shared + to + i * APART * (16 * IN_ROW),
                              source + i * APART * row_bytes, is_there);
        }
    }
};

/* ---- stored types ---------------------------------------------------------------------------- */

/* Eight numbers of a lane as four pairs. A type says how many PIECES a lane has of a row of a
 * chunk, and what it keeps beside them: SCALE_BYTES for 16 rows of a stage, TABLE_BYTES for all.
 * `fetch` copies scales, `enter` reads them before the numbers of a chunk, `open` converts part
 * `part` of a piece of row 16 tile + 8 half + lane / 4. */

/* a's own type. */
template <typename T, int TILES> struct hy_rows_real {
    static constexpr int PIECES = 4, SCALE_BYTES = 0, TABLE_BYTES = 0;
    static __device__ __forceinline__ int64_t row_bytes(int K) { return 2 * (int64_t)K; }
    static __device__ __forceinline__ void fill_table(char *) {}
    __device__ __forceinline__ hy_rows_real(const hy_rows_call &, int, const char *) {}
    __device__ __forceinline__ void fetch(uint32_t, const hy_rows_call &, int) const {}
    __device__ __forceinline__ void enter(const char *, int) {}
    __device__ __forceinline__ void open(const uint32_t raw[4], int, int, int,
                                         uint32_t out[4]) const {
        HY_EACH(i, 4) out[i] = raw[i];
    }
};

/* int8, a scale per row. */
template <typename T, int TILES> struct hy_rows_int8 {
    static constexpr int PIECES = 2, SCALE_BYTES = 0, TABLE_BYTES = 0;
    float scale[TILES][2];

    static __device__ __forceinline__ int64_t row_bytes(int K) { return K; }
    static __device__ __forceinline__ void fill_table(char *) {}
    __device__ __forceinline__ hy_rows_int8(const hy_rows_call &c, int first, const char *) {
        HY_EACH(tile, TILES) {
            HY_EACH(half, 2) {
                int row = first + 16 * tile + 8 * half + threadIdx.x % 32 / 4;
                scale[tile][half] = __ldg(c.scales + min(row, c.N - 1));
            }
        }
    }
    __device__ __forceinline__ void fetch(uint32_t, const hy_rows_call &, int) const {}
    __device__ __forceinline__ void enter(const char *, int) {}
    /* A byte in the low bits of 2^23 is a float that is as much larger. */
    static __device__ __forceinline__ float number(uint32_t word, int byte) {
        uint32_t bits = __byte_perm(word ^ 0x80808080u, 0x4b000000u, 0x7540 + byte);
        return __uint_as_float(bits) - 8388736.0f; /* 2^23 + 128 */
    }
    __device__ __forceinline__ void open(const uint32_t raw[4], int part, int tile, int half,
                                         uint32_t out[4]) const {
        HY_EACH(i, 4) {
            uint32_t word = raw[2 * part + i / 2];
            out[i] = hy_pair<T>(__fmul_rn(scale[tile][half], number(word, i % 2 * 2)),
                                __fmul_rn(scale[tile][half], number(word, i % 2 * 2 + 1)));
        }
    }
};

/* fp8, one scale. Every value is exact in fp16. */
template <typename T, int TILES> struct hy_rows_e4m3 {
    static constexpr int PIECES = 2, SCALE_BYTES = 0, TABLE_BYTES = 0;
    float scale;

    static __device__ __forceinline__ int64_t row_bytes(int K) { return K; }
    static __device__ __forceinline__ void fill_table(char *) {}
    __device__ __forceinline__ hy_rows_e4m3(const hy_rows_call &c, int, const char *) {
        scale = __ldg(c.scales);
    }
    __device__ __forceinline__ void fetch(uint32_t, const hy_rows_call &, int) const {}
    __device__ __forceinline__ void enter(const char *, int) {}
    __device__ __forceinline__ void open(const uint32_t raw[4], int part, int, int,
                                         uint32_t out[4]) const {
        HY_EACH(i, 4) {
            __nv_fp8x2_storage_t two = (__nv_fp8x2_storage_t)(raw[2 * part + i / 2] >> i % 2 * 16);
            float2 x = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(two, __NV_E4M3)));
            out[i] = hy_pair<T>(__fmul_rn(x.x, scale), __fmul_rn(x.y, scale));
        }
    }
};

/* nf4: a chunk has two blocks of a row. Their scales travel with it: of each of 32 blocks of 16
 * rows the word that contains its byte (or its fp32 scale), then all pairs of scale and offset. */
template <typename T, int TILES> struct hy_rows_nf4 {
    static constexpr int PIECES = 1, SCALE_BYTES = 32 * (4 + 8);
    static constexpr int MAP = 256, TABLE_BYTES = (MAP + 16) * 4; /* map of scales, levels */
    static constexpr int BLOCKS = HY_ROWS_CHUNK / HY_NF4_BLOCK;
    static_assert(BLOCKS == 2, "a lane copies the scale of one block of 16 rows");
    const float *table;
    bool is_plain;
    int64_t block;   /* in chunk 0, of the block whose scale this lane copies, tile 0 */
    uint32_t offset; /* of the byte, tile 0 and half 0, that this lane reads in chunk 0 */
    uint32_t apart;  /* bytes of scales of a row */
    float scale[TILES][2];

    static __device__ __forceinline__ int64_t row_bytes(int K) { return K / 2; }
    static __device__ __forceinline__ void fill_table(char *shared) {
        float *to = (float *)shared;
        for (int i = threadIdx.x; i < MAP; i += blockDim.x) to[i] = hy_nf4_map_at(i);
        if (threadIdx.x < 16) to[MAP + threadIdx.x] = hy_nf4_level_table[threadIdx.x];
    }
    __device__ __forceinline__ hy_rows_nf4(const hy_rows_call &c, int first, const char *shared) {
        int lane = threadIdx.x % 32;
        table = (const float *)shared;
        is_plain = c.nf4.plain != NULL;
        apart = c.K / HY_NF4_BLOCK;
        block = (int64_t)(first + lane / 2) * apart + lane % 2;
        offset = (uint32_t)(uintptr_t)c.nf4.scales + (first + lane / 4) * apart + lane % 4 / 2;
    }
    __device__ __forceinline__ void fetch(uint32_t shared, const hy_rows_call &c, int chunk) const {
        int lane = threadIdx.x % 32;
        HY_EACH(tile, TILES) {
            uint32_t to = shared + tile * SCALE_BYTES;
            int64_t at = block + BLOCKS * chunk + 16 * tile * (int64_t)apart;
            bool is_there =
                (uint32_t)(BLOCKS * chunk + lane % 2) < apart && at < (int64_t)c.N * apart;
            if (!is_there) at = 0;
            if (is_plain) {
                hy_copy_word(to + 4 * lane, c.nf4.plain + at, is_there);
            } else {
                uintptr_t byte = (uintptr_t)(c.nf4.scales + at);
                hy_copy_word(to + 4 * lane, (const void *)(byte & ~(uintptr_t)3), is_there);
                hy_copy_two_words(to + 4 * 32 + 8 * lane, c.nf4.pairs + (at >> c.nf4.shift),
                                  is_there);
            }
        }
    }
    __device__ __forceinline__ void enter(const char *scales, int chunk) {
        int lane = threadIdx.x % 32;
        HY_EACH(tile, TILES) {
            HY_EACH(half, 2) {
                const char *from = scales + tile * SCALE_BYTES;
                int at = 2 * (8 * half + lane / 4) + lane % 4 / 2;
                uint32_t word = *(const uint32_t *)(from + 4 * at);
                if (is_plain) {
                    scale[tile][half] = __uint_as_float(word);
                    continue;
                }
                uint32_t byte = offset + (16 * tile + 8 * half) * apart + BLOCKS * chunk;
                float2 pair = *(const float2 *)(from + 4 * 32 + 8 * at);
                float size = table[word >> (byte & 3) * 8 & 255];
                scale[tile][half] = __fadd_rn(__fmul_rn(size, pair.x), pair.y);
            }
        }
    }
    __device__ __forceinline__ void open(const uint32_t raw[4], int part, int tile, int half,
                                         uint32_t out[4]) const {
        const char *levels = (const char *)(table + MAP);
        /* The first number of a byte is in its high half. Bytes become offsets of levels. */
        uint32_t high = raw[part] >> 2 & 0x3c3c3c3c, low = raw[part] << 2 & 0x3c3c3c3c;
        HY_EACH(i, 4) {
            float first = *(const float *)(levels + __byte_perm(high, 0, 0x4440 + i)),
                  second = *(const float *)(levels + __byte_perm(low, 0, 0x4440 + i));
            out[i] = hy_pair<T>(__fmul_rn(first, scale[tile][half]),
                                __fmul_rn(second, scale[tile][half]));
        }
    }
};

/* ---- the kernel ------------------------------------------------------------------------------ */

/* Where things are in a block's shared memory: stages of weights, their scales and tokens; the sums
 * that the block adds at the end replace them; the table is behind. */
template <typename S, typename W> struct hy_rows_memory {
    static constexpr int OWN_BYTES = S::OWN * 64 * W::PIECES; /* weights of a warp */
    static constexpr int SCALES = S::WARPS * OWN_BYTES;
    static constexpr int TOKENS = SCALES + S::WARPS * S::TILES * W::SCALE_BYTES;
    static constexpr int TOKEN_BYTES = S::TOKENS * 256; /* of a group of warps */
    static constexpr int STAGE = TOKENS + S::DEEP * TOKEN_BYTES;
    static constexpr int RING = S::STAGES * STAGE;
    static constexpr int KEPT = RING > S::PARTS_BYTES ? RING : S::PARTS_BYTES; /* sums of slices */
    static constexpr int KEPT_FOURS = (S::TILES - S::HELD) * S::COLUMNS * S::THREADS;
    static constexpr int TABLE = KEPT + 16 * KEPT_FOURS;
    static constexpr int BYTES = TABLE + W::TABLE_BYTES;
    static_assert(TOKENS % 128 == 0 && STAGE % 128 == 0, "");
    static_assert(BYTES <= (S::IS_LARGE ? 227 : 99) * 1024, "the limits of sm_90 and sm_120");
};

#if HY_HAS_TILES

/* Waits for all warps that read what this one copied: its group, or only itself. */
template <typename S> __device__ __forceinline__ void hy_rows_meet() {
    if (S::WIDE == 1)
        __syncwarp();
    else
        __syncthreads();
}

/* sum += weights tokens, of a chunk; there are `there` tokens. */
template <typename S, typename W, typename T>
__device__ __forceinline__ void hy_rows_multiply(float sum[S::TILES][S::COLUMNS][4], const W &w,
                                                 const char *weights, const char *tokens,
                                                 int there) {
    constexpr int PARTS = 4 / W::PIECES; /* of a piece, eight numbers each */
    int row = threadIdx.x % 32 / 4, lane = threadIdx.x % 4;
    uint32_t from = hy_rows_at<W::PIECES>(row, lane * W::PIECES),
             token = hy_rows_at<4>(row, lane * 4);
    HY_EACH(piece, W::PIECES) {
        uint4 raw[S::TILES][2];
        HY_EACH(tile, S::TILES) {
            HY_EACH(half, 2) {
                int at = (16 * tile + 8 * half) * (64 * W::PIECES);
                raw[tile][half] = *(const uint4 *)(weights + at + (from ^ 16 * piece));
            }
        }
        HY_EACH(part, PARTS) {
            uint32_t x[S::TILES][2][4];
            HY_EACH(tile, S::TILES) {
                HY_EACH(half, 2) {
                    w.open((const uint32_t *)&raw[tile][half], part, tile, half, x[tile][half]);
                }
            }
            HY_EACH(column, S::COLUMNS) {
                uint4 y = {};
                if (S::COLUMNS > 1 || row < there) /* one token is usual, and reading takes time */
                    y = *(const uint4 *)(tokens + column * 8 * 256 +
                                         (token ^ 16 * (piece * PARTS + part)));
                HY_EACH(tile, S::TILES) {
                    const uint32_t *low = x[tile][0], *high = x[tile][1];
                    uint32_t first[4] = {low[0], high[0], low[1], high[1]};
                    uint32_t second[4] = {low[2], high[2], low[3], high[3]};
                    hy_mma<T>(sum[tile][column], first, y.x, y.y);
                    hy_mma<T>(sum[tile][column], second, y.z, y.w);
                }
            }
        }
    }
}

/* Writes a warp's sums as part `part` of the block's: its weights begin at `own`. */
template <typename S>
__device__ __forceinline__ void hy_rows_leave(float *parts, int part, int own,
                                              const float sum[S::TILES][S::COLUMNS][4]) {
    int lane = threadIdx.x % 32;
    float *to = parts + (part * S::TOKENS + lane % 4 * 2) * S::PITCH + own + lane / 4;
    HY_EACH(tile, S::TILES) {
        HY_EACH(column, S::COLUMNS) {
            HY_EACH(e, 4) {
                to[(8 * column + e % 2) * S::PITCH + 16 * tile + 8 * (e / 2)] =
                    sum[tile][column][e];
            }
        }
    }
}

template <typename S>
__device__ __forceinline__ void hy_rows_clear(float sum[S::TILES][S::COLUMNS][4]) {
    HY_EACH(tile, S::TILES) {
        HY_EACH(column, S::COLUMNS) {
            HY_EACH(e, 4) sum[tile][column][e] = 0;
        }
    }
}

/* The first chunk of a slice. */
__device__ __forceinline__ int hy_rows_slice(int chunks, int slice) {
    return chunks * slice / HY_ROWS_SLICES;
}

/* After a slice: all = sum = all + sum if the warp has all slices, otherwise all = sum, the first of
 * two. Those of tiles after the first S::HELD are in `kept`. */
template <typename S>
__device__ __forceinline__ void hy_rows_keep(float all[S::TILES][S::COLUMNS][4], float4 *kept,
                                             float sum[S::TILES][S::COLUMNS][4]) {
    HY_EACH(tile, S::TILES) {
        HY_EACH(column, S::COLUMNS) {
            float *x = sum[tile][column], *to = all[tile][column];
            float4 *four = kept + ((tile - S::HELD) * S::COLUMNS + column) * S::THREADS;
            if (tile >= S::HELD) {
                float4 y = four[threadIdx.x];
                to[0] = y.x, to[1] = y.y, to[2] = y.z, to[3] = y.w;
            }
            HY_EACH(e, 4) to[e] = x[e] = S::HAS_ALL ? __fadd_rn(to[e], x[e]) : x[e];
            if (tile >= S::HELD) four[threadIdx.x] = make_float4(x[0], x[1], x[2], x[3]);
        }
    }
}

#endif

/* Blocks that must have room on a multiprocessor: of few rows, which wait for memory most. In nf4,
 * blocks of eight groups have the registers instead. */
template <typename S, typename W> constexpr int hy_rows_blocks() {
    return S::DEEP == 4 ? 5 : S::DEEP == 8 && W::PIECES > 1 ? 4 : 1;
}

template <typename S, typename W, typename T>
__global__ void __launch_bounds__(S::THREADS, hy_rows_blocks<S, W>())
    hy_rows_kernel(hy_rows_call c) {
#if HY_HAS_TILES && defined(__CUDA_ARCH__)
    if (!S::IS_USED) return;
    typedef hy_rows_memory<S, W> memory;
    extern __shared__ __align__(1024) char shared[];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int beside = warp % S::WIDE, group = warp / S::WIDE;
    int tiles = (c.M + S::TOKENS - 1) / S::TOKENS;
    int place = blockIdx.x / S::ACROSS, rank = blockIdx.x % S::ACROSS; /* in the cluster */
    int token = place % tiles * S::TOKENS;
    int weight = place / tiles * S::WEIGHTS, own = weight + beside * S::OWN;
    int chunks = (c.K + HY_ROWS_CHUNK - 1) / HY_ROWS_CHUNK;
    int slice = (rank * S::DEEP + group) * S::ROUNDS; /* the warp's first */
    int first = hy_rows_slice(chunks, slice);
    int steps = hy_rows_slice(chunks, slice + S::ROUNDS) - first;

    hy_rows_copier<W::PIECES, S::OWN, 32> of_weights(c.b, W::row_bytes(c.K), own, c.N, lane);
    hy_rows_copier<4, S::TOKENS, 32 * S::COPYING> of_tokens(c.a, 2 * (int64_t)c.K, token, c.M,
                                                            beside * 32 + lane);
    W w(c, own, shared + memory::TABLE);
    int weights_at = warp * memory::OWN_BYTES,
        tokens_at = memory::TOKENS + group * memory::TOKEN_BYTES;
    int scales_at = memory::SCALES + warp * S::TILES * W::SCALE_BYTES;
    uint32_t base = hy_shared_address(shared);
    auto fetch_weights = [&](int step) {
        uint32_t stage = base + step % S::STAGES * memory::STAGE;
        if (step >= steps) return;
        of_weights.copy(stage + weights_at, first + step);
        w.fetch(stage + scales_at, c, first + step);
    };
    auto fetch_tokens = [&](int step) {
        uint32_t stage = base + step % S::STAGES * memory::STAGE;
        if (step < steps && beside < S::COPYING) of_tokens.copy(stage + tokens_at, first + step);
        hy_copy_commit();
    };
    hy_let_next_start();
    if (c.waits) hy_wait_for_previous();
    HY_EACH(step, S::STAGES - 1) fetch_weights(step);
    hy_wait_for_previous();
    HY_EACH(step, S::STAGES - 1) fetch_tokens(step);
    if (W::TABLE_BYTES > 0) {
        W::fill_table(shared + memory::TABLE);
        __syncthreads();
    }

    float sum[S::TILES][S::COLUMNS][4], all[S::TILES][S::COLUMNS][4];
    float4 *kept = (float4 *)(shared + memory::KEPT);
    hy_rows_clear<S>(sum);
    hy_rows_clear<S>(all);
    for (int i = threadIdx.x; i < memory::KEPT_FOURS; i += S::THREADS) kept[i] = float4{};
    int end = hy_rows_slice(chunks, ++slice) - first;                      /* of the slice */
    int most = (chunks * S::ROUNDS + HY_ROWS_SLICES - 1) / HY_ROWS_SLICES; /* of any group */
    for (int step = 0; step < most; step++) {
        hy_copy_wait<S::STAGES - 2>();
        hy_rows_meet<S>();
        fetch_weights(step + S::STAGES - 1);
        fetch_tokens(step + S::STAGES - 1);
        const char *stage = shared + step % S::STAGES * memory::STAGE;
        if (step >= steps) continue;
        if (S::ROUNDS > 1 && step == end) {
            hy_rows_keep<S>(all, kept, sum);
            hy_rows_clear<S>(sum);
            while (end == step) end = hy_rows_slice(chunks, ++slice) - first; /* some are empty */
        }
        w.enter(stage + scales_at, first + step);
        hy_rows_multiply<S, W, T>(sum, w, stage + weights_at, stage + tokens_at, c.M - token);
    }
    if (S::HAS_ALL) hy_rows_keep<S>(all, kept, sum);
    hy_copy_wait<0>();
    __syncthreads();

    float *parts = (float *)shared;
    constexpr bool HAS_TWO = S::ROUNDS == 2;
    if (HAS_TWO) hy_rows_leave<S>(parts, 2 * group, beside * S::OWN, all);
    hy_rows_leave<S>(parts, HAS_TWO ? 2 * group + 1 : group, beside * S::OWN, sum);
    hy_meet_cluster<S::ACROSS>();
    constexpr int FOURS = S::WEIGHTS / 4; /* of a row */
    int count = min(S::TOKENS, c.M - token) * FOURS;
    for (int i = rank * S::THREADS + threadIdx.x; i < count; i += S::ACROSS * S::THREADS) {
        int row = i / FOURS, column = i % FOURS * 4;
        float total[4] = {};
        HY_EACH(block, S::ACROSS) {
            HY_EACH(part, S::PARTS) {
                const float *from = parts + (part * S::TOKENS + row) * S::PITCH + column;
                float4 x = hy_read_cluster<S::ACROSS>(from, block);
                total[0] = __fadd_rn(total[0], x.x), total[1] = __fadd_rn(total[1], x.y);
                total[2] = __fadd_rn(total[2], x.z), total[3] = __fadd_rn(total[3], x.w);
            }
        }
        hy_rows_finish(c, token + row, weight + column, hy_quad_length(weight + column, c.N),
                       total);
    }
    if (S::ACROSS > 1)
        hy_meet_cluster<S::ACROSS>(); /* the others may still read this block's sums */
#endif
}

/* ---- launching ------------------------------------------------------------------------------- */

template <typename S, template <typename, int> class W, typename T>
static hy_status hy_rows_launch(const hy_cuda_run *run, const hy_rows_call &c) {
    typedef W<T, S::TILES> weights;
    int64_t places = hy_ceil_div(c.M, S::TOKENS) * hy_ceil_div(c.N, S::WEIGHTS);
    return hy_launch_early(run, hy_rows_kernel<S, weights, T>, S::ACROSS,
                           (unsigned)places * S::ACROSS, S::THREADS,
                           hy_rows_memory<S, weights>::BYTES, c);
}

/* Few weights in a block, and a cluster that shares the slices, make many blocks, which a small
 * matrix needs to keep the card busy; many weights read the tokens less often. The bounds are where
 * blocks no longer run at once; measured on an H200. */
template <template <typename, int> class W, typename T>
static hy_status hy_rows_choose(const hy_cuda_run *run, const hy_rows_call &c) {
    int64_t tiles = hy_ceil_div(c.M, 64), rows = c.N * tiles;
    int64_t card = run->cuda->card.multiprocessors;
    bool has_clusters = run->cuda->card.code >= 90, is_small = rows < 64 * card;
    /* Eight blocks of 96 KB have room in every part of the card. */
    bool has_large = has_clusters && run->cuda->card.shared_bytes >= 200 * 1024;
    if constexpr (W<T, 1>::PIECES == 4) { /* others need more registers */
        /* Large blocks, alone on their multiprocessors, if they run in one round and no others do.
         * They take long to fill, so rows must be long. */
        if (has_clusters && run->cuda->card.shared_bytes >= 227 * 1024 && c.M > 32 && tiles == 1 &&
            c.K >= 2048 && rows > 256 * card && rows <= 288 * card)
            return hy_rows_launch<hy_rows_shape<8, 3, 6, 1, 2>, W, T>(run, c);
    }
    if constexpr (W<T, 1>::PIECES == 1) { /* nf4: its decoding takes more time than its bytes */
        if (c.M <= 8 && is_small) return hy_rows_launch<hy_rows_shape<1, 1, 1, 8, 3>, W, T>(run, c);
        if (c.M <= 8) return hy_rows_launch<hy_rows_shape<1, 2, 1, 4, 2>, W, T>(run, c);
    }
    if (c.M <= 8 && rows <= 32 * card)
        return hy_rows_launch<hy_rows_shape<1, 1, 1, 8, 2>, W, T>(run, c);
    if (c.M <= 8) return hy_rows_launch<hy_rows_shape<1, 1, 1, 4, 3>, W, T>(run, c);
    if (c.M <= 16) return hy_rows_launch<hy_rows_shape<2, 1, 1, 4, 3>, W, T>(run, c);
    if (c.M <= 32 && !is_small) return hy_rows_launch<hy_rows_shape<4, 1, 4, 1, 3>, W, T>(run, c);
    if (c.M <= 32 && !has_clusters)
        return hy_rows_launch<hy_rows_shape<4, 1, 2, 1, 3>, W, T>(run, c);
    if (c.M <= 32) return hy_rows_launch<hy_rows_shape<4, 1, 2, 2, 3, 2>, W, T>(run, c);
    if (has_large && rows <= 12 * card)
        return hy_rows_launch<hy_rows_shape<8, 1, 4, 1, 3, 8>, W, T>(run, c);
    if (has_large && is_small && rows >= 32 * card)
        return hy_rows_launch<hy_rows_shape<8, 1, 4, 1, 2, 8>, W, T>(run, c);
    if (has_clusters && is_small)
        return hy_rows_launch<hy_rows_shape<8, 1, 4, 1, 3, 4>, W, T>(run, c);
    if (is_small) return hy_rows_launch<hy_rows_shape<8, 1, 2, 1, 3>, W, T>(run, c);
    /* Blocks of 128 weights take almost twice as long as blocks of 64, unless fewer follow one
     * another; two run at once on a multiprocessor. */
    int64_t of_64 = hy_ceil_div(rows, 128 * card), of_128 = hy_ceil_div(rows, 256 * card);
    if (tiles > 1 ? rows >= 128 * card : 2 * of_128 <= of_64)
        return hy_rows_launch<hy_rows_shape<8, 2, 4, 1, 2>, W, T>(run, c);
    return hy_rows_launch<hy_rows_shape<8, 1, 4, 1, 3>, W, T>(run, c);
}

/* By the type of a. */
template <template <typename, int> class W>
static hy_status hy_rows_by_type(const hy_cuda_run *run, const hy_rows_call *c) {
    if (c->in == HY_BF16) return hy_rows_choose<W, __nv_bfloat16>(run, *c);
    return hy_rows_choose<W, __half>(run, *c);
}
