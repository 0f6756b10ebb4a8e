/* llama.c: Llama 2 and 3, and the names that later families took from it. See arch.h. */
#include "model/arch/arch.h"

#define ATTENTION(what) "layers.%d.self_attn." what
#define MLP(what) "layers.%d.mlp." what

const hy_modules hy_llama_modules[HY_P_KIND_COUNT] = {
    [HY_P_TOKENS] = {{"embed_tokens"}},
    [HY_P_NORM1] = {{"layers.%d.input_layernorm"}},
    [HY_P_QKV] = {{ATTENTION("q_proj"), ATTENTION("k_proj"), ATTENTION("v_proj")}},
    [HY_P_Q_NORM] = {{ATTENTION("q_norm")}},
    [HY_P_K_NORM] = {{ATTENTION("k_norm")}},
    [HY_P_OUT] = {{ATTENTION("o_proj")}},
    [HY_P_NORM2] = {{"layers.%d.post_attention_layernorm"}},
    [HY_P_UP] = {{MLP("gate_proj"), MLP("up_proj")}},
    [HY_P_DOWN] = {{MLP("down_proj")}},
    [HY_P_FINAL_NORM] = {{"norm"}},
    [HY_P_HEAD] = {{"lm_head"}, .is_outside = true},
};

const char *const hy_llama_ignored[] = {".rotary_emb.inv_freq", ".rotary_emb.cos_cached",
                                        ".rotary_emb.sin_cached", NULL};

const hy_family hy_llama = {
    .name = "llama",
    HY_LIKE_LLAMA("Llama"),
    .keys = HY_LLAMA_KEYS "attention_bias mlp_bias ",
    .biases = HY_BIASES(0) | HY_BIASES(HY_BIAS_QKV | HY_BIAS_OUT) | HY_BIASES(HY_BIAS_MLP) |
              HY_BIASES(HY_BIAS_QKV | HY_BIAS_OUT | HY_BIAS_MLP),
};
