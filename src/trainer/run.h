/* run.h: one step of whichever phase is due. */
#pragma once

#include "trainer/trainer.h"

hy_status hy_trainer_advance(hy_trainer *t, hy_step_info *info);
