/* reference.h: what the model before training says of pairs of answers (dpo, ipo), for a run that
 * computes it once. It is measured before the first step, on all pairs, and stored in the run's
 * folder, because a resumed run no longer has that model. */
#pragma once

#include "trainer/trainer.h"

/* When the data and the weights are there: refuses what is not possible, and reads the file of a
 * resumed run. Does nothing if the task needs no such reference. */
hy_status hy_reference_open(hy_trainer *t);
/* Before anything of a run is computed: measures the reference if it is not known, writes the file,
 * and gives it to the data. HY_STOPPED: the run was asked to stop; nothing has changed. */
hy_status hy_reference_measure(hy_trainer *t);
void hy_reference_release(hy_trainer *t);
