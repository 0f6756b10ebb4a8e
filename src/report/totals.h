/* totals.h: the totals of a run, for the figures and tables of a page.
 *
 * They come from the lines of the run, and from its summary if that describes the newest line. A
 * total that is not known is NaN. */
#pragma once

#include "hybrid_report.h"

/* The final loss is the mean of these, here and in summary.json: a single step is mostly noise. */
#define HY_LAST_STEPS 32

typedef struct hy_phase_totals {
    double steps, seconds, wait_seconds;
    double planned_bytes, peak_bytes; /* NaN: not known */
} hy_phase_totals;

typedef struct hy_run_totals {
    double steps, tokens;
    double seconds, tokens_per_second; /* of optimizer steps only */
    double steps_per_second;           /* for custom models; else NaN */
    double first_loss, final_loss;     /* final: mean of the last steps */
    double val_loss, best_val_loss;
    double accuracy, accuracy_error, accuracy_norm; /* of rows, in percent */
    double greedy_accuracy, greedy_error;
    double pair_accuracy, pair_error, reward_margin; /* of pairs of answers, held out; or NaN */
    double val_reward;                               /* of held-out rows; or NaN */
    double spent, confidence;
    double planned_bytes, peak_bytes, pinned_bytes, resident_bytes; /* maximum of all steps */
    double moves, rejected_moves, predicted_steps;
    hy_phase_totals phases[HY_PHASE_COUNT];
} hy_run_totals;

void hy_run_total(const hy_run *run, hy_run_totals *out);
