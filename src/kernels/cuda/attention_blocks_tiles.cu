/* attention_blocks_tiles.cu: cached attention over blocks on tensor cores, for 16-bit types.
 *
 * Keys are the 16-row operand of mma.sync and queries its 8 columns: scores' = k q', out' = v' p'.
 * A key head's queries (a group of heads, or neighbouring rows of it) fill the columns, so keys and
 * values are read once for all of them. A lane has scores and results of the same two queries of
 * each 8, so the softmax needs no exchange with the results. A column depends on its own query
 * only, and weights are relative to the query's exact maximum: its bits do not depend on the
 * others.
 *
 * A step (T = 1) reads memory: a block takes a range of keys, each warp 64 of them, and copies only
 * for itself. A chunk computes: each warp has its own queries, and all warps read the same keys. */
#include "kernels/cuda/attention_blocks.cuh"

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
                                             bool is_edge) {
    HY_EACH(column, COLUMNS) {
        HY_EACH(e, 4) {
            int at = key + (int)threadIdx.x % 32 / 4 + 8 * (e / 2);
            bool is_seen =
                !is_edge || (at <= mine.position[column][e % 2] && at >= mine.low[column][e % 2]);
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
 * not seen. */
template <typename H>
__device__ __forceinline__ void fetch_tile(uint32_t shared, const hy_block_call &c, int first_head,
                                           int pool_row) {
    int lane = threadIdx.x % 32;
    const char *cache = (const char *)c.cache;
    int64_t row_bytes = 4 * (int64_t)c.a.K * H::D;
    HY_EACH(i, 16 * H::CHUNKS / 32) {
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
    int rows[2]; /* keys lane and 32 + lane */
    HY_EACH(i, 2) {
        int at = key + 32 * i + lane;
        bool is_seen = at <= position && at >= low;
        rows[i] = is_seen ? (int)hy_pool_row(c, b, at) : -1;
    }
    auto fetch = [&](int copy) {
        int tile = copy % S::TILES, head = copy < S::TILES ? kv_head : c.a.K + kv_head;
        int row = __shfl_sync(0xffffffffu, rows[tile / 2], tile % 2 * 16 + lane % 16);
        fetch_tile<H>(ring + copy % S::RING * H::TILE_BYTES, c, head, row);
        hy_copy_commit();
    };
    HY_EACH(copy, S::RING) fetch(copy);

    float score[S::TILES][COLUMNS][4], out[COLUMNS][H::STEPS][4];
    float high[COLUMNS][2], total[COLUMNS][2];
    HY_EACH(tile, S::TILES) {
        hy_copy_wait<S::RING - 1>();
        __syncwarp();
        score_keys<H, T, COLUMNS>(score[tile], q, ring + tile % S::RING * H::TILE_BYTES);
        shape_scores<COLUMNS>(score[tile], c, mine, key + 16 * tile, true);
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

template <typename H> struct chunk_shape {
    static constexpr int COLUMNS = H::D <= 128 ? 2 : 1, OWN = 8 * COLUMNS, QUERIES = WARPS * OWN;
    static constexpr int KEYS = H::D <= 128 ? 64 : 32, TILES = KEYS / 16;
    static constexpr int STAGES = 3, HALF = KEYS * H::ROW_BYTES, STAGE = 2 * HALF;
    static constexpr int OUT_BYTES = QUERIES * H::PITCH * 4;
    static constexpr int BYTES = STAGES * STAGE > OUT_BYTES ? STAGES *STAGE : OUT_BYTES;
    static_assert(KEYS * H::CHUNKS % THREADS == 0 && BYTES <= 99 * 1024, "the limit of sm_120");
};

#if HY_HAS_TILES

/* Copies keys [key, key + KEYS) and their values; those before `low` and after `high` become
 * zeros. */
template <typename H>
__device__ __forceinline__ void fetch_keys(uint32_t shared, const hy_block_call &c, int b,
                                           int kv_head, int key, int low, int high) {
    typedef chunk_shape<H> S;
    const char *cache = (const char *)c.cache;
    int64_t row_bytes = 4 * (int64_t)c.a.K * H::D, to_values = 2 * (int64_t)c.a.K * H::D;
    HY_EACH(i, S::KEYS * H::CHUNKS / THREADS) {
        int row = (i * THREADS + (int)threadIdx.x) / H::CHUNKS;
        int chunk = (i * THREADS + (int)threadIdx.x) % H::CHUNKS;
        bool is_there = key + row >= low && key + row <= high;
        const char *from = cache;
        if (is_there)
            from += hy_pool_row(c, b, key + row) * row_bytes + (kv_head * H::D + 8 * chunk) * 2;
        hy_copy_async(shared + H::at(row, chunk), from, is_there);
        hy_copy_async(shared + S::HALF + H::at(row, chunk), is_there ? from + to_values : from,
                      is_there);
    }
}

/* The softmax and results of a warp's queries so far. */
template <typename H> struct chunk_rows {
    static constexpr int COLUMNS = chunk_shape<H>::COLUMNS;
    float out[COLUMNS][H::STEPS][4], high[COLUMNS][2], total[COLUMNS][2];

    __device__ __forceinline__ chunk_rows() {
        HY_EACH(column, COLUMNS) {
            HY_EACH(e, 2) high[column][e] = -1e30f, total[column][e] = 0; /* finite: see attend */
            HY_EACH(step, H::STEPS) {
                HY_EACH(e, 4) out[column][step][e] = 0;
            }
        }
    }
};

/* Raises the maxima to those of new scores, and turns these into weights. A query that has seen no
 * key yet has a maximum far below all scores, and its weights are zero. */
template <typename H>
__device__ __forceinline__ void soften(chunk_rows<H> &rows,
                                       float (*score)[chunk_shape<H>::COLUMNS][4]) {
    typedef chunk_shape<H> S;
    HY_EACH(column, S::COLUMNS) {
        HY_EACH(e, 2) {
            float top = rows.high[column][e], sum = 0;
            HY_EACH(tile, S::TILES) {
                top = fmaxf(top, fmaxf(score[tile][column][e], score[tile][column][2 + e]));
            }
            top = max_of_query(top);
            float shrink = hy_exp2(rows.high[column][e] - top);
            rows.high[column][e] = top;
            HY_EACH(tile, S::TILES) {
                HY_EACH(half, 2) {
                    float *x = &score[tile][column][2 * half + e];
                    *x = hy_exp2(*x - top);
                    sum += *x;
                }
            }
            rows.total[column][e] = rows.total[column][e] * shrink + sum;
            HY_EACH(step, H::STEPS) {
                rows.out[column][step][e] *= shrink;
                rows.out[column][step][2 + e] *= shrink;
            }
        }
    }
}

/* Divides by the totals, of which the sink is a part, and writes the block's queries. */
template <typename H>
__device__ __forceinline__ void write_queries(const hy_block_call &c, const float *results, int b,
                                              int kv_head, int query) {
    for (int i = threadIdx.x; i < chunk_shape<H>::QUERIES * H::D; i += THREADS) {
        int at = i / H::D, column = i % H::D;
        if (query + at >= c.queries) return;
        const float *row = results + at * H::PITCH;
        float sink = hy_block_sink(c, kv_head * c.group + (query + at) % c.group);
        float high = fmaxf(row[H::D], sink), shrink = exp2f(row[H::D] - high);
        float total = fmaf(row[H::D + 1], shrink, exp2f(sink - high));
        hy_store_any(c.out, hy_out_at(c, b, kv_head, query + at) + column, c.out_type,
                     row[column] * shrink / total);
    }
}

#endif

/* Blocks (queries / QUERIES, K, B). The tiles that see most keys go first. */
template <typename H, typename T>
static __global__ void __launch_bounds__(THREADS, 2) chunk_kernel(hy_block_call c) {
#if HY_HAS_TILES
    typedef chunk_shape<H> S;
    extern __shared__ __align__(1024) char shared[];
    int b = blockIdx.z, kv_head = blockIdx.y, warp = threadIdx.x / 32, first = c.first[b];
    int query = (int)(gridDim.x - 1 - blockIdx.x) * S::QUERIES, own = query + warp * S::OWN;
    if (first < 0) return;
    int low = hy_first_seen(c, first + query / c.group);
    int last = first + min(query + S::QUERIES - 1, c.queries - 1) / c.group;
    /* of the warp: the first keys that its queries see, and the last */
    int own_first = first + min(own, c.queries - 1) / c.group;
    int own_last = first + min(own + S::OWN - 1, c.queries - 1) / c.group;
    int own_low = hy_first_seen(c, own_first), own_high = hy_first_seen(c, own_last);

    uint32_t q[S::COLUMNS][H::STEPS][2], base = hy_shared_address(shared);
    HY_EACH(column, S::COLUMNS) load_queries<H>(q[column], c, b, kv_head, own + 8 * column);
    lane_queries<S::COLUMNS> mine(c, first, own);
    chunk_rows<H> rows;
    int tile = low / S::KEYS, end = last / S::KEYS, next = tile;
    auto fetch = [&] {
        if (next <= end) {
            fetch_keys<H>(base + next % S::STAGES * S::STAGE, c, b, kv_head, next * S::KEYS, low,
                          last);
        }
        hy_copy_commit();
        next++;
    };
    HY_EACH(i, S::STAGES - 1) fetch();
    for (; tile <= end; tile++) {
        int key = tile * S::KEYS;
        uint32_t keys = base + tile % S::STAGES * S::STAGE;
        hy_copy_wait<S::STAGES - 2>();
        __syncthreads();
        fetch();
        if (key > own_last || key + S::KEYS <= own_low) continue; /* the warp sees none of them */
        bool is_edge = key + S::KEYS > own_first + 1 || key < own_high;
        float score[S::TILES][S::COLUMNS][4];
        HY_EACH(i, S::TILES) {
            score_keys<H, T, S::COLUMNS>(score[i], q, keys + i * H::TILE_BYTES);
            shape_scores<S::COLUMNS>(score[i], c, mine, key + 16 * i, is_edge);
        }
        soften<H>(rows, score);
        HY_EACH(i, S::TILES) {
            weigh_values<H, T, S::COLUMNS>(rows.out, score[i], keys + S::HALF + i * H::TILE_BYTES);
        }
    }
    hy_copy_wait<0>();
    __syncthreads();
    HY_EACH(column, S::COLUMNS) {
        HY_EACH(e, 2) rows.total[column][e] = sum_of_query(rows.total[column][e]);
    }
    float *results = (float *)shared;
    leave_results<H, S::COLUMNS>(results + warp * S::OWN * H::PITCH, rows.out, rows.high,
                                 rows.total);
    __syncthreads();
    write_queries<H>(c, results, b, kv_head, query);
#endif
}

/* ---- launching ------------------------------------------------------------------------------- */

bool hy_block_has_tiles(const hy_cuda *cuda, const hy_block_call &c) {
    int D = c.a.D;
    bool is_16_bit = c.qkv_type != HY_F32 && c.cache_type == c.qkv_type;
    bool is_aligned = ((uintptr_t)c.qkv | (uintptr_t)c.cache) % 16 == 0;
    return cuda->card.capability >= 80 && is_16_bit && is_aligned &&
           (D == 64 || D == 80 || D == 96 || D == 128 || D == 256);
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
    return hy_launch_with_shared(run, step_kernel<H, T, COLUMNS>, dim3(spread, tiles, heads),
                                 THREADS, S::BYTES, c);
}

hy_status hy_block_step_tiles(const hy_cuda_run *run, const hy_block_call &c) {
    return by_head(c, [&](auto head, auto zero) {
        using H = decltype(head);
        using T = decltype(zero);
        constexpr int MOST = H::D <= 128 ? 2 : 1; /* what fits into registers */
        return c.queries <= 8 ? launch_step<H, T, 1>(run, c) : launch_step<H, T, MOST>(run, c);
    });
}

hy_status hy_block_chunk_tiles(const hy_cuda_run *run, const hy_block_call &c) {
    return by_head(c, [&](auto head, auto zero) {
        using H = decltype(head);
        using T = decltype(zero);
        typedef chunk_shape<H> S;
        dim3 grid((unsigned)hy_ceil_div(c.queries, S::QUERIES), (unsigned)c.a.K, (unsigned)c.a.B);
        return hy_launch_with_shared(run, chunk_kernel<H, T>, grid, THREADS, S::BYTES, c);
    });
}
