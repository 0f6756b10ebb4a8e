/* bar.h: the text of a progress line, made to fit a given width.
 *
 * Pure text: no clock, no terminal calls. A line is a bar followed by fields in order of
 * importance; fields are left out from the right end until the rest fits. */
#ifndef HY_CLI_BAR_H
#define HY_CLI_BAR_H

#include <stddef.h>

#include "cli/terminal.h"
#include "hybrid.h"

#define HY_CLI_LINE_BYTES 2048 /* enough for any line of 500 columns with its colours */

/* The line of a step: bar, step, phase, smoothed loss, speed, memory, time left, learning rate.
 * Returns the columns it takes, at most `columns`. */
int hy_cli_bar_of_step(const hy_cli_terminal *terminal, const hy_step_info *info, double loss,
                       int columns, char line[HY_CLI_LINE_BYTES]);

/* The line of other work that takes long: a bar, what it is, per cent. */
int hy_cli_bar_of_work(const hy_cli_terminal *terminal, const char *what, double fraction,
                       int columns, char line[HY_CLI_LINE_BYTES]);

hy_cli_colour hy_cli_phase_colour(hy_phase phase);

#endif
