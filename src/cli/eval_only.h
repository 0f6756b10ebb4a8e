/* eval_only.h: --eval-only: a model's loss on data, and nothing else. */
#ifndef HY_CLI_EVAL_ONLY_H
#define HY_CLI_EVAL_ONLY_H

#include "cli/options.h"
#include "cli/terminal.h"

/* Evaluates what the options name and prints it. --model may be a run or a checkpoint here, too. A failure
 * was told when it returns. */
hy_status hy_cli_eval_only(const hy_cli_terminal *terminal, const hy_cli_options *options);

#endif
