/* phi.c: Phi-3 and Phi-4: Llama's layers, with q, k and v in one module, and gate and up in
 * another. Phi-4-mini rotates part of each head and has longrope. See arch.h. */
#include "model/arch/arch.h"

static const hy_modules modules[HY_P_KIND_COUNT] = {
    [HY_P_TOKENS] = {{"embed_tokens"}},
    [HY_P_NORM1] = {{"layers.%d.input_layernorm"}},
    [HY_P_QKV] = {{"layers.%d.self_attn.qkv_proj"}},
    [HY_P_OUT] = {{"layers.%d.self_attn.o_proj"}},
    [HY_P_NORM2] = {{"layers.%d.post_attention_layernorm"}},
    [HY_P_UP] = {{"layers.%d.mlp.gate_up_proj"}},
    [HY_P_DOWN] = {{"layers.%d.mlp.down_proj"}},
    [HY_P_FINAL_NORM] = {{"norm"}},
    [HY_P_HEAD] = {{"lm_head"}, .is_outside = true},
};

static const hy_config_field fields[] = {
    HY_USUAL_FIELDS(0, 0, 1e-5, false),
    {"partial_rotary_factor", HY_CONFIG_FACTOR, HY_AT(more.rope.share), 0},
    {"original_max_position_embeddings", HY_CONFIG_PART, 0, 0},
    HY_ROPE_FIELD(10000),
    HY_WINDOW_FIELD(0),
    HY_FUNCTION_FIELD("hidden_act"),
    {0},
};

const hy_family hy_phi3 = {
    .name = "phi3",
    .class_name = "Phi3ForCausalLM",
    .base_class = "Phi3Model",
    .prefix = "model.",
    .modules = modules,
    .ignored = hy_llama_ignored,
    .block = hy_pre_norm_block,
    .fields = fields,
    .base = &hy_llama_base,
    .has_one_window = true,
    .needs_name = true,
    .gguf = {"phi3", hy_gguf_fused_modules, .rope = HY_GGUF_LONGROPE, .is_square = true},
};
