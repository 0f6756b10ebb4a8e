/* line_edit.h: a line typed on a terminal, with the keys people expect, where libedit is installed.
 *
 * libedit is opened at run time, so that neither building nor running needs it: without it a line is read as
 * the terminal gives it. What was typed is kept for the up key as long as the program runs, and nowhere
 * else. */
#pragma once

#include <stdbool.h>

/* Whether lines can be edited: standard input and output are a terminal that can do it, and libedit is there. */
bool hy_cli_can_edit(void);
/* The line without its end, to be freed; NULL at the end of input, and when a signal came (errno EINTR). */
char *hy_cli_edit_line(const char *prompt);
