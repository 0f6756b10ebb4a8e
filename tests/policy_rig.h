/* policy_rig.h: the loss of answers with rewards, in plain arithmetic, and checks of HY_OP_POLICY
 * that run on any backend. */
#ifndef HY_TESTS_POLICY_RIG_H
#define HY_TESTS_POLICY_RIG_H

#include <math.h>

#include "base/rng.h"
#include "harness.h"
#include "kernels/ops.h"

static const hy_policy all_policies[] = {
    {.clip_low = 0.2f, .clip_high = 0.2f},
    {.clip_low = 0.2f, .clip_high = 0.28f, .cap = 2},
    {.clip_low = 0.1f, .clip_high = 0.3f, .kl = 0.04f},
    {.clip_low = 0.2f, .clip_high = 0.2f, .kl = 0.5f, .cap = 1.2f},
};
enum { ALL_POLICIES = sizeof all_policies / sizeof all_policies[0], POLICY_ROWS = 5000 };

/* The loss of a token from log-probabilities; without `old`, NaN. */
static inline double policy_expected(const hy_policy *p, double now, double sampled, double old,
                                     double reference, double advantage, double share) {
    double before = isnan(old) ? now : old, low = 1 - (double)p->clip_low;
    double ratio = exp(now - before), high = 1 + (double)p->clip_high;
    double clipped = fmin(fmax(ratio, low), high), weight = 1, kl = 0;
    if (p->cap > 0 && !isnan(sampled)) weight = fmin(exp(before - sampled), (double)p->cap);
    if (p->kl > 0) kl = exp(reference - now) - (reference - now) - 1;
    return share * (-fmin(ratio * advantage, clipped * advantage) * weight + (double)p->kl * kl);
}

typedef struct policy_batch {
    float now[POLICY_ROWS], reference[POLICY_ROWS], losses[POLICY_ROWS], weights[POLICY_ROWS];
    int32_t targets[POLICY_ROWS];
    hy_policy_token tokens[POLICY_ROWS];
    double stats[HY_POLICY_STATS];
} policy_batch;

static inline float policy_dice(int64_t i, int what) {
    return (float)hy_rng_uniform(11 + (uint64_t)what, HY_RNG_TEST, (uint64_t)i);
}

/* Losses are -log-probabilities. Some tokens do not count; `old` is not known for some. */
static inline void policy_fill(policy_batch *b) {
    for (int64_t i = 0; i < POLICY_ROWS; i++) {
        b->now[i] = 3 * policy_dice(i, 0);
        b->reference[i] = b->now[i] + policy_dice(i, 1) - 0.5f;
        b->targets[i] = i % 7 == 3 ? -1 : 5;
        float old = b->now[i] + policy_dice(i, 2) - 0.5f;
        bool is_known = i % 5 != 1;
        b->tokens[i] = (hy_policy_token){
            .advantage = 2 * policy_dice(i, 3) - 1,
            .share = i % 11 == 4 ? 0 : 0.1f + policy_dice(i, 4),
            .sampled = i % 13 == 2 ? NAN : (is_known ? old : b->now[i]) + policy_dice(i, 5) - 0.5f,
            .old = is_known ? old : NAN};
        b->losses[i] = b->weights[i] = NAN;
    }
    for (int k = 0; k < HY_POLICY_STATS; k++) b->stats[k] = 1;
}

static inline hy_op_call policy_call(policy_batch *b, const hy_policy *p) {
    hy_op_call call = {.kind = HY_OP_POLICY, .attr.policy = *p};
    call.t[HY_POLICY_TOKEN_LOSSES] = hy_tensor_1d(b->now, HY_F32, POLICY_ROWS);
    call.t[HY_POLICY_TARGETS] = hy_tensor_1d(b->targets, HY_I32, POLICY_ROWS);
    call.t[HY_POLICY_POLICY] = hy_tensor_2d(b->tokens, HY_F32, POLICY_ROWS, HY_POLICY_NUMBERS);
    if (p->kl > 0) call.t[HY_POLICY_REFERENCE] = hy_tensor_1d(b->reference, HY_F32, POLICY_ROWS);
    call.t[HY_POLICY_LOSSES] = hy_tensor_1d(b->losses, HY_F32, POLICY_ROWS);
    call.t[HY_POLICY_WEIGHTS] = hy_tensor_1d(b->weights, HY_F32, POLICY_ROWS);
    call.t[HY_POLICY_STATISTICS] = hy_tensor_1d(b->stats, HY_F64, HY_POLICY_STATS);
    return call;
}

static inline double policy_at(const policy_batch *b, const hy_policy *p, int64_t i, double now) {
    const hy_policy_token *t = &b->tokens[i];
    if (b->targets[i] < 0 || t->share == 0) return 0;
    return policy_expected(p, -now, -(double)t->sampled, -(double)t->old, -(double)b->reference[i],
                           (double)t->advantage, (double)t->share);
}

/* The slope where old is known; else that of the ratio at 1. */
static inline double policy_slope(policy_batch *b, const hy_policy *p, int64_t i) {
    double now = (double)b->now[i], step = 1e-6;
    float kept = b->tokens[i].old;
    if (isnan(kept)) b->tokens[i].old = b->now[i];
    double slope = (policy_at(b, p, i, now + step) - policy_at(b, p, i, now - step)) / (2 * step);
    b->tokens[i].old = kept;
    return slope;
}

static inline void policy_add_stats(const policy_batch *b, const hy_policy *p, int64_t i,
                                    double stats[HY_POLICY_STATS]) {
    const hy_policy_token *t = &b->tokens[i];
    double now = (double)b->now[i], old = isnan(t->old) ? now : (double)t->old;
    double ratio = exp(old - now), advantage = (double)t->advantage,
           away = now - (double)b->reference[i];
    bool is_known = !isnan(t->sampled);
    double apart = is_known ? (double)t->sampled - old : 0, cap = (double)p->cap;
    if (b->targets[i] < 0 || t->share == 0) return;
    stats[HY_POLICY_TOKENS] += 1;
    stats[HY_POLICY_CLIPPED] += advantage > 0 ? ratio > 1 + (double)p->clip_high
                                              : advantage < 0 && ratio < 1 - (double)p->clip_low;
    if (p->kl > 0) stats[HY_POLICY_KL] += exp(away) - away - 1;
    stats[HY_POLICY_APART] += fabs(apart);
    stats[HY_POLICY_APART_MOST] = fmax(stats[HY_POLICY_APART_MOST], fabs(apart));
    stats[HY_POLICY_WEIGHT] += cap > 0 && is_known ? fmin(exp(apart), cap) : 1;
    stats[HY_POLICY_CAPPED] += cap > 0 && is_known && exp(apart) >= cap;
    stats[HY_POLICY_ENTROPY] += now;
}

/* Losses, weights and statistics of a call. */
static inline void check_policy(const hy_policy *p, void (*run)(const hy_op_call *)) {
    static policy_batch b;
    double stats[HY_POLICY_STATS];
    policy_fill(&b);
    memcpy(stats, b.stats, sizeof stats);
    hy_op_call call = policy_call(&b, p);
    run(&call);
    for (int64_t i = 0; i < POLICY_ROWS; i++) {
        double loss = policy_at(&b, p, i, (double)b.now[i]), slope = policy_slope(&b, p, i);
        ck_assert_double_eq_tol((double)b.losses[i], loss, 1e-6 * (1 + fabs(loss)));
        ck_assert_double_eq_tol((double)b.weights[i], slope, 1e-5 * (1 + fabs(slope)));
        policy_add_stats(&b, p, i, stats);
    }
    for (int k = 0; k < HY_POLICY_STATS; k++)
        ck_assert_double_eq_tol(b.stats[k], stats[k], 1e-9 * (1 + fabs(stats[k])));
}

#endif
