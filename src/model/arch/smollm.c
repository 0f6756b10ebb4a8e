/* smollm.c: SmolLM3: Llama with layers without rope. See arch.h. */
#include "model/arch/arch.h"

static const hy_config_field fields[] = {
    HY_USUAL_FIELDS(HY_REQUIRED, 0, 1e-6, true),
    HY_ATTENTION_BIAS_FIELD,
    HY_MLP_BIAS_FIELD,
    HY_ROPE_FIELD(2000000),
    {"no_rope_layers", HY_CONFIG_ROPE_LAYERS, HY_AT(more.rope.layers), 4},
    {"no_rope_layer_interval", HY_CONFIG_PART, 0, 0},
    {"use_sliding_window", HY_CONFIG_PART, 0, 0},
    HY_WINDOW_FIELD(0),
    HY_FUNCTION_FIELD("hidden_act"),
    {0},
};

const hy_family hy_smollm3 = {
    .name = "smollm3",
    HY_LIKE_LLAMA("SmolLM3"),
    .fields = fields,
    .needs_name = true,
    .gguf = {"smollm3", hy_gguf_modules, .rope_period = 4, .is_paired = true}};
