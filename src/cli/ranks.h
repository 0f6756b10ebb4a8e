/* ranks.h: hybrid-train as one of several processes: who starts the others, and who of them speaks.
 *
 * --gpus and --ranks start their own ranks, which are the same command once more; mpirun, srun and torchrun have started
 * them already. Rank 0 prints; the others say errors and nothing else. */
#pragma once

#include "cli/options.h"
#include "cli/terminal.h"
#include "hybrid.h"

/* Before training. Starts ranks where they are asked for and waits for them: the exit code to end with, also of a
 * refusal, which it has said. HY_CLI_GO_ON (program.h) where this process trains itself. Under --gpus `device`
 * becomes cuda. */
int hy_cli_start_ranks(const hy_cli_options *options, hy_config *config, char *const *argv);

/* Before a plan, for which nothing is started: whether the flags go together and with the settings. It has said why not.
 * Under --gpus `device` becomes cuda, unless a card is named. */
bool hy_cli_check_ranks(const hy_cli_options *options, hy_config *config, bool has_model);

/* Who this process is. Ranks other than 0 get quiet and, unless our launcher puts their number in front of their lines,
 * say it in their errors. On failure it has said why. */
hy_status hy_cli_be_rank(hy_rank_info *who, hy_cli_terminal *terminal);

/* Whether this process warns of its command line: of several, one does. */
bool hy_cli_warns(void);

/* As hy_cli_fail. A failure that another rank had is said by that one and by rank 0, not by all. */
int hy_cli_fail_as(const hy_rank_info *who, hy_status status);
