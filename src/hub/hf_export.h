/* hf_export.h: writes a model as a folder for transformers.
 *
 * Weights come from a store or a checkpoint file, some elements at a time; the folder is
 * complete or absent. The other files of the starting model (tokenizer, chat template,
 * generation settings) are copied. */
#pragma once

#include "data/chat_template.h"
#include "hub/hf_config.h"
#include "hybrid.h"
#include "model/model.h"

/* Elements [first, first + count) of a parameter, as fp32. */
typedef hy_status (*hy_weight_reader)(void *context, int32_t param, int64_t first, int64_t count,
                                      float *out);

typedef struct hy_hf_writing {
    const char *folder; /* the folder to write; an existing one is replaced */
    const char *source; /* folder of the starting model; NULL or "": none */
    const char *prefix; /* prefix of its tensor names; NULL: as in its weights */
    /* The folder of its weights, if it is not `source`: those of a model of text and images have
     * tensors beside the text model's, which are copied. NULL or "": `source` */
    const char *weights;
    const char *tokenizer; /* its file, if it is not in `source`; NULL or "": in `source` */
    const hy_shape *shape;
    const hy_params *params;
    hy_dtype dtype; /* fp32, bf16 or fp16 */
    /* Of a file for llama.cpp (gguf_export.h), or of the matrices in the blocks of a folder that
     * bitsandbytes reads (bnb.h): nf4, nf4_single, int8. NULL: as dtype */
    const char *type;
    hy_prompt_format prompt; /* of the rows; a built-in template becomes the folder's */
    uint64_t shard_size;     /* maximum tensor bytes per file; a larger tensor has its own file */
    hy_weight_reader read;
    void *context;
    bool is_gguf;     /* `folder` is a file for llama.cpp (gguf_export.h) */
    bool has_to_fit;  /* fail at once if the disk has less space than the weights need */
    bool is_adapter;  /* a PEFT folder: only adapters and modules trained whole */
    const char *base; /* the base model's name in that folder */
    const struct hy_moments_source *moments; /* calibration, of types in blocks; NULL: none */
    int threads;                             /* that encode such a file; 0: one per core */
    const hy_observer *observer; /* gets progress, and a warning if the architecture differs from
                                    the source's */
} hy_hf_writing;

/* The types of a folder with quantised matrices (bnb.h), for messages. */
#define HY_HF_TYPES "nf4, nf4_single, int8"
/* The quantisation of a folder with this type; NULL: none. HY_ERR_INPUT names an unknown type and
 * the accepted ones. */
hy_status hy_hf_check_type(const char *type, bool is_adapter, hy_hf_quant *out);

/* HY_ERR_NUMERIC if a tensor that is written contains a number that is not finite, or one too large
 * for fp16: `wider` is the flag that sets another type; NULL: it is not written in fp16. */
hy_status hy_hf_check_numbers(const char *name, const float *x, int64_t count, const char *wider);

/* HY_ERR_INPUT if no architecture of transformers supports the shape. */
hy_status hy_hf_write(const hy_hf_writing *writing);
/* Whether `folder` may be written: it is new, empty, or a model's. */
hy_status hy_hf_check_folder(const char *folder);
/* Gives a written folder another name; a model's folder of that name is replaced. */
hy_status hy_hf_rename(const char *from, const char *folder);

/* Removes a hidden folder that an export of `folder` left. It may be the folder that was there
 * before: files that a user added to it are moved to `folder` first. If that fails, it stays. */
hy_status hy_hf_discard(const char *hidden, const char *folder);

/* hf_tokenizer_files.c: writes the tokenizer's files (tokenizer.json, its folder, or llama2.c's)
 * to a model folder and replaces existing ones. */
hy_status hy_hf_write_tokenizer(const char *tokenizer, const char *folder);
/* Completes a folder that has a copy of the SentencePiece file `path`: adds to its
 * tokenizer_config.json and, for ids of sentencepiece, writes a tokenizer.json. */
hy_status hy_hf_publish_pieces(const char *path, const char *folder);
/* Writes a file of the folder atomically: from memory, or as a copy. */
hy_status hy_hf_put_file(const char *folder, const char *name, const void *data, size_t size);
hy_status hy_hf_copy_file(const char *from, const char *folder, const char *name);
/* Copies the other files of a model folder, without config.json and weights. The observer (may
 * be NULL) is warned of entries that are skipped because they are not files of the folder. */
hy_status hy_hf_copy_side_files(const char *from, const char *to, const hy_observer *observer);
/* Copies config.json; for a GGUF file, writes one. */
hy_status hy_hf_copy_config(const char *from, const char *to);
