/* policy.h: the loss of a token of an answer that was rewarded (HY_OP_POLICY), for the host and for
 * kernels.
 *
 * With x minus the log-probability of the token, o the same before the first update on these
 * answers, s the same by the decoder, y by the reference, and A the advantage of the answer:
 *     r = exp(o - x), c = r within [1 - clip_low, 1 + clip_high], w = min(exp(s - o), cap),
 *     k3 = exp(x - y) - (x - y) - 1
 *     loss = share (-min(r A, c A) w + kl k3)
 * o and w are constants. If o is not known, it is x: then r is 1. If s is not known or cap is 0, w
 * is 1. */
#pragma once

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "kernels/half.h" /* HY_BOTH */

typedef struct hy_policy {
    float clip_low, clip_high; /* the ratio is clipped to [1 - clip_low, 1 + clip_high] */
    float kl;                  /* of the penalty; 0: none, and no reference */
    float cap;                 /* most of the importance weight; 0: no such weight */
    float temperature;         /* of sampling; log-probabilities are those at it; 0: 1 */
} hy_policy;

/* What is known of a token of an answer. */
typedef struct hy_policy_token {
    float advantage; /* of its answer */
    float share;     /* of the step's loss; 0: the token does not count */
    float sampled;   /* minus its log-probability by the decoder; NaN: not known */
    float old;       /* minus its log-probability before the first update; NaN: as it is now */
} hy_policy_token;

enum { HY_POLICY_NUMBERS = sizeof(hy_policy_token) / sizeof(float) };

/* The statistics of tokens that HY_OP_POLICY adds to. All are sums but one. */
enum {
    HY_POLICY_TOKENS,
    HY_POLICY_CLIPPED,    /* tokens whose ratio was clipped: no gradient but that of the penalty */
    HY_POLICY_KL,         /* sum of k3 */
    HY_POLICY_APART,      /* sum of |s - o| over tokens whose s is known */
    HY_POLICY_APART_MOST, /* the largest of these; not a sum */
    HY_POLICY_WEIGHT,     /* sum of w */
    HY_POLICY_CAPPED,     /* tokens whose w is the cap */
    HY_POLICY_ENTROPY, /* sum of x: its mean estimates the entropy if the policy has chosen them */
    HY_POLICY_STATS
};

typedef struct hy_policy_loss {
    double loss, weight; /* weight: d loss / d x */
    double stats[HY_POLICY_STATS];
} hy_policy_loss;

/* e^x, which goes on as a straight line above 20: so no product with it overflows. */
HY_BOTH double hy_policy_exp(double x, double *slope) {
    double bent = x > 20 ? 20 : x;
    *slope = exp(bent);
    return *slope * (1 + (x - bent));
}

/* The two branches of the loss: sets d loss / d x for one with share 1. */
HY_BOTH double hy_policy_gain(const hy_policy *p, double apart, double advantage, double *weight,
                              bool *is_clipped) {
    double slope, ratio = hy_policy_exp(apart, &slope);
    double low = 1 - (double)p->clip_low, high = 1 + (double)p->clip_high;
    double clipped = ratio < low ? low : ratio > high ? high : ratio;
    *is_clipped = clipped * advantage < ratio * advantage;
    *weight = *is_clipped ? 0 : slope * advantage;
    return (*is_clipped ? clipped : ratio) * advantage;
}

/* now: x; reference: y, read if kl is above 0. The token's share is not 0. */
HY_BOTH hy_policy_loss hy_policy_loss_of(const hy_policy *p, const hy_policy_token *token,
                                         double now, double reference) {
    hy_policy_loss out = {0};
    bool is_known = token->sampled == token->sampled, is_clipped;
    double old = token->old == token->old ? (double)token->old : now, share = (double)token->share;
    double apart = (double)token->sampled - old, importance = 1, unused;
    if (is_known && p->cap > 0) {
        importance = hy_policy_exp(apart, &unused);
        out.stats[HY_POLICY_CAPPED] = importance >= (double)p->cap;
        if (importance > (double)p->cap) importance = (double)p->cap;
    }
    double gain = hy_policy_gain(p, old - now, (double)token->advantage, &out.weight, &is_clipped);
    out.loss = -gain * importance;
    out.weight *= importance;
    if (p->kl > 0) {
        double away = now - reference, slope, ratio = hy_policy_exp(away, &slope);
        out.stats[HY_POLICY_KL] = ratio - away - 1;
        out.loss += (double)p->kl * out.stats[HY_POLICY_KL];
        out.weight += (double)p->kl * (slope - 1);
    }
    out.loss *= share;
    out.weight *= share;
    out.stats[HY_POLICY_TOKENS] = 1;
    out.stats[HY_POLICY_CLIPPED] = is_clipped;
    out.stats[HY_POLICY_APART] = out.stats[HY_POLICY_APART_MOST] = is_known ? fabs(apart) : 0;
    out.stats[HY_POLICY_WEIGHT] = importance;
    out.stats[HY_POLICY_ENTROPY] = now;
    return out;
}

/* Adds a statistic. */
HY_BOTH double hy_policy_join(int stat, double a, double b) {
    return stat != HY_POLICY_APART_MOST ? a + b : a > b ? a : b;
}
