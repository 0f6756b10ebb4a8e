/* decode_calls.h: calls of the ops of batched decoding, of random numbers, and what must hold of
 * them on every backend: a row or a sequence has the same bits alone and among others. */
#ifndef HY_TESTS_DECODE_CALLS_H
#define HY_TESTS_DECODE_CALLS_H

#include "head_calls.h"
#include "row_calls.h"

/* ---- matmul ---------------------------------------------------------------------------------- */

/* Rows, columns and depths that no tile divides, and depths of several blocks. */
static const matmul_case invariant_cases[] = {
    {1, 1, 1, false, true, false, false, false},
    {3, 5, 7, false, true, true, false, false},
    {64, 200, 130, false, true, false, true, false},
    {37, 515, 70, false, true, true, true, false},
    {5, 67, 1030, false, true, false, false, true},
    {300, 19, 2049, false, true, true, false, false},
};
enum { INVARIANT_CASES = sizeof invariant_cases / sizeof invariant_cases[0] };

static inline trial invariant_trial(const matmul_case *m, int mixture) {
    trial t = matmul_trial(m, mixture, (uint64_t)(m->K + mixture));
    t.call.attr.matmul.is_batch_invariant = true;
    return t;
}

/* `count` rows from row `first` on: the same call on a part of a, c and d. */
static inline hy_op_call call_of_rows(const hy_op_call *call, int64_t first, int64_t count) {
    static const int places[] = {HY_MATMUL_A, HY_MATMUL_C, HY_MATMUL_D};
    hy_op_call part = *call;
    for (int i = 0; i < 3; i++) {
        if (call->t[places[i]].data) {
            part.t[places[i]] = hy_tensor_rows(&call->t[places[i]], first, count);
        }
    }
    return part;
}

/* Every row of the call has the bits that it has in groups of other sizes, at other places. */
static inline void check_rows_alone(const hy_op_call *call, call_runner run) {
    static const int64_t groups[] = {1, 2, 3, 4, 7, 16, 64};
    int64_t M = hy_tensor_height(&call->t[HY_MATMUL_D]);
    hy_op_call whole = *call;
    whole.t[HY_MATMUL_D] = copy_tensor(&call->t[HY_MATMUL_D]);
    run(&whole);
    for (size_t g = 0; g < sizeof groups / sizeof groups[0]; g++) {
        hy_op_call again = *call;
        again.t[HY_MATMUL_D] = copy_tensor(&call->t[HY_MATMUL_D]);
        for (int64_t row = 0, n; row < M; row += n) {
            n = groups[g] < M - row ? groups[g] : M - row;
            hy_op_call part = call_of_rows(&again, row, n);
            run(&part);
        }
        ck_assert_msg(memcmp(whole.t[HY_MATMUL_D].data, again.t[HY_MATMUL_D].data,
                             hy_tensor_bytes(&whole.t[HY_MATMUL_D])) == 0,
                      "%s by %s: rows differ in groups of %lld of %lld",
                      hy_dtype_name(call->t[HY_MATMUL_A].dtype),
                      hy_dtype_name(call->t[HY_MATMUL_B].dtype), (long long)groups[g],
                      (long long)M);
        free(again.t[HY_MATMUL_D].data);
    }
    free(whole.t[HY_MATMUL_D].data);
}

/* A matmul by stored rows has the bits of one by the numbers they stand for, in a's type, and each
 * of its rows the same bits among any others. */
static inline void check_invariant_coded(hy_dtype stored, int mixture, call_runner run) {
    static const matmul_case m = {23, 40, 1216, false, true, true, true, false};
    trial t = invariant_trial(&m, mixture);
    hy_tensor *b = &t.call.t[HY_MATMUL_B], before = *b, *d = &t.call.t[HY_MATMUL_D];
    hy_tensor codes = coded_rows(stored, m.N, m.K, 5);
    hy_tensor real = real_rows(&codes, t.call.t[HY_MATMUL_A].dtype);
    *b = real;
    run(&t.call);
    hy_tensor expected = copy_tensor(d);
    *b = codes;
    run(&t.call);
    ck_assert_msg(memcmp(expected.data, d->data, hy_tensor_bytes(d)) == 0, "%s weights by %s",
                  hy_dtype_name(stored), hy_dtype_name(t.call.t[HY_MATMUL_A].dtype));
    check_rows_alone(&t.call, run);
    *b = before;
    free(expected.data);
    free(real.data);
    free_rows(&codes);
    trial_end(&t);
}

/* ---- positions ------------------------------------------------------------------------------- */

/* Where sequence b of a call begins: some sequences are idle. */
static inline int32_t first_of(int64_t b, int32_t most) {
    return b % 4 == 2 ? -1 : (int32_t)((b * 37 + most * 3 / 4) % (most + 1));
}

/* Rows of an idle sequence are undefined: zero in both results. */
static inline void forget_idle(trial *t, int at, const int32_t *first, int64_t T) {
    int64_t width = hy_tensor_width(&t->call.t[at]);
    for (int64_t i = 0; i < hy_tensor_count(&t->call.t[at]); i++) {
        if (first[i / width / T] < 0) trial_put(t, at, i, 0);
    }
}

/* Rotations at positions of each sequence; rows of idle ones are left. */
static inline trial rope_first_trial(const heads_case *h, int mixture) {
    enum { MOST = 50 };
    heads_case longer = *h;
    longer.T += MOST;
    heads_with.has_query = h->T % 2;
    trial all = rope_trial(&longer, mixture), t = rope_trial(h, mixture);
    for (int at = HY_ROPE_TABLE; at <= HY_ROPE_QUERY; at++) { /* the longer tables */
        hy_tensor mine = t.call.t[at], exact = t.exact.t[at];
        t.call.t[at] = all.call.t[at], t.exact.t[at] = all.exact.t[at];
        all.call.t[at] = mine, all.exact.t[at] = exact;
    }
    trial_end(&all);
    trial_tensor(&t, HY_ROPE_FIRST, HY_I32, 0, h->B);
    for (int64_t b = 0; b < h->B; b++) trial_put(&t, HY_ROPE_FIRST, b, first_of(b, MOST));
    clear_options();
    return t;
}

/* Embeddings at positions of each sequence; an idle one has a token that does not exist. */
static inline trial embed_first_trial(int32_t B, int32_t T, int mixture) {
    enum { MOST = 50, V = 41, C = 70 };
    trial t = trial_begin(HY_OP_EMBED, (uint64_t)(T * 10 + mixture));
    t.call.attr.embed.seq = T;
    trial_ints(&t, HY_EMBED_TOKENS, (int64_t)B * T, 0, V - 1);
    trial_normal(&t, HY_EMBED_WTE, pick_dtype(mixture, &t.dice), V, C, 0, 1);
    trial_normal(&t, HY_EMBED_WPE, pick_dtype(mixture, &t.dice), MOST + T, C, 0, 1);
    trial_tensor(&t, HY_EMBED_X, pick_dtype(mixture, &t.dice), (int64_t)B * T, C);
    trial_tensor(&t, HY_EMBED_FIRST, HY_I32, 0, B);
    for (int64_t b = 0; b < B; b++) {
        trial_put(&t, HY_EMBED_FIRST, b, first_of(b, MOST));
        if (first_of(b, MOST) < 0) trial_put(&t, HY_EMBED_TOKENS, b * T, -7);
    }
    return t;
}

/* ---- a cache in blocks ----------------------------------------------------------------------- */

typedef struct blocks_case {
    heads_case heads;
    int32_t block; /* its rows */
    int32_t most;  /* positions before the new rows, at most */
} blocks_case;

static const blocks_case blocks_cases[] = {
    {{1, 1, 1, 1, 16, 0, false}, 16, 0},      {{5, 1, 4, 2, 64, 0, false}, 16, 600},
    {{3, 1, 6, 1, 128, 100, false}, 64, 700}, {{2, 7, 4, 4, 40, 0, false}, 256, 300},
    {{2, 140, 6, 2, 24, 0, false}, 32, 90},   {{2, 40, 8, 1, 256, 33, false}, 8, 250},
};
enum { BLOCKS_CASES = sizeof blocks_cases / sizeof blocks_cases[0] };

/* Gives the sequences blocks of a pool in a random order. The table has no block for positions
 * that a window hides or that lie in the gap of block-sparse attention, and what nobody wrote is
 * NaN. */
static inline void put_cache_in_blocks(trial *t, const blocks_case *k, hy_dtype dtype) {
    const heads_case *h = &k->heads;
    int64_t W = (k->most + h->T + k->block - 1) / k->block + 1, pool = h->B * W;
    int64_t width = 2 * (int64_t)h->K * h->D;
    trial_tensor(t, HY_ATTENTION_CACHED_CACHE, dtype, pool * k->block, width);
    hy_tensor *caches[] = {&t->call.t[HY_ATTENTION_CACHED_CACHE],
                           &t->exact.t[HY_ATTENTION_CACHED_CACHE]};
    for (int i = 0; i < 2; i++) {
        caches[i]->ndim = 3;
        caches[i]->shape[0] = pool, caches[i]->shape[1] = k->block, caches[i]->shape[2] = width;
    }
    for (int64_t i = 0; i < pool * k->block * width; i++) {
        trial_put(t, HY_ATTENTION_CACHED_CACHE, i, NAN);
    }
    trial_tensor(t, HY_ATTENTION_CACHED_FIRST, HY_I32, 0, h->B);
    trial_tensor(t, HY_ATTENTION_CACHED_BLOCKS, HY_I32, h->B, W);
    for (int64_t b = 0; b < h->B; b++) {
        int64_t first = first_of(b, k->most), hidden = h->window ? first - h->window + 1 : 0;
        trial_put(t, HY_ATTENTION_CACHED_FIRST, b, (double)first);
        for (int64_t w = 0; w < W; w++) {
            hy_gap gap = hy_sparse_gap(heads_with.sparse_local, heads_with.sparse_global, 0,
                                       (int32_t)(first < 0 ? 0 : first));
            bool is_in_gap =
                heads_with.sparse_local > 0 && hy_gap_hides(gap, (int32_t)(w * k->block), k->block);
            bool is_seen = first >= 0 && (w + 1) * k->block > hidden && !is_in_gap;
            int64_t block =
                (int64_t)hy_rng_permute(h->T, HY_RNG_TEST, (uint64_t)pool, (uint64_t)(b * W + w));
            trial_put(t, HY_ATTENTION_CACHED_BLOCKS, b * W + w, is_seen ? (double)block : -1);
            for (int64_t i = 0; is_seen && i < k->block * width; i++) {
                bool is_old = w * k->block + i / width < first;
                if (!is_old) break;
                trial_put(t, HY_ATTENTION_CACHED_CACHE, block * k->block * width + i,
                          1.5 * roll_normal(&t->dice));
            }
        }
    }
}

static inline trial blocks_trial(const blocks_case *k, int mixture) {
    const heads_case *h = &k->heads;
    trial t = trial_begin(HY_OP_ATTENTION_CACHED, (uint64_t)(h->T * 10 + mixture));
    hy_dtype dtype = pick_dtype(mixture, &t.dice);
    set_heads(&t, h);
    trial_normal(&t, HY_ATTENTION_CACHED_QKV, dtype, rows_of(h), packed_width(h), 0, 1.5);
    /* rows appended are rounded to the cache's type, which the reference does not do */
    put_cache_in_blocks(&t, k, mixture < PURE_TYPES ? dtype : HY_F32);
    trial_tensor(&t, HY_ATTENTION_CACHED_OUT, pick_dtype(mixture, &t.dice), rows_of(h),
                 (int64_t)h->H * h->D);
    put_sinks(&t, HY_ATTENTION_CACHED_SINKS, h, mixture);
    return t;
}

/* Sequence b of a call, alone. */
static inline hy_op_call call_of_sequence(const hy_op_call *call, int64_t b) {
    static const int places[] = {HY_ATTENTION_CACHED_QKV, HY_ATTENTION_CACHED_OUT,
                                 HY_ATTENTION_CACHED_FIRST, HY_ATTENTION_CACHED_BLOCKS};
    hy_op_call one = *call;
    one.attr.heads.batch = 1;
    for (int i = 0; i < 4; i++) {
        int64_t rows = i < 2 ? call->attr.heads.seq : 1;
        one.t[places[i]] = hy_tensor_rows(&call->t[places[i]], b * rows, rows);
    }
    return one;
}

/* Each sequence has the bits that it has alone, and writes the same to the cache. */
static inline void check_sequences_alone(const hy_op_call *call, call_runner run) {
    hy_op_call all = *call, single = *call;
    static const int changed[] = {HY_ATTENTION_CACHED_CACHE, HY_ATTENTION_CACHED_OUT};
    for (int i = 0; i < 2; i++) {
        all.t[changed[i]] = copy_tensor(&call->t[changed[i]]);
        single.t[changed[i]] = copy_tensor(&call->t[changed[i]]);
    }
    run(&all);
    for (int64_t b = call->attr.heads.batch - 1; b >= 0; b--) {
        hy_op_call one = call_of_sequence(&single, b);
        if (*(int32_t *)one.t[HY_ATTENTION_CACHED_FIRST].data < 0) continue;
        run(&one);
        hy_op_call same = call_of_sequence(&all, b);
        ck_assert_msg(memcmp(one.t[HY_ATTENTION_CACHED_OUT].data,
                             same.t[HY_ATTENTION_CACHED_OUT].data,
                             hy_tensor_bytes(&one.t[HY_ATTENTION_CACHED_OUT])) == 0,
                      "sequence %lld differs alone", (long long)b);
    }
    ck_assert_mem_eq(all.t[HY_ATTENTION_CACHED_CACHE].data,
                     single.t[HY_ATTENTION_CACHED_CACHE].data,
                     hy_tensor_bytes(&all.t[HY_ATTENTION_CACHED_CACHE]));
    for (int i = 0; i < 2; i++) {
        free(all.t[changed[i]].data);
        free(single.t[changed[i]].data);
    }
}

/* The rows of one sequence have the same bits in calls of `chunk` rows each. */
static inline void check_chunks(const hy_op_call *call, int32_t chunk, call_runner run) {
    hy_op_call whole = *call, part = *call;
    int32_t T = call->attr.heads.seq, first = *(int32_t *)call->t[HY_ATTENTION_CACHED_FIRST].data;
    hy_tensor cache = copy_tensor(&call->t[HY_ATTENTION_CACHED_CACHE]);
    hy_tensor out = copy_tensor(&call->t[HY_ATTENTION_CACHED_OUT]);
    run(&whole);
    part.t[HY_ATTENTION_CACHED_CACHE] = cache;
    for (int32_t at = 0; at < T; at += chunk) {
        int32_t rows = chunk < T - at ? chunk : T - at, position = first + at;
        part.attr.heads.seq = rows;
        part.t[HY_ATTENTION_CACHED_FIRST].data = &position;
        part.t[HY_ATTENTION_CACHED_QKV] =
            hy_tensor_rows(&call->t[HY_ATTENTION_CACHED_QKV], at, rows);
        part.t[HY_ATTENTION_CACHED_OUT] = hy_tensor_rows(&out, at, rows);
        run(&part);
    }
    ck_assert_msg(memcmp(out.data, call->t[HY_ATTENTION_CACHED_OUT].data, hy_tensor_bytes(&out)) ==
                      0,
                  "chunks of %d rows", chunk);
    free(cache.data);
    free(out.data);
}

/* ---- sampling -------------------------------------------------------------------------------- */

typedef struct sample_rows {
    int64_t rows, V, E; /* E 0: no likeliest tokens */
    hy_dtype dtype;
    int32_t vocab;
    float factor, softcap;
    bool has_seen;
} sample_rows;

/* Logits are normal with this deviation; each row has an hy_sampling of no options. */
static inline hy_op_call sample_call(const sample_rows *s, double deviation, uint64_t seed) {
    hy_op_call call = {.kind = HY_OP_SAMPLE};
    call.attr.sample.vocab = s->vocab;
    call.attr.sample.factor = s->factor;
    call.attr.sample.softcap = s->softcap;
    hy_tensor *t = call.t;
    size_t rows = (size_t)s->rows, words = (size_t)(s->V + 31) / 32;
    t[HY_SAMPLE_LOGITS] = hy_tensor_2d(malloc(rows * (size_t)s->V * hy_dtype_size(s->dtype)),
                                       s->dtype, s->rows, s->V);
    t[HY_SAMPLE_SAMPLING] = hy_tensor_2d(calloc(rows, sizeof(hy_sampling)), HY_U8, s->rows,
                                         (int64_t)sizeof(hy_sampling));
    t[HY_SAMPLE_TOKENS] = hy_tensor_1d(calloc(rows, 4), HY_I32, s->rows);
    t[HY_SAMPLE_LOGPROBS] = hy_tensor_1d(calloc(rows, 4), HY_F32, s->rows);
    if (s->E > 0) {
        t[HY_SAMPLE_TOP_TOKENS] =
            hy_tensor_2d(calloc(rows * (size_t)s->E, 4), HY_I32, s->rows, s->E);
        t[HY_SAMPLE_TOP_LOGPROBS] =
            hy_tensor_2d(calloc(rows * (size_t)s->E, 4), HY_F32, s->rows, s->E);
    }
    if (s->has_seen) {
        t[HY_SAMPLE_SEEN] = hy_tensor_2d(calloc(rows * words, 4), HY_I32, s->rows, (int64_t)words);
    }
    for (int64_t i = 0; i < s->rows * s->V; i++) {
        put_real(&t[HY_SAMPLE_LOGITS], i,
                 deviation * hy_rng_normal(seed, HY_RNG_TEST, (uint64_t)i));
    }
    for (int64_t i = 0; i < s->rows; i++) {
        ((hy_sampling *)t[HY_SAMPLE_SAMPLING].data)[i] =
            (hy_sampling){.forced = -1, .seed = seed, .position = (uint64_t)i};
    }
    return call;
}

static inline void free_call(hy_op_call *call) {
    for (int i = 0; i < HY_OP_TENSORS; i++) free(call->t[i].data);
}

static inline hy_sampling *sampling_at(const hy_op_call *call, int64_t row) {
    return (hy_sampling *)call->t[HY_SAMPLE_SAMPLING].data + row;
}
static inline int32_t token_at(const hy_op_call *call, int64_t row) {
    return ((const int32_t *)call->t[HY_SAMPLE_TOKENS].data)[row];
}
static inline float logprob_at(const hy_op_call *call, int64_t row) {
    return ((const float *)call->t[HY_SAMPLE_LOGPROBS].data)[row];
}

/* A token with its logit, for sorting: the likeliest first, of equal ones the lowest id. */
typedef struct ranked {
    double y;
    int32_t id;
} ranked;

static inline int by_rank(const void *a, const void *b) {
    const ranked *x = a, *y = b;
    if (x->y != y->y) return x->y > y->y ? -1 : 1;
    return x->id - y->id;
}

/* The logit of the model, with factor and cap. */
static inline double reference_logit_at(const hy_op_call *call, int64_t row, int32_t token) {
    const hy_tensor *logits = &call->t[HY_SAMPLE_LOGITS];
    double cap = (double)call->attr.sample.softcap, factor = (double)call->attr.sample.factor;
    double x = real_at(logits, row * hy_tensor_width(logits) + token) * (factor != 0 ? factor : 1);
    return cap > 0 ? cap * tanh(x / cap) : (double)(float)x;
}

static inline bool is_seen(const hy_op_call *call, int64_t row, int32_t token) {
    const hy_tensor *seen = &call->t[HY_SAMPLE_SEEN];
    if (!seen->data) return false;
    const uint32_t *words = (const uint32_t *)seen->data + row * hy_tensor_width(seen);
    return words[token / 32] >> token % 32 & 1;
}

/* All tokens of a row by rank, with the penalty or without. */
static inline ranked *rank_all(const hy_op_call *call, int64_t row, bool is_penalized) {
    int32_t vocab = call->attr.sample.vocab;
    float penalty = sampling_at(call, row)->penalty;
    ranked *all = malloc((size_t)vocab * sizeof *all);
    for (int32_t i = 0; i < vocab; i++) {
        double y = reference_logit_at(call, row, i);
        if (is_penalized && penalty != 0 && is_seen(call, row, i)) {
            y = (double)(y > 0 ? (float)y / penalty : (float)y * penalty);
        }
        all[i] = (ranked){y, i};
    }
    qsort(all, (size_t)vocab, sizeof *all, by_rank);
    return all;
}

/* How many of the sorted tokens are candidates; limits of top_p and min_p are moved by the part
 * `slack`. */
static inline int32_t reference_candidates(const hy_sampling *with, const ranked *all,
                                           int32_t vocab, double slack) {
    int32_t n = with->top_k > 0 && with->top_k < vocab ? with->top_k : vocab;
    double T = (double)with->temperature, sum = 0, held = 0;
    for (int32_t i = 0; i < n; i++) sum += exp((all[i].y - all[0].y) / T);
    double share = (double)with->top_p * (1 + slack) * sum;
    for (int32_t i = 0; with->top_p > 0 && with->top_p < 1 && i < n; i++) {
        held += exp((all[i].y - all[0].y) / T);
        if (held >= share) n = i + 1;
    }
    double least = (double)with->min_p * (1 + slack);
    while (n > 1 && exp((all[n - 1].y - all[0].y) / T) < least) n--;
    return n;
}

/* The token of sampling.h from all tokens by rank, in double; the random point is moved by
 * `aside`. */
static inline int32_t reference_token(const hy_sampling *with, const ranked *all, int32_t vocab,
                                      double slack, double aside) {
    if (with->forced >= 0) return with->forced;
    if (with->temperature <= 0) return all[0].id;
    int32_t n = reference_candidates(with, all, vocab, slack), token = -1;
    double *weights = calloc((size_t)vocab, sizeof *weights), sum = 0, below = 0;
    for (int32_t i = 0; i < n; i++) {
        sum += weights[all[i].id] = exp((all[i].y - all[0].y) / (double)with->temperature);
    }
    double random = (double)hy_rng_u64(with->seed, HY_RNG_SAMPLE, with->position) * 0x1p-64;
    for (int32_t i = 0; i < vocab && token < 0; i++) {
        below += weights[i];
        if (below > (random + aside) * sum) token = i;
    }
    free(weights);
    return token;
}

/* Whether the tokens are those of the reference, in rows where rounding cannot matter; returns how
 * many rows these are. */
static inline int64_t check_tokens_chosen(const hy_op_call *call) {
    const double little = 1e-6;
    int64_t decided = 0;
    for (int64_t row = 0; row < hy_tensor_height(&call->t[HY_SAMPLE_LOGITS]); row++) {
        hy_sampling with = *sampling_at(call, row);
        int32_t vocab = call->attr.sample.vocab, tokens[4];
        ranked *all = rank_all(call, row, true);
        for (int i = 0; i < 4; i++) {
            tokens[i] = reference_token(&with, all, vocab, i % 2 ? little : -little,
                                        i / 2 ? little : -little);
        }
        free(all);
        if (tokens[0] != tokens[1] || tokens[0] != tokens[2] || tokens[0] != tokens[3]) continue;
        ck_assert_msg(token_at(call, row) == tokens[0], "row %lld has token %d, expected %d",
                      (long long)row, token_at(call, row), tokens[0]);
        decided++;
    }
    return decided;
}

/* Log-probabilities, and the likeliest tokens. */
static inline void check_log_probabilities(const hy_op_call *call) {
    int64_t E = hy_tensor_width(&call->t[HY_SAMPLE_TOP_TOKENS]);
    const int32_t *top = call->t[HY_SAMPLE_TOP_TOKENS].data;
    const float *top_logprobs = call->t[HY_SAMPLE_TOP_LOGPROBS].data;
    for (int64_t row = 0; row < hy_tensor_height(&call->t[HY_SAMPLE_LOGITS]); row++) {
        ranked *all = rank_all(call, row, false);
        double sum = 0, logit = reference_logit_at(call, row, token_at(call, row));
        for (int32_t i = 0; i < call->attr.sample.vocab; i++) sum += exp(all[i].y - all[0].y);
        double lse = all[0].y + log(sum);
        ck_assert_double_le(fabs((double)logprob_at(call, row) - (logit - lse)), 1e-5);
        for (int64_t i = 0; top && i < E; i++) {
            if (call->attr.sample.softcap == 0) ck_assert_int_eq(top[row * E + i], all[i].id);
            ck_assert_double_le(fabs((double)top_logprobs[row * E + i] - (all[i].y - lse)), 1e-5);
        }
        free(all);
    }
}

/* Row `row` of a call, alone. */
static inline hy_op_call call_of_row(const hy_op_call *call, int64_t row) {
    hy_op_call one = *call;
    for (int i = 0; i < HY_OP_TENSORS; i++) {
        if (call->t[i].data) one.t[i] = hy_tensor_rows(&call->t[i], row, 1);
    }
    return one;
}

/* Each row has the bits that it has alone. */
static inline void check_samples_alone(const hy_op_call *call, call_runner run) {
    hy_op_call alone = *call;
    for (int i = HY_SAMPLE_TOKENS; i <= HY_SAMPLE_SEEN; i++) {
        alone.t[i] = copy_tensor(&call->t[i]);
    }
    run(call);
    for (int64_t row = hy_tensor_height(&call->t[HY_SAMPLE_LOGITS]) - 1; row >= 0; row--) {
        hy_op_call one = call_of_row(&alone, row);
        run(&one);
    }
    for (int i = HY_SAMPLE_TOKENS; i <= HY_SAMPLE_SEEN; i++) {
        if (!call->t[i].data) continue;
        ck_assert_msg(memcmp(call->t[i].data, alone.t[i].data, hy_tensor_bytes(&call->t[i])) == 0,
                      "%s differ alone", hy_op_tensor_name(call->kind, i));
        free(alone.t[i].data);
    }
}

#endif
