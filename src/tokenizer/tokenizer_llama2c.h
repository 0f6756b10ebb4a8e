/* tokenizer_llama2c.h: the tokenizer that lies beside a llama2.c model, as one of ours.
 *
 * Its file holds pieces and scores, and no merges: two pieces are merged into a third, the one of the
 * highest score first. That is what a SentencePiece-style tokenizer.json says with a list of merges in the
 * order of scores; it is written out as such a text and opened. hy_tokenizer_open() takes such a file like
 * any other. */
#pragma once

#include "tokenizer/tokenizer.h"

bool hy_llama2c_tokenizer_is_named(const char *path); /* by its ending, .bin */
/* HY_ERR_INPUT names the file and what is wrong with it. */
hy_status hy_llama2c_tokenizer_open(const char *path, hy_tokenizer **out);

/* The same as the text of a tokenizer.json, appended. */
hy_status hy_llama2c_tokenizer_json(const char *path, hy_text *out);

/* Looks in the folder for a .bin file with exactly `vocab` pieces; path, which has `size` bytes, is ""
 * where there is none. */
hy_status hy_llama2c_tokenizer_find(const char *folder, int32_t vocab, char *path, size_t size);

/* Its tokenizer.bin: int32 longest piece; for each id fp32 score, int32 length, bytes. */
typedef struct hy_llama2c_pieces {
    hy_text bytes;
    uint32_t *begin; /* (count + 1) */
    float *scores;   /* (count) */
    int32_t count;
} hy_llama2c_pieces;

/* As many pieces as the file has, which must end exactly there. */
hy_status hy_llama2c_pieces_read(const char *path, hy_llama2c_pieces *out);
void hy_llama2c_pieces_free(hy_llama2c_pieces *pieces);
