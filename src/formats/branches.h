/* branches.h: which checkpoints of a run follow from each other.
 *
 * Who goes back to an older checkpoint leaves the later ones behind: they are whole, but the run
 * does not go on from them any more. RUN/branches.json says which branch is current and where each
 * one left its parent; it is replaced in one step. A checkpoint's manifest names the branch that
 * wrote it. Branch 0 is the one a run begins with, also in folders without such a file. */
#pragma once

#include <stdbool.h>

#include "hybrid_types.h"

#define HY_BRANCHES_FILE "branches.json"

typedef struct hy_branch {
    int64_t parent; /* -1: none: the run goes on from a checkpoint of another folder */
    int64_t from;   /* the last step that it shares with its parent */
} hy_branch;

typedef struct hy_branches {
    hy_branch *list; /* branch i + 1 is list[i]; parents come before their branches */
    size_t count;
    int64_t current;
} hy_branches;

/* Those of the folder of a run; without a file there is branch 0 alone. */
hy_status hy_branches_read(const char *run, hy_branches *out);
void hy_branches_free(hy_branches *branches);
/* Whether a checkpoint that `branch` wrote at `step` lies on the way to where the run is now. */
bool hy_branches_hold(const hy_branches *branches, int64_t branch, int64_t step);
/* Begins another branch and makes it the current one, in the file too. */
hy_status hy_branches_begin(const char *run, hy_branches *branches, hy_branch branch);
