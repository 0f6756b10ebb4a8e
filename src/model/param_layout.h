/* param_layout.h: the storage types of parameters, and the layout of a memory class over them.
 *
 * Frozen matrices may be stored as quantised values with scales (kernels/coded.h); fp8 matmuls
 * read a copy of the trained ones. Stores, plans and files follow these layouts. */
#pragma once

#include "model/params.h"

typedef enum hy_param_set { HY_SET_ALL, HY_SET_TRAINABLE, HY_SET_FROZEN } hy_param_set;

/* The type that a parameter's group, its files or the run request for frozen matrices; fp32: not
 * quantised. */
static inline hy_dtype hy_params_codes(const hy_params *params, int32_t index) {
    const hy_param *p = &params->list[index];
    if (hy_kind_stays_real(p->kind)) return HY_F32;
    if (p->own.frozen) return (hy_dtype)(p->own.frozen - 1);
    return p->stays_real ? HY_F32 : params->frozen_codes;
}
/* The storage type of a parameter if others have `dtype`. Frozen matrices of blocks are stored
 * as hy_params_codes, and so are those of a custom model, except embeddings and heads; its other
 * frozen parameters have their caller's type. With int8 the token table is quantised too, except a
 * table shared with the head. The head, which is the most sensitive, is not quantised. */
hy_dtype hy_params_stored(const hy_params *params, int32_t index, hy_dtype dtype);

/* Is it a frozen parameter that is stored in a quantised type? */
bool hy_params_are_coded(const hy_params *params, int32_t index);

/* Does a group place units of this class, and where besides the device? HY_NOWHERE: nowhere
 * else. */
bool hy_params_are_placed(const hy_params *params, int cls);
hy_place hy_params_away(const hy_params *params, int cls);

/* Elements that share a scale if a parameter is stored in this quantised type; 0: not possible. */
int32_t hy_param_block(const hy_param *param, hy_dtype dtype);
/* Blocks that share a pair of two-level scales (hy_quant): as many as the type allows, or the
 * largest power of two that divides the blocks of each piece. 0: the type has fp32 scales. */
int32_t hy_param_group(const hy_param *param, hy_dtype dtype);

/* The item of a parameter that is stored in this type. */
hy_layout_item hy_params_item(const hy_params *params, int32_t index, hy_dtype dtype);
/* The layout of a class with one tensor per parameter of a set, of this type or of the
 * parameter's storage type. 8-bit state (HY_U8) has one scale per 256 elements; small
 * parameters, which are often sensitive (biases, norms), are then fp32. */
hy_status hy_params_layout(const hy_params *params, hy_param_set set, hy_dtype dtype,
                           hy_layout *out);
/* The layout of quantised parameters after they are decoded for a caller. */
hy_status hy_params_decoded_layout(const hy_params *params, hy_layout *out);

/* A parameter's data in a class that does not have the parameters' shapes. */
typedef struct hy_param_extent {
    int64_t count; /* elements; 0: none */
    bool is_exact; /* fp32, whatever type the others have */
} hy_param_extent;
/* The layout of such a class: `extents` has one entry per parameter, and groups may set other types
 * (hy_param_own). */
hy_status hy_params_extents_layout(const hy_params *params, const hy_param_extent *extents,
                                   hy_dtype dtype, hy_layout *out);

/* ---- fp8 ------------------------------------------------------------------------------------- */

/* The matmuls of the blocks that use fp8 (kernels/fp8.h): one bit per matrix, by hy_linear_bit. */
typedef struct hy_fp8_use {
    uint32_t weights;  /* matmuls that read the matrix: forward, and the gradient of its input */
    uint32_t grads;    /* the matmul that makes the gradient of the matrix */
    hy_dtype gradient; /* type of incoming gradients: HY_E4M3 or HY_E5M2 */
    bool is_fast;      /* forward sums may have fewer bits than fp32 has */
    bool is_frozen;    /* frozen matrices are stored in fp8: `weights` includes them */
} hy_fp8_use;

static inline bool hy_uses_fp8(const hy_fp8_use *use) { return use->weights || use->grads; }

/* Statistics of a unit's conversions to fp8: HY_OP_TO_FP8's three figures for inputs, then for
 * gradients. */
#define HY_SEEN 6
#define HY_SEEN_GRADIENTS 3

/* Does a group, or its kind, keep the matmuls of a matrix out of fp8? */
static inline bool hy_param_in_16_bits(const hy_param *p) {
    return p->own.precision == 1 + HY_BF16 || hy_kind_stays_real(p->kind);
}
/* The matrices that could use fp8 matmuls: those trained in some block, and for `weights` also
 * the frozen ones stored in fp8. */
hy_fp8_use hy_params_fp8_possible(const hy_params *params);
/* The layout of a copy of the blocks' trained weights for fp8 passes: fp8 for the matrices in
 * `use`, bf16 for all others. */
hy_status hy_params_fp8_layout(const hy_params *params, const hy_fp8_use *use, hy_layout *out);
/* The type of a parameter in this copy; HY_DTYPE_COUNT: it is not in the copy. */
hy_dtype hy_params_fp8_stored(const hy_params *params, int32_t index, const hy_fp8_use *use);
