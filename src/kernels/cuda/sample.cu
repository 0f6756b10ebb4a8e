/* sample.cu: chooses a token of each row of logits, exactly as sampling.h says.
 *
 * A row has a cluster of 8 blocks, each with a part of it; on cards without clusters (before sm_90)
 * it has one block. Masses of tokens are integers, so their sums do not depend on an order and may
 * be made with atomics. What top_k and top_p keep is found by histograms of the tokens, or of their
 * masses: the first has bins of equal width in the logit, so that few tokens meet in a bin, and the
 * next divide the keys of the bin that was found. Blocks exchange only sums of bins. Then the
 * masses of parts, and in a part those of spans of 256 tokens, give the span that contains the
 * random point, and one warp finds the token in it. The log-sum-exp is added in an order that does
 * not depend on the number of rows.
 *
 * A kernel cannot return an error: if a logit is NaN, so are the log-probabilities; the token is
 * any valid one. Logits without a largest finite one have no masses: the token is the first of the
 * largest. */
#include <math.h>

#include "kernels/cuda/noise.cuh"
#include "kernels/cuda/tile.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define HAS_CLUSTERS 1
#else
#define HAS_CLUSTERS 0
#endif

enum {
    CLUSTER = 8,        /* blocks */
    FEW_THREADS = 512,  /* of a block in a cluster: two fit on a multiprocessor */
    MANY_THREADS = 768, /* of a row's only block: 1024 have too few registers */
    EACH = 8,           /* neighbouring tokens of a lane */
    SPAN = 32 * EACH,
    MOST_SPANS = 4096,
    BINS = 2048,
    GROUPS = 32, /* of bins */
    IN_GROUP = BINS / GROUPS,
    COUNT_SHIFT = 48 /* a span's number of equal tokens, above its mass */
};
static_assert(IN_GROUP == 64, "a lane has two bins of a group");

typedef struct sample_call {
    const void *logits;
    int64_t width; /* V */
    int vocab, spans;
    float inner, cap; /* a logit becomes inner x, or with a cap: cap tanh(inner x) */
    const hy_sampling *sampling;
    int32_t *tokens, *top_tokens;
    float *logprobs, *top_logprobs;
    int top; /* E */
    uint32_t *seen;
    int seen_words;
} sample_call;

/* ---- blocks of a row ------------------------------------------------------------------------- */

/* Sums of 64 bits in two words: shared memory has no atomic addition of 64 bits. */
typedef struct histogram {
    uint32_t low[BINS], high[BINS];
} histogram;

/* The sum of exp(x - max), and the smallest y. */
typedef struct running {
    float max, sum, least;
} running;

/* Shared memory of a block. Other blocks of the cluster read `bins` and `groups`, those of a turn
 * until the next one's cluster_sync, and `of_part`, `rank`, `mass` and `equals`; each writes its
 * likeliest tokens to `top` of the first. */
template <int PARTS> struct alignas(16) block_memory {
    histogram bins[2]; /* of alternate turns; or sums of spans */
    uint64_t groups[2][GROUPS];
    uint64_t top[PARTS * HY_SAMPLE_TOP_MOST];
    running of_warp[32], of_part;
    uint64_t word[2][32], rank, mass, equals;
    uint64_t before, amount, target; /* what one thread found for all */
    uint32_t bin;
};
static_assert(sizeof(histogram) >= 8 * MOST_SPANS / CLUSTER, "spans of a part");
static_assert(2 * sizeof(histogram) >= 8 * MOST_SPANS, "spans of a row");
static_assert(sizeof(block_memory<CLUSTER>) <= 48 * 1024, "static shared memory");

/* Waits for all threads of the row. */
template <int PARTS> __device__ __forceinline__ void cluster_sync() {
#if HAS_CLUSTERS && defined(__CUDA_ARCH__)
    if (PARTS > 1) {
        asm volatile("barrier.cluster.arrive.release;" ::: "memory");
        asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
        return;
    }
#endif
    __syncthreads();
}

/* Where block `part` of the row has what is at p in this block's shared memory. */
template <int PARTS, typename P> __device__ __forceinline__ P *of_part(P *p, int part) {
#if HAS_CLUSTERS && defined(__CUDA_ARCH__)
    if (PARTS > 1) {
        uint64_t there;
        asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(p), "r"(part));
        return (P *)there;
    }
#endif
    return p;
}

/* ---- logits ---------------------------------------------------------------------------------- */

/* Bits that ascend with the number; 0 is below all of them. NaN counts as minus infinity. */
__device__ __forceinline__ uint32_t key_of(float x) {
    uint32_t bits = __float_as_uint(fmaxf(x, -INFINITY) + 0.0f); /* -0 becomes 0 */
    return bits ^ ((uint32_t)((int32_t)bits >> 31) | 0x80000000u);
}
__device__ __forceinline__ float number_of(uint32_t key) {
    return __uint_as_float(key >> 31 ? key & 0x7fffffffu : ~key);
}

/* Orders tokens: the larger key first, of equal ones the lower id. */
__device__ __forceinline__ uint64_t rank_of(uint32_t key, int id) {
    return (uint64_t)key << 32 | (0xffffffffu - (uint32_t)id);
}
__device__ __forceinline__ int id_of(uint64_t rank) { return (int)(0xffffffffu - (uint32_t)rank); }

/* Lower bits of the key of a widened number: they follow from its sign. */
__device__ __forceinline__ int unused_bits(float) { return 0; }
__device__ __forceinline__ int unused_bits(__half) { return 13; }
__device__ __forceinline__ int unused_bits(__nv_bfloat16) { return 16; }

/* A row as the choice sees it; the spans are those of this block. */
template <typename T, int PARTS> struct row_view {
    const T *logits;
    const uint32_t *seen; /* NULL: there is no penalty */
    float inner, cap, penalty;
    int vocab, part, first_span, end_span;
    int unused; /* bits of a key */
    bool is_packed;

    __device__ __forceinline__ row_view(const sample_call &c, const hy_sampling &s, int row) {
        bool has_penalty = c.seen && s.penalty != 0 && s.penalty != 1;
        logits = (const T *)c.logits + row * c.width;
        seen = has_penalty ? c.seen + (int64_t)row * c.seen_words : NULL;
        inner = c.inner, cap = c.cap, penalty = s.penalty, vocab = c.vocab;
        is_packed = (uintptr_t)logits % 16 == 0;
        int share = (c.spans + PARTS - 1) / PARTS;
        part = (int)blockIdx.x % PARTS;
        first_span = part * share, end_span = min(first_span + share, c.spans);
        bool is_plain = !seen && inner == 1 && !(cap > 0);
        unused = is_plain ? unused_bits(T{}) : 0;
    }
    __device__ __forceinline__ float shaped(float x) const {
        return cap > 0 ? cap * hy_tanh(inner * x) : inner * x;
    }
    __device__ __forceinline__ float at(int id) const { return shaped(hy_to_float(logits[id])); }
    /* Tokens [id, id + EACH), id a multiple of EACH; minus infinity for those behind the
     * vocabulary. Returns how many there are. */
    __device__ __forceinline__ int fetch(int id, float x[EACH]) const {
        constexpr int pack = hy_pack<T>::count;
        int there = min(max(vocab - id, 0), (int)EACH);
        if (is_packed && there == EACH) {
            hy_pack<T> packs[EACH / pack];
            HY_EACH(i, EACH / pack) packs[i] = hy_load_pack(logits + id + i * pack);
            HY_EACH(i, EACH) x[i] = shaped(hy_to_float(packs[i / pack].v[i % pack]));
        } else {
            HY_EACH(i, EACH) x[i] = i < there ? at(id + i) : -INFINITY;
        }
        return there;
    }
    /* Applies the penalty: x becomes y. */
    __device__ __forceinline__ void punish(int id, int there, float x[EACH]) const {
        if (!seen || there == 0) return;
        uint32_t bits = seen[id / 32] >> id % 32;
        HY_EACH(i, EACH) {
            if (bits >> i & 1) x[i] = x[i] > 0 ? x[i] / penalty : x[i] * penalty;
        }
    }
};

/* Calls f(id, there, x) for each lane's tokens of each span of a warp. */
template <typename R, typename F> __device__ __forceinline__ void each_span(const R &row, F f) {
    int warp = (int)threadIdx.x / 32, warps = (int)blockDim.x / 32;
    for (int span = row.first_span + warp; span < row.end_span; span += warps) {
        float x[EACH];
        int id = span * SPAN + (int)threadIdx.x % 32 * EACH;
        f(id, row.fetch(id, x), x);
    }
}

/* ---- over a warp ----------------------------------------------------------------------------- */

__device__ __forceinline__ uint64_t max_of_warp(uint64_t x) {
    for (int d = 16; d > 0; d >>= 1) {
        uint64_t other = __shfl_xor_sync(0xffffffffu, (unsigned long long)x, d);
        x = other > x ? other : x;
    }
    return x;
}
__device__ __forceinline__ uint64_t sum_of_warp(uint64_t x) {
    for (int d = 16; d > 0; d >>= 1) {
        x += __shfl_xor_sync(0xffffffffu, (unsigned long long)x, d);
    }
    return x;
}
__device__ __forceinline__ uint64_t from_lane(uint64_t x, int lane) {
    return __shfl_sync(0xffffffffu, (unsigned long long)x, lane);
}
/* The sum over the lanes before this one; *all: over all of them. */
__device__ __forceinline__ uint64_t sum_before_lane(uint64_t x, uint64_t *all) {
    uint64_t sum = x;
    for (int d = 1; d < 32; d *= 2) {
        uint64_t other = __shfl_up_sync(0xffffffffu, (unsigned long long)sum, d);
        if ((int)threadIdx.x % 32 >= d) sum += other;
    }
    *all = from_lane(sum, 31);
    return sum - x;
}

/* ---- log-sum-exp ----------------------------------------------------------------------------- */

__device__ __forceinline__ float exp_from(float x, float max) {
    return hy_exp2((x - (max == -INFINITY ? 0.0f : max)) * HY_LOG2E);
}
__device__ __forceinline__ running joined(running a, running b) {
    float max = fmaxf(a.max, b.max);
    return {max, a.sum * exp_from(a.max, max) + b.sum * exp_from(b.max, max),
            fminf(a.least, b.least)};
}
/* In lane 0. */
__device__ __forceinline__ running joined_lanes(running a) {
    for (int d = 16; d > 0; d >>= 1) {
        running other = {__shfl_xor_sync(0xffffffffu, a.max, d),
                         __shfl_xor_sync(0xffffffffu, a.sum, d),
                         __shfl_xor_sync(0xffffffffu, a.least, d)};
        a = joined(a, other);
    }
    return a;
}

/* Of the row's logits, and the largest rank with the penalty; both in all threads. */
template <typename T, int PARTS>
__device__ __forceinline__ running survey(const row_view<T, PARTS> &row, block_memory<PARTS> *m,
                                          uint64_t *largest) {
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, warps = (int)blockDim.x / 32;
    const running none = {-INFINITY, 0, INFINITY};
    running r = none;
    float best = -INFINITY;
    int best_id = -1;
    each_span(row, [&](int id, int there, float x[EACH]) {
        float max = r.max, sum = 0;
        HY_EACH(i, EACH) max = fmaxf(max, x[i]);
        HY_EACH(i, EACH) sum += exp_from(x[i], max);
        r = {max, r.sum * exp_from(r.max, max) + sum, r.least};
        row.punish(id, there, x);
        if (best_id < 0 && there > 0) best_id = id;
        HY_EACH(i, EACH) {
            if (i < there) r.least = fminf(r.least, x[i]);
            if (x[i] > best) best = x[i], best_id = id + i;
        }
    });
    r = joined_lanes(r);
    uint64_t rank = max_of_warp(best_id < 0 ? 0 : rank_of(key_of(best), best_id));
    if (lane == 0) m->of_warp[warp] = r, m->word[0][warp] = rank;
    __syncthreads();
    if (warp == 0) {
        r = joined_lanes(lane < warps ? m->of_warp[lane] : none);
        rank = max_of_warp(lane < warps ? m->word[0][lane] : 0);
        if (lane == 0) m->of_part = r, m->rank = rank;
    }
    cluster_sync<PARTS>();
    r = joined_lanes(lane < PARTS ? *of_part<PARTS>(&m->of_part, lane) : none);
    *largest = max_of_warp(lane < PARTS ? *of_part<PARTS>(&m->rank, lane) : 0);
    return {__shfl_sync(0xffffffffu, r.max, 0), __shfl_sync(0xffffffffu, r.sum, 0),
            __shfl_sync(0xffffffffu, r.least, 0)};
}

__device__ __forceinline__ float logprob_of(float x, const running &r) {
    return (x - r.max) - logf(r.sum);
}

/* ---- masses ---------------------------------------------------------------------------------- */

/* How tokens are weighed, and which are candidates: those with a larger y than `last`, and of those
 * with this y the first `equal`, not the `excess` others. */
typedef struct candidates {
    float largest, temperature, min_p;
    float scale; /* bins of the first histogram per unit of y */
    float last;
    uint32_t equal, excess;
    int turn; /* of the next histogram: 0 or 1 */
} candidates;

__device__ __forceinline__ float weight_of(const candidates &k, float y) {
    float x = y - k.largest;
    return expf(k.temperature == 1 ? x : x / k.temperature);
}
/* NaN has none. */
__device__ __forceinline__ uint64_t mass_of(float weight) {
    return weight >= 1 ? (uint64_t)1 << 32 : __float2uint_rz(weight * 0x1p32f);
}

/* Masses are 0 further below the largest y than 32 ln 2 temperatures. */
__device__ __forceinline__ candidates all_candidates(const hy_sampling &s, float largest,
                                                     float least) {
    float range = fminf(largest - least, 22.25f * s.temperature);
    float scale = BINS / fmaxf(range, 1e-30f);
    return {largest, s.temperature, s.min_p, scale, -INFINITY, 0, 0, 0};
}

/* ---- selection ------------------------------------------------------------------------------- */

/* The bin of y in the first histogram: a larger y never has a higher one. */
__device__ __forceinline__ uint32_t bin_of(const candidates &k, float y) {
    return (uint32_t)fminf((k.largest - y) * k.scale, BINS - 1);
}

/* The lowest key, without the unused bits, whose bin is at most `bin`. */
__device__ __forceinline__ uint32_t first_key(const candidates &k, int unused, uint32_t bin) {
    uint32_t below = 0, most = key_of(k.largest) >> unused, sign = 0x80000000u >> unused;
    if (bin >= BINS - 1) return 0;
    for (int shift = (31 - unused) & ~3; shift >= 0; shift -= 4) { /* 16 keys at a time */
        uint32_t key = below + (threadIdx.x % 16 << shift);
        uint32_t full = key << unused | (key & sign ? 0 : (1u << unused) - 1);
        bool is_below = key < most && bin_of(k, number_of(full)) > bin;
        below += (uint32_t)(__popc(__ballot_sync(0xffffffffu, is_below) & 0xffffu) - 1) << shift;
    }
    return below + 1;
}

__device__ __forceinline__ void add_to_bin(histogram *bins, uint32_t bin, uint64_t amount) {
    if (amount == 0) return;
    uint32_t low = (uint32_t)amount, high = (uint32_t)(amount >> 32);
    high += atomicAdd(&bins->low[bin], low) > ~low;
    if (high > 0) atomicAdd(&bins->high[bin], high);
}

/* Numbers of candidates, or masses, by the bin that f(y) gives; no bin from BINS on. */
template <typename T, int PARTS, typename F>
__device__ __forceinline__ void fill_bins(const row_view<T, PARTS> &row, const candidates &k,
                                          block_memory<PARTS> *m, bool is_mass, F f) {
    histogram *bins = &m->bins[k.turn];
    for (int i = (int)threadIdx.x; i < BINS; i += (int)blockDim.x) bins->low[i] = bins->high[i] = 0;
    __syncthreads();
    uint32_t bin = 0;
    uint64_t sum = 0; /* a lane adds neighbours in one bin before it uses the atomics */
    each_span(row, [&](int id, int there, float y[EACH]) {
        row.punish(id, there, y);
        HY_EACH(i, EACH) {
            uint32_t next = f(y[i]);
            if (i >= there || y[i] < k.last || next >= BINS) continue;
            if (next != bin) {
                add_to_bin(bins, bin, sum);
                bin = next, sum = 0;
            }
            sum += is_mass ? mass_of(weight_of(k, y[i])) : 1;
        }
    });
    add_to_bin(bins, bin, sum);
    __syncthreads();
    for (int group = (int)threadIdx.x / 32; group < GROUPS; group += (int)blockDim.x / 32) {
        int i = group * IN_GROUP + (int)threadIdx.x % 32;
        uint64_t low = (uint64_t)bins->low[i] + bins->low[i + 32];
        uint64_t high = (uint64_t)bins->high[i] + bins->high[i + 32];
        sum = sum_of_warp(low + (high << 32));
        if (threadIdx.x % 32 == 0) m->groups[k.turn][group] = sum;
    }
    cluster_sync<PARTS>();
}

/* Finds the bin in which the sum of bins, beginning with `above`, reaches the target; a target of 0
 * becomes the share top_p of all but `excess`. Each block's first warp does it. */
template <int PARTS>
__device__ __forceinline__ void find_bin(block_memory<PARTS> *m, int turn, uint64_t above,
                                         uint64_t target, float top_p, uint64_t excess) {
    int lane = (int)threadIdx.x;
    if (lane < 32) {
        uint64_t sum = 0, two[2] = {0, 0}, all;
        HY_EACH(part, PARTS) sum += *of_part<PARTS>(&m->groups[turn][lane], part);
        uint64_t before = above + sum_before_lane(sum, &all);
        if (target == 0) target = max(hy_sample_share(top_p, all - excess), (uint64_t)1);
        bool is_here = before < target && target <= before + sum;
        int group = (__ffs(__ballot_sync(0xffffffffu, is_here)) - 1) & (GROUPS - 1);
        int bin = group * IN_GROUP + 2 * lane;
        HY_EACH(part, PARTS) {
            const histogram *bins = of_part<PARTS>(&m->bins[turn], part);
            HY_EACH(i, 2) two[i] += bins->low[bin + i] | (uint64_t)bins->high[bin + i] << 32;
        }
        before = from_lane(before, group) + sum_before_lane(two[0] + two[1], &all);
        HY_EACH(i, 2) {
            if (before < target && target <= before + two[i]) {
                m->bin = (uint32_t)(bin + i);
                m->before = before, m->amount = two[i], m->target = target;
            }
            before += two[i];
        }
    }
    __syncthreads();
}

/* Reduces the candidates to the first of them that reach top_k tokens, or with 0 the share top_p of
 * their masses. */
template <typename T, int PARTS>
__device__ __forceinline__ void select(const row_view<T, PARTS> &row, candidates *k,
                                       block_memory<PARTS> *m, uint64_t top_k, float top_p) {
    bool is_mass = top_k == 0;
    int unused = row.unused;
    /* The last candidate's equals are in the bins, too. */
    uint64_t excess = k->excess * mass_of(weight_of(*k, k->last));
    fill_bins(row, *k, m, is_mass, [&](float y) { return bin_of(*k, y); });
    find_bin(m, k->turn, 0, top_k, top_p, excess);
    k->turn ^= 1;
    uint32_t begin = first_key(*k, unused, m->bin), end = (key_of(k->largest) >> unused) + 1;
    if (m->bin > 0) end = first_key(*k, unused, m->bin - 1);
    for (uint32_t size = end - begin; size > 1;) {
        int shift = max(21 - __clz((int)(size - 1)), 0);
        fill_bins(row, *k, m, is_mass, [&](float y) {
            uint32_t from_end = end - 1 - (key_of(y) >> unused);
            return from_end < size ? from_end >> shift : BINS;
        });
        find_bin(m, k->turn, m->before, m->target, 0, 0);
        k->turn ^= 1;
        uint32_t skipped = m->bin << shift;
        end -= skipped;
        size = min(size - skipped, 1u << shift);
    }
    uint32_t key = end - 1, sign = 0x80000000u >> unused;
    k->last = number_of(key << unused | (key & sign ? 0 : (1u << unused) - 1));
    uint64_t mass = is_mass ? mass_of(weight_of(*k, k->last)) : 1;
    k->equal = (uint32_t)((m->target - m->before + mass - 1) / mass);
    k->excess = (uint32_t)(m->amount / mass) - k->equal;
}

/* ---- the random point ------------------------------------------------------------------------ */

/* What a lane has of candidates: masses of a larger y than the last, and how many have this y. */
template <typename R>
__device__ __forceinline__ uint64_t take_stock(const R &row, const candidates &k, int id, int there,
                                               float y[EACH], uint64_t mass[EACH], int *equals) {
    uint64_t sum = 0;
    *equals = 0;
    row.punish(id, there, y);
    HY_EACH(i, EACH) {
        mass[i] = 0;
        if (i >= there) continue;
        *equals += y[i] == k.last;
        if (!(y[i] > k.last)) continue;
        float weight = weight_of(k, y[i]);
        if (weight >= k.min_p) mass[i] = mass_of(weight);
        sum += mass[i];
    }
    return sum;
}

/* How many of `count` tokens with the last candidate's y are candidates, after `before` others. */
__device__ __forceinline__ uint64_t allowed_of(const candidates &k, uint64_t before,
                                               uint64_t count) {
    uint64_t left = k.equal > before ? k.equal - before : 0;
    return left < count ? left : count;
}

/* The token of a span at `point`, by one warp; -1 in lanes that do not have it. */
template <typename R>
__device__ __forceinline__ int find_in_span(const R &row, const candidates &k, uint64_t of_equal,
                                            int span, uint64_t point, uint64_t equals_before) {
    float y[EACH];
    uint64_t mass[EACH], all;
    int id = span * SPAN + (int)threadIdx.x % 32 * EACH, there = row.fetch(id, y), equals;
    uint64_t sum = take_stock(row, k, id, there, y, mass, &equals);
    equals_before += sum_before_lane((uint64_t)equals, &all);
    uint64_t allowed = allowed_of(k, equals_before, (uint64_t)equals);
    sum += allowed * of_equal;
    uint64_t before = sum_before_lane(sum, &all);
    int token = -1;
    if (point < before || point >= before + sum) return -1;
    HY_EACH(i, EACH) {
        bool is_equal = i < there && y[i] == k.last && allowed > 0;
        uint64_t mine = is_equal ? of_equal : mass[i];
        allowed -= is_equal;
        if (token < 0 && point < before + mine) token = id + i;
        before += mine;
    }
    return token;
}

/* Chooses among the candidates; `fallback` if they have no mass. One thread of the row returns the
 * token, all others -1. */
template <typename T, int PARTS>
__device__ __forceinline__ int draw(const row_view<T, PARTS> &row, const candidates &k,
                                    const hy_sampling &s, block_memory<PARTS> *m, int fallback) {
    /* Blocks may still read the bins of the last turn. */
    uint64_t *spans = (uint64_t *)&m->bins[PARTS > 1 ? k.turn : 0];
    const uint64_t mass_bits = ((uint64_t)1 << COUNT_SHIFT) - 1;
    float weight = weight_of(k, k.last);
    uint64_t of_equal = k.equal > 0 && weight >= k.min_p ? mass_of(weight) : 0;
    int lane = (int)threadIdx.x % 32, count = max(row.end_span - row.first_span, 0);
    each_span(row, [&](int id, int there, float y[EACH]) {
        uint64_t mass[EACH];
        int equals;
        uint64_t sum = take_stock(row, k, id, there, y, mass, &equals);
        sum = sum_of_warp(sum + ((uint64_t)equals << COUNT_SHIFT));
        if (lane == 0) spans[id / SPAN - row.first_span] = sum;
    });
    __syncthreads();

    /* A lane of the first warp has some spans. */
    int each = (count + 31) / 32, first = min(lane * each, count), end = min(first + each, count);
    uint64_t mass = 0, equals = 0, all;
    if (threadIdx.x < 32) {
        for (int i = first; i < end; i++) {
            mass += spans[i] & mass_bits, equals += spans[i] >> COUNT_SHIFT;
        }
        uint64_t part_mass = sum_of_warp(mass), part_equals = sum_of_warp(equals);
        if (lane == 0) m->mass = part_mass, m->equals = part_equals;
    }
    cluster_sync<PARTS>();
    if (threadIdx.x >= 32) return -1;

    /* The part with the point: lane i has part i. */
    uint64_t part_mass = lane < PARTS ? *of_part<PARTS>(&m->mass, lane) : 0;
    uint64_t part_equals = lane < PARTS ? *of_part<PARTS>(&m->equals, lane) : 0;
    uint64_t equals_before = sum_before_lane(part_equals, &all);
    part_mass += allowed_of(k, equals_before, part_equals) * of_equal;
    uint64_t before = sum_before_lane(part_mass, &all);
    if (all == 0) return row.part == 0 && lane == 0 ? fallback : -1;
    uint4 word = hy_device_philox(s.seed, HY_RNG_SAMPLE, s.position);
    uint64_t point = hy_sample_point((uint64_t)word.y << 32 | word.x, all);
    int owner = __ffs(__ballot_sync(0xffffffffu, point < before + part_mass)) - 1;
    if (owner != row.part) return -1;

    /* The lane, and its span. */
    before = from_lane(before, owner), equals_before = from_lane(equals_before, owner);
    equals_before += sum_before_lane(equals, &all);
    mass += allowed_of(k, equals_before, equals) * of_equal;
    before += sum_before_lane(mass, &all);
    owner = __ffs(__ballot_sync(0xffffffffu, point < before + mass)) - 1;
    int span = first;
    for (; lane == owner && span < end - 1; span++) {
        uint64_t here = spans[span] >> COUNT_SHIFT;
        mass = (spans[span] & mass_bits) + allowed_of(k, equals_before, here) * of_equal;
        if (point < before + mass) break;
        before += mass, equals_before += here;
    }
    __syncwarp();
    span = row.first_span + __shfl_sync(0xffffffffu, span, owner);
    return find_in_span(row, k, of_equal, span, point - from_lane(before, owner),
                        from_lane(equals_before, owner));
}

/* ---- the likeliest tokens -------------------------------------------------------------------- */

/* The largest rank below `limit` of a warp's spans. */
template <typename R> __device__ __forceinline__ uint64_t best_below(const R &row, uint64_t limit) {
    uint64_t best = 0;
    each_span(row, [&](int id, int there, float x[EACH]) {
        HY_EACH(i, EACH) {
            uint64_t rank = i < there ? rank_of(key_of(x[i]), id + i) : 0;
            if (rank < limit && rank > best) best = rank;
        }
    });
    return max_of_warp(best);
}

/* Those of the block one after another: only the warp that had the last one looks again. Then those
 * of the row among them, each by a thread of the first block. */
template <typename T, int PARTS>
__device__ __forceinline__ void find_top(const sample_call &c, const row_view<T, PARTS> &row,
                                         block_memory<PARTS> *m, const running &r, int64_t at) {
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, warps = (int)blockDim.x / 32;
    uint64_t *top = of_part<PARTS>(m->top, 0), mine = best_below(row, ~(uint64_t)0);
    for (int i = 0; i < c.top; i++) {
        if (lane == 0) m->word[i % 2][warp] = mine;
        __syncthreads();
        uint64_t best = max_of_warp(lane < warps ? m->word[i % 2][lane] : 0);
        if (threadIdx.x == 0) top[row.part * c.top + i] = best;
        if (mine == best && best > 0) mine = best_below(row, best);
    }
    cluster_sync<PARTS>();
    if (row.part > 0 || (int)threadIdx.x >= PARTS * c.top) return;
    uint64_t rank = top[threadIdx.x];
    int place = 0;
    for (int i = 0; i < PARTS * c.top; i++) place += top[i] > rank;
    if (rank == 0 || place >= c.top) return;
    c.top_tokens[at + place] = id_of(rank);
    c.top_logprobs[at + place] = logprob_of(row.at(id_of(rank)), r);
}

/* ---- the kernel ------------------------------------------------------------------------------ */

/* All blocks of a row take the same way, because they know the same of the row and its sampling. */
template <typename T, int PARTS>
static __global__ void __launch_bounds__(PARTS > 1 ? FEW_THREADS : MANY_THREADS, PARTS > 1 ? 2 : 1)
    sample_kernel(sample_call c) {
    if constexpr ((PARTS > 1) == HAS_CLUSTERS) {
        __shared__ block_memory<PARTS> m;
        int index = (int)blockIdx.x / PARTS;
        const hy_sampling &s = c.sampling[index]; /* read where it is used: fewer registers */
        row_view<T, PARTS> row(c, s, index);
        uint64_t largest;
        running r = survey(row, &m, &largest);
        int token = id_of(largest);
        float y = number_of((uint32_t)(largest >> 32));
        if (c.top > 0) find_top(c, row, &m, r, (int64_t)index * c.top);
        if (s.forced < 0 && s.temperature > 0 && isfinite(y)) {
            candidates k = all_candidates(s, y, r.least);
            bool has_k = s.top_k > 0 && s.top_k < c.vocab;
            bool has_p = s.top_p > 0 && s.top_p < 1;
#pragma unroll 1 /* one copy of the code */
            for (int i = !has_k; i < 1 + has_p; i++) {
                select(row, &k, &m, i == 0 ? (uint64_t)s.top_k : 0, s.top_p);
            }
            token = draw(row, k, s, &m, token);
        } else {
            bool is_first = row.part == 0 && threadIdx.x == 0;
            token = !is_first ? -1 : s.forced >= 0 ? s.forced : token;
        }
        if (token >= 0) { /* one thread, and no other reads `seen` any more */
            bool is_known = token < c.vocab;
            c.tokens[index] = token;
            c.logprobs[index] =
                is_known ? logprob_of(row.at(token), r) : __int_as_float(0x7fc00000);
            if (c.seen && is_known) {
                c.seen[(int64_t)index * c.seen_words + token / 32] |= 1u << token % 32;
            }
        }
        cluster_sync<PARTS>(); /* a block's memory must stay while others read it */
    }
}

/* ---- launching ------------------------------------------------------------------------------- */

hy_status hy_cuda_sample_supports(const hy_cuda *cuda, const hy_op_call *call) {
    int vocab = call->attr.sample.vocab;
    if (vocab <= MOST_SPANS * SPAN) return HY_OK;
    return hy_cuda_fail(cuda, HY_ERR_INPUT, "%s: vocab is %d, expected at most %d on a GPU",
                        cuda->host.op_name(call->kind), vocab, (int)MOST_SPANS * SPAN);
}

template <typename T>
static hy_status launch(const hy_cuda_run *run, unsigned rows, const sample_call &c) {
    if (run->cuda->card.code < 90) {
        sample_kernel<T, 1><<<rows, MANY_THREADS, 0, run->stream>>>(c);
        return hy_cuda_launched(run);
    }
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {CLUSTER, 1, 1};
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(rows * CLUSTER);
    config.blockDim = dim3(FEW_THREADS);
    config.stream = run->stream;
    config.attrs = &cluster;
    config.numAttrs = 1;
    return hy_cuda_check(run->cuda, cudaLaunchKernelEx(&config, sample_kernel<T, CLUSTER>, c),
                         run->cuda->host.op_name(run->call->kind));
}

hy_status hy_cuda_sample(const hy_cuda_run *run) {
    const hy_tensor *t = run->call->t, *logits = &t[HY_SAMPLE_LOGITS];
    float factor = run->call->attr.sample.factor, cap = run->call->attr.sample.softcap;
    hy_status status = HY_OK;
    sample_call c = {};
    c.logits = logits->data;
    c.width = hy_width(logits);
    c.vocab = run->call->attr.sample.vocab;
    c.spans = (int)hy_ceil_div(c.vocab, SPAN);
    c.inner = (factor != 0 ? factor : 1.0f) / (cap > 0 ? cap : 1.0f);
    c.cap = cap;
    c.sampling = (const hy_sampling *)t[HY_SAMPLE_SAMPLING].data;
    c.tokens = (int32_t *)t[HY_SAMPLE_TOKENS].data;
    c.logprobs = (float *)t[HY_SAMPLE_LOGPROBS].data;
    c.top_tokens = (int32_t *)t[HY_SAMPLE_TOP_TOKENS].data;
    c.top_logprobs = (float *)t[HY_SAMPLE_TOP_LOGPROBS].data;
    c.top = c.top_tokens ? (int)hy_width(&t[HY_SAMPLE_TOP_TOKENS]) : 0;
    c.seen = (uint32_t *)t[HY_SAMPLE_SEEN].data;
    c.seen_words = c.seen ? (int)hy_width(&t[HY_SAMPLE_SEEN]) : 0;
    hy_by_type(logits->dtype, [&](auto zero) {
        status = launch<decltype(zero)>(run, (unsigned)hy_height(logits), c);
    });
    return status;
}
