/* param_list.c: the parameters of a custom model, listed by the caller. See param_list.h. */
#include "model/param_list.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "formats/safetensors.h"
#include "kernels/nf4.h"

#define UNIT_ELEMENTS ((int64_t)4 << 20) /* small parameters share units of this size */

/* For a custom model: recognises token tables and heads by their usual names. */
static bool sounds_hidden(const char *name) {
    static const char *const others[] = {"wte", "wpe", "head", "lm_head"};
    if (strstr(name, "emb")) return false;
    for (const char *word = name; *word; word += *word == '.' || *word == '/') {
        size_t length = strcspn(word, "./");
        for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
            if (strlen(others[i]) == length && !strncmp(word, others[i], length)) return false;
        }
        word += length;
    }
    return true;
}

static hy_status set_listed(hy_param *out, const hy_param_spec *spec, int32_t index) {
    const char *name = spec->name ? spec->name : "";
    HY_FAIL_IF(!name[0], HY_ERR_INPUT, "parameter number %d has no name", index);
    HY_FAIL_IF(strlen(name) >= HY_PARAM_NAME_MAX, HY_ERR_INPUT,
               "the name of parameter number %d has %zu characters; accepted: up to %d", index,
               strlen(name), HY_PARAM_NAME_MAX - 1);
    HY_FAIL_IF(!hy_safetensors_can_name(name), HY_ERR_INPUT,
               "\"%s\" cannot be the name of a parameter: tensor names must be UTF-8, and "
               "__metadata__ is reserved",
               name);
    HY_FAIL_IF(spec->ndim < 0 || spec->ndim > HY_PARAM_DIMS, HY_ERR_INPUT,
               "parameter %s has %d dimensions; accepted are 0 to %d", name, spec->ndim,
               HY_PARAM_DIMS);
    *out = (hy_param){.kind = HY_P_KIND_COUNT,
                      .ndim = spec->ndim,
                      .shape = {1},
                      .count = 1,
                      .is_trainable = !spec->is_frozen,
                      .frozen_as = spec->is_frozen ? 1 + (int32_t)spec->dtype : 0,
                      .has_decay = spec->decay >= 0 || spec->ndim >= 2,
                      .own_decay = spec->decay,
                      .lr_scale = spec->lr_scale,
                      .is_hidden = spec->ndim == 2 && sounds_hidden(name)};
    snprintf(out->name, sizeof out->name, "%s", name);
    for (int32_t i = 0; i < spec->ndim; i++) {
        HY_FAIL_IF(spec->shape[i] < 1, HY_ERR_INPUT,
                   "parameter %s: dimension %d has %lld elements; at least 1 is expected", name, i,
                   (long long)spec->shape[i]);
        bool is_too_large = __builtin_mul_overflow(out->count, spec->shape[i], &out->count) ||
                            out->count > INT64_MAX / 64;
        HY_FAIL_IF(is_too_large, HY_ERR_INPUT, "parameter %s has too many elements", name);
        out->shape[i] = spec->shape[i];
    }
    out->stored = out->count;
    /* Stacks of matrices are quantised, too; kernels of convolutions have short rows. */
    bool is_matrix = (spec->ndim == 2 || spec->ndim == 3) && hy_param_width(out) >= HY_NF4_BLOCK;
    out->stays_real = !is_matrix || !sounds_hidden(name);
    return HY_OK;
}

int64_t hy_param_whole_count(const hy_param *p) {
    int64_t count = 1;
    for (int32_t i = 0; i < p->ndim && p->part > 0; i++) count *= p->shape[i];
    return p->part > 0 ? count : p->count;
}

static int compare_names(const void *a, const void *b) {
    const char *const *x = a, *const *y = b;
    return strcmp(*x, *y);
}

/* Checks a sorted list: no two names are equal or conflict in files. */
static hy_status check_sorted(const char *const *names, int32_t count) {
    static const char scale[] = ".scale"; /* suffix of the scales of 8-bit state in files */
    for (int32_t i = 0; i < count; i++) {
        char of[HY_PARAM_NAME_MAX];
        const char *key = of;
        HY_FAIL_IF(i > 0 && strcmp(names[i - 1], names[i]) == 0, HY_ERR_INPUT,
                   "two parameters have the name %s", names[i]);
        size_t length = strlen(names[i]), suffix = sizeof scale - 1;
        if (length <= suffix || strcmp(names[i] + length - suffix, scale) != 0) continue;
        snprintf(of, sizeof of, "%.*s", (int)(length - suffix), names[i]);
        HY_FAIL_IF(bsearch(&key, names, (size_t)count, sizeof *names, compare_names), HY_ERR_INPUT,
                   "the name of parameter %s conflicts with %s, which files use for the scales of "
                   "the first; rename one of them",
                   of, names[i]);
    }
    return HY_OK;
}

static hy_status check_names(const hy_param_spec *list, int32_t count) {
    const char **names = malloc((size_t)count * sizeof *names);
    if (!names) return hy_fail(HY_ERR_MEMORY, "not enough memory to compare %d names", count);
    for (int32_t i = 0; i < count; i++) names[i] = list[i].name;
    qsort(names, (size_t)count, sizeof *names, compare_names);
    hy_status status = check_sorted(names, count);
    free(names);
    return status;
}

/* The number and size of parts: blocks of 8-bit codes must not cross a border. */
static int64_t parts_of(int64_t count, int64_t *part) {
    int64_t parts = (count + UNIT_ELEMENTS - 1) / UNIT_ELEMENTS;
    *part = (count + parts - 1) / parts;
    *part = (*part + HY_QUANT_BLOCK - 1) / HY_QUANT_BLOCK * HY_QUANT_BLOCK;
    return (count + *part - 1) / *part;
}

/* Adds a parameter to the unit that the caller named. */
static void add_whole(hy_params *p, const hy_param *whole, int32_t unit) {
    hy_param *param = &p->list[p->count++];
    *param = *whole;
    param->unit = p->units = unit;
    param->first = p->elements;
    p->elements += param->count;
}

/* Units count from 0, in the order of the list. */
static hy_status check_units(const hy_param_spec *list, int32_t count, const int32_t *unit_of) {
    for (int32_t i = 0, last = -1; unit_of && i < count; last = unit_of[i++]) {
        bool is_next = unit_of[i] == last || unit_of[i] == last + 1;
        HY_FAIL_IF(unit_of[i] < 0 || !is_next, HY_ERR_INPUT,
                   "parameter %s is in unit %d after one of unit %d; units count from 0, and "
                   "parameters are listed in the order of their units",
                   list[i].name, unit_of[i], last);
    }
    return HY_OK;
}

/* Adds a parameter, in its parts, to the current unit. */
static void add_listed(hy_params *p, const hy_param *whole, int64_t *in_unit) {
    int64_t part, parts = parts_of(whole->count, &part);
    for (int64_t i = 0; i < parts; i++) {
        hy_param *param = &p->list[p->count++];
        *param = *whole;
        if (parts > 1) {
            param->part = part;
            param->part_at = i * part;
            param->count = whole->count - i * part < part ? whole->count - i * part : part;
            param->stored = param->count;
        }
        bool is_full = *in_unit > 0 && *in_unit + param->count > UNIT_ELEMENTS;
        p->units += is_full;
        *in_unit = (is_full ? 0 : *in_unit) + param->count;
        param->unit = p->units;
        param->first = p->elements;
        p->elements += param->count;
    }
}

static hy_status set_list(hy_params *p, const hy_param_spec *list, int32_t count,
                          const int32_t *unit_of) {
    int64_t in_unit = 0, entries = 0, part;
    bool is_any_trained = false;
    hy_param whole;
    for (int32_t i = 0; i < count; i++) {
        HY_TRY(set_listed(&whole, &list[i], i));
        HY_FAIL_IF(whole.count > INT64_MAX / 64 - p->elements, HY_ERR_INPUT,
                   "parameter %s: the parameters together have too many elements", whole.name);
        p->elements += whole.count;
        is_any_trained |= whole.is_trainable;
        entries += unit_of ? 1 : parts_of(whole.count, &part);
    }
    HY_FAIL_IF(!is_any_trained, HY_ERR_INPUT,
               "all parameters are frozen; at least one must be trained");
    HY_FAIL_IF(entries > INT32_MAX, HY_ERR_INPUT, "these parameters are too large: %lld elements",
               (long long)p->elements);
    HY_TRY(check_names(list, count));
    HY_TRY(check_units(list, count, unit_of));
    p->elements = 0;
    p->list = calloc((size_t)entries, sizeof *p->list);
    if (!p->list)
        return hy_fail(HY_ERR_MEMORY, "not enough memory for a list of %d parameters", count);
    for (int32_t i = 0; i < count; i++) {
        HY_TRY(set_listed(&whole, &list[i], i));
        whole.whole = i;
        if (unit_of) {
            add_whole(p, &whole, unit_of[i]);
        } else {
            add_listed(p, &whole, &in_unit);
        }
    }
    p->units++;
    return HY_OK;
}

hy_status hy_params_init_list(hy_params *p, const hy_param_spec *list, int32_t count,
                              const int32_t *unit_of) {
    *p = (hy_params){0};
    HY_FAIL_IF(!list || count < 1, HY_ERR_INPUT,
               "a model needs at least one parameter, %d were given", count);
    hy_status status = set_list(p, list, count, unit_of);
    if (status != HY_OK) hy_params_fini(p);
    return status;
}
