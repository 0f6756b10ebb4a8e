/* attention_bwd_dkv.cuh: dk and dv, by iterating over the queries that see some keys.
 *
 * The sums dk and dv of 32 keys would take all registers of a warp. So two warps share their rows
 * and divide the work by matmul: warp 0 computes the weights p from k and q and sums dv; warp 1
 * computes dp from v and dout, ds from it and p, and sums dk. The weights (capped: times 1 - tanh^2,
 * the slope of scores) pass between them through shared memory, packed as the next matmul reads them, with one slot and one named barrier for each
 * chunk of a tile. */
#pragma once

#include "kernels/cuda/attention_bwd_tiles.cuh"

template <typename S> struct hy_dkv_shape : S {
    static constexpr int PAIRS = S::THREADS / 64;
    /* Steps of a sum that are interleaved with the dot products: more would take too many
     * registers. */
    static constexpr int ALONG = S::STEPS == 4 ? 3 : S::STEPS < 8 ? S::STEPS : 8;
    static constexpr int SLOT = S::ROWS * S::CHUNK * 2; /* weights of a chunk */
    static constexpr int SLOTS_AT = S::TILES_END;
    static constexpr int ROWS_AT = SLOTS_AT + PAIRS * S::PARTS * SLOT;
    static constexpr int ROWS_STAGE = 2 * S::TILE * 4; /* lse2, then delta of a tile's queries */
    static constexpr int SHARED = ROWS_AT + 2 * ROWS_STAGE;
    static_assert(SHARED <= 99 * 1024, "the limit of sm_120");
    static_assert(S::OWN == PAIRS * S::ROWS, "no two pairs share a row");
    static_assert(PAIRS * S::PARTS < 16, "a barrier for each slot, and one for the block");
};

#if HY_HAS_TILES

/* Named barriers of a pair of warps: one arrives after writing, the other waits before reading. */
__device__ __forceinline__ void hy_pair_arrive(int barrier) {
    asm volatile("bar.arrive %0, 64;" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void hy_pair_wait(int barrier) {
    asm volatile("bar.sync %0, 64;" ::"r"(barrier) : "memory");
}

/* The state of a warp of a pair. */
struct hy_dkv_warp {
    uint32_t dot_at, add_at; /* where the lane reads the rows of either matmul, in stage 0 */
    const float *values;     /* lse2 or delta of the queries, in stage 0 */
    char *slots;             /* of the pair; a lane reads what the same lane wrote */
    int barrier;             /* of the pair's first slot */
    int own;                 /* first key */
    uint4 *kept;             /* where the lane stores ds of the next chunk */
    int row;                 /* number of sixteens of queries before it */
};

/* Stores ds of a chunk and advances to the next. */
template <typename S>
__device__ __forceinline__ void hy_dkv_keep(hy_dkv_warp &w, const uint32_t ds[S::M][S::N][4]) {
    static_assert(S::CHUNK == HY_BWD_PIECE, "a chunk is a row of pieces");
    HY_EACH(m, S::M) {
        if (w.row >= w.own / HY_BWD_PIECE + m) w.kept[m * 32] = *(const uint4 *)ds[m][0];
    }
    w.row++;
    w.kept += w.row * 32;
}

/* Converts scores s (keys, queries) to weights. */
template <typename S>
__device__ __forceinline__ void hy_dkv_weigh(float s[S::M][2 * S::N][4], const float *lse2,
                                             float scale) {
    HY_EACH(n, 2 * S::N) {
        float2 lse = *(const float2 *)&lse2[n * 8 + threadIdx.x % 4 * 2];
        HY_EACH(m, S::M) {
            HY_EACH(r, 2) {
                s[m][n][2 * r] = hy_exp2(s[m][n][2 * r] * scale - lse.x);
                s[m][n][2 * r + 1] = hy_exp2(s[m][n][2 * r + 1] * scale - lse.y);
            }
        }
    }
}

/* As above for capped scores: s becomes weights, w weights times the slope of scores. */
template <typename S>
__device__ __forceinline__ void hy_dkv_weigh_capped(float s[S::M][2 * S::N][4],
                                                    float w[S::M][2 * S::N][4], const float *lse2,
                                                    float scale, float inner) {
    HY_EACH(n, 2 * S::N) {
        float2 lse = *(const float2 *)&lse2[n * 8 + threadIdx.x % 4 * 2];
        HY_EACH(m, S::M) {
            HY_EACH(e, 4) {
                float t = hy_tanh(s[m][n][e] * inner);
                s[m][n][e] = hy_exp2(t * scale - (e % 2 ? lse.y : lse.x));
                w[m][n][e] = s[m][n][e] * (1.0f - t * t);
            }
        }
    }
}

/* Clears the weights of keys that a query does not see. */
template <typename S, bool IS_SPARSE>
__device__ __forceinline__ void hy_dkv_hide(float p[S::M][2 * S::N][4], const hy_cuda_heads &a,
                                            int b, int query, int key) {
    int lane = threadIdx.x % 32;
    HY_EACH(n, 2 * S::N) {
        HY_EACH(e, 2) {
            int i = query + n * 8 + lane % 4 * 2 + e;
            int low = hy_first_key(a, b, min(i, a.T - 1)), high = i - key;
            hy_gap gap = {};
            if (IS_SPARSE) gap = hy_sparse_gap(a.local, a.global, low, i);
            low -= key, gap.begin -= key, gap.end -= key;
            HY_EACH(m, S::M) {
                HY_EACH(r, 2) {
                    int row = m * 16 + r * 8 + lane / 4;
                    bool is_seen = row >= low && row <= high;
                    if (IS_SPARSE) is_seen &= row < gap.begin || row >= gap.end;
                    if (!is_seen) p[m][n][2 * r + e] = 0;
                }
            }
        }
    }
}

/* Converts s = dp to ds, with weights p. */
template <typename S, typename T>
__device__ __forceinline__ void
hy_dkv_subtract(float s[S::M][2 * S::N][4], const uint32_t p[S::M][S::N][4], const float *delta) {
    HY_EACH(n, 2 * S::N) {
        float2 d = *(const float2 *)&delta[n * 8 + threadIdx.x % 4 * 2];
        HY_EACH(m, S::M) {
            HY_EACH(r, 2) {
                float2 weight = hy_bwd_unpair<T>(p[m][n / 2][n % 2 * 2 + r]);
                s[m][n][2 * r] = weight.x * (s[m][n][2 * r] - d.x);
                s[m][n][2 * r + 1] = weight.y * (s[m][n][2 * r + 1] - d.y);
            }
        }
    }
}

/* Converts dot products s of chunk c to ds, packed. */
template <typename S, typename T>
__device__ __forceinline__ void hy_dkv_receive(uint32_t ds[S::M][S::N][4],
                                               float s[S::M][2 * S::N][4], const hy_dkv_warp &w,
                                               const float *delta, int c) {
    const uint4 *slot = (const uint4 *)(w.slots + c * S::SLOT) + threadIdx.x % 32;
    HY_EACH(i, S::M * S::N) *(uint4 *)ds[i / S::N][i % S::N] = slot[i * 32];
    hy_dkv_subtract<S, T>(s, ds, delta);
    hy_bwd_pack<S, T>(ds, s);
}

template <typename S>
__device__ __forceinline__ void hy_dkv_send(const hy_dkv_warp &w, const uint32_t p[S::M][S::N][4],
                                            int c) {
    uint4 *slot = (uint4 *)(w.slots + c * S::SLOT) + threadIdx.x % 32;
    HY_EACH(i, S::M * S::N) slot[i * 32] = *(const uint4 *)p[i / S::N][i % S::N];
    hy_pair_arrive(w.barrier + c);
}

/* Chunks [from, to) of a tile of queries that see all keys of the pair, or of any tile in warp 1.
 * The sum of the previous chunk is interleaved with the dot products of a chunk, as far as
 * registers allow, so the tensor cores always have two independent matmuls. */
template <typename S, typename T, int ROLE, bool KEEPS, bool IS_CAPPED>
__device__ __forceinline__ void hy_dkv_tile(float (*sum)[S::M][4], const hy_bwd_operand<S> &operand,
                                            hy_dkv_warp &w, float scale2, float inner, int stage,
                                            int from, int to) {
    float s[S::M][2 * S::N][4];
    uint32_t p[S::M][S::N][4], next[S::M][S::N][4];
    auto soften = [&](uint32_t result[S::M][S::N][4], int c) {
        const float *of_chunk = w.values + stage * 2 * S::TILE + c * S::CHUNK;
        if (ROLE == 1) {
            hy_dkv_receive<S, T>(result, s, w, of_chunk, c);
            if (KEEPS) hy_dkv_keep<S>(w, result);
        } else if (IS_CAPPED) {
            float sloped[S::M][2 * S::N][4];
            hy_dkv_weigh_capped<S>(s, sloped, of_chunk, scale2, inner);
            hy_bwd_pack<S, T>(result, sloped);
            hy_dkv_send<S>(w, result, c);
            hy_bwd_pack<S, T>(result, s);
        } else {
            hy_dkv_weigh<S>(s, of_chunk, scale2);
            hy_bwd_pack<S, T>(result, s);
        }
    };
    uint32_t skip = stage * S::STAGE_BYTES + from * S::CHUNK * S::ROW_BYTES;
    hy_bwd_dot<S, T>(s, operand, w.dot_at + skip);
    if (ROLE == 1) hy_pair_wait(w.barrier + from);
    soften(p, from);
    if (ROLE == 0 && !IS_CAPPED) hy_dkv_send<S>(w, p, from);
#pragma unroll 1
    for (from++; from < to; from++) {
        int c = hy_bwd_anew(from);
        uint32_t at = w.add_at + skip;
        skip += S::CHUNK * S::ROW_BYTES;
        hy_bwd_dot_and_add<S, T, S::ALONG>(s, operand, w.dot_at + skip, sum, p, at);
        if (ROLE == 1) hy_pair_wait(w.barrier + c);
        soften(next, c);
        if (ROLE == 0 && !IS_CAPPED) hy_dkv_send<S>(w, next, c);
        hy_bwd_add<S, T, S::ALONG>(sum, p, at);
        HY_EACH(i, S::M * S::N * 4) {
            p[i / 4 / S::N][i / 4 % S::N][i % 4] = next[i / 4 / S::N][i / 4 % S::N][i % 4];
        }
    }
    hy_bwd_add<S, T>(sum, p, w.add_at + skip);
}

/* As above in warp 0, if some queries do not see some keys. */
template <typename S, typename T, bool IS_CAPPED, bool IS_SPARSE>
__device__ __forceinline__ void
hy_dkv_edge_tile(float (*sum)[S::M][4], const hy_bwd_operand<S> &operand, const hy_dkv_warp &w,
                 const hy_bwd_args<T> &g, int stage, int b, int query, int from, int to) {
#pragma unroll 1
    for (int c = from; c < to; c++) {
        float s[S::M][2 * S::N][4];
        uint32_t p[S::M][S::N][4];
        uint32_t skip = stage * S::STAGE_BYTES + c * S::CHUNK * S::ROW_BYTES;
        hy_bwd_dot<S, T>(s, operand, w.dot_at + skip);
        const float *lse2 = w.values + stage * 2 * S::TILE + c * S::CHUNK;
        if (IS_CAPPED) {
            float sloped[S::M][2 * S::N][4];
            hy_dkv_weigh_capped<S>(s, sloped, lse2, g.scale2, g.inner);
            hy_dkv_hide<S, IS_SPARSE>(sloped, g.a, b, query + c * S::CHUNK, w.own);
            hy_bwd_pack<S, T>(p, sloped);
            hy_dkv_send<S>(w, p, c);
        } else {
            hy_dkv_weigh<S>(s, lse2, g.scale2);
        }
        hy_dkv_hide<S, IS_SPARSE>(s, g.a, b, query + c * S::CHUNK, w.own);
        hy_bwd_pack<S, T>(p, s);
        if (!IS_CAPPED) hy_dkv_send<S>(w, p, c);
        hy_bwd_add<S, T>(sum, p, w.add_at + skip);
    }
}

/* The last query that sees one of the keys from `key` on, if its document is long enough. */
template <typename S, typename T>
__device__ __forceinline__ int hy_dkv_last_sparse(const hy_bwd_args<T> &g, int b, int key,
                                                  int *found) {
    const hy_cuda_heads &a = g.a;
    int last = min(key + S::OWN, a.T) - 1;
    if (!a.doc_starts) { /* they are in one block */
        static_assert(HY_SPARSE_BLOCK % S::OWN == 0, "");
        return hy_sparse_last_query(a.local, a.global, 0, last, a.T);
    }
    if (threadIdx.x == 0) *found = last;
    __syncthreads();
    for (int k = key + threadIdx.x; k < key + S::OWN && k < a.T; k += S::THREADS) {
        atomicMax(found, hy_sparse_last_query(a.local, a.global, hy_first_key(a, b, k), k, a.T));
    }
    __syncthreads();
    last = *found;
    __syncthreads();
    return last;
}

/* The last tile of queries that sees a key up to `key`; they see none after `last`. With doc_starts
 * the spans are searched. */
template <typename S, typename T>
__device__ __forceinline__ int hy_dkv_last_tile(const hy_bwd_args<T> &g, int b, int key, int last,
                                                int *found) {
    if (g.a.window > 0) last = (int)min((int64_t)last, (int64_t)key + g.a.window - 1);
    if (!g.a.doc_starts) return last / S::TILE;
    if (threadIdx.x == 0) *found = key / HY_BWD_SPAN;
    __syncthreads();
    for (int span = key / HY_BWD_SPAN + 1 + threadIdx.x; span <= last / HY_BWD_SPAN;
         span += S::THREADS) {
        if (g.first_keys[b * g.spans + span].x <= key) atomicMax(found, span);
    }
    __syncthreads();
    return *found * HY_BWD_SPAN / S::TILE;
}

/* The greatest first key of a tile of queries. */
template <typename S, typename T>
__device__ __forceinline__ int hy_dkv_highest(const hy_bwd_args<T> &g, int b, int tile) {
    if (!g.a.doc_starts) return g.a.window > 0 ? tile * S::TILE + S::TILE - g.a.window : 0;
    int high = 0;
    for (int span = 0; span < S::TILE / HY_BWD_SPAN; span++) {
        high = max(high, g.first_keys[b * g.spans + tile * (S::TILE / HY_BWD_SPAN) + span].y);
    }
    return high;
}

/* The gaps of a tile of queries. */
template <typename S, typename T>
__device__ __forceinline__ hy_gaps hy_dkv_gaps(const hy_bwd_args<T> &g, int b, int tile) {
    constexpr int SPANS = S::TILE / HY_BWD_SPAN;
    int2 documents = make_int2(0, 0);
    if (g.a.doc_starts) {
        documents = g.first_keys[b * g.spans + tile * SPANS];
        for (int span = 1; span < SPANS; span++) {
            int2 more = g.first_keys[b * g.spans + tile * SPANS + span];
            documents = make_int2(min(documents.x, more.x), max(documents.y, more.y));
        }
    }
    return hy_gaps_of(g.a.local, g.a.global, documents.x, documents.y, tile * S::TILE, S::TILE);
}

/* The keys of a block, and the query heads it sums over. */
struct hy_dkv_place {
    int b, kv_head, key;
    int part, h, heads; /* heads from h on */
    bool is_part;       /* its sums are partial */
};

/* Block-sparse: first the blocks of global keys, if several share their queries. */
template <typename S, typename T>
__device__ __forceinline__ hy_dkv_place hy_dkv_sparse_place(const hy_bwd_args<T> &g, int block) {
    int group = g.a.H / g.a.K, globals = g.parts > 1 ? g.keys / S::OWN : 0;
    int shared = g.units * g.parts * globals, head = block % g.units;
    hy_dkv_place at;
    at.is_part = block < shared;
    at.part = at.is_part ? block / g.units % g.parts : 0;
    int tile = at.is_part ? block / g.units / g.parts : (block - shared) / g.units + globals;
    at.key = tile * S::OWN;
    at.kv_head = head % g.a.K;
    at.b = head / g.a.K;
    at.heads = group;
    at.h = at.kv_head * group;
    return at;
}

template <typename S, typename T, bool IS_SPARSE>
__device__ __forceinline__ hy_dkv_place hy_dkv_place_of(const hy_bwd_args<T> &g, int block) {
    if (IS_SPARSE) return hy_dkv_sparse_place<S>(g, block);
    int units = g.units * g.parts, unit = block % units, group = g.a.H / g.a.K;
    int head = g.first_unit + unit / g.parts;
    hy_dkv_place at;
    at.key = block / units * S::OWN;
    at.part = unit % g.parts;
    at.kv_head = head % g.a.K;
    at.b = head / g.a.K;
    at.heads = group / g.parts;
    at.h = at.kv_head * group + at.part * at.heads;
    at.is_part = g.parts > 1;
    return at;
}

/* Writes the sum of a warp, dv or dk, to dqkv or to the partial sums. */
template <typename S, typename T, bool IS_SPARSE>
__device__ __forceinline__ void hy_dkv_store(const hy_bwd_args<T> &g, const float (*sum)[S::M][4]) {
    hy_dkv_place at = hy_dkv_place_of<S, T, IS_SPARSE>(g, hy_bwd_anew(blockIdx.x));
    int warp = hy_bwd_anew(threadIdx.x) / 32;
    int pair = warp % S::PAIRS, is_dv = warp < S::PAIRS, own = at.key + pair * S::ROWS;
    int64_t row = (int64_t)at.b * g.a.T + own, wide = (int64_t)g.a.K * S::D;
    int64_t column = (int64_t)at.kv_head * S::D;
    float scale = is_dv ? 1 : g.a.scale;
    if (at.is_part) {
        float *to = g.partial + (at.part * 2 + is_dv) * ((int64_t)g.a.B * g.keys * wide);
        to += ((int64_t)at.b * g.keys + own) * wide + column;
        hy_bwd_store<S>(to, wide, sum, scale, g.a.T - own);
    } else {
        int64_t width = (int64_t)g.a.H * S::D + 2 * wide;
        T *to = g.dqkv + row * width + (int64_t)g.a.H * S::D + is_dv * wide + column;
        hy_bwd_store<S>(to, width, sum, scale, g.a.T - own);
    }
}

/* Starts the copy of a tile of queries, dout, lse2 and delta. */
template <typename S, typename T>
__device__ __forceinline__ void hy_dkv_fetch(const hy_bwd_args<T> &g, uint32_t shared, int stage,
                                             int b, int h, int query) {
    uint32_t to = shared + stage * S::STAGE_BYTES;
    int heads = hy_bwd_anew(g.a.H), there = g.a.T - query, thread = hy_bwd_anew(threadIdx.x);
    int64_t width = (int64_t)(heads + 2 * g.a.K) * S::D, row = (int64_t)b * g.a.T + query;
    hy_bwd_fetch<S, S::TILE>(to, g.qkv + row * width + (int64_t)h * S::D, width, there);
    hy_bwd_fetch<S, S::TILE>(to + S::TILE_BYTES, g.dout + (row * heads + h) * S::D,
                             (int64_t)heads * S::D, there);
    if (thread < S::TILE / 2) { /* four numbers each: first lse2, then delta */
        const float *from = thread < S::TILE / 4 ? g.lse2 : g.delta;
        from += ((int64_t)b * heads + h) * g.padded + query + thread % (S::TILE / 4) * 4;
        hy_copy_async(shared + S::ROWS_AT + stage * S::ROWS_STAGE + thread * 16, from, true);
    }
}

#endif

/* Blocks of the first keys, which most queries see, go first. A block takes the query heads of its
 * part one after another. KEEPS: ds is stored for the kernel of dq. */
template <typename S, typename T, bool KEEPS, bool IS_CAPPED, bool IS_SPARSE>
__global__ void __launch_bounds__(S::THREADS, S::BLOCKS)
    hy_attention_dkv_kernel(const __grid_constant__ hy_bwd_args<T> g) {
#if HY_HAS_TILES
    extern __shared__ __align__(256) char shared[];
    __shared__ int found, walk[3]; /* sequence, first and last tile: read again in each step */
    uint32_t base = hy_shared_address(shared), own_at = base + S::OWN_AT;
    const hy_cuda_heads &a = g.a;

    static_assert(!IS_SPARSE || !(KEEPS || IS_CAPPED), "there is no such kernel");
    hy_dkv_place place = hy_dkv_place_of<S, T, IS_SPARSE>(g, blockIdx.x);
    int b = place.b, h = place.h, key = place.key, first = key / S::TILE, tile = first;
    int tiles = (a.T - 1) / S::TILE - first + 1, before = 0;
    if (IS_SPARSE && place.is_part) { /* a share of all queries from the keys on */
        before = tiles * place.heads * place.part / g.parts;
        h += before / tiles;
        tile = first + before % tiles;
    }
    int64_t width = (int64_t)(a.H + 2 * a.K) * S::D, row = (int64_t)b * a.T + key;
    const T *keys = g.qkv + row * width + (int64_t)(a.H + place.kv_head) * S::D;
    hy_bwd_fetch<S, S::OWN>(own_at, keys, width, a.T - key);
    hy_bwd_fetch<S, S::OWN>(own_at + S::OWN_BYTES, keys + (int64_t)a.K * S::D, width, a.T - key);
    hy_dkv_fetch<S>(g, base, 0, b, h, tile * S::TILE);
    hy_copy_commit();
    int last = IS_SPARSE ? hy_dkv_last_sparse<S>(g, b, key, &found) : a.T - 1;
    last = hy_dkv_last_tile<S>(g, b, min(key + S::OWN, a.T) - 1, last, &found);
    if (threadIdx.x == 0) walk[0] = b, walk[1] = first, walk[2] = last;
    hy_copy_wait<0>();
    __syncthreads();

    int warp = __shfl_sync(0xffffffffu, (int)threadIdx.x / 32, 0);
    int pair = warp % S::PAIRS, role = warp / S::PAIRS;
    hy_bwd_operand<S> operand;
    hy_bwd_keep<S>(operand, own_at + role * S::OWN_BYTES + pair * S::ROWS * S::ROW_BYTES);
    hy_dkv_warp w;
    w.own = key + pair * S::ROWS;
    w.barrier = 1 + pair * S::PARTS;
    w.slots = shared + S::SLOTS_AT + pair * S::PARTS * S::SLOT;
    w.dot_at = base + role * S::TILE_BYTES + hy_bwd_by_column<S>();
    w.add_at = base + (1 - role) * S::TILE_BYTES + hy_bwd_by_row<S>();
    w.values = (const float *)(shared + S::ROWS_AT) + role * S::TILE;
    float sum[2 * S::STEPS][S::M][4];
    hy_bwd_clear<S>(sum);
    int left = (last - first + 1) * place.heads;
    if (IS_SPARSE && place.is_part)
        left = tiles * place.heads * (place.part + 1) / g.parts - before;
    for (int stage = 0; left > 0; left--, stage ^= 1) {
        hy_copy_wait<0>();
        __syncthreads();
        int sequence = walk[0], query = tile * S::TILE, high = hy_dkv_highest<S>(g, sequence, tile);
        int head = h;
        if (++tile > walk[2]) tile = walk[1], h++;
        if (left > 1) hy_dkv_fetch<S>(g, base, stage ^ 1, sequence, h, tile * S::TILE);
        hy_copy_commit();
        /* Queries before the first key of the pair see none of its keys. */
        int from = max(0, w.own - query) / S::CHUNK;
        int to = min(S::PARTS, (a.T - query + S::CHUNK - 1) / S::CHUNK);
        bool is_edge = w.own + S::ROWS - 1 > query || w.own < high;
        if (IS_SPARSE) {
            hy_gaps gaps = hy_dkv_gaps<S>(g, sequence, query / S::TILE);
            if (hy_gap_hides(gaps.all, w.own, S::ROWS)) continue;
            is_edge |= hy_gap_touches(gaps.any, w.own, S::ROWS);
        }
        if (from >= to) continue;
        if (role == 1) {
            if (KEEPS) {
                int begin = query + from * S::CHUNK;
                w.row = begin / HY_BWD_PIECE;
                w.kept = g.kept + hy_bwd_kept_of(g, sequence, head) +
                         hy_bwd_piece(begin, w.own) * 32 + threadIdx.x % 32;
            }
            hy_dkv_tile<S, T, 1, KEEPS, false>(sum, operand, w, g.scale2, 0, stage, from, to);
        } else if (is_edge) {
            hy_dkv_edge_tile<S, T, IS_CAPPED, IS_SPARSE>(sum, operand, w, g, stage, sequence, query,
                                                         from, to);
        } else {
            hy_dkv_tile<S, T, 0, false, IS_CAPPED>(sum, operand, w, g.scale2, g.inner, stage, from,
                                                   to);
        }
    }
    hy_dkv_store<S, T, IS_SPARSE>(g, sum);
#endif
}
