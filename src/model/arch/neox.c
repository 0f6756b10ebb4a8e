/* neox.c: GPT-NeoX (Pythia): attention and mlp side by side, layernorm, rope on a part of each head.
 * Its files store q, k and v head by head. See arch.h. */
#include "model/arch/arch.h"

static const hy_modules modules[HY_P_KIND_COUNT] = {
    [HY_P_TOKENS] = {{"embed_in"}},
    [HY_P_NORM1] = {{"layers.%d.input_layernorm"}},
    [HY_P_QKV] = {{"layers.%d.attention.query_key_value"}},
    [HY_P_OUT] = {{"layers.%d.attention.dense"}},
    [HY_P_NORM2] = {{"layers.%d.post_attention_layernorm"}},
    [HY_P_UP] = {{"layers.%d.mlp.dense_h_to_4h"}},
    [HY_P_DOWN] = {{"layers.%d.mlp.dense_4h_to_h"}},
    [HY_P_FINAL_NORM] = {{"final_layer_norm"}},
    [HY_P_HEAD] = {{"embed_out"}, .is_outside = true},
};

static const char *const ignored[] = {".attention.bias", ".attention.masked_bias",
                                      ".attention.rotary_emb.inv_freq", NULL};

const hy_family hy_neox = {
    .name = "gpt_neox",
    .class_name = "GPTNeoXForCausalLM",
    .base_class = "GPTNeoXModel",
    .prefix = "gpt_neox.",
    .modules = modules,
    .ignored = ignored,
    .block = hy_parallel_block,
    .has_options = true,
    .biases = HY_BIASES(HY_BIAS_QKV | HY_BIAS_OUT | HY_BIAS_MLP),
};
