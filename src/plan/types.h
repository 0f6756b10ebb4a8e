/* types.h: the number types of a run: what is stored, what passes compute in, what gradients are summed
 * in, what the optimizer and the predictor keep. A pure function of settings and device. */
#pragma once

#include "config/settings.h"
#include "kernels/kernels.h"

typedef struct hy_types {
    hy_dtype of[HY_PHASE_COUNT]; /* what passes of a phase compute in */
    hy_dtype master;             /* of the weights that are updated: the truth */
    hy_dtype low;                /* of the rounded working copy */
    bool has_low;                /* there is one: a phase computes in another type than master's */
    hy_dtype grads, optim;
    hy_dtype slow; /* of slow weights, and what else a predictor keeps */
} hy_types;

/* HY_ERR_INPUT names the settings that do not go together, or what the device lacks. */
hy_status hy_types_choose(const hy_settings *settings, const hy_device_facts *facts,
                          bool has_predictor, hy_types *out);

/* What a model that is only used computes in: bf16 on a card that has it, else fp32; or as asked. */
hy_dtype hy_types_for_use(const hy_settings *settings, const hy_device_facts *facts);
