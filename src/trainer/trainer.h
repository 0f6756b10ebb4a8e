/* trainer.h: a run from its first step to its last; inside the trainer module only.
 *
 * A run has an engine, data, a schedule of phases, and a record. build.c creates it from the
 * settings and gives the engine its plan; step.c and predict.c make its steps; run.c is the
 * loop. Between steps the compute stream is idle, and `progress` and the engine's progress hold
 * everything that a checkpoint needs besides the rows. */
#pragma once

#include "config/derived.h"
#include "engine/engine.h"
#include "record/record.h"
#include "trainer/provider.h"
#include "trainer/run_state.h"

struct hy_trainer {
    hy_settings *settings; /* as the user said it */
    hy_observer observer;
    hy_engine *engine;
    hy_provider *provider; /* who computes gradients and losses */
    hy_team *team;         /* NULL: it is alone */
    hy_ranks_state ranks;
    hy_run_data data;
    hy_loop_state *loop;
    hy_progress *progress;
    hy_throughput throughput;
    hy_run_status status;
    hy_steering steering;
    int64_t first_batch;  /* micro-batch that the run began with */
    hy_plan_facts *facts; /* of the plan, for --plan */
    hy_error problem;     /* why this plan cannot run; "": it can */
    hy_held_out_figures held_out;
    struct hy_monitor *monitor; /* NULL: memory.monitor is off */
    hy_record *record;
    char folder[HY_PATH_MAX];  /* where checkpoints go, on every rank; "": nowhere */
    char resumed[HY_PATH_MAX]; /* the checkpoint that is gone on with; "": none */
};
