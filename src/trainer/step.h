/* step.h: an optimizer step of Warmup, Full or Correct. */
#pragma once

#include "trainer/trainer.h"

hy_status hy_trainer_run_step(hy_trainer *t, hy_step_info *info);
/* With a higher loss a run may have diverged: HY_DIVERGED_STEPS such steps in a row end it. */
double hy_trainer_loss_limit(const hy_trainer *t);
