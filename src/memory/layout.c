/* layout.c: offsets of tensors inside units and of units inside a class. See layout.h. */
#include "memory/layout.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

static void set_offsets(hy_layout *layout) {
    layout->bytes = 0;
    for (int32_t u = 0; u < layout->unit_count; u++) layout->unit_bytes[u] = 0;
    for (int32_t i = 0; i < layout->item_count; i++) {
        hy_layout_item *item = &layout->items[i];
        assert(item->unit >= 0 && item->unit < layout->unit_count);
        assert(i == 0 || item[-1].unit <= item->unit);
        item->offset = layout->unit_bytes[item->unit];
        layout->unit_bytes[item->unit] += hy_layout_item_bytes(item);
    }
    for (int32_t u = 0; u < layout->unit_count; u++) {
        layout->unit_offset[u] = layout->bytes;
        layout->bytes += layout->unit_bytes[u];
    }
}

hy_status hy_layout_init(hy_layout *layout, const hy_layout_item *items, int32_t item_count,
                         int32_t unit_count) {
    *layout = (hy_layout){.unit_count = unit_count, .item_count = item_count};
    layout->items = malloc((size_t)item_count * sizeof *items);
    layout->unit_offset = calloc((size_t)unit_count, sizeof *layout->unit_offset);
    layout->unit_bytes = calloc((size_t)unit_count, sizeof *layout->unit_bytes);
    if (!layout->items || !layout->unit_offset || !layout->unit_bytes) {
        hy_layout_fini(layout);
        return hy_fail(HY_ERR_MEMORY, "not enough memory for a layout of %d tensors", item_count);
    }
    memcpy(layout->items, items, (size_t)item_count * sizeof *items);
    set_offsets(layout);
    return HY_OK;
}

void hy_layout_retype(hy_layout *layout, hy_dtype dtype) {
    for (int32_t i = 0; i < layout->item_count; i++) layout->items[i].dtype = dtype;
    set_offsets(layout);
}

hy_status hy_layout_set_items(hy_layout *layout, const int32_t *item_of, int32_t param_count) {
    size_t bytes = (size_t)param_count * sizeof *item_of;
    layout->item_of = malloc(bytes);
    if (!layout->item_of) return hy_fail(HY_ERR_MEMORY, "not enough memory for a layout");
    memcpy(layout->item_of, item_of, bytes);
    layout->param_count = param_count;
    return HY_OK;
}

hy_status hy_layout_fix(hy_layout *layout, const uint8_t *fixed) {
    layout->fixed = malloc((size_t)layout->unit_count);
    if (!layout->fixed) return hy_fail(HY_ERR_MEMORY, "not enough memory for a layout");
    memcpy(layout->fixed, fixed, (size_t)layout->unit_count);
    return HY_OK;
}

static hy_status take_cut(hy_layout *layout) {
    layout->whole_offset = calloc((size_t)layout->unit_count, sizeof *layout->whole_offset);
    layout->part_begin = calloc((size_t)layout->unit_count, sizeof *layout->part_begin);
    if (layout->whole_offset && layout->part_begin) return HY_OK;
    return hy_fail(HY_ERR_MEMORY, "not enough memory for a layout of %d units", layout->unit_count);
}

hy_status hy_layout_cut(hy_layout *layout, int32_t rank, int32_t count) {
    assert(!layout->part_begin && rank >= 0 && rank < count);
    HY_TRY(take_cut(layout));
    layout->bytes = 0;
    for (int32_t u = 0; u < layout->unit_count; u++) {
        uint64_t bytes = layout->unit_bytes[u], begin = hy_layout_cut_at(bytes, rank, count);
        layout->whole_offset[u] = layout->unit_offset[u];
        layout->part_begin[u] = begin;
        layout->unit_bytes[u] = hy_layout_cut_at(bytes, rank + 1, count) - begin;
        layout->unit_offset[u] = layout->bytes;
        layout->bytes += layout->unit_bytes[u];
    }
    return HY_OK;
}

static hy_status copy_cut(hy_layout *layout, const hy_layout *from) {
    size_t bytes = (size_t)from->unit_count * sizeof *from->unit_bytes;
    HY_TRY(take_cut(layout));
    memcpy(layout->whole_offset, from->whole_offset, bytes);
    memcpy(layout->part_begin, from->part_begin, bytes);
    memcpy(layout->unit_bytes, from->unit_bytes, bytes);
    memcpy(layout->unit_offset, from->unit_offset, bytes);
    layout->bytes = from->bytes;
    return HY_OK;
}

hy_status hy_layout_copy(hy_layout *layout, const hy_layout *from) {
    HY_TRY(hy_layout_init(layout, from->items, from->item_count, from->unit_count));
    layout->is_even = from->is_even;
    layout->keeps_first = from->keeps_first;
    layout->has_small = from->has_small;
    hy_status status = from->part_begin ? copy_cut(layout, from) : HY_OK;
    if (status == HY_OK && from->item_of) {
        status = hy_layout_set_items(layout, from->item_of, from->param_count);
    }
    if (status == HY_OK && from->fixed) status = hy_layout_fix(layout, from->fixed);
    if (status != HY_OK) hy_layout_fini(layout);
    return status;
}

void hy_layout_fini(hy_layout *layout) {
    free(layout->items);
    free(layout->unit_offset);
    free(layout->unit_bytes);
    free(layout->item_of);
    free(layout->fixed);
    free(layout->whole_offset);
    free(layout->part_begin);
    *layout = (hy_layout){0};
}
