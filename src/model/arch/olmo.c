/* olmo.c: OLMo 2 and 3: norms only after attention and mlp, and qk-norm over all heads together.
 * OLMo 3 has windows in three of four layers, which keep their unscaled rope. See arch.h. */
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

static const hy_config_field fields2[] = {
    HY_USUAL_FIELDS(0, 0, 1e-5, false),
    HY_ATTENTION_BIAS_FIELD,
    HY_ROPE_FIELD(10000),
    HY_FUNCTION_FIELD("hidden_act"),
    {0},
};

static const hy_config_field fields3[] = {
    HY_USUAL_FIELDS(0, 0, 1e-5, false),
    HY_ATTENTION_BIAS_FIELD,
    HY_ROPE_FIELD(500000),
    HY_WINDOW_FIELD(4096),
    HY_FUNCTION_FIELD("hidden_act"),
    {0},
};

#define OLMO_BASE                                                                                  \
    .is_rms = true, .has_rope = true, .is_gated = true, .has_qk_norm = true,                       \
    .more.has_whole_qk_norm = true

static const hy_shape base2 = {OLMO_BASE};
static const hy_shape base3 = {OLMO_BASE, .more.rope.scales_full_only = true};

#define OLMO(word)                                                                                 \
    .class_name = word "ForCausalLM", .base_class = word "Model", .prefix = "model.",              \
    .modules = modules, .ignored = hy_llama_ignored, .block = hy_post_norm_block,                  \
    .needs_name = true

const hy_family hy_olmo2 = {.name = "olmo2", OLMO("Olmo2"), .fields = fields2, .base = &base2};
const hy_family hy_olmo3 = {
    .name = "olmo3", OLMO("Olmo3"), .fields = fields3, .base = &base3, .window_period = 4};
