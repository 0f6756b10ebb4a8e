/* hybrid_tokenizer.h: converts text to token ids and back, by a model's tokenizer. Part of
 * hybrid.h.
 *
 * Supported are byte-level BPE (GPT-2, Llama 3, Qwen) and SentencePiece-style BPE with byte
 * fallback (Llama 2, Mistral) in a tokenizer.json, and SentencePiece files (tokenizer.model) with
 * BPE, Unigram or single characters. Ids equal those of Hugging Face's tokenizers, or those of
 * sentencepiece where no tokenizer_config.json names a class and the model is not a Gemma. A file
 * with an unsupported feature that would change ids is refused, and the message names the feature.
 * Text need not be valid UTF-8: invalid bytes become separate tokens. An open tokenizer never
 * changes, so several threads may use it. */
#ifndef HYBRID_TOKENIZER_H
#define HYBRID_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>

#include "hybrid_types.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hy_tokenizer hy_tokenizer;

/* Flags for encoding and decoding; combine them with |. */
enum {
    HY_TOKENS_SPECIAL = 1,      /* encode: add bos and eos where the post-processor puts them */
    HY_TOKENS_PLAIN = 2,        /* encode: treat special tokens in the text as plain text */
    HY_TOKENS_SKIP_SPECIAL = 4, /* decode: leave out special tokens */
    HY_TOKENS_INSIDE = 8        /* encode: the text continues another, so add no text prefix */
};

/* Opens a tokenizer.json or a .model file, or the one in a folder; tokenizer_config.json beside it names bos, eos
 * and pad. Errors are HY_ERR_INPUT and name the file and the entry. */
hy_status hy_tokenizer_open(const char *path, hy_tokenizer **out);
void hy_tokenizer_close(hy_tokenizer *tokenizer); /* NULL is allowed */

int32_t hy_tokenizer_vocab(const hy_tokenizer *tokenizer); /* all ids are below this */
int32_t hy_tokenizer_eos(const hy_tokenizer *tokenizer);   /* -1: none */
/* The token for text that has no other tokens, as <unk>; -1: none. */
int32_t hy_tokenizer_unknown(const hy_tokenizer *tokenizer);

/* The ids of `size` bytes of text. Allocated; free with hy_free. */
hy_status hy_tokenize(const hy_tokenizer *tokenizer, const char *text, size_t size, int flags,
                      int32_t **ids, size_t *count);
/* The text of ids, byte for byte. It may contain zero bytes; one more zero byte follows its end.
 * Allocated; free with hy_free. */
hy_status hy_untokenize(const hy_tokenizer *tokenizer, const int32_t *ids, size_t count, int flags,
                        char **text, size_t *size);

/* ---- files to shards, on all cores ----------------------------------------------------------- */

typedef struct hy_tokenize_progress {
    size_t size;
    uint64_t bytes_done, bytes_total;
    uint64_t tokens;
} hy_tokenize_progress;

/* Each file is a document; the text of the eos token inside a file begins a new one. Each document
 * ends with one eos. The last documents are held out for validation. Shards are named
 * OUT/train/000000.bin, OUT/val/000000.bin and so on, in the order of the files. */
typedef struct hy_tokenize_options {
    const hy_tokenizer *tokenizer;
    const char *const *paths; /* files and folders */
    size_t path_count;
    const char *out;       /* folder; created if it does not exist */
    double val_fraction;   /* held-out share of the bytes, in [0, 0.5] */
    uint64_t shard_tokens; /* per shard; 0: 32 Mi */
    int threads;           /* 0: one per core */
    bool is_plain;         /* treat special tokens in the text, including eos, as plain text */
    bool (*tell)(void *user, const hy_tokenize_progress *progress); /* old on_progress, until 0.3 */
    void *user;
    /* Called from time to time on the calling thread; return false to stop (HY_STOPPED). May be
     * NULL. */
    bool (*on_progress)(void *user, const hy_tokenize_progress *progress);
} hy_tokenize_options;

typedef struct hy_tokenize_result {
    size_t size;
    uint64_t files, skipped, documents, bytes;
    uint64_t tokens[2]; /* train, val */
    uint64_t shards[2];
    double seconds;
    /* Text that the tokenizer cannot spell: "3 of 90 tokens are <unk>: ..."; "": none. */
    uint64_t unknown_tokens;
    char unknown_text[256];
} hy_tokenize_result;

/* Writes the shards. HY_ERR_INPUT: the folder already has a shard of an earlier call. */
static inline hy_status hy_tokenize_files(const hy_tokenize_options *options,
                                          hy_tokenize_result *result);

/* ---- calls that pass the size of your struct: see hybrid_types.h ----------------------------- */

hy_status hy_tokenize_files_sized(const hy_tokenize_options *options, hy_tokenize_result *result,
                                  size_t size);
static inline hy_status hy_tokenize_files(const hy_tokenize_options *options,
                                          hy_tokenize_result *result) {
    return hy_tokenize_files_sized(options, result, sizeof *result);
}

#ifdef __cplusplus
}
#endif
#endif
