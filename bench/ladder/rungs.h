/* rungs.h: the ladder: ways to save memory, one after the other, and their results.
 *
 * A rung has all settings of the rung it is based on and a few of its own. Most are based on the
 * one before. LoRA is based on "bf16", so that its savings compare with training every parameter in
 * the same types. The strategies for Predict are based on "recompute all", because they move m and
 * v in fp32 on the device. The profiles are based on none: the planner chooses what they leave
 * open, types included. */
#ifndef LADDER_RUNGS_H
#define LADDER_RUNGS_H

#include "phase_run.h"

#define RUNG_PAIRS_MAX 24
#define RUNGS_MAX 32
#define RUNG_GROUND "" /* based on no other rung */

typedef struct rung {
    const char *name;
    const char *stands_on; /* NULL: the rung before */
    bool is_exact;         /* changes no bit of the loss compared with the rung it is based on */
    const char *pairs[RUNG_PAIRS_MAX][2];
} rung;

typedef struct climbed {
    const rung *rung;
    int on; /* index of the rung it is based on; -1: none */
    phase_run run;
} climbed;

typedef struct ladder {
    const char *model;
    climbed rungs[RUNGS_MAX];
    int count;
} ladder;

bool rung_is_profile(const rung *r);

/* Rung number i, or NULL past the last; and the index of the rung it is based on. */
const rung *rung_at(int i);
int rung_below(int i);

/* The settings of rung i, after those of the rungs it is based on. */
hy_status rung_configure(hy_config *config, int i);

/* The peak of all phases. */
uint64_t climbed_most(const climbed *c, hy_place place);
/* Whether the loss has the same bits as that of the rung it is based on. */
bool climbed_has_same_loss(const ladder *l, const climbed *c);
/* Whether the plans of Full and Predict are within the bar for every kind of memory. */
bool climbed_is_planned(const climbed *c);

/* ---- report.c ---- */

void ladder_print_heading(const ladder *l);
void ladder_print_rung(const ladder *l, int i);
hy_status ladder_json_write(const ladder *l, const char *path);

#endif
