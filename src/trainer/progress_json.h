/* progress_json.h: trainer.json of a checkpoint. */
#pragma once

#include "trainer/trainer.h"

void hy_progress_write(const hy_trainer *t, hy_text *out);
hy_status hy_progress_read(hy_trainer *t); /* from t->resumed */
/* Reads what the plan must keep: types, and the split of a step into micro-batches if a step has as
 * many sequences as before. Only then do the losses stay the same bit for bit. */
hy_status hy_progress_read_choices(hy_trainer *t);
/* The tokens of a step if the run chose them because of few rows; 0: it did not. */
hy_status hy_progress_read_fitted_step(const hy_trainer *t, int64_t *out);
