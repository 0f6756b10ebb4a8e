/* options.h: the command line of hybrid-train.
 *
 * A flag either belongs to the program (--help, --quiet, ...) or sets a configuration key. The
 * second kind comes from hy_config_key(), so every new key automatically has a flag. Parsing, help
 * and completion share one list. The parser only reads argv; hy_cli_configure puts the settings, in
 * their order, into a configuration. */
#pragma once

#include <stdio.h>

#include "hybrid.h"

typedef enum hy_cli_meaning {
    HY_CLI_IS_KEY = 0, /* sets a configuration key */
    HY_CLI_IS_HELP,
    HY_CLI_IS_VERSION,
    HY_CLI_IS_PRINT_CONFIG,
    HY_CLI_IS_PLAN,
    HY_CLI_IS_PLAN_SHAPES,
    HY_CLI_IS_DOCTOR,
    HY_CLI_IS_EVAL_ONLY,
    HY_CLI_IS_SHOW_ROWS,
    HY_CLI_IS_SELFTEST,
    HY_CLI_IS_LIST_MODELS,
    HY_CLI_IS_DOWNLOAD,
    HY_CLI_IS_COMPLETE,
    HY_CLI_IS_CONFIG,
    HY_CLI_IS_SET,
    HY_CLI_IS_SWITCH, /* sets a bool of hy_cli_options */
    HY_CLI_IS_COUNT,  /* sets an int32_t of hy_cli_options */
    HY_CLI_IS_ALIAS   /* another name for key=value */
} hy_cli_meaning;

typedef enum hy_cli_takes { HY_CLI_NO_VALUE, HY_CLI_VALUE, HY_CLI_OPTIONAL_VALUE } hy_cli_takes;

typedef struct hy_cli_flag {
    const char *flag; /* "--batch-size" */
    hy_cli_meaning meaning;
    const char *help; /* as in hy_config_key_info */
    char letter;      /* 'h' for -h; 0: none */
    hy_cli_takes takes;
    const char *type;     /* as in hy_config_key_info, or name, path, file, folder, action */
    const char *accepted; /* as in hy_config_key_info; NULL: no value */
    const char *builtin;  /* the kind of hy_builtin_name that is accepted; NULL: none */
    size_t option;        /* switch or count: offset in hy_cli_options */
    const char *key;      /* the key of a key flag or an alias, else NULL */
    const char *value;    /* the value that an alias, a switch or an optional value sets */
    const char *fallback; /* the default of a key, else NULL */
    bool is_hidden;       /* for scripts; not shown in help */
} hy_cli_flag;

/* Flag number i, or false when i is past the last. */
bool hy_cli_flag_at(size_t i, hy_cli_flag *out);

/* The flag of this name ("--batch-size", "--batch_size" or "-q"; `length` bytes). */
bool hy_cli_flag_find(const char *name, size_t length, hy_cli_flag *out);

/* The flag most similar to a wrong name, or NULL. */
const char *hy_cli_nearest_flag(const char *typed, size_t length);

/* One --config, --set or key flag. */
typedef struct hy_cli_setting {
    hy_cli_meaning meaning;  /* HY_CLI_IS_CONFIG, HY_CLI_IS_SET or HY_CLI_IS_KEY */
    const char *key;         /* key of a flag; NULL for the others */
    const char *value;       /* the file, "key=value", or the value */
    char *joined;            /* the value if it was joined from several; else NULL */
    const char *flag, *lost; /* for a flag given again: its name and the earlier value; else NULL */
} hy_cli_setting;

typedef struct hy_cli_options {
    hy_cli_meaning action; /* HY_CLI_IS_KEY: train */
    /* topic of --help, model of --download, file of --plan-shapes, count of --show-rows; NULL:
     * none */
    const char *topic;
    bool is_quiet, is_verbose, without_colour, wants_json;
    int32_t gpus, ranks; /* number of ranks to start; 0: not set */
    int32_t restarts;    /* restarts after a rank has failed */
    hy_cli_setting *settings;
    size_t setting_count;
} hy_cli_options;

/* Parses argv. On an error, prints it to standard error and returns false. Call hy_cli_options_fini
 * in both cases. Strings point into argv or belong to the library. */
bool hy_cli_options_parse(int argc, char *const *argv, hy_cli_options *options);
void hy_cli_options_fini(hy_cli_options *options);

/* Warns about flags that were given more than once. */
void hy_cli_options_warn(const hy_cli_options *options);

/* Creates a configuration from files, then --set, then flags. If a run is resumed, its own
 * configuration comes first and all of these override it. If `model` is not NULL, --model is not
 * set in the configuration and its last value is returned there: it may be a run folder, which that
 * key does not accept. On failure, prints the reason to standard error; there is nothing to
 * destroy. */
hy_status hy_cli_configure(const hy_cli_options *options, const char **model, hy_config **out);

/* HY_ERR_INPUT, with a message on standard error, if a flag or --set of the command needs adapters
 * and `config` has none. Files are not checked, because several commands may share them. */
hy_status hy_cli_check_adapter_flags(const hy_cli_options *options, const hy_config *config);

/* Prints and frees a text that the library made with this `status`, or prints its error. Returns
 * `status`. */
hy_status hy_cli_print(FILE *out, hy_status status, char *const *text);

/* Prints the library's error message if `status` is a failure, and returns `status`. */
hy_status hy_cli_checked(hy_status status);

/* A key's value as text; "" if there is no such key. Valid until the configuration changes. */
const char *hy_cli_value(const hy_config *config, const char *key);
