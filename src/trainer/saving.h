/* saving.h: checkpoints of a run, and room for them. */
#pragma once

#include "trainer/trainer.h"

/* HY_ERR_INPUT if neither a checkpoint nor the model fits on the disk; if space is limited, the
 * run reports the consequences. */
hy_status hy_trainer_check_disk(hy_trainer *t);
hy_status hy_trainer_write_checkpoint(hy_trainer *t);
/* Whether a stop or failure may save the run: in a spike of the loss only if the last loss is
 * finite and the run does not count as diverged. hy_trainer_write_checkpoint does not check
 * this. */
bool hy_trainer_may_save(const hy_trainer *t);
