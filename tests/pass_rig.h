/* pass_rig.h: a model whose weights, gradients and activations may pass through rings, under random
 * delays, for tests that compare such passes with plain ones bit for bit.
 *
 * Every piece of memory has exactly the planned size and a guard behind it that nobody may touch;
 * all of it holds NaN at first, so what is read must have been written. */
#ifndef HY_TESTS_PASS_RIG_H
#define HY_TESTS_PASS_RIG_H

#include "base/rng.h"
#include "harness.h"
#include "linear_shape.h"
#include "model/model.h"

#define PASS_ROWS 16
#define PASS_GUARD 256
#define PASS_MICRO_BATCHES 3

typedef struct pass_choice {
    bool is_tied, is_rich, is_linear;
    int recompute;
    int32_t recompute_layers;
    bool offloads;
    int32_t offload_depth;
    int32_t state_depth; /* ring of weights and gradients; 0: on the device */
    int32_t resident;
    int delay; /* microseconds */
} pass_choice;

typedef struct pass_rig {
    hy_backend *backend;
    hy_stream *compute, *up, *down;
    hy_ledger ledger;
    hy_arena host, device;
    hy_model *model;
    hy_batch_plan *plan;
    hy_store weights, grads, activations;
    bool has_offload;
    char *guards[8];
    int guard_count;
    int32_t *tokens, *targets;
    float *losses, *rope;
} pass_rig;

/* Embedding and untied head are more than twice a block, as in the models people use. */
static inline hy_shape pass_shape(const pass_choice *c) {
    hy_shape shape = {.layers = 5,
                      .width = 16,
                      .heads = 2,
                      .vocab = 701,
                      .context = 8,
                      .has_tied_head = c->is_tied,
                      .has_qkv_bias = true,
                      .norm_eps = 1e-5,
                      .init_std = 0.1};
    if (c->is_rich) {
        shape.heads = 4;
        shape.kv_heads = 2;
        shape.mlp_width = 24;
        shape.is_rms = shape.has_rope = shape.is_gated = shape.has_qk_norm = true;
        shape.rope_theta = 10000;
        shape.sliding_window = 3;
        strcpy(shape.sliding_layers, "fs");
    } else {
        shape.has_proj_bias = true;
    }
    if (c->is_linear) {
        shape = linear_shape();
        shape.context = 8;
        shape.has_tied_head = c->is_tied;
    }
    return shape;
}

static inline hy_batch_options pass_options(const pass_choice *c) {
    return (hy_batch_options){.batch = 2,
                              .seq = 8,
                              .chunks = 2,
                              .recompute = c->recompute,
                              .recompute_layers = c->recompute_layers,
                              .offloads = c->offloads,
                              .ring_depth = c->offload_depth,
                              .is_training = true};
}

/* A piece of the device with a guard behind it. */
static inline void *pass_push(pass_rig *r, hy_class cls, uint64_t bytes) {
    void *piece, *guard;
    must(hy_arena_push(&r->device, cls, bytes, &piece));
    must(hy_arena_push(&r->device, HY_DATA, PASS_GUARD, &guard));
    r->guards[r->guard_count++] = guard;
    return piece;
}

static inline void pass_take_state(pass_rig *r, const pass_choice *c, hy_store *store, hy_class cls,
                                   const hy_layout *layout) {
    hy_ring_options ring = {
        .depth = c->state_depth, .resident = c->resident, .copies = {r->up, r->down}};
    must(c->state_depth ? hy_store_init_ring(store, &r->host, &r->device, cls, layout, &ring)
                        : hy_store_init(store, &r->device, cls, layout));
}

static inline void pass_take_work(pass_rig *r, const pass_choice *c) {
    const hy_batch_bytes *b = &r->plan->bytes;
    void *activations = pass_push(r, HY_ACTIVATIONS, b->activations - b->ring);
    void *workspace = pass_push(r, HY_WORKSPACE, b->workspace);
    hy_batch_plan_place(r->plan, activations, workspace);
    r->tokens = pass_push(r, HY_DATA, PASS_ROWS * 4);
    r->targets = pass_push(r, HY_DATA, PASS_ROWS * 4);
    r->losses = pass_push(r, HY_DATA, PASS_ROWS * 4);
    r->rope = pass_push(r, HY_DATA, 8 * 16 * 4);
    if (!c->offloads) return;
    hy_layout layout;
    uint64_t before = r->device.used;
    must(hy_batch_offload_layout(r->plan, &layout));
    ck_assert_uint_eq(layout.bytes, b->host);
    must(hy_store_init_streamed(&r->activations, &r->host, &r->device, HY_ACTIVATIONS, &layout,
                                c->offload_depth ? c->offload_depth : HY_OFFLOAD_DEPTH,
                                &(hy_copies){r->up, r->down}));
    ck_assert_uint_eq(r->device.used - before, b->ring);
    hy_layout_fini(&layout);
    hy_batch_plan_offload(r->plan, &r->activations);
    r->has_offload = true;
}

static inline void pass_open(pass_rig *r, const pass_choice *c) {
    hy_shape shape = pass_shape(c);
    hy_batch_options options = pass_options(c);
    hy_layout layout;
    *r = (pass_rig){0};
    hy_cpu_options cpu = {.threads = 1, .delay_microseconds = c->delay, .delay_seed = 9};
    must(hy_cpu_backend_create(&cpu, &r->backend));
    must(r->backend->stream_create(r->backend, "compute", &r->compute));
    must(r->backend->stream_create(r->backend, "up", &r->up));
    must(r->backend->stream_create(r->backend, "down", &r->down));
    must(hy_model_create(&shape, &r->model));
    must(hy_batch_plan_create(r->model, r->backend, &options, &r->plan));
    must(hy_params_layout(&r->model->params, HY_SET_ALL, HY_F32, &layout));
    const hy_batch_bytes *b = &r->plan->bytes;
    uint64_t state = c->state_depth ? hy_store_plan_ring(&layout, c->state_depth, c->resident).bytes
                                    : layout.bytes;
    uint64_t size = 2 * state + b->activations + b->workspace + 8192;
    must(hy_arena_init(&r->device, r->backend, &r->ledger, HY_DEVICE, size, "a test"));
    must(hy_arena_init(&r->host, r->backend, &r->ledger, HY_PINNED, 2 * layout.bytes + b->host,
                       "a test"));
    memset(r->device.data, 0xff, size);
    memset(r->host.data, 0xff, r->host.size);
    pass_take_state(r, c, &r->weights, HY_WEIGHTS, &layout);
    pass_take_state(r, c, &r->grads, HY_GRADS, &layout);
    pass_take_work(r, c);
    hy_shape_rope_tables(&r->model->shape, 8, r->rope);
    for (int32_t i = 0; i < r->model->params.count; i++) {
        const hy_param *p = &r->model->params.list[i];
        hy_param_initial(p, 3, 0, p->count, hy_store_backing(&r->weights, i));
    }
    hy_layout_fini(&layout);
}

static inline void pass_check_guards(const pass_rig *r) {
    for (int i = 0; i < r->guard_count; i++) {
        for (int k = 0; k < PASS_GUARD; k++) ck_assert_int_eq((unsigned char)r->guards[i][k], 0xff);
    }
}

static inline void pass_close(pass_rig *r) {
    pass_check_guards(r);
    hy_store_fini(&r->weights);
    hy_store_fini(&r->grads);
    if (r->has_offload) hy_store_fini(&r->activations);
    r->backend->stream_destroy(r->compute);
    r->backend->stream_destroy(r->up);
    r->backend->stream_destroy(r->down);
    hy_batch_plan_destroy(r->plan);
    hy_model_destroy(r->model);
    hy_arena_fini(&r->device);
    hy_arena_fini(&r->host);
    r->backend->destroy(r->backend);
}

static inline void pass_new_tokens(pass_rig *r, uint64_t number) {
    must(r->backend->stream_sync(r->compute)); /* the pass before reads the old ones */
    for (uint64_t i = 0; i < PASS_ROWS; i++) {
        uint64_t at = number * PASS_ROWS + i;
        r->tokens[i] = (int32_t)hy_rng_below(5, HY_RNG_TEST, at, 701);
        r->targets[i] = (int32_t)hy_rng_below(6, HY_RNG_TEST, at, 701);
    }
}

/* The micro-batches of one step: the first overwrites the gradients, the others add to them. */
static inline void pass_step(pass_rig *r, uint64_t step, const hy_unit_hook *hook) {
    for (uint64_t micro = 0; micro < PASS_MICRO_BATCHES; micro++) {
        pass_new_tokens(r, step * PASS_MICRO_BATCHES + micro);
        hy_batch_input input = {.stream = r->compute,
                                .weights = &r->weights,
                                .grads = &r->grads,
                                .tokens = r->tokens,
                                .targets = r->targets,
                                .rope = r->model->shape.has_rope ? r->rope : NULL,
                                .losses = r->losses,
                                .loss_scale = 1.0f / 48,
                                .accumulate = micro > 0,
                                .hook = hook};
        must(hy_batch_train(r->plan, &input));
    }
}

static inline void pass_settle(pass_rig *r) {
    must(r->backend->stream_sync(r->compute));
    must(hy_store_settle(&r->weights));
    must(hy_store_settle(&r->grads));
    if (r->has_offload) must(hy_store_settle(&r->activations));
}

static inline void pass_compare(const pass_rig *plain, const pass_rig *other, const char *what) {
    ck_assert_msg(memcmp(plain->losses, other->losses, PASS_ROWS * 4) == 0, "losses: %s", what);
    for (int32_t i = 0; i < plain->model->params.count; i++) {
        const hy_param *p = &plain->model->params.list[i];
        size_t bytes = (size_t)p->count * sizeof(float);
        ck_assert_msg(memcmp(hy_store_backing(&plain->grads, i), hy_store_backing(&other->grads, i),
                             bytes) == 0,
                      "the gradient of %s: %s", p->name, what);
        ck_assert_msg(memcmp(hy_store_backing(&plain->weights, i),
                             hy_store_backing(&other->weights, i), bytes) == 0,
                      "the weights of %s: %s", p->name, what);
    }
}

#endif
