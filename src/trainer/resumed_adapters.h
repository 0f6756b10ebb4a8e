/* resumed_adapters.h: the settings of a resumed run keep its function. */
#pragma once

#include "trainer/trainer.h"

/* HY_ERR_INPUT names an adapter setting, with both values, that would change the function of the
 * resumed checkpoint. */
hy_status hy_trainer_check_adapters(const hy_trainer *t);
