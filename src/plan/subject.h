/* subject.h: what is planned: a model on a device, under settings; and the functions that plan it.
 *
 * A subject is made of settings, model and device and holds nothing of its own, so that another choice of
 * settings is tried by making another subject. Nothing here knows a run. */
#pragma once

#include "config/settings.h"
#include "optim/optimizer.h"
#include "plan/choose_types.h"
#include "plan/sizer.h"
#include "state/rows.h"

/* Does the state leave for the host? */
static inline bool hy_offload_moves(hy_offload o) {
    return o == HY_OFFLOAD_CPU || o == HY_OFFLOAD_PINNED;
}

/* The split of a step that a resumed run had: kept, so that the bits go on. 0: as the settings say. */
typedef struct hy_step_split {
    int64_t batch, accum, loss_chunks;
} hy_step_split;

typedef struct hy_subject {
    const hy_settings *settings;
    hy_model *model;
    hy_backend *backend;
    hy_rows_spec rows;           /* types among them */
    hy_rank_spec ranks;          /* of several ranks: which it is, and the stage */
    int32_t sharers;             /* of them on this machine; 0 or 1: it has it for itself */
    int32_t card_sharers;        /* and on this card */
    const hy_guest_types *guest; /* NULL: the model is ours */
    hy_predictor predictor;
    hy_offload offload;
    bool has_doc_starts; /* document masks are given with every batch */
    bool is_aside;       /* as hy_plan_choice has it */
    bool is_plan;        /* --plan: limits may be those of another machine */
    hy_rung rung;        /* what is kept, where the settings leave it open */
    hy_fp8_use fp8;      /* the matmuls that are faster in fp8, */
    bool is_fp8_known;   /* once that was measured; else all of the blocks' */
    bool keeps_rung;     /* it was chosen before: in mid-run, or in a run that is resumed */
    hy_step_split split;
    uint64_t chunk_budget;         /* by which losses are cut into chunks; 0: all of the device */
    uint64_t device_cap, host_cap; /* a plan that the system refused: less than this; 0: none */
    uint64_t host_held; /* in mid-run: host memory that the run has already; it counts as free */
} hy_subject;

/* What `base` has of model, device and limits, under settings, on a rung. HY_ERR_INPUT: they do not go
 * together. */
hy_status hy_subject_with(const hy_subject *base, const hy_settings *settings, const hy_rung *rung,
                          hy_subject *out);

/* The same on the finest rung that goes with what the settings fix. */
hy_status hy_subject_finest(const hy_subject *base, const hy_settings *settings, hy_subject *out);

/* For a plan of ranks that are not here: it becomes that of the rank whose shard is the largest. */
hy_status hy_subject_largest_rank(hy_subject *subject);

static inline bool hy_subject_predicts(const hy_subject *s) {
    return s->predictor.kind != HY_PREDICTOR_NONE;
}
/* Places may be chosen: there is a device apart, or a budget that stands for one. */
static inline bool hy_subject_streams(const hy_subject *s) {
    return s->backend->facts.is_gpu || s->settings->memory.max_gpu_mem > 0;
}

/* fp8.c: which matmuls are in fp8: by measurement where the device is here, else all that it can do; of those
 * that are known already, what this device can do. */
void hy_fp8_choose(hy_subject *subject);
/* A sentence where it was asked for and none is; else NULL. */
const char *hy_fp8_why_none(const hy_subject *subject);
/* A sentence that names the others. */
void hy_fp8_describe(const hy_subject *subject, char *out, size_t size);

/* ---- rates.c, budget.c: the machine ------------------------------------------------------------- */

/* By data sheets and rules of thumb, at once; or measured where the device is here, in part of a second. */
hy_rates hy_plan_nominal_rates(const hy_backend *backend);
hy_rates hy_plan_measured_rates(const hy_subject *subject);

/* Of a card's free memory this much is left alone: code that is loaded when it first runs, and what other
 * programs ask for later. */
#define HY_CARD_RESERVE (256u << 20)

/* How much may be used: what the user allows, or what is free less a reserve; 0: not known. */
uint64_t hy_budget_device(const hy_subject *subject);
uint64_t hy_budget_host(const hy_subject *subject);
uint64_t hy_budget_disk(const hy_settings *settings); /* UINT64_MAX: no limit */

/* Micro-batches that are read ahead, and the pinned bytes they take. */
int64_t hy_data_depth(const hy_subject *subject, int64_t accum);
uint64_t hy_data_bytes(const hy_subject *subject, int64_t batch, int64_t accum);

/* Refuses what does not fit: HY_ERR_INPUT with what is short and by how much. */
hy_status hy_budget_check(const hy_subject *subject, const hy_plan *plan);

/* ---- problem.c: planning ------------------------------------------------------------------------- */

/* A problem with the sizer and the rows behind it; must not be moved. */
typedef struct hy_plan_setup {
    hy_rows rows;
    hy_sizer sizer;
    hy_plan_problem problem;
} hy_plan_setup;

/* Into how many chunks the loss of Full is cut by a choice. */
int32_t hy_plan_loss_chunks(const hy_subject *subject, const hy_plan_choice *choice);
void hy_pass_spec_init(hy_pass_spec *spec, const hy_subject *subject);
hy_status hy_plan_setup_begin(hy_plan_setup *setup, const hy_subject *subject,
                              const hy_rates *rates);
void hy_plan_setup_end(hy_plan_setup *setup);

/* ladder.c: the fastest plan that fits, with reasons; where nothing fits, what would change that. The
 * subject is afterwards on the rung that was chosen. */
hy_status hy_plan_make(hy_subject *subject, hy_plan *plan, hy_plan_facts *facts);
/* Whether anything fits under these settings, small types among them. HY_ERR_INPUT: they do not go
 * together. */
hy_status hy_ladder_fits(const hy_subject *subject, const hy_settings *settings,
                         const hy_rates *rates, bool *fits);
/* The plan as it is with another choice: nothing is timed and nothing chosen. */
hy_status hy_plan_with(const hy_subject *subject, const hy_plan_choice *choice, hy_plan *out);
/* The plan's figures where hybrid.h has them. */
void hy_plan_tell(const hy_subject *subject, const hy_plan *plan, hy_plan_facts *facts);

/* Whether the offload strategy goes with a choice; one that would do nothing becomes none. */
hy_status hy_offload_settle(const hy_rows *rows, const hy_plan_choice *choice, hy_offload *offload);
/* Bytes of the optimizer's state in 8 bits, as `compress` keeps it. */

/* columns.c: the placement table of a plan, into the ledger. */
void hy_plan_columns(const hy_subject *subject, const hy_rows *rows, const hy_plan *plan,
                     hy_ledger *ledger);

/* ---- advice.c: what would save -------------------------------------------------------------------- */

/* Small sets of changes that make it fit, into facts->changes; each was tried. */
hy_status hy_advise_fit(const hy_subject *subject, const hy_rates *rates, hy_plan_facts *facts);

/* Where a step is short beside the copies it waits for: what a longer one would give, as a reason. */
hy_status hy_advise_tokens(const hy_subject *subject, const hy_rates *rates, const hy_plan *plan,
                           hy_plan_facts *facts);

/* What a plan with these settings and this choice would take. */
typedef struct hy_plan_bytes {
    int64_t device, host; /* host: beside the device's, also where both are one memory */
    double seconds;       /* of a step, by rules of thumb */
} hy_plan_bytes;
hy_status hy_advise_bytes(const hy_subject *subject, const hy_settings *settings,
                          const hy_plan_choice *choice, hy_plan_bytes *out);

/* One change that needs less, held against the plan at hand. */
typedef struct hy_advice {
    char key[32], from[32], to[32];
    int64_t device_bytes, host_bytes; /* freed */
} hy_advice;
#define HY_ADVICE_MAX 16
/* All that there are, cheap ones first: those that change no bit of the result or cost little time. */
hy_status hy_advise_less(const hy_subject *subject, const hy_plan *plan,
                         hy_advice out[HY_ADVICE_MAX], int32_t *count);
