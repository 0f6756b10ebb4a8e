/* source.h: a list of tokens in one or more pieces.
 *
 * Used only inside this module: datasets are cut from sources. A piece is a file, or several small
 * files that were read on opening. Nothing changes after that, so reading is thread-safe. If
 * another program changes a file meanwhile, the error names the file. */
#pragma once

#include "base/shared_file.h"
#include "data/dataset.h"
#include "formats/shard.h"

/* How text becomes tokens. The dataset owns it; `options` are valid while data is opened. */
typedef struct hy_encoding {
    const hy_dataset_options *options;
    const hy_tokenizer *tokenizer; /* NULL: bytes */
    hy_chat_template chat;
    hy_columns columns;
    int32_t workers;
    bool needs_size; /* of standard input, too: see hy_dataset_options, or for the mixture */
    size_t buffer;   /* bytes of rows that are being encoded at a time, for all workers */
} hy_encoding;

typedef struct hy_source_piece {
    uint64_t first, count; /* it holds tokens first .. first + count - 1 of the source */
    hy_shared_file *text;  /* text: one token per byte; or: */
    const uint8_t *bytes;  /* text in memory; or: */
    hy_shard *shard;       /* a token shard; or: */
    const int32_t *ids;    /* encoded text */
    uint8_t *block;        /* memory of bytes; or: */
    hy_spool spool;        /* memory of bytes or ids */
} hy_source_piece;

typedef struct hy_source {
    hy_source_piece *pieces;
    size_t piece_count, piece_capacity;
    uint64_t tokens;
    int32_t vocab; /* ids of shards must be below this */
    bool is_bytes;
    hy_unknown_text unknown; /* of encoded text */
    size_t skipped;          /* files of a folder that are hidden, empty or not text */
} hy_source;

/* Opens the text files or shards in `list`, found at `path`. Ids must be below the vocabulary size
 * of the options. Text is encoded if there is a tokenizer; otherwise its bytes are the tokens. */
hy_status hy_source_open(const char *path, const hy_file_list *list, hy_file_kind kind,
                         const hy_encoding *encoding, hy_source *source);
void hy_source_close(hy_source *source);

/* Takes over `block` even on failure. */
hy_status hy_source_add_block(hy_source *source, uint8_t *block, uint64_t size);
hy_status hy_source_add_piece(hy_source *source, hy_source_piece piece);

hy_status hy_source_add_encoded(hy_source *source, const hy_file_list *list,
                                const hy_encoding *encoding);

/* Reads tokens first .. first + count - 1, which must exist. */
hy_status hy_source_read(const hy_source *source, uint64_t first, uint64_t count, int32_t *out);
/* As above, but as bytes, if the tokens are bytes in a single piece; otherwise *out is NULL. The
 * caller frees *out. */
hy_status hy_source_bytes(const hy_source *source, uint64_t first, uint64_t count, uint8_t **out);
