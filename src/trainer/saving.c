/* saving.c: checkpoints of a run. See trainer.h; record/state_files.h says what goes where. */
#include <stdio.h>

#include "formats/checkpoint.h"
#include "record/state_files.h"
#include "trainer/trainer.h"

/* Someone deleted the folder, or moved it away, while the run went on: it is made again. Another run that
 * has the name by now keeps it. */
static hy_status find_folder(hy_trainer *t) {
    hy_record *r = &t->record;
    if (!r->lock || hy_lock_is_there(r->lock)) return HY_OK;
    hy_say(t, HY_WARNING, "%s was deleted or moved while the run went on; it is made again",
           r->out);
    (void)hy_record_close(r); /* what it could write is gone with the folder */
    hy_lock_release(r->lock);
    r->lock = NULL;
    return hy_trainer_open_record(t);
}

hy_status hy_trainer_write_checkpoint(hy_trainer *t) {
    double begin = hy_clock();
    hy_checkpoint *checkpoint;
    if (!t->record.out[0]) {
        return hy_fail(HY_ERR_STATE,
                       "this run has no folder (out = none), so nothing can be saved");
    }
    HY_TRY(find_folder(t));
    /* A checkpoint must not outlive the metrics of its steps, and tensors must be written back. */
    HY_TRY(hy_record_flush(&t->record));
    HY_TRY(hy_update_finish(&t->engine));
    HY_TRY(hy_mover_await(&t->engine));
    HY_TRY(hy_engine_sync(&t->engine));
    HY_TRY(hy_checkpoint_begin(t->record.out, t->progress.step, &checkpoint));
    hy_text progress = {0};
    hy_progress_write(t, &progress);
    hy_status status =
        hy_checkpoint_write_state(&t->engine, checkpoint, &progress, t->record.config_text);
    hy_text_free(&progress);
    if (status != HY_OK) {
        hy_checkpoint_abort(checkpoint);
        return hy_fail_context(status, "checkpoint of step %lld", (long long)t->progress.step);
    }
    HY_TRY(hy_checkpoint_commit(checkpoint));
    t->fate.saved_step = t->progress.step;
    char path[HY_PATH_MAX + 64];
    snprintf(path, sizeof path, "%s/checkpoint-%lld", t->record.out, (long long)t->progress.step);
    if (t->observer.on_save) {
        t->observer.on_save(t->observer.user, path, hy_clock() - begin,
                            hy_rows_saved_bytes(&t->engine.rows, t->engine.plan.choice.is_aside));
    }
    /* One of a run that may have gone wrong takes no other's place. */
    if (t->progress.bound.above > 0) return HY_OK;
    return hy_checkpoint_prune(t->record.out, (int)t->settings.save.keep);
}
