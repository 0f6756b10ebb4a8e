/* provider.c: adjusts the settings of a run to its provider. See provider.h.
 *
 * Settings that do not apply to a provider are replaced here, for all providers, from facts and
 * parameters alone. */
#include "trainer/provider.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/hash.h"
#include "config/derived.h"

static hy_status check_settings(int32_t ranks, const hy_settings *s) {
    HY_FAIL_IF(ranks > 0 && s->train.grad_accum_steps % ranks != 0, HY_ERR_INPUT,
               "train.grad_accum_steps is %lld: %d ranks share the micro-batches of a step, so use "
               "a multiple of %d",
               (long long)s->train.grad_accum_steps, ranks, ranks);
    HY_FAIL_IF(ranks > 0 && s->ranks.zero_stage == HY_ZERO_WEIGHTS, HY_ERR_INPUT,
               "ranks.zero_stage is 3: in a custom model or loop every rank holds all weights in "
               "its own memory; accepted: 0 to 2 and auto");
    HY_FAIL_IF(s->train.steps < 1, HY_ERR_INPUT,
               "train.steps is %lld; a custom model or loop needs its length in steps, at least 1",
               (long long)s->train.steps);
    HY_FAIL_IF(s->eval.eval_rows[0], HY_ERR_INPUT,
               "eval.eval_rows is \"%s\": a custom model or loop computes its own validations; "
               "accepted: empty",
               s->eval.eval_rows);
    HY_FAIL_IF(s->task != HY_LOSS_NEXT_TOKEN, HY_ERR_INPUT,
               "task is %s: a custom model or loop computes its own loss; accepted: next-token",
               hy_choice_name("task", (int)s->task));
    HY_FAIL_IF(strcmp(s->train.train, "all") != 0, HY_ERR_INPUT,
               "train.train is \"%s\": a custom model always trains all parameters that you list",
               s->train.train);
    return HY_OK;
}

static void settle_passes(hy_settings *s) {
    s->train.tokens = 0;
    s->train.epochs = 0;
    s->train.step_tokens = 0;
    s->train.batch_size = 1; /* one sequence stands for one micro-batch of the provider */
    s->train.seq_len = 1;
    s->train.min_batch_size = 1;
    s->train.max_batch_size = 0;
    s->train.dynamic_batch = HY_OFF;
    s->train.micro_batch = HY_MICRO_GIVEN;
    s->train.recompute = HY_RECOMPUTE_NONE;
    s->train.recompute_layers = 0;
    s->train.loss_chunks = 1;
    s->train.mlp_chunks = 1;
    s->train.scale_lr = false;
    s->eval.eval_batch_size = 0;
    s->eval.eval_batches = 0;
    s->memory.activations_place = HY_DEVICE;
}

hy_status hy_provider_settle(hy_provider *p, int32_t ranks, hy_settings *s) {
    const hy_provider_facts *f = &p->facts;
    hy_custom_side *m = p->memory;
    if (!f->has_passes) {
        HY_TRY(check_settings(ranks, s));
        settle_passes(s);
    }
    if (m) { /* a caller's weights stay there, and gradients too unless the engine sums them */
        HY_FAIL_IF(m->types.keeps_weights && ranks > 0, HY_ERR_INPUT,
                   "several ranks cannot train a custom loop with units (unit_of); start one "
                   "process, or leave out unit_of");
        m->types.sums_grads = m->types.asks_each || ranks > 0; /* the engine sums over ranks */
        m->is_half =
            hy_settings_precision(s, HY_FULL) == HY_DTYPE_F16 || m->types.weights == HY_F16;
        if (!m->types.keeps_weights) s->memory.weights_place = HY_DEVICE;
        if (!m->types.sums_grads) s->memory.grads_place = HY_DEVICE;
        /* The provider uses all weights right after an update, unless it announces each one. */
        if (!m->uses_in_turn) s->memory.update = HY_UPDATE_NOW;
    }
    if (!f->can_evaluate) s->eval.eval_every = s->eval.early_stop = 0;
    if (!f->can_rewind) s->phases.fork_budget = 0;
    if (!f->has_model_files) {
        s->save.save_model = false;
        snprintf(s->model, sizeof s->model, "own");
    }
    bool is_named = s->out[0] || s->save.resume[0];
    if (f->writes_if_asked && !is_named) snprintf(s->out, sizeof s->out, "none");
    return HY_OK;
}

uint64_t hy_provider_agreed(const hy_provider *p) {
    const hy_custom_side *m = p ? p->memory : NULL; /* NULL in a self-test, which has no run */
    hy_hash hash;
    hy_hash_init(&hash, 0);
    if (!m) return hy_hash_value(&hash);
    for (int32_t i = 0; i < m->count; i++) {
        const hy_param_spec *one = &m->params[i];
        const double numbers[] = {one->ndim, one->lr_scale, one->decay};
        hy_hash_add(&hash, one->name, strlen(one->name) + 1);
        hy_hash_add(&hash, numbers, sizeof numbers);
        hy_hash_add(&hash, one->shape, (size_t)one->ndim * sizeof *one->shape);
    }
    const int32_t traits[] = {(int32_t)m->types.weights, (int32_t)m->types.grads,
                              m->types.asks_each,        m->uses_in_turn,
                              p->facts.can_evaluate,     p->facts.can_rewind};
    hy_hash_add(&hash, traits, sizeof traits);
    return hy_hash_value(&hash);
}

void hy_provider_release(hy_provider *p) {
    if (p && p->ops->release) p->ops->release(p);
}
