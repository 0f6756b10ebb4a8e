/* gguf.c: the names of our parameters in files of llama.cpp. See arch.h. */
#include "model/arch/arch.h"

#define USUAL                                                                                      \
    [HY_P_TOKENS] = {{"token_embd"}}, [HY_P_POSITIONS] = {{"position_embd"}},                      \
    [HY_P_NORM1] = {{"blk.%d.attn_norm"}}, [HY_P_Q_NORM] = {{"blk.%d.attn_q_norm"}},               \
    [HY_P_K_NORM] = {{"blk.%d.attn_k_norm"}}, [HY_P_OUT] = {{"blk.%d.attn_output"}},               \
    [HY_P_DOWN] = {{"blk.%d.ffn_down"}}, [HY_P_FINAL_NORM] = {{"output_norm"}},                    \
    [HY_P_HEAD] = {{"output"}}
#define NORMS                                                                                      \
    [HY_P_NORM1_AFTER] = {{"blk.%d.post_attention_norm"}}, [HY_P_NORM2] = {{"blk.%d.ffn_norm"}},   \
    [HY_P_NORM2_AFTER] = {{"blk.%d.post_ffw_norm"}}
#define QKV_APART [HY_P_QKV] = {{"blk.%d.attn_q", "blk.%d.attn_k", "blk.%d.attn_v"}}

const hy_modules hy_gguf_modules[HY_P_KIND_COUNT] = {
    USUAL, NORMS, QKV_APART, [HY_P_UP] = {{"blk.%d.ffn_gate", "blk.%d.ffn_up"}}};

const hy_modules hy_gguf_fused_modules[HY_P_KIND_COUNT] = {
    USUAL, NORMS, [HY_P_QKV] = {{"blk.%d.attn_qkv"}}, [HY_P_UP] = {{"blk.%d.ffn_up"}}};

const hy_modules hy_gguf_plain_modules[HY_P_KIND_COUNT] = {
    USUAL, NORMS, QKV_APART, [HY_P_UP] = {{"blk.%d.ffn_up"}}};

const hy_modules hy_gguf_linear_modules[HY_P_KIND_COUNT] = {
    USUAL,
    QKV_APART,
    [HY_P_NORM2] = {{"blk.%d.post_attention_norm"}},
    [HY_P_UP] = {{"blk.%d.ffn_gate", "blk.%d.ffn_up"}},
    [HY_P_LINEAR_QKV] = {{"blk.%d.attn_qkv"}},
    [HY_P_LINEAR_Z] = {{"blk.%d.attn_gate"}},
    [HY_P_LINEAR_BA] = {{"blk.%d.ssm_beta", "blk.%d.ssm_alpha"}},
    [HY_P_CONV] = {{"blk.%d.ssm_conv1d"}},
    [HY_P_A_LOG] = {{"blk.%d.ssm_a"}, .is_bare = true},
    [HY_P_DT_BIAS] = {{"blk.%d.ssm_dt.bias"}, .is_bare = true},
    [HY_P_LINEAR_NORM] = {{"blk.%d.ssm_norm"}},
    [HY_P_LINEAR_OUT] = {{"blk.%d.ssm_out"}},
};
