/* bnb.h: matrices that bitsandbytes has quantised, as a model's folder holds them: NF4.
 *
 * NAME is then codes, two to a byte, in any type that has as many bytes. Beside it lie NAME.absmax,
 * the scales of its blocks, in fp32 or, with double quantisation, as codes of NAME.nested_quant_map
 * by NAME.nested_absmax; NAME.quant_map, the levels; and NAME.quant_state.bitsandbytes__nf4, JSON
 * with sizes, offset, shape and type. All of it is held against the shape before anything is used.
 * Codes and scales go into a store as they are (kernels/nf4.h), a block of theirs as several of
 * ours where it is longer; or they are decoded, to the number that bitsandbytes decodes them to. */
#pragma once

#include "hub/hf_tensors.h"
#include "model/coding.h"
#include "model/params.h"

/* What the JSON says. */
typedef struct hy_bnb_state {
    int64_t rows, cols;
    int32_t repeat; /* blocks of ours in a block */
    bool is_nested; /* double quantisation, */
    float offset;   /* and what its scales have in common */
    hy_dtype dtype; /* that the matrix had before, and that decoded numbers are rounded to */
} hy_bnb_state;

/* `name` is what errors call the text. */
hy_status hy_bnb_state_parse(const char *text, size_t size, const char *name, hy_bnb_state *out);

typedef struct hy_bnb_matrix {
    hy_bnb_state state;
    hy_hf_found codes, absmax, nested;
    float map[256]; /* what codes of scales stand for */
    bool has_our_map;
} hy_bnb_matrix;

/* Whether tensors beside this one say that it is quantised. */
bool hy_bnb_is_coded(const hy_hf_tensors *tensors, const char *name);
/* How long the name of the matrix is that a tensor of this name would belong to; 0: to none. */
size_t hy_bnb_owner(const char *name);

/* The matrix of these codes, which is to have this shape. HY_ERR_INPUT names file, tensor and what
 * is wrong. */
hy_status hy_bnb_open(const hy_hf_tensors *tensors, hy_hf_found codes, int64_t rows, int64_t cols,
                      hy_bnb_matrix *out);

/* Elements [first, first + count), row by row. */
hy_status hy_bnb_read(const hy_bnb_matrix *matrix, int64_t first, int64_t count, float *out);

/* All scales of the matrix, which begins with block `first` of a coded parameter. HY_ERR_INPUT
 * where that has two levels and they would not be the same. */
hy_status hy_bnb_put_scales(const hy_bnb_matrix *matrix, int64_t first, hy_coding *coding);

/* Matrices of blocks that a quantised folder holds as they were (llm_int8_skip_modules) are marked:
 * they stay so. Of a packed one it is enough that one of its modules is. Other folders change
 * nothing. */
hy_status hy_bnb_mark_skipped(const char *folder, const hy_shape *shape, hy_params *params);
