/* preference.cu: losses of pairs of answers, and the weights of their tokens. See preference.h.
 *
 * One block per sequence takes its documents in turn. Sums are in double precision, in an order
 * that depends only on the length of a document. A second launch adds the statistics of sequences
 * in order. */
#include "kernels/cuda/cuda.cuh"

#define THREADS 256

typedef struct preference_args {
    const float *token_losses, *reference; /* reference: or NULL */
    const int32_t *targets, *starts;
    float *losses, *weights; /* weights: or NULL */
    double *partial;         /* (B, HY_PAIRS_STATS) */
    double *stats;
    int seq, sequences;
    hy_loss of;
} preference_args;

typedef struct document {
    int begin, end; /* positions in the sequence */
    hy_answer_sums sums;
} document;

/* The arrays from the first token of this block's sequence on. */
__device__ __forceinline__ preference_args own_sequence(preference_args a) {
    int64_t first = (int64_t)blockIdx.x * a.seq;
    a.token_losses += first;
    a.targets += first;
    a.starts += first;
    a.losses += first;
    if (a.reference) a.reference += first;
    if (a.weights) a.weights += first;
    return a;
}

/* Where the document that begins at `begin` ends; the same for all threads. */
__device__ __forceinline__ int end_of(const preference_args &a, int begin) {
    __shared__ int end;
    __syncthreads(); /* it may still be read */
    if (threadIdx.x == 0) end = a.seq;
    __syncthreads();
    for (int i = begin + 1 + threadIdx.x; i < a.seq; i += THREADS) {
        if (a.starts[i] == a.starts[begin]) continue;
        atomicMin(&end, i);
        break;
    }
    __syncthreads();
    return end;
}

/* Complete only in thread 0. */
__device__ __forceinline__ document read_document(const preference_args &a, int begin) {
    document d = {};
    double loss = 0, reference = 0, whole = 0, count = 0, whole_count = 0;
    d.begin = begin;
    d.end = end_of(a, begin);
    for (int i = begin + threadIdx.x; i < d.end; i += THREADS) {
        bool counts = a.targets[i] >= 0;
        if (!counts && a.targets[i] == -1) continue;
        whole += (double)a.token_losses[i];
        whole_count += 1;
        if (!counts) continue;
        loss += (double)a.token_losses[i];
        count += 1;
        if (a.reference) reference += (double)a.reference[i];
    }
    d.sums.loss = hy_block_sum<THREADS / 32>(loss);
    d.sums.reference = hy_block_sum<THREADS / 32>(reference);
    d.sums.whole = hy_block_sum<THREADS / 32>(whole);
    d.sums.count = (int32_t)hy_block_sum<THREADS / 32>(count);
    d.sums.whole_count = (int32_t)hy_block_sum<THREADS / 32>(whole_count);
    return d;
}

__device__ __forceinline__ void write_weights(const preference_args &a, const document &d,
                                              double answer, double whole) {
    for (int i = d.begin + threadIdx.x; a.weights && i < d.end; i += THREADS) {
        if (a.targets[i] == -1) continue;
        a.weights[i] = (float)(a.targets[i] >= 0 ? answer + whole : whole);
    }
}

/* Thread 0 has the sums; stats are its own. */
__device__ __forceinline__ void take_pair(const preference_args &a, const document pair[2],
                                          double stats[HY_PAIRS_STATS]) {
    __shared__ hy_pair_loss loss;
    __shared__ bool is_pair;
    if (threadIdx.x == 0) {
        hy_answer_sums sides[2] = {pair[0].sums, pair[1].sums};
        is_pair = sides[0].count > 0 && sides[1].count > 0;
        if (is_pair) {
            loss = hy_pair_loss_of(a.of, sides);
            a.losses[pair[0].begin] = (float)loss.loss;
            stats[HY_PAIRS_COUNT] += 1;
            stats[HY_PAIRS_CHOSEN] += loss.reward[0];
            stats[HY_PAIRS_REJECTED] += loss.reward[1];
            stats[HY_PAIRS_RIGHT] += loss.reward[0] > loss.reward[1];
        }
    }
    __syncthreads();
    if (!is_pair) return;
    write_weights(a, pair[0], loss.weight[0], loss.whole);
    write_weights(a, pair[1], loss.weight[1], 0);
}

__global__ void __launch_bounds__(THREADS) preference_kernel(preference_args all) {
    preference_args a = own_sequence(all);
    double stats[HY_PAIRS_STATS] = {};
    document pair[2];
    for (int i = threadIdx.x; i < a.seq; i += THREADS) {
        a.losses[i] = 0;
        if (a.weights) a.weights[i] = 0;
    }
    for (int at = 0, documents = 0; at < a.seq; documents++) {
        document read = read_document(a, at);
        at = read.end;
        if (documents % 2 == 0) {
            pair[0] = read;
        } else {
            pair[1] = read;
            take_pair(a, pair, stats);
        }
    }
    for (int i = 0; threadIdx.x == 0 && i < HY_PAIRS_STATS; i++) {
        a.partial[blockIdx.x * HY_PAIRS_STATS + i] = stats[i];
    }
}

__global__ void add_stats_kernel(preference_args a) {
    double sum = a.stats[threadIdx.x];
    for (int i = 0; i < a.sequences; i++) sum += a.partial[i * HY_PAIRS_STATS + threadIdx.x];
    a.stats[threadIdx.x] = sum;
}

static int64_t sequences_of(const hy_op_call *call) {
    return hy_tensor_count(&call->t[HY_PREFERENCE_LOSSES]) / call->attr.preference.seq;
}

size_t hy_cuda_preference_workspace(const hy_cuda *cuda, const hy_op_call *call) {
    (void)cuda;
    return (size_t)sequences_of(call) * HY_PAIRS_STATS * sizeof(double);
}

hy_status hy_cuda_preference(const hy_cuda_run *run) {
    const hy_op_call *call = run->call;
    preference_args a = {};
    a.token_losses = (const float *)call->t[HY_PREFERENCE_TOKEN_LOSSES].data;
    a.reference = (const float *)call->t[HY_PREFERENCE_REFERENCE].data;
    a.targets = (const int32_t *)call->t[HY_PREFERENCE_TARGETS].data;
    a.starts = (const int32_t *)call->t[HY_PREFERENCE_DOC_STARTS].data;
    a.losses = (float *)call->t[HY_PREFERENCE_LOSSES].data;
    a.weights = (float *)call->t[HY_PREFERENCE_WEIGHTS].data;
    a.partial = (double *)call->workspace.data;
    a.stats = (double *)call->t[HY_PREFERENCE_STATS].data;
    a.seq = call->attr.preference.seq;
    a.sequences = (int)sequences_of(call);
    a.of = call->attr.preference.of;
    preference_kernel<<<(unsigned)a.sequences, THREADS, 0, run->stream>>>(a);
    hy_status status = hy_cuda_launched(run);
    if (status != HY_OK) return status;
    add_stats_kernel<<<1, HY_PAIRS_STATS, 0, run->stream>>>(a);
    return hy_cuda_launched(run);
}
