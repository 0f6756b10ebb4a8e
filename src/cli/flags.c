/* flags.c: the program's own flags as a table, joined with the configuration's keys.
 *
 * Own flags come first, keys after them. Names are compared with '_' and '-' as the same
 * character, so that a key's spelling in a file works as a flag, too. */
#include "cli/flags.h"

#include <stdio.h>
#include <string.h>

static const hy_cli_flag own_flags[] = {
    {.flag = "--help",
     .letter = 'h',
     .meaning = HY_CLI_IS_HELP,
     .takes = HY_CLI_OPTIONAL_VALUE,
     .type = "topic",
     .accepted = "a flag, a group of keys, or all",
     .help = "Show help; with a topic, all there is to know about it."},
    {.flag = "--version",
     .letter = 'V',
     .meaning = HY_CLI_IS_VERSION,
     .type = "action",
     .help = "Print the version."},
    {.flag = "--config",
     .letter = 'c',
     .meaning = HY_CLI_IS_CONFIG,
     .takes = HY_CLI_VALUE,
     .type = "file",
     .builtin = "gpu",
     .accepted = "a libconfig file or the name of a built-in one; may be repeated",
     .help = "Read settings from a file; a later file wins over an earlier one."},
    {.flag = "--set",
     .meaning = HY_CLI_IS_SET,
     .takes = HY_CLI_VALUE,
     .type = "key=value",
     .accepted = "key=value, one of the configuration's keys",
     .help = "Set one key; stronger than files, weaker than flags."},
    {.flag = "--print-config",
     .meaning = HY_CLI_IS_PRINT_CONFIG,
     .type = "action",
     .help = "Print every setting with where it came from, and stop."},
    {.flag = "--plan",
     .meaning = HY_CLI_IS_PLAN,
     .type = "action",
     .help =
         "Show what the run would keep where in each phase, how fast it would be and whether it "
         "fits, and stop; without a model: what fits this machine. With --json for programs."},
    {.flag = "--eval-only",
     .meaning = HY_CLI_IS_EVAL_ONLY,
     .type = "action",
     .help = "Show the loss of --model (a model's folder, a run or a checkpoint) on all of --data, "
             "and stop; nothing is written. With --json for programs."},
    {.flag = "--doctor",
     .meaning = HY_CLI_IS_DOCTOR,
     .type = "action",
     .help = "Show what this machine is and which models fit it, and stop."},
    {.flag = "--selftest",
     .meaning = HY_CLI_IS_SELFTEST,
     .type = "action",
     .help = "Test every op on this machine's GPU (or its CPU) and time a few, and stop."},
    {.flag = "--list-models",
     .meaning = HY_CLI_IS_LIST_MODELS,
     .type = "action",
     .help = "Show the built-in models with parameters and shape, and stop."},
    {.flag = "--quiet",
     .letter = 'q',
     .meaning = HY_CLI_IS_QUIET,
     .type = "action",
     .help = "Say nothing but errors."},
    {.flag = "--no-color",
     .meaning = HY_CLI_IS_NO_COLOR,
     .type = "action",
     .help = "No colours; so does the variable NO_COLOR."},
    {.flag = "--json",
     .meaning = HY_CLI_IS_JSON,
     .type = "action",
     .help = "Print the summary as JSON on standard output; everything else goes to standard "
             "error."},
    {.flag = "--no-checkpointing",
     .meaning = HY_CLI_IS_ALIAS,
     .type = "action",
     .key = "recompute",
     .value = "none",
     .help = "Keep all activations: the same as --recompute none."},
    {.flag = "--checkpoint-every-layer",
     .meaning = HY_CLI_IS_ALIAS,
     .type = "action",
     .key = "recompute",
     .value = "all",
     .help = "Recompute every layer in the backward pass: the same as --recompute all."},
    {.flag = "--complete",
     .meaning = HY_CLI_IS_COMPLETE,
     .type = "action",
     .is_hidden = true,
     .help = "Print all flags for shell completion."},
};

#define OWN_COUNT (sizeof own_flags / sizeof own_flags[0])

/* Keys whose text is a path or the name of something built in, which the type "text" does not
 * say. */
static const struct {
    const char *flag, *type, *builtin;
} kinds[] = {
    {"--model", "name", "model"}, {"--profile", "name", "profile"}, {"--data", "path", NULL},
    {"--val-data", "path", NULL}, {"--out", "folder", NULL},        {"--resume", "folder", NULL},
};

static void name_kind(hy_cli_flag *flag) {
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (strcmp(kinds[i].flag, flag->flag) != 0) continue;
        flag->type = kinds[i].type;
        flag->builtin = kinds[i].builtin;
    }
}

static hy_cli_flag flag_of_key(const hy_config_key_info *key) {
    hy_cli_flag flag = {.flag = key->flag,
                        .meaning = HY_CLI_IS_KEY,
                        .takes = HY_CLI_VALUE,
                        .type = key->type,
                        .accepted = key->accepted,
                        .help = key->help,
                        .key = key->key,
                        .fallback = key->fallback};
    if (strcmp(key->type, "switch") == 0) {
        flag.takes = HY_CLI_NO_VALUE;
        flag.value = "true";
    } else if (strcmp(key->flag, "--resume") == 0) {
        flag.takes = HY_CLI_OPTIONAL_VALUE;
        flag.value = "auto";
    }
    name_kind(&flag);
    return flag;
}

bool hy_cli_flag_at(size_t i, hy_cli_flag *out) {
    if (i < OWN_COUNT) {
        *out = own_flags[i];
        return true;
    }
    const hy_config_key_info *key = hy_config_key(i - OWN_COUNT);
    if (key == NULL) return false;
    *out = flag_of_key(key);
    return true;
}

static bool is_same_name(const char *flag, const char *name, size_t length) {
    if (strlen(flag) != length) return false;
    for (size_t i = 0; i < length; i++) {
        char typed = name[i] == '_' ? '-' : name[i];
        if (flag[i] != typed) return false;
    }
    return true;
}

bool hy_cli_flag_find(const char *name, size_t length, hy_cli_flag *out) {
    char whole[64];
    for (size_t i = 0; hy_cli_flag_at(i, out); i++)
        if (is_same_name(out->flag, name, length)) return true;
    /* Names other trainers use are not in the list, but the library knows what they mean. */
    if (length < 3 || length >= sizeof whole) return false;
    snprintf(whole, sizeof whole, "%.*s", (int)length, name);
    const hy_config_key_info *key = hy_config_find(whole);
    if (key != NULL) *out = flag_of_key(key);
    return key != NULL;
}

bool hy_cli_flag_by_letter(char letter, hy_cli_flag *out) {
    for (size_t i = 0; i < OWN_COUNT; i++) {
        if (own_flags[i].letter != letter) continue;
        *out = own_flags[i];
        return true;
    }
    return false;
}

hy_cli_flag_name hy_cli_name_of_flag(size_t i) {
    hy_cli_flag flag;
    if (!hy_cli_flag_at(i, &flag)) return (hy_cli_flag_name){0};
    return (hy_cli_flag_name){flag.flag, flag.is_hidden};
}

const char *hy_cli_flag_accepts(const hy_cli_flag *flag, char *buffer, size_t size) {
    static const char *const numeric[] = {"integer", "number", "bytes"};
    const char *type = "", *accepted = flag->accepted != NULL ? flag->accepted : "";
    for (size_t i = 0; i < sizeof numeric / sizeof numeric[0]; i++)
        if (strcmp(flag->type, numeric[i]) == 0) type = numeric[i];
    snprintf(buffer, size, "%s%s%s", type, *type != '\0' ? ", " : "", accepted);
    return buffer;
}
