/* bnb.h: matrices that bitsandbytes has quantised (NF4 or int8), as stored in a model folder.
 *
 * NF4: NAME holds codes, two per byte, in any type of that size. Other tensors belong to it:
 * NAME.absmax holds the scales of its blocks, in fp32 or, with double quantisation, as codes
 * (NAME.nested_quant_map, NAME.nested_absmax); NAME.quant_map holds the levels; and
 * NAME.quant_state.bitsandbytes__nf4 is JSON with sizes, offset, shape and type. Codes and scales
 * are copied into a store unchanged (kernels/nf4.h), where a longer block becomes several of ours;
 * or they are decoded to the same numbers as in bitsandbytes.
 *
 * Int8: MODULE.weight holds codes, and MODULE.SCB the largest magnitude of each row; a number is
 * code * SCB / 127. MODULE.weight_format is 0.
 *
 * bnb.c reads them, and checks everything against the shape first; bnb_write.c writes them. */
#pragma once

#include "hub/hf_config.h"
#include "hub/hf_names.h"
#include "hub/hf_tensors.h"
#include "hub/rounding.h"
#include "model/coding.h"
#include "model/params.h"

/* What the names of the tensors of a matrix end in. */
#define HY_BNB_ABSMAX ".absmax"
#define HY_BNB_MAP ".quant_map"
#define HY_BNB_NESTED ".nested_absmax"
#define HY_BNB_NESTED_MAP ".nested_quant_map"
#define HY_BNB_STATE ".quant_state.bitsandbytes__nf4"
#define HY_BNB_STATE_FP4 ".quant_state.bitsandbytes__fp4" /* not supported */
#define HY_BNB_SCB ".SCB"
#define HY_BNB_FORMAT ".weight_format"
#define HY_BNB_NAME_MAX 256 /* bytes; longer names are cut and not found */

/* The name of the tensor of a matrix with this ending. */
void hy_bnb_name(const char *matrix, const char *ending, char out[HY_BNB_NAME_MAX]);
/* The name of the matrix that a tensor of this name belongs to; false: it has no such ending. */
bool hy_bnb_owner(const char *name, char owner[HY_BNB_NAME_MAX]);

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
    hy_dtype type;                     /* HY_NF4 or HY_I8 */
    hy_bnb_state state;                /* of HY_I8: rows, cols, and fp32 */
    hy_hf_found codes, absmax, nested; /* absmax of HY_I8: SCB */
    float map[256];                    /* the value of each code of a scale */
    bool has_our_map;
} hy_bnb_matrix;

/* Do the other tensors show that this one is quantised? */
bool hy_bnb_is_coded(const hy_hf_tensors *tensors, const char *name);

/* Opens the matrix of these codes, which must have this shape. HY_ERR_INPUT names file, tensor
 * and error. */
hy_status hy_bnb_open(const hy_hf_tensors *tensors, hy_hf_found codes, int64_t rows, int64_t cols,
                      hy_bnb_matrix *out);

/* Elements [first, first + count), row by row. */
hy_status hy_bnb_read(const hy_bnb_matrix *matrix, int64_t first, int64_t count, float *out);

/* All scales of an NF4 matrix, which begins with block `first` of a quantised parameter.
 * HY_ERR_INPUT if its two-level scales would change. */
hy_status hy_bnb_put_scales(const hy_bnb_matrix *matrix, int64_t first, hy_coding *coding);

/* Marks matrices of blocks that a quantised folder does not quantise (llm_int8_skip_modules), and
 * the token table of an int8 folder: they stay unquantised. A packed matrix is marked if one of its
 * modules is. Folders that are not quantised, or not in params->frozen_codes, change nothing. */
hy_status hy_bnb_mark_skipped(const char *folder, const hy_shape *shape, hy_params *params);

/* Rounds numbers to a type. */
void hy_bnb_round(hy_dtype dtype, float *x, int64_t count);

/* ---- bnb_write.c ----------------------------------------------------------------------------- */

/* The tensors of a matrix in the order in which they are written. */
typedef struct hy_bnb_tensors {
    hy_safetensors_entry list[6]; /* their names are in `names` */
    int32_t count;
    char names[6][HY_BNB_NAME_MAX];
} hy_bnb_tensors;

/* A matrix that is quantised as bitsandbytes does it. */
typedef struct hy_bnb_writing {
    hy_hf_quant quant;
    hy_dtype dtype; /* of the model; numbers are first rounded to it */
    const char *name;
    int64_t rows, cols;
    const hy_moments *moments; /* of its inputs, for nf4; NULL or size 0: rounded to nearest */
    float *scales; /* of blocks or rows, until all codes are written; set by hy_bnb_begin */
} hy_bnb_writing;

void hy_bnb_list(const hy_bnb_writing *writing, hy_bnb_tensors *out);

/* Call hy_bnb_end also if something fails. */
hy_status hy_bnb_begin(hy_bnb_writing *writing);
void hy_bnb_end(hy_bnb_writing *writing);
/* Elements of a piece: at most `most`, but at least a block or a row of int8. */
int64_t hy_bnb_piece(const hy_bnb_writing *writing, int64_t most);
/* Writes the codes of elements [first, first + count): one piece after the other. x has room for
 * a piece and is overwritten. */
hy_status hy_bnb_put(hy_bnb_writing *writing, int64_t first, int64_t count, float *x,
                     hy_safetensors_writer *out);
/* Writes the other tensors; for int8 without the last, a byte 0. */
hy_status hy_bnb_finish(const hy_bnb_writing *writing, hy_safetensors_writer *out);

/* Adds quantization_config to the text of a config.json. */
hy_status hy_bnb_put_config(const hy_shape *shape, hy_hf_quant quant, hy_dtype dtype,
                            hy_text *config);
