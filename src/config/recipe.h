/* recipe.h: what `auto` stands for in optimizer and schedule.
 *
 * Both follow from measurements (docs/performance.md, "Which optimizer, which schedule"): from
 * scratch, Muon reaches a loss in half of AdamW's steps, which pays where its matmuls are a small
 * part of a step, and a rate that stays and then falls along a line to zero beats a cosine with
 * either. Weights that AdamW has trained go on with AdamW and a cosine. */
#pragma once

#include "config/settings.h"

typedef struct hy_recipe {
    const char *optimizer, *schedule; /* words of their settings */
} hy_recipe;

/* For a model or loop of the caller's own (is_own) nothing was measured: AdamW and a cosine.
 * Without wants_optimizer the optimizer is not looked for. Fails only when there is no memory. */
hy_status hy_recipe_of(const hy_settings *settings, bool is_own, bool wants_optimizer,
                       hy_recipe *out);
