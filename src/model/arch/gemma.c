/* gemma.c: Gemma 2 and the text model of Gemma 3: norms before and after attention and mlp, whose
 * weights are stored less 1, a scaled embedding, and windows in most layers. See arch.h. */
#include <math.h>

#include "model/arch/arch.h"

static const hy_modules modules[HY_P_KIND_COUNT] = {
    HY_USUAL_MODULES,
    HY_GATED_MLP_MODULES,
    [HY_P_NORM1] = {{"layers.%d.input_layernorm"}},
    [HY_P_NORM1_AFTER] = {{"layers.%d.post_attention_layernorm"}},
    [HY_P_NORM2] = {{"layers.%d.pre_feedforward_layernorm"}},
    [HY_P_NORM2_AFTER] = {{"layers.%d.post_feedforward_layernorm"}},
};

#define GEMMA_FIELDS                                                                               \
    HY_ATTENTION_BIAS_FIELD, HY_FUNCTION_FIELD("hidden_activation"),                               \
        {"query_pre_attn_scalar", HY_CONFIG_COUNT, HY_AT(more.attention_divisor), 256},            \
        HY_WINDOW_FIELD(4096)
static const hy_config_field fields2[] = {
    HY_USUAL_FIELDS(HY_REQUIRED, 256, 1e-6, true),
    GEMMA_FIELDS,
    HY_ROPE_FIELD(10000),
    {"attn_logit_softcapping", HY_CONFIG_OPTIONAL, HY_AT(more.attention_softcap), 50},
    {"final_logit_softcapping", HY_CONFIG_OPTIONAL, HY_AT(more.logit_softcap), 30},
    {0},
};

/* The files of the larger models leave out what the class has as its default. */
static const hy_config_field fields3[] = {
    {"vocab_size", HY_CONFIG_SIZE, HY_AT(vocab), 262208},
    {"initializer_range", HY_CONFIG_STD, HY_AT(init_std), 0.02},
    {"num_hidden_layers", HY_CONFIG_SIZE, HY_AT(layers), HY_REQUIRED},
    {"hidden_size", HY_CONFIG_SIZE, HY_AT(width), HY_REQUIRED},
    {"num_attention_heads", HY_CONFIG_SIZE, HY_AT(heads), 8},
    {"num_key_value_heads", HY_CONFIG_SIZE, HY_AT(kv_heads), 4},
    {"head_dim", HY_CONFIG_SIZE, HY_AT(head_size), 256},
    {"intermediate_size", HY_CONFIG_SIZE, HY_AT(mlp_width), HY_REQUIRED},
    {"max_position_embeddings", HY_CONFIG_SIZE, HY_AT(context), 131072},
    {"rms_norm_eps", HY_CONFIG_NUMBER, HY_AT(norm_eps), 1e-6},
    {"tie_word_embeddings", HY_CONFIG_SWITCH, HY_AT(has_tied_head), true},
    {"rope_local_base_freq", HY_CONFIG_NUMBER, HY_AT(more.rope.local_theta), 10000},
    {"sliding_window_pattern", HY_CONFIG_PART, 0, 0},
    GEMMA_FIELDS,
    HY_ROPE_FIELD(1000000),
    {"final_logit_softcapping", HY_CONFIG_OPTIONAL, HY_AT(more.logit_softcap), 0},
    {0},
};

#define GEMMA_BASE                                                                                 \
    .is_rms = true, .has_rope = true, .is_gated = true, .more.norm_offset = 1,                     \
    .more.function = HY_MLP_GELU_TANH

static const hy_shape base2 = {GEMMA_BASE};
static const hy_shape base3 = {GEMMA_BASE, .has_qk_norm = true, .more.rope.scales_full_only = true};

static void finish(hy_shape *s) { s->more.embed_scale = sqrt(s->width); }

#define GEMMA(word)                                                                                \
    .class_name = word "ForCausalLM", .base_class = word "Model", .prefix = "model.",              \
    .modules = modules, .ignored = hy_llama_ignored, .block = hy_sandwich_norm_block,              \
    .finish = finish, .needs_name = true

static const hy_config_field keys2[] = {
    {"attn_logit_softcapping", HY_CONFIG_NUMBER, HY_AT(more.attention_softcap), 50},
    {"final_logit_softcapping", HY_CONFIG_NUMBER, HY_AT(more.logit_softcap), 30},
    {0}};
static const hy_config_field keys3[] = {
    {"final_logit_softcapping", HY_CONFIG_OPTIONAL, HY_AT(more.logit_softcap), 0}, {0}};

const hy_family hy_gemma2 = {.name = "gemma2",
                             GEMMA("Gemma2"),
                             .fields = fields2,
                             .base = &base2,
                             .window_period = 2,
                             .gguf = {"gemma2", hy_gguf_modules, keys2, .has_windows = true,
                                      .lacks_head = true, .largest = 46}};
const hy_family hy_gemma3 = {.name = "gemma3_text",
                             GEMMA("Gemma3"),
                             .fields = fields3,
                             .base = &base3,
                             .window_period = 6,
                             .gguf = {"gemma3", hy_gguf_modules, keys3, .rope = HY_GGUF_LOCAL_BASE,
                                      .has_windows = true, .largest = 62}};
