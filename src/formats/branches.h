/* branches.h: which checkpoints of a run follow each other.
 *
 * If a run is resumed from an older checkpoint, the later ones are abandoned: they are complete,
 * but the run no longer continues from them. RUN/branches.json says which branch is current and
 * where each one left its parent; it is replaced atomically. A checkpoint's manifest names its
 * branch. Branch 0 is the first one, also in folders without such a file. */
#pragma once

#include <stdbool.h>

#include "hybrid_types.h"

#define HY_BRANCHES_FILE "branches.json"

typedef struct hy_branch {
    int64_t parent; /* -1: none; the run continues from a checkpoint of another folder */
    int64_t from;   /* the last step in common with its parent */
} hy_branch;

typedef struct hy_branches {
    hy_branch *list; /* branch i + 1 is list[i]; parents come before their branches */
    size_t count;
    int64_t current;
} hy_branches;

/* The branches of a run folder; without a file only branch 0. */
hy_status hy_branches_read(const char *run, hy_branches *out);
void hy_branches_free(hy_branches *branches);
/* Does a checkpoint of `branch` at `step` belong to the history of the current branch? */
bool hy_branches_hold(const hy_branches *branches, int64_t branch, int64_t step);
/* Begins another branch, makes it current, and writes the file. */
hy_status hy_branches_begin(const char *run, hy_branches *branches, hy_branch branch);
