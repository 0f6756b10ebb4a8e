/* attention_tiles.cuh: causal attention forward on tensor cores, for 16-bit types.
 *
 * A block takes BM queries of one head and iterates over its keys from the diagonal down, BN at a
 * time; a warp owns 16 * M_TILES whole rows, so the softmax needs no exchange between warps. Keys
 * and values arrive by cp.async, STAGES tiles deep, with one barrier per tile. The scores of SN
 * keys, the output tile and, if they fit, the queries stay in registers: on an H200, shared memory
 * is nearly as busy as the tensor cores, and each operand in registers saves traffic.
 *
 * Weights are exp2(score * scale * log2(e) - m). m need not be the exact maximum, only close enough
 * that nothing overflows: it moves (and the output is rescaled) when a score exceeds it by 2^SLACK,
 * which is rare after the first tiles.
 *
 * attention_blocks_tiles.cu has another kernel of these parts, for chunks of a prompt. */
#pragma once

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/tile.cuh"

/* The division of one instantiation. */
template <int D_, int BM_, int BN_, int SN_, int WARPS_, int STAGES_, int BLOCKS_, int KEPT_>
struct hy_attention_shape {
    static constexpr int D = D_;   /* head size */
    static constexpr int BM = BM_; /* queries of a block */
    static constexpr int BN = BN_; /* keys of a stage */
    static constexpr int SN = SN_; /* keys for which scores are held at once */
    static constexpr int WARPS = WARPS_;
    static constexpr int STAGES = STAGES_;
    static constexpr int BLOCKS = BLOCKS_;     /* intended blocks per multiprocessor */
    static constexpr float SLACK = 8;          /* weights up to 2^8, far inside fp16's range */
    static constexpr bool MOVES_ALONE = false; /* m of a row moves for its own scores only */

    static constexpr int THREADS = 32 * WARPS;
    static constexpr int M_TILES = BM / WARPS / 16;
    static constexpr int K_STEPS = D / 16;
    static constexpr int KEPT = KEPT_ < K_STEPS ? KEPT_ : K_STEPS; /* steps of q in registers */
    static constexpr bool KEEPS_Q = KEPT == K_STEPS;
    static constexpr int CHUNKS = D / 8;                /* packs of 16 bytes in a row */
    static constexpr int ROWS_APART = THREADS / CHUNKS; /* rows copied at a time */
    /* Rows of 2^n chunks are swizzled; others are padded to an odd number of chunks. Either way the
     * eight rows that ldmatrix reads at once are in different banks. */
    static constexpr bool IS_SWIZZLED = CHUNKS % 8 == 0 && (CHUNKS & (CHUNKS - 1)) == 0;
    static constexpr int ROW_BYTES = 16 * (IS_SWIZZLED ? CHUNKS : CHUNKS | 1);
    static constexpr int TILE_BYTES = BN * ROW_BYTES; /* of keys, or of values */
    static constexpr int STAGE_BYTES = 2 * TILE_BYTES;
    static constexpr int Q_BYTES = BM * ROW_BYTES;
    /* Queries that are kept in registers pass through the stages that are filled last. */
    static constexpr int Q_OFFSET = KEEPS_Q ? STAGE_BYTES : STAGES * STAGE_BYTES;
    static constexpr int STAGES_END = STAGES * STAGE_BYTES;
    static constexpr int Q_END = Q_OFFSET + Q_BYTES;
    static constexpr int FIRST_OFFSET = STAGES_END > Q_END ? STAGES_END : Q_END; /* first keys */
    static constexpr int SHARED_BYTES = FIRST_OFFSET + 4 * BM + 8 * WARPS;

    static_assert(BM == 16 * M_TILES * WARPS && D % 16 == 0 && BN % SN == 0 && SN % 16 == 0, "");
    static_assert(SHARED_BYTES <= 99 * 1024, "the limit of sm_120");
};

/* Arguments of a block in addition to the layout of the call. */
typedef struct hy_attention_grid {
    int tiles; /* tiles of queries per sequence */
    int group; /* heads that should share the L2 cache with their keys and values */
    uint32_t apart, to_values, to_tile; /* chunks to the next row copied, to v, between tiles */
    float scale;                        /* factor of scores for powers of two: scale log2(e) */
    float inner;                        /* capped: factor of q k before tanh; then scale has cap */
} hy_attention_grid;

/* Block-sparse attention: the gaps of each warp's rows, and the tiles of keys that a block of threads
 * leaves out. */
template <typename S> struct hy_sparse_keys {
    hy_gaps of_warp[S::WARPS];
    hy_left_out left_out;
};

#if HY_HAS_TILES

/* threadIdx.x, read at this point: values computed from it are not kept in registers over the
 * loop. */
__device__ __forceinline__ int hy_thread_here() {
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}
/* blockIdx.x, as above. */
__device__ __forceinline__ int hy_block_here() {
    int block;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(block));
    return block;
}

/* A warp's first row within its block. */
template <typename S> __device__ __forceinline__ int hy_own_rows(int thread) {
    return thread / 32 * 16 * S::M_TILES;
}

/* The queries of a block. Within a group of heads, the tiles that see most keys go first, so the
 * last ones to run are short. */
typedef struct hy_attention_place {
    int b, h, query;
} hy_attention_place;

template <typename S>
__device__ __forceinline__ hy_attention_place hy_attention_place_of(const hy_cuda_heads &a,
                                                                    const hy_attention_grid &grid) {
    int block = hy_block_here(), in_group = block % (grid.group * grid.tiles);
    int head = block / (grid.group * grid.tiles) * grid.group;
    int heads = min(grid.group, a.B * a.H - head);
    head += in_group % heads;
    return {head / a.H, head % a.H, (grid.tiles - 1 - in_group / heads) * S::BM};
}

/* Byte offset of a chunk within rows of a tile. */
template <typename S> __device__ __forceinline__ uint32_t hy_chunk_at(int row, int chunk) {
    return row * S::ROW_BYTES + 16 * (S::IS_SWIZZLED ? chunk ^ (row & 7) : chunk);
}
/* From the address of chunk 0 or 1 of a row to that of chunk 2 n or 2 n + 1. Tiles are aligned to
 * their rows, so a swizzled address is advanced by exclusive or. */
template <typename S> __device__ __forceinline__ uint32_t hy_steps_on(uint32_t address, int n) {
    return S::IS_SWIZZLED ? address ^ (32 * n) : address + 32 * n;
}

/* Copies rows of a head to shared memory: each thread one chunk of every ROWS_APART-th row. `from`
 * is the thread's chunk of its first row, `apart` the distance to its next, in chunks of qkv: 32
 * bits are enough and save a register. Rows from `there` on become zeros, unless all ARE_THERE. */
template <typename S, int ROWS, bool ARE_THERE>
__device__ __forceinline__ void hy_fetch_rows(uint32_t shared, const int4 *qkv, uint32_t from,
                                              uint32_t apart, int there) {
    constexpr int ROWS_APART = S::ROWS_APART;
    int row = threadIdx.x / S::CHUNKS, chunk = threadIdx.x % S::CHUNKS;
    if (ROWS_APART * S::CHUNKS < S::THREADS && row >= ROWS_APART) return;
#pragma unroll
    for (int i = 0; i < ROWS; i += ROWS_APART) {
        if (ROWS % ROWS_APART != 0 && i + row >= ROWS) break;
        bool is_there = ARE_THERE || i + row < there;
        hy_copy_async(shared + hy_chunk_at<S>(i + row, chunk), qkv + (is_there ? from : 0),
                      is_there);
        from += apart;
    }
}

/* The rows of a warp: queries, output so far, and the softmax of each row. A thread holds rows lane
 * / 4 + 8 r of each m tile, r = 0, 1, and of those the columns 2 (lane % 4) + {0, 1} of each 8. */
template <typename S> struct hy_attention_rows {
    uint32_t q[S::KEPT > 0 ? S::KEPT : 1][S::M_TILES][4]; /* the first KEPT steps */
    float out[S::M_TILES][S::D / 8][4];
    float m[S::M_TILES][2]; /* in units of log2 */
    float sum[S::M_TILES][2];
};

template <typename S>
__device__ __forceinline__ void hy_load_queries(uint32_t q[S::M_TILES][4], uint32_t shared, int own,
                                                int step) {
    int lane = threadIdx.x % 32;
    uint32_t offset = hy_chunk_at<S>(own + lane % 16, lane / 16);
    HY_EACH(mt, S::M_TILES) {
        hy_load_tiles(q[mt], hy_steps_on<S>(shared + offset, step) + mt * 16 * S::ROW_BYTES);
    }
}

/* score = q k^T for SN keys. */
template <typename S, typename T>
__device__ __forceinline__ void hy_score_keys(float score[S::M_TILES][S::SN / 8][4],
                                              hy_attention_rows<S> &rows, uint32_t q_shared,
                                              uint32_t keys) {
    int lane = threadIdx.x % 32;
    keys += hy_chunk_at<S>(lane % 8 + lane / 16 * 8, lane / 8 % 2);
    HY_EACH(mt, S::M_TILES) {
        HY_EACH(n, S::SN / 8) {
            HY_EACH(e, 4) score[mt][n][e] = 0;
        }
    }
    HY_EACH(step, S::K_STEPS) {
        uint32_t passing[S::M_TILES][4];
        uint32_t(*q)[4] = step < S::KEPT ? rows.q[step] : passing;
        if (step >= S::KEPT) hy_load_queries<S>(q, q_shared, hy_own_rows<S>(threadIdx.x), step);
        uint32_t at = hy_steps_on<S>(keys, step);
        HY_EACH(n, S::SN / 16) {
            uint32_t k[4];
            hy_load_tiles(k, at + n * 16 * S::ROW_BYTES);
            HY_EACH(mt, S::M_TILES) {
                hy_mma<T>(score[mt][2 * n], q[mt], k[0], k[1]);
                hy_mma<T>(score[mt][2 * n + 1], q[mt], k[2], k[3]);
            }
        }
    }
}

/* The limits from documents and windows: the first key of each row, and the smallest and largest of
 * each warp's rows. In shared memory, because most calls have none and registers are scarce. */
template <typename S> struct hy_first_keys {
    int of_row[S::BM];
    int2 of_warp[S::WARPS];
};

/* Masks keys after a query and keys before the first it sees. */
template <typename S>
__device__ __forceinline__ void hy_hide_keys(float score[S::M_TILES][S::SN / 8][4],
                                             const hy_first_keys<S> *first, int own, int key) {
    int thread = hy_thread_here(), lane = thread % 32;
    HY_EACH(mt, S::M_TILES) {
        HY_EACH(r, 2) {
            int row = mt * 16 + r * 8 + lane / 4, begin = key + lane % 4 * 2;
            int low = first->of_row[hy_own_rows<S>(thread) + row] - begin, high = own + row - begin;
            HY_EACH(n, S::SN / 8) {
                HY_EACH(e, 2) {
                    bool is_seen = n * 8 + e >= low && n * 8 + e <= high;
                    if (!is_seen) score[mt][n][2 * r + e] = -INFINITY;
                }
            }
        }
    }
}

/* Masks keys in the gaps of queries. */
template <typename S>
__device__ __forceinline__ void hy_hide_gaps(float score[S::M_TILES][S::SN / 8][4],
                                             const hy_first_keys<S> *first, const hy_cuda_heads &a,
                                             int own, int key) {
    int thread = hy_thread_here(), lane = thread % 32;
    HY_EACH(mt, S::M_TILES) {
        HY_EACH(r, 2) {
            int row = mt * 16 + r * 8 + lane / 4, begin = key + lane % 4 * 2;
            int document = first->of_row[hy_own_rows<S>(thread) + row];
            hy_gap gap = hy_sparse_gap(a.local, a.global, document, own + row);
            int low = gap.begin - begin, high = gap.end - begin;
            HY_EACH(n, S::SN / 8) {
                HY_EACH(e, 2) {
                    if (n * 8 + e >= low && n * 8 + e < high) score[mt][n][2 * r + e] = -INFINITY;
                }
            }
        }
    }
}

/* Capped scores before their scale: tanh of q k inner. */
template <typename S>
__device__ __forceinline__ void hy_cap_scores(float score[S::M_TILES][S::SN / 8][4], float inner) {
    HY_EACH(mt, S::M_TILES) {
        HY_EACH(n, S::SN / 8) {
            HY_EACH(e, 4) score[mt][n][e] = hy_tanh(score[mt][n][e] * inner);
        }
    }
}

/* Raises m of all rows of the warp to their largest score, and rescales their sums. */
template <typename S>
__device__ __forceinline__ void hy_move_maxima(hy_attention_rows<S> &rows,
                                               const float high[S::M_TILES][2]) {
    HY_EACH(mt, S::M_TILES) {
        HY_EACH(r, 2) {
            float top = fmaxf(high[mt][r], __shfl_xor_sync(0xffffffffu, high[mt][r], 1));
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
            if (S::MOVES_ALONE && !(top > rows.m[mt][r] + S::SLACK)) top = rows.m[mt][r];
            top = fmaxf(top, rows.m[mt][r]);
            float shrink = hy_exp2(rows.m[mt][r] - top);
            rows.m[mt][r] = top;
            rows.sum[mt][r] *= shrink;
            HY_EACH(n, S::D / 8) {
                rows.out[mt][n][2 * r] *= shrink;
                rows.out[mt][n][2 * r + 1] *= shrink;
            }
        }
    }
}

/* Ensures that m is close enough to these scores. */
template <typename S>
__device__ __forceinline__ void hy_meet_scores(const float score[S::M_TILES][S::SN / 8][4],
                                               hy_attention_rows<S> &rows, float scale) {
    float high[S::M_TILES][2];
    bool is_far = false;
    HY_EACH(mt, S::M_TILES) {
        HY_EACH(r, 2) {
            float top = fmaxf(score[mt][0][2 * r], score[mt][0][2 * r + 1]);
#pragma unroll
            for (int n = 1; n < S::SN / 8; n++) {
                top = fmaxf(top, fmaxf(score[mt][n][2 * r], score[mt][n][2 * r + 1]));
            }
            high[mt][r] = top * scale;
            is_far |= high[mt][r] > rows.m[mt][r] + S::SLACK;
        }
    }
    if (__any_sync(0xffffffffu, is_far)) hy_move_maxima<S>(rows, high);
}

/* Converts scores to weights. */
template <typename S>
__device__ __forceinline__ void hy_soften(float score[S::M_TILES][S::SN / 8][4],
                                          hy_attention_rows<S> &rows, float scale) {
    HY_EACH(i, S::M_TILES * S::SN / 4) {
        int mt = i / (S::SN / 4), n = i % (S::SN / 4) / 2, r = i % 2;
        float *pair = &score[mt][n][2 * r], m = rows.m[mt][r];
        pair[0] = hy_exp2(pair[0] * scale - m);
        pair[1] = hy_exp2(pair[1] * scale - m);
        rows.sum[mt][r] += pair[0] + pair[1];
    }
}

/* out += weights v, SN keys. */
template <typename S, typename T>
__device__ __forceinline__ void hy_weigh_values(const float weight[S::M_TILES][S::SN / 8][4],
                                                hy_attention_rows<S> &rows, uint32_t values) {
#if __CUDA_ARCH__ >= 1000 /* on these cards the compiler would spill a register or two */
    uint32_t thread = hy_thread_here();
#else
    uint32_t thread = threadIdx.x;
#endif
    values += hy_chunk_at<S>(thread % 16, thread % 32 / 16);
    HY_EACH(step, S::SN / 16) {
        uint32_t p[S::M_TILES][4];
        HY_EACH(mt, S::M_TILES) {
            const float(*w)[4] = &weight[mt][2 * step];
            p[mt][0] = hy_pair<T>(w[0][0], w[0][1]);
            p[mt][1] = hy_pair<T>(w[0][2], w[0][3]);
            p[mt][2] = hy_pair<T>(w[1][0], w[1][1]);
            p[mt][3] = hy_pair<T>(w[1][2], w[1][3]);
        }
        HY_EACH(n, S::K_STEPS) {
            uint32_t v[4];
            hy_load_tiles_transposed(v, hy_steps_on<S>(values, n) + step * 16 * S::ROW_BYTES);
            HY_EACH(mt, S::M_TILES) {
                hy_mma<T>(rows.out[mt][2 * n], p[mt], v[0], v[1]);
                hy_mma<T>(rows.out[mt][2 * n + 1], p[mt], v[2], v[3]);
            }
        }
    }
}

/* Divides by the sums, of which the sink is a part, and writes output and lse. The output passes
 * through shared memory, each warp its own rows, so it is written in packs of 16 bytes. */
template <typename S, typename T, bool HAS_LSE = true>
__device__ __forceinline__ void hy_store_rows(hy_attention_rows<S> &rows, char *shared,
                                              const hy_cuda_heads &a, int h, T *out, float *lse,
                                              int64_t width, int query, int end) {
    int lane = threadIdx.x % 32, own = hy_own_rows<S>(threadIdx.x);
    HY_EACH(mt, S::M_TILES) {
        HY_EACH(r, 2) {
            int row = own + mt * 16 + r * 8 + lane / 4;
            float sum = rows.sum[mt][r];
            sum += __shfl_xor_sync(0xffffffffu, sum, 1);
            sum += __shfl_xor_sync(0xffffffffu, sum, 2);
            float m = rows.m[mt][r], shrink = 1.0f;
            if (a.sinks) {
                float sink = hy_sink(a, h) * HY_LOG2E;
                m = fmaxf(m, sink);
                shrink = hy_exp2(rows.m[mt][r] - m);
                sum = sum * shrink + hy_exp2(sink - m);
            }
            float inverse = __fdividef(shrink, sum);
            if (HAS_LSE && lane % 4 == 0 && query + row < end) {
                lse[query + row] = (m + log2f(sum)) * 0.693147180559945309f;
            }
            HY_EACH(n, S::D / 8) {
                uint32_t at = hy_chunk_at<S>(row, n) + lane % 4 * 4;
                *(uint32_t *)(shared + at) = hy_pair<T>(rows.out[mt][n][2 * r] * inverse,
                                                        rows.out[mt][n][2 * r + 1] * inverse);
            }
        }
    }
    __syncwarp();
#pragma unroll 4
    for (int i = lane; i < 16 * S::M_TILES * S::CHUNKS; i += 32) {
        int row = own + i / S::CHUNKS, chunk = i % S::CHUNKS;
        if (query + row >= end) break;
        *(int4 *)(out + (query + row) * width + 8 * chunk) =
            *(const int4 *)(shared + hy_chunk_at<S>(row, chunk));
    }
}

/* Fills `first` and returns the smallest first key of the block. */
template <typename S>
__device__ __forceinline__ int hy_find_first_keys(hy_first_keys<S> *first, const hy_cuda_heads &a,
                                                  int b, int query) {
    constexpr int ROWS = 16 * S::M_TILES;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, own = hy_own_rows<S>(threadIdx.x);
    int low = a.T, high = 0;
    for (int row = own + lane; row < own + ROWS; row += 32) {
        int key = hy_first_key(a, b, min(query + row, a.T - 1));
        first->of_row[row] = key;
        low = min(low, key);
        high = max(high, key);
    }
    if (!a.doc_starts && a.window <= 0)
        return 0; /* each warp reads its own rows, after the next barrier */
    low = __reduce_min_sync(0xffffffffu, low);
    high = __reduce_max_sync(0xffffffffu, high);
    if (lane == 0) first->of_warp[warp] = make_int2(low, high);
    __syncthreads();
    for (int w = 0; w < S::WARPS; w++) low = min(low, first->of_warp[w].x);
    return low;
}

template <typename S> __device__ __forceinline__ void hy_clear_rows(hy_attention_rows<S> &rows) {
    HY_EACH(mt, S::M_TILES) {
        HY_EACH(r, 2) {
            rows.m[mt][r] = -1e30f; /* finite: a row may see nothing of its first tiles */
            rows.sum[mt][r] = 0;
        }
        HY_EACH(n, S::D / 8) {
            HY_EACH(e, 4) rows.out[mt][n][e] = 0;
        }
    }
}

/* Writes the gaps of each warp and the left-out tiles to `sparse`, and returns the latter. `first`
 * must be complete. */
template <typename S>
__device__ __forceinline__ hy_left_out hy_find_gaps(hy_sparse_keys<S> *sparse,
                                                    const hy_first_keys<S> *first,
                                                    const hy_cuda_heads &a, int b, int query) {
    constexpr int ROWS = 16 * S::M_TILES;
    int warp = threadIdx.x / 32, own = hy_own_rows<S>(threadIdx.x);
    hy_gap gap = hy_gap_of_rows(a, b, query, min(query + S::BM, a.T));
    hy_left_out out = hy_left_out_of(gap, S::BN);
    int2 of = a.doc_starts ? first->of_warp[warp] : make_int2(0, 0);
    if (threadIdx.x % 32 == 0)
        sparse->of_warp[warp] = hy_gaps_of(a.local, a.global, of.x, of.y, query + own, ROWS);
    if (threadIdx.x == 0) sparse->left_out = out;
    __syncthreads();
    return out;
}

/* The warp's rows attend to SN keys from `key` on, if any row sees them. `sparse` only if IS_SPARSE. */
template <typename S, typename T, bool IS_CAPPED, bool IS_SPARSE>
__device__ __forceinline__ void hy_attend(hy_attention_rows<S> &rows, const hy_first_keys<S> *first,
                                          bool hides_before, const hy_sparse_keys<S> *sparse,
                                          const hy_cuda_heads &a, float scale, float inner,
                                          uint32_t queries, uint32_t keys, int own, int key) {
    if (key >= own + 16 * S::M_TILES) return; /* after every row of the warp */
    bool is_edge = key + S::SN > own + 1;
    if (hides_before) {
        int2 low_high = first->of_warp[hy_thread_here() / 32];
        if (key + S::SN <= low_high.x) return;
        is_edge |= key < low_high.y;
    }
    if (IS_SPARSE) {
        if (hy_gap_hides(sparse->of_warp[hy_thread_here() / 32].all, key, S::SN)) return;
        is_edge |= hy_gap_touches(sparse->of_warp[hy_thread_here() / 32].any, key, S::SN);
    }
    float score[S::M_TILES][S::SN / 8][4];
    hy_score_keys<S, T>(score, rows, queries, keys);
    if (IS_CAPPED) hy_cap_scores<S>(score, inner);
    if (is_edge) hy_hide_keys<S>(score, first, own, key);
    if (IS_SPARSE && is_edge) hy_hide_gaps<S>(score, first, a, own, key);
    hy_meet_scores<S>(score, rows, scale);
    hy_soften<S>(score, rows, scale);
    hy_weigh_values<S, T>(score, rows, keys + S::TILE_BYTES);
}

/* The block's rows, which begin at key `query`, attend to tiles `tile` down to `low`; if they are
 * sparse, these are numbers of hy_tile_behind. Two groups of copies are on their way: of the
 * queries, and of the first tile to `base`. fetch_next(to, tile) copies the tile below the last that
 * was copied. */
template <typename S, typename T, bool IS_CAPPED, bool IS_SPARSE, typename F>
__device__ __forceinline__ void
hy_attend_tiles(hy_attention_rows<S> &rows, const hy_first_keys<S> *first, bool hides_before,
                const hy_sparse_keys<S> *sparse, const hy_cuda_heads &a, float scale, float inner,
                uint32_t base, int query, int tile, int low, F fetch_next) {
    hy_clear_rows<S>(rows);
    int own_rows = hy_own_rows<S>(threadIdx.x);
    if (S::KEPT > 0) {
        hy_copy_wait<1>();
        __syncthreads();
        HY_EACH(step, S::KEPT) {
            hy_load_queries<S>(rows.q[step], base + S::Q_OFFSET, own_rows, step);
        }
        if (S::KEEPS_Q) __syncthreads();
    }
#pragma unroll
    for (int ahead = 1; ahead < S::STAGES - 1; ahead++) {
        if (tile - ahead >= low) fetch_next(base + ahead * S::STAGE_BYTES, tile - ahead);
        hy_copy_commit();
    }

    int own = __reduce_min_sync(0xffffffffu, query + own_rows);
    uint32_t keys = base; /* the current stage */
    for (; tile >= low; tile--) {
        hy_copy_wait<S::STAGES - 2>();
        __syncthreads();
        if (tile - (S::STAGES - 1) >= low) {
            fetch_next(keys == base ? base + S::STAGES_END - S::STAGE_BYTES : keys - S::STAGE_BYTES,
                       tile - (S::STAGES - 1));
        }
        hy_copy_commit();
        int here = IS_SPARSE ? hy_tile_behind(sparse->left_out, tile) : tile;
#pragma unroll
        for (int part = S::BN / S::SN - 1; part >= 0; part--) {
            hy_attend<S, T, IS_CAPPED, IS_SPARSE>(
                rows, first, hides_before, sparse, a, scale, inner, base + S::Q_OFFSET,
                keys + part * S::SN * S::ROW_BYTES, own, here * S::BN + part * S::SN);
        }
        keys = keys == base + S::STAGES_END - S::STAGE_BYTES ? base : keys + S::STAGE_BYTES;
    }
    hy_copy_wait<0>();
    __syncthreads();
}

#endif

template <typename S, typename T, bool IS_CAPPED, bool IS_SPARSE>
__global__ void __launch_bounds__(S::THREADS, S::BLOCKS)
    hy_attention_kernel(const T *qkv, T *out, float *lse, hy_cuda_heads a, hy_attention_grid grid) {
#if HY_HAS_TILES
    extern __shared__ __align__(1024) char shared[];
    hy_first_keys<S> *first = (hy_first_keys<S> *)(shared + S::FIRST_OFFSET);
    uint32_t base = hy_shared_address(shared);

    hy_attention_place at = hy_attention_place_of<S>(a, grid);
    int query = at.query;
    int end = min(query + S::BM, a.T), tile = (end - 1) / S::BN;
    /* Where this thread copies from: its chunk of its first row, for the query and key tile. */
    const int4 *chunks = (const int4 *)qkv;
    uint32_t width = (a.H + 2 * a.K) * S::CHUNKS, kv_head = a.H + at.h / (a.H / a.K);
    uint32_t row = (uint32_t)at.b * a.T + threadIdx.x / S::CHUNKS, chunk = threadIdx.x % S::CHUNKS;
    uint32_t q = (row + query) * width + at.h * S::CHUNKS + chunk;
    uint32_t k = (row + tile * S::BN) * width + kv_head * S::CHUNKS + chunk;

    hy_fetch_rows<S, S::BM, false>(base + S::Q_OFFSET, chunks, q, grid.apart, end - query);
    hy_copy_commit();
    hy_fetch_rows<S, S::BN, false>(base, chunks, k, grid.apart, end - tile * S::BN);
    hy_fetch_rows<S, S::BN, false>(base + S::TILE_BYTES, chunks, k + grid.to_values, grid.apart,
                                   end - tile * S::BN);
    hy_copy_commit();
    const hy_sparse_keys<S> *sparse = (hy_sparse_keys<S> *)(shared + S::SHARED_BYTES);
    /* Tiles after the first are complete. */
    auto fetch_next = [&](uint32_t to, int next) {
        k -= grid.to_tile;
        if (IS_SPARSE && next == sparse->left_out.first - 1)
            k -= sparse->left_out.count * grid.to_tile;
        hy_fetch_rows<S, S::BN, true>(to, chunks, k, grid.apart, 0);
        hy_fetch_rows<S, S::BN, true>(to + S::TILE_BYTES, chunks, k + grid.to_values, grid.apart,
                                      0);
    };
    bool hides_before = a.doc_starts || a.window > 0;
    int low = hy_find_first_keys<S>(first, a, at.b, query) / S::BN;
    if (IS_SPARSE)
        tile -= hy_find_gaps<S>((hy_sparse_keys<S> *)sparse, first, a, at.b, query).count;

    hy_attention_rows<S> rows;
    hy_attend_tiles<S, T, IS_CAPPED, IS_SPARSE>(rows, first, hides_before, sparse, a, grid.scale,
                                                grid.inner, base, query, tile, low, fetch_next);
    at = hy_attention_place_of<S>(a, grid);
    hy_store_rows<S, T>(rows, shared, a, at.h, out + ((int64_t)at.b * a.T * a.H + at.h) * S::D,
                        lse + ((int64_t)at.b * a.H + at.h) * a.T, (int64_t)a.H * S::D, at.query,
                        min(at.query + S::BM, a.T));
#endif
}
