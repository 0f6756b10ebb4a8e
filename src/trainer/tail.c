/* tail.c: averaging the weights over the last part of a run. See trainer.h.
 *
 * One fp32 sum on the host, added to every few steps. Validation at the end uses the average, made unit
 * by unit while the pass goes over it; training and resuming use the raw weights. */
#include "base/error.h"
#include "trainer/trainer.h"

#define SAMPLE_EVERY 4 /* steps between samples: neighbours hardly differ */

hy_status hy_trainer_sample_tail(hy_trainer *t) {
    double share = t->progress.spent / (double)t->course.steps_total;
    bool is_tail = share > 1 - t->settings.phases.tail_share;
    if (!t->engine.has_average || !is_tail || t->course.is_in_fork ||
        t->progress.step % SAMPLE_EVERY != 0) {
        return HY_OK;
    }
    HY_TRY(hy_trainer_add_to_tail(t, t->progress.tail_samples == 0));
    t->progress.tail_samples++;
    return hy_store_settle(hy_store_of(&t->engine, HY_ROW_AVERAGE));
}

void hy_trainer_use_tail(hy_trainer *t, bool is_used) {
    t->engine.candidate.is_average =
        is_used && t->engine.has_average && t->progress.tail_samples > 0;
    t->engine.candidate.dtype = t->engine.types.of[HY_FULL];
    hy_store_abandon(
        hy_store_of(&t->engine, HY_ROW_CANDIDATE)); /* a pass over it may have broken off */
}
