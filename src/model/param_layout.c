/* param_layout.c: the storage types of parameters, and their layouts. See param_layout.h. */
#include "model/param_layout.h"

#include <stdlib.h>

#include "base/error.h"
#include "kernels/coded.h"

#define SMALL_TENSOR 4096

int32_t hy_param_block(const hy_param *param, hy_dtype dtype) {
    bool is_matrix = param->ndim >= 2;
    return is_matrix ? hy_coded_block(dtype, hy_param_rows(param), hy_param_width(param)) : 0;
}

static hy_dtype callers_type(const hy_param *param) { return (hy_dtype)(param->frozen_as - 1); }

hy_dtype hy_params_stored(const hy_params *p, int32_t index, hy_dtype dtype) {
    const hy_param *param = &p->list[index];
    hy_dtype codes = hy_params_codes(p, index);
    if (param->frozen_as) return hy_param_block(param, codes) ? codes : callers_type(param);
    if (param->is_trainable || !hy_param_block(param, codes)) return dtype;
    if (hy_linear_bit(param->kind)) return codes;
    /* The token table only in int8: other programs do not store it in nf4, and fp8 is for the
     * matmuls of blocks. */
    bool is_table = param->kind == HY_P_TOKENS && codes == HY_I8;
    bool is_tied = is_table && hy_params_find(p, p->units - 1, HY_P_HEAD) == index;
    return is_table && !is_tied ? codes : dtype;
}

bool hy_params_are_coded(const hy_params *p, int32_t index) {
    return !p->list[index].is_trainable && hy_is_coded(hy_params_stored(p, index, HY_F32));
}

bool hy_params_are_placed(const hy_params *p, int cls) {
    bool is_any = false;
    for (int32_t i = 0; i < p->count; i++) is_any |= p->list[i].own.place[cls] != HY_NOWHERE;
    return is_any;
}

hy_place hy_params_away(const hy_params *p, int cls) {
    for (int32_t i = 0; i < p->count; i++) {
        hy_place place = p->list[i].own.place[cls];
        bool is_there = cls == HY_WEIGHTS || p->list[i].is_trainable;
        if (is_there && place != HY_NOWHERE && place != HY_DEVICE) return place;
    }
    return HY_NOWHERE;
}

int32_t hy_param_group(const hy_param *param, hy_dtype dtype) {
    int32_t block = hy_param_block(param, dtype), group = hy_coded_most(dtype);
    for (int32_t i = 0; block && group && i < hy_param_pieces(param); i++) {
        int64_t blocks = hy_param_piece_rows(param, i) * hy_param_width(param) / block;
        while (blocks % group) group /= 2;
    }
    return block ? group : 0;
}

hy_layout_item hy_params_item(const hy_params *p, int32_t index, hy_dtype dtype) {
    const hy_param *param = &p->list[index];
    return (hy_layout_item){.unit = param->unit,
                            .dtype = dtype,
                            .count = param->count,
                            .block = hy_param_block(param, dtype),
                            .group = p->has_plain_scales ? 0 : hy_param_group(param, dtype)};
}

/* ---- layouts --------------------------------------------------------------------------------- */

static hy_layout_item *new_items(const hy_params *p) {
    return calloc((size_t)p->count, sizeof(hy_layout_item));
}

/* Makes a layout of the items that have elements, and frees `items`. */
static hy_status lay_out(const hy_params *p, hy_layout_item *items, hy_layout *out) {
    int32_t *item_of = malloc((size_t)p->count * sizeof *item_of);
    int32_t count = 0;
    hy_status status =
        items && item_of ? HY_OK : hy_fail(HY_ERR_MEMORY, "not enough memory for a layout");
    for (int32_t i = 0; i < p->count && status == HY_OK; i++) {
        item_of[i] = items[i].count > 0 ? count : -1;
        if (items[i].count > 0) items[count++] = items[i];
    }
    if (status == HY_OK) status = hy_layout_init(out, items, count, p->units);
    if (status == HY_OK && count < p->count) {
        status = hy_layout_set_items(out, item_of, p->count);
        if (status != HY_OK) hy_layout_fini(out);
    }
    free(items);
    free(item_of);
    return status;
}

/* 8-bit values with scales for large parameters, fp32 for small ones. */
static void set_8bit(hy_layout_item *item) {
    bool is_small = item->count < SMALL_TENSOR;
    item->dtype = is_small ? HY_F32 : HY_U8;
    item->block = is_small ? 0 : HY_QUANT_BLOCK;
}

hy_status hy_params_layout(const hy_params *p, hy_param_set set, hy_dtype dtype, hy_layout *out) {
    hy_layout_item *items = new_items(p);
    for (int32_t i = 0; items && i < p->count; i++) {
        bool is_there = set == HY_SET_ALL || p->list[i].is_trainable == (set == HY_SET_TRAINABLE);
        if (!is_there) continue;
        bool is_real = set == HY_SET_TRAINABLE;
        items[i] = hy_params_item(p, i, is_real ? dtype : hy_params_stored(p, i, dtype));
        if (dtype == HY_U8) set_8bit(&items[i]);
    }
    return lay_out(p, items, out);
}

hy_status hy_params_decoded_layout(const hy_params *p, hy_layout *out) {
    hy_layout_item *items = new_items(p);
    for (int32_t i = 0; items && i < p->count; i++) {
        if (!hy_params_are_coded(p, i)) continue;
        items[i] = hy_params_item(p, i, callers_type(&p->list[i]));
    }
    return lay_out(p, items, out);
}

hy_status hy_params_extents_layout(const hy_params *p, const hy_param_extent *extents,
                                   hy_dtype dtype, hy_layout *out) {
    hy_layout_item *items = new_items(p);
    for (int32_t i = 0; items && i < p->count; i++) {
        int32_t own = p->list[i].own.optim;
        hy_dtype usual = own ? (hy_dtype)(own - 1) : dtype;
        items[i] = (hy_layout_item){.unit = p->list[i].unit,
                                    .dtype = extents[i].is_exact ? HY_F32 : usual,
                                    .count = extents[i].count};
        if (items[i].dtype == HY_U8) set_8bit(&items[i]);
    }
    return lay_out(p, items, out);
}

/* ---- fp8 ------------------------------------------------------------------------------------- */

hy_fp8_use hy_params_fp8_possible(const hy_params *p) {
    hy_fp8_use use = {.is_frozen = p->frozen_codes == HY_E4M3};
    for (int32_t i = 0; i < p->count; i++) {
        const hy_param *param = &p->list[i];
        uint32_t bit = hy_param_in_16_bits(param) ? 0 : hy_linear_bit(param->kind);
        if (param->is_trainable) use.grads |= bit;
        bool is_stored = use.is_frozen && hy_params_codes(p, i) == HY_E4M3;
        if (param->is_trainable || is_stored) use.weights |= bit;
    }
    return use;
}

hy_dtype hy_params_fp8_stored(const hy_params *p, int32_t index, const hy_fp8_use *use) {
    const hy_param *param = &p->list[index];
    bool is_block = param->unit > 0 && param->unit < p->units - 1;
    if (!is_block || !param->is_trainable) return HY_DTYPE_COUNT;
    if (hy_param_in_16_bits(param)) return HY_BF16;
    return use->weights & hy_linear_bit(param->kind) ? HY_E4M3 : HY_BF16;
}

hy_status hy_params_fp8_layout(const hy_params *p, const hy_fp8_use *use, hy_layout *out) {
    hy_layout_item *items = new_items(p);
    for (int32_t i = 0; items && i < p->count; i++) {
        hy_dtype dtype = hy_params_fp8_stored(p, i, use);
        if (dtype != HY_DTYPE_COUNT) items[i] = hy_params_item(p, i, dtype);
    }
    return lay_out(p, items, out);
}
