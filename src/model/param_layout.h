/* param_layout.h: in which types parameters are stored, and how a class of memory is laid out over
 * them.
 *
 * Frozen matrices may be stored as quantised values with scales (kernels/coded.h); matmuls in fp8
 * read a copy of the trained ones. Stores, plans and files follow these layouts. */
#pragma once

#include "model/params.h"

typedef enum hy_param_set { HY_SET_ALL, HY_SET_TRAINABLE, HY_SET_FROZEN } hy_param_set;

/* The type in which a parameter is stored where the others are of `dtype`. Frozen matrices of
 * blocks are stored as frozen_codes, unless they stay real; with int8 so is the table that tokens
 * are looked up in. The head, which is most delicate, and a table that it shares are not. */
hy_dtype hy_params_stored(const hy_params *params, int32_t index, hy_dtype dtype);

/* Elements that share a scale where a parameter is stored in this quantised type; 0: it cannot be.
 * */
int32_t hy_param_block(const hy_param *param, hy_dtype dtype);
/* Blocks that share a pair in scales of two levels (hy_quant): as many as the type allows, or the
 * largest power of two that divides the blocks of each piece. 0: the type has fp32 scales. */
int32_t hy_param_group(const hy_param *param, hy_dtype dtype);

/* The item of a parameter that is stored in this type. */
hy_layout_item hy_params_item(const hy_params *params, int32_t index, hy_dtype dtype);
/* The layout of a class in which every parameter of a set has one tensor of this type, or of the
 * type it is stored in. 8-bit state (HY_U8) has a scale for 256 elements; small parameters, often
 * delicate (biases, norms), are fp32 then. */
hy_status hy_params_layout(const hy_params *params, hy_param_set set, hy_dtype dtype,
                           hy_layout *out);

/* What a parameter has in a class that is not shaped like the parameters. */
typedef struct hy_param_extent {
    int64_t count; /* elements; 0: none */
    bool is_exact; /* fp32, whatever type the others have */
} hy_param_extent;
/* The layout of such a class: `extents` has one for each parameter. */
hy_status hy_params_extents_layout(const hy_params *params, const hy_param_extent *extents,
                                   hy_dtype dtype, hy_layout *out);

/* ---- fp8 ------------------------------------------------------------------------------------- */

/* Which matmuls of the blocks are in fp8 (kernels/fp8.h): a bit for each matrix, by hy_linear_bit.
 * */
typedef struct hy_fp8_use {
    uint32_t weights;  /* matmuls that read the matrix: forward, and the gradient of their input */
    uint32_t grads;    /* the matmul that makes the gradient of the matrix */
    hy_dtype gradient; /* of the gradients that go into them: HY_E4M3 or HY_E5M2 */
    bool is_fast;      /* forward sums may have fewer bits than fp32 has */
    bool is_frozen;    /* frozen matrices are stored in fp8: `weights` counts for them too */
} hy_fp8_use;

static inline bool hy_uses_fp8(const hy_fp8_use *use) { return use->weights || use->grads; }

/* Statistics of a unit's conversions to fp8: HY_OP_TO_FP8's three figures of inputs, then of
 * gradients. */
#define HY_SEEN 6
#define HY_SEEN_GRADIENTS 3

/* The matrices whose matmuls could be in fp8: those that are trained in some block, and for
 * `weights` the frozen ones too where they are stored in fp8. */
hy_fp8_use hy_params_fp8_possible(const hy_params *params);
/* The layout of a copy of the blocks' trained weights for passes in fp8: fp8 for the matrices that
 * `use` reads so, bf16 for all else. */
hy_status hy_params_fp8_layout(const hy_params *params, const hy_fp8_use *use, hy_layout *out);
/* The type that this copy has of a parameter; HY_DTYPE_COUNT: it does not have it. */
hy_dtype hy_params_fp8_stored(const hy_params *params, int32_t index, const hy_fp8_use *use);
