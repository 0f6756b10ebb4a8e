/* gpt2.c: GPT-2. Its files store matrices as (in, out), and q, k and v as one. See arch.h. */
#include "model/arch/arch.h"

static const hy_modules modules[HY_P_KIND_COUNT] = {
    [HY_P_TOKENS] = {{"wte"}},
    [HY_P_POSITIONS] = {{"wpe"}},
    [HY_P_NORM1] = {{"h.%d.ln_1"}},
    [HY_P_QKV] = {{"h.%d.attn.c_attn"}, .is_transposed = true},
    [HY_P_OUT] = {{"h.%d.attn.c_proj"}, .is_transposed = true},
    [HY_P_NORM2] = {{"h.%d.ln_2"}},
    [HY_P_UP] = {{"h.%d.mlp.c_fc"}, .is_transposed = true},
    [HY_P_DOWN] = {{"h.%d.mlp.c_proj"}, .is_transposed = true},
    [HY_P_FINAL_NORM] = {{"ln_f"}},
    [HY_P_HEAD] = {{"lm_head"}, .is_outside = true},
};

static const char *const ignored[] = {".attn.bias", ".attn.masked_bias", NULL}; /* masks */

static const hy_config_field fields[] = {
    {"vocab_size", HY_CONFIG_SIZE, HY_AT(vocab), HY_REQUIRED},
    {"initializer_range", HY_CONFIG_STD, HY_AT(init_std), 0.02},
    {"n_layer", HY_CONFIG_SIZE, HY_AT(layers), HY_REQUIRED},
    {"n_embd", HY_CONFIG_SIZE, HY_AT(width), HY_REQUIRED},
    {"n_head", HY_CONFIG_SIZE, HY_AT(heads), HY_REQUIRED},
    {"n_inner", HY_CONFIG_SIZE, HY_AT(mlp_width), 0},
    {"n_ctx", HY_CONFIG_SIZE, HY_AT(context), 0}, /* an older name of the next one */
    {"n_positions", HY_CONFIG_SIZE, HY_AT(context), HY_REQUIRED},
    {"layer_norm_epsilon", HY_CONFIG_NUMBER, HY_AT(norm_eps), 1e-5},
    {"tie_word_embeddings", HY_CONFIG_SWITCH, HY_AT(has_tied_head), true},
    HY_FUNCTION_FIELD("activation_function"),
    {0},
};

static const hy_shape base = {.has_qkv_bias = true, .has_proj_bias = true};

const hy_family hy_gpt2 = {
    .name = "gpt2",
    .class_name = "GPT2LMHeadModel",
    .base_class = "GPT2Model",
    .prefix = "transformer.",
    .modules = modules,
    .block = hy_pre_norm_block,
    .fields = fields,
    .base = &base,
    .ignored = ignored,
    .gguf = {"gpt2", hy_gguf_fused_modules, .biases = HY_GGUF_ALL_BIASES},
};
