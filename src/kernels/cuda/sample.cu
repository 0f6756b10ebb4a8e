/* sample.cu: chooses a token of each row of logits, exactly as sampling.h says.
 *
 * One block per row. Masses of tokens are integers, so their sums do not depend on an order and may
 * be made with atomics. What top_k and top_p keep is found by radix selection: the numbers of
 * tokens, or their masses, by the upper, middle and lower bits of the logit. Then the masses of
 * spans of 256 tokens give the span that contains the random point, and one warp finds the token in
 * it. The log-sum-exp is added in a fixed order. A kernel cannot return an error: if a logit is
 * NaN, so are the log-probabilities; the token is any valid one. Logits without a largest finite
 * one have no masses: the token is the first of the largest. */
#include <math.h>

#include "kernels/cuda/noise.cuh"
#include "kernels/cuda/tile.cuh"

enum {
    WARPS = 32,
    THREADS = 32 * WARPS,
    EACH = 8, /* neighbouring tokens of a lane */
    SPAN = 32 * EACH,
    MOST_SPANS = 4096,
    BINS = 2048, /* of 11 bits */
    COPIES = 4   /* of a bin, for neighbouring lanes: most logits have similar upper bits */
};

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

/* Memory of a block: bins, or sums of spans. */
enum {
    EQUALS_AT = 8 * MOST_SPANS,
    SPAN_BYTES = EQUALS_AT + 4 * MOST_SPANS,
    BIN_BYTES = 8 * BINS * COPIES,
    SHARED_BYTES = BIN_BYTES > SPAN_BYTES ? BIN_BYTES : SPAN_BYTES
};
static_assert(SHARED_BYTES <= 99 * 1024 && MOST_SPANS == 4 * THREADS && BINS == 2 * THREADS, "");

/* ---- logits ---------------------------------------------------------------------------------- */

/* Bits that ascend with the number; 0 is below all of them. NaN counts as minus infinity. */
__device__ __forceinline__ uint32_t key_of(float x) {
    if (!(x == x)) x = -INFINITY;
    uint32_t bits = __float_as_uint(x == 0 ? 0.0f : x);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float number_of(uint32_t key) {
    return __uint_as_float(key >> 31 ? key & 0x7fffffffu : ~key);
}

/* Orders tokens: the larger key first, of equal ones the lower id. */
__device__ __forceinline__ uint64_t rank_of(uint32_t key, int id) {
    return (uint64_t)key << 32 | (0xffffffffu - (uint32_t)id);
}
__device__ __forceinline__ int id_of(uint64_t rank) { return (int)(0xffffffffu - (uint32_t)rank); }

/* A row as the choice sees it. */
template <typename T> struct row_view {
    const T *logits;
    const uint32_t *seen; /* NULL: there is no penalty */
    float inner, cap, penalty;
    int vocab;
    bool is_packed;

    __device__ __forceinline__ row_view(const sample_call &c, const hy_sampling &s, int row) {
        bool has_penalty = c.seen && s.penalty != 0 && s.penalty != 1;
        logits = (const T *)c.logits + row * c.width;
        seen = has_penalty ? c.seen + (int64_t)row * c.seen_words : NULL;
        inner = c.inner, cap = c.cap, penalty = s.penalty, vocab = c.vocab;
        is_packed = (uintptr_t)logits % 16 == 0;
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
template <typename T, typename F>
__device__ __forceinline__ void each_span(const row_view<T> &row, int spans, F f) {
    for (int span = threadIdx.x / 32; span < spans; span += WARPS) {
        float x[EACH];
        int id = span * SPAN + threadIdx.x % 32 * EACH;
        f(id, row.fetch(id, x), x);
    }
}

/* ---- over the block -------------------------------------------------------------------------- */

/* Memory for exchanges between warps. */
typedef struct exchange {
    uint64_t word[WARPS + 1];
    float max[WARPS], sum[WARPS];
    uint64_t found[3]; /* what one thread found for all */
} exchange;

__device__ __forceinline__ uint64_t max_of_warp(uint64_t x) {
    for (int d = 16; d > 0; d >>= 1) {
        uint64_t other = __shfl_xor_sync(0xffffffffu, (unsigned long long)x, d);
        x = other > x ? other : x;
    }
    return x;
}
/* In all threads. */
__device__ __forceinline__ uint64_t max_of_block(exchange *e, uint64_t x) {
    x = max_of_warp(x);
    __syncthreads();
    if (threadIdx.x % 32 == 0) e->word[threadIdx.x / 32] = x;
    __syncthreads();
    return max_of_warp(e->word[threadIdx.x % 32]);
}

/* The sum over the lanes before this one; *all: over all of them. */
__device__ __forceinline__ uint64_t sum_before_lane(uint64_t x, uint64_t *all) {
    uint64_t sum = x;
    for (int d = 1; d < 32; d *= 2) {
        uint64_t other = __shfl_up_sync(0xffffffffu, (unsigned long long)sum, d);
        if ((int)threadIdx.x % 32 >= d) sum += other;
    }
    *all = __shfl_sync(0xffffffffu, (unsigned long long)sum, 31);
    return sum - x;
}
/* As above over the threads of the block. */
__device__ __forceinline__ uint64_t sum_before_thread(exchange *e, uint64_t x, uint64_t *all) {
    uint64_t of_warp, warps;
    uint64_t before = sum_before_lane(x, &of_warp);
    __syncthreads();
    if (threadIdx.x % 32 == 0) e->word[threadIdx.x / 32] = of_warp;
    __syncthreads();
    uint64_t earlier = sum_before_lane(e->word[threadIdx.x % 32], &warps);
    *all = warps;
    return before + __shfl_sync(0xffffffffu, (unsigned long long)earlier, threadIdx.x / 32);
}

/* ---- log-sum-exp ----------------------------------------------------------------------------- */

/* The sum of exp(x - max). */
typedef struct running {
    float max, sum;
} running;

__device__ __forceinline__ float exp_from(float x, float max) {
    return hy_exp2((x - (max == -INFINITY ? 0.0f : max)) * HY_LOG2E);
}
__device__ __forceinline__ running joined(running a, running b) {
    float max = fmaxf(a.max, b.max);
    return {max, a.sum * exp_from(a.max, max) + b.sum * exp_from(b.max, max)};
}
__device__ __forceinline__ running joined_lanes(running a) {
    for (int d = 16; d > 0; d >>= 1) {
        running other = {__shfl_xor_sync(0xffffffffu, a.max, d),
                         __shfl_xor_sync(0xffffffffu, a.sum, d)};
        a = joined(a, other);
    }
    return a;
}

/* Of the row's logits, and the largest rank with the penalty; both in all threads. */
template <typename T>
__device__ __forceinline__ running survey(const sample_call &c, const row_view<T> &row, exchange *e,
                                          uint64_t *largest) {
    running r = {-INFINITY, 0};
    uint64_t best = 0;
    each_span(row, c.spans, [&](int id, int there, float x[EACH]) {
        float max = r.max, sum = 0;
        HY_EACH(i, EACH) max = fmaxf(max, x[i]);
        HY_EACH(i, EACH) sum += exp_from(x[i], max);
        r = {max, r.sum * exp_from(r.max, max) + sum};
        row.punish(id, there, x);
        HY_EACH(i, EACH) {
            uint64_t rank = i < there ? rank_of(key_of(x[i]), id + i) : 0;
            best = rank > best ? rank : best;
        }
    });
    r = joined_lanes(r);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (lane == 0) e->max[warp] = r.max, e->sum[warp] = r.sum;
    *largest = max_of_block(e, best);
    return joined_lanes(running{e->max[lane], e->sum[lane]});
}

__device__ __forceinline__ float logprob_of(float x, const running &r) {
    return (x - r.max) - logf(r.sum);
}

/* ---- masses ---------------------------------------------------------------------------------- */

/* How tokens are weighed, and which are candidates: those with a larger key than `key`, and of
 * those with this key the first `equal`, of `all`. */
typedef struct candidates {
    float largest, temperature, min_p;
    uint32_t key;
    uint64_t equal, all;
} candidates;

__device__ __forceinline__ float weight_of(const candidates &k, float y) {
    return y == k.largest ? 1.0f : expf((y - k.largest) / k.temperature);
}
__device__ __forceinline__ uint64_t mass_of(float weight) {
    return __float2ull_rz(weight * 0x1p32f);
}
/* Of any number that a key stands for; NaN counts as minus infinity. */
__device__ __forceinline__ uint64_t mass_of_key(const candidates &k, uint32_t key) {
    return mass_of(weight_of(k, number_of(key)));
}

/* ---- radix selection ------------------------------------------------------------------------- */

/* Counts (uint32_t), or masses (uint64_t), of the tokens whose upper bits are those of `prefix`, by
 * the next bits. */
template <typename Sum, typename T>
__device__ __forceinline__ void fill_bins(const sample_call &c, const row_view<T> &row,
                                          const candidates &k, Sum *bins, uint32_t prefix,
                                          int shift, int bits) {
    uint32_t upper = shift + bits < 32 ? ~0u << (shift + bits) : 0, digits = (1u << bits) - 1;
    for (int i = threadIdx.x; i < BINS * COPIES; i += THREADS) bins[i] = 0;
    __syncthreads();
    each_span(row, c.spans, [&](int id, int there, float x[EACH]) {
        row.punish(id, there, x);
        HY_EACH(i, EACH) {
            uint32_t key = key_of(x[i]);
            if (i >= there || (key & upper) != prefix || key < k.key) continue;
            Sum amount = sizeof(Sum) == 4 ? 1 : (Sum)mass_of_key(k, key);
            Sum *bin = bins + (key >> shift & digits) * COPIES + threadIdx.x % COPIES;
            if (amount > 0) atomicAdd(bin, amount);
        }
    });
    __syncthreads();
}

/* A thread has two bins, the highest the first thread. */
template <typename Sum>
__device__ __forceinline__ void read_bins(const Sum *bins, uint64_t two[2]) {
    HY_EACH(i, 2) {
        const Sum *bin = bins + (BINS - 1 - 2 * (int)threadIdx.x - i) * COPIES;
        two[i] = 0;
        HY_EACH(copy, COPIES) two[i] += bin[copy];
    }
}

/* Reduces the candidates to the first of them that reach top_k tokens, or the share top_p of their
 * masses. */
template <typename Sum, typename T>
__device__ __forceinline__ void select(const sample_call &c, const row_view<T> &row, candidates *k,
                                       exchange *e, char *shared, uint64_t top_k, float top_p) {
    constexpr bool BY_MASS = sizeof(Sum) == 8;
    constexpr int SHIFTS[] = {21, 10, 0}, BITS[] = {11, 11, 10};
    uint64_t target = top_k, above = 0; /* what is to be reached; the sum of larger keys */
    uint32_t prefix = 0;
    Sum *bins = (Sum *)shared;
    HY_EACH(level, 3) {
        uint64_t two[2], all;
        fill_bins<Sum>(c, row, *k, bins, prefix, SHIFTS[level], BITS[level]);
        read_bins<Sum>(bins, two);
        uint64_t before = above + sum_before_thread(e, two[0] + two[1], &all);
        if (BY_MASS && level == 0) { /* tokens that share the last candidate's key are in `all` */
            uint64_t excess = (k->all - k->equal) * (k->all ? mass_of_key(*k, k->key) : 0);
            target = hy_sample_share(top_p, all - excess);
            target = target > 0 ? target : 1;
        }
        HY_EACH(i, 2) {
            if (before < target && target <= before + two[i]) {
                e->found[0] = BINS - 1 - 2 * threadIdx.x - i;
                e->found[1] = before;
                e->found[2] = two[i];
            }
            before += two[i];
        }
        __syncthreads();
        prefix |= (uint32_t)e->found[0] << SHIFTS[level];
        above = e->found[1];
    }
    uint64_t mass = BY_MASS ? mass_of_key(*k, prefix) : 1, all = e->found[2] / mass;
    k->key = prefix;
    k->all = all;
    k->equal = (target - above + mass - 1) / mass;
    __syncthreads(); /* found is free again */
}

/* ---- the random point ------------------------------------------------------------------------ */

/* What a lane has of candidates: masses of larger keys than the last, and how many of its key. */
template <typename T>
__device__ __forceinline__ uint64_t take_stock(const row_view<T> &row, const candidates &k, int id,
                                               int there, float x[EACH], uint64_t mass[EACH],
                                               int *equals) {
    uint64_t sum = 0;
    *equals = 0;
    row.punish(id, there, x);
    HY_EACH(i, EACH) {
        uint32_t key = key_of(x[i]);
        mass[i] = 0;
        if (i >= there || key < k.key) continue;
        if (key == k.key) {
            ++*equals;
            continue;
        }
        float weight = weight_of(k, number_of(key));
        if (weight >= k.min_p) mass[i] = mass_of(weight);
        sum += mass[i];
    }
    return sum;
}

/* How many of `count` tokens with the last candidate's key are candidates, after `before`
 * others. */
__device__ __forceinline__ uint64_t allowed_of(const candidates &k, uint64_t before,
                                               uint64_t count) {
    uint64_t left = k.equal > before ? k.equal - before : 0;
    return left < count ? left : count;
}

/* The token of a span at `point`, by one warp; -1 in lanes that do not have it. */
template <typename T>
__device__ __forceinline__ int find_in_span(const row_view<T> &row, const candidates &k,
                                            uint64_t of_equal, int span, uint64_t point,
                                            uint64_t equals_before) {
    float x[EACH];
    uint64_t mass[EACH], all;
    int id = span * SPAN + threadIdx.x % 32 * EACH, there = row.fetch(id, x), equals;
    uint64_t sum = take_stock(row, k, id, there, x, mass, &equals);
    equals_before += sum_before_lane(equals, &all);
    uint64_t allowed = allowed_of(k, equals_before, equals);
    sum += allowed * of_equal;
    uint64_t before = sum_before_lane(sum, &all);
    int token = -1;
    if (point < before || point >= before + sum) return -1;
    HY_EACH(i, EACH) {
        bool is_equal = i < there && key_of(x[i]) == k.key && allowed > 0;
        uint64_t mine = is_equal ? of_equal : mass[i];
        allowed -= is_equal;
        if (token < 0 && point < before + mine) token = id + i;
        before += mine;
    }
    return token;
}

/* Chooses among the candidates; `fallback` if they have no mass. Only thread 0 knows the token. */
template <typename T>
__device__ __forceinline__ int draw(const sample_call &c, const row_view<T> &row,
                                    const candidates &k, const hy_sampling &s, exchange *e,
                                    char *shared, int fallback) {
    uint64_t *masses = (uint64_t *)shared;
    uint32_t *counts = (uint32_t *)(shared + EQUALS_AT);
    float weight = weight_of(k, number_of(k.key));
    uint64_t of_equal = k.equal > 0 && weight >= k.min_p ? mass_of(weight) : 0;
    for (int i = threadIdx.x; i < MOST_SPANS; i += THREADS) masses[i] = counts[i] = 0;
    __syncthreads();
    each_span(row, c.spans, [&](int id, int there, float x[EACH]) {
        uint64_t mass[EACH], sum, all_equals;
        int equals, span = id / SPAN;
        uint64_t mine = take_stock(row, k, id, there, x, mass, &equals);
        sum_before_lane(mine, &sum);
        sum_before_lane(equals, &all_equals);
        if (threadIdx.x % 32 == 0) masses[span] = sum, counts[span] = (uint32_t)all_equals;
    });
    __syncthreads();

    constexpr int MINE = MOST_SPANS / THREADS;
    uint64_t sum = 0, equals = 0, all_equals, all, span_mass[MINE], span_before[MINE];
    HY_EACH(i, MINE) equals += counts[threadIdx.x * MINE + i];
    equals = sum_before_thread(e, equals, &all_equals);
    HY_EACH(i, MINE) {
        int span = threadIdx.x * MINE + i;
        span_before[i] = equals;
        span_mass[i] = masses[span] + allowed_of(k, equals, counts[span]) * of_equal;
        equals += counts[span];
        sum += span_mass[i];
    }
    uint64_t before = sum_before_thread(e, sum, &all);
    uint4 word = hy_device_philox(s.seed, HY_RNG_SAMPLE, s.position);
    uint64_t point = hy_sample_point((uint64_t)word.y << 32 | word.x, all);
    if (all == 0) return fallback;
    HY_EACH(i, MINE) {
        if (point >= before && point < before + span_mass[i]) {
            e->found[0] = threadIdx.x * MINE + i;
            e->found[1] = point - before;
            e->found[2] = span_before[i];
        }
        before += span_mass[i];
    }
    __syncthreads();
    if (threadIdx.x >= 32) return fallback;
    int token = find_in_span(row, k, of_equal, (int)e->found[0], e->found[1], e->found[2]);
    return (int)max_of_warp((uint64_t)(token + 1)) - 1;
}

/* ---- the likeliest tokens -------------------------------------------------------------------- */

/* The largest rank below `limit` of a warp's spans. */
template <typename T>
__device__ __forceinline__ uint64_t best_below(const sample_call &c, const row_view<T> &row,
                                               uint64_t limit) {
    uint64_t best = 0;
    each_span(row, c.spans, [&](int id, int there, float x[EACH]) {
        HY_EACH(i, EACH) {
            uint64_t rank = i < there ? rank_of(key_of(x[i]), id + i) : 0;
            if (rank < limit && rank > best) best = rank;
        }
    });
    return max_of_warp(best);
}

/* One after another; only the warp that had the last one looks again. */
template <typename T>
__device__ __forceinline__ void find_top(const sample_call &c, const row_view<T> &row, exchange *e,
                                         const running &r, int64_t at) {
    uint64_t mine = best_below(c, row, ~(uint64_t)0);
    for (int i = 0; i < c.top; i++) {
        uint64_t best = max_of_block(e, mine);
        if (threadIdx.x == 0) {
            c.top_tokens[at + i] = id_of(best);
            c.top_logprobs[at + i] = logprob_of(row.at(id_of(best)), r);
        }
        if (mine == best) mine = best_below(c, row, best);
    }
}

/* ---- the kernel ------------------------------------------------------------------------------ */

template <typename T>
static __global__ void __launch_bounds__(THREADS) sample_kernel(sample_call c) {
    extern __shared__ __align__(16) char shared[];
    __shared__ exchange e;
    hy_sampling s = c.sampling[blockIdx.x];
    row_view<T> row(c, s, (int)blockIdx.x);
    uint64_t largest;
    running r = survey(c, row, &e, &largest);
    int token = id_of(largest);
    float y = number_of((uint32_t)(largest >> 32));
    if (s.forced >= 0) {
        token = s.forced;
    } else if (s.temperature > 0 && isfinite(y)) {
        candidates k = {y, s.temperature, s.min_p, 0, 0, 0};
        if (s.top_k > 0 && s.top_k < c.vocab)
            select<uint32_t>(c, row, &k, &e, shared, (uint64_t)s.top_k, 0);
        if (s.top_p > 0 && s.top_p < 1)
            select<unsigned long long>(c, row, &k, &e, shared, 0, s.top_p);
        token = draw(c, row, k, s, &e, shared, token);
    }
    if (c.top > 0) find_top(c, row, &e, r, (int64_t)blockIdx.x * c.top);
    __syncthreads(); /* the token is marked as seen after the last use of what was */
    if (threadIdx.x != 0) return;
    bool is_known = token < c.vocab;
    c.tokens[blockIdx.x] = token;
    c.logprobs[blockIdx.x] = is_known ? logprob_of(row.at(token), r) : __int_as_float(0x7fc00000);
    if (c.seen && is_known) {
        c.seen[(int64_t)blockIdx.x * c.seen_words + token / 32] |= 1u << token % 32;
    }
}

/* ---- launching ------------------------------------------------------------------------------- */

hy_status hy_cuda_sample_supports(const hy_cuda *cuda, const hy_op_call *call) {
    int vocab = call->attr.sample.vocab;
    if (vocab <= MOST_SPANS * SPAN) return HY_OK;
    return hy_cuda_fail(cuda, HY_ERR_INPUT, "%s: vocab is %d, expected at most %d on a GPU",
                        cuda->host.op_name(call->kind), vocab, (int)MOST_SPANS * SPAN);
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
        using T = decltype(zero);
        status = hy_launch_with_shared(run, sample_kernel<T>, (unsigned)hy_height(logits), THREADS,
                                       SHARED_BYTES, c);
    });
    return status;
}
