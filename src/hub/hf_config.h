/* hf_config.h: reads config.json of a model folder into a shape, and writes it from one.
 *
 * Every field that changes the computation is used or rejected by name. Fields that transformers
 * does not compute with are ignored, and unknown fields are reported in a note. Defaults are
 * those of the transformers classes. */
#pragma once

#include "base/json.h"
#include "base/text.h"
#include "model/arch/arch.h"

/* The name of a type in transformers ("bfloat16"), and the type of such a name; false: not the name
 * of fp32, bf16 or fp16. */
const char *hy_hf_dtype_word(hy_dtype dtype);
bool hy_hf_dtype_named(const char *word, hy_dtype *out);

/* How the files store the matrices of the blocks: as numbers, or quantised by bitsandbytes: in 4
 * bits with two-level or single-level scales, or in 8 bits. Each tensor has its own type. */
typedef enum hy_hf_quant { HY_HF_PLAIN, HY_HF_NF4, HY_HF_NF4_SINGLE, HY_HF_INT8 } hy_hf_quant;
/* The name of such a type, also in train.frozen_dtype ("nf4"), and the type of a name; false: not
 * the name of one. */
const char *hy_hf_quant_name(hy_hf_quant quant);
bool hy_hf_quant_named(const char *name, hy_hf_quant *out);

typedef struct hy_hf_config {
    hy_shape shape; /* with its architecture */
    hy_hf_quant quant;
    bool has_dtype; /* whether config.json names the type of the weights */
    hy_dtype dtype;
    bool has_images; /* the files have more than the text model */
    hy_text notes;   /* messages for the user, one per line */
} hy_hf_config;

/* Errors call the text `name`. Free *out after HY_OK. */
hy_status hy_hf_config_parse(const char *text, size_t size, const char *name, hy_hf_config *out);
hy_status hy_hf_config_read(const char *folder, hy_hf_config *out);
/* As above, without notes: nothing must be freed. */
hy_status hy_hf_config_look(const char *folder, hy_hf_config *out);
void hy_hf_config_free(hy_hf_config *config);

/* The start and end token of a text; -1: none. */
typedef struct hy_hf_tokens {
    int32_t bos, eos;
} hy_hf_tokens;

/* A config.json of the shape's architecture for weights of this type. `source` (may be NULL) is
 * the original config.json: its fields are kept, except those that follow from shape and dtype.
 * `tokens` belong to a tokenizer other than the source's; NULL: the source's. */
hy_status hy_hf_config_write(const hy_shape *shape, hy_dtype dtype, const hy_json_node *source,
                             const hy_hf_tokens *tokens, hy_text *out);

/* Copies the source, except for the type of the weights, their quantisation (none in the copy), and
 * these tokens. */
hy_status hy_hf_config_copy(const hy_json_node *source, hy_dtype dtype, const hy_hf_tokens *tokens,
                            hy_text *out);

/* Copies only this key of an object, or all except this key. */
hy_status hy_hf_json_filter(const hy_json_node *source, const char *key, bool is_kept,
                            hy_text *out);

/* Copies an object (may be NULL), and those members of `more` that it does not have. */
hy_status hy_hf_json_merge(const hy_json_node *source, const hy_json_node *more, hy_text *out);

/* A generation_config.json with these tokens. */
hy_status hy_hf_generation_write(const hy_hf_tokens *tokens, hy_text *out);

/* hf_config_fields.c: does the shape of such a model contain the value of this key? */
bool hy_hf_is_used(const hy_family *family, const char *key);
/* Checks the other fields of config.json: rejects values that would change the result, and adds
 * a note for each unknown field. */
hy_status hy_hf_check_fields(const hy_family *family, const hy_json_node *root, const char *name,
                             hy_text *notes);
