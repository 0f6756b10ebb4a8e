/* variants.h: the variants of a run that ladder compares, and their results.
 *
 * A variant has the settings of the variant that it is based on and a few more. Most are based on
 * the one before. LoRA is based on "bf16", so that its savings compare with training every
 * parameter in the same types. The strategies for Predict are based on "recompute all", because
 * they move m and v in fp32 on the device. The profiles are based on none: the planner chooses what
 * they leave open, types included. */
#ifndef LADDER_VARIANTS_H
#define LADDER_VARIANTS_H

#include "phase_run.h"

#define VARIANT_PAIRS_MAX 24
#define VARIANTS_MAX 32
#define VARIANT_ALONE "" /* based on no other variant */

typedef struct variant {
    const char *name;
    const char *based_on; /* NULL: the variant before */
    bool is_exact;        /* changes no bit of the loss compared with the variant it is based on */
    const char *pairs[VARIANT_PAIRS_MAX][2];
} variant;

typedef struct result {
    const variant *variant;
    int base; /* index of the variant it is based on; -1: none */
    phase_run run;
} result;

typedef struct ladder {
    const char *model;
    result results[VARIANTS_MAX];
    int count;
} ladder;

bool variant_is_profile(const variant *v);

/* Variant number i, or NULL past the last; the index of the variant that it is based on. */
const variant *variant_at(int i);
int variant_base(int i);

/* The settings of variant i, after those of the variants it is based on. */
hy_status variant_configure(hy_config *config, int i);

/* The peak of all phases. */
uint64_t result_most(const result *c, hy_place place);
/* Whether the loss has the same bits as that of the variant it is based on. */
bool result_has_same_loss(const ladder *l, const result *c);
/* Whether the plans of Full and Predict are within the bar for every kind of memory. */
bool result_is_planned(const result *c);

/* ---- report.c ---- */

void ladder_print_heading(const ladder *l);
void ladder_print_row(const ladder *l, int i);
hy_status ladder_json_write(const ladder *l, const char *path);

#endif
