/* make.h: makes a trainer from a configuration, and again with less memory if memory is refused. */
#pragma once

#include "trainer/trainer.h"

typedef struct hy_making {
    hy_provider *provider; /* the trainer releases it, also after a failure; NULL: our model */
    bool is_plan;
    bool is_team_lent; /* `team` belongs to the caller and outlives the trainer */
    hy_team *team;     /* NULL: alone */
    hy_planned_ranks planned;
} hy_making;

hy_status hy_trainer_make(const hy_config *config, const hy_observer *observer,
                          const hy_making *making, hy_trainer **out);
/* Allocates a trainer and its parts, filled with zeros. */
hy_status hy_trainer_alloc(hy_trainer **out);
