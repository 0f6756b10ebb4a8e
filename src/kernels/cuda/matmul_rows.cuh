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
    int stages;     /* of a shape that leaves them open */
} hy_rows_call;

/* One result from its sum: every kernel rounds in the same places. */
__device__ __forceinline__ void hy_rows_finish(const hy_rows_call &c, int row, int col, float sum) {
    int64_t at = (int64_t)row * c.N + col;
    float x = __fmul_rn(c.alpha, sum);
    if (c.c) x = __fadd_rn(x, hy_load_any(c.c, at, c.out));
    if (c.bias) x = __fadd_rn(x, hy_load_any(c.bias, col, c.bias_dtype));
    hy_store_any(c.d, at, c.out, x);
}

/* Elements [i, i + 4), i a multiple of 4. */
__device__ __forceinline__ float4 hy_rows_load_four(const void *data, int64_t i, hy_dtype dtype) {
    if (dtype == HY_F32) return ((const float4 *)data)[i / 4];
    uint2 words = ((const uint2 *)data)[i / 4];
    bool is_bf16 = dtype == HY_BF16;
    float2 a = is_bf16 ? __bfloat1622float2(*(__nv_bfloat162 *)&words.x)
                       : __half22float2(*(__half2 *)&words.x);
    float2 b = is_bf16 ? __bfloat1622float2(*(__nv_bfloat162 *)&words.y)
                       : __half22float2(*(__half2 *)&words.y);
    return make_float4(a.x, a.y, b.x, b.y);
}
__device__ __forceinline__ void hy_rows_store_four(void *data, int64_t i, hy_dtype dtype,
                                                   float4 x) {
    uint2 words;
    if (dtype == HY_F32) {
        ((float4 *)data)[i / 4] = x;
        return;
    }
    if (dtype == HY_BF16) {
        *(__nv_bfloat162 *)&words.x = __floats2bfloat162_rn(x.x, x.y);
        *(__nv_bfloat162 *)&words.y = __floats2bfloat162_rn(x.z, x.w);
    } else {
        *(__half2 *)&words.x = __floats2half2_rn(x.x, x.y);
        *(__half2 *)&words.y = __floats2half2_rn(x.z, x.w);
    }
    ((uint2 *)data)[i / 4] = words;
}
__device__ __forceinline__ float4 hy_rows_add(float4 a, float4 b) {
    return make_float4(__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y), __fadd_rn(a.z, b.z),
                       __fadd_rn(a.w, b.w));
}

/* Four neighbours in a row, with the same bits; those behind the row do not exist. */
__device__ __forceinline__ void hy_rows_finish_four(const hy_rows_call &c, int row, int col,
                                                    float4 sum) {
    const float each[4] = {sum.x, sum.y, sum.z, sum.w};
    int64_t at = (int64_t)row * c.N + col;
    if (!c.has_fours) {
        HY_EACH(e, 4) {
            if (col + e < c.N) hy_rows_finish(c, row, col + e, each[e]);
        }
    } else if (col < c.N) {
        float4 x = make_float4(__fmul_rn(c.alpha, sum.x), __fmul_rn(c.alpha, sum.y),
                               __fmul_rn(c.alpha, sum.z), __fmul_rn(c.alpha, sum.w));
        if (c.c) x = hy_rows_add(x, hy_rows_load_four(c.c, at, c.out));
        if (c.bias) x = hy_rows_add(x, hy_rows_load_four(c.bias, col, c.bias_dtype));
        hy_rows_store_four(c.d, at, c.out, x);
    }
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
 * share the slices. A shape without STAGES is open: its blocks have up to WIDE warps, as they are
 * launched, and the call's stages. */
template <int COLUMNS_, int TILES_, int WIDE_, int DEEP_, int STAGES_, int ACROSS_ = 1>
struct hy_rows_shape {
    static constexpr int COLUMNS = COLUMNS_, TILES = TILES_, WIDE = WIDE_, DEEP = DEEP_;
    static constexpr int STAGES = STAGES_, ACROSS = ACROSS_;
    static constexpr bool IS_OPEN = STAGES == 0;
    static constexpr int TOKENS = 8 * COLUMNS, OWN = 16 * TILES, THREADS = 32 * WIDE * DEEP;
    static constexpr int ROUNDS = HY_ROWS_SLICES / (DEEP * ACROSS); /* slices of a warp */
    /* Sums that the block has at the end: of its slices, or of all if a warp has all of them. */
    static constexpr bool HAS_ALL = ROUNDS == HY_ROWS_SLICES;
    /* Tiles whose sums of slices are in registers; wide blocks keep others in shared memory. */
    static constexpr int HELD = IS_OPEN && HAS_ALL ? 1 : TILES;
#if defined(__CUDA_ARCH__)
    static constexpr bool IS_USED =
        __CUDA_ARCH__ >= 900 ? !IS_OPEN || __CUDA_ARCH__ < 1200 : !IS_OPEN && ACROSS == 1;
#endif
    static constexpr int PARTS = HAS_ALL ? 1 : HY_ROWS_SLICES / ACROSS;
    static_assert(ROUNDS * DEEP * ACROSS == HY_ROWS_SLICES && (ROUNDS <= 2 || HAS_ALL), "");
    static_assert(!IS_OPEN || DEEP == 1, "");

    /* On the card, known when it is compiled unless the shape is open. */
    static __device__ __forceinline__ int wide() { return IS_OPEN ? blockDim.x / 32 : WIDE; }
    static __device__ __forceinline__ int stages(const hy_rows_call &c) {
        return IS_OPEN ? c.stages : STAGES;
    }
};

/* ---- copying --------------------------------------------------------------------------------- */

/* A row of a chunk has 4 PIECES pieces of 16 bytes, PIECES for each of the four lanes that read it.
 * They are turned so that the eight lanes that read at once are in different banks. A lane's next
 * piece is at the exclusive or with 16, 32, 48 bytes. */
template <int PIECES> __device__ __forceinline__ uint32_t hy_rows_at(int row, int piece) {
    int turn = PIECES == 4 ? (piece >> 3 & 1) | (row & 1) << 1 : PIECES == 2 ? row & 1 : 0;
    return row * (64 * PIECES) + 16 * (piece ^ turn);
}

/* What one of THREADS threads (0: of the block) copies of ROWS rows: a piece of every APART-th row.
 * Pieces that the matrix does not have become zeros; rows that it does not have are left as they
 * are, because a row only has effect on its own results. */
template <int PIECES, int ROWS, int THREADS> struct hy_rows_copier {
    static constexpr int IN_ROW = 4 * PIECES, APART = THREADS / IN_ROW;
    static_assert(APART % 2 == 0 && ROWS % (APART > 0 ? APART : 1) == 0, "");
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
        rows = min(count - first, ROWS) - row;
        from = (const char *)matrix + (first + row) * row_bytes + 16 * piece;
        to = hy_rows_at<PIECES>(row, piece);
    }
    __device__ __forceinline__ void copy(uint32_t shared, int chunk) const {
        bool is_there = chunk * IN_ROW + piece < pieces;
        const char *source = from + (is_there ? (int64_t)chunk * (16 * IN_ROW) : -16 * piece);
        if constexpr (APART > 0) {
            HY_EACH(i, ROWS / APART) {
                if (i * APART < rows)
                    hy_copy_async(shared + to + i * APART * (16 * IN_ROW),
                                  source + i * APART * row_bytes, is_there);
            }
        } else {
            int apart = blockDim.x / IN_ROW;
            for (int i = 0; i < rows; i += apart)
                hy_copy_async(shared + to + i * (16 * IN_ROW), source + i * row_bytes, is_there);
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
 * that the block adds at the end replace them; then sums of slices that are not in registers, and
 * the table. */
template <typename S, typename W> struct hy_rows_memory {
    static constexpr int OWN_BYTES = S::OWN * 64 * W::PIECES; /* weights of a warp */
    static constexpr int OWN_SCALES = S::TILES * W::SCALE_BYTES;
    static constexpr int TOKEN_BYTES = S::TOKENS * 256; /* of a group of warps */
    static_assert(OWN_BYTES % 128 == 0 && OWN_SCALES % 128 == 0, "");
    int weights, pitch; /* of sums: lanes write theirs to different banks */
    int scales, tokens, stage, kept, table, bytes;

    __host__ __device__ constexpr hy_rows_memory(int wide, int stages)
        : weights(S::OWN * wide), pitch(weights + 4), scales(wide * S::DEEP * OWN_BYTES),
          tokens(scales + wide * S::DEEP * OWN_SCALES), stage(tokens + S::DEEP * TOKEN_BYTES),
          kept(most(stages * stage, S::PARTS * S::TOKENS * pitch * 4)),
          table(kept + (S::TILES - S::HELD) * 16 * S::TOKENS * wide * 4),
          bytes(table + W::TABLE_BYTES) {}
    static __host__ __device__ constexpr int most(int a, int b) { return a > b ? a : b; }
};

#if HY_HAS_TILES

/* Waits for all warps that read what this one copied: its group, or only itself. */
template <typename S> __device__ __forceinline__ void hy_rows_meet() {
    if (S::WIDE == 1)
        __syncwarp();
    else
        __syncthreads();
}

/* Waits for the oldest of the stages that are being copied. */
template <typename S> __device__ __forceinline__ void hy_rows_wait(int stages) {
    if (!S::IS_OPEN)
        hy_copy_wait<S::IS_OPEN ? 0 : S::STAGES - 2>();
    else if (stages == 2)
        hy_copy_wait<0>();
    else if (stages == 3)
        hy_copy_wait<1>();
    else
        hy_copy_wait<2>();
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
__device__ __forceinline__ void hy_rows_leave(float *parts, int pitch, int part, int own,
                                              const float sum[S::TILES][S::COLUMNS][4]) {
    int lane = threadIdx.x % 32;
    float *to = parts + (part * S::TOKENS + lane % 4 * 2) * pitch + own + lane / 4;
    HY_EACH(tile, S::TILES) {
        HY_EACH(column, S::COLUMNS) {
            HY_EACH(e, 4) {
                to[(8 * column + e % 2) * pitch + 16 * tile + 8 * (e / 2)] = sum[tile][column][e];
            }
        }
    }
}

template <int TILES, int COLUMNS>
__device__ __forceinline__ void hy_rows_clear(float sum[TILES][COLUMNS][4]) {
    HY_EACH(tile, TILES) {
        HY_EACH(column, COLUMNS) {
            HY_EACH(e, 4) sum[tile][column][e] = 0;
        }
    }
}

/* The first chunk of a slice. */
__device__ __forceinline__ int hy_rows_slice(int chunks, int slice) {
    return chunks * slice / HY_ROWS_SLICES;
}

/* The sum of slices before this one, of the elements that are not in registers: conflict-free. */
template <typename S>
__device__ __forceinline__ float *hy_rows_kept(float *kept, int tile, int column) {
    int from = (tile - S::HELD) * S::COLUMNS + column;
    return kept + from * 4 * blockDim.x + 4 * threadIdx.x;
}

/* After a slice: all = all + sum if the warp has all slices, otherwise all = sum, the first of two.
 * sum is 0 again. */
template <typename S>
__device__ __forceinline__ void hy_rows_keep(float all[S::HELD][S::COLUMNS][4], float *kept,
                                             float sum[S::TILES][S::COLUMNS][4]) {
    HY_EACH(tile, S::TILES) {
        HY_EACH(column, S::COLUMNS) {
            const float *x = sum[tile][column];
            if (tile >= S::HELD) {
                float4 *to = (float4 *)hy_rows_kept<S>(kept, tile, column);
                *to = hy_rows_add(*to, make_float4(x[0], x[1], x[2], x[3]));
                continue;
            }
            float *to = all[tile < S::HELD ? tile : 0][column];
            HY_EACH(e, 4) to[e] = S::HAS_ALL ? __fadd_rn(to[e], x[e]) : x[e];
        }
    }
    hy_rows_clear<S::TILES, S::COLUMNS>(sum);
}

/* After the last slice of a warp that has all: sum = all + sum. */
template <typename S>
__device__ __forceinline__ void hy_rows_join(float sum[S::TILES][S::COLUMNS][4],
                                             const float all[S::HELD][S::COLUMNS][4],
                                             const float *kept) {
    HY_EACH(tile, S::TILES) {
        HY_EACH(column, S::COLUMNS) {
            float *x = sum[tile][column];
            if (tile >= S::HELD) {
                float4 y = *(const float4 *)hy_rows_kept<S>((float *)kept, tile, column);
                x[0] = __fadd_rn(y.x, x[0]), x[1] = __fadd_rn(y.y, x[1]);
                x[2] = __fadd_rn(y.z, x[2]), x[3] = __fadd_rn(y.w, x[3]);
                continue;
            }
            HY_EACH(e, 4) x[e] = __fadd_rn(all[tile < S::HELD ? tile : 0][column][e], x[e]);
        }
    }
}

#endif

template <typename S, typename W, typename T>
__global__ void __launch_bounds__(S::THREADS, S::DEEP == 4 ? 5 : 1) hy_rows_kernel(hy_rows_call c) {
#if HY_HAS_TILES && defined(__CUDA_ARCH__)
    if (!S::IS_USED) return;
    typedef hy_rows_memory<S, W> memory;
    extern __shared__ __align__(1024) char shared[];
    const int wide = S::wide(), stages = S::stages(c);
    const memory m(wide, stages);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int beside = warp % wide, group = warp / wide;
    int tiles = (c.M + S::TOKENS - 1) / S::TOKENS;
    int place = blockIdx.x / S::ACROSS, rank = blockIdx.x % S::ACROSS; /* in the cluster */
    int token = place % tiles * S::TOKENS;
    int weight = place / tiles * m.weights, own = weight + beside * S::OWN;
    int chunks = (c.K + HY_ROWS_CHUNK - 1) / HY_ROWS_CHUNK;
    int slice = (rank * S::DEEP + group) * S::ROUNDS; /* the warp's first */
    int first = hy_rows_slice(chunks, slice);
    int steps = hy_rows_slice(chunks, slice + S::ROUNDS) - first;

    hy_rows_copier<W::PIECES, S::OWN, 32> of_weights(c.b, W::row_bytes(c.K), own, c.N, lane);
    hy_rows_copier<4, S::TOKENS, S::IS_OPEN ? 0 : 32 * S::WIDE> of_tokens(
        c.a, 2 * (int64_t)c.K, token, c.M, beside * 32 + lane);
    W w(c, own, shared + m.table);
    int weights_at = warp * memory::OWN_BYTES, scales_at = m.scales + warp * memory::OWN_SCALES,
        tokens_at = m.tokens + group * memory::TOKEN_BYTES;
    uint32_t base = hy_shared_address(shared);
    auto fetch_weights = [&](int step, int stage) {
        if (step >= steps) return;
        of_weights.copy(base + stage * m.stage + weights_at, first + step);
        w.fetch(base + stage * m.stage + scales_at, c, first + step);
    };
    auto fetch_tokens = [&](int step, int stage) {
        if (step < steps) of_tokens.copy(base + stage * m.stage + tokens_at, first + step);
        hy_copy_commit();
    };
    hy_let_next_start();
    if (c.waits) hy_wait_for_previous();
#pragma unroll
    for (int step = 0; step < stages - 1; step++) fetch_weights(step, step);
    hy_wait_for_previous();
#pragma unroll
    for (int step = 0; step < stages - 1; step++) fetch_tokens(step, step);
    if (W::TABLE_BYTES > 0) {
        W::fill_table(shared + m.table);
        __syncthreads();
    }

    float sum[S::TILES][S::COLUMNS][4], all[S::HELD][S::COLUMNS][4];
    float *kept = (float *)(shared + m.kept);
    hy_rows_clear<S::TILES, S::COLUMNS>(sum);
    hy_rows_clear<S::HELD, S::COLUMNS>(all);
    HY_EACH(tile, S::TILES - S::HELD) {
        HY_EACH(column, S::COLUMNS) {
            float *to = hy_rows_kept<S>(kept, S::HELD + tile, column);
            *(float4 *)to = make_float4(0, 0, 0, 0);
        }
    }
    int end = hy_rows_slice(chunks, ++slice) - first;                      /* of the slice */
    int most = (chunks * S::ROUNDS + HY_ROWS_SLICES - 1) / HY_ROWS_SLICES; /* of any group */
    int now = 0, before = stages - 1; /* stages of this step and the last */
    for (int step = 0; step < most; step++) {
        hy_rows_wait<S>(stages);
        hy_rows_meet<S>();
        fetch_weights(step + stages - 1, before);
        fetch_tokens(step + stages - 1, before);
        const char *stage = shared + now * m.stage;
        before = now;
        now = now + 1 == stages ? 0 : now + 1;
        if (step >= steps) continue;
        if (S::ROUNDS > 1 && step == end) {
            hy_rows_keep<S>(all, kept, sum);
            while (end == step) end = hy_rows_slice(chunks, ++slice) - first; /* some are empty */
        }
        w.enter(stage + scales_at, first + step);
        hy_rows_multiply<S, W, T>(sum, w, stage + weights_at, stage + tokens_at, c.M - token);
    }
    if (S::HAS_ALL) hy_rows_join<S>(sum, all, kept);
    hy_copy_wait<0>();
    __syncthreads();

    float *parts = (float *)shared;
    constexpr bool HAS_TWO = S::ROUNDS == 2;
    if constexpr (HAS_TWO) hy_rows_leave<S>(parts, m.pitch, 2 * group, beside * S::OWN, all);
    hy_rows_leave<S>(parts, m.pitch, HAS_TWO ? 2 * group + 1 : group, beside * S::OWN, sum);
    hy_meet_cluster<S::ACROSS>();
    const int fours = m.weights / 4, threads = 32 * wide * S::DEEP; /* of a row; of the block */
    int count = min(S::TOKENS, c.M - token) * fours;
    for (int i = rank * threads + threadIdx.x; i < count; i += S::ACROSS * threads) {
        int row = i / fours, column = i % fours * 4;
        float4 total = {};
        HY_EACH(block, S::ACROSS) {
            HY_EACH(part, S::PARTS) {
                const float *from = parts + (part * S::TOKENS + row) * m.pitch + column;
                total = hy_rows_add(total, hy_read_cluster<S::ACROSS>(from, block));
            }
        }
        hy_rows_finish_four(c, token + row, weight + column, total);
    }
    if (S::ACROSS > 1)
        hy_meet_cluster<S::ACROSS>(); /* the others may still read this block's sums */
#endif
}

/* ---- launching ------------------------------------------------------------------------------- */

template <typename S, template <typename, int> class W, typename T>
static hy_status hy_rows_launch(const hy_cuda_run *run, const hy_rows_call &c) {
    typedef W<T, S::TILES> weights;
    constexpr hy_rows_memory<S, weights> m(S::WIDE, S::STAGES);
    static_assert(m.stage % 128 == 0 && m.bytes <= 99 * 1024, "the limit of sm_120");
    int64_t places = hy_ceil_div(c.M, S::TOKENS) * hy_ceil_div(c.N, m.weights);
    return hy_launch_early(run, hy_rows_kernel<S, weights, T>, S::ACROSS,
                           (unsigned)places * S::ACROSS, S::THREADS, m.bytes, c);
}

/* The least blocks (or clusters) wide enough that at most `places` of them run in equal rounds;
 * blocks have up to S::WIDE warps, and as many stages as have room. */
template <typename S, template <typename, int> class W, typename T>
static hy_status hy_rows_launch_open(const hy_cuda_run *run, hy_rows_call c, int64_t places) {
    typedef W<T, S::TILES> weights;
    typedef hy_rows_memory<S, weights> memory;
    int64_t warps = hy_ceil_div(c.N, S::OWN), rounds = hy_ceil_div(warps, places * S::WIDE);
    int wide = (int)hy_ceil_div(warps, places * rounds);
    for (c.stages = 4; c.stages > 2; c.stages--) {
        if ((size_t)memory(wide, c.stages).bytes <= run->cuda->card.shared_bytes) break;
    }
    unsigned blocks =
        (unsigned)(hy_ceil_div(c.M, S::TOKENS) * hy_ceil_div(warps, wide) * S::ACROSS);
    return hy_launch_early(run, hy_rows_kernel<S, weights, T>, S::ACROSS, blocks, 32 * wide,
                           memory(wide, c.stages).bytes, c);
}

/* For a card on which a block may have most of a multiprocessor's memory. Each block reads all of
 * its 64 tokens again, and through the second cache they come no faster than weights. So there is
 * one block on a multiprocessor, as wide as the matrix needs it to be for full rounds of blocks.
 * Where that would be narrow, clusters share the slices. */
template <template <typename, int> class W, typename T>
static hy_status hy_rows_launch_even(const hy_cuda_run *run, const hy_rows_call &c) {
    constexpr bool IS_REAL = W<T, 1>::PIECES == 4; /* others need more registers */
    constexpr int MOST = IS_REAL ? 9 : 8;
    int64_t card = run->cuda->card.multiprocessors, eights = run->cuda->card.clusters;
    if (c.N <= 32 * MOST * eights)
        return hy_rows_launch_open<hy_rows_shape<8, 2, MOST, 1, 0, 8>, W, T>(run, c, eights);
    if (c.N <= 32 * 8 * 2 * eights)
        return hy_rows_launch_open<hy_rows_shape<8, 2, 8, 1, 0, 4>, W, T>(run, c, 2 * eights);
    return hy_rows_launch_open<hy_rows_shape<8, IS_REAL ? 3 : 2, IS_REAL ? 6 : 8, 1, 0>, W, T>(
        run, c, card);
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
    bool has_most = run->cuda->card.clusters > 0 && run->cuda->card.shared_bytes >= 227 * 1024;
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
    if (has_most && tiles == 1) return hy_rows_launch_even<W, T>(run, c);
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
