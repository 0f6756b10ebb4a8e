/* source.c: opening files as a row of tokens, and reading across the borders of its pieces.
 *
 * Pieces lie in order without gaps: piece i + 1 begins where piece i ends, and none is empty. */
#include "data/source.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "data/json_rows.h"

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
        hy_source_piece *piece = &source->pieces[i];
        hy_file_map_close(&piece->map);
        hy_shard_close(piece->shard);
        if (piece->ids) hy_spool_close(&piece->spool);
        free(piece->block);
    }
    free(source->pieces);
    *source = (hy_source){0};
}

static hy_file_kind kind_of(const char *path) {
    if (hy_source_is_shard(path)) return HY_DATA_SHARDS;
    return hy_rows_are_promised(path) ? HY_DATA_ROWS : HY_DATA_TEXT;
}

/* For people, not for training: data sets that are published come with such files. */
static bool is_note(const char *path) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    size_t size = strlen(name);
    return strncmp(name, "README", 6) == 0 || strncmp(name, "LICENSE", 7) == 0 ||
           (size > 3 && strcmp(name + size - 3, ".md") == 0);
}

static void drop_notes(hy_file_list *list) {
    size_t kept = 0, rows = 0;
    for (size_t i = 0; i < list->count; i++) rows += kind_of(list->paths[i]) == HY_DATA_ROWS;
    for (size_t i = 0; rows > 0 && i < list->count; i++) {
        char *path = list->paths[i];
        if (kind_of(path) == HY_DATA_TEXT && is_note(path)) {
            free(path);
            list->skipped++;
        } else {
            list->paths[kept++] = path;
        }
    }
    if (rows > 0) list->count = kept;
}

hy_status hy_file_list_kind(const char *path, hy_file_list *list, hy_file_kind *out) {
    static const char *const names[] = {"text", "token shards", "rows of JSON"};
    drop_notes(list);
    *out = kind_of(list->paths[0]);
    for (size_t i = 1; i < list->count; i++) {
        hy_file_kind other = kind_of(list->paths[i]);
        if (other == *out) continue;
        bool is_first = *out == HY_DATA_SHARDS || other == HY_DATA_TEXT; /* text is named last */
        size_t a = is_first ? 0 : i, b = is_first ? i : 0;
        return hy_fail(HY_ERR_INPUT, "%s holds both %s (%s) and %s (%s); expected one kind", path,
                       names[is_first ? *out : other], list->paths[a],
                       names[is_first ? other : *out], list->paths[b]);
    }
    return HY_OK;
}

static hy_status add_files(hy_source *source, const hy_file_list *list, hy_file_kind kind,
                           const hy_encoding *encoding) {
    if (kind == HY_DATA_SHARDS) return hy_source_add_shards(source, list, encoding->vocab);
    if (encoding->tokenizer) return hy_source_add_encoded(source, list, encoding);
    return hy_source_add_texts(source, list, encoding->vocab);
}

hy_status hy_source_open(const char *path, const hy_file_list *list, hy_file_kind kind,
                         const hy_encoding *encoding, hy_source *source) {
    *source = (hy_source){.file_count = list->count, .skipped = list->skipped};
    source->is_bytes = kind == HY_DATA_TEXT && !encoding->tokenizer;
    hy_status status = add_files(source, list, kind, encoding);
    if (status == HY_OK && source->tokens == 0) {
        status = hy_fail(HY_ERR_INPUT, "%s is empty; expected tokens", path);
    }
    if (status != HY_OK) hy_source_close(source);
    return status;
}

/* The piece that holds token number `at`. */
static const hy_source_piece *piece_of(const hy_source *source, uint64_t at) {
    assert(at < source->tokens);
    size_t low = 0, high = source->piece_count; /* low's first <= at < high's first */
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (source->pieces[middle].first <= at)
            low = middle;
        else
            high = middle;
    }
    return &source->pieces[low];
}

static void read_piece(const hy_source_piece *piece, uint64_t first, uint64_t count, int32_t *out) {
    if (piece->shard) {
        hy_shard_read(piece->shard, first, count, out);
        return;
    }
    if (piece->ids) {
        memcpy(out, piece->ids + first, count * sizeof *out);
        return;
    }
    for (uint64_t i = 0; i < count; i++) out[i] = piece->bytes[first + i];
}

void hy_source_read(const hy_source *source, uint64_t first, uint64_t count, int32_t *out) {
    assert(count <= source->tokens && first <= source->tokens - count);
    while (count > 0) {
        const hy_source_piece *piece = piece_of(source, first);
        uint64_t inside = first - piece->first;
        uint64_t here = piece->count - inside < count ? piece->count - inside : count;
        read_piece(piece, inside, here, out);
        first += here;
        count -= here;
        out += here;
    }
}

const uint8_t *hy_source_bytes(const hy_source *source, uint64_t first, uint64_t count) {
    if (!source->is_bytes || first >= source->tokens) return NULL;
    const hy_source_piece *piece = piece_of(source, first);
    uint64_t inside = first - piece->first;
    return piece->count - inside >= count ? piece->bytes + inside : NULL;
}
