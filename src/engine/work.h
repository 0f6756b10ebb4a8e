/* work.h: where passes work: batch plans, activations, workspace and buffers.
 *
 * The area is taken for a plan and may be given back and taken again between steps. What is live in
 * it follows the phase (phases/table.h). Nothing in it outlives a step. */
#pragma once

#include "memory/store.h"
#include "phases/table.h"
#include "plan/sizer.h"

typedef struct hy_engine hy_engine;

/* Device buffers that every pass uses. */
typedef struct hy_pass_buffers {
    int32_t *tokens, *targets;  /* (B,T) of the largest micro-batch */
    int32_t *doc_starts;        /* (B,T), NULL when the data has no documents to keep apart */
    float *losses;              /* (B,T) */
    float *rope;                /* (T, D/2, 2), NULL without rope */
    double *loss_sum;           /* (1) f64 */
    double *square_sum;         /* (1) f64 */
    double *dots;               /* (3) f64: of HY_OP_DIFF_DOT */
    float *clip;                /* (2) fp32, and behind them (2) int32: the seed of dropout */
    double *seen;               /* (units, HY_SEEN) f64, NULL where no step is in fp8 */
    float *largest;             /* (units, HY_LINEARS) fp32, likewise; unit 0: of weights */
    hy_tensor reduce_workspace; /* for sums and norms */
} hy_pass_buffers;

/* Copies a batch of `rows` tokens to the device; doc_starts may be NULL. */
hy_status hy_work_send_batch(hy_engine *e, const int32_t *tokens, const int32_t *targets,
                             const int32_t *doc_starts, int64_t rows);
/* What every pass reads and writes: that batch, these weights, the frozen weights, the losses. */
hy_batch_input hy_work_input(hy_engine *e, hy_store *weights);

static inline int32_t *hy_dropout_seed(const hy_pass_buffers *b) {
    return (int32_t *)(void *)(b->clip + 2);
}

/* A forward-only batch on the host: pinned, so that copies run beside everything else. */
typedef struct hy_staging {
    int32_t *tokens, *targets; /* (B,T) of the largest micro-batch */
    int32_t *doc_starts;       /* (B,T) or NULL */
    float *losses;             /* (B,T) */
    hy_event *is_done;         /* its losses are back */
} hy_staging;

/* What comes back to the host after a step. */
typedef struct hy_step_result {
    double loss_sum;
    double dots[3];
    float clip[2];
} hy_step_result;

/* The memory of passes. In optimizer steps it holds training's parts; in Predict, evaluation's
 * and the predictor's rings. It holds nothing that outlives a step. */
typedef struct hy_work {
    hy_batch_plan *train[HY_PLAN_TYPES]; /* by hy_plan_index; NULL where no phase needs it */
    hy_batch_plan *eval[HY_PLAN_TYPES], *guard;
    hy_arena arena;  /* all of it, and its parts: */
    hy_arena passes; /* activations and workspace: what is pushed there changes with the phase */
    hy_arena data;   /* buffers */
    hy_arena
        lent[2]; /* in memory of rows: activations and workspace of a large forward-only batch */
    hy_arena ring_arena; /* in passes: rings of what the predictor keeps */
    char *scratch;       /* there: where its codes are decoded; NULL: it has none */
    bool rings_are_used; /* since training last worked there */
    hy_arena host_arena; /* pinned: what layers keep, where it waits there */
    hy_store activations;
    hy_pass_buffers buffers;
    hy_step_result *result; /* pinned */
    hy_staging staging[2];  /* one is filled while the other is computed */
    size_t staging_rows;
    double *seen;         /* pinned, (units, HY_SEEN): of the last step in fp8; NULL: none is */
    double *guard_losses; /* of the guard's sequences, before and after */
    bool is_gone;         /* it was given back and could not be taken again */
} hy_work;

hy_status hy_work_prepare(hy_engine *e); /* prepares batch plans; hy_work_take calls it if needed */
hy_status hy_work_take(hy_engine *e);    /* for e->plan */
void hy_work_release(hy_engine *e);
hy_status hy_work_give_back(hy_engine *e); /* in a run that goes on, for optimizer steps */
/* What is live changes with the phase: gradients and training's area, or evaluation's and the
 * rings. */
hy_status hy_engine_enter_phase(hy_engine *e, const hy_phase_row *phase);
const hy_phase_row *hy_engine_phase(const hy_engine *e);
/* Before training uses the area: what the rings changed goes to its backing store. */
hy_status hy_engine_return_rings(hy_engine *e);
/* The buffers that hy_work_close has counted, filled where they are constant; evaluation without a
 * plan takes them by itself. */
hy_status hy_work_take_buffers(hy_engine *e, hy_arena *arena, const hy_pass_spec *spec,
                               const hy_plan_work *work);
