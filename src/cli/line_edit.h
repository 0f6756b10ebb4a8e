/* line_edit.h: line editing on a terminal if libedit is installed.
 *
 * libedit is loaded at run time, so that it is needed neither to build nor to run. Without it,
 * lines are read without editing keys. The history is kept only while the program runs. */
#pragma once

#include <stdbool.h>

/* Whether lines can be edited: standard input and output are a capable terminal, and libedit is
 * installed. */
bool hy_cli_can_edit(void);
/* The line without its end, to be freed by the caller. NULL at the end of input, or if a signal
 * arrived (errno EINTR). */
char *hy_cli_edit_line(const char *prompt);
