/* adapter_flags.h: rejects flags for adapters in a command without adapters. */
#pragma once

#include "cli/options.h"

/* HY_ERR_INPUT, with a message on standard error, if a flag or --set of the command needs adapters
 * and `config` has none. Files are not checked, because several commands may share them. */
hy_status hy_cli_check_adapter_flags(const hy_cli_options *options, const hy_config *config);
