/* problem.c: turns a plan request into a planning problem, and plans it at one precision level.
 * See request.h.
 *
 * A setting with the value "auto" (or 0 or -1, where these mean "choose") is open; all others
 * are fixed. On a CPU without a device budget there is only one memory and nothing to stream:
 * all places are the device. */
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "config/derived.h"
#include "memory/pinned.h"
#include "plan/request.h"

#define HY_STATE_RING_DEPTH 3 /* default depth: one unit arrives, one is used, one leaves */

/* An open place is the device until the planner chooses. */
static hy_place place_of(hy_place asked) { return asked == HY_PLACE_AUTO ? HY_DEVICE : asked; }

/* ---- passes ---------------------------------------------------------------------------------- */

static void add_type(hy_dtype types[HY_PLAN_TYPES], int *count, hy_dtype dtype) {
    for (int i = 0; i < *count; i++) {
        if (types[i] == dtype) return;
    }
    if (*count < HY_PLAN_TYPES) types[(*count)++] = dtype;
}

void hy_pass_spec_init(hy_pass_spec *spec, const hy_plan_request *r, const hy_plan *plan) {
    const hy_settings *s = r->settings;
    const hy_types *types = &plan->types;
    const hy_dtype *of = types->of;
    *spec = (hy_pass_spec){.model = r->model,
                           .backend = r->backend,
                           .seq = (int32_t)s->train.seq_len,
                           .has_doc_starts = r->has_doc_starts,
                           .has_reference_pass = hy_request_has_reference_pass(r),
                           .budget = r->chunk_budget,
                           .grad_dtype = types->grads,
                           .fp8 = types->fp8,
                           .eval_batch = (int32_t)s->eval.eval_batch_size,
                           .guard_share = s->phases.guard_share,
                           .ranks = r->ranks.count > 1 ? r->ranks.count : 1,
                           .caller = hy_caller_planned(r),
                           .area = plan->area,
                           /* Shards differ between ranks, but all ranks need the same batch. */
                           .lends = hy_request_streams(r) && r->ranks.count <= 1};
    spec->state_sums =
        hy_state_sums(&plan->optimizer, &r->model->params, r->backend, spec->grad_dtype);
    add_type(spec->types, &spec->type_count, hy_types_step(types, HY_FULL));
    add_type(spec->types, &spec->type_count, hy_types_step(types, HY_WARMUP));
    bool ends_in_16_bits = types->is_fp8[HY_FULL] && s->train.fp8_until < 1;
    if (ends_in_16_bits) add_type(spec->types, &spec->type_count, of[HY_FULL]);
    add_type(spec->eval_types, &spec->eval_type_count, of[HY_FULL]);
    if (!hy_plan_jumps(plan)) return;
    add_type(spec->types, &spec->type_count, hy_types_step(types, HY_CORRECT));
    add_type(spec->eval_types, &spec->eval_type_count, of[HY_PREDICT]);
}

int32_t hy_plan_loss_chunks(const hy_plan_request *r, const hy_plan *basis,
                            const hy_plan_choice *choice) {
    hy_pass_spec spec;
    hy_pass_spec_init(&spec, r, basis);
    hy_batch_options options = hy_pass_options(&spec, choice, spec.types[0], true);
    return hy_batch_chunks(spec.model, spec.backend, &options);
}

/* ---- the problem ----------------------------------------------------------------------------- */

/* A class with units that a group places off the device is there; its other units may be
 * resident. */
static void set_places(const hy_plan_request *r, const hy_plan *basis, bool may_stream,
                       hy_plan_problem *p) {
    const hy_settings *s = r->settings;
    for (int i = 0; i < HY_PLAN_STATES; i++) {
        bool is_there = i != HY_PLAN_MASTER || p->has_master;
        hy_place asked = hy_request_place(r, i), away = hy_params_away(&r->model->params, i);
        p->base.state[i] = !is_there ? HY_NOWHERE : away ? away : place_of(asked);
        p->open.state[i] = is_there && may_stream && asked == HY_PLACE_AUTO && !away;
        p->has_places |= is_there && away;
    }
    /* drop frees the device memory of the optimizer's state; compress stores the state in the
     * memory of the gradients. */
    if (basis->offload == HY_OFFLOAD_DROP) p->open.state[HY_PLAN_OPTIM] = false;
    if (basis->offload == HY_OFFLOAD_COMPRESS) p->open.state[HY_PLAN_GRADS] = false;
    p->base.predictor = s->memory.predictor_place == HY_DISK ? HY_DISK : HY_PINNED;
    p->base.prediction_awaits_test = basis->choice.prediction_awaits_test;
    p->open.predictor = s->memory.predictor_place == HY_PLACE_AUTO;
    p->base.activations = place_of(s->memory.activations_place);
    p->open.activations = may_stream && s->memory.activations_place == HY_PLACE_AUTO;
}

static void set_passing(const hy_plan_request *r, const hy_plan *basis, bool may_stream,
                        hy_plan_problem *p) {
    const hy_settings *s = r->settings;
    int64_t depth = s->memory.ring_depth, resident = s->memory.resident_units;
    p->base.ring_depth = depth == 0 ? HY_STATE_RING_DEPTH : depth < 2 ? 2 : (int32_t)depth;
    p->base.resident_units = resident < 0 ? 0 : (int32_t)resident;
    p->open.ring_depth = may_stream && depth == 0;
    p->open.resident_units = hy_request_keeps_layers(r, basis);
    p->open.update = s->memory.update == HY_UPDATE_AUTO;
    p->base.keeps_update_pending =
        p->open.update ? hy_choice_streams(&p->base) : s->memory.update == HY_UPDATE_ON_GATHER;
    p->open.recompute = s->train.recompute == HY_RECOMPUTE_AUTO;
    p->base.recompute = p->open.recompute ? HY_RECOMPUTE_NONE : s->train.recompute;
    p->open.recompute_layers = p->open.recompute && s->train.recompute_layers == 0;
    p->base.recompute_layers = (int32_t)s->train.recompute_layers;
    p->open.loss_chunks = s->train.loss_chunks == 0;
    p->base.loss_chunks = (int32_t)s->train.loss_chunks;
    bool is_mlp_fp8 = (basis->types.fp8.weights | basis->types.fp8.grads) & hy_mlp_bits();
    p->open.mlp_chunks = s->train.mlp_chunks == 0 && !is_mlp_fp8;
    p->base.mlp_chunks = s->train.mlp_chunks == 0 ? 1 : (int32_t)s->train.mlp_chunks;
}

/* step_tokens leaves the micro-batch open. Without it, the given micro-batch is kept if it fits,
 * or always if another split is not allowed or would change the loss. A default micro-batch is kept
 * if it fits without streaming and recomputing. Otherwise the fastest is searched, because streamed
 * state is copied once per micro-batch, so a larger one may gain. On a CPU larger ones gain
 * nothing, so the micro-batch only becomes smaller. */
static hy_status set_batch(const hy_plan_request *r, hy_plan_problem *p) {
    const hy_settings *s = r->settings;
    const hy_step_split *split = &r->fixed.split;
    int64_t asked = s->train.step_tokens, seq = s->train.seq_len, batch = s->train.batch_size;
    bool may_split = s->train.normalize && s->train.dynamic_batch != HY_OFF;
    p->open.batch = asked > 0 || may_split;
    p->least_batch = s->train.min_batch_size;
    p->most_batch = s->train.max_batch_size;
    p->prefers_batch = asked == 0 && s->train.micro_batch == HY_MICRO_OPEN && may_split;
    p->keeps_batch = (asked == 0 && !p->prefers_batch) || !r->backend->facts.is_gpu;
    p->step_sequences = asked ? asked / seq : batch * s->train.grad_accum_steps;
    HY_FAIL_IF(asked && (asked % seq != 0 || asked < seq), HY_ERR_INPUT,
               "step_tokens is %lld and seq_len is %lld: a step consists of whole sequences, so "
               "step_tokens must be a multiple of %lld",
               (long long)asked, (long long)seq, (long long)seq);
    int64_t ranks = r->ranks.count > 1 ? r->ranks.count : 1;
    HY_FAIL_IF(
        p->step_sequences % ranks != 0, HY_ERR_INPUT,
        "a step has %lld sequences, which %lld ranks cannot share evenly: change batch_size, "
        "grad_accum_steps or step_tokens so that a step has a multiple of %lld sequences",
        (long long)p->step_sequences, (long long)ranks, (long long)ranks);
    p->step_sequences /= ranks;
    bool is_free = asked || ranks > 1; /* the split of a step may change */
    if (is_free && batch > p->step_sequences) batch = p->step_sequences;
    while (is_free && p->step_sequences % batch != 0) batch--;
    if (split->batch * split->accum == p->step_sequences) {
        batch = split->batch;
        p->keeps_batch = true;
        p->prefers_batch = false;
        if (p->open.loss_chunks) p->base.loss_chunks = (int32_t)split->loss_chunks;
        p->open.loss_chunks = p->base.loss_chunks == 0;
        if (p->open.mlp_chunks) p->base.mlp_chunks = (int32_t)split->mlp_chunks;
        p->open.batch = may_split;
    }
    HY_FAIL_IF(p->step_sequences / batch > INT32_MAX, HY_ERR_INPUT,
               "a step of %lld sequences is too large", (long long)p->step_sequences);
    p->base.batch = (int32_t)batch;
    p->base.accum = (int32_t)(p->step_sequences / batch);
    return HY_OK;
}

/* The wire between ranks: between cards, or through the host. */
static const hy_plan_wire *wire_of(const hy_plan_request *r) {
    return hy_plan_wire_of(r->settings->ranks.link,
                           r->backend->facts.is_gpu && !r->ranks.is_staged);
}

/* Traffic between ranks in a step of Full. */
static hy_status set_traffic(const hy_plan_request *r, const hy_plan *basis, hy_plan_problem *p) {
    const hy_rows *rows = p->sizer->rows;
    p->net.ranks = r->ranks.count;
    if (!hy_rows_shard(rows)) return HY_OK;
    p->net.wire = wire_of(r);
    p->net.staging = r->ranks.is_staged ? p->rates.copy_both : 0;
    HY_TRY(hy_plan_traffic_of(rows, r->model, &basis->types, basis->zero_stage, &p->net.traffic));
    bool is_once = r->custom && !r->custom->asks_each;
    if (is_once) hy_plan_reduce_once(&p->net.traffic);
    return HY_OK;
}

hy_status hy_plan_problem_begin(hy_plan_problem *p, const hy_plan_request *r, const hy_plan *basis,
                                const hy_rates *rates, hy_pass_memo *passes) {
    const hy_settings *s = r->settings;
    const hy_params *params = &r->model->params;
    bool is_gpu = r->backend->facts.is_gpu, may_stream = hy_request_streams(r);
    bool has_passes = hy_model_has_passes(r->model);
    uint64_t device = hy_budget_device(r), host = hy_budget_host(r);
    uint64_t data = hy_data_bytes(r, s->train.batch_size, s->train.grad_accum_steps);
    int64_t window = s->phases.full_steps + s->phases.correct_steps;
    *p = (hy_plan_problem){.basis = basis,
                           .seq = (int32_t)s->train.seq_len,
                           .layers = has_passes ? r->model->shape.layers : params->units,
                           .window_steps = hy_plan_predicts(basis) ? window : 0,
                           .has_master = basis->types.has_low,
                           .is_fp8 = basis->types.is_fp8[HY_FULL],
                           .has_reference_pass = hy_request_has_reference_pass(r),
                           .ignores_unfit = r->ignores_unfit,
                           .limits = {.device = device ? device : UINT64_MAX,
                                      .host = host ? (host > data ? host - data : 1) : UINT64_MAX,
                                      .disk = hy_budget_disk(s),
                                      .has_folder = s->memory.offload_folder[0] != 0,
                                      .is_unified = !is_gpu},
                           .rates = *rates};
    if (is_gpu && !s->card[0]) { /* the host's limit is what can be pinned */
        hy_pin_limits pins;
        hy_pin_probe("/proc", "/sys", &pins);
        uint64_t most = hy_pin_most(&pins, r->host_held);
        if (most < p->limits.host) p->limits.host = most;
    }
    set_places(r, basis, may_stream, p);
    set_passing(r, basis, may_stream, p);
    HY_TRY(set_batch(r, p));
    int64_t tokens = has_passes ? p->step_sequences * s->train.seq_len : 0; /* 0: not known */
    p->update_flops = hy_optimizer_flops(&basis->optimizer, params);
    p->update_share = hy_optimizer_share(&basis->optimizer, params, tokens);
    hy_rows_spec rows = hy_plan_rows(r, basis);
    hy_sizer sizer = {
        .passes = passes, .offload = basis->offload, .speed = hy_plan_speed_of(r->backend, rates)};
    hy_pass_spec_init(&sizer.spec, r, basis);
    HY_TRY(hy_sizer_create(&sizer, &rows, &p->sizer));
    hy_status status = set_traffic(r, basis, p);
    if (status != HY_OK) hy_plan_problem_end(p);
    return status;
}

void hy_plan_problem_end(hy_plan_problem *p) { hy_sizer_destroy(p->sizer); }

/* ---- the offload strategy -------------------------------------------------------------------- */

/* State that is not on the device need not be moved or dropped. compress stores 8-bit codes in
 * the memory of the gradients; state that already has 8 bits stays in place. */
hy_status hy_offload_decide(const hy_rows *rows, hy_plan *plan) {
    const hy_plan_choice *c = &plan->choice;
    const hy_row *optim = &rows->row[HY_ROW_OPTIM], *grads = &rows->row[HY_ROW_GRADS];
    bool is_here = c->state[HY_PLAN_OPTIM] == HY_DEVICE;
    if (!is_here || rows->optim_count == 0) {
        bool is_drop = plan->offload == HY_OFFLOAD_DROP;
        plan->offload = HY_OFFLOAD_NONE;
        if (is_here || !is_drop) return HY_OK;
        return hy_fail(HY_ERR_INPUT, "offload_strategy drop discards optimizer state to free "
                                     "device memory, but in this plan the state is not on the "
                                     "device: choose offload_strategy none, or optim_place device");
    }
    if (plan->offload != HY_OFFLOAD_COMPRESS) return HY_OK;
    HY_FAIL_IF(grads->is_callers, HY_ERR_INPUT,
               "offload_strategy compress stores 8-bit codes in the memory of the gradients, which "
               "belongs to the caller here; accepted: none, cpu, pinned and drop");
    if (optim->dtype == HY_U8) {
        plan->offload = HY_OFFLOAD_NONE;
        return HY_OK;
    }
    bool has_room = c->state[HY_PLAN_GRADS] == HY_DEVICE &&
                    hy_offload_compressed_bytes(rows) <= grads->layout.bytes;
    bool is_fp32 = true; /* of all groups */
    for (int32_t i = 0; i < optim->layout.item_count; i++) {
        is_fp32 &= optim->layout.items[i].dtype == HY_F32;
    }
    if (is_fp32 && has_room) return HY_OK;
    return hy_fail(
        HY_ERR_INPUT,
        "offload_strategy compress stores the optimizer state as 8 bits in the memory of the "
        "gradients: it needs optim_dtype fp32, grad_dtype fp32 and grads_place device; optim_dtype "
        "8bit is already compressed; none, cpu, pinned and drop work with every type");
}

/* ---- the plan -------------------------------------------------------------------------------- */

void hy_plan_fill_facts(const hy_plan_request *r, const hy_plan *plan, hy_plan_facts *facts) {
    const hy_plan_cost *cost = &plan->cost;
    bool is_several = r->ranks.count > 1;
    uint64_t pinned = hy_plan_host_bytes(plan);
    if (plan->offload == HY_OFFLOAD_CPU) pinned -= plan->state.moved; /* pageable */
    facts->fits = plan->fits;
    facts->vram_bytes = plan->device;
    facts->caller_bytes = plan->work.caller;
    facts->host_pinned_bytes = pinned;
    facts->disk_bytes = plan->disk;
    facts->host_limit = hy_budget_host(r);
    facts->data_host_bytes = hy_data_bytes(r, plan->choice.batch, plan->choice.accum);
    facts->batch_size = plan->choice.batch;
    facts->grad_accum_steps = plan->choice.accum;
    int32_t slices = plan->work.slices > 1 ? plan->work.slices : 1;
    facts->eval_batch_size = slices * plan->work.eval_batch[hy_plan_index(plan->types.of[HY_FULL])];
    facts->eval_borrows = plan->work.loan[1] != 0;
    facts->tokens_per_second = hy_request_tokens_per_second(r, plan);
    facts->step_seconds = cost->seconds;
    facts->wait_seconds = cost->wait;
    facts->bytes_up = cost->up;
    facts->bytes_down = cost->down;
    facts->disk_written = cost->disk_written;
    facts->ranks = is_several ? r->ranks.count : 1;
    facts->zero_stage = plan->zero_stage;
    facts->link = is_several ? wire_of(r)->name : "";
    facts->link_grads = cost->sent_grads;
    facts->link_weights = cost->sent_weights;
    facts->link_bytes = cost->sent;
    facts->link_seconds = cost->link;
    facts->compute_seconds = cost->compute;
    facts->bus_seconds = cost->bus;
    facts->bound = "compute";
    if (cost->bus > cost->compute) facts->bound = "bus";
    if (cost->link > cost->compute && cost->link > cost->bus) facts->bound = "link";
}

hy_status hy_plan_search(const hy_plan_request *r, const hy_rates *rates, hy_pass_memo *passes,
                         hy_plan *plan) {
    hy_plan_problem problem;
    HY_TRY(hy_plan_problem_begin(&problem, r, plan, rates, passes));
    hy_status status = hy_plan_choose(&problem, plan);
    hy_plan_problem_end(&problem);
    return status;
}

static hy_status evaluate(const hy_plan_request *r, const hy_plan *basis,
                          const hy_plan_choice *choice, bool settles, hy_plan *out) {
    hy_plan_problem problem;
    hy_rates rates = hy_plan_nominal_rates(r->backend);
    HY_TRY(hy_plan_problem_begin(&problem, r, basis, &rates, NULL));
    hy_status status = hy_plan_evaluate(&problem, choice, out);
    if (status == HY_OK && settles) status = hy_offload_decide(problem.sizer->rows, out);
    hy_plan_problem_end(&problem);
    return status;
}

hy_status hy_plan_with(const hy_plan_request *r, const hy_plan *basis, const hy_plan_choice *choice,
                       hy_plan *out) {
    return evaluate(r, basis, choice, false, out);
}

hy_status hy_plan_at(const hy_plan_request *r, const hy_plan_choice *choice, hy_plan *out) {
    HY_TRY(hy_plan_begin(r, &r->fixed.level, out));
    return evaluate(r, out, choice, true, out);
}
