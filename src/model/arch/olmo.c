/* olmo.c: OLMo 2 and 3: norms only after attention and mlp, and qk-norm over all heads together.
 * OLMo 3 has windows in three of four layers, which keep their unscaled rope. See arch.h. */
#include "model/arch/arch.h"

static const hy_modules modules[HY_P_KIND_COUNT] = {
    HY_USUAL_MODULES,
    HY_GATED_MLP_MODULES,
    [HY_P_NORM1_AFTER] = {{"layers.%d.post_attention_layernorm"}},
    [HY_P_NORM2_AFTER] = {{"layers.%d.post_feedforward_layernorm"}},
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
    .needs_name = true,                                                                            \
    .gguf = {"olmo2", hy_gguf_modules, .has_windows = true, .needs_head = true, .is_square = true}

const hy_family hy_olmo2 = {.name = "olmo2", OLMO("Olmo2"), .fields = fields2, .base = &base2};
const hy_family hy_olmo3 = {
    .name = "olmo3", OLMO("Olmo3"), .fields = fields3, .base = &base3, .window_period = 4};
