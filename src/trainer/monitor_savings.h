/* monitor_savings.h: what saves memory in this run, and what would. */
#pragma once

#include "hybrid_tools.h"
#include "trainer/trainer.h"

hy_status hy_trainer_find_savings(const hy_trainer *t, hy_savings *out);
