/* progress_json.h: trainer.json of a checkpoint. */
#pragma once

#include "trainer/trainer.h"

void hy_progress_write(const hy_trainer *t, hy_text *out);
hy_status hy_progress_read(hy_trainer *t); /* of t->resumed */
/* If a step has as many sequences as before, split and types stay the same, so that all bits do. */
hy_status hy_progress_read_choices(hy_trainer *t);
