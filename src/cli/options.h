/* options.h: what the command line of hybrid-train asks for.
 *
 * A flag either belongs to the program itself (--help, --quiet, ...) or stands for a configuration key; the
 * second kind comes from hy_config_key(), so a new key is a new flag without a word written here. Parsing,
 * help and completion all read one list. Parsing only reads argv: settings keep their order and are put
 * into a configuration by hy_cli_configure. */
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
    HY_CLI_IS_SELFTEST,
    HY_CLI_IS_LIST_MODELS,
    HY_CLI_IS_DOWNLOAD,
    HY_CLI_IS_COMPLETE,
    HY_CLI_IS_CONFIG,
    HY_CLI_IS_SET,
    HY_CLI_IS_QUIET,
    HY_CLI_IS_VERBOSE,
    HY_CLI_IS_NO_COLOR,
    HY_CLI_IS_JSON,
    HY_CLI_IS_GPUS,
    HY_CLI_IS_RANKS,
    HY_CLI_IS_RESTARTS,
    HY_CLI_IS_ALIAS /* another name for key=value */
} hy_cli_meaning;

typedef enum hy_cli_takes { HY_CLI_NO_VALUE, HY_CLI_VALUE, HY_CLI_OPTIONAL_VALUE } hy_cli_takes;

typedef struct hy_cli_flag {
    const char *flag; /* "--batch-size" */
    char letter;      /* 'h' for -h; 0: none */
    hy_cli_meaning meaning;
    hy_cli_takes takes;
    const char *type;            /* as in hy_config_key_info, or name, path, file, folder, action */
    const char *accepted, *help; /* as in hy_config_key_info */
    const char *builtin;         /* the kind of hy_builtin_name that is accepted; NULL: none */
    const char *key;             /* of a key or an alias, else NULL */
    const char *value;           /* what an alias sets; what a switch or optional value means */
    const char *fallback;        /* of a key, else NULL */
    bool is_hidden;              /* for programs, not for people */
} hy_cli_flag;

/* Flag number i, or false when i is past the last. */
bool hy_cli_flag_at(size_t i, hy_cli_flag *out);

/* The flag of this name ("--batch-size", "--batch_size" or "-q"; `length` bytes). */
bool hy_cli_flag_find(const char *name, size_t length, hy_cli_flag *out);

/* The flag that was probably meant, or NULL when none is near. */
const char *hy_cli_nearest_flag(const char *typed, size_t length);

/* One --config, --set or key flag. */
typedef struct hy_cli_setting {
    hy_cli_meaning meaning; /* HY_CLI_IS_CONFIG, HY_CLI_IS_SET or HY_CLI_IS_KEY */
    const char *key;        /* of a flag; NULL for the others */
    const char *value;      /* the file, "key=value", or the value */
    char *joined;           /* the value where it was made of several; else NULL */
    const char *flag,
        *lost; /* of a flag that came again: its name, and the value before; else NULL */
} hy_cli_setting;

typedef struct hy_cli_options {
    hy_cli_meaning action; /* HY_CLI_IS_KEY: train */
    const char *topic;     /* of --help, or what to download; NULL: none */
    bool is_quiet, is_verbose, without_colour, wants_json;
    int32_t gpus, ranks; /* to start; 0: not asked for */
    int32_t restarts;    /* of ranks that fail */
    hy_cli_setting *settings;
    size_t setting_count;
} hy_cli_options;

/* Reads argv. When it is wrong, says so on standard error and returns false. Either way
 * hy_cli_options_fini must follow. Strings point into argv or belong to the library. */
bool hy_cli_options_parse(int argc, char *const *argv, hy_cli_options *options);
void hy_cli_options_fini(hy_cli_options *options);

/* Warns of flags that came more than once, with the value that counts. */
void hy_cli_options_warn(const hy_cli_options *options);

/* Puts files, then --set, then flags into a new configuration; a run that is resumed brings its own
 * configuration, which all of these override. Where `model` is not NULL, --model is left out and its
 * last value is put there: it may be a run's folder, which is no value of that key. On failure it has
 * said why on standard error, and there is nothing to destroy. */
hy_status hy_cli_configure(const hy_cli_options *options, const char **model, hy_config **out);

/* Prints and frees a text that the library made, where `status` says that it did. */
void hy_cli_print(FILE *out, hy_status status, char *text);

/* Says why the library failed, and passes its status on. */
hy_status hy_cli_said(hy_status status);

/* A key's value as text; "" when there is no such key. Valid until the configuration changes. */
const char *hy_cli_value(const hy_config *config, const char *key);
