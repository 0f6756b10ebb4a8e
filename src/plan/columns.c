/* columns.c: the placement table of a plan: which class lies where in which phase. See request.h.
 *
 * Rows of one class have one place, so a cell is their sum. What they pass through on the device, and the
 * layers of theirs that stay there, count as workspace. Predict keeps no gradients and nothing for a
 * backward pass; the optimizer's state is where its strategy puts it. */
#include "plan/request.h"

static const hy_phase steps[] = {HY_WARMUP, HY_FULL, HY_CORRECT};

static void plan_steps(hy_ledger *l, hy_class cls, hy_place place, hy_dtype dtype, uint64_t bytes) {
    for (int i = 0; i < 3; i++) {
        hy_ledger_plan(l, cls, steps[i], bytes ? place : HY_NOWHERE, dtype, bytes);
    }
}

/* The optimizer's state in Predict, where it lives on the device otherwise. */
static void plan_offload(hy_ledger *l, hy_offload offload, const hy_rows *rows, hy_dtype dtype,
                         uint64_t bytes) {
    hy_place place = HY_DEVICE;
    switch (offload) {
    case HY_OFFLOAD_CPU: place = HY_HOST; break;
    case HY_OFFLOAD_PINNED: place = HY_PINNED; break;
    case HY_OFFLOAD_DROP:
        place = HY_NOWHERE;
        bytes = 0;
        break;
    case HY_OFFLOAD_COMPRESS:
        dtype = HY_U8;
        bytes = hy_offload_compressed_bytes(rows);
        break;
    case HY_OFFLOAD_NONE: break;
    }
    hy_ledger_plan(l, HY_OPTIM, HY_PREDICT, place, dtype, bytes);
}

void hy_plan_columns(const hy_rows *rows, const hy_plan *plan, hy_ledger *l) {
    const hy_plan_work *w = &plan->work;
    const hy_plan_state *s = &plan->state;
    hy_dtype full = plan->types.of[HY_FULL], predict = plan->types.of[HY_PREDICT];
    uint64_t bytes[HY_CLASS_COUNT] = {0};
    const hy_row *of[HY_CLASS_COUNT] = {0};
    for (int i = 0; i < HY_ROW_COUNT; i++) {
        const hy_row *row = &rows->row[i];
        hy_place place = row->kind ? hy_row_place(row, &plan->choice) : HY_NOWHERE;
        if (place == HY_NOWHERE) continue;
        bytes[row->kind->cls] += hy_row_bytes(row, &plan->choice);
        if (!of[row->kind->cls]) of[row->kind->cls] = row;
    }
    for (int cls = 0; cls < HY_CLASS_COUNT; cls++) {
        const hy_row *row = of[cls];
        if (!row) continue;
        hy_place place = hy_row_place(row, &plan->choice);
        hy_dtype dtype = cls == HY_PREDICTOR ? plan->types.slow : row->dtype;
        plan_steps(l, (hy_class)cls, place, dtype, bytes[cls]);
        if (cls == HY_OPTIM && place == HY_DEVICE) {
            plan_offload(l, plan->offload, rows, dtype, bytes[cls]);
        } else if (cls != HY_GRADS) {
            hy_ledger_plan(l, (hy_class)cls, HY_PREDICT, place, dtype, bytes[cls]);
        }
    }
    plan_steps(l, HY_DATA, HY_DEVICE, HY_I32, w->data);
    hy_ledger_plan(l, HY_DATA, HY_PREDICT, HY_DEVICE, HY_I32, w->data);
    /* A class has one place: where layers keep activations on the host, what is left of them on the
     * device counts as workspace. */
    bool is_offloaded = w->train.host > 0;
    plan_steps(l, HY_ACTIVATIONS, is_offloaded ? HY_PINNED : HY_DEVICE, full,
               is_offloaded ? w->train.host : w->activations);
    plan_steps(l, HY_WORKSPACE, HY_DEVICE, full,
               w->workspace + s->rings + (is_offloaded ? w->activations : 0));
    hy_ledger_plan(l, HY_ACTIVATIONS, HY_PREDICT, HY_DEVICE, predict, w->eval.activations);
    hy_ledger_plan(l, HY_WORKSPACE, HY_PREDICT, HY_DEVICE, predict,
                   w->eval.workspace + s->work_rings + s->rings - s->step_rings);
}
