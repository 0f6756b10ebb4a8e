/* steering.h: adapts the micro-batch to the memory that is free, between steps. */
#pragma once

#include "trainer/trainer.h"

/* Before each step. HY_ERR_MEMORY: the machine is almost out of memory. */
hy_status hy_trainer_steer(hy_trainer *t);
