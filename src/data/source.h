/* source.h: a row of tokens that lies in one or more pieces.
 *
 * Inside the room only: datasets are cut from sources. A piece is a file, or several small ones that were
 * read when the source was opened; after that nothing of it changes: reading is thread-safe. A file that
 * others change meanwhile is an error that names it. */
#pragma once

#include "base/shared_file.h"
#include "data/encoding.h"
#include "data/input.h"
#include "formats/shard.h"

typedef struct hy_source_piece {
    uint64_t first, count; /* its tokens: first .. first + count - 1 of the source */
    hy_shared_file *text;  /* one token per byte; or: */
    uint8_t *block;        /* the same in memory; or: */
    hy_shard *shard;       /* or: */
    const uint8_t *bytes;  /* text that was unpacked; or: */
    const int32_t *ids;    /* text that was encoded */
    hy_spool spool;        /* where bytes or ids are */
} hy_source_piece;

typedef struct hy_source {
    hy_source_piece *pieces;
    size_t piece_count, piece_capacity;
    uint64_t tokens;
    int32_t vocab; /* ids of shards lie below this */
    bool is_bytes;
    size_t file_count;
    size_t skipped; /* files of a folder that were not taken: hidden, empty or not text */
} hy_source;

/* Opens a list of text or shards that `path` stands for. Ids must lie below the encoding's vocab. Text is
 * encoded where there is a tokenizer, else its bytes are the tokens. */
hy_status hy_source_open(const char *path, const hy_file_list *list, hy_file_kind kind,
                         const hy_encoding *encoding, hy_source *source);
void hy_source_close(hy_source *source);

/* Takes over `block`, also when it fails. */
hy_status hy_source_add_block(hy_source *source, uint8_t *block, uint64_t size);
hy_status hy_source_add_piece(hy_source *source, hy_source_piece piece);

hy_status hy_source_add_encoded(hy_source *source, const hy_file_list *list,
                                const hy_encoding *encoding);

/* Tokens first .. first + count - 1, which must exist. */
hy_status hy_source_read(const hy_source *source, uint64_t first, uint64_t count, int32_t *out);
/* The same as bytes, when they are bytes and lie in one piece; else *out is NULL. The caller frees it. */
hy_status hy_source_bytes(const hy_source *source, uint64_t first, uint64_t count, uint8_t **out);
