/* config_model.c: the settings that a model's files bring. See config_model.h.
 *
 * These are the shape, and values that suit fine-tuning. They have the strength of a preset:
 * profiles, files and flags win over them. */
#include "config/config_model.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "config/derived.h"
#include "hub/hf_load.h"
#include "hub/peft.h"

/* Usual values for the start of fine-tuning: the rate is a tenth of the rate from scratch or
 * less. */
#define TUNING_LR 2e-5
#define TUNING_WARMUP 20
#define USUAL_SEQUENCE 1024

/* Rope keys are passed on only for models with rope; other models keep the defaults. */
static bool is_sent(const char *key, const hy_shape *shape) {
    static const char scaling[] = " shape.rope_factor shape.rope_original_context ";
    static const char llama3[] = " shape.rope_low_freq shape.rope_high_freq ";
    static const char own[] = " shape.attention_type shape.sparse_local shape.sparse_global ";
    if (hy_word_is_in(own, key)) return false; /* no such files */
    if (!strcmp(key, "shape.rope_theta")) return shape->has_rope;
    if (hy_word_is_in(scaling, key)) return shape->rope_scaling != HY_ROPE_UNSCALED;
    if (hy_word_is_in(llama3, key)) return shape->rope_scaling == HY_ROPE_SCALED_LLAMA3;
    return !strncmp(key, "shape.", 6) ||
           hy_word_is_in(" train.seq_len optimizer.lr optimizer.lr_warmup_steps ", key);
}

static bool holds(const char *folder, const char *file) {
    char path[HY_PATH_MAX];
    return hy_path_join(path, sizeof path, folder, file) == HY_OK && hy_path_exists(path);
}

void hy_config_find_model(char *name, size_t size) {
    char path[HY_PATH_MAX];
    bool is_run = !holds(name, "config.json") && holds(name, "config.cfg") &&
                  holds(name, "model/config.json");
    if (is_run && hy_path_join(path, sizeof path, name, "model") == HY_OK && strlen(path) < size)
        memcpy(name, path, strlen(path) + 1);
}

void hy_config_hint_model(const char *folder) {
    static const struct {
        const char *file, *hint; /* @ is replaced by the folder */
    } known[] = {
        {"adapter/" HY_PEFT_CONFIG, "this is a run folder with adapters; use --adapter @/adapter "
                                    "and set --model to their base model"},
        {HY_PEFT_CONFIG, "this is an adapter; use --adapter @ and set --model to its base model"},
        {"manifest.json", "this is a checkpoint; hybrid-export @ --out FOLDER writes a model (for "
                          "--model) or an adapter (for --adapter)"},
        {"config.cfg", "this is a run folder; hybrid-export @ --out FOLDER writes a model (for "
                       "--model) or an adapter (for --adapter)"}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (!holds(folder, known[i].file)) continue;
        const char *hint = known[i].hint, *at = strchr(hint, '@');
        (void)hy_fail_hint(HY_ERR_INPUT, "%.*s%s%s", (int)(at - hint), hint, folder, at + 1);
        return;
    }
}

hy_status hy_config_model_read(hy_model_files kind, const char *path, hy_config_sink sink,
                               void *user) {
    hy_shape shape;
    hy_hf_quant quant;
    char text[HY_VALUE_MAX];
    HY_TRY(hy_model_files_shape(kind, path, &shape));
    HY_TRY(hy_model_files_quant(kind, path, &quant));
    if (quant != HY_HF_PLAIN) /* quantised weights keep their type */
        HY_TRY(sink(user, "train.frozen_dtype", hy_hf_quant_name(quant), 0));
    hy_settings settings = {
        .train.seq_len = shape.context < USUAL_SEQUENCE ? shape.context : USUAL_SEQUENCE,
        .optimizer = {.lr = TUNING_LR, .lr_warmup_steps = TUNING_WARMUP},
    };
    HY_TRY(hy_shape_to_settings(&shape, &settings));
    for (size_t i = 0; i < hy_setting_count(); i++) {
        const hy_setting *setting = hy_setting_at(i);
        if (!is_sent(setting->info.key, &shape)) continue;
        HY_TRY(sink(user, setting->info.key, hy_setting_format(setting, &settings, text), 0));
    }
    return HY_OK;
}
