/* request.h: plan requests, and the functions that turn a request into a plan.
 *
 * A request holds settings, model, device, ranks, limits, and the decisions that must not change
 * because the run is in progress or resumed. It is complete after hy_plan_request_complete and then
 * only read: to plan something else, change a copy. A replan replaces it. Trainer, record and
 * inference use this header. */
#pragma once

#include "config/derived.h"
#include "config/settings.h"
#include "optim/optimizer.h"
#include "phases/table.h"
#include "plan/choose_types.h"
#include "plan/sizer.h"
#include "state/rows.h"

/* How hy_plan_make makes a plan:
 *
 * 1. request.c: hy_plan_begin decides what does not depend on places: number types, optimizer,
 *    predictor, offload strategy and ZeRO stage, at one precision level.
 * 2. problem.c: request and decisions become a problem: which values are open, how much memory
 *    there is (budget.c), how fast the machine is (rates.c), what ranks send (traffic.c).
 * 3. search.c tries the open values: micro-batch, recomputation, places, rings. For each choice
 *    sizer.c counts bytes and cost.c estimates the seconds of a step. The fastest that fits wins.
 *    loan.c then lends idle memory to validation.
 * 4. levels.c repeats this for smaller number types if the finest do not fit without streaming or
 *    recomputing.
 * 5. answers.c makes room for answers that are generated between steps.
 * 6. reasons.c and advice.c explain the plan. columns.c writes its table of places. */

/* How a step is split: a resumed run keeps the split, so that all bits stay the same. Batch 0:
 * not known. */
typedef struct hy_step_split {
    int64_t batch, accum, loss_chunks, mlp_chunks;
} hy_step_split;

/* Decisions that must be kept: of a running or resumed run, or of an earlier attempt. */
typedef struct hy_plan_fixed {
    bool has_level, has_fp8, has_stage; /* false: open */
    hy_precision_level level;
    hy_fp8_use fp8; /* the matmuls that are faster in fp8 */
    int32_t zero_stage;
    hy_step_split split;
    bool prediction_awaits_test; /* until a paired test shows a benefit */
} hy_plan_fixed;

typedef struct hy_plan_request {
    const hy_settings *settings;
    hy_model *model;
    hy_backend *backend;
    const hy_custom_types *custom; /* types of a custom model; NULL: a library model */
    struct {
        int32_t rank, count; /* count 0: there is one */
        bool is_staged;      /* traffic between ranks passes through pinned memory */
    } ranks;
    int32_t sharers;      /* ranks on this machine; 0 or 1: one */
    int32_t card_sharers; /* ranks on this card */
    bool has_doc_starts;  /* document masks are given with every batch */
    bool is_plan;         /* --plan: limits may be those of another machine */
    /* The ops of the chosen plan may be measured: memory is free, and no other rank chooses
     * algorithms. */
    bool times_ops;
    bool ignores_unfit; /* for advice: of a plan that does not fit, only this matters */
    /* Makes the model of other settings, for advice; NULL: the model stays. */
    hy_status (*make_model)(const hy_settings *settings, hy_model **out);
    hy_plan_fixed fixed;
    /* Limits: */
    uint64_t chunk_budget; /* device bytes that determine the loss chunks; 0: the whole device */
    uint64_t device_cap, host_cap; /* limits after the system refused a larger plan; 0: none */
    uint64_t host_held;            /* host memory that a running run holds; it counts as free */
    uint64_t area;                 /* least bytes of the area of passes (answers.c) */
} hy_plan_request;

/* request.c: measures what the request leaves open (fp8 matmuls, the chunk budget) and stores it in
 * the request. If ranks are only planned (--plan), the request becomes that of the rank with the
 * largest shard. HY_ERR_INPUT: the settings conflict. Afterwards the request is only read. */
hy_status hy_plan_request_complete(hy_plan_request *request);
/* The same request for a run that has a plan: precision level, stage and prediction stay the
 * same. */
hy_plan_request hy_plan_request_keeping(const hy_plan_request *request, const hy_plan *plan);

/* Begins a plan: decides types, optimizer, predictor, offload strategy and stage at a precision
 * level, before any choice is compared. HY_ERR_INPUT: the settings conflict with the level. */
hy_status hy_plan_begin(const hy_plan_request *request, const hy_precision_level *level,
                        hy_plan *out);
/* As above, at the fixed level, or else at the finest that the settings allow. */
hy_status hy_plan_begin_finest(const hy_plan_request *request, hy_plan *out);
/* The rows that a run with this plan has. */
hy_rows_spec hy_plan_rows(const hy_plan_request *request, const hy_plan *plan);

/* May places be chosen? There is a separate device, or a budget that simulates one. */
static inline bool hy_request_streams(const hy_plan_request *r) {
    return r->backend->facts.is_gpu || r->settings->memory.max_gpu_mem > 0;
}

/* Is the reference of answers computed by a pass with the adapters off before each micro-batch's
 * own? Otherwise it is in the data, or there is none. */
static inline bool hy_request_has_reference_pass(const hy_plan_request *r) {
    const hy_loss *loss = &r->model->loss;
    return loss->kind == HY_LOSS_POLICY ? hy_loss_has_reference(loss)
                                        : hy_settings_reference_is_inline(r->settings);
}

/* The place of a class of state that the settings request; a paged optimizer's state is on the host
 * unless they say more. HY_PLACE_AUTO: open. */
hy_place hy_request_place(const hy_plan_request *request, int cls);
/* May the planner choose which layers stay on the device? Not if the user sets a place off it:
 * then the whole class is there. */
bool hy_request_keeps_layers(const hy_plan_request *request, const hy_plan *basis);

/* Device bytes that the plan leaves to a caller's passes: what was measured, and a margin, because
 * allocators round and batches differ. 0: none, or not known. */
#define HY_CALLER_MARGIN 32
static inline uint64_t hy_caller_planned(const hy_plan_request *r) {
    uint64_t bytes =
        r->custom && r->custom->caller_bytes > 0 ? (uint64_t)r->custom->caller_bytes : 0;
    return bytes + bytes / HY_CALLER_MARGIN;
}

/* The planned speed; 0: not known, because the passes of a custom model are not ours. */
static inline double hy_request_tokens_per_second(const hy_plan_request *r, const hy_plan *plan) {
    return hy_model_has_passes(r->model) ? plan->cost.tokens_per_second : 0;
}

/* fp8.c: the matmuls that use fp8: measured if the device is available, else all that it
 * supports; of fixed matmuls, those that this device supports. */
hy_fp8_use hy_fp8_choose(const hy_plan_request *request, const hy_types *types);
/* Why fp8 was requested but no matmul uses it, as a sentence; NULL if that is not so. */
const char *hy_fp8_why_none(const hy_plan_request *request, const hy_types *types);
/* A sentence that names the matmuls without fp8. */
void hy_fp8_describe(const hy_params *params, const hy_fp8_use *use, char *out, size_t size);

/* ---- rates.c, budget.c: the machine ---------------------------------------------------------- */

/* Rates from data sheets and rules of thumb; or measured in a fraction of a second if the device
 * is available. */
hy_rates hy_plan_nominal_rates(const hy_backend *backend);
hy_rates hy_plan_measured_rates(const hy_plan_request *request);

/* This much of a card's free memory stays unused, for code that is loaded on first use and for
 * other programs. */
#define HY_CARD_RESERVE (256u << 20)

/* Usable memory: the user's limit, or the free memory minus a reserve; 0: not known; 1: none. */
uint64_t hy_budget_device(const hy_plan_request *request);
uint64_t hy_budget_host(const hy_plan_request *request);
uint64_t hy_budget_disk(const hy_settings *settings); /* UINT64_MAX: no limit */

/* The number of micro-batches in memory, with those read ahead, and their pinned bytes. */
int64_t hy_data_depth(const hy_plan_request *request, int64_t accum);
uint64_t hy_data_bytes(const hy_plan_request *request, int64_t batch, int64_t accum);

/* HY_ERR_INPUT if the plan does not fit, with the memory that is short and by how much. */
hy_status hy_budget_check(const hy_plan_request *request, const hy_plan *plan);

/* ---- problem.c: planning --------------------------------------------------------------------- */

/* The number of loss chunks of Full for a choice. */
int32_t hy_plan_loss_chunks(const hy_plan_request *request, const hy_plan *basis,
                            const hy_plan_choice *choice);
void hy_pass_spec_init(hy_pass_spec *spec, const hy_plan_request *request, const hy_plan *plan);
/* Makes the problem of a request, with its sizer. `basis` has the decisions of hy_plan_begin and
 * outlives the problem. passes: shared by problems of one request with the same rates; NULL: its
 * own. */
hy_status hy_plan_problem_begin(hy_plan_problem *problem, const hy_plan_request *request,
                                const hy_plan *basis, const hy_rates *rates, hy_pass_memo *passes);
void hy_plan_problem_end(hy_plan_problem *problem);

/* levels.c: the fastest plan that fits, with reasons; if nothing fits, changes that would help. */
hy_status hy_plan_make(const hy_plan_request *request, hy_plan *plan, hy_plan_facts *facts);
/* The same plan with the least device memory, at the level of `plan`: until a caller's passes are
 * measured. */
hy_status hy_plan_make_lean(const hy_plan_request *request, hy_plan *plan, hy_plan_facts *facts);
/* A token with weights from host memory takes about as long as this many with weights on the device:
 * a rollout copies them if at least one in so many of its answers fits beside the copy. */
#define HY_COPY_GAIN 16
/* answers.c: for task grpo, a plan with room for answers if that saves time, at the level of `plan`,
 * which is the fastest without. */
hy_status hy_plan_answers(const hy_plan_request *request, const hy_rates *rates, hy_plan *plan,
                          hy_plan_facts *facts);
/* The plan with the smallest types that needs the least memory: does anything fit? HY_ERR_INPUT:
 * the settings conflict. */
hy_status hy_plan_can_fit(const hy_plan_request *request, const hy_rates *rates, hy_plan *out);
/* As hy_plan_make, with known rates, and without reasons and advice. */
hy_status hy_plan_fastest(const hy_plan_request *request, const hy_rates *rates, hy_plan *plan);
/* Searches for the fastest choice that fits, with the decisions of hy_plan_begin in `plan`. passes:
 * as above. */
hy_status hy_plan_search(const hy_plan_request *request, const hy_rates *rates,
                         hy_pass_memo *passes, hy_plan *plan);
/* Evaluates `basis` with another choice; with nominal rates; nothing is timed or searched. `out`
 * may be `basis`. */
hy_status hy_plan_with(const hy_plan_request *request, const hy_plan *basis,
                       const hy_plan_choice *choice, hy_plan *out);
/* Evaluates a choice at the request's fixed level (has_level must be set) and stage, with nominal
 * rates, and decides the offload strategy. */
hy_status hy_plan_at(const hy_plan_request *request, const hy_plan_choice *choice, hy_plan *out);
/* Fills in the figures that hybrid.h reports. */
void hy_plan_fill_facts(const hy_plan_request *request, const hy_plan *plan, hy_plan_facts *facts);

/* Checks the offload strategy against the choice of a plan; a strategy without effect becomes
 * none. */
hy_status hy_offload_decide(const hy_rows *rows, hy_plan *plan);
/* columns.c: the largest compute type of the phases that train. They share one area, so this type
 * decides its size. */
hy_dtype hy_plan_widest_step(const hy_plan *plan);
/* Writes the placement table of a plan to the ledger. */
void hy_plan_columns(const hy_rows *rows, const hy_plan *plan, hy_ledger *ledger);
/* The same for one phase. */
void hy_plan_column(const hy_rows *rows, const hy_plan *plan, const hy_phase_row *phase,
                    hy_ledger *ledger);
/* Where optimizer state goes while a phase runs. */
hy_offload hy_plan_offload_in(const hy_plan *plan, const hy_phase_row *phase);
/* Does a phase use the plan's loan? */
static inline bool hy_plan_borrows(const hy_plan *plan, const hy_phase_row *phase) {
    bool borrows_batch =
        phase->borrower == HY_BORROWS_BATCH || phase->borrower == HY_BORROWS_BATCH_JUMP;
    return plan->work.loan[1] && borrows_batch;
}
/* Device bytes of forward-only passes in a phase, without borrowed memory. A decoder may use all
 * of the training area. */
typedef struct hy_forward_area {
    uint64_t activations, workspace, rings;
} hy_forward_area;
hy_forward_area hy_plan_forward_area(const hy_plan *plan, const hy_phase_row *phase);
