/* checkpoint_names.h: what a checkpoint's folders are called, for those who write and read them.
 *
 * A finished one is checkpoint-N; whatever is not finished begins with a dot and is never read. */
#ifndef HY_FORMATS_CHECKPOINT_NAMES_H
#define HY_FORMATS_CHECKPOINT_NAMES_H

#include <limits.h>
#include <stdbool.h>

#include "hybrid_types.h"

#define HY_CHECKPOINT_FORMAT "hybrid-train checkpoint"
#define HY_CHECKPOINT_VERSION 1
#define HY_CHECKPOINT_MANIFEST "manifest.json"
#define HY_CHECKPOINT_PARTIAL ".partial"
#define HY_CHECKPOINT_OLD ".old"

/* Is `name` checkpoint-N with this suffix (".partial" and ".old" come with a dot in front too)? */
bool hy_checkpoint_parse_name(const char *name, const char *suffix, int64_t *step);
/* PARENT/checkpoint-N, or PARENT/.checkpoint-N.SUFFIX. */
hy_status hy_checkpoint_make_name(char path[PATH_MAX], const char *parent, int64_t step,
                                  const char *suffix);
/* A name that can stand in a manifest: of a file inside the folder, and not the manifest's own. */
bool hy_checkpoint_is_file_name(const char *name);
/* Gives back its name to every .old whose place is empty: a swap in two steps was interrupted. */
hy_status hy_checkpoint_restore_old(const char *parent);

#endif
