/* input.c: finds files, detects their kind and decompresses them. See input.h.
 *
 * The dataset (part.c), the tokenizer program (tokenizer_shards.c) and fingerprints read files
 * through it. A file that is not text never becomes training data silently: it is skipped and
 * counted in a folder, and an error otherwise. */
#include "data/input.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/array.h"
#include "base/disk.h"
#include "base/error.h"
#include "base/text.h"
#include "base/utf8.h"
#include "data/csv_rows.h"
#include "data/growing.h"
#include "data/json_rows.h"
#include "formats/shard.h"

#define PATH_BYTES 4096
#define ESTIMATED_BYTES ((size_t)4 << 20)
#define INSPECTED_BYTES 4096 /* bytes at the beginning of a file that are inspected */

typedef struct head {
    uint8_t bytes[INSPECTED_BYTES];
    size_t size;
    bool is_whole; /* the whole file fits */
} head;

/* ---- detecting files that are not text ------------------------------------------------------- */

/* The path as one shell word, so that users can paste a suggested command. */
typedef struct shell_word {
    char text[PATH_BYTES];
} shell_word;

static shell_word shell_word_of(const char *path) {
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./,:+@%";
    shell_word word = {""};
    const char *folder = path[0] == '-' ? "./" : ""; /* otherwise it would be an option */
    if (path[strspn(path, plain)] == '\0') {
        snprintf(word.text, sizeof word.text, "%s%s", folder, path);
        return word;
    }
    size_t size = (size_t)snprintf(word.text, sizeof word.text, "'%s", folder);
    for (; *path && size + 8 < sizeof word.text; path++)
        size += (size_t)snprintf(word.text + size, 8, *path == '\'' ? "'\\''" : "%c", *path);
    snprintf(word.text + size, sizeof word.text - size, "'");
    return word;
}

/* Formats known by their first bytes, and the command that converts them to text: its words before
 * and after the path. */
static const struct {
    size_t at;
    const char *bytes;
    size_t size;
    const char *name, *before, *after, *with;
    bool is_data; /* probably meant for training: an error instead of skipping it in a folder */
} formats[] = {
#define IS(begin, what) .bytes = begin, .size = sizeof begin - 1, .name = what
#define BY(words, more) .before = words, .after = more
#define PIPED(words) BY(words, " | hybrid-train --data -")
/* Python writes NaN, which is not JSON; read back with parse_constant it becomes null. */
#define TABLE(import, open, rows)                                                                  \
    BY("python3 -c \"import json, sys, " import                                                    \
       " as p; [print(json.dumps(json.loads(json.dumps(r, default=str), parse_constant=lambda x: " \
       "None))) for " open "(sys.argv[1])" rows "]\" ",                                            \
       " > rows.jsonl"),                                                                           \
        .with = " with Python (pip install pyarrow)", .is_data = true
    {IS("PAR1", "a Parquet file"),
     TABLE("pyarrow.parquet", "b in p.ParquetFile", ".iter_batches() for r in b.to_pylist()")},
    {IS("ARROW1\0", "an Arrow file"),
     TABLE("pyarrow", "r in p.ipc.open_file", ".read_all().to_pylist()")},
    {IS("\xFF\xFF\xFF\xFF", "an Arrow stream"),
     TABLE("pyarrow", "b in p.ipc.open_stream", " for r in b.to_pylist()")},
    {IS("\3757zXZ", "compressed with xz"), PIPED("xz -dc "), .is_data = true},
    {IS("BZh91AY&SY", "compressed with bzip2"), PIPED("bzip2 -dc "), .is_data = true},
    {IS("\x04\x22\x4D\x18", "compressed with lz4"), PIPED("lz4 -dc "), .is_data = true},
    {IS("\xFF\xFE\0\0", "text in UTF-32"), PIPED("iconv -f UTF-32 -t UTF-8 "), .is_data = true},
    {IS("\0\0\xFE\xFF", "text in UTF-32"), PIPED("iconv -f UTF-32 -t UTF-8 "), .is_data = true},
    {IS("\xFF\xFE", "text in UTF-16"), PIPED("iconv -f UTF-16 -t UTF-8 "), .is_data = true},
    {IS("\xFE\xFF", "text in UTF-16"), PIPED("iconv -f UTF-16 -t UTF-8 "), .is_data = true},
    {IS("PK\x03\x04", "a zip archive (or an Office, NumPy or PyTorch file)"), PIPED("unzip -p ")},
    {IS("7z\xBC\xAF\x27\x1C", "a 7z archive"), PIPED("7z e -so ")},
    {.at = 257, IS("ustar", "a tar archive"), BY("tar -xf ", "")},
    {IS("%PDF-", "a PDF"), BY("pdftotext ", "")},
    {IS("HYTOKENS", "a token shard"),
     .with = "unpack it if it is compressed, and omit --data-format"},
    {IS("\x1F\x8B\x08", "compressed twice with gzip"), .with = "unpack it once"},
    {IS("\x28\xB5\x2F\xFD", "compressed twice with zstd"), .with = "unpack it once"},
    {IS("Rar!\x1A\x07", "a RAR archive")},
    {IS("SQLite format 3", "an SQLite database")},
    {IS("\x93NUMPY", "a NumPy array")},
    {IS("\x89HDF\r\n", "an HDF5 file")},
    {IS("Obj\x01", "an Avro file")},
    {IS("\x89PNG", "a PNG picture")},
    {IS("\xFF\xD8\xFF", "a JPEG picture")},
    {IS("GIF89a", "a GIF picture")},
    {IS("\177ELF", "a program (ELF)")},
    {IS("GGUF\x03\0", "a GGUF model")},
    {IS("\xD0\xCF\x11\xE0", "an old Microsoft Office file")},
    {IS("\x80\x02", "a Python pickle")},
    {IS("\x80\x04\x95", "a Python pickle")},
#undef IS
#undef BY
#undef PIPED
#undef TABLE
};

/* Counts bytes that are not part of a UTF-8 character, except a character cut at the end. */
static size_t count_invalid(const head *h) {
    size_t invalid = 0;
    for (size_t i = 0; i < h->size;) {
        int length = hy_utf8_length(h->bytes + i, h->size - i);
        bool is_cut = length == 0 && !h->is_whole && h->size - i < 4;
        invalid += length == 0 && !is_cut;
        i += length ? (size_t)length : 1;
    }
    return invalid;
}

/* HY_ERR_INPUT: the file is not text. *is_data: it seems to be meant for training. */
static hy_status check_text(const char *path, const head *h, bool *is_data) {
    static const char raw[] = "use --data-format bytes to train on its bytes";
    *is_data = false;
    if (h->size == 0) return HY_OK;
    /* A safetensors file begins with 8 bytes, the length of its header, and the header in JSON. */
    bool is_safetensors = h->size > 9 && memcmp(h->bytes + 4, "\0\0\0\0{", 5) == 0;
    if (is_safetensors) {
        return hy_fail(HY_ERR_INPUT, "%s is a safetensors file (weights), not plain text; %s", path,
                       raw);
    }
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        size_t at = formats[i].at, size = formats[i].size;
        if (h->size < at + size || memcmp(h->bytes + at, formats[i].bytes, size) != 0) continue;
        *is_data = formats[i].is_data;
        const char *name = formats[i].name, *before = formats[i].before, *with = formats[i].with;
        return before ? hy_fail(HY_ERR_INPUT, "%s is %s, not plain text; convert it%s: %s%s%s",
                                path, name, with ? with : "", before, shell_word_of(path).text,
                                formats[i].after)
                      : hy_fail(HY_ERR_INPUT, "%s is %s, not plain text; %s", path, name,
                                with ? with : raw);
    }
    HY_FAIL_IF(memchr(h->bytes, 0, h->size), HY_ERR_INPUT,
               "%s is not text: its beginning contains zero bytes; %s", path, raw);
    *is_data = true;
    size_t invalid = count_invalid(h);
    HY_FAIL_IF(invalid > h->size / 10, HY_ERR_INPUT,
               "%s is not UTF-8 text: %zu %% of its first bytes are invalid; if it has another "
               "encoding, use: iconv -f ENCODING -t UTF-8 %s | hybrid-train --data -; %s",
               path, 100 * invalid / h->size, shell_word_of(path).text, raw);
    return HY_OK;
}

/* ---- the kind of a file ---------------------------------------------------------------------- */

static hy_status read_head(const char *path, head *h) {
    hy_reader *reader;
    HY_TRY(hy_reader_open(path, &reader));
    uint64_t size = hy_reader_size(reader);
    h->is_whole = size <= INSPECTED_BYTES;
    h->size = h->is_whole ? (size_t)size : INSPECTED_BYTES;
    hy_status status = hy_reader_get(reader, 0, h->bytes, h->size);
    hy_reader_close(reader);
    return status;
}

static hy_status unpack_head(const hy_input_file *file, head *h) {
    hy_unpacker *unpacker;
    HY_TRY(hy_unpacker_open(file->path, file->packer, &unpacker));
    hy_status status = hy_unpacker_read(unpacker, h->bytes, INSPECTED_BYTES, &h->size);
    h->is_whole = h->size < INSPECTED_BYTES;
    hy_unpacker_close(unpacker);
    return status;
}

/* The length of the first `size` bytes of a path without one of these endings; `size`: it has
 * none. */
static size_t without_ending(const char *path, size_t size, const char *const *endings) {
    for (; *endings; endings++) {
        size_t ending = strlen(*endings);
        bool fits = size > ending && !strncasecmp(path + size - ending, *endings, ending);
        if (fits) return size - ending;
    }
    return size;
}

/* Whether the name has one of these endings, before the ending of a compressor: "rows.jsonl.gz". */
static bool is_named(const hy_input_file *file, const char *const *endings) {
    static const char *const packed[] = {".gz", ".gzip", ".zst", ".zstd", NULL};
    size_t size = strlen(file->path);
    if (file->packer) size = without_ending(file->path, size, packed);
    return without_ending(file->path, size, endings) < size;
}

/* Detects the kind of a file. Fails if it is not text. */
static hy_status detect_kind(hy_input_file *file, hy_data_format format, bool *is_data) {
    head h;
    *is_data = true;
    if (format == HY_FORMAT_BYTES) return HY_OK;
    HY_TRY(read_head(file->path, &h));
    /* A file that is named like a shard is opened as one, and errors name it as one. */
    bool is_shard = hy_has_ending(file->path, ".bin") || hy_shard_has_magic(file->path);
    if (is_shard && format == HY_FORMAT_AUTO) {
        file->kind = HY_DATA_SHARDS;
        return HY_OK;
    }
    file->packer = hy_packer_of(h.bytes, h.size);
    if (file->packer) HY_TRY(unpack_head(file, &h));
    HY_TRY(check_text(file->path, &h, is_data));
    if (format != HY_FORMAT_AUTO) return HY_OK;
    static const char *const json[] = {".jsonl", ".ndjson", ".json", NULL};
    static const char *const csv[] = {".csv", ".tsv", NULL};
    const char *text = (const char *)h.bytes;
    bool has_name = strcmp(file->path, HY_STANDARD_INPUT) != 0;
    bool has_rows = hy_rows_are_there(text, h.size), has_columns = hy_csv_is_header(text, h.size);
    file->is_csv = has_name ? is_named(file, csv) : has_columns;
    bool is_json = has_name ? is_named(file, json) : has_rows;
    if (is_json || file->is_csv) file->kind = HY_DATA_ROWS;
    file->looks_like_rows = file->kind == HY_DATA_TEXT && (has_rows || has_columns);
    return HY_OK;
}

/* ---- the files of a path --------------------------------------------------------------------- */

/* For a folder, all regular files in it are used, at any depth, sorted by name. Hidden names,
 * linked folders (they may form a loop), empty files and files that are not text are skipped and
 * counted. */

static hy_status add_file(hy_file_list *list, hy_input_file file) {
    HY_TRY(hy_array_reserve(&list->files, &list->capacity, list->count + 1, sizeof *list->files,
                            "files"));
    file.path = strdup(file.path);
    if (!file.path) return hy_fail(HY_ERR_MEMORY, "not enough memory for the paths of files");
    list->files[list->count++] = file;
    return HY_OK;
}

static hy_status add_folder(hy_file_list *list, const char *path, hy_data_format format);

static hy_status add_entry(hy_file_list *list, const char *folder, const char *name,
                           hy_data_format format) {
    char path[PATH_BYTES];
    HY_TRY(hy_path_join(path, sizeof path, folder, name));
    struct stat link, target;
    bool is_seen = name[0] != '.' && lstat(path, &link) == 0 && stat(path, &target) == 0;
    if (is_seen && S_ISREG(target.st_mode)) {
        hy_input_file file = {.path = path};
        bool is_data, is_empty = target.st_size == 0 && !hy_has_ending(path, ".bin");
        hy_status status = is_empty ? HY_OK : detect_kind(&file, format, &is_data);
        if (status == HY_OK && !is_empty) return add_file(list, file);
        if (status != HY_OK && (status != HY_ERR_INPUT || is_data)) return status;
        bool is_first = status != HY_OK && !list->refused[0];
        if (is_first) snprintf(list->refused, sizeof list->refused, "%.500s", hy_error_message());
    } else if (is_seen && S_ISDIR(target.st_mode) && !S_ISLNK(link.st_mode)) {
        return add_folder(list, path, format);
    }
    list->skipped++;
    return HY_OK;
}

static hy_status add_folder(hy_file_list *list, const char *path, hy_data_format format) {
    char **names;
    size_t count;
    HY_TRY(hy_dir_list(path, &names, &count));
    hy_status status = HY_OK;
    for (size_t i = 0; status == HY_OK && i < count; i++) {
        status = add_entry(list, path, names[i], format);
    }
    hy_dir_list_free(names, count);
    return status;
}

bool hy_is_standard_input(const char *path) {
    return strcmp(path, "-") == 0 || strcmp(path, HY_STANDARD_INPUT) == 0;
}

bool hy_reads_input(const char *paths) {
    for (const char *at = paths; *at; at += strcspn(at, ","), at += *at == ',') {
        bool is_input = at[0] == '-' && (at[1] == 0 || at[1] == ',' || at[1] == ':');
        if (is_input || strncmp(at, HY_STANDARD_INPUT, strlen(HY_STANDARD_INPUT)) == 0) return true;
    }
    return false;
}

static hy_status find_files(const char *path, hy_data_format format, uint64_t least,
                            hy_file_list *list) {
    struct stat info;
    bool is_input = hy_is_standard_input(path), is_data, is_whole;
    uint64_t size;
    if (is_input) HY_TRY(hy_standard_input_copy(least, &size, &is_whole));
    if (is_input) path = HY_STANDARD_INPUT;
    bool is_known = stat(path, &info) == 0; /* opening a missing file reports it */
    if (!is_known || S_ISREG(info.st_mode)) {
        hy_input_file file = {.path = (char *)path};
        HY_TRY(detect_kind(&file, format, &is_data));
        return add_file(list, file);
    }
    /* opening a pipe would wait for its writer */
    HY_FAIL_IF(
        !S_ISDIR(info.st_mode), HY_ERR_INPUT,
        "%s is neither a file nor a folder; to read a pipe, use standard input: --data - < %s",
        path, path);
    HY_TRY(add_folder(list, path, format));
    HY_FAIL_IF(
        list->count == 0, HY_ERR_INPUT,
        "the folder %s contains no text, rows or token shards (%zu other files were skipped)%s%s",
        path, list->skipped, list->refused[0] ? "; " : "", list->refused);
    return HY_OK;
}

hy_status hy_file_list_find(const char *path, hy_data_format format, hy_file_list *list) {
    return hy_file_list_find_soon(path, format, UINT64_MAX, list);
}

hy_status hy_file_list_find_soon(const char *path, hy_data_format format, uint64_t least,
                                 hy_file_list *list) {
    *list = (hy_file_list){0};
    hy_status status = find_files(path, format, least, list);
    if (status != HY_OK) hy_file_list_free(list);
    return status;
}

void hy_file_list_free(hy_file_list *list) {
    for (size_t i = 0; i < list->count; i++) free(list->files[i].path);
    free(list->files);
    *list = (hy_file_list){0};
}

/* ---- the kind of a list ---------------------------------------------------------------------- */

/* Removes files for people, which published data sets contain, from a list with rows. */
static void drop_notes(hy_file_list *list) {
    size_t kept = 0, rows = 0;
    for (size_t i = 0; i < list->count; i++) rows += list->files[i].kind == HY_DATA_ROWS;
    for (size_t i = 0; rows > 0 && i < list->count; i++) {
        hy_input_file file = list->files[i];
        const char *slash = strrchr(file.path, '/'), *name = slash ? slash + 1 : file.path;
        bool is_note = strncmp(name, "README", 6) == 0 || strncmp(name, "LICENSE", 7) == 0 ||
                       hy_has_ending(name, ".md");
        if (file.kind == HY_DATA_TEXT && is_note) {
            free(file.path);
            list->skipped++;
        } else {
            list->files[kept++] = file;
        }
    }
    if (rows > 0) list->count = kept;
}

hy_status hy_file_list_kind(const char *path, hy_file_list *list, hy_file_kind *out) {
    static const char *const names[] = {"text", "token shards", "rows of JSON or CSV"};
    drop_notes(list);
    *out = list->files[0].kind;
    for (size_t i = 1; i < list->count; i++) {
        hy_file_kind other = list->files[i].kind;
        if (other == *out) continue;
        /* name the text file last */
        bool is_first = *out == HY_DATA_SHARDS || other == HY_DATA_TEXT;
        size_t a = is_first ? 0 : i, b = is_first ? i : 0;
        return hy_fail(HY_ERR_INPUT, "%s contains both %s (%s) and %s (%s); expected one kind",
                       path, names[is_first ? *out : other], list->files[a].path,
                       names[is_first ? other : *out], list->files[b].path);
    }
    return HY_OK;
}

/* ---- bytes ----------------------------------------------------------------------------------- */

/* Decompresses a file and counts its bytes; writes them to the spool if there is one. */
static hy_status unpack(const hy_input_file *file, hy_spool *spool, uint64_t *size) {
    hy_unpacker *unpacker;
    HY_TRY(hy_unpacker_open(file->path, file->packer, &unpacker));
    char *buffer = malloc(HY_SPOOL_BUFFER);
    hy_status status =
        buffer ? HY_OK : hy_fail(HY_ERR_MEMORY, "not enough memory to decompress %s", file->path);
    *size = 0;
    for (size_t got = 1; status == HY_OK && got > 0;) {
        status = hy_unpacker_read(unpacker, buffer, HY_SPOOL_BUFFER, &got);
        if (status == HY_OK && spool) status = hy_spool_put(spool, buffer, got);
        if (status == HY_OK) *size += got;
    }
    free(buffer);
    hy_unpacker_close(unpacker);
    return status;
}

hy_status hy_input_open(const hy_input_file *file, hy_input *out) {
    *out = (hy_input){.spool.fd = -1};
    if (!file->packer) {
        HY_TRY(hy_file_map_open(file->path, &out->map));
        out->data = (const char *)out->map.data;
        out->size = out->map.size;
        return HY_OK;
    }
    uint64_t size;
    HY_TRY(hy_spool_open(&out->spool));
    hy_status status = unpack(file, &out->spool, &size);
    if (status == HY_OK) status = hy_spool_map(&out->spool);
    if (status != HY_OK) {
        hy_input_close(out);
        return status;
    }
    hy_spool_release_file(&out->spool); /* a folder may hold thousands of them */
    out->data = out->spool.data;
    out->size = (size_t)size;
    return HY_OK;
}

void hy_input_close(hy_input *input) {
    if (input->map.data) hy_file_map_close(&input->map);
    hy_spool_close(&input->spool);
    *input = (hy_input){.spool.fd = -1};
}

hy_status hy_input_estimate(const hy_input_file *file, uint64_t *size) {
    hy_unpacker *unpacker;
    size_t got;
    if (!file->packer) return hy_input_measure(file, size);
    HY_TRY(hy_unpacker_open(file->path, file->packer, &unpacker));
    char *begin = malloc(ESTIMATED_BYTES);
    hy_status status =
        begin ? HY_OK : hy_fail(HY_ERR_MEMORY, "not enough memory to decompress %s", file->path);
    if (status == HY_OK) status = hy_unpacker_read(unpacker, begin, ESTIMATED_BYTES, &got);
    if (status == HY_OK) *size = (uint64_t)((double)got / hy_unpacker_share(unpacker));
    free(begin);
    hy_unpacker_close(unpacker);
    return status;
}

hy_status hy_input_measure(const hy_input_file *file, uint64_t *size) {
    hy_reader *reader;
    if (file->packer) return unpack(file, NULL, size);
    HY_TRY(hy_reader_open(file->path, &reader));
    *size = hy_reader_size(reader);
    hy_reader_close(reader);
    return HY_OK;
}
