/* attention.c: causal attention, forward.
 *
 * A task is one tile of queries of one head. Scores of a chunk are one sgemm, the weighted sum of
 * values another; between them each row is exponentiated against its running maximum. A new maximum
 * in a later chunk scales what was summed before (online softmax), so memory does not grow with T.
 * lse = max + log(sum) is all that is kept for the backward pass. */
#include "kernels/cpu/attention.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/softmax.h"

enum { TILE = HY_ATTENTION_TILE, CHUNK = HY_ATTENTION_CHUNK };

hy_status hy_check_doc_starts(const hy_op_call *call, const int32_t *doc_starts, int64_t rows,
                              int64_t seq) {
    for (int64_t n = 0; doc_starts && n < rows; n++) {
        if (doc_starts[n] >= 0 && doc_starts[n] <= n % seq) continue;
        return hy_fail(HY_ERR_INPUT,
                       "%s: token %lld of its sequence has a document that begins at %d, "
                       "expected 0 to %lld",
                       hy_op_name(call->kind), (long long)(n % seq), doc_starts[n],
                       (long long)(n % seq));
    }
    return HY_OK;
}

/* A worker's scratch: scores of a chunk, the output tile, and operands that are not fp32. */
typedef struct scratch {
    float *scores; /* (TILE, CHUNK) */
    float *out;    /* (TILE, D) */
    float *q, *k, *v;
} scratch;

static scratch take_scratch(const hy_op_call *call, hy_cpu_workspace *workspace) {
    int64_t D = call->attr.heads.head_dim;
    const hy_tensor *qkv = &call->t[HY_ATTENTION_QKV], *out = &call->t[HY_ATTENTION_OUT];
    return (scratch){
        .scores = hy_cpu_take(workspace, sizeof(float) * TILE * CHUNK),
        .out = hy_cpu_take(workspace, hy_buffer_bytes(out, TILE * D)),
        .q = hy_cpu_take(workspace, hy_buffer_bytes(qkv, TILE * D)),
        .k = hy_cpu_take(workspace, hy_buffer_bytes(qkv, CHUNK * D)),
        .v = hy_cpu_take(workspace, hy_buffer_bytes(qkv, CHUNK * D)),
    };
}

size_t hy_cpu_attention_workspace(const hy_op_call *call, int threads) {
    hy_cpu_workspace workspace = {0};
    take_scratch(call, &workspace);
    return workspace.used * (size_t)threads;
}

/* Where one tile stands, and its rows' running maxima and sums. */
typedef struct tile {
    int64_t b, h;
    int64_t query, rows; /* queries [query, query + rows) of sequence b */
    float max[TILE], sum[TILE];
    float *out; /* row 0 of the tile */
    int64_t out_ld;
} tile;

/* Turns the scores of keys [key, key + keys) into weights and scales what the tile's rows hold. */
static void soften_scores(const hy_heads *a, tile *t, int64_t key, int64_t keys, bool is_first,
                          float *scores) {
    for (int64_t r = 0; r < t->rows; r++) {
        int64_t i = t->query + r;
        int64_t begin = hy_min64(hy_max64(hy_first_key(a, t->b, i) - key, 0), keys);
        int64_t end = hy_max64(hy_min64(i + 1 - key, keys), begin);
        float *row = scores + r * CHUNK;
        memset(row, 0, (size_t)begin * sizeof *row);
        memset(row + end, 0, (size_t)(keys - end) * sizeof *row);
        if (end == begin) continue;
        float highest = fmaxf(t->max[r], hy_cpu_max(row + begin, end - begin));
        float shrink = expf(t->max[r] - highest);
        t->sum[r] = t->sum[r] * shrink + hy_cpu_exp_sum_kept(row + begin, highest, end - begin);
        t->max[r] = highest;
        if (!is_first && shrink != 1) hy_cpu_scale(t->out + r * t->out_ld, shrink, a->D);
    }
}

static void attend(const hy_cpu_run *run, const hy_heads *a, tile *t, const scratch *own) {
    const hy_tensor *qkv = &run->call->t[HY_ATTENTION_QKV];
    int64_t first_row = t->b * a->T, kv_head = t->h / (a->H / a->K);
    hy_gemm score = {.m = t->rows,
                     .k = a->D,
                     .c = own->scores,
                     .ldc = CHUNK,
                     .alpha = a->scale,
                     .trans_b = true};
    hy_gemm weigh = {.m = t->rows,
                     .n = a->D,
                     .a = own->scores,
                     .lda = CHUNK,
                     .c = t->out,
                     .ldc = t->out_ld,
                     .alpha = 1};
    score.a =
        hy_read_block(qkv, first_row + t->query, t->rows, t->h * a->D, a->D, own->q, &score.lda);
    int64_t end = t->query + t->rows;
    for (int64_t key = hy_first_key_of_tile(a, t->b, t->query, t->rows); key < end; key += CHUNK) {
        int64_t keys = hy_min64(CHUNK, end - key);
        bool is_first = weigh.beta == 0;
        score.n = weigh.k = keys;
        score.b = hy_read_block(qkv, first_row + key, keys, (a->H + kv_head) * a->D, a->D, own->k,
                                &score.ldb);
        weigh.b = hy_read_block(qkv, first_row + key, keys, (a->H + a->K + kv_head) * a->D, a->D,
                                own->v, &weigh.ldb);
        hy_sgemm(run->blas, &score);
        soften_scores(a, t, key, keys, is_first, own->scores);
        hy_sgemm(run->blas, &weigh);
        weigh.beta = 1;
    }
}

static void finish_tile(const hy_op_call *call, const hy_heads *a, const tile *t) {
    const hy_tensor *out = &call->t[HY_ATTENTION_OUT];
    float *lse = (float *)call->t[HY_ATTENTION_LSE].data + (t->b * a->H + t->h) * a->T + t->query;
    for (int64_t r = 0; r < t->rows; r++) {
        float *row = t->out + r * t->out_ld;
        hy_cpu_scale(row, 1.0f / t->sum[r], a->D);
        hy_write(out, ((t->b * a->T + t->query + r) * a->H + t->h) * a->D, a->D, row);
        lse[r] = t->max[r] + logf(t->sum[r]);
    }
}

/* Tasks run from the last tile of a sequence, which sees most keys, to the first. */
static void attention_task(const hy_cpu_run *run, int64_t task, int worker) {
    const hy_op_call *call = run->call;
    hy_heads a = hy_heads_of(call, &call->t[HY_ATTENTION_DOC_STARTS]);
    const hy_tensor *out = &call->t[HY_ATTENTION_OUT];
    size_t share = hy_cpu_attention_workspace(call, 1);
    hy_cpu_workspace workspace = {.base = (char *)call->workspace.data + share * (size_t)worker};
    scratch own = take_scratch(call, &workspace);

    int64_t per_tile = a.B * a.H, index = hy_query_tiles(a.T) - 1 - task / per_tile;
    tile t = {.b = task % per_tile / a.H, .h = task % a.H, .query = index * TILE};
    t.rows = hy_min64(TILE, a.T - t.query);
    bool is_direct = out->dtype == HY_F32;
    t.out =
        is_direct ? (float *)out->data + (t.b * a.T + t.query) * a.H * a.D + t.h * a.D : own.out;
    t.out_ld = is_direct ? a.H * a.D : a.D;
    for (int64_t r = 0; r < t.rows; r++) t.max[r] = -INFINITY;
    attend(run, &a, &t, &own);
    finish_tile(call, &a, &t);
}

hy_status hy_cpu_attention(const hy_cpu_run *run) {
    hy_heads a = hy_heads_of(run->call, &run->call->t[HY_ATTENTION_DOC_STARTS]);
    HY_TRY(hy_check_doc_starts(run->call, a.doc_starts, a.B * a.T, a.T));
    hy_cpu_for_each(run, a.B * a.H * hy_query_tiles(a.T), attention_task);
    return HY_OK;
}
