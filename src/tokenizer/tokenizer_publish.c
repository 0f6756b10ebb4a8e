/* tokenizer_publish.c: a SentencePiece file as a tokenizer.json for transformers.
 *
 * Steps and merges give the ids of the sentencepiece library. What transformers cannot express:
 * pieces of equal score merge in the order of their ids, not from the left; after a user-defined
 * piece, the blank that begins a text comes again; and characters with accents that follow them
 * are normalised together. */
#include <math.h>
#include <stdlib.h>

#include "base/error.h"
#include "tokenizer/tokenizer_pieces.h"
#include "tokenizer/unicode.h"

static void add_base64(hy_text *out, hy_span bytes) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (; bytes.at < bytes.end; bytes.at += 3) {
        size_t left = (size_t)(bytes.end - bytes.at);
        uint32_t bits = (uint32_t)bytes.at[0] << 16;
        if (left > 1) bits |= (uint32_t)bytes.at[1] << 8;
        if (left > 2) bits |= bytes.at[2];
        char four[4] = {digits[bits >> 18], digits[bits >> 12 & 63], digits[bits >> 6 & 63],
                        digits[bits & 63]};
        for (size_t i = left + 1; i < 4; i++) four[i] = '=';
        hy_text_add_bytes(out, four, 4);
        if (left < 3) break;
    }
}

#define REPLACE(kind, from, to)                                                                    \
    "{\"type\": \"Replace\", \"pattern\": {\"" kind "\": \"" from "\"}, \"content\": \"" to "\"}"

static void put_normalizer(const hy_pieces *m, hy_text *out) {
    hy_text_add(out, "\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [");
    if (m->charsmap.at < m->charsmap.end) {
        hy_text_add(out, "{\"type\": \"Precompiled\", \"precompiled_charsmap\": \"");
        add_base64(out, m->charsmap);
        hy_text_add(out, "\"}, ");
    }
    if (m->collapses) {
        hy_text_addf(out, REPLACE("Regex", "\\\\A *(?=[^ ])", "%s") ", ",
                     m->has_prefix ? HY_BLANK : "");
        hy_text_add(out, REPLACE("Regex", " {2,}", " ") ", ");
        hy_text_add(out, REPLACE("Regex", "[ " HY_BLANK "]+\\\\z", "") ", ");
    } else if (m->has_prefix) {
        hy_text_add(out, "{\"type\": \"Prepend\", \"prepend\": \"" HY_BLANK "\"}, ");
    }
    hy_text_add(out, REPLACE("String", " ", HY_BLANK) "]}, \"pre_tokenizer\": null, ");
}

/* ---- the model ------------------------------------------------------------------------------- */

typedef struct scored {
    float score;
    int32_t id;
} scored;

static int compare(const void *a, const void *b) {
    const scored *one = a, *other = b;
    if (one->score != other->score) return one->score > other->score ? -1 : 1;
    return one->id < other->id ? -1 : one->id > other->id;
}

static bool is_normal(const hy_pieces *m, const char *text, size_t size) {
    int32_t id = hy_vocab_find(&m->vocab, text, size);
    return id >= 0 && m->types[id] == HY_PIECE_NORMAL;
}

/* Every way to merge two pieces into this one. */
static void put_merges_of(const hy_pieces *m, int32_t id, hy_json_writer *w) {
    const char *text = hy_piece_text(m, id);
    size_t size = m->vocab.places[id].size;
    uint32_t code;
    for (size_t at = 0; (at += hy_unicode_next(text + at, size - at, &code)) < size;) {
        if (!is_normal(m, text, at) || !is_normal(m, text + at, size - at)) continue;
        char left[1024 + 1];
        memcpy(left, text, at);
        left[at] = 0;
        hy_json_open_array(w, NULL);
        hy_json_put_string(w, NULL, left);
        hy_json_put_string(w, NULL, text + at);
        hy_json_close_array(w);
    }
}

static hy_status put_merges(const hy_pieces *m, hy_json_writer *w) {
    scored *order = malloc(((size_t)m->count + 1) * sizeof *order);
    size_t count = 0;
    HY_FAIL_IF(!order, HY_ERR_MEMORY, "not enough memory for %d pieces", m->count);
    for (int32_t i = 0; i < m->count && m->type == HY_PIECES_BPE; i++) {
        if (m->types[i] == HY_PIECE_NORMAL) order[count++] = (scored){m->scores[i], i};
    }
    qsort(order, count, sizeof *order, compare);
    hy_json_open_array(w, "merges");
    for (size_t i = 0; i < count; i++) put_merges_of(m, order[i].id, w);
    hy_json_close_array(w);
    free(order);
    return HY_OK;
}

/* The unknown piece gets its score from the lowest one, and pieces that are never chosen must not
 * change that. */
static void put_unigram(const hy_pieces *m, hy_json_writer *w) {
    float least = hy_pieces_least(m);
    hy_json_put_int(w, "unk_id", m->unknown);
    hy_json_open_array(w, "vocab");
    for (int32_t i = 0; i < m->count; i++) {
        float score = hy_piece_score(m, i, least);
        hy_json_open_array(w, NULL);
        hy_json_put_string(w, NULL, hy_piece_text(m, i));
        hy_json_put_real(w, NULL, isnan(score) || i == m->unknown ? least : score);
        hy_json_close_array(w);
    }
    hy_json_close_array(w);
}

hy_status hy_pieces_publish(const hy_pieces *m, hy_json_writer *w) {
    bool is_unigram = m->type == HY_PIECES_UNIGRAM;
    hy_status status = HY_OK;
    put_normalizer(m, w->text);
    hy_pieces_put_decoder(w->text, m->has_prefix || m->collapses);
    /* A normalised token would get the blank that begins a text. */
    hy_pieces_put_added(m, w, !m->has_prefix && !m->collapses);
    hy_json_open_object(w, "model");
    hy_json_put_string(w, "type", is_unigram ? "Unigram" : "BPE");
    hy_json_put_bool(w, "byte_fallback", m->has_bytes);
    if (is_unigram) {
        put_unigram(m, w);
    } else {
        hy_json_put_string(w, "unk_token", hy_piece_text(m, m->unknown));
        hy_json_put_bool(w, "fuse_unk", true);
        hy_pieces_put_vocab(m, w);
        status = put_merges(m, w);
    }
    hy_json_close_object(w);
    return status;
}
