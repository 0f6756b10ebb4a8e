/* gguf_names.h: how a model of ours is described in a file of llama.cpp: keys, tensor names, row
 * order.
 *
 * The facts of a family are in its file (hy_gguf_arch in model/arch/arch.h); export and loading use
 * the same tables. All functions take a shape that has an architecture. */
#pragma once

#include "formats/gguf.h"
#include "hub/hf_names.h"
#include "hybrid.h"

/* The keys of all architectures that are members of a shape; before a key comes the name of the
 * architecture and a dot. Ends with {0}. */
extern const hy_config_field hy_gguf_fields[];
/* A key with that name. */
typedef struct hy_gguf_key_name {
    char text[128];
} hy_gguf_key_name;
hy_gguf_key_name hy_gguf_key_of(const hy_family *family, const char *key);
/* The key of norm_eps, without that name. */
const char *hy_gguf_norm_key(const hy_shape *shape);

/* HY_ERR_INPUT if llama.cpp cannot run such a model, with the reason. The observer is
 * warned if it runs the model differently beyond some length, or with another gelu. */
hy_status hy_gguf_check(const hy_shape *shape, const hy_observer *observer);

/* What llama.cpp multiplies cosine and sine with for yarn, before attn_factor. multiplier:
 * yarn_log_multiplier; 0: none. */
double hy_gguf_yarn_factor(double factor, double multiplier);

/* Adds the keys that describe the shape, without those of the tokenizer. */
void hy_gguf_put_shape(const hy_shape *shape, hy_gguf_keys *keys);

/* All tensors of this model, in the order of our parameters; the caller frees the list. In these
 * names, head_size is that of paired rows (hy_gguf_pair); 0: rows are in our order. */
hy_status hy_gguf_list_names(const hy_shape *shape, const hy_params *params, hy_hf_name **out,
                             int32_t *count);
/* Brings rows (rows, cols) of whole heads from our order into pairs. */
void hy_gguf_pair(const float *ours, int64_t rows, int64_t cols, int32_t head_size, float *out);

/* Our row with this row of the file. From there, *run rows are in the same order. */
int64_t hy_gguf_row_of_ours(const hy_hf_name *name, int64_t in_file, int64_t *run);
/* Brings the columns of rows into the order of the file, or back. `size`: bytes of an element. */
void hy_gguf_tile_columns(const hy_hf_tiles *tiles, const void *from, int64_t rows, int64_t cols,
                          size_t size, bool to_file, void *out);
/* What the file has added to the numbers of a tensor: 1 to norms of Gemma. */
float hy_gguf_surplus(const hy_shape *shape, const hy_hf_name *name, hy_param_kind kind);

/* Tensors that follow from the shape alone: what divides the frequencies of rope. */
#define HY_GGUF_SHAPE_TENSORS 2
typedef struct hy_gguf_shape_tensor {
    const char *name;
    int32_t count;
    float values[HY_ROPE_PAIRS_MAX];
} hy_gguf_shape_tensor;
int hy_gguf_shape_tensors(const hy_shape *shape, hy_gguf_shape_tensor out[HY_GGUF_SHAPE_TENSORS]);
