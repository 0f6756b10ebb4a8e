/* make.h: a trainer is made: from settings to a run that can take its first step, or to a plan.
 * Inside the trainer module only. */
#pragma once

#include "trainer/trainer.h"

/* make.c: a trainer, built again with less where memory is short. */
typedef struct hy_making {
    hy_provider *provider; /* the trainer's from here on; NULL: hy_model_provider */
    bool is_plan;
    hy_planned_ranks planned;
} hy_making;
hy_status hy_trainer_make(const hy_config *config, const hy_observer *observer,
                          const hy_making *making, hy_trainer **out);
/* A run as one rank of the caller's team, which outlives it; NULL: alone, whatever launcher
 * there is. An earlier run's choice of NCCL for the team is made again. */
hy_status hy_trainer_make_in(const hy_config *config, const hy_observer *observer, hy_team *team,
                             hy_trainer **out);

/* build.c: a run that can take its first step, or its plan; and its end. */
hy_status hy_trainer_build(hy_trainer *t);
void hy_trainer_tear_down(hy_trainer *t);
/* A trainer with its parts, all zeros, and their memory. */
hy_status hy_trainer_alloc(hy_trainer **out);
void hy_trainer_free(hy_trainer *t);
hy_status hy_trainer_start_loader(hy_trainer *t); /* anew, at the data cursor */
/* Tokens of an optimizer step; 0: not known. */
int64_t hy_trainer_step_tokens(const hy_trainer *t);
int64_t hy_trainer_batch_size(const hy_trainer *t); /* of a micro-batch; 0: not known */
/* What it trains on. */
const hy_dataset_facts *hy_trainer_data(const hy_trainer *t);
void hy_trainer_complete_facts(hy_trainer *t); /* what the run adds to those of a plan */
