/* recovery.h: repeats work after memory ran out, and ends a run that cannot continue. */
#pragma once

#include "trainer/trainer.h"

/* Prepares a repetition after memory ran out: first unchanged, then with smaller micro-batches,
 * then with full recomputation. HY_OK: the caller repeats the work. With several ranks a failure
 * inside a step ends the run, because the other ranks wait for this one. */
hy_status hy_trainer_prepare_retry(hy_trainer *t, hy_status status);
void hy_trainer_report_retry(void *trainer, const char *message, const char *how); /* hy_retries */
/* Repeats work that has no side effects, until it succeeds or memory runs out too often. */
hy_status hy_trainer_retry(hy_trainer *t, hy_status (*work)(hy_trainer *));
/* Something failed after a step's update: the step is completed, so that the run can be saved, and
 * then returns this error. */
void hy_trainer_defer_error(hy_trainer *t, hy_status status);
/* The last call of a step or jump: returns and clears the deferred error, and the next failure for
 * lack of memory counts as the first in a row. */
hy_status hy_trainer_deferred_error(hy_trainer *t);
/* Saves the run if possible; the error says what to change. */
hy_status hy_trainer_give_up(hy_trainer *t, hy_status status);
/* Whether reading data failed during the run. The run is complete up to its last step and is saved,
 * as when memory runs out. */
bool hy_trainer_lacks_data(const hy_trainer *t, hy_status status);
/* Whether reading data failed, a provider stopped the run, or a request to stop broke off a
 * validation or paired test: finished work is saved, and the rest is done after a resume. */
bool hy_trainer_is_interrupted(const hy_trainer *t, hy_status status);
/* Host memory that is reserved for saving the run when no other memory is left. */
hy_status hy_trainer_take_reserve(hy_trainer *t);
void hy_trainer_give_reserve(hy_trainer *t);
