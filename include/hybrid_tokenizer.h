/* hybrid_tokenizer.h: text to token ids and back, as a model's tokenizer.json says. Part of hybrid.h.
 *
 * Byte-level BPE (GPT-2, Llama 3, Qwen) and SentencePiece-style BPE with byte fallback (Llama 2, Mistral).
 * Ids are those of Hugging Face's tokenizers; whatever in a file would change them and is not known here
 * is refused by name. Text need not be valid UTF-8: stray bytes are tokens of their own. A tokenizer never
 * changes after opening: any number of threads may use one. */
#ifndef HYBRID_TOKENIZER_H
#define HYBRID_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>

#include "hybrid_types.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hy_tokenizer hy_tokenizer;

/* Flags of encoding and decoding; they may be joined with |. */
enum {
    HY_TOKENS_SPECIAL = 1,      /* encode: add bos and eos where the post-processor puts them */
    HY_TOKENS_PLAIN = 2,        /* encode: special tokens written out in the text are plain text */
    HY_TOKENS_SKIP_SPECIAL = 4, /* decode: leave out special tokens */
    HY_TOKENS_INSIDE =
        8 /* encode: other tokens stand before the text, so nothing is put in front of
                            it that belongs in front of a whole text */
};

/* Opens a tokenizer.json, or the one in a folder; tokenizer_config.json beside it names bos, eos and
 * pad. Errors are HY_ERR_INPUT and name the file and the thing in it. */
hy_status hy_tokenizer_open(const char *path, hy_tokenizer **out);
void hy_tokenizer_close(hy_tokenizer *tokenizer); /* may be NULL */

int32_t hy_tokenizer_vocab(const hy_tokenizer *tokenizer); /* ids lie below this */
int32_t hy_tokenizer_eos(const hy_tokenizer *tokenizer);   /* -1: none */

/* The ids of `size` bytes of text. Allocated; free with hy_free. */
hy_status hy_tokenize(const hy_tokenizer *tokenizer, const char *text, size_t size, int flags,
                      int32_t **ids, size_t *count);
/* The text of ids, byte for byte; it may hold zero bytes, and one more ends it. Allocated; free with
 * hy_free. */
hy_status hy_untokenize(const hy_tokenizer *tokenizer, const int32_t *ids, size_t count, int flags,
                        char **text, size_t *size);

/* ---- files to shards, on all cores ---- */

typedef struct hy_tokenize_progress {
    uint64_t bytes_done, bytes_total;
    uint64_t tokens;
} hy_tokenize_progress;

/* A file is a document; where the text of the eos token stands inside a file, another one begins there.
 * Each document ends with one eos. The held-out part is the last documents. Shards are named
 * OUT/train/000000.bin, OUT/val/000000.bin and so on, in the order of the files. */
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
    double seconds;
} hy_tokenize_result;

/* Fails with HY_ERR_INPUT when a shard of an earlier call is in OUT already. */
hy_status hy_tokenize_files(const hy_tokenize_options *options, hy_tokenize_result *result);

#ifdef __cplusplus
}
#endif
#endif
