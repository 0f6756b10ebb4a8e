/* ranks.h: hybrid-train as one of several processes: who starts the others, and who prints.
 *
 * --gpus and --ranks start the ranks with the same command; mpirun, srun and torchrun start them
 * before. Rank 0 prints; other ranks print only errors. */
#pragma once

#include "cli/options.h"
#include "cli/terminal.h"
#include "hybrid.h"

/* Before training: starts the ranks if the flags ask for it and waits for them. Returns the exit
 * code; errors have been printed. Returns HY_CLI_GO_ON (program.h) if this process trains itself.
 * With --gpus, `device` becomes cuda. */
int hy_cli_start_ranks(const hy_cli_options *options, hy_config *config, char *const *argv);

/* Before a plan, which starts no ranks: whether the flags can be combined with each other and with
 * the settings; prints the reason if not. With --gpus, `device` becomes cuda unless a card is
 * named. */
bool hy_cli_check_ranks(const hy_cli_options *options, hy_config *config, bool has_model);

/* Finds the rank of this process. Ranks other than 0 become quiet, and name their rank in errors
 * unless our launcher prefixes their lines. On failure, prints the reason. */
hy_status hy_cli_be_rank(hy_rank_info *who, hy_cli_terminal *terminal);

/* Whether this process prints warnings about the command line: only one of the ranks does. */
bool hy_cli_prints_warnings(void);

/* Like hy_cli_fail. Only that rank and rank 0 print the failure of another rank. */
int hy_cli_fail_as(const hy_rank_info *who, hy_status status);
