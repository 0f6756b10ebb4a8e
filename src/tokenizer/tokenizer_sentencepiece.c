/* tokenizer_sentencepiece.c: converts a SentencePiece file. See tokenizer_sentencepiece.h.
 *
 * The file is a protobuf message, ModelProto of sentencepiece_model.proto. Only the fields that
 * change ids are read; each is checked against the end of the file. A first pass counts the pieces
 * and their bytes, so memory is a small multiple of the file. */
#include "tokenizer/tokenizer_sentencepiece.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/file.h"
#include "tokenizer/tokenizer_pieces.h"
#include "tokenizer/tokenizer_vocab_files.h"
#include "tokenizer/unicode.h"

enum { FILE_MAX = 16 << 20, PIECE_MAX = 1024 }; /* bytes */

/* ---- protobuf -------------------------------------------------------------------------------- */

typedef struct field {
    uint64_t number, value; /* value: of a varint or a fixed32 */
    hy_span bytes;          /* of a string or a message; empty otherwise */
} field;

static bool read_varint(hy_span *m, uint64_t *out) {
    *out = 0;
    for (int shift = 0; shift < 64 && m->at < m->end; shift += 7) {
        *out |= (uint64_t)(*m->at & 127) << shift;
        if (*m->at++ < 128) return true;
    }
    return false;
}

/* Reads the next field; false if the message is damaged. */
static bool read_field(hy_span *m, field *f) {
    uint64_t key, size;
    *f = (field){0};
    if (!read_varint(m, &key)) return false;
    f->number = key >> 3;
    switch (key & 7) {
    case 0: return read_varint(m, &f->value);
    case 1: size = 8; break;
    case 2:
        if (!read_varint(m, &size)) return false;
        break;
    case 5: size = 4; break;
    default: return false; /* groups are not used in this format */
    }
    if (size > (uint64_t)(m->end - m->at)) return false;
    if ((key & 7) == 2) f->bytes = (hy_span){m->at, m->at + size};
    if ((key & 7) == 5) memcpy(&f->value, m->at, 4);
    m->at += size;
    return true;
}

/* ---- the model ------------------------------------------------------------------------------- */

static hy_status fail_damaged(const hy_pieces *m) {
    return hy_fail(HY_ERR_INPUT, "%s is damaged or not a SentencePiece file", m->name);
}

static bool is_text(hy_span text) {
    size_t left = (size_t)(text.end - text.at);
    bool is_valid = left > 0 && left <= PIECE_MAX;
    for (int length; is_valid && left > 0; left -= (size_t)length, text.at += length) {
        length = hy_utf8_length(text.at, left);
        is_valid = length > 0 && *text.at != 0;
    }
    return is_valid;
}

static hy_status read_piece(hy_pieces *m, hy_span in) {
    field f = {0}, text = {0};
    uint64_t type = HY_PIECE_NORMAL, bits = 0;
    while (in.at < in.end) {
        if (!read_field(&in, &f)) return fail_damaged(m);
        if (f.number == 1) text = f;
        if (f.number == 2) bits = f.value;
        if (f.number == 3) type = f.value;
    }
    size_t size = (size_t)(text.bytes.end - text.bytes.at);
    uint32_t low = (uint32_t)bits;
    float score;
    memcpy(&score, &low, sizeof score);
    HY_FAIL_IF(!is_text(text.bytes), HY_ERR_INPUT,
               "%s: piece %d must be valid UTF-8 of 1 to %d bytes, without zeros", m->name,
               m->count, PIECE_MAX);
    HY_FAIL_IF(type < HY_PIECE_NORMAL || type > HY_PIECE_BYTE || !isfinite(score), HY_ERR_INPUT,
               "%s: piece %d has the type %llu and the score %g; expected a type from 1 to 6 and a "
               "finite score",
               m->name, m->count, (unsigned long long)type, score);
    HY_FAIL_IF(!hy_vocab_add(&m->vocab, (const char *)text.bytes.at, size, m->count), HY_ERR_INPUT,
               "%s: piece %d has the same text as another piece", m->name, m->count);
    m->types[m->count] = (uint8_t)type;
    m->scores[m->count] = score;
    m->count++;
    return HY_OK;
}

static hy_status read_trainer(hy_pieces *m, hy_span in) {
    field f;
    while (in.at < in.end) {
        if (!read_field(&in, &f)) return fail_damaged(m);
        if (f.number == 3) m->type = f.value;
        if (f.number == 24) m->is_suffix = f.value;
        if (f.number == 35) m->has_bytes = f.value;
        if (f.number == 46) m->roles[0] = f.bytes;
        if (f.number == 47) m->roles[1] = f.bytes;
    }
    return HY_OK;
}

static hy_status read_normalizer(hy_pieces *m, hy_span in, bool is_denormalizer) {
    field f;
    while (in.at < in.end) {
        if (!read_field(&in, &f)) return fail_damaged(m);
        bool is_map = f.number == 2 && f.bytes.at < f.bytes.end;
        if (is_denormalizer) {
            m->has_denormalizer |= is_map;
            continue;
        }
        if (is_map) m->charsmap = f.bytes;
        if (f.number == 3) m->has_prefix = f.value;
        if (f.number == 4) m->collapses = f.value;
        if (f.number == 5) m->escapes = f.value;
    }
    return HY_OK;
}

/* Makes room for all pieces. */
static hy_status reserve(hy_pieces *m, hy_span in) {
    size_t count = 0, bytes = 0;
    field f;
    while (in.at < in.end) {
        if (!read_field(&in, &f)) return fail_damaged(m);
        count += f.number == 1;
        bytes += f.number == 1 ? (size_t)(f.bytes.end - f.bytes.at) : 0;
    }
    m->scores = malloc((count + 1) * sizeof *m->scores);
    m->types = malloc(count + 1);
    HY_FAIL_IF(!m->scores || !m->types, HY_ERR_MEMORY, "not enough memory for %zu pieces", count);
    return hy_vocab_init(&m->vocab, (int32_t)count, count, bytes);
}

static hy_status read_model(hy_pieces *m, const void *data, size_t size) {
    hy_span in = {data, (const uint8_t *)data + size};
    field f;
    HY_FAIL_IF(size >= 4 && memcmp(data, "IQ==", 4) == 0, HY_ERR_INPUT,
               "%s is a tiktoken file, which is not supported; use the tokenizer.json of the model",
               m->name);
    HY_FAIL_IF(size > FILE_MAX, HY_ERR_INPUT,
               "%s has %zu bytes, which is too large for a SentencePiece file; the limit is %d",
               m->name, size, FILE_MAX);
    HY_TRY(reserve(m, in));
    while (in.at < in.end) {
        if (!read_field(&in, &f)) return fail_damaged(m);
        if (f.number == 1) HY_TRY(read_piece(m, f.bytes));
        if (f.number == 2) HY_TRY(read_trainer(m, f.bytes));
        if (f.number == 3) HY_TRY(read_normalizer(m, f.bytes, false));
        if (f.number == 5) HY_TRY(read_normalizer(m, f.bytes, true));
    }
    return m->count > 0 ? HY_OK : fail_damaged(m);
}

/* ---- what is refused ------------------------------------------------------------------------- */

static hy_status refuse(const hy_pieces *m, const char *what) {
    return hy_fail(HY_ERR_INPUT, "%s: this SentencePiece file %s, which is not supported", m->name,
                   what);
}

static hy_status check_bytes(const hy_pieces *m) {
    for (int byte = 0; byte < 256; byte++) {
        char text[8];
        int size = snprintf(text, sizeof text, "<0x%02X>", (unsigned)byte);
        int32_t id = hy_vocab_find(&m->vocab, text, (size_t)size);
        HY_FAIL_IF(id < 0 || m->types[id] != HY_PIECE_BYTE, HY_ERR_INPUT,
                   "%s: byte_fallback needs the byte piece %s", m->name, text);
    }
    return HY_OK;
}

static hy_status check(hy_pieces *m) {
    m->unknown = -1;
    if (m->type == HY_PIECES_WORD) return refuse(m, "has the model type word");
    if (m->type < HY_PIECES_UNIGRAM || m->type > HY_PIECES_CHAR)
        return refuse(m, "has an unknown model type");
    if (m->is_suffix) return refuse(m, "sets treat_whitespace_as_suffix");
    if (!m->escapes) return refuse(m, "disables escape_whitespaces");
    if (m->has_denormalizer) return refuse(m, "has a denormalizer_spec");
    for (int32_t i = 0; i < m->count; i++) {
        if (m->types[i] == HY_PIECE_UNUSED && m->type != HY_PIECES_UNIGRAM)
            return refuse(m, "has unused pieces");
        if (m->types[i] == HY_PIECE_BYTE && !m->has_bytes) {
            return refuse(m, "has byte pieces without byte_fallback");
        }
        if (m->types[i] != HY_PIECE_UNKNOWN) continue;
        if (m->unknown >= 0) return refuse(m, "has two unknown pieces");
        m->unknown = i;
    }
    if (m->unknown < 0) return refuse(m, "has no unknown piece");
    return m->has_bytes ? check_bytes(m) : HY_OK;
}

/* ---- the text: what both meanings share ------------------------------------------------------ */

void hy_pieces_put_decoder(hy_text *out, bool strips) {
    hy_text_addf(out,
                 "\"decoder\": {\"type\": \"Sequence\", \"decoders\": [{\"type\": \"Replace\", "
                 "\"pattern\": {\"String\": \"" HY_BLANK "\"}, \"content\": \" \"}, "
                 "{\"type\": \"ByteFallback\"}, {\"type\": \"Fuse\"}, "
                 "{\"type\": \"Strip\", \"content\": \" \", \"start\": %d, \"stop\": 0}]}, ",
                 strips);
}

void hy_pieces_put_vocab(const hy_pieces *m, hy_json_writer *w) {
    hy_json_open_object(w, "vocab");
    for (int32_t i = 0; i < m->count; i++) hy_json_put_int(w, hy_piece_text(m, i), i);
    hy_json_close_object(w);
}

/* ---- the meaning of sentencepiece ------------------------------------------------------------ */

float hy_piece_score(const hy_pieces *m, int32_t id, float least) {
    if (m->types[id] == HY_PIECE_NORMAL) return m->scores[id];
    if (m->type == HY_PIECES_UNIGRAM && m->types[id] == HY_PIECE_UNKNOWN) return least - 10.0f;
    if (m->type == HY_PIECES_UNIGRAM && m->types[id] == HY_PIECE_USER_DEFINED) {
        return (float)(0.1 * ((int)m->vocab.places[id].size - 1));
    }
    return NAN;
}

float hy_pieces_least(const hy_pieces *m) {
    float least = FLT_MAX; /* as the library begins */
    for (int32_t i = 0; i < m->count; i++) {
        if (m->types[i] == HY_PIECE_NORMAL) least = fminf(least, m->scores[i]);
    }
    return least;
}

static void put_scores(const hy_pieces *m, hy_json_writer *w) {
    float least = hy_pieces_least(m);
    hy_json_open_array(w, "scores");
    for (int32_t i = 0; i < m->count; i++) {
        hy_json_put_double(w, NULL, hy_piece_score(m, i, least));
    }
    hy_json_close_array(w);
}

static void put_normalizer(const hy_pieces *m, hy_text *out) {
    static const char digits[] = "0123456789abcdef";
    hy_text_addf(out,
                 "\"normalizer\": {\"type\": \"SentencePiece\", \"add_dummy_prefix\": %s, "
                 "\"remove_extra_whitespaces\": %s, \"precompiled_charsmap\": \"",
                 m->has_prefix ? "true" : "false", m->collapses ? "true" : "false");
    for (const uint8_t *p = m->charsmap.at; p < m->charsmap.end; p++) {
        char pair[2] = {digits[*p >> 4], digits[*p & 15]};
        hy_text_add_bytes(out, pair, 2);
    }
    hy_text_add(out, "\"}, ");
}

void hy_pieces_put_added(const hy_pieces *m, hy_json_writer *w, bool is_normalized) {
    hy_json_open_array(w, "added_tokens");
    for (int32_t i = 0; i < m->count; i++) {
        bool is_special = m->types[i] == HY_PIECE_CONTROL || m->types[i] == HY_PIECE_UNKNOWN;
        if (is_special || m->types[i] == HY_PIECE_USER_DEFINED) {
            hy_tokenizer_put_added(w, i, hy_piece_text(m, i), NULL, is_special,
                                   is_normalized && !is_special);
        }
    }
    hy_json_close_array(w);
}

static void write_library(const hy_pieces *m, hy_json_writer *w) {
    put_normalizer(m, w->text);
    hy_pieces_put_decoder(w->text, m->has_prefix || m->collapses);
    hy_pieces_put_added(m, w, true);
    hy_json_open_object(w, "model");
    hy_json_put_string(w, "type", m->type == HY_PIECES_UNIGRAM ? "Unigram" : "BPE");
    hy_json_put_string(w, "unk_token", hy_piece_text(m, m->unknown));
    hy_json_put_bool(w, "fuse_unk", true);
    hy_json_put_bool(w, "byte_fallback", m->has_bytes);
    hy_pieces_put_vocab(m, w);
    if (m->type == HY_PIECES_CHAR) {
        hy_json_open_array(w, "merges");
        hy_json_close_array(w);
    } else {
        put_scores(m, w);
    }
    hy_json_close_object(w);
}

/* ---- opening --------------------------------------------------------------------------------- */

static hy_status convert(hy_pieces *m, const char *folder, hy_sentencepiece *out) {
    hy_json_writer w;
    HY_TRY(check(m));
    for (int i = 0; i < 2; i++) {
        size_t size = (size_t)(m->roles[i].end - m->roles[i].at);
        int32_t id = hy_vocab_find(&m->vocab, (const char *)m->roles[i].at, size);
        out->ends[i] = id >= 0 && m->types[id] == HY_PIECE_CONTROL ? id : -1;
    }
    hy_json_begin(&w, &out->json, false);
    hy_json_open_object(&w, NULL);
    hy_status status = hy_pieces_write_class(m, folder, out->ends, &w, &out->class);
    if (status == HY_OK && !out->class) {
        if (out->is_published) status = hy_pieces_publish(m, &w);
        if (!out->is_published) write_library(m, &w);
    }
    hy_json_close_object(&w);
    return status == HY_OK ? hy_text_status(&out->json) : status;
}

hy_status hy_sentencepiece_convert(const void *data, size_t size, const char *name,
                                   const char *folder, hy_sentencepiece *out) {
    static const char begins[] = "<s>", ends[] = "</s>";
    hy_pieces m = {.name = name,
                   .type = HY_PIECES_UNIGRAM,
                   .has_prefix = true,
                   .collapses = true,
                   .escapes = true,
                   .roles = {{(const uint8_t *)begins, (const uint8_t *)begins + 3},
                             {(const uint8_t *)ends, (const uint8_t *)ends + 4}}};
    hy_status status = read_model(&m, data, size);
    if (status == HY_OK) status = convert(&m, folder, out);
    hy_vocab_fini(&m.vocab);
    free(m.scores);
    free(m.types);
    return status;
}

bool hy_sentencepiece_is_named(const char *path) { return hy_has_ending(path, ".model"); }

hy_status hy_sentencepiece_json(const char *path, hy_sentencepiece *out) {
    char folder[4096];
    hy_file_map map;
    HY_TRY(hy_path_parent(folder, sizeof folder, path));
    HY_TRY(hy_file_map_open(path, &map));
    hy_status status = hy_sentencepiece_convert(map.data, map.size, path, folder, out);
    hy_file_map_close(&map);
    return status;
}
