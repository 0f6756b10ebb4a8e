/* tail.c: averaging the weights over the last part of a run. See trainer.h.
 *
 * One fp32 sum on the host, added to every few steps. Validation at the end uses the average, made unit
 * by unit while the pass goes over it; training and resuming use the raw weights. */
#include "base/error.h"
#include "trainer/trainer.h"

#define SAMPLE_EVERY 4 /* steps between samples: neighbours hardly differ */

static hy_status add_unit(hy_trainer *t, int32_t unit, int32_t *item) {
    const hy_params *params = &t->model->params;
    bool is_first = t->progress.tail_samples == 0;
    HY_TRY(hy_store_get(&t->tail, t->compute, unit));
    HY_TRY(hy_store_get(&t->weights, t->compute, unit));
    for (; *item < params->count && params->list[*item].unit == unit; ++*item) {
        int64_t count = params->list[*item].count;
        hy_op_call add = {.kind = HY_OP_COMBINE};
        add.t[0] = hy_tensor_1d(hy_store_device(&t->tail, *item), HY_F32, count);
        add.t[1] = hy_tensor_1d(hy_store_device(&t->weights, *item), HY_F32, count);
        if (!is_first) add.t[2] = add.t[0];
        add.attr.combine.coefficient[0] = add.attr.combine.coefficient[1] = 1;
        HY_TRY(t->backend->enqueue(t->compute, &add));
    }
    HY_TRY(hy_store_release(&t->weights, t->compute, unit));
    return hy_store_release_changed(&t->tail, t->compute, unit);
}

hy_status hy_trainer_sample_tail(hy_trainer *t) {
    double share = t->progress.spent / (double)t->steps_total;
    bool is_tail = share > 1 - t->settings.phases.tail_share;
    if (!t->has_tail || !is_tail || t->is_in_fork || t->progress.step % SAMPLE_EVERY != 0) {
        return HY_OK;
    }
    int32_t item = 0;
    for (int32_t unit = 0; unit < t->model->params.units; unit++) HY_TRY(add_unit(t, unit, &item));
    t->progress.tail_samples++;
    return hy_store_settle(&t->tail);
}

void hy_trainer_use_tail(hy_trainer *t, bool is_used) {
    t->candidate_is_tail = is_used && t->has_tail && t->progress.tail_samples > 0;
    t->candidate_dtype = t->precision.of[HY_FULL];
    hy_store_forget(&t->candidate);
}
