/* groups.h: settings for single parameters, selected by patterns of their names.
 *
 * The text is a list of entries separated by semicolons: "embed.*: lr_scale 0.1, decay 0;
 * blocks.0.*: frozen". An entry has names as in hy_params_match, a colon (the last one of the
 * entry, since names may contain others), and settings separated by commas: lr_scale X (a factor of
 * the run's rate), decay X (or weight_decay X: replaces the run's, also for vectors), optimizer
 * NAME, frozen; place P for all state of whole units, or for one class of it (weights_place P,
 * ...); optim_dtype T, frozen_dtype T, precision T. If several entries set the same for a
 * parameter, the last one counts. An empty text, or only blanks, has no groups. */
#pragma once

#include "base/text.h"
#include "model/param_names.h"

#define HY_GROUP_TEXT 512 /* limit for a text, including its zero */

/* The number types that a group can set. */
enum { HY_GROUP_OPTIM, HY_GROUP_FROZEN, HY_GROUP_PRECISION, HY_GROUP_TYPES };

typedef struct hy_group {
    int32_t number;            /* from 1, for messages */
    char names[HY_GROUP_TEXT]; /* patterns of its parameters */
    /* Which settings it has; the values of others are undefined. */
    bool has_lr_scale, has_decay, has_optimizer, has_frozen;
    double lr_scale, decay;
    int32_t optimizer; /* hy_optimizer_id */
    bool is_frozen;
    hy_place place, places[HY_PARAM_PLACES]; /* of all classes, of each; 0: not set */
    int32_t types[HY_GROUP_TYPES];           /* 1 + hy_dtype; 0: not set */
} hy_group;

/* Reads the entry at *at and moves *at to the next; *is_there is false after the last. *out counts
 * the entries: zero it before the first. HY_ERR_INPUT names the entry, the word and what is
 * accepted. */
hy_status hy_groups_next(const char **at, hy_group *out, bool *is_there);

/* Checks that all entries can be read. */
hy_status hy_groups_check(const char *text);

/* Applies the groups to parameters. Parameters that are already frozen stay frozen. HY_ERR_INPUT:
 * names match nothing, nothing would be trained, a value is not possible for a parameter, a unit
 * would have several places, or a custom model's parameter would get a value that only ours can
 * have; some parameters may be changed then. */
hy_status hy_groups_apply(const char *text, hy_params *params);

/* The settings as they could be written: "lr_scale 0.1, decay 0". */
void hy_group_describe(const hy_group *group, hy_text *out);
/* The number of parameters it covers, and their elements. */
hy_status hy_group_count(const hy_group *group, const hy_params *params, int64_t *parameters,
                         int64_t *elements);
