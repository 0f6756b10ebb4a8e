/* planner_rig.h: planning problems of real models on named cards, without a card. */
#ifndef HY_TESTS_PLANNER_RIG_H
#define HY_TESTS_PLANNER_RIG_H

#include "config/derived.h"
#include "harness.h"
#include "kernels/card_backend.h"
#include "plan/request.h"

#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)
#define CARD_16GB (16303 * MIB)

/* What a problem is made of; types as the keys have them. */
typedef struct rig_options {
    const char *model, *card;
    uint64_t device, host;
    int64_t step_tokens;
    hy_dtype grads, optim;
    bool has_master;
} rig_options;

/* The 7B recipe: bf16 weights that are their own master, bf16 gradients, 8-bit m and v. */
#define SMALL_STATE .grads = HY_BF16, .optim = HY_U8, .has_master = false
#define PLAIN_STATE .grads = HY_F32, .optim = HY_F32, .has_master = true

typedef struct rig {
    hy_model *model;
    hy_backend *backend;
    hy_sizer *sizer;
    hy_plan_problem problem;
} rig;

static inline void rig_model(rig *r, const char *preset) {
    hy_config *config;
    hy_shape shape;
    must(hy_config_create(&config));
    must(hy_config_set(config, "model", preset, HY_FROM_CALLER));
    must(hy_shape_from_settings(hy_config_settings(config), &shape));
    must(hy_model_create(&shape, &r->model));
    hy_config_destroy(config);
}

static inline void rig_sizer(rig *r, const rig_options *o) {
    hy_rates rates = hy_plan_nominal_rates(r->backend);
    hy_rows_spec spec = {.types = {.of = {HY_BF16, HY_BF16, HY_BF16, HY_BF16},
                                   .master = o->has_master ? HY_F32 : HY_BF16,
                                   .low = HY_BF16,
                                   .has_low = o->has_master,
                                   .grads = o->grads,
                                   .optim = o->optim},
                         .optimizer.kind = hy_optimizer_kind_of(HY_ADAMW)};
    hy_sizer sizer = {.speed = hy_plan_speed_of(r->backend, &rates),
                      .spec = {.model = r->model,
                               .backend = r->backend,
                               .seq = 1024,
                               .budget = o->device,
                               .types = {HY_BF16},
                               .type_count = 1,
                               .eval_types = {HY_BF16},
                               .eval_type_count = 1,
                               .grad_dtype = o->grads,
                               .state_sums = hy_state_sums(&spec.optimizer, &r->model->params,
                                                           r->backend, o->grads)}};
    must(hy_sizer_create(&sizer, &spec, &r->sizer));
}

/* Everything is open, the micro-batch too. */
static inline void rig_begin(rig *r, const rig_options *o) {
    *r = (rig){0};
    rig_model(r, o->model);
    must(hy_card_backend_create(o->card, &r->backend));
    rig_sizer(r, o);
    r->problem = (hy_plan_problem){
        .seq = 1024,
        .layers = r->model->shape.layers,
        .step_sequences = o->step_tokens / 1024,
        .has_master = o->has_master,
        .base = {.batch = 1,
                 .accum = (int32_t)(o->step_tokens / 1024),
                 .state = {HY_DEVICE, o->has_master ? HY_DEVICE : HY_NOWHERE, HY_DEVICE, HY_DEVICE},
                 .activations = HY_DEVICE,
                 .predictor = HY_PINNED,
                 .ring_depth = 3},
        .open = {.batch = true,
                 .recompute = true,
                 .recompute_layers = true,
                 .loss_chunks = true,
                 .state = {true, o->has_master, true, true},
                 .activations = true,
                 .predictor = true,
                 .update = true,
                 .ring_depth = true,
                 .resident_units = true},
        .limits = {.device = o->device, .host = o->host},
        .rates = r->sizer->speed.rates,
        .sizer = r->sizer};
}

static inline void rig_end(rig *r) {
    hy_sizer_destroy(r->sizer);
    hy_model_destroy(r->model);
    r->backend->destroy(r->backend);
}

#endif
