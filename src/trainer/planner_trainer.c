/* planner_trainer.c: from a run's settings to a problem, and back. See planner_run.h.
 *
 * A setting that says "auto" (or 0, or -1, where that means "chosen") is open; everything else stays. On
 * a CPU without a device budget there is one memory and nothing to stream: places stay on the device.
 * What was chosen is written into the run's settings, so that all later code finds plain values. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "trainer/memory_plan.h"
#include "trainer/planner_run.h"

#define RING_DEPTH 3      /* where it is left open and nothing depends on it */
#define TILE_RING_DEPTH 3 /* of what predictors keep, as in memory_plan.c */
#define CANDIDATE_DEPTH 3

/* ---- what a run is made of ---------------------------------------------------------------------------- */

/* Types, by the settings at hand, which may not be the run's own. */
typedef struct run_types {
    hy_dtype master, low, grads, optim, slots;
    bool has_low, has_predictor;
    int slot_count;
} run_types;

static run_types types_of(const hy_trainer *t, const hy_settings *s) {
    bool has_predictor = t->course.rules.has_predictor && s->phases.predictor != HY_PREDICTOR_NONE;
    hy_dtype master = hy_settings_master_dtype(s);
    run_types types = {.master = master,
                       .low = t->engine.types.low,
                       .grads = s->train.grad_dtype,
                       .optim = hy_settings_optim_dtype(s),
                       .slots = hy_settings_predictor_dtype(s),
                       .has_low = t->engine.types.has_low && master != HY_BF16,
                       .has_predictor = has_predictor};
    types.slot_count = has_predictor ? hy_predictor_slots(t->engine.predictor.kind) : 0;
    return types;
}

static void add_type(hy_dtype types[HY_SIZED_TYPES], int *count, hy_dtype dtype) {
    for (int i = 0; i < *count; i++) {
        if (types[i] == dtype) return;
    }
    if (*count < HY_SIZED_TYPES) types[(*count)++] = dtype;
}

static void list_types(const hy_trainer *t, const run_types *types, hy_sizer *z) {
    const hy_dtype *of = t->engine.types.of;
    add_type(z->types, &z->type_count, of[HY_FULL]);
    add_type(z->types, &z->type_count, of[HY_WARMUP]);
    add_type(z->eval_types, &z->eval_type_count, of[HY_FULL]);
    if (!types->has_predictor) return;
    add_type(z->types, &z->type_count, of[HY_CORRECT]);
    add_type(z->eval_types, &z->eval_type_count, of[HY_PREDICT]);
}

static uint64_t sums_workspace(const hy_trainer *t, hy_dtype grad_dtype) {
    uint64_t most = hy_optimizer_workspace(&t->engine.update.optimizer, &t->engine.model->params,
                                           t->engine.backend, grad_dtype);
    for (int32_t i = 0; i < t->engine.model->params.count; i++) {
        hy_op_call dot = {.kind = HY_OP_DIFF_DOT};
        dot.t[HY_DIFF_DOT_A] = hy_tensor_1d(NULL, HY_F32, t->engine.model->params.list[i].count);
        uint64_t bytes = t->engine.backend->workspace(t->engine.backend, &dot);
        if (bytes > most) most = bytes;
    }
    return most;
}

/* Copies of the weights in tiles: bytes of their backing store and of their ring. */
static hy_status add_tiled(const hy_tiles *tiles, const hy_trainer *t, hy_dtype dtype, int copies,
                           hy_sizer *z) {
    hy_layout layout;
    if (copies == 0) return HY_OK;
    HY_TRY(hy_tiles_layout(tiles, &t->engine.model->params, dtype, &layout));
    z->kept += (uint64_t)copies * layout.bytes;
    z->kept_on_disk += (uint64_t)copies * hy_store_disk_bytes(&layout);
    z->kept_staging += (uint64_t)copies * hy_store_staging_bytes(&layout, HY_DISK_BUFFERS);
    z->rings += (uint64_t)copies * hy_store_ring_bytes(&layout, TILE_RING_DEPTH);
    hy_layout_fini(&layout);
    return HY_OK;
}

static hy_status add_candidate(const hy_trainer *t, const run_types *types, hy_sizer *z) {
    const hy_dtype *of = t->engine.types.of;
    bool is_low = of[HY_PREDICT] != HY_F32 && of[HY_FULL] != HY_F32;
    hy_layout layout;
    if (types->slot_count == 0 && !t->engine.has_average) return HY_OK;
    HY_TRY(hy_params_layout(&t->engine.model->params, is_low ? types->low : HY_F32, &layout));
    z->rings += hy_store_ring_bytes(&layout, CANDIDATE_DEPTH);
    hy_layout_fini(&layout);
    return HY_OK;
}

static hy_status add_predictor(const hy_trainer *t, const run_types *types, hy_sizer *z) {
    hy_tiles tiles = {0};
    bool has_snapshot = t->engine.has_snapshot && types->slot_count > 0;
    HY_TRY(hy_tiles_init(&tiles, &t->engine.model->params));
    hy_status status = add_tiled(&tiles, t, types->slots, types->slot_count, z);
    if (status == HY_OK) status = add_tiled(&tiles, t, types->master, has_snapshot, z);
    if (status == HY_OK) status = add_tiled(&tiles, t, HY_F32, t->engine.has_average, z);
    if (status == HY_OK) status = add_candidate(t, types, z);
    hy_tiles_fini(&tiles);
    return status;
}

static hy_status add_state(const hy_trainer *t, const run_types *types, hy_sizer *z) {
    bool moves =
        t->engine.optim.strategy == HY_OFFLOAD_CPU || t->engine.optim.strategy == HY_OFFLOAD_PINNED;
    hy_dtype weights = types->has_low ? types->low : types->master;
    HY_TRY(hy_sizer_add_class(z, HY_PLAN_WEIGHTS, weights, 1));
    if (types->has_low) HY_TRY(hy_sizer_add_class(z, HY_PLAN_MASTER, types->master, 1));
    HY_TRY(hy_sizer_add_class(z, HY_PLAN_GRADS, types->grads, 1));
    HY_TRY(hy_sizer_add_class(z, HY_PLAN_OPTIM, types->optim, hy_optim_arrays(&t->engine)));
    if (moves && types->has_predictor) {
        z->moved_optim =
            (uint64_t)hy_optim_arrays(&t->engine) * z->state[HY_PLAN_OPTIM].layout.bytes;
    }
    return HY_OK;
}

/* ---- the problem --------------------------------------------------------------------------------------- */

static void set_places(const hy_settings *s, bool may_stream, hy_plan_problem *p) {
    const hy_place places[HY_PLAN_STATES] = {
        [HY_PLAN_WEIGHTS] = s->memory.weights_place,
        [HY_PLAN_MASTER] = s->memory.master_place,
        [HY_PLAN_GRADS] = s->memory.grads_place,
        [HY_PLAN_OPTIM] = s->memory.optim_place,
    };
    for (int i = 0; i < HY_PLAN_STATES; i++) {
        bool is_there = i != HY_PLAN_MASTER || p->has_master;
        p->base.state[i] = is_there ? hy_place_setting(places[i]) : HY_NOWHERE;
        p->open.state[i] = is_there && may_stream && places[i] == HY_PLACE_AUTO;
    }
    p->open.predictor = s->memory.predictor_place == HY_PLACE_AUTO;
    p->base.predictor = p->open.predictor ? HY_PINNED : s->memory.predictor_place;
    p->base.activations = hy_place_setting(s->memory.activations_place);
    p->open.activations = may_stream && s->memory.activations_place == HY_PLACE_AUTO;
}

static bool streams(const hy_plan_choice *c) {
    for (int i = 0; i < HY_PLAN_STATES; i++) {
        if (c->state[i] == HY_PINNED || c->state[i] == HY_DISK) return true;
    }
    return false;
}

/* Who asks for a place by name wants the class to be there: layers stay on the device by themselves only
 * where all places were left open. */
static void set_passing(const hy_settings *s, bool may_stream, hy_plan_problem *p) {
    int64_t depth = s->memory.ring_depth, resident = s->memory.resident_units;
    p->base.ring_depth = depth == 0 ? RING_DEPTH : depth < 2 ? 2 : (int32_t)depth;
    p->base.resident_units = resident < 0 ? 0 : (int32_t)resident;
    p->open.ring_depth = may_stream && depth == 0;
    p->open.resident_units = may_stream && resident < 0 && !streams(&p->base);
    p->open.update = s->memory.update == HY_UPDATE_AUTO;
    p->base.updates_on_gather =
        p->open.update ? streams(&p->base) : s->memory.update == HY_UPDATE_ON_GATHER;
}

static void set_passes(const hy_settings *s, hy_plan_problem *p) {
    p->open.recompute = s->train.recompute == HY_RECOMPUTE_AUTO;
    p->base.recompute = p->open.recompute ? HY_RECOMPUTE_NONE : s->train.recompute;
    p->open.recompute_layers = p->open.recompute && s->train.recompute_layers == 0;
    p->base.recompute_layers = (int32_t)s->train.recompute_layers;
    p->open.loss_chunks = s->train.loss_chunks == 0;
    p->base.loss_chunks = (int32_t)s->train.loss_chunks;
}

/* The largest micro-batch up to `most` that divides a step. */
static int64_t divisor_up_to(int64_t step, int64_t most) {
    int64_t batch = most < step ? most : step;
    while (step % batch != 0) batch--;
    return batch;
}

/* step_tokens leaves the micro-batch open; without it the one that was given is kept if it fits, or in any
 * case where another split is not wanted or would be another loss. On a CPU larger ones gain nothing. */
static hy_status set_batch(const hy_trainer *t, const hy_settings *s, hy_plan_problem *p) {
    int64_t asked = s->train.step_tokens, seq = s->train.seq_len, batch = s->train.batch_size;
    bool may_split = s->train.normalize && s->train.dynamic_batch != HY_OFF;
    p->open.batch = asked > 0 || may_split;
    p->least_batch = s->train.min_batch_size;
    p->most_batch = s->train.max_batch_size;
    p->keeps_batch = asked == 0 || !t->engine.backend->facts.is_gpu;
    p->step_sequences = asked ? asked / seq : batch * s->train.grad_accum_steps;
    if (asked && (asked % seq != 0 || asked < seq)) {
        return hy_fail(HY_ERR_INPUT,
                       "step_tokens is %lld and seq_len %lld: a step has whole sequences, so "
                       "accepted are multiples of %lld",
                       (long long)asked, (long long)seq, (long long)seq);
    }
    if (asked) batch = divisor_up_to(p->step_sequences, batch);
    if (p->step_sequences / batch > INT32_MAX) {
        return hy_fail(HY_ERR_INPUT, "a step of %lld sequences is too large",
                       (long long)p->step_sequences);
    }
    p->base.batch = (int32_t)batch;
    p->base.accum = (int32_t)(p->step_sequences / batch);
    return HY_OK;
}

static hy_status fill_problem(hy_plan_setup *setup, const hy_trainer *t, const hy_settings *s,
                              const run_types *types, const hy_rates *rates) {
    bool is_gpu = t->engine.backend->facts.is_gpu, may_stream = is_gpu || s->memory.max_gpu_mem > 0;
    hy_plan_budgets budgets = hy_plan_budgets_of(t, s);
    int64_t window = s->phases.full_steps + s->phases.correct_steps;
    setup->problem = (hy_plan_problem){.seq = (int32_t)s->train.seq_len,
                                       .layers = t->engine.model->shape.layers,
                                       .window_steps = types->has_predictor ? window : 0,
                                       .has_master = types->has_low,
                                       .has_folder = s->memory.offload_folder[0] != 0,
                                       .is_unified = !is_gpu,
                                       .device = budgets.device,
                                       .host = budgets.host,
                                       .disk = budgets.disk,
                                       .rates = *rates,
                                       .user = &setup->sizer,
                                       .work = hy_sizer_work,
                                       .state = hy_sizer_state,
                                       .chunks = hy_sizer_chunks};
    set_places(s, may_stream, &setup->problem);
    set_passing(s, may_stream, &setup->problem);
    set_passes(s, &setup->problem);
    return set_batch(t, s, &setup->problem);
}

hy_status hy_plan_setup_begin(hy_plan_setup *setup, const hy_trainer *t, const hy_settings *s,
                              const hy_rates *rates) {
    run_types types = types_of(t, s);
    *setup = (hy_plan_setup){.sizer = {.model = t->engine.model,
                                       .backend = t->engine.backend,
                                       .speed = hy_plan_speed_of(t->engine.backend, rates),
                                       .seq = (int32_t)s->train.seq_len,
                                       .has_doc_starts = hy_trainer_has_doc_starts(t),
                                       .budget = t->engine.chunk_budget,
                                       .grad_dtype = types.grads,
                                       .eval_batch = (int32_t)s->eval.eval_batch_size}};
    hy_sizer *z = &setup->sizer;
    list_types(t, &types, z);
    hy_status status = hy_sizer_begin(z);
    z->sums = sums_workspace(t, types.grads);
    if (status == HY_OK) status = add_state(t, &types, z);
    if (status == HY_OK) status = add_predictor(t, &types, z);
    if (status == HY_OK) status = fill_problem(setup, t, s, &types, rates);
    if (status != HY_OK) hy_sizer_end(z);
    return status;
}

void hy_plan_setup_end(hy_plan_setup *setup) { hy_sizer_end(&setup->sizer); }

/* ---- the answer ---------------------------------------------------------------------------------------- */

/* Only what was open: a place that was asked for is left as it is written. */
static void apply(const hy_plan_problem *p, const hy_plan_choice *c, hy_settings *s) {
    hy_place *places[HY_PLAN_STATES] = {&s->memory.weights_place, &s->memory.master_place,
                                        &s->memory.grads_place, &s->memory.optim_place};
    for (int i = 0; i < HY_PLAN_STATES; i++) {
        if (*places[i] == HY_PLACE_AUTO) *places[i] = hy_place_setting(c->state[i]);
    }
    if (s->memory.activations_place == HY_PLACE_AUTO) s->memory.activations_place = c->activations;
    if (s->memory.predictor_place == HY_PLACE_AUTO) s->memory.predictor_place = c->predictor;
    if (s->train.recompute == HY_RECOMPUTE_AUTO) s->train.recompute = c->recompute;
    if (s->memory.update == HY_UPDATE_AUTO) {
        s->memory.update = c->updates_on_gather ? HY_UPDATE_ON_GATHER : HY_UPDATE_NOW;
    }
    if (p->open.recompute_layers) s->train.recompute_layers = c->recompute_layers;
    if (p->open.loss_chunks) s->train.loss_chunks = c->loss_chunks;
    if (s->memory.ring_depth == 0) s->memory.ring_depth = c->ring_depth;
    if (s->memory.resident_units < 0) s->memory.resident_units = c->resident_units;
    s->train.batch_size = c->batch;
    s->train.grad_accum_steps = c->accum;
}

static void tell(const hy_plan *plan, const hy_plan_reasons *reasons, hy_plan_facts *facts) {
    const hy_plan_cost *cost = &plan->cost;
    facts->batch_size = plan->choice.batch;
    facts->grad_accum_steps = plan->choice.accum;
    facts->tokens_per_second = cost->tokens_per_second;
    facts->step_seconds = cost->seconds;
    facts->wait_seconds = cost->wait;
    facts->bytes_up = cost->up;
    facts->bytes_down = cost->down;
    facts->disk_bytes = plan->disk;
    facts->disk_written = cost->disk_written;
    facts->reason_count = reasons->count;
    for (int i = 0; i < reasons->count; i++) {
        snprintf(facts->reasons[i], sizeof facts->reasons[i], "%s", reasons->text[i]);
    }
}

static void say_what_changed(const hy_trainer *t, const hy_plan_problem *p, const hy_plan *plan) {
    const hy_plan_choice *c = &plan->choice;
    if (t->life.is_plan || !p->keeps_batch || c->batch == t->settings.train.batch_size) return;
    hy_say(t, HY_NOTE, "micro-batches of %d sequences, %d in a step: the same tokens per step",
           c->batch, c->accum);
}

static hy_status choose(hy_trainer *t, const hy_plan_problem *p, const hy_rates *rates) {
    hy_plan plan;
    hy_plan_reasons reasons;
    HY_TRY(hy_plan_choose(p, &plan));
    HY_TRY(hy_plan_explain(p, &plan, &reasons));
    tell(&plan, &reasons, &t->plan);
    if (!plan.fits) HY_TRY(hy_plan_find_changes(t, rates, &t->plan));
    say_what_changed(t, p, &plan);
    apply(p, &plan.choice, &t->settings);
    return HY_OK;
}

/* Where all fits as it is, nothing has to be measured, unless somebody asks how fast it would be. */
static hy_status is_settled(const hy_trainer *t, const hy_plan_problem *p, bool *out) {
    hy_plan plan;
    HY_TRY(hy_plan_evaluate(p, &p->base, &plan));
    *out = plan.fits && p->keeps_batch && !t->life.is_plan;
    return HY_OK;
}

hy_status hy_trainer_choose_plan(hy_trainer *t) {
    hy_plan_setup setup;
    bool is_settled_now = false;
    hy_rates rates = hy_plan_nominal_rates(t->engine.backend);
    HY_TRY(hy_plan_setup_begin(&setup, t, &t->settings, &rates));
    hy_status status = is_settled(t, &setup.problem, &is_settled_now);
    if (status == HY_OK && !is_settled_now) {
        rates = hy_plan_measured_rates(t);
        hy_plan_setup_end(&setup); /* what it knows of seconds was by other rates */
        HY_TRY(hy_plan_setup_begin(&setup, t, &t->settings, &rates));
    }
    if (status == HY_OK) status = choose(t, &setup.problem, &rates);
    hy_plan_setup_end(&setup);
    return status;
}
