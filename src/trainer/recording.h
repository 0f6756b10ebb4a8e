/* recording.h: what the run hands to its record. */
#pragma once

#include "trainer/trainer.h"

/* is_remade: in a folder that had to be made again. */
hy_status hy_trainer_open_record(hy_trainer *t, bool is_remade);
void hy_trainer_record_step(hy_trainer *t, const hy_step_info *info,
                            double val_loss); /* NAN: none */
void hy_trainer_record_event(hy_trainer *t, const hy_event_line *event);
void hy_trainer_write_plan(hy_trainer *t);
hy_status hy_trainer_write_summary(hy_trainer *t);
