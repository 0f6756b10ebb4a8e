/* options.c: argv becomes an action, a few switches and a list of settings.
 *
 * The rules: "--flag value" and "--flag=value" are the same; a switch is "--flag", "--no-flag"
 * or "--flag=false"; a value may begin with a dash unless it is a flag itself; nothing stands
 * alone. Every complaint names the argument and says what would have been right. */
#include "cli/options.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "cli/terminal.h"

typedef struct argument_reader {
    char *const *next; /* the argument after the one in hand */
    char *const *end;
    hy_cli_options *options;
} argument_reader;

/* ---- what a following argument is ------------------------------------------------------------ */

static size_t name_length(const char *argument) { return strcspn(argument, "="); }

/* "--no-shuffle" for a switch "--shuffle". */
static bool find_negated(const char *name, size_t length, hy_cli_flag *flag) {
    char positive[64] = "--";
    if (length < 6 || length >= sizeof positive || strncmp(name, "--no-", 5) != 0) return false;
    memcpy(positive + 2, name + 5, length - 5);
    if (!hy_cli_flag_find(positive, length - 3, flag)) return false;
    return flag->meaning == HY_CLI_IS_KEY && strcmp(flag->type, "switch") == 0;
}

static bool is_flag(const char *argument) {
    hy_cli_flag flag;
    size_t length = name_length(argument);
    if (argument[0] != '-' || argument[1] == '\0') return false;
    if (argument[1] != '-') return argument[2] == '\0' && hy_cli_flag_by_letter(argument[1], &flag);
    return hy_cli_flag_find(argument, length, &flag) || find_negated(argument, length, &flag);
}

/* ---- taking one flag ------------------------------------------------------------------------- */

static bool is_key_and_value(const char *text) {
    assert(text != NULL); /* a flag that takes a value is never taken without one */
    const char *equals = strchr(text, '=');
    if (equals != NULL && equals != text) return true;
    hy_cli_error("--set needs key=value, but got \"%s\"", text);
    return false;
}

static bool add_setting(argument_reader *reader, const hy_cli_flag *flag, const char *value) {
    hy_cli_options *options = reader->options;
    hy_cli_meaning meaning = flag->meaning == HY_CLI_IS_ALIAS ? HY_CLI_IS_KEY : flag->meaning;
    options->settings[options->setting_count++] =
        (hy_cli_setting){.meaning = meaning, .key = flag->key, .value = value};
    return true;
}

/* `value` is what the flag came with, or NULL. */
static bool take_flag(argument_reader *reader, const hy_cli_flag *flag, const char *value) {
    hy_cli_options *options = reader->options;
    switch (flag->meaning) {
    case HY_CLI_IS_QUIET: options->is_quiet = true; return true;
    case HY_CLI_IS_NO_COLOR: options->without_colour = true; return true;
    case HY_CLI_IS_JSON: options->wants_json = true; return true;
    case HY_CLI_IS_KEY:
    case HY_CLI_IS_ALIAS: return add_setting(reader, flag, value != NULL ? value : flag->value);
    case HY_CLI_IS_CONFIG: return add_setting(reader, flag, value);
    case HY_CLI_IS_SET: return is_key_and_value(value) && add_setting(reader, flag, value);
    case HY_CLI_IS_HELP:
        options->topic = value;
        reader->next = reader->end; /* whatever else is there, help comes first */
        break;
    default: break;
    }
    options->action = flag->meaning;
    return true;
}

static bool say_value_missing(const hy_cli_flag *flag) {
    char accepts[512];
    hy_cli_error("%s needs a value: %s", flag->flag,
                 hy_cli_flag_accepts(flag, accepts, sizeof accepts));
    return false;
}

/* Whether `argument` can be the value of the flag before it. Free text may look like a flag that
 * does not exist; other values may not: a mistyped flag is likelier. */
static bool is_value_of(const hy_cli_flag *flag, const char *argument) {
    if (flag->meaning == HY_CLI_IS_HELP) return true;
    bool is_free = strcmp(flag->type, "text") == 0;
    return !is_flag(argument) && (is_free || strncmp(argument, "--", 2) != 0);
}

/* The value of a flag that stands without "=": the next argument, where there is one for it. */
static bool take_following(argument_reader *reader, const hy_cli_flag *flag) {
    bool has_next = reader->next < reader->end;
    bool is_value = has_next && is_value_of(flag, *reader->next);
    if (flag->takes == HY_CLI_NO_VALUE) return take_flag(reader, flag, NULL);
    if (!is_value && flag->takes == HY_CLI_VALUE) return say_value_missing(flag);
    return take_flag(reader, flag, is_value ? *reader->next++ : NULL);
}

static bool take_with_value(argument_reader *reader, const hy_cli_flag *flag, const char *value) {
    bool is_switch = flag->meaning == HY_CLI_IS_KEY;
    if (flag->takes == HY_CLI_NO_VALUE && !is_switch) {
        hy_cli_error("%s takes no value, but got \"%s\"", flag->flag, value);
        return false;
    }
    return take_flag(reader, flag, value);
}

/* ---- complaints ------------------------------------------------------------------------------ */

static bool say_unknown(const char *argument) {
    hy_cli_unknown_flag(hy_cli_name_of_flag, argument, name_length(argument),
                        "\"hybrid-train --help all\" lists every flag");
    return false;
}

static bool is_builtin(const char *kind, const char *name) {
    const char *known;
    for (size_t i = 0; (known = hy_builtin_name(kind, i)) != NULL; i++)
        if (strcmp(known, name) == 0) return true;
    return false;
}

static bool is_truth_value(const char *text) {
    static const char *const values[] = {"true", "false", "on", "off", "yes", "no", "0", "1"};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++)
        if (strcmp(text, values[i]) == 0) return true;
    return false;
}

/* Nothing may stand alone; the message names the flag that was probably meant. */
static bool say_stray(const char *argument, const hy_cli_flag *previous) {
    size_t length = strlen(argument);
    bool is_config = length > 4 && strcmp(argument + length - 4, ".cfg") == 0;
    if (previous != NULL && strcmp(previous->type, "switch") == 0 && is_truth_value(argument))
        hy_cli_error("unexpected argument \"%s\"; a switch takes its value with \"=\": %s=%s",
                     argument, previous->flag, argument);
    else
        hy_cli_error("unexpected argument \"%s\"; every value follows a flag: %s %s", argument,
                     is_config                         ? "--config"
                     : is_builtin("model", argument)   ? "--model"
                     : is_builtin("profile", argument) ? "--profile"
                                                       : "--data",
                     argument);
    return false;
}

/* ---- the whole line -------------------------------------------------------------------------- */

static bool take_long(argument_reader *reader, const char *argument, hy_cli_flag *flag) {
    size_t length = name_length(argument);
    const char *value = argument[length] == '=' ? argument + length + 1 : NULL;
    if (hy_cli_flag_find(argument, length, flag))
        return value != NULL ? take_with_value(reader, flag, value) : take_following(reader, flag);
    if (!find_negated(argument, length, flag)) return say_unknown(argument);
    if (value != NULL) {
        hy_cli_error("%.*s takes no value, but got \"%s\"", (int)length, argument, value);
        return false;
    }
    return take_flag(reader, flag, "false");
}

static bool take_argument(argument_reader *reader, const char *argument, hy_cli_flag *flag) {
    if (strncmp(argument, "--", 2) == 0 && argument[2] != '\0')
        return take_long(reader, argument, flag);
    if (argument[0] == '-' && argument[1] != '\0' && argument[2] == '\0' &&
        hy_cli_flag_by_letter(argument[1], flag))
        return take_following(reader, flag);
    if (argument[0] == '-' && argument[1] != '\0') return say_unknown(argument);
    return say_stray(argument, flag->flag != NULL ? flag : NULL);
}

bool hy_cli_options_parse(int argc, char *const *argv, hy_cli_options *options) {
    argument_reader reader = {.next = argv + (argc > 0), .end = argv + argc, .options = options};
    hy_cli_flag flag = {0}; /* the one before, for messages */
    *options = (hy_cli_options){.action = HY_CLI_IS_KEY};
    options->settings = calloc((size_t)argc + 1, sizeof *options->settings);
    if (options->settings == NULL) {
        hy_cli_error("no memory for %d arguments", argc);
        return false;
    }
    while (reader.next < reader.end) {
        const char *argument = *reader.next++;
        if (!take_argument(&reader, argument, &flag)) return false;
    }
    return true;
}

void hy_cli_options_fini(hy_cli_options *options) {
    free(options->settings);
    options->settings = NULL;
    options->setting_count = 0;
}
