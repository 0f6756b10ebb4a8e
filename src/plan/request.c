/* request.c: what follows from a plan request before any choice is compared. See request.h.
 *
 * Types, optimizer, predictor and offload strategy follow from the settings and a precision
 * level. Open values that only the machine can decide (which matmuls are faster in fp8, how much
 * memory a loss chunk may use) are measured here, once. */
#include "plan/request.h"
#include "base/error.h"
#include "config/derived.h"

/* ---- the settings at a precision level ------------------------------------------------------- */

hy_place hy_request_place(const hy_plan_request *r, int cls) {
    const hy_settings *s = r->settings;
    const hy_place asked[HY_PLAN_STATES] = {[HY_PLAN_WEIGHTS] = s->memory.weights_place,
                                            [HY_PLAN_MASTER] = s->memory.master_place,
                                            [HY_PLAN_GRADS] = s->memory.grads_place,
                                            [HY_PLAN_OPTIM] = s->memory.optim_place};
    bool is_paged = cls == HY_PLAN_OPTIM && s->optimizer.optimizer & HY_OPTIMIZER_PAGED;
    return is_paged && asked[cls] == HY_PLACE_AUTO ? HY_PINNED : asked[cls];
}

bool hy_request_keeps_layers(const hy_plan_request *r, const hy_plan *basis) {
    bool is_open = hy_request_streams(r) && r->settings->memory.resident_units < 0;
    for (int i = 0; i < HY_PLAN_STATES; i++) {
        hy_place place = hy_request_place(r, i);
        bool is_there = i != HY_PLAN_MASTER || basis->types.has_low;
        is_open &= !is_there || place == HY_PLACE_AUTO || place == HY_DEVICE;
    }
    return is_open;
}

/* Checks the places and number types that groups set, for one parameter. */
static hy_status check_own(const hy_plan_request *r, const hy_plan *plan, const hy_param *p) {
    const hy_types *t = &plan->types;
    const hy_optimizer_kind *kind = hy_optimizer_kind_for(&plan->optimizer, p);
    bool is_linear = hy_linear_bit(p->kind) != 0;
    for (int i = 0; i < HY_PLAN_STATES; i++) {
        hy_place run = hy_request_place(r, i), own = p->own.place[i];
        bool is_other = run != HY_PLACE_AUTO && run != HY_DEVICE && run != own;
        HY_FAIL_IF(is_other && own != HY_NOWHERE && own != HY_DEVICE, HY_ERR_INPUT,
                   "group %d sets %s_place %s for %s, but %s_place of the run is %s, and only one "
                   "place besides the device is possible; accepted: device, %s",
                   p->own.group, hy_class_name((hy_class)i), hy_place_name(own), p->name,
                   hy_class_name((hy_class)i), hy_place_name(run), hy_place_name(run));
    }
    HY_FAIL_IF(p->own.optim > 1 + HY_F32 && p->is_trainable && kind->is_exact, HY_ERR_INPUT,
               "group %d sets optim_dtype of %s, but the state of its optimizer %s is always fp32; "
               "accepted: fp32",
               p->own.group, p->name, kind->name);
    bool is_fp8 = p->own.precision == 1 + HY_E4M3 && is_linear;
    HY_FAIL_IF(is_fp8 && !hy_types_have_fp8(t), HY_ERR_INPUT,
               "group %d sets precision fp8 for %s, but no matmul of the run uses fp8; accepted: "
               "%s, or --precision fp8",
               p->own.group, p->name, hy_dtype_name(t->of[HY_FULL]));
    HY_FAIL_IF(
        p->own.precision == 1 + HY_BF16 && t->of[HY_FULL] != HY_BF16, HY_ERR_INPUT,
        "group %d sets precision bf16 for %s, but the run computes in %s, and only fp8 can be "
        "switched off for single matrices; accepted: --precision bf16 or fp8",
        p->own.group, p->name, hy_dtype_name(t->of[HY_FULL]));
    return HY_OK;
}

/* Checks groups of parameters that have another optimizer than the run; choose_types.c checks the
 * run's. 8-bit predictor state stores differences of limited size: that of AdamW's steps. State
 * that is used as a divisor cannot be stored as signed codes. */
static hy_status check_groups(const hy_plan_request *r, const hy_plan *plan) {
    const hy_params *params = &r->model->params;
    bool is_predictor_8bit = plan->types.slow == HY_U8 && hy_plan_predicts(plan);
    bool compresses = r->settings->memory.offload_strategy == HY_OFFLOAD_COMPRESS;
    for (int32_t i = 0; i < params->count; i++) {
        const hy_param *p = &params->list[i];
        const hy_optimizer_kind *kind = hy_optimizer_kind_for(&plan->optimizer, p);
        HY_TRY(check_own(r, plan, p));
        if (!p->is_trainable) continue;
        HY_FAIL_IF(is_predictor_8bit && p->own_optimizer && kind != hy_optimizer_kind_of(HY_ADAMW),
                   HY_ERR_INPUT,
                   "predictor_dtype is 8bit, but the optimizer of %s is %s: the range of the 8-bit "
                   "form is made for AdamW's steps; accepted: adamw in all groups, or "
                   "predictor_dtype = auto, fp32 or bf16",
                   p->name, kind->name);
        HY_FAIL_IF(
            compresses && kind->is_exact, HY_ERR_INPUT,
            "offload_strategy compress is not possible: parameter %s uses %s, whose state stays "
            "fp32; choose none, cpu, pinned or drop",
            p->name, kind->name);
    }
    return HY_OK;
}

/* Ranks shard optimizer state and gradients unless the settings say otherwise. Sharding less
 * saves no time, because the traffic is the same; sharded weights must be gathered in every
 * pass. */
static int32_t stage_of(const hy_plan_request *r) {
    hy_zero_choice asked = r->settings->ranks.zero_stage;
    if (r->ranks.count == 0) return 0;
    if (r->fixed.has_stage) return r->fixed.zero_stage;
    return asked == HY_ZERO_AUTO ? HY_ZERO_GRADS : (int32_t)asked;
}

static hy_status choose_types(const hy_plan_request *r, const hy_precision_level *level,
                              hy_types *types) {
    if (r->custom) return hy_types_choose_custom(r->settings, level, r->custom, types);
    HY_TRY(hy_types_choose(r->settings, level, &r->backend->facts, types));
    if (!hy_types_have_fp8(types)) return HY_OK;
    hy_fp8_use *use = &types->fp8;
    *use = hy_params_fp8_possible(&r->model->params);
    if (r->fixed.has_fp8) {
        use->weights &= r->fixed.fp8.weights;
        use->grads &= r->fixed.fp8.grads;
    }
    if (r->settings->train.mlp_chunks > 1) { /* a scale is that of a whole tensor */
        use->weights &= ~hy_mlp_bits();
        use->grads &= ~hy_mlp_bits();
    }
    use->gradient = (hy_dtype)r->settings->train.fp8_grad;
    use->is_fast = r->settings->train.fp8_fast;
    if (hy_uses_fp8(use)) return HY_OK;
    /* No matmul can use fp8, so steps use bf16. */
    for (int i = 0; i < HY_PHASE_COUNT; i++) types->is_fp8[i] = false;
    return HY_OK;
}

hy_status hy_plan_begin(const hy_plan_request *r, const hy_precision_level *level, hy_plan *out) {
    const hy_settings *s = r->settings;
    const hy_params *params = &r->model->params;
    hy_plan p = {.level = *level,
                 .optimizer = hy_optimizer_from_settings(s),
                 .zero_stage = stage_of(r),
                 .area = r->area,
                 .choice.prediction_awaits_test = r->fixed.prediction_awaits_test};
    double lr_scale = 1; /* the largest learning rate gives the longest steps */
    for (int32_t i = 0; i < params->count; i++) {
        if (params->list[i].lr_scale > lr_scale) lr_scale = params->list[i].lr_scale;
    }
    if (level->predicts) p.predictor = hy_predictor_from_settings(s, lr_scale);
    if (hy_plan_jumps(&p)) p.offload = s->memory.offload_strategy;
    HY_TRY(choose_types(r, level, &p.types));
    /* Muon's matmuls use bf16 if the run does not use fp32: the range of fp16 is too small. */
    bool is_low = p.types.of[HY_FULL] != HY_F32 && hy_has_bf16(&r->backend->facts);
    p.optimizer.matrix_dtype = is_low ? HY_BF16 : HY_F32;
    HY_TRY(check_groups(r, &p));
    *out = p;
    return HY_OK;
}

hy_rows_spec hy_plan_rows(const hy_plan_request *r, const hy_plan *p) {
    const hy_settings *s = r->settings;
    hy_rows_spec rows = {.types = p->types,
                         .optimizer = p->optimizer,
                         .slow_count = hy_predictor_buffers(p->predictor.kind),
                         .ranks = {.rank = r->ranks.rank,
                                   .count = r->ranks.count,
                                   .stage = p->zero_stage,
                                   .is_staged = r->ranks.is_staged},
                         .has_average = s->phases.tail_share > 0};
    for (int i = 0; i < HY_PLAN_STATES; i++) {
        hy_place place = hy_request_place(r, i);
        rows.stays[i] =
            place == HY_DEVICE || (place == HY_PLACE_AUTO && !hy_request_keeps_layers(r, p));
    }
    rows.has_snapshot = s->phases.snapshot && p->level.has_snapshot && rows.slow_count > 0;
    if (!r->custom) return rows;
    rows.is_custom = true;
    rows.has_named_base = true; /* the caller has its frozen weights */
    rows.sums_grads = r->custom->sums_grads;
    rows.keeps_weights = r->custom->keeps_weights;
    /* Proposed weights overwrite the weights, which are kept in the snapshot meanwhile. */
    bool is_tried = rows.slow_count > 0 || rows.has_average;
    rows.has_snapshot |= is_tried && !p->types.has_low;
    return rows;
}

/* ---- the request ----------------------------------------------------------------------------- */

hy_plan_request hy_plan_request_keeping(const hy_plan_request *r, const hy_plan *plan) {
    hy_plan_request out = *r;
    out.fixed.has_level = out.fixed.has_stage = true;
    out.fixed.level = plan->level;
    out.fixed.zero_stage = plan->zero_stage;
    out.fixed.prediction_awaits_test = plan->choice.prediction_awaits_test;
    out.area = plan->area;
    return out;
}

static hy_status find_largest_rank(hy_plan_request *r, const hy_plan *plan) {
    hy_rows_spec spec = hy_plan_rows(r, plan);
    uint64_t most = 0;
    for (spec.ranks.rank = 0; spec.ranks.rank < r->ranks.count; spec.ranks.rank++) {
        hy_rows rows;
        HY_TRY(hy_rows_init(&rows, &r->model->params, &spec));
        uint64_t bytes = rows.arriving;
        for (int i = 0; i < HY_ROW_COUNT; i++) bytes += rows.row[i].layout.bytes;
        hy_rows_fini(&rows);
        if (bytes <= most) continue;
        most = bytes;
        r->ranks.rank = spec.ranks.rank;
    }
    return HY_OK;
}

hy_status hy_plan_request_complete(hy_plan_request *r) {
    hy_plan plan;
    HY_TRY(hy_plan_begin_finest(r, &plan));
    if (hy_types_have_fp8(&plan.types)) {
        r->fixed.fp8 = hy_fp8_choose(r, &plan.types);
        r->fixed.has_fp8 = true;
        HY_TRY(hy_plan_begin(r, &plan.level, &plan));
    }
    if (r->chunk_budget == 0) r->chunk_budget = hy_budget_device(r);
    bool is_elsewhere = r->is_plan && r->ranks.count > 1; /* ranks that are not running */
    return is_elsewhere ? find_largest_rank(r, &plan) : HY_OK;
}
