/* loss.h: the loss that a model's head computes: which one, and its numbers. See preference.h for
 * pairs of answers and policy.h for answers with rewards. */
#pragma once

#include "kernels/policy.h"

typedef enum hy_loss_kind {
    HY_LOSS_NEXT_TOKEN,
    HY_LOSS_DPO, /* of pairs */
    HY_LOSS_IPO,
    HY_LOSS_ORPO,
    HY_LOSS_SIMPO,
    HY_LOSS_POLICY, /* of answers with rewards */
    HY_LOSS_COUNT
} hy_loss_kind;

typedef struct hy_loss {
    hy_loss_kind kind;
    float beta;       /* of pairs, as the next two */
    float margin;     /* simpo */
    float likelihood; /* 0: none */
    hy_policy policy;
} hy_loss;

HY_BOTH bool hy_loss_is_of_pairs(hy_loss_kind kind) {
    return kind >= HY_LOSS_DPO && kind <= HY_LOSS_SIMPO;
}

/* Does the loss of pairs compare with a reference? */
HY_BOTH bool hy_preference_has_reference(hy_loss_kind kind) {
    return kind == HY_LOSS_DPO || kind == HY_LOSS_IPO;
}

/* Does any loss? */
HY_BOTH bool hy_loss_has_reference(const hy_loss *loss) {
    return loss->kind == HY_LOSS_POLICY ? loss->policy.kl > 0
                                        : hy_preference_has_reference(loss->kind);
}

/* The statistics of pairs that HY_OP_PREFERENCE adds to. */
enum {
    HY_PAIRS_COUNT,
    HY_PAIRS_CHOSEN,   /* sum of rewards of chosen answers */
    HY_PAIRS_REJECTED, /* of rejected answers */
    HY_PAIRS_RIGHT,    /* pairs whose chosen answer has the larger reward */
    HY_PAIRS_STATS
};

/* How many statistics a loss has, and the most of any. */
enum { HY_LOSS_STATS = HY_POLICY_STATS };
HY_BOTH int32_t hy_loss_stats(hy_loss_kind kind) {
    return kind == HY_LOSS_POLICY      ? HY_POLICY_STATS
           : hy_loss_is_of_pairs(kind) ? HY_PAIRS_STATS
                                       : 0;
}

/* What the logits are divided by, in losses and in sampling. */
static inline double hy_loss_temperature(const hy_loss *loss) {
    bool has_one = loss->kind == HY_LOSS_POLICY && loss->policy.temperature > 0;
    return has_one ? (double)loss->policy.temperature : 1;
}
