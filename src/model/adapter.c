/* adapter.c: names of what adapters stand beside. See adapter.h. */
#include "model/adapter.h"

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
