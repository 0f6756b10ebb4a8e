/* gguf_tokenizer.h: the tokenizer of a model as keys of a file of llama.cpp.
 *
 * llama.cpp has its own implementations: "gpt2" is byte-level BPE with a list of merges, and the
 * split of words is one of a fixed list, by name (tokenizer.ggml.pre); "llama" is BPE of
 * SentencePiece, by scores; "t5" is Unigram. A tokenizer that none of them computes is refused. */
#pragma once

#include "formats/gguf.h"
#include "hub/hf_export.h"
#include "tokenizer/tokenizer_gguf.h"

/* Adds the keys of the tokenizer and of the chat template for `vocab` ids. The tokenizer is
 * writing->tokenizer or that of writing->source; without one, ids are bytes. HY_ERR_INPUT:
 * llama.cpp cannot compute its ids, with what was found and what is accepted. */
hy_status hy_gguf_put_tokenizer(const hy_hf_writing *writing, int32_t vocab, hy_gguf_keys *keys);
