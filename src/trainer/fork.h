/* fork.h: paired tests of prediction, between steps. */
#pragma once

#include "trainer/trainer.h"

hy_status hy_trainer_consider_fork(hy_trainer *t);
hy_status hy_fork_begin(hy_trainer *t); /* at the start of a session */
