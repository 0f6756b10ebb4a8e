/* granite.c: Granite 3, which is Llama with scaled embedding, residual, scores and logits; and the
 * dense models of Granite 4, whose mlp is called shared. See arch.h. */
#include "model/arch/arch.h"

static const hy_modules modules4[HY_P_KIND_COUNT] = {
    HY_USUAL_MODULES,
    [HY_P_NORM1] = {{"layers.%d.input_layernorm"}},
    [HY_P_NORM2] = {{"layers.%d.post_attention_layernorm"}},
    [HY_P_UP] = {{"layers.%d.shared_mlp.input_linear"}},
    [HY_P_DOWN] = {{"layers.%d.shared_mlp.output_linear"}},
};

#define GRANITE_FIELDS                                                                             \
    HY_ATTENTION_BIAS_FIELD, HY_ROPE_FIELD(10000), HY_FUNCTION_FIELD("hidden_act"),                \
        {"embedding_multiplier", HY_CONFIG_FACTOR, HY_AT(more.embed_scale), 0},                    \
        {"residual_multiplier", HY_CONFIG_FACTOR, HY_AT(more.residual_scale), 0},                  \
        {"attention_multiplier", HY_CONFIG_NUMBER, HY_AT(more.attention_scale), 1}, {              \
        "logits_scaling", HY_CONFIG_FACTOR, HY_AT(more.logit_divisor), 0                           \
    }

static const hy_config_field fields3[] = {
    HY_USUAL_FIELDS(0, 0, 1e-6, false),
    HY_MLP_BIAS_FIELD,
    GRANITE_FIELDS,
    {0},
};

static const hy_config_field fields4[] = {
    HY_USUAL_FIELDS(0, 0, 1e-6, false),
    /* of the only mlp; intermediate_size is that of experts, which it does not have */
    {"shared_intermediate_size", HY_CONFIG_SIZE, HY_AT(mlp_width), 1024},
    GRANITE_FIELDS,
    {"layer_types", HY_CONFIG_ATTENTIONS, 0, 0},
    {"num_local_experts", HY_CONFIG_FIXED, 0, 0},
    {"mamba_n_heads", HY_CONFIG_UNUSED, 0, 1},
    {"mamba_d_head", HY_CONFIG_PART, 0, 0},
    {"position_embedding_type", HY_CONFIG_POSITIONS, HY_AT(more.rope.layers), 0},
    {0},
};

static const hy_config_field keys[] = {
    {"attention.scale", HY_CONFIG_NUMBER, HY_AT(more.attention_scale), 0},
    {"embedding_scale", HY_CONFIG_FACTOR, HY_AT(more.embed_scale), 1},
    {"residual_scale", HY_CONFIG_FACTOR, HY_AT(more.residual_scale), 1},
    {"logit_scale", HY_CONFIG_FACTOR, HY_AT(more.logit_divisor), 1},
    {"rope.scaling.finetuned", HY_CONFIG_POSITIONS, HY_AT(more.rope.layers), 1},
    {0},
};

#define GRANITE_GGUF                                                                               \
    .gguf = {"granite",                                                                            \
             hy_gguf_modules,                                                                      \
             keys,                                                                                 \
             HY_GGUF_ANY_BIASES,                                                                   \
             HY_GGUF_LLAMA3 | HY_GGUF_LONGROPE,                                                    \
             .is_paired = true}

const hy_family hy_granite = {.name = "granite",
                              HY_LIKE_LLAMA("Granite"),
                              .fields = fields3,
                              .needs_name = true,
                              GRANITE_GGUF};
const hy_family hy_granite4 = {
    .name = "granitemoehybrid",
    .class_name = "GraniteMoeHybridForCausalLM",
    .base_class = "GraniteMoeHybridModel",
    .prefix = "model.",
    .modules = modules4,
    .ignored = hy_llama_ignored,
    .block = hy_pre_norm_block,
    .fields = fields4,
    .base = &hy_llama_base,
    .needs_name = true,
    GRANITE_GGUF,
};
