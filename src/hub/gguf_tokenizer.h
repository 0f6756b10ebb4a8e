/* gguf_tokenizer.h: the tokenizer of a model as keys of a file of llama.cpp.
 *
 * llama.cpp has its own implementations: "gpt2" is byte-level BPE with a list of merges, and the
 * split of words is one of a fixed list, by name (tokenizer.ggml.pre); "llama" is BPE of
 * SentencePiece, by scores; "t5" is Unigram. A tokenizer that none of them computes is refused. */
#pragma once

#include "formats/gguf.h"
#include "hub/hf_export.h"

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
} hy_gguf_split;
/* Ends with {0}; the first of several rows with the same steps is written. */
extern const hy_gguf_split hy_gguf_splits[];

/* Adds the keys of the tokenizer and of the chat template for `vocab` ids. The tokenizer is
 * writing->tokenizer or that of writing->source; without one, ids are bytes. HY_ERR_INPUT: llama.cpp
 * cannot compute its ids, with what was found and what is accepted. */
hy_status hy_gguf_put_tokenizer(const hy_hf_writing *writing, int32_t vocab, hy_gguf_keys *keys);
