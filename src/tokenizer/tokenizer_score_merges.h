/* tokenizer_score_merges.h: merges for pieces that have scores.
 *
 * SentencePiece and llama2.c merge two pieces into a third, the one with the highest score first. A
 * tokenizer.json says the same with a list of merges in the order of scores. */
#pragma once

#include "base/json.h"

typedef struct hy_scored_piece {
    const char *text;
    size_t begin; /* for the owner of the texts */
    float score;
    int32_t id;
} hy_scored_piece;

/* Puts the array "merges": every way to join two of the pieces into a third. Sorts the list. */
hy_status hy_put_score_merges(hy_scored_piece **pieces, int32_t count, hy_json_writer *w);
