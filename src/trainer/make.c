/* make.c: a trainer from a configuration, tried again with less where memory is short. See trainer.h.
 *
 * What the system says is free and what it then gives are two things. A run that cannot have what was
 * planned is torn down and built again with a plan that needs less, a few times. A run that goes on while
 * others take its memory does the same from a checkpoint: places and recomputation change no bit. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "trainer/trainer.h"

/* What earlier tries have taught. */
typedef struct lesson {
    uint64_t device_cap, host_cap;
    bool is_out_ours; /* the folder was made by one of them */
} lesson;

static hy_status try_to_build(hy_trainer *t, const hy_config *config, const hy_observer *observer,
                              bool is_plan, const lesson *known) {
    *t = (hy_trainer){
        .settings = *hy_config_settings(config),
        .fate.life = is_plan ? HY_LIFE_PLAN : HY_LIFE_READY,
        .ngram_loss = NAN,
        .raw_val_loss = NAN,
        .engine.subject = {.device_cap = known->device_cap, .host_cap = known->host_cap},
        .record.is_out_ours = known->is_out_ours};
    if (observer) t->observer = *observer;
    t->record.observer = t->observer;
    HY_TRY(hy_config_print(config, &t->record.config_text));
    t->record.command = strdup(hy_config_command(config));
    if (!t->record.command) return hy_fail(HY_ERR_MEMORY, "no memory for the command's text");
    return hy_trainer_build(t);
}

/* A plan whose memory was refused was too large, whatever the system said: the next one gets less of what
 * was refused. Where nothing of the plan was refused, it was bad luck. */
static void learn(const hy_trainer *t, lesson *known) {
    uint64_t device = t->facts.vram_bytes, host = t->facts.host_pinned_bytes;
    bool is_gpu = t->engine.backend && t->engine.backend->facts.is_gpu;
    known->is_out_ours |= t->record.is_out_ours;
    if (t->engine.ledger.refused == HY_NOWHERE) return;
    if (!is_gpu) {
        known->host_cap = (device + host) / 8 * 7;
    } else if (t->engine.ledger.refused == HY_DEVICE) {
        known->device_cap = device / 8 * 7;
    } else {
        known->host_cap = host / 8 * 7;
    }
}

static void tell_next_try(const hy_trainer *t, const char *message) {
    bool is_smaller = t->engine.ledger.refused != HY_NOWHERE;
    hy_say(t, HY_WARNING, "%s; trying again with %s", message,
           is_smaller ? "a plan that needs less" : "the same plan");
}

hy_status hy_trainer_make(const hy_config *config, const hy_observer *observer, bool is_plan,
                          hy_trainer **out) {
    *out = NULL;
    hy_trainer *t = calloc(1, sizeof *t);
    if (!t) return hy_fail(HY_ERR_MEMORY, "no memory for a trainer");
    lesson known = {0};
    char first[HY_ERROR_MESSAGE_MAX] = "";
    int64_t tries = is_plan ? 0 : hy_config_settings(config)->memory.recovery_tries;
    hy_status status;
    while ((status = try_to_build(t, config, observer, is_plan, &known)) != HY_OK) {
        bool does_not_fit = first[0] && status == HY_ERR_INPUT; /* nothing needs so little */
        if (does_not_fit) status = hy_fail(HY_ERR_MEMORY, "%s", first);
        if (status != HY_ERR_MEMORY || tries-- == 0) {
            hy_trainer_destroy(t);
            return status;
        }
        snprintf(first, sizeof first, "%s", hy_error_message());
        if (does_not_fit) {
            known.device_cap = known.host_cap = 0; /* then as it was: it may be free by now */
        } else {
            tell_next_try(t, first);
            learn(t, &known);
        }
        hy_trainer_tear_down(t);
    }
    *out = t;
    return HY_OK;
}

/* ---- a cheaper plan in mid-run ----------------------------------------------------------------- */

/* What outlives the old plan. */
static hy_trainer begin_anew(hy_trainer *old, uint64_t device_cap, uint64_t host_cap) {
    hy_trainer fresh = {.settings = old->settings,
                        .observer = old->observer,
                        .record = {.observer = old->observer,
                                   .config_text = old->record.config_text,
                                   .command = old->record.command,
                                   .is_out_ours = true},
                        .ngram_loss = NAN,
                        .raw_val_loss = NAN,
                        .engine.subject = {.device_cap = device_cap, .host_cap = host_cap},
                        .engine.retries.count = old->engine.retries.count,
                        .fate.batch_changes = old->fate.batch_changes,
                        .fate.plan_changes = old->fate.plan_changes,
                        .steering = old->steering};
    /* A try that failed early has no folder yet: it is asked for by its settings. */
    const char *out = old->record.out[0] ? old->record.out : old->settings.out;
    snprintf(fresh.settings.out, sizeof fresh.settings.out, "%.*s", HY_TEXT_MAX - 1, out);
    snprintf(fresh.settings.save.resume, HY_TEXT_MAX, "%.*s", HY_TEXT_MAX - 1, out);
    snprintf(fresh.record.out, sizeof fresh.record.out, "%s", out);
    old->record.config_text = old->record.command = NULL;
    return fresh;
}

hy_status hy_trainer_replan(hy_trainer *t, uint64_t device_cap, uint64_t host_cap,
                            const char *reason) {
    char text[HY_ERROR_MESSAGE_MAX];
    HY_TRY(hy_trainer_retry(t, hy_trainer_write_checkpoint));
    hy_status status;
    int64_t tries = t->settings.memory.recovery_tries;
    do {
        hy_trainer fresh = begin_anew(t, device_cap, host_cap);
        hy_trainer_tear_down(t);
        /* Asked for at any time until here: saving and giving back may take a while. */
        atomic_store(&fresh.fate.stop_requested, atomic_load(&t->fate.stop_requested));
        *t = fresh;
        status = hy_trainer_build(t);
    } while (status == HY_ERR_MEMORY && tries-- > 0);
    if (status != HY_OK) {
        t->fate.life = HY_LIFE_DEAD;
        snprintf(t->fate.failure, sizeof t->fate.failure, "%s", hy_error_message());
        return hy_fail(status,
                       "%s: there is no memory for a plan that needs less (%s); the run is saved: "
                       "--resume goes on with it",
                       reason, t->fate.failure);
    }
    t->fate.saved_step = t->progress.step;
    t->fate.plan_changes++;
    snprintf(text, sizeof text, "%s: a plan that needs less, from the checkpoint at step %lld",
             reason, (long long)t->progress.step);
    hy_say(t, HY_WARNING, "%s", text);
    hy_trainer_record_event(t, &(hy_event_line){.event = "plan", .text = text});
    return HY_OK;
}
