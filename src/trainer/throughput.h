/* throughput.h: time, waiting and copies of a step, and the utilisation of the device. */
#pragma once

#include "trainer/trainer.h"

typedef struct hy_account {
    double begin, waited;
    uint64_t bytes_moved;
} hy_account;
void hy_account_open(hy_trainer *t, hy_account *account);
void hy_account_close(hy_trainer *t, hy_account *account);
/* Fills in the figures that steps and jumps have in common. */
void hy_trainer_describe(const hy_trainer *t, const hy_phase_state *was, const hy_account *account,
                         hy_step_info *info);
void hy_trainer_note_rate(hy_trainer *t, double rate); /* tokens per second of a step */
/* The model's operations at this many tokens per second, as shares of the device's peak and of its
 * measured matmul speed; 0: not known, or on a CPU. */
void hy_trainer_utilisation(const hy_trainer *t, double tokens_per_second, double *mfu,
                            double *sol);
