/* memory_plan.h: what the files that plan and take a run's memory share: inside the trainer room only.
 *
 * batch_plans.c makes the micro-batches of the run, state_plan.c says where its state lives and what it
 * passes through, work_memory.c where passes work, placement.c writes the placement table, memory_plan.c
 * makes a whole of them and takes it. */
#ifndef HY_TRAINER_MEMORY_PLAN_H
#define HY_TRAINER_MEMORY_PLAN_H

#include "trainer/trainer.h"

/* ---- batch_plans.c ----------------------------------------------------------------------------- */

hy_status hy_make_batch_plans(hy_trainer *t);
void hy_drop_batch_plans(hy_trainer *t);
#define HY_BATCH_PLANS 6
/* Every plan there is, NULL where there is none. The first two train. */
void hy_all_batch_plans(const hy_trainer *t, hy_batch_plan *plans[HY_BATCH_PLANS]);
uint64_t hy_most_rows(const hy_trainer *t); /* tokens of the largest */

/* ---- placement.c: the placement table ------------------------------------------------------------ */

void hy_write_placement(hy_trainer *t); /* of t->engine.needs, into the ledger */

/* ---- work_memory.c: where passes work -------------------------------------------------------------- */

/* Into t->engine.needs, from the batch plans and what the predictor's rings take. */
void hy_count_work(hy_trainer *t);
/* The arena, and in it activations, workspace and buffers; plans find theirs. */
hy_status hy_take_work(hy_trainer *t);
void hy_release_work(hy_trainer *t); /* nobody uses it any more */
void hy_give_work(hy_trainer *t);    /* before that, in a run that goes on: tells the ledger */
char *hy_predictor_rings(const hy_trainer *t); /* where they lie in it */

/* Parts of it that evaluation without a run takes by itself; hy_release_work releases them. Batches of
 * documents get their staging where there is a buffer for them. */
hy_status hy_take_staging(hy_trainer *t, size_t rows);
uint64_t hy_rope_bytes(const hy_trainer *t); /* 0: the model has none */
hy_status hy_fill_rope_table(hy_trainer *t); /* where there is one, into its buffer */

/* ---- resize.c -------------------------------------------------------------------------------------- */

/* What the work area would take with micro-batches of this size: nothing is taken or timed for it. */
hy_status hy_work_at(const hy_trainer *t, int64_t batch, hy_memory_needs *out);

/* ---- state_plan.c ------------------------------------------------------------------------------ */

#define HY_DISK_BUFFERS 4     /* pinned buffers of a class on disk: two come, two go */
#define HY_STATE_RING_DEPTH 3 /* when left open: one comes, one is used, one is written back */

hy_place hy_place_setting(hy_place asked);           /* auto: the device */
void hy_state_resolve_paging(hy_settings *settings); /* before the plan is chosen */
hy_state_choice hy_state_choice_of(const hy_settings *settings);

hy_status hy_state_lay_out(hy_trainer *t); /* t->engine.state.layouts, t->engine.state.tiles */
void hy_state_forget_layouts(hy_trainer *t);
void hy_state_count(const hy_trainer *t, const hy_state_choice *choice, hy_state_need *out);
hy_status hy_state_take(hy_trainer *t, const hy_state_choice *choice, const hy_state_need *need);
/* A class backed by the arena `backing` or, for HY_DISK, behind what is taken of the run's file
 * already. */
hy_status hy_state_take_class(hy_trainer *t, hy_store *store, hy_class cls, hy_place place,
                              const hy_layout *layout, hy_arena *backing, hy_arena *device,
                              const hy_ring_options *ring);

#endif
