/* head_calls.h: calls of ops that work on heads, of random numbers: head norm, rope, attention.
 *
 * A backward call takes what the reference's forward call wrote, rounded to its types. */
#ifndef HY_TESTS_HEAD_CALLS_H
#define HY_TESTS_HEAD_CALLS_H

#include "kernel_rig.h"

typedef struct heads_case {
    int32_t B, T, H, K, D, window;
    bool has_doc_starts;
} heads_case;

/* Options of the calls that are made next; a test that sets them clears them. */
static struct {
    bool is_whole; /* head norm */
    float norm_offset;
    int32_t rotary; /* rope */
    bool has_query;
    float softcap; /* attention */
    bool has_sinks;
    int32_t sparse_local, sparse_global;
    int32_t document; /* mean tokens of one; 0: 20 */
} heads_with;
static inline void clear_options(void) { memset(&heads_with, 0, sizeof heads_with); }

static inline int64_t packed_width(const heads_case *h) {
    return (int64_t)(h->H + 2 * h->K) * h->D;
}
static inline int64_t rows_of(const heads_case *h) { return (int64_t)h->B * h->T; }
static inline void set_heads(trial *t, const heads_case *h) {
    t->call.attr.heads.batch = h->B;
    t->call.attr.heads.seq = h->T;
    t->call.attr.heads.heads = h->H;
    t->call.attr.heads.kv_heads = h->K;
    t->call.attr.heads.head_dim = h->D;
    t->call.attr.heads.window = h->window;
    t->call.attr.heads.scale = (float)(1 / sqrt((double)h->D));
    t->call.attr.heads.eps = 1e-6f;
    t->call.attr.heads.is_whole = heads_with.is_whole;
    t->call.attr.heads.norm_offset = heads_with.norm_offset;
    t->call.attr.heads.rotary = heads_with.rotary;
    t->call.attr.heads.softcap = heads_with.softcap;
    t->call.attr.heads.sparse_local = heads_with.sparse_local;
    t->call.attr.heads.sparse_global = heads_with.sparse_global;
}

static inline trial head_norm_trial(const heads_case *h, int mixture) {
    trial t = trial_begin(HY_OP_HEAD_NORM, (uint64_t)(h->T * 10 + mixture));
    set_heads(&t, h);
    trial_normal(&t, HY_HEAD_NORM_QKV, pick_dtype(mixture, &t.dice), rows_of(h), packed_width(h),
                 0.2, 2);
    int64_t wq = heads_with.is_whole ? h->H * h->D : h->D,
            wk = heads_with.is_whole ? h->K * h->D : h->D;
    double mean = heads_with.norm_offset != 0 ? 0 : 1;
    trial_normal(&t, HY_HEAD_NORM_WQ, pick_dtype(mixture, &t.dice), 0, wq, mean, 0.3);
    trial_normal(&t, HY_HEAD_NORM_WK, pick_dtype(mixture, &t.dice), 0, wk, mean, 0.3);
    trial_tensor(&t, HY_HEAD_NORM_OUT, pick_dtype(mixture, &t.dice), rows_of(h), packed_width(h));
    trial_tensor(&t, HY_HEAD_NORM_RSTD, HY_F32, rows_of(h), heads_with.is_whole ? 2 : h->H + h->K);
    return t;
}

static inline trial head_norm_bwd_trial(const heads_case *h, int mixture, bool wants_weights) {
    trial f = head_norm_trial(h, mixture);
    trial t = trial_begin(HY_OP_HEAD_NORM_BWD, f.dice.seed + 5);
    int64_t N = rows_of(h), P = packed_width(h);
    f.exact.attr = t.call.attr = f.call.attr;
    reference_run(&f.exact);
    trial_normal(&t, HY_HEAD_NORM_BWD_DOUT, pick_dtype(mixture, &t.dice), N, P, 0, 1);
    for (int i = 0; i < 3; i++) {
        trial_tensor(&t, 1 + i, f.call.t[i].dtype, i == 0 ? N : 0,
                     i == 0 ? P : hy_tensor_count(&f.call.t[i]));
        trial_adopt(&t, 1 + i, f.exact.t[i].data);
    }
    trial_tensor(&t, HY_HEAD_NORM_BWD_RSTD, HY_F32, N,
                 hy_tensor_width(&f.call.t[HY_HEAD_NORM_RSTD]));
    trial_adopt(&t, HY_HEAD_NORM_BWD_RSTD, f.exact.t[HY_HEAD_NORM_RSTD].data);
    trial_tensor(&t, HY_HEAD_NORM_BWD_DQKV, t.call.t[HY_HEAD_NORM_BWD_DOUT].dtype, N, P);
    for (int i = 6; wants_weights && i < 8; i++) {
        trial_normal(&t, i, pick_grad_dtype(mixture, &t.dice), 0, hy_tensor_count(&t.call.t[i - 4]),
                     0, 1);
    }
    trial_end(&f);
    return t;
}

/* The gradient may be written over what it is made of. */
static inline void check_head_norm_in_place(const heads_case *h, int mixture, call_runner run) {
    trial t = head_norm_bwd_trial(h, mixture, true);
    hy_op_call same = t.call;
    hy_tensor dout = copy_tensor(&t.call.t[HY_HEAD_NORM_BWD_DOUT]);
    same.t[HY_HEAD_NORM_BWD_DOUT] = same.t[HY_HEAD_NORM_BWD_DQKV] = dout;
    run(&same);
    run(&t.call);
    ck_assert_mem_eq(dout.data, t.call.t[HY_HEAD_NORM_BWD_DQKV].data, hy_tensor_bytes(&dout));
    free(dout.data);
    trial_end(&t);
}

static inline trial rope_trial(const heads_case *h, int mixture) {
    trial t = trial_begin(HY_OP_ROPE, (uint64_t)(h->T * 10 + mixture));
    int64_t half = (heads_with.rotary ? heads_with.rotary : h->D) / 2, longest = h->T + 3;
    set_heads(&t, h);
    trial_normal(&t, HY_ROPE_QKV, pick_dtype(mixture, &t.dice), rows_of(h), packed_width(h), 0, 1);
    trial_tensor(&t, HY_ROPE_TABLE, HY_F32, longest, 2 * half);
    for (int64_t i = 0; i < longest * half; i++) {
        double angle = (double)(i / half) * pow(100, -(double)(i % half) / (double)half);
        trial_put(&t, HY_ROPE_TABLE, 2 * i, cos(angle));
        trial_put(&t, HY_ROPE_TABLE, 2 * i + 1, sin(angle));
    }
    hy_tensor *table = &t.call.t[HY_ROPE_TABLE];
    table->ndim = 3;
    table->shape[1] = half;
    table->shape[2] = 2;
    if (heads_with.has_query) trial_normal(&t, HY_ROPE_QUERY, HY_F32, 0, longest, 1.5, 0.2);
    return t;
}

/* Part of each head, with and without a factor of queries, both ways; for the whole head only with
 * the factor. */
static inline void set_rope_options(const heads_case *h, int variant) {
    heads_with.rotary = variant == 0 ? 0 : h->D / 4 / 2 * 2 * (variant % 2 ? 1 : 2);
    if (variant > 0 && heads_with.rotary < 2) heads_with.rotary = 2;
    heads_with.has_query = variant != 1;
}

/* Turns as the reference does, and back to where it was. */
static inline void check_rope_back(trial *t, const double *before, call_runner run) {
    t->call.attr.heads.inverse = true;
    run(&t->call);
    ck_assert_double_le(distance(&t->call.t[HY_ROPE_QKV], before),
                        2 * tolerance_of(t->call.t[HY_ROPE_QKV].dtype));
}

/* Documents of 1 to some 60 tokens, or of another mean. */
static inline void put_doc_starts(trial *t, int at, const heads_case *h) {
    if (!h->has_doc_starts) return;
    trial_tensor(t, at, HY_I32, 0, rows_of(h));
    for (int32_t b = 0; b < h->B; b++) {
        int32_t start = 0;
        for (int32_t i = 0; i < h->T; i++) {
            int64_t last = heads_with.document > 0 ? heads_with.document : 20;
            if (roll(&t->dice, 0, last) == 0) start = i;
            trial_put(t, at, (int64_t)b * h->T + i, start);
        }
    }
}

/* Sinks from one that hardly counts to one that outweighs all keys. */
static inline void put_sinks(trial *t, int at, const heads_case *h, int mixture) {
    if (!heads_with.has_sinks) return;
    trial_tensor(t, at, pick_dtype(mixture, &t->dice), 0, h->H);
    for (int32_t i = 0; i < h->H; i++) trial_put(t, at, i, i % 4 * 3 - 3 + 0.1 * i);
}

/* Variants of options: sinks, a cap, both; scores reach several times the cap. */
enum { ATTENTION_VARIANTS = 3 };
static inline void set_attention_options(int variant) {
    heads_with.has_sinks = variant != 1;
    heads_with.softcap = variant == 0 ? 0 : variant == 1 ? 3 : 50;
}

static inline trial attention_trial(const heads_case *h, int mixture) {
    trial t = trial_begin(HY_OP_ATTENTION, (uint64_t)(h->T * 10 + mixture));
    int64_t N = rows_of(h);
    set_heads(&t, h);
    trial_normal(&t, HY_ATTENTION_QKV, pick_dtype(mixture, &t.dice), N, packed_width(h), 0, 1.5);
    put_doc_starts(&t, HY_ATTENTION_DOC_STARTS, h);
    trial_tensor(&t, HY_ATTENTION_OUT, pick_dtype(mixture, &t.dice), N, (int64_t)h->H * h->D);
    trial_tensor(&t, HY_ATTENTION_LSE, HY_F32, 0, N * h->H);
    put_sinks(&t, HY_ATTENTION_SINKS, h, mixture);
    return t;
}

static inline trial attention_bwd_trial(const heads_case *h, int mixture) {
    trial f = attention_trial(h, mixture);
    trial t = trial_begin(HY_OP_ATTENTION_BWD, f.dice.seed + 5);
    int64_t N = rows_of(h), width = (int64_t)h->H * h->D;
    f.exact.attr = t.call.attr = f.call.attr;
    reference_run(&f.exact);
    trial_normal(&t, HY_ATTENTION_BWD_DOUT, pick_dtype(mixture, &t.dice), N, width, 0, 1);
    trial_tensor(&t, HY_ATTENTION_BWD_QKV, f.call.t[HY_ATTENTION_QKV].dtype, N, packed_width(h));
    trial_adopt(&t, HY_ATTENTION_BWD_QKV, f.exact.t[HY_ATTENTION_QKV].data);
    if (h->has_doc_starts) {
        trial_tensor(&t, HY_ATTENTION_BWD_DOC_STARTS, HY_I32, 0, N);
        for (int64_t i = 0; i < N; i++)
            trial_put(&t, HY_ATTENTION_BWD_DOC_STARTS, i,
                      real_at(&f.call.t[HY_ATTENTION_DOC_STARTS], i));
    }
    trial_tensor(&t, HY_ATTENTION_BWD_OUT, f.call.t[HY_ATTENTION_OUT].dtype, N, width);
    trial_adopt(&t, HY_ATTENTION_BWD_OUT, f.exact.t[HY_ATTENTION_OUT].data);
    trial_tensor(&t, HY_ATTENTION_BWD_LSE, HY_F32, 0, N * h->H);
    trial_adopt(&t, HY_ATTENTION_BWD_LSE, f.exact.t[HY_ATTENTION_LSE].data);
    trial_tensor(&t, HY_ATTENTION_BWD_DQKV, pick_dtype(mixture, &t.dice), N, packed_width(h));
    if (heads_with.has_sinks) {
        trial_tensor(&t, HY_ATTENTION_BWD_SINKS, f.call.t[HY_ATTENTION_SINKS].dtype, 0, h->H);
        trial_adopt(&t, HY_ATTENTION_BWD_SINKS, f.exact.t[HY_ATTENTION_SINKS].data);
        trial_normal(&t, HY_ATTENTION_BWD_DSINKS, pick_grad_dtype(mixture, &t.dice), 0, h->H, 0, 1);
    }
    trial_end(&f);
    return t;
}

/* The error that comes with `out`, rounded to its type, and with it delta, relative to that of the result. */
static inline double rounding_of_out(const trial *t, int result) {
    return 1 + 1.5 * tolerance_of(t->call.t[HY_ATTENTION_BWD_OUT].dtype) /
                   tolerance_of(t->call.t[result].dtype);
}

/* Sums of delta of both signs. */
static inline void check_sink_gradient(const trial *t) {
    if (!t->call.t[HY_ATTENTION_BWD_DSINKS].data) return;
    trial_check(t, HY_ATTENTION_BWD_DSINKS, 8 * rounding_of_out(t, HY_ATTENTION_BWD_DSINKS));
}

#endif
