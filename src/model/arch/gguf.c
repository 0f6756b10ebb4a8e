/* gguf.c: the names of our parameters in files of llama.cpp. See arch.h. */
#include "model/arch/arch.h"

#define USUAL                                                                                      \
    [HY_P_TOKENS] = {{"token_embd"}}, [HY_P_POSITIONS] = {{"position_embd"}},                      \
    [HY_P_NORM1] = {{"blk.%d.attn_norm"}}, [HY_P_Q_NORM] = {{"blk.%d.attn_q_norm"}},               \
    [HY_P_K_NORM] = {{"blk.%d.attn_k_norm"}}, [HY_P_OUT] = {{"blk.%d.attn_output"}},               \
    [HY_P_NORM1_AFTER] = {{"blk.%d.post_attention_norm"}}, [HY_P_NORM2] = {{"blk.%d.ffn_norm"}},   \
    [HY_P_DOWN] = {{"blk.%d.ffn_down"}}, [HY_P_NORM2_AFTER] = {{"blk.%d.post_ffw_norm"}},          \
    [HY_P_FINAL_NORM] = {{"output_norm"}}, [HY_P_HEAD] = {{"output"}}
#define QKV_APART [HY_P_QKV] = {{"blk.%d.attn_q", "blk.%d.attn_k", "blk.%d.attn_v"}}

const hy_modules hy_gguf_modules[HY_P_KIND_COUNT] = {
    USUAL, QKV_APART, [HY_P_UP] = {{"blk.%d.ffn_gate", "blk.%d.ffn_up"}}};

const hy_modules hy_gguf_fused_modules[HY_P_KIND_COUNT] = {
    USUAL, [HY_P_QKV] = {{"blk.%d.attn_qkv"}}, [HY_P_UP] = {{"blk.%d.ffn_up"}}};

const hy_modules hy_gguf_plain_modules[HY_P_KIND_COUNT] = {
    USUAL, QKV_APART, [HY_P_UP] = {{"blk.%d.ffn_up"}}};
