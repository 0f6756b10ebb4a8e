/* formulas.h: runs predictor formulas over rows, and computes the weights that they propose.
 *
 * The trainer calls these functions between steps. The proposed weights (the candidate) are never
 * stored: passes compute them unit by unit, or a custom model gets them in its own memory. */
#pragma once

#include "kernels/kernels.h"
#include "phases/predictor.h"

typedef struct hy_engine hy_engine;

/* How the candidate is computed: by a formula over weights and slow weights, or as the average. */
typedef struct hy_candidate {
    hy_formula formula;
    bool is_average;
} hy_candidate;

hy_status hy_engine_apply(hy_engine *e, const hy_formulas *formulas); /* changes rows in place */
/* HY_OP_DIFF_DOT over all elements of rows a, b, c, d; -1: no row. */
hy_status hy_engine_measure(hy_engine *e, int a, int b, int c, int d, double out[3]);
hy_status hy_engine_add_to_average(hy_engine *e); /* adds the weights to HY_ROW_AVERAGE */
/* Copies all weights to a tiled row of the same type, or back. With several ranks, this rank's
 * slices. */
hy_status hy_engine_copy_weights(hy_engine *e, int row, bool to_row);
/* Sets how the candidate is computed from now on: by this formula, or (NULL) as the average; and
 * its type. */
void hy_engine_propose(hy_engine *e, const hy_formula *formula, hy_dtype dtype);
/* For a custom model: computes the whole candidate, in the row that the caller sees. */
hy_status hy_engine_make_shown(hy_engine *e, bool is_average);
/* A hook before a pass gets a unit (hy_unit_hook): computes the unit of the candidate, unless it is
 * still in the ring. */
hy_status hy_candidate_make(void *engine, hy_stream *stream, int32_t unit);
