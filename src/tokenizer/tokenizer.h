/* tokenizer.h: what the rooms use of a tokenizer beyond hybrid_tokenizer.h, which says what it is.
 *
 * Rows of ids and texts that grow, tokens by their spelling, and places where a text may be cut. */
#pragma once

#include "base/text.h"
#include "hybrid_tokenizer.h"

/* A growing row of ids; a zeroed one is empty. */
typedef struct hy_ids {
    int32_t *data;
    size_t count, room;
} hy_ids;
hy_status hy_ids_reserve(hy_ids *ids, size_t more); /* room for so many more */
hy_status hy_ids_append(hy_ids *ids, const int32_t *more, size_t count);
void hy_ids_free(hy_ids *ids); /* leaves it empty */

/* Opens from memory, without a file beside it; `name` is what errors call it. */
hy_status hy_tokenizer_parse(const char *text, size_t size, const char *name, hy_tokenizer **out);

/* Appends the ids of `size` bytes of text. When it fails, `out` may hold a part of them. */
hy_status hy_tokenizer_encode(const hy_tokenizer *tokenizer, const char *text, size_t size,
                              int flags, hy_ids *out);
/* Appends the text of the ids, byte for byte: half a character is given as its bytes. Ids must lie
 * below hy_tokenizer_vocab(); one that no token has gives nothing. */
hy_status hy_tokenizer_decode(const hy_tokenizer *tokenizer, const int32_t *ids, size_t count,
                              int flags, hy_text *out);

/* Special tokens that are written out in a text, in order. */
typedef struct hy_special {
    size_t begin, end; /* with the blanks around it that the token takes */
    size_t at, size;   /* its spelling alone */
    int32_t id;
} hy_special;
typedef struct hy_specials {
    hy_special *items; /* freed by the caller */
    size_t count, room;
} hy_specials;
hy_status hy_tokenizer_find_specials(const hy_tokenizer *tokenizer, const char *text, size_t size,
                                     hy_specials *out);

/* The next place at or after `from` where the text may be cut so that the ids of the two parts are
 * those of the whole; `size` when there is none. */
size_t hy_tokenizer_cut(const hy_tokenizer *tokenizer, const char *text, size_t size, size_t from);

/* The id of a token by its text as the file spells it, -1: there is none. */
int32_t hy_tokenizer_find(const hy_tokenizer *tokenizer, const char *token);
/* Of an id: the token's text as the file spells it (its size in *size, if not NULL); NULL: none. */
const char *hy_tokenizer_token(const hy_tokenizer *tokenizer, int32_t id, size_t *size);
bool hy_tokenizer_is_special(const hy_tokenizer *tokenizer, int32_t id);
/* -1: none. */
int32_t hy_tokenizer_bos(const hy_tokenizer *tokenizer);
