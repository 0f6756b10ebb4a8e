/* totals.h: what a run came to, from its lines, and from its summary where that is of the newest line. */
#pragma once

#include "hybrid_report.h"

typedef struct hy_phase_totals {
    int64_t steps;
    double seconds, wait_seconds;
    double planned_bytes, peak_bytes; /* NaN: not known */
} hy_phase_totals;

typedef struct hy_run_totals {
    int64_t steps, tokens;
    double seconds, tokens_per_second; /* true steps alone */
    double first_loss, final_loss;     /* final: mean of the last steps */
    double val_loss, best_val_loss;
    double spent, confidence, mfu;
    double planned_bytes, peak_bytes, pinned_bytes, resident_bytes; /* most of all steps */
    double predicted_steps;
    int64_t moves, rejected_moves, skipped_steps, batch_changes, recoveries;
    hy_phase_totals phases[HY_PHASE_COUNT];
} hy_run_totals;

void hy_run_total(const hy_run *run, hy_run_totals *out);
