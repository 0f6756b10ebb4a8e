/* request.h: what a plan is made for: a plan request, and the functions that plan it.
 *
 * A request holds settings, model, device, ranks, limits, and the decisions that must not change because the
 * run is in progress or resumed. It is made once and then only read: to plan something else, change a copy.
 * hy_plan_make turns it into a plan. Nothing here knows a run. */
#pragma once

#include "config/settings.h"
#include "optim/optimizer.h"
#include "phases/table.h"
#include "plan/choose_types.h"
#include "plan/sizer.h"
#include "state/rows.h"

/* How a step is split: a resumed run keeps it, so that every bit stays the same. Batch 0: not known. */
typedef struct hy_step_split {
    int64_t batch, accum, loss_chunks;
} hy_step_split;

/* Decisions that must be kept: of a run in progress, of a resumed run, or of an attempt before this one. */
typedef struct hy_plan_fixed {
    bool has_level, has_fp8, has_stage; /* false: open */
    hy_precision_level level;
    hy_fp8_use fp8; /* the matmuls that are faster in fp8 */
    int32_t zero_stage;
    hy_step_split split;
    bool prediction_is_disabled; /* until a paired fork shows that it pays */
} hy_plan_fixed;

typedef struct hy_plan_request {
    const hy_settings *settings;
    hy_model *model;
    hy_backend *backend;
    const hy_custom_types *custom; /* types of a custom model; NULL: the model is ours */
    struct {
        int32_t rank, count; /* count 0: there is one */
        bool is_staged;      /* what goes between ranks passes through pinned memory */
    } ranks;
    int32_t sharers;      /* ranks on this machine; 0 or 1: one */
    int32_t card_sharers; /* ranks on this card */
    bool has_doc_starts;  /* document masks are given with every batch */
    bool is_plan;         /* --plan: limits may be those of another machine */
    hy_plan_fixed fixed;
    /* Limits: */
    uint64_t chunk_budget;         /* by which losses are cut into chunks; 0: all of the device */
    uint64_t device_cap, host_cap; /* a larger plan was refused by the system; 0: none */
    uint64_t host_held; /* of a run in progress: host memory that it has; it counts as free */
} hy_plan_request;

/* request.c: measures what the request leaves open (matmuls in fp8, the chunk budget) and writes it there; for
 * ranks that are not here it becomes that of the rank with the largest shard. HY_ERR_INPUT: the settings do
 * not go together. Afterwards the request is only read. */
hy_status hy_plan_request_complete(hy_plan_request *request);
/* The same request for a run that has a plan: precision level, stage and prediction stay as they are now. */
hy_plan_request hy_plan_request_keeping(const hy_plan_request *request, const hy_plan *plan);

/* What is decided before any choice is looked at: types, optimizer, predictor, offload strategy and stage at a
 * precision level. HY_ERR_INPUT: the settings do not go with it. */
hy_status hy_plan_begin(const hy_plan_request *request, const hy_precision_level *level,
                        hy_plan *out);
/* At the level that is fixed, or else at the finest that the settings allow. */
hy_status hy_plan_begin_finest(const hy_plan_request *request, hy_plan *out);
/* Which rows such a plan has. */
hy_rows_spec hy_plan_rows(const hy_plan_request *request, const hy_plan *plan);

/* Places may be chosen: there is a device apart, or a budget that stands for one. */
static inline bool hy_request_streams(const hy_plan_request *r) {
    return r->backend->facts.is_gpu || r->settings->memory.max_gpu_mem > 0;
}

/* fp8.c: which matmuls are in fp8: by measurement if the device is here, else all that it can do; of those
 * that are fixed, the ones that this device can do. */
hy_fp8_use hy_fp8_choose(const hy_plan_request *request, const hy_types *types);
/* A sentence if fp8 was asked for and no matmul is in fp8; else NULL. */
const char *hy_fp8_why_none(const hy_plan_request *request, const hy_types *types);
/* A sentence that names the matmuls that are not in fp8. */
void hy_fp8_describe(const hy_params *params, const hy_fp8_use *use, char *out, size_t size);

/* ---- rates.c, budget.c: the machine ------------------------------------------------------------- */

/* By data sheets and rules of thumb, at once; or measured where the device is here, in part of a second. */
hy_rates hy_plan_nominal_rates(const hy_backend *backend);
hy_rates hy_plan_measured_rates(const hy_plan_request *request);

/* Of a card's free memory this much is left alone: code that is loaded when it first runs, and what other
 * programs ask for later. */
#define HY_CARD_RESERVE (256u << 20)

/* How much may be used: what the user allows, or what is free less a reserve; 0: not known. */
uint64_t hy_budget_device(const hy_plan_request *request);
uint64_t hy_budget_host(const hy_plan_request *request);
uint64_t hy_budget_disk(const hy_settings *settings); /* UINT64_MAX: no limit */

/* Micro-batches that are read ahead, and the pinned bytes they take. */
int64_t hy_data_depth(const hy_plan_request *request, int64_t accum);
uint64_t hy_data_bytes(const hy_plan_request *request, int64_t batch, int64_t accum);

/* Refuses what does not fit: HY_ERR_INPUT with what is short and by how much. */
hy_status hy_budget_check(const hy_plan_request *request, const hy_plan *plan);

/* ---- problem.c: planning ------------------------------------------------------------------------- */

/* A problem with the sizer and the rows behind it; must not be moved. */
typedef struct hy_plan_setup {
    hy_rows rows;
    hy_sizer sizer;
    hy_plan_problem problem;
} hy_plan_setup;

/* Into how many chunks the loss of Full is cut by a choice. */
int32_t hy_plan_loss_chunks(const hy_plan_request *request, const hy_plan *basis,
                            const hy_plan_choice *choice);
void hy_pass_spec_init(hy_pass_spec *spec, const hy_plan_request *request, const hy_plan *plan);
/* `basis` has what hy_plan_begin decides, and outlives the set-up. passes: shared by set-ups of one request
 * and the same rates; NULL: its own. */
hy_status hy_plan_setup_begin(hy_plan_setup *setup, const hy_plan_request *request,
                              const hy_plan *basis, const hy_rates *rates, hy_pass_memo *passes);
void hy_plan_setup_end(hy_plan_setup *setup);

/* levels.c: the fastest plan that fits, with reasons; if nothing fits, what would change that. */
hy_status hy_plan_make(const hy_plan_request *request, hy_plan *plan, hy_plan_facts *facts);
/* Whether anything fits, small types included. HY_ERR_INPUT: the settings do not go together. */
hy_status hy_plan_can_fit(const hy_plan_request *request, const hy_rates *rates, bool *fits);
/* `basis` with another choice: nothing is timed and nothing chosen. `out` may be `basis`. */
hy_status hy_plan_with(const hy_plan_request *request, const hy_plan *basis,
                       const hy_plan_choice *choice, hy_plan *out);
/* The plan with this choice at the level and stage that the request fixes, offload strategy included. */
hy_status hy_plan_at(const hy_plan_request *request, const hy_plan_choice *choice, hy_plan *out);
/* The plan's figures as hybrid.h reports them. */
void hy_plan_tell(const hy_plan_request *request, const hy_plan *plan, hy_plan_facts *facts);

/* Whether the offload strategy goes with the choice of a plan; one that would do nothing becomes none. */
hy_status hy_offload_settle(const hy_rows *rows, hy_plan *plan);
/* columns.c: the placement table of a plan, into the ledger. */
void hy_plan_columns(const hy_rows *rows, const hy_plan *plan, hy_ledger *ledger);
/* The column of one phase. */
void hy_plan_column(const hy_rows *rows, const hy_plan *plan, const hy_phase_row *phase,
                    hy_ledger *ledger);
/* Where optimizer state goes while a phase runs. */
hy_offload hy_plan_offload_in(const hy_plan *plan, const hy_phase_row *phase);
/* Device bytes of forward-only passes in a phase: all together, and of these in lent memory. */
typedef struct hy_forward_area {
    uint64_t activations, workspace, rings;
    uint64_t lent_activations, lent_workspace;
} hy_forward_area;
hy_forward_area hy_plan_forward_area(const hy_plan *plan, const hy_phase_row *phase);

/* ---- advice.c: what would save -------------------------------------------------------------------- */

/* Small sets of changes that make it fit, into facts->changes; each was tried. */
hy_status hy_advise_fit(const hy_plan_request *request, const hy_plan *plan, const hy_rates *rates,
                        hy_plan_facts *facts);

/* Where a step is short beside the copies it waits for: what a longer one would give, as a reason. */
hy_status hy_advise_tokens(const hy_plan_request *request, const hy_plan *plan,
                           const hy_rates *rates, hy_plan_facts *facts);

/* What `plan` would take with other settings and another choice, at its precision level. */
typedef struct hy_plan_bytes {
    int64_t device, host; /* host: beside the device's, also where both are one memory */
    double seconds;       /* of a step, by rules of thumb */
} hy_plan_bytes;
hy_status hy_advise_bytes(const hy_plan_request *request, const hy_plan *plan,
                          const hy_settings *settings, const hy_plan_choice *choice,
                          hy_plan_bytes *out);

/* One change that needs less, held against the plan at hand. */
typedef struct hy_advice {
    char key[32], from[32], to[32];
    int64_t device_bytes, host_bytes; /* freed */
} hy_advice;
#define HY_ADVICE_MAX 16
/* All that there are, cheap ones first: those that change no bit of the result or cost little time. */
hy_status hy_advise_less(const hy_plan_request *request, const hy_plan *plan,
                         hy_advice out[HY_ADVICE_MAX], int32_t *count);
