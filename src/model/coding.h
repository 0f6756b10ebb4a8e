/* coding.h: quantises a matrix of numbers to codes and their scales.
 *
 * hy_coding_run does it for a whole matrix, from a reader of numbers to a store or to memory.
 * Initial weights, a model's files, checkpoints of another type and exports all use it.
 *
 * The codes of a row depend only on that row, so rows may come in any order and from several
 * threads. Two-level scales (kernels/nf4.h) need all scales of the matrix, so these are kept in
 * fp32 until the last row is coded. A type with one scale per matrix (fp8) needs the largest
 * magnitude first: its rows are read twice. */
#pragma once

#include <stdatomic.h>

#include "kernels/coded.h"
#include "memory/store.h"
#include "model/param_layout.h"

typedef struct hy_coding {
    const hy_param *param;
    hy_layout_item item;
    float *scales;       /* of all blocks; 0 for rows that were not given: padding */
    void *stored;        /* the scales in the form of the store */
    atomic_uint largest; /* bits of the largest magnitude, if there is one scale for all */
    bool is_kept[HY_PARAM_PIECES]; /* this piece keeps the scales of its file */
} hy_coding;

/* Two-level scales that were computed elsewhere for a matrix. */
typedef struct hy_kept_scales {
    const uint8_t *codes; /* one for each `repeat` blocks */
    const float *nested;  /* the scale of each HY_NF4_NESTED codes */
    float offset;         /* added to every scale */
    int32_t repeat;
} hy_kept_scales;

/* Call hy_coding_begin before the first rows, and hy_coding_end also if it fails. hy_coding_end
 * does nothing to {0}. */
hy_status hy_coding_begin(hy_coding *coding, const hy_param *param, const hy_layout_item *item);
void hy_coding_end(hy_coding *coding);

/* If this is set, all rows must pass through hy_coding_look before hy_coding_rows gets the
 * first. Threads may call it at the same time. */
static inline bool hy_coding_looks_first(const hy_coding *coding) {
    return hy_coded_as_one(coding->item.dtype);
}
void hy_coding_look(hy_coding *coding, const float *x, int64_t count);

/* Codes of elements [first, first + count), whole rows. Threads may call it for different rows. */
void hy_coding_rows(hy_coding *coding, const float *x, int64_t first, int64_t count, void *codes);

/* Sets the scales of blocks [first, first + count), which are pieces of the parameter; the
 * caller stores their codes. Threads may call it for different pieces. */
void hy_coding_keep(hy_coding *coding, int64_t first, int64_t count, const hy_kept_scales *scales);

/* After the last rows: returns the scales in the form of the store (hy_layout_scale_bytes(item)).
 * They are stored after all codes. */
const void *hy_coding_scales(hy_coding *coding);

/* ---- whole matrices -------------------------------------------------------------------------- */

/* Reads the numbers of a matrix. */
typedef struct hy_coding_source {
    void *context;
    /* Elements [first, first + count), whole rows, as fp32. With several threads, several at a
     * time. */
    hy_status (*read)(void *context, int64_t first, int64_t count, float *out);
    int threads; /* below 2: only the calling thread */
} hy_coding_source;

/* The target of codes and scales: an item of a store, or memory of the item's size. */
typedef struct hy_coding_target {
    hy_store *store;
    hy_stream *stream;
    int32_t item;
    char *memory; /* instead of the store */
} hy_coding_target;

/* Writes the codes of elements [first, first + count), whole rows, to their place; padding of
 * the parameter becomes zero without being read. If the type has one scale for all, the rows
 * must be those of the whole matrix. */
hy_status hy_coding_fill(hy_coding *coding, int64_t first, int64_t count,
                         const hy_coding_source *from, const hy_coding_target *to);
/* Writes the scales to their place after the codes. */
hy_status hy_coding_put_scales(hy_coding *coding, const hy_coding_target *to);
/* Quantises a whole matrix: calls begin, fill, put_scales and end. */
hy_status hy_coding_run(const hy_param *param, const hy_layout_item *item,
                        const hy_coding_source *from, const hy_coding_target *to);
