/* saving.c: writes checkpoints of a run, and makes room for them. See saving.h.
 *
 * record/state_files.h lists the files. An older checkpoint is removed only after a newer one is
 * complete; the best one is kept and linked as OUT/best. With several ranks each writes its
 * part, and rank 0 the rest. */
#include "trainer/saving.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "formats/checkpoint.h"
#include "record/state_files.h"
#include "trainer/progress_json.h"
#include "trainer/ranks.h"
#include "trainer/recording.h"

/* ---- room ------------------------------------------------------------------------------------ */

/* Adds room for names, hashes, small files and partly filled blocks. */
static uint64_t with_margin(uint64_t bytes) { return bytes + bytes / 64 + (1u << 20); }

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
    uint64_t room = hy_path_free(out), one = with_margin(hy_trainer_saved_bytes(t)),
             model = model_bytes(t);
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
        /* Files of an older run in this folder may be removed for it. */
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

/* Removes older checkpoints if the disk is full: first all but the newest and the best, then all
 * but the newest. */
static hy_status make_room(hy_trainer *t) {
    const char *out = t->record->out;
    uint64_t need = with_margin(hy_trainer_saved_bytes(t)), room = hy_path_free(out), gained;
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
    HY_FAIL_IF(room < need, HY_ERR_IO,
               "checkpoint of step %lld: it needs %s, but the disk of %s has only %s free",
               (long long)t->progress->step, hy_bytes_as_text(need).text, out,
               hy_bytes_as_text(room).text);
    return HY_OK;
}

/* The loss may be in a spike: such a step is saved if its loss is finite, until the run counts
 * as diverged. */
bool hy_trainer_may_save(const hy_trainer *t) {
    const hy_progress *p = t->progress;
    return p->bound.above == 0 || (p->bound.above < HY_DIVERGED_STEPS && p->step > 0 &&
                                   isfinite(p->loss_tail[(p->step - 1) % HY_LOSS_TAIL]));
}

/* ---- saving ---------------------------------------------------------------------------------- */

/* If someone deleted or moved the folder during the run, it is created again; if the name is
 * taken now, the run uses another name. If only the lock was deleted, it is taken again. */
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
    (void)hy_record_close(r); /* its files are gone with the folder */
    hy_lock_release(r->lock);
    r->lock = NULL;
    r->is_out_ours = false;
    /* The new folder has neither the resumed checkpoint nor the copy of the starting model. */
    t->resumed[0] = 0;
    t->settings->kept = (hy_kept_origin){0};
    return hy_trainer_open_record(t, true);
}

/* ---- the best -------------------------------------------------------------------------------- */

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

/* Writes everything but the rows: progress, settings, the provider's file. */
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

/* Links OUT/best to the best checkpoint. If links are not possible, or the name is taken, this is
 * reported once. A best checkpoint that was removed, or belongs to another branch or folder, no
 * longer counts. */
static hy_status link_best(hy_trainer *t) {
    hy_best *best = &t->progress->best;
    bool is_there = false;
    if (best->saved_step >= 0) {
        HY_TRY(hy_checkpoint_is_current(t->record->out, best->saved_step, &is_there));
    }
    if (!is_there) {
        best->saved_step = -1;
        best->saved_loss = NAN;
    }
    if (t->status.best_step == best->saved_step) return HY_OK;
    if (hy_checkpoint_put_best(t->record->out, best->saved_step) == HY_OK) {
        t->status.best_step = best->saved_step;
    } else if (!t->status.is_best_reported) {
        t->status.is_best_reported = true;
        hy_say(t, HY_WARNING, "%s/best cannot link to the best checkpoint, that of step %lld: %s",
               t->record->out, (long long)best->saved_step, hy_error_message());
    }
    return HY_OK;
}

/* Writes a checkpoint in a single process or on rank 0. */
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
    hy_best *best = &t->progress->best;
    /* The weights of this step were validated, with a lower loss than earlier saves. */
    bool is_best = is_healthy && t->progress->val_step == t->progress->step &&
                   isfinite(best->last) && !(best->saved_loss <= best->last);
    if (is_best) {
        best->saved_loss = best->last;
        best->saved_step = t->progress->step;
    }
    status = write_rest(t, checkpoint);
    if (status != HY_OK) *best = before;
    HY_TRY(hy_ranks_agree(t, status));
    t->status.saved_step = t->progress->step;
    if (t->observer.on_save) {
        char path[HY_PATH_MAX + 64];
        snprintf(path, sizeof path, "%s/checkpoint-%lld", t->record->out,
                 (long long)t->progress->step);
        t->observer.on_save(t->observer.user, path, hy_clock() - begin, hy_trainer_saved_bytes(t));
    }
    if (!is_healthy) return HY_OK; /* the run may have diverged: no other checkpoint is replaced */
    status = link_best(t);
    if (status == HY_OK) {
        status = hy_checkpoint_prune(t->record->out, (int)t->settings->save.keep, best->saved_step);
    }
    if (status != HY_OK) {
        hy_say(t, HY_WARNING, "an older checkpoint could not be removed: %s", hy_error_message());
    }
    return HY_OK;
}

/* Finishes pending updates and copies of the state. */
static hy_status write_back(hy_trainer *t) {
    HY_TRY(hy_update_finish(t->engine));
    HY_TRY(hy_offload_await(t->engine->state));
    return hy_engine_sync(t->engine);
}

hy_status hy_trainer_write_checkpoint(hy_trainer *t) {
    HY_FAIL_IF(!t->folder[0], HY_ERR_STATE,
               "this run has no folder (out = none), so nothing can be saved");
    /* A rank that fails here reports it at once: others may wait for its part of an update. */
    HY_TRY(hy_team_fail(t->team, write_back(t)));
    if (hy_trainer_leads(t)) return lead(t);
    HY_TRY(write_parts(t, NULL, HY_OK));
    HY_TRY(hy_ranks_agree(t, HY_OK)); /* the others wait until the checkpoint is complete */
    t->status.saved_step = t->progress->step;
    return HY_OK;
}
