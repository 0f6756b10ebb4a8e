/* make.h: a trainer from a configuration; built again with less where memory is short. */
#pragma once

#include "trainer/trainer.h"

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

/* A trainer with its parts, all zeros, and their memory. */
hy_status hy_trainer_alloc(hy_trainer **out);
