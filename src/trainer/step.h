/* step.h: an optimizer step of Warmup, Full or Correct. */
#pragma once

#include "trainer/trainer.h"

hy_status hy_trainer_run_step(hy_trainer *t, hy_step_info *info);
double hy_trainer_loss_limit(const hy_trainer *t); /* a step with a higher loss is not trusted */
