/* make.h: a trainer from a configuration; built again with less where memory is short. */
#pragma once

#include "trainer/trainer.h"

typedef struct hy_making {
    hy_provider *provider; /* the trainer releases it, also after a failure; NULL: our model */
    bool is_plan;
    bool is_team_lent; /* `team` is the caller's, which outlives the trainer; else a launcher's */
    hy_team *team;     /* NULL: alone */
    hy_planned_ranks planned;
} hy_making;

hy_status hy_trainer_make(const hy_config *config, const hy_observer *observer,
                          const hy_making *making, hy_trainer **out);
/* A trainer with its parts, all zeros, and their memory. */
hy_status hy_trainer_alloc(hy_trainer **out);
