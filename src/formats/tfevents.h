/* tfevents.h: event files as TensorBoard reads them.
 *
 * A folder holds one file for each sitting of a run; TensorBoard reads them in the order of their
 * names, so a new one always sorts last. A file is a row of records, each with its length and two
 * checksums: what a crash cuts off is noticed and nothing before it is lost. Values of one step are
 * added first and then put as one record. No memory is taken once the first record of a kind is
 * written. */
#pragma once

#include <stdbool.h>

#include "hybrid_types.h"

typedef struct hy_tfevents hy_tfevents;

/* Makes the folder where it is missing and a new file in it. */
hy_status hy_tfevents_open(const char *folder, hy_tfevents **out);

/* What the next record holds. Texts are shown as they are, in type of one width. */
void hy_tfevents_add_scalar(hy_tfevents *events, const char *tag, double value);
void hy_tfevents_add_text(hy_tfevents *events, const char *tag, const char *text);
/* Writes what was added, as values of `step`; nothing, when nothing was. */
hy_status hy_tfevents_put(hy_tfevents *events, int64_t step, double unix_time);

/* A session begins with step `step`: readers forget what earlier files say of that and of
 * later ones. The first sitting must say it too, or the second is taken for the first. */
hy_status hy_tfevents_begin(hy_tfevents *events, int64_t step, double unix_time);

hy_status hy_tfevents_flush(hy_tfevents *events); /* to the system, not to the disk */
/* Both accept NULL and free it in any case; abandoning leaves out what is not flushed. */
hy_status hy_tfevents_close(hy_tfevents *events, bool sync);
void hy_tfevents_abandon(hy_tfevents *events);

/* CRC-32C (Castagnoli) of some bytes, and as the records carry it. */
uint32_t hy_crc32c(const void *data, size_t size);
uint32_t hy_tfevents_mask(uint32_t crc);
