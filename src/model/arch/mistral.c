/* mistral.c: Mistral, and Ministral, which has a window in some layers. See arch.h. */
#include "model/arch/arch.h"

const hy_family hy_mistral = {
    .name = "mistral",
    HY_LIKE_LLAMA("Mistral"),
    .keys = HY_LLAMA_KEYS "sliding_window ",
    .has_window = true,
    .biases = HY_BIASES(0),
};

const hy_family hy_ministral = {
    .name = "ministral",
    HY_LIKE_LLAMA("Ministral"),
    .keys = HY_LLAMA_KEYS "sliding_window ",
    .has_window = true,
    .biases = HY_BIASES(0),
};
