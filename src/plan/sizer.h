/* sizer.h: what a choice needs and how long it computes, from the model, the rows and the backend.
 *
 * A sizer belongs to one model, one set of types and one device. Batch plans are made only for
 * their sizes: the backend reports what ops need and prepares none. Results are cached. */
#pragma once

#include "model/model.h"
#include "plan/plan.h"
#include "state/rows.h"

/* Sizes of one pass, cached. */
#define HY_SIZED_PASSES 2048
typedef struct hy_sized_pass {
    int32_t batch, chunks, mlp_chunks, recompute_layers, ring_depth; /* key */
    hy_recompute recompute;
    bool offloads, is_eval;
    hy_dtype dtype, grad_dtype; /* end of the key */
    hy_batch_bytes bytes;
    double forward, backward; /* seconds of embedding and layers */
    double head;
} hy_sized_pass;

/* Cached sizes, shared by sizers that differ only in the types of the state. */
typedef struct hy_pass_memo {
    int32_t count;
    hy_sized_pass pass[HY_SIZED_PASSES];
} hy_pass_memo;

/* How fast ops are. */
typedef struct hy_plan_speed {
    hy_rates rates;
    double fp8; /* speed of fp8 matmuls relative to bf16 */
    /* attention, forward and backward: share of the rate of matmuls; it halves at half_seq
     * tokens */
    double attention[2], half_seq;
    double
        delta[2]; /* the gated delta rule, forward and backward: such a share; 0: none is known */
    double few_tiles;  /* size of a matmul's result, in tiles, at which its rate halves */
    double op_seconds; /* seconds of an empty op */
    hy_backend *clock; /* measures ops; NULL: times follow from the rates */
} hy_plan_speed;

/* Properties of passes that no choice changes; the same for the planner and the engine. */
typedef struct hy_pass_spec {
    hy_model *model;
    hy_backend *backend;
    int32_t seq;
    bool has_doc_starts;
    bool has_reference_pass; /* a forward pass without adapters before each micro-batch's own */
    /* device bytes that determine the loss chunks; 0: the whole device */
    uint64_t budget;
    hy_dtype types[HY_PLAN_TYPES]; /* training's compute types; the first is Full's */
    int type_count;
    hy_dtype eval_types[HY_PLAN_TYPES]; /* compute types of evaluation */
    int eval_type_count;
    hy_dtype grad_dtype;
    hy_fp8_use fp8;      /* matmuls in fp8 */
    int32_t eval_batch;  /* as requested; 0: as many training batches as fit */
    double guard_share;  /* share of a step's sequences that the guard measures */
    int32_t ranks;       /* 1 or more */
    uint64_t state_sums; /* hy_state_sums */
    uint64_t caller;     /* device bytes of a caller's own passes */
    uint64_t area;       /* least bytes of the area */
    /* the device has its own memory, which Evaluate may borrow, and there is one rank */
    bool lends;
} hy_pass_spec;

/* Workspace of reductions over gradients and weights. */
uint64_t hy_state_sums(const hy_optimizer *optimizer, const hy_params *params, hy_backend *backend,
                       hy_dtype grad_dtype);

/* Options of the batch plan for a choice; forward-only plans have their own size. */
hy_batch_options hy_pass_options(const hy_pass_spec *spec, const hy_plan_choice *choice,
                                 hy_dtype dtype, bool is_training);
/* The number of sequences that the guard measures in one pass, of all ranks together. */
uint64_t hy_guard_sequences(double guard_share, const hy_plan_choice *choice, int32_t ranks);

/* Counts the work area: begin with {0}, add every pass, close. */
void hy_work_add(hy_plan_work *work, const hy_batch_plan *plan);
void hy_work_total(hy_plan_work *work, const hy_pass_spec *spec, uint64_t rings);

/* The buffers in the area's data, in order. */
typedef enum hy_work_buffer {
    HY_BUFFER_TOKENS, /* one value per token: tokens, targets, document starts, losses */
    HY_BUFFER_TARGETS,
    HY_BUFFER_DOC_STARTS,
    HY_BUFFER_LOSSES,
    HY_BUFFER_TOKEN_LOSSES, /* of answers, likewise */
    HY_BUFFER_REFERENCE,
    HY_BUFFER_POLICY, /* four values per token */
    HY_BUFFER_LOSS_STATS,
    HY_BUFFER_LOSS_SUM,
    HY_BUFFER_SQUARE_SUM,
    HY_BUFFER_DOTS,
    HY_BUFFER_CLIP, /* clip factor, and the seed of dropout */
    HY_BUFFER_FP8,  /* statistics of values in fp8, and largest magnitudes */
    HY_BUFFER_ROPE, /* table of rotations */
    HY_BUFFER_SUMS, /* workspace of reductions */
    HY_BUFFER_COUNT
} hy_work_buffer;
/* The bytes of each buffer; 0: absent. */
void hy_work_buffers(const hy_pass_spec *spec, const hy_plan_work *work,
                     uint64_t bytes[HY_BUFFER_COUNT]);

typedef struct hy_sizer {
    hy_pass_spec spec;
    hy_offload
        offload; /* of the optimizer's state in Predict, and in Evaluate if its memory is lent */
    hy_plan_speed speed;
    hy_pass_memo *passes;
    bool owns_passes;
    hy_rows *rows;
    hy_ring_memo rings;
} hy_sizer;

/* The caller sets spec, offload and speed in `from`; it may set passes, which stays the caller's.
 * `rows`: which rows the run has. */
hy_status hy_sizer_create(const hy_sizer *from, const hy_rows_spec *rows, hy_sizer **out);
void hy_sizer_destroy(hy_sizer *z);
/* What a choice needs: bytes and seconds of passes; bytes of the state. */
hy_status hy_sizer_work(hy_sizer *z, const hy_plan_choice *choice, hy_plan_work *out);
void hy_sizer_state(hy_sizer *z, const hy_plan_choice *choice, hy_plan_state *out);
/* The number of loss chunks for this many bytes of logits at a time. */
int32_t hy_sizer_chunks(const hy_sizer *z, int32_t batch, uint64_t logits);
/* Measures the ops of a choice on the device and sets the seconds of passes in `work`. */
hy_status hy_sizer_clock(hy_sizer *z, const hy_plan_choice *choice, hy_plan_work *work);
/* Bytes and seconds of one pass: the caller sets which in `pass`; the rest is filled in. */
hy_status hy_sizer_pass(hy_sizer *z, hy_sized_pass *pass);
/* Bytes and seconds of a training pass that computes in this type (hy_types_step). */
hy_status hy_sizer_step(hy_sizer *z, const hy_plan_choice *choice, hy_dtype dtype,
                        hy_sized_pass *out);
/* loan.c: after places are chosen, more slices for Evaluate in memory that only steps need. */
#define HY_LOAN_AREA HY_ROW_COUNT /* the lender is training's area, not a row */
/* Bytes that the training area lends: all that training needs, except the predictor's rings at
 * its end. */
static inline uint64_t hy_work_lent_area(const hy_plan_work *work, uint64_t rings) {
    uint64_t area = hy_align(work->train.activations) + hy_align(work->train.workspace);
    return area > rings ? area - rings : 0;
}
int32_t hy_most_slices(const hy_pass_spec *spec, const hy_plan_work *work); /* at least 1 */
/* Sets slices and loan of a choice, and counts the area again. `work` is that of hy_sizer_work; a
 * second call gives the same result. */
hy_status hy_sizer_lend(hy_sizer *z, const hy_plan_choice *choice, hy_plan_work *work);

/* op_times.c: compute seconds of a pass's ops; an op that runs in tiles counts once per tile. */
hy_plan_speed hy_plan_speed_of(const hy_backend *backend, const hy_rates *rates);
double hy_plan_pass_seconds(const hy_batch_plan *plan, int32_t unit, hy_pass pass,
                            const hy_plan_speed *speed);
