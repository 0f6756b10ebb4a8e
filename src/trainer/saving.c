/* saving.c: checkpoints of a run. See trainer.h; record/state_files.h says what goes where. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "formats/checkpoint.h"
#include "record/state_files.h"
#include "trainer/advance.h"
#include "trainer/ranks.h"
#include "trainer/saving.h"
#include "trainer/trainer.h"

/* ---- room ------------------------------------------------------------------------------------ */

/* Names, hashes and small files come on top, and file systems count in blocks. */
static uint64_t with_margin(uint64_t bytes) { return bytes + bytes / 64 + (1u << 20); }

static uint64_t checkpoint_bytes(const hy_trainer *t) {
    return with_margin(hy_rows_saved_bytes(t->engine->state->rows,
                                           t->engine->plan->choice.prediction_is_disabled));
}

static uint64_t model_bytes(const hy_trainer *t) {
    hy_dtype dtype = hy_dtype_chosen(t->settings->save.model_dtype, t->engine->plan->types.master);
    uint64_t bytes = hy_dtype_bytes(dtype, t->engine->model->params.elements);
    return t->settings->save.save_model ? with_margin(bytes) : 0;
}

hy_status hy_trainer_check_disk(hy_trainer *t) {
    bool is_plan = t->status.life == HY_LIFE_PLAN;
    const char *asked = t->settings->out[0] ? t->settings->out : "runs";
    const char *out = is_plan ? asked : t->record->out;
    bool is_elsewhere = is_plan && t->settings->card[0]; /* a card of another machine */
    if (!out[0] || strcmp(out, "none") == 0 || is_elsewhere) return HY_OK;
    uint64_t room = hy_path_free(out), one = checkpoint_bytes(t), model = model_bytes(t);
    t->facts->save_free = room;
    t->facts->model_bytes = model;
    hy_bytes_text free_text = hy_bytes_as_text(room), one_text = hy_bytes_as_text(one);
    if (room < one) {
        bool only_model = model > 0 && room >= model;
        hy_status status =
            hy_fail(HY_ERR_INPUT,
                    "a checkpoint needs %s, but the disk of %s has only %s free%s; free some "
                    "space, or choose another --out",
                    one_text.text, out, free_text.text,
                    only_model ? ": only the model would be written, at the end" : "");
        /* An older run's files there may be removed for it. */
        if (!is_plan && (only_model || t->record->lock)) {
            hy_say(t, HY_WARNING, "%s", hy_error_message());
            return HY_OK;
        }
        return status;
    }
    if (!is_plan && room < 2 * one + model) {
        hy_say(t, HY_WARNING,
               "the disk of %s has %s free: one checkpoint of %s fits%s, but not two and the "
               "model; a checkpoint is removed only after a newer one is complete, so later ones "
               "may be skipped",
               out, free_text.text, one_text.text, room < one + model ? " without the model" : "");
    }
    return HY_OK;
}

/* Older checkpoints are removed to make room for the newest, the best one last; never the only
 * one. */
static hy_status make_room(hy_trainer *t) {
    const char *out = t->record->out;
    uint64_t need = checkpoint_bytes(t), room = hy_path_free(out), gained;
    const int64_t spared[] = {t->progress->best.saved_step, -1};
    for (int i = 0; i < 2 && room < need; i++) {
        HY_TRY(hy_checkpoint_prunable(out, 1, spared[i], &gained));
        if (gained == 0 || room + gained < need) continue;
        HY_TRY(hy_checkpoint_prune(out, 1, spared[i]));
        hy_say(t, HY_WARNING,
               "the disk of %s is nearly full: all checkpoints but the newest%s were "
               "removed",
               out, spared[i] >= 0 ? " and the best" : "");
        room = hy_path_free(out);
    }
    if (room >= need) return HY_OK;
    return hy_fail(HY_ERR_IO,
                   "checkpoint of step %lld: it needs %s, but the disk of %s has only %s free",
                   (long long)t->progress->step, hy_bytes_as_text(need).text, out,
                   hy_bytes_as_text(room).text);
}

/* A spike may pass: stopping in one loses nothing, and earlier saves stay. Steps without a
 * finite loss are not saved. */
bool hy_trainer_may_save(const hy_trainer *t) {
    const hy_progress *p = t->progress;
    return p->bound.above == 0 || (p->bound.above < HY_DIVERGED_STEPS && p->step > 0 &&
                                   isfinite(p->loss_tail[(p->step - 1) % HY_LOSS_TAIL]));
}

/* ---- saving ---------------------------------------------------------------------------------- */

/* Someone deleted or moved the folder during the run: it is created again. Anything that has the
 * name now keeps it, and the run uses another name. If only the lock was deleted, it is taken
 * again. */
static hy_status find_folder(hy_trainer *t) {
    hy_record *r = t->record;
    char name[HY_PATH_MAX];
    if (r->lock && hy_lock_is_there(r->lock)) return HY_OK;
    if (r->lock && hy_lock_folder_is_there(r->lock)) {
        hy_lock *again;
        HY_TRY(hy_lock_take(r->out, &again));
        hy_lock_release(r->lock);
        r->lock = again;
        return HY_OK;
    }
    snprintf(name, sizeof name, "%s", r->out);
    size_t length = strlen(name);
    while (length > 1 && name[length - 1] == '/') name[--length] = 0;
    for (int i = 2; hy_path_exists(r->out); i++) {
        HY_FAIL_IF(i > 1000, HY_ERR_IO, "%s was replaced during the run", name);
        int size = snprintf(r->out, sizeof r->out, "%s-%d", name, i);
        HY_FAIL_IF(size >= (int)sizeof r->out, HY_ERR_IO, "%s has a name that is too long", name);
    }
    hy_say(t, HY_WARNING, "%s was deleted or moved during the run; the run continues in %s", name,
           r->out);
    (void)hy_record_close(r); /* what it could write is gone with the folder */
    hy_lock_release(r->lock);
    r->lock = NULL;
    r->is_out_ours = false;
    return hy_trainer_remake_record(t);
}

/* ---- the best -------------------------------------------------------------------------------- */

/* Were the weights that are saved now validated, with a lower loss than earlier saves? */
static void weigh(hy_best *best, int64_t step, int64_t val_step) {
    if (val_step != step || !isfinite(best->last) || best->saved_loss <= best->last) return;
    best->saved_loss = best->last;
    best->saved_step = step;
}

/* OUT/best links to it. If links are not possible, or the name is taken, this is reported once.
 * A best checkpoint that was removed, or belongs to another branch or folder, no longer counts. */
static hy_status show_best(hy_trainer *t) {
    hy_best *best = &t->progress->best;
    bool is_there = false;
    if (best->saved_step >= 0) {
        HY_TRY(hy_checkpoint_is_current(t->record->out, best->saved_step, &is_there));
    }
    if (!is_there) best->saved_step = -1;
    if (!is_there) best->saved_loss = NAN;
    if (t->status.best_step == best->saved_step) return HY_OK;
    hy_status status = hy_checkpoint_put_best(t->record->out, best->saved_step);
    if (status == HY_OK) t->status.best_step = best->saved_step;
    if (status == HY_OK || t->status.is_best_told) return HY_OK;
    t->status.is_best_told = true;
    hy_say(t, HY_WARNING, "the best checkpoint is from step %lld: %s", (long long)best->saved_step,
           hy_error_message());
    return HY_OK;
}

static hy_status begin_checkpoint(hy_trainer *t, hy_checkpoint **out) {
    HY_TRY(find_folder(t));
    HY_TRY(make_room(t));
    /* Metrics are written before the checkpoint of their steps. */
    hy_record_flush(t->record);
    HY_TRY(hy_checkpoint_begin(t->record->out, t->progress->step, out));
    return t->team ? hy_checkpoint_make_files(t->engine, *out) : HY_OK;
}

/* With several ranks each writes its part. If one fails, the checkpoint fails on all. */
static hy_status write_parts(hy_trainer *t, hy_checkpoint *checkpoint, hy_status begun) {
    char folder[HY_PATH_MAX] = "";
    HY_TRY(hy_ranks_agree(t, begun));
    if (checkpoint) snprintf(folder, sizeof folder, "%s", hy_checkpoint_path(checkpoint, ""));
    HY_TRY(hy_control_share(t->team->control, folder, sizeof folder, 0));
    return hy_ranks_agree(t, hy_checkpoint_write_parts(t->engine, folder));
}

/* The others wait until it is whole. */
static hy_status follow(hy_trainer *t) {
    HY_TRY(write_parts(t, NULL, HY_OK));
    HY_TRY(hy_ranks_agree(t, HY_OK));
    t->status.saved_step = t->progress->step;
    return HY_OK;
}

/* Tensors go to where they are read from. Of several ranks one that fails here tells the others
 * at once: they may wait for its part of an update. */
static hy_status write_back(hy_trainer *t) {
    HY_TRY(hy_update_finish(t->engine));
    HY_TRY(hy_offload_await(t->engine->state));
    return hy_engine_sync(t->engine);
}

/* What is not a row: progress, settings, the provider's file. */
static hy_status write_rest(hy_trainer *t, hy_checkpoint *checkpoint) {
    hy_text progress = {0};
    hy_progress_write(t, &progress);
    hy_status status =
        hy_checkpoint_write_state(t->engine, checkpoint, &progress, t->record->config_text);
    const hy_provider_ops *ops = t->provider->ops;
    if (status == HY_OK && ops->save) status = ops->save(t->provider, checkpoint);
    hy_text_free(&progress);
    if (status == HY_OK) return hy_checkpoint_commit(checkpoint);
    hy_checkpoint_abort(checkpoint);
    return hy_fail_context(status, "checkpoint of step %lld", (long long)t->progress->step);
}

static void tell_saved(const hy_trainer *t, double begin) {
    char path[HY_PATH_MAX + 64];
    if (!t->observer.on_save) return;
    snprintf(path, sizeof path, "%s/checkpoint-%lld", t->record->out, (long long)t->progress->step);
    t->observer.on_save(t->observer.user, path, hy_clock() - begin,
                        hy_rows_saved_bytes(t->engine->state->rows,
                                            t->engine->plan->choice.prediction_is_disabled));
}

/* If linking or removing fails, the new checkpoint still counts. */
static void tidy(hy_trainer *t) {
    hy_status status = show_best(t);
    if (status == HY_OK) {
        status = hy_checkpoint_prune(t->record->out, (int)t->settings->save.keep,
                                     t->progress->best.saved_step);
    }
    if (status != HY_OK) {
        hy_say(t, HY_WARNING, "an older checkpoint could not be removed: %s", hy_error_message());
    }
}

/* One process alone, or rank 0. */
static hy_status lead(hy_trainer *t) {
    double begin = hy_clock();
    hy_checkpoint *checkpoint = NULL;
    hy_status status = begin_checkpoint(t, &checkpoint);
    if (t->team) status = write_parts(t, checkpoint, status);
    if (status != HY_OK) {
        if (checkpoint) hy_checkpoint_abort(checkpoint);
        return status;
    }
    hy_best before = t->progress->best;
    bool is_healthy = t->progress->bound.above == 0;
    if (is_healthy) weigh(&t->progress->best, t->progress->step, t->progress->val_step);
    status = write_rest(t, checkpoint);
    if (status != HY_OK) t->progress->best = before;
    HY_TRY(hy_ranks_agree(t, status));
    t->status.saved_step = t->progress->step;
    tell_saved(t, begin);
    if (is_healthy) tidy(t); /* a checkpoint of a run that may have diverged replaces no other */
    return HY_OK;
}

hy_status hy_trainer_write_checkpoint(hy_trainer *t) {
    if (!t->folder[0]) {
        return hy_fail(HY_ERR_STATE,
                       "this run has no folder (out = none), so nothing can be saved");
    }
    HY_TRY(hy_team_fail(t->team, write_back(t)));
    return hy_trainer_leads(t) ? lead(t) : follow(t);
}
