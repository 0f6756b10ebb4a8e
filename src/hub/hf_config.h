/* hf_config.h: config.json of a model's folder, read into a shape and written from one.
 *
 * Every field that changes what the model computes is used or refused by name; what transformers
 * does not compute with is ignored, and a field that is not known is named in a note. Defaults are
 * those of transformers' own classes. */
#pragma once

#include "base/json.h"
#include "base/text.h"
#include "model/arch/arch.h"

/* "bfloat16", as transformers calls types; of a word whether it is one of fp32, bf16 and fp16. */
const char *hy_hf_dtype_word(hy_dtype dtype);
bool hy_hf_dtype_named(const char *word, hy_dtype *out);

/* How the matrices of the blocks are stored in the files: as numbers, or as bitsandbytes quantises
 * them, with scales of two levels or one. Each tensor says for itself what it is. */
typedef enum hy_hf_quant { HY_HF_PLAIN, HY_HF_NF4, HY_HF_NF4_SINGLE } hy_hf_quant;

typedef struct hy_hf_config {
    hy_shape shape; /* with its architecture */
    hy_hf_quant quant;
    bool has_dtype; /* of the weights in the files, as far as it says */
    hy_dtype dtype;
    hy_text notes; /* what the user should know: a line each */
} hy_hf_config;

/* `name` is what errors call the text. *out is to be freed where HY_OK is returned. */
hy_status hy_hf_config_parse(const char *text, size_t size, const char *name, hy_hf_config *out);
hy_status hy_hf_config_read(const char *folder, hy_hf_config *out);
/* The same without notes: nothing is to be freed. */
hy_status hy_hf_config_look(const char *folder, hy_hf_config *out);
void hy_hf_config_free(hy_hf_config *config);

/* The tokens that begin and end a text; -1: none. */
typedef struct hy_hf_tokens {
    int32_t bos, eos;
} hy_hf_tokens;

/* A config.json of the shape's architecture for weights of this type. `source` (may be NULL) is the
 * one the model came with: its fields are kept, those that follow from shape and dtype are as these
 * say. `tokens` are those of a tokenizer that is not the source's; NULL: it is. */
hy_status hy_hf_config_write(const hy_shape *shape, hy_dtype dtype, const hy_json_node *source,
                             const hy_hf_tokens *tokens, hy_text *out);

/* The source as it is, but for the type of the weights, which are not quantised, and such tokens.
 * */
hy_status hy_hf_config_copy(const hy_json_node *source, hy_dtype dtype, const hy_hf_tokens *tokens,
                            hy_text *out);

/* A generation_config.json with these tokens. */
hy_status hy_hf_generation_write(const hy_hf_tokens *tokens, hy_text *out);

/* hf_config_quant.c: what the root of a config.json says of it. HY_ERR_INPUT names a method that is
 * not read. */
hy_status hy_hf_quant_read(const hy_json_node *root, const char *name, hy_hf_quant *out);

/* hf_config_fields.c: whether the shape of such a model says what stands under this key. */
bool hy_hf_is_used(const hy_family *family, const char *key);
/* What else is known about the fields of config.json. Refuses a field with a value
 * that would change the result; adds a note for each that is not known. */
hy_status hy_hf_check_fields(const hy_family *family, const hy_json_node *root, const char *name,
                             hy_text *notes);
