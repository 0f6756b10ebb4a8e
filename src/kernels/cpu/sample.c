/* sample.c: chooses a token per row of logits, as sampling.h defines it.
 *
 * A task is a row. Candidates are never sorted: the last one that top_k or top_p admits is found by
 * a radix search over logits as unsigned numbers. It adds up counts and masses per bucket of the
 * highest bits, takes the bucket in which the limit is reached, and continues with its tokens and
 * the next bits. The time is linear in the vocabulary, also for logits that are all alike. */
#include <math.h>
#include <string.h>

#include "base/rng.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/softmax.h"
#include "kernels/cpu/vector_math.h"

/* Bits of the logit that a step of the search looks at. */
enum { FIRST_SHIFT = 21, SECOND_SHIFT = 10, BUCKETS = 2048 };

/* Weights whose masses are added at once: in 32-bit lanes. */
enum { BLOCK = 4096 };

/* Some tokens: how many, and the sum of their masses. */
typedef struct amount {
    uint64_t count, mass;
} amount;

/* A row of a call, with the scratch memory of its worker. */
typedef struct row {
    const hy_op_call *call;
    int64_t index;
    int32_t vocab;
    hy_sampling with;
    double log_sum;     /* of the exponentials of the logits; NaN if one is NaN */
    float *y;           /* logits, after the penalty; NaN has become minus infinity */
    float *w;           /* weights relative to the largest, 0 to 1 */
    int32_t *ids;       /* tokens of a bucket, ascending */
    amount *all, *some; /* buckets of the first step, and of a later one */
    uint64_t *masses;   /* of candidates, per BLOCK of tokens */
} row;

static row take_row(const hy_op_call *call, hy_cpu_workspace *workspace) {
    size_t vocab = (size_t)call->attr.sample.vocab;
    return (row){
        .call = call,
        .vocab = call->attr.sample.vocab,
        .y = hy_cpu_take(workspace, vocab * sizeof(float)),
        .w = hy_cpu_take(workspace, vocab * sizeof(float)),
        .ids = hy_cpu_take(workspace, vocab * sizeof(int32_t)),
        .all = hy_cpu_take(workspace, BUCKETS * sizeof(amount)),
        .some = hy_cpu_take(workspace, BUCKETS * sizeof(amount)),
        .masses = hy_cpu_take(workspace, (vocab / BLOCK + 1) * sizeof(uint64_t)),
    };
}

size_t hy_cpu_sample_workspace(const hy_op_call *call, int threads) {
    hy_cpu_workspace workspace = {0};
    take_row(call, &workspace);
    return workspace.used * (size_t)threads;
}

/* ---- logits ---------------------------------------------------------------------------------- */

static hy_logit_shape shape_of(const hy_op_call *call) {
    return hy_logit_shape_of(call->attr.sample.factor, call->attr.sample.softcap);
}

/* Replaces NaN by minus infinity; returns whether there was one. */
HY_CLONES static bool clean(float *x, int64_t n) {
    uint32_t any = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits = hy_float_bits(x[i]), is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
        any |= is_nan;
        x[i] = hy_bits_float(hy_pick(is_nan, 0xff800000u, bits));
    }
    return any != 0;
}

static void read_logits(row *r) {
    const hy_tensor *logits = &r->call->t[HY_SAMPLE_LOGITS];
    int64_t at = r->index * hy_tensor_width(logits), vocab = r->vocab;
    hy_cpu_widen(logits->dtype, hy_element(logits, at), r->y, vocab);
    if (!shape_of(r->call).is_plain) hy_cpu_shape_logits(shape_of(r->call), r->y, r->y, vocab);
    bool has_nan = clean(r->y, vocab);
    float largest = hy_cpu_max(r->y, vocab), shift = largest == -INFINITY ? 0 : largest;
    r->log_sum = (double)shift + log((double)hy_cpu_exp_sum(r->y, shift, vocab));
    if (has_nan) r->log_sum = (double)NAN;
}

static float log_probability(const row *r, int32_t token) {
    const hy_tensor *logits = &r->call->t[HY_SAMPLE_LOGITS];
    float buffer, z = *hy_read(logits, r->index * hy_tensor_width(logits) + token, 1, &buffer);
    if (!shape_of(r->call).is_plain) hy_cpu_shape_logits(shape_of(r->call), &z, &z, 1);
    return (float)((double)z - r->log_sum);
}

static uint32_t *seen_of(const row *r) {
    const hy_tensor *seen = &r->call->t[HY_SAMPLE_SEEN];
    return seen->data ? (uint32_t *)seen->data + r->index * hy_tensor_width(seen) : NULL;
}

static void penalize(row *r) {
    const uint32_t *seen = seen_of(r);
    float penalty = r->with.penalty;
    if (!seen || penalty == 0 || penalty == 1) return;
    for (int32_t first = 0; first < r->vocab; first += 32) {
        for (uint32_t left = seen[first / 32]; left; left &= left - 1) {
            int32_t i = first + __builtin_ctz(left);
            if (i < r->vocab) r->y[i] = r->y[i] > 0 ? r->y[i] / penalty : r->y[i] * penalty;
        }
    }
}

/* ---- the likeliest tokens -------------------------------------------------------------------- */

/* Adds a token that is less likely than those in the list, or not, to a list of at most E. */
static void insert(const float *y, int32_t token, int32_t *top, int32_t E, int32_t *count) {
    int32_t at = *count < E ? (*count)++ : E - 1;
    for (; at > 0 && y[top[at - 1]] < y[token]; at--) top[at] = top[at - 1];
    top[at] = token;
}

static void write_top(const row *r) {
    enum { FEW = 512 };
    const hy_tensor *tokens = &r->call->t[HY_SAMPLE_TOP_TOKENS];
    if (!tokens->data) return;
    int32_t E = (int32_t)hy_tensor_width(tokens), count = 0;
    int32_t *top = (int32_t *)tokens->data + r->index * E;
    float *log_probabilities = (float *)r->call->t[HY_SAMPLE_TOP_LOGPROBS].data + r->index * E;
    for (int32_t begin = 0; begin < r->vocab; begin += FEW) {
        int32_t end = (int32_t)hy_min64(begin + FEW, r->vocab);
        if (count == E && hy_cpu_max(r->y + begin, end - begin) <= r->y[top[E - 1]]) continue;
        for (int32_t i = begin; i < end; i++) {
            if (count < E || r->y[i] > r->y[top[E - 1]]) insert(r->y, i, top, E, &count);
        }
    }
    for (int32_t i = 0; i < E; i++) log_probabilities[i] = log_probability(r, top[i]);
}

/* ---- candidates ------------------------------------------------------------------------------ */

/* Infinity by an infinite temperature is NaN: it has no weight. */
HY_CLONES static void weigh(const float *y, float largest, float temperature, float *w, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits = hy_float_bits(hy_exp((y[i] - largest) / temperature));
        w[i] = hy_bits_float(hy_pick(bits > 0x7f800000u, 0, bits));
    }
}

static inline uint64_t mass_of(float w) { return (uint64_t)(int64_t)(w * 0x1p32f); }

/* A logit as an unsigned number of the same order; -0 is 0. */
static inline uint32_t order_of(float y) {
    uint32_t bits = hy_float_bits(y + 0.0f);
    return bits ^ ((0u - (bits >> 31)) | 0x80000000u);
}

/* The last candidate: tokens of a higher order are candidates, and of this order those up to id. */
typedef struct cut {
    uint32_t order;
    int32_t id;
} cut;

static inline void count_token(const row *r, int32_t id, int shift, amount *buckets) {
    amount *of = &buckets[order_of(r->y[id]) >> shift & (BUCKETS - 1)];
    of->count++;
    of->mass += mass_of(r->w[id]);
}

static amount sum(amount a, amount b) { return (amount){a.count + b.count, a.mass + b.mass}; }

static bool reaches(amount a, amount least) {
    return a.count >= least.count && a.mass >= least.mass;
}

/* The highest bucket with which *above reaches `least`; the buckets above it are added. */
static uint32_t find_bucket(const amount *buckets, amount least, amount *above) {
    uint32_t at = BUCKETS - 1;
    for (; at > 0 && !reaches(sum(*above, buckets[at]), least); at--) {
        *above = sum(*above, buckets[at]);
    }
    return at;
}

/* The last of the fewest tokens that reach `least`; *held: those tokens. */
static cut find_cut(const row *r, amount least, amount *held) {
    static const int shifts[] = {FIRST_SHIFT, SECOND_SHIFT, 0};
    *held = (amount){0};
    uint32_t bucket = find_bucket(r->all, least, held);
    int32_t n = 0;
    for (int32_t i = 0; i < r->vocab; i++) {
        r->ids[n] = i;
        n += order_of(r->y[i]) >> FIRST_SHIFT == bucket;
    }
    for (int step = 1; step < 3; step++) {
        int32_t all = n;
        memset(r->some, 0, BUCKETS * sizeof *r->some);
        for (int32_t i = 0; i < n; i++) count_token(r, r->ids[i], shifts[step], r->some);
        bucket = find_bucket(r->some, least, held);
        n = 0;
        for (int32_t i = 0; i < all; i++) {
            int32_t id = r->ids[i];
            r->ids[n] = id;
            n += (order_of(r->y[id]) >> shifts[step] & (BUCKETS - 1)) == bucket;
        }
    }
    for (int32_t i = 0;; i++) { /* equal logits */
        int32_t id = r->ids[i];
        *held = sum(*held, (amount){1, mass_of(r->w[id])});
        if (i == n - 1 || reaches(*held, least)) return (cut){order_of(r->y[id]), id};
    }
}

/* The last candidate by top_k and top_p. */
static cut cut_of(const row *r) {
    bool has_k = r->with.top_k > 0 && r->with.top_k < r->vocab;
    bool has_p = r->with.top_p > 0 && r->with.top_p < 1;
    amount held = {0};
    cut last = {.id = INT32_MAX};
    if (!has_k && !has_p) return last;
    memset(r->all, 0, BUCKETS * sizeof *r->all);
    for (int32_t i = 0; i < r->vocab; i++) count_token(r, i, FIRST_SHIFT, r->all);
    if (has_k) {
        last = find_cut(r, (amount){.count = (uint64_t)r->with.top_k}, &held);
    } else {
        for (int i = 0; i < BUCKETS; i++) held = sum(held, r->all[i]);
    }
    if (!has_p) return last;
    amount share = {.count = 1, .mass = hy_sample_share(r->with.top_p, held.mass)};
    return find_cut(r, share, &held);
}

/* ---- choosing -------------------------------------------------------------------------------- */

static int32_t find_first(const row *r, float y) {
    int32_t i = 0;
    while (i < r->vocab - 1 && r->y[i] != y) i++;
    return i;
}

/* Clears the weights of n tokens that are not candidates, from id `first` on; returns the mass of
 * the others. A mass is summed as two numbers of 16 bits. */
HY_CLONES static uint64_t keep_candidates(cut last, float min_p, const float *y, float *w,
                                          int32_t first, int32_t n) {
    uint32_t least = hy_float_bits(min_p > 0 ? min_p : 0);
    int32_t high_sum = 0, low_sum = 0;
    HY_SIMD_SUM(high_sum, low_sum)
    for (int32_t i = 0; i < n; i++) {
        uint32_t order = order_of(y[i]), bits = hy_float_bits(w[i]);
        uint32_t is_within =
            (order > last.order) | ((order == last.order) & (first + i <= last.id));
        float kept = hy_bits_float(bits & (0u - (is_within & (bits >= least))));
        float high = kept * 0x1p16f;
        int32_t whole = (int32_t)high;
        w[i] = kept;
        high_sum += whole;
        low_sum += (int32_t)((high - (float)whole) * 0x1p16f);
    }
    return ((uint64_t)high_sum << 16) + (uint64_t)low_sum;
}

/* The first token with which the sum of masses exceeds the point. */
static int32_t find_token(const row *r, uint64_t point) {
    uint64_t below = 0;
    int32_t block = 0, i;
    while (below + r->masses[block] <= point) below += r->masses[block++];
    for (i = block * BLOCK; below + mass_of(r->w[i]) <= point; i++) below += mass_of(r->w[i]);
    return i;
}

/* -1: there is no candidate, because min_p is above 1. */
static int32_t draw(const row *r) {
    cut last = cut_of(r);
    uint64_t all = 0;
    for (int32_t at = 0; at < r->vocab; at += BLOCK) {
        int32_t n = (int32_t)hy_min64(BLOCK, r->vocab - at);
        all += r->masses[at / BLOCK] =
            keep_candidates(last, r->with.min_p, r->y + at, r->w + at, at, n);
    }
    uint64_t random = hy_rng_u64(r->with.seed, HY_RNG_SAMPLE, r->with.position);
    return all > 0 ? find_token(r, hy_sample_point(random, all)) : -1;
}

/* Logits without a largest finite one have no weights. */
static int32_t choose(row *r) {
    if (r->with.forced >= 0) return r->with.forced;
    float largest = hy_cpu_max(r->y, r->vocab);
    int32_t best = find_first(r, largest);
    if (!(r->with.temperature > 0) || !isfinite(largest)) return best;
    weigh(r->y, largest, r->with.temperature, r->w, r->vocab);
    int32_t drawn = draw(r);
    return drawn >= 0 ? drawn : best;
}

static hy_sampling sampling_of(const hy_op_call *call, int64_t index) {
    hy_sampling with;
    memcpy(&with, (const char *)call->t[HY_SAMPLE_SAMPLING].data + (size_t)index * sizeof with,
           sizeof with);
    return with;
}

static void sample_task(const hy_cpu_run *run, int64_t index, int worker) {
    const hy_op_call *call = run->call;
    size_t share = hy_cpu_sample_workspace(call, 1);
    hy_cpu_workspace workspace = {.base = (char *)call->workspace.data + share * (size_t)worker};
    row r = take_row(call, &workspace);
    r.index = index;
    r.with = sampling_of(call, index);
    read_logits(&r);
    write_top(&r);
    penalize(&r);
    int32_t token = choose(&r);
    ((int32_t *)call->t[HY_SAMPLE_TOKENS].data)[index] = token;
    ((float *)call->t[HY_SAMPLE_LOGPROBS].data)[index] = log_probability(&r, token);
    if (seen_of(&r)) seen_of(&r)[token / 32] |= 1u << token % 32;
}

hy_status hy_cpu_sample(const hy_cpu_run *run) {
    const hy_op_call *call = run->call;
    int64_t rows = hy_tensor_height(&call->t[HY_SAMPLE_LOGITS]);
    for (int64_t i = 0; i < rows; i++) {
        int32_t forced = sampling_of(call, i).forced;
        HY_FAIL_IF(forced >= call->attr.sample.vocab, HY_ERR_INPUT,
                   "sampling: the forced token of row %lld is %d, expected below %d", (long long)i,
                   forced, call->attr.sample.vocab);
    }
    hy_cpu_for_each(run, rows, sample_task);
    return HY_OK;
}
