/* provider_weights.c: which weights a provider finds in its own memory. See provider_weights.h.
 *
 * A provider with its own memory computes with the weights in it: those of the run, those of a
 * proposed jump, or the average. They are written there before a probe, and the run's weights
 * return after it. */
#include "trainer/provider_weights.h"

#include "trainer/ranks.h"
#include "trainer/recovery.h"

/* Losses of training sequences, or the held-out loss (split HY_VAL). */
static hy_status compute(hy_trainer *t, hy_batch_plan *plan, hy_probe *probe) {
    const hy_provider_ops *ops = t->provider->ops;
    return probe->split == HY_VAL ? ops->evaluate(t->provider, t, probe)
                                  : ops->losses(t->provider, t, plan, probe);
}

/* The weights return to the provider's memory even if the probe failed, so that a run that ends
 * here can be saved. */
static hy_status probe_shown(hy_trainer *t, hy_shown shown, hy_batch_plan *plan, hy_probe *probe) {
    hy_engine *e = t->engine;
    hy_error kept;
    hy_status status = hy_custom_show(e, shown);
    probe->counted = 0;
    if (status == HY_OK) status = compute(t, plan, probe);
    if (e->custom->shown == HY_SHOWN_WEIGHTS) return status;
    if (hy_ranks_are_apart(t, status)) {
        t->status.life = HY_LIFE_FAILED;
        return status;
    }
    hy_error_save(&kept, status);
    hy_status back = hy_custom_show(e, HY_SHOWN_WEIGHTS);
    while (back == HY_ERR_MEMORY && hy_engine_prepare_retry(e, back) == HY_OK) {
        back = hy_custom_show(e, HY_SHOWN_WEIGHTS);
    }
    if (back == HY_OK) return hy_error_restore(&kept);
    t->status.life = HY_LIFE_FAILED;
    return back;
}

hy_status hy_trainer_probe(hy_trainer *t, hy_batch_plan *plan, hy_probe *probe) {
    if (!t->engine->custom) return compute(t, plan, probe);
    bool is_held_out = probe->split == HY_VAL;
    hy_shown shown = !probe->of_candidate ? HY_SHOWN_WEIGHTS
                     : is_held_out        ? HY_SHOWN_AVERAGE
                                          : HY_SHOWN_CANDIDATE;
    if (shown != HY_SHOWN_AVERAGE) return probe_shown(t, shown, plan, probe);
    /* While the average is shown, the snapshot row holds the weights. A snapshot that may still
     * undo a jump is therefore copied before and written back afterwards. */
    hy_arena kept = {0};
    hy_error error;
    if (!hy_trainer_is_over(t)) HY_TRY(hy_custom_keep_snapshot(t->engine, &kept));
    hy_status status = probe_shown(t, shown, NULL, probe);
    hy_error_save(&error, status);
    hy_status back = hy_custom_return_snapshot(t->engine, &kept);
    return status == HY_OK ? back : hy_error_restore(&error);
}

/* Writes the run's weights to the provider's memory, with the pending update applied. */
static hy_status show_weights(hy_trainer *t) {
    HY_TRY(hy_custom_show(t->engine, HY_SHOWN_WEIGHTS));
    return hy_custom_lend(t->engine);
}

hy_status hy_trainer_hand_back(hy_trainer *t, hy_status status) {
    hy_error error;
    bool is_ready = t->status.life == HY_LIFE_READY && !hy_ranks_are_apart(t, status);
    if (!t->engine->custom || !is_ready) return status;
    hy_error_save(&error, status);
    hy_status shown = hy_trainer_retry(t, show_weights);
    return status == HY_OK ? shown : hy_error_restore(&error);
}

hy_status hy_trainer_show_last(hy_trainer *t) {
    if (!t->engine->custom) return HY_OK;
    HY_TRY(show_weights(t));
    return hy_engine_sync(t->engine);
}
