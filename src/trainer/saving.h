/* saving.h: checkpoints of a run, and room for them. */
#pragma once

#include "trainer/trainer.h"

/* HY_ERR_INPUT if neither a checkpoint nor the model fits on the disk; if space is limited, the
 * run reports the consequences. */
hy_status hy_trainer_check_disk(hy_trainer *t);
hy_status hy_trainer_write_checkpoint(hy_trainer *t);
bool hy_trainer_may_save(const hy_trainer *t); /* false: the loss is not finite or much too high */
