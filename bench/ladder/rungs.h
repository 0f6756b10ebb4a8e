/* rungs.h: the ladder: one way to save memory after the other, and what each came to.
 *
 * A rung has all settings of the rung it stands on and a few of its own. Most stand on the one
 * before; LoRA stands on "bf16", so that what it saves is beside training every parameter in the
 * same types; the strategies for Predict stand on "recompute all", because they move m and v in
 * fp32 on the device. The profiles stand on the ground: what they leave open, types among it, the
 * planner chooses. */
#ifndef LADDER_RUNGS_H
#define LADDER_RUNGS_H

#include "phase_run.h"

#define RUNG_PAIRS_MAX 24
#define RUNGS_MAX 32
#define RUNG_GROUND "" /* stands on no other rung */

typedef struct rung {
    const char *name;
    const char *stands_on; /* NULL: the rung before */
    bool is_exact;         /* changes no bit of the loss against the rung it stands on */
    const char *pairs[RUNG_PAIRS_MAX][2];
} rung;

typedef struct climbed {
    const rung *rung;
    int on; /* index of the rung it stands on; -1: on none */
    phase_run run;
} climbed;

typedef struct ladder {
    const char *model;
    climbed rungs[RUNGS_MAX];
    int count;
} ladder;

bool rung_is_profile(const rung *r);

/* Rung number i, or NULL past the last; and the index of the one it stands on. */
const rung *rung_at(int i);
int rung_below(int i);

/* The settings of rung i: those of the rungs below it first. */
hy_status rung_configure(hy_config *config, int i);

/* The most that was live in any phase. */
uint64_t climbed_most(const climbed *c, hy_place place);
/* The loss has the bits of the rung it stands on. */
bool climbed_has_same_loss(const ladder *l, const climbed *c);
/* Plans of Full and Predict within the bar, for every kind of memory. */
bool climbed_is_planned(const climbed *c);

/* ---- report.c ---- */

void ladder_print_heading(const ladder *l);
void ladder_print_rung(const ladder *l, int i);
hy_status ladder_json_write(const ladder *l, const char *path);

#endif
