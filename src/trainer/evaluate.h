/* evaluate.h: the held-out loss of a run. */
#pragma once

#include "trainer/trainer.h"

/* Measures the held-out loss. `comparable`, if not NULL, becomes the loss of the sequences that all
 * validations of the run use. */
hy_status hy_trainer_measure_held_out(hy_trainer *t, hy_eval_info *info, double *comparable);
/* A validation of the run itself: updates best and patience, and informs observers. The loss is NaN
 * if there is no validation: the provider has none, or memory was short, which is reported. */
hy_status hy_trainer_validate(hy_trainer *t, double *loss);
/* After a due validation: one that was interrupted stays due. */
void hy_trainer_note_validation(hy_trainer *t, hy_status status);
