/* passes.c: enqueues a micro-batch, unit after unit. See model.h.
 *
 * Every unit is entered, run and left in the same order, wherever its data is; the host only
 * enqueues, it never waits here. */
#include "base/error.h"
#include "model/batch_memory.h"
#include "model/graphs.h"
#include "model/visit.h"

/* Shows the logits, or the input of a matmul with a matrix of a block. */
static hy_status show_op(const hy_frame *f, const hy_unit_op *op, const hy_op_call *call) {
    const hy_watch *watch = f->input->watch;
    if (op->kind == HY_OP_CROSS_ENTROPY && watch->see_loss)
        return watch->see_loss(watch->context, f->input->stream, call);
    if (op->kind != HY_OP_MATMUL || !watch->see) return HY_OK;
    const hy_slot *weight = &f->unit->unit->slots[op->slot[HY_MATMUL_B]];
    if (weight->role != HY_SLOT_PARAM || !hy_linear_bit(weight->param)) return HY_OK;
    int32_t param = hy_params_find(&f->plan->model->params, f->unit_index, weight->param);
    return watch->see(watch->context, f->input->stream, param, &call->t[HY_MATMUL_A]);
}

/* Runs the ops of a pass in order; those of a loop run completely for one tile after another. */
static hy_status run_ops(const hy_frame *f) {
    const hy_pass_plan *pass = &f->unit->pass[f->pass];
    int32_t count = f->op_limit ? f->op_limit : pass->op_count;
    for (int32_t i = 0, end; i < count; i = end) {
        int32_t tiles = hy_unit_tiles(f->unit, pass->ops[i]->range);
        end = hy_unit_loop_end(f->unit, f->pass, i);
        for (int32_t tile = 0; tile < tiles; tile++) {
            for (int32_t op = i; op < end && op < count; op++) {
                hy_op_call call;
                if (tile >= hy_unit_op_tiles(f->unit, pass->ops[op])) continue; /* it is done */
                hy_frame_bind(f, op, tile, &call);
                if (f->adjust) f->adjust(f, &call);
                HY_TRY(f->plan->backend->enqueue(f->input->stream, &call));
                if (f->input->watch) HY_TRY(show_op(f, pass->ops[op], &call));
            }
        }
    }
    return HY_OK;
}

static hy_status enter_unit(hy_frame *f, int32_t unit, int direction) {
    f->unit = hy_batch_unit(f->plan, unit);
    f->unit_index = unit;
    f->scratch = hy_batch_scratch(f->plan, f->pass);
    return hy_visit_enter(f, direction);
}

hy_status hy_run_unit(hy_frame *f, int32_t unit, int direction) {
    HY_TRY(enter_unit(f, unit, direction));
    HY_TRY(run_ops(f));
    return hy_visit_leave(f);
}

/* ---- training -------------------------------------------------------------------------------- */

/* If layers offload, a layer writes its output residual into the next layer's unit: that unit is
 * held before the layer runs, and the layer's own is written back after it. */
static hy_status run_forward(hy_batch_plan *plan, const hy_batch_input *input) {
    int32_t layers = plan->model->shape.layers, first = hy_batch_first_backward(plan);
    hy_store *offload = plan->offload;
    hy_frame f = {.plan = plan, .input = input, .pass = HY_PASS_FORWARD};
    HY_TRY(hy_visit_prepare(&f, 0));
    if (offload && first == 0) HY_TRY(hy_store_get_new(offload, input->stream, 0));
    f.residual_out = hy_batch_residual(plan, 0);
    HY_TRY(hy_run_unit(&f, 0, +1));
    for (int32_t layer = 0; layer < layers; layer++) {
        bool is_next_kept = layer + 1 < layers && layer + 1 >= first;
        if (offload && is_next_kept) HY_TRY(hy_store_get_new(offload, input->stream, layer + 1));
        f.residual_in = hy_batch_residual(plan, layer);
        f.residual_out = hy_batch_residual(plan, layer + 1);
        f.kept = hy_batch_kept(plan, layer);
        HY_TRY(hy_run_unit(&f, layer + 1, +1));
        if (offload && layer >= first) {
            HY_TRY(hy_store_release_changed(offload, input->stream, layer));
        }
    }
    return HY_OK;
}

/* Ends at the lowest unit with trained parameters. */
static hy_status run_backward(hy_batch_plan *plan, const hy_batch_input *input) {
    int32_t layers = plan->model->shape.layers, first = hy_batch_first_backward(plan);
    hy_store *offload = plan->offload;
    hy_frame f = {.plan = plan, .input = input, .pass = HY_PASS_BACKWARD};
    f.residual_grad = hy_batch_residual_grad(plan);
    HY_TRY(hy_visit_prepare(&f, layers + 1));
    f.residual_in = hy_batch_residual(plan, layers);
    f.kept = hy_batch_kept(plan, layers);
    HY_TRY(hy_run_unit(&f, layers + 1, -1));
    for (int32_t layer = layers - 1; layer >= first; layer--) {
        if (offload) HY_TRY(hy_store_get(offload, input->stream, layer));
        if (offload && layer > first) HY_TRY(hy_store_prefetch(offload, layer - 1));
        f.residual_in = hy_batch_residual(plan, layer);
        f.kept = hy_batch_kept(plan, layer);
        HY_TRY(hy_run_unit(&f, layer + 1, -1));
        if (offload) HY_TRY(hy_store_release(offload, input->stream, layer));
    }
    return plan->model->lowest_trained == 0 ? hy_run_unit(&f, 0, -1) : HY_OK;
}

static hy_status train_pass(hy_batch_plan *plan, const hy_batch_input *input) {
    HY_TRY(run_forward(plan, input));
    return run_backward(plan, input);
}

hy_status hy_batch_train(hy_batch_plan *plan, const hy_batch_input *input) {
    HY_FAIL_IF(!plan->options.is_training || plan->options.is_sizing, HY_ERR_STATE,
               "this batch plan supports only %s",
               plan->options.is_sizing ? "computing sizes" : "evaluation");
    HY_FAIL_IF(plan->model->lowest_trained == plan->model->params.units, HY_ERR_STATE,
               "the model has no parameter to train");
    HY_FAIL_IF(plan->options.offloads && !plan->offload, HY_ERR_STATE,
               "this batch plan has no store for the activations it offloads");
    return hy_run_captured(plan, input, train_pass);
}

/* ---- a dry run ------------------------------------------------------------------------------- */

hy_status hy_model_walk(const hy_model *model, const hy_batch_input *input, hy_pass pass) {
    const hy_batch_plan plan = {.model = (hy_model *)(uintptr_t)model};
    hy_unit_plan unit = {0};
    hy_frame f = {.plan = &plan, .unit = &unit, .input = input, .pass = pass};
    int32_t last = model->params.units - 1; /* the head, which training runs only in backward */
    bool is_back = pass == HY_PASS_BACKWARD;
    int32_t first = is_back ? last : 0, direction = is_back ? -1 : +1;
    int32_t end = is_back ? model->lowest_trained : pass == HY_PASS_EVAL ? last : last - 1;
    unit.pass[pass].uses_params = true;
    HY_TRY(hy_visit_prepare(&f, first));
    for (f.unit_index = first; f.unit_index != end + direction; f.unit_index += direction) {
        HY_TRY(hy_visit_enter(&f, direction));
        HY_TRY(hy_visit_leave(&f));
    }
    return HY_OK;
}

/* ---- evaluation ------------------------------------------------------------------------------ */

/* The part of a batch that one slice is. */
static hy_batch_input slice_input(const hy_batch_plan *plan, const hy_batch_input *all, int32_t i) {
    hy_batch_input slice = *all;
    int64_t first = (int64_t)i * plan->size.batch * plan->size.seq;
    slice.tokens += first;
    if (slice.targets) slice.targets += first;
    if (slice.doc_starts) slice.doc_starts += first;
    if (slice.losses) slice.losses += first;
    if (slice.token_losses) slice.token_losses += first;
    if (slice.reference) slice.reference += first;
    if (slice.policy) slice.policy += first;
    return slice;
}

/* Enters a unit, runs it for every slice, and leaves it. A unit reads the residual that the unit
 * before it wrote, in one of two buffers. */
static hy_status evaluate_unit(hy_frame *f, int32_t unit) {
    const hy_batch_input *all = f->input;
    int32_t slices = hy_batch_sequences(f->plan) / f->plan->size.batch;
    HY_TRY(enter_unit(f, unit, +1));
    for (int32_t i = 0; i < slices; i++) {
        const hy_batch_input slice = slice_input(f->plan, all, i);
        f->input = &slice;
        f->residual_in = hy_batch_eval_residual(f->plan, (unit + 1) % 2, i);
        f->residual_out = hy_batch_eval_residual(f->plan, unit % 2, i);
        HY_TRY(run_ops(f));
    }
    f->input = all;
    return hy_visit_leave(f);
}

hy_status hy_run_stack(hy_frame *f) {
    int32_t layers = f->plan->model->shape.layers;
    HY_TRY(hy_visit_prepare(f, 0));
    for (int32_t unit = 0; unit <= layers; unit++) HY_TRY(evaluate_unit(f, unit));
    f->residual_in = hy_batch_eval_residual(f->plan, layers % 2, 0);
    return HY_OK;
}

static hy_status evaluate_pass(hy_batch_plan *plan, const hy_batch_input *input) {
    hy_frame f = {.plan = plan, .input = input, .pass = HY_PASS_EVAL};
    HY_TRY(hy_run_stack(&f));
    return evaluate_unit(&f, plan->model->params.units - 1);
}

hy_status hy_batch_evaluate_unit(hy_batch_plan *plan, const hy_batch_input *input, int32_t unit) {
    hy_frame f = {.plan = plan, .input = input, .pass = HY_PASS_EVAL};
    if (unit == 0) HY_TRY(hy_visit_prepare(&f, 0));
    return evaluate_unit(&f, unit);
}

hy_status hy_batch_evaluate(hy_batch_plan *plan, const hy_batch_input *input) {
    const hy_batch_options *o = &plan->options;
    HY_FAIL_IF(hy_uses_fp8(&o->fp8) || o->offloads || o->is_sizing, HY_ERR_STATE,
               "this batch plan supports only %s",
               hy_uses_fp8(&o->fp8) ? "training in fp8"
               : o->is_sizing       ? "computing sizes"
                                    : "training with offloaded activations");
    return hy_run_captured(plan, input, evaluate_pass);
}

/* ---- the reference of answers ---------------------------------------------------------------- */

/* How many ops of a pass of the head come before the loss of answers. */
static int32_t ops_before_answers(const hy_pass_plan *pass) {
    int32_t count = 0;
    while (pass->ops[count]->kind != HY_OP_PREFERENCE && pass->ops[count]->kind != HY_OP_POLICY)
        count++;
    return count;
}

/* The head runs the ops of training, which are in its backward list, but has no gradients. */
static hy_status reference_of_training(hy_batch_plan *plan, const hy_batch_input *input) {
    int32_t layers = plan->model->shape.layers;
    hy_frame visit = {.plan = plan, .input = input, .pass = HY_PASS_EVAL};
    HY_TRY(run_forward(plan, input));
    HY_TRY(enter_unit(&visit, layers + 1, +1));
    hy_frame f = visit;
    f.pass = HY_PASS_BACKWARD;
    f.scratch = hy_batch_scratch(plan, f.pass);
    f.residual_in = hy_batch_residual(plan, layers);
    f.residual_grad = hy_batch_residual_grad(plan);
    f.kept = hy_batch_kept(plan, layers);
    f.op_limit = ops_before_answers(&f.unit->pass[f.pass]);
    HY_TRY(run_ops(&f));
    return hy_visit_leave(&visit);
}

static hy_status reference_of_evaluation(hy_batch_plan *plan, const hy_batch_input *input) {
    int32_t head = plan->model->params.units - 1;
    hy_frame f = {.plan = plan, .input = input, .pass = HY_PASS_EVAL};
    HY_TRY(hy_run_stack(&f));
    f.op_limit = ops_before_answers(&hy_batch_unit(plan, head)->pass[HY_PASS_EVAL]);
    return evaluate_unit(&f, head);
}

hy_status hy_batch_reference(hy_batch_plan *plan, const hy_batch_input *input) {
    HY_FAIL_IF(plan->model->loss.kind == HY_LOSS_NEXT_TOKEN || plan->options.is_sizing,
               HY_ERR_STATE, "this batch plan has no reference");
    hy_batch_input without = *input;
    hy_unit_hook hook = {0};
    if (input->hook) {
        hook = (hy_unit_hook){.context = input->hook->context,
                              .fetch = input->hook->fetch,
                              .await = input->hook->await};
        without.hook = &hook;
    }
    without.skips_adapters = true;
    without.seen = NULL;
    return hy_run_captured(plan, &without,
                           plan->options.is_training ? reference_of_training
                                                     : reference_of_evaluation);
}
