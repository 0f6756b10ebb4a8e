/* source.c: opens files as one list of tokens, and reads across the borders of its pieces.
 *
 * Pieces are in order without gaps: piece i + 1 begins where piece i ends, and none is empty. */
#include "data/source.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "base/text.h"

/* ---- token shards as tokens ------------------------------------------------------------------ */

/* Every id is checked when the shard is opened, so that an id outside the vocabulary is an error at
 * the start of a run. It is checked again when it is read, because a wrong id would access invalid
 * memory. */

static hy_status add_shard(hy_source *source, const char *path, int32_t vocab) {
    hy_shard *shard;
    uint64_t where;
    int32_t largest = -1;
    HY_TRY(hy_shard_open(path, &shard));
    hy_status status = hy_shard_max_token(shard, &largest, &where);
    hy_source_piece piece = {.count = hy_shard_count(shard), .shard = shard};
    if (largest >= vocab) {
        status = hy_fail(
            HY_ERR_INPUT,
            "%s: the token at position %llu is %d, but the model's vocabulary has the ids 0 to %d",
            path, (unsigned long long)where, largest, vocab - 1);
    } else if (status == HY_OK && piece.count > 0) {
        status = hy_source_add_piece(source, piece);
        if (status == HY_OK) return HY_OK; /* owned by the source now */
    }
    hy_shard_close(shard);
    return status;
}

/* ---- text files as tokens, one per byte ------------------------------------------------------ */

/* Large files stay on disk, so a text of any size needs no memory. Small consecutive files are read
 * into one block; otherwise a folder of a hundred thousand notes would open a file for each
 * sequence. If the last line of a file has no newline, one is added before the next file. */

#define SMALL_FILE (256 * 1024) /* bytes up to which a file is read into memory on opening */
#define BYTE_VALUES 256

/* State while text files are added: small files are collected in `gathered` until a large one
 * comes. */
typedef struct gatherer {
    hy_source *source;
    hy_text gathered;
    bool needs_newline; /* the last file did not end with a newline */
} gatherer;

static hy_status finish_block(gatherer *g) {
    HY_TRY(hy_text_status(&g->gathered));
    if (g->gathered.size == 0) return HY_OK;
    hy_text block = g->gathered;
    g->gathered = (hy_text){0};
    return hy_source_add_block(g->source, (uint8_t *)block.data, block.size);
}

static hy_status read_bytes(const hy_source_piece *piece, uint64_t first, uint64_t count,
                            void *out) {
    if (piece->text) return hy_shared_file_read(piece->text, first, out, count);
    memcpy(out, piece->bytes + first, count);
    return HY_OK;
}

/* On success, takes over the content of a large piece and returns true in *is_taken. */
static hy_status add_text(gatherer *g, const hy_source_piece *piece, bool is_alone,
                          bool *is_taken) {
    char last;
    if (piece->count == 0) return HY_OK; /* a file may be empty, but not the whole source */
    HY_TRY(read_bytes(piece, piece->count - 1, 1, &last));
    if (g->needs_newline) hy_text_add(&g->gathered, "\n");
    g->needs_newline = last != '\n';
    if (!is_alone && piece->count <= SMALL_FILE) {
        if (!hy_text_reserve(&g->gathered, piece->count)) return hy_text_status(&g->gathered);
        HY_TRY(read_bytes(piece, 0, piece->count, g->gathered.data + g->gathered.size));
        g->gathered.size += piece->count;
        return HY_OK;
    }
    HY_TRY(finish_block(g));
    HY_TRY(hy_source_add_piece(g->source, *piece));
    *is_taken = true;
    return HY_OK;
}

static void close_piece(hy_source_piece *piece) {
    hy_shared_file_close(piece->text);
    hy_shard_close(piece->shard);
    hy_spool_close(&piece->spool);
    free(piece->block);
}

static hy_status add_file(gatherer *g, const hy_input_file *file, bool is_alone) {
    hy_source_piece piece = {.spool.fd = -1};
    bool is_taken = false;
    if (file->packer) {
        hy_input input;
        HY_TRY(hy_input_open(file, &input));
        piece.count = input.size;
        piece.bytes = (const uint8_t *)input.data;
        piece.spool = input.spool;
    } else {
        HY_TRY(hy_shared_file_open(file->path, &piece.text));
        piece.count = hy_shared_file_size(piece.text);
    }
    hy_status status = add_text(g, &piece, is_alone, &is_taken);
    if (!is_taken) close_piece(&piece);
    return status;
}

/* ---- opening and reading --------------------------------------------------------------------- */

hy_status hy_source_add_piece(hy_source *source, hy_source_piece piece) {
    assert(piece.count > 0);
    HY_TRY(hy_array_reserve(&source->pieces, &source->piece_capacity, source->piece_count + 1,
                            sizeof piece, "files"));
    piece.first = source->tokens;
    source->tokens += piece.count;
    source->pieces[source->piece_count++] = piece;
    return HY_OK;
}

hy_status hy_source_add_block(hy_source *source, uint8_t *block, uint64_t size) {
    hy_source_piece piece = {.count = size, .bytes = block, .block = block};
    hy_status status = hy_source_add_piece(source, piece);
    if (status != HY_OK) free(block);
    return status;
}

void hy_source_close(hy_source *source) {
    for (size_t i = 0; i < source->piece_count; i++) {
        close_piece(&source->pieces[i]);
    }
    free(source->pieces);
    *source = (hy_source){0};
}

static hy_status add_files(hy_source *source, const hy_file_list *list, hy_file_kind kind,
                           const hy_encoding *encoding) {
    int32_t vocab = source->vocab;
    if (source->is_bytes) {
        HY_FAIL_IF(vocab < BYTE_VALUES, HY_ERR_INPUT,
                   "%s is read as bytes 0 to %d, because there is no tokenizer, but the model's "
                   "vocabulary has only %d ids; name a tokenizer with --tokenizer",
                   list->files[0].path, BYTE_VALUES - 1, vocab);
    } else if (kind == HY_DATA_TEXT) {
        return hy_source_add_encoded(source, list, encoding);
    }
    gatherer g = {.source = source};
    hy_status status = HY_OK;
    for (size_t i = 0; status == HY_OK && i < list->count; i++) {
        const hy_input_file *file = &list->files[i];
        status = kind == HY_DATA_SHARDS ? add_shard(source, file->path, vocab)
                                        : add_file(&g, file, list->count == 1);
    }
    if (status == HY_OK) status = finish_block(&g);
    hy_text_free(&g.gathered);
    return status;
}

hy_status hy_source_open(const char *path, const hy_file_list *list, hy_file_kind kind,
                         const hy_encoding *encoding, hy_source *source) {
    *source = (hy_source){.skipped = list->skipped, .vocab = encoding->options->vocab};
    source->is_bytes = kind == HY_DATA_TEXT && !encoding->tokenizer;
    hy_status status = add_files(source, list, kind, encoding);
    if (status == HY_OK && source->tokens == 0) {
        status = hy_fail(HY_ERR_INPUT, "%s is empty; expected text or tokens", path);
    }
    if (status != HY_OK) hy_source_close(source);
    return status;
}

/* The piece that holds token number `at`. */
static const hy_source_piece *piece_of(const hy_source *source, uint64_t at) {
    assert(at < source->tokens);
    size_t low = 0, high = source->piece_count; /* invariant: low's first <= at < high's first */
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (source->pieces[middle].first <= at)
            low = middle;
        else
            high = middle;
    }
    return &source->pieces[low];
}

static hy_status read_shard(const hy_source *source, const hy_shard *shard, uint64_t first,
                            uint64_t count, int32_t *out) {
    int32_t largest = 0;
    HY_TRY(hy_shard_read(shard, first, count, out));
    for (uint64_t i = 0; i < count; i++) largest = out[i] > largest ? out[i] : largest;
    HY_FAIL_IF(largest >= source->vocab, HY_ERR_IO,
               "%s has changed since it was opened: it has the token %d, but the model's "
               "vocabulary has the ids 0 to %d",
               hy_shard_path(shard), largest, source->vocab - 1);
    return HY_OK;
}

hy_status hy_source_read(const hy_source *source, uint64_t first, uint64_t count, int32_t *out) {
    assert(count <= source->tokens && first <= source->tokens - count);
    while (count > 0) {
        const hy_source_piece *piece = piece_of(source, first);
        uint64_t inside = first - piece->first;
        uint64_t here = piece->count - inside < count ? piece->count - inside : count;
        if (piece->shard) {
            HY_TRY(read_shard(source, piece->shard, inside, here, out));
        } else if (piece->ids) {
            memcpy(out, piece->ids + inside, here * sizeof *out);
        } else {
            /* A file is read into the last quarter of the token array, so each byte is read before
             * its token overwrites it. */
            uint8_t *last = (uint8_t *)out + 3 * here;
            if (piece->text) HY_TRY(hy_shared_file_read(piece->text, inside, last, here));
            const uint8_t *bytes = piece->text ? last : piece->bytes + inside;
            for (uint64_t i = 0; i < here; i++) out[i] = bytes[i];
        }
        first += here;
        count -= here;
        out += here;
    }
    return HY_OK;
}

hy_status hy_source_bytes(const hy_source *source, uint64_t first, uint64_t count, uint8_t **out) {
    *out = NULL;
    if (!source->is_bytes || first >= source->tokens) return HY_OK;
    const hy_source_piece *piece = piece_of(source, first);
    uint64_t inside = first - piece->first;
    if (piece->count - inside < count) return HY_OK;
    uint8_t *bytes = malloc(count ? count : 1);
    HY_FAIL_IF(!bytes, HY_ERR_MEMORY, "not enough memory for %llu bytes of text",
               (unsigned long long)count);
    hy_status status = read_bytes(piece, inside, count, bytes);
    if (status == HY_OK) *out = bytes;
    if (status != HY_OK) free(bytes);
    return status;
}
