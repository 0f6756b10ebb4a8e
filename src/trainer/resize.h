/* resize.h: another plan between steps; tokens per step, data order and state stay the same. */
#pragma once

#include "trainer/trainer.h"

/* HY_ERR_MEMORY: not even the smallest work area could be allocated, so there is none. */
hy_status hy_trainer_resize(hy_trainer *t, int64_t batch_size, const char *reason);
/* The next larger (1) or smaller (-1) size that divides a step, within bounds; 0: none. */
int64_t hy_next_batch(const hy_trainer *t, int64_t from, int direction, int64_t most);
int64_t hy_smaller_batch(const hy_trainer *t); /* than the present one */
/* After a run had to shrink: the micro-batch grows back later each time. */
void hy_trainer_back_off(hy_trainer *t);
/* The plan with micro-batches of this size; smaller ones without room for answers. */
hy_status hy_trainer_work_at(const hy_trainer *t, int64_t batch, hy_plan *out);
/* From the next change on, plans leave no room for answers (plan/answers.c): memory is short. */
void hy_trainer_give_up_room(hy_trainer *t);
/* Whether layers recompute everything. */
bool hy_recomputes_all(const hy_plan_choice *choice);
/* From now on layers recompute everything: the same bits in less memory. */
hy_status hy_trainer_recompute_all(hy_trainer *t, const char *reason);
/* The fastest plan within other bounds (caps as in hy_plan_request), with the same split of
 * steps; state moves to its new places. HY_ERR_INPUT: no plan fits, and the run is unchanged. */
hy_status hy_trainer_replan(hy_trainer *t, uint64_t device_cap, uint64_t host_cap,
                            const char *reason);
/* Device memory of a caller: what its passes need (-1: not known), what its allocator has. */
typedef struct hy_callers_part {
    int64_t bytes;
    uint64_t held;
} hy_callers_part;

/* Plans for a caller's passes. HY_ERR_INPUT: no plan fits beside them, or there is no memory to
 * move state, and the run has its old plan; derived rows may have to be made again. */
hy_status hy_trainer_replan_caller(hy_trainer *t, hy_callers_part caller);
/* Frees the memory of prediction, or allocates it (is_disabled false) and leaves `beside` bytes of
 * host memory free. HY_ERR_INPUT: there is no room, and the run is unchanged. */
hy_status hy_trainer_disable_prediction(hy_trainer *t, bool is_disabled, uint64_t beside);
