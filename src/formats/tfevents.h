/* tfevents.h: event files for TensorBoard.
 *
 * A folder holds one file per session of a run; TensorBoard reads them in the order of their
 * names, so a new one always sorts last. A file is a series of records, each with its length and
 * two checksums: readers notice a record cut off by a crash, and lose nothing before it. Values
 * of one step are added first and then written as one record. No memory is allocated after the
 * first record of a kind. */
#pragma once

#include <stdbool.h>

#include "hybrid_types.h"

typedef struct hy_tfevents hy_tfevents;

/* Creates the folder if it is missing, and a new file in it. */
hy_status hy_tfevents_open(const char *folder, hy_tfevents **out);

/* Adds to the next record. Texts are shown unchanged in a fixed-width font. */
void hy_tfevents_add_scalar(hy_tfevents *events, const char *tag, double value);
void hy_tfevents_add_text(hy_tfevents *events, const char *tag, const char *text);
/* Writes the added values as those of `step`; without values, nothing. */
hy_status hy_tfevents_put(hy_tfevents *events, int64_t step, double unix_time);

/* A session begins with step `step`: readers discard that step and later ones from earlier
 * files. The first session must write this too, or readers take the second for the first. */
hy_status hy_tfevents_begin(hy_tfevents *events, int64_t step, double unix_time);

hy_status hy_tfevents_flush(hy_tfevents *events); /* to the system, not to the disk */
/* Both accept NULL and free it in any case; abandoning drops what is not flushed. */
hy_status hy_tfevents_close(hy_tfevents *events, bool sync);
void hy_tfevents_abandon(hy_tfevents *events);

/* CRC-32C (Castagnoli) of some bytes, and its form in the records. */
uint32_t hy_crc32c(const void *data, size_t size);
uint32_t hy_tfevents_mask(uint32_t crc);
