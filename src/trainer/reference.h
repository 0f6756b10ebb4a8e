/* reference.h: what the model before training says of pairs of answers (dpo, ipo), for a run that
 * computes it once. It is measured before the first step, on all pairs, and stored in the run's
 * folder, because a resumed run no longer has that model. */
#pragma once

#include "trainer/trainer.h"

/* Measures the reference with the weights of a new run, or reads the file of a resumed one, and
 * gives it to the data. Does nothing if the task needs no such reference. */
hy_status hy_reference_take(hy_trainer *t);
/* Writes the file into the run's folder, before the first step. */
hy_status hy_reference_keep(hy_trainer *t);
void hy_reference_release(hy_trainer *t);
