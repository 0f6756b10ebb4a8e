/* recovery.h: work is repeated after memory ran out, and the end of a run that cannot go on. */
#pragma once

#include "trainer/trainer.h"

/* Repeats work that failed because memory ran out; after the first time with smaller micro-batches.
 * HY_OK: continue. */
hy_status hy_trainer_retry_with_less(hy_trainer *t, hy_status status);
void hy_trainer_report_retry(void *trainer, const char *message, const char *how); /* hy_retries */
/* Repeats work that has no side effects, until it succeeds or memory runs out too often. */
hy_status hy_trainer_retry(hy_trainer *t, hy_status (*work)(hy_trainer *));
/* Part of a step after its update failed: the step is completed, so that the run can be saved,
 * and then ends with the current error. */
void hy_trainer_defer_error(hy_trainer *t, hy_status status);
hy_status hy_trainer_end_step(hy_trainer *t); /* the last thing a step or jump does */
/* Saves the run if possible; the error says what to change. */
hy_status hy_trainer_give_up(hy_trainer *t, hy_status status);
/* Another program changed a data file. The run itself is complete up to its last step and is
 * saved, as when memory runs out. */
bool hy_trainer_lacks_data(const hy_trainer *t, hy_status status);
/* As above, or for a provider that stops the run: finished work is saved, and the rest is done
 * after a resume. */
bool hy_trainer_is_interrupted(const hy_trainer *t, hy_status status);
/* Host memory that is reserved for saving the run when no other memory is left. */
hy_status hy_trainer_take_reserve(hy_trainer *t);
void hy_trainer_give_reserve(hy_trainer *t);
