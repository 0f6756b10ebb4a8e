/* tokenizer_gguf.h: the tokenizer of a GGUF file.
 *
 * Its keys become the text of the JSON files that a model folder has, so that they are opened and
 * written as those are. "gpt2" is byte-level BPE with a list of merges; tokenizer.ggml.pre names
 * the split of words. "llama" is BPE of SentencePiece: pieces with scores, and tokens for bytes. "t5"
 * is Unigram, and becomes a SentencePiece file. Other kinds are refused by name. */
#pragma once

#include "tokenizer/tokenizer.h"

/* The types of tokens, as numbered in files. */
typedef enum hy_gguf_token_type {
    HY_GGUF_TOKEN_NORMAL = 1,
    HY_GGUF_TOKEN_UNKNOWN = 2,
    HY_GGUF_TOKEN_CONTROL = 3,
    HY_GGUF_TOKEN_USER_DEFINED = 4,
    HY_GGUF_TOKEN_UNUSED = 5,
    HY_GGUF_TOKEN_BYTE = 6
} hy_gguf_token_type;

/* A split of words that llama.cpp knows. */
typedef struct hy_gguf_split {
    const char *name;  /* tokenizer.ggml.pre */
    const char *steps; /* the steps of pre_tokenizer in tokenizer.json, one per line */
    bool ignores_merges;
    bool has_nfc; /* tokenizers with this name bring text into form NFC; llama.cpp does not */
} hy_gguf_split;
/* Ends with {0}; the first of several rows with the same values is written. */
extern const hy_gguf_split hy_gguf_splits[];

/* Whether the file has a tokenizer. */
hy_status hy_gguf_has_tokenizer(const char *path, bool *out);
/* Appends the content of tokenizer.json, or for "t5" of tokenizer.model instead; of
 * tokenizer_config.json or generation_config.json; nothing for other names. */
hy_status hy_gguf_tokenizer_json(const char *path, const char *name, hy_text *out);
