/* source.c: opening files as a row of tokens, and reading across the borders of its pieces.
 *
 * Pieces lie in order without gaps: piece i + 1 begins where piece i ends, and none is empty. */
#include "data/source.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/array.h"
#include "base/error.h"
#include "base/text.h"
#include "data/json_rows.h"

/* ---- which files a path stands for ----------------------------------------------------------- */

/* A file stands for itself, whatever it holds. Of a folder the regular files inside are taken, at
 * any depth, sorted by name; left out and counted are hidden names, linked folders (they may lead
 * back), empty files and files that are neither text nor shards. */

#define PATH_BYTES 4096
#define LOOKED_AT 4096 /* bytes of a file that tell whether it is text */

static hy_status add_path(hy_file_list *list, const char *path) {
    HY_TRY(hy_array_reserve(&list->paths, &list->capacity, list->count + 1, sizeof *list->paths,
                            "files"));
    char *copy = strdup(path);
    if (!copy) return hy_fail(HY_ERR_MEMORY, "no memory for the path %s", path);
    list->paths[list->count++] = copy;
    return HY_OK;
}

/* Text holds no zero byte; pictures, archives and programs do, early on. */
static hy_status looks_like_text(const char *path, bool *is_text) {
    hy_reader *reader;
    HY_TRY(hy_reader_open(path, &reader));
    char bytes[LOOKED_AT];
    uint64_t size = hy_reader_size(reader);
    if (size > sizeof bytes) size = sizeof bytes;
    hy_status status = hy_reader_get(reader, 0, bytes, size);
    hy_reader_close(reader);
    *is_text = status == HY_OK && memchr(bytes, '\0', size) == NULL;
    return status;
}

static hy_status add_folder(hy_file_list *list, const char *path);

static hy_status add_entry(hy_file_list *list, const char *folder, const char *name) {
    char path[PATH_BYTES];
    HY_TRY(hy_path_join(path, sizeof path, folder, name));
    struct stat link, target;
    bool is_seen = name[0] != '.' && lstat(path, &link) == 0 && stat(path, &target) == 0;
    if (is_seen && S_ISREG(target.st_mode)) {
        bool is_wanted = hy_source_is_shard(path);
        if (!is_wanted && target.st_size > 0) HY_TRY(looks_like_text(path, &is_wanted));
        if (is_wanted) return add_path(list, path);
    } else if (is_seen && S_ISDIR(target.st_mode) && !S_ISLNK(link.st_mode)) {
        return add_folder(list, path);
    }
    list->skipped++;
    return HY_OK;
}

static hy_status add_folder(hy_file_list *list, const char *path) {
    char **names;
    size_t count;
    HY_TRY(hy_dir_list(path, &names, &count));
    hy_status status = HY_OK;
    for (size_t i = 0; status == HY_OK && i < count; i++) status = add_entry(list, path, names[i]);
    hy_dir_list_free(names, count);
    return status;
}

static hy_status find_files(const char *path, hy_file_list *list) {
    struct stat info;
    bool is_known = stat(path, &info) == 0; /* a missing one fails when it is opened */
    if (!is_known || S_ISREG(info.st_mode)) return add_path(list, path);
    /* opening a pipe would wait for its writer */
    HY_FAIL_IF(!S_ISDIR(info.st_mode), HY_ERR_INPUT, "%s is neither a file nor a folder", path);
    HY_TRY(add_folder(list, path));
    HY_FAIL_IF(list->count == 0, HY_ERR_INPUT,
               "the folder %s holds no text and no token shards (%zu other files were skipped)",
               path, list->skipped);
    return HY_OK;
}

hy_status hy_file_list_find(const char *path, hy_file_list *list) {
    *list = (hy_file_list){0};
    hy_status status = find_files(path, list);
    if (status != HY_OK) hy_file_list_free(list);
    return status;
}

void hy_file_list_free(hy_file_list *list) {
    for (size_t i = 0; i < list->count; i++) free(list->paths[i]);
    free(list->paths);
    *list = (hy_file_list){0};
}

/* ---- token shards as tokens ------------------------------------------------------------------ */

/* Every id is looked at once, when the shard is opened, so that one beyond the vocabulary is an error at
 * the start of a run, and again when it is read: it would read memory that is not there. */

/* A file with the name of a shard is opened as one, and fails as one. */
bool hy_source_is_shard(const char *path) {
    return hy_has_ending(path, ".bin") || hy_shard_has_magic(path);
}

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
            "%s: the token at position %llu is %d, but the model's vocabulary has ids 0 to %d",
            path, (unsigned long long)where, largest, vocab - 1);
    } else if (status == HY_OK && piece.count > 0) {
        status = hy_source_add_piece(source, piece);
        if (status == HY_OK) return HY_OK; /* the source owns it now */
    }
    hy_shard_close(shard);
    return status;
}

/* ---- text files as tokens, one per byte ------------------------------------------------------ */

/* Large files stay where they are, so a text of any size costs no memory. Small ones next to each other
 * are gathered into one block: a folder of a hundred thousand notes would otherwise be opened for each
 * sequence. Where a file does not end its last line, a newline stands between it and the next. */

#define SMALL_FILE (256 * 1024) /* bytes up to which a file is read when the source is opened */
#define BYTE_VALUES 256

/* Text on its way into a source: small files wait in `gathered` until a large one comes. */
typedef struct gatherer {
    hy_source *source;
    hy_text gathered;
    bool wants_newline; /* what came last did not end its line */
} gatherer;

static hy_status finish_block(gatherer *g) {
    HY_TRY(hy_text_status(&g->gathered));
    if (g->gathered.size == 0) return HY_OK;
    hy_text block = g->gathered;
    g->gathered = (hy_text){0};
    return hy_source_add_block(g->source, (uint8_t *)block.data, block.size);
}

static hy_status add_file(gatherer *g, const char *path, bool is_alone) {
    hy_shared_file *file;
    char last = '\n', *text = NULL;
    HY_TRY(hy_shared_file_open(path, &file));
    uint64_t size = hy_shared_file_size(file);
    bool is_small = !is_alone && size <= SMALL_FILE;
    hy_status status = HY_OK;
    /* The source as a whole may not be empty; a file may. */
    if (size > 0) status = hy_shared_file_read(file, size - 1, &last, 1);
    if (g->wants_newline && size > 0) hy_text_add(&g->gathered, "\n");
    if (size > 0) g->wants_newline = last != '\n';
    if (status == HY_OK && size > 0 && !is_small) {
        hy_source_piece piece = {.count = size, .text = file};
        status = finish_block(g);
        if (status == HY_OK) status = hy_source_add_piece(g->source, piece);
        if (status == HY_OK) return HY_OK; /* the source owns it now */
    } else if (status == HY_OK && size > 0) {
        text = malloc(size);
        status = text ? hy_shared_file_read(file, 0, text, size)
                      : hy_fail(HY_ERR_MEMORY, "no memory for the text %s", path);
        if (status == HY_OK) hy_text_add_bytes(&g->gathered, text, size);
    }
    free(text);
    hy_shared_file_close(file);
    return status == HY_OK ? hy_text_status(&g->gathered) : status;
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
    hy_source_piece piece = {.count = size, .block = block};
    hy_status status = hy_source_add_piece(source, piece);
    if (status != HY_OK) free(block);
    return status;
}

void hy_source_close(hy_source *source) {
    for (size_t i = 0; i < source->piece_count; i++) {
        hy_source_piece *piece = &source->pieces[i];
        hy_shared_file_close(piece->text);
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
    return strncmp(name, "README", 6) == 0 || strncmp(name, "LICENSE", 7) == 0 ||
           hy_has_ending(name, ".md");
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
    int32_t vocab = encoding->vocab;
    if (source->is_bytes) {
        HY_FAIL_IF(vocab < BYTE_VALUES, HY_ERR_INPUT,
                   "%s is text, read as bytes 0 to %d, but the model's vocabulary has only %d ids",
                   list->paths[0], BYTE_VALUES - 1, vocab);
    } else if (kind == HY_DATA_TEXT) {
        return hy_source_add_encoded(source, list, encoding);
    }
    gatherer g = {.source = source};
    hy_status status = HY_OK;
    for (size_t i = 0; status == HY_OK && i < list->count; i++) {
        const char *path = list->paths[i];
        status = source->is_bytes ? add_file(&g, path, list->count == 1)
                                  : add_shard(source, path, vocab);
    }
    if (status == HY_OK) status = finish_block(&g);
    hy_text_free(&g.gathered);
    return status;
}

hy_status hy_source_open(const char *path, const hy_file_list *list, hy_file_kind kind,
                         const hy_encoding *encoding, hy_source *source) {
    *source =
        (hy_source){.file_count = list->count, .skipped = list->skipped, .vocab = encoding->vocab};
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

/* The bytes fill the last quarter of the room for their tokens: those before are read before they are
 * written over. */
static hy_status read_text(const hy_shared_file *text, uint64_t first, uint64_t count,
                           int32_t *out) {
    const uint8_t *bytes = (const uint8_t *)out + 3 * count;
    HY_TRY(hy_shared_file_read(text, first, (uint8_t *)out + 3 * count, count));
    for (uint64_t i = 0; i < count; i++) out[i] = bytes[i];
    return HY_OK;
}

static hy_status read_shard(const hy_source *source, const hy_shard *shard, uint64_t first,
                            uint64_t count, int32_t *out) {
    int32_t largest = 0;
    HY_TRY(hy_shard_read(shard, first, count, out));
    for (uint64_t i = 0; i < count; i++) largest = out[i] > largest ? out[i] : largest;
    HY_FAIL_IF(
        largest >= source->vocab, HY_ERR_IO,
        "%s has changed since it was opened: it has the token %d, but the model's vocabulary "
        "has ids 0 to %d",
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
        } else if (piece->text) {
            HY_TRY(read_text(piece->text, inside, here, out));
        } else {
            for (uint64_t i = 0; i < here; i++) out[i] = piece->block[inside + i];
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
    HY_FAIL_IF(!bytes, HY_ERR_MEMORY, "no memory for %llu bytes of text",
               (unsigned long long)count);
    hy_status status = HY_OK;
    if (piece->text) status = hy_shared_file_read(piece->text, inside, bytes, count);
    if (piece->block) memcpy(bytes, piece->block + inside, count);
    if (status == HY_OK) *out = bytes;
    if (status != HY_OK) free(bytes);
    return status;
}
