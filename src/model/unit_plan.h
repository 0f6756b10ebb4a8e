/* unit_plan.h: what follows from a unit's lists for one size of micro-batch.
 *
 * For each pass: which ops run, and where every slot lies. Slots that backward reads are kept, one
 * copy per block, unless their group is to be recomputed; then the forward ops that make them
 * again, and no others, run as late as they can. All other slots share scratch memory, packed by
 * the time they live. Recomputed values have the same bits, so what is kept never changes a result.
 * Where the backend can take an activation function into the matmul beside it, two ops become one;
 * not in the forward pass of training, whose activations could then not be made again with the same
 * bits. Codes in fp8 that a pass has no use for are not made. */
#pragma once

#include "model/unit.h"

typedef enum hy_pass {
    HY_PASS_FORWARD,  /* training: keeps what backward wants */
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
    bool fuses_gelu;    /* the backend takes gelu, and its backward, into a matmul */
} hy_batch_size;

#define HY_PASS_OPS 128 /* forward ops that are run again among them */

typedef struct hy_pass_plan {
    const hy_unit_op *ops[HY_PASS_OPS];
    const void *prepared[HY_PASS_OPS]; /* the backend's plan of each op */
    int32_t op_count;
    bool uses_params;               /* an op reads weights of the unit */
    uint64_t offset[HY_UNIT_SLOTS]; /* in scratch, of slots that are not kept */
    uint64_t scratch_bytes;
    uint64_t workspace_bytes; /* the most that one of its ops wants for itself */
} hy_pass_plan;

#define HY_OWN_OPS 24

typedef struct hy_unit_plan {
    const hy_unit *unit;
    hy_batch_size size;
    bool is_kept[HY_UNIT_SLOTS];
    uint64_t kept_offset[HY_UNIT_SLOTS];
    uint64_t kept_bytes;
    hy_pass_plan pass[HY_PASS_COUNT];
    hy_unit_op own[HY_OWN_OPS]; /* ops that stand for two of the unit's lists, or make less */
    int32_t own_count;
} hy_unit_plan;

void hy_unit_plan_init(hy_unit_plan *plan, const hy_unit *unit, const hy_batch_size *size);

/* Shape and type of a slot at this size, without data; parameters have none here. */
hy_tensor hy_unit_slot_tensor(const hy_unit_plan *plan, int slot);
/* All of its bytes; codes have their scale behind them. */
uint64_t hy_unit_slot_bytes(const hy_unit_plan *plan, int slot);
