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

const hy_shape hy_llama_base = {.is_rms = true, .has_rope = true, .is_gated = true};

static const hy_config_field fields[] = {
    HY_USUAL_FIELDS(0, 0, 1e-6, false),
    HY_ATTENTION_BIAS_FIELD,
    HY_MLP_BIAS_FIELD,
    HY_ROPE_FIELD(10000),
    HY_FUNCTION_FIELD("hidden_act"),
    {0},
};

const hy_family hy_llama = {.name = "llama", HY_LIKE_LLAMA("Llama"), .fields = fields};
