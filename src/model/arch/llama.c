/* llama.c: Llama 2 and 3, and the names that later families took from it. See arch.h. */
#include "model/arch/arch.h"

const hy_modules hy_llama_modules[HY_P_KIND_COUNT] = {
    HY_USUAL_MODULES,
    HY_GATED_MLP_MODULES,
    [HY_P_NORM1] = {{"layers.%d.input_layernorm"}},
    [HY_P_NORM2] = {{"layers.%d.post_attention_layernorm"}},
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

const hy_family hy_llama = {
    .name = "llama", HY_LIKE_LLAMA("Llama"), .fields = fields, HY_GGUF_LLAMA};
