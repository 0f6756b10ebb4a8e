/* tokenizer_llama2c.h: opens the tokenizer.bin of a llama2.c model.
 *
 * The file has pieces and scores but no merges: llama2.c merges two pieces into a third, highest
 * score first. A SentencePiece-style tokenizer.json expresses the same as a list of merges in the
 * order of scores. So the file is converted to the text of a tokenizer.json, which is then opened.
 * hy_tokenizer_open() accepts such a file, too. */
#pragma once

#include "tokenizer/tokenizer.h"

bool hy_llama2c_tokenizer_is_named(const char *path); /* by its ending, .bin */
/* HY_ERR_INPUT names the file and what is wrong with it. */
hy_status hy_llama2c_tokenizer_open(const char *path, hy_tokenizer **out);

/* Appends the tokenizer as the text of a tokenizer.json. */
hy_status hy_llama2c_tokenizer_json(const char *path, hy_text *out);

/* Searches the folder for a .bin file with exactly `vocab` pieces. path has room for `size` bytes
 * and is "" if there is none. */
hy_status hy_llama2c_tokenizer_find(const char *folder, int32_t vocab, char *path, size_t size);
