/* derived.c: values that depend on several settings. See derived.h.
 *
 * Nothing here is stored: each call computes its result from the settings alone, so all modules get
 * the same answer. */
#include "config/derived.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "hub/hf_load.h"
#include "kernels/coded.h"
#include "model/adapter.h"
#include "model/arch/config.h"
#include "model/batch_decode.h"
#include "model/params.h"
#include "phases/table.h"

#define STREAMS_CPU 64 /* answers at once on a CPU: more are not faster */

/* The settings of a shape and the fields of hy_shape that they set. Choices of two values are flags
 * there. proj_bias_in and sliding_layers need more than a copy. */
#define EACH_SHAPE_FIELD(COPY)                                                                     \
    COPY(architecture, arch), COPY(layers, layers), COPY(width, width), COPY(heads, heads),        \
        COPY(kv_heads, kv_heads), COPY(head_size, head_size), COPY(mlp_width, mlp_width),          \
        COPY(vocab, vocab), COPY(context, context), COPY(norm, is_rms), COPY(positions, has_rope), \
        COPY(activation, is_gated), COPY(qkv_bias, has_qkv_bias), COPY(proj_bias, has_proj_bias),  \
        COPY(qk_norm, has_qk_norm), COPY(tied_head, has_tied_head), COPY(norm_eps, norm_eps),      \
        COPY(rope_theta, rope_theta), COPY(rope_scaling, rope_scaling),                            \
        COPY(rope_factor, rope_factor), COPY(rope_low_freq, rope_low_freq),                        \
        COPY(rope_high_freq, rope_high_freq), COPY(rope_original_context, rope_original_context),  \
        COPY(sliding_window, sliding_window), COPY(init_std, init_std)

_Static_assert(HY_RMSNORM == 1 && HY_POSITIONS_ROPE == 1 && HY_ACTIVATION_SWIGLU == 1 &&
                   HY_ROPE_SCALED_LLAMA3 == 1,
               "the second value of each choice sets its flag");

hy_status hy_shape_to_settings(const hy_shape *shape, hy_settings *out) {
    hy_text options = {0};
#define TO_SETTINGS(setting, field) out->shape.setting = shape->field
    EACH_SHAPE_FIELD(TO_SETTINGS);
    hy_arch_write_options(shape, &options);
    snprintf(out->shape.arch_options, sizeof out->shape.arch_options, "%s",
             hy_text_string(&options));
    bool is_short = options.size < sizeof out->shape.arch_options;
    hy_text_free(&options);
    HY_FAIL_IF(!is_short, HY_ERR_INPUT,
               "shape.arch_options: this model's options need more than %d letters",
               HY_VALUE_MAX - 1);
    out->shape.proj_bias_in = shape->lacks_out_bias   ? HY_BIAS_IN_MLP
                              : shape->lacks_mlp_bias ? HY_BIAS_IN_ATTENTION
                                                      : HY_BIAS_IN_ALL;
    snprintf(out->shape.sliding_layers, sizeof out->shape.sliding_layers, "%s",
             shape->sliding_layers[0] ? shape->sliding_layers : "all");
    return HY_OK;
}

static hy_status set_adapter(const hy_settings *s, hy_shape *out) {
    double rank = (double)s->lora.lora_rank;
    double alpha = s->lora.lora_alpha > 0 ? s->lora.lora_alpha : 2 * rank;
    out->adapter = (hy_adapter){.rank = (int32_t)s->lora.lora_rank,
                                .scale = alpha / (s->lora.rslora ? sqrt(rank) : rank),
                                .alpha = alpha,
                                .is_root_scaled = s->lora.rslora,
                                .dropout = s->lora.lora_dropout};
    hy_status status = hy_adapter_parts_named(out, s->lora.lora_targets, &out->adapter.parts);
    if (status != HY_OK) return hy_fail_context(status, "lora.lora_targets");
    return hy_shape_complete(out);
}

hy_status hy_shape_from_settings(const hy_settings *s, hy_shape *out) {
    hy_arch arch = s->shape.architecture;
    *out = arch != HY_ARCH_NONE ? *hy_family_of(arch)->base : (hy_shape){0};
    out->lacks_out_bias = s->shape.proj_bias_in == HY_BIAS_IN_MLP;
    out->lacks_mlp_bias = s->shape.proj_bias_in == HY_BIAS_IN_ATTENTION;
#define FROM_SETTINGS(setting, field) out->field = s->shape.setting
    EACH_SHAPE_FIELD(FROM_SETTINGS);
    HY_TRY(hy_arch_read_options(s->shape.arch_options, out));
    EACH_SHAPE_FIELD(FROM_SETTINGS); /* again: the settings of rope win over its options */
    if (strcmp(s->shape.sliding_layers, "all") != 0)
        snprintf(out->sliding_layers, sizeof out->sliding_layers, "%s", s->shape.sliding_layers);
    if (s->shape.attention_type == HY_SPARSE_ATTENTION) {
        out->sparse_local = (int32_t)s->shape.sparse_local;
        out->sparse_global = (int32_t)s->shape.sparse_global;
    }
    HY_TRY(hy_shape_complete(out));
    /* A window may be added to a loaded model; then the export uses another architecture. */
    if (arch != HY_ARCH_NONE && hy_family_of(arch)->needs_name) HY_TRY(hy_arch_check_family(out));
    bool is_other = arch != HY_ARCH_NONE && out->arch != arch;
    HY_FAIL_IF(is_other && !out->sliding_window, HY_ERR_INPUT,
               "shape.architecture = %s does not support this shape; %s%s",
               hy_family_of(arch)->name, out->arch ? "supported by " : "no architecture does",
               out->arch ? hy_family_of(out->arch)->name : "");
    return s->lora.lora ? set_adapter(s, out) : HY_OK;
}

void hy_settings_trained(const hy_settings *s, char *out, size_t size) {
    int used = snprintf(out, size, "%s", s->lora.lora ? "*.lora_a,*.lora_b" : s->train.train);
    const char *at = s->lora.lora_modules;
    if (!s->lora.lora || !strcmp(at, "none") || !at[0]) return;
    for (size_t length; at[0] && used > 0 && (size_t)used < size;
         at += length + (at[length] == ',')) {
        at += strspn(at, " ");
        length = strcspn(at, ",");
        char full[64];
        size_t letters = length;
        while (letters > 0 && at[letters - 1] == ' ') letters--;
        bool is_module =
            hy_adapter_module_params(s->shape.architecture, at, letters, full, sizeof full);
        bool is_table = is_module && s->shape.tied_head && strcmp(full, "head.weight") == 0;
        if (is_table) snprintf(full, sizeof full, "embed.tokens.weight");
        used += snprintf(out + used, size - (size_t)used, ",%.*s",
                         is_module ? (int)sizeof full : (int)length, is_module ? full : at);
    }
}

/* The name of a preset always means the preset, even if a folder has the same name. */
hy_status hy_settings_model_files(const hy_settings *s, hy_model_files *kind,
                                  char path[HY_HF_PATH_MAX]) {
    *kind = HY_FILES_NONE;
    path[0] = 0;
    if (hy_builtin_text("model", s->model)) return HY_OK;
    return hy_hf_find(s->model, kind, path);
}

hy_status hy_settings_base_files(const hy_settings *s, hy_model_files *kind,
                                 char path[HY_HF_PATH_MAX]) {
    const char *base = s->lora.base;
    return base[0] ? hy_hf_find(base, kind, path) : hy_settings_model_files(s, kind, path);
}

bool hy_settings_bring_files(const hy_settings *s) {
    hy_model_files kind;
    char path[HY_HF_PATH_MAX];
    if (s->init_from[0]) return false;
    return s->kept.kind != HY_FILES_NONE ||
           (hy_settings_model_files(s, &kind, path) == HY_OK && kind != HY_FILES_NONE);
}

bool hy_settings_bring_weights(const hy_settings *s) {
    return s->init_from[0] || hy_settings_bring_files(s);
}

int hy_device_card(hy_device_choice device) {
    if (device == HY_USE_CUDA) return 0;
    return device >= HY_USE_CARD ? (int)(device - HY_USE_CARD) : -1;
}

hy_dtype hy_dtype_chosen(hy_dtype_choice choice, hy_dtype otherwise) {
    if (choice == HY_DTYPE_NF4_SINGLE) return HY_NF4;
    return (int)choice < 0 ? otherwise : (hy_dtype)choice;
}

const char *hy_settings_frozen_name(const hy_settings *s) {
    bool is_coded = hy_is_coded(hy_dtype_chosen(s->train.frozen_dtype, HY_F32));
    return is_coded ? hy_choice_name("frozen_dtype", s->train.frozen_dtype) : "";
}

const hy_optimizer_kind *hy_settings_optimizer(const hy_settings *s) {
    return hy_optimizer_kind_of(s->optimizer.optimizer & HY_OPTIMIZER_ID);
}

hy_dtype_choice hy_settings_precision(const hy_settings *s, hy_phase phase) {
    hy_dtype_choice asked = HY_DTYPE_SAME;
    switch (hy_phase_table[phase].precision) { /* no default: the compiler names a missing phase */
    case HY_WARMUP: asked = s->phases.precision_warmup; break;
    case HY_FULL: asked = s->phases.precision_full; break;
    case HY_PREDICT: asked = s->phases.precision_predict; break;
    case HY_CORRECT: asked = s->phases.precision_correct; break;
    case HY_EVALUATE:
    case HY_REFERENCE:
    case HY_ROLLOUT:
    case HY_PHASE_COUNT: break; /* no row has this precision: these have Full's */
    }
    return asked == HY_DTYPE_SAME ? s->train.precision : asked;
}

hy_optimizer hy_optimizer_from_settings(const hy_settings *s) {
    double own_lr = s->optimizer.lr > 0 ? s->optimizer.adamw_lr / s->optimizer.lr : 0;
    return (hy_optimizer){.kind = hy_settings_optimizer(s),
                          .max_norm = s->train.grad_clip,
                          .weight_decay = s->optimizer.weight_decay,
                          .beta1 = s->optimizer.beta1,
                          .beta2 = s->optimizer.beta2,
                          .eps = s->optimizer.adam_eps,
                          .momentum = s->optimizer.momentum,
                          .is_nesterov = s->optimizer.nesterov,
                          .is_relative = s->optimizer.adafactor_relative,
                          .muon_momentum = s->optimizer.muon_momentum,
                          .muon_momentum_warmup = s->optimizer.muon_momentum_warmup,
                          .is_muon_nesterov = s->optimizer.muon_nesterov,
                          .muon_steps = (int32_t)s->optimizer.muon_steps,
                          .is_cautious = s->optimizer.cautious_decay,
                          .delegated_lr = own_lr};
}

hy_schedule hy_schedule_from_settings(const hy_settings *s, int64_t total) {
    int64_t asked = s->optimizer.lr_warmup_steps;
    int64_t most = (int64_t)ceil(s->optimizer.lr_warmup_ratio * (double)total);
    int64_t warmup = asked < 0 || asked > most ? most : asked;
    return (hy_schedule){.kind = s->optimizer.schedule,
                         .lr = s->optimizer.lr,
                         .min_ratio = s->optimizer.min_lr_ratio,
                         .cooldown = s->optimizer.cooldown,
                         .cooldown_shape = s->optimizer.cooldown_shape,
                         .warmup = warmup < total ? warmup : total,
                         .total = total};
}

hy_predictor hy_predictor_from_settings(const hy_settings *s, double lr_scale) {
    bool is_short =
        s->phases.predictor == HY_PREDICTOR_LINE && /* a Correct step follows every jump */
        s->phases.correction_interval < s->phases.max_predict_steps;
    return (hy_predictor){
        .kind = s->phases.predictor,
        .mu = s->phases.outer_mu,
        .eta = s->phases.outer_eta,
        .max_steps = is_short ? s->phases.correction_interval : s->phases.max_predict_steps,
        .exponent = hy_predictor_exponent(lr_scale * s->optimizer.lr, s->optimizer.beta1,
                                          s->optimizer.beta2,
                                          s->phases.full_steps + s->phases.correct_steps)};
}

hy_phase_rules hy_rules_from_settings(const hy_settings *s, int64_t warmup) {
    return (hy_phase_rules){.has_predictor = s->phases.predictor != HY_PREDICTOR_NONE,
                            .warmup_steps = warmup,
                            .full_steps = s->phases.full_steps,
                            .correct_steps = s->phases.correct_steps,
                            .predict_from = s->phases.predict_from,
                            .predict_until = s->phases.predict_until,
                            .confidence_threshold = s->phases.confidence_threshold,
                            .cooldown_steps = s->phases.cooldown_steps};
}

hy_divergence_limits hy_limits_from_settings(const hy_settings *s) {
    return (hy_divergence_limits){.loss_sigma = s->phases.loss_sigma,
                                  .grad_explosion = s->phases.grad_explosion,
                                  .grad_vanishing = s->phases.grad_vanishing};
}

hy_loss hy_loss_from_settings(const hy_settings *s) {
    bool is_simpo = s->task == HY_LOSS_SIMPO, is_orpo = s->task == HY_LOSS_ORPO;
    double beta = s->preference.beta > 0 ? s->preference.beta : is_simpo ? 2 : 0.1;
    double margin = s->preference.simpo_margin >= 0 ? s->preference.simpo_margin : beta / 2;
    double likelihood = s->preference.likelihood >= 0 ? s->preference.likelihood : is_orpo;
    double clip_high = s->grpo.clip_high >= 0 ? s->grpo.clip_high : s->grpo.clip;
    if (s->task == HY_LOSS_NEXT_TOKEN) return (hy_loss){0};
    if (s->task == HY_LOSS_POLICY) {
        return (hy_loss){.kind = s->task,
                         .policy = {.clip_low = (float)s->grpo.clip,
                                    .clip_high = (float)clip_high,
                                    .kl = (float)s->grpo.kl,
                                    .cap = (float)s->grpo.importance_cap,
                                    .temperature = (float)s->grpo.rollout_temperature}};
    }
    return (hy_loss){.kind = s->task,
                     .beta = (float)beta,
                     .margin = is_simpo ? (float)margin : 0,
                     .likelihood = (float)likelihood};
}

int32_t hy_rollout_streams(const hy_settings *s, bool is_gpu) {
    int64_t most = s->grpo.rollout_streams, answers = s->grpo.prompts * s->grpo.samples;
    if (most == 0) most = is_gpu || answers < STREAMS_CPU ? answers : STREAMS_CPU;
    return (int32_t)(most < HY_STREAMS_MOST ? most : HY_STREAMS_MOST);
}

int32_t hy_rollout_context(const hy_settings *s, int32_t most) {
    return s->train.seq_len < most ? (int32_t)s->train.seq_len + 1 : most;
}

bool hy_settings_reference_is_inline(const hy_settings *s) {
    /* Adapters that were trained before are a part of the model before this training. */
    bool has_only_adapters = s->lora.lora && !strcmp(s->lora.lora_modules, "none") &&
                             !s->lora.adapter[0] && !s->init_from[0];
    hy_reference_choice choice = s->preference.reference;
    if (!hy_preference_has_reference(s->task)) return false;
    return choice == HY_REFERENCE_INLINE || (choice == HY_REFERENCE_AUTO && has_only_adapters);
}

/* ---- auto in optimizer, schedule and predictor ----------------------------------------------- */

static int64_t step_tokens(const hy_settings *s) {
    if (s->train.step_tokens > 0) return s->train.step_tokens;
    return s->train.batch_size * s->train.grad_accum_steps * s->train.seq_len;
}

/* Fails only if memory is short: a wrong shape is reported where the model is built. */
static hy_status pays_muon(const hy_settings *s, bool *out) {
    hy_shape shape;
    hy_params params;
    hy_optimizer muon = hy_optimizer_from_settings(s);
    if (hy_shape_from_settings(s, &shape) != HY_OK) return HY_OK;
    hy_status status = hy_params_init(&params, &shape);
    if (status != HY_OK) return status == HY_ERR_MEMORY ? status : HY_OK;
    muon.kind = hy_optimizer_kind_of(HY_MUON);
    double share = hy_optimizer_share(&muon, &params, step_tokens(s)),
           most = hy_muon_share_most(&params);
    hy_params_fini(&params);
    *out = share > 0 && share <= most;
    return HY_OK;
}

/* The smallest run in which jumps lowered the loss with every seed (docs/prediction.md). In runs
 * that are shorter or have smaller steps, the direction of a window is mostly noise. The length of
 * a run in epochs is not known here. */
#define PREDICT_STEPS 3000
#define PREDICT_TOKENS 32768

static bool pays_prediction(const hy_settings *s) {
    int64_t tokens = step_tokens(s);
    if (tokens < PREDICT_TOKENS || s->lora.lora) return false;
    int64_t steps = s->train.tokens > 0 ? s->train.tokens / tokens : s->train.steps;
    return hy_settings_optimizer(s) == hy_optimizer_kind_of(HY_ADAMW) && steps >= PREDICT_STEPS;
}

hy_status hy_recipe_of(const hy_settings *s, bool is_own, bool wants_optimizer, hy_recipe *out) {
    bool is_from_scratch = !is_own && !hy_settings_bring_weights(s), is_muon = false;
    /* a predictor in 8 bits works only with AdamW */
    bool needs_adamw = s->lora.lora || (s->phases.predictor != HY_PREDICTOR_NONE &&
                                        s->phases.predictor_dtype == HY_DTYPE_8BIT);
    if (wants_optimizer && is_from_scratch && !needs_adamw) HY_TRY(pays_muon(s, &is_muon));
    out->optimizer = is_muon ? "muon" : "adamw";
    out->schedule = is_from_scratch ? "wsd" : "cosine";
    out->predictor = is_from_scratch && !is_muon && pays_prediction(s) ? "outer" : "none";
    return HY_OK;
}
