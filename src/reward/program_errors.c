/* program_errors.c: see program_errors.h. */
#include "reward/program_errors.h"

#include <stdio.h>

#define LINE_MOST 500 /* bytes that are kept of a line */

void hy_program_errors_end_line(hy_program_errors *errors, const hy_observer *observer) {
    if (errors->line.size == 0) return;
    const char *text = hy_text_string(&errors->line);
    snprintf(errors->last, sizeof errors->last, "%s", text);
    if (errors->lines++ < HY_PROGRAM_LINES)
        hy_say_to(observer, HY_NOTE, "reward program: %s", text);
    hy_text_clear(&errors->line);
}

/* A progress bar ends its lines with a carriage return. Zero bytes and other control characters
 * become blanks. */
void hy_program_errors_add(hy_program_errors *errors, const hy_observer *observer,
                           const char *bytes, size_t size) {
    for (size_t i = 0; i < size; i++) {
        char c = bytes[i];
        if (c == '\n' || c == '\r') {
            hy_program_errors_end_line(errors, observer);
        } else if (errors->line.size < LINE_MOST) {
            if ((unsigned char)c < ' ' || c == '\x7F') c = ' ';
            hy_text_add_bytes(&errors->line, &c, 1);
        }
    }
}

void hy_program_errors_end_batch(hy_program_errors *errors, const hy_observer *observer) {
    size_t left_out = errors->lines > HY_PROGRAM_LINES ? errors->lines - HY_PROGRAM_LINES : 0;
    errors->lines = 0;
    if (left_out == 0) return;
    hy_say_to(observer, HY_NOTE, "reward program: %zu more lines on stderr were left out",
              left_out);
}
