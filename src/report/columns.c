/* columns.c: filling the columns. See columns.h. */
#include "report/columns.h"

#include <math.h>

static double known(int64_t count) { return count >= 0 ? (double)count : NAN; }

static bool is_kept_move(const hy_run_point *p) {
    return p->phase == HY_PREDICT && !p->was_rejected && p->predicted_steps > 0;
}

/* Classes add up to the total; lines without classes have the total alone. */
static double class_bytes(const int64_t *bytes, int cls) {
    int64_t all = 0;
    for (int c = 0; c < HY_CLASS_COUNT; c++) all += bytes[c];
    return all > 0 ? (double)bytes[cls] : NAN;
}

static double share(double part, double whole) { return whole > 0 ? 100 * part / whole : NAN; }

static double value_of(const hy_run_point *p, hy_column column) {
    if (column >= HY_COLUMN_PINNED_CLASS) {
        return class_bytes(p->pinned, (int)(column - HY_COLUMN_PINNED_CLASS));
    }
    if (column >= HY_COLUMN_DEVICE_CLASS) {
        return class_bytes(p->device, (int)(column - HY_COLUMN_DEVICE_CLASS));
    }
    switch (column) {
    case HY_COLUMN_LOSS: return p->phase == HY_PREDICT ? NAN : p->loss;
    case HY_COLUMN_VAL_LOSS: return p->val_loss;
    case HY_COLUMN_LR: return p->lr;
    case HY_COLUMN_GRAD_NORM: return p->phase == HY_PREDICT ? NAN : p->grad_norm;
    case HY_COLUMN_CONFIDENCE: return p->confidence;
    case HY_COLUMN_REJECTED: return p->was_rejected || p->was_rolled_back ? 1 : NAN;
    case HY_COLUMN_SPEED: return p->phase == HY_PREDICT ? NAN : p->tokens_per_second;
    case HY_COLUMN_WAIT: return share(p->wait_seconds, p->seconds);
    case HY_COLUMN_MOVED: return known(p->bytes_moved);
    case HY_COLUMN_BATCH: return p->phase == HY_PREDICT ? NAN : known(p->batch_size);
    case HY_COLUMN_DEVICE_TOTAL: return known(p->vram_bytes);
    case HY_COLUMN_DEVICE_PEAK: return known(p->vram_peak_bytes);
    case HY_COLUMN_DEVICE_PLANNED: return known(p->vram_planned_bytes);
    case HY_COLUMN_DEVICE_RESERVED: return known(p->vram_reserved_bytes);
    case HY_COLUMN_PINNED_TOTAL: return known(p->host_pinned_bytes);
    case HY_COLUMN_RESIDENT: return known(p->host_resident_bytes);
    case HY_COLUMN_POWER: return p->gpu_power_watts;
    case HY_COLUMN_TEMPERATURE: return p->gpu_temperature_c;
    case HY_COLUMN_UTILIZATION: return 100 * p->gpu_utilization;
    case HY_COLUMN_MFU: return 100 * p->mfu;
    default: return NAN;
    }
}

static void fill_predicted(const hy_run *run, double *out) {
    double sum = 0;
    bool has_moved = false;
    for (size_t i = 0; i < hy_run_points(run); i++) {
        const hy_run_point *p = hy_run_point_at(run, i);
        has_moved |= p->phase == HY_PREDICT;
        if (is_kept_move(p)) sum += p->predicted_steps;
        out[i] = has_moved ? sum : NAN;
    }
}

void hy_column_fill(const hy_run *run, hy_column column, double *out) {
    if (column == HY_COLUMN_PREDICTED) {
        fill_predicted(run, out);
        return;
    }
    for (size_t i = 0; i < hy_run_points(run); i++) {
        out[i] = value_of(hy_run_point_at(run, i), column);
    }
}
