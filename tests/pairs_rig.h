/* pairs_rig.h: batches of pairs of answers, and what the loss of pairs must be, in doubles and by
 * other formulas than those of the product. */
#ifndef HY_TESTS_PAIRS_RIG_H
#define HY_TESTS_PAIRS_RIG_H

#include <math.h>

#include "base/rng.h"
#include "harness.h"
#include "kernel_rig.h"

static const hy_loss all_losses[] = {
    {.kind = HY_LOSS_DPO, .beta = 0.3f},
    {.kind = HY_LOSS_DPO, .beta = 0.1f, .likelihood = 0.5f},
    {.kind = HY_LOSS_IPO, .beta = 0.2f},
    {.kind = HY_LOSS_ORPO, .beta = 0.25f, .likelihood = 1},
    {.kind = HY_LOSS_SIMPO, .beta = 2, .margin = 0.5f},
    {.kind = HY_LOSS_SIMPO, .beta = 2, .margin = 1, .likelihood = 0.25f},
};
enum { ALL_LOSSES = sizeof all_losses / sizeof all_losses[0] };

/* A sequence of documents: the tokens of each prompt and answer. The last positions are padding. */
typedef struct pairs_document {
    int32_t prompt, answer;
} pairs_document;

/* Lays out documents; returns the positions used. A prompt of n tokens has n - 1 positions before
 * the one that predicts the first token of the answer. */
static inline int32_t pairs_fill(const pairs_document *documents, int count, int32_t seq,
                                 int32_t vocab, uint64_t seed, bool with_prompts, int32_t *tokens,
                                 int32_t *targets, int32_t *doc_starts) {
    int32_t at = 0;
    for (int d = 0; d < count; d++) {
        int32_t begin = at, length = documents[d].prompt + documents[d].answer;
        for (int32_t i = 0; i + 1 < length; i++, at++) {
            ck_assert_int_lt(at, seq);
            tokens[at] =
                (int32_t)hy_rng_below(seed, HY_RNG_TEST, (uint64_t)(d * 1000 + i), (uint64_t)vocab);
            int32_t next = (int32_t)hy_rng_below(seed, HY_RNG_TEST, (uint64_t)(d * 1000 + i + 1),
                                                 (uint64_t)vocab);
            bool counts = i + 1 >= documents[d].prompt;
            targets[at] = counts ? next : with_prompts ? -2 - next : -1;
            doc_starts[at] = begin;
        }
    }
    for (int32_t i = at; i < seq; i++) {
        tokens[i] = 0;
        targets[i] = -1;
        doc_starts[i] = at;
    }
    return at;
}

/* The loss of one pair from sums of log-probabilities; n: tokens of the answers. */
static inline double pair_expected(const hy_loss *p, const double logp[2], const double ref[2],
                                   const int32_t n[2], double whole, int32_t whole_n) {
    double beta = (double)p->beta, likelihood = (double)p->likelihood;
    double chosen = -logp[0] / n[0];
    switch (p->kind) {
    case HY_LOSS_DPO: {
        double logit = beta * ((logp[0] - logp[1]) - (ref[0] - ref[1]));
        return -log(1 / (1 + exp(-logit))) + likelihood * chosen;
    }
    case HY_LOSS_IPO: {
        double h = (logp[0] - ref[0]) / n[0] - (logp[1] - ref[1]) / n[1];
        return pow(h - 0.5 / beta, 2) + likelihood * chosen;
    }
    case HY_LOSS_ORPO: {
        double c = exp(logp[0] / n[0]), r = exp(logp[1] / n[1]);
        double ratio = c / (1 - c) / (r / (1 - r));
        return likelihood * whole / whole_n - beta * log(ratio / (1 + ratio));
    }
    default: {
        double logit = beta * (logp[0] / n[0] - logp[1] / n[1]) - (double)p->margin;
        return -log(1 / (1 + exp(-logit))) + likelihood * chosen;
    }
    }
}

/* ---- the op ---------------------------------------------------------------------------------- */

enum { SEQ = 24, SEQUENCES = 3, ROWS = SEQ * SEQUENCES };

/* Two pairs; a pair whose rejected answer is empty, and one without a partner; only padding. */
static const pairs_document first_documents[] = {{3, 4}, {3, 2}, {2, 3}, {2, 5}};
static const pairs_document second_documents[] = {{3, 4}, {4, 0}, {2, 6}};

typedef struct op_batch {
    int32_t tokens[ROWS], targets[ROWS], doc_starts[ROWS];
    float token_losses[ROWS], reference[ROWS], losses[ROWS], weights[ROWS];
    double stats[HY_PAIRS_STATS];
} op_batch;

static inline void fill_op_batch(op_batch *b, bool with_prompts) {
    pairs_fill(first_documents, 4, SEQ, 50, 1, with_prompts, b->tokens, b->targets, b->doc_starts);
    pairs_fill(second_documents, 3, SEQ, 50, 2, with_prompts, b->tokens + SEQ, b->targets + SEQ,
               b->doc_starts + SEQ);
    pairs_fill(NULL, 0, SEQ, 50, 3, with_prompts, b->tokens + 2 * SEQ, b->targets + 2 * SEQ,
               b->doc_starts + 2 * SEQ);
    for (int i = 0; i < ROWS; i++) {
        bool is_there = b->targets[i] != -1;
        b->token_losses[i] = is_there ? (float)hy_rng_uniform(5, HY_RNG_TEST, (uint64_t)i) * 3 : 0;
        b->reference[i] = is_there ? (float)hy_rng_uniform(6, HY_RNG_TEST, (uint64_t)i) * 3 : 0;
        b->losses[i] = b->weights[i] = NAN;
    }
    for (int i = 0; i < HY_PAIRS_STATS; i++) b->stats[i] = 100;
}

static inline hy_op_call op_call(op_batch *b, const hy_loss *p) {
    hy_op_call call = {.kind = HY_OP_PREFERENCE, .attr.preference = {.of = *p, .seq = SEQ}};
    call.t[HY_PREFERENCE_TOKEN_LOSSES] = hy_tensor_1d(b->token_losses, HY_F32, ROWS);
    call.t[HY_PREFERENCE_TARGETS] = hy_tensor_1d(b->targets, HY_I32, ROWS);
    call.t[HY_PREFERENCE_DOC_STARTS] = hy_tensor_1d(b->doc_starts, HY_I32, ROWS);
    call.t[HY_PREFERENCE_REFERENCE] = hy_tensor_1d(b->reference, HY_F32, ROWS);
    call.t[HY_PREFERENCE_LOSSES] = hy_tensor_1d(b->losses, HY_F32, ROWS);
    call.t[HY_PREFERENCE_WEIGHTS] = hy_tensor_1d(b->weights, HY_F32, ROWS);
    call.t[HY_PREFERENCE_STATS] = hy_tensor_1d(b->stats, HY_F64, HY_PAIRS_STATS);
    return call;
}

/* Adds one document's tokens; `at` moves behind it. */
static inline void sum_document(const op_batch *b, const pairs_document *d, int *at, double *logp,
                                double *ref, double *whole) {
    *logp = *ref = *whole = 0;
    for (int i = 0; i + 1 < d->prompt + d->answer; i++, (*at)++) {
        *whole += (double)b->token_losses[*at];
        if (i + 1 < d->prompt) continue;
        *logp -= (double)b->token_losses[*at];
        *ref -= (double)b->reference[*at];
    }
}

/* Losses, and statistics that are added to. */
static inline void check_pair_losses(const hy_loss *p, call_runner run) {
    op_batch b;
    fill_op_batch(&b, p->kind == HY_LOSS_ORPO);
    hy_op_call call = op_call(&b, p);
    run(&call);
    int at = 0, right = 0;
    double rewards[2] = {0};
    for (int pair = 0; pair < 2; pair++) {
        const pairs_document *d = &first_documents[2 * pair];
        int begin = at;
        double logp[2], ref[2], whole[2];
        for (int i = 0; i < 2; i++) sum_document(&b, &d[i], &at, &logp[i], &ref[i], &whole[i]);
        int32_t n[2] = {d[0].answer, d[1].answer};
        double expected = pair_expected(p, logp, ref, n, whole[0], d[0].prompt + d[0].answer - 1);
        ck_assert_double_eq_tol((double)b.losses[begin], expected, 1e-6 * (1 + fabs(expected)));
        for (int i = begin + 1; i < at; i++) ck_assert_float_eq(b.losses[i], 0);
        double reward[2];
        for (int i = 0; i < 2; i++) {
            double compared = logp[i] - (hy_preference_has_reference(p->kind) ? ref[i] : 0);
            reward[i] = (double)p->beta * compared / (p->kind == HY_LOSS_DPO ? 1 : n[i]);
            rewards[i] += reward[i];
        }
        right += reward[0] > reward[1];
    }
    for (int i = at; i < ROWS; i++) {
        ck_assert_float_eq(b.losses[i], 0);
        ck_assert_float_eq(b.weights[i], 0);
    }
    ck_assert_double_eq(b.stats[HY_PAIRS_COUNT], 102);
    ck_assert_double_eq_tol(b.stats[HY_PAIRS_CHOSEN], 100 + rewards[0], 1e-6);
    ck_assert_double_eq_tol(b.stats[HY_PAIRS_REJECTED], 100 + rewards[1], 1e-6);
    ck_assert_double_eq(b.stats[HY_PAIRS_RIGHT], 100 + right);
}

/* The weight of a token is the slope of the sum of losses. */
static inline void check_pair_weights(const hy_loss *p, call_runner run) {
    op_batch b, moved;
    fill_op_batch(&b, p->kind == HY_LOSS_ORPO);
    hy_op_call call = op_call(&b, p);
    run(&call);
    for (int i = 0; i < ROWS; i++) {
        double sums[2];
        for (int way = 0; way < 2; way++) {
            moved = b;
            moved.token_losses[i] += way ? 0.125f : -0.125f;
            call = op_call(&moved, p);
            run(&call);
            sums[way] = 0;
            for (int k = 0; k < ROWS; k++) sums[way] += (double)moved.losses[k];
        }
        double slope = (sums[1] - sums[0]) / 0.25;
        ck_assert_double_eq_tol((double)b.weights[i], slope, 4e-3);
    }
}

#endif
