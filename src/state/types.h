/* types.h: the number types of a run: of stored weights, of passes, of gradient sums, of the
 * optimizer and of the predictor. plan/choose_types.c chooses them; all compute code reads them. */
#pragma once

#include "hybrid.h"
#include "model/param_layout.h"

typedef struct hy_types {
    hy_dtype of[HY_PHASE_COUNT]; /* compute type of a phase's passes */
    bool is_fp8[HY_PHASE_COUNT]; /* training uses fp8 matmuls, and `of` is bf16 */
    hy_fp8_use fp8;              /* the matmuls that use fp8 */
    hy_dtype master;             /* of the weights that are updated: the master copy */
    hy_dtype low;                /* of the working copy */
    bool has_low; /* there is a working copy: a phase computes in another type than master's */
    hy_dtype grads, optim;
    hy_dtype slow; /* of slow weights and other predictor buffers */
} hy_types;

/* The compute type of a phase's optimizer step: HY_E4M3 means bf16 with fp8 matmuls. */
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
