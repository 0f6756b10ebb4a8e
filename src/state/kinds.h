/* kinds.h: what each kind of state row is, in one const table (kinds.c).
 *
 * A kind holds everything about a row that does not depend on the run: what it holds, where its
 * place is chosen, how long its values last, and what phases, paired tests, checkpoints and
 * ranks do with it. Code that treats rows differently reads the kind. Everything that depends on
 * the run (number type, shards, the caller's memory) is derived in rows.c from the kind and
 * hy_rows_spec, and stored in the row. */
#pragma once

#include "optim/optimizer.h"
#include "phases/predictor.h"
#include "state/placement.h"

typedef enum hy_row_id {
    HY_ROW_MASTER,  /* the weights that are updated */
    HY_ROW_WORKING, /* their 16-bit copy, if a phase reads one */
    HY_ROW_FP8,     /* the blocks' copy with fp8 matrices, for steps in fp8 */
    HY_ROW_FROZEN,  /* weights that are not trained */
    HY_ROW_GRADS,
    HY_ROW_OPTIM, /* arrays of the optimizer */
    HY_ROW_SLOW =
        HY_ROW_OPTIM + HY_OPTIM_ARRAYS_MAX, /* buffers of the predictor: slow weights, momentum */
    HY_ROW_SNAPSHOT = HY_ROW_SLOW + HY_PREDICTOR_BUFFERS, /* the weights before the last jump */
    HY_ROW_AVERAGE,                                       /* a sum of weights over the last steps */
    HY_ROW_CANDIDATE,       /* proposed weights, computed unit by unit and never kept */
    HY_ROW_PARTIAL,         /* with several ranks: this rank's gradients of a micro-batch */
    HY_ROW_GATHERED,        /* with several ranks: whole units of sharded weights */
    HY_ROW_GATHERED_FROZEN, /* and of sharded frozen weights */
    HY_ROW_DECODED,         /* units of quantised frozen weights, decoded for a caller */
    HY_ROW_COUNT
} hy_row_id;

/* Depths of rings that are not part of a choice. */
#define HY_TILE_RING_DEPTH 3 /* one tile arrives, one is used, one leaves */
#define HY_CANDIDATE_DEPTH 3 /* a tied head holds two units while the next is computed */
#define HY_PARTIAL_DEPTH 2   /* one unit is computed while one is sent */
#define HY_GATHERED_DEPTH 4  /* as the candidate, and one unit is received */
#define HY_DECODED_DEPTH 2   /* a caller may hold two units */
#define HY_FROZEN_DEPTH 3    /* one unit is used, one is received; a tied head also has its table */

/* The source of a row's values, and how long they last. */
typedef enum hy_row_life {
    HY_LASTING,   /* kept from step to step: copied if the row moves */
    HY_DERIVED,   /* copied again when its source has changed */
    HY_PER_STEP,  /* begun anew in every step */
    HY_ON_DEMAND, /* units are computed in a ring of the work area when a pass needs them */
    HY_EXCHANGED  /* units are gathered, reduced or decoded in its own ring */
} hy_row_life;

typedef enum hy_row_need {
    HY_NEEDED_ALWAYS,
    HY_NEEDED_BY_STEPS, /* not used in phases without optimizer steps */
    HY_NEEDED_BY_JUMPS  /* not kept while prediction waits for a paired test, unless the average
                         * needs it */
} hy_row_need;

/* Which ranks have what of it. */
typedef enum hy_row_sharding {
    HY_WHOLE,           /* every rank has all of it; tiles cover this rank's slices */
    HY_SHARDED_STATE,   /* from ZeRO stage 1: slices of its parameters */
    HY_SHARDED_WEIGHTS, /* in stage 3: slices of its parameters */
    HY_SHARDED_BYTES    /* in stage 3: a range of each unit's bytes, because it is never updated */
} hy_row_sharding;

typedef struct hy_state_kind {
    const char *holds; /* in messages: "memory for ..." */
    hy_class cls;
    hy_param_set set; /* which parameters it covers */
    int32_t state;    /* HY_PLAN_*: its place in a choice; -1: see hy_row_place */
    int32_t source;   /* the row that it is derived from, -1: none */
    hy_row_life life;
    hy_row_need need;
    hy_row_sharding sharding;
    bool is_tiled;           /* stored in tiles (tiles.h), because only formulas read it */
    bool is_callers;         /* of a custom model: in the caller's memory */
    bool is_restored;        /* restored at the end of a paired test */
    int32_t ring_depth;      /* 0: the choice's */
    const char *file, *name; /* in a checkpoint: file and prefix of tensor names; NULL: not saved */
} hy_state_kind;

/* One row id may have several kinds. Without a working copy, passes read the master
 * (HY_KIND_WEIGHTS). If weights are gathered from other ranks, every pass computes their fp8 copy
 * again (HY_KIND_FP8_GATHERED). */
typedef enum hy_state_kind_id {
    HY_KIND_WEIGHTS, /* HY_ROW_MASTER, where passes read it */
    HY_KIND_MASTER,  /* HY_ROW_MASTER beside a working copy */
    HY_KIND_WORKING,
    HY_KIND_FP8,
    HY_KIND_FP8_GATHERED,
    HY_KIND_FROZEN,
    HY_KIND_FROZEN_BASE, /* the base model of adapters is named in checkpoints, not stored */
    HY_KIND_GRADS,
    HY_KIND_OPTIM,
    HY_KIND_SLOW,
    HY_KIND_SNAPSHOT,
    HY_KIND_AVERAGE,
    HY_KIND_CANDIDATE,
    HY_KIND_PARTIAL,
    HY_KIND_GATHERED,
    HY_KIND_GATHERED_FROZEN,
    HY_KIND_DECODED,
    HY_KIND_COUNT
} hy_state_kind_id;

extern const hy_state_kind hy_state_kinds[HY_KIND_COUNT];
