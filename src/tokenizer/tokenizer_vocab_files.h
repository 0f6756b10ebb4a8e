/* tokenizer_vocab_files.h: tokenizers of folders without a tokenizer.json.
 *
 * Older folders have vocab.json and merges.txt. They are converted to the text of a tokenizer.json
 * as transformers converts them, for the classes GPT2Tokenizer and Qwen2Tokenizer. SentencePiece
 * files have a reader of their own (tokenizer_sentencepiece.h). Any other tokenizer file is refused
 * by its name: a model is never silently trained on other tokens than its own. */
#pragma once

#include "base/json.h"
#include "tokenizer/tokenizer.h"

/* The file of the tokenizer in a folder: tokenizer.json, vocab.json next to merges.txt,
 * tokenizer.model or spiece.model; "": there is none. A GGUF file is its own tokenizer file.
 * HY_ERR_INPUT names a tokenizer file that cannot be read. */
hy_status hy_tokenizer_file(const char *folder, char *path, size_t size);

bool hy_vocab_files_are_named(const char *path); /* it is vocab.json in some folder */
/* Appends the tokenizer as the text of a tokenizer.json. */
hy_status hy_vocab_files_json(const char *path, hy_text *out);

/* Reads a JSON file of the folder, or what a GGUF file has instead (tokenizer_gguf.h); *out is NULL
 * if there is none. */
hy_status hy_tokenizer_read_beside(const char *folder, const char *name, hy_json **out);
/* Whether a tokenizer_class is `class`, or that name followed by Fast. */
bool hy_tokenizer_is_class(const char *name, const char *class);
/* Puts an entry of added_tokens; flags (may be NULL) is an object with "lstrip" and the others.
 * is_normalized counts if the flags do not contain it. */
void hy_tokenizer_put_added(hy_json_writer *w, int64_t id, const char *text,
                            const hy_json_node *flags, bool is_special, bool is_normalized);
