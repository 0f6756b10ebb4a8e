/* layout.h: the position of each tensor of a class.
 *
 * A class (weights, grads, m, ...) is a list of units. A unit is contiguous and moves as a whole;
 * its tensors are aligned to 256 bytes. Every class has its own layout, because types differ
 * between and within classes, and a class may hold only some parameters. A unit without any of them
 * is empty: it has no bytes. */
#pragma once

#include <stdbool.h>

#include "kernels/tensor.h"

#define HY_ALIGNMENT 256

typedef struct hy_layout_item {
    int32_t unit;
    hy_dtype dtype;
    int64_t count;   /* number of elements */
    int64_t begin;   /* with several ranks: first element of the parameter; otherwise 0 */
    int32_t block;   /* quantised: elements that share a scale; the scales follow the values */
    int32_t group;   /* as in hy_quant; 0: the scales are fp32 */
    uint64_t offset; /* from the start of its unit; set by hy_layout_init */
} hy_layout_item;

/* Where a unit of a class that streams is kept. */
typedef enum hy_unit_fixed {
    HY_UNIT_OPEN,   /* resident or not, as rings decide */
    HY_UNIT_STAYS,  /* resident, always */
    HY_UNIT_STREAMS /* never resident */
} hy_unit_fixed;

typedef struct hy_layout {
    int32_t unit_count, item_count;
    hy_layout_item *items; /* in the given order */
    uint64_t *unit_offset; /* from the start of the class */
    uint64_t *unit_bytes;
    uint8_t *fixed;   /* (unit_count) hy_unit_fixed; NULL: all units are open */
    uint64_t bytes;   /* of the whole class */
    bool is_even;     /* rings have one buffer size: no unit counts as large */
    bool keeps_first; /* unit 0 alone uses the large buffer and stays there between two visits */
    bool has_small;   /* small units have smaller buffers; blocks use the others */
    /* The item of each parameter, -1: none; NULL: every parameter has one, in order. */
    int32_t *item_of;
    int32_t param_count;
    /* With several ranks: one rank's part of every unit, cut by bytes. unit_bytes and unit_offset
     * describe the part; tensors keep their position in the whole unit. NULL: not cut. */
    uint64_t *whole_offset; /* of each unit, from the start of the whole class */
    uint64_t *part_begin;   /* of its part, from the start of the whole unit */
} hy_layout;

/* `items` has unit, dtype, count, block and group of each tensor, with units in ascending order.
 * Copied. */
hy_status hy_layout_init(hy_layout *layout, const hy_layout_item *items, int32_t item_count,
                         int32_t unit_count);
/* The class holds some of `param_count` parameters: `item_of` is the item of each, or -1.
 * Copied. */
hy_status hy_layout_set_items(hy_layout *layout, const int32_t *item_of, int32_t param_count);
/* The item of a parameter; -1: not in this class. */
static inline int32_t hy_layout_item_of(const hy_layout *layout, int32_t param) {
    return layout->item_of ? layout->item_of[param] : param;
}
/* Fixes where units are kept. Copied. */
hy_status hy_layout_fix(hy_layout *layout, const uint8_t *fixed);
hy_status hy_layout_copy(hy_layout *layout, const hy_layout *from);
/* Changes the type of all tensors. The new type must not be wider than the widest that rings were
 * made for. */
void hy_layout_retype(hy_layout *layout, hy_dtype dtype);
/* Keeps one rank's part of every unit. It is for classes whose units are gathered again before any
 * op uses them. All parts have the same size, except for HY_ALIGNMENT
 * bytes, whatever types and tensors they cut. */
hy_status hy_layout_cut(hy_layout *layout, int32_t rank, int32_t count);
void hy_layout_fini(hy_layout *layout);

static inline uint64_t hy_align(uint64_t bytes) {
    return (bytes + HY_ALIGNMENT - 1) & ~(uint64_t)(HY_ALIGNMENT - 1);
}

/* Where a rank's part of a unit of `bytes` begins, which is where the part of the previous rank
 * ends. */
static inline uint64_t hy_layout_cut_at(uint64_t bytes, int32_t rank, int32_t count) {
    return bytes / HY_ALIGNMENT * (uint64_t)rank / (uint64_t)count * HY_ALIGNMENT;
}
/* The start of a unit, or of this rank's part of it, in the whole class. */
static inline uint64_t hy_layout_unit_at(const hy_layout *layout, int32_t unit) {
    return layout->part_begin ? layout->whole_offset[unit] + layout->part_begin[unit]
                              : layout->unit_offset[unit];
}

/* Where the scales of a tensor begin, from its own start, and how many scales `count` elements
 * have. */
static inline uint64_t hy_layout_scales_at(const hy_layout_item *item) {
    return hy_align(hy_dtype_bytes(item->dtype, item->count));
}
static inline int64_t hy_layout_scales(const hy_layout_item *item, int64_t count) {
    return item->block ? (count + item->block - 1) / item->block : 0;
}
static inline uint64_t hy_layout_scale_bytes(const hy_layout_item *item) {
    return hy_scale_bytes(hy_layout_scales(item, item->count), item->group);
}
/* All bytes of a tensor. */
static inline uint64_t hy_layout_item_bytes(const hy_layout_item *item) {
    return hy_layout_scales_at(item) + hy_align(hy_layout_scale_bytes(item));
}

/* Elements that share a scale in our 8-bit format, and the bytes of `count` values with their
 * scales. */
#define HY_QUANT_BLOCK 256
#define HY_QUANT_SIGNED_ZERO 128 /* the signed quantised value that represents zero */
static inline uint64_t hy_quant_bytes(int64_t count) {
    uint64_t blocks = ((uint64_t)count + HY_QUANT_BLOCK - 1) / HY_QUANT_BLOCK;
    return hy_align((uint64_t)count) + hy_align(blocks * sizeof(float));
}
