/* planner_run.h: the planner's parts that know a run: inside the trainer room only.
 *
 * planner_rates.c says how fast and how large the machine is, planner_trainer.c makes a problem of a run's
 * settings and writes the answer back, planner_changes.c looks for what would fit when nothing does. */
#ifndef HY_TRAINER_PLANNER_RUN_H
#define HY_TRAINER_PLANNER_RUN_H

#include "trainer/planner_size.h"
#include "trainer/trainer.h"

/* By data sheets and rules of thumb, at once. */
hy_rates hy_plan_nominal_rates(const hy_backend *backend);
/* Measured where the device is here; takes part of a second. */
hy_rates hy_plan_measured_rates(const hy_trainer *t);

/* Bytes that the run may use; of disk by these settings. */
typedef struct hy_plan_budgets {
    uint64_t device, host, disk; /* UINT64_MAX: no limit */
} hy_plan_budgets;
hy_plan_budgets hy_plan_budgets_of(const hy_trainer *t, const hy_settings *settings);

/* A problem with the sizer behind it; must not be moved. */
typedef struct hy_plan_setup {
    hy_sizer sizer;
    hy_plan_problem problem;
} hy_plan_setup;

/* Of the run, with these settings instead of its own: types, places, predictor and sequence length may
 * differ. */
hy_status hy_plan_setup_begin(hy_plan_setup *setup, const hy_trainer *t,
                              const hy_settings *settings, const hy_rates *rates);
void hy_plan_setup_end(hy_plan_setup *setup);

/* Small changes of the run's settings, as they were asked for, that make it fit; each was tried. */
hy_status hy_plan_find_changes(const hy_trainer *t, const hy_rates *rates, hy_plan_facts *facts);

/* Resolves everything that is open in t->settings, and tells why in t->plan. A run for which nothing fits
 * is no failure here; the budget's check says so. */
hy_status hy_trainer_choose_plan(hy_trainer *t);

#endif
