/* rows.h: the state table: one row for everything that a run keeps from step to step.
 *
 * A row says what it is (class, type, layout, of which row it is made), where it is in each phase, and
 * under which name a checkpoint has it; the engine gives it a store. Whoever takes memory, counts it,
 * saves, restores, forks, settles or moves goes over the rows: there is no other list of stores. The bytes
 * of a choice are counted here, for the planner that compares choices and for the arenas that are taken. */
#pragma once

#include "optim/optimizer.h"
#include "phases/predictor.h"
#include "state/placement.h"
#include "state/tiles.h"
#include "state/types.h"

typedef enum hy_row_id {
    HY_ROW_MASTER,  /* the weights that are updated */
    HY_ROW_WORKING, /* their rounded copy, where a phase needs one */
    HY_ROW_FP8,     /* that of the blocks once more, matrices as codes in fp8, for steps in it */
    HY_ROW_FROZEN,  /* weights that are not trained */
    HY_ROW_GRADS,
    HY_ROW_OPTIM, /* arrays of the optimizer */
    HY_ROW_SLOW =
        HY_ROW_OPTIM + HY_OPTIM_ARRAYS_MAX, /* slow weights, and what else a predictor keeps */
    HY_ROW_SNAPSHOT = HY_ROW_SLOW + HY_PREDICTOR_BUFFERS, /* the weights before the last jump */
    HY_ROW_AVERAGE,                                       /* a sum of weights over the last steps */
    HY_ROW_CANDIDATE, /* proposed weights, made unit by unit and never kept */
    HY_ROW_PARTIAL, /* of several ranks: this one's gradients of a micro-batch, until they are summed */
    HY_ROW_GATHERED, /* of several ranks: weights that are kept as shards, whole while passes need them */
    HY_ROW_GATHERED_FROZEN, /* the same of those that are not trained */
    HY_ROW_COUNT
} hy_row_id;

#define HY_TILE_RING_DEPTH 3 /* one comes, one is used, one leaves */
#define HY_CANDIDATE_DEPTH 3 /* a tied head holds two units while the next is made */
#define HY_PARTIAL_DEPTH 2   /* one is computed while one is on the wire */
#define HY_GATHERED_DEPTH 4  /* as the candidate, and one is on the wire */
#define HY_FROZEN_DEPTH 3    /* one is used, one is on the wire; a tied head has its table too */
#define HY_DISK_BUFFERS 4    /* pinned buffers of a row on disk: two come, two go */

typedef struct hy_row {
    bool is_there;
    hy_class cls;
    hy_param_set set; /* which parameters it covers */
    hy_dtype dtype;
    int32_t state;     /* HY_PLAN_*: which place of a choice is its own; -1: predictor's, or none */
    int32_t source;    /* derived: the row it is made of; -1: it holds numbers of its own */
    bool is_tiled;     /* cut into tiles, because only formulas go over it (tiles.h) */
    int32_t block;     /* codes in tiles: elements that share a scale; 0: they have none (grid.h) */
    bool is_signed;    /* codes with scales: which, see HY_OP_QUANTIZE */
    bool is_for_steps; /* Predict does without */
    bool is_forked;    /* part of what a paired fork puts back */
    bool is_for_jumps; /* not kept while prediction stands aside */
    bool is_outside;   /* in a guest's memory: nothing is taken for it */
    bool is_sharded;   /* each rank has a part of every unit: slices of its parameters, */
    bool is_cut;       /* or a range of its bytes, because nobody updates it */
    bool is_wired;     /* made unit by unit in a ring of its own, from or for other ranks */
    const char *file, *name; /* of its tensors in a checkpoint; NULL: not saved */
    hy_layout layout;
    hy_layout whole; /* sharded: what all ranks have together */
    /* set by the engine */
    hy_store store;
    hy_arena backing; /* on the device all of it, in pinned memory what travels */
    hy_arena ring;    /* device: what it passes through, unless that lies in the work area */
    hy_arena staging; /* pinned: between disk and device */
    uint64_t disk_at; /* where it begins in the run's file */
    uint64_t version; /* counts changes */
    uint64_t made_of; /* derived: version of its source when it was made; 0: never */
} hy_row;

typedef struct hy_rows {
    hy_row row[HY_ROW_COUNT];
    hy_tiles tiles;
    int32_t optim_count, slow_count;
    int32_t lowest_trained; /* unit */
    hy_shard shard;         /* of several ranks: who has what; count 0: nothing is exchanged */
    uint64_t arriving;      /* bytes of memory in which others' gradients arrive */
    uint64_t wire_staging;  /* pinned: what passes through it on its way */
    /* Codes of the predictor's buffers are decoded for formulas, `piece` elements at a time, into scratch
     * memory that lies with the rings: where each buffer's begins there, and where the last ends. */
    int64_t piece;
    uint64_t scratch[HY_PREDICTOR_BUFFERS + 1];
} hy_rows;

/* Of several ranks, this one, and which rows are sharded: with stage 1 and 2 (the same here, because gradients are summed
 * into their shards as backward leaves a unit) gradients, state and master copy, with 3 weights too, those that
 * are not trained as well. What predictors keep is sharded in any stage. */
typedef struct hy_rank_spec {
    int32_t rank, count; /* 0: there is one; 1: one that exchanges with itself */
    int32_t stage;
    bool is_staged; /* what goes between ranks passes through pinned memory */
} hy_rank_spec;

/* What decides which rows there are. */
typedef struct hy_rows_spec {
    hy_types types;
    hy_optimizer optimizer; /* whose arrays are kept */
    int32_t slow_count;     /* arrays that the predictor keeps */
    bool has_snapshot, has_average;
    bool is_guest;   /* weights and gradients lie in the caller's memory, */
    bool sums_grads; /* but for a sum of the gradients */
    hy_rank_spec ranks;
} hy_rows_spec;

hy_status hy_rows_init(hy_rows *rows, const hy_params *params, const hy_rows_spec *spec);
void hy_rows_fini(hy_rows *rows); /* layouts; stores are the engine's to end */

/* Its ring lies in the work area, in turn with training: what the predictor keeps, and the candidate. */
static inline bool hy_row_rings_in_work(const hy_row *row) {
    return row->is_there && row->state < 0 && !row->is_wired;
}

/* The shard that gradients are summed by, and that of a row: NULL where it is whole. */
static inline const hy_shard *hy_rows_shard(const hy_rows *rows) {
    return rows->shard.count > 0 ? &rows->shard : NULL;
}

/* What the codes of a predictor's buffer are decoded to: grid points are bf16 numbers. */
static inline hy_dtype hy_row_decoded(const hy_row *row) { return row->block ? HY_F32 : HY_BF16; }

/* Prediction stands aside: nothing is kept for this row, on the device neither. */
static inline bool hy_row_is_aside(const hy_row *row, const hy_plan_choice *choice) {
    return row->is_for_jumps && choice->is_aside;
}

/* Where a row lives by a choice; HY_NOWHERE: it is made on demand. */
hy_place hy_row_place(const hy_row *row, const hy_plan_choice *choice);
/* Bytes of it there: without resident layers, which live in the ring; a file has borders of its own. */
uint64_t hy_row_bytes(const hy_row *row, const hy_plan_choice *choice);
int32_t hy_row_ring_depth(const hy_row *row, const hy_plan_choice *choice);
/* The ring of a row that lives elsewhere. */
hy_ring_plan hy_row_ring(const hy_row *row, const hy_plan_choice *choice);
/* Of it, what Predict does without: resident layers of the optimizer's state live there meanwhile. */
static inline uint64_t hy_row_step_ring(const hy_row *row, const hy_ring_plan *ring) {
    if (!row->is_for_steps) return 0;
    return ring->bytes - (row->file ? ring->resident_bytes : 0);
}

/* Ring plans that were asked for before, kept by who asks often; NULL: nobody keeps them. */
typedef struct hy_ring_memo {
    hy_ring_plan *of[HY_ROW_COUNT];
} hy_ring_memo;

/* What the rows need by a choice. */
void hy_rows_need(const hy_rows *rows, const hy_plan_choice *choice, hy_ring_memo *memo,
                  hy_plan_state *out);

/* All that a checkpoint holds of them, and all that a fork copies. */
uint64_t hy_rows_saved_bytes(const hy_rows *rows, bool is_aside);
uint64_t hy_rows_forked_bytes(const hy_rows *rows);
