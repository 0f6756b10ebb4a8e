/* qwen.c: Qwen2, with biases on q, k and v, and Qwen3, with qk-norm. See arch.h. */
#include "model/arch/arch.h"

#define QWEN_FIELDS                                                                                \
    HY_ROPE_FIELD(10000), {"use_sliding_window", HY_CONFIG_PART, 0, 0},                            \
        {"max_window_layers", HY_CONFIG_PART, 0, 28}, HY_WINDOW_FIELD(4096),                       \
        HY_FUNCTION_FIELD("hidden_act"), {                                                         \
        0                                                                                          \
    }

static const hy_config_field fields2[] = {HY_USUAL_FIELDS(HY_REQUIRED, 0, 1e-6, false),
                                          QWEN_FIELDS};
static const hy_config_field fields3[] = {HY_USUAL_FIELDS(HY_REQUIRED, HY_REQUIRED, 1e-6, false),
                                          HY_ATTENTION_BIAS_FIELD, QWEN_FIELDS};

static const hy_shape base2 = {
    .is_rms = true, .has_rope = true, .is_gated = true, .has_qkv_bias = true};
static const hy_shape base3 = {
    .is_rms = true, .has_rope = true, .is_gated = true, .has_qk_norm = true};

const hy_family hy_qwen2 = {.name = "qwen2",
                            HY_NAMED_AS_LLAMA("Qwen2"),
                            .fields = fields2,
                            .base = &base2,
                            .gguf = {"qwen2", hy_gguf_modules, .is_square = true}};
const hy_family hy_qwen3 = {.name = "qwen3",
                            HY_NAMED_AS_LLAMA("Qwen3"),
                            .fields = fields3,
                            .base = &base3,
                            .gguf = {"qwen3", hy_gguf_modules}};
