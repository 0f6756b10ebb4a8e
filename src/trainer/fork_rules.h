/* fork_rules.h: when a paired test of prediction is possible, and what it costs. */
#pragma once

#include "trainer/trainer.h"

int64_t hy_fork_window(const hy_trainer *t);    /* optimizer steps of a window */
int64_t hy_fork_arm_steps(const hy_trainer *t); /* optimizer steps of each arm */
int hy_fork_sequences(const hy_trainer *t);     /* that both arms are compared on */
double hy_fork_pass_cost(const hy_trainer *t);  /* a pass over them, in full steps */
bool hy_fork_is_sure(const hy_trainer *t);      /* confidence is at its threshold */
/* A test may start after this many optimizer steps. */
bool hy_fork_is_allowed(const hy_trainer *t, int64_t ahead);
hy_confidence hy_trainer_prior(const hy_trainer *t); /* confidence of a new run */
bool hy_fork_must_ask(const hy_trainer *t);    /* a run of this kind predicts only after a test */
bool hy_fork_is_possible(const hy_trainer *t); /* the run is long enough for one */
/* Host memory of a test with the memory of prediction; 0: there will be no test. */
uint64_t hy_fork_plan_bytes(const hy_trainer *t);
void hy_fork_release(hy_trainer *t); /* frees the copy of the state */
void hy_fork_end(hy_trainer *t);     /* frees it, and there will be no more tests */
