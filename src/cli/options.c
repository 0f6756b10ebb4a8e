/* options.c: the flags of hybrid-train, the parser of argv, and the resulting configuration. See
 * options.h.
 *
 * The rules: "--flag value" and "--flag=value" are the same; a switch is "--flag", "--no-flag",
 * "--flag=false" or "--flag false"; a value may begin with a dash unless it is a flag, and with two
 * dashes only if it is free text; there are no other arguments.
 * Every error names the argument and says what is expected. */
#include "cli/options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "cli/program.h"
#include "cli/ranks.h"
#include "cli/terminal.h"

#define TEXT_OF(number) #number
#define TO(number) "1 to " TEXT_OF(number)
#define AT(member) .option = offsetof(hy_cli_options, member)

/* ---- the list of flags ----------------------------------------------------------------------- */

/* Flags of the program come first, then keys. '_' and '-' are equal in names, so that the spelling
 * in a file also works as a flag. */

static const hy_cli_flag own_flags[] = {
    {"--help", HY_CLI_IS_HELP, "Show help. With a topic, show all of its details.", .letter = 'h',
     .takes = HY_CLI_OPTIONAL_VALUE, .type = "topic",
     .accepted = "a flag, a group of keys, or all"},
    {"--version", HY_CLI_IS_VERSION, "Print the version.", .letter = 'V', .type = "action"},
    {"--config", HY_CLI_IS_CONFIG,
     "Read settings from a file (libconfig, .yaml, .json). Later files override earlier ones.",
     .letter = 'c', .takes = HY_CLI_VALUE, .type = "file", .builtin = "gpu",
     .accepted =
         "a libconfig, .yaml or .json file, or the name of a built-in one; may be repeated"},
    {"--set", HY_CLI_IS_SET, "Set one key. Overrides files; flags override it.",
     .takes = HY_CLI_VALUE, .type = "key=value", .accepted = "key=value, with a configuration key"},
    {"--print-config", HY_CLI_IS_PRINT_CONFIG, "Print every setting and its origin, then exit.",
     .type = "action"},
    {"--plan", HY_CLI_IS_PLAN,
     "Show where the run would keep its state in each phase, its speed and whether it fits, then "
     "exit. Without a model: show what fits on this machine with all parameters, LoRA or QLoRA, "
     "and the commands to train it. --json prints JSON.",
     .type = "action"},
    {"--plan-shapes", HY_CLI_IS_PLAN_SHAPES,
     "Plan a custom model that is trained through the library: what is kept besides its weights "
     "and gradients. --precision sets the type of both.",
     .takes = HY_CLI_VALUE, .type = "path",
     .accepted =
         "a file with the name and dimensions of one parameter per line, or - for standard input"},
    {"--eval-only", HY_CLI_IS_EVAL_ONLY,
     "Show the loss of --model (a model folder, a run or a checkpoint) on all of --data, or its "
     "accuracy on rows with a known answer, then exit. Writes no files. --json prints JSON.",
     .type = "action"},
    {"--show-rows", HY_CLI_IS_SHOW_ROWS,
     "Show this many rows of --data as they are trained, then exit: text, tokens, and which of "
     "them count in the loss. --json prints a line of JSON for each.",
     .takes = HY_CLI_VALUE, .type = "integer", .accepted = "1 or more"},
    {"--doctor", HY_CLI_IS_DOCTOR,
     "Show this machine and which models fit on it with all parameters, LoRA or QLoRA, then exit.",
     .type = "action"},
    {"--selftest", HY_CLI_IS_SELFTEST,
     "Test every op on the GPU (or the CPU) of this machine, time some, then exit. With --gpus or "
     "--ranks: test their communication and training instead; --out FOLDER writes the report.",
     .type = "action"},
    {"--list-models", HY_CLI_IS_LIST_MODELS,
     "Show the built-in models with parameters and shape, then exit.", .type = "action"},
    {"--download", HY_CLI_IS_DOWNLOAD,
     "Download a model into the hub cache, where --model finds it by name, or into --out. "
     "Continues an interrupted download. Gated models need HF_TOKEN.",
     .takes = HY_CLI_VALUE, .type = "name",
     .accepted = "a model name on the Hugging Face hub, ORG/NAME or ORG/NAME@REVISION"},
    {"--quiet", HY_CLI_IS_SWITCH, "Print only errors.", .letter = 'q', .type = "action",
     AT(is_quiet)},
    {"--verbose", HY_CLI_IS_SWITCH,
     "At the end, also show the memory of each phase, the savings, and the results of prediction. "
     "With --plan and no model: the types and places of each model.",
     .letter = 'v', .type = "action", AT(is_verbose)},
    {"--no-color", HY_CLI_IS_SWITCH,
     "Print without colours, as with the environment variable NO_COLOR.", .type = "action",
     AT(without_colour)},
    {"--json", HY_CLI_IS_SWITCH,
     "Print the summary as JSON on standard output; all other output goes to standard error.",
     .type = "action", AT(wants_json)},
    {"--gpus", HY_CLI_IS_COUNT,
     "Train on this many GPUs of this machine, with one rank for each. Under mpirun, srun or "
     "torchrun, which start the ranks: the expected number.",
     .takes = HY_CLI_VALUE, .type = "integer", .accepted = TO(HY_RANKS_MOST), AT(gpus)},
    {"--ranks", HY_CLI_IS_COUNT,
     "Train with this many processes on this machine, on the CPU or sharing a GPU.",
     .takes = HY_CLI_VALUE, .type = "integer", .accepted = TO(HY_RANKS_MOST), AT(ranks)},
    {"--restarts", HY_CLI_IS_COUNT,
     "With --gpus or --ranks: if a rank fails, restart all ranks from the run's last checkpoint, "
     "up to this many times.",
     .takes = HY_CLI_VALUE, .type = "integer", .accepted = TO(HY_RANKS_MOST), AT(restarts)},
    {"--no-checkpointing", HY_CLI_IS_ALIAS, "Keep all activations; same as --recompute none.",
     .key = "recompute", .value = "none", .type = "action"},
    {"--checkpoint-every-layer", HY_CLI_IS_ALIAS,
     "Recompute every layer in the backward pass; same as --recompute all.", .key = "recompute",
     .value = "all", .type = "action"},
    {"--complete", HY_CLI_IS_COMPLETE, "Print all flags for shell completion.", .is_hidden = true,
     .type = "action"},
};

#define OWN_COUNT (sizeof own_flags / sizeof own_flags[0])

/* Keys that accept a path or a built-in name; the type "text" does not say so. */
static const struct {
    const char *flag, *type, *builtin;
} kinds[] = {
    {"--model", "name", "model"}, {"--profile", "name", "profile"}, {"--data", "path", NULL},
    {"--val-data", "path", NULL}, {"--out", "folder", NULL},        {"--resume", "folder", NULL},
};

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
    } else if (strstr(key->accepted, "on, off") != NULL || strstr(key->accepted, "off, on")) {
        flag.takes = HY_CLI_OPTIONAL_VALUE; /* "--packing" is "--packing on" */
        flag.value = "on";
    }
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (strcmp(kinds[i].flag, flag.flag) != 0) continue;
        flag.type = kinds[i].type;
        flag.builtin = kinds[i].builtin;
    }
    return flag;
}

bool hy_cli_flag_at(size_t i, hy_cli_flag *out) {
    if (i < OWN_COUNT) {
        *out = own_flags[i];
        return true;
    }
    const hy_config_key_info *key = hy_config_key(i - OWN_COUNT);
    if (key != NULL) *out = flag_of_key(key);
    return key != NULL;
}

static bool is_same_name(const char *flag, const char *name, size_t length) {
    if (strlen(flag) != length) return false;
    for (size_t i = 0; i < length; i++) {
        char typed = name[i] == '_' ? '-' : name[i];
        if (flag[i] != typed) return false;
    }
    return true;
}

/* Names that torchrun, accelerate and deepspeed give to our own flags. */
static const char *const own_names[][2] = {
    {"--num-gpus", "--gpus"}, {"--nproc-per-node", "--gpus"}, {"--num-processes", "--ranks"}};

bool hy_cli_flag_find(const char *name, size_t length, hy_cli_flag *out) {
    char whole[64];
    for (size_t i = 0; i < sizeof own_names / sizeof own_names[0]; i++)
        if (is_same_name(own_names[i][0], name, length))
            return hy_cli_flag_find(own_names[i][1], strlen(own_names[i][1]), out);
    bool is_letter = length == 2 && name[0] == '-' && name[1] != '-';
    for (size_t i = 0; hy_cli_flag_at(i, out); i++)
        if (is_letter ? out->letter == name[1] : is_same_name(out->flag, name, length)) return true;
    /* Names from other trainers are not in the list, but the library accepts them. */
    if (length < 3 || length >= sizeof whole) return false;
    snprintf(whole, sizeof whole, "%.*s", (int)length, name);
    const hy_config_key_info *key = hy_config_find(whole);
    if (key != NULL) *out = flag_of_key(key);
    return key != NULL;
}

const char *hy_cli_nearest_flag(const char *typed, size_t length) {
    const char *nearest = NULL;
    hy_cli_flag flag;
    size_t least = SIZE_MAX;
    for (size_t i = 0; hy_cli_flag_at(i, &flag); i++) {
        size_t distance = flag.is_hidden ? SIZE_MAX : hy_cli_distance(typed, length, flag.flag);
        if (distance < least) nearest = flag.flag;
        if (distance < least) least = distance;
    }
    return nearest;
}

/* ---- reading argv ---------------------------------------------------------------------------- */

static bool is_switch(const hy_cli_flag *flag) { return strcmp(flag->type, "switch") == 0; }

/* The flag that an argument names: "--flag", "--flag=value", "-f", or "--no-flag" for a switch. */
static bool find_named(const char *argument, hy_cli_flag *flag, bool *is_negated) {
    char positive[64];
    size_t length = strcspn(argument, "=");
    *is_negated = false;
    if (argument[0] != '-' || argument[1] == '\0') return false;
    if (argument[1] != '-' && argument[2] != '\0') return false; /* a short flag has one letter */
    if (hy_cli_flag_find(argument, length, flag)) return true;
    if (length < 6 || length >= sizeof positive || strncmp(argument, "--no-", 5) != 0) return false;
    snprintf(positive, sizeof positive, "--%.*s", (int)length - 5, argument + 5);
    *is_negated = hy_cli_flag_find(positive, length - 3, flag) && flag->meaning == HY_CLI_IS_KEY &&
                  (is_switch(flag) || (flag->value != NULL && strcmp(flag->value, "on") == 0));
    return *is_negated;
}

/* Whether `argument` can be the value of the flag before it. Free text may look like an unknown
 * flag. Other values may not, because a mistyped flag is more likely. */
static bool is_value_of(const hy_cli_flag *flag, const char *argument) {
    static const char *const truths[] = {
        "true", "false", "on", "off",    "yes",
        "no",   "0",     "1",  "unsloth" /* of gradient_checkpointing */};
    hy_cli_flag other;
    bool is_negated, is_truth = false;
    for (size_t i = 0; i < sizeof truths / sizeof truths[0]; i++)
        is_truth |= strcasecmp(argument, truths[i]) == 0;
    if (flag->takes == HY_CLI_NO_VALUE) return is_switch(flag) && is_truth;
    if (flag->meaning == HY_CLI_IS_HELP) return true;
    bool is_free = strcmp(flag->type, "text") == 0;
    return !find_named(argument, &other, &is_negated) &&
           (is_free || strncmp(argument, "--", 2) != 0);
}

/* A flag that was given before with another value. Data paths are joined with commas. Of other
 * flags the last one counts, and a warning says so. */
static bool take_again(hy_cli_setting *before, const hy_cli_flag *flag, const char *value) {
    bool is_list = strcmp(flag->key, "data") == 0 || strcmp(flag->key, "val_data") == 0 ||
                   strcmp(flag->key, "eval.eval_rows") == 0;
    /* not a path */
    is_list &= strcmp(value, "builtin") != 0 && strcmp(before->value, "builtin") != 0;
    if (!is_list) {
        if (strcmp(before->value, value) != 0) before->lost = before->value;
        before->flag = flag->flag;
        before->value = value;
        return true;
    }
    size_t size = strlen(before->value) + strlen(value) + 2;
    char *joined = malloc(size);
    if (joined == NULL)
        return hy_cli_refuse(false, "not enough memory for the paths of %s", flag->flag);
    snprintf(joined, size, "%s,%s", before->value, value);
    free(before->joined);
    before->value = before->joined = joined;
    return true;
}

static bool take_count(const hy_cli_flag *flag, const char *value, int32_t *out) {
    char *end;
    long number = strtol(value, &end, 10);
    *out = (int32_t)number;
    if (end != value && *end == '\0' && number >= 1 && number <= HY_RANKS_MOST) return true;
    return hy_cli_refuse(false, "%s is \"%s\"; accepted: %s", flag->flag, value, flag->accepted);
}

/* `value` is the value of the flag, or NULL. */
static bool take_flag(hy_cli_options *options, const hy_cli_flag *flag, const char *value) {
    /* probably an unset shell variable; it must not select the built-in text */
    if (value != NULL && value[0] == '\0' && strcmp(flag->flag, "--data") == 0)
        return hy_cli_refuse(false, "--data is empty; expected a file, a folder, - or builtin");
    void *option = (char *)options + flag->option;
    switch (flag->meaning) {
    case HY_CLI_IS_SWITCH: *(bool *)option = true; return true;
    case HY_CLI_IS_COUNT: return take_count(flag, value, option);
    case HY_CLI_IS_SET:
        if (strcspn(value, "=") > 0 && strchr(value, '=') != NULL) break;
        return hy_cli_refuse(false, "--set needs key=value, but got \"%s\"", value);
    case HY_CLI_IS_KEY:
    case HY_CLI_IS_ALIAS:
    case HY_CLI_IS_CONFIG: break;
    default:
        options->action = flag->meaning;
        options->topic = value; /* NULL for most actions */
        return true;
    }
    if (value == NULL) value = flag->value;
    for (size_t i = 0; i < options->setting_count && flag->key != NULL; i++) {
        hy_cli_setting *before = &options->settings[i];
        if (before->key != NULL && strcmp(before->key, flag->key) == 0)
            return take_again(before, flag, value);
    }
    options->settings[options->setting_count++] = (hy_cli_setting){
        .meaning = flag->meaning == HY_CLI_IS_ALIAS ? HY_CLI_IS_KEY : flag->meaning,
        .key = flag->key,
        .value = value};
    return true;
}

/* ---- error messages -------------------------------------------------------------------------- */

static bool fail_value_missing(const char *argument, const hy_cli_flag *flag) {
    static const char *const numeric[] = {"integer", "number", "bytes"};
    const char *type = "";
    for (size_t i = 0; i < sizeof numeric / sizeof numeric[0]; i++)
        if (strcmp(flag->type, numeric[i]) == 0) type = numeric[i];
    return hy_cli_refuse(false, "%s needs a value: %s%s%s", argument, type,
                         *type != '\0' ? ", " : "", flag->accepted != NULL ? flag->accepted : "");
}

static bool fail_unknown(const char *argument) {
    int length = (int)strcspn(argument, "=");
    char name[64];
    snprintf(name, sizeof name, "%.*s", length, argument);
    const char *hint = hy_config_hint(name);
    if (hint != NULL) return hy_cli_refuse(false, "unknown flag %s; %s", name, hint);
    const char *nearest = hy_cli_nearest_flag(argument, (size_t)length);
    if (nearest != NULL)
        hy_cli_error("unknown flag %.*s; did you mean %s?", length, argument, nearest);
    else
        hy_cli_error("unknown flag %.*s; \"hybrid-train --help all\" lists every flag", length,
                     argument);
    return false;
}

static bool is_builtin(const char *kind, const char *name) {
    const char *known;
    for (size_t i = 0; (known = hy_builtin_name(kind, i)) != NULL; i++)
        if (strcmp(known, name) == 0) return true;
    return false;
}

/* Reports an argument that belongs to no flag and names the flag that was probably meant. */
static bool fail_misplaced(const char *argument) {
    const char *end = strrchr(argument, '.');
    bool is_config =
        end != NULL && end != argument &&
        (strcmp(end, ".cfg") == 0 || strcmp(end, ".yaml") == 0 || strcmp(end, ".yml") == 0);
    return hy_cli_refuse(false, "unexpected argument \"%s\"; a value must follow a flag: %s %s",
                         argument,
                         is_config                         ? "--config"
                         : is_builtin("model", argument)   ? "--model"
                         : is_builtin("profile", argument) ? "--profile"
                                                           : "--data",
                         argument);
}

/* ---- the command line ------------------------------------------------------------------------ */

bool hy_cli_options_parse(int argc, char *const *argv, hy_cli_options *options) {
    hy_cli_flag flag;
    *options = (hy_cli_options){.action = HY_CLI_IS_KEY};
    options->settings = calloc((size_t)argc + 1, sizeof *options->settings);
    if (options->settings == NULL)
        return hy_cli_refuse(false, "not enough memory for %d arguments", argc);
    /* --help wins over all other flags. */
    for (int i = 1; i < argc && options->action != HY_CLI_IS_HELP; i++) {
        const char *argument = argv[i], *equals = strchr(argument, '=');
        const char *value = equals != NULL ? equals + 1 : NULL;
        bool is_negated;
        if (argument[0] != '-' || argument[1] == '\0') return fail_misplaced(argument);
        if (!find_named(argument, &flag, &is_negated)) return fail_unknown(argument);
        bool takes_none = flag.takes == HY_CLI_NO_VALUE && flag.meaning != HY_CLI_IS_KEY;
        if (value != NULL && (is_negated || takes_none))
            return hy_cli_refuse(false, "--%s%s takes no value, but got \"%s\"",
                                 is_negated ? "no-" : "", flag.flag + 2, value);
        if (is_negated) value = "false";
        if (value == NULL && i + 1 < argc && is_value_of(&flag, argv[i + 1])) value = argv[++i];
        if (value == NULL && flag.takes == HY_CLI_VALUE) return fail_value_missing(argument, &flag);
        if (!take_flag(options, &flag, value)) return false;
    }
    return true;
}

void hy_cli_options_warn(const hy_cli_options *options) {
    for (size_t i = 0; i < options->setting_count && !options->is_quiet; i++) {
        const hy_cli_setting *s = &options->settings[i];
        if (s->lost != NULL)
            hy_cli_warning("%s is given more than once; using %s instead of %s", s->flag, s->value,
                           s->lost);
    }
}

void hy_cli_options_fini(hy_cli_options *options) {
    for (size_t i = 0; i < options->setting_count; i++) free(options->settings[i].joined);
    free(options->settings);
    options->settings = NULL;
    options->setting_count = 0;
}

/* ---- the configuration ----------------------------------------------------------------------- */

/* A resumed run starts from the configuration in its folder. The options themselves name the folder
 * (--resume, --out, a file), so they are read once to find it, and again to override its values. */

#define NAME_BYTES 512

const char *hy_cli_value(const hy_config *config, const char *key) {
    const char *value = NULL;
    return hy_config_get(config, key, &value, NULL) == HY_OK && value != NULL ? value : "";
}

hy_status hy_cli_print(FILE *out, hy_status status, char *const *text) {
    if (status != HY_OK) return hy_cli_checked(status);
    fputs(*text, out);
    hy_free(*text);
    return HY_OK;
}

hy_status hy_cli_checked(hy_status status) {
    if (status != HY_OK) hy_cli_error("%s", hy_error_message());
    return status;
}

/* ---- applying the options -------------------------------------------------------------------- */

static hy_status apply_one(hy_config *config, const hy_cli_setting *setting) {
    const char *value = setting->value;
    if (setting->meaning == HY_CLI_IS_CONFIG) return hy_config_load(config, value);
    if (setting->meaning == HY_CLI_IS_KEY)
        return hy_config_set(config, setting->key, value, HY_FROM_FLAG);
    char key[NAME_BYTES]; /* of --set key=value; the parser has checked the "=" */
    size_t length = strcspn(value, "=");
    snprintf(key, sizeof key, "%.*s", (int)length, value);
    return hy_config_set(config, key, value + length + 1, HY_FROM_SET);
}

/* Files first, so that their errors are reported before those of flags. */
static hy_status apply(const hy_cli_options *options, hy_config *config, const char **model) {
    static const hy_cli_meaning order[] = {HY_CLI_IS_CONFIG, HY_CLI_IS_SET, HY_CLI_IS_KEY};
    for (size_t pass = 0; pass < sizeof order / sizeof order[0]; pass++)
        for (size_t i = 0; i < options->setting_count; i++) {
            const hy_cli_setting *setting = &options->settings[i];
            if (setting->meaning != order[pass]) continue;
            if (model && setting->key && strcmp(setting->key, "model") == 0) {
                *model = setting->value;
                continue;
            }
            hy_status status = hy_cli_checked(apply_one(config, setting));
            if (status != HY_OK) return status;
        }
    return HY_OK;
}

/* ---- resuming -------------------------------------------------------------------------------- */

/* A model that is set explicitly must be the model of the run: the shape comes from the run, so
 * another name would be wrong. */
static hy_status check_model(const hy_config *asked, const hy_config *run, const char *folder) {
    const char *wanted = hy_cli_value(asked, "model"), *own = hy_cli_value(run, "model");
    const char *origin = "";
    hy_config_get(asked, "model", NULL, &origin);
    char *wanted_path = realpath(wanted, NULL), *own_path = realpath(own, NULL);
    bool is_same =
        strcmp(wanted, own) == 0 || (wanted_path && own_path && strcmp(wanted_path, own_path) == 0);
    free(wanted_path);
    free(own_path);
    if (hy_config_origin(asked, "model") == HY_FROM_DEFAULT || is_same) return HY_OK;
    return hy_cli_refuse(HY_ERR_INPUT,
                         "cannot resume: the run %s has the model %s, but model %s is set by %s",
                         folder, own, wanted, origin);
}

/* The run that --resume without a name takes. */
static void name_newest(const hy_cli_options *options, const hy_config *config) {
    if (!options->is_quiet && hy_cli_prints_warnings())
        hy_cli_note("resuming %s, the newest run in " HY_CLI_RUNS "/", hy_cli_value(config, "out"));
}

/* ---- flags that need adapters ---------------------------------------------------------------- */

/* Keys that only make sense with adapters, and the value that is allowed without them. */
static const struct {
    const char *key, *nothing;
} for_adapters[] = {{"lora.lora_rank", NULL},       {"lora.lora_targets", NULL},
                    {"lora.lora_alpha", "0"},       {"lora.rslora", "false"},
                    {"lora.lora_dropout", "0"},     {"lora.lora_modules", "none"},
                    {"train.frozen_dtype", "auto"}, {"lora.base", ""}};

/* Whether a flag or --set of the command sets this key. */
static bool sets_key(const hy_cli_options *options, const char *key) {
    for (size_t i = 0; i < options->setting_count; i++) {
        const hy_cli_setting *s = &options->settings[i];
        char name[NAME_BYTES];
        const char *text = s->meaning == HY_CLI_IS_KEY ? s->key : s->value;
        if (s->meaning == HY_CLI_IS_CONFIG) continue;
        snprintf(name, sizeof name, "%.*s", (int)strcspn(text, "="), text);
        const hy_config_key_info *info = hy_config_find(name);
        if (info != NULL && strcmp(info->key, key) == 0) return true;
    }
    return false;
}

/* Whether a configuration file, or a flag of another name, sets the key to another value than its
 * default. A file that --print-config has written sets every key. */
static bool changes_key(const hy_config *config, const char *key, const char **origin) {
    const char *text = "";
    (void)hy_config_get(config, key, &text, origin);
    return hy_config_origin(config, key) >= HY_FROM_FILE &&
           strcmp(text, hy_config_find(key)->fallback) != 0;
}

hy_status hy_cli_check_adapter_flags(const hy_cli_options *options, const hy_config *config) {
    bool is_eval = options->action == HY_CLI_IS_EVAL_ONLY;
    bool has_run = hy_cli_value(config, is_eval ? "init_from" : "save.resume")[0] != '\0';
    if (!has_run && sets_key(options, "lora.base"))
        return hy_cli_refuse(
            HY_ERR_INPUT,
            "--base %s has no effect without a run with adapters: use --resume RUN, or "
            "--eval-only --model RUN. To name a model, use --model",
            hy_cli_value(config, "lora.base"));
    if (strcmp(hy_cli_value(config, "lora.lora"), "true") == 0) return HY_OK;
    /* Weights can be frozen without adapters; --eval-only can store a model in any type. */
    bool has_frozen = is_eval || strcmp(hy_cli_value(config, "train.train"), "all") != 0 ||
                      strstr(hy_cli_value(config, "optimizer.groups"), "frozen") != NULL;
    bool is_resumed = hy_cli_value(config, "save.resume")[0] != '\0';
    for (size_t i = 0; i < sizeof for_adapters / sizeof for_adapters[0]; i++) {
        const char *key = for_adapters[i].key, *nothing = for_adapters[i].nothing;
        bool is_dtype = strcmp(key, "train.frozen_dtype") == 0;
        const char *origin = "";
        bool is_said = sets_key(options, key);
        bool is_changed = !is_said && !is_resumed && !is_eval && changes_key(config, key, &origin);
        if ((!is_changed && !is_said) || (is_dtype && has_frozen)) continue;
        if (nothing != NULL && strcmp(hy_cli_value(config, key), nothing) == 0) continue;
        return hy_cli_refuse(HY_ERR_INPUT, "%s%s%s %s has no effect without %s: %s",
                             is_changed ? origin : "", is_changed ? ": " : "",
                             hy_config_find(key)->flag, hy_cli_value(config, key),
                             is_dtype ? "frozen weights" : "adapters",
                             is_resumed ? "the resumed run has no adapters"
                             : is_eval  ? "add --adapter FOLDER"
                                        : "add --lora or --qlora");
    }
    return HY_OK;
}

/* ---- everything ------------------------------------------------------------------------------ */

hy_status hy_cli_configure(const hy_cli_options *options, const char **model, hy_config **out) {
    hy_config *asked = NULL, *config = NULL;
    hy_status status = hy_cli_checked(hy_config_create(&asked));
    if (status == HY_OK) status = apply(options, asked, model);
    if (status == HY_OK) status = hy_cli_checked(hy_config_create(&config));
    if (status == HY_OK) {
        const char *resume = hy_cli_value(asked, "resume"), *folder = hy_cli_value(asked, "out");
        bool has_out = folder[0] != '\0' && strcmp(folder, "none") != 0;
        if (strcmp(resume, "auto") != 0 || !has_out) folder = resume;
        if (folder[0] != '\0') status = hy_cli_checked(hy_config_load_run(config, folder));
        if (status == HY_OK && strcmp(folder, "auto") == 0) name_newest(options, config);
        if (folder[0] != '\0' && status == HY_OK) status = check_model(asked, config, folder);
    }
    if (status == HY_OK) status = apply(options, config, model);
    hy_config_destroy(asked);
    if (status == HY_OK)
        *out = config;
    else
        hy_config_destroy(config);
    return status;
}
