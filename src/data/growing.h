/* growing.h: text that is read while it is still being written.
 *
 * Streamed rows (row_stream.h) come from a file, from the text of a compressed file, or from
 * standard input. A thread decompresses a file into an unnamed one, and another copies a pipe, so
 * that every byte can be read again at any time. A reader waits for bytes that are not there yet.
 *
 * Standard input belongs to the process: it is copied once, and its copy replaces the pipe as
 * standard input. The thread that copies it ends with the input. */
#pragma once

#include <stdatomic.h>

#include "base/text.h"
#include "data/input.h"

typedef struct hy_growing hy_growing;

/* Opens a file of rows. A plain file keeps the size that it has now. */
hy_status hy_growing_open(const hy_input_file *file, hy_growing **out);
void hy_growing_close(hy_growing *text); /* text may be NULL */
/* Reads up to `size` bytes at `offset`: what is there, after waiting for `least` bytes. *got is
 * less than `least` only at the end; *is_end: the text ends after these bytes. HY_STOPPED if
 * *is_stopped becomes true while it waits. Other errors name the file. */
typedef struct hy_growing_place {
    uint64_t offset;
    size_t least, size;
    const atomic_bool *is_stopped;
} hy_growing_place;
hy_status hy_growing_read(hy_growing *text, const hy_growing_place *place, void *dst, size_t *got,
                          bool *is_end);

#define HY_STANDARD_INPUT "/dev/stdin"

/* Copies standard input in the background, if it is a pipe, and waits until `least` bytes are there
 * or it ends. *size is the number of bytes so far. */
hy_status hy_standard_input_copy(uint64_t least, uint64_t *size, bool *is_whole);
/* The name of the copy that a run keeps. */
const char *hy_standard_input_name(bool is_csv);
/* Stores the copy as `path` when the input ends. Only a complete copy gets the name; from then on
 * it is read instead of the unnamed file. */
hy_status hy_standard_input_keep(const char *path);
/* Adds a line if the copy could not be stored; once. */
void hy_standard_input_report(hy_text *warnings);
