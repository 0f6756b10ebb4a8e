/* part_read.c: reads rows of a part from its file, in our order and type. See hf_load.h.
 *
 * Loading, exporting, merging and adapters all use hy_part_fetch. Bytes from the disk bypass the
 * page cache into the caller's buffer; cached bytes are copied, directly to their place if type
 * and order match. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "hub/gguf_names.h"
#include "hub/hf_load.h"
#include "kernels/cpu/rows.h"

#define WIDEST 4 /* bytes of an element, at most */

/* ---- types and orders ------------------------------------------------------------------------ */

#define BATCH 1024
#define TILE 16 /* rows that are transposed together: a cache line of fp32 */

/* Converts through fp32, rounded to nearest, in batches. Equal types are copied bit for bit. */
void hy_convert(const void *from, hy_dtype from_type, int64_t count, void *to, hy_dtype to_type) {
    float batch[BATCH], raw[BATCH]; /* `from` and `to` need no alignment */
    size_t from_size = hy_dtype_size(from_type), to_size = hy_dtype_size(to_type);
    if (from_type == to_type) {
        memcpy(to, from, (size_t)count * from_size);
        return;
    }
    for (int64_t at = 0; at < count; at += BATCH) {
        int64_t some = count - at < BATCH ? count - at : BATCH;
        memcpy(raw, (const char *)from + (size_t)at * from_size, (size_t)some * from_size);
        hy_cpu_widen(from_type, raw, batch, some);
        hy_cpu_narrow(to_type, batch, raw, some);
        memcpy((char *)to + (size_t)at * to_size, raw, (size_t)some * to_size);
    }
}

void hy_transpose(const void *from, int64_t rows, int64_t cols, size_t size, void *to) {
    for (int64_t first = 0; first < rows; first += TILE) {
        int64_t end = first + TILE < rows ? first + TILE : rows;
        for (int64_t c = 0; c < cols; c++) {
            for (int64_t r = first; r < end; r++) {
                memcpy((char *)to + (size_t)(r * cols + c) * size,
                       (const char *)from + (size_t)(c * rows + r) * size, size);
            }
        }
    }
}

/* Rows 2i and 2i+1 of a head become its rows i and i + D/2. */
static void unpair(const char *raw, int64_t rows, size_t row_bytes, int32_t head, char *out) {
    for (int64_t r = 0; r < rows; r++) {
        int64_t in_head = r % head, begin = r - in_head;
        int64_t to = begin + in_head / 2 + (in_head % 2 ? head / 2 : 0);
        memcpy(out + (size_t)to * row_bytes, raw + (size_t)r * row_bytes, row_bytes);
    }
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Of a row in the file. */
static uint64_t row_bytes(const hy_weight_part *p) {
    return p->is_decoded ? hy_blocks_bytes(p->blocks, p->cols) : hy_dtype_bytes(p->dtype, p->cols);
}

hy_status hy_part_room_init(hy_part_room *room, int64_t elements) {
    uint64_t bytes = HY_DIRECT_ROOM(elements * WIDEST + HY_ALIGNMENT);
    if (!room->raw) room->raw = aligned_alloc(HY_DIRECT, bytes);
    if (!room->made) room->made = aligned_alloc(HY_DIRECT, bytes);
    HY_FAIL_IF(!room->raw || !room->made, HY_ERR_MEMORY, "not enough memory to read weights");
    return HY_OK;
}

void hy_part_room_fini(hy_part_room *room) {
    free(room->raw);
    free(room->made);
    *room = (hy_part_room){0};
}

/* Reads the bytes of these rows into `raw`, or into `place` if possible; *data points to them. */
static hy_status read_bytes(const hy_weight_part *p, int64_t first, int64_t rows, char *raw,
                            char *place, char **data) {
    uint64_t bytes = (uint64_t)rows * row_bytes(p);
    uint64_t offset = p->offset + (uint64_t)first * row_bytes(p);
    *data = raw;
    if (p->order == HY_PART_TRANSPOSED && rows < p->rows) {
        /* Our rows are columns of a transposed part: a strip of each of its rows. */
        uint64_t size = hy_dtype_size(p->dtype), strip = (uint64_t)rows * size;
        for (int64_t c = 0; c < p->cols; c++) {
            uint64_t at = p->offset + (uint64_t)(c * p->rows + first) * size;
            HY_TRY(hy_reader_get(p->reader, at, raw + (uint64_t)c * strip, strip));
        }
        return HY_OK;
    }
    if (hy_reader_is_cold(p->reader, offset, bytes)) {
        return hy_reader_get_direct(p->reader, offset, bytes, raw, data);
    }
    if (place) *data = place;
    return hy_reader_get(p->reader, offset, *data, bytes);
}

/* What was made becomes `raw`, so that `made` is free again. */
static const char *swap(hy_part_room *room) {
    char *made = room->made;
    room->made = room->raw;
    room->raw = made;
    return made;
}

/* Rates of a decay are negative: A_log is the logarithm of their size. */
static hy_status to_logarithms(const hy_weight_part *p, int64_t count, float *numbers) {
    for (int64_t i = 0; i < count; i++) {
        bool is_rate = numbers[i] < 0 && isfinite(numbers[i]);
        HY_FAIL_IF(!is_rate, HY_ERR_INPUT,
                   "tensor \"%s\" holds %g; accepted: finite numbers below 0", p->rate,
                   (double)numbers[i]);
        numbers[i] = (float)log(-(double)numbers[i]);
    }
    return HY_OK;
}

static hy_status decode(const hy_weight_part *p, const char *blocks, int64_t rows,
                        hy_part_room *room, const char **data) {
    float *numbers = (float *)(void *)room->made;
    int64_t count = rows * p->cols;
    hy_blocks_decode(p->blocks, blocks, count, numbers);
    for (int64_t i = 0; i < count && p->surplus != 0; i++) numbers[i] -= p->surplus;
    if (p->rate) HY_TRY(to_logarithms(p, count, numbers));
    *data = swap(room);
    return HY_OK;
}

hy_status hy_part_fetch(const hy_weight_part *p, int64_t first, int64_t rows, hy_part_room *room,
                        char *place, const char **data) {
    char *read;
    HY_TRY(read_bytes(p, first, rows, room->raw, p->is_decoded ? NULL : place, &read));
    *data = read;
    if (p->is_decoded) HY_TRY(decode(p, read, rows, room, data));
    if (p->order == HY_PART_PLAIN) return HY_OK;
    if (p->order == HY_PART_TRANSPOSED) {
        hy_transpose(*data, rows, p->cols, hy_dtype_size(p->dtype), room->made);
    } else if (p->order == HY_PART_TILED) {
        hy_gguf_tile_columns(&p->tiles, *data, rows, p->cols, hy_dtype_size(p->dtype), false,
                             room->made);
    } else {
        unpair(*data, rows, (size_t)hy_dtype_bytes(p->dtype, p->cols), p->head_size, room->made);
    }
    *data = swap(room);
    return HY_OK;
}

hy_status hy_part_read(const hy_weight_part *p, int64_t first, int64_t count, float *out) {
    hy_part_room room = {0};
    const char *data;
    if (p->coded) return hy_bnb_read(p->coded, p->tensor_row * p->cols + first, count, out);
    int64_t unit = p->order == HY_PART_PAIRED ? p->head_size : 1; /* rows that stay together */
    int64_t begin = first / p->cols / unit * unit, last = (first + count - 1) / p->cols;
    int64_t end = (last / unit + 1) * unit;
    hy_status status = hy_part_room_init(&room, (end - begin) * p->cols);
    if (status == HY_OK) status = hy_part_fetch(p, begin, end - begin, &room, NULL, &data);
    if (status == HY_OK) {
        data += hy_dtype_bytes(p->dtype, first - begin * p->cols);
        hy_convert(data, p->dtype, count, out, HY_F32);
    }
    hy_part_room_fini(&room);
    return status;
}

hy_status hy_weight_files_read(const hy_weight_files *files, int32_t param, int64_t first,
                               int64_t count, float *out) {
    int64_t end = first + count;
    for (int32_t i = 0; i < files->count; i++) {
        const hy_weight_part *p = &files->parts[i];
        int64_t begin = p->row * p->cols, behind = begin + p->rows * p->cols;
        if (p->param != param || behind <= first || begin >= end) continue;
        int64_t at = first > begin ? first : begin, stop = end < behind ? end : behind;
        HY_TRY(hy_part_read(p, at - begin, stop - at, out + (at - first)));
    }
    return HY_OK;
}
