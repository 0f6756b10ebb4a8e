/* row_scores.h: how well a model answers rows for evaluation, from the losses of their examples.
 *
 * Evaluation and training runs compute it; metrics, summaries and checkpoints store it. */
#pragma once

#include "base/json.h"
#include "engine/probe.h"
#include "hybrid.h"

/* A probe of all rows for evaluation in `data`; the caller frees out->examples. */
hy_status hy_row_probe_make(hy_dataset *data, hy_probe *out);
/* Results of such a probe; the formulas are in hybrid.h. */
hy_row_scores hy_row_scores_of(const hy_dataset *data, const hy_example_sum *examples);
hy_row_scores hy_row_scores_none(void); /* nothing: counts are 0, the rest is NaN */
/* Adds the statistics of held-out pairs of answers, if there are any. */
void hy_row_scores_add_pairs(hy_row_scores *scores, const double stats[HY_PAIRS_STATS]);
/* Adds the rewards of held-out rows, if they were measured. */
void hy_row_scores_add_rewards(hy_row_scores *scores, const hy_probe *probe);
bool hy_row_scores_exist(const hy_row_scores *scores);
/* As the member "row_scores" of an object, which is left out without rows; reads it. */
void hy_row_scores_put(const hy_row_scores *scores, hy_json_writer *w);
hy_row_scores hy_row_scores_get(const hy_json_node *object);
