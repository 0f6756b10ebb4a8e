/* advance.h: steps of a run: which phase is due, an optimizer step, and its time.
 * Inside the trainer module only. */
#pragma once

#include "trainer/trainer.h"

/* calls.c: rejects calls that are not possible in the current state. */
hy_status hy_trainer_must_run(const hy_trainer *t);
/* Hands a message to the observer. */
void hy_say(const hy_trainer *t, hy_message_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The next step or jump, by the phase that is due. */
hy_status hy_trainer_advance(hy_trainer *t, hy_step_info *info);

/* step.c: an optimizer step of Warmup, Full or Correct. */
hy_status hy_trainer_run_step(hy_trainer *t, hy_step_info *info);
/* Adds the step's fp8 statistics to its line. */
void hy_trainer_tell_fp8(const hy_trainer *t, hy_step_info *info);
/* The compute type of an optimizer step in this phase, now (hy_types_step). */
hy_dtype hy_trainer_step_type(const hy_trainer *t, hy_phase phase);
double hy_trainer_recent_loss(const hy_trainer *t); /* mean of the last steps */
double hy_trainer_loss_limit(const hy_trainer *t);  /* above it a step is not to be trusted */
/* After the Correct steps of a jump: compares direction and length of training with the
 * prediction. Measured at the start of the next step. */
hy_status hy_trainer_measure_residual(hy_trainer *t);
/* Decides the next phase from the measurements, and undoes a jump if necessary. */
hy_status hy_trainer_observe(hy_trainer *t, double loss, double grad_norm, hy_verdict verdict);

/* throughput.c: time, waiting and copies of one step, and the utilisation of the device. */
typedef struct hy_account {
    double begin, waited;
    uint64_t bytes_moved;
} hy_account;
void hy_account_open(hy_trainer *t, hy_account *account);
void hy_account_close(hy_trainer *t, hy_account *account);
void hy_trainer_describe(const hy_trainer *t, const hy_phase_state *was, const hy_account *account,
                         hy_step_info *info);
hy_phase_obstacle hy_trainer_obstacle(const hy_trainer *t); /* what keeps it from a jump now */
void hy_trainer_note_rate(hy_trainer *t, double rate);      /* tokens per second of a step */
/* The model's operations at this many tokens per second, as shares; 0: not known, or on a CPU. */
double hy_trainer_mfu(const hy_trainer *t, double tokens_per_second);
double hy_trainer_sol(const hy_trainer *t, double tokens_per_second);

/* run.c: is a save due by the clock, and would saving the best weights cost little? */
bool hy_trainer_is_save_time(const hy_trainer *t);
bool hy_trainer_has_time_to_save(const hy_trainer *t);
/* A validation without enough memory is reported and skipped. */
hy_status hy_trainer_skip_validation(hy_trainer *t);
