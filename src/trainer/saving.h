/* saving.h: checkpoints and the record of a run.
 * Inside the trainer module only. */
#pragma once

#include "trainer/trainer.h"

/* saving.c: checkpoints, and room for them. */
/* HY_ERR_INPUT if neither a checkpoint nor the model fits on the disk; if space is limited, the
 * run reports the consequences. */
hy_status hy_trainer_check_disk(hy_trainer *t);
hy_status hy_trainer_write_checkpoint(hy_trainer *t);
bool hy_trainer_may_save(const hy_trainer *t); /* whether its state is worth it */

/* progress_json.c: trainer.json of a checkpoint. */
void hy_progress_write(const hy_trainer *t, hy_text *out);
hy_status hy_progress_read(hy_trainer *t, const char *path);
/* If a step has as many sequences as before, split and types stay the same, so that all bits do. */
hy_status hy_progress_read_choices(hy_trainer *t, const char *path);

/* resumed_adapters.c: HY_ERR_INPUT names an adapter setting, with both values, that would change
 * the function of the resumed checkpoint. */
hy_status hy_trainer_check_adapters(const hy_trainer *t);

/* recording.c: what the run hands to its record. */
hy_status hy_trainer_open_record(hy_trainer *t);
hy_status hy_trainer_remake_record(hy_trainer *t); /* in a folder that had to be made again */
void hy_trainer_record_step(hy_trainer *t, const hy_step_info *info,
                            double val_loss); /* NAN: none */
void hy_trainer_record_event(hy_trainer *t, const hy_event_line *event);
void hy_trainer_write_plan(hy_trainer *t);
hy_status hy_trainer_write_summary(hy_trainer *t);
