/* policy.c: losses of tokens of answers with rewards, and their weights. See policy.h.
 *
 * Statistics are in double precision and in the order of tokens. */
#include "kernels/cpu/rows.h"

hy_status hy_cpu_policy(const hy_cpu_run *run) {
    const hy_op_call *call = run->call;
    const float *now = call->t[HY_POLICY_TOKEN_LOSSES].data;
    const float *reference = call->t[HY_POLICY_REFERENCE].data;
    const int32_t *targets = call->t[HY_POLICY_TARGETS].data;
    const hy_policy_token *tokens = call->t[HY_POLICY_POLICY].data;
    float *losses = call->t[HY_POLICY_LOSSES].data, *weights = call->t[HY_POLICY_WEIGHTS].data;
    double *stats = call->t[HY_POLICY_STATISTICS].data;
    int64_t N = hy_tensor_count(&call->t[HY_POLICY_LOSSES]);
    for (int64_t i = 0; i < N; i++) {
        hy_policy_loss loss = {0};
        if (targets[i] >= 0 && tokens[i].share != 0)
            loss = hy_policy_loss_of(&call->attr.policy, &tokens[i], (double)now[i],
                                     reference ? (double)reference[i] : 0);
        losses[i] = (float)loss.loss;
        if (weights) weights[i] = (float)loss.weight;
        for (int k = 0; k < HY_POLICY_STATS; k++)
            stats[k] = hy_policy_join(k, stats[k], loss.stats[k]);
    }
    return HY_OK;
}
