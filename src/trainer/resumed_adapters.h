/* resumed_adapters.h: checks that a resumed run computes the same function as its checkpoint. */
#pragma once

#include "trainer/trainer.h"

/* HY_ERR_INPUT names an adapter setting, with both values, that would change the function of the
 * resumed checkpoint. */
hy_status hy_trainer_check_adapters(const hy_trainer *t);
/* Adds to an error how a new run starts from the weights of this checkpoint: with --init-from, or
 * with --adapter if the checkpoint has only adapters. Returns `status`. */
hy_status hy_trainer_advise_new_run(const hy_trainer *t, const char *checkpoint, hy_status status);
