/* hf_load.h: weights from a model's files into a store, wherever its backing store is.
 *
 * hf_parts.c finds each parameter's tensors and checks names and shapes before anything is read;
 * part_read.c reads rows of them; hf_load.c reads piece by piece with several threads, converts,
 * and puts each piece in its final place. Nothing is held twice: what is needed beside the store is
 * a few pieces. */
#pragma once

#include "hub/bnb.h"
#include "hub/hf_config.h"
#include "hub/hf_folder.h"
#include "hub/hf_names.h"
#include "hub/hf_tensors.h"
#include "hub/llama2c.h"
#include "memory/store.h"
#include "model/model.h"

/* How the rows of a part lie in the file. */
typedef enum hy_part_order {
    HY_PART_PLAIN,
    HY_PART_TRANSPOSED, /* (cols, rows) */
    HY_PART_PAIRED      /* rows of a head in neighbouring pairs: 2i, 2i+1 are our i, i + D/2 */
} hy_part_order;

/* Some rows of a parameter, and where a file has them. */
typedef struct hy_weight_part {
    int32_t param;
    int64_t row, rows, cols;
    hy_part_order order;
    int32_t head_size; /* of paired rows */
    hy_dtype dtype;
    const hy_reader *reader;    /* its file, */
    uint64_t offset;            /* and where its bytes begin there */
    const hy_bnb_matrix *coded; /* of a part that is HY_NF4 there; else NULL */
} hy_weight_part;

/* A model's files, opened and checked against a model. */
typedef struct hy_weight_files {
    hy_hf_tensors *tensors;
    hy_llama2c llama2c;
    hy_weight_part *parts; /* in the order of parameters */
    int32_t count;
    hy_bnb_matrix *coded; /* what parts lead to; NULL: none is quantised */
} hy_weight_files;

/* `name`: folder, hub name or file, as hy_hf_find takes it. HY_ERR_INPUT names a tensor that is
 * missing, one too many, or of another shape. */
hy_status hy_weight_files_open(const char *name, const hy_model *model, hy_weight_files *out);
/* Elements [first, first + count) of a parameter as fp32. Threads may call it at the same time. */
hy_status hy_weight_files_read(const hy_weight_files *files, int32_t param, int64_t first,
                               int64_t count, float *out);
void hy_weight_files_close(hy_weight_files *files);

/* Of a folder that is quantised: how many of its tensors became what. */
typedef struct hy_load_counts {
    int32_t kept;    /* codes that stayed as they were, */
    int32_t decoded; /* codes that became numbers, */
    int32_t real;    /* and matrices of blocks that the quantiser had skipped, which stay numbers */
} hy_load_counts;

typedef struct hy_load_options {
    int threads; /* 0: all cores; at least four in any case, which wait for the disk */
    void (*on_progress)(void *user, double share); /* may be NULL; told by the calling thread */
    void *user;
    int64_t piece;          /* elements read at a time; 0: chosen */
    hy_load_counts *counts; /* is added to; may be NULL */
} hy_load_options;

/* Fills the weights that `store` holds (fp32, bf16, fp16, int8 or nf4) from a model's files;
 * padding becomes zero. The stream is for copies to a card and idle again afterwards. */
hy_status hy_hf_load_weights(const char *name, const hy_model *model, hy_store *store,
                             hy_stream *stream, const hy_load_options *options);

/* The prefix that these files have: of a bare model none. */
const char *hy_hf_prefix_in(const hy_hf_tensors *tensors, const hy_family *family);

/* hf_shape.c: the shape of a model's files, for those that have no weights yet, and how these are
 * stored. */
hy_status hy_model_files_shape(hy_model_files kind, const char *path, hy_shape *out);
hy_status hy_model_files_quant(hy_model_files kind, const char *path, hy_hf_quant *out);

/* ---- part_read.c ---- */

/* Buffers for rows of a part with so many elements, of any type. */
typedef struct hy_part_room {
    char *raw, *made;
} hy_part_room;
hy_status hy_part_room_init(hy_part_room *room, int64_t elements); /* once is enough */
void hy_part_room_fini(hy_part_room *room);                        /* {0} too */
/* Rows [first, first + rows) of a part that is not quantised, in our order and the file's type: at
 * *data, in the room's `raw` or, where they need no change, in `place`, which may be NULL. Whole
 * heads where rows are paired. `made` stays free for the caller. Of quantised ones, the codes. */
hy_status hy_part_fetch(const hy_weight_part *part, int64_t first, int64_t rows, hy_part_room *room,
                        char *place, const char **data);
/* Elements [first, first + count) of a part as fp32. */
hy_status hy_part_read(const hy_weight_part *part, int64_t first, int64_t count, float *out);

/* Numbers of one type as another's; (cols, rows) of elements of `size` bytes as (rows, cols). */
void hy_convert(const void *from, hy_dtype from_type, int64_t count, void *to, hy_dtype to_type);
void hy_transpose(const void *from, int64_t rows, int64_t cols, size_t size, void *to);
