/* predict.h: Predict steps, and paired tests of their benefit. Inside the trainer module only. */
#pragma once

#include "trainer/trainer.h"

/* predict.c: a Predict step. */
hy_status hy_trainer_run_predict(hy_trainer *t, hy_step_info *info);
hy_status hy_trainer_begin_window(hy_trainer *t); /* before an optimizer step */
hy_status hy_trainer_roll_back(hy_trainer *t);

/* fork.c: paired forks, between steps. */
hy_status hy_trainer_consider_fork(hy_trainer *t);
/* What confidence begins with (build.c). */
hy_confidence hy_trainer_prior(const hy_trainer *t);
/* a run of this kind predicts only after a successful paired test */
bool hy_fork_must_ask(const hy_trainer *t);
bool hy_fork_is_possible(const hy_trainer *t); /* the run is long enough for one */
hy_status hy_fork_begin(hy_trainer *t);        /* at the start of a session */
void hy_fork_end(hy_trainer *t);               /* there will be no more */
/* Host memory of forks with what prediction keeps, if there is room; 0: no forks. */
uint64_t hy_fork_plan_bytes(const hy_trainer *t);
void hy_fork_release(hy_trainer *t);
