/* hf_names.c: the tensor names in a model folder. See hf_names.h.
 *
 * Loading, export and adapters use the same list. The modules of a family come from its table
 * (model/arch); together the rows of its tensors cover each parameter exactly. */
#include "hub/hf_names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/text.h"
#include "model/param_names.h"

/* "model.layers.3.mlp.up_proj.weight": %d in the path is the layer. */
static void write_name(const char *prefix, const char *path, int32_t layer, bool is_bias,
                       char out[HY_HF_NAME_MAX]) {
    const char *at = strstr(path, "%d"), *ending = is_bias ? ".bias" : ".weight";
    if (!at)
        snprintf(out, HY_HF_NAME_MAX, "%s%s%s", prefix, path, ending);
    else
        snprintf(out, HY_HF_NAME_MAX, "%s%.*s%d%s%s", prefix, (int)(at - path), path, layer, at + 2,
                 ending);
}

hy_status hy_hf_list_names(const hy_family *family, const char *prefix, const hy_shape *shape,
                           const hy_params *params, hy_hf_name **out, int32_t *count) {
    hy_hf_name *list = calloc((size_t)params->count * HY_MODULE_PARTS, sizeof *list);
    *count = 0;
    *out = list;
    HY_FAIL_IF(!list, HY_ERR_MEMORY, "not enough memory for the names of %d tensors",
               params->count);
    for (int32_t p = 0; p < params->count; p++) {
        const hy_param *param = &params->list[p];
        hy_param_kind weight = hy_param_weight_of(param->kind);
        const hy_modules *modules = &family->modules[weight];
        int64_t row = 0, rows[HY_PARAM_PIECES] = {hy_param_stored_rows(param)};
        if (modules->part[1]) hy_shape_pieces(shape, weight, rows);
        for (int i = 0; i < HY_MODULE_PARTS && modules->part[i]; i++) {
            hy_hf_name *name = &list[(*count)++];
            *name = (hy_hf_name){.param = p,
                                 .row = row,
                                 .rows = rows[i],
                                 .cols = param->ndim == 2 ? param->shape[1] : 1,
                                 .ndim = param->ndim,
                                 .is_transposed = modules->is_transposed && param->ndim == 2};
            write_name(modules->is_outside ? "" : prefix, modules->part[i], param->unit - 1,
                       weight != param->kind, name->name);
            row += name->rows;
        }
    }
    return HY_OK;
}

bool hy_hf_is_ignored(const hy_shape *shape, const char *name) {
    for (const char *const *end = hy_shape_family(shape)->ignored; *end; end++) {
        if (hy_has_ending(name, *end)) return true;
    }
    return shape->has_tied_head && strcmp(name, "lm_head.weight") == 0;
}
