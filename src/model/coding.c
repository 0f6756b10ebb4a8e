/* coding.c: codes of a matrix and their scales. See coding.h. */
#include "model/coding.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

hy_status hy_coding_begin(hy_coding *c, const hy_param *param, const hy_layout_item *item) {
    *c = (hy_coding){.param = param, .item = *item};
    atomic_init(&c->largest, 0);
    c->scales = calloc((size_t)hy_layout_scales(item, item->count), sizeof *c->scales);
    c->stored = malloc(hy_layout_scale_bytes(item));
    HY_FAIL_IF(!c->scales || !c->stored, HY_ERR_MEMORY, "no memory for the scales of %s",
               param->name);
    return HY_OK;
}

void hy_coding_end(hy_coding *c) {
    free(c->scales);
    free(c->stored);
    *c = (hy_coding){0};
}

/* Bits of numbers that are not negative rise with them, and end with what is not finite. */
void hy_coding_look(hy_coding *c, const float *x, int64_t count) {
    unsigned largest = 0;
    for (int64_t i = 0; i < count; i++) {
        unsigned bits = hy_float_bits(x[i]) & 0x7fffffff;
        if (bits > largest) largest = bits;
    }
    unsigned known = atomic_load(&c->largest);
    while (largest > known && !atomic_compare_exchange_weak(&c->largest, &known, largest)) {}
}

void hy_coding_rows(hy_coding *c, const float *x, int64_t first, int64_t count, void *codes) {
    int32_t block = c->item.block;
    if (hy_coding_looks_first(c)) {
        float scale = hy_coded_scale(c->item.dtype, hy_bits_float(atomic_load(&c->largest)));
        hy_coded_put(c->item.dtype, x, count, scale, codes);
        return;
    }
    hy_coded_encode(c->item.dtype, x, count, block, codes, c->scales + first / block);
}

static uint8_t *stored_codes(const hy_coding *c) {
    int64_t blocks = hy_layout_scales(&c->item, c->item.count);
    return (uint8_t *)((float *)c->stored + blocks / c->item.group * 2);
}

static int64_t piece_blocks(const hy_coding *c, int32_t piece) {
    return hy_param_piece_rows(c->param, piece) * c->param->shape[1] / c->item.block;
}

/* A group, no longer than a nested block and from a piece's first block on, lies in one nested block. */
void hy_coding_keep(hy_coding *c, int64_t first, int64_t count, const hy_kept_scales *scales) {
    int32_t group = c->item.group;
    float *pairs = c->stored;
    uint8_t *codes = stored_codes(c);
    for (int64_t i = 0; i < count; i++) codes[first + i] = scales->codes[i / scales->repeat];
    for (int64_t i = 0; i < count; i += group) {
        float *pair = pairs + (first + i) / group * 2;
        pair[0] = scales->nested[i / scales->repeat / HY_NF4_NESTED];
        pair[1] = scales->offset;
    }
    int64_t at = 0;
    for (int32_t i = 0; i < hy_param_pieces(c->param); at += piece_blocks(c, i++)) {
        if (at >= first && at < first + count) c->is_kept[i] = true;
    }
}

const void *hy_coding_scales(hy_coding *c) {
    int32_t group = c->item.group;
    if (hy_coding_looks_first(c)) {
        c->scales[0] = hy_coded_scale(c->item.dtype, hy_bits_float(atomic_load(&c->largest)));
    }
    if (group == 0) return c->scales;
    float *pairs = c->stored;
    int64_t at = 0;
    for (int32_t i = 0; i < hy_param_pieces(c->param); at += piece_blocks(c, i++)) {
        int64_t some = piece_blocks(c, i);
        if (c->is_kept[i]) continue;
        hy_nf4_put_scales(c->scales + at, some, hy_nf4_offset(c->scales + at, some), group,
                          pairs + at / group * 2, stored_codes(c) + at);
    }
    return c->stored;
}
