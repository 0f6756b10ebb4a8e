/* types.h: the number types of a run: what is stored, what passes compute in, what gradients are
 * summed in, what the optimizer and the predictor keep. plan/choose_types.c chooses them; whoever
 * computes reads them. */
#pragma once

#include "hybrid.h"
#include "model/param_layout.h"

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
