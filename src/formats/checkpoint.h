/* checkpoint.h: a folder that exists whole or not at all.
 *
 * Files are written into OUT/.checkpoint-N.partial, listed with size and hash in manifest.json,
 * synced, and the folder is renamed to OUT/checkpoint-N; OUT is synced. A folder of that name that
 * is there already is exchanged and then removed; where the file system cannot exchange, it waits
 * under .checkpoint-N.old while the new one takes its name. What a crash leaves behind is cleared
 * by the next begin: a .partial is removed, a .old takes its name back if nothing else has it.
 * Reading starts with a check of the manifest: a file that is missing, short or changed is named
 * with the reason. What the files mean is the trainer's business. */
#pragma once

#include <stdbool.h>

#include "hybrid_types.h"

typedef struct hy_checkpoint hy_checkpoint;

/* Begins a checkpoint of step `step` (at least 0) in folder `parent` (which exists). */
hy_status hy_checkpoint_begin(const char *parent, int64_t step, hy_checkpoint **out);
/* Full path for a file of this name inside the partial folder; valid until the next call. */
const char *hy_checkpoint_path(hy_checkpoint *c, const char *name);
/* Tells the manifest about a finished, synced file. The name is a plain one, without slashes. */
hy_status hy_checkpoint_add(hy_checkpoint *c, const char *name, uint64_t hash, uint64_t size);
/* Writes and adds a small file in one go. */
hy_status hy_checkpoint_put(hy_checkpoint *c, const char *name, const void *data, size_t size);
/* Writes the manifest, syncs, renames. On failure the partial folder is removed and the previous
 * checkpoint is untouched. Frees c in any case. */
hy_status hy_checkpoint_commit(hy_checkpoint *c);
void hy_checkpoint_abort(hy_checkpoint *c); /* removes the partial folder */

/* Checks a checkpoint folder against its manifest. with_hashes: reads every byte. */
hy_status hy_checkpoint_verify(const char *path, bool with_hashes);
/* The newest checkpoint of the current branch (branches.h) in `parent` that verifies (with hashes),
 * its step and path. Damaged ones are skipped; `notes` (may be NULL, a hy_text) gets a line for
 * each with file and reason. HY_ERR_INPUT when there is none. */
struct hy_text;
hy_status hy_checkpoint_latest(const char *parent, char *path, size_t path_size, int64_t *step,
                               struct hy_text *notes);
/* The newest one whose files have their sizes, for a look: nothing is hashed and nothing put right.
 * */
hy_status hy_checkpoint_peek(const char *parent, char *path, size_t path_size);
/* The newest one or none: who must not be handed an older one in silence. */
hy_status hy_checkpoint_newest(const char *parent, char *path, size_t path_size);
/* Removes all but the newest `keep` checkpoints of the current branch by step (keep 0: remove
 * nothing); those of branches that were left neither count nor go. The one written last stays in
 * any case: after a resume from an older step it may not be the newest. */
hy_status hy_checkpoint_prune(const char *parent, int keep);
/* The same, but the one of step `spared` stays as well (-1: none). */
hy_status hy_checkpoint_prune_but(const char *parent, int keep, int64_t spared);
/* Bytes of those that it would remove. */
hy_status hy_checkpoint_prunable(const char *parent, int keep, int64_t spared, uint64_t *bytes);

/* Whether there is one of this step, and on the current branch. */
hy_status hy_checkpoint_is_current(const char *parent, int64_t step, bool *out);

/* PARENT/best, a link to the checkpoint with the lowest held-out loss: it can be named wherever a
 * checkpoint can. Step -1: there is none any more, and a link to a checkpoint is removed: what has
 * that name now, or gets it later, may be another's. */
#define HY_BEST "best"
hy_status hy_checkpoint_put_best(const char *parent, int64_t step);
/* The run in `parent` goes on from checkpoint `from` of this step. Where later ones of the current
 * branch are there, or it is of another, that begins a branch of its own; `left` gets the names of
 * those that the run does not go on from any more. They stay, under another name once their step is
 * saved again. */
hy_status hy_checkpoint_go_on(const char *parent, const char *from, int64_t step,
                              struct hy_text *left);
