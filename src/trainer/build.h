/* build.h: builds a run from its settings, up to the first step or only to a plan, and tears it
 * down. */
#pragma once

#include "trainer/trainer.h"

hy_status hy_trainer_build(hy_trainer *t);
void hy_trainer_tear_down(hy_trainer *t);
