/* checkpoint.h: a folder that exists complete or not at all.
 *
 * Files are written into OUT/.checkpoint-N.partial, listed with size and hash in manifest.json
 * and synced. Then the folder is renamed to OUT/checkpoint-N, and OUT is synced. An existing
 * folder of that name is exchanged and then removed; if the file system cannot exchange, it
 * becomes .checkpoint-N.old meanwhile. The next begin cleans up after a crash: it removes a
 * .partial folder and gives an .old folder its name back if that is free. Reading first checks
 * the manifest: a missing, short or changed file is reported with the reason. The trainer
 * decides what the files mean. */
#pragma once

#include <stdbool.h>

#include "hybrid_types.h"

typedef struct hy_checkpoint hy_checkpoint;

/* Begins a checkpoint of step `step` (at least 0) in folder `parent` (which exists). */
hy_status hy_checkpoint_begin(const char *parent, int64_t step, hy_checkpoint **out);
/* Full path for a file of this name inside the partial folder; valid until the next call. */
const char *hy_checkpoint_path(hy_checkpoint *c, const char *name);
/* Adds a finished, synced file to the manifest. The name has no slashes. */
hy_status hy_checkpoint_add(hy_checkpoint *c, const char *name, uint64_t hash, uint64_t size);
/* Writes and adds a small file. */
hy_status hy_checkpoint_put(hy_checkpoint *c, const char *name, const void *data, size_t size);
/* Writes the manifest, syncs, renames. On failure the partial folder is removed and the previous
 * checkpoint stays. Frees c in any case. */
hy_status hy_checkpoint_commit(hy_checkpoint *c);
void hy_checkpoint_abort(hy_checkpoint *c); /* removes the partial folder */

/* Checks a checkpoint folder against its manifest. with_hashes: reads every byte. */
hy_status hy_checkpoint_verify(const char *path, bool with_hashes);
/* The newest checkpoint of the current branch (branches.h) in `parent` that verifies (with
 * hashes), its step and path. Damaged ones are skipped; `notes` (a hy_text, may be NULL) gets a
 * line for each with file and reason. HY_ERR_INPUT if there is none. */
struct hy_text;
hy_status hy_checkpoint_latest(const char *parent, char *path, size_t path_size, int64_t *step,
                               struct hy_text *notes);
/* The newest one with correct file sizes, for display: nothing is hashed or repaired. */
hy_status hy_checkpoint_peek(const char *parent, char *path, size_t path_size);
/* The newest one or none: for callers that must not get an older one silently. */
hy_status hy_checkpoint_newest(const char *parent, char *path, size_t path_size);
/* Removes all but the newest `keep` checkpoints of the current branch (keep 0: remove nothing). The
 * one of step `spared` stays (-1: none), and so does the one written last: after a resume from an
 * older step it may not be the newest. Checkpoints of abandoned branches neither count nor are
 * removed. */
hy_status hy_checkpoint_prune(const char *parent, int keep, int64_t spared);
/* The bytes on the disk that hy_checkpoint_prune would free. */
hy_status hy_checkpoint_prunable(const char *parent, int keep, int64_t spared, uint64_t *bytes);

/* Whether the current branch has a checkpoint of this step. */
hy_status hy_checkpoint_is_current(const char *parent, int64_t step, bool *out);

/* PARENT/best, a link to the checkpoint with the lowest held-out loss; it can be used as a
 * checkpoint's name. Step -1: there is no such checkpoint, and an old link is removed. Any
 * other file of that name stays. */
#define HY_BEST "best"
hy_status hy_checkpoint_put_best(const char *parent, int64_t step);
/* The run in `parent` continues from checkpoint `from` of this step. If the current branch has
 * later ones, or `from` belongs to another branch, this begins a new branch; `left` gets the
 * names of the abandoned checkpoints. They stay, and are renamed when their step is saved again. */
hy_status hy_checkpoint_go_on(const char *parent, const char *from, int64_t step,
                              struct hy_text *left);
