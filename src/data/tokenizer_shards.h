/* tokenizer_shards.h: text files become shards of token ids, on all cores.
 *
 * A file is a document; where the text of the eos token stands inside a file, another one begins
 * there. Each document ends with one eos. The held-out part is the last documents. Shards are named
 * OUT/train/000000.bin, OUT/val/000000.bin and so on, in the order of the files. */
#ifndef HY_DATA_TOKENIZER_SHARDS_H
#define HY_DATA_TOKENIZER_SHARDS_H

#include "data/tokenizer.h"

typedef struct hy_tokenize_progress {
    uint64_t bytes_done, bytes_total;
    uint64_t tokens;
} hy_tokenize_progress;

typedef struct hy_tokenize_options {
    const hy_tokenizer *tokenizer;
    const char *const *paths; /* files and folders */
    size_t path_count;
    const char *out;       /* folder; made when it is not there */
    double val_fraction;   /* of the bytes, in [0, 0.5] */
    uint64_t shard_tokens; /* of a shard; 0: 32 Mi */
    int threads;           /* 0: one per core */
    bool is_plain;         /* special tokens in the text are plain text; so is eos */
    /* Called now and then, on the calling thread; returning false stops (HY_STOPPED). May be NULL. */
    bool (*tell)(void *user, const hy_tokenize_progress *progress);
    void *user;
} hy_tokenize_options;

typedef struct hy_tokenize_result {
    uint64_t files, skipped, documents, bytes;
    uint64_t tokens[2]; /* train, val */
    uint64_t shards[2];
} hy_tokenize_result;

/* Fails with HY_ERR_INPUT when a shard of an earlier call is in OUT already. */
hy_status hy_tokenize_files(const hy_tokenize_options *options, hy_tokenize_result *result);

#endif
