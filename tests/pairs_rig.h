/* pairs_rig.h: batches of pairs of answers, and what the loss of pairs must be, in doubles and by
 * other formulas than those of the product. */
#ifndef HY_TESTS_PAIRS_RIG_H
#define HY_TESTS_PAIRS_RIG_H

#include <math.h>

#include "base/rng.h"
#include "harness.h"
#include "kernels/kernels.h"

static const hy_preference all_losses[] = {
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
static inline double pair_expected(const hy_preference *p, const double logp[2],
                                   const double ref[2], const int32_t n[2], double whole,
                                   int32_t whole_n) {
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

#endif
