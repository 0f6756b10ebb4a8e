/* preference.h: the loss of a pair of answers (HY_OP_PREFERENCE), for the host and for kernels.
 *
 * With c and r the log-probabilities of the chosen and the rejected answer, c' and r' those of the
 * reference, and means over the tokens of an answer where it says mean:
 *     dpo    softplus(-beta ((c - c') - (r - r')))
 *     ipo    (mean(c - c') - mean(r - r') - 1 / (2 beta))^2
 *     orpo   beta softplus(-(log odds(mean c) - log odds(mean r))), log odds(x) = x - log(1 - e^x)
 *     simpo  softplus(-(beta (mean c - mean r) - margin))
 * plus `likelihood` times the mean loss of the chosen answer; for orpo, of prompt and answer. The
 * reward of an answer is beta times what the loss compares: c - c' for dpo, its mean for ipo, and
 * mean c for the others. */
#pragma once

#include "kernels/loss.h"

/* Sums over the tokens of an answer; `whole`: with its prompt. */
typedef struct hy_answer_sums {
    double loss, reference; /* minus the log-probabilities */
    double whole;
    int32_t count, whole_count;
} hy_answer_sums;

typedef struct hy_pair_loss {
    double loss, reward[2];
    double weight[2]; /* d loss / d (loss of a token) for the tokens of each answer */
    double whole;     /* added for all tokens of the chosen answer and its prompt */
} hy_pair_loss;

/* log(1 + e^x), and its derivative */
HY_BOTH double hy_softplus(double x, double *slope) {
    double e = exp(x > 0 ? -x : x);
    *slope = x > 0 ? 1 / (1 + e) : e / (1 + e);
    return (x > 0 ? x : 0) + log1p(e);
}

/* The log of the odds of a probability, from its log; and the derivative. */
HY_BOTH double hy_log_odds(double x, double *slope) {
    double rest = -expm1(x);      /* 1 - e^x */
    if (rest < 1e-9) rest = 1e-9; /* a probability of 1 has no odds */
    *slope = 1 / rest;
    return x - log(rest);
}

/* sides: the chosen answer, then the rejected one; both have tokens. */
HY_BOTH hy_pair_loss hy_pair_loss_of(hy_loss p, const hy_answer_sums sides[2]) {
    hy_pair_loss out = {0};
    double beta = (double)p.beta, value[2], slope[2] = {1, 1}, pull;
    for (int i = 0; i < 2; i++) {
        const hy_answer_sums *side = &sides[i];
        bool is_sum = p.kind == HY_LOSS_DPO;
        double per_token = is_sum ? 1 : 1 / (double)side->count;
        bool compares = hy_preference_has_reference(p.kind);
        value[i] = ((compares ? side->reference : 0) - side->loss) * per_token;
        out.reward[i] = beta * value[i];
        if (p.kind == HY_LOSS_ORPO) value[i] = hy_log_odds(value[i], &slope[i]);
        slope[i] *= -per_token; /* d value / d (loss of a token) */
    }
    double apart = value[0] - value[1];
    if (p.kind == HY_LOSS_IPO) {
        double miss = apart - 1 / (2 * beta);
        out.loss = miss * miss;
        pull = 2 * miss;
    } else if (p.kind == HY_LOSS_ORPO) {
        out.loss = beta * hy_softplus(-apart, &pull);
        pull *= -beta;
    } else {
        out.loss = hy_softplus(-(beta * apart - (double)p.margin), &pull);
        pull *= -beta;
    }
    out.weight[0] = pull * slope[0];
    out.weight[1] = -pull * slope[1];
    if (p.likelihood == 0) return out;
    bool is_whole = p.kind == HY_LOSS_ORPO;
    double count = is_whole ? sides[0].whole_count : sides[0].count;
    double likelihood = (double)p.likelihood / count;
    out.loss += likelihood * (is_whole ? sides[0].whole : sides[0].loss);
    if (is_whole) {
        out.whole = likelihood;
    } else {
        out.weight[0] += likelihood;
    }
    return out;
}
