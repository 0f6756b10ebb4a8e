/* tokenizer.h: the functions of a tokenizer that other modules need beyond hybrid_tokenizer.h.
 *
 * Growing arrays of ids, text without tokens, tokens by their spelling, and positions where a text
 * may be cut. */
#pragma once

#include "base/text.h"
#include "hybrid_tokenizer.h"

#define HY_BYTE_VOCAB 512       /* a model with more ids was made for a tokenizer, not for bytes */
#define HY_BLANK "\xE2\x96\x81" /* U+2581: how the pieces of SentencePiece spell a blank */

/* Text that a tokenizer cannot spell: its unknown token (<unk>) replaces it. */
typedef struct hy_unknown_text {
    uint64_t count, tokens; /* unknown tokens; all tokens */
    char example[40];       /* the beginning of the first such text; "": none */
    bool is_partial;        /* text before a resume is not counted */
} hy_unknown_text;
void hy_unknown_text_add(hy_unknown_text *sum, const hy_unknown_text *more);
/* As above; then *from counts nothing, but keeps its example. */
void hy_unknown_text_move(hy_unknown_text *sum, hy_unknown_text *from);
bool hy_unknown_text_is_much(const hy_unknown_text *unknown); /* more than a tenth */
/* Appends "3 of 90 tokens are <unk>: ...", or nothing if there are none. */
void hy_unknown_text_describe(const hy_unknown_text *unknown, const hy_tokenizer *tokenizer,
                              hy_text *out);

/* A growing array of ids; an empty one is all zeros. */
typedef struct hy_ids {
    int32_t *data;
    size_t count, room;
    hy_unknown_text unknown; /* of all texts that were encoded into it */
} hy_ids;
hy_status hy_ids_reserve(hy_ids *ids, size_t more); /* makes room for `more` ids */
hy_status hy_ids_append(hy_ids *ids, const int32_t *more, size_t count);
void hy_ids_free(hy_ids *ids); /* leaves it empty */

/* Opens a tokenizer from memory, without other files; error messages use `name`. */
hy_status hy_tokenizer_parse(const char *text, size_t size, const char *name, hy_tokenizer **out);

/* Appends the text of a tokenizer.json for a tokenizer that hy_tokenizer_open accepts. SentencePiece
 * files use keys of their own (tokenizer_sentencepiece.h). */
hy_status hy_tokenizer_json(const char *path, hy_text *out);

/* Appends the ids of `size` bytes of text. On failure, `out` may hold some of them. */
hy_status hy_tokenizer_encode(const hy_tokenizer *tokenizer, const char *text, size_t size,
                              int flags, hy_ids *out);
/* Appends the text of the ids, byte for byte; an incomplete character gives its bytes. Ids must be
 * below hy_tokenizer_vocab(); an id without a token gives no text. */
hy_status hy_tokenizer_decode(const hy_tokenizer *tokenizer, const int32_t *ids, size_t count,
                              int flags, hy_text *out);

/* Special tokens that are spelled in a text, in order. */
typedef struct hy_special {
    size_t begin, end; /* including the blanks that the token strips */
    size_t at, size;   /* only its spelling */
    int32_t id;
} hy_special;
typedef struct hy_specials {
    hy_special *items; /* freed by the caller */
    size_t count, room;
} hy_specials;
hy_status hy_tokenizer_find_specials(const hy_tokenizer *tokenizer, const char *text, size_t size,
                                     hy_specials *out);

/* The next position at or after `from` where the text may be cut without changing the ids; `size`
 * if there is none. */
size_t hy_tokenizer_cut(const hy_tokenizer *tokenizer, const char *text, size_t size, size_t from);

/* The id of a token, by its text as spelled in the file; -1: none. */
int32_t hy_tokenizer_find(const hy_tokenizer *tokenizer, const char *token);
/* The text of an id as spelled in the file, its size in *size (may be NULL); NULL: no such
 * token. */
const char *hy_tokenizer_token(const hy_tokenizer *tokenizer, int32_t id, size_t *size);
bool hy_tokenizer_is_special(const hy_tokenizer *tokenizer, int32_t id);
/* -1: none. */
int32_t hy_tokenizer_bos(const hy_tokenizer *tokenizer);
/* A SentencePiece file, and no file beside it says if a text begins with bos: then it does not, as
 * in transformers. How the file is read: "sentencepiece", or a class of transformers. Otherwise
 * NULL. */
const char *hy_tokenizer_guess(const hy_tokenizer *tokenizer);

/* The character that spells a byte in the printable alphabet of byte-level BPE. */
uint32_t hy_byte_spelling(uint8_t byte);
