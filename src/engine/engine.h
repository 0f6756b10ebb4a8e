/* engine.h: what runs a model: device, state with its places, work area, update.
 *
 * The engine knows neither data sets nor phases' reasons nor run folders: it is told a phase and
 * batches. A run (src/trainer), evaluation and decoding (src/infer) stand on it. */
#ifndef HY_ENGINE_ENGINE_H
#define HY_ENGINE_ENGINE_H

#include "config/choices.h"
#include "hybrid.h"
#include "kernels/nvml.h"
#include "model/model.h"
#include "optim/optimizer.h"
#include "phases/predictor.h"
#include "plan/needs.h"
#include "plan/tiles.h"

/* The rows of the state table. */
typedef enum hy_row_id {
    HY_ROW_MASTER,  /* the weights that are updated */
    HY_ROW_WORKING, /* their 16-bit copy */
    HY_ROW_GRADS,
    HY_ROW_OPTIM, /* arrays of the optimizer: as many as it has */
    HY_ROW_SLOW = HY_ROW_OPTIM + HY_OPTIM_ARRAYS_MAX, /* what the predictor keeps */
    HY_ROW_SNAPSHOT = HY_ROW_SLOW + HY_PREDICTOR_SLOTS,
    HY_ROW_AVERAGE,
    HY_ROW_CANDIDATE, /* proposed weights, made unit by unit */
    HY_ROW_COUNT
} hy_row_id;

/* Device buffers that every pass uses. */
typedef struct hy_pass_buffers {
    int32_t *tokens, *targets;  /* (B,T) of the largest plan */
    int32_t *doc_starts;        /* (B,T), NULL when the data has no documents to keep apart */
    float *losses;              /* (B,T) */
    float *rope;                /* (T, D/2, 2), NULL without rope */
    double *loss_sum;           /* (1) f64 */
    double *square_sum;         /* (1) f64 */
    double *dots;               /* (3) f64: of HY_OP_DIFF_DOT */
    float *clip;                /* (2) fp32 */
    hy_tensor reduce_workspace; /* for sums and norms */
} hy_pass_buffers;

/* A forward-only batch on the host: pinned, so that copies run beside everything else. */
typedef struct hy_staging {
    int32_t *tokens, *targets; /* (B,T) of the largest plan */
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

/* The weights that are updated, and a 16-bit working copy when a phase computes in another type. */
typedef struct hy_precisions {
    hy_dtype of[HY_PHASE_COUNT];
    hy_dtype master; /* of the weights that are updated */
    hy_dtype slots;  /* of what the predictor keeps */
    hy_dtype low;    /* the 16-bit type of the run */
    bool has_low;    /* there is a working copy */
} hy_precisions;

/* How the classes of a run lie; the predictor's in tiles. */
typedef struct hy_state_layouts {
    hy_layout master, low, grads;
    hy_layout optim[HY_OPTIM_ARRAYS_MAX]; /* as many as the optimizer has */
    hy_layout candidate, slot, snapshot, tail;
} hy_state_layouts;

/* Bytes that are live in true steps and not in Predict, gradients apart. */
typedef struct hy_step_column {
    hy_place place; /* of activations */
    uint64_t activations;
    uint64_t workspace; /* on the device, with the rings of gradients and optimizer state */
} hy_step_column;

/* An update that is not applied to all units yet: kept until the next step comes to them. */
typedef struct hy_pending_update {
    hy_optimizer optimizer;
    bool is_on_gather; /* updates wait for the next step */
    bool is_pending;
    bool is_new; /* the gradients of a step are whole, and it was not begun yet */
    hy_optimizer_step step;
    hy_dtype pending_dtype; /* what the step computed with */
    hy_optimizer_cursor at; /* how far it has come */
    hy_dtype dtype;         /* what the present step computes with */
    hy_unit_hook hook;
} hy_pending_update;

typedef struct hy_row {
    hy_store store;
} hy_row;

/* What lives from step to step, and the memory it lies in. */
typedef struct hy_state {
    hy_row row[HY_ROW_COUNT];
    hy_state_layouts layouts;
    hy_tiles tiles;
    hy_arena device;  /* what lives on the device */
    hy_arena pinned;  /* what does not */
    hy_arena rings;   /* device: what it passes through */
    hy_arena kept;    /* pinned: what the predictor keeps */
    hy_arena staging; /* pinned: between disk and device */
    hy_spill *spill;  /* the file of what lives on disk; NULL: nothing does */
    uint64_t spill_used;
} hy_state;

/* Where passes work. */
typedef struct hy_work {
    hy_batch_plan *train[2]; /* [0] fp32, [1] 16 bits; NULL where no phase needs it */
    hy_batch_plan *eval[2], *guard[2];
    hy_arena arena, ring_arena;
    hy_batch_bytes train_bytes, eval_bytes; /* live in true steps, and in Predict */
    uint64_t ring_bytes;                    /* of the predictor's rings, live in Predict */
    bool rings_are_used;                    /* since training last had their room */
    hy_step_column column;
    hy_arena activation_arena; /* pinned: what layers keep, where it waits there */
    hy_store activations;
    hy_pass_buffers buffers;
    hy_step_result *result; /* pinned */
    hy_staging staging[2];  /* one is filled while the other is computed */
    size_t staging_rows;
    double *guard_losses; /* of the guard's sequences, before and after */
    bool is_sizing;       /* plans are only made to be counted */
    bool is_gone;         /* the work area is gone and could not be had again */
} hy_work;

/* The optimizer's state in Predict. */
typedef struct hy_optim_trip {
    hy_offload strategy;
    char *host; /* where it goes, or its 8-bit form */
    bool is_away, is_restore_begun;
    hy_event *is_back;    /* on the device again */
    uint64_t bytes;       /* all of it */
    int64_t batches_left; /* forward-only batches still to come in this Predict step */
} hy_optim_trip;

/* How proposed weights are made. */
typedef struct hy_candidate {
    hy_formula formula;
    bool is_average;
    hy_dtype dtype;
} hy_candidate;

typedef struct hy_engine {
    hy_backend *backend;
    hy_stream *compute, *copies, *returns; /* copies come up, returns go down to the host */
    hy_nvml_watch *nvml;                   /* GPU: its power and temperature; NULL: nobody tells */
    hy_model *model;
    hy_precisions types;
    hy_predictor predictor;
    bool has_snapshot, has_average, snapshot_is_valid;
    hy_ledger ledger;
    hy_ledger ring_ledger; /* of the rings' arena alone: rings count only while Predict runs */
    hy_memory_needs needs;
    hy_state state;
    bool is_low_current;
    hy_work work;
    bool is_in_predict; /* which of them is live */
    hy_optim_trip optim;
    hy_candidate candidate;
    hy_pending_update update;
    uint64_t
        chunk_budget; /* by which losses are cut into chunks: as in the first sitting; 0: open */
    uint64_t device_cap, host_cap; /* a plan that could not be had: less than this; 0: none */
    uint64_t host_bytes;           /* all host memory that was planned; forks have what is left */
    double host_waited;            /* seconds this thread stood still for copies, compute idle */
    uint64_t bytes_moved;          /* since the start of this sitting */
} hy_engine;

static inline hy_store *hy_store_of(const hy_engine *e, int row) {
    return (hy_store *)&e->state.row[row].store;
}

/* Arrays of the optimizer's state: rows from HY_ROW_OPTIM on. */
static inline int hy_optim_arrays(const hy_engine *e) {
    return hy_optimizer_arrays(&e->update.optimizer);
}

#endif
