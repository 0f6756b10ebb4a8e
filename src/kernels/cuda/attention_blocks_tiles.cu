/* attention_blocks_tiles.cu: cached attention over blocks on tensor cores, for 16-bit types.
 *
 * A step (T = 1) reads memory. Keys are the 16-row operand of mma.sync and queries its 8 columns:
 * scores' = k q', out' = v' p'. A key head's queries (a group of heads) fill the columns, so keys
 * and values are read once for all of them. A lane has scores and results of the same two queries
 * of each 8, so the softmax needs no exchange with the results. A column depends on its own query
 * only, and weights are relative to the query's exact maximum: its bits do not depend on the
 * others. A block takes a range of keys, each warp 64 of them, and copies only for itself.
 *
 * A chunk computes: its kernel is that of training (attention_tiles.cuh) with keys and values from
 * the pool. A block has queries of one head. */
#include "kernels/cuda/attention_blocks.cuh"
#include "kernels/cuda/attention_tiles.cuh"

enum { WARPS = 4, THREADS = 32 * WARPS };

/* Rows of a head in shared memory. Rows of 2^n chunks of 16 bytes are swizzled, others are
 * padded to an odd number: either way the eight rows that ldmatrix reads at once are in
 * different banks. */
template <int D_> struct head_rows {
    static constexpr int D = D_, CHUNKS = D / 8, STEPS = D / 16;
    static constexpr bool IS_SWIZZLED = CHUNKS % 8 == 0 && (CHUNKS & (CHUNKS - 1)) == 0;
    static constexpr int ROW_BYTES = 16 * (IS_SWIZZLED ? CHUNKS : CHUNKS | 1);
    static constexpr int TILE_BYTES = 16 * ROW_BYTES; /* of 16 keys, or their values */
    static constexpr int PITCH = D + 4; /* of fp32 results: lanes write to different banks */

    static __device__ __forceinline__ uint32_t at(int row, int chunk) {
        return row * ROW_BYTES + 16 * (IS_SWIZZLED ? chunk ^ (row & 7) : chunk);
    }
    /* From the address of chunk 0 or 1 of a row to that of chunk 2 n or 2 n + 1. */
    static __device__ __forceinline__ uint32_t on(uint32_t address, int n) {
        return IS_SWIZZLED ? address ^ (32 * n) : address + 32 * n;
    }
};

#if HY_HAS_TILES

/* ---- queries --------------------------------------------------------------------------------- */

/* The two queries of a lane in a tile of 8 columns: where they are, and which keys they see. */
template <int COLUMNS> struct lane_queries {
    int position[COLUMNS][2], low[COLUMNS][2];

    __device__ __forceinline__ lane_queries(const hy_block_call &c, int first, int query) {
        HY_EACH(column, COLUMNS) {
            HY_EACH(e, 2) {
                int at = min(query + 8 * column + (int)threadIdx.x % 4 * 2 + e, c.queries - 1);
                position[column][e] = first + at / c.group;
                low[column][e] = hy_first_seen(c, position[column][e]);
            }
        }
    }
};

/* Queries [query, query + 8) as an operand: columns of all steps along the head. Columns that there
 * are none for repeat the last. */
template <typename H>
__device__ __forceinline__ void load_queries(uint32_t q[H::STEPS][2], const hy_block_call &c, int b,
                                             int kv_head, int query) {
    int lane = threadIdx.x % 32, at = min(query + lane / 4, c.queries - 1);
    const uint32_t *words =
        (const uint32_t *)((const uint16_t *)c.qkv + hy_query_at(c, b, kv_head, at)) + lane % 4;
    HY_EACH(step, H::STEPS) {
        q[step][0] = words[8 * step];
        q[step][1] = words[8 * step + 4];
    }
}

/* ---- 16 keys --------------------------------------------------------------------------------- */

/* score = k q of 16 keys. */
template <typename H, typename T, int COLUMNS>
__device__ __forceinline__ void score_keys(float score[COLUMNS][4],
                                           const uint32_t q[COLUMNS][H::STEPS][2], uint32_t keys) {
    int lane = threadIdx.x % 32;
    keys += H::at(lane % 16, lane / 16);
    HY_EACH(column, COLUMNS) {
        HY_EACH(e, 4) score[column][e] = 0;
    }
    HY_EACH(step, H::STEPS) {
        uint32_t k[4];
        hy_load_tiles(k, H::on(keys, step));
        HY_EACH(column, COLUMNS)
            hy_mma<T>(score[column], k, q[column][step][0], q[column][step][1]);
    }
}

/* Scores in units of log2; those of keys that a query does not see become minus infinity. */
template <int COLUMNS>
__device__ __forceinline__ void shape_scores(float score[COLUMNS][4], const hy_block_call &c,
                                             const lane_queries<COLUMNS> &mine, int key,
                                             bool is_hidden) {
    HY_EACH(column, COLUMNS) {
        HY_EACH(e, 4) {
            int at = key + (int)threadIdx.x % 32 / 4 + 8 * (e / 2);
            bool is_seen =
                at <= mine.position[column][e % 2] && at >= mine.low[column][e % 2] && !is_hidden;
            float x = hy_block_score(c, score[column][e]);
            score[column][e] = is_seen ? x : -INFINITY;
        }
    }
}

/* out += v' p of 16 keys, p as pairs of neighbouring queries. */
template <typename H, typename T, int COLUMNS>
__device__ __forceinline__ void weigh_values(float out[COLUMNS][H::STEPS][4],
                                             const float weight[COLUMNS][4], uint32_t values) {
    int lane = threadIdx.x % 32;
    uint32_t p[COLUMNS][2];
    values += H::at(lane % 8 + lane / 16 * 8, lane / 8 % 2);
    HY_EACH(column, COLUMNS) {
        HY_EACH(half, 2) {
            uint32_t pair = hy_pair<T>(weight[column][2 * half], weight[column][2 * half + 1]);
            p[column][half] = hy_transposed(pair);
        }
    }
    HY_EACH(step, H::STEPS) {
        uint32_t v[4];
        hy_load_tiles_transposed(v, H::on(values, step));
        HY_EACH(column, COLUMNS) hy_mma<T>(out[column][step], v, p[column][0], p[column][1]);
    }
}

/* Over the eight lanes that have the same queries. */
__device__ __forceinline__ float max_of_query(float x) {
    for (int d = 4; d < 32; d *= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, d));
    return x;
}
__device__ __forceinline__ float sum_of_query(float x) {
    for (int d = 4; d < 32; d *= 2) x += __shfl_xor_sync(0xffffffffu, x, d);
    return x;
}

/* Writes a warp's results as rows of fp32: D numbers, and the total behind them. */
template <typename H, int COLUMNS>
__device__ __forceinline__ void leave_results(float *rows, const float out[COLUMNS][H::STEPS][4],
                                              const float high[COLUMNS][2],
                                              const float total[COLUMNS][2]) {
    int lane = threadIdx.x % 32;
    HY_EACH(column, COLUMNS) {
        HY_EACH(e, 2) {
            float *row = rows + (8 * column + lane % 4 * 2 + e) * H::PITCH;
            HY_EACH(step, H::STEPS) {
                row[16 * step + lane / 4] = out[column][step][e];
                row[16 * step + 8 + lane / 4] = out[column][step][2 + e];
            }
            if (lane / 4 != 0) continue;
            row[H::D] = high[column][e];
            row[H::D + 1] = total[column][e];
        }
    }
}

#endif

/* ---- one token of each sequence -------------------------------------------------------------- */

/* A warp's 64 keys are four tiles, and so are their values: eight copies in this order through a
 * ring of its own. */
template <typename H, int COLUMNS> struct step_shape {
    static constexpr int KEYS = HY_KEY_RANGE / WARPS, TILES = KEYS / 16, COPIES = 2 * TILES;
    static constexpr int FIT = 24 * 1024 / H::TILE_BYTES, RING = FIT < COPIES ? FIT : COPIES;
    static constexpr int WARP_BYTES = RING * H::TILE_BYTES;
    static constexpr int QUERIES = 8 * COLUMNS;
    static constexpr int FOUND_BYTES = WARPS * QUERIES * H::PITCH * 4;
    static constexpr int BYTES = WARPS * WARP_BYTES > FOUND_BYTES ? WARPS *WARP_BYTES : FOUND_BYTES;
    static_assert(KEYS == 64 && BYTES <= 99 * 1024, "the limit of sm_120");
};

#if HY_HAS_TILES

/* Copies 16 keys, or their values; lane l has the row in the pool of key l % 16, -1 for one that is
 * not seen. AT_ONCE: fewer take fewer registers. */
template <typename H, int AT_ONCE>
__device__ __forceinline__ void fetch_tile(uint32_t shared, const hy_block_call &c, int first_head,
                                           int pool_row, int lane) {
    const char *cache = (const char *)c.cache;
    int64_t row_bytes = 4 * (int64_t)c.a.K * H::D;
#pragma unroll AT_ONCE
    for (int i = 0; i < 16 * H::CHUNKS / 32; i++) {
        int row = (i * 32 + lane) / H::CHUNKS, chunk = (i * 32 + lane) % H::CHUNKS;
        int from = __shfl_sync(0xffffffffu, pool_row, row);
        int64_t at = from * row_bytes + ((int64_t)first_head * H::D + 8 * chunk) * 2;
        hy_copy_async(shared + H::at(row, chunk), cache + (from >= 0 ? at : 0), from >= 0);
    }
}

/* A warp's keys from `key` on: scores, then the weighted values. */
template <typename H, typename T, int COLUMNS>
__device__ __forceinline__ void
attend_keys(const hy_block_call &c, int b, int kv_head, const uint32_t q[COLUMNS][H::STEPS][2],
            const lane_queries<COLUMNS> &mine, int position, int key, uint32_t ring, float *found) {
    typedef step_shape<H, COLUMNS> S;
    int lane = threadIdx.x % 32, low = hy_first_seen(c, position);
    static_assert(S::KEYS == HY_SPARSE_BLOCK,
                  "a warp's keys are a block of block-sparse attention");
    bool is_hidden = hy_is_in_gap(c.a, 0, position, key);
    int rows[2]; /* keys lane and 32 + lane */
    HY_EACH(i, 2) {
        int at = key + 32 * i + lane;
        bool is_seen = at <= position && at >= low && !is_hidden;
        rows[i] = is_seen ? (int)hy_pool_row(c, b, at) : -1;
    }
    auto fetch = [&](int copy) {
        int tile = copy % S::TILES, head = copy < S::TILES ? kv_head : c.a.K + kv_head;
        int row = __shfl_sync(0xffffffffu, rows[tile / 2], tile % 2 * 16 + lane % 16);
        fetch_tile<H, H::STEPS>(ring + copy % S::RING * H::TILE_BYTES, c, head, row, lane);
        hy_copy_commit();
    };
    HY_EACH(copy, S::RING) fetch(copy);

    float score[S::TILES][COLUMNS][4], out[COLUMNS][H::STEPS][4];
    float high[COLUMNS][2], total[COLUMNS][2];
    HY_EACH(tile, S::TILES) {
        hy_copy_wait<S::RING - 1>();
        __syncwarp();
        score_keys<H, T, COLUMNS>(score[tile], q, ring + tile % S::RING * H::TILE_BYTES);
        shape_scores<COLUMNS>(score[tile], c, mine, key + 16 * tile, is_hidden);
        __syncwarp();
        if (tile + S::RING < S::COPIES)
            fetch(tile + S::RING);
        else
            hy_copy_commit(); /* keeps count */
    }
    HY_EACH(column, COLUMNS) {
        HY_EACH(e, 2) {
            float top = -INFINITY, sum = 0;
            HY_EACH(tile, S::TILES) {
                top = fmaxf(top, fmaxf(score[tile][column][e], score[tile][column][2 + e]));
            }
            top = max_of_query(top);
            float shift = top == -INFINITY ? 0.0f : top;
            HY_EACH(tile, S::TILES) {
                HY_EACH(half, 2) {
                    float *x = &score[tile][column][2 * half + e];
                    *x = hy_exp2(*x - shift);
                    sum += *x;
                }
            }
            high[column][e] = top;
            total[column][e] = sum_of_query(sum);
        }
        HY_EACH(step, H::STEPS) {
            HY_EACH(e, 4) out[column][step][e] = 0;
        }
    }
    HY_EACH(tile, S::TILES) {
        constexpr int FIRST = S::TILES; /* the copy of the first values */
        hy_copy_wait<S::RING - 1>();
        __syncwarp();
        weigh_values<H, T, COLUMNS>(out, score[tile],
                                    ring + (FIRST + tile) % S::RING * H::TILE_BYTES);
        __syncwarp();
        if (FIRST + tile + S::RING < S::COPIES)
            fetch(FIRST + tile + S::RING);
        else
            hy_copy_commit();
    }
    hy_copy_wait<0>();
    __syncthreads(); /* the results replace the rings of all warps */
    leave_results<H, COLUMNS>(found, out, high, total);
}

/* The sequence's new key and value, of one key head. */
template <typename H>
__device__ __forceinline__ void append_row(const hy_block_call &c, int b, int kv_head,
                                           int position) {
    int64_t packed = ((int64_t)c.a.H + 2 * c.a.K) * H::CHUNKS, width = 2 * c.a.K * H::CHUNKS;
    const int4 *from = (const int4 *)c.qkv + b * packed + (c.a.H + kv_head) * H::CHUNKS;
    int4 *to = (int4 *)c.cache + hy_pool_row(c, b, position) * width + kv_head * H::CHUNKS;
    for (int i = threadIdx.x; i < 2 * H::CHUNKS; i += THREADS) {
        int64_t value = i / H::CHUNKS * c.a.K * H::CHUNKS;
        to[value + i % H::CHUNKS] = from[value + i % H::CHUNKS];
    }
}

/* Adds what the warps found for the block's queries. */
template <typename H, int COLUMNS>
__device__ __forceinline__ void join_warps(const hy_block_call &c, const float *found, int b,
                                           int kv_head, int query, int range) {
    constexpr int QUERIES = 8 * COLUMNS;
    for (int i = threadIdx.x; i < QUERIES * H::D; i += THREADS) {
        int at = i / H::D, column = i % H::D;
        if (query + at >= c.queries) return;
        float high = -INFINITY, total = 0, sum = 0;
        HY_EACH(w, WARPS) high = fmaxf(high, found[(w * QUERIES + at) * H::PITCH + H::D]);
        HY_EACH(w, WARPS) {
            const float *one = found + (w * QUERIES + at) * H::PITCH;
            float weight = one[H::D + 1] > 0 ? exp2f(one[H::D] - high) : 0.0f;
            total = fmaf(one[H::D + 1], weight, total);
            sum = fmaf(one[column], weight, sum);
        }
        float *to = hy_partial_of(c, b, kv_head * c.group + query + at, range);
        to[column] = sum;
        if (column == 0) to[H::D] = high, to[H::D + 1] = total;
    }
}

#endif

/* Blocks (spread, queries / 8 COLUMNS, B K): each takes every so many ranges. */
template <typename H, typename T, int COLUMNS>
static __global__ void __launch_bounds__(THREADS, 2) step_kernel(hy_block_call c) {
#if HY_HAS_TILES
    typedef step_shape<H, COLUMNS> S;
    extern __shared__ __align__(1024) char shared[];
    hy_let_next_start();
    hy_wait_for_previous();
    int b = blockIdx.z / c.a.K, kv_head = blockIdx.z % c.a.K, query = blockIdx.y * S::QUERIES;
    int position = c.first[b], warp = threadIdx.x / 32;
    if (position < 0) return;
    int from = hy_first_seen(c, position) / HY_KEY_RANGE, last = position / HY_KEY_RANGE;
    int range = blockIdx.x;
    if (range < from) range += (from - range + (int)gridDim.x - 1) / (int)gridDim.x * gridDim.x;
    if (range > last) return;

    uint32_t q[COLUMNS][H::STEPS][2];
    HY_EACH(column, COLUMNS) load_queries<H>(q[column], c, b, kv_head, query + 8 * column);
    lane_queries<COLUMNS> mine(c, position, query);
    uint32_t ring = hy_shared_address(shared) + warp * S::WARP_BYTES;
    float *found = (float *)shared;
    for (; range <= last; range += gridDim.x) {
        if (hy_range_is_hidden(c, position, range)) continue;
        if (range == last) {
            append_row<H>(c, b, kv_head, position);
            __syncthreads();
        }
        attend_keys<H, T, COLUMNS>(c, b, kv_head, q, mine, position,
                                   range * HY_KEY_RANGE + warp * S::KEYS, ring,
                                   found + warp * S::QUERIES * H::PITCH);
        __syncthreads();
        join_warps<H, COLUMNS>(c, found, b, kv_head, query, range);
        __syncthreads();
    }
#endif
}

/* ---- chunks ---------------------------------------------------------------------------------- */

/* Bytes for the blocks of a multiprocessor: of a roomy card (launch_chunks), or of the least.
 * Shapes that need more are not launched on the card. */
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ < 900 || __CUDA_ARCH__ >= 1200)
enum { ROOM = 100 * 1024 };
#else
enum { ROOM = 228 * 1024 };
#endif

/* The card and the code have room. */
static bool has_room(const hy_cuda *cuda) {
    return cuda->card.shared_bytes >= 200 * 1024 && cuda->card.code >= 90 && cuda->card.code < 120;
}

/* A division of attention_tiles.cuh in which the bits of a row do not depend on those beside it. */
template <int... SIZES> struct chunk_shape : hy_attention_shape<SIZES...> {
    typedef hy_attention_shape<SIZES...> base;
    static constexpr bool MOVES_ALONE = true;
    static constexpr bool FITS = base::BLOCKS * base::SHARED_BYTES <= ROOM;
    static_assert(base::SHARED_BYTES <= 99 * 1024, "the limit of sm_120");
};

#if HY_HAS_TILES

/* The same number in all lanes, for a register that they share. */
__device__ __forceinline__ int same_in_warp(int x) { return __reduce_min_sync(0xffffffffu, x); }

/* A stage is copied by 16 keys, or their values, for each warp: which keys. */
template <typename S> __device__ __forceinline__ int keys_of_warp() {
    static_assert(S::WARPS % (S::BN / 16) == 0, "a warp copies keys, values, or both of the same");
    return hy_thread_here() / 32 % (S::BN / 16) * 16;
}

/* Lane l has the row in the pool of its warp's key l % 16. */
template <typename S>
__device__ __forceinline__ void fetch_stage(uint32_t stage, const hy_block_call &c, int kv_head,
                                            int pool_row) {
    typedef head_rows<S::D> H;
    constexpr int TILES = S::BN / 16;
    int thread = hy_thread_here(), lane = thread % 32, part = thread / 32 / TILES;
    stage += keys_of_warp<S>() * S::ROW_BYTES;
    if (S::WARPS == TILES || part == 0) fetch_tile<H, 2>(stage, c, kv_head, pool_row, lane);
    if (S::WARPS == TILES || part == 1)
        fetch_tile<H, 2>(stage + S::TILE_BYTES, c, c.a.K + kv_head, pool_row, lane);
}

#endif

template <typename S, typename T, bool IS_CAPPED, bool IS_SPARSE>
static __global__ void __launch_bounds__(S::THREADS, S::BLOCKS)
    chunk_kernel(hy_block_call c, hy_attention_grid grid) {
#if HY_HAS_TILES
    extern __shared__ __align__(1024) char shared[];
    hy_first_keys<S> *first_keys = (hy_first_keys<S> *)(shared + S::FIRST_OFFSET);
    uint32_t base = hy_shared_address(shared);
    hy_attention_place at = hy_attention_place_of<S>(c.a, grid);
    int b = at.b, first = c.first[b], query = at.query, end = min(query + S::BM, c.a.T);
    if (!S::FITS || first < 0) return;

    uint32_t width = (c.a.H + 2 * c.a.K) * S::CHUNKS, row = threadIdx.x / S::CHUNKS;
    const int4 *own = (const int4 *)c.qkv + ((int64_t)b * c.a.T + query) * width;
    hy_fetch_rows<S, S::BM, false>(base + S::Q_OFFSET, own,
                                   row * width + at.h * S::CHUNKS + threadIdx.x % S::CHUNKS,
                                   grid.apart, end - query);
    hy_copy_commit();

    hy_cuda_heads a = c.a; /* as if the sequence ended with the chunk */
    a.T = first + c.a.T;
    a.doc_starts = nullptr;
    int low = same_in_warp(hy_find_first_keys<S>(first_keys, a, b, first + query));
    int tile = (first + end - 1) / S::BN, kv_head = same_in_warp(at.h / c.group);
    /* Where this lane's key of a tile is in the pool: found before the tile above it is copied. */
    const hy_sparse_keys<S> *sparse = (hy_sparse_keys<S> *)(shared + S::SHARED_BYTES);
    if (IS_SPARSE)
        tile -= hy_find_gaps<S>((hy_sparse_keys<S> *)sparse, first_keys, a, b, first + query).count;
    auto find = [&](int of_tile, int after) {
        if (IS_SPARSE) of_tile = hy_tile_behind(sparse->left_out, of_tile);
        int key = of_tile * S::BN + keys_of_warp<S>() + hy_thread_here() % 16;
        return key >= low && key < after ? (int)hy_pool_row(c, b, key) : -1;
    };
    int pool_row = find(tile, first + end);
    auto fetch_next = [&](uint32_t stage, int of_tile) {
        fetch_stage<S>(stage, c, kv_head, pool_row);
        pool_row = find(of_tile - 1, INT_MAX);
    };
    fetch_next(base, tile);
    hy_copy_commit();

    hy_attention_rows<S> rows;
    hy_attend_tiles<S, T, IS_CAPPED, IS_SPARSE>(rows, first_keys, c.a.window > 0, sparse, a,
                                                grid.scale, grid.inner, base, first + query, tile,
                                                low / S::BN, fetch_next);
    at = hy_attention_place_of<S>(c.a, grid);
    T *out = (T *)c.out + ((int64_t)at.b * c.a.T * c.a.H + at.h) * S::D;
    hy_store_rows<S, T, false>(rows, shared, c.a, at.h, out, nullptr, (int64_t)c.a.H * S::D,
                               at.query, min(at.query + S::BM, c.a.T));
#endif
}

/* ---- launching ------------------------------------------------------------------------------- */

/* What the kernel for chunks needs beside what both need. */
static bool has_chunk_tiles(const hy_block_call &c) {
    bool has_shape = c.cap == 0 || (c.a.local == 0 && (c.a.D == 128 || c.a.D == 256));
    return has_shape && c.a.scale > 0 && c.out_type == c.qkv_type && (uintptr_t)c.out % 16 == 0;
}

bool hy_block_has_tiles(const hy_cuda *cuda, const hy_block_call &c) {
    int D = c.a.D;
    bool is_16_bit = c.qkv_type != HY_F32 && c.cache_type == c.qkv_type;
    bool is_aligned = ((uintptr_t)c.qkv | (uintptr_t)c.cache) % 16 == 0;
    return cuda->card.capability >= 80 && is_16_bit && is_aligned &&
           (D == 64 || D == 80 || D == 96 || D == 128 || D == 256) &&
           (c.a.T == 1 || has_chunk_tiles(c));
}

/* Calls f(head_rows<D>{}, T{}). */
template <typename F> static hy_status by_head(const hy_block_call &c, F f) {
    auto by_type = [&](auto head) {
        return c.qkv_type == HY_BF16 ? f(head, __nv_bfloat16{}) : f(head, __half{});
    };
    switch (c.a.D) {
    case 64: return by_type(head_rows<64>{});
    case 80: return by_type(head_rows<80>{});
    case 96: return by_type(head_rows<96>{});
    case 128: return by_type(head_rows<128>{});
    default: return by_type(head_rows<256>{});
    }
}

template <typename H, typename T, int COLUMNS>
static hy_status launch_step(const hy_cuda_run *run, const hy_block_call &c) {
    typedef step_shape<H, COLUMNS> S;
    unsigned tiles = (unsigned)hy_ceil_div(c.queries, S::QUERIES);
    unsigned heads = (unsigned)(c.a.B * c.a.K);
    unsigned spread = (unsigned)hy_block_spread(run->cuda, c, (int64_t)tiles * heads);
    return hy_launch_early(run, step_kernel<H, T, COLUMNS>, 1, dim3(spread, tiles, heads), THREADS,
                           S::BYTES, c);
}

hy_status hy_block_step_tiles(const hy_cuda_run *run, const hy_block_call &c) {
    return by_head(c, [&](auto head, auto zero) {
        using H = decltype(head);
        using T = decltype(zero);
        constexpr int MOST = H::D <= 128 ? 2 : 1; /* what fits into registers */
        return c.queries <= 8 ? launch_step<H, T, 1>(run, c) : launch_step<H, T, MOST>(run, c);
    });
}

template <typename S, typename T, bool IS_CAPPED = false, bool IS_SPARSE = false>
static hy_status launch_chunk(const hy_cuda_run *run, const hy_block_call &c) {
    hy_attention_grid grid = {};
    grid.tiles = (int)hy_ceil_div(c.a.T, S::BM);
    grid.group = c.a.H;
    grid.apart = S::ROWS_APART * (uint32_t)(c.a.H + 2 * c.a.K) * S::CHUNKS;
    grid.scale = IS_CAPPED ? c.cap : c.inner;
    grid.inner = c.inner;
    return hy_launch_with_shared(
        run, chunk_kernel<S, T, IS_CAPPED, IS_SPARSE>, grid.tiles * c.a.B * c.a.H, S::THREADS,
        S::SHARED_BYTES + (IS_SPARSE ? sizeof(hy_sparse_keys<S>) : 0), c, grid);
}

/* Shapes nearly as in attention.cu. On one card, all of a head size hold scores of as many keys at
 * once, so a row has the same bits in chunks of any length. */
template <typename T>
static hy_status launch_capped(const hy_cuda_run *run, const hy_block_call &c) {
    bool is_roomy = has_room(run->cuda);
    if (c.a.D == 128)
        return launch_chunk<chunk_shape<128, 64, 32, 32, 4, 2, 2, 8>, T, true>(run, c);
    return is_roomy ? launch_chunk<chunk_shape<256, 64, 32, 32, 4, 2, 2, 0>, T, true>(run, c)
                    : launch_chunk<chunk_shape<256, 64, 16, 16, 4, 3, 2, 16>, T, true>(run, c);
}

/* Fewer queries per block if the card has more multiprocessors than there would be blocks. */
template <typename T, bool SPARSE>
static hy_status launch_128(const hy_cuda_run *run, const hy_block_call &c) {
    const hy_cuda_card *card = &run->cuda->card;
    if (card->shared_bytes < 200 * 1024)
        return launch_chunk<chunk_shape<128, 64, 32, 32, 4, 3, 2, 8>, T, false, SPARSE>(run, c);
    return c.a.H * hy_ceil_div(c.a.T, 128) < card->multiprocessors
               ? launch_chunk<chunk_shape<128, 64, 64, 64, 4, 2, 2, 8>, T, false, SPARSE>(run, c)
               : launch_chunk<chunk_shape<128, 128, 64, 64, 4, 2, 2, 0>, T, false, SPARSE>(run, c);
}

template <typename T, bool SPARSE>
static hy_status launch_chunks(const hy_cuda_run *run, const hy_block_call &c) {
    bool is_roomy = has_room(run->cuda);
    switch (c.a.D) {
    case 64:
        return launch_chunk<chunk_shape<64, 128, 64, 32, 4, 2, 2, 4>, T, false, SPARSE>(run, c);
    case 80:
        return launch_chunk<chunk_shape<80, 128, 64, 64, 4, 2, 2, 5>, T, false, SPARSE>(run, c);
    case 96:
        return launch_chunk<chunk_shape<96, 128, 32, 32, 4, 3, 2, 6>, T, false, SPARSE>(run, c);
    case 128: return launch_128<T, SPARSE>(run, c);
    default:
        return is_roomy
                   ? launch_chunk<chunk_shape<256, 64, 32, 32, 4, 2, 2, 0>, T, false, SPARSE>(run,
                                                                                              c)
                   : launch_chunk<chunk_shape<256, 64, 16, 16, 4, 3, 2, 16>, T, false, SPARSE>(run,
                                                                                               c);
    }
}

template <typename T>
static hy_status launch_chunks_of(const hy_cuda_run *run, const hy_block_call &c) {
    if (c.cap > 0) return launch_capped<T>(run, c);
    return c.a.local > 0 ? launch_chunks<T, true>(run, c) : launch_chunks<T, false>(run, c);
}

hy_status hy_block_chunk_tiles(const hy_cuda_run *run, const hy_block_call &c) {
    return c.qkv_type == HY_BF16 ? launch_chunks_of<__nv_bfloat16>(run, c)
                                 : launch_chunks_of<__half>(run, c);
}
