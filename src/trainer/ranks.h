/* ranks.h: decisions that all ranks of a run take together; with one rank each returns at once.
 * Inside the trainer module only. */
#pragma once

#include "trainer/trainer.h"

/* ranks.c: several ranks; with one each answers at once. Rank 0 leads: it has the folder and the clock. */
hy_status hy_team_for(const hy_settings *settings, const hy_provider *provider,
                      const hy_observer *observer, hy_team **out);
bool hy_trainer_leads(const hy_trainer *t);
/* After a failure that ranks have not agreed on: the others do not know of it and may be anywhere, so
 * nothing can be exchanged with them any more. */
bool hy_ranks_are_apart(const hy_trainer *t, hy_status status);
/* What rank 0 has there becomes everybody's. */
hy_status hy_ranks_share(hy_trainer *t, void *data, size_t size);
hy_status hy_ranks_share_folder(hy_trainer *t); /* t->folder, of the record's */
/* How many ranks share this machine and this card, so that each plans with its part of them. */
hy_status hy_ranks_count_sharers(hy_trainer *t);
void hy_ranks_plan_sharers(hy_trainer *t); /* as they would be, of ranks that a plan is for */
/* Which matmuls are in fp8 is rank 0's choice where devices are alike; others keep their own, and it is said. */
hy_status hy_ranks_share_fp8(hy_trainer *t);
/* At the beginning, when each rank has made one: the plan of all is rank 0's, or that of another rank where only that one
 * has room on every rank. */
hy_status hy_ranks_choose_plan(hy_trainer *t, hy_plan *plan);
/* Rank 0's plan for all, each for its own shard. */
hy_status hy_ranks_share_plan(hy_trainer *t, const hy_plan_request *request, hy_plan *plan);
hy_status hy_ranks_begin_figures(hy_trainer *t);
/* After a step: how each rank fared, for the record. Failures are met at the next step. */
void hy_ranks_tell_step(hy_trainer *t, const hy_step_info *info);
/* HY_OK where all ranks come with it; else the first failure, with its rank. The run may go on. */
hy_status hy_ranks_agree(hy_trainer *t, hy_status mine);
bool hy_ranks_have_agreed(const hy_trainer *t, hy_status status); /* that this is what failed */
/* Each becomes the least of all ranks'; at most four. */
hy_status hy_ranks_least(hy_trainer *t, double *values, int32_t count);
/* As hy_team_fail, but what ranks have agreed on is not told: the others have it, and whose it was. */
hy_status hy_ranks_fail(hy_trainer *t, hy_status status);
/* *counted becomes the sum over ranks; and whether to stop or to save is known. */
hy_status hy_ranks_begin_step(hy_trainer *t, int64_t *counted);
bool hy_ranks_stop(const hy_trainer *t);
