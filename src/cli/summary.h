/* summary.h: what a run is, and what it came to: phases, memory, losses, a sample of text, a report, and how
 * to go on. */
#pragma once

#include "cli/terminal.h"
#include "hybrid.h"

/* The command line as it was given, quoted in the same way. Allocated; NULL without memory. */
char *hy_cli_command_line(int argc, char *const *argv);

/* Model, device, data, length and where the run writes. */
void hy_cli_opening(const hy_cli_terminal *terminal, const hy_config *config,
                    const hy_trainer *trainer);
/* How often a checkpoint is saved, and how long one takes: "every 30 minutes and at the end, ...". */
void hy_cli_saves(FILE *out, const hy_config *config, const hy_trainer *trainer);

/* The planned table of memory, of phases that may come. */
void hy_cli_planned_memory(const hy_cli_terminal *terminal, const hy_summary *summary);

/* Phases, prediction, losses and a sample where the run was not stopped; where the files are, and the
 * commands that go on from here. */
typedef struct hy_cli_closing_options {
    const char *program; /* argv[0] */
    bool was_stopped;
    bool is_verbose; /* memory, what was saved of it, and what prediction cost, too */
} hy_cli_closing_options;
/* What another rank than 0 does meanwhile: rank 0 cannot make the sample alone. What fails here fails there. */
hy_status hy_cli_follow_closing(const hy_config *config, hy_trainer *trainer);
void hy_cli_closing(const hy_cli_terminal *terminal, const hy_config *config, hy_trainer *trainer,
                    const hy_cli_closing_options *options);

/* Writes the page about the run in `folder` ("" does nothing) and says where it is. The run is done and
 * saved by then: a page that cannot be written is a warning. */
void hy_cli_write_report(const hy_cli_terminal *terminal, const char *folder);
