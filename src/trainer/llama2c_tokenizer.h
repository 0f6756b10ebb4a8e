/* llama2c_tokenizer.h: the tokenizer that lies beside a llama2.c model, as one of ours.
 *
 * Its file holds pieces and scores, and no merges: two pieces are merged into a third, the one of the
 * highest score first. That is what a SentencePiece-style tokenizer.json says with a list of merges in the
 * order of scores; it is written out as such a text and opened. */
#ifndef HY_TRAINER_LLAMA2C_TOKENIZER_H
#define HY_TRAINER_LLAMA2C_TOKENIZER_H

#include "data/tokenizer.h"

/* Looks in the folder for a .bin file with exactly `vocab` pieces. *out is NULL and path "" where there is
 * none. path has `size` bytes. */
hy_status hy_llama2c_tokenizer_find(const char *folder, int32_t vocab, char *path, size_t size,
                                    hy_tokenizer **out);

#endif
