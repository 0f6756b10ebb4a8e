/* types.h: the number types of a run: what is stored, what passes compute in, what gradients are summed
 * in, what the optimizer and the predictor keep. A pure function of settings and device. */
#pragma once

#include "config/settings.h"
#include "kernels/kernels.h"
#include "model/params.h"

typedef struct hy_types {
    hy_dtype of[HY_PHASE_COUNT]; /* what passes of a phase compute in */
    bool is_fp8[HY_PHASE_COUNT]; /* training in it has matmuls in fp8, and `of` is bf16 */
    hy_fp8_use fp8;              /* which */
    hy_dtype master;             /* of the weights that are updated: the truth */
    hy_dtype low;                /* of the rounded working copy */
    bool has_low;                /* there is one: a phase computes in another type than master's */
    hy_dtype grads, optim;
    hy_dtype slow; /* of slow weights, and what else a predictor keeps */
} hy_types;

/* What an optimizer step of a phase is in: HY_E4M3 stands for bf16 with matmuls in fp8. */
static inline hy_dtype hy_types_step(const hy_types *t, hy_phase phase) {
    return t->is_fp8[phase] ? HY_E4M3 : t->of[phase];
}
/* The type of activations in such a step. */
static inline hy_dtype hy_step_activations(hy_dtype step) {
    return step == HY_E4M3 ? HY_BF16 : step;
}
static inline bool hy_types_have_fp8(const hy_types *t) {
    return t->is_fp8[HY_WARMUP] || t->is_fp8[HY_FULL] || t->is_fp8[HY_CORRECT];
}

/* What the settings leave open of the state: how small its types are, and what is kept for prediction. A
 * rung of the ladder from the finest to the smallest, on which the planner chooses (ladder.c). */
typedef struct hy_rung {
    hy_dtype master, grads, optim;
    bool is_slow_8bit; /* what the predictor keeps has 8 bits; false: the type of master */
    bool predicts;     /* false: memory is short, and prediction stands aside */
    bool has_snapshot;
} hy_rung;
static inline hy_rung hy_rung_finest(void) {
    return (hy_rung){HY_F32, HY_F32, HY_F32, false, true, true};
}

/* What a guest brings: the types of weights and gradients in their memory. */
typedef struct hy_guest_types {
    hy_dtype weights, grads;
    bool asks_each;  /* for gradients of each micro-batch by itself; else for those of a step */
    bool sums_grads; /* theirs are added up in a row of ours: then, and of several ranks */
} hy_guest_types;

/* HY_ERR_INPUT names the settings that do not go together, or what the device lacks. */
hy_status hy_types_choose(const hy_settings *settings, const hy_rung *rung,
                          const hy_device_facts *facts, hy_types *out);
/* The same for a guest, of whose types those of the passes follow. */
hy_status hy_types_choose_guest(const hy_settings *settings, const hy_rung *rung,
                                const hy_guest_types *guest, hy_types *out);

/* What a model that is only used computes in: bf16 on a card that has it, else fp32; or as asked. */
hy_dtype hy_types_for_use(const hy_settings *settings, const hy_device_facts *facts);
