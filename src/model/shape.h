/* shape.h: the sizes and options of a transformer.
 *
 * One struct covers GPT-2 (layernorm, learned positions, gelu, biases), Llama 2 and 3, Mistral,
 * Qwen2 and Qwen3 (rmsnorm, rope, swiglu, grouped heads, qk-norm, sliding window). In a checked
 * shape, hy_shape_complete has replaced all zeros that mean "default". */
#pragma once

#include <stdbool.h>

#include "hybrid_types.h"

#define HY_SLIDING_LAYERS_MAX 512

/* The matrices of a block that can have a low-rank adapter, with their usual names. */
typedef enum hy_adapter_part {
    HY_ADAPT_Q = 1,
    HY_ADAPT_K = 2,
    HY_ADAPT_V = 4,
    HY_ADAPT_O = 8,
    HY_ADAPT_GATE = 16, /* gated mlps only */
    HY_ADAPT_UP = 32,
    HY_ADAPT_DOWN = 64,
    HY_ADAPT_ALL = 127
} hy_adapter_part;

#define HY_ADAPTER_RANK_MAX 1024
#define HY_ADAPTER_ALPHA_MAX 1000000

/* Low-rank adapters: out = x W' + scale (x A') B', with A (rank, in) and B (out, rank). */
typedef struct hy_adapter {
    int32_t rank;  /* 0: there are none */
    int32_t parts; /* hy_adapter_part bits that the shape has */
    double scale;  /* alpha / rank, or with is_root_scaled alpha / sqrt(rank) */
    double alpha;
    bool is_root_scaled; /* rsLoRA */
    double dropout;      /* of x, in training */
} hy_adapter;

/* The transformers architecture of a shape (model/arch). Files contain names, never these
 * values. */
typedef enum hy_arch {
    HY_ARCH_NONE, /* not set; in a completed shape: there is none, and it cannot be exported */
    HY_ARCH_GPT2,
    HY_ARCH_LLAMA,
    HY_ARCH_MISTRAL,
    HY_ARCH_MINISTRAL,
    HY_ARCH_QWEN2,
    HY_ARCH_QWEN3,
    HY_ARCH_COUNT
} hy_arch;

typedef struct hy_shape {
    hy_arch arch;      /* used for the export; NONE: follows from the rest */
    int32_t layers;    /* L */
    int32_t width;     /* C */
    int32_t heads;     /* H */
    int32_t kv_heads;  /* K; 0: as heads */
    int32_t head_size; /* D; 0: C / H */
    int32_t mlp_width; /* F; 0: 4 C */
    int32_t vocab;     /* V */
    int32_t context;   /* longest sequence */
    bool is_rms;       /* rmsnorm; else layernorm with bias */
    bool has_rope;     /* else learned positions */
    bool is_gated;     /* swiglu; else gelu */
    bool has_qkv_bias, has_proj_bias, has_qk_norm, has_tied_head;
    /* Exceptions to has_proj_bias: no bias at the attention output; none in the MLP. */
    bool lacks_out_bias, lacks_mlp_bias;
    double norm_eps;
    double rope_theta;
    bool has_llama3_rope;
    double rope_factor, rope_low_freq, rope_high_freq;
    int32_t rope_original_context;
    int32_t sliding_window; /* tokens a token sees, itself included; 0: all */
    /* The layers with the window: one letter per layer, s (sliding) or f (full), repeated over
     * the layers; "": all. */
    char sliding_layers[HY_SLIDING_LAYERS_MAX];
    double init_std;
    hy_adapter adapter;
} hy_shape;

/* Fills in derived values and checks the shape: HY_ERR_INPUT names the wrong key, its value and
 * what is accepted. An architecture that does not support the shape is replaced by one that
 * does. */
hy_status hy_shape_complete(hy_shape *shape);

static inline bool hy_shape_out_bias(const hy_shape *s) {
    return s->has_proj_bias && !s->lacks_out_bias;
}

static inline bool hy_shape_mlp_bias(const hy_shape *s) {
    return s->has_proj_bias && !s->lacks_mlp_bias;
}

/* Number of tokens that a token of this layer sees, including itself; 0: all. */
int32_t hy_shape_window(const hy_shape *shape, int32_t layer);

/* Width of a packed qkv row: (H + 2K) D. */
static inline int32_t hy_shape_qkv(const hy_shape *s) {
    return (s->heads + 2 * s->kv_heads) * s->head_size;
}

/* Rows of the token table and the head in memory: a large vocabulary is rounded up, because
 * tensor cores need aligned rows of logits (GPT-2's 50,257 becomes 50,304). */
static inline int32_t hy_shape_vocab_rows(const hy_shape *s) {
    return s->vocab < 1024 ? s->vocab : (s->vocab + 63) / 64 * 64;
}

/* The parts that exist in such a shape. If q, k and v are one module (GPT-2), all of them have
 * an adapter or none. */
static inline int32_t hy_shape_adapter_parts(const hy_shape *s) {
    return s->is_gated ? HY_ADAPT_ALL : HY_ADAPT_ALL & ~HY_ADAPT_GATE;
}
bool hy_shape_packs_adapter(const hy_shape *shape);

/* Fills table (seq, D/2, 2) with cosine and sine of every position and frequency. */
void hy_shape_rope_table(const hy_shape *shape, int32_t seq, float *table);
