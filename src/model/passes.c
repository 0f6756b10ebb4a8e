/* passes.c: enqueueing a micro-batch, unit after unit. See model.h.
 *
 * Every unit is announced to the stores one ahead (gather), taken (get) and given back (release) in the
 * same order whatever lies where; the host only enqueues, it never waits here. */
#include "base/error.h"
#include "model/bind.h"
#include "model/recorded.h"

/* The unit after `unit` in walking direction, or -1. */
static int32_t next_unit(const hy_batch_plan *plan, int32_t unit, int direction) {
    int32_t next = unit + direction;
    return next >= 0 && next < plan->model->params.units ? next : -1;
}

/* A tied head works with the embedding's weights too. */
static bool borrows_embedding(const hy_batch_plan *plan, int32_t unit) {
    return plan->model->shape.has_tied_head && unit == plan->model->params.units - 1;
}

static hy_status enter_store(hy_store *store, const hy_batch_plan *plan, hy_stream *stream,
                             int32_t unit, int direction) {
    if (!store) return HY_OK;
    int32_t next = next_unit(plan, unit, direction);
    if (next >= 0) HY_TRY(hy_store_gather(store, next));
    if (borrows_embedding(plan, unit)) HY_TRY(hy_store_get(store, stream, 0));
    return hy_store_get(store, stream, unit);
}

typedef hy_status (*release_function)(hy_store *, hy_stream *, int32_t);

static hy_status leave_store(hy_store *store, const hy_batch_plan *plan, hy_stream *stream,
                             int32_t unit, release_function release) {
    if (!store) return HY_OK;
    if (borrows_embedding(plan, unit)) HY_TRY(release(store, stream, 0));
    return release(store, stream, unit);
}

static hy_status enqueue_op(const hy_frame *f, int32_t index, int32_t chunk) {
    hy_op_call call;
    if (!hy_frame_bind(f, index, chunk, &call)) return HY_OK;
    return f->plan->backend->enqueue(f->input->stream, &call);
}

/* Runs the ops of a pass in order; a row of chunked ops runs as a whole for one chunk after another. */
static hy_status run_ops(const hy_frame *f) {
    const hy_pass_plan *pass = &f->unit->pass[f->pass];
    int32_t i = 0;
    while (i < pass->op_count) {
        int32_t end = i + 1;
        int32_t chunks = 1;
        if (pass->ops[i]->is_chunked) {
            while (end < pass->op_count && pass->ops[end]->is_chunked) end++;
            chunks = f->plan->chunk_count;
        }
        for (int32_t chunk = 0; chunk < chunks; chunk++) {
            for (int32_t op = i; op < end; op++) HY_TRY(enqueue_op(f, op, chunk));
        }
        i = end;
    }
    return HY_OK;
}

static hy_status run_unit(hy_frame *f, int32_t unit, int direction) {
    bool is_backward = f->pass == HY_PASS_BACKWARD;
    hy_store *grads = is_backward ? f->input->grads : NULL;
    hy_stream *stream = f->input->stream;
    f->unit_index = unit;
    HY_TRY(enter_store(f->input->weights, f->plan, stream, unit, direction));
    HY_TRY(enter_store(grads, f->plan, stream, unit, direction));
    HY_TRY(run_ops(f));
    HY_TRY(leave_store(grads, f->plan, stream, unit, hy_store_release_changed));
    return leave_store(f->input->weights, f->plan, stream, unit, hy_store_release);
}

/* Training memory: stream entering block 0 .. L-1 and the head, its gradient, then what each block
 * keeps and what the head keeps. */
static char *stream_at(const hy_batch_plan *plan, int32_t layer) {
    return plan->activations + (uint64_t)layer * plan->stream_bytes;
}

static char *kept_at(const hy_batch_plan *plan, int32_t layer) {
    uint64_t streams = (uint64_t)plan->model->shape.layers + 2;
    return plan->activations + streams * plan->stream_bytes +
           (uint64_t)layer * plan->block.kept_bytes;
}

static hy_frame new_frame(const hy_batch_plan *plan, const hy_batch_input *input, hy_pass pass) {
    return (hy_frame){.plan = plan, .input = input, .pass = pass, .scratch = plan->workspace};
}

static hy_status run_forward(hy_batch_plan *plan, const hy_batch_input *input) {
    int32_t layers = plan->model->shape.layers;
    hy_frame f = new_frame(plan, input, HY_PASS_FORWARD);
    HY_TRY(hy_store_gather(input->weights, 0));
    f.unit = &plan->embedding;
    f.stream_out = stream_at(plan, 0);
    HY_TRY(run_unit(&f, 0, +1));
    f.unit = &plan->block;
    for (int32_t layer = 0; layer < layers; layer++) {
        f.stream_in = stream_at(plan, layer);
        f.stream_out = stream_at(plan, layer + 1);
        f.kept = kept_at(plan, layer);
        HY_TRY(run_unit(&f, layer + 1, +1));
    }
    return HY_OK;
}

static hy_status run_backward(hy_batch_plan *plan, const hy_batch_input *input) {
    int32_t layers = plan->model->shape.layers;
    hy_frame f = new_frame(plan, input, HY_PASS_BACKWARD);
    f.stream_grad = stream_at(plan, layers + 1);
    HY_TRY(hy_store_gather(input->grads, layers + 1));
    f.unit = &plan->head;
    f.stream_in = stream_at(plan, layers);
    f.kept = kept_at(plan, layers);
    HY_TRY(run_unit(&f, layers + 1, -1));
    f.unit = &plan->block;
    for (int32_t layer = layers - 1; layer >= 0; layer--) {
        f.stream_in = stream_at(plan, layer);
        f.kept = kept_at(plan, layer);
        HY_TRY(run_unit(&f, layer + 1, -1));
    }
    f.unit = &plan->embedding;
    return run_unit(&f, 0, -1);
}

static hy_status train_pass(hy_batch_plan *plan, const hy_batch_input *input) {
    HY_TRY(run_forward(plan, input));
    return run_backward(plan, input);
}

hy_status hy_batch_train(hy_batch_plan *plan, const hy_batch_input *input) {
    if (!plan->options.is_training) {
        return hy_fail(HY_ERR_STATE, "this batch plan was made for evaluation only");
    }
    return hy_run_recorded(plan, input, train_pass);
}

/* Forward through embedding and blocks with two stream buffers; returns the one that holds the end. */
static hy_status run_stack(hy_batch_plan *plan, const hy_batch_input *input, hy_frame *f) {
    int32_t layers = plan->model->shape.layers;
    *f = new_frame(plan, input, HY_PASS_EVAL);
    HY_TRY(hy_store_gather(input->weights, 0));
    f->unit = &plan->embedding;
    f->stream_out = stream_at(plan, 0);
    HY_TRY(run_unit(f, 0, +1));
    f->unit = &plan->block;
    for (int32_t layer = 0; layer < layers; layer++) {
        f->stream_in = stream_at(plan, layer % 2);
        f->stream_out = stream_at(plan, (layer + 1) % 2);
        HY_TRY(run_unit(f, layer + 1, +1));
    }
    f->unit = &plan->head;
    f->stream_in = stream_at(plan, layers % 2);
    return HY_OK;
}

static hy_status evaluate_pass(hy_batch_plan *plan, const hy_batch_input *input) {
    hy_frame f;
    HY_TRY(run_stack(plan, input, &f));
    return run_unit(&f, plan->model->params.units - 1, +1);
}

hy_status hy_batch_evaluate(hy_batch_plan *plan, const hy_batch_input *input) {
    return hy_run_recorded(plan, input, evaluate_pass);
}

hy_status hy_batch_logits(hy_batch_plan *plan, const hy_batch_input *input, int64_t first,
                          int64_t rows) {
    if (rows > plan->size.chunk_rows) {
        return hy_fail(HY_ERR_STATE, "logits of %lld rows were asked for; a chunk has %d",
                       (long long)rows, plan->size.chunk_rows);
    }
    hy_frame f;
    int32_t unit = plan->model->params.units - 1;
    HY_TRY(run_stack(plan, input, &f));
    f.unit_index = unit;
    HY_TRY(enter_store(input->weights, plan, input->stream, unit, +1));
    hy_op_call norm, matmul;
    hy_frame_bind(&f, 0, 0, &norm); /* the head's list begins with its norm and the logits matmul */
    hy_frame_bind(&f, 1, 0, &matmul);
    hy_tensor normed = norm.t[3];
    matmul.t[0] = hy_tensor_rows(&normed, first, rows);
    matmul.t[2] = hy_tensor_rows(&matmul.t[2], 0, rows);
    if (rows != plan->size.chunk_rows) matmul.plan = NULL; /* prepared for a whole chunk */
    HY_TRY(plan->backend->enqueue(input->stream, &norm));
    HY_TRY(plan->backend->enqueue(input->stream, &matmul));
    return leave_store(input->weights, plan, input->stream, unit, hy_store_release);
}
