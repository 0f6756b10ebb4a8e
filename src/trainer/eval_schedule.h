/* eval_schedule.h: how often a run validates, and on which held-out sequences. */
#pragma once

#include "trainer/trainer.h"

/* `count` held-out sequences: every stride-th. */
typedef struct hy_held_out {
    uint64_t count, stride;
} hy_held_out;

hy_held_out hy_trainer_held_out(const hy_trainer *t, bool is_closing);
/* Sequences of the rows of eval.eval_rows. */
uint64_t hy_trainer_row_sequences(const hy_trainer *t);
/* Steps between validations; 0: there is only the closing one. */
int64_t hy_trainer_eval_every(const hy_trainer *t);
/* Reports the cost of those rows if it exceeds the share of the run that validations may take. */
void hy_trainer_say_row_cost(const hy_trainer *t);
/* False: validation waits; only before the end. */
bool hy_trainer_can_validate(const hy_trainer *t);
/* For a resumed run: its lowest losses stay valid if later validations use the same sequences. */
void hy_trainer_fit_best(hy_trainer *t, bool has_other_data);
