/* chat_options.h: what the command line of hybrid-chat asks for.
 *
 * Parsing only reads argv; every complaint names the argument and what would have been right. */
#ifndef HY_CLI_CHAT_OPTIONS_H
#define HY_CLI_CHAT_OPTIONS_H

#include <stdbool.h>
#include <stdio.h>

#include "hybrid.h"

typedef enum hy_cli_chat_action {
    HY_CLI_CHAT_TALKS,
    HY_CLI_CHAT_HELP,
    HY_CLI_CHAT_VERSION,
    HY_CLI_CHAT_COMPLETE
} hy_cli_chat_action;

/* Values for the configuration: the device and how it is used. */
typedef struct hy_cli_chat_setting {
    const char *key, *value;
} hy_cli_chat_setting;

enum { HY_CLI_CHAT_SETTINGS = 8 };

typedef struct hy_cli_chat_options {
    hy_cli_chat_action action;
    const char *model;
    const char *prompt; /* NULL: talk */
    const char *system;
    hy_inference_options inference;
    hy_generate_options generate;
    bool is_quiet, without_colour;
    hy_cli_chat_setting settings[HY_CLI_CHAT_SETTINGS];
    size_t setting_count;
} hy_cli_chat_options;

/* False when it is wrong, and standard error says how. Strings point into argv. */
bool hy_cli_chat_parse(int argc, char *const *argv, hy_cli_chat_options *options);
void hy_cli_chat_help(void);
/* The flags for the shells' completion; see completion.h. */
void hy_cli_chat_complete(FILE *out);

#endif
