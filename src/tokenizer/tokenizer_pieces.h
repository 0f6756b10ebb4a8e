/* tokenizer_pieces.h: a SentencePiece file in memory; used only by tokenizer_sentencepiece.c, which
 * reads it, and tokenizer_piece_classes.c. */
#pragma once

#include "tokenizer/tokenizer_parts.h"

/* Some bytes of the file. */
typedef struct hy_span {
    const uint8_t *at, *end;
} hy_span;

enum {
    HY_PIECE_NORMAL = 1,
    HY_PIECE_UNKNOWN,
    HY_PIECE_CONTROL,
    HY_PIECE_USER_DEFINED,
    HY_PIECE_UNUSED,
    HY_PIECE_BYTE
};
enum { HY_PIECES_UNIGRAM = 1, HY_PIECES_BPE, HY_PIECES_WORD, HY_PIECES_CHAR };

typedef struct hy_pieces {
    const char *name; /* of the file */
    hy_vocab vocab;   /* all pieces */
    float *scores;    /* (pieces) */
    uint8_t *types;   /* (pieces) */
    int32_t count, unknown;
    uint64_t type;
    bool has_bytes, is_suffix;           /* byte_fallback, treat_whitespace_as_suffix */
    hy_span roles[2];                    /* texts of the pieces that begin and end a text */
    hy_span charsmap;                    /* empty: none */
    bool has_prefix, collapses, escapes; /* how blanks are normalised */
    bool has_denormalizer;
} hy_pieces;

static inline const char *hy_piece_text(const hy_pieces *m, int32_t id) {
    return m->vocab.bytes + m->vocab.places[id].start;
}

/* Writes the decoder; strips: without the blank that begins a text. */
void hy_pieces_put_decoder(hy_text *out, bool strips);
void hy_pieces_put_vocab(const hy_pieces *pieces, hy_json_writer *w);

/* The score that decides about a piece; NaN: no text is ever this piece by its score. least: the
 * lowest score of a normal piece. */
float hy_piece_score(const hy_pieces *pieces, int32_t id, float least);
float hy_pieces_least(const hy_pieces *pieces);
/* The pieces that are added tokens for the library. */
void hy_pieces_put_added(const hy_pieces *pieces, hy_json_writer *w, bool is_normalized);

/* Writes members of a tokenizer.json: the post-processor, and if *class is a class of transformers
 * all others, as it understands the folder. The class is that of tokenizer_config.json, or else of
 * config.json's model_type; NULL: none. HY_ERR_INPUT names a class that is not supported. ends: ids
 * of the pieces that begin and end a text, by the file. */
hy_status hy_pieces_write_class(const hy_pieces *pieces, const char *folder, const int32_t ends[2],
                                hy_json_writer *w, const char **class);

/* Writes the members that transformers reads as the library reads the file, as far as it can: the
 * model, the normaliser, the decoder and the added tokens. */
hy_status hy_pieces_publish(const hy_pieces *pieces, hy_json_writer *w);
