/* adapter.c: names of the matrices that adapters belong to, and of modules that are trained whole
 * in addition to adapters. See adapter.h.
 *
 * A module of a family's files is a weight and, if it has one, its bias. The tables of the families
 * (model/arch) map modules to our parameters. q, k and v are one matrix here, gate and up
 * another. */
#include "model/adapter.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/text.h"
#include "model/arch/arch.h"
#include "model/param_names.h"

#define MODULE_MAX 128 /* letters of a module's path */
#define QKV (HY_ADAPT_Q | HY_ADAPT_K | HY_ADAPT_V)

/* ---- matrices with adapters ------------------------------------------------------------------ */

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
                              {"attention", QKV | HY_ADAPT_O | HY_ADAPT_LINEAR},
                              {"mlp", HY_ADAPT_GATE | HY_ADAPT_UP | HY_ADAPT_DOWN},
                              {"all", HY_ADAPT_ALL}};

/* The modules of a family that can have adapters, and the parts that each of them holds. */
static int list_modules(const hy_family *family, named out[HY_ADAPTER_MODULES]) {
    int count = 0;
    for (int m = 0; m < HY_LINEARS; m++) {
        hy_param_kind matrix = hy_linear_kind(m);
        const hy_modules *modules = &family->modules[matrix];
        int32_t parts = hy_adapter_first_part(matrix, family->base->is_gated);
        if (hy_family_packs(family, matrix)) { /* one module holds q, k and v, or gate and up */
            if (matrix == HY_P_QKV) parts = QKV;
            if (matrix == HY_P_UP && family->base->is_gated) parts |= HY_ADAPT_UP;
        }
        for (int i = 0; i < HY_MODULE_PARTS && modules->part[i]; i++) {
            out[count++] = (named){hy_module_last_name(modules->part[i]), parts << i};
        }
    }
    return count;
}

/* The parts of the modules with this name, or with this last word of their name: c_proj means two
 * modules. */
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

/* ---- modules that are trained whole ---------------------------------------------------------- */

/* Does a module's path end with this name? */
static bool is_end(const char *module, size_t length, const char *name) {
    size_t size = strlen(name);
    if (size > length || strncmp(module + length - size, name, size) != 0) return false;
    return size == length || module[length - size - 1] == '.';
}

/* Finds the layer, a number between two dots. Returns the number of its digits; 0: no layer. */
static size_t find_layer(const char *module, size_t length, const char **digits) {
    for (size_t i = 1; i < length; i++) {
        size_t run = strspn(module + i, "0123456789");
        bool is_layer =
            run > 0 && i + run < length && module[i - 1] == '.' && module[i + run] == '.';
        *digits = module + i;
        if (is_layer) return run;
    }
    return 0;
}

/* The family's module that a path ends in, that of the longest name: its kind, and its index in the
 * kind. */
static bool find_module(const hy_family *family, const char *module, size_t length, int *kind,
                        int *part) {
    size_t longest = 0;
    for (int k = 0; k < HY_P_KIND_COUNT; k++) {
        const char *const *paths = family->modules[k].part;
        for (int i = 0; i < HY_MODULE_PARTS && paths[i]; i++) {
            const char *name = hy_module_last_name(paths[i]);
            if (strlen(name) <= longest || !is_end(module, length, name)) continue;
            longest = strlen(name);
            *kind = k;
            *part = i;
        }
    }
    return longest > 0;
}

bool hy_adapter_module_params(hy_arch own, const char *module, size_t length, char *out,
                              size_t size) {
    const char *layer = "";
    size_t digits = find_layer(module, length, &layer);
    int kind, part;
    for (int arch = HY_ARCH_NONE; arch < HY_ARCH_COUNT; arch++) { /* NONE: the model's own first */
        const hy_family *family = hy_family_of(arch == HY_ARCH_NONE ? own : (hy_arch)arch);
        if (!family || !find_module(family, module, length, &kind, &part)) continue;
        const char *name = hy_param_kind_name((hy_param_kind)kind, family->base->is_gated);
        /* "*" stands for weight and bias. */
        bool may_have_bias = (int)hy_param_weight_of((hy_param_kind)(kind + 1)) == kind;
        int stem = (int)(strlen(name) - (may_have_bias ? strlen("weight") : 0));
        char block[48] = "";
        if (strstr(family->modules[kind].part[part], "%d"))
            snprintf(block, sizeof block, "blocks.%.*s.", digits ? (int)digits : 1,
                     digits ? layer : "*");
        snprintf(out, size, "%s%.*s%s", block, stem, name, may_have_bias ? "*" : "");
        return true;
    }
    bool is_table = is_end(module, length, "embed");
    if (!is_table && !is_end(module, length, "head")) return false;
    snprintf(out, size, "%s", hy_param_kind_name(is_table ? HY_P_TOKENS : HY_P_HEAD, false));
    return true;
}

/* ---- lists ----------------------------------------------------------------------------------- */

/* Checks that the other modules of the same matrix are in the list too. */
static hy_status check_entry(const hy_family *family, const char *names, const char *entry,
                             size_t length) {
    int kind, part;
    if (!find_module(family, entry, length, &kind, &part)) return HY_OK;
    const char *const *paths = family->modules[kind].part;
    size_t before = length - strlen(hy_module_last_name(paths[part]));
    for (int i = 0; i < HY_MODULE_PARTS && paths[i]; i++) {
        char wanted[MODULE_MAX];
        snprintf(wanted, sizeof wanted, "%.*s%s", (int)before, entry,
                 hy_module_last_name(paths[i]));
        HY_FAIL_IF(!hy_list_has(names, wanted, strlen(wanted)), HY_ERR_INPUT,
                   "%.*s is listed without %s: they share one matrix and are trained together, so "
                   "list both",
                   (int)length, entry, wanted);
    }
    return HY_OK;
}

hy_status hy_adapter_check_modules(const char *names) {
    const char *entry;
    size_t length;
    for (const char *at = names; at;) {
        at = hy_next_entry(at, &entry, &length);
        for (int arch = HY_ARCH_NONE + 1; arch < HY_ARCH_COUNT && length < MODULE_MAX / 2; arch++) {
            HY_TRY(check_entry(hy_family_of((hy_arch)arch), names, entry, length));
        }
    }
    return HY_OK;
}

/* ---- parameters ------------------------------------------------------------------------------ */

static const hy_param *at(const hy_params *params, int32_t unit, hy_param_kind kind) {
    int32_t index = hy_params_find(params, unit, kind);
    return index < 0 ? NULL : &params->list[index];
}

/* Names in a list are patterns, so they may match more than intended. */
static hy_status check_param(const hy_params *params, const hy_param *param) {
    hy_param_kind kind = hy_param_weight_of(param->kind), bias = (hy_param_kind)(kind + 1);
    HY_FAIL_IF(param->kind == HY_P_A_LOG || param->kind == HY_P_DT_BIAS, HY_ERR_INPUT,
               "%s cannot be trained beside adapters: PEFT files store whole modules, and it is "
               "only a parameter of one; accepted: embed, head, norms (norm, *.norm1.*, "
               "*.norm2.*) and modules that are not in lora_targets",
               param->name);
    bool has_adapter = hy_linear_bit(kind) && at(params, param->unit, hy_adapter_kind(kind));
    HY_FAIL_IF(has_adapter, HY_ERR_INPUT,
               "%s already has an adapter, and PEFT files store a module either whole or with an "
               "adapter; accepted: embed, head, norms (norm, *.norm1.*, *.norm2.*) and modules "
               "that are not in lora_targets",
               param->name);
    const hy_param *weight = at(params, param->unit, kind);
    const hy_param *other = param != weight                    ? weight
                            : hy_param_weight_of(bias) == kind ? at(params, param->unit, bias)
                                                               : NULL;
    HY_FAIL_IF(other && !other->is_beside, HY_ERR_INPUT,
               "%s is trained whole but %s is not, and PEFT files store whole modules: list both, "
               "or neither",
               param->name, other->name);
    return HY_OK;
}

hy_status hy_adapter_check_beside(const hy_params *params) {
    for (int32_t i = 0; i < params->count; i++) {
        if (params->list[i].is_beside) HY_TRY(check_param(params, &params->list[i]));
    }
    return HY_OK;
}
