/* monitor_plans.c: what would need less memory, found by planning it. See monitor.h.
 *
 * Each piece of advice is one setting changed, and the difference between the plan of the run
 * with and without it, both made by the code that takes the memory of a run. Cheap changes come
 * first: those that change no bit of the result or cost little time; what frees less than a
 * hundredth is left out. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "trainer/memory_plan.h"
#include "trainer/monitor.h"
#include "trainer/planner_run.h"

#define LEAST_SHARE 0.01

/* Makes a change and writes the key, the value before and the value after; false: nothing to
 * change. */
typedef struct change {
    char key[32], from[32], to[32];
} change;
typedef bool (*change_maker)(const hy_trainer *t, hy_settings *s, change *out);

static bool set_choice(hy_settings *s, const char *key, const char *to, change *out) {
    char from[HY_TEXT_MAX];
    hy_setting_format(hy_setting_find(key, NULL), s, from);
    if (!hy_settings_change(s, key, to)) return false;
    snprintf(out->key, sizeof out->key, "%s", key);
    snprintf(out->from, sizeof out->from, "%.31s", from);
    snprintf(out->to, sizeof out->to, "%s", to);
    return true;
}

static bool set_number(int64_t *value, int64_t to, const char *key, change *out) {
    if (*value == to) return false;
    snprintf(out->key, sizeof out->key, "%s", key);
    snprintf(out->from, sizeof out->from, "%lld", (long long)*value);
    snprintf(out->to, sizeof out->to, "%lld", (long long)to);
    *value = to;
    return true;
}

/* ---- the changes ----------------------------------------------------------------------------- */

/* The largest smaller micro-batch that divides a step: its tokens stay the same. */
static bool shrink_to(hy_settings *s, int64_t most, change *out) {
    int64_t step = s->train.batch_size * s->train.grad_accum_steps, batch = most;
    while (batch > 1 && step % batch != 0) batch--;
    if (batch < 1 || batch >= s->train.batch_size) return false;
    s->train.grad_accum_steps = step / batch;
    return set_number(&s->train.batch_size, batch, "batch_size", out);
}

static bool shrink_batch(const hy_trainer *t, hy_settings *s, change *out) {
    (void)t;
    return shrink_to(s, s->train.batch_size - 1, out);
}

static bool halve_batch(const hy_trainer *t, hy_settings *s, change *out) {
    (void)t;
    return shrink_to(s, s->train.batch_size / 2, out);
}

static bool shrink_evaluation(const hy_trainer *t, hy_settings *s, change *out) {
    (void)t;
    return s->eval.eval_batch_size > s->train.batch_size &&
           set_number(&s->eval.eval_batch_size, s->train.batch_size, "eval_batch_size", out);
}

static bool recompute_norms(const hy_trainer *t, hy_settings *s, change *out) {
    (void)t;
    return s->train.recompute == HY_RECOMPUTE_NONE && set_choice(s, "recompute", "norm", out);
}

static bool recompute_all(const hy_trainer *t, hy_settings *s, change *out) {
    (void)t;
    bool is_part = s->train.recompute_layers != 0 && s->train.recompute == HY_RECOMPUTE_ALL;
    if (is_part) return set_number(&s->train.recompute_layers, 0, "recompute_layers", out);
    s->train.recompute_layers = 0;
    return set_choice(s, "recompute", "all", out);
}

static bool split_loss(const hy_trainer *t, hy_settings *s, change *out) {
    const hy_batch_plan *plan =
        t->engine.work.train[0] ? t->engine.work.train[0] : t->engine.work.train[1];
    int64_t rows = s->train.batch_size * s->train.seq_len;
    if (!plan || 2 * plan->chunk_count > rows) return false;
    s->train.loss_chunks = plan->chunk_count;
    return set_number(&s->train.loss_chunks, 2 * plan->chunk_count, "loss_chunks", out);
}

static bool may_stream(const hy_trainer *t) {
    return t->engine.backend->facts.is_gpu || t->settings.memory.max_gpu_mem > 0;
}

static bool offload_activations(const hy_trainer *t, hy_settings *s, change *out) {
    return may_stream(t) && set_choice(s, "activations_place", "pinned", out);
}

static bool offload_optimizer(const hy_trainer *t, hy_settings *s, change *out) {
    return may_stream(t) && hy_place_setting(s->memory.optim_place) == HY_DEVICE &&
           set_choice(s, "optim_place", "pinned", out);
}

static bool keep_optimizer(const hy_trainer *t, hy_settings *s, change *out) {
    bool moves =
        t->engine.optim.strategy == HY_OFFLOAD_CPU || t->engine.optim.strategy == HY_OFFLOAD_PINNED;
    return moves && set_choice(s, "offload_strategy", "none", out);
}

static bool use_8bit(const hy_trainer *t, hy_settings *s, change *out) {
    return hy_settings_optim_dtype(&t->settings) != HY_U8 &&
           set_choice(s, "optim_dtype", "8bit", out);
}

static bool without_predictor(const hy_trainer *t, hy_settings *s, change *out) {
    return t->course.rules.has_predictor && set_choice(s, "predictor", "none", out);
}

static const change_maker changes[] = {
    shrink_batch,   halve_batch, shrink_evaluation,   recompute_norms,
    recompute_all,  split_loss,  offload_activations, offload_optimizer,
    keep_optimizer, use_8bit,    without_predictor,
};
#define CHANGES (sizeof changes / sizeof changes[0])

/* ---- planning them --------------------------------------------------------------------------- */

/* Optimizer state has a second place in Predict: by these settings, not by the run's. */
static void set_moved(hy_plan_setup *setup, const hy_settings *s) {
    hy_offload strategy = s->memory.offload_strategy;
    bool moves = strategy == HY_OFFLOAD_CPU || strategy == HY_OFFLOAD_PINNED;
    bool has_predict = setup->problem.window_steps > 0;
    const hy_sized_class *optim = &setup->sizer.state[HY_PLAN_OPTIM];
    uint64_t bytes = (uint64_t)optim->copies * optim->layout.bytes;
    setup->sizer.moved_optim = moves && has_predict ? bytes : 0;
}

hy_status hy_monitor_plan(const hy_trainer *t, const hy_settings *settings, hy_monitor_bytes *out) {
    hy_plan_setup setup;
    hy_plan plan;
    hy_rates rates = hy_plan_nominal_rates(t->engine.backend);
    HY_TRY(hy_plan_setup_begin(&setup, t, settings, &rates));
    set_moved(&setup, settings);
    hy_status status = hy_plan_evaluate(&setup.problem, &setup.problem.base, &plan);
    hy_plan_setup_end(&setup);
    HY_TRY(status);
    uint64_t shared = setup.problem.is_unified ? plan.device : 0;
    *out = (hy_monitor_bytes){.device = (int64_t)plan.device,
                              .host = (int64_t)(plan.host - shared),
                              .seconds = plan.cost.seconds};
    return HY_OK;
}

/* What counts where memory is short. */
static int64_t counted(const hy_memory_state *state, int64_t device, int64_t host) {
    if (state->is_unified && !state->device.budget) return device + host;
    return state->host.status > state->device.status ? host : device;
}

static void describe(const change *c, hy_memory_advice *out) {
    char freed[32], taken[32];
    bool is_batch = strcmp(c->key, "batch_size") == 0;
    bool is_host = out->device_bytes <= 0;
    int64_t gain = is_host ? out->host_bytes : out->device_bytes;
    int64_t price = is_host ? -out->device_bytes : -out->host_bytes;
    snprintf(out->key, sizeof out->key, "%s", c->key);
    snprintf(out->value, sizeof out->value, "%s", c->to);
    int length = snprintf(out->text, sizeof out->text, "%s %s to %s frees %s%s",
                          is_batch ? "micro-batch" : c->key, c->from, c->to,
                          hy_format_bytes((double)gain, freed, sizeof freed),
                          is_host ? " of host memory" : "");
    if (price <= 0) return;
    snprintf(out->text + length, sizeof out->text - (size_t)length, " and takes %s of %s",
             hy_format_bytes((double)price, taken, sizeof taken),
             is_host ? "the device" : "host memory");
}

/* Whether the last piece says the same as this one. */
static bool is_told(const hy_memory_state *state, const change *c) {
    for (int i = 0; i < state->advice_count; i++) {
        const hy_memory_advice *a = &state->advice[i];
        if (strcmp(a->key, c->key) == 0 && strcmp(a->value, c->to) == 0) return true;
    }
    return false;
}

static hy_status try_change(const hy_trainer *t, change_maker make, const hy_monitor_bytes *now,
                            hy_settings *settings, hy_memory_state *state) {
    change made;
    hy_monitor_bytes with;
    *settings = t->settings;
    if (!make(t, settings, &made) || is_told(state, &made)) return HY_OK;
    HY_TRY(hy_monitor_plan(t, settings, &with));
    hy_memory_advice advice = {.device_bytes = now->device - with.device,
                               .host_bytes = now->host - with.host};
    int64_t freed = counted(state, advice.device_bytes, advice.host_bytes);
    int64_t base = counted(state, now->device, now->host);
    if (freed <= 0 || (double)freed < LEAST_SHARE * (double)base) return HY_OK;
    describe(&made, &advice);
    state->advice[state->advice_count++] = advice;
    return HY_OK;
}

hy_status hy_monitor_advise(const hy_trainer *t, hy_memory_state *state) {
    hy_monitor_bytes now;
    hy_settings *settings = malloc(sizeof *settings);
    state->advice_count = 0;
    if (!settings) return hy_fail(HY_ERR_MEMORY, "no memory for planning");
    hy_status status = hy_monitor_plan(t, &t->settings, &now);
    for (size_t i = 0; i < CHANGES && status == HY_OK; i++) {
        if (state->advice_count == HY_MEMORY_ADVICE) break;
        status = try_change(t, changes[i], &now, settings, state);
    }
    free(settings);
    return status;
}
