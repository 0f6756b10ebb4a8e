/* run.h: the one function of run.c that calls.c uses: a step of whichever phase is due, without the
 * validation, metrics line and checkpoint of hy_trainer_run. */
#pragma once

#include "trainer/trainer.h"

hy_status hy_trainer_advance(hy_trainer *t, hy_step_info *info);
