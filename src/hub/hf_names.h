/* hf_names.h: the names and the form of our parameters in a model folder.
 *
 * A parameter of ours is one tensor there, or several stacked by rows: q, k and v; gate and up.
 * GPT-2 stores its matrices as (in, out), ours are (out, in). GPT-NeoX stores q, k and v head by
 * head. */
#pragma once

#include "model/arch/arch.h"

#define HY_HF_NAME_MAX 96

/* llama.cpp stores the value heads of linear attention in the order (in a group, group), ours is
 * (group, in a group). */
typedef struct hy_hf_tiles {
    int32_t groups, in_group; /* 0: our order */
    int32_t size;             /* rows, or columns, of a head */
    int64_t from;             /* the first of them */
    bool are_columns;
} hy_hf_tiles;

/* A tensor of the folder: rows [row, row + rows) of a parameter of ours. */
typedef struct hy_hf_name {
    char name[HY_HF_NAME_MAX];
    int32_t param;
    int64_t row, rows;  /* elements of a vector */
    int64_t cols;       /* 1 for a vector */
    int32_t ndim;       /* 3: the file stores it as (rows, 1, cols) */
    bool is_transposed; /* the file stores it as (cols, rows) */
    int32_t head_size;  /* the file stores q, k and v head by head; 0: rows are in our order */
    hy_hf_tiles tiles;  /* only of llama.cpp */
} hy_hf_name;

/* The dimensions of the tensor in the file: `ndim` numbers. */
void hy_hf_dims(const hy_hf_name *name, int64_t out[3]);

/* The row of the file with our row of a tensor, and our row with that of the file, both counted from
 * the tensor's first one. From there, *run rows are in the same order. */
int64_t hy_hf_row_in_file(const hy_hf_name *name, int64_t ours, int64_t *run);
int64_t hy_hf_row_of_ours(const hy_hf_name *name, int64_t in_file, int64_t *run);

/* All tensors in a folder of this model, in the order of our parameters; the caller frees the
 * list. `prefix` is the family's, "" for a bare model, or one of a model with images. */
hy_status hy_hf_list_names(const hy_family *family, const char *prefix, const hy_shape *shape,
                           const hy_params *params, hy_hf_name **out, int32_t *count);

/* The prefixes of the text model in files of a model of text and images. */
#define HY_HF_TEXT_PREFIX "model.language_model."
#define HY_HF_OLD_TEXT_PREFIX "language_model.model."

/* The name of the head's tensor in files with this prefix. */
void hy_hf_head_name(const hy_family *family, const char *prefix, char out[HY_HF_NAME_MAX]);

/* Tensors that some files contain although the model does not use them: masks, frequencies, the
 * copy of a tied head. */
bool hy_hf_is_ignored(const hy_shape *shape, const char *name);
/* Of these, the tensors of another part of the model, which its files keep: mtp. */
bool hy_hf_is_apart(const hy_family *family, const char *name);
