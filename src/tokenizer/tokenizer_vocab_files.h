/* tokenizer_vocab_files.h: tokenizers of folders without a tokenizer.json.
 *
 * Older folders have vocab.json and merges.txt. They are converted to the text of a tokenizer.json
 * as transformers converts them, for the classes GPT2Tokenizer and Qwen2Tokenizer. Any other
 * tokenizer file is refused by its name: a model is never silently trained on other tokens than
 * its own. */
#pragma once

#include "tokenizer/tokenizer.h"

/* The file of the tokenizer in a folder: tokenizer.json, or vocab.json next to merges.txt; "":
 * there is none. HY_ERR_INPUT names a tokenizer file that cannot be read. */
hy_status hy_tokenizer_file(const char *folder, char *path, size_t size);

bool hy_vocab_files_are_named(const char *path); /* it is vocab.json in some folder */
/* Appends the tokenizer as the text of a tokenizer.json. */
hy_status hy_vocab_files_json(const char *path, hy_text *out);
