/* hf_export.h: a model written as a folder that transformers loads.
 *
 * Weights come from whoever has them, a store or a checkpoint's file, some elements at a time; the
 * folder is whole or not there. What lay beside the weights the model began with (tokenizer, chat
 * template, generation settings) is copied along. */
#pragma once

#include "hybrid.h"
#include "model/model.h"

/* Elements [first, first + count) of a parameter, as fp32. */
typedef hy_status (*hy_weight_reader)(void *context, int32_t param, int64_t first, int64_t count,
                                      float *out);

typedef struct hy_hf_writing {
    const char *folder;    /* to be made; one that is there is replaced */
    const char *source;    /* folder of the model it began as; NULL or "": none */
    const char *prefix;    /* of the tensors' names there; NULL: as its weights have it */
    const char *tokenizer; /* its file, where it is not the one in `source`; NULL or "": it is */
    const hy_shape *shape;
    const hy_params *params;
    hy_dtype dtype;      /* fp32, bf16 or fp16 */
    uint64_t shard_size; /* most bytes of tensors in a file; a larger tensor has one of its own */
    hy_weight_reader read;
    void *context;
    bool is_adapter;  /* a folder of PEFT: adapters and what is trained whole, and nothing else */
    const char *base; /* what it then names as the model it stands beside */
    const hy_observer *observer; /* hears where the architecture is another than the source's */
} hy_hf_writing;

/* HY_ERR_INPUT where no architecture of transformers computes what the shape says. */
hy_status hy_hf_write(const hy_hf_writing *writing);

/* hf_tokenizer_files.c: the files of a tokenizer (tokenizer.json, its folder, or llama2.c's) as a
 * model's folder has them; those that are there are replaced. */
hy_status hy_hf_write_tokenizer(const char *tokenizer, const char *folder);
/* A file of the folder, whole or not there: from memory, or a copy of another. */
hy_status hy_hf_put_file(const char *folder, const char *name, const void *data, size_t size);
hy_status hy_hf_copy_file(const char *from, const char *folder, const char *name);
/* What lies in a model's folder beside config.json and weights; the observer, which may be NULL,
 * hears of what is no file of that folder and stays behind. */
hy_status hy_hf_copy_side_files(const char *from, const char *to, const hy_observer *observer);
