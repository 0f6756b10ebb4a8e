/* attention.c: causal attention over a batch, forward.
 *
 * A task is one tile of queries. The scores of a chunk of keys are one sgemm, the weighted sum of
 * values another; between them each row is exponentiated relative to its running maximum. A new
 * maximum in a later chunk rescales the earlier sums (online softmax), so memory does not grow with
 * T.
 *
 * A tile has queries of one head; only lse = max + log(sum) is stored for the backward pass. New
 * tokens with a cache have their own op (attention_blocks.c). */
#include "kernels/cpu/attention.h"

#include "kernels/cpu/softmax.h"

enum { TILE = HY_ATTENTION_TILE, CHUNK = HY_ATTENTION_CHUNK };

/* ---- a tile ---------------------------------------------------------------------------------- */

/* A tile of queries of one head, and where its keys are. Row m is the query at position `position +
 * m` of sequence b. */
typedef struct tile {
    int64_t b, position, rows;
    float *own_q;   /* scratch for q */
    const float *q; /* (rows, D) */
    int64_t q_ld;
    const hy_tensor *kv;               /* rows with keys and values */
    int64_t first_row, k_head, v_head; /* in kv: row of position 0 of the sequence, and the heads */
    float *scores;                     /* (rows, CHUNK) */
    float *k, *v;                      /* (CHUNK, D) if kv is not fp32 */
    float *max, *sum;                  /* running values of each row */
    float *out;                        /* (rows, D) */
    int64_t out_ld;
    bool is_added; /* out has earlier sums */
} tile;

/* Converts the scores of keys [key, key + keys) to weights and rescales the earlier sums of the
 * rows. */
static void soften_scores(const hy_heads *a, const tile *t, int64_t key, int64_t keys,
                          bool has_sums) {
    for (int64_t m = 0; m < t->rows; m++) {
        hy_seen seen = hy_seen_of(a, t->b, t->position + m, key, keys);
        float *row = t->scores + m * CHUNK, highest = t->max[m], sum = 0;
        hy_clear_hidden(row, &seen, keys);
        if (hy_sees_none(&seen)) continue;
        for (int i = 0; i < 2; i++) {
            int64_t begin = seen.begin[i], count = seen.end[i] - begin;
            if (count == 0) continue;
            if (a->softcap > 0) hy_cpu_cap(row + begin, a->softcap, count);
            highest = fmaxf(highest, hy_cpu_max(row + begin, count));
        }
        for (int i = 0; i < 2; i++) {
            int64_t begin = seen.begin[i], count = seen.end[i] - begin;
            if (count > 0) sum += hy_cpu_exp_sum_kept(row + begin, highest, count);
        }
        float shrink = expf(t->max[m] - highest);
        t->sum[m] = t->sum[m] * shrink + sum;
        t->max[m] = highest;
        if (has_sums && shrink != 1) hy_cpu_scale(t->out + m * t->out_ld, shrink, a->D);
    }
}

/* Leaves sums of weighted values in out, not yet divided by the sums of weights. */
static void attend(const hy_cpu_run *run, const hy_heads *a, const tile *t) {
    int64_t D = a->D, end = t->position + t->rows;
    hy_gemm score = {.m = t->rows,
                     .k = D,
                     .a = t->q,
                     .lda = t->q_ld,
                     .c = t->scores,
                     .ldc = CHUNK,
                     .alpha = hy_score_scale(a),
                     .trans_b = true};
    hy_gemm weigh = {.m = t->rows,
                     .n = D,
                     .a = t->scores,
                     .lda = CHUNK,
                     .c = t->out,
                     .ldc = t->out_ld,
                     .alpha = 1,
                     .beta = t->is_added};
    for (int64_t m = 0; m < t->rows; m++) {
        t->max[m] = -INFINITY;
        t->sum[m] = 0;
    }
    hy_gap gap = hy_gap_of_tile(a, t->b, t->position, t->rows);
    int64_t key = hy_first_key_of_tile(a, t->b, t->position, t->rows);
    for (int64_t keys; key < end; key += keys) {
        keys = hy_next_keys(gap, end, CHUNK, &key);
        int64_t row = t->first_row + key;
        score.n = weigh.k = keys;
        score.b = hy_read_block(t->kv, row, keys, t->k_head * D, D, t->k, &score.ldb);
        weigh.b = hy_read_block(t->kv, row, keys, t->v_head * D, D, t->v, &weigh.ldb);
        hy_sgemm(run->blas, &score);
        soften_scores(a, t, key, keys, weigh.beta != 0);
        hy_sgemm(run->blas, &weigh);
        weigh.beta = 1;
    }
}

/* ---- a batch --------------------------------------------------------------------------------- */

hy_status hy_check_doc_starts(const hy_op_call *call, const int32_t *doc_starts, int64_t rows,
                              int64_t seq) {
    for (int64_t n = 0; doc_starts && n < rows; n++) {
        if (doc_starts[n] >= 0 && doc_starts[n] <= n % seq) continue;
        return hy_fail(
            HY_ERR_INPUT, "%s: the document of token %lld begins at %d, expected 0 to %lld",
            hy_op_name(call->kind), (long long)(n % seq), doc_starts[n], (long long)(n % seq));
    }
    return HY_OK;
}

/* A tile with the scratch of its worker: scores of a chunk, and operands and output that are not
 * fp32. */
static tile take_batch_tile(const hy_op_call *call, hy_cpu_workspace *workspace) {
    int64_t D = call->attr.heads.head_dim;
    const hy_tensor *qkv = &call->t[HY_ATTENTION_QKV], *out = &call->t[HY_ATTENTION_OUT];
    return (tile){
        .scores = hy_cpu_take(workspace, sizeof(float) * TILE * CHUNK),
        .out = hy_cpu_take(workspace, hy_buffer_bytes(out, TILE * D)),
        .own_q = hy_cpu_take(workspace, hy_buffer_bytes(qkv, TILE * D)),
        .k = hy_cpu_take(workspace, hy_buffer_bytes(qkv, CHUNK * D)),
        .v = hy_cpu_take(workspace, hy_buffer_bytes(qkv, CHUNK * D)),
    };
}

size_t hy_cpu_attention_workspace(const hy_op_call *call, int threads) {
    hy_cpu_workspace workspace = {0};
    take_batch_tile(call, &workspace);
    return workspace.used * (size_t)threads;
}

/* Tasks run from the last tile of a sequence, which sees most keys, to the first. */
static void attention_task(const hy_cpu_run *run, int64_t task, int worker) {
    const hy_op_call *call = run->call;
    hy_heads a = hy_heads_of(call, &call->t[HY_ATTENTION_DOC_STARTS]);
    const hy_tensor *out = &call->t[HY_ATTENTION_OUT], *qkv = &call->t[HY_ATTENTION_QKV];
    size_t share = hy_cpu_attention_workspace(call, 1);
    hy_cpu_workspace workspace = {.base = (char *)call->workspace.data + share * (size_t)worker};
    tile t = take_batch_tile(call, &workspace);

    int64_t per_tile = a.B * a.H, index = hy_query_tiles(a.T) - 1 - task / per_tile;
    int64_t b = task % per_tile / a.H, h = task % a.H, query = index * TILE;
    int64_t row = b * a.T + query, kv_head = h / (a.H / a.K);
    float max[TILE], sum[TILE], *lse = call->t[HY_ATTENTION_LSE].data;
    t.b = b, t.position = query, t.rows = hy_min64(TILE, a.T - query);
    t.q = hy_read_block(qkv, row, t.rows, h * a.D, a.D, t.own_q, &t.q_ld);
    t.kv = qkv, t.first_row = b * a.T, t.k_head = a.H + kv_head, t.v_head = t.k_head + a.K;
    t.max = max, t.sum = sum, t.out_ld = a.D;
    if (out->dtype == HY_F32) {
        t.out = (float *)out->data + (row * a.H + h) * a.D;
        t.out_ld = a.H * a.D;
    }
    attend(run, &a, &t);
    for (int64_t r = 0; r < t.rows; r++) {
        float inverse = hy_close_row(&call->t[HY_ATTENTION_SINKS], h, &max[r], &sum[r]);
        hy_cpu_scale(t.out + r * t.out_ld, inverse, a.D);
        hy_write(out, ((row + r) * a.H + h) * a.D, a.D, t.out + r * t.out_ld);
        lse[(b * a.H + h) * a.T + query + r] = max[r] + logf(sum[r]);
    }
}

hy_status hy_cpu_attention(const hy_cpu_run *run) {
    hy_heads a = hy_heads_of(run->call, &run->call->t[HY_ATTENTION_DOC_STARTS]);
    HY_TRY(hy_check_doc_starts(run->call, a.doc_starts, a.B * a.T, a.T));
    hy_cpu_for_each(run, a.B * a.H * hy_query_tiles(a.T), attention_task);
    return HY_OK;
}
