/* coding.c: quantises a matrix and computes its scales. See coding.h. */
#include "model/coding.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/in_order.h"

#define SOME_ELEMENTS (1 << 20) /* elements that a thread quantises at a time */
#define MOST_THREADS 16

hy_status hy_coding_begin(hy_coding *c, const hy_param *param, const hy_layout_item *item) {
    *c = (hy_coding){.param = param, .item = *item};
    atomic_init(&c->largest, 0);
    c->scales = calloc((size_t)hy_layout_scales(item, item->count), sizeof *c->scales);
    c->stored = malloc(hy_layout_scale_bytes(item));
    HY_FAIL_IF(!c->scales || !c->stored, HY_ERR_MEMORY, "not enough memory for the scales of %s",
               param->name);
    return HY_OK;
}

void hy_coding_end(hy_coding *c) {
    free(c->scales);
    free(c->stored);
    *c = (hy_coding){0};
}

/* The bits of non-negative floats are ordered like their values; infinity and NaN have the largest
 * bits. */
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
    return hy_param_piece_rows(c->param, piece) * hy_param_width(c->param) / c->item.block;
}

/* Each group is inside one nested block: it is not longer, and the first group of a piece begins
 * with a nested block. */
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

/* ---- whole matrices -------------------------------------------------------------------------- */

typedef struct filling {
    hy_coding *coding;
    const hy_coding_source *from;
    const hy_coding_target *to;
    int64_t next, end, most; /* elements; a thread takes at most `most` at a time */
    bool is_looking;         /* finds the largest magnitude and writes nothing */
} filling;

/* A thread's own rows. */
typedef struct rows_in_hand {
    int64_t first, count;
    float *numbers;
    char *codes;
} rows_in_hand;

static hy_status put(const hy_coding_target *to, uint64_t at, const void *bytes, uint64_t size) {
    if (!to->memory) {
        at += hy_store_offset(to->store, to->item);
        return hy_store_write(to->store, to->stream, at, bytes, size);
    }
    memcpy(to->memory + at, bytes, size);
    return HY_OK;
}

static bool take_rows(void *context, void *slot) {
    filling *f = context;
    rows_in_hand *rows = slot;
    rows->first = f->next;
    rows->count = f->end - f->next < f->most ? f->end - f->next : f->most;
    f->next += rows->count;
    return rows->count > 0;
}

static hy_status code_rows(void *context, void *slot) {
    const filling *f = context;
    rows_in_hand *rows = slot;
    hy_coding *c = f->coding;
    int64_t there = c->param->stored - rows->first; /* the rest is padding */
    if (there > rows->count) there = rows->count;
    if (there < 0) there = 0;
    if (!rows->numbers) rows->numbers = malloc((size_t)f->most * sizeof *rows->numbers);
    if (!rows->codes) rows->codes = malloc(hy_dtype_bytes(c->item.dtype, f->most));
    HY_FAIL_IF(!rows->numbers || !rows->codes, HY_ERR_MEMORY, "not enough memory to quantise %s",
               c->param->name);
    if (there > 0) HY_TRY(f->from->read(f->from->context, rows->first, there, rows->numbers));
    memset(rows->numbers + there, 0, (size_t)(rows->count - there) * sizeof *rows->numbers);
    if (f->is_looking)
        hy_coding_look(c, rows->numbers, rows->count);
    else
        hy_coding_rows(c, rows->numbers, rows->first, rows->count, rows->codes);
    return HY_OK;
}

static hy_status put_rows(void *context, void *slot, bool is_caller) {
    const filling *f = context;
    const rows_in_hand *rows = slot;
    hy_dtype dtype = f->coding->item.dtype;
    (void)is_caller;
    return put(f->to, hy_dtype_bytes(dtype, rows->first), rows->codes,
               hy_dtype_bytes(dtype, rows->count));
}

static hy_status fill_once(filling f, int threads) {
    rows_in_hand rows[MOST_THREADS] = {0};
    hy_in_order work = {.context = &f,
                        .next = take_rows,
                        .work = code_rows,
                        .done = f.is_looking ? NULL : put_rows,
                        .slots = rows,
                        .slot_size = sizeof *rows,
                        .workers = threads};
    hy_status status = hy_in_order_run(&work);
    for (int i = 0; i < MOST_THREADS; i++) {
        free(rows[i].numbers);
        free(rows[i].codes);
    }
    return status;
}

hy_status hy_coding_fill(hy_coding *c, int64_t first, int64_t count, const hy_coding_source *from,
                         const hy_coding_target *to) {
    int64_t width = hy_param_width(c->param), rows = count / width, most = SOME_ELEMENTS / width;
    int threads = from->threads < 1              ? 1
                  : from->threads > MOST_THREADS ? MOST_THREADS
                                                 : from->threads;
    if (threads > rows) threads = (int)rows;
    if (most > (rows + threads - 1) / threads) most = (rows + threads - 1) / threads;
    filling f = {.coding = c,
                 .from = from,
                 .to = to,
                 .next = first,
                 .end = first + count,
                 .most = (most < 1 ? 1 : most) * width};
    if (hy_coding_looks_first(c)) {
        f.is_looking = true;
        HY_TRY(fill_once(f, threads));
        f.is_looking = false;
    }
    return fill_once(f, threads);
}

hy_status hy_coding_put_scales(hy_coding *c, const hy_coding_target *to) {
    const void *scales = hy_coding_scales(c);
    return put(to, hy_layout_scales_at(&c->item), scales, hy_layout_scale_bytes(&c->item));
}

hy_status hy_coding_run(const hy_param *param, const hy_layout_item *item,
                        const hy_coding_source *from, const hy_coding_target *to) {
    hy_coding coding;
    hy_status status = hy_coding_begin(&coding, param, item);
    if (status == HY_OK) status = hy_coding_fill(&coding, 0, param->count, from, to);
    if (status == HY_OK) status = hy_coding_put_scales(&coding, to);
    hy_coding_end(&coding);
    return status;
}
