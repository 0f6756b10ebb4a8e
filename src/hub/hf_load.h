/* hf_load.h: loads weights from a model's files into a store, wherever its backing store is.
 *
 * hf_parts.c finds each parameter's tensors and checks names and shapes before anything is read;
 * part_read.c reads their rows; hf_load.c reads pieces with several threads, converts them, and
 * writes each piece to its final place. Only a few pieces are in memory in addition to the
 * store. */
#pragma once

#include "formats/gguf.h"
#include "hub/bnb.h"
#include "hub/hf_config.h"
#include "hub/hf_folder.h"
#include "hub/hf_names.h"
#include "hub/hf_tensors.h"
#include "hub/llama2c.h"
#include "memory/store.h"
#include "model/model.h"

/* The order of a part's rows in the file. */
typedef enum hy_part_order {
    HY_PART_PLAIN,
    HY_PART_TRANSPOSED, /* (cols, rows) */
    HY_PART_TILED,      /* columns of value heads in the order of llama.cpp */
    HY_PART_PAIRED      /* rows of a head in neighbouring pairs: 2i, 2i+1 are our i, i + D/2 */
} hy_part_order;

/* Some rows of a parameter, and their place in a file. */
typedef struct hy_weight_part {
    int32_t param;
    int64_t row, rows, cols;
    hy_part_order order;
    int32_t head_size; /* of paired rows */
    hy_dtype dtype;    /* fp32 for a part that is decoded */
    bool is_decoded;   /* its bytes are blocks of a GGUF file */
    hy_block_type blocks;
    hy_hf_tiles tiles;
    const char *rate; /* the name of a tensor that has -exp of our numbers; else NULL */
    float surplus;    /* subtracted from decoded numbers: llama.cpp adds 1 to norms of Gemma */
    const hy_reader *reader;    /* its file */
    uint64_t offset;            /* where its bytes begin in the file */
    const hy_bnb_matrix *coded; /* for an HY_NF4 or HY_I8 part; else NULL */
    int64_t tensor_row; /* its first row in the tensor, which is stored head by head; else 0 */
} hy_weight_part;

/* A model's files, opened and checked against a model. */
typedef struct hy_weight_files {
    hy_hf_tensors *tensors;
    hy_llama2c llama2c;
    hy_gguf *gguf;
    hy_weight_part *parts; /* in the order of parameters */
    int32_t count;
    hy_bnb_matrix *coded; /* for the parts; NULL: nothing is quantised */
    /* NF4: a store of that type gets codes and scales unchanged. Int8 is decoded; a store of that
     * type quantises to the same codes again. */
    bool keeps_codes;
} hy_weight_files;

/* `name`: folder, hub name or file, as in hy_hf_find. HY_ERR_INPUT names a tensor that is
 * missing, unknown, or of another shape. */
hy_status hy_weight_files_open(const char *name, const hy_model *model, hy_weight_files *out);
/* Elements [first, first + count) of a parameter as fp32. Threads may call it at the same time. */
hy_status hy_weight_files_read(const hy_weight_files *files, int32_t param, int64_t first,
                               int64_t count, float *out);
void hy_weight_files_close(hy_weight_files *files);

/* For a quantised folder: how many tensors were loaded in which way. */
typedef struct hy_load_counts {
    int32_t kept;    /* their codes are in the store */
    int32_t decoded; /* codes that were decoded to numbers */
    int32_t real;    /* matrices of blocks that the quantiser skipped; they stay numbers */
} hy_load_counts;

typedef struct hy_load_options {
    int threads; /* 0: all cores; at least four, which wait for the disk */
    void (*on_progress)(void *user, double share); /* may be NULL; called on the calling thread */
    void *user;
    int64_t piece;          /* elements read at a time; 0: the default */
    hy_load_counts *counts; /* the counts are added to it; may be NULL */
} hy_load_options;

/* Fills the weights of `store` (fp32, bf16, fp16, int8 or nf4) from a model's files; padding
 * becomes zero. The stream is used for copies to a card and is idle afterwards. */
hy_status hy_hf_load_weights(const char *name, const hy_model *model, hy_store *store,
                             hy_stream *stream, const hy_load_options *options);

/* The prefix of these files; a bare model has none. */
const char *hy_hf_prefix_in(const hy_hf_tensors *tensors, const hy_family *family);

/* The shape of a model's files, without loading weights, and how the weights are stored. */
hy_status hy_model_files_shape(hy_model_files kind, const char *path, hy_shape *out);
hy_status hy_model_files_quant(hy_model_files kind, const char *path, hy_hf_quant *out);

/* ---- part_read.c ----------------------------------------------------------------------------- */

/* Buffers for rows of a part with this many elements, of any type. */
typedef struct hy_part_room {
    char *raw, *made;
} hy_part_room;
hy_status hy_part_room_init(hy_part_room *room,
                            int64_t elements); /* does nothing on the second call */
void hy_part_room_fini(hy_part_room *room);    /* accepts {0} */
/* Rows [first, first + rows) of a part that is not quantised, in our order and the file's type.
 * *data points to them: in the room's `raw` or, if no change is needed, in `place` (may be
 * NULL). Whole heads if rows are paired. `made` stays free for the caller. For quantised parts:
 * the codes. */
hy_status hy_part_fetch(const hy_weight_part *part, int64_t first, int64_t rows, hy_part_room *room,
                        char *place, const char **data);
/* Elements [first, first + count) of a part as fp32. */
hy_status hy_part_read(const hy_weight_part *part, int64_t first, int64_t count, float *out);

/* Converts numbers to another type; transposes (cols, rows) elements of `size` bytes to (rows,
 * cols). */
void hy_convert(const void *from, hy_dtype from_type, int64_t count, void *to, hy_dtype to_type);
void hy_transpose(const void *from, int64_t rows, int64_t cols, size_t size, void *to);
