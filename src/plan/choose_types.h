/* choose_types.h: chooses the number types of a run (state/types.h): a pure function of
 * settings, precision level and device. */
#pragma once

#include "config/settings.h"
#include "kernels/kernels.h"
#include "model/param_layout.h"
#include "state/types.h"

/* How small the state is where the settings leave it open: its types, and what is kept for
 * prediction. The planner chooses a level between the finest and the smallest (levels.c). */
typedef struct hy_precision_level {
    hy_dtype master, grads, optim;
    bool is_predictor_8bit; /* the predictor's state has 8 bits; false: the type of master */
    bool predicts;          /* false: memory is short, so the run never predicts */
    bool has_snapshot;
} hy_precision_level;
static inline hy_precision_level hy_precision_finest(void) {
    return (hy_precision_level){HY_F32, HY_F32, HY_F32, false, true, true};
}

/* The types of weights and gradients in a custom model's memory. */
typedef struct hy_custom_types {
    hy_dtype weights, grads;
    bool keeps_weights; /* our own rows have weights and gradients; the caller uses them in units */
    bool asks_each;     /* the caller returns gradients per micro-batch; else per step */
    bool sums_grads;    /* our own row sums the gradients: if asks_each, and with several ranks */
    /* Device bytes of the caller's own passes (-1: not known yet); bytes that it had allocated of
     * them when the card's free memory was read; the first comes from a checkpoint. */
    int64_t caller_bytes;
    uint64_t caller_held;
    bool is_caller_stored;
} hy_custom_types;

/* What the caller had of the card, as far as the plan counts it. */
static inline uint64_t hy_caller_share(const hy_custom_types *types) {
    bool is_less = types->caller_bytes >= 0 && (uint64_t)types->caller_bytes < types->caller_held;
    return is_less ? (uint64_t)types->caller_bytes : types->caller_held;
}

/* Does the device compute in bf16? */
bool hy_has_bf16(const hy_device_facts *facts);

/* HY_ERR_INPUT names the settings that conflict, or the type that the device does not support. */
hy_status hy_types_choose(const hy_settings *settings, const hy_precision_level *level,
                          const hy_device_facts *facts, hy_types *out);
/* As above, for a custom model: passes use the types of its weights. */
hy_status hy_types_choose_custom(const hy_settings *settings, const hy_precision_level *level,
                                 const hy_custom_types *custom, hy_types *out);

/* The compute type of inference: as requested, or bf16 if the card supports it, else fp32. */
hy_dtype hy_types_for_use(const hy_settings *settings, const hy_device_facts *facts);
