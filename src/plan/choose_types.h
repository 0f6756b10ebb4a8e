/* choose_types.h: chooses the number types of a run (state/types.h): a pure function of settings, precision
 * level and device. */
#pragma once

#include "config/settings.h"
#include "kernels/kernels.h"
#include "model/param_layout.h"
#include "state/types.h"

/* How small the state is where the settings leave it open: its types, and what is kept for prediction. The
 * planner chooses a level between the finest and the smallest (levels.c). */
typedef struct hy_precision_level {
    hy_dtype master, grads, optim;
    bool is_slow_8bit; /* what the predictor keeps has 8 bits; false: the type of master */
    bool predicts;     /* false: memory is short, and the run has no prediction */
    bool has_snapshot;
} hy_precision_level;
static inline hy_precision_level hy_precision_finest(void) {
    return (hy_precision_level){HY_F32, HY_F32, HY_F32, false, true, true};
}

/* What a custom model brings: the types of weights and gradients in its memory. */
typedef struct hy_custom_types {
    hy_dtype weights, grads;
    bool asks_each;  /* it gives the gradients of each micro-batch; else those of a whole step */
    bool sums_grads; /* they are added up in a row of ours: then, and with several ranks */
} hy_custom_types;

/* HY_ERR_INPUT names the settings that do not go together, or what the device lacks. */
hy_status hy_types_choose(const hy_settings *settings, const hy_precision_level *level,
                          const hy_device_facts *facts, hy_types *out);
/* As above, for a custom model: passes have the types of its weights. */
hy_status hy_types_choose_custom(const hy_settings *settings, const hy_precision_level *level,
                                 const hy_custom_types *custom, hy_types *out);

/* What a model that is only used computes in: bf16 on a card that has it, else fp32; or as asked. */
hy_dtype hy_types_for_use(const hy_settings *settings, const hy_device_facts *facts);
