/* unit.h: a unit's computation as a static list of ops over slots.
 *
 * A model is a sequence of units: embedding, blocks, head. Units with the same computation have
 * one kind; blocks may have several. Each kind is written once as data: its slots (tensors with
 * a role and a shape rule) and two lists of ops, forward and backward (builder.h). Everything else
 * is derived from these lists: what is kept, what can be recomputed and by which ops, how much
 * memory a pass needs, and the execution itself. There are no pointers here, and no sizes that
 * depend on the batch. */
#pragma once

#include "kernels/kernels.h"
#include "model/param_layout.h"

#define HY_UNIT_SLOTS 256
#define HY_UNIT_OPS 128
typedef int16_t hy_slot_id;
#define HY_NO_SLOT 0 /* slot 0 is never used, so an unset position is an absent tensor */

typedef enum hy_slot_role {
    HY_SLOT_ACTIVATION,    /* computed by forward; backward may read it */
    HY_SLOT_GRADIENT,      /* computed and used only in backward */
    HY_SLOT_PARAM,         /* a weight of the unit */
    HY_SLOT_PARAM_GRAD,    /* its gradient */
    HY_SLOT_RESIDUAL_IN,   /* residual entering the unit, (N,C) */
    HY_SLOT_RESIDUAL_OUT,  /* residual leaving the unit, (N,C) */
    HY_SLOT_RESIDUAL_GRAD, /* gradient of the residual, updated in place in backward */
    HY_SLOT_GIVEN          /* from outside: tokens, targets, losses, ... */
} hy_slot_role;

typedef enum hy_given {
    HY_GIVEN_TOKENS,       /* (N) i32 */
    HY_GIVEN_TARGETS,      /* (N) i32 */
    HY_GIVEN_DOC_STARTS,   /* (N) i32, may be absent */
    HY_GIVEN_TOKEN_LOSSES, /* (N) fp32: of answers */
    HY_GIVEN_REFERENCE,    /* (N) fp32: of answers, may be absent */
    HY_GIVEN_POLICY,       /* (N,4) fp32: hy_policy_token, of answers with rewards */
    HY_GIVEN_LOSSES,       /* (N) fp32; those after it do not have a row per token */
    HY_GIVEN_ROPE,         /* (context, R/2, 2) fp32, of the full or the local table */
    HY_GIVEN_QUERY,        /* (context) fp32: factors of queries by position */
    HY_GIVEN_LARGEST,      /* (1) fp32: largest magnitude of a linear's input, kept for backward */
    /* (3) f64 of the unit's HY_SEEN, may be absent: statistics of the conversion to fp8 */
    HY_GIVEN_SEEN,
    HY_GIVEN_DROPOUT,    /* (2) i32: seed of the micro-batch */
    HY_GIVEN_LOSS_STATS, /* f64: what HY_OP_PREFERENCE or HY_OP_POLICY adds to */
    HY_GIVEN_COUNT
} hy_given;

/* How a slot's shape follows from the batch. */
typedef enum hy_slot_rows {
    HY_ROWS_TOKENS,     /* (N, cols), or (N) when cols is 0 */
    HY_ROWS_LSE,        /* (B, cols, T) */
    HY_ROWS_TRANSPOSED, /* (cols, N) */
    HY_ROWS_FIXED,      /* (fixed_rows, cols) */
    HY_ROWS_ONE         /* (1) */
} hy_slot_rows;

/* The group that an activation belongs to, for the user's recompute setting. */
typedef enum hy_keep_group {
    HY_KEEP_CHEAP = 1,     /* outputs of norms and activation functions */
    HY_KEEP_ATTENTION = 2, /* qkv, attention output, log-sum-exp */
    HY_KEEP_MLP = 4,       /* the mlp's wide tensor */
    HY_KEEP_RESIDUAL = 8,  /* the residual inside the block, row statistics */
    HY_KEEP_ALL = 15
} hy_keep_group;

/* The groups that the backward pass recomputes, for each value of the setting. */
typedef enum hy_recompute {
    HY_RECOMPUTE_AUTO = -1, /* left to the planner */
    HY_RECOMPUTE_NONE,
    HY_RECOMPUTE_NORM,
    HY_RECOMPUTE_ATTENTION,
    HY_RECOMPUTE_MLP,
    HY_RECOMPUTE_ALL,
    HY_RECOMPUTE_COUNT
} hy_recompute;

int hy_recompute_groups(hy_recompute recompute); /* hy_keep_group bits */

typedef struct hy_slot {
    hy_slot_role role;
    hy_slot_rows rows;
    int32_t cols;
    int32_t fixed_rows;
    bool is_fp32; /* statistics; other slots have the type of activations */
    hy_dtype fp8; /* HY_E4M3 or HY_E5M2: fp8 codes instead; 0: no codes */
    hy_keep_group group;
    hy_param_kind param;
    hy_given given;
    /* HY_GIVEN_LARGEST: number of the matrix; HY_GIVEN_SEEN: offset in HY_SEEN; HY_GIVEN_ROPE:
     * number of the table */
    int8_t at;
} hy_slot;

/* Consecutive ops that a plan may run in tiles: all of them on some rows, then on the next rows. No
 * row may depend on another, except in sums over rows, which are gradients of parameters. */
typedef enum hy_range {
    HY_RANGE_NONE,
    HY_RANGE_LOSS, /* logits, loss and their gradients: always in tiles, at least one */
    HY_RANGE_MLP,
    HY_RANGE_COUNT
} hy_range;

typedef struct hy_unit_op {
    hy_op_kind kind;
    hy_op_attr attr; /* batch, sequence and loss scale are set when it is bound */
    hy_slot_id slot[HY_OP_TENSORS];
    hy_range range;
    bool is_adapter; /* the product of an adapter, which hy_batch_input.skips_adapters leaves out */
} hy_unit_op;

typedef enum hy_unit_part { HY_PART_EMBEDDING, HY_PART_BLOCK, HY_PART_HEAD } hy_unit_part;

/* The properties, besides the shape, that decide the lists of a unit. Units of one kind have equal
 * traits. */
typedef struct hy_unit_traits {
    hy_unit_part part;
    bool is_linear; /* a block's attention is linear */
    int32_t window; /* of a block's attention; 0: none */
    bool is_sparse; /* a block's attention: block-sparse */
    hy_rope_table rope;
    uint64_t trained; /* a bit for each trained hy_param_kind: backward computes its gradient */
    hy_dtype stored[HY_LINEARS]; /* of each frozen matrix: its quantised type; otherwise fp32 */
    uint32_t in_16_bits;         /* hy_linear_bit: matrices that a group keeps out of fp8 */
    bool passes_back;            /* a unit below is trained: the residual's gradient is needed */
    hy_fp8_use fp8;              /* a block's fp8 matmuls; only in the kinds of a batch plan */
    hy_loss loss;                /* of the head */
} hy_unit_traits;

_Static_assert(HY_P_KIND_COUNT <= 64, "a kind of parameter has a bit");

typedef struct hy_unit {
    const char *name;
    hy_unit_traits traits;
    hy_slot slots[HY_UNIT_SLOTS];
    int32_t slot_count;
    hy_unit_op forward[HY_UNIT_OPS], backward[HY_UNIT_OPS];
    int32_t forward_count, backward_count;
} hy_unit;

/* Of a unit of the shape, if everything is trained, in fp32. */
hy_unit_traits hy_unit_traits_of(const hy_shape *shape, int32_t unit);
/* How the head's logits become those of the probabilities, in losses and in sampling:
 * factor * logit, or with softcap c of c tanh(factor * logit / c). */
typedef struct hy_head_logits {
    float factor;  /* 0: 1 */
    float softcap; /* 0: none */
} hy_head_logits;
/* The temperature of the loss comes after the softcap. */
hy_head_logits hy_head_logits_of(const hy_shape *shape, const hy_loss *loss);
/* Writes the lists of a kind (builder.h). The head's backward list includes its forward: logits
 * exist only tile by tile, so loss and gradient are computed together, and training runs only
 * backward there. Backward ops without a needed gradient are omitted: a unit with nothing trained
 * in it or below it has none. */
void hy_unit_init(hy_unit *unit, const hy_shape *shape, const hy_unit_traits *traits);
bool hy_unit_traits_equal(const hy_unit_traits *a, const hy_unit_traits *b);

/* Does the op read or write (HY_ACCESS_...) the slot? */
bool hy_unit_op_uses(const hy_unit_op *op, int slot, int access);
