/* gemma.c: Gemma 2 and the text model of Gemma 3: norms before and after attention and mlp, whose
 * weights are stored less 1, a scaled embedding, and windows in most layers. See arch.h. */
#include "model/arch/arch.h"

#define ATTENTION(what) "layers.%d.self_attn." what
#define MLP(what) "layers.%d.mlp." what

static const hy_modules modules[HY_P_KIND_COUNT] = {
    [HY_P_TOKENS] = {{"embed_tokens"}},
    [HY_P_NORM1] = {{"layers.%d.input_layernorm"}},
    [HY_P_QKV] = {{ATTENTION("q_proj"), ATTENTION("k_proj"), ATTENTION("v_proj")}},
    [HY_P_Q_NORM] = {{ATTENTION("q_norm")}},
    [HY_P_K_NORM] = {{ATTENTION("k_norm")}},
    [HY_P_OUT] = {{ATTENTION("o_proj")}},
    [HY_P_NORM1_AFTER] = {{"layers.%d.post_attention_layernorm"}},
    [HY_P_NORM2] = {{"layers.%d.pre_feedforward_layernorm"}},
    [HY_P_UP] = {{MLP("gate_proj"), MLP("up_proj")}},
    [HY_P_DOWN] = {{MLP("down_proj")}},
    [HY_P_NORM2_AFTER] = {{"layers.%d.post_feedforward_layernorm"}},
    [HY_P_FINAL_NORM] = {{"norm"}},
    [HY_P_HEAD] = {{"lm_head"}, .is_outside = true},
};

#define GEMMA(word)                                                                                \
    .class_name = word "ForCausalLM", .base_class = word "Model", .prefix = "model.",              \
    .modules = modules, .ignored = hy_llama_ignored, .block = hy_sandwich_norm_block,              \
    .is_rotary = true, .has_options = true, .has_window = true,                                    \
    .biases = HY_BIASES(0) | HY_BIASES(HY_BIAS_QKV | HY_BIAS_OUT)

const hy_family hy_gemma2 = {.name = "gemma2", GEMMA("Gemma2")};
const hy_family hy_gemma3 = {.name = "gemma3_text", GEMMA("Gemma3"), .has_qk_norm = true};
