/* bnb.h: matrices that bitsandbytes has quantised (NF4), as stored in a model folder.
 *
 * NAME holds codes, two per byte, in any type of that size. Other tensors belong to it:
 * NAME.absmax holds the scales of its blocks, in fp32 or, with double quantisation, as codes
 * (NAME.nested_quant_map, NAME.nested_absmax); NAME.quant_map holds the levels; and
 * NAME.quant_state.bitsandbytes__nf4 is JSON with sizes, offset, shape and type. Everything is
 * checked against the shape before it is used. Codes and scales are copied into a store
 * unchanged (kernels/nf4.h), where a longer block becomes several of ours; or they are decoded
 * to the same numbers as in bitsandbytes. */
#pragma once

#include "hub/hf_tensors.h"
#include "model/coding.h"
#include "model/params.h"

/* The content of quant_state. */
typedef struct hy_bnb_state {
    int64_t rows, cols;
    int32_t repeat; /* one block of bitsandbytes has this many of our blocks */
    bool is_nested; /* double quantisation: the scales are quantised, too */
    float offset;   /* is_nested: added to every scale */
    hy_dtype dtype; /* the original type of the matrix; decoded numbers are rounded to it */
} hy_bnb_state;

/* Errors call the text `name`. */
hy_status hy_bnb_state_parse(const char *text, size_t size, const char *name, hy_bnb_state *out);

typedef struct hy_bnb_matrix {
    hy_bnb_state state;
    hy_hf_found codes, absmax, nested;
    float map[256]; /* the value of each code of a scale */
    bool has_our_map;
} hy_bnb_matrix;

/* Do the other tensors show that this one is quantised? */
bool hy_bnb_is_coded(const hy_hf_tensors *tensors, const char *name);
/* The length of the matrix name that a tensor of this name belongs to; 0: none. */
size_t hy_bnb_owner(const char *name);

/* Opens the matrix of these codes, which must have this shape. HY_ERR_INPUT names file, tensor
 * and error. */
hy_status hy_bnb_open(const hy_hf_tensors *tensors, hy_hf_found codes, int64_t rows, int64_t cols,
                      hy_bnb_matrix *out);

/* Elements [first, first + count), row by row. */
hy_status hy_bnb_read(const hy_bnb_matrix *matrix, int64_t first, int64_t count, float *out);

/* All scales of the matrix, which begins with block `first` of a quantised parameter.
 * HY_ERR_INPUT if its two-level scales would change. */
hy_status hy_bnb_put_scales(const hy_bnb_matrix *matrix, int64_t first, hy_coding *coding);

/* Marks matrices of blocks that a quantised folder does not quantise (llm_int8_skip_modules):
 * they stay unquantised. A packed matrix is marked if one of its modules is. Folders that are not
 * quantised change nothing. */
hy_status hy_bnb_mark_skipped(const char *folder, const hy_shape *shape, hy_params *params);
