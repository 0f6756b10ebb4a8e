/* predict.h: a Predict step. */
#pragma once

#include "trainer/trainer.h"

hy_status hy_trainer_run_predict(hy_trainer *t, hy_step_info *info);
