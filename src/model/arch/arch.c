/* arch.c: which architecture expresses a shape. See arch.h. */
#include "model/arch/arch.h"

#include <string.h>

#include "base/error.h"
#include "base/text.h"
#include "model/arch/config_parts.h"

static const hy_family *const families[HY_ARCH_COUNT] = {
    [HY_ARCH_GPT2] = &hy_gpt2,
    [HY_ARCH_LLAMA] = &hy_llama,
    [HY_ARCH_MISTRAL] = &hy_mistral,
    [HY_ARCH_MINISTRAL] = &hy_ministral,
    [HY_ARCH_QWEN2] = &hy_qwen2,
    [HY_ARCH_QWEN3] = &hy_qwen3,
    [HY_ARCH_GEMMA2] = &hy_gemma2,
    [HY_ARCH_GEMMA3] = &hy_gemma3,
    [HY_ARCH_OLMO2] = &hy_olmo2,
    [HY_ARCH_OLMO3] = &hy_olmo3,
    [HY_ARCH_NEOX] = &hy_neox,
    [HY_ARCH_PHI3] = &hy_phi3,
    [HY_ARCH_SMOLLM3] = &hy_smollm3,
    [HY_ARCH_GRANITE] = &hy_granite,
    [HY_ARCH_GRANITE4] = &hy_granite4,
    [HY_ARCH_MINISTRAL3] = &hy_ministral3,
    [HY_ARCH_STARCODER2] = &hy_starcoder2,
    [HY_ARCH_QWEN35] = &hy_qwen35,
};

const hy_family *hy_family_of(hy_arch arch) { return families[arch]; }

const hy_family *hy_shape_family(const hy_shape *s) {
    if (s->arch != HY_ARCH_NONE) return families[s->arch];
    return s->has_rope ? &hy_llama : &hy_gpt2;
}

const hy_config_field *hy_family_field(const hy_family *family, const char *key) {
    for (const hy_config_field *f = family->fields; f->key; f++) {
        if (strcmp(f->key, key) == 0) return f;
    }
    return NULL;
}

static bool has_kind(const hy_family *family, hy_config_kind kind) {
    for (const hy_config_field *f = family->fields; f->key; f++) {
        if (f->kind == kind) return true;
    }
    return false;
}

bool hy_family_has_key(const hy_family *family, const char *key) {
    static const char of_rope[] = " rope_theta rope_scaling rope_parameters ";
    if (hy_family_field(family, key)) return true;
    bool has_list = has_kind(family, HY_CONFIG_WINDOW) && !family->has_one_window;
    if (has_list && strcmp(key, "layer_types") == 0) return true;
    return has_kind(family, HY_CONFIG_ROPE) && hy_word_is_in(of_rope, key);
}

/* ---- which shapes a family supports ---------------------------------------------------------- */

static bool has_these_options(const hy_family *family, const hy_shape *s) {
    hy_shape mine = *s, base = *s;
    base.more = family->base->more;
    if (family->finish) family->finish(&base);
    hy_config_clear_options(family, &mine);
    hy_config_clear_options(family, &base);
    return memcmp(&mine.more, &base.more, sizeof base.more) == 0;
}

static bool has_these_biases(const hy_family *family, const hy_shape *s) {
    const hy_shape *base = family->base;
    if (has_kind(family, HY_CONFIG_BIAS))
        return s->has_qkv_bias == hy_shape_out_bias(s) && s->has_qkv_bias == hy_shape_mlp_bias(s);
    bool is_free = has_kind(family, HY_CONFIG_ATTENTION_BIAS);
    bool attention = is_free ? s->has_qkv_bias == hy_shape_out_bias(s)
                             : s->has_qkv_bias == base->has_qkv_bias &&
                                   hy_shape_out_bias(s) == hy_shape_out_bias(base);
    return attention && (has_kind(family, HY_CONFIG_MLP_BIAS) ||
                         hy_shape_mlp_bias(s) == hy_shape_mlp_bias(base));
}

/* Why the architecture does not support a shape, as the end of a sentence; NULL: it does. */
static const char *lacks(const hy_family *f, const hy_shape *s) {
    const hy_shape *base = f->base;
    bool is_mixed =
        s->is_rms != base->is_rms || s->has_rope != base->has_rope || s->is_gated != base->is_gated;
    if (is_mixed) return "uses a different norm, position encoding or activation";
    if (!has_these_options(f, s)) return "does not have these options";
    if (s->has_qk_norm != base->has_qk_norm)
        return s->has_qk_norm ? "has no qk-norm" : "needs qk-norm";
    if (!has_these_biases(f, s)) return "uses different biases";
    if (s->sliding_window && !has_kind(f, HY_CONFIG_WINDOW)) return "has no sliding window";
    if (s->sliding_window && s->sliding_layers[0] && f->has_one_window)
        return "uses its window in all layers";
    bool is_grouped = s->kv_heads != s->heads || s->head_size * s->heads != s->width;
    if (is_grouped && !hy_family_field(f, "head_dim"))
        return "supports neither grouped heads nor other head sizes";
    return NULL;
}

/* As above, for shapes without an architecture: transformers' Llama needs a width divisible by
 * the number of heads, and its AutoModel treats a Mistral with a list of layer types as a
 * Ministral. */
static const char *lacks_for_new(hy_arch arch, const hy_shape *s) {
    const char *lacking = lacks(families[arch], s);
    if (lacking) return lacking;
    if (families[arch]->needs_name) return "must be named by shape.architecture";
    if (arch == HY_ARCH_LLAMA && s->width % s->heads != 0) {
        return "needs a width divisible by the number of heads";
    }
    bool has_list = s->sliding_window && s->sliding_layers[0];
    return arch == HY_ARCH_MISTRAL && has_list ? "uses its window in all layers" : NULL;
}

hy_arch hy_arch_choose(const hy_shape *s, hy_arch wanted) {
    bool is_wanted = wanted != HY_ARCH_NONE;
    /* its layers are not those of another family */
    if (is_wanted && families[wanted]->needs_name) return wanted;
    if (is_wanted && !lacks(families[wanted], s)) return wanted;
    for (int arch = HY_ARCH_NONE + 1; arch < HY_ARCH_COUNT; arch++) {
        if (!lacks_for_new((hy_arch)arch, s)) return (hy_arch)arch;
    }
    return HY_ARCH_NONE;
}

hy_status hy_arch_check_family(const hy_shape *s) {
    const hy_family *named = hy_family_of(s->arch);
    const char *lacking = named && named->needs_name ? lacks(named, s) : NULL;
    HY_FAIL_IF(lacking, HY_ERR_INPUT, "%s %s", named->name, lacking);
    return HY_OK;
}

hy_status hy_arch_check(const hy_shape *s) {
    hy_text text = {0};
    HY_FAIL_IF(s->sparse_local > 0, HY_ERR_INPUT,
               "no architecture of transformers has block-sparse attention (shape.attention_type)");
    HY_TRY(hy_arch_check_family(s));
    if (hy_arch_choose(s, s->arch) != HY_ARCH_NONE) return HY_OK;
    for (int arch = HY_ARCH_NONE + 1; arch < HY_ARCH_COUNT; arch++) {
        hy_text_addf(&text, "%s%s %s", text.size ? "; " : "", families[arch]->name,
                     lacks_for_new((hy_arch)arch, s));
    }
    hy_status status =
        hy_fail(HY_ERR_INPUT, "no architecture of transformers supports this shape: %s",
                hy_text_string(&text));
    hy_text_free(&text);
    return status;
}

const char *hy_module_last_name(const char *path) {
    const char *last = path, *before = path;
    for (const char *dot = strchr(path, '.'); dot; dot = strchr(dot + 1, '.')) {
        before = last;
        last = dot + 1;
    }
    bool is_shared = strcmp(last, "c_proj") == 0 || strcmp(last, "norm") == 0;
    return is_shared ? before : last;
}

const char *hy_arch_why_not(const char *name) {
    static const struct {
        const char *part, *why;
    } known[] = {{"gpt5", ""},
                 {"bertdecoder", ""},
                 {"bert-decoder", ""},
                 {"mixtral", " (a mixture of experts)"},
                 {"moe", " (a mixture of experts)"},
                 {"deepseek", " (a mixture of experts)"},
                 {"gpt_oss", " (a mixture of experts)"},
                 {"gptoss", " (a mixture of experts)"},
                 {"llama4", " (a mixture of experts)"},
                 {"jamba", " (Mamba layers and experts)"},
                 {"mamba", " (Mamba layers)"},
                 {"rwkv", " (a recurrent network)"},
                 {"gemma3n", " (embeddings per layer)"},
                 {"bert", " (an encoder)"},
                 {"t5", " (an encoder and a decoder)"}};
    size_t count = sizeof known / sizeof known[0];
    for (size_t i = 0; i < count; i++)
        if (strcasestr(name, known[i].part)) return known[i].why;
    return "";
}
