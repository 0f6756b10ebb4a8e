/* recovery.c: handles a run that runs out of memory. See recovery.h.
 *
 * Memory is allocated before the first step, except that of paired tests, so a later shortage comes
 * from outside: a driver that cannot load what it needs, another program, the machine. The failed
 * step has changed nothing yet, or knows how far its update is, so it is repeated: first unchanged,
 * then with smaller micro-batches, then with everything recomputed. After too many failures in a
 * row the run saves itself and says what to change. */
#include "trainer/recovery.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plan/advice.h"
#include "trainer/recording.h"
#include "trainer/resize.h"
#include "trainer/saving.h"

#define RESERVE_BYTES ((size_t)256 << 10)
#define LISTED_ADVICE 3

void hy_trainer_report_retry(void *trainer, const char *message, const char *how) {
    hy_trainer *t = trainer;
    char text[2 * HY_ERROR_MESSAGE_MAX];
    snprintf(text, sizeof text, "memory ran out in step %lld (%s); trying again %s",
             (long long)t->progress->step + 1, message, how);
    hy_say(t, HY_WARNING, "%s", text);
    hy_trainer_record_event(t, &(hy_event_line){.event = "recovery", .text = text});
}

hy_status hy_trainer_prepare_retry(hy_trainer *t, hy_status status) {
    const hy_plan_choice *choice = &t->engine->plan->choice;
    bool has_passes = t->provider->facts.has_passes; /* else there is no micro-batch to change */
    hy_error error;
    char how[80] = "as it was";
    HY_TRY(hy_engine_recover(t->engine, status, &error));
    /* A failed resize ends the run although retries are left: it has already tried smaller sizes,
     * and there may be no work area to repeat the step in. */
    if (t->engine->retries.in_a_row > 1) {
        int64_t smaller = hy_smaller_batch(t);
        snprintf(how, sizeof how, "unchanged, because the run cannot reduce its memory further");
        if (has_passes) hy_trainer_back_off(t);
        if (has_passes) hy_trainer_give_up_room(t);
        if (has_passes && smaller > 0) {
            HY_TRY(hy_trainer_resize(t, smaller, "memory ran out"));
            snprintf(how, sizeof how, "with micro-batches of %lld", (long long)choice->batch);
        } else if (has_passes && !hy_recomputes_all(choice)) {
            HY_TRY(hy_trainer_recompute_all(t, "memory ran out"));
            snprintf(how, sizeof how, "with complete recomputation of layers");
        }
    }
    hy_engine_pause_and_report(t->engine, error.text, how);
    return HY_OK;
}

hy_status hy_trainer_retry(hy_trainer *t, hy_status (*work)(hy_trainer *)) {
    hy_status status;
    while ((status = work(t)) == HY_ERR_MEMORY) HY_TRY(hy_engine_prepare_retry(t->engine, status));
    return status;
}

/* ---- what cannot be done again --------------------------------------------------------------- */

void hy_trainer_defer_error(hy_trainer *t, hy_status status) {
    if (t->status.deferred.status != HY_OK) return;
    hy_error_save(&t->status.deferred, status);
    t->engine->retries.in_a_row = 0;
    (void)hy_engine_settle_again(t->engine);
}

hy_status hy_trainer_deferred_error(hy_trainer *t) {
    /* The step is done: the next failure counts as the first in a row. */
    t->engine->retries.in_a_row = 0;
    hy_status status = hy_error_restore(&t->status.deferred);
    t->status.deferred.status = HY_OK;
    return status;
}

/* ---- the reserve ----------------------------------------------------------------------------- */

hy_status hy_trainer_take_reserve(hy_trainer *t) {
    t->status.reserve = malloc(RESERVE_BYTES);
    HY_FAIL_IF(!t->status.reserve, HY_ERR_MEMORY,
               "not enough memory to reserve some for the last save");
    memset(t->status.reserve, 1, RESERVE_BYTES); /* so that the system really provides it */
    return HY_OK;
}

void hy_trainer_give_reserve(hy_trainer *t) {
    free(t->status.reserve);
    t->status.reserve = NULL;
}

/* ---- giving up ------------------------------------------------------------------------------- */

/* Lists settings that would need less memory, if there is memory to compute them. */
static void add_advice(const hy_trainer *t, hy_text *out) {
    hy_advice list[HY_ADVICE_MAX];
    int32_t count = 0, added = 0;
    (void)hy_advise_less(&t->engine->request, t->engine->plan, list, &count);
    for (int32_t i = 0; i < count && added < LISTED_ADVICE; i++) {
        int64_t freed = list[i].device_bytes + list[i].host_bytes;
        if (freed <= 0) continue;
        bool is_batch = strcmp(list[i].key, "batch_size") == 0;
        hy_text_addf(out, " %s = %s%s would need %s less,", list[i].key, list[i].to,
                     is_batch ? " with more grad_accum_steps" : "",
                     hy_bytes_as_text((uint64_t)freed).text);
        added++;
    }
    hy_text_add(out, " closing other programs would free memory");
}

bool hy_trainer_lacks_data(const hy_trainer *t, hy_status status) {
    return status == HY_ERR_IO && t->data.set && hy_dataset_has_failed(t->data.set);
}

bool hy_trainer_is_interrupted(const hy_trainer *t, hy_status status) {
    return hy_trainer_lacks_data(t, status) || status == HY_STOPPED;
}

hy_status hy_trainer_give_up(hy_trainer *t, hy_status status) {
    hy_error error;
    hy_text advice = {0};
    bool lacks_data = hy_trainer_lacks_data(t, status);
    bool is_outside = t->provider->facts.saves_if_stopped && status != HY_ERR_NUMERIC;
    if (status != HY_ERR_MEMORY && !lacks_data && !is_outside) return status;
    hy_error_save(&error, status);
    if (lacks_data && hy_engine_settle(t->engine) != HY_OK) t->status.life = HY_LIFE_FAILED;
    /* One of several ranks cannot save alone. */
    bool is_together = !t->team || t->steering.all_ranks_end;
    bool can_be_saved =
        t->status.life == HY_LIFE_READY && t->folder[0] && is_together && hy_trainer_may_save(t);
    t->engine->retries.in_a_row = 0;
    hy_trainer_give_reserve(t);
    bool is_saved = can_be_saved && (t->status.saved_step == t->progress->step ||
                                     hy_trainer_retry(t, hy_trainer_write_checkpoint) == HY_OK);
    if (status == HY_ERR_MEMORY) add_advice(t, &advice);
    hy_trainer_record_event(t, &(hy_event_line){.event = "recovery", .text = error.text});
    (void)hy_record_close(t->record);
    (void)hy_error_restore(&error);
    (void)hy_fail_hint(status, "%s%s%s",
                       is_saved       ? "the run is saved: --resume continues it"
                       : t->folder[0] ? "the run was not saved: --resume continues from its newest "
                                        "checkpoint, if there is one"
                                      : "nothing was saved, because out is none",
                       status == HY_ERR_MEMORY ? ";" : "", hy_text_string(&advice));
    hy_text_free(&advice);
    return status;
}
