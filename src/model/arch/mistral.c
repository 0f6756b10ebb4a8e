/* mistral.c: Mistral; Ministral, which has a window in some layers; and Ministral 3, which scales
 * its queries beyond the original context. See arch.h. */
#include "model/arch/arch.h"

static const hy_config_field fields[] = {
    HY_USUAL_FIELDS(HY_REQUIRED, 0, 1e-6, false),
    HY_ROPE_FIELD(10000),
    HY_WINDOW_FIELD(4096),
    HY_FUNCTION_FIELD("hidden_act"),
    {0},
};

static const hy_config_field fields3[] = {
    HY_USUAL_FIELDS(HY_REQUIRED, 128, 1e-5, false),
    HY_ROPE_FIELD(1000000),
    {"llama_4_scaling_beta", HY_CONFIG_PART, HY_AT(more.rope.query_beta), 0}, /* inside rope's */
    HY_WINDOW_FIELD(0),
    HY_FUNCTION_FIELD("hidden_act"),
    {0},
};

static const hy_config_field keys3[] = {
    {"attention.temperature_scale", HY_CONFIG_OPTIONAL, HY_AT(more.rope.query_beta), 0}, {0}};

const hy_family hy_mistral = {
    .name = "mistral", HY_LIKE_LLAMA("Mistral"), .fields = fields, HY_GGUF_LLAMA};
const hy_family hy_ministral = {.name = "ministral", HY_LIKE_LLAMA("Ministral"), .fields = fields};
const hy_family hy_ministral3 = {.name = "ministral3",
                                 HY_LIKE_LLAMA("Ministral3"),
                                 .fields = fields3,
                                 .has_one_window = true,
                                 .needs_name = true,
                                 .gguf = {"mistral3", hy_gguf_modules, keys3, HY_GGUF_ANY_BIASES,
                                          HY_GGUF_LLAMA3 | HY_GGUF_LONGROPE | HY_GGUF_YARN_LIMITS,
                                          .is_paired = true}};
