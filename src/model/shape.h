/* shape.h: the sizes and options of a transformer.
 *
 * One struct covers all families of model/arch, from GPT-2 (layernorm, learned positions, gelu,
 * biases) to Llama (rmsnorm, rope, swiglu, grouped heads); `more` has what few of them use. In a
 * checked shape, hy_shape_complete has replaced all zeros that mean "default". */
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
    HY_ADAPT_LINEAR_QKV = 128, /* linear attention */
    HY_ADAPT_LINEAR_Z = 256,
    HY_ADAPT_LINEAR_B = 512,
    HY_ADAPT_LINEAR_A = 1024,
    HY_ADAPT_LINEAR_OUT = 2048,
    HY_ADAPT_LINEAR = 0xf80,
    HY_ADAPT_ALL = 0xfff
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
    HY_ARCH_GEMMA2,
    HY_ARCH_GEMMA3,
    HY_ARCH_OLMO2,
    HY_ARCH_OLMO3,
    HY_ARCH_NEOX,
    HY_ARCH_PHI3,
    HY_ARCH_SMOLLM3,
    HY_ARCH_GRANITE,
    HY_ARCH_GRANITE4,
    HY_ARCH_MINISTRAL3,
    HY_ARCH_STARCODER2,
    HY_ARCH_QWEN35,
    HY_ARCH_COUNT
} hy_arch;

/* How the frequencies of rope follow from the length that a model was trained for. The second value
 * is that of shape.rope_scaling. */
typedef enum hy_rope_scaling {
    HY_ROPE_UNSCALED,
    HY_ROPE_SCALED_LLAMA3,
    HY_ROPE_SCALED_LINEAR,
    HY_ROPE_SCALED_DYNAMIC, /* depends on the length of the sequence */
    HY_ROPE_SCALED_YARN,
    HY_ROPE_SCALED_LONGROPE, /* depends on the length of the sequence */
} hy_rope_scaling;

#define HY_ROPE_PAIRS_MAX 128

/* Options of rope. Zero: as in Llama. */
typedef struct hy_rope_options {
    double share;          /* of a head's elements that are rotated; 0: all */
    double local_theta;    /* of the layers with a window; 0: as for the others */
    bool scales_full_only; /* layers with a window are not scaled */
    /* The layers with rope: one letter per layer, r (rope) or n (none), repeated; "": all. */
    char layers[HY_SLIDING_LAYERS_MAX];
    /* yarn: turns per original context between which frequencies are blended (0: 32 and 1), exact
     * limits instead of whole pairs, and the factor of cosine and sine (0: it follows from
     * mscale, mscale_all_dim and rope_factor); longrope uses the last. */
    double beta_fast, beta_slow;
    bool is_untruncated;
    double attention_factor, mscale, mscale_all_dim;
    /* longrope: divisors of the frequencies up to the original context, and beyond it. */
    double short_factors[HY_ROPE_PAIRS_MAX], long_factors[HY_ROPE_PAIRS_MAX];
    /* Queries are multiplied by 1 + query_beta log(1 + position / original context), with an
     * integer quotient; 0: not. */
    double query_beta;
} hy_rope_options;

/* The activation function of the mlp, or of its gate. */
typedef enum hy_mlp_function {
    HY_MLP_USUAL, /* silu for a gate, otherwise gelu in its tanh form */
    HY_MLP_GELU_TANH,
    HY_MLP_GELU,
    HY_MLP_RELU2,
} hy_mlp_function;

/* Layers with the gated delta rule (HY_OP_DELTA) instead of attention. */
typedef struct hy_linear_options {
    int32_t key_heads, heads;   /* Hk, H; H is a multiple of Hk */
    int32_t key_dim, value_dim; /* Dk, Dv */
    int32_t taps;               /* J: tokens that the convolution sees */
    /* The layers that have it: one letter per layer, l (linear) or f (full attention), repeated;
     * "": none. */
    char layers[HY_SLIDING_LAYERS_MAX];
} hy_linear_options;

/* Options of a transformer that few families use. Zero: as in Llama. */
typedef struct hy_shape_options {
    hy_rope_options rope;
    hy_linear_options linear;
    hy_mlp_function function;
    double norm_offset;       /* added to the weights of norms (Gemma: 1) */
    bool has_whole_qk_norm;   /* qk-norm is over all heads together */
    bool has_gates;           /* attention: its output is gated; with qk-norm */
    bool has_sinks;           /* attention: a learned logit per head without a value */
    bool is_parallel;         /* attention and mlp have the same input (GPT-NeoX) */
    double attention_scale;   /* of q k; 0: 1/sqrt(attention_divisor) */
    double attention_divisor; /* 0: D */
    double attention_softcap; /* of scores; 0: none */
    double logit_softcap;
    double embed_scale, residual_scale; /* factors; 0: 1 */
    double logit_divisor;               /* 0: 1 */
} hy_shape_options;

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
    hy_rope_scaling rope_scaling;
    double rope_factor, rope_low_freq, rope_high_freq;
    int32_t rope_original_context;
    int32_t sliding_window;              /* tokens a token sees, itself included; 0: all */
    int32_t sparse_local, sparse_global; /* blocks of kernels/sparse.h; local 0: no sparse layers */
    /* The layers with the window, or the sparse ones: one letter per layer, s (these) or f (full),
     * repeated over the layers; "": all. */
    char sliding_layers[HY_SLIDING_LAYERS_MAX];
    double init_std;
    hy_shape_options more;
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
/* Whether a layer has block-sparse attention. */
bool hy_shape_is_sparse(const hy_shape *shape, int32_t layer);

/* Is this layer's attention linear? */
bool hy_shape_is_linear(const hy_shape *shape, int32_t layer);
/* One of so many layers has full attention, and the others linear: sets the pattern; false: it is
 * too long, which up to HY_INTERVAL_MAX it never is. And which number that is; 0: another pattern.
 */
#define HY_INTERVAL_MAX (HY_SLIDING_LAYERS_MAX - 1)
bool hy_shape_set_interval(hy_shape *shape, int32_t interval);
int32_t hy_shape_interval(const hy_shape *shape);

/* Width of a packed qkv row: (H + 2K) D. */
static inline int32_t hy_shape_qkv(const hy_shape *s) {
    return (s->heads + 2 * s->kv_heads) * s->head_size;
}
/* Rows of the matrix that computes it; gates included. */
static inline int32_t hy_shape_qkv_rows(const hy_shape *s) {
    return hy_shape_qkv(s) + (s->more.has_gates ? s->heads * s->head_size : 0);
}
/* Width of linear attention's output, H Dv, and of its packed qkv row, 2 Hk Dk + H Dv. */
static inline int32_t hy_shape_linear_out(const hy_shape *s) {
    return s->more.linear.heads * s->more.linear.value_dim;
}
static inline int32_t hy_shape_linear_qkv(const hy_shape *s) {
    return 2 * s->more.linear.key_heads * s->more.linear.key_dim + hy_shape_linear_out(s);
}

/* Rows of the token table and the head in memory: a large vocabulary is rounded up, because
 * tensor cores need aligned rows of logits (GPT-2's 50,257 becomes 50,304). */
static inline int32_t hy_shape_vocab_rows(const hy_shape *s) {
    return s->vocab < 1024 ? s->vocab : (s->vocab + 63) / 64 * 64;
}

/* The parts that exist in such a shape. Those of one module have one adapter: q, k and v of GPT-2,
 * gate and up of Phi-3. */
static inline int32_t hy_shape_adapter_parts(const hy_shape *s) {
    int32_t missing = s->is_gated ? 0 : HY_ADAPT_GATE;
    if (!s->more.linear.layers[0]) missing |= HY_ADAPT_LINEAR;
    return HY_ADAPT_ALL & ~missing;
}

/* Rope (rope.c). A layer uses one of the tables, or none. */
typedef enum hy_rope_table { HY_ROPE_ABSENT, HY_ROPE_FULL, HY_ROPE_LOCAL } hy_rope_table;
hy_rope_table hy_shape_rope(const hy_shape *shape, int32_t layer);
/* Elements of a head that are rotated. */
int32_t hy_shape_rotary(const hy_shape *shape);
int hy_shape_rope_count(const hy_shape *shape); /* tables: 1, or 2 with a local one */
/* What scaling does to the full table: the factor of cosine and sine, and what divides the frequency
 * of a pair in sequences of this length. */
double hy_shape_rope_attention(const hy_shape *shape);
double hy_shape_rope_divisor(const hy_shape *shape, int32_t seq, int32_t pair);
/* Floats of all tables for sequences of this length; 0: no rope. */
int64_t hy_shape_rope_floats(const hy_shape *shape, int32_t seq);
/* Fills the tables, each (seq, R/2, 2): cosine and sine of every position and frequency; first the
 * full one, then the local one if there is one; then the factors of queries (seq), if any. */
void hy_shape_rope_tables(const hy_shape *shape, int32_t seq, float *tables);
