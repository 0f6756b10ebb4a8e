/* summary.h: the figures of a run and of its plan. */
#pragma once

#include "trainer/trainer.h"

void hy_trainer_complete_facts(hy_trainer *t); /* what the run adds to the facts of its plan */
hy_plan_facts hy_trainer_facts(const hy_trainer *t);
hy_summary hy_trainer_summarise(const hy_trainer *t);
/* False: there is no group i. */
bool hy_trainer_describe_group(const hy_trainer *t, int32_t i, hy_group_info *out);
