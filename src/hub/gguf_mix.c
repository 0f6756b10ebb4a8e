/* gguf_mix.c: see gguf_mix.h. The rules are those of llama_tensor_get_type in llama.cpp, for the
 * architectures and mixes that we write. */
#include "hub/gguf_mix.h"

#include <stdio.h>
#include <string.h>

static const hy_gguf_mix mixes[] = {
    {"f32", HY_BLOCK_F32, 0, false},    {"f16", HY_BLOCK_F16, 1, false},
    {"bf16", HY_BLOCK_BF16, 32, false}, {"q8_0", HY_BLOCK_Q8_0, 7, false},
    {"q6_k", HY_BLOCK_Q6_K, 18, false}, {"q5_k_m", HY_BLOCK_Q5_K, 17, true},
    {"q5_0", HY_BLOCK_Q5_0, 8, false},  {"q4_k_m", HY_BLOCK_Q4_K, 15, true},
    {"q4_0", HY_BLOCK_Q4_0, 2, false},
};

const hy_gguf_mix *hy_gguf_mix_at(size_t i) {
    return i < sizeof mixes / sizeof *mixes ? &mixes[i] : NULL;
}

const hy_gguf_mix *hy_gguf_mix_find(const char *name) {
    for (size_t i = 0; i < sizeof mixes / sizeof *mixes; i++) {
        if (strcmp(mixes[i].name, name) == 0) return &mixes[i];
    }
    return NULL;
}

static bool is_matrix(const char *name, int64_t rows) {
    size_t length = strlen(name);
    return rows > 1 && length >= 6 && strcmp(name + length - 6, "weight") == 0 &&
           !strstr(name, "_norm.weight") && !strstr(name, "ssm_conv1d.weight") &&
           strcmp(name, "position_embd.weight") != 0;
}

static bool is_cut_by(hy_block_type type, int64_t cols) {
    return cols % hy_block_traits_of(type)->elements == 0;
}

/* The first and the last eighth of the layers, and every third between them. */
static bool has_more_bits(int32_t layer, int32_t layers) {
    return layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2;
}

/* llama.cpp gives value projections of models that it counts as 70B at least Q5_K. */
static bool is_70b(const hy_gguf_mix_model *model) {
    if (model->layers != 80) return false;
    return strcmp(model->architecture, "qwen2") == 0 ||
           (strcmp(model->architecture, "llama") == 0 && model->heads != model->kv_heads);
}

static hy_block_type wanted_type(const hy_gguf_mix *mix, const hy_gguf_mix_model *model,
                                 const char *name, int64_t cols) {
    hy_block_type type = mix->type;
    int32_t layer = 0;
    if (sscanf(name, "blk.%d.", &layer) != 1) layer = 0;
    bool is_larger = mix->has_more_bits && has_more_bits(layer, model->layers);
    if (strcmp(name, "output.weight") == 0 ||
        (model->is_tied && strcmp(name, "token_embd.weight") == 0)) {
        return type == HY_BLOCK_Q8_0 || !is_cut_by(type, cols) ? HY_BLOCK_Q8_0 : HY_BLOCK_Q6_K;
    }
    if (strstr(name, "attn_v.weight") || strstr(name, "attn_qkv.weight")) {
        if (is_larger) return HY_BLOCK_Q6_K;
        return is_70b(model) && type == HY_BLOCK_Q4_K ? HY_BLOCK_Q5_K : type;
    }
    return strstr(name, "ffn_down") && is_larger ? HY_BLOCK_Q6_K : type;
}

hy_block_type hy_gguf_mix_type(const hy_gguf_mix *mix, const hy_gguf_mix_model *model,
                               const char *name, int64_t rows, int64_t cols) {
    if (!is_matrix(name, rows)) return HY_BLOCK_F32;
    if (hy_block_traits_of(mix->type)->elements == 1) return mix->type;
    hy_block_type type = wanted_type(mix, model, name, cols);
    if (is_cut_by(type, cols)) return type;
    if (type == HY_BLOCK_Q4_K) type = HY_BLOCK_Q5_0;
    if (type == HY_BLOCK_Q5_K) type = HY_BLOCK_Q5_1;
    if (type == HY_BLOCK_Q6_K) type = HY_BLOCK_Q8_0;
    return is_cut_by(type, cols) ? type : HY_BLOCK_F16;
}

/* ---- larger types ---------------------------------------------------------------------------- */

static const struct step {
    hy_block_type from, to;
    double left; /* of the error */
} steps[] = {
    {HY_BLOCK_Q4_0, HY_BLOCK_Q5_0, 0.25},      {HY_BLOCK_Q4_1, HY_BLOCK_Q5_1, 0.25},
    {HY_BLOCK_Q5_0, HY_BLOCK_Q8_0, 0.25 / 16}, {HY_BLOCK_Q5_1, HY_BLOCK_Q8_0, 0.25 / 16},
    {HY_BLOCK_Q4_K, HY_BLOCK_Q5_K, 0.25},      {HY_BLOCK_Q5_K, HY_BLOCK_Q6_K, 0.25},
    {HY_BLOCK_Q6_K, HY_BLOCK_Q8_0, 0.25 / 4},
};

/* The step of a tensor with the largest gain for each of at most `bytes`; NULL: none. */
static const struct step *find_step(const hy_tensor_costs *costs, uint64_t bytes, int32_t *tensor,
                                    uint64_t *added) {
    const struct step *best = NULL;
    double most = 0;
    for (int32_t i = 0; i < costs->count; i++) {
        const hy_tensor_cost *t = &costs->list[i];
        for (size_t k = 0; k < sizeof steps / sizeof *steps && t->cost.signal > 0; k++) {
            if (steps[k].from != t->type) continue;
            uint64_t more =
                hy_blocks_bytes(steps[k].to, t->elements) - hy_blocks_bytes(t->type, t->elements);
            double gain = t->cost.error / t->cost.signal * (1 - steps[k].left) / (double)more;
            if (more > bytes || gain <= most) continue;
            most = gain;
            best = &steps[k];
            *tensor = i;
            *added = more;
        }
    }
    return best;
}

int32_t hy_gguf_raise(hy_tensor_costs *costs, uint64_t bytes) {
    int32_t tensor = 0, count = 0;
    uint64_t added = 0;
    for (const struct step *s; (s = find_step(costs, bytes, &tensor, &added)); bytes -= added) {
        costs->list[tensor].type = s->to;
        costs->list[tensor].cost.error *= s->left;
        count++;
    }
    return count;
}
