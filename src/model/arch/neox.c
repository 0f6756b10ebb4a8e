/* neox.c: GPT-NeoX (Pythia): attention and mlp side by side, layernorm, rope on a part of each head.
 * Its files store q, k and v head by head. See arch.h. */
#include "model/arch/arch.h"

static const hy_modules modules[HY_P_KIND_COUNT] = {
    [HY_P_TOKENS] = {{"embed_in"}},
    [HY_P_NORM1] = {{"layers.%d.input_layernorm"}},
    [HY_P_QKV] = {{"layers.%d.attention.query_key_value"}, .is_by_head = true},
    [HY_P_OUT] = {{"layers.%d.attention.dense"}},
    [HY_P_NORM2] = {{"layers.%d.post_attention_layernorm"}},
    [HY_P_UP] = {{"layers.%d.mlp.dense_h_to_4h"}},
    [HY_P_DOWN] = {{"layers.%d.mlp.dense_4h_to_h"}},
    [HY_P_FINAL_NORM] = {{"final_layer_norm"}},
    [HY_P_HEAD] = {{"embed_out"}, .is_outside = true},
};

static const char *const ignored[] = {".attention.bias", ".attention.masked_bias",
                                      ".attention.rotary_emb.inv_freq", NULL};

static const hy_config_field fields[] = {
    {"vocab_size", HY_CONFIG_SIZE, HY_AT(vocab), HY_REQUIRED},
    {"initializer_range", HY_CONFIG_STD, HY_AT(init_std), 0.02},
    {"num_hidden_layers", HY_CONFIG_SIZE, HY_AT(layers), HY_REQUIRED},
    {"hidden_size", HY_CONFIG_SIZE, HY_AT(width), HY_REQUIRED},
    {"num_attention_heads", HY_CONFIG_SIZE, HY_AT(heads), HY_REQUIRED},
    {"intermediate_size", HY_CONFIG_SIZE, HY_AT(mlp_width), HY_REQUIRED},
    {"max_position_embeddings", HY_CONFIG_SIZE, HY_AT(context), HY_REQUIRED},
    {"layer_norm_eps", HY_CONFIG_NUMBER, HY_AT(norm_eps), 1e-5},
    {"tie_word_embeddings", HY_CONFIG_SWITCH, HY_AT(has_tied_head), false},
    {"attention_bias", HY_CONFIG_ATTENTION_BIAS, 0, true},
    {"use_parallel_residual", HY_CONFIG_SWITCH, HY_AT(more.is_parallel), true},
    {"rotary_pct", HY_CONFIG_FACTOR, HY_AT(more.rope.share), 0.25},
    {"rotary_emb_base", HY_CONFIG_ROPE, HY_AT(rope_theta), 10000},
    HY_FUNCTION_FIELD("hidden_act"),
    {0},
};

static const hy_shape base = {
    .has_rope = true, .has_qkv_bias = true, .has_proj_bias = true, .more.function = HY_MLP_GELU};

static void block(hy_builder *b, hy_slot_id in, hy_slot_id out) {
    (b->shape->more.is_parallel ? hy_parallel_block : hy_pre_norm_block)(b, in, out);
}

static const hy_config_field keys[] = {
    {"use_parallel_residual", HY_CONFIG_SWITCH, HY_AT(more.is_parallel), true}, {0}};

const hy_family hy_neox = {
    .name = "gpt_neox",
    .class_name = "GPTNeoXForCausalLM",
    .base_class = "GPTNeoXModel",
    .prefix = "gpt_neox.",
    .modules = modules,
    .ignored = ignored,
    .block = block,
    .fields = fields,
    .base = &base,
    .needs_name = true,
    .gguf = {"gptneox", hy_gguf_fused_modules, keys, HY_GGUF_ALL_BIASES, .needs_head = true},
};
