/* build.h: from settings to a run that can take its first step, or to a plan; and its end. */
#pragma once

#include "trainer/trainer.h"

hy_status hy_trainer_build(hy_trainer *t);
void hy_trainer_tear_down(hy_trainer *t);
