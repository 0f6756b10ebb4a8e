/* adapter.c: names of the matrices that adapters belong to. See adapter.h. */
#include "model/adapter.h"

#include <string.h>

#include "base/error.h"
#include "base/text.h"
#include "model/arch/arch.h"

#define QKV (HY_ADAPT_Q | HY_ADAPT_K | HY_ADAPT_V)

typedef struct named {
    const char *name;
    int32_t parts;
} named;

/* Words that all families accept in addition to their module names. */
static const named words[] = {{"q", HY_ADAPT_Q},
                              {"k", HY_ADAPT_K},
                              {"v", HY_ADAPT_V},
                              {"o", HY_ADAPT_O},
                              {"gate", HY_ADAPT_GATE},
                              {"up", HY_ADAPT_UP},
                              {"down", HY_ADAPT_DOWN},
                              {"attention", QKV | HY_ADAPT_O},
                              {"mlp", HY_ADAPT_GATE | HY_ADAPT_UP | HY_ADAPT_DOWN},
                              {"all", HY_ADAPT_ALL}};

/* The modules of a family that can have adapters, and the parts that each of them holds. */
static int list_modules(const hy_family *family, named out[HY_ADAPTER_MODULES]) {
    static const hy_param_kind matrices[HY_LINEARS] = {HY_P_QKV, HY_P_OUT, HY_P_UP, HY_P_DOWN};
    int count = 0;
    for (int m = 0; m < HY_LINEARS; m++) {
        const hy_modules *modules = &family->modules[matrices[m]];
        bool is_stacked = modules->part[1]; /* else one module holds q, k and v */
        int32_t first = hy_adapter_first_part(matrices[m], is_stacked);
        int32_t parts = m == 0 && !is_stacked ? QKV : first;
        for (int i = 0; i < HY_MODULE_PARTS && modules->part[i]; i++) {
            out[count++] = (named){hy_module_last_name(modules->part[i]), parts << i};
        }
    }
    return count;
}

/* By the whole name or its last word, which several modules may share: c_proj means both. */
static int32_t find(const named *list, int count, const char *name, size_t length) {
    int32_t parts = 0;
    for (int i = 0; i < count; i++) {
        const char *dot = strrchr(list[i].name, '.'), *last = dot ? dot + 1 : list[i].name;
        bool is_it = (strlen(list[i].name) == length && !strncmp(list[i].name, name, length)) ||
                     (strlen(last) == length && !strncmp(last, name, length));
        if (is_it) parts |= list[i].parts;
    }
    return parts;
}

static hy_status refuse(const named *modules, int count, const char *name, size_t length) {
    hy_text known = {0};
    for (int i = 0; i < count; i++) {
        hy_text_addf(&known, "%s%s", i ? ", " : "", modules[i].name);
    }
    hy_status status = hy_fail(
        HY_ERR_INPUT,
        "\"%.*s\" is not a matrix of this model; accepted: %s, and also attention, mlp and all",
        (int)(length < 100 ? length : 100), name, known.data ? known.data : "");
    hy_text_free(&known);
    return status;
}

hy_status hy_adapter_parts_named(const hy_shape *shape, const char *names, int32_t *parts) {
    named modules[HY_ADAPTER_MODULES];
    int count = list_modules(hy_shape_family(shape), modules);
    *parts = 0;
    for (const char *at = names, *name; at;) {
        size_t length;
        at = hy_next_entry(at, &name, &length);
        int32_t found = find(modules, count, name, length);
        if (!found) {
            found = find(words, sizeof words / sizeof words[0], name, length);
            found &= hy_shape_adapter_parts(shape);
        }
        if (!found) return refuse(modules, count, name, length);
        *parts |= found;
    }
    return HY_OK;
}

void hy_adapter_modules(const hy_shape *shape, int32_t parts, const char *out[HY_ADAPTER_MODULES]) {
    named modules[HY_ADAPTER_MODULES];
    int all = list_modules(hy_shape_family(shape), modules), count = 0;
    for (int i = 0; i < all; i++) {
        if (modules[i].parts & parts) out[count++] = modules[i].name;
    }
    out[count] = NULL;
}
