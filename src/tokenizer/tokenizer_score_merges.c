/* tokenizer_score_merges.c: see tokenizer_score_merges.h.
 *
 * Pieces are found by their text in a sorted list, so the time is that of a search for each
 * character of all pieces. */
#include "tokenizer/tokenizer_score_merges.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/utf8.h"

typedef struct piece_list {
    hy_scored_piece **by_text;
    int32_t count;
} piece_list;

static int compare_texts(const void *a, const void *b) {
    return strcmp((*(hy_scored_piece *const *)a)->text, (*(hy_scored_piece *const *)b)->text);
}

static bool has_piece(const piece_list *list, const char *text) {
    hy_scored_piece wanted = {.text = text}, *at = &wanted;
    return bsearch(&at, list->by_text, (size_t)list->count, sizeof at, compare_texts) != NULL;
}

static int compare_scores(const void *a, const void *b) {
    const hy_scored_piece *one = *(hy_scored_piece *const *)a;
    const hy_scored_piece *other = *(hy_scored_piece *const *)b;
    if (one->score != other->score) return one->score > other->score ? -1 : 1;
    return one->id < other->id ? -1 : 1;
}

/* Writes every way to merge two pieces into piece p. */
static void put_merges(const piece_list *list, const hy_scored_piece *p, hy_json_writer *w) {
    size_t size = strlen(p->text);
    char *pair = malloc(size + 2);
    if (!pair) {
        w->text->has_failed = true;
        return;
    }
    for (size_t at = 0; at < size;) {
        int length = hy_utf8_length((const uint8_t *)p->text + at, size - at);
        at += length > 0 ? (size_t)length : 1;
        if (at >= size) break;
        memcpy(pair, p->text, at);
        pair[at] = 0;
        memcpy(pair + at + 1, p->text + at, size - at + 1);
        if (!has_piece(list, pair) || !has_piece(list, pair + at + 1)) continue;
        pair[at] = ' ';
        hy_json_put_string(w, NULL, pair);
    }
    free(pair);
}

hy_status hy_put_score_merges(hy_scored_piece **pieces, int32_t count, hy_json_writer *w) {
    piece_list list = {pieces, count};
    hy_scored_piece **by_score = malloc((size_t)(count + 1) * sizeof *by_score);
    if (!by_score) return hy_fail(HY_ERR_MEMORY, "not enough memory for a tokenizer");
    qsort(pieces, (size_t)count, sizeof *pieces, compare_texts);
    memcpy(by_score, pieces, (size_t)count * sizeof *by_score);
    qsort(by_score, (size_t)count, sizeof *by_score, compare_scores);
    hy_json_open_array(w, "merges");
    for (int32_t i = 0; i < count; i++) put_merges(&list, by_score[i], w);
    hy_json_close_array(w);
    free(by_score);
    return HY_OK;
}
