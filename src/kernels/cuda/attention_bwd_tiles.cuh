/* attention_bwd_tiles.cuh: building blocks of the attention backward kernels.
 *
 * A block owns some rows of a head (queries in one kernel, keys in the other) and iterates over
 * tiles of rows of the other side, with two tiles in shared memory: one in use, one being copied.
 * Matmuls are 16x8x16. On an H200, shared memory is as busy as the tensor cores, and its traffic
 * costs power, which lowers the clock. So the sums of the loop stay in registers; a warp has 32
 * rows if possible, so that its loads are used twice; and owned rows are kept in registers as far
 * as possible. */
#pragma once

#include "kernels/attention_layout.h"
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/tile.cuh"

/* The division of rows of head size D. */
template <int D_, int OWN_, int ROWS_, int WARPS_, int TILE_, int CHUNK_, int KEPT_, int BLOCKS_,
          bool IS_FLAT_ = false>
struct hy_bwd_shape {
    static constexpr int D = D_;
    static constexpr int OWN = OWN_;       /* rows of a block */
    static constexpr int ROWS = ROWS_;     /* rows of a warp or of a pair of warps, of these */
    static constexpr int TILE = TILE_;     /* rows of a step of the loop */
    static constexpr int CHUNK = CHUNK_;   /* rows of these for which a warp holds scores at once */
    static constexpr int KEPT = KEPT_;     /* sixteens of columns of owned rows in registers */
    static constexpr int BLOCKS = BLOCKS_; /* intended blocks per multiprocessor */
    static constexpr bool IS_FLAT = IS_FLAT_; /* rows without a gap, if every byte counts */

    static constexpr int THREADS = 32 * WARPS_;
    static constexpr int M = ROWS / 16, N = CHUNK / 16;
    static constexpr int STEPS = D / 16;
    static constexpr int PARTS = TILE / CHUNK;
    static constexpr int PACKS = D / 8; /* packs of 16 bytes in a row */
    /* The eight rows that ldmatrix reads at once are in different banks: either a row has an odd
     * number of packs, or pack i of row r is at i ^ r % 8. */
    static constexpr int ROW_BYTES = 16 * (IS_FLAT ? PACKS : PACKS | 1);
    static constexpr int TILE_BYTES = TILE * ROW_BYTES;
    static constexpr int STAGE_BYTES = 2 * TILE_BYTES; /* k and v, or q and dout */
    static constexpr int OWN_BYTES = OWN * ROW_BYTES;
    /* If all owned rows go to registers, they pass through stage 1 while the first tile is copied
     * to stage 0, if they fit; otherwise they have their own place. */
    static constexpr bool IS_PASSING = OWN <= TILE && KEPT == STEPS;
    static constexpr int OWN_AT = IS_PASSING ? STAGE_BYTES : 2 * STAGE_BYTES;
    static constexpr int TILES_END = 2 * STAGE_BYTES + (IS_PASSING ? 0 : 2 * OWN_BYTES);

    static_assert(!IS_FLAT || PACKS == 16, "steps differ by three bits of an address");
    static_assert(D % 16 == 0 && ROWS % 16 == 0 && TILE % CHUNK == 0 && OWN % 32 == 0, "");
};

/* The arguments of the kernels. */
template <typename T> struct hy_bwd_args {
    hy_cuda_heads a;
    const T *dout, *qkv, *out;
    T *dqkv;
    const float *lse;
    float *lse2, *delta; /* (B, H, padded): lse in units of log2, sum(dout out); past T inf and 0 */
    int2 *first_keys;    /* (B, spans): smallest and largest first key of a span; with doc_starts */
    float *partial;      /* (parts, 2, B keys, K D): dk and dv before parts are summed */
    uint4 *kept;         /* (heads at a time, pieces, 32): ds, if it is stored */
    int spans, padded;   /* of a sequence; its rows rounded up to tiles */
    int parts; /* number of blocks that share the query heads of a key head; sparse: the queries of
                  global keys */
    int keys;  /* of a sequence, in `partial`: all; sparse: the global ones */
    int first_unit, units; /* heads of k and v, of all sequences, in one launch */
    float scale2;          /* factor of scores, in units of log2 */
    float inner;           /* capped: factor of q k before tanh; then scale2 has the cap */
};

#if HY_HAS_TILES

/* ---- copies ---------------------------------------------------------------------------------- */

/* An index that the compiler treats as new: values derived from it are computed again here instead
 * of being kept in registers over the loop. */
__device__ __forceinline__ int hy_bwd_anew(int x) {
    asm volatile("" : "+r"(x));
    return x;
}

/* The place of a pack among the packs of its row. */
template <typename S> __device__ __forceinline__ int hy_bwd_place(int row, int pack) {
    return S::IS_FLAT ? pack ^ row % 8 : pack;
}

/* Starts the copy of COUNT rows, one pack per thread; rows from `there` on become zeros. */
template <typename S, int COUNT, bool ARE_THERE, typename T>
__device__ __forceinline__ void hy_bwd_copy(uint32_t to, const T *from, const T *safe,
                                            int64_t apart, int row, int there) {
    constexpr int APART = S::THREADS / S::PACKS; /* rows copied at a time */
#pragma unroll
    for (int i = 0; i < COUNT; i += APART) {
        if (COUNT % APART != 0 && i + row >= COUNT) break;
        bool is_there = ARE_THERE || i + row < there;
        hy_copy_async(to + i * S::ROW_BYTES, is_there ? from : safe, is_there);
        from += apart;
    }
}
template <typename S, int COUNT, typename T>
__device__ __forceinline__ void hy_bwd_fetch(uint32_t shared, const T *rows, int64_t width,
                                             int there) {
    constexpr int APART = S::THREADS / S::PACKS;
    int thread = hy_bwd_anew(threadIdx.x), row = thread / S::PACKS, pack = thread % S::PACKS;
    if (APART * S::PACKS < S::THREADS && row >= APART) return;
    const T *from = rows + row * width + pack * 8;
    uint32_t to = shared + row * S::ROW_BYTES + hy_bwd_place<S>(row, pack) * 16;
    if (there >= COUNT)
        hy_bwd_copy<S, COUNT, true>(to, from, rows, APART * width, row, there);
    else
        hy_bwd_copy<S, COUNT, false>(to, from, rows, APART * width, row, there);
}

/* ---- matmuls --------------------------------------------------------------------------------- */

/* Where a lane reads its row of the four 8x8 matrices of an ldmatrix. by_row: a first operand, two
 * matrices down, then two across; also for transposed reads. by_column: a second operand with the
 * columns of the result as rows. */
template <typename S> __device__ __forceinline__ uint32_t hy_bwd_by_row() {
    int lane = threadIdx.x % 32;
    return lane % 16 * S::ROW_BYTES + hy_bwd_place<S>(lane, lane / 16) * 16;
}
template <typename S> __device__ __forceinline__ uint32_t hy_bwd_by_column() {
    int lane = threadIdx.x % 32;
    return (lane % 8 + lane / 16 * 8) * S::ROW_BYTES + hy_bwd_place<S>(lane, lane / 8 % 2) * 16;
}

/* As above, `step` sixteens of columns further. */
template <typename S> __device__ __forceinline__ uint32_t hy_bwd_across(uint32_t at, int step) {
    return S::IS_FLAT ? at ^ step * 32 : at + step * 32;
}

/* The rows that a warp owns as a first operand: KEPT steps in registers, the rest in shared
 * memory. */
template <typename S> struct hy_bwd_operand {
    uint32_t kept[S::KEPT > 0 ? S::KEPT : 1][S::M][4];
    uint32_t at;
};

template <typename S>
__device__ __forceinline__ void hy_bwd_load(uint32_t to[S::M][4], uint32_t at, int step) {
    HY_EACH(m, S::M) {
        hy_load_tiles(to[m], hy_bwd_across<S>(at + m * 16 * S::ROW_BYTES, step));
    }
}

template <typename S>
__device__ __forceinline__ void hy_bwd_keep(hy_bwd_operand<S> &operand, uint32_t rows) {
    operand.at = rows + hy_bwd_by_row<S>();
    HY_EACH(step, S::KEPT) {
        hy_bwd_load<S>(operand.kept[step], operand.at, step);
    }
}

template <typename S> __device__ __forceinline__ void hy_bwd_zero(float s[S::M][2 * S::N][4]) {
    HY_EACH(m, S::M) {
        HY_EACH(n, 2 * S::N) s[m][n][0] = s[m][n][1] = s[m][n][2] = s[m][n][3] = 0;
    }
}

/* s (ROWS, CHUNK) = operand (ROWS, D) times rows (CHUNK, D) transposed; `at` is the lane's
 * by_column. A thread holds rows lane / 4 + 8 r of each m tile, r = 0, 1, and of those the columns
 * 2 (lane % 4) + {0, 1} of each 8: element 2 r + {0, 1}. One step: the contribution of 16
 * columns. */
template <typename S, typename T>
__device__ __forceinline__ void hy_bwd_dot_step(float s[S::M][2 * S::N][4],
                                                const hy_bwd_operand<S> &operand, uint32_t at,
                                                int step) {
    uint32_t loaded[S::M][4];
    if (step >= S::KEPT) hy_bwd_load<S>(loaded, hy_bwd_anew(operand.at), step);
    const uint32_t(*a)[4] = step < S::KEPT ? operand.kept[step] : loaded;
    HY_EACH(n, S::N) {
        uint32_t b[4];
        hy_load_tiles(b, hy_bwd_across<S>(at + n * 16 * S::ROW_BYTES, step));
        HY_EACH(m, S::M) {
            hy_mma<T>(s[m][2 * n], a[m], b[0], b[1]);
            hy_mma<T>(s[m][2 * n + 1], a[m], b[2], b[3]);
        }
    }
}
template <typename S, typename T>
__device__ __forceinline__ void hy_bwd_dot(float s[S::M][2 * S::N][4],
                                           const hy_bwd_operand<S> &operand, uint32_t at) {
    hy_bwd_zero<S>(s);
    HY_EACH(step, S::STEPS) hy_bwd_dot_step<S, T>(s, operand, at, step);
}

/* sum (ROWS, D) += p (ROWS, CHUNK) times rows (CHUNK, D); `at` is the lane's by_row. One step: 16
 * columns of it, with 16 rows. */
template <typename S, typename T>
__device__ __forceinline__ void hy_bwd_add_step(float (*sum)[S::M][4],
                                                const uint32_t p[S::M][S::N][4], uint32_t at, int k,
                                                int step) {
    uint32_t b[4];
    hy_load_tiles_transposed(b, hy_bwd_across<S>(at + k * 16 * S::ROW_BYTES, step));
    HY_EACH(m, S::M) {
        hy_mma<T>(sum[2 * step][m], p[m][k], b[0], b[1]);
        hy_mma<T>(sum[2 * step + 1][m], p[m][k], b[2], b[3]);
    }
}
template <typename S, typename T, int FROM = 0>
__device__ __forceinline__ void hy_bwd_add(float (*sum)[S::M][4], const uint32_t p[S::M][S::N][4],
                                           uint32_t at) {
    HY_EACH(k, S::N) {
#pragma unroll
        for (int step = FROM; step < S::STEPS; step++) hy_bwd_add_step<S, T>(sum, p, at, k, step);
    }
}

/* Both at once, with the first ALONG steps of the sum: two independent matmuls. */
template <typename S, typename T, int ALONG>
__device__ __forceinline__ void
hy_bwd_dot_and_add(float s[S::M][2 * S::N][4], const hy_bwd_operand<S> &operand, uint32_t dot_at,
                   float (*sum)[S::M][4], const uint32_t p[S::M][S::N][4], uint32_t add_at) {
    hy_bwd_zero<S>(s);
    HY_EACH(step, S::STEPS) {
        hy_bwd_dot_step<S, T>(s, operand, dot_at, step);
        HY_EACH(k, S::N) {
            if (step < ALONG) hy_bwd_add_step<S, T>(sum, p, add_at, k, step);
        }
    }
}

/* The result of a matmul as the first operand of the next. */
template <typename S, typename T>
__device__ __forceinline__ void hy_bwd_pack(uint32_t p[S::M][S::N][4],
                                            const float s[S::M][2 * S::N][4]) {
    HY_EACH(m, S::M) {
        HY_EACH(n, S::N) {
            HY_EACH(r, 4) {
                const float *two = &s[m][2 * n + r / 2][r % 2 * 2];
                p[m][n][r] = hy_pair<T>(two[0], two[1]);
            }
        }
    }
}

/* The two numbers of a pair. */
template <typename T> __device__ __forceinline__ float2 hy_bwd_unpair(uint32_t pair);
template <> __device__ __forceinline__ float2 hy_bwd_unpair<__nv_bfloat16>(uint32_t pair) {
    return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}
template <> __device__ __forceinline__ float2 hy_bwd_unpair<__half>(uint32_t pair) {
    return __half22float2(*(__half2 *)&pair);
}

/* ---- stored ds ------------------------------------------------------------------------------- */

/* Pieces of 16 by 16 of a head, row by row of queries, each up to the diagonal. A lane has a uint4
 * of a piece: its four registers of ds^T, keys by queries, as a first operand. */
__device__ __forceinline__ int64_t hy_bwd_piece(int query, int key) {
    int row = query / HY_BWD_PIECE;
    return (int64_t)row * (row + 1) / 2 + key / HY_BWD_PIECE;
}

/* Where the pieces of head h of sequence b begin, in uint4. */
template <typename T>
__device__ __forceinline__ int64_t hy_bwd_kept_of(const hy_bwd_args<T> &g, int b, int h) {
    int64_t n = (g.a.T + HY_BWD_PIECE - 1) / HY_BWD_PIECE;
    int head = b * g.a.H + h - g.first_unit * (g.a.H / g.a.K);
    return head * (n * (n + 1) / 2) * 32;
}

/* ---- results --------------------------------------------------------------------------------- */

template <typename O> __device__ __forceinline__ void hy_bwd_store_two(O *to, float x, float y) {
    *(uint32_t *)to = hy_pair<O>(x, y);
}
template <> __device__ __forceinline__ void hy_bwd_store_two<float>(float *to, float x, float y) {
    *(float2 *)to = make_float2(x, y);
}

/* Writes a warp's rows of a sum, times scale; rows from `there` on are skipped. O is the type of
 * dqkv, or float for partial sums. */
template <typename S, typename O>
__device__ __forceinline__ void hy_bwd_store(O *to, int64_t width, const float (*sum)[S::M][4],
                                             float scale, int there) {
    int lane = threadIdx.x % 32;
    HY_EACH(m, S::M) {
        HY_EACH(r, 2) {
            int row = m * 16 + r * 8 + lane / 4;
            if (row >= there) continue;
            O *at = to + row * width + lane % 4 * 2;
            HY_EACH(n, 2 * S::STEPS) {
                hy_bwd_store_two<O>(at + n * 8, sum[n][m][2 * r] * scale,
                                    sum[n][m][2 * r + 1] * scale);
            }
        }
    }
}

template <typename S> __device__ __forceinline__ void hy_bwd_clear(float (*sum)[S::M][4]) {
    HY_EACH(n, 2 * S::STEPS) {
        HY_EACH(m, S::M) sum[n][m][0] = sum[n][m][1] = sum[n][m][2] = sum[n][m][3] = 0;
    }
}

#endif
