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
static void write_name(const char *prefix, const char *path, int32_t layer, const char *ending,
                       char out[HY_HF_NAME_MAX]) {
    const char *at = strstr(path, "%d");
    if (!at)
        snprintf(out, HY_HF_NAME_MAX, "%s%s%s", prefix, path, ending);
    else
        snprintf(out, HY_HF_NAME_MAX, "%s%.*s%d%s%s", prefix, (int)(at - path), path, layer, at + 2,
                 ending);
}

/* Older models of text and images have the head inside the text model. */
static const char *prefix_outside(const char *prefix) {
    return strcmp(prefix, HY_HF_OLD_TEXT_PREFIX) == 0 ? "language_model." : "";
}

void hy_hf_head_name(const hy_family *family, const char *prefix, char out[HY_HF_NAME_MAX]) {
    write_name(prefix_outside(prefix), family->modules[HY_P_HEAD].part[0], 0, ".weight", out);
}

void hy_hf_dims(const hy_hf_name *name, int64_t out[3]) {
    bool is_turned = name->is_transposed;
    out[0] = is_turned ? name->cols : name->rows;
    out[1] = name->ndim == 3 ? 1 : is_turned ? name->rows : name->cols;
    out[2] = name->cols;
}

/* Blocks of rows in a grid (outer, inner) are numbered as in the grid (inner, outer). */
static int64_t swap(const hy_hf_name *name, int64_t row, int64_t inner, int64_t outer,
                    int64_t *run) {
    int64_t size = name->head_size, block = row / size;
    *run = size - row % size;
    return (block % inner * outer + block / inner) * size + row % size;
}

int64_t hy_hf_row_in_file(const hy_hf_name *name, int64_t ours, int64_t *run) {
    *run = name->rows - ours;
    if (!name->head_size) return ours;
    int64_t heads = name->rows / (3 * name->head_size);
    return swap(name, ours, heads, 3, run);
}

int64_t hy_hf_row_of_ours(const hy_hf_name *name, int64_t in_file, int64_t *run) {
    *run = name->rows - in_file;
    if (!name->head_size) return in_file;
    return swap(name, in_file, 3, name->rows / (3 * name->head_size), run);
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
        const char *ending = modules->is_bare ? "" : weight != param->kind ? ".bias" : ".weight";
        int64_t row = 0, rows[HY_PARAM_PIECES] = {hy_param_stored_rows(param)};
        if (modules->part[1]) hy_shape_pieces(shape, weight, rows);
        for (int i = 0; i < HY_MODULE_PARTS && modules->part[i]; i++) {
            hy_hf_name *name = &list[(*count)++];
            *name = (hy_hf_name){.param = p,
                                 .row = row,
                                 .rows = rows[i],
                                 .cols = hy_param_width(param),
                                 .ndim = modules->is_kernel ? 3 : param->ndim,
                                 .is_transposed = modules->is_transposed && param->ndim == 2,
                                 .head_size = modules->is_by_head ? shape->head_size : 0};
            write_name(modules->is_outside ? prefix_outside(prefix) : prefix, modules->part[i],
                       param->unit - 1, ending, name->name);
            row += name->rows;
        }
    }
    return HY_OK;
}

/* The family's beginnings end in a dot; the others are endings. */
static bool is_beginning(const char *word) { return word[strlen(word) - 1] == '.'; }

bool hy_hf_is_apart(const hy_family *family, const char *name) {
    for (const char *const *word = family->ignored; *word; word++) {
        if (is_beginning(*word) && !strncmp(name, *word, strlen(*word))) return true;
    }
    return false;
}

bool hy_hf_is_ignored(const hy_shape *shape, const char *name) {
    const hy_family *family = hy_shape_family(shape);
    char head[HY_HF_NAME_MAX];
    if (hy_hf_is_apart(family, name)) return true;
    for (const char *const *word = family->ignored; *word; word++) {
        if (!is_beginning(*word) && hy_has_ending(name, *word)) return true;
    }
    hy_hf_head_name(family, "", head);
    return shape->has_tied_head && hy_has_ending(name, head);
}
