/* recipe.h: replaces `auto` in optimizer and schedule.
 *
 * Both follow from measurements (docs/performance.md, "Which optimizer, which schedule"). From
 * scratch, Muon reaches a loss in half of AdamW's steps, which pays if its matmuls are a small part
 * of a step; a constant rate with a linear decay to zero at the end beats a cosine with either.
 * Weights that AdamW has trained continue with AdamW and a cosine. */
#pragma once

#include "config/settings.h"

typedef struct hy_recipe {
    const char *optimizer, *schedule; /* names of values */
} hy_recipe;

/* A custom model or loop (is_own) gets AdamW and a cosine, because nothing was measured there. The
 * optimizer is computed only with wants_optimizer. Fails only if memory is short. */
hy_status hy_recipe_of(const hy_settings *settings, bool is_own, bool wants_optimizer,
                       hy_recipe *out);
