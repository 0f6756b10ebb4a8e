/* tokenizer_scores.c: tokens with scores, as SentencePiece has them.
 *
 * BPE: two tokens merge into every token that is both together, the one with the highest score
 * first. Unigram: the tokens of a text are the path with the largest sum of scores. Sums are fp32
 * over the whole text, as in the library: paths with almost the same sum would differ otherwise. */
#include <math.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/error.h"
#include "tokenizer/tokenizer_parts.h"
#include "tokenizer/unicode.h"

/* ---- merges ---------------------------------------------------------------------------------- */

typedef struct scored {
    float score;
    int32_t id;
} scored;

static int compare(const void *a, const void *b) {
    const scored *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

/* The id of a part of a token; -1: none that takes part in merges. */
static int32_t part(const hy_tokenizer *t, const float *scores, const char *text, size_t size) {
    int32_t id = hy_vocab_find(&t->vocab, text, size);
    return id >= 0 && isnan(scores[id]) ? -1 : id;
}

/* SentencePiece also merges characters that are no tokens. Merges here need a token, so a file
 * with such characters is refused. */
static hy_status check_ends(const hy_tokenizer *t, const char *text, size_t size) {
    uint32_t code;
    size_t first = hy_unicode_next(text, size, &code);
    size_t last = hy_unicode_previous(text, size, &code);
    HY_FAIL_IF(hy_vocab_find(&t->vocab, text, first) < 0 ||
                   hy_vocab_find(&t->vocab, text + size - last, last) < 0,
               HY_ERR_INPUT,
               "%s: the piece \"%.60s\" begins or ends with a character that is not a piece, which "
               "is not supported",
               t->name, text);
    return HY_OK;
}

/* Passes over all ways to merge. With `ranks_splits`, every way has its own rank, as in a list of
 * merges; otherwise equal scores have equal ranks. Returns their number; adds them if asked. */
static size_t pass_merges(hy_tokenizer *t, const float *scores, const scored *order, size_t count,
                          bool ranks_splits, bool adds) {
    size_t found = 0;
    uint32_t rank = 0, code;
    for (size_t i = 0; i < count; i++) {
        const hy_token_place *place = &t->vocab.places[order[i].id];
        const char *text = t->vocab.bytes + place->start;
        if (i > 0 && order[i].score != order[i - 1].score) rank++;
        for (size_t at = 0;
             (at += hy_unicode_next(text + at, place->size - at, &code)) < place->size;) {
            int32_t left = part(t, scores, text, at);
            int32_t right = left < 0 ? -1 : part(t, scores, text + at, place->size - at);
            if (right < 0) continue;
            if (adds) {
                hy_merges_put(&t->merges, left, right, ranks_splits ? (uint32_t)found : rank,
                              order[i].id);
                t->cuts_blanks = t->cuts_blanks && !hy_crosses_blank(text, place->size);
            }
            found++;
        }
    }
    return found;
}

static hy_status make_merges(hy_tokenizer *t, const float *scores, bool ranks_splits) {
    size_t count = 0;
    scored *order = malloc(((size_t)t->vocab.ids + 1) * sizeof *order);
    if (!order) return hy_fail(HY_ERR_MEMORY, "not enough memory for %d tokens", t->vocab.ids);
    hy_status status = HY_OK;
    for (int32_t i = 0; i < t->vocab.ids && status == HY_OK; i++) {
        if (isnan(scores[i])) continue;
        const hy_token_place *place = &t->vocab.places[i];
        order[count++] = (scored){scores[i], i};
        if (!ranks_splits) status = check_ends(t, t->vocab.bytes + place->start, place->size);
    }
    qsort(order, count, sizeof *order, compare);
    if (status == HY_OK) {
        status =
            hy_merges_init(&t->merges, pass_merges(t, scores, order, count, ranks_splits, false));
    }
    t->cuts_blanks = true;
    if (status == HY_OK) pass_merges(t, scores, order, count, ranks_splits, true);
    free(order);
    return status;
}

/* ---- Unigram: reading ------------------------------------------------------------------------ */

void hy_unigram_fini(hy_unigram *unigram) {
    free(unigram->scores);
    hy_added_set_fini(&unigram->pieces);
}

static hy_status make_unigram(hy_tokenizer *t, const float *scores, int32_t unknown) {
    size_t count = 0, bytes = 0;
    hy_added *pieces = calloc((size_t)t->vocab.ids + 1, sizeof *pieces);
    char *texts = malloc(t->vocab.used + 1);
    hy_status status =
        pieces && texts ? HY_OK
                        : hy_fail(HY_ERR_MEMORY, "not enough memory for %d tokens", t->vocab.ids);
    for (int32_t i = 0; i < t->vocab.ids && status == HY_OK; i++) {
        if (isnan(scores[i]) || i == unknown) continue;
        const hy_token_place *place = &t->vocab.places[i];
        hy_added *piece = &pieces[count++];
        *piece = (hy_added){.text = texts + bytes, .size = place->size, .id = i};
        for (size_t k = 0; k < place->size; k++) {
            texts[bytes++] = t->vocab.bytes[place->start + place->size - 1 - k];
        }
    }
    if (status == HY_OK) {
        status = hy_added_set_init(&t->unigram.pieces, pieces, count, HY_ADDED_RAW);
    }
    free(pieces);
    free(texts);
    return status;
}

hy_status hy_tokenizer_read_scores(hy_tokenizer *t, const hy_json_node *model) {
    const hy_json_node *list = hy_json_get(model, "scores"), *node = hy_json_first(list);
    const char *type = "", *unknown = "";
    size_t size = 0;
    bool ranks_splits = false;
    HY_TRY(hy_tokenizer_read_bool(t, model, "split_ranks", false, &ranks_splits));
    hy_json_as_string(hy_json_get(model, "type"), &type, NULL);
    hy_json_as_string(hy_json_get(model, "unk_token"), &unknown, &size);
    bool is_unigram = strcmp(type, "Unigram") == 0;
    float *scores = malloc(((size_t)t->vocab.ids + 1) * sizeof *scores);
    if (!scores) return hy_fail(HY_ERR_MEMORY, "not enough memory for %d scores", t->vocab.ids);
    for (int32_t i = 0; i < t->vocab.ids; i++) {
        bool is_token = t->vocab.places[i].start != UINT32_MAX && t->vocab.places[i].size > 0;
        double score;
        scores[i] = hy_json_as_double(node, &score) && is_token ? (float)score : NAN;
        node = node ? hy_json_next(node) : NULL;
    }
    if (!is_unigram) {
        hy_status status = make_merges(t, scores, ranks_splits);
        free(scores);
        return status;
    }
    t->unigram.scores = scores;
    int32_t id = hy_vocab_find(&t->vocab, unknown, size);
    HY_FAIL_IF(id < 0 || isnan(scores[id]), HY_ERR_INPUT,
               "%s: a Unigram model needs an unk_token with a score", t->name);
    HY_TRY(hy_merges_init(&t->merges, 0));
    return make_unigram(t, scores, id);
}

/* ---- Unigram: encoding ----------------------------------------------------------------------- */

/* A position in the text: the best path to it, and its last token. */
typedef struct position {
    union {
        float score;
        uint32_t next; /* when the best path is known: the end of the token that begins here */
    };
    int32_t id;
    uint32_t start; /* of the last token; NO_START: no path yet */
} position;

#define NO_START UINT32_MAX
#define SUM_MAX 100000.0f /* as in the library */

static inline void offer(position *to, float score, uint32_t start, int32_t id) {
    if (to->start != NO_START && score <= to->score) return;
    *to = (position){.score = score, .id = id, .start = start};
}

/* Keeps sums small, where fp32 is exact enough: the best path to `from` counts as 0 from now on. */
static hy_status restart_sums(const hy_tokenizer *t, hy_allowance *left, position *positions,
                              size_t from, size_t size) {
    float score = positions[from].score;
    size_t end = from + t->unigram.pieces.longest + 4; /* no path leads further yet */
    if (fabsf(score) <= SUM_MAX) return HY_OK;
    for (size_t i = from; i <= size && i <= end; i++) positions[i].score -= score;
    return hy_allowance_walk(left, end - from);
}

/* Offers every token that begins at `from`. */
static hy_status offer_tokens(const hy_tokenizer *t, hy_allowance *left, position *positions,
                              const char *text, size_t size, size_t from) {
    const hy_added_set *pieces = &t->unigram.pieces;
    float score = positions[from].score;
    uint32_t code, state = 0;
    size_t at = from, length = hy_unicode_next(text + from, size - from, &code);
    bool has_character = false;
    while (pieces->count && at < size &&
           (state = hy_added_follow(pieces->nodes, state, (uint8_t)text[at]))) {
        const hy_added *piece = NULL;
        at++;
        if (pieces->nodes[state].longest) piece = &pieces->tokens[pieces->nodes[state].longest - 1];
        if (!piece || piece->size != at - from) continue; /* only a shorter token ends here */
        offer(&positions[at], score + t->unigram.scores[piece->id], (uint32_t)from, piece->id);
        has_character |= at - from == length;
    }
    if (!has_character) {
        offer(&positions[from + length], score + t->unigram.scores[t->unknown], (uint32_t)from, -1);
    }
    return hy_allowance_walk(left, at - from);
}

/* Appends an unknown character: its bytes, or one unknown token for a run of characters. */
static hy_status add_unknown(const hy_tokenizer *t, const char *text, size_t size, bool is_run,
                             hy_ids *out) {
    bool has_bytes = t->has_byte_fallback;
    for (size_t i = 0; i < size; i++) has_bytes &= t->byte_id[(uint8_t)text[i]] >= 0;
    if (!has_bytes) return is_run ? HY_OK : hy_ids_append(out, &t->unknown, 1);
    for (size_t i = 0; i < size; i++) HY_TRY(hy_ids_append(out, &t->byte_id[(uint8_t)text[i]], 1));
    return HY_OK;
}

hy_status hy_unigram_encode(const hy_tokenizer *t, hy_workspace *space, const char *text,
                            size_t size, hy_ids *out) {
    hy_merge_memory *memory = &space->merge_memory;
    uint32_t code;
    HY_FAIL_IF(size >= INT32_MAX, HY_ERR_INPUT, "cannot encode %zu bytes; the limit is 2 GiB",
               size);
    HY_TRY(hy_array_reserve(&memory->data, &memory->room, size + 1, sizeof(position), "a text"));
    position *positions = memory->data;
    for (size_t i = 0; i <= size; i++) positions[i] = (position){.start = NO_START};
    for (size_t i = 0; i < size; i += hy_unicode_next(text + i, size - i, &code)) {
        HY_TRY(restart_sums(t, &space->left, positions, i, size));
        HY_TRY(offer_tokens(t, &space->left, positions, text, size, i));
    }
    for (uint32_t end = (uint32_t)size; end > 0; end = positions[end].start) {
        positions[positions[end].start].next = end;
    }
    bool is_run = false;
    for (uint32_t i = 0, end; i < size; i = end) {
        end = positions[i].next;
        int32_t id = positions[end].id;
        HY_TRY(id < 0 ? add_unknown(t, text + i, end - i, is_run, out)
                      : hy_ids_append(out, &id, 1));
        is_run = id < 0;
    }
    return HY_OK;
}
