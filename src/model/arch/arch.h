/* arch.h: the transformers architectures of our models: their names, their module names, and the
 * shapes that they support.
 *
 * Each is one const hy_family in a file of this folder; families with the same names share a
 * table. hub reads and writes model folders by these tables, and adapters take their module
 * names from them: no other file contains module names. */
#pragma once

#include "model/builder.h"

#define HY_MODULE_PARTS 3

/* The modules stacked in one parameter of ours (q, k and v; gate and up). %d in a path is the
 * layer. A bias has the module of its weight. */
typedef struct hy_modules {
    const char *part[HY_MODULE_PARTS]; /* NULL after the last */
    bool is_transposed;                /* files store it as (in, out) */
    bool is_outside;                   /* its path has no family prefix */
} hy_modules;

/* A set of biases as bits, and a list of such sets as bits. */
enum { HY_BIAS_QKV = 1, HY_BIAS_OUT = 2, HY_BIAS_MLP = 4 };
#define HY_BIASES(set) (1u << (set))

typedef struct hy_family {
    const char *name;       /* "llama": model_type in config.json, and shape.architecture */
    const char *class_name; /* "LlamaForCausalLM" */
    const char *base_class; /* "LlamaModel": of a folder without a head */
    /* "model.": before all names except the head's; a bare model has none */
    const char *prefix;
    const hy_modules *modules; /* (HY_P_KIND_COUNT) by the kind of the weight */
    void (*block)(hy_builder *b, hy_slot_id in, hy_slot_id out); /* adds the nodes of a layer */
    /* of config.json for the shape, with spaces around each; NULL: folders are not read yet */
    const char *keys;
    const char *const *ignored; /* endings of tensors that are not used; ends with NULL */
    bool is_rotary;   /* rmsnorm, rope and swiglu; else layernorm, learned positions and gelu */
    bool has_options; /* uses hy_shape_options; only a shape that names the family has them */
    bool has_qk_norm; /* all models of the family; otherwise none */
    bool has_window;  /* sliding-window attention is possible */
    unsigned biases;  /* the possible HY_BIASES */
} hy_family;

extern const hy_family hy_gpt2, hy_llama, hy_mistral, hy_ministral, hy_qwen2, hy_qwen3;
extern const hy_family hy_gemma2, hy_gemma3, hy_olmo2, hy_neox;
/* Of Llama and of the families that use its names. */
extern const hy_modules hy_llama_modules[HY_P_KIND_COUNT];
extern const char *const hy_llama_ignored[];
#define HY_LIKE_LLAMA(word)                                                                        \
    .class_name = word "ForCausalLM", .base_class = word "Model", .prefix = "model.",              \
    .modules = hy_llama_modules, .block = hy_pre_norm_block, .ignored = hy_llama_ignored,          \
    .is_rotary = true
#define HY_LLAMA_KEYS                                                                              \
    " num_hidden_layers hidden_size num_attention_heads num_key_value_heads head_dim"              \
    " intermediate_size max_position_embeddings rms_norm_eps rope_theta rope_scaling"              \
    " rope_parameters hidden_act layer_types "

const hy_family *hy_family_of(hy_arch arch); /* NULL: HY_ARCH_NONE */
/* The family that names the modules of a shape. A shape without an architecture uses the closest
 * one. */
const hy_family *hy_shape_family(const hy_shape *shape);
/* Does config.json of a family have this key for the shape? */
bool hy_family_has_key(const hy_family *family, const char *key);

/* The architecture for this shape: `wanted` if it supports it, else the first that does;
 * HY_ARCH_NONE: none. */
hy_arch hy_arch_choose(const hy_shape *shape, hy_arch wanted);
/* HY_ERR_INPUT if no architecture supports this shape: says why, for each. */
hy_status hy_arch_check(const hy_shape *shape);

/* The end of a module's path that names it within a block: "q_proj"; for GPT-2's two c_proj the
 * last two words. */
const char *hy_module_last_name(const char *path);
