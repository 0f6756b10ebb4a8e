/* arch.h: the transformers architectures of our models: their names, their module names, their
 * fields of config.json, and the layers that they are built of.
 *
 * Each is one const hy_family in a file of this folder; families with the same names share a
 * table. hub reads and writes model folders by these tables, and adapters take their module
 * names from them: no other file contains module names. config.h reads and writes the fields. Each
 * also says how llama.cpp runs it, if it does. */
#pragma once

#include <stddef.h>

#include "model/builder.h"

#define HY_MODULE_PARTS 3

/* The modules stacked in one parameter of ours (q, k and v; gate and up). %d in a path is the
 * layer. A bias has the module of its weight. */
typedef struct hy_modules {
    const char *part[HY_MODULE_PARTS]; /* NULL after the last */
    bool is_transposed;                /* files store it as (in, out) */
    bool is_outside;                   /* its path has no family prefix */
    bool is_bare;                      /* its path is the name of its tensor, without "weight" */
    bool is_kernel;  /* files store a convolution's (rows, cols) as (rows, 1, cols) */
    bool is_by_head; /* files store the rows of q, k and v together for each head */
} hy_modules;

/* How a field of config.json is stored in a shape, and what is accepted. null counts as absent,
 * except for OPTIONAL and WINDOW. */
typedef enum hy_config_kind {
    HY_CONFIG_SIZE,   /* int32_t, from 1 */
    HY_CONFIG_NUMBER, /* double, above 0 */
    HY_CONFIG_COUNT, /* double, above 0; 256 is written without a point, as transformers wants it */
    HY_CONFIG_OPTIONAL,       /* double, above 0; null is 0, an absent key is `fallback` */
    HY_CONFIG_FACTOR,         /* double, above 0; 0 in the shape is 1 */
    HY_CONFIG_SWITCH,         /* bool */
    HY_CONFIG_STD,            /* double, deviation of the first weights */
    HY_CONFIG_FUNCTION,       /* hy_mlp_function */
    HY_CONFIG_SILU,           /* the function must be silu */
    HY_CONFIG_ATTENTION_BIAS, /* of q, k, v and the attention output */
    HY_CONFIG_MLP_BIAS,       /* of all matrices of the mlp */
    HY_CONFIG_BIAS,           /* of all matrices of attention and mlp */
    HY_CONFIG_ROPE,        /* the base of the frequencies, with rope_scaling or rope_parameters */
    HY_CONFIG_ROPE_LAYERS, /* SmolLM3's no_rope_layers: 1 is a layer with rope */
    HY_CONFIG_WINDOW,      /* sliding_window, with layer_types */
    HY_CONFIG_POSITIONS,   /* Granite's position_embedding_type: rope or nope */
    HY_CONFIG_ATTENTIONS,  /* Granite's layer_types: attention in all layers */
    HY_CONFIG_INTERVAL,    /* Qwen3.5: one of so many layers has full attention, others linear */
    HY_CONFIG_LINEARS,     /* Qwen3.5's layer_types: linear_attention, full_attention */
    HY_CONFIG_FIXED,       /* a whole number that must be given, and must be `fallback` */
    HY_CONFIG_UNUSED,      /* not read; written as `fallback`, because transformers checks it */
    HY_CONFIG_PART         /* read and written with another field, which uses its `fallback` */
} hy_config_kind;

#define HY_REQUIRED (-1)

typedef struct hy_config_field {
    const char *key;
    hy_config_kind kind;
    uint32_t at; /* offset of the member in hy_shape; 0 if the kind has its own members */
    /* If the file has no value: that of the transformers class, 0 (the shape's own default), or
     * HY_REQUIRED. */
    double fallback;
} hy_config_field;

#define HY_AT(member) offsetof(hy_shape, member)

/* The biases of an architecture of llama.cpp, besides those of q, k and v, which are optional. */
typedef enum hy_gguf_biases {
    HY_GGUF_NO_BIASES,  /* it reads no others */
    HY_GGUF_ANY_BIASES, /* it reads those that are there */
    HY_GGUF_ALL_BIASES  /* it needs all, also those of q, k and v */
} hy_gguf_biases;

/* What an architecture of llama.cpp reads about rope, besides its base, size, linear scaling and
 * yarn. */
enum {
    HY_GGUF_LLAMA3 = 1,      /* rope_freqs.weight: what divides the frequencies */
    HY_GGUF_LONGROPE = 2,    /* the same for short and for long sequences */
    HY_GGUF_YARN_LIMITS = 4, /* yarn's beta_fast, beta_slow and mscale_all_dim */
    HY_GGUF_LOCAL_BASE =
        8, /* the base of layers with a window; then yarn is not for such a model */
};

/* How llama.cpp runs a family (hub/gguf_names.h). */
typedef struct hy_gguf_arch {
    const char *name; /* general.architecture; NULL: llama.cpp does not know the family */
    const hy_modules *modules;
    /* Keys that only this architecture has, without its name before them; ends with {0}. NULL: none.
     * HY_CONFIG_POSITIONS is a switch: the layers have rope. */
    const hy_config_field *fields;
    hy_gguf_biases biases;
    int32_t rope;        /* HY_GGUF_LLAMA3, ... */
    int32_t rope_period; /* one of so many layers has no rope; 0: all have it */
    bool is_paired;      /* rows of q and k in neighbouring pairs: 2i, 2i+1 are our i, i + D/2 */
    bool has_windows;    /* others ignore windows */
    bool needs_head;     /* a tied head is written, too */
    bool lacks_head;     /* the head is always tied */
    bool is_square;      /* heads x head size is the width */
    int32_t largest; /* with so many layers, scores are divided by sqrt(C / H) instead of sqrt(D) */
} hy_gguf_arch;

typedef struct hy_family {
    const char *name;       /* "llama": model_type in config.json, and shape.architecture */
    const char *class_name; /* "LlamaForCausalLM" */
    const char *base_class; /* "LlamaModel": of a folder without a head */
    /* "model.": before all names except the head's; a bare model has none */
    const char *prefix;
    const hy_modules *modules; /* (HY_P_KIND_COUNT) by the kind of the weight */
    void (*block)(hy_builder *b, hy_slot_id in, hy_slot_id out); /* adds the nodes of a layer */
    const hy_config_field *fields; /* of config.json, in the order of reading; ends with {0} */
    /* What all models of the family have, and the biases and activation that --architecture sets */
    const hy_shape *base;
    void (*finish)(hy_shape *shape); /* sets what follows from other values; NULL: nothing does */
    /* Tensors that are not used: endings of their names, or with a point at the end beginnings;
     * ends with NULL */
    const char *const *ignored;
    /* Without layer_types, one of so many layers has no window; 0: all have it. */
    int32_t window_period;
    bool has_one_window; /* transformers ignores layer_types: all layers have the window, or none */
    bool needs_name;     /* only a shape that names the family belongs to it */
    hy_gguf_arch gguf;
} hy_family;

extern const hy_family hy_gpt2, hy_llama, hy_mistral, hy_ministral, hy_qwen2, hy_qwen3;
extern const hy_family hy_gemma2, hy_gemma3, hy_olmo2, hy_olmo3, hy_neox, hy_phi3, hy_smollm3;
extern const hy_family hy_granite, hy_granite4, hy_ministral3, hy_starcoder2, hy_qwen35;
/* The modules that most families name as Llama does; norms and mlp differ. */
#define HY_USUAL_MODULES                                                                           \
    [HY_P_TOKENS] = {{"embed_tokens"}},                                                            \
    [HY_P_QKV] = {{"layers.%d.self_attn.q_proj", "layers.%d.self_attn.k_proj",                     \
                   "layers.%d.self_attn.v_proj"}},                                                 \
    [HY_P_Q_NORM] = {{"layers.%d.self_attn.q_norm"}},                                              \
    [HY_P_K_NORM] = {{"layers.%d.self_attn.k_norm"}},                                              \
    [HY_P_OUT] = {{"layers.%d.self_attn.o_proj"}}, [HY_P_FINAL_NORM] = {{"norm"}},                 \
    [HY_P_HEAD] = {{"lm_head"}, .is_outside = true}
#define HY_GATED_MLP_MODULES                                                                       \
    [HY_P_UP] = {{"layers.%d.mlp.gate_proj", "layers.%d.mlp.up_proj"}},                            \
    [HY_P_DOWN] = {{"layers.%d.mlp.down_proj"}}
/* Of Llama and of the families that use its names. */
extern const hy_modules hy_llama_modules[HY_P_KIND_COUNT];
extern const char *const hy_llama_ignored[];
extern const hy_shape hy_llama_base;
#define HY_NAMED_AS_LLAMA(word)                                                                    \
    .class_name = word "ForCausalLM", .base_class = word "Model", .prefix = "model.",              \
    .modules = hy_llama_modules, .block = hy_pre_norm_block, .ignored = hy_llama_ignored
#define HY_LIKE_LLAMA(word) HY_NAMED_AS_LLAMA(word), .base = &hy_llama_base
/* The fields of most families. The defaults that differ: kv_heads, head size, epsilon, tied head. */
#define HY_USUAL_FIELDS(kv_heads_, head_size_, eps_, is_tied_)                                     \
    {"vocab_size", HY_CONFIG_SIZE, HY_AT(vocab), HY_REQUIRED},                                     \
        {"initializer_range", HY_CONFIG_STD, HY_AT(init_std), 0.02},                               \
        {"num_hidden_layers", HY_CONFIG_SIZE, HY_AT(layers), HY_REQUIRED},                         \
        {"hidden_size", HY_CONFIG_SIZE, HY_AT(width), HY_REQUIRED},                                \
        {"num_attention_heads", HY_CONFIG_SIZE, HY_AT(heads), HY_REQUIRED},                        \
        {"num_key_value_heads", HY_CONFIG_SIZE, HY_AT(kv_heads), kv_heads_},                       \
        {"head_dim", HY_CONFIG_SIZE, HY_AT(head_size), head_size_},                                \
        {"intermediate_size", HY_CONFIG_SIZE, HY_AT(mlp_width), HY_REQUIRED},                      \
        {"max_position_embeddings", HY_CONFIG_SIZE, HY_AT(context), HY_REQUIRED},                  \
        {"rms_norm_eps", HY_CONFIG_NUMBER, HY_AT(norm_eps), eps_}, {                               \
        "tie_word_embeddings", HY_CONFIG_SWITCH, HY_AT(has_tied_head), is_tied_                    \
    }
#define HY_FUNCTION_FIELD(key)                                                                     \
    { key, HY_CONFIG_FUNCTION, HY_AT(more.function), 0 }
#define HY_ROPE_FIELD(theta)                                                                       \
    { "rope_theta", HY_CONFIG_ROPE, HY_AT(rope_theta), theta }
#define HY_WINDOW_FIELD(fallback)                                                                  \
    { "sliding_window", HY_CONFIG_WINDOW, HY_AT(sliding_window), fallback }
#define HY_ATTENTION_BIAS_FIELD                                                                    \
    { "attention_bias", HY_CONFIG_ATTENTION_BIAS, 0, 0 }
#define HY_MLP_BIAS_FIELD                                                                          \
    { "mlp_bias", HY_CONFIG_MLP_BIAS, 0, 0 }

/* The tensor names of llama.cpp (gguf.c): q, k, v, gate and up apart; qkv, gate and up in one; and
 * an mlp without a gate; and linear attention. */
extern const hy_modules hy_gguf_modules[HY_P_KIND_COUNT], hy_gguf_fused_modules[HY_P_KIND_COUNT],
    hy_gguf_plain_modules[HY_P_KIND_COUNT], hy_gguf_linear_modules[HY_P_KIND_COUNT];
/* llama.cpp's Llama, which also runs Mistral. */
#define HY_GGUF_LLAMA                                                                              \
    .gguf = {.name = "llama",                                                                      \
             .modules = hy_gguf_modules,                                                           \
             .biases = HY_GGUF_ANY_BIASES,                                                         \
             .is_paired = true,                                                                    \
             .rope = HY_GGUF_LLAMA3 | HY_GGUF_LONGROPE}

const hy_family *hy_family_of(hy_arch arch); /* NULL: HY_ARCH_NONE */
/* The family that names the modules of a shape. A shape without an architecture uses the closest
 * one. */
const hy_family *hy_shape_family(const hy_shape *shape);
/* Is this matrix one module in the family's files? */
static inline bool hy_family_packs(const hy_family *family, hy_param_kind matrix) {
    return family->modules[matrix].part[1] == NULL;
}
/* The field of config.json with this key; NULL: none. */
const hy_config_field *hy_family_field(const hy_family *family, const char *key);
/* Does config.json of a family have this key for the shape? Also those that are read with
 * another. */
bool hy_family_has_key(const hy_family *family, const char *key);

/* The architecture for this shape: `wanted` if it supports the shape or has needs_name (then
 * hy_arch_check says whether it does), else the first that supports it; HY_ARCH_NONE: none. */
hy_arch hy_arch_choose(const hy_shape *shape, hy_arch wanted);
/* HY_ERR_INPUT if the model cannot be written as one of an architecture: says why, for each. */
hy_status hy_arch_check(const hy_shape *shape);
/* HY_ERR_INPUT if a family that must be named does not support the shape. Its layers may be
 * block-sparse, which hy_arch_check refuses. */
hy_status hy_arch_check_family(const hy_shape *shape);
/* Why a known model_type or class of transformers is not supported: "(a mixture of experts)" with a
 * space before it; "": not known. */
const char *hy_arch_why_not(const char *name);

/* The end of a module's path that names it within a block: "q_proj"; for GPT-2's two c_proj, and a
 * norm beside the final one, the last two words. */
const char *hy_module_last_name(const char *path);
