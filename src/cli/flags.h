/* flags.h: every flag of the program, in one list.
 *
 * A flag either belongs to the program itself (--help, --quiet, ...) or stands for a
 * configuration key; the second kind comes from hy_config_key(), so a new key is a new flag
 * without a word written here. Parsing, help and completion all read this list. */
#ifndef HY_CLI_FLAGS_H
#define HY_CLI_FLAGS_H

#include <stdbool.h>
#include <stddef.h>

#include "cli/flag_names.h"
#include "hybrid.h"

typedef enum hy_cli_meaning {
    HY_CLI_IS_KEY = 0, /* sets a configuration key */
    HY_CLI_IS_HELP,
    HY_CLI_IS_VERSION,
    HY_CLI_IS_PRINT_CONFIG,
    HY_CLI_IS_PLAN,
    HY_CLI_IS_DOCTOR,
    HY_CLI_IS_EVAL_ONLY,
    HY_CLI_IS_SELFTEST,
    HY_CLI_IS_LIST_MODELS,
    HY_CLI_IS_COMPLETE,
    HY_CLI_IS_CONFIG,
    HY_CLI_IS_SET,
    HY_CLI_IS_QUIET,
    HY_CLI_IS_NO_COLOR,
    HY_CLI_IS_JSON,
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

/* The flag of this name ("--batch-size" or "--batch_size"; `length` bytes). */
bool hy_cli_flag_find(const char *name, size_t length, hy_cli_flag *out);

/* The flag of this letter. */
bool hy_cli_flag_by_letter(char letter, hy_cli_flag *out);

/* Names for flag_names.h; hy_cli_flag_find knows more spellings. Library strings. */
hy_cli_flag_name hy_cli_name_of_flag(size_t i);

/* What may follow the flag, as one phrase: "integer, 1 to 65536". */
const char *hy_cli_flag_accepts(const hy_cli_flag *flag, char *buffer, size_t size);

#endif
