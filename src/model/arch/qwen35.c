/* qwen35.c: Qwen3.5 and Qwen3.6 without experts: linear attention in most layers, and gates of the
 * attention in the others. Norms are stored less 1, but for that of linear attention. See
 * arch.h. */
#include "model/arch/arch.h"

static const hy_modules modules[HY_P_KIND_COUNT] = {
    HY_USUAL_MODULES,
    HY_GATED_MLP_MODULES,
    [HY_P_NORM1] = {{"layers.%d.input_layernorm"}},
    [HY_P_NORM2] = {{"layers.%d.post_attention_layernorm"}},
    [HY_P_LINEAR_QKV] = {{"layers.%d.linear_attn.in_proj_qkv"}},
    [HY_P_LINEAR_Z] = {{"layers.%d.linear_attn.in_proj_z"}},
    [HY_P_LINEAR_BA] = {{"layers.%d.linear_attn.in_proj_b", "layers.%d.linear_attn.in_proj_a"}},
    [HY_P_CONV] = {{"layers.%d.linear_attn.conv1d"}, .is_kernel = true},
    [HY_P_A_LOG] = {{"layers.%d.linear_attn.A_log"}, .is_bare = true},
    [HY_P_DT_BIAS] = {{"layers.%d.linear_attn.dt_bias"}, .is_bare = true},
    [HY_P_LINEAR_NORM] = {{"layers.%d.linear_attn.norm"}},
    [HY_P_LINEAR_OUT] = {{"layers.%d.linear_attn.out_proj"}},
};

static const hy_config_field fields[] = {
    HY_USUAL_FIELDS(HY_REQUIRED, 256, 1e-6, false),
    HY_ATTENTION_BIAS_FIELD,
    {"partial_rotary_factor", HY_CONFIG_FACTOR, HY_AT(more.rope.share), 0.25},
    HY_ROPE_FIELD(10000),
    {"linear_num_key_heads", HY_CONFIG_SIZE, HY_AT(more.linear.key_heads), 16},
    {"linear_num_value_heads", HY_CONFIG_SIZE, HY_AT(more.linear.heads), 32},
    {"linear_key_head_dim", HY_CONFIG_SIZE, HY_AT(more.linear.key_dim), 128},
    {"linear_value_head_dim", HY_CONFIG_SIZE, HY_AT(more.linear.value_dim), 128},
    {"linear_conv_kernel_dim", HY_CONFIG_SIZE, HY_AT(more.linear.taps), 4},
    {"full_attention_interval", HY_CONFIG_INTERVAL, HY_AT(more.linear.layers), 4},
    {"layer_types", HY_CONFIG_LINEARS, HY_AT(more.linear.layers), 0},
    {"hidden_act", HY_CONFIG_SILU, 0, 0},
    {0},
};

static const hy_shape base = {.is_rms = true,
                              .has_rope = true,
                              .is_gated = true,
                              .has_qk_norm = true,
                              .more = {.norm_offset = 1, .has_gates = true}};

static const char *const ignored[] = {".rotary_emb.inv_freq", "mtp.", "model.visual.", NULL};

static const hy_config_field keys[] = {
    {"ssm.conv_kernel", HY_CONFIG_SIZE, HY_AT(more.linear.taps), HY_REQUIRED},
    {"ssm.state_size", HY_CONFIG_SIZE, HY_AT(more.linear.key_dim), HY_REQUIRED},
    {"ssm.group_count", HY_CONFIG_SIZE, HY_AT(more.linear.key_heads), HY_REQUIRED},
    {"ssm.time_step_rank", HY_CONFIG_SIZE, HY_AT(more.linear.heads), HY_REQUIRED},
    {"full_attention_interval", HY_CONFIG_INTERVAL, HY_AT(more.linear.layers), 4},
    {0}};

const hy_family hy_qwen35 = {.name = "qwen3_5_text",
                             .class_name = "Qwen3_5ForCausalLM",
                             .base_class = "Qwen3_5TextModel",
                             .prefix = "model.",
                             .modules = modules,
                             .block = hy_pre_norm_block,
                             .fields = fields,
                             .base = &base,
                             .ignored = ignored,
                             .needs_name = true,
                             .gguf = {"qwen35", hy_gguf_linear_modules, keys}};
