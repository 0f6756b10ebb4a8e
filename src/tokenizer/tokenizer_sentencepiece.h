/* tokenizer_sentencepiece.h: reads a SentencePiece file, such as tokenizer.model.
 *
 * The file is converted to the text of a tokenizer.json, which is then opened. If a
 * tokenizer_config.json beside it names the class LlamaTokenizer or GemmaTokenizer, ids are those
 * of transformers; otherwise they are those of the sentencepiece library. Anything that would give
 * other ids is refused by its name. The text uses keys of its own ("scores", the normaliser
 * "SentencePiece"), so it is never written to a file: an export copies the SentencePiece file. */
#pragma once

#include "tokenizer/tokenizer.h"

bool hy_sentencepiece_is_named(const char *path); /* by its ending, .model */

/* Appends the tokenizer as the text of a tokenizer.json. roles: ids of the pieces that begin and
 * end a text; -1: none. */
hy_status hy_sentencepiece_json(const char *path, hy_text *out, int32_t roles[2]);
/* As above, from `size` bytes in memory; the folder may contain tokenizer_config.json. */
hy_status hy_sentencepiece_convert(const void *data, size_t size, const char *name,
                                   const char *folder, hy_text *out, int32_t roles[2]);
