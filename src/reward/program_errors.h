/* program_errors.h: passes on what a program writes to stderr, line by line.
 *
 * Of each batch the first HY_PROGRAM_LINES lines are passed on, and the number of the others. */
#pragma once

#include "base/say.h"
#include "base/text.h"

#define HY_PROGRAM_LINES 20

typedef struct hy_program_errors {
    hy_text line;   /* not yet at its end */
    size_t lines;   /* in this batch */
    char last[200]; /* the last line, cut; "": none */
} hy_program_errors;

void hy_program_errors_add(hy_program_errors *errors, const hy_observer *observer,
                           const char *bytes, size_t size);
/* Passes on a line without a line end. */
void hy_program_errors_end_line(hy_program_errors *errors, const hy_observer *observer);
/* Says how many lines were left out, and counts anew. */
void hy_program_errors_end_batch(hy_program_errors *errors, const hy_observer *observer);
