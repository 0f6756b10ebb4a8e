/* provider.h: the interface between a run and what computes its gradients and losses.
 *
 * The trainer decides which phase and which sequences come next and updates the weights. A
 * provider computes gradients and losses: the model of the settings (model_provider.c), a
 * program's callbacks or loop (src/custom), or any other that fills in this struct. The trainer
 * never tests which one it has: providers differ in operations and facts. */
#pragma once

#include "data/dataset.h"
#include "engine/custom.h"
#include "engine/probe.h"
#include "engine/update.h"
#include "hybrid.h"

struct hy_checkpoint;
typedef struct hy_provider hy_provider;

/* The optimizer step that gradients are requested for. */
typedef struct hy_step_request {
    hy_dtype dtype; /* the type that the step computes in */
    double lr;
    int attempt; /* 1, and one more each time the same step is tried again */
} hy_step_request;

/* What a provider reports of that step. */
typedef struct hy_step_report {
    double loss;       /* mean over the counted targets, or over pairs of answers */
    int64_t counted;   /* what it is a mean over, of all ranks */
    int64_t tokens;    /* counted targets of all ranks */
    int64_t computed;  /* all computed tokens, for the speed */
    int64_t sequences; /* with facts.counts_sequences: of the data that it used */
} hy_step_report;

typedef struct hy_provider_ops {
    /* Opens what it trains on, before the plan is made. NULL: nothing to open. */
    hy_status (*open)(hy_provider *p, hy_trainer *t);
    /* Makes the initial weights of a new run. NULL: they are in the provider's memory. */
    hy_status (*initialise)(hy_provider *p, hy_trainer *t);
    /* Before the next step, between two steps: what it learns from may have to be made. NULL:
     * nothing to do. */
    hy_status (*prepare)(hy_provider *p, hy_trainer *t);
    /* Computes the gradients of the next step and ends with hy_update_clip. If memory ran
     * out, the trainer calls it again for the same step. */
    hy_status (*gradients)(hy_provider *p, hy_trainer *t, const hy_step_request *request,
                           hy_step_report *report);
    /* After the update, which may be pending. `loss_sum` is the engine's sum of losses. NULL:
     * nothing to do. */
    void (*end_step)(hy_provider *p, hy_trainer *t, double loss_sum, hy_step_report *report);
    /* Adds its own figures to those of a step. NULL: it has none. */
    void (*describe)(hy_provider *p, const hy_step_outcome *outcome, hy_step_info *info);
    /* A step or jump is complete, with these figures; before the observer's on_step. NULL: nothing
     * to do. */
    void (*on_step)(hy_provider *p, const hy_step_info *info);
    /* Losses of training sequences by number, forward only. `plan` is for the engine's passes. */
    hy_status (*losses)(hy_provider *p, hy_trainer *t, hy_batch_plan *plan, hy_probe *probe);
    /* Held-out loss. NULL: facts.can_evaluate is false. */
    hy_status (*evaluate)(hy_provider *p, hy_trainer *t, hy_probe *probe);
    /* Number of hy_offload_count_down calls that `losses` or `evaluate` makes for this many
     * sequences. */
    int64_t (*batches)(hy_provider *p, hy_trainer *t, hy_split split, uint64_t sequences);
    /* Writes and reads the provider's own file in a checkpoint. NULL: it has none. */
    hy_status (*save)(hy_provider *p, struct hy_checkpoint *checkpoint);
    hy_status (*load)(hy_provider *p, const char *checkpoint);
    /* Frees what belongs to the engine, before the engine's memory goes; it may be opened again.
     * NULL: nothing to do. */
    void (*close)(hy_provider *p);
    /* Called when the trainer is destroyed or cannot be made. NULL: the caller frees it. */
    void (*release)(hy_provider *p);
} hy_provider_ops;

typedef struct hy_provider_facts {
    /* The engine computes; micro-batch size, recomputation, activations, samples and the tokens of
     * a step are then known from settings and plan. */
    bool has_passes;
    /* The model is that of the settings: its files, adapters and export are known. */
    bool has_model_files;
    bool reads_ahead;      /* a loader reads its batches (hy_trainer_start_loader) */
    bool counts_sequences; /* the cursor moves as it reports, not by a step's size */
    bool can_evaluate;
    bool can_rewind; /* sequences can be computed a second time: paired tests are possible */
    /* It may fail or stop the run (HY_STOPPED) for its own reasons. Before an update, the run is
     * then in the state after its last step and can be saved. */
    bool may_stop;
    bool saves_if_stopped; /* and the run saves itself */
    bool writes_if_asked;  /* without `out`, the run has no folder; else it gets one in runs/ */
    hy_dataset_facts data; /* what it trains on, unless that is a data set of the settings */
} hy_provider_facts;

struct hy_provider {
    const hy_provider_ops *ops;
    hy_provider_facts facts;
    hy_custom_side *memory; /* its parameters and their memory; NULL: the engine has both */
    bool is_abandoned;      /* the run must not be saved any more */
};

/* model_provider.c: the model and data of the settings. Stateless: all trainers share it. */
extern hy_provider hy_model_provider;
/* Starts the loader at the data cursor, replacing the one before; without data of the settings it
 * does nothing. */
hy_status hy_trainer_start_loader(hy_trainer *t);

/* make.c: creates a trainer with this provider, and releases the provider even after a failure. */
hy_status hy_trainer_create_with(const hy_config *config, hy_provider *provider,
                                 const hy_observer *observer, hy_trainer **out);

/* ---- provider.c: for the trainer ------------------------------------------------------------- */

/* Adjusts the settings to a provider on this many ranks (0: one process): without the engine's
 * passes, their settings do not apply. */
hy_status hy_provider_settle(hy_provider *provider, int32_t ranks, hy_settings *settings);
/* A hash of everything about a provider that must be equal on all ranks. */
uint64_t hy_provider_agreed(const hy_provider *provider);
void hy_provider_release(hy_provider *provider);

/* ---- for providers outside trainer and custom, which do not include trainer.h (tests) -------- */

hy_engine *hy_trainer_engine(hy_trainer *t);
int64_t hy_trainer_next_sequence(const hy_trainer *t); /* number of the next step's first one */
