/* preference.c: losses of pairs of answers, and the weights of their tokens. See preference.h.
 *
 * Sums are in double precision and in the order of tokens. */
#include "kernels/cpu/rows.h"

/* One document of a sequence. */
typedef struct document {
    int64_t begin, end; /* rows */
    hy_answer_sums sums;
} document;

static document read_document(const hy_op_call *call, int64_t begin, int64_t sequence_end) {
    const float *losses = call->t[HY_PREFERENCE_TOKEN_LOSSES].data;
    const float *reference = call->t[HY_PREFERENCE_REFERENCE].data;
    const int32_t *targets = call->t[HY_PREFERENCE_TARGETS].data;
    const int32_t *starts = call->t[HY_PREFERENCE_DOC_STARTS].data;
    document d = {.begin = begin, .end = begin};
    for (int64_t i = begin; i < sequence_end && starts[i] == starts[begin]; i++, d.end++) {
        bool counts = targets[i] >= 0;
        if (!counts && targets[i] == -1) continue;
        d.sums.whole += (double)losses[i];
        d.sums.whole_count++;
        if (!counts) continue;
        d.sums.loss += (double)losses[i];
        d.sums.count++;
        if (reference) d.sums.reference += (double)reference[i];
    }
    return d;
}

static void write_weights(const hy_op_call *call, const document *d, double answer, double whole) {
    float *weights = call->t[HY_PREFERENCE_WEIGHTS].data;
    const int32_t *targets = call->t[HY_PREFERENCE_TARGETS].data;
    for (int64_t i = d->begin; weights && i < d->end; i++) {
        if (targets[i] == -1) continue;
        weights[i] = (float)(targets[i] >= 0 ? answer + whole : whole);
    }
}

static void take_pair(const hy_op_call *call, const document pair[2]) {
    const hy_answer_sums sides[2] = {pair[0].sums, pair[1].sums};
    float *losses = call->t[HY_PREFERENCE_LOSSES].data;
    double *stats = call->t[HY_PREFERENCE_STATS].data;
    if (sides[0].count == 0 || sides[1].count == 0) return;
    hy_pair_loss loss = hy_pair_loss_of(call->attr.preference.of, sides);
    losses[pair[0].begin] = (float)loss.loss;
    write_weights(call, &pair[0], loss.weight[0], loss.whole);
    write_weights(call, &pair[1], loss.weight[1], 0);
    stats[HY_PAIRS_COUNT]++;
    stats[HY_PAIRS_CHOSEN] += loss.reward[0];
    stats[HY_PAIRS_REJECTED] += loss.reward[1];
    stats[HY_PAIRS_RIGHT] += loss.reward[0] > loss.reward[1];
}

hy_status hy_cpu_preference(const hy_cpu_run *run) {
    const hy_op_call *call = run->call;
    float *losses = call->t[HY_PREFERENCE_LOSSES].data;
    float *weights = call->t[HY_PREFERENCE_WEIGHTS].data;
    int64_t N = hy_tensor_count(&call->t[HY_PREFERENCE_LOSSES]), T = call->attr.preference.seq;
    for (int64_t i = 0; i < N; i++) losses[i] = 0;
    for (int64_t i = 0; weights && i < N; i++) weights[i] = 0;
    for (int64_t begin = 0; begin < N; begin += T) {
        document pair[2];
        int documents = 0;
        for (int64_t at = begin; at < begin + T; at = pair[documents++ % 2].end) {
            pair[documents % 2] = read_document(call, at, begin + T);
            if (documents % 2 == 1) take_pair(call, pair);
        }
    }
    return HY_OK;
}
