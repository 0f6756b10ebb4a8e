/* scale.h: the weights of a finished run, scaled away from those that it began with. */
#pragma once

#include "trainer/trainer.h"

/* See hy_trainer_scale in hybrid.h. */
hy_status hy_trainer_set_scale(hy_trainer *t, double scale);
