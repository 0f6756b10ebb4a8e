/* results.c: sums over the placement table, and the checks. See results.h. */
#include "vram_phases/results.h"

int64_t vp_returning_planned(const hy_phase_summary *phase) {
    return (int64_t)phase->vram_planned_bytes - (int64_t)phase_planned(phase, HY_DEVICE);
}

int64_t vp_returning_measured(const hy_phase_summary *phase) {
    return (int64_t)phase->vram_peak_bytes - (int64_t)phase_measured(phase, HY_DEVICE);
}

plan_error vp_device_error(const hy_phase_summary *phase) {
    return plan_error_of(phase->vram_planned_bytes, phase->vram_peak_bytes);
}

plan_error vp_place_error(const hy_phase_summary *phase, hy_place place) {
    return plan_error_of(phase_planned(phase, place), phase_measured(phase, place));
}

bool vp_is_class_used(const phase_run *run, hy_class cls) {
    for (int p = 0; p < HY_PHASE_COUNT; p++) {
        const hy_memory_cell *cell = &run->summary.phases[p].memory[cls];
        if (cell->planned_bytes || cell->measured_bytes) return true;
    }
    return false;
}

/* ---- checks ------------------------------------------------------------------------------------ */

static int check_error(const vp_run *r, hy_phase phase, const char *what, plan_error error) {
    if (error.is_within) return 0;
    printf(
        "FAIL  %s, %s, %s: %s memory was %.0f bytes (%.2f %%) off its plan; allowed are %g %% or "
        "%.0f bytes\n",
        r->model, r->profile, hy_phase_name(phase), what, error.bytes, error.percent,
        PLAN_BAR_PERCENT, PLAN_BAR_BYTES);
    return 1;
}

static int check_phase(const vp_run *r, hy_phase phase) {
    const hy_phase_summary *p = &r->run.summary.phases[phase];
    if (p->steps == 0) {
        printf("FAIL  %s, %s: phase %s did not occur; more --steps, or fewer rejected moves "
               "(%lld)\n",
               r->model, r->profile, hy_phase_name(phase),
               (long long)r->run.summary.rejected_moves);
        return 1;
    }
    return check_error(r, phase, "device", vp_device_error(p)) +
           check_error(r, phase, "pinned", vp_place_error(p, HY_PINNED)) +
           check_error(r, phase, "host", vp_place_error(p, HY_HOST));
}

int vp_check(const void *context) {
    const vp_results *results = context;
    double worst = 0, percent = 0;
    int failures = 0;
    for (int i = 0; i < results->count; i++) {
        for (int p = 0; p < HY_PHASE_COUNT; p++) {
            plan_error error = vp_device_error(&results->runs[i].run.summary.phases[p]);
            failures += check_phase(&results->runs[i], (hy_phase)p);
            if (fabs(error.bytes) <= worst) continue;
            worst = fabs(error.bytes);
            percent = fabs(error.percent);
        }
    }
    if (failures == 0) {
        printf(
            "PASS  plans of %d run%s: device memory at most %.0f bytes (%.2f %%) off; allowed are "
            "%g %% or %.0f bytes\n",
            results->count, results->count == 1 ? "" : "s", worst, percent, PLAN_BAR_PERCENT,
            PLAN_BAR_BYTES);
    }
    return failures;
}
