/* monitor_estimate.c: the memory of a micro-batch of any shape, before anything is allocated. See
 * hybrid_tools.h.
 *
 * Batch plans are made only for their bytes, on the device or card that the configuration names,
 * by the code that plans the micro-batches of a run. */

#include "base/sized.h"
#include "hybrid_tools.h"
#include "setup/setup.h"
#include "trainer/make.h"

static hy_status size_plan(const hy_trainer *t, const hy_plan_choice *choice, int64_t seq,
                           hy_batch_bytes *out) {
    const hy_engine *e = t->engine;
    hy_pass_spec spec = {.model = e->model,
                         .backend = e->device.backend,
                         .seq = (int32_t)seq,
                         .has_doc_starts = e->request.has_doc_starts,
                         .grad_dtype = e->plan->types.grads,
                         .fp8 = e->plan->types.fp8,
                         .types = {hy_types_step(&e->plan->types, HY_FULL)},
                         .type_count = 1,
                         .budget = hy_budget_device(&e->request)};
    hy_batch_options options = hy_pass_options(&spec, choice, spec.types[0], true);
    hy_batch_plan *plan;
    options.is_sizing = true;
    HY_TRY(hy_batch_plan_create(e->model, e->device.backend, &options, &plan));
    *out = plan->bytes;
    hy_batch_plan_destroy(plan);
    return HY_OK;
}

static hy_status estimate(const hy_trainer *t, int64_t batch, int64_t seq,
                          hy_activation_estimate *out, size_t size) {
    for (int i = 0; i < HY_RECOMPUTE_LEVELS; i++) {
        hy_recompute level = (hy_recompute)i;
        hy_batch_bytes kept, offloaded;
        /* The run's number of loss chunks holds only for its own batch size. */
        const hy_plan_choice *planned = &t->engine->plan->choice;
        int64_t asked = t->settings->train.loss_chunks;
        bool is_planned = asked == 0 && batch == planned->batch;
        hy_plan_choice choice = {.batch = (int32_t)batch,
                                 .loss_chunks = is_planned ? planned->loss_chunks : (int32_t)asked,
                                 .mlp_chunks = planned->mlp_chunks,
                                 .recompute = level,
                                 .activations = HY_DEVICE,
                                 .ring_depth = planned->ring_depth
                                                   ? planned->ring_depth
                                                   : (int32_t)t->settings->memory.ring_depth};
        HY_TRY(size_plan(t, &choice, seq, &kept));
        choice.activations = HY_PINNED;
        HY_TRY(size_plan(t, &choice, seq, &offloaded));
        hy_activation_estimate one = {.recompute = hy_choice_name("recompute", i),
                                      .activations = kept.activations,
                                      .workspace = kept.workspace,
                                      .offloaded = offloaded.host,
                                      .offload_device = offloaded.activations};
        hy_copy_sized((char *)out + (size_t)i * size, size, &one, sizeof one);
    }
    return HY_OK;
}

hy_status hy_trainer_estimate_activations_sized(const hy_trainer *t, int64_t batch, int64_t seq,
                                                hy_activation_estimate *out, size_t size) {
    HY_TRY(hy_trainer_must_have_passes(t, "estimates of activations"));
    if (batch == 0) batch = t->engine->plan->choice.batch;
    if (seq == 0) seq = t->settings->train.seq_len;
    int64_t context = t->engine->model->shape.context;
    HY_FAIL_IF(batch < 1 || batch > INT32_MAX || seq < 1 || seq > context, HY_ERR_INPUT,
               "a micro-batch of %lld sequences of %lld tokens; accepted are 1 to %d sequences of "
               "1 to %lld tokens",
               (long long)batch, (long long)seq, INT32_MAX, (long long)context);
    HY_FAIL_IF(batch * seq > INT32_MAX, HY_ERR_INPUT,
               "a micro-batch of %lld x %lld tokens; accepted are at most %d tokens in all",
               (long long)batch, (long long)seq, INT32_MAX);
    return estimate(t, batch, seq, out, size);
}

/* Makes the parts of a run that depend only on shape and device; no data is opened. */
static hy_status prepare(hy_trainer *t) {
    hy_engine *e = t->engine;
    e->observer = &t->observer;
    e->request.is_plan = true;
    e->request.settings = t->settings;
    HY_TRY(hy_engine_make_model(e));
    HY_TRY(hy_engine_open_device(e));
    e->request.model = e->model;
    e->request.backend = e->device.backend;
    HY_TRY(hy_plan_request_complete(&e->request));
    HY_TRY(hy_plan_begin_finest(&e->request, e->plan));
    e->plan->choice.batch = (int32_t)t->settings->train.batch_size;
    return hy_engine_lay_out(e);
}

hy_status hy_estimate_activations_sized(const hy_config *config, int64_t batch, int64_t seq,
                                        hy_activation_estimate *out, size_t size) {
    hy_trainer *t;
    HY_TRY(hy_trainer_alloc(&t));
    *t->settings = *hy_config_settings(config);
    t->status.life = HY_LIFE_PLAN;
    hy_status status = prepare(t);
    if (status == HY_OK) status = hy_trainer_estimate_activations_sized(t, batch, seq, out, size);
    hy_trainer_destroy(t);
    return status;
}
