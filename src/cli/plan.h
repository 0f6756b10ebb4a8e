/* plan.h: --plan: what a run would keep where, how fast it would be, and why; or what fits here. */
#ifndef HY_CLI_PLAN_H
#define HY_CLI_PLAN_H

#include "cli/terminal.h"
#include "hybrid.h"

/* Whether a model was named: by a flag, a file, --set or a run that is resumed. */
bool hy_cli_names_model(const hy_config *config);

/* The plan of one run, as text or as JSON on the terminal's stream. A plan that does not fit is an
 * answer, not a failure. */
hy_status hy_cli_plan(const hy_cli_terminal *terminal, const hy_config *config, bool wants_json);

/* plan_list.c: every built-in model by this configuration, which is changed on the way: whether it fits,
 * how, and how fast. */
hy_status hy_cli_plan_list(const hy_cli_terminal *terminal, hy_config *config);

#endif
