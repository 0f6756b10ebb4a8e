/* batch_memory.c: bytes and addresses of a micro-batch's activations. See batch_memory.h. */
#include "model/batch_memory.h"

#include <assert.h>
#include <stdlib.h>

#include "base/error.h"
#include "model/graphs.h"

static int32_t layers_of(const hy_batch_plan *plan) { return plan->model->shape.layers; }

static uint64_t slices_of(const hy_batch_plan *plan) {
    return (uint64_t)(hy_batch_sequences(plan) / plan->size.batch);
}

static uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* How many of the first `count` layers recompute. */
static int32_t recomputing_before(const hy_batch_plan *plan, int32_t count) {
    int64_t wanted = plan->options.recompute_layers;
    if (wanted == 0 || wanted > layers_of(plan)) wanted = layers_of(plan);
    return (int32_t)(count * wanted / layers_of(plan));
}

bool hy_batch_recomputes(const hy_batch_plan *plan, int32_t layer) {
    return recomputing_before(plan, layer + 1) > recomputing_before(plan, layer);
}

hy_unit_plan *hy_batch_unit(const hy_batch_plan *plan, int32_t unit) {
    bool is_block = unit > 0 && unit <= layers_of(plan);
    bool is_stored = is_block && !hy_batch_recomputes(plan, unit - 1);
    return &(is_stored ? plan->stored : plan->checkpointed)[plan->model->kind_of[unit]];
}

int32_t hy_batch_alike(const hy_batch_plan *plan, int32_t unit) {
    const hy_unit_plan *its = hy_batch_unit(plan, unit);
    int32_t alike = 0;
    for (int32_t other = 0; other < plan->model->params.units; other++) {
        if (hy_batch_unit(plan, other) != its) continue;
        if (other < unit) return 0;
        alike++;
    }
    return alike;
}

static const hy_unit_plan *head_of(const hy_batch_plan *plan) {
    return hy_batch_unit(plan, layers_of(plan) + 1);
}

int32_t hy_batch_first_backward(const hy_batch_plan *plan) {
    int32_t lowest = plan->model->lowest_trained;
    if (lowest > layers_of(plan)) return layers_of(plan);
    return lowest > 0 ? lowest - 1 : 0;
}

/* ---- bytes ----------------------------------------------------------------------------------- */

/* The bytes that all layers before this one keep. */
static uint64_t kept_before(const hy_batch_plan *plan, int32_t layer) {
    uint64_t bytes = 0;
    for (int32_t l = 0; l < layer; l++) bytes += hy_batch_unit(plan, l + 1)->kept_bytes;
    return bytes;
}

/* The scratch memory of a unit's pass, followed by the workspace of its ops. */
static uint64_t with_workspace(const hy_pass_plan *pass) {
    return hy_align(pass->scratch_bytes) + hy_align(pass->workspace_bytes);
}

/* The largest scratch memory of any unit in a pass. */
static uint64_t largest_scratch(const hy_batch_plan *plan, hy_pass pass, bool has_workspace) {
    uint64_t most = 0;
    for (int32_t unit = 0; unit < plan->model->params.units; unit++) {
        const hy_pass_plan *list = &hy_batch_unit(plan, unit)->pass[pass];
        most = larger(most, has_workspace ? with_workspace(list) : list->scratch_bytes);
    }
    return most;
}

/* The number of residuals in the activations: layers without a backward share the first two. */
static int32_t residual_count(const hy_batch_plan *plan) {
    int32_t first = hy_batch_first_backward(plan), shared = first < 2 ? first : 2;
    return shared + (plan->options.offloads ? 0 : layers_of(plan) - first);
}

/* The bytes of the activations on the device, without the ring. */
static uint64_t resident_bytes(const hy_batch_plan *plan) {
    if (!plan->options.is_training) return 2 * slices_of(plan) * plan->residual_bytes;
    uint64_t kept = plan->options.offloads ? 0 : kept_before(plan, layers_of(plan));
    return (uint64_t)(residual_count(plan) + 1) * plan->residual_bytes + kept +
           head_of(plan)->kept_bytes;
}

/* Evaluation with a training plan: usually there is room for its scratch after its two
 * residuals, in the memory of training's kept activations. */
static bool evaluates_in_activations(const hy_batch_plan *plan) {
    return plan->options.is_training &&
           2 * plan->residual_bytes + largest_scratch(plan, HY_PASS_EVAL, false) <=
               resident_bytes(plan);
}

/* Scratch and workspace of a training plan; its end holds the residual between the last layer
 * and the head. If an evaluation's scratch is elsewhere, its ops can use all of it. */
static uint64_t training_workspace(const hy_batch_plan *plan) {
    const hy_unit_plan *last = hy_batch_unit(plan, layers_of(plan));
    uint64_t turn = larger(with_workspace(&last->pass[HY_PASS_FORWARD]),
                           with_workspace(&head_of(plan)->pass[HY_PASS_BACKWARD]));
    uint64_t bytes = larger(largest_scratch(plan, HY_PASS_FORWARD, true),
                            largest_scratch(plan, HY_PASS_BACKWARD, true));
    bytes = larger(bytes, turn + plan->residual_bytes);
    bool evaluates = !plan->options.offloads && !evaluates_in_activations(plan);
    return larger(bytes,
                  evaluates ? largest_scratch(plan, HY_PASS_EVAL, true) : plan->op_workspace_bytes);
}

hy_status hy_batch_offload_layout(const hy_batch_plan *plan, hy_layout *out) {
    int32_t layers = layers_of(plan);
    hy_layout_item *items = calloc((size_t)layers * 2, sizeof *items);
    if (!items) return hy_fail(HY_ERR_MEMORY, "not enough memory for a layout");
    for (int32_t i = 0; i < 2 * layers; i++) {
        uint64_t kept = hy_batch_unit(plan, i / 2 + 1)->kept_bytes;
        uint64_t entering = i / 2 < hy_batch_first_backward(plan) ? 0 : plan->residual_bytes;
        items[i] = (hy_layout_item){
            .unit = i / 2, .dtype = HY_U8, .count = (int64_t)(i % 2 ? kept : entering)};
    }
    hy_status status = hy_layout_init(out, items, 2 * layers, layers);
    free(items);
    return status;
}

hy_status hy_batch_count_bytes(hy_batch_plan *plan) {
    uint64_t rows = (uint64_t)plan->size.batch * (uint64_t)plan->size.seq;
    uint64_t width = (uint64_t)plan->model->shape.width;
    plan->residual_bytes = hy_align(rows * width * hy_dtype_size(plan->size.dtype));
    if (plan->options.is_training) {
        plan->bytes.workspace = hy_align(training_workspace(plan));
    } else {
        plan->scratch_bytes = hy_align(largest_scratch(plan, HY_PASS_EVAL, false));
        plan->bytes.workspace = plan->scratch_bytes + hy_align(plan->op_workspace_bytes);
    }
    if (plan->options.offloads) {
        int32_t depth = plan->options.ring_depth;
        hy_layout layout = {0};
        HY_TRY(hy_batch_offload_layout(plan, &layout));
        plan->bytes.host = layout.bytes;
        plan->bytes.ring = hy_store_ring_bytes(&layout, depth ? depth : HY_OFFLOAD_DEPTH);
        hy_layout_fini(&layout);
    }
    plan->bytes.activations = resident_bytes(plan) + plan->bytes.ring;
    return HY_OK;
}

/* ---- addresses ------------------------------------------------------------------------------- */

static char *behind_residuals(const hy_batch_plan *plan) {
    return plan->activations + (uint64_t)(residual_count(plan) + 1) * plan->residual_bytes;
}

char *hy_batch_residual(const hy_batch_plan *plan, int32_t layer) {
    bool is_last = layer == layers_of(plan);
    if (is_last) return plan->workspace + plan->bytes.workspace - plan->residual_bytes;
    int32_t first = hy_batch_first_backward(plan), at = layer % 2;
    if (layer >= first) {
        if (plan->options.offloads) return hy_store_device(plan->offload, 2 * layer);
        at = (first < 2 ? first : 2) + layer - first;
    }
    return plan->activations + (uint64_t)at * plan->residual_bytes;
}

char *hy_batch_residual_grad(const hy_batch_plan *plan) {
    return behind_residuals(plan) - plan->residual_bytes;
}

char *hy_batch_kept(const hy_batch_plan *plan, int32_t layer) {
    bool is_head = layer == layers_of(plan);
    if (layer < hy_batch_first_backward(plan)) return NULL; /* it keeps nothing */
    if (!plan->options.offloads) return behind_residuals(plan) + kept_before(plan, layer);
    return is_head ? behind_residuals(plan) : hy_store_device(plan->offload, 2 * layer + 1);
}

char *hy_batch_eval_residual(const hy_batch_plan *plan, int32_t index, int32_t slice) {
    uint64_t at = (uint64_t)index * slices_of(plan) + (uint64_t)slice;
    return plan->activations + at * plan->residual_bytes;
}

char *hy_batch_scratch(const hy_batch_plan *plan, hy_pass pass) {
    bool is_behind = pass == HY_PASS_EVAL && evaluates_in_activations(plan);
    return is_behind ? hy_batch_eval_residual(plan, 2, 0) : plan->workspace;
}

hy_tensor hy_batch_op_workspace(const hy_batch_plan *plan, const hy_pass_plan *list, hy_pass pass) {
    uint64_t at = hy_align(list->scratch_bytes), bytes = list->workspace_bytes;
    if (pass == HY_PASS_EVAL && evaluates_in_activations(plan)) at = 0;
    if (!plan->options.is_training) at = plan->scratch_bytes, bytes = plan->op_workspace_bytes;
    return hy_tensor_1d(plan->workspace + at, HY_U8, (int64_t)bytes);
}

void hy_batch_plan_place(hy_batch_plan *plan, void *activations, void *workspace) {
    hy_forget_graphs(plan);
    plan->activations = activations;
    plan->workspace = workspace;
    const hy_unit_plan *head = head_of(plan);
    int logits = 1;
    while (head->tile_of[logits] != HY_RANGE_LOSS) logits++;
    plan->logits = hy_batch_scratch(plan, HY_PASS_EVAL) + head->pass[HY_PASS_EVAL].offset[logits];
}

void hy_batch_plan_offload(hy_batch_plan *plan, hy_store *store) {
    assert(plan->options.offloads && store->layout.unit_count == layers_of(plan));
    for (int32_t layer = 0; layer < layers_of(plan);
         layer++) { /* the store may serve other plans */
        uint64_t kept = hy_batch_unit(plan, layer + 1)->kept_bytes;
        assert(kept <= (uint64_t)store->layout.items[2 * layer + 1].count);
        (void)kept;
    }
    hy_forget_graphs(plan);
    plan->offload = store;
}
