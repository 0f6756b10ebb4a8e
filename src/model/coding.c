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

const void *hy_coding_scales(hy_coding *c) {
    int32_t group = c->item.group;
    int64_t blocks = hy_layout_scales(&c->item, c->item.count), at = 0;
    if (hy_coding_looks_first(c)) {
        c->scales[0] = hy_coded_scale(c->item.dtype, hy_bits_float(atomic_load(&c->largest)));
    }
    if (group == 0) return c->scales;
    float *pairs = c->stored;
    uint8_t *codes = (uint8_t *)(pairs + blocks / group * 2);
    for (int32_t i = 0; i < hy_param_pieces(c->param); i++) {
        int64_t some = hy_param_piece_rows(c->param, i) * c->param->shape[1] / c->item.block;
        hy_nf4_put_scales(c->scales + at, some, hy_nf4_offset(c->scales + at, some), group,
                          pairs + at / group * 2, codes + at);
        at += some;
    }
    return c->stored;
}
