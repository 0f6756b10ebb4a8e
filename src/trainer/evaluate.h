/* evaluate.h: validations of a run: how often, on which sequences, and the lowest loss.
 * Inside the trainer module only. */
#pragma once

#include "trainer/trainer.h"

/* evaluate.c: held-out sequences of one validation but the closing one. */
uint64_t hy_trainer_val_sequences(const hy_trainer *t);
/* Steps between validations; 0: there is only the closing one. */
int64_t hy_trainer_eval_every(const hy_trainer *t);
bool hy_trainer_can_validate(const hy_trainer *t); /* before the run's end: else it waits */
/* A validation of the run itself: updates best and patience, and informs observers. */
hy_status hy_trainer_validate(hy_trainer *t, hy_eval_info *info);
/* For a resumed run: its lowest losses stay valid if later validations use the same sequences. */
void hy_trainer_fit_best(hy_trainer *t, bool has_other_data);
/* The run's end, also by early_stop. */
bool hy_trainer_is_over(const hy_trainer *t);
bool hy_trainer_is_stopped_early(const hy_trainer *t);
