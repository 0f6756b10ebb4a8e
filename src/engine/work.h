/* work.h: the work area: memory of passes, with batch plans, activations, workspace and buffers.
 *
 * The area is allocated for a plan; between steps it may be freed and allocated again for another
 * plan. The phase decides which parts of it are live (phases/table.h). Nothing in it outlives a
 * step. */
#pragma once

#include "memory/store.h"
#include "phases/table.h"
#include "plan/sizer.h"

typedef struct hy_engine hy_engine;

/* Device buffers that every pass uses. */
typedef struct hy_pass_buffers {
    int32_t *tokens, *targets; /* (B,T) of the largest micro-batch */
    int32_t *doc_starts;       /* (B,T), NULL if attention does not stop at documents */
    float *losses;             /* (B,T) */
    float *token_losses;       /* (B,T), of answers; NULL: the loss is of next tokens */
    float *reference;          /* (B,T), of answers; NULL: the loss has none */
    hy_policy_token *policy;   /* (B,T), of answers with rewards; or NULL */
    double *loss_stats;        /* (hy_loss_stats) f64, of answers; or NULL */
    float *rope;               /* (T, D/2, 2), NULL without rope */
    double *loss_sum;          /* (1) f64 */
    double *square_sum;        /* (1) f64 */
    double *dots;              /* (3) f64: of HY_OP_DIFF_DOT */
    float *clip;       /* (2) fp32: {norm, clip factor}, followed by the dropout seed (2 int32) */
    double *fp8_stats; /* (units, HY_SEEN) f64: fp8 statistics; NULL without fp8 */
    float *largest;    /* (units, HY_LINEARS) fp32: largest magnitudes; unit 0: of weights */
    hy_tensor reduce_workspace; /* for sums and norms */
} hy_pass_buffers;

/* Copies the arrays of a batch to the device, each of `rows` numbers; doc_starts, reference
 * and policy may be NULL. Without policy, answers with rewards have a loss of 0. */
hy_status hy_work_send_batch(hy_engine *e, const hy_batch *batch, int64_t rows);
/* What every pass reads and writes: that batch, these weights, the frozen weights, the losses. */
hy_batch_input hy_work_input(hy_engine *e, hy_store *weights);

/* Sets the statistics of the loss to zero, if it has any. */
hy_status hy_work_clear_stats(hy_engine *e);
/* Computes the reference of a batch of answers, with the adapters off, where the pass of `input` reads
 * it. */
hy_status hy_work_reference(hy_batch_plan *plan, const hy_batch_input *input);

static inline int32_t *hy_dropout_seed(const hy_pass_buffers *b) {
    return (int32_t *)(void *)(b->clip + 2);
}

/* A forward-only batch on the host, in pinned memory, so that copies overlap with compute. */
typedef struct hy_staging {
    int32_t *tokens, *targets; /* (B,T) of the largest micro-batch */
    int32_t *doc_starts;       /* (B,T) or NULL */
    float *reference;          /* (B,T), of pairs of answers whose reference is known; or NULL */
    float *losses;             /* (B,T) */
    hy_event *is_done;         /* recorded when the losses have been copied back */
} hy_staging;

/* What a step copies back to the host. */
typedef struct hy_step_result {
    double loss_sum;
    double dots[3];
    double loss_stats[HY_LOSS_STATS];
    float clip[2];
} hy_step_result;

/* The memory of passes. In optimizer steps it holds training's parts; in other phases, evaluation's
 * and in Predict also the predictor's rings. It holds nothing that outlives a step. */
typedef struct hy_work {
    hy_batch_plan *train[HY_PLAN_TYPES]; /* by hy_plan_index; NULL: no phase uses this type */
    hy_batch_plan *eval[HY_PLAN_TYPES], *guard;
    hy_arena arena;      /* the whole block; the next three are parts of it */
    hy_arena passes;     /* activations and workspace; the phase decides what is pushed there */
    hy_arena data;       /* buffers */
    hy_arena ring_arena; /* in `passes`: rings of the predictor's rows */
    hy_arena lent
        [2]; /* lent by rows, or by training's area: activations, workspace of a large forward-only batch */
    char *scratch;       /* in ring_arena: where 8-bit buffers are decoded; NULL: there are none */
    bool rings_are_used; /* ring_arena may hold changes that are not written back */
    hy_arena host_arena; /* pinned: activations that layers keep on the host */
    hy_store activations;
    hy_pass_buffers buffers;
    hy_step_result *result; /* pinned */
    hy_staging *staging;    /* two: one is filled while the other is computed; NULL: none */
    size_t staging_rows;
    double *fp8_stats;    /* pinned, (units, HY_SEEN): statistics of the last fp8 step; or NULL */
    double *guard_losses; /* losses of the guard's sequences, before and after a jump */
    bool is_gone;         /* the area was freed and could not be allocated again */
} hy_work;

hy_status hy_work_prepare(hy_engine *e); /* prepares batch plans; hy_work_take does it too */
hy_status hy_work_take(hy_engine *e);    /* allocates the area for e->plan */
void hy_work_release(hy_engine *e);      /* frees it */
/* Frees it in a run that goes on: finishes the update, writes rings back, enters Full before. */
hy_status hy_work_give_back(hy_engine *e);
/* Enters a phase. Training uses gradients and training's part of the area; other phases use the
 * part of forward-only batches, and the predictor's rings. If the phase borrows memory, this also
 * finishes the pending update, waits for all streams, and may move optimizer state to the host. */
hy_status hy_engine_enter_phase(hy_engine *e, const hy_phase_row *phase);
const hy_phase_row *hy_engine_phase(const hy_engine *e);
/* Writes back what the predictor's rings changed. Call it before training uses the area. */
hy_status hy_engine_return_rings(hy_engine *e);
/* Allocates the buffers that hy_work_total has counted, and fills the table of rotations.
 * Inference, which has no plan, calls it directly. */
hy_status hy_work_take_buffers(hy_engine *e, hy_arena *arena, const hy_pass_spec *spec,
                               const hy_plan_work *work);
