/* unit_plan.h: what follows from a unit's lists for one size of micro-batch.
 *
 * For each pass: the ops that run, and the memory of every slot. Slots that backward reads are
 * kept, one copy per block, unless their group is recomputed; then the necessary forward ops run
 * again, as late as possible. All other slots share scratch memory, packed by lifetime.
 * Recomputed values have the same bits, so keeping never changes a result. If the backend can
 * fuse an activation function into a matmul, two ops become one; not in the forward pass of
 * training, because its activations could then not be recomputed with the same bits. fp8 values
 * that a pass does not use are not computed. */
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
    int32_t batch, seq; /* B, T */
    int32_t chunk_rows; /* rows of a loss chunk; divides B T */
    hy_dtype dtype;     /* of activations */
    int recompute;      /* hy_keep_group bits that are not kept */
    bool fuses_gelu;    /* the backend fuses gelu, and its backward, into a matmul */
} hy_batch_size;

#define HY_PASS_OPS 256 /* includes the forward ops that backward runs again */

typedef struct hy_pass_plan {
    const hy_unit_op *ops[HY_PASS_OPS];
    const void *prepared[HY_PASS_OPS]; /* the backend's plan of each op */
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
    uint64_t kept_offset[HY_UNIT_SLOTS];
    uint64_t kept_bytes;
    hy_pass_plan pass[HY_PASS_COUNT];
    hy_unit_op own[HY_OWN_OPS]; /* ops that replace two of the unit's lists, or compute less */
    int32_t own_count;
} hy_unit_plan;

void hy_unit_plan_init(hy_unit_plan *plan, const hy_unit *unit, const hy_batch_size *size);

/* Shape and type of a slot at this size, without data; parameters have none here. */
hy_tensor hy_unit_slot_tensor(const hy_unit_plan *plan, int slot);
/* The bytes of a slot, including the scale that follows codes. */
uint64_t hy_unit_slot_bytes(const hy_unit_plan *plan, int slot);
