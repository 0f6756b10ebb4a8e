/* model.c: a trainer of a custom model, with passes that callbacks compute. See hybrid.h.
 *
 * Each request of the provider becomes calls of forward, backward or evaluate, one for each
 * micro-batch. A failure of a callback is reported with its name. */
#include <stdlib.h>

#include "custom/custom.h"

typedef struct callbacks {
    hy_custom_provider custom;
    hy_custom_model model;
    hy_provider_ops ops;
} callbacks;

static void release(hy_provider *provider) {
    callbacks *m = (callbacks *)provider;
    hy_custom_provider_fini(&m->custom);
    free(m);
}

static hy_status check_answer(const char *which, const hy_loop_step *request, hy_status status,
                              int64_t counted) {
    bool has_failed = status != HY_OK && status != HY_STOPPED;
    HY_FAIL_IF(has_failed && request->todo == HY_DO_EVALUATE, status,
               "the %s callback returned \"%s\"", which, hy_status_name(status));
    HY_FAIL_IF(has_failed, status, "the %s callback returned \"%s\" on micro-batch %lld", which,
               hy_status_name(status), (long long)request->batch);
    if (status == HY_STOPPED) return hy_fail(status, "the %s callback stopped the run", which);
    HY_FAIL_IF(counted < 0, HY_ERR_INPUT,
               "the %s callback counted %lld targets in micro-batch %lld; expected 0 or more",
               which, (long long)counted, (long long)request->batch);
    return HY_OK;
}

static hy_status answer(void *user, const hy_loop_step *request, hy_program_answer *out) {
    const callbacks *m = user;
    const hy_custom_model *o = &m->model;
    double sum = 0;
    int64_t counted = 0;
    if (request->todo == HY_DO_EVALUATE) {
        HY_TRY(check_answer("evaluate", request, o->evaluate(o->user, &sum, &counted), counted));
        *out = (hy_program_answer){.loss_sum = sum, .counted = (double)counted, .tokens = counted};
        return HY_OK;
    }
    for (int64_t i = 0; i < request->count; i++) {
        bool is_forward = request->todo == HY_DO_LOSS;
        hy_loop_step one = {.todo = request->todo, .batch = request->batch + i};
        sum = 0;
        counted = 0;
        hy_status status =
            is_forward ? o->forward(o->user, one.batch, &sum, &counted)
                       : o->backward(o->user, one.batch, request->loss_scale, &sum, &counted);
        HY_TRY(check_answer(is_forward ? "forward" : "backward", &one, status, counted));
        out->loss_sum += sum;
        out->counted += (double)counted;
        out->tokens += counted;
    }
    return HY_OK;
}

/* loop: for the plan of a loop; else NULL. */
static hy_status make(const hy_config *config, const hy_custom_model *model,
                      const hy_loop_options *loop, const hy_observer *observer, hy_making making,
                      hy_trainer **out) {
    *out = NULL;
    callbacks *m = calloc(1, sizeof *m);
    if (!m) return hy_fail(HY_ERR_MEMORY, "not enough memory for a model");
    hy_status status = hy_custom_provider_init(&m->custom, &model->parameters,
                                               loop ? loop->unit_of : NULL, !making.is_plan);
    if (status != HY_OK) {
        free(m);
        return status;
    }
    hy_custom_provider *p = &m->custom;
    m->model = *model;
    m->ops = hy_custom_ops;
    m->ops.release = release;
    p->provider.ops = &m->ops;
    p->user = m;
    p->answer = answer;
    p->provider.facts.can_evaluate = loop ? loop->can_evaluate : model->evaluate != NULL;
    p->provider.facts.can_rewind = !loop || loop->can_rewind;
    p->side.uses_in_turn = loop && (loop->uses_in_turn || loop->unit_of);
    p->zeroes_grads = true;
    /* A sum of means needs the gradients of each micro-batch. */
    p->side.types.asks_each |= !loop && !hy_config_settings(config)->train.normalize;
    making.provider = &p->provider;
    return hy_trainer_make(config, observer, &making, out);
}

hy_status hy_trainer_create_custom(const hy_config *config, const hy_custom_model *model,
                                   const hy_observer *observer, hy_trainer **out) {
    if (out) *out = NULL;
    HY_FAIL_IF(!config || !model || !out, HY_ERR_INPUT,
               "hy_trainer_create_custom needs a configuration, a model and an output pointer; one "
               "is NULL");
    HY_FAIL_IF(!model->forward || !model->backward, HY_ERR_INPUT,
               "a custom model needs the callbacks forward and backward; %s is NULL",
               model->forward ? "backward" : "forward");
    for (int32_t i = 0; model->parameters.list && i < model->parameters.count; i++) {
        const hy_parameter *p = &model->parameters.list[i];
        HY_FAIL_IF(!p->grads, HY_ERR_INPUT, "parameter %s has no memory for its gradients",
                   p->name ? p->name : "without a name");
    }
    return make(config, model, NULL, observer, (hy_making){0}, out);
}

hy_status hy_trainer_plan_custom(const hy_config *config, const hy_custom_parameters *parameters,
                                 const hy_observer *observer, hy_trainer **out) {
    return hy_trainer_plan_custom_ranks(config, parameters, 1, false, observer, out);
}

hy_status hy_trainer_plan_custom_ranks(const hy_config *config,
                                       const hy_custom_parameters *parameters, int32_t count,
                                       bool has_cards, const hy_observer *observer,
                                       hy_trainer **out) {
    if (out) *out = NULL;
    HY_TRY(hy_planned_ranks_check(count));
    HY_FAIL_IF(!config || !parameters || !out, HY_ERR_INPUT,
               "hy_trainer_plan_custom needs a configuration, parameters and an output pointer; "
               "one is NULL");
    return make(config, &(hy_custom_model){.parameters = *parameters}, NULL, observer,
                (hy_making){.is_plan = true, .planned = {count, has_cards}}, out);
}

hy_status hy_loop_plan(const hy_config *config, const hy_loop_options *options,
                       const hy_observer *observer, hy_trainer **out) {
    if (out) *out = NULL;
    HY_FAIL_IF(!config || !options || !out, HY_ERR_INPUT,
               "hy_loop_plan needs a configuration, options and an output pointer; one is NULL");
    return make(config, &(hy_custom_model){.parameters = options->parameters}, options, observer,
                (hy_making){.is_plan = true, .planned = {1, false}}, out);
}
