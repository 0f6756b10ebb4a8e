/* qwen.c: Qwen2, with biases on q, k and v, and Qwen3, with qk-norm. See arch.h. */
#include "model/arch/arch.h"

#define KEYS HY_LLAMA_KEYS "sliding_window use_sliding_window max_window_layers "

const hy_family hy_qwen2 = {
    .name = "qwen2",
    HY_LIKE_LLAMA("Qwen2"),
    .keys = KEYS,
    .has_window = true,
    .biases = HY_BIASES(HY_BIAS_QKV),
};

const hy_family hy_qwen3 = {
    .name = "qwen3",
    HY_LIKE_LLAMA("Qwen3"),
    .keys = KEYS "attention_bias ",
    .has_qk_norm = true,
    .has_window = true,
    .biases = HY_BIASES(0) | HY_BIASES(HY_BIAS_QKV | HY_BIAS_OUT),
};
