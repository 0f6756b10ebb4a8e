/* config_model.c: turns a model's shape into settings, the reverse of hy_shape_from_settings. See
 * config_model.h. */
#include "config/config_model.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "hub/hf_load.h"
#include "hub/peft.h"

/* Usual values for the start of fine-tuning: the rate is a tenth of the rate from scratch or
 * less. */
#define TUNING_LR 2e-5
#define TUNING_WARMUP 20
#define USUAL_SEQUENCE 1024

static hy_settings settings_of(const hy_shape *shape) {
    hy_settings settings = {
        .shape = {.architecture = shape->arch,
                  .layers = shape->layers,
                  .width = shape->width,
                  .heads = shape->heads,
                  .kv_heads = shape->kv_heads,
                  .head_size = shape->head_size,
                  .mlp_width = shape->mlp_width,
                  .vocab = shape->vocab,
                  .context = shape->context,
                  .norm = shape->is_rms ? HY_RMSNORM : HY_LAYERNORM,
                  .positions = shape->has_rope ? HY_POSITIONS_ROPE : HY_POSITIONS_LEARNED,
                  .activation = shape->is_gated ? HY_ACTIVATION_SWIGLU : HY_ACTIVATION_GELU,
                  .proj_bias_in = shape->lacks_out_bias   ? HY_BIAS_IN_MLP
                                  : shape->lacks_mlp_bias ? HY_BIAS_IN_ATTENTION
                                                          : HY_BIAS_IN_ALL,
                  .rope_scaling = shape->has_llama3_rope ? HY_ROPE_LLAMA3 : HY_ROPE_PLAIN,
                  .qkv_bias = shape->has_qkv_bias,
                  .proj_bias = shape->has_proj_bias,
                  .qk_norm = shape->has_qk_norm,
                  .tied_head = shape->has_tied_head,
                  .norm_eps = shape->norm_eps,
                  .rope_theta = shape->rope_theta,
                  .rope_factor = shape->rope_factor,
                  .rope_low_freq = shape->rope_low_freq,
                  .rope_high_freq = shape->rope_high_freq,
                  .rope_original_context = shape->rope_original_context,
                  .sliding_window = shape->sliding_window,
                  .init_std = shape->init_std},
        .train.seq_len = shape->context < USUAL_SEQUENCE ? shape->context : USUAL_SEQUENCE,
        .optimizer = {.lr = TUNING_LR, .lr_warmup_steps = TUNING_WARMUP},
    };
    snprintf(settings.shape.sliding_layers, sizeof settings.shape.sliding_layers, "%s",
             shape->sliding_layers[0] ? shape->sliding_layers : "all");
    return settings;
}

/* Rope keys are passed on only for models with rope; other models keep the defaults. */
static bool is_sent(const char *key, const hy_shape *shape) {
    static const char scaling[] = " shape.rope_factor shape.rope_low_freq shape.rope_high_freq "
                                  "shape.rope_original_context ";
    if (!strcmp(key, "shape.rope_theta")) return shape->has_rope;
    if (hy_word_is_in(scaling, key)) return shape->has_llama3_rope;
    return !strncmp(key, "shape.", 6) ||
           hy_word_is_in(" train.seq_len optimizer.lr optimizer.lr_warmup_steps ", key);
}

static bool holds(const char *folder, const char *file) {
    char path[HY_PATH_MAX];
    return hy_path_join(path, sizeof path, folder, file) == HY_OK && hy_path_exists(path);
}

void hy_config_hint_model(const char *folder) {
    static const struct {
        const char *file, *hint; /* @ is replaced by the folder */
    } known[] = {
        {"model/config.json", "this is a run folder; its model is in @/model"},
        {"adapter/" HY_PEFT_CONFIG, "this is a run folder with adapters; use --adapter @/adapter "
                                    "and set --model to their base model"},
        {HY_PEFT_CONFIG, "this is an adapter; use --adapter @ and set --model to its base model"},
        {"manifest.json", "this is a checkpoint; to start from its weights, use --init-from @"},
        {"config.cfg", "this is a run folder; to start from its weights, use --init-from @"}};
    size_t i = 0;
    while (i < sizeof known / sizeof known[0] && !holds(folder, known[i].file)) i++;
    if (i == sizeof known / sizeof known[0]) return;
    const char *at = strchr(known[i].hint, '@');
    (void)hy_fail_hint(HY_ERR_INPUT, "%.*s%s%s", (int)(at - known[i].hint), known[i].hint, folder,
                       at + 1);
}

hy_status hy_config_model_read(hy_model_files kind, const char *path, hy_config_sink sink,
                               void *user) {
    hy_shape shape;
    hy_hf_quant quant;
    char text[HY_TEXT_MAX];
    HY_TRY(hy_model_files_shape(kind, path, &shape));
    HY_TRY(hy_model_files_quant(kind, path, &quant));
    if (quant != HY_HF_PLAIN) { /* quantised weights keep their type */
        const char *stored = quant == HY_HF_NF4 ? "nf4" : "nf4_single";
        HY_TRY(sink(user, "train.frozen_dtype", stored, 0));
    }
    hy_settings settings = settings_of(&shape);
    for (size_t i = 0; i < hy_setting_count(); i++) {
        const hy_setting *setting = hy_setting_at(i);
        if (!is_sent(setting->info.key, &shape)) continue;
        HY_TRY(sink(user, setting->info.key, hy_setting_format(setting, &settings, text), 0));
    }
    return HY_OK;
}
