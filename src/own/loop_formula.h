/* loop_formula.h: a predictor's formulas run on arrays in host memory.
 *
 * phases/predictor.h gives rows of coefficients and never sees a pointer; here they meet the
 * weights and the slots. Sums are taken in double and rounded once. A coefficient of zero reads
 * nothing, so clearing a slot clears it whatever the weights hold, and a slot that a predictor
 * does not have may be NULL. */
#ifndef HY_TRAINER_LOOP_FORMULA_H
#define HY_TRAINER_LOOP_FORMULA_H

#include "phases/predictor.h"

/* A run of weights and what the predictor keeps beside them. */
typedef struct hy_formula_block {
    float *theta;                    /* (count) */
    float *slot[HY_PREDICTOR_SLOTS]; /* (count) each; NULL: none */
    int64_t count;
} hy_formula_block;

void hy_formula_run(const hy_formula *formula, const hy_formula_block *block);

/* What is summed over all elements to know a move's length. */
typedef struct hy_move_sums {
    double dot;    /* <move, displacement> */
    double square; /* |displacement|^2 */
} hy_move_sums;

/* Adds a block's share. Both formulas are differences of weights, read only. */
void hy_formula_measure(const hy_formula *move, const hy_formula *displacement,
                        const hy_formula_block *block, hy_move_sums *sums);

#endif
