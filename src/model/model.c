/* model.c: creates a model and plans micro-batches for it. See model.h; passes are in passes.c. */
#include "model/model.h"

#include <math.h>
#include <stdlib.h>

#include "base/error.h"
#include "model/batch_memory.h"
#include "model/bind.h"
#include "model/graphs.h"

/* The maximum bytes of a chunk's logits if the number of chunks is open: large enough for full
 * matmul speed, small enough not to matter. A GPU needs some thousand rows, and each chunk
 * reads, writes and rounds the whole gradient of the head, so this is a sixteenth of the budget,
 * usually less than a layer's backward needs of the same memory. */
#define CHUNK_TARGET_BYTES (64u << 20)
#define CHUNK_TARGET_MOST (1u << 30)
#define CHUNK_SHARE 16

static hy_unit_traits traits_of(const hy_model *model, int32_t unit) {
    hy_unit_traits traits = hy_unit_traits_of(&model->shape, unit);
    traits.trained = 0;
    for (int kind = 0; kind < HY_P_KIND_COUNT; kind++) {
        int32_t param = hy_params_find(&model->params, unit, (hy_param_kind)kind);
        bool is_trained = param >= 0 && model->params.list[param].is_trainable;
        int8_t linear = hy_linear_index((hy_param_kind)kind);
        traits.trained |= (uint64_t)is_trained << kind;
        if (param < 0 || linear < 0) continue;
        traits.stored[linear] = hy_params_stored(&model->params, param, HY_F32);
        bool is_plain = hy_param_in_16_bits(&model->params.list[param]);
        traits.in_16_bits |= is_plain ? hy_linear_bit((hy_param_kind)kind) : 0;
    }
    traits.passes_back = unit > model->lowest_trained;
    if (traits.part == HY_PART_HEAD) traits.loss = model->loss;
    return traits;
}

/* Finds the units with the same computation: each kind is written once. */
static void find_kinds(hy_model *model) {
    int32_t units = model->params.units, first = 0;
    while (first < model->params.count && !model->params.list[first].is_trainable) first++;
    model->lowest_trained = first < model->params.count ? model->params.list[first].unit : units;
    model->kind_count = 0;
    for (int32_t unit = 0; unit < units; unit++) {
        hy_unit_traits traits = traits_of(model, unit);
        int32_t kind = 0;
        while (kind < model->kind_count &&
               !hy_unit_traits_equal(&model->kinds[kind].traits, &traits)) {
            kind++;
        }
        if (kind == model->kind_count) {
            hy_unit_init(&model->kinds[model->kind_count++], &model->shape, &traits);
        }
        model->kind_of[unit] = kind;
    }
}

hy_status hy_model_create(const hy_shape *shape, hy_model **out) {
    *out = NULL;
    hy_model *model = calloc(1, sizeof *model);
    if (!model) return hy_fail(HY_ERR_MEMORY, "not enough memory for a model");
    model->shape = *shape;
    hy_status status = hy_shape_complete(&model->shape);
    if (status == HY_OK) status = hy_params_init(&model->params, &model->shape);
    if (status == HY_OK) {
        size_t units = (size_t)model->params.units;
        model->kinds = calloc(units, sizeof *model->kinds);
        model->kind_of = calloc(units, sizeof *model->kind_of);
        if (!model->kinds || !model->kind_of) {
            status = hy_fail(HY_ERR_MEMORY, "not enough memory for the units of %d blocks",
                             model->shape.layers);
        }
    }
    if (status == HY_OK) {
        find_kinds(model);
        *out = model;
    } else {
        hy_model_destroy(model);
    }
    return status;
}

hy_status hy_model_create_custom(const hy_param_spec *list, int32_t count, const int32_t *unit_of,
                                 hy_model **out) {
    *out = NULL;
    hy_model *model = calloc(1, sizeof *model);
    if (!model) return hy_fail(HY_ERR_MEMORY, "not enough memory for a model");
    hy_status status = hy_params_init_list(&model->params, list, count, unit_of);
    if (status == HY_OK)
        *out = model;
    else
        hy_model_destroy(model);
    return status;
}

hy_status hy_model_select(hy_model *model, const char *names, hy_dtype frozen_codes) {
    HY_TRY(hy_params_select(&model->params, names));
    model->params.frozen_codes = frozen_codes;
    find_kinds(model);
    return HY_OK;
}

void hy_model_set_loss(hy_model *model, const hy_loss *loss) {
    model->loss = *loss;
    hy_model_settle(model);
}

void hy_model_settle(hy_model *model) {
    if (hy_model_has_passes(model)) find_kinds(model);
}

void hy_model_destroy(hy_model *model) {
    if (!model) return;
    hy_params_fini(&model->params);
    free(model->kinds);
    free(model->kind_of);
    free(model);
}

#define TILE_ROWS 8 /* the tiles of 16-bit rows then begin at multiples of 16 bytes */

/* The rows of each of so many tiles. The last tile may be shorter. */
static int64_t rows_of_tile(int64_t rows, int64_t tiles) {
    if (rows % tiles == 0) return rows / tiles;
    return (int64_t)hy_tile_count(rows, tiles * TILE_ROWS) * TILE_ROWS;
}

int32_t hy_batch_divide(int64_t rows, int64_t wanted) {
    if (wanted < 1) wanted = 1;
    if (wanted > rows) wanted = rows;
    for (int64_t chunks = wanted; chunks <= 2 * wanted && chunks <= rows; chunks++) {
        if (rows % chunks == 0) return (int32_t)chunks;
    }
    int32_t tiles = hy_tile_count(rows, rows_of_tile(rows, wanted)); /* at most `wanted` */
    return tiles < wanted ? hy_batch_divide(rows, tiles) : tiles;
}

int32_t hy_batch_chunks(const hy_model *model, const hy_backend *backend,
                        const hy_batch_options *o) {
    const hy_shape *shape = &model->shape;
    int64_t rows = (int64_t)o->batch * o->seq;
    int64_t wanted = o->chunks;
    if (wanted == 0) {
        uint64_t all =
            (uint64_t)rows * (uint64_t)hy_shape_vocab_rows(shape) * hy_dtype_size(o->dtype);
        uint64_t target = (o->budget ? o->budget : backend->facts.memory_total) / CHUNK_SHARE;
        if (!backend->facts.is_gpu || target < CHUNK_TARGET_BYTES) target = CHUNK_TARGET_BYTES;
        if (target > CHUNK_TARGET_MOST) target = CHUNK_TARGET_MOST;
        wanted = (int64_t)((all + target - 1) / target);
    }
    return hy_batch_divide(rows, wanted);
}

static hy_status check_options(const hy_batch_options *o, const hy_shape *shape) {
    HY_FAIL_IF(o->recompute_layers < 0 || o->recompute_layers > shape->layers, HY_ERR_INPUT,
               "recomputing %d layers is not possible; accepted: 0 (all) to %d",
               o->recompute_layers, shape->layers);
    HY_FAIL_IF(o->batch < 1 || o->seq < 1, HY_ERR_INPUT, "a micro-batch of %d x %d tokens is empty",
               o->batch, o->seq);
    HY_FAIL_IF(o->seq > shape->context, HY_ERR_INPUT,
               "the sequence length %d is beyond the model's context of %d tokens (shape.context)",
               o->seq, shape->context);
    HY_FAIL_IF(hy_uses_fp8(&o->fp8) && (!o->is_training || o->dtype != HY_BF16), HY_ERR_STATE,
               "fp8 matmuls need training in bf16, not in %s",
               o->is_training ? hy_dtype_name(o->dtype) : "evaluation");
    HY_FAIL_IF(o->mlp_chunks > 1 && (o->fp8.weights | o->fp8.grads) & hy_mlp_bits(), HY_ERR_STATE,
               "an mlp in %d chunks has no matmuls in fp8", o->mlp_chunks);
    HY_FAIL_IF((int64_t)o->batch * o->seq > INT32_MAX, HY_ERR_INPUT,
               "a micro-batch of %d x %d tokens is too large", o->batch, o->seq);
    return HY_OK;
}

/* Asks the backend about an op on the rows of a tile: is it supported, its workspace, its plan. */
static hy_status prepare_op(hy_batch_plan *plan, const hy_frame *frame, int32_t index, int32_t tile,
                            const void **prepared) {
    hy_pass_plan *list = &hy_batch_unit(plan, frame->unit_index)->pass[frame->pass];
    hy_op_call call;
    hy_frame_bind(frame, index, tile, &call);
    hy_status status = plan->backend->supports(plan->backend, &call);
    bool runs = !plan->options.is_sizing;
    if (status == HY_OK && runs) status = plan->backend->prepare(plan->backend, &call);
    if (status != HY_OK) return hy_fail_context(status, "the model's %s", frame->unit->unit->name);
    *prepared = call.plan;
    uint64_t workspace = plan->backend->workspace(plan->backend, &call);
    if (workspace > plan->op_workspace_bytes) plan->op_workspace_bytes = workspace;
    if (workspace > list->workspace_bytes) list->workspace_bytes = workspace;
    return HY_OK;
}

static hy_status prepare_pass(hy_batch_plan *plan, int32_t unit, hy_pass pass) {
    hy_pass_plan *list = &hy_batch_unit(plan, unit)->pass[pass];
    hy_frame frame = hy_frame_for_planning(plan, unit, pass);
    for (int32_t i = 0; i < list->op_count; i++) {
        int32_t tiles = hy_unit_op_tiles(frame.unit, list->ops[i]);
        int32_t rows = plan->size.tile_rows[list->ops[i]->range];
        bool is_uneven = tiles > 1 && plan->size.batch * plan->size.seq % rows != 0;
        HY_TRY(prepare_op(plan, &frame, i, 0, &list->prepared[i]));
        if (is_uneven) HY_TRY(prepare_op(plan, &frame, i, tiles - 1, &list->prepared_short[i]));
    }
    return HY_OK;
}

/* Can the backend fuse gelu and its backward into the mlp's matmuls? */
static bool can_fuse_gelu(const hy_shape *shape, hy_backend *backend, const hy_batch_options *o,
                          int64_t N) {
    void *somewhere = (void *)(uintptr_t)HY_ALIGNMENT;
    int64_t C = shape->width, F = shape->mlp_width;
    if (shape->is_gated) return false;
    hy_tensor wide = hy_tensor_2d(somewhere, o->dtype, N, F);
    hy_op_call up = {.kind = HY_OP_MATMUL,
                     .attr.matmul = {.trans_b = true, .is_gelu = true, .alpha = 1},
                     .t = {[HY_MATMUL_A] = hy_tensor_2d(somewhere, o->dtype, N, C),
                           [HY_MATMUL_B] = hy_tensor_2d(somewhere, o->dtype, F, C),
                           [HY_MATMUL_D] = wide}};
    hy_op_call back = up;
    if (hy_shape_mlp_bias(shape)) up.t[HY_MATMUL_BIAS] = hy_tensor_1d(somewhere, o->dtype, F);
    back.attr.matmul.trans_b = back.attr.matmul.is_gelu = false;
    back.t[HY_MATMUL_B] = hy_tensor_2d(somewhere, o->dtype, C, F);
    back.t[HY_MATMUL_PRE] = wide;
    return backend->supports(backend, &up) == HY_OK && backend->supports(backend, &back) == HY_OK;
}

/* Blocks with fp8 matmuls have their own lists, and so has the head if it cannot compute the model's
 * loss; otherwise the model's lists are used. */
static hy_status make_kinds(hy_batch_plan *plan) {
    const hy_model *model = plan->model;
    bool has_other_loss = plan->options.has_any_rows && model->loss.kind != HY_LOSS_NEXT_TOKEN;
    plan->kinds = model->kinds;
    if (!hy_uses_fp8(&plan->options.fp8) && !has_other_loss) return HY_OK;
    plan->kinds = calloc((size_t)model->kind_count, sizeof *plan->kinds);
    HY_FAIL_IF(!plan->kinds, HY_ERR_MEMORY, "not enough memory for a batch plan");
    for (int32_t kind = 0; kind < model->kind_count; kind++) {
        hy_unit_traits traits = model->kinds[kind].traits;
        if (traits.part == HY_PART_BLOCK) traits.fp8 = plan->options.fp8;
        if (has_other_loss) traits.loss = (hy_loss){0};
        hy_unit_init(&plan->kinds[kind], &model->shape, &traits);
    }
    return HY_OK;
}

/* Units with different plans may still run the same matmuls, which the backend prepares once. */
static hy_status plan_units(hy_batch_plan *plan) {
    const hy_model *model = plan->model;
    hy_batch_size stored = plan->size;
    stored.recompute = 0;
    plan->checkpointed = calloc((size_t)model->kind_count, sizeof *plan->checkpointed);
    plan->stored = calloc((size_t)model->kind_count, sizeof *plan->stored);
    HY_FAIL_IF(!plan->checkpointed || !plan->stored, HY_ERR_MEMORY,
               "not enough memory for a batch plan");
    for (int32_t kind = 0; kind < model->kind_count; kind++) {
        hy_unit_plan_init(&plan->checkpointed[kind], &plan->kinds[kind], &plan->size);
        hy_unit_plan_init(&plan->stored[kind], &plan->kinds[kind], &stored);
    }
    for (int32_t unit = 0; unit < model->params.units; unit++) {
        if (!hy_batch_alike(plan, unit)) continue; /* it was prepared for another */
        HY_TRY(prepare_pass(plan, unit, HY_PASS_EVAL));
        if (!plan->options.is_training) continue;
        HY_TRY(prepare_pass(plan, unit, HY_PASS_FORWARD));
        HY_TRY(prepare_pass(plan, unit, HY_PASS_BACKWARD));
    }
    return HY_OK;
}

hy_status hy_batch_plan_create(hy_model *model, hy_backend *backend,
                               const hy_batch_options *options, hy_batch_plan **out) {
    *out = NULL;
    HY_TRY(check_options(options, &model->shape));
    hy_batch_plan *plan = calloc(1, sizeof *plan);
    if (!plan) return hy_fail(HY_ERR_MEMORY, "not enough memory for a batch plan");
    plan->model = model;
    plan->backend = backend;
    plan->options = *options;
    int32_t rows = options->batch * options->seq;
    int32_t loss = hy_batch_chunks(model, backend, options);
    int32_t mlp = hy_batch_divide(rows, options->mlp_chunks);
    int32_t mlp_rows = (int32_t)rows_of_tile(rows, mlp);
    plan->size = (hy_batch_size){
        .batch = options->batch,
        .seq = options->seq,
        .tile_rows = {[HY_RANGE_LOSS] = (int32_t)rows_of_tile(rows, loss),
                      [HY_RANGE_MLP] = mlp > 1 ? mlp_rows : 0},
        .dtype = options->dtype,
        .recompute = options->recompute,
        .fuses_gelu =
            !options->has_any_rows && can_fuse_gelu(&model->shape, backend, options, mlp_rows),
    };
    hy_status status = make_kinds(plan);
    if (status == HY_OK) status = plan_units(plan);
    if (status == HY_OK) status = hy_batch_count_bytes(plan);
    if (status == HY_OK)
        *out = plan;
    else
        hy_batch_plan_destroy(plan);
    return status;
}

void hy_batch_plan_destroy(hy_batch_plan *plan) {
    if (!plan) return;
    hy_forget_graphs(plan);
    if (plan->kinds != plan->model->kinds) free(plan->kinds);
    free(plan->checkpointed);
    free(plan->stored);
    free(plan);
}

double hy_model_flops_per_token(const hy_model *model, int32_t seq) {
    const hy_shape *s = &model->shape;
    double sum = 0;
    if (!hy_model_has_passes(model)) return 0;
    for (int32_t unit = 1; unit < model->params.units; unit++) {
        bool goes_back = unit >= model->lowest_trained, goes_on = unit > model->lowest_trained;
        for (int i = 0; i < HY_P_KIND_COUNT; i++) {
            hy_param_kind kind = (hy_param_kind)i;
            int32_t index = hy_params_find(&model->params, unit, kind);
            bool is_matrix = hy_linear_bit(kind) || hy_is_adapter(kind) || kind == HY_P_HEAD;
            if (index < 0 || !is_matrix) continue;
            const hy_param *p = &model->params.list[index];
            /* The gradient of its input leaves the unit. */
            hy_param_kind matrix = hy_is_adapter(kind) ? hy_adapter_matrix(kind) : kind;
            bool is_first =
                !hy_is_adapter_b(kind) && (matrix == HY_P_QKV || matrix == HY_P_LINEAR_QKV ||
                                           matrix == HY_P_LINEAR_Z || matrix == HY_P_LINEAR_BA);
            int matmuls = 1 + (is_first ? goes_on : goes_back) + p->is_trainable;
            sum += 2.0 * matmuls * (double)p->stored;
        }
        if (unit > s->layers) continue;
        if (hy_shape_is_linear(s, unit - 1)) {
            const hy_linear_options *l = &s->more.linear;
            /* S' k, k d' and S' q: 2 operations each for an element of a state */
            sum += (goes_back ? 18.0 : 6.0) * l->heads * l->key_dim * l->value_dim;
            continue;
        }
        int32_t window = hy_shape_window(s, unit - 1);
        double span = window && window < seq ? window : 0.5 * seq;
        /* half of its own block, and the others */
        double blocks = (double)s->sparse_local + s->sparse_global - 0.5;
        if (hy_shape_is_sparse(s, unit - 1)) span = fmin(span, blocks * HY_SPARSE_BLOCK);
        /* q k and p v: 2 * 2 operations forward, twice that backward */
        sum += (goes_back ? 12.0 : 4.0) * s->heads * s->head_size * span;
    }
    return sum;
}
