/* step_ops.c: times the ops of a step. See step_ops.h.
 *
 * bf16 activations and weights, fp32 gradients, master, m and v, no recomputation. Rows are timed
 * by many enqueues between two waits for the stream, so that launches overlap as in a step; data
 * that fits in the card's cache is then faster here than in a step. Memory is filled with random
 * numbers, because zeros use less power and run faster. */
#include "op_rates/step_ops.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/rng.h"
#include "kernels/ops.h"
#include "optim/optimizer.h"

#define ROWS_MAX 128
#define PATTERN_BYTES (32u << 20)
#define ENOUGH_SECONDS 0.05
#define ENQUEUES_MAX 400

typedef struct op_row {
    hy_op_call call;
    int64_t count; /* in one step */
    double seconds;
} op_row;

static struct {
    op_row rows[ROWS_MAX];
    int count;
    int64_t weight; /* how often the recorded calls occur in a step */
} record;

/* ---- recording ------------------------------------------------------------------------------- */

static bool is_same_op(const hy_op_call *a, const hy_op_call *b) {
    if (a->kind != b->kind || a->attr.accumulate != b->attr.accumulate) return false;
    if (a->kind == HY_OP_MATMUL &&
        memcmp(&a->attr.matmul, &b->attr.matmul, sizeof a->attr.matmul) != 0) {
        return false;
    }
    for (int i = 0; i < HY_OP_TENSORS; i++) {
        const hy_tensor *s = &a->t[i], *t = &b->t[i];
        if (!s->data != !t->data) return false;
        if (!s->data) continue;
        if (s->dtype != t->dtype || hy_tensor_count(s) != hy_tensor_count(t)) return false;
        if (s->shape[0] != t->shape[0]) return false;
    }
    return true;
}

static hy_status write_down(hy_stream *stream, const hy_op_call *call) {
    (void)stream;
    for (int i = 0; i < record.count; i++) {
        if (!is_same_op(&record.rows[i].call, call)) continue;
        record.rows[i].count += record.weight;
        return HY_OK;
    }
    if (record.count == ROWS_MAX) return hy_fail(HY_ERR_INTERNAL, "more than %d ops", ROWS_MAX);
    record.rows[record.count++] = (op_row){.call = *call, .count = record.weight};
    return HY_OK;
}

/* ---- memory ---------------------------------------------------------------------------------- */

typedef struct step_memory {
    hy_ledger ledger;
    hy_arena arena;
    hy_store weights, grads, master, m, v;
    hy_batch_plan *plan;
    hy_batch_input input;
    hy_optimizer optimizer;
    hy_optimizer_state adamw;
} step_memory;

static uint64_t bytes_needed(const hy_batch_plan *plan, const hy_layout *narrow,
                             const hy_layout *wide, uint64_t rows, uint64_t rope, uint64_t adamw) {
    const hy_batch_bytes *b = &plan->bytes;
    return hy_align(b->activations) + hy_align(b->workspace) + hy_align(narrow->bytes) +
           4 * hy_align(wide->bytes) + 3 * hy_align(4 * rows) + hy_align(rope) + 2 * HY_ALIGNMENT +
           hy_align(adamw);
}

static hy_status push(step_memory *s, hy_class cls, uint64_t bytes, void *out) {
    return hy_arena_push(&s->arena, cls, bytes, out);
}

static hy_status take_stores(step_memory *s, const hy_layout *narrow, const hy_layout *wide) {
    HY_TRY(hy_store_init(&s->weights, &s->arena, HY_WEIGHTS, narrow));
    HY_TRY(hy_store_init(&s->grads, &s->arena, HY_GRADS, wide));
    HY_TRY(hy_store_init(&s->master, &s->arena, HY_MASTER, wide));
    HY_TRY(hy_store_init(&s->m, &s->arena, HY_OPTIM, wide));
    return hy_store_init(&s->v, &s->arena, HY_OPTIM, wide);
}

static hy_status take_memory(step_memory *s, hy_model *model, hy_backend *backend) {
    hy_layout narrow, wide;
    uint64_t rows = (uint64_t)s->plan->options.batch * (uint64_t)s->plan->options.seq;
    uint64_t rope = (uint64_t)s->plan->options.seq * (uint64_t)model->shape.head_size * 4;
    s->optimizer = (hy_optimizer){.kind = hy_optimizer_kind_of(HY_ADAMW),
                                  .beta1 = 0.9,
                                  .beta2 = 0.95,
                                  .eps = 1e-8,
                                  .weight_decay = 0.1,
                                  .max_norm = 1};
    uint64_t adamw = hy_optimizer_workspace(&s->optimizer, &model->params, backend, HY_F32);
    void *activations, *workspace, *optimizer;
    HY_TRY(hy_params_layout(&model->params, HY_SET_ALL, HY_BF16, &narrow));
    HY_TRY(hy_params_layout(&model->params, HY_SET_ALL, HY_F32, &wide));
    HY_TRY(hy_arena_init(&s->arena, backend, &s->ledger, HY_DEVICE,
                         bytes_needed(s->plan, &narrow, &wide, rows, rope, adamw), "a step"));
    HY_TRY(take_stores(s, &narrow, &wide));
    HY_TRY(push(s, HY_ACTIVATIONS, s->plan->bytes.activations, &activations));
    HY_TRY(push(s, HY_WORKSPACE, s->plan->bytes.workspace, &workspace));
    hy_batch_plan_place(s->plan, activations, workspace);
    HY_TRY(push(s, HY_DATA, 4 * rows, &s->input.tokens));
    HY_TRY(push(s, HY_DATA, 4 * rows, &s->input.targets));
    HY_TRY(push(s, HY_WORKSPACE, 4 * rows, &s->input.losses));
    HY_TRY(push(s, HY_WORKSPACE, rope, &s->input.rope));
    HY_TRY(push(s, HY_WORKSPACE, sizeof(double), &s->adamw.square_sum));
    HY_TRY(push(s, HY_WORKSPACE, 2 * sizeof(float), &s->adamw.clip));
    HY_TRY(push(s, HY_WORKSPACE, adamw, &optimizer));
    s->adamw.workspace = hy_tensor_1d(optimizer, HY_U8, (int64_t)adamw);
    hy_layout_fini(&narrow);
    hy_layout_fini(&wide);
    return HY_OK;
}

/* bf16 numbers from -1 to 1: a pair of them is also a small fp32 number. */
static void make_pattern(uint16_t *out, size_t count) {
    uint32_t state = 1;
    for (size_t i = 0; i < count; i++) {
        state = state * 1664525u + 1013904223u;
        out[i] = (uint16_t)((state >> 16 & 0x8000) | 0x3c00 | (state >> 9 & 0x1ff));
    }
}

/* Token i of a vocabulary has a share near 1/i, like words. */
static hy_status load_tokens(step_memory *s, hy_backend *backend, hy_stream *stream,
                             int64_t vocab) {
    int64_t rows = (int64_t)s->plan->options.batch * s->plan->options.seq;
    int32_t *tokens = malloc((size_t)rows * sizeof *tokens);
    if (!tokens) return hy_fail(HY_ERR_MEMORY, "not enough memory for tokens");
    for (int64_t i = 0; i < rows; i++) {
        double u = hy_rng_uniform(1, HY_RNG_TEST, (uint64_t)i);
        tokens[i] = (int32_t)fmin(exp(u * log((double)vocab)) - 1, (double)vocab - 1);
    }
    hy_status status = backend->copy(stream, (void *)(uintptr_t)s->input.tokens, tokens,
                                     (size_t)rows * sizeof *tokens);
    if (status == HY_OK) {
        status = backend->copy(stream, (void *)(uintptr_t)s->input.targets, tokens,
                               (size_t)rows * sizeof *tokens);
    }
    if (status == HY_OK) status = backend->stream_sync(stream);
    free(tokens);
    return status;
}

static hy_status fill_memory(step_memory *s, hy_backend *backend, hy_stream *stream,
                             int64_t vocab) {
    uint16_t *pattern = malloc(PATTERN_BYTES);
    hy_status status = HY_OK;
    if (!pattern) return hy_fail(HY_ERR_MEMORY, "not enough memory for a pattern");
    make_pattern(pattern, PATTERN_BYTES / 2);
    for (uint64_t at = 0; at < s->arena.size && status == HY_OK; at += PATTERN_BYTES) {
        uint64_t left = s->arena.size - at;
        status = backend->copy(stream, s->arena.data + at, at ? s->arena.data : (char *)pattern,
                               left < PATTERN_BYTES ? left : PATTERN_BYTES);
    }
    if (status == HY_OK) status = backend->stream_sync(stream);
    free(pattern);
    return status == HY_OK ? load_tokens(s, backend, stream, vocab) : status;
}

/* ---- timing ---------------------------------------------------------------------------------- */

static hy_status time_run(hy_backend *backend, hy_stream *stream, const hy_op_call *call, int times,
                          double *seconds) {
    HY_TRY(backend->stream_sync(stream));
    double start = hy_clock();
    for (int i = 0; i < times; i++) HY_TRY(backend->enqueue(stream, call));
    HY_TRY(backend->stream_sync(stream));
    *seconds = (hy_clock() - start) / times;
    return HY_OK;
}

static hy_status time_row(hy_backend *backend, hy_stream *stream, op_row *row) {
    double once;
    HY_TRY(time_run(backend, stream, &row->call, 2, &once));
    int times = (int)(ENOUGH_SECONDS / (once + 1e-7));
    times = times < 3 ? 3 : times > ENQUEUES_MAX ? ENQUEUES_MAX : times;
    return time_run(backend, stream, &row->call, times, &row->seconds);
}

/* ---- printing -------------------------------------------------------------------------------- */

static double bytes_of(const hy_op_call *call) {
    double bytes = 0;
    for (int i = 0; i < HY_OP_TENSORS; i++) {
        if (!call->t[i].data) continue;
        int access = hy_op_access(call->kind, i);
        int times = (access & HY_ACCESS_READ ? 1 : 0) + (access & HY_ACCESS_WRITE ? 1 : 0);
        bool is_table = call->kind == HY_OP_EMBED && (i == HY_EMBED_WTE || i == HY_EMBED_WPE);
        /* only the rows of tokens are read from a table */
        double size = (double)hy_tensor_bytes(&call->t[is_table ? HY_EMBED_X : i]);
        if (call->attr.accumulate && access == HY_ACCESS_WRITE) times = 2;
        bytes += times * size;
    }
    return bytes;
}

static void print_label(const hy_op_call *call, char *out, size_t size) {
    const hy_tensor *a = &call->t[HY_MATMUL_A], *d = &call->t[HY_MATMUL_D];
    if (call->kind != HY_OP_MATMUL) {
        long long first = hy_tensor_count(call->t);
        snprintf(out, size, "%s (%lld)", hy_op_name(call->kind), first);
        return;
    }
    long long inner = call->attr.matmul.trans_a ? a->shape[0] : a->shape[a->ndim - 1];
    long long columns = d->shape[d->ndim - 1];
    snprintf(out, size, "matmul %lld x %lld x %lld %c%c%s%s%s",
             (long long)hy_tensor_count(d) / columns, columns, inner,
             call->attr.matmul.trans_a ? 't' : 'n', call->attr.matmul.trans_b ? 't' : 'n',
             call->attr.accumulate ? " adds" : "", call->t[HY_MATMUL_BIAS].data ? " bias" : "",
             call->t[HY_MATMUL_PRE].data ? " gelu back" : "");
}

static int by_time(const void *a, const void *b) {
    const op_row *x = a, *y = b;
    double s = x->seconds * (double)x->count, t = y->seconds * (double)y->count;
    return s < t ? 1 : s > t ? -1 : 0;
}

static void print_rows(const step_work *work) {
    double total = 0, flops = 0;
    int64_t tokens = (int64_t)work->batch * work->seq * work->grad_accum;
    for (int i = 0; i < record.count; i++) {
        total += record.rows[i].seconds * (double)record.rows[i].count;
        flops += hy_op_flops(&record.rows[i].call) * (double)record.rows[i].count;
    }
    qsort(record.rows, (size_t)record.count, sizeof record.rows[0], by_time);
    printf("\n%s: %d x %d, %d micro-batches, bf16\n", work->name, work->batch, work->seq,
           work->grad_accum);
    printf("  %-48s %7s %9s %8s %8s %7s\n", "op", "times", "ms each", "TFLOP/s", "GB/s", "share");
    for (int i = 0; i < record.count; i++) {
        const op_row *row = &record.rows[i];
        char label[80];
        print_label(&row->call, label, sizeof label);
        printf("  %-48s %7lld %9.4f %8.1f %8.0f %6.2f%%\n", label, (long long)row->count,
               row->seconds * 1e3, hy_op_flops(&row->call) / row->seconds * 1e-12,
               bytes_of(&row->call) / row->seconds * 1e-9,
               100 * row->seconds * (double)row->count / total);
    }
    printf("  sum of all: %.1f ms a step, %.0f tokens/s, %.1f TFLOP/s\n", total * 1e3,
           (double)tokens / total, flops / total * 1e-12);
}

/* ---- a step ---------------------------------------------------------------------------------- */

/* Enqueues a micro-batch and an update; enqueue only records them. */
static hy_status write_step_down(const step_work *work, step_memory *s, hy_backend *backend,
                                 hy_stream *stream) {
    s->input.stream = stream;
    s->input.weights = s->adamw.weights = &s->weights;
    s->input.grads = s->adamw.grads = &s->grads;
    s->adamw.master = &s->master;
    s->adamw.arrays[0] = &s->m;
    s->adamw.arrays[1] = &s->v;
    s->adamw.optimizer = &s->optimizer;
    s->adamw.params = &s->plan->model->params;
    s->adamw.backend = backend;
    if (!s->plan->model->shape.has_rope) s->input.rope = NULL;
    s->input.loss_scale = 1;
    s->input.accumulate = work->grad_accum > 1;
    record.count = 0;
    record.weight = work->grad_accum;
    HY_TRY(hy_batch_train(s->plan, &s->input));
    record.weight = 1;
    HY_TRY(hy_optimizer_clip(&s->adamw, stream, 1));
    return hy_optimizer_update_units(&s->adamw, stream, &(hy_optimizer_step){.lr = 1e-4, .seed = 1},
                                     &(hy_optimizer_cursor){0}, s->adamw.params->units);
}

static hy_status measure(const step_work *work, step_memory *s, hy_model *model,
                         hy_backend *backend, hy_stream *stream) {
    hy_batch_options options = {.batch = work->batch,
                                .seq = work->seq,
                                .dtype = HY_BF16,
                                .grad_dtype = HY_F32,
                                .is_training = true};
    HY_TRY(hy_batch_plan_create(model, backend, &options, &s->plan));
    HY_TRY(take_memory(s, model, backend));
    HY_TRY(fill_memory(s, backend, stream, model->shape.vocab));
    hy_status (*enqueue)(hy_stream *, const hy_op_call *) = backend->enqueue;
    backend->enqueue = write_down;
    hy_status status = write_step_down(work, s, backend, stream);
    backend->enqueue = enqueue;
    for (int i = 0; i < record.count && status == HY_OK; i++) {
        status = time_row(backend, stream, &record.rows[i]);
    }
    if (status == HY_OK) print_rows(work);
    return status;
}

hy_status step_ops_print(const step_work *work, hy_backend *backend) {
    step_memory s = {0};
    hy_model *model;
    hy_stream *stream;
    HY_TRY(hy_model_create(&work->shape, &model));
    HY_TRY(backend->stream_create(backend, "ops", &stream));
    hy_status status = measure(work, &s, model, backend, stream);
    backend->stream_sync(stream);
    hy_store *stores[] = {&s.weights, &s.grads, &s.master, &s.m, &s.v};
    for (int i = 0; i < 5; i++) hy_store_fini(stores[i]);
    hy_arena_fini(&s.arena);
    if (s.plan) hy_batch_plan_destroy(s.plan);
    backend->stream_destroy(stream);
    hy_model_destroy(model);
    return status;
}
