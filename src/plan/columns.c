/* columns.c: the placement table of a plan: where each class is in each phase. See request.h.
 *
 * A column follows from the phase's row (phases/table.h): phases that do not train have no
 * gradients, optimizer state is where the offload strategy puts it, and passes need the training
 * area or that of a forward-only batch. Rows of one class have one place, so a cell is their sum.
 * Rings and their resident layers count as workspace. The engine books the same bytes when it
 * enters a phase (hy_state_book_steps, push_parts in engine/work.c). */
#include "phases/table.h"
#include "plan/request.h"

/* Bytes of all rows of a class. */
typedef struct class_sum {
    hy_place place;
    hy_dtype dtype;
    uint64_t bytes;
} class_sum;

static void sum_classes(const hy_rows *rows, const hy_plan *plan, class_sum out[HY_CLASS_COUNT]) {
    for (int i = 0; i < HY_ROW_COUNT; i++) {
        const hy_row *row = &rows->row[i];
        hy_place place = row->kind ? hy_row_place(row, &plan->choice) : HY_NOWHERE;
        if (place == HY_NOWHERE) continue;
        class_sum *sum = &out[row->kind->cls];
        if (sum->place == HY_NOWHERE) {
            sum->place = place;
            sum->dtype = row->kind->cls == HY_PREDICTOR ? plan->types.slow : row->dtype;
        }
        sum->bytes += hy_row_bytes(row, &plan->choice);
    }
}

hy_offload hy_plan_offload_in(const hy_plan *plan, const hy_phase_row *phase) {
    if (phase->back == HY_LEAVES_NOTHING) return HY_OFFLOAD_NONE;
    if (phase->back == HY_RETURNS_AHEAD) return plan->offload; /* Predict */
    /* A phase between steps moves state only if its larger batch needs the memory. */
    bool is_lent = false;
    for (int i = 0; i < 2; i++) {
        int row = plan->work.loan[i];
        is_lent |= row >= HY_ROW_OPTIM && row < HY_ROW_OPTIM + HY_OPTIM_ARRAYS_MAX;
    }
    bool is_here = plan->choice.state[HY_PLAN_OPTIM] == HY_DEVICE;
    return is_lent && is_here && hy_offload_moves(plan->offload) ? plan->offload : HY_OFFLOAD_NONE;
}

/* Optimizer state that is otherwise on the device. */
static class_sum offloaded(hy_offload offload, const hy_rows *rows, class_sum sum) {
    switch (offload) {
    case HY_OFFLOAD_CPU: sum.place = HY_HOST; break;
    case HY_OFFLOAD_PINNED: sum.place = HY_PINNED; break;
    case HY_OFFLOAD_DROP: sum = (class_sum){.dtype = sum.dtype}; break;
    case HY_OFFLOAD_COMPRESS:
        sum.dtype = HY_U8;
        sum.bytes = hy_offload_compressed_bytes(rows);
        break;
    case HY_OFFLOAD_NONE: break;
    }
    return sum;
}

hy_dtype hy_plan_widest_step(const hy_plan *plan) {
    hy_dtype widest = plan->types.of[HY_FULL];
    for (int i = 0; i < HY_PHASE_COUNT; i++) {
        const hy_phase_row *phase = &hy_phase_table[i];
        hy_dtype dtype = plan->types.of[phase->precision];
        bool is_used = hy_phase_trains(phase) && (i != HY_CORRECT || hy_plan_jumps(plan));
        if (is_used && hy_dtype_size(dtype) > hy_dtype_size(widest)) widest = dtype;
    }
    return widest;
}

/* The training area, or that of forward-only batches. All phases share them, so the type is that of
 * the phase that needs most. A class has one place: if activations are kept on the host, the part
 * on the device counts as workspace. */
static void plan_passes(const hy_plan *plan, const hy_phase_row *phase, hy_ledger *l) {
    const hy_plan_work *w = &plan->work;
    const hy_plan_state *s = &plan->state;
    hy_dtype dtype = hy_phase_trains(phase) ? hy_plan_widest_step(plan) : plan->types.of[HY_FULL];
    if (hy_phase_trains(phase)) {
        bool is_offloaded = w->train.host > 0;
        uint64_t kept = is_offloaded ? w->train.host : w->activations + w->caller;
        hy_ledger_plan(l, HY_ACTIVATIONS, phase->phase,
                       !kept          ? HY_NOWHERE
                       : is_offloaded ? HY_PINNED
                                      : HY_DEVICE,
                       dtype, kept);
        uint64_t rest = w->workspace + s->rings + (is_offloaded ? w->activations : 0);
        hy_ledger_plan(l, HY_WORKSPACE, phase->phase, rest ? HY_DEVICE : HY_NOWHERE, dtype, rest);
        return;
    }
    hy_forward_area area = hy_plan_forward_area(plan, phase);
    hy_batch_bytes lent = hy_plan_borrows(plan, phase) ? w->lent : (hy_batch_bytes){0};
    uint64_t rings = area.rings + s->rings - s->step_rings;
    hy_ledger_plan(l, HY_ACTIVATIONS, phase->phase, HY_DEVICE, dtype,
                   area.activations + lent.activations + w->caller);
    hy_ledger_plan(l, HY_WORKSPACE, phase->phase, HY_DEVICE, dtype,
                   area.workspace + lent.workspace + rings);
}

hy_forward_area hy_plan_forward_area(const hy_plan *plan, const hy_phase_row *phase) {
    const hy_plan_work *w = &plan->work;
    bool jumps = phase->borrower == HY_BORROWS_BATCH_JUMP;
    bool borrows_all = !jumps && hy_plan_borrows(plan, phase);
    if (borrows_all) return (hy_forward_area){0};
    if (phase->borrower == HY_BORROWS_DECODER)
        return (hy_forward_area){.activations = w->activations, .workspace = w->workspace};
    /* The guard's batch uses the training area. */
    return (hy_forward_area){.activations = w->eval.activations,
                             .workspace = w->eval_area - w->eval.activations,
                             .rings = jumps ? plan->state.work_rings : 0};
}

void hy_plan_column(const hy_rows *rows, const hy_plan *plan, const hy_phase_row *phase,
                    hy_ledger *l) {
    class_sum sums[HY_CLASS_COUNT] = {0};
    sum_classes(rows, plan, sums);
    for (int cls = 0; cls < HY_CLASS_COUNT; cls++) {
        class_sum sum = sums[cls];
        if (sum.place == HY_NOWHERE) continue;
        if (cls == HY_GRADS && !hy_phase_trains(phase)) sum = (class_sum){0};
        if (cls == HY_OPTIM && sum.place == HY_DEVICE) {
            sum = offloaded(hy_plan_offload_in(plan, phase), rows, sum);
        }
        hy_ledger_plan(l, (hy_class)cls, phase->phase, sum.bytes ? sum.place : HY_NOWHERE,
                       sum.dtype, sum.bytes);
    }
    uint64_t data = plan->work.data;
    hy_ledger_plan(l, HY_DATA, phase->phase, data ? HY_DEVICE : HY_NOWHERE, HY_I32, data);
    plan_passes(plan, phase, l);
}

void hy_plan_columns(const hy_rows *rows, const hy_plan *plan, hy_ledger *l) {
    for (int i = 0; i < HY_PHASE_COUNT; i++) hy_plan_column(rows, plan, &hy_phase_table[i], l);
}
