/* adapter_flags.h: flags that are for adapters, in a command that trains none. */
#pragma once

#include "cli/options.h"

/* HY_ERR_INPUT, said on standard error: a flag or --set of the command counts with adapters alone, and `config` has
 * none. Nothing is said of files, which may be for several commands. */
hy_status hy_cli_check_adapter_flags(const hy_cli_options *options, const hy_config *config);
