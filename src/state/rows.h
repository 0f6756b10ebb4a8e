/* rows.h: the state table: one row for all state of a run, most of which lasts from step to step.
 *
 * A row has a kind (kinds.h), its run-dependent values (type, layout, shards), and its memory.
 * Code that allocates, counts, saves, restores, copies or moves state loops over the rows: there
 * is no other list of stores. The bytes of a choice are counted here, both for the planner and
 * for the actual allocation. */
#pragma once

#include "config/choices.h"
#include "state/kinds.h"
#include "state/tiles.h"
#include "state/types.h"

#define HY_DISK_BUFFERS 4 /* pinned buffers of a row on disk: two for reads, two for writes */

typedef struct hy_row {
    const hy_state_kind *kind; /* NULL: the run does not have this row */
    /* Run-dependent values; rows.c derives them from the kind and hy_rows_spec. */
    hy_dtype dtype;
    int32_t block;   /* 8-bit values in tiles: elements that share a scale; 0: no scales (grid.h) */
    bool is_signed;  /* 8-bit values with scales: signed or not, see HY_OP_QUANTIZE */
    bool is_sharded; /* this rank has a part of every unit */
    bool is_callers; /* in the caller's memory: nothing is allocated */
    bool is_optional; /* not kept while prediction waits for a paired test */
    const char *name; /* prefix of its tensors in a checkpoint */
    hy_layout layout;
    hy_layout whole; /* sharded: what all ranks have together */
    /* Its memory. */
    hy_store store;
    hy_arena backing; /* on the device all of it; in pinned memory the streamed part */
    hy_arena ring;    /* device: its ring, unless that is in the work area */
    hy_arena staging; /* pinned: between disk and device */
    uint64_t disk_at; /* its offset in the run's file */
    uint64_t version; /* counts changes */
    uint64_t made_of; /* derived: version of its source when it was computed; 0: never */
} hy_row;

typedef struct hy_rows {
    hy_row row[HY_ROW_COUNT];
    hy_tiles tiles;
    int32_t optim_count, slow_count;
    int32_t lowest_trained; /* unit */
    hy_shard shard;         /* with several ranks: the shards; count 0: no exchange */
    uint64_t arriving;      /* bytes of memory for incoming gradients of other ranks */
    uint64_t wire_staging;  /* pinned: bytes for exchanges between ranks */
    /* The predictor's 8-bit buffers are decoded for formulas, `piece` elements at a time, into
     * scratch memory next to the rings: the offset of each buffer there, and the end of the
     * last. */
    int64_t piece;
    uint64_t scratch[HY_PREDICTOR_BUFFERS + 1];
} hy_rows;

/* The rank of this process and the ZeRO stage: hy_row_sharding says what is sharded. Stages 1
 * and 2 are the same here, because gradients are summed into their shards when backward leaves a
 * unit. */
typedef struct hy_rank_spec {
    int32_t rank, count; /* 0: one rank; 1: one rank that exchanges with itself */
    int32_t stage;
    bool is_staged; /* exchanges between ranks pass through pinned memory */
} hy_rank_spec;

/* What decides which rows there are. */
typedef struct hy_rows_spec {
    hy_types types;
    hy_optimizer optimizer;
    int32_t slow_count; /* arrays that the predictor keeps */
    bool has_snapshot, has_average;
    bool is_custom;      /* weights and gradients are in the caller's memory, except as follows */
    bool sums_grads;     /* a custom model: gradients are summed in our own memory */
    bool keeps_weights;  /* a custom model: its weights are in our own memory, too */
    bool has_named_base; /* frozen weights stay in the model's own files, not in checkpoints */
    /* Units that no group places stay on the device, even if others of the class stream. */
    bool stays[HY_PLAN_STATES];
    hy_rank_spec ranks;
} hy_rows_spec;

hy_status hy_rows_init(hy_rows *rows, const hy_params *params, const hy_rows_spec *spec);
void hy_rows_fini(hy_rows *rows); /* frees layouts; the engine frees the stores */

/* The row of weights that forward passes of this type read. */
static inline hy_row_id hy_weights_row(const hy_types *types, hy_dtype step) {
    return hy_step_activations(step) == types->master ? HY_ROW_MASTER : HY_ROW_WORKING;
}

/* Its units are gathered, reduced or decoded in a ring. */
static inline bool hy_row_is_exchanged(const hy_row *row) {
    return row->kind && row->kind->life == HY_EXCHANGED;
}

/* Its ring is in the work area, which training uses at other times: the predictor's buffers and
 * the candidate. */
static inline bool hy_row_rings_in_work(const hy_row *row) {
    return row->kind && row->kind->state < 0 && !hy_row_is_exchanged(row);
}

/* The shards by which ranks exchange gradients; NULL: no exchanges. */
static inline const hy_shard *hy_rows_shard(const hy_rows *rows) {
    return rows->shard.count > 0 ? &rows->shard : NULL;
}

/* The type that a predictor's 8-bit values are decoded to: grid points are bf16 numbers. */
static inline hy_dtype hy_row_decoded(const hy_row *row) { return row->block ? HY_F32 : HY_BF16; }

/* Does the row have memory in this choice? False if only prediction needs it and prediction waits
 * for a paired test. */
static inline bool hy_row_is_used(const hy_row *row, const hy_plan_choice *choice) {
    return row->kind && !(row->is_optional && choice->prediction_awaits_test);
}

/* The place of a row in a choice; HY_NOWHERE: it is computed on demand. */
hy_place hy_row_place(const hy_row *row, const hy_plan_choice *choice);
/* Its bytes there: without resident layers, which are in the ring; a file adds padding. */
uint64_t hy_row_bytes(const hy_row *row, const hy_plan_choice *choice);
int32_t hy_row_ring_depth(const hy_row *row, const hy_plan_choice *choice);
/* The ring of a row that streams. */
hy_ring_plan hy_row_ring(const hy_row *row, const hy_plan_choice *choice);
/* Bytes of the ring that only steps need. Resident layers of optimizer state exist only in the
 * ring, so they are excluded. */
static inline uint64_t hy_row_step_ring(const hy_row *row, const hy_ring_plan *ring) {
    if (row->kind->need != HY_NEEDED_BY_STEPS) return 0;
    return ring->bytes - (row->kind->life == HY_LASTING ? ring->resident_bytes : 0);
}

/* Its device memory that is idle outside of training; for optimizer state on the device, only
 * after it has left (`has_left`). */
uint64_t hy_row_lent_bytes(const hy_row *row, const hy_plan_choice *choice, bool has_left);

/* Cached ring plans; NULL: no cache. */
typedef struct hy_ring_memo {
    hy_ring_plan *of[HY_ROW_COUNT];
} hy_ring_memo;

/* What the rows need in a choice. */
void hy_rows_need(const hy_rows *rows, const hy_plan_choice *choice, hy_ring_memo *memo,
                  hy_plan_state *out);

/* The bytes in a checkpoint, and those that a paired test restores. */
uint64_t hy_rows_saved_bytes(const hy_rows *rows, bool awaits_test);
uint64_t hy_rows_saved_frozen(const hy_rows *rows); /* part of them: frozen weights */
uint64_t hy_rows_forked_bytes(const hy_rows *rows);

/* Does an offload strategy move the optimizer's state to the host in Predict? */
static inline bool hy_offload_moves(hy_offload strategy) {
    return strategy == HY_OFFLOAD_CPU || strategy == HY_OFFLOAD_PINNED;
}
/* Bytes of the optimizer's state, and in 8 bits: what the strategy compress keeps in Predict. */
uint64_t hy_rows_optim_bytes(const hy_rows *rows);
uint64_t hy_offload_compressed_bytes(const hy_rows *rows);
