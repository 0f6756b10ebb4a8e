/* policy.cu: losses of tokens of answers with rewards, and their weights. See policy.h.
 *
 * A block takes a run of tokens, and a thread every THREADS-th of them; statistics are joined in
 * double precision, in an order that depends only on the number of tokens. A second launch joins
 * those of blocks in order. */
#include "kernels/cuda/cuda.cuh"

#define THREADS 256
#define WARPS (THREADS / 32)
#define BLOCK_TOKENS (8 * THREADS)

typedef struct policy_args {
    const float *now, *reference; /* reference: or NULL */
    const int32_t *targets;
    const hy_policy_token *tokens;
    float *losses, *weights; /* weights: or NULL */
    double *partial;         /* (blocks, HY_POLICY_STATS) */
    double *stats;
    int64_t count;
    int blocks;
    hy_policy of;
} policy_args;

/* Complete only in thread 0. */
__device__ __forceinline__ double join_block(int stat, double x) {
    __shared__ double of_warp[WARPS];
    for (int d = 16; d > 0; d >>= 1)
        x = hy_policy_join(stat, x, __shfl_xor_sync(0xffffffffu, x, d));
    __syncthreads(); /* of_warp may still be in use by the previous statistic */
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = x;
    __syncthreads();
    for (int i = 1; threadIdx.x == 0 && i < WARPS; i++) x = hy_policy_join(stat, x, of_warp[i]);
    return x;
}

__global__ void __launch_bounds__(THREADS, 2) policy_kernel(policy_args a) {
    double stats[HY_POLICY_STATS] = {};
    int64_t begin = (int64_t)blockIdx.x * BLOCK_TOKENS, end = begin + BLOCK_TOKENS;
    if (end > a.count) end = a.count;
    for (int64_t i = begin + threadIdx.x; i < end; i += THREADS) {
        hy_policy_loss loss = {};
        if (a.targets[i] >= 0 && a.tokens[i].share != 0)
            loss = hy_policy_loss_of(&a.of, &a.tokens[i], (double)a.now[i],
                                     a.reference ? (double)a.reference[i] : 0);
        a.losses[i] = (float)loss.loss;
        if (a.weights) a.weights[i] = (float)loss.weight;
        HY_EACH(k, HY_POLICY_STATS) stats[k] = hy_policy_join(k, stats[k], loss.stats[k]);
    }
    HY_EACH(k, HY_POLICY_STATS) {
        double joined = join_block(k, stats[k]);
        if (threadIdx.x == 0) a.partial[blockIdx.x * HY_POLICY_STATS + k] = joined;
    }
}

__global__ void join_stats_kernel(policy_args a) {
    int k = (int)threadIdx.x;
    double joined = a.stats[k];
    for (int i = 0; i < a.blocks; i++)
        joined = hy_policy_join(k, joined, a.partial[i * HY_POLICY_STATS + k]);
    a.stats[k] = joined;
}

static int64_t blocks_of(const hy_op_call *call) {
    return (hy_tensor_count(&call->t[HY_POLICY_LOSSES]) + BLOCK_TOKENS - 1) / BLOCK_TOKENS;
}

size_t hy_cuda_policy_workspace(const hy_cuda *cuda, const hy_op_call *call) {
    (void)cuda;
    return (size_t)blocks_of(call) * HY_POLICY_STATS * sizeof(double);
}

hy_status hy_cuda_policy(const hy_cuda_run *run) {
    const hy_op_call *call = run->call;
    policy_args a = {};
    a.now = (const float *)call->t[HY_POLICY_TOKEN_LOSSES].data;
    a.reference = (const float *)call->t[HY_POLICY_REFERENCE].data;
    a.targets = (const int32_t *)call->t[HY_POLICY_TARGETS].data;
    a.tokens = (const hy_policy_token *)call->t[HY_POLICY_POLICY].data;
    a.losses = (float *)call->t[HY_POLICY_LOSSES].data;
    a.weights = (float *)call->t[HY_POLICY_WEIGHTS].data;
    a.partial = (double *)call->workspace.data;
    a.stats = (double *)call->t[HY_POLICY_STATISTICS].data;
    a.count = hy_tensor_count(&call->t[HY_POLICY_LOSSES]);
    a.blocks = (int)blocks_of(call);
    a.of = call->attr.policy;
    policy_kernel<<<(unsigned)a.blocks, THREADS, 0, run->stream>>>(a);
    hy_status status = hy_cuda_launched(run);
    if (status != HY_OK) return status;
    join_stats_kernel<<<1, HY_POLICY_STATS, 0, run->stream>>>(a);
    return hy_cuda_launched(run);
}
