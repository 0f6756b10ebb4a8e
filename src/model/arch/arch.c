/* arch.c: which architecture expresses a shape. See arch.h. */
#include "model/arch/arch.h"

#include <string.h>

#include "base/error.h"
#include "base/text.h"

static const hy_family *const families[HY_ARCH_COUNT] = {
    [HY_ARCH_GPT2] = &hy_gpt2,       [HY_ARCH_LLAMA] = &hy_llama,
    [HY_ARCH_MISTRAL] = &hy_mistral, [HY_ARCH_MINISTRAL] = &hy_ministral,
    [HY_ARCH_QWEN2] = &hy_qwen2,     [HY_ARCH_QWEN3] = &hy_qwen3,
    [HY_ARCH_GEMMA2] = &hy_gemma2,   [HY_ARCH_GEMMA3] = &hy_gemma3,
    [HY_ARCH_OLMO2] = &hy_olmo2,     [HY_ARCH_NEOX] = &hy_neox,
};

const hy_family *hy_family_of(hy_arch arch) { return families[arch]; }

const hy_family *hy_shape_family(const hy_shape *s) {
    if (s->arch != HY_ARCH_NONE) return families[s->arch];
    return s->has_rope ? &hy_llama : &hy_gpt2;
}

bool hy_family_has_key(const hy_family *family, const char *key) {
    return hy_word_is_in(family->keys, key);
}

/* Why the architecture does not support a shape, as the end of a sentence; NULL: it does. */
static const char *lacks(const hy_family *f, const hy_shape *s) {
    unsigned biases = (s->has_qkv_bias ? HY_BIAS_QKV : 0) |
                      (hy_shape_out_bias(s) ? HY_BIAS_OUT : 0) |
                      (hy_shape_mlp_bias(s) ? HY_BIAS_MLP : 0);
    if (f->has_options) return NULL;
    static const hy_shape_options none;
    if (memcmp(&s->more, &none, sizeof none) != 0) return "has none of these options";
    bool is_mixed =
        s->is_rms != f->is_rotary || s->has_rope != f->is_rotary || s->is_gated != f->is_rotary;
    if (is_mixed) return "uses a different norm, position encoding or activation";
    if (s->has_qk_norm != f->has_qk_norm)
        return s->has_qk_norm ? "has no qk-norm" : "needs qk-norm";
    if (!(f->biases & HY_BIASES(biases))) return "uses different biases";
    if (s->sliding_window && !f->has_window) return "has no sliding window";
    if (!f->is_rotary && (s->kv_heads != s->heads || s->head_size * s->heads != s->width)) {
        return "supports neither grouped heads nor other head sizes";
    }
    return NULL;
}

/* As above, for shapes without an architecture: transformers' Llama needs a width divisible by
 * the number of heads, and its AutoModel treats a Mistral with a list of layer types as a
 * Ministral. */
static const char *lacks_for_new(hy_arch arch, const hy_shape *s) {
    const char *lacking = lacks(families[arch], s);
    if (lacking) return lacking;
    if (families[arch]->has_options) return "must be named by shape.architecture";
    if (arch == HY_ARCH_LLAMA && s->width % s->heads != 0) {
        return "needs a width divisible by the number of heads";
    }
    bool has_list = s->sliding_window && s->sliding_layers[0];
    return arch == HY_ARCH_MISTRAL && has_list ? "uses its window in all layers" : NULL;
}

hy_arch hy_arch_choose(const hy_shape *s, hy_arch wanted) {
    if (wanted != HY_ARCH_NONE && !lacks(families[wanted], s)) return wanted;
    for (int arch = HY_ARCH_NONE + 1; arch < HY_ARCH_COUNT; arch++) {
        if (!lacks_for_new((hy_arch)arch, s)) return (hy_arch)arch;
    }
    return HY_ARCH_NONE;
}

hy_status hy_arch_check(const hy_shape *s) {
    hy_text text = {0};
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
    return strcmp(last, "c_proj") == 0 ? before : last;
}
