/* resumed_rewards.h: checks that a resumed run of task grpo can go on from its checkpoint. */
#pragma once

#include "trainer/trainer.h"

/* For a resumed run, before data is read. has_answers: the checkpoint is between two steps with the
 * same answers. HY_ERR_INPUT names a setting that may not change, with its values. */
hy_status hy_trainer_check_resumed_rewards(const hy_trainer *t, bool has_answers);
