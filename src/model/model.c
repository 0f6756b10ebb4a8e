/* model.c: making a model and planning micro-batches over it. See model.h; passes are in passes.c. */
#include "model/model.h"

#include <stdlib.h>

#include "base/error.h"
#include "model/bind.h"
#include "model/recorded.h"

/* The logits of a chunk stay near this many bytes when the user leaves the number of chunks open: large
 * enough for full matmul speed, small enough not to matter. A GPU wants some thousand rows, and each
 * chunk reads and writes the whole gradient of the head: a sixty-fourth of its memory. */
#define CHUNK_TARGET_BYTES (64u << 20)
#define CHUNK_TARGET_MOST (1u << 30)

static uint64_t chunk_target(const hy_backend *backend) {
    uint64_t share = backend->facts.memory_total / 64;
    if (!backend->facts.is_gpu || share < CHUNK_TARGET_BYTES) return CHUNK_TARGET_BYTES;
    return share < CHUNK_TARGET_MOST ? share : CHUNK_TARGET_MOST;
}

hy_status hy_model_create(const hy_shape *shape, hy_model **out) {
    *out = NULL;
    hy_model *model = calloc(1, sizeof *model);
    if (!model) return hy_fail(HY_ERR_MEMORY, "no memory for a model");
    model->shape = *shape;
    hy_status status = hy_shape_complete(&model->shape);
    if (status == HY_OK) status = hy_params_init(&model->params, &model->shape);
    if (status != HY_OK) {
        free(model);
        return status;
    }
    hy_unit_embedding(&model->embedding, &model->shape);
    hy_unit_block(&model->block, &model->shape);
    hy_unit_head(&model->head, &model->shape);
    *out = model;
    return HY_OK;
}

void hy_model_destroy(hy_model *model) {
    if (!model) return;
    hy_params_fini(&model->params);
    free(model);
}

/* The smallest divisor of `rows` that is at least `wanted`. */
static int64_t divisor_from(int64_t rows, int64_t wanted) {
    if (wanted > rows) wanted = rows;
    while (rows % wanted != 0) wanted++;
    return wanted;
}

static int64_t choose_chunks(const hy_batch_options *o, const hy_shape *shape,
                             const hy_backend *backend) {
    int64_t rows = (int64_t)o->batch * o->seq;
    int64_t wanted = o->chunks;
    if (wanted == 0) {
        uint64_t all =
            (uint64_t)rows * (uint64_t)hy_shape_vocab_rows(shape) * hy_dtype_size(o->dtype);
        uint64_t target = chunk_target(backend);
        wanted = (int64_t)((all + target - 1) / target);
    }
    return divisor_from(rows, wanted < 1 ? 1 : wanted);
}

static hy_status check_size(const hy_batch_options *o, const hy_shape *shape) {
    if (o->batch < 1 || o->seq < 1) {
        return hy_fail(HY_ERR_INPUT, "a micro-batch of %d x %d tokens is empty", o->batch, o->seq);
    }
    if (o->seq > shape->context) {
        return hy_fail(HY_ERR_INPUT,
                       "the sequence length %d is beyond the model's context of %d tokens "
                       "(shape.context)",
                       o->seq, shape->context);
    }
    if ((int64_t)o->batch * o->seq > INT32_MAX) {
        return hy_fail(HY_ERR_INPUT, "a micro-batch of %d x %d tokens is too large", o->batch,
                       o->seq);
    }
    return HY_OK;
}

/* Asks the backend about every op of a pass: is it supported, what workspace, what plan. */
static hy_status prepare_pass(hy_batch_plan *plan, hy_unit_plan *unit, hy_pass pass) {
    hy_pass_plan *list = &unit->pass[pass];
    hy_frame frame = hy_frame_for_planning(plan, unit, pass);
    for (int i = 0; i < list->op_count; i++) {
        hy_op_call call;
        hy_frame_bind(&frame, i, 0, &call);
        hy_status status = plan->backend->supports(plan->backend, &call);
        if (status == HY_OK) status = plan->backend->prepare(plan->backend, &call);
        if (status != HY_OK) return hy_fail_context(status, "the model's %s", unit->unit->name);
        list->prepared[i] = call.plan;
        uint64_t workspace = plan->backend->workspace(plan->backend, &call);
        if (workspace > plan->op_workspace_bytes) plan->op_workspace_bytes = workspace;
    }
    if (list->scratch_bytes > plan->scratch_bytes) plan->scratch_bytes = list->scratch_bytes;
    return HY_OK;
}

static hy_status prepare_unit(hy_batch_plan *plan, hy_unit_plan *unit) {
    HY_TRY(prepare_pass(plan, unit, HY_PASS_EVAL));
    if (!plan->options.is_training) return HY_OK;
    HY_TRY(prepare_pass(plan, unit, HY_PASS_FORWARD));
    return prepare_pass(plan, unit, HY_PASS_BACKWARD);
}

static void count_bytes(hy_batch_plan *plan) {
    const hy_shape *shape = &plan->model->shape;
    uint64_t rows = (uint64_t)plan->size.batch * (uint64_t)plan->size.seq;
    uint64_t item = hy_dtype_size(plan->size.dtype);
    uint64_t layers = (uint64_t)shape->layers;
    plan->stream_bytes = hy_align(rows * (uint64_t)shape->width * item);
    /* Training: the stream entering each block and the head, its gradient, and what blocks keep.
     * Evaluation: the stream before and after the block at work. */
    plan->bytes.activations = plan->options.is_training
                                  ? plan->stream_bytes * (layers + 2) +
                                        plan->block.kept_bytes * layers + plan->head.kept_bytes
                                  : plan->stream_bytes * 2;
    plan->bytes.workspace = hy_align(plan->scratch_bytes) + hy_align(plan->op_workspace_bytes);
    uint64_t logits = (uint64_t)plan->size.chunk_rows * (uint64_t)hy_shape_vocab_rows(shape);
    plan->bytes.logits = hy_align(logits * item);
}

/* Would the backend take gelu and its way back into the mlp's products? */
static bool can_fuse_gelu(const hy_shape *shape, hy_backend *backend, const hy_batch_options *o) {
    void *somewhere = (void *)(uintptr_t)HY_ALIGNMENT;
    int64_t N = (int64_t)o->batch * o->seq, C = shape->width, F = shape->mlp_width;
    if (shape->is_gated) return false;
    hy_op_call up = {.kind = HY_OP_MATMUL,
                     .attr.matmul = {.trans_b = true, .is_gelu = true, .alpha = 1},
                     .t = {hy_tensor_2d(somewhere, o->dtype, N, C),
                           hy_tensor_2d(somewhere, o->dtype, F, C),
                           hy_tensor_2d(somewhere, o->dtype, N, F)}};
    if (shape->has_proj_bias) up.t[3] = hy_tensor_1d(somewhere, o->dtype, F);
    hy_op_call back = {.kind = HY_OP_MATMUL,
                       .attr.matmul = {.alpha = 1},
                       .t = {hy_tensor_2d(somewhere, o->dtype, N, C),
                             hy_tensor_2d(somewhere, o->dtype, C, F),
                             hy_tensor_2d(somewhere, o->dtype, N, F)}};
    back.t[6] = back.t[2];
    return backend->supports(backend, &up) == HY_OK && backend->supports(backend, &back) == HY_OK;
}

hy_status hy_batch_plan_create(hy_model *model, hy_backend *backend,
                               const hy_batch_options *options, hy_batch_plan **out) {
    *out = NULL;
    HY_TRY(check_size(options, &model->shape));
    hy_batch_plan *plan = calloc(1, sizeof *plan);
    if (!plan) return hy_fail(HY_ERR_MEMORY, "no memory for a batch plan");
    int64_t chunks = choose_chunks(options, &model->shape, backend);
    plan->model = model;
    plan->backend = backend;
    plan->options = *options;
    plan->chunk_count = (int32_t)chunks;
    plan->size = (hy_batch_size){
        .batch = options->batch,
        .seq = options->seq,
        .chunk_rows = (int32_t)((int64_t)options->batch * options->seq / chunks),
        .dtype = options->dtype,
        .recompute = options->recompute,
        .fuses_gelu = can_fuse_gelu(&model->shape, backend, options),
    };
    hy_unit_plan_init(&plan->embedding, &model->embedding, &plan->size);
    hy_unit_plan_init(&plan->block, &model->block, &plan->size);
    hy_unit_plan_init(&plan->head, &model->head, &plan->size);
    hy_status status = prepare_unit(plan, &plan->embedding);
    if (status == HY_OK) status = prepare_unit(plan, &plan->block);
    if (status == HY_OK) status = prepare_unit(plan, &plan->head);
    if (status != HY_OK) {
        free(plan);
        return status;
    }
    count_bytes(plan);
    *out = plan;
    return HY_OK;
}

void hy_batch_plan_destroy(hy_batch_plan *plan) {
    if (!plan) return;
    hy_forget_recordings(plan);
    free(plan);
}

void hy_batch_plan_place(hy_batch_plan *plan, void *activations, void *workspace, void *logits) {
    hy_forget_recordings(plan);
    plan->activations = activations;
    plan->workspace = workspace;
    plan->logits = logits;
}
