/* options.h: what the command line asks for.
 *
 * Parsing only reads argv; nothing is set and nothing is opened. Settings keep their order and
 * are put into a configuration by hy_cli_configure. */
#ifndef HY_CLI_OPTIONS_H
#define HY_CLI_OPTIONS_H

#include <stdbool.h>

#include "cli/flags.h"
#include "hybrid.h"

/* One --config, --set or key flag. */
typedef struct hy_cli_setting {
    hy_cli_meaning meaning; /* HY_CLI_IS_CONFIG, HY_CLI_IS_SET or HY_CLI_IS_KEY */
    const char *key;        /* of a flag; NULL for the others */
    const char *value;      /* the file, "key=value", or the value */
} hy_cli_setting;

typedef struct hy_cli_options {
    hy_cli_meaning action; /* HY_CLI_IS_KEY: train */
    const char *topic;     /* of --help; NULL: none */
    bool is_quiet, without_colour, wants_json;
    hy_cli_setting *settings;
    size_t setting_count;
} hy_cli_options;

/* Reads argv. When it is wrong, says so on standard error and returns false. Either way
 * hy_cli_options_fini must follow. Strings point into argv or belong to the library. */
bool hy_cli_options_parse(int argc, char *const *argv, hy_cli_options *options);
void hy_cli_options_fini(hy_cli_options *options);

#endif
