/* adapter.c: names of what adapters stand beside. See adapter.h. */
#include "model/adapter.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/text.h"

#define QKV (HY_ADAPT_Q | HY_ADAPT_K | HY_ADAPT_V)

typedef struct named {
    const char *name;
    int32_t parts;
} named;

/* Modules in the files of models with rope, and of GPT-2. */
static const named separate[] = {{"q_proj", HY_ADAPT_Q},       {"k_proj", HY_ADAPT_K},
                                 {"v_proj", HY_ADAPT_V},       {"o_proj", HY_ADAPT_O},
                                 {"gate_proj", HY_ADAPT_GATE}, {"up_proj", HY_ADAPT_UP},
                                 {"down_proj", HY_ADAPT_DOWN}, {NULL, 0}};
static const named packed[] = {{"c_attn", QKV},
                               {"attn.c_proj", HY_ADAPT_O},
                               {"c_fc", HY_ADAPT_UP},
                               {"mlp.c_proj", HY_ADAPT_DOWN},
                               {NULL, 0}};
/* Words of both. */
static const named words[] = {{"q", HY_ADAPT_Q},
                              {"k", HY_ADAPT_K},
                              {"v", HY_ADAPT_V},
                              {"o", HY_ADAPT_O},
                              {"gate", HY_ADAPT_GATE},
                              {"up", HY_ADAPT_UP},
                              {"down", HY_ADAPT_DOWN},
                              {"c_proj", HY_ADAPT_O | HY_ADAPT_DOWN},
                              {"attention", QKV | HY_ADAPT_O},
                              {"mlp", HY_ADAPT_GATE | HY_ADAPT_UP | HY_ADAPT_DOWN},
                              {"all", HY_ADAPT_ALL},
                              {NULL, 0}};

static const named *family_of(const hy_shape *shape) {
    return hy_shape_packs_adapter(shape) ? packed : separate;
}

static int32_t find(const named *list, const char *name, size_t length) {
    for (; list->name; list++) {
        if (strlen(list->name) == length && !strncmp(list->name, name, length)) return list->parts;
    }
    return 0;
}

static hy_status refuse(const hy_shape *shape, const char *name, size_t length) {
    const char *modules[HY_ADAPTER_MODULES];
    hy_text known = {0};
    hy_adapter_modules(shape, hy_shape_adapter_parts(shape), modules);
    for (int i = 0; modules[i]; i++) hy_text_addf(&known, "%s%s", i ? ", " : "", modules[i]);
    hy_status status =
        hy_fail(HY_ERR_INPUT,
                "\"%.*s\" is no matrix of this model; it has %s; accepted are also "
                "attention, mlp and all",
                (int)(length < 100 ? length : 100), name, known.data ? known.data : "");
    hy_text_free(&known);
    return status;
}

hy_status hy_adapter_parts_named(const hy_shape *shape, const char *names, int32_t *parts) {
    int32_t there = hy_shape_adapter_parts(shape);
    bool is_packed = hy_shape_packs_adapter(shape);
    *parts = 0;
    for (const char *at = names;; at++) {
        at += strspn(at, " ");
        size_t length = strcspn(at, ","), used = length;
        while (used > 0 && at[used - 1] == ' ') used--;
        int32_t found = find(family_of(shape), at, used);
        if (!found) found = find(words, at, used) & there;
        bool is_foreign = used == strlen("c_proj") && !strncmp(at, "c_proj", used) && !is_packed;
        if (!found || is_foreign) return refuse(shape, at, used);
        *parts |= found;
        at += length;
        if (*at == 0) return HY_OK;
    }
}

void hy_adapter_modules(const hy_shape *shape, int32_t parts, const char *out[HY_ADAPTER_MODULES]) {
    int count = 0;
    for (const named *module = family_of(shape); module->name; module++) {
        if (module->parts & parts) out[count++] = module->name;
    }
    out[count] = NULL;
}

bool hy_adapter_module_params(const char *module, size_t length, char *out, size_t size) {
    static const struct {
        const char *module, *before, *behind; /* between the two comes the layer */
    } known[] = {{"embed", "embed.tokens.weight", NULL},
                 {"embed_tokens", "embed.tokens.weight", NULL},
                 {"wte", "embed.tokens.weight", NULL},
                 {"wpe", "embed.positions.weight", NULL},
                 {"head", "head.weight", NULL},
                 {"lm_head", "head.weight", NULL},
                 {"norm", "final_norm.*", NULL},
                 {"ln_f", "final_norm.*", NULL},
                 {"input_layernorm", "blocks.", ".norm1.*"},
                 {"post_attention_layernorm", "blocks.", ".norm2.*"},
                 {"ln_1", "blocks.", ".norm1.*"},
                 {"ln_2", "blocks.", ".norm2.*"},
                 {"q_norm", "blocks.", ".attn.q_norm.weight"},
                 {"k_norm", "blocks.", ".attn.k_norm.weight"}};
    size_t begin = length, digits = 0;
    while (begin > 0 && module[begin - 1] != '.') begin--;
    for (size_t i = 0; i + 1 < begin; i++) { /* a number between points is the layer */
        size_t run = strspn(module + i, "0123456789");
        bool is_layer = run > 0 && i > 0 && module[i - 1] == '.' && module[i + run] == '.';
        if (is_layer) {
            digits = run;
            module += i;
            begin -= i;
            length -= i;
            break;
        }
    }
    for (size_t k = 0; k < sizeof known / sizeof known[0]; k++) {
        if (strlen(known[k].module) != length - begin) continue;
        if (strncmp(known[k].module, module + begin, length - begin) != 0) continue;
        bool is_layered = known[k].behind != NULL;
        snprintf(out, size, "%s%.*s%s", known[k].before, is_layered ? digits ? (int)digits : 1 : 0,
                 digits ? module : "*", is_layered ? known[k].behind : "");
        return true;
    }
    return false;
}
