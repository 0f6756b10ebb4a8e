/* trainer.h: a run from its first step to its last; for trainer, custom and selftest.
 *
 * A run has an engine, data, a schedule of phases and a record. Between steps the compute stream is
 * idle, so the run can be saved; run_state.h says what a checkpoint restores. A file calls only
 * files of lower layers:
 *
 *   calls, monitor_estimate                    the calls of hybrid.h
 *   make                                       makes a trainer, and again with less memory
 *   build, run                                 from settings to the first step; the loop
 *   fork                                       a paired test
 *   predict                                    a jump
 *   step, evaluate                             an optimizer step, a validation
 *   window, provider_weights                   what steps and jumps share; weights of a provider
 *   recovery, steering                         after memory ran out; while memory is short
 *   scale                                      a finished run's weights, scaled
 *   resize                                     another plan during a run
 *   saving, monitor                            checkpoints; reports on memory
 *   recording, model_provider                  the record; our model as a provider
 *   ranks, summary, progress_json              what ranks agree on; figures; trainer.json
 *   monitor_look, monitor_savings, throughput, eval_schedule, fork_rules, resumed_adapters
 *   trainer                                    the run, and questions about it
 *   provider, run_state, join                  data that the others share */
#pragma once

#include "config/derived.h"
#include "engine/engine.h"
#include "record/record.h"
#include "trainer/provider.h"
#include "trainer/run_state.h"

struct hy_trainer {
    hy_settings *settings; /* of the user, adjusted to provider and ranks */
    hy_observer observer;
    hy_engine *engine;
    hy_provider *provider; /* computes gradients and losses */
    hy_team *team;         /* NULL: this process is alone */
    hy_ranks_state ranks;
    hy_run_data data;
    hy_run_schedule *schedule;
    hy_progress *progress;
    hy_throughput throughput;
    hy_run_status status;
    hy_steering steering;
    int64_t first_batch;  /* the micro-batch that the run began with */
    hy_plan_facts *facts; /* facts of the plan, for --plan */
    hy_error problem;     /* why this plan cannot run; "": it can */
    hy_held_out_figures held_out;
    struct hy_monitor *monitor; /* NULL: memory.monitor is off */
    hy_record *record;
    /* Tested only for "" (the run is not saved), on every rank; record->out is the current path. */
    char folder[HY_PATH_MAX];
    char resumed[HY_PATH_MAX]; /* the checkpoint that the run continues from; "": none */
    char initial[HY_PATH_MAX]; /* the checkpoint of init_from that the run began with; "": none */
    bool is_scaled;            /* scale.c changed the weights, so the run cannot continue */
};

/* ---- trainer.c: what any part of a run may ask about it -------------------------------------- */

/* Hands a message to the observer. */
void hy_say(const hy_trainer *t, hy_message_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* HY_ERR_STATE: this is only a plan, or a step failed half-way. */
hy_status hy_trainer_must_have_state(const hy_trainer *t);
/* HY_ERR_STATE: as above, or there is no memory for forward and backward. */
hy_status hy_trainer_must_run(const hy_trainer *t);
/* HY_ERR_STATE: as above, or the weights were scaled: the run can neither go on nor be saved. */
hy_status hy_trainer_must_train(const hy_trainer *t);
/* What a run refuses, a plan only warns of: a folder may be planned before its weights are here. */
hy_status hy_trainer_refuse(const hy_trainer *t, hy_status status);
/* HY_ERR_STATE: `what` needs the engine's passes. */
hy_status hy_trainer_must_have_passes(const hy_trainer *t, const char *what);
bool hy_trainer_leads(const hy_trainer *t); /* alone, or rank 0, which has folder and clock */
const hy_dataset_facts *hy_trainer_data(const hy_trainer *t); /* what it trains on */
int64_t hy_trainer_step_tokens(const hy_trainer *t); /* of an optimizer step; 0: not known */
int64_t hy_trainer_batch_size(const hy_trainer *t);  /* of a micro-batch; 0: not known */
bool hy_trainer_is_over(const hy_trainer *t);        /* by its length or by early_stop */
bool hy_trainer_is_stopped_early(const hy_trainer *t);
double hy_trainer_share_done(const hy_trainer *t); /* of the run's compute */
/* The step of the learning rate's schedule: the compute spent so far, in whole Full steps. */
int64_t hy_trainer_schedule_step(const hy_trainer *t);
hy_phase_obstacle hy_trainer_obstacle(const hy_trainer *t); /* what keeps it from a jump now */
double hy_trainer_recent_loss(const hy_trainer *t);         /* mean of the last steps */
uint64_t hy_trainer_saved_bytes(const hy_trainer *t);       /* of a checkpoint's tensors */
bool hy_trainer_is_save_time(const hy_trainer *t);          /* a save is due by the clock */
bool hy_trainer_has_time_to_save(const hy_trainer *t); /* saving the best weights costs little */
