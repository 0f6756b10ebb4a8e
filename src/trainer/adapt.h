/* adapt.h: a run adapts to memory: retries, smaller or larger micro-batches, another plan.
 * Inside the trainer module only. */
#pragma once

#include "trainer/trainer.h"

/* recovery.c: repeats work that failed because memory ran out; after the first time with smaller
 * micro-batches. HY_OK: continue. */
hy_status hy_trainer_retry_with_less(hy_trainer *t, hy_status status);
void hy_trainer_tell_retry(void *trainer, const char *message, const char *how); /* hy_retries */
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

/* steering.c: before each step. HY_ERR_MEMORY: the machine is almost out of memory. */
hy_status hy_trainer_steer(hy_trainer *t);
bool hy_trainer_is_short(const hy_trainer *t); /* of memory, so that less of it should be used */
void hy_trainer_back_off(hy_trainer *t);       /* it had to shrink: it grows back later each time */

/* resize.c: another plan between steps; tokens per step, data order and state stay.
 * HY_ERR_MEMORY: not even the smallest work area could be allocated, so there is none. */
hy_status hy_trainer_resize(hy_trainer *t, int64_t batch_size, const char *reason);
/* The next larger (1) or smaller (-1) size that divides a step, within bounds; 0: none. */
int64_t hy_next_batch(const hy_trainer *t, int64_t from, int direction, int64_t most);
int64_t hy_smaller_batch(const hy_trainer *t); /* than the present one */
int64_t hy_larger_batch(const hy_trainer *t);
/* Bytes of the work area with micro-batches of this size. */
hy_status hy_trainer_work_at(const hy_trainer *t, int64_t batch, hy_plan *out);
/* From now on layers recompute everything: the same bits in less memory. */
bool hy_recomputes_all(const hy_plan_choice *choice);
hy_status hy_trainer_recompute_all(hy_trainer *t, const char *reason);
/* The fastest plan within other bounds (caps as in hy_plan_request), with the same split of
 * steps; state moves to its new places. HY_ERR_INPUT: no plan fits, and the run is unchanged. */
hy_status hy_trainer_replan(hy_trainer *t, uint64_t device_cap, uint64_t host_cap,
                            const char *reason);

/* Allocates or frees the memory of prediction, with this much additional host memory.
 * HY_ERR_INPUT: there is no room, and the run is unchanged. */
hy_status hy_trainer_disable_prediction(hy_trainer *t, bool is_disabled, uint64_t beside);
