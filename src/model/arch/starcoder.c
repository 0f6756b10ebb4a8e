/* starcoder.c: StarCoder2: layernorm, rope, grouped heads, and an mlp without a gate. One key sets
 * the biases of all matrices. See arch.h. */
#include "model/arch/arch.h"

static const hy_modules modules[HY_P_KIND_COUNT] = {
    HY_USUAL_MODULES,
    [HY_P_NORM1] = {{"layers.%d.input_layernorm"}},
    [HY_P_NORM2] = {{"layers.%d.post_attention_layernorm"}},
    [HY_P_UP] = {{"layers.%d.mlp.c_fc"}},
    [HY_P_DOWN] = {{"layers.%d.mlp.c_proj"}},
};

static const hy_config_field fields[] = {
    {"vocab_size", HY_CONFIG_SIZE, HY_AT(vocab), HY_REQUIRED},
    {"initializer_range", HY_CONFIG_STD, HY_AT(init_std), 0.018042},
    {"num_hidden_layers", HY_CONFIG_SIZE, HY_AT(layers), HY_REQUIRED},
    {"hidden_size", HY_CONFIG_SIZE, HY_AT(width), HY_REQUIRED},
    {"num_attention_heads", HY_CONFIG_SIZE, HY_AT(heads), HY_REQUIRED},
    {"num_key_value_heads", HY_CONFIG_SIZE, HY_AT(kv_heads), HY_REQUIRED},
    {"head_dim", HY_CONFIG_SIZE, HY_AT(head_size), 0},
    {"intermediate_size", HY_CONFIG_SIZE, HY_AT(mlp_width), HY_REQUIRED},
    {"max_position_embeddings", HY_CONFIG_SIZE, HY_AT(context), HY_REQUIRED},
    {"norm_epsilon", HY_CONFIG_NUMBER, HY_AT(norm_eps), 1e-5},
    {"tie_word_embeddings", HY_CONFIG_SWITCH, HY_AT(has_tied_head), true},
    {"use_bias", HY_CONFIG_BIAS, 0, true},
    HY_ROPE_FIELD(10000),
    HY_WINDOW_FIELD(0),
    HY_FUNCTION_FIELD("hidden_act"),
    {0},
};

static const hy_shape base = {.has_rope = true, .has_qkv_bias = true, .has_proj_bias = true};

const hy_family hy_starcoder2 = {
    .name = "starcoder2",
    .class_name = "Starcoder2ForCausalLM",
    .base_class = "Starcoder2Model",
    .prefix = "model.",
    .modules = modules,
    .ignored = hy_llama_ignored,
    .block = hy_pre_norm_block,
    .fields = fields,
    .base = &base,
    .has_one_window = true,
    .needs_name = true,
    .gguf = {"starcoder2", hy_gguf_plain_modules, .biases = HY_GGUF_ALL_BIASES, .is_square = true},
};
