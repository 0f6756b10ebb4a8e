/* window.h: what optimizer steps and jumps share: slow weights, snapshot, residual, next phase. A
 * window is the optimizer steps between two jumps. */
#pragma once

#include "trainer/trainer.h"

/* Before an optimizer step: the first one of a window sets the slow weights. */
hy_status hy_trainer_begin_window(hy_trainer *t);
hy_status hy_trainer_set_slow_weights(hy_trainer *t); /* to the weights; may be repeated */
/* At the start of the first step after Correct: compares the training since the last jump with the
 * jump, in direction and length. */
hy_status hy_trainer_measure_residual(hy_trainer *t);
/* Decides the next phase from the measurements, and undoes a jump if necessary. */
hy_status hy_trainer_choose_phase(hy_trainer *t, double loss, double grad_norm, hy_verdict verdict);
/* Restores the weights from before the last jump, if they are kept. */
hy_status hy_trainer_roll_back(hy_trainer *t);
