/* gpt2.c: GPT-2. Its files store matrices as (in, out), and q, k and v as one. See arch.h. */
#include "model/arch/arch.h"

static const hy_modules modules[HY_P_KIND_COUNT] = {
    [HY_P_TOKENS] = {{"wte"}},
    [HY_P_POSITIONS] = {{"wpe"}},
    [HY_P_NORM1] = {{"h.%d.ln_1"}},
    [HY_P_QKV] = {{"h.%d.attn.c_attn"}, .is_transposed = true},
    [HY_P_OUT] = {{"h.%d.attn.c_proj"}, .is_transposed = true},
    [HY_P_NORM2] = {{"h.%d.ln_2"}},
    [HY_P_UP] = {{"h.%d.mlp.c_fc"}, .is_transposed = true},
    [HY_P_DOWN] = {{"h.%d.mlp.c_proj"}, .is_transposed = true},
    [HY_P_FINAL_NORM] = {{"ln_f"}},
    [HY_P_HEAD] = {{"lm_head"}, .is_outside = true},
};

static const char *const ignored[] = {".attn.bias", ".attn.masked_bias", NULL}; /* masks */

const hy_family hy_gpt2 = {
    .name = "gpt2",
    .class_name = "GPT2LMHeadModel",
    .base_class = "GPT2Model",
    .prefix = "transformer.",
    .modules = modules,
    .block = hy_pre_norm_block,
    .keys = " n_layer n_embd n_head n_inner n_positions n_ctx layer_norm_epsilon"
            " activation_function ",
    .ignored = ignored,
    .biases = HY_BIASES(HY_BIAS_QKV | HY_BIAS_OUT | HY_BIAS_MLP),
};
