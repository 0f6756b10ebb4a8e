/* recovery.c: what becomes of a run whose memory runs out. See trainer.h.
 *
 * Memory is taken before the first step, so a shortage later comes from outside: a driver that cannot load
 * what it needs, another program, the machine. The step that met it has changed nothing yet, or knows how
 * far its update has come, so it is done again: first as it was, then with smaller micro-batches, then
 * with everything recomputed. After too many in a row the run saves itself and says what to change. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "trainer/memory_plan.h"

#define RESERVE_BYTES ((size_t)256 << 10)
#define FIRST_PAUSE_MS 20 /* whoever took the memory may give it back at once */

/* ---- order ------------------------------------------------------------------------------------- */

static void list_stores(hy_trainer *t, hy_store *out[11]) {
    hy_store *stores[11] = {
        hy_store_of(&t->engine, HY_ROW_MASTER),    hy_store_of(&t->engine, HY_ROW_WORKING),
        hy_store_of(&t->engine, HY_ROW_GRADS),     hy_store_of(&t->engine, HY_ROW_OPTIM),
        hy_store_of(&t->engine, HY_ROW_OPTIM + 1), hy_store_of(&t->engine, HY_ROW_SLOW + 0),
        hy_store_of(&t->engine, HY_ROW_SLOW + 1),  hy_store_of(&t->engine, HY_ROW_AVERAGE),
        hy_store_of(&t->engine, HY_ROW_CANDIDATE), &t->engine.work.activations,
        hy_store_of(&t->engine, HY_ROW_SNAPSHOT)};
    memcpy(out, stores, sizeof stores);
}

/* Streams are idle and hold no failure, nobody holds a unit, what was changed is written back. */
static hy_status put_in_order(hy_trainer *t) {
    hy_stream *streams[] = {t->engine.compute, t->engine.copies, t->engine.returns};
    hy_store *stores[11];
    list_stores(t, stores);
    for (int i = 0; i < 3; i++) (void)t->engine.backend->stream_sync(streams[i]); /* told already */
    for (int i = 0; i < 11; i++) hy_store_abandon(stores[i]);
    for (int i = 0; i < 11; i++) HY_TRY(hy_store_settle(stores[i]));
    return HY_OK;
}

static void pause_a_moment(int times) {
    long ms = (long)FIRST_PAUSE_MS * times;
    struct timespec length = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    nanosleep(&length, NULL);
}

/* Writing changes back needs launches, too. */
static hy_status insist_on_order(hy_trainer *t) {
    hy_status status;
    while ((status = put_in_order(t)) == HY_ERR_MEMORY &&
           t->life.shortages < t->settings.memory.recovery_tries) {
        pause_a_moment(++t->life.shortages);
    }
    return status;
}

/* ---- less -------------------------------------------------------------------------------------- */

/* The next cheaper way to work; "" when there is none. */
static hy_status use_less(hy_trainer *t, char *what, size_t size) {
    const hy_settings *s = &t->settings;
    int64_t smaller = hy_smaller_batch(t);
    what[0] = 0;
    hy_trainer_be_patient(t);
    if (smaller > 0) {
        HY_TRY(hy_trainer_resize(t, smaller, "memory ran out"));
        snprintf(what, size, "with micro-batches of %lld", (long long)s->train.batch_size);
        return HY_OK;
    }
    if (hy_recomputes_all(s)) return HY_OK;
    HY_TRY(hy_trainer_recompute_all(t, "memory ran out"));
    snprintf(what, size, "with all of a layer recomputed");
    return HY_OK;
}

/* ---- surviving --------------------------------------------------------------------------------- */

static void tell(hy_trainer *t, const char *message, const char *what) {
    char text[2 * HY_ERROR_MESSAGE_MAX];
    snprintf(text, sizeof text, "memory ran out in step %lld (%s); it is done again %s",
             (long long)t->progress.step + 1, message, what);
    hy_say(t, HY_WARNING, "%s", text);
    hy_trainer_record_event(t, &(hy_event_line){.event = "recovery", .text = text});
}

hy_status hy_trainer_survive(hy_trainer *t, hy_status status, hy_survival how) {
    char message[HY_ERROR_MESSAGE_MAX], what[80] = "as it was";
    snprintf(message, sizeof message, "%s", hy_error_message());
    if (status != HY_ERR_MEMORY || t->engine.work.is_gone) return status;
    if (t->life.shortages >= t->settings.memory.recovery_tries) {
        (void)put_in_order(t);
        return hy_fail(status, "%s", message);
    }
    t->life.shortages++;
    t->life.recoveries++;
    HY_TRY(insist_on_order(t));
    if (how == HY_WITH_LESS && t->life.shortages > 1) HY_TRY(use_less(t, what, sizeof what));
    if (!what[0]) snprintf(what, sizeof what, "as it was: there is nothing that would need less");
    pause_a_moment(t->life.shortages);
    tell(t, message, what);
    return HY_OK;
}

hy_status hy_trainer_insist(hy_trainer *t, hy_status (*work)(hy_trainer *)) {
    hy_status status;
    while ((status = work(t)) == HY_ERR_MEMORY) HY_TRY(hy_trainer_survive(t, status, HY_AS_IT_IS));
    return status;
}

void hy_trainer_recovered(hy_trainer *t) { t->life.shortages = 0; }

/* ---- what cannot be done again ------------------------------------------------------------------- */

void hy_trainer_give_up_later(hy_trainer *t) {
    if (t->life.deferred[0]) return;
    snprintf(t->life.deferred, sizeof t->life.deferred, "%s", hy_error_message());
    t->life.shortages = 0;
    (void)insist_on_order(t);
}

hy_status hy_trainer_end_step(hy_trainer *t) {
    char message[HY_ERROR_MESSAGE_MAX];
    hy_trainer_recovered(t);
    if (!t->life.deferred[0]) return HY_OK;
    memcpy(message, t->life.deferred, sizeof message);
    t->life.deferred[0] = 0;
    return hy_fail(HY_ERR_MEMORY, "%s", message);
}

/* ---- the reserve -------------------------------------------------------------------------------- */

hy_status hy_trainer_take_reserve(hy_trainer *t) {
    t->life.reserve = malloc(RESERVE_BYTES);
    if (!t->life.reserve) return hy_fail(HY_ERR_MEMORY, "no memory to keep back for the last save");
    memset(t->life.reserve, 1, RESERVE_BYTES); /* so that it is really there */
    return HY_OK;
}

void hy_trainer_give_reserve(hy_trainer *t) {
    free(t->life.reserve);
    t->life.reserve = NULL;
}

/* ---- giving up --------------------------------------------------------------------------------- */

static void add_advice(const hy_trainer *t, hy_text *out) {
    const hy_settings *s = &t->settings;
    if (s->train.batch_size > 1) {
        hy_text_addf(out, " --batch-size %lld --grad-accum-steps %lld,",
                     (long long)s->train.batch_size / 2, (long long)s->train.grad_accum_steps * 2);
    }
    if (s->train.recompute != HY_RECOMPUTE_ALL) hy_text_add(out, " --recompute all,");
    if (s->phases.predictor != HY_PREDICTOR_NONE) hy_text_add(out, " --predictor none,");
    hy_text_add(out, " --optim-dtype 8bit or another program closed would leave more room");
}

hy_status hy_trainer_give_up(hy_trainer *t, hy_status status) {
    char message[HY_ERROR_MESSAGE_MAX];
    hy_text advice = {0};
    if (status != HY_ERR_MEMORY) return status;
    snprintf(message, sizeof message, "%s", hy_error_message());
    bool can_be_saved = t->life.is_state_whole && !t->life.failure[0] && t->record.out[0];
    t->life.shortages = 0;
    hy_trainer_give_reserve(t);
    bool is_saved = can_be_saved && (t->saved_step == t->progress.step ||
                                     hy_trainer_insist(t, hy_trainer_write_checkpoint) == HY_OK);
    add_advice(t, &advice);
    hy_trainer_record_event(t, &(hy_event_line){.event = "recovery", .text = message});
    (void)hy_record_close(&t->record);
    status = hy_fail(HY_ERR_MEMORY, "%s; %s;%s", message,
                     is_saved           ? "the run is saved: --resume goes on with it"
                     : t->record.out[0] ? "what was saved before is untouched"
                                        : "nothing was saved, because out is none",
                     hy_text_string(&advice));
    hy_text_free(&advice);
    return status;
}
