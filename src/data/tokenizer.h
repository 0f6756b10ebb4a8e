/* tokenizer.h: text to token ids and back, as a model's tokenizer.json says.
 *
 * Byte-level BPE (GPT-2, Llama 3, Qwen) and SentencePiece-style BPE with byte fallback (Llama 2,
 * Mistral), with the normalisers, splitters, added tokens and templates these families use. Ids are
 * those of Hugging Face's tokenizers. Whatever in a file would change the ids and is not known here
 * is refused by name. Text need not be valid UTF-8: stray bytes are tokens of their own.
 *
 * A tokenizer never changes after opening: any number of threads may use one. */
#ifndef HY_DATA_TOKENIZER_H
#define HY_DATA_TOKENIZER_H

#include "base/text.h"
#include "hybrid_types.h"

typedef struct hy_tokenizer hy_tokenizer;

/* Flags of encoding and decoding; they may be joined with |. */
enum {
    HY_TOKENS_SPECIAL = 1,     /* encode: add bos and eos where the post-processor puts them */
    HY_TOKENS_PLAIN = 2,       /* encode: special tokens written out in the text are plain text */
    HY_TOKENS_SKIP_SPECIAL = 4 /* decode: leave out special tokens */
};

/* A growing row of ids; a zeroed one is empty. */
typedef struct hy_ids {
    int32_t *data;
    size_t count, room;
} hy_ids;
void hy_ids_free(hy_ids *ids); /* leaves it empty */

/* Opens a tokenizer.json, or the one in a folder; tokenizer_config.json beside it names bos, eos and
 * pad. Errors are HY_ERR_INPUT and name the file and the thing in it. */
hy_status hy_tokenizer_open(const char *path, hy_tokenizer **out);
/* The same from memory, without a file beside it; `name` is what errors call it. */
hy_status hy_tokenizer_parse(const char *text, size_t size, const char *name, hy_tokenizer **out);
void hy_tokenizer_close(hy_tokenizer *tokenizer); /* may be NULL */

/* Appends the ids of `size` bytes of text. When it fails, `out` may hold a part of them. */
hy_status hy_tokenizer_encode(const hy_tokenizer *tokenizer, const char *text, size_t size,
                              int flags, hy_ids *out);
/* Appends the text of the ids, byte for byte: half a character is given as its bytes. Ids must lie
 * below hy_tokenizer_vocab(); one that no token has gives nothing. */
hy_status hy_tokenizer_decode(const hy_tokenizer *tokenizer, const int32_t *ids, size_t count,
                              int flags, hy_text *out);

/* The next place at or after `from` where the text may be cut so that the ids of the two parts are
 * those of the whole; `size` when there is none. */
size_t hy_tokenizer_cut(const hy_tokenizer *tokenizer, const char *text, size_t size, size_t from);

int32_t hy_tokenizer_vocab(const hy_tokenizer *tokenizer); /* ids lie below this */
/* The id of a token by its text as the file spells it, -1: there is none. */
int32_t hy_tokenizer_find(const hy_tokenizer *tokenizer, const char *token);
/* Of an id: the token's text as the file spells it (its size in *size, if not NULL); NULL: none. */
const char *hy_tokenizer_token(const hy_tokenizer *tokenizer, int32_t id, size_t *size);
bool hy_tokenizer_is_special(const hy_tokenizer *tokenizer, int32_t id);
/* -1: none. */
int32_t hy_tokenizer_bos(const hy_tokenizer *tokenizer);
int32_t hy_tokenizer_eos(const hy_tokenizer *tokenizer);
int32_t hy_tokenizer_pad(const hy_tokenizer *tokenizer);

#endif
