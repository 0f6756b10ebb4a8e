/* layout.h: where each tensor of a class lies.
 *
 * A class (weights, grads, m, ...) is a row of units; a unit is what moves as a whole and is
 * contiguous; tensors lie inside their unit on 256-byte borders. Every class has a layout of its own,
 * because types differ from class to class and inside one, and a class may hold some parameters only;
 * a unit that has none of them is empty: it has no bytes. */
#pragma once

#include <stdbool.h>

#include "kernels/tensor.h"

#define HY_ALIGNMENT 256

typedef struct hy_layout_item {
    int32_t unit;
    hy_dtype dtype;
    int64_t count;   /* elements, */
    int64_t begin;   /* of several ranks, from this one of the parameter on; else 0 */
    int32_t block;   /* codes: elements that share a scale; their scales lie behind them, */
    int32_t group;   /* as hy_quant says: 0 for fp32 */
    uint64_t offset; /* from the start of its unit; set by hy_layout_init */
} hy_layout_item;

typedef struct hy_layout {
    int32_t unit_count, item_count;
    hy_layout_item *items; /* in the order given */
    uint64_t *unit_offset; /* from the start of the class */
    uint64_t *unit_bytes;
    uint64_t bytes; /* of the whole class */
    bool is_even;   /* rings have one size of buffer: no unit counts as large */
    bool
        keeps_first; /* unit 0 has the large buffer for itself: it waits there between two visits */
    bool has_small;  /* small units have buffers of their size and leave the others to blocks */
    /* Which item belongs to each parameter, -1: none; NULL: all parameters have one, in their order. */
    int32_t *item_of;
    int32_t param_count;
    /* Of several ranks, one's part of every unit, cut by bytes: unit_bytes and unit_offset are those of the part, tensors
     * lie where they do in the whole. NULL: it is not cut. */
    uint64_t *whole_offset; /* of each unit, from the start of the whole class */
    uint64_t *part_begin;   /* of its part, from the start of the whole unit */
} hy_layout;

/* `items` gives unit, dtype, count, block and group of each tensor, units in rising order. Copied. */
hy_status hy_layout_init(hy_layout *layout, const hy_layout_item *items, int32_t item_count,
                         int32_t unit_count);
/* The class holds some of `param_count` parameters: `item_of` gives the item of each, or -1. Copied. */
hy_status hy_layout_set_items(hy_layout *layout, const int32_t *item_of, int32_t param_count);
/* The item of a parameter; -1: the class has none of it. */
static inline int32_t hy_layout_item_of(const hy_layout *layout, int32_t param) {
    return layout->item_of ? layout->item_of[param] : param;
}
hy_status hy_layout_copy(hy_layout *layout, const hy_layout *from);
/* All tensors have another type from now on, no wider than the widest that rings were made for. */
void hy_layout_retype(hy_layout *layout, hy_dtype dtype);
/* Leaves a rank's part of every unit: for classes that nobody computes with before all parts of a unit lie one behind the
 * other again. Parts are as large as each other, but for a line of memory, whatever types and tensors they cut. */
hy_status hy_layout_cut(hy_layout *layout, int32_t rank, int32_t count);
void hy_layout_fini(hy_layout *layout);

static inline uint64_t hy_align(uint64_t bytes) {
    return (bytes + HY_ALIGNMENT - 1) & ~(uint64_t)(HY_ALIGNMENT - 1);
}

/* Where a rank's part of a unit of so many bytes begins, and that of the rank before it ends. */
static inline uint64_t hy_layout_cut_at(uint64_t bytes, int32_t rank, int32_t count) {
    return bytes / HY_ALIGNMENT * (uint64_t)rank / (uint64_t)count * HY_ALIGNMENT;
}
/* Where a unit, or what there is of it, begins in the whole class. */
static inline uint64_t hy_layout_unit_at(const hy_layout *layout, int32_t unit) {
    return layout->part_begin ? layout->whole_offset[unit] + layout->part_begin[unit]
                              : layout->unit_offset[unit];
}

/* Where a tensor's scales begin, from its own start, and how many `count` elements have. */
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

/* Elements that share a scale in 8-bit codes of ours, and the bytes of so many codes with their scales. */
#define HY_QUANT_BLOCK 256
#define HY_QUANT_SIGNED_ZERO 128 /* which of the signed codes stands for zero */
static inline uint64_t hy_quant_bytes(int64_t count) {
    uint64_t blocks = ((uint64_t)count + HY_QUANT_BLOCK - 1) / HY_QUANT_BLOCK;
    return hy_align((uint64_t)count) + hy_align(blocks * sizeof(float));
}
