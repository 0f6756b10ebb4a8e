/* olmo.c: OLMo 2: norms only after attention and mlp, and qk-norm over all heads together. See
 * arch.h. */
#include "model/arch/arch.h"

#define ATTENTION(what) "layers.%d.self_attn." what
#define MLP(what) "layers.%d.mlp." what

static const hy_modules modules[HY_P_KIND_COUNT] = {
    [HY_P_TOKENS] = {{"embed_tokens"}},
    [HY_P_QKV] = {{ATTENTION("q_proj"), ATTENTION("k_proj"), ATTENTION("v_proj")}},
    [HY_P_Q_NORM] = {{ATTENTION("q_norm")}},
    [HY_P_K_NORM] = {{ATTENTION("k_norm")}},
    [HY_P_OUT] = {{ATTENTION("o_proj")}},
    [HY_P_NORM1_AFTER] = {{"layers.%d.post_attention_layernorm"}},
    [HY_P_UP] = {{MLP("gate_proj"), MLP("up_proj")}},
    [HY_P_DOWN] = {{MLP("down_proj")}},
    [HY_P_NORM2_AFTER] = {{"layers.%d.post_feedforward_layernorm"}},
    [HY_P_FINAL_NORM] = {{"norm"}},
    [HY_P_HEAD] = {{"lm_head"}, .is_outside = true},
};

const hy_family hy_olmo2 = {
    .name = "olmo2",
    .class_name = "Olmo2ForCausalLM",
    .base_class = "Olmo2Model",
    .prefix = "model.",
    .modules = modules,
    .ignored = hy_llama_ignored,
    .block = hy_post_norm_block,
    .is_rotary = true,
    .has_options = true,
    .has_qk_norm = true,
    .biases = HY_BIASES(0) | HY_BIASES(HY_BIAS_QKV | HY_BIAS_OUT),
};
