/* closing.h: what a run came to: phases, memory, losses, a sample of text, and how to go on. */
#ifndef HY_CLI_CLOSING_H
#define HY_CLI_CLOSING_H

#include "cli/terminal.h"
#include "hybrid.h"

void hy_cli_closing_phases(const hy_cli_terminal *terminal, const hy_summary *summary);
void hy_cli_closing_memory(const hy_cli_terminal *terminal, const hy_summary *summary);
/* The planned table alone, of phases that may come. */
void hy_cli_planned_memory(const hy_cli_terminal *terminal, const hy_summary *summary);
void hy_cli_closing_prediction(const hy_cli_terminal *terminal, const hy_summary *summary);
void hy_cli_closing_losses(const hy_cli_terminal *terminal, const hy_summary *summary);

/* Writes and shows a sample, if the configuration asks for one; a warning where none can be had. */
void hy_cli_closing_sample(const hy_cli_terminal *terminal, const hy_config *config,
                           hy_trainer *trainer);

/* Where the files are and the command that goes on from here; program is argv[0]. */
void hy_cli_closing_files(const hy_cli_terminal *terminal, const hy_summary *summary,
                          const char *program, bool was_stopped);

#endif
