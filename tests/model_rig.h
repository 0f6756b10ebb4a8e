/* model_rig.h: a model on a backend with all its memory, for tests that run passes by hand. */
#ifndef HY_TESTS_MODEL_RIG_H
#define HY_TESTS_MODEL_RIG_H

#include "harness.h"
#include "model/model.h"

typedef struct model_rig {
    hy_backend *backend;
    hy_stream *stream;
    hy_ledger ledger;
    hy_arena arena;
    hy_model *model;
    hy_batch_plan *plan;
    hy_store weights, grads;
    int32_t *tokens, *targets;
    float *losses, *rope;
} model_rig;

static const hy_loss *rig_loss; /* of the next model; NULL: next-token loss */

/* Builds everything for one plan; weights are initialised from `seed`. */
static inline void rig_open(model_rig *rig, const hy_shape *shape, const hy_batch_options *options,
                            uint64_t seed) {
    hy_layout weights, grads;
    void *activations, *workspace;
    *rig = (model_rig){0};
    must(hy_cpu_backend_create(&(hy_cpu_options){.threads = 2}, &rig->backend));
    must(rig->backend->stream_create(rig->backend, "test", &rig->stream));
    must(hy_model_create(shape, &rig->model));
    if (rig_loss) hy_model_set_loss(rig->model, rig_loss);
    must(hy_batch_plan_create(rig->model, rig->backend, options, &rig->plan));
    must(hy_params_layout(&rig->model->params, HY_SET_ALL, options->dtype, &weights));
    must(hy_params_layout(&rig->model->params, HY_SET_ALL, options->grad_dtype, &grads));
    const hy_batch_bytes *b = &rig->plan->bytes;
    uint64_t rows = (uint64_t)options->batch * (uint64_t)options->seq;
    uint64_t rope = (uint64_t)hy_shape_rope_floats(&rig->model->shape, options->seq) * 4 + 4;
    uint64_t total =
        weights.bytes + grads.bytes + b->activations + b->workspace + 16 * rows + rope + 4096;
    must(hy_arena_init(&rig->arena, rig->backend, &rig->ledger, HY_DEVICE, total, "a test"));
    memset(rig->arena.data, 0xff, total); /* NaN everywhere: what is read must have been written */
    must(hy_store_init(&rig->weights, &rig->arena, HY_WEIGHTS, &weights));
    must(hy_store_init(&rig->grads, &rig->arena, HY_GRADS, &grads));
    must(hy_arena_push(&rig->arena, HY_ACTIVATIONS, b->activations, &activations));
    must(hy_arena_push(&rig->arena, HY_WORKSPACE, b->workspace, &workspace));
    must(hy_arena_push(&rig->arena, HY_DATA, rows * 4, (void **)&rig->tokens));
    must(hy_arena_push(&rig->arena, HY_DATA, rows * 4, (void **)&rig->targets));
    must(hy_arena_push(&rig->arena, HY_DATA, rows * 4, (void **)&rig->losses));
    must(hy_arena_push(&rig->arena, HY_DATA, rope, (void **)&rig->rope));
    hy_batch_plan_place(rig->plan, activations, workspace);
    if (shape->has_rope) hy_shape_rope_tables(&rig->model->shape, options->seq, rig->rope);
    for (int32_t i = 0; i < rig->model->params.count; i++) {
        const hy_param *p = &rig->model->params.list[i];
        if (options->dtype == HY_F32) {
            hy_param_initial(p, seed, 0, p->count, hy_store_backing(&rig->weights, i));
        }
    }
    hy_layout_fini(&weights);
    hy_layout_fini(&grads);
}

static inline void rig_close(model_rig *rig) {
    rig->backend->stream_destroy(rig->stream);
    hy_store_fini(&rig->weights);
    hy_store_fini(&rig->grads);
    hy_batch_plan_destroy(rig->plan);
    hy_model_destroy(rig->model);
    hy_arena_fini(&rig->arena);
    rig->backend->destroy(rig->backend);
}

static inline hy_batch_input rig_input(model_rig *rig, float loss_scale, bool accumulate) {
    return (hy_batch_input){.stream = rig->stream,
                            .weights = &rig->weights,
                            .grads = &rig->grads,
                            .tokens = rig->tokens,
                            .targets = rig->targets,
                            .rope = rig->model->shape.has_rope ? rig->rope : NULL,
                            .losses = rig->losses,
                            .loss_scale = loss_scale,
                            .accumulate = accumulate};
}

static inline void rig_sync(model_rig *rig) { must(rig->backend->stream_sync(rig->stream)); }

static inline double rig_loss_sum(const model_rig *rig) {
    double sum = 0;
    int64_t rows = (int64_t)rig->plan->size.batch * rig->plan->size.seq;
    for (int64_t i = 0; i < rows; i++) sum += rig->losses[i];
    return sum;
}

#endif
