/* hf_names.c: the names of tensors in a model's folder. See hf_names.h. */
#include "hub/hf_names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

#define MOST_PARTS 3

/* Names of a parameter's parts; %d is the layer. */
typedef struct naming {
    const char *part[MOST_PARTS];
    bool is_transposed;
    bool is_outside; /* has no prefix */
} naming;

static const naming gpt2[HY_P_KIND_COUNT] = {
    [HY_P_TOKENS] = {{"wte.weight"}},
    [HY_P_POSITIONS] = {{"wpe.weight"}},
    [HY_P_NORM1] = {{"h.%d.ln_1.weight"}},
    [HY_P_NORM1_BIAS] = {{"h.%d.ln_1.bias"}},
    [HY_P_QKV] = {{"h.%d.attn.c_attn.weight"}, .is_transposed = true},
    [HY_P_QKV_BIAS] = {{"h.%d.attn.c_attn.bias"}},
    [HY_P_OUT] = {{"h.%d.attn.c_proj.weight"}, .is_transposed = true},
    [HY_P_OUT_BIAS] = {{"h.%d.attn.c_proj.bias"}},
    [HY_P_NORM2] = {{"h.%d.ln_2.weight"}},
    [HY_P_NORM2_BIAS] = {{"h.%d.ln_2.bias"}},
    [HY_P_UP] = {{"h.%d.mlp.c_fc.weight"}, .is_transposed = true},
    [HY_P_UP_BIAS] = {{"h.%d.mlp.c_fc.bias"}},
    [HY_P_DOWN] = {{"h.%d.mlp.c_proj.weight"}, .is_transposed = true},
    [HY_P_DOWN_BIAS] = {{"h.%d.mlp.c_proj.bias"}},
    [HY_P_FINAL_NORM] = {{"ln_f.weight"}},
    [HY_P_FINAL_NORM_BIAS] = {{"ln_f.bias"}},
    [HY_P_HEAD] = {{"lm_head.weight"}, .is_outside = true},
};

#define ATTENTION(what) "layers.%d.self_attn." what
#define MLP(what) "layers.%d.mlp." what

static const naming llama[HY_P_KIND_COUNT] = {
    [HY_P_TOKENS] = {{"embed_tokens.weight"}},
    [HY_P_NORM1] = {{"layers.%d.input_layernorm.weight"}},
    [HY_P_QKV] = {{ATTENTION("q_proj.weight"), ATTENTION("k_proj.weight"),
                   ATTENTION("v_proj.weight")}},
    [HY_P_QKV_BIAS] = {{ATTENTION("q_proj.bias"), ATTENTION("k_proj.bias"),
                        ATTENTION("v_proj.bias")}},
    [HY_P_Q_NORM] = {{ATTENTION("q_norm.weight")}},
    [HY_P_K_NORM] = {{ATTENTION("k_norm.weight")}},
    [HY_P_OUT] = {{ATTENTION("o_proj.weight")}},
    [HY_P_OUT_BIAS] = {{ATTENTION("o_proj.bias")}},
    [HY_P_NORM2] = {{"layers.%d.post_attention_layernorm.weight"}},
    [HY_P_UP] = {{MLP("gate_proj.weight"), MLP("up_proj.weight")}},
    [HY_P_UP_BIAS] = {{MLP("gate_proj.bias"), MLP("up_proj.bias")}},
    [HY_P_DOWN] = {{MLP("down_proj.weight")}},
    [HY_P_DOWN_BIAS] = {{MLP("down_proj.bias")}},
    [HY_P_FINAL_NORM] = {{"norm.weight"}},
    [HY_P_HEAD] = {{"lm_head.weight"}, .is_outside = true},
};

const char *hy_hf_prefix(hy_hf_arch arch) { return arch == HY_HF_GPT2 ? "transformer." : "model."; }

/* Rows of part i of a parameter that has parts. */
static int64_t part_rows(const hy_shape *s, const hy_param *param, const naming *names, int i) {
    if (!names->part[1]) return hy_param_stored_rows(param);
    if (!names->part[2]) return s->mlp_width;
    return (int64_t)(i == 0 ? s->heads : s->kv_heads) * s->head_size;
}

/* Puts the layer's number in place of %d. */
static void write_name(const char *prefix, const char *pattern, int32_t layer,
                       char out[HY_HF_NAME_MAX]) {
    const char *at = strstr(pattern, "%d");
    if (!at) {
        snprintf(out, HY_HF_NAME_MAX, "%s%s", prefix, pattern);
    } else {
        snprintf(out, HY_HF_NAME_MAX, "%s%.*s%d%s", prefix, (int)(at - pattern), pattern, layer,
                 at + 2);
    }
}

hy_status hy_hf_list_names(hy_hf_arch arch, const char *prefix, const hy_shape *shape,
                           const hy_params *params, hy_hf_name **out, int32_t *count) {
    const naming *family = arch == HY_HF_GPT2 ? gpt2 : llama;
    hy_hf_name *list = calloc((size_t)params->count * MOST_PARTS, sizeof *list);
    *count = 0;
    *out = list;
    HY_FAIL_IF(!list, HY_ERR_MEMORY, "no memory for the names of %d tensors", params->count);
    for (int32_t p = 0; p < params->count; p++) {
        const hy_param *param = &params->list[p];
        const naming *names = &family[param->kind];
        int64_t row = 0;
        for (int i = 0; i < MOST_PARTS && names->part[i]; i++) {
            hy_hf_name *name = &list[(*count)++];
            *name = (hy_hf_name){.param = p,
                                 .row = row,
                                 .rows = part_rows(shape, param, names, i),
                                 .cols = param->ndim == 2 ? param->shape[1] : 1,
                                 .ndim = param->ndim,
                                 .is_transposed = names->is_transposed};
            write_name(names->is_outside ? "" : prefix, names->part[i], param->unit - 1,
                       name->name);
            row += name->rows;
        }
    }
    return HY_OK;
}

bool hy_hf_is_ignored(const hy_shape *shape, const char *name) {
    static const char *const endings[] = {".rotary_emb.inv_freq", ".rotary_emb.cos_cached",
                                          ".rotary_emb.sin_cached", ".attn.masked_bias"};
    for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++) {
        if (hy_has_ending(name, endings[i])) return true;
    }
    return (shape->has_tied_head && strcmp(name, "lm_head.weight") == 0) ||
           (!shape->has_rope && hy_has_ending(name, ".attn.bias"));
}
