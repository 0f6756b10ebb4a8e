/* summary.h: describes a run and its results.
 *
 * hybrid_train.c prints the opening before the first step and the closing after the last: phases,
 * memory, losses, a text sample, the report, and the next commands. plan.c prints the opening and
 * the planned memory of a run that is not started. */
#pragma once

#include "cli/terminal.h"
#include "hybrid.h"

/* The command line, quoted for the shell. Allocated; NULL without memory. */
char *hy_cli_command_line(int argc, char *const *argv);

/* Model, device, data, length, and the folder of the run. */
void hy_cli_opening(const hy_cli_terminal *terminal, const hy_config *config,
                    const hy_trainer *trainer);
/* How often checkpoints are saved and how long one takes: "every 30 minutes and at the end,
 * ...". */
void hy_cli_saves(FILE *out, const hy_config *config, const hy_trainer *trainer);
/* Are checkpoints with a new lowest held-out loss saved too? */
bool hy_cli_saves_best(const hy_config *config);
/* The size of a checkpoint, and of the frozen weights in it. */
void hy_cli_checkpoint_size(FILE *out, const hy_config *config, const hy_summary *summary);
/* Where a plan for a card has its host memory from; false: from --cpu-mem, or there is no card. */
bool hy_cli_host_of_plan(const hy_config *config, uint64_t limit, char *text, size_t size);

/* The memory by phase and class: planned for all phases, or planned and measured for those that
 * ran. */
void hy_cli_show_memory(const hy_cli_terminal *terminal, const hy_summary *summary, bool is_plan);

/* The accuracies on rows with a known answer; nothing if there are none. */
void hy_cli_print_scores(const hy_cli_terminal *terminal, const hy_row_scores *scores);

/* Ranks other than 0 call this while rank 0 prints, because all ranks take part in the sample. A
 * failure here also fails on rank 0. */
hy_status hy_cli_follow_closing(const hy_config *config, hy_trainer *trainer);
/* Phases, prediction, losses and a sample, unless the run was stopped; then the files and the next
 * commands. `program` is argv[0]. With is_verbose also memory, its savings, and the cost of
 * prediction. */
void hy_cli_closing(const hy_cli_terminal *terminal, const hy_config *config, hy_trainer *trainer,
                    const char *program, bool was_stopped, bool is_verbose);

/* Writes the report of the run in `folder` ("" does nothing) and prints its path. A failure is only
 * a warning, because the run is done and saved. */
void hy_cli_write_report(const hy_cli_terminal *terminal, const char *folder);
