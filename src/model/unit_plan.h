/* unit_plan.h: what follows from a unit's lists for one size of micro-batch.
 *
 * For each pass: the ops that run, and the memory of every slot. Slots that backward reads are
 * kept, one copy per block, unless their group is recomputed; then the necessary forward ops run
 * again, as late as possible. All other slots share scratch memory, packed by lifetime.
 * Recomputed values have the same bits, so keeping never changes a result. If the backend can
 * fuse an activation function into a matmul, two ops become one; not in the forward pass of
 * training, because its activations could then not be recomputed with the same bits. fp8 values
 * that a pass does not use are not computed.
 *
 * A range of ops that runs in tiles (hy_range) is a loop: slots that only its ops use have the rows
 * of a tile and are never kept, so backward computes them again inside the loop. What the loop
 * needs from outside exists before it begins. */
#pragma once

#include "model/unit.h"

typedef enum hy_pass {
    HY_PASS_FORWARD,  /* training: keeps what backward reads */
    HY_PASS_BACKWARD, /* recomputes, then the backward list */
    HY_PASS_EVAL,     /* forward only: keeps nothing */
    HY_PASS_COUNT
} hy_pass;

/* The size a plan is for. */
typedef struct hy_batch_size {
    int32_t batch, seq;                /* B, T */
    int32_t tile_rows[HY_RANGE_COUNT]; /* of a range's tile; the last may be shorter; 0: none */
    hy_dtype dtype;                    /* of activations */
    int recompute;                     /* hy_keep_group bits that are not kept */
    bool fuses_gelu;                   /* the backend fuses gelu, and its backward, into a matmul */
} hy_batch_size;

#define HY_PASS_OPS 256 /* includes the forward ops that backward runs again */

typedef struct hy_pass_plan {
    const hy_unit_op *ops[HY_PASS_OPS];
    const void *prepared[HY_PASS_OPS];       /* the backend's plan of each op */
    const void *prepared_short[HY_PASS_OPS]; /* ... on the rows of a shorter last tile */
    int32_t op_count;
    bool uses_params;               /* an op reads weights of the unit */
    uint64_t offset[HY_UNIT_SLOTS]; /* in scratch, of slots that are not kept */
    uint64_t scratch_bytes;
    uint64_t workspace_bytes; /* the largest workspace of its ops */
} hy_pass_plan;

#define HY_OWN_OPS 24

typedef struct hy_unit_plan {
    const hy_unit *unit;
    hy_batch_size size;
    bool is_kept[HY_UNIT_SLOTS];
    hy_range tile_of[HY_UNIT_SLOTS]; /* of a slot with the rows of a tile: its range */
    uint64_t kept_offset[HY_UNIT_SLOTS];
    uint64_t kept_bytes;
    hy_pass_plan pass[HY_PASS_COUNT];
    hy_unit_op own[HY_OWN_OPS]; /* ops that replace two of the unit's lists, or compute less */
    int32_t own_count;
} hy_unit_plan;

void hy_unit_plan_init(hy_unit_plan *plan, const hy_unit *unit, const hy_batch_size *size);

/* Shape and type of a slot at this size, without data; parameters have none here. */
hy_tensor hy_unit_slot_tensor(const hy_unit_plan *plan, int slot);
/* Tiles of `each` rows. The last one may be shorter. */
static inline int32_t hy_tile_count(int64_t rows, int64_t each) {
    return (int32_t)((rows + each - 1) / each);
}
/* Tiles of a range; 1: it does not run in tiles. */
int32_t hy_unit_tiles(const hy_unit_plan *plan, hy_range range);
/* How often an op runs: once per tile; HY_OP_SPREAD reads only weights and runs once. */
int32_t hy_unit_op_tiles(const hy_unit_plan *plan, const hy_unit_op *op);
/* The end of the ops that run together in tiles, from op `first` of a pass; if that does not run in
 * tiles, the op after it. */
int32_t hy_unit_loop_end(const hy_unit_plan *plan, hy_pass pass, int32_t first);
/* The bytes of a slot, including the scale that follows codes. */
uint64_t hy_unit_slot_bytes(const hy_unit_plan *plan, int slot);
