/* adapter_flags.c: rejects flags for adapters in a command without adapters. See
 * adapter_flags.h. */
#include "cli/adapter_flags.h"

#include <stdio.h>
#include <string.h>

#include "cli/terminal.h"

/* Keys that only make sense with adapters, and the value that is allowed without them. */
static const struct {
    const char *key, *nothing;
} for_adapters[] = {{"lora.lora_rank", NULL},       {"lora.lora_targets", NULL},
                    {"lora.lora_alpha", "0"},       {"lora.rslora", "false"},
                    {"lora.lora_dropout", "0"},     {"lora.lora_modules", "none"},
                    {"train.frozen_dtype", "auto"}, {"lora.base", ""}};

static bool is_key(const char *name, const char *key) {
    const hy_config_key_info *info = hy_config_find(name);
    return info != NULL && strcmp(info->key, key) == 0;
}

/* The flag or --set of the command that sets this key; NULL: none. */
static const hy_cli_setting *find_setting(const hy_cli_options *options, const char *key) {
    for (size_t i = 0; i < options->setting_count; i++) {
        const hy_cli_setting *s = &options->settings[i];
        char name[64] = "";
        if (s->meaning == HY_CLI_IS_SET)
            snprintf(name, sizeof name, "%.*s", (int)strcspn(s->value, "="), s->value);
        if (s->meaning == HY_CLI_IS_KEY) snprintf(name, sizeof name, "%s", s->key);
        if (name[0] != '\0' && is_key(name, key)) return s;
    }
    return NULL;
}

/* Weights can be frozen without adapters; with --eval-only a model may be stored in any type. */
static bool has_frozen(const hy_cli_options *options, const hy_config *config) {
    bool is_part = strcmp(hy_cli_value(config, "train.train"), "all") != 0;
    bool has_group = strstr(hy_cli_value(config, "optimizer.groups"), "frozen") != NULL;
    return is_part || has_group || options->action == HY_CLI_IS_EVAL_ONLY;
}

/* --base gives the new location of the base model of a run with adapters. Others use --model. */
static hy_status check_base(const hy_cli_options *options, const hy_config *config) {
    const char *run = options->action == HY_CLI_IS_EVAL_ONLY ? "init_from" : "save.resume";
    bool is_run = hy_cli_value(config, run)[0] != '\0';
    if (is_run || find_setting(options, "lora.base") == NULL) return HY_OK;
    hy_cli_error("--base %s has no effect without a run with adapters: use --resume RUN, or "
                 "--eval-only --model RUN. To name a model, use --model",
                 hy_cli_value(config, "lora.base"));
    return HY_ERR_INPUT;
}

static const char *what_helps(const hy_cli_options *options, const hy_config *config) {
    if (hy_cli_value(config, "save.resume")[0] != '\0') return "the resumed run has no adapters";
    if (options->action == HY_CLI_IS_EVAL_ONLY) return "add --adapter FOLDER";
    return "add --lora or --qlora";
}

hy_status hy_cli_check_adapter_flags(const hy_cli_options *options, const hy_config *config) {
    hy_status status = check_base(options, config);
    if (status != HY_OK) return status;
    if (strcmp(hy_cli_value(config, "lora.lora"), "true") == 0) return HY_OK;
    for (size_t i = 0; i < sizeof for_adapters / sizeof for_adapters[0]; i++) {
        const char *key = for_adapters[i].key, *nothing = for_adapters[i].nothing;
        bool is_dtype = strcmp(key, "train.frozen_dtype") == 0;
        if (find_setting(options, key) == NULL) continue;
        if (nothing != NULL && strcmp(hy_cli_value(config, key), nothing) == 0) continue;
        if (is_dtype && has_frozen(options, config)) continue;
        hy_cli_error("%s %s has no effect without %s: %s", hy_config_find(key)->flag,
                     hy_cli_value(config, key), is_dtype ? "frozen weights" : "adapters",
                     what_helps(options, config));
        return HY_ERR_INPUT;
    }
    return HY_OK;
}
