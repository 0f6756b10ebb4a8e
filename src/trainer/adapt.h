/* adapt.h: a run adapts to memory: retries, smaller or larger micro-batches, another plan.
 * Inside the trainer module only. */
#pragma once

#include "trainer/trainer.h"

/* recovery.c: work that failed for want of memory is done again: with smaller micro-batches when it is not
 * the first time. HY_OK: go on. */
hy_status hy_trainer_retry_with_less(hy_trainer *t, hy_status status);
void hy_trainer_tell_retry(void *trainer, const char *message, const char *how); /* hy_retries */
/* Work that can simply be done again, until it is done or memory is short too often. */
hy_status hy_trainer_retry(hy_trainer *t, hy_status (*work)(hy_trainer *));
/* Something that a step does beside its update could not be done: the step is brought to its end, so that
 * the run can be saved, and ends with the error that is set now. */
void hy_trainer_defer_error(hy_trainer *t, hy_status status);
hy_status hy_trainer_end_step(hy_trainer *t); /* the last thing a step or jump does */
/* A run that can be saved is, and the error says what to change. */
hy_status hy_trainer_give_up(hy_trainer *t, hy_status status);
/* A file of the data was changed by others. That changes nothing of the run: it is whole as of its last
 * step and is saved like one that lacks memory. */
bool hy_trainer_lacks_data(const hy_trainer *t, hy_status status);
/* The same, or a provider that stops the run: what is done is saved, and the rest is done when the run is resumed. */
bool hy_trainer_is_interrupted(const hy_trainer *t, hy_status status);
/* Host memory that is kept for the moment when there is none: to save a run needs some. */
hy_status hy_trainer_take_reserve(hy_trainer *t);
void hy_trainer_give_reserve(hy_trainer *t);

/* steering.c: before each step. HY_ERR_MEMORY: the machine is about to be out of memory. */
hy_status hy_trainer_steer(hy_trainer *t);
bool hy_trainer_is_short(const hy_trainer *t); /* of memory, so that less of it should be used */
void hy_trainer_back_off(hy_trainer *t);       /* it had to shrink: it grows back later each time */

/* resize.c: another plan between steps; tokens per step, data order and state stay. When no memory can be
 * taken, not even for the least, HY_ERR_MEMORY: there is then none to work in. */
hy_status hy_trainer_resize(hy_trainer *t, int64_t batch_size, const char *reason);
/* The next size up (1) or down (-1) that divides a step, within bounds; 0: there is none. */
int64_t hy_next_batch(const hy_trainer *t, int64_t from, int direction, int64_t most);
int64_t hy_smaller_batch(const hy_trainer *t); /* than the present one */
int64_t hy_larger_batch(const hy_trainer *t);
/* What the work area would take with micro-batches of this size. */
hy_status hy_trainer_work_at(const hy_trainer *t, int64_t batch, hy_plan *out);
/* Layers recompute everything from now on: the same bits in less memory. */
bool hy_recomputes_all(const hy_plan_choice *choice);
hy_status hy_trainer_recompute_all(hy_trainer *t, const char *reason);
/* The fastest plan within other bounds (caps as in hy_plan_request), with steps split as they are; what of the
 * state has another place in it moves there. HY_ERR_INPUT: no plan fits, and the run is as it was. */
hy_status hy_trainer_replan(hy_trainer *t, uint64_t device_cap, uint64_t host_cap,
                            const char *reason);

/* What prediction keeps is taken, with this much host memory beside it, or given back. HY_ERR_INPUT: there
 * is no room, and the run is as it was. */
hy_status hy_trainer_disable_prediction(hy_trainer *t, bool is_disabled, uint64_t beside);
