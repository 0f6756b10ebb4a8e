/* groups.h: what single parameters have instead of the run's values, said by patterns of their names.
 *
 * The text is entries with semicolons between them: "embed.*: lr_scale 0.1, decay 0; blocks.0.*: frozen".
 * An entry has names as hy_params_match takes them, a colon (the last one of the entry: names may have
 * others), and what they have, with commas between: lr_scale X (of the run's rate), decay X (or
 * weight_decay X: instead of the run's, on vectors too), optimizer NAME, frozen. Of entries that say the same about a parameter the
 * later one counts. No text, or blanks alone, is no group. */
#pragma once

#include "base/text.h"
#include "model/param_names.h"

#define HY_GROUP_TEXT 512 /* of a text at most, its zero included */

typedef struct hy_group {
    int32_t number;            /* from 1 on, for messages */
    char names[HY_GROUP_TEXT]; /* of its parameters */
    /* What it says; the values that are not said mean nothing. */
    bool has_lr_scale, has_decay, has_optimizer, has_frozen;
    double lr_scale, decay;
    int32_t optimizer; /* hy_optimizer_id */
    bool is_frozen;
} hy_group;

/* The entry at *at, which is then the next one, and false in *is_there behind the last. *out has its number
 * and counts on: zero it before the first. HY_ERR_INPUT names the entry, the word and what is accepted. */
hy_status hy_groups_next(const char **at, hy_group *out, bool *is_there);

/* Whether all entries can be read. */
hy_status hy_groups_check(const char *text);

/* Gives parameters what the groups say. Those that are frozen already stay so. HY_ERR_INPUT where names
 * match nothing, where nothing would be trained, or where a guest's parameter would be frozen; parameters may
 * then be changed in part. */
hy_status hy_groups_apply(const char *text, hy_params *params);

/* "lr_scale 0.1, decay 0", as it could be written. */
void hy_group_describe(const hy_group *group, hy_text *out);
/* How many parameters it covers, and their elements. */
hy_status hy_group_count(const hy_group *group, const hy_params *params, int64_t *parameters,
                         int64_t *elements);
