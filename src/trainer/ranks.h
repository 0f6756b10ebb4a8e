/* ranks.h: decisions that all ranks of a run take together; with one rank each returns at once.
 *
 * Rank 0 leads: it has the folder and the clock. */
#pragma once

#include "trainer/trainer.h"

/* Joins the other ranks of this run; *out is NULL if this process is alone. */
hy_status hy_team_for(const hy_settings *settings, const hy_provider *provider,
                      const hy_observer *observer, hy_team **out);
/* Whether `status` is a failure that ranks have not agreed on: the others do not know of it, so no
 * more exchanges are possible. */
bool hy_ranks_are_apart(const hy_trainer *t, hy_status status);
/* Every rank gets rank 0's data. */
hy_status hy_ranks_share(hy_trainer *t, void *data, size_t size);
/* The number of ranks on this machine and this card, so that each plans with its share. */
hy_status hy_ranks_count_sharers(hy_trainer *t);
void hy_ranks_plan_sharers(hy_trainer *t); /* as above, for planned ranks */
/* All ranks take rank 0's memory for loss chunks (chunk_budget) and, if devices are equal, its fp8
 * matmuls; otherwise each rank keeps its own matmuls, and this is reported. */
hy_status hy_ranks_share_fp8(hy_trainer *t);
/* At the start, when each rank has a plan: all take rank 0's, or another rank's if only that one
 * fits on every rank. */
hy_status hy_ranks_choose_plan(hy_trainer *t, hy_plan *plan);
/* After a step: each rank's result, for the record. Failures are handled at the next step. */
void hy_ranks_share_figures(hy_trainer *t, const hy_step_info *info);
hy_ranks_info hy_ranks_describe(const hy_trainer *t); /* count 0: one process alone */
/* HY_OK if all ranks pass HY_OK; else the first failure, with its rank. The run may continue. */
hy_status hy_ranks_agree(hy_trainer *t, hy_status mine);
bool hy_ranks_have_agreed(const hy_trainer *t, hy_status status); /* all know this failure */
/* Each value becomes the minimum over ranks; at most four. */
hy_status hy_ranks_least(hy_trainer *t, double *values, int32_t count);
/* As hy_team_fail, but agreed failures are not sent: the others already know them. */
hy_status hy_ranks_fail(hy_trainer *t, hy_status status);
/* Sets tokens and counted to their sums over ranks, and shares requests to stop or save. */
hy_status hy_ranks_begin_step(hy_trainer *t, hy_step_report *report);
bool hy_ranks_stop(const hy_trainer *t); /* one of them was asked to stop */
