/* configure.h: the configuration that a command line comes to. */
#ifndef HY_CLI_CONFIGURE_H
#define HY_CLI_CONFIGURE_H

#include "cli/options.h"
#include "hybrid.h"

/* Puts files, then --set, then flags into a new configuration; a run that is resumed brings its own
 * configuration, which all of these override. On failure it has said why on standard
 * error, and there is nothing to destroy. */
hy_status hy_cli_configure(const hy_cli_options *options, hy_config **out);

/* A key's value as text; "" when there is no such key. Valid until the configuration changes. */
const char *hy_cli_value(const hy_config *config, const char *key);

#endif
