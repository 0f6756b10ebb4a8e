/* hf_names.h: the names and the form of our parameters in a model folder.
 *
 * A parameter of ours is one tensor there, or several stacked by rows: q, k and v; gate and up.
 * GPT-2 stores its matrices as (in, out), ours are (out, in). */
#pragma once

#include "model/arch/arch.h"

#define HY_HF_NAME_MAX 96

/* A tensor of the folder: rows [row, row + rows) of a parameter of ours. */
typedef struct hy_hf_name {
    char name[HY_HF_NAME_MAX];
    int32_t param;
    int64_t row, rows; /* elements of a vector */
    int64_t cols;      /* 1 for a vector */
    int32_t ndim;
    bool is_transposed; /* the file stores it as (cols, rows) */
} hy_hf_name;

/* All tensors in a folder of this model, in the order of our parameters; the caller frees the
 * list. `prefix` is the family's, or "" for a bare model. */
hy_status hy_hf_list_names(const hy_family *family, const char *prefix, const hy_shape *shape,
                           const hy_params *params, hy_hf_name **out, int32_t *count);

/* Tensors that some files contain although the model does not use them: masks, frequencies, the
 * copy of a tied head. */
bool hy_hf_is_ignored(const hy_shape *shape, const char *name);
