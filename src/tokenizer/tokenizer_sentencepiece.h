/* tokenizer_sentencepiece.h: reads a SentencePiece file, such as tokenizer.model.
 *
 * The file is converted to the text of a tokenizer.json, which is then opened. If a
 * tokenizer_config.json beside it names the class LlamaTokenizer or GemmaTokenizer, or config.json
 * has a model_type of Gemma, ids are those of transformers; otherwise they are those of the
 * sentencepiece library. Anything that would give other ids is refused by its name. The text uses
 * keys of its own ("scores", the normaliser "SentencePiece"), so it is never written to a file.
 *
 * transformers reads a file without a class otherwise than the library: it ignores the blank that
 * the file puts before a text. So an export has the file and a tokenizer.json in the format of
 * transformers (is_published), and the key HY_SOURCE_FILE in tokenizer_config.json names the file
 * to us. */
#pragma once

#include "tokenizer/tokenizer.h"

#define HY_SOURCE_FILE "source_file"
#define HY_SOURCE_NAME "tokenizer.model"

bool hy_sentencepiece_is_named(const char *path); /* by its ending, .model */

typedef struct hy_sentencepiece {
    bool is_published; /* set by the caller: in the format of transformers; see above */
    hy_text json;      /* the text of a tokenizer.json; freed by the caller, also after an error */
    const char *class; /* of transformers; NULL: ids are those of sentencepiece */
    int32_t ends[2];   /* ids of the pieces that begin and end a text; -1: none */
} hy_sentencepiece;

hy_status hy_sentencepiece_json(const char *path, hy_sentencepiece *out);
/* As above, from `size` bytes in memory; the folder may contain tokenizer_config.json. */
hy_status hy_sentencepiece_convert(const void *data, size_t size, const char *name,
                                   const char *folder, hy_sentencepiece *out);
