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

plan_error vp_pinned_error(const phase_run *run) {
    return plan_error_of(run->plan.host_pinned_bytes, run->pinned_bytes);
}

plan_error vp_card_error(const phase_run *run) {
    return run->summary.is_gpu ? plan_error_of(run->plan.vram_bytes, phase_run_taken(run))
                               : plan_error_of(0, 0);
}

bool vp_is_class_used(const phase_run *run, hy_class cls) {
    for (int p = 0; p < RUN_PHASES; p++) {
        const hy_memory_cell *cell = &run->summary.phases[p].memory[cls];
        if (cell->planned_bytes || cell->measured_bytes) return true;
    }
    return false;
}

bool vp_is_place_used(const phase_run *run, hy_place place) {
    for (int p = 0; p < RUN_PHASES; p++) {
        const hy_phase_summary *phase = &run->summary.phases[p];
        if (phase_planned(phase, place) || phase_measured(phase, place)) return true;
    }
    return false;
}

/* ---- checks ---------------------------------------------------------------------------------- */

static int check_error(const vp_run *r, const char *when, const char *what, plan_error error) {
    if (error.is_within) return 0;
    printf("FAIL  %s, %s, %s: %s differed from its plan by %.0f bytes (%.2f %%); allowed: %g %% or "
           "%.0f bytes\n",
           r->model, r->profile, when, what, error.bytes, error.percent, PLAN_BAR_PERCENT,
           PLAN_BAR_BYTES);
    return 1;
}

static int check_phase(const vp_run *r, hy_phase phase) {
    const hy_phase_summary *p = &r->run.summary.phases[phase];
    const char *name = hy_phase_name(phase);
    bool is_wanted = !r->run.is_aside || phase == HY_WARMUP || phase == HY_FULL;
    if (p->steps == 0 && is_wanted) {
        printf("FAIL  %s, %s: phase %s did not occur; use more --steps, or fewer rejected jumps "
               "(%lld)\n",
               r->model, r->profile, name, (long long)r->run.summary.rejected_moves);
        return 1;
    }
    return check_error(r, name, "device memory", vp_device_error(p)) +
           check_error(r, name, "pinned memory", vp_place_error(p, HY_PINNED)) +
           check_error(r, name, "host memory", vp_place_error(p, HY_HOST)) +
           check_error(r, name, "disk", vp_place_error(p, HY_DISK));
}

static int check_run(const vp_run *r) {
    int failures = check_error(r, "the run", "pinned memory", vp_pinned_error(&r->run)) +
                   check_error(r, "the run", "what the driver counts", vp_card_error(&r->run));
    for (int p = 0; p < RUN_PHASES; p++) failures += check_phase(r, (hy_phase)p);
    return failures;
}

static void keep_worse(plan_error *worst, plan_error error) {
    if (fabs(error.bytes) > fabs(worst->bytes)) *worst = error;
}

static void print_worst(const vp_results *results) {
    plan_error device = {0}, pinned = {0}, card = {0};
    for (int i = 0; i < results->count; i++) {
        const phase_run *run = &results->runs[i].run;
        keep_worse(&pinned, vp_pinned_error(run));
        keep_worse(&card, vp_card_error(run));
        for (int p = 0; p < RUN_PHASES; p++) {
            const hy_phase_summary *phase = &run->summary.phases[p];
            if (phase->steps > 0) keep_worse(&device, vp_device_error(phase));
        }
    }
    printf("PASS  plans of %d run%s: measured device memory of a phase at most %.0f bytes (%.2f "
           "%%) off, pinned memory %.0f bytes (%.2f %%)",
           results->count, results->count == 1 ? "" : "s", fabs(device.bytes), fabs(device.percent),
           fabs(pinned.bytes), fabs(pinned.percent));
    if (results->runs[0].run.summary.is_gpu) {
        printf(", memory reported by the driver %.0f bytes (%.2f %%)", fabs(card.bytes),
               fabs(card.percent));
    }
    printf("; allowed are %g %% or %.0f bytes\n", PLAN_BAR_PERCENT, PLAN_BAR_BYTES);
}

int vp_check(const void *context) {
    const vp_results *results = context;
    int failures = 0;
    for (int i = 0; i < results->count; i++) failures += check_run(&results->runs[i]);
    if (failures == 0 && results->count > 0) print_worst(results);
    return failures;
}
