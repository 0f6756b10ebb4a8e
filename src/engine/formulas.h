/* formulas.h: formulas of predictors over rows, and the weights that they propose. */
#pragma once

#include "kernels/kernels.h"
#include "phases/predictor.h"

typedef struct hy_engine hy_engine;

/* How proposed weights are made: a formula over weights and slow weights, or the average. */
typedef struct hy_candidate {
    hy_formula formula;
    bool is_average;
} hy_candidate;

hy_status hy_engine_apply(hy_engine *e, const hy_formulas *formulas);
/* HY_OP_DIFF_DOT over everything: rows a, b, c, d; -1: none. */
hy_status hy_engine_measure(hy_engine *e, int a, int b, int c, int d, double out[3]);
hy_status hy_engine_add_to_average(hy_engine *e);
/* All of the weights into a tiled row of their type, or back; of several ranks, this rank's
 * slices. */
hy_status hy_engine_copy_weights(hy_engine *e, int row, bool to_row);
/* What the candidate row is from now on: made by a formula over weights and slow weights, or (NULL)
 * the average; in which type. */
void hy_engine_propose(hy_engine *e, const hy_formula *formula, hy_dtype dtype);
/* The same for a custom model: the whole of it, into the row that the caller sees. */
hy_status hy_engine_make_shown(hy_engine *e, bool is_average);
/* Makes a unit of the candidate row unless it is there: before a pass gets it (hy_unit_hook). */
hy_status hy_candidate_make(void *engine, hy_stream *stream, int32_t unit);
