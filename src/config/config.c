/* config.c: the configuration object: all values by origin, and the settings that result.
 *
 * Every key keeps one text per origin, so the order of calls does not affect precedence. A change
 * works on a copy of the values, which replaces them only if everything succeeds: a failed call
 * leaves the configuration as it was. Always true between calls: every stored text is canonical,
 * the values of origin preset and profile come from the winning "model" and "profile", and
 * `settings` is the result of all values. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "config/builtin.h"
#include "config/config_adapter.h"
#include "config/config_arch.h"
#include "config/config_card.h"
#include "config/config_file.h"
#include "config/config_model.h"
#include "config/config_values.h"
#include "config/derived.h"
#include "config/settings.h"
#include "hub/peft_set.h"
#include "kernels/card_list.h"
#include "model/arch/arch.h"
#include "optim/groups.h"
#include "optim/optimizer.h"

enum { RANKS = HY_FROM_FLAG + 1, ORIGIN_MAX = HY_TEXT_MAX + 32 };

typedef struct value {
    const char *text; /* NULL: this origin does not set the key */
    const char *origin;
    bool is_found; /* in the folder of an adapter or of a run */
} value;

/* A text that values point to, kept as long as the configuration. Equal texts are stored once. */
typedef struct kept_text {
    struct kept_text *next;
    char text[];
} kept_text;

struct hy_config {
    value *values;       /* [setting][rank] */
    bool was_ema[RANKS]; /* this origin sets the removed predictor ema; outer replaces it */
    kept_text *texts;
    char loaded_model[HY_TEXT_MAX], loaded_profile[HY_TEXT_MAX];
    char loaded_adapter[HY_TEXT_MAX], loaded_run[HY_TEXT_MAX];
    char *command; /* written to the records of the run; NULL: not known */
    hy_kept_origin kept;
    /* texts of `model` and `tokenizer` that `kept` replaces */
    const char *kept_model, *kept_tokenizer;
    bool is_reading_kept, is_of_run; /* is_of_run: the file of a run was loaded */
    bool is_own;                     /* for a custom model or loop: presets are not used */
    hy_recipe recipe;
    char own_lr[32]; /* the learning rate if it is a multiple of the preset's; "": it is not */
    /* the share of the run after which jumps stop, if before predict_until; "" */
    char own_until[32];
    char
        own_options[HY_VALUE_MAX]; /* arch_options with what follows from the shape; "": as given */
    hy_settings settings;
};

/* ---- values ---------------------------------------------------------------------------------- */

static value *value_at(const hy_config *config, size_t setting, int rank) {
    return &config->values[setting * RANKS + (size_t)rank];
}

static hy_status keep_text(hy_config *config, const char *text, const char **out) {
    kept_text *kept = config->texts;
    while (kept && strcmp(kept->text, text) != 0) kept = kept->next;
    if (!kept) {
        size_t size = strlen(text) + 1;
        kept = malloc(sizeof *kept + size);
        HY_FAIL_IF(!kept, HY_ERR_MEMORY, "not enough memory for a configuration value of %zu bytes",
                   size);
        kept->next = config->texts;
        memcpy(kept->text, text, size);
        config->texts = kept;
    }
    *out = kept->text;
    return HY_OK;
}

/* Values of folders have the rank of other values, and change with the folder alone. */
static void clear_rank(hy_config *config, int rank) {
    for (size_t i = 0; i < hy_setting_count(); i++) {
        value *v = value_at(config, i, rank);
        if (!v->is_found) *v = (value){0};
    }
}

static int winning_rank(const hy_config *config, size_t setting) {
    int rank = RANKS - 1;
    while (rank > 0 && !value_at(config, setting, rank)->text) rank--;
    return rank;
}

const char *hy_config_raw(const hy_config *config, const char *key) {
    size_t i = hy_setting_index(hy_setting_find(key, NULL));
    return value_at(config, i, winning_rank(config, i))->text;
}

int hy_config_raw_rank(const hy_config *config, const char *key) {
    return winning_rank(config, hy_setting_index(hy_setting_find(key, NULL)));
}

bool hy_config_raw_is_found(const hy_config *config, const char *key) {
    size_t i = hy_setting_index(hy_setting_find(key, NULL));
    return value_at(config, i, winning_rank(config, i))->is_found;
}

/* Steps, tokens and epochs all set the length of a run. The one with the strongest origin counts
 * and the others become 0: --tokens on the command line must win over the steps of a preset. */
static const struct {
    const char *key, *note;
} lengths[] = {
    {"train.steps", "replaced by train.steps"},
    {"train.tokens", "replaced by train.tokens"},
    {"train.epochs", "replaced by train.epochs"},
};

/* The origin shown for a length that is replaced by another; NULL: this key is not replaced. */
static const char *replaced_note(const hy_config *config, size_t setting) {
    const char *key = hy_setting_at(setting)->info.key, *note = NULL;
    int strongest = winning_rank(config, setting);
    if (!hy_word_is_in(" train.steps train.tokens train.epochs ", key)) return NULL;
    if (!strcmp(value_at(config, setting, strongest)->text, "0")) return NULL;
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        size_t other = hy_setting_index(hy_setting_find(lengths[i].key, NULL));
        int rank = winning_rank(config, other);
        if (rank <= strongest || !strcmp(value_at(config, other, rank)->text, "0")) continue;
        strongest = rank;
        note = lengths[i].note;
    }
    return note;
}

/* The value that replaces `auto`; NULL: the key keeps its value. */
static const char *resolved_recipe(const hy_config *config, const char *key) {
    const struct {
        const char *key, *value;
    } recipe[] = {{"optimizer.optimizer", config->recipe.optimizer},
                  {"optimizer.schedule", config->recipe.schedule},
                  {"phases.predictor", config->recipe.predictor}};
    for (size_t i = 0; i < sizeof recipe / sizeof recipe[0]; i++) {
        if (!strcmp(key, recipe[i].key) && hy_config_is(config, key, "auto"))
            return recipe[i].value;
    }
    return NULL;
}

/* The resulting optimizer or schedule. */
static const char *recipe_text(const hy_config *config, const char *key) {
    const char *settled = resolved_recipe(config, key);
    return settled ? settled : hy_config_raw(config, key);
}

static const hy_optimizer_kind *chosen_optimizer(const hy_config *config) {
    int choice = HY_ADAMW;
    hy_choice_value("optimizer.optimizer", recipe_text(config, "optimizer.optimizer"), &choice);
    return hy_optimizer_kind_of(choice & HY_OPTIMIZER_ID);
}

/* Presets hold values for AdamW. Other optimizers replace them with their own defaults; files and
 * flags win over both. NULL: the optimizer has no default for this key. */
static const char *optimizer_default(const hy_config *config, size_t setting) {
    static const struct {
        const char *key;
        size_t value; /* offset of the default in hy_optimizer_kind */
    } own[] = {{"optimizer.lr", offsetof(hy_optimizer_kind, lr)},
               {"optimizer.weight_decay", offsetof(hy_optimizer_kind, weight_decay)},
               {"optimizer.beta1", offsetof(hy_optimizer_kind, beta1)},
               {"optimizer.beta2", offsetof(hy_optimizer_kind, beta2)}};
    const char *key = hy_setting_at(setting)->info.key;
    size_t i = 0;
    while (i < sizeof own / sizeof own[0] && strcmp(key, own[i].key)) i++;
    if (i == sizeof own / sizeof own[0]) return NULL;
    if (winning_rank(config, setting) >= HY_FROM_FILE) return NULL;
    if (i == 0 && config->own_lr[0]) return config->own_lr;
    const hy_optimizer_kind *kind = chosen_optimizer(config);
    bool is_relative = hy_config_is(config, "optimizer.adafactor_relative", "true");
    bool is_like_adamw = kind == hy_optimizer_kind_of(HY_ADAFACTOR) && !is_relative;
    /* without adafactor_relative, adafactor uses the same learning rates as AdamW */
    return is_like_adamw ? NULL : *(const char *const *)((const char *)kind + own[i].value);
}

/* wsd decays the learning rate to 0, and jumps stop where the decay begins. */
static const char *schedule_default(const hy_config *config, size_t setting) {
    const char *key = hy_setting_at(setting)->info.key;
    bool is_wsd = !strcmp(recipe_text(config, "optimizer.schedule"), "wsd");
    if (!is_wsd || winning_rank(config, setting) >= HY_FROM_FILE) return NULL;
    if (!strcmp(key, "optimizer.min_lr_ratio")) return "0";
    bool ends_jumps = !strcmp(key, "phases.predict_until") && config->own_until[0];
    return ends_jumps ? config->own_until : NULL;
}

/* Presets, profiles and defaults set the tokens of a step, but not its split into micro-batches. If
 * a file or flag sets batch_size or grad_accum_steps with a stronger origin than micro_batch, or
 * micro_batch is auto, the split is "given". NULL: micro_batch keeps its value. */
static const char *resolved_micro_batch(const hy_config *config, size_t setting) {
    if (strcmp(hy_setting_at(setting)->info.key, "train.micro_batch")) return NULL;
    int batch = hy_config_raw_rank(config, "train.batch_size");
    int accum = hy_config_raw_rank(config, "train.grad_accum_steps");
    int strongest = batch > accum ? batch : accum;
    bool is_auto = hy_config_is(config, "train.micro_batch", "auto");
    bool is_set = strongest >= HY_FROM_FILE;
    if (!is_auto && !(is_set && strongest > winning_rank(config, setting))) return NULL;
    return is_set ? "given" : "open";
}

/* A preset's warm-up steps are limited to this share of a short run. With a tenth, which is the
 * smallest share in a run of usual length, the loss of a short run spikes. */
#define PRESET_WARMUP_SHARE "0.33"

/* Warm-up can be set in steps or as a share of the run. If a file or flag sets one of them, that
 * one counts; the stronger origin wins. A preset's steps are limited to a share of a short run. The
 * result is one rule that can be printed and read again: the steps, but at most the share; -1: the
 * share. NULL: this key keeps its value. */
static const char *resolved_warmup(const hy_config *config, size_t setting) {
    const char *key = hy_setting_at(setting)->info.key;
    int steps = hy_config_raw_rank(config, "optimizer.lr_warmup_steps");
    int ratio = hy_config_raw_rank(config, "optimizer.lr_warmup_ratio");
    bool has_steps = !hy_config_is(config, "optimizer.lr_warmup_steps", "-1");
    if (!strcmp(key, "optimizer.lr_warmup_ratio") && has_steps && steps > ratio)
        return steps >= HY_FROM_FILE ? "1" : PRESET_WARMUP_SHARE;
    bool is_ratio_set = ratio >= HY_FROM_FILE && ratio > steps;
    return !strcmp(key, "optimizer.lr_warmup_steps") && is_ratio_set ? "-1" : NULL;
}

/* An architecture that a file or flag names brings what all its models have, in place of what a
 * preset without an architecture says. Biases are added, never removed: some architectures may have
 * them. Windows and options follow from the shape. NULL: this key keeps its value. */
static const char *architecture_default(const hy_config *config, size_t setting) {
    static const struct {
        const char *key, *without, *with;
        size_t at; /* of the bool in hy_shape */
    } own[] = {{"shape.norm", "layernorm", "rmsnorm", HY_AT(is_rms)},
               {"shape.positions", "learned", "rope", HY_AT(has_rope)},
               {"shape.activation", "gelu", "swiglu", HY_AT(is_gated)},
               {"shape.qk_norm", "false", "true", HY_AT(has_qk_norm)},
               {"shape.qkv_bias", NULL, "true", HY_AT(has_qkv_bias)},
               {"shape.proj_bias", NULL, "true", HY_AT(has_proj_bias)}};
    const char *key = hy_setting_at(setting)->info.key, *name = "shape.architecture";
    size_t i = 0;
    if (!strcmp(key, "shape.arch_options") && config->own_options[0]) return config->own_options;
    while (i < sizeof own / sizeof own[0] && strcmp(key, own[i].key)) i++;
    bool is_pattern = !strcmp(key, "shape.sliding_layers");
    bool is_known = is_pattern || i < sizeof own / sizeof own[0];
    if (!is_known || winning_rank(config, setting) >= HY_FROM_FILE) return NULL;
    int arch = HY_ARCH_NONE;
    bool is_of_model =
        value_at(config, hy_setting_index(hy_setting_find(name, NULL)), HY_FROM_PRESET)->text;
    if (is_of_model || hy_config_raw_rank(config, name) < HY_FROM_FILE) return NULL;
    hy_choice_value(name, hy_config_raw(config, name), &arch);
    if (arch == HY_ARCH_NONE) return NULL;
    if (is_pattern) return hy_config_arch_windows(config);
    const char *base = (const char *)hy_family_of((hy_arch)arch)->base;
    return *(const bool *)(base + own[i].at) ? own[i].with : own[i].without;
}

/* The resulting text of a key, and its origin. */
static void look_up(const hy_config *config, size_t setting, const char **text,
                    const char **origin) {
    const char *key = hy_setting_at(setting)->info.key, *note = replaced_note(config, setting);
    const value *winner = value_at(config, setting, winning_rank(config, setting));
    const char *const results[][2] = {
        {note ? "0" : NULL, note},
        {optimizer_default(config, setting), "default of the optimizer"},
        {resolved_recipe(config, key), "auto"},
        {schedule_default(config, setting), "default of the schedule"},
        {hy_config_adapter_default(config, key), "set by lora or qlora"},
        {architecture_default(config, setting), "set by architecture"},
        {resolved_micro_batch(config, setting), "depends on batch_size and grad_accum_steps"},
        {resolved_warmup(config, setting),
         "set by the other one of lr_warmup_steps and lr_warmup_ratio"},
        {winner->text, winner->origin}, /* the winner always has a text */
    };
    size_t i = 0;
    while (!results[i][0]) i++;
    *text = results[i][0];
    *origin = results[i][1];
}

/* ---- putting one value in -------------------------------------------------------------------- */

/* Whether `model` can only be a path, not a preset or a name on the hub. */
static bool is_path(const char *model) {
    const char *slash = strchr(model, '/');
    bool is_file = hy_has_ending(model, ".cfg") || hy_has_ending(model, ".gguf");
    return *model == '/' || *model == '.' || *model == '~' || is_file ||
           (slash && (slash[1] == '\0' || strchr(slash + 1, '/')));
}

/* The message names the part of the path that exists, to show where the mistake is. */
static hy_status fail_no_path(const char *model, const char *where) {
    char there[HY_HF_PATH_MAX];
    snprintf(there, sizeof there, "%.*s", (int)sizeof there - 1, model);
    char *slash;
    while ((slash = strrchr(there, '/')) && slash > there) {
        *slash = '\0';
        if (hy_path_exists(there))
            return hy_fail(HY_ERR_INPUT, "%s: model = %s: no such file or folder (%s exists)",
                           where, model, there);
    }
    return hy_fail(HY_ERR_INPUT, "%s: model = %s: no such file or folder", where, model);
}

static hy_status check_model(const char *model, const char *where) {
    if (hy_builtin_text("model", model)) return HY_OK;
    hy_model_files kind = HY_FILES_NONE;
    char path[HY_HF_PATH_MAX];
    hy_status found = *model ? hy_hf_find(model, &kind, path) : HY_OK;
    if (found != HY_OK) {
        hy_config_hint_model(model);
        return hy_fail_context(found, "%s: model = %s", where, model);
    }
    if (kind != HY_FILES_NONE || (*model && hy_path_exists(model))) return HY_OK;
    char parent[HY_HF_PATH_MAX];
    bool is_below = strchr(model, '/') && hy_path_parent(parent, sizeof parent, model) == HY_OK &&
                    hy_path_is_dir(parent); /* runs/typo is not a name of the hub */
    if (is_path(model) || is_below) return fail_no_path(model, where);
    hy_text names = {0};
    hy_builtin_list("model", &names);
    hy_status status = hy_fail(
        HY_ERR_INPUT,
        "%s: unknown model %s; accepted: %s, a .cfg file with a shape "
        "group, a model folder, a GGUF file, or a model name in the hub cache%s%s",
        where, *model ? model : "\"\"", hy_text_string(&names),
        hy_did_you_mean(hy_builtin_nearest("model", model)).text, hy_hf_how_to_fetch(model).text);
    hy_text_free(&names);
    return status;
}

/* Axolotl's "adapter: lora" and "adapter: qlora" name the method, not a folder. NULL: a folder. */
static const hy_setting *adapter_method(const hy_setting *setting, const char *text) {
    bool is_qlora = !strcasecmp(text, "qlora");
    bool is_method = !strcmp(setting->info.key, "lora.adapter") && !hy_path_exists(text) &&
                     (is_qlora || !strcasecmp(text, "lora"));
    return is_method ? hy_setting_find(is_qlora ? "lora.qlora" : "lora.lora", NULL) : NULL;
}

/* `where` begins error messages; `origin` is stored with the value. They differ for presets and
 * profiles. */
static hy_status put(hy_config *config, const char *key, const char *text, int rank,
                     const char *where, const char *origin) {
    const hy_setting_alias *alias;
    const hy_setting *setting = hy_setting_find(key, &alias);
    if (alias && alias->is_removed) return HY_OK;
    if (alias) {
        bool is_on;
        HY_FAIL_IF(!hy_parse_switch(hy_setting_word(setting, alias, text), &is_on), HY_ERR_INPUT,
                   "%s: %s = %s is not accepted; accepted: %s", where, alias->name, text,
                   alias->info.accepted);
        text = is_on ? alias->when_true : alias->when_false;
        if (!text) return HY_OK;
    }
    if (!strcmp(setting->info.key, "phases.predictor")) {
        config->was_ema[rank] = !strcasecmp(text, "ema");
        if (config->was_ema[rank]) text = "outer";
    }
    const hy_setting *method = adapter_method(setting, text);
    if (method) return put(config, method->info.key, "true", rank, where, origin);
    text = hy_setting_word(setting, NULL, text);
    char canonical[HY_VALUE_MAX];
    HY_TRY(hy_setting_check(setting, text, where, canonical));
    bool is_model = !strcmp(setting->info.key, "model");
    if (!strcmp(setting->info.key, "lora.adapter")) hy_peft_find_folders(canonical, HY_TEXT_MAX);
    if (is_model && !config->is_reading_kept) {
        hy_config_find_model(canonical, HY_TEXT_MAX);
        HY_TRY(check_model(canonical, where));
    }
    if (!strcmp(setting->info.key, "optimizer.groups")) {
        hy_status status = hy_groups_check(canonical);
        if (status != HY_OK) return hy_fail_context(status, "%s: %s", where, setting->info.key);
    }
    value *v = value_at(config, hy_setting_index(setting), rank);
    v->is_found = false;
    HY_TRY(keep_text(config, canonical, &v->text));
    return keep_text(config, origin, &v->origin);
}

/* ---- files, presets and profiles ------------------------------------------------------------- */

typedef struct filling {
    hy_config *config;
    int rank;
    const char *name;   /* of the file, for messages */
    const char *origin; /* stored with each value; NULL: file name and line */
} filling;

static bool loads_other_keys(const char *key) {
    const hy_setting *setting = hy_setting_find(key, NULL);
    return !strcmp(setting->info.key, "model") || !strcmp(setting->info.key, "profile");
}

static hy_status fill(void *user, const char *key, const char *text, unsigned line) {
    const filling *f = user;
    char where[ORIGIN_MAX];
    if (line > 0)
        snprintf(where, sizeof where, "%s:%u", f->name, line);
    else /* values from the files of a model or adapter have no line */
        snprintf(where, sizeof where, "%s", f->name);
    HY_FAIL_IF(f->rank < HY_FROM_FILE && loads_other_keys(key), HY_ERR_INPUT,
               "%s: %s cannot be set in a preset or profile", where, key);
    return put(f->config, key, text, f->rank, where, f->origin ? f->origin : where);
}

static hy_status fill_from_path(filling *f, const char *path, hy_config_sink sink) {
    char *text;
    size_t size;
    HY_TRY(hy_file_read(path, &text, &size));
    hy_status status = hy_config_file_read(text, size, path, sink, f);
    free(text);
    return status;
}

static hy_status fill_from_builtin(filling *f, const char *kind, const char *name) {
    const char *text = hy_builtin_text(kind, name);
    char shown[ORIGIN_MAX];
    snprintf(shown, sizeof shown, "%s/%s", kind, name);
    f->name = shown;
    return hy_config_file_read(text, strlen(text), shown, fill, f);
}

/* Whether the run stores the files that this text names. */
static bool is_stored(const char *kept, const char *text) { return kept && !strcmp(kept, text); }

static hy_status load_preset(hy_config *config, const char *model) {
    char origin[ORIGIN_MAX];
    snprintf(origin, sizeof origin, "preset %s", model);
    clear_rank(config, HY_FROM_PRESET);
    filling f = {.config = config, .rank = HY_FROM_PRESET, .name = model, .origin = origin};
    hy_model_files kind = HY_FILES_NONE;
    char path[HY_HF_PATH_MAX];
    if (hy_builtin_text("model", model)) {
        HY_TRY(fill_from_builtin(&f, "model", model));
    } else if (is_stored(config->kept_model, model)) { /* the run's file sets every key */
        snprintf(config->loaded_model, HY_TEXT_MAX, "%s", model);
        return HY_OK;
    } else {
        HY_TRY(hy_hf_find(model, &kind, path));
        HY_TRY(kind == HY_FILES_NONE ? fill_from_path(&f, model, fill)
                                     : hy_config_model_read(kind, path, fill, &f));
    }
    bool has_shape = false;
    for (size_t i = 0; i < hy_setting_count(); i++) {
        bool is_shape = !strncmp(hy_setting_at(i)->info.key, "shape.", 6);
        has_shape |= is_shape && value_at(config, i, HY_FROM_PRESET)->text;
    }
    HY_FAIL_IF(!has_shape, HY_ERR_INPUT,
               "%s: no group \"shape\"; a model file describes the model, for example shape: { "
               "layers = 4; width = 128; heads = 4; };",
               model);
    snprintf(config->loaded_model, HY_TEXT_MAX, "%s", model);
    return HY_OK;
}

/* As fill, for a value of a folder. */
static hy_status fill_found(void *user, const char *key, const char *text, unsigned line) {
    const filling *f = user;
    size_t i = hy_setting_index(hy_setting_find(key, NULL));
    HY_TRY(fill(user, key, text, line));
    value_at(f->config, i, f->rank)->is_found = true;
    return HY_OK;
}

/* Rows are written as those that the adapter or the run was trained on. A choice other than auto
 * stays, and rows of a run that is resumed keep the format that they began with. */
static hy_status load_format(filling *f, const hy_prompt_format *format) {
    bool is_open = !f->config->is_of_run && hy_config_is(f->config, "input.chat_template", "auto");
    if (!is_open || !hy_prompt_format_is_built_in(format) || format->is_mixed) return HY_OK;
    return fill_found(f, "input.chat_template", hy_chat_kind_name(format->chat), 0);
}

/* What an architecture derives for a new model (config_arch.h) comes from the run, because its
 * weights were trained with it. */
static hy_status fill_derived(void *user, const char *key, const char *text, unsigned line) {
    bool is_derived = !strcmp(key, "shape.arch_options") || !strcmp(key, "shape.sliding_layers");
    return is_derived ? fill_found(user, key, text, line) : HY_OK;
}

static hy_status load_derived(filling f, const char *run) {
    char path[HY_PATH_MAX];
    HY_TRY(hy_path_join(path, sizeof path, run, "config.cfg"));
    f.name = path;
    return hy_path_exists(path) ? fill_from_path(&f, path, fill_derived) : HY_OK;
}

/* The values of an adapter's folder have a rank one below the setting that names the adapter: they
 * win over the configuration file of the run, and flags of the same command win over them. A run
 * that was started with an adapter has all values in its own file. The same holds for `run`, which
 * the weights are taken from. */
static hy_status load_start(hy_config *config, const char *adapter, const char *run) {
    char origin[ORIGIN_MAX];
    size_t count = hy_setting_count() * RANKS;
    hy_prompt_format format = {0};
    filling f = {.config = config,
                 .rank = hy_config_raw_rank(config, "lora.adapter") - 1,
                 .name = adapter,
                 .origin = origin};
    for (size_t i = 0; i < count; i++)
        if (config->values[i].is_found) config->values[i] = (value){0};
    snprintf(origin, sizeof origin, "adapter %s", adapter);
    bool sets_all =
        f.rank == HY_FROM_FILE - 1 && hy_config_raw_rank(config, "lora.lora_targets") > f.rank;
    bool is_gone = sets_all && !hy_path_exists(adapter);
    if (adapter[0] && !is_gone) HY_TRY(hy_config_adapter_read(adapter, fill_found, &f, &format));
    HY_TRY(load_format(&f, &format));
    if (run[0] && !config->is_of_run) {
        f.rank = hy_config_raw_rank(config, "init_from") - 1;
        snprintf(origin, sizeof origin, "run %s", run);
        HY_TRY(load_derived(f, run));
        if (format.chat == HY_CHAT_AUTO) HY_TRY(hy_prompt_format_read_run(run, &format));
        HY_TRY(load_format(&f, &format));
    }
    snprintf(config->loaded_adapter, HY_TEXT_MAX, "%s", adapter);
    snprintf(config->loaded_run, HY_TEXT_MAX, "%s", run);
    return HY_OK;
}

static hy_status load_profile(hy_config *config, const char *profile) {
    char origin[ORIGIN_MAX];
    snprintf(origin, sizeof origin, "profile %s", profile);
    clear_rank(config, HY_FROM_PROFILE);
    filling f = {.config = config, .rank = HY_FROM_PROFILE, .origin = origin};
    HY_FAIL_IF(!hy_builtin_text("profile", profile), HY_ERR_INTERNAL,
               "profile %s is not a built-in file", profile);
    HY_TRY(fill_from_builtin(&f, "profile", profile));
    snprintf(config->loaded_profile, HY_TEXT_MAX, "%s", profile);
    return HY_OK;
}

/* Does a flag or a file that the user wrote set it? The file of a card or a run does not count. */
static bool is_own_value(const hy_config *config, const char *key) {
    size_t setting = hy_setting_index(hy_setting_find(key, NULL));
    int rank = winning_rank(config, setting);
    bool is_written =
        config->is_of_run || !strncmp(value_at(config, setting, rank)->origin, "gpu/", 4);
    return rank > HY_FROM_FILE || (rank == HY_FROM_FILE && !is_written);
}

/* Cleared first, so that equal values give equal bytes. */
static void store_all(hy_config *config) {
    hy_settings *s = &config->settings;
    memset(s, 0, sizeof *s);
    for (size_t i = 0; i < hy_setting_count(); i++) {
        const char *text, *origin;
        look_up(config, i, &text, &origin);
        hy_setting_store(hy_setting_at(i), text, s);
    }
    hy_config_adapter_resolve(config, s);
    s->is_cpu_mem_own = s->memory.cpu_mem > 0 && is_own_value(config, "memory.cpu_mem");
    s->phases.was_ema = config->was_ema[hy_config_raw_rank(config, "phases.predictor")];
    if (is_stored(config->kept_model, hy_config_raw(config, "model"))) s->kept = config->kept;
    bool has_tokenizer = config->kept.tokenizer[0] != 0;
    if (has_tokenizer && is_stored(config->kept_tokenizer, s->input.tokenizer))
        memcpy(s->input.tokenizer, config->kept.tokenizer, sizeof s->input.tokenizer);
}

/* Of the usual learning rate, for pairs of answers: 1e-6 where fine-tuning has 2e-5, as in TRL. */
#define PREFERENCE_RATE 0.05

/* Computes `settings` from all values. Replacing `auto` needs settings with a usual recipe
 * first. */
static hy_status resolve_values(hy_config *config) {
    bool is_open = hy_config_is(config, "optimizer.optimizer", "auto");
    bool is_auto = is_open || hy_config_is(config, "optimizer.schedule", "auto") ||
                   hy_config_is(config, "phases.predictor", "auto");
    double rate = strtod(hy_config_raw(config, "optimizer.lr"), NULL);
    double until = strtod(hy_config_raw(config, "phases.predict_until"), NULL);
    double decays_from = 1 - strtod(hy_config_raw(config, "optimizer.cooldown"), NULL);
    config->recipe = (hy_recipe){"adamw", "cosine", "none"};
    for (int round = 0; round < (is_auto ? 2 : 1); round++) {
        if (round)
            HY_TRY(hy_recipe_of(&config->settings, config->is_own, is_open, &config->recipe));
        /* The learning rate of some optimizers is a multiple of the preset's. A custom model has no
         * preset. */
        double factor = chosen_optimizer(config)->lr_factor;
        factor = config->is_own ? 0 : hy_config_adapter_rate(config, factor);
        bool has_pairs = !hy_config_is(config, "task", "next-token");
        if (has_pairs) factor = (factor > 0 ? factor : 1) * PREFERENCE_RATE;
        config->own_lr[0] = config->own_until[0] = config->own_options[0] = 0;
        if (!config->is_of_run) hy_config_arch_options(config, config->own_options);
        if (factor > 0) snprintf(config->own_lr, sizeof config->own_lr, "%.6g", factor * rate);
        /* Jumps stop where the learning rate of wsd begins to decay. */
        bool is_wsd = !strcmp(recipe_text(config, "optimizer.schedule"), "wsd");
        if (is_wsd && decays_from < until)
            snprintf(config->own_until, sizeof config->own_until, "%.6g", decays_from);
        store_all(config);
    }
    return HY_OK;
}

/* Loads the winning model, adapter and profile if they have changed, and computes the settings. */
static hy_status resolve(hy_config *config) {
    const char *model = hy_config_raw(config, "model"), *profile = hy_config_raw(config, "profile");
    bool is_other = strcmp(model, config->loaded_model) != 0;
    if (is_other && !config->is_own) HY_TRY(load_preset(config, model));
    const char *adapter = hy_config_raw(config, "lora.adapter"),
               *run = hy_config_raw(config, "init_from");
    bool is_profile = strcmp(profile, config->loaded_profile) != 0;
    if (is_profile) HY_TRY(load_profile(config, profile));
    is_other |= strcmp(adapter, config->loaded_adapter) || strcmp(run, config->loaded_run);
    if ((is_other || is_profile) && !config->is_own) HY_TRY(load_start(config, adapter, run));
    /* Presets hold values for our own models, and profiles split the steps of our own batches. A
     * custom model uses neither. */
    if (config->is_own) {
        size_t accum = hy_setting_index(hy_setting_find("train.grad_accum_steps", NULL));
        clear_rank(config, HY_FROM_PRESET);
        *value_at(config, accum, HY_FROM_PROFILE) = (value){0};
    }
    return resolve_values(config);
}

static hy_status fill_from_card(filling *f, const char *card, bool *is_card) {
    char name[HY_CARD_FILE_NAME];
    hy_text text = {0};
    HY_FAIL_IF(hy_card_is_too_old(card), HY_ERR_INPUT, "card \"%s\" " HY_CARD_TOO_OLD, card);
    *is_card = hy_config_card(card, name, &text);
    f->name = name;
    hy_status status =
        *is_card ? hy_config_file_read(hy_text_string(&text), text.size, name, fill, f) : HY_OK;
    hy_text_free(&text);
    return status;
}

static hy_status fill_from_file(hy_config *config, const char *path) {
    filling f = {.config = config, .rank = HY_FROM_FILE, .name = path};
    if (hy_path_exists(path) && !hy_path_is_dir(path)) return fill_from_path(&f, path, fill);
    const char *card = !strncmp(path, "gpu/", 4) ? path + 4 : path;
    if (hy_builtin_text("gpu", card)) return fill_from_builtin(&f, "gpu", card);
    if (!hy_path_is_dir(path)) {
        bool is_card;
        HY_TRY(fill_from_card(&f, card, &is_card));
        if (is_card) return HY_OK;
    }
    HY_FAIL_IF(hy_path_is_dir(path), HY_ERR_INPUT, "%s is a folder; expected a configuration file",
               path);
    static const char *const kinds[] = {"model", "profile"};
    hy_text hint = {0}, names = {0};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (!hy_builtin_text(kinds[i], path)) continue;
        hy_text_addf(&hint, "; to use the built-in %s, write --%s %s", kinds[i], kinds[i], path);
    }
    if (!hint.size) hy_text_add(&hint, hy_did_you_mean(hy_builtin_nearest("gpu", path)).text);
    hy_builtin_list("gpu", &names);
    hy_status status =
        hy_fail(HY_ERR_INPUT,
                "%s: configuration file not found; built-in files: %s, and the name of any card "
                "that --card accepts%s",
                path, hy_text_string(&names), hy_text_string(&hint));
    hy_text_free(&hint);
    hy_text_free(&names);
    return status;
}

/* ---- the object ------------------------------------------------------------------------------ */

void hy_config_destroy(hy_config *config) {
    if (!config) return;
    while (config->texts) {
        kept_text *next = config->texts->next;
        free(config->texts);
        config->texts = next;
    }
    free(config->values);
    free(config->command);
    free(config);
}

hy_status hy_config_set_command(hy_config *config, const char *command) {
    char *copy = strdup(command);
    if (!copy) return hy_fail(HY_ERR_MEMORY, "not enough memory for the text of the command");
    free(config->command);
    config->command = copy;
    return HY_OK;
}

const char *hy_config_command(const hy_config *config) {
    return config->command ? config->command : "";
}

hy_status hy_config_create(hy_config **out) {
    hy_config *config = calloc(1, sizeof *config);
    if (config) config->values = calloc(hy_setting_count() * RANKS, sizeof *config->values);
    bool has_memory = config && config->values;
    hy_status status =
        has_memory ? HY_OK : hy_fail(HY_ERR_MEMORY, "not enough memory for a configuration");
    for (size_t i = 0; status == HY_OK && i < hy_setting_count(); i++) {
        const hy_config_key_info *info = &hy_setting_at(i)->info;
        status = put(config, info->key, info->fallback, HY_FROM_DEFAULT, "default", "default");
    }
    if (status == HY_OK) status = resolve(config);
    if (status == HY_OK)
        *out = config;
    else
        hy_config_destroy(config);
    return status;
}

/* A change works on a copy of the values; `before` keeps the old state. */
static hy_status begin_change(hy_config *config, hy_config *before) {
    size_t bytes = hy_setting_count() * RANKS * sizeof *config->values;
    value *values = malloc(bytes);
    HY_FAIL_IF(!values, HY_ERR_MEMORY, "not enough memory for a configuration");
    *before = *config;
    config->values = memcpy(values, before->values, bytes);
    return HY_OK;
}

/* Keeps the change if `status` is HY_OK and the new settings are valid; undoes it otherwise. */
static hy_status end_change(hy_config *config, const hy_config *before, hy_status status) {
    if (status == HY_OK) status = resolve(config);
    free(status == HY_OK ? before->values : config->values);
    if (status != HY_OK) {
        kept_text *texts = config->texts;
        *config = *before;
        config->texts = texts;
    }
    return status;
}

hy_status hy_config_load(hy_config *config, const char *path) {
    if (!path || !*path)
        return hy_fail(HY_ERR_INPUT, "the name of the configuration file is empty");
    hy_config before;
    HY_TRY(begin_change(config, &before));
    return end_change(config, &before, fill_from_file(config, path));
}

static hy_status load_kept(hy_config *config, const char *path, const hy_kept_origin *kept) {
    hy_config before;
    HY_TRY(begin_change(config, &before));
    config->kept = *kept;
    config->is_reading_kept = true;
    hy_status status = fill_from_file(config, path);
    config->is_reading_kept = false;
    size_t model = hy_setting_index(hy_setting_find("model", NULL));
    size_t tokenizer = hy_setting_index(hy_setting_find("input.tokenizer", NULL));
    config->kept_model = value_at(config, model, HY_FROM_FILE)->text;
    config->kept_tokenizer = value_at(config, tokenizer, HY_FROM_FILE)->text;
    return end_change(config, &before, status);
}

hy_status hy_config_load_kept(hy_config *config, const char *path, const hy_kept_origin *kept) {
    /* A feature that is newer than the run's program stays off: its file does not set the key. */
    static const char *const newer[][2] = {{"optimizer.muon_momentum_warmup", "0"},
                                           {"input.stream_rows", "off"}};
    config->is_of_run = true;
    HY_TRY(kept->folder[0] ? load_kept(config, path, kept) : hy_config_load(config, path));
    for (size_t i = 0; i < sizeof newer / sizeof newer[0]; i++) {
        bool is_set = hy_config_raw_rank(config, newer[i][0]) >= HY_FROM_FILE;
        HY_TRY(is_set ? HY_OK : hy_config_set(config, newer[i][0], newer[i][1], HY_FROM_FILE));
    }
    /* Rows of a run keep the format that they began with. */
    if (hy_config_raw_rank(config, "input.columns") >= HY_FROM_FILE) return HY_OK;
    const hy_settings *s = hy_config_settings(config);
    if (s->input.bad_rows == HY_BAD_ROWS_SKIP) {
        HY_TRY(hy_config_set(config, "input.bad_rows", "skip-any", HY_FROM_FILE));
    }
    bool is_auto = hy_config_settings(config)->input.chat_template == HY_CHAT_AUTO;
    return is_auto ? hy_config_set(config, "input.chat_template", "conversations", HY_FROM_FILE)
                   : HY_OK;
}

hy_status hy_config_use_custom(hy_config *config) {
    if (config->is_own) return HY_OK;
    hy_config before;
    HY_TRY(begin_change(config, &before));
    config->is_own = true;
    hy_status status = put(config, "optimizer.lr_warmup_steps", "0", HY_FROM_DEFAULT, "default",
                           "default of a custom model or loop");
    return end_change(config, &before, status);
}

/* The copy keeps its own texts, because a configuration owns the texts of its values. */
hy_status hy_config_copy_own(const hy_config *config, hy_config **out) {
    *out = NULL;
    hy_config *copy;
    HY_TRY(hy_config_create(&copy));
    hy_status status = HY_OK;
    for (size_t i = 0; i < hy_setting_count() * RANKS && status == HY_OK; i++) {
        const value *v = &config->values[i];
        copy->values[i] = (value){0};
        if (v->text) status = keep_text(copy, v->text, &copy->values[i].text);
        if (v->text && status == HY_OK)
            status = keep_text(copy, v->origin, &copy->values[i].origin);
    }
    memcpy(copy->loaded_model, config->loaded_model, sizeof copy->loaded_model);
    memcpy(copy->loaded_profile, config->loaded_profile, sizeof copy->loaded_profile);
    memcpy(copy->was_ema, config->was_ema, sizeof copy->was_ema);
    copy->is_own = config->is_own;
    if (status == HY_OK) status = hy_config_set_command(copy, hy_config_command(config));
    if (status == HY_OK) status = copy->is_own ? resolve(copy) : hy_config_use_custom(copy);
    if (status != HY_OK) {
        hy_config_destroy(copy);
        return status;
    }
    *out = copy;
    return HY_OK;
}

/* Turns batch_size, train.batch_size or --batch-size into "--batch-size". */
static void name_as_flag(const char *name, char *flag, size_t size) {
    const char *dot = strrchr(name, '.');
    const char *leaf = dot ? dot + 1 : name + (strncmp(name, "--", 2) ? 0 : 2);
    snprintf(flag, size, "--%s", leaf);
    for (char *c = flag; *c; c++)
        if (*c == '_') *c = '-';
}

static hy_status refuse_unknown_key(const char *key, hy_origin origin) {
    if (origin != HY_FROM_FLAG)
        return hy_setting_unknown(origin == HY_FROM_SET ? "--set: " : "", key);
    const hy_setting *near = hy_setting_nearest(key);
    const char *hint = hy_config_hint(key);
    char flag[ORIGIN_MAX];
    name_as_flag(key, flag, sizeof flag);
    if (hint) return hy_fail(HY_ERR_INPUT, "unknown flag %s; %s", flag, hint);
    return hy_fail(HY_ERR_INPUT, "unknown flag %s%s", flag,
                   hy_did_you_mean(near ? near->info.flag : NULL).text);
}

static void describe_origin(const hy_config *config, const char *key, hy_origin origin, char *out,
                            size_t size) {
    char flag[ORIGIN_MAX - 8];
    name_as_flag(key, flag, sizeof flag);
    static const char *const words[] = {
        [HY_FROM_DEFAULT] = "default", [HY_FROM_PRESET] = "preset ", [HY_FROM_PROFILE] = "profile ",
        [HY_FROM_FILE] = "file",       [HY_FROM_SET] = "--set",      [HY_FROM_FLAG] = "flag ",
        [HY_FROM_CALLER] = "caller",
    };
    snprintf(out, size, "%s%s", words[origin],
             origin == HY_FROM_PRESET    ? hy_config_raw(config, "model")
             : origin == HY_FROM_PROFILE ? hy_config_raw(config, "profile")
             : origin == HY_FROM_FLAG    ? flag
                                         : "");
}

hy_status hy_config_set(hy_config *config, const char *key, const char *text, hy_origin origin) {
    if (!key || !text) return hy_fail(HY_ERR_INPUT, "the key or the value is NULL");
    HY_FAIL_IF((int)origin < 0 || origin > HY_FROM_CALLER, HY_ERR_INPUT,
               "%s: unknown origin %d; accepted: 0 to %d", key, (int)origin, (int)HY_FROM_CALLER);
    if (!hy_setting_find(key, NULL)) return refuse_unknown_key(key, origin);
    bool is_weak = origin == HY_FROM_PRESET || origin == HY_FROM_PROFILE;
    HY_FAIL_IF(is_weak && loads_other_keys(key), HY_ERR_INPUT,
               "%s cannot be set with origin preset or profile", key);
    char where[ORIGIN_MAX];
    describe_origin(config, key, origin, where, sizeof where);
    int rank = origin == HY_FROM_CALLER ? HY_FROM_FLAG : (int)origin;
    hy_config before;
    HY_TRY(begin_change(config, &before));
    return end_change(config, &before, put(config, key, text, rank, where, where));
}

hy_status hy_config_get(const hy_config *config, const char *key, const char **text,
                        const char **origin) {
    const hy_setting_alias *alias = NULL;
    const hy_setting *setting = key ? hy_setting_find(key, &alias) : NULL;
    if (!setting || (alias && alias->is_removed)) {
        return refuse_unknown_key(key ? key : "NULL", HY_FROM_CALLER);
    }
    const char *found_text, *found_origin;
    look_up(config, hy_setting_index(setting), &found_text, &found_origin);
    if (text) *text = found_text;
    if (origin) *origin = found_origin;
    return HY_OK;
}

hy_origin hy_config_origin(const hy_config *config, const char *key) {
    bool is_key = key && hy_setting_find(key, NULL);
    return is_key ? (hy_origin)hy_config_raw_rank(config, key) : HY_FROM_DEFAULT;
}

const hy_settings *hy_config_settings(const hy_config *config) { return &config->settings; }

const hy_config_key_info *hy_config_key(size_t i) {
    const hy_setting *setting = hy_setting_at(i);
    return setting ? &setting->info : NULL;
}

const hy_config_key_info *hy_config_find(const char *name) {
    const hy_setting_alias *alias = NULL;
    const hy_setting *setting = name ? hy_setting_find(name, &alias) : NULL;
    if (!setting) return NULL;
    return alias ? &alias->info : &setting->info;
}

void hy_free(void *allocated_by_the_library) { free(allocated_by_the_library); }
