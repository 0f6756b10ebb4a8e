/* journal.c: see journal.h.
 *
 * Memory holds where each record is, not its values, which are read when they are asked for. The
 * file is only ever appended to, or replaced as a whole: when records are removed, and after a
 * failed append, which may have left a part of a line. */
#include "reward/journal.h"

#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/array.h"
#include "base/disk.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/number.h"

#define LINE_MOST ((size_t)16 << 20) /* bytes of a record */
#define CHUNK ((size_t)256 << 10)
#define HASH_DIGITS 16
#define TEXT_MOST ((size_t)2000) /* bytes of a text in an example */

_Static_assert((size_t)HY_JOURNAL_SCORES * HY_NUMBER_MAX + 20 * TEXT_MOST < LINE_MOST,
               "a record with the most scores and an example fits");

typedef struct record {
    int64_t rollout;
    uint64_t hash;
    uint64_t offset;
    size_t size;  /* of its line, without the line end */
    size_t count; /* of values */
} record;

struct hy_journal {
    char *path;
    record *records; /* (count) by rollout */
    size_t count, room;
    uint64_t end;  /* of the last record */
    bool is_dirty; /* the file may hold other bytes after `end` */
    hy_text line;  /* scratch */
};

/* ---- records --------------------------------------------------------------------------------- */

static void put_text(hy_json_writer *w, const char *name, const char *text, size_t size) {
    hy_json_put_bytes(w, name, text, size < TEXT_MOST ? size : TEXT_MOST);
}

static void put_answer(hy_json_writer *w, const char *name, const hy_journal_answer *answer) {
    hy_json_open_object(w, name);
    put_text(w, "answer", answer->text, answer->size);
    hy_json_put_double(w, "reward", answer->reward);
    hy_json_close_object(w);
}

static void put_example(hy_json_writer *w, const hy_journal_example *example) {
    hy_json_open_object(w, "example");
    put_text(w, "prompt", example->prompt, example->prompt_size);
    put_answer(w, "best", &example->best);
    put_answer(w, "worst", &example->worst);
    hy_json_close_object(w);
}

static void write_record(hy_text *line, int64_t rollout, uint64_t hash, const double *values,
                         size_t count, const hy_journal_example *example) {
    char digits[HASH_DIGITS + 1];
    hy_json_writer w;
    hy_text_clear(line);
    snprintf(digits, sizeof digits, "%016" PRIx64, hash);
    hy_json_begin(&w, line, false);
    hy_json_open_object(&w, NULL);
    hy_json_put_int(&w, "rollout", rollout);
    hy_json_put_string(&w, "hash", digits);
    hy_json_open_array(&w, "scores");
    for (size_t i = 0; i < count; i++) hy_json_put_double(&w, NULL, values[i]);
    hy_json_close_array(&w);
    if (example) put_example(&w, example);
    hy_json_close_object(&w);
    hy_text_add(line, "\n");
}

static hy_status read_hash(const hy_json *json, uint64_t *hash) {
    const char *text = "";
    size_t size = 0;
    HY_TRY(hy_json_string(json, hy_json_root(json), "hash", &text, &size));
    bool is_hash = size == HASH_DIGITS && strspn(text, "0123456789abcdef") == size;
    HY_FAIL_IF(!is_hash, HY_ERR_INPUT, "\"hash\" is not %d hexadecimal digits", HASH_DIGITS);
    *hash = strtoull(text, NULL, 16);
    return HY_OK;
}

/* Reads all members but the values; *scores is the list of them. */
static hy_status read_members(const hy_json *json, record *r, const hy_json_node **scores) {
    const hy_json_node *root = hy_json_root(json);
    HY_TRY(hy_json_int(json, root, "rollout", &r->rollout));
    HY_FAIL_IF(r->rollout < 0, HY_ERR_INPUT, "rollout %" PRId64 " is negative", r->rollout);
    HY_TRY(read_hash(json, &r->hash));
    *scores = hy_json_get(root, "scores");
    HY_FAIL_IF(hy_json_type_of(*scores) != HY_JSON_ARRAY, HY_ERR_INPUT,
               "\"scores\" is not a list of numbers");
    r->count = hy_json_size(*scores);
    return HY_OK;
}

static hy_status read_values(const hy_json_node *scores, double *values) {
    double unused;
    size_t i = 0;
    for (const hy_json_node *n = hy_json_first(scores); n; n = hy_json_next(n), i++) {
        HY_FAIL_IF(!hy_json_as_double(n, values ? &values[i] : &unused), HY_ERR_INPUT,
                   "score %zu is not a number", i + 1);
    }
    return HY_OK;
}

/* Reads a line into `r`, and its values unless `values` is NULL; these have room for `room`. */
static hy_status read_record(const char *line, size_t size, record *r, double *values,
                             size_t room) {
    const hy_json_node *scores = NULL;
    hy_json *json;
    HY_TRY(hy_json_parse(line, size, "record", &json));
    hy_status status = read_members(json, r, &scores);
    if (status == HY_OK) status = read_values(scores, r->count <= room ? values : NULL);
    hy_json_free(json);
    return status;
}

/* ---- opening --------------------------------------------------------------------------------- */

/* Adds the record of the line at `offset`. */
static hy_status add_line(hy_journal *j, const char *line, size_t size, uint64_t offset) {
    record r = {.offset = offset, .size = size};
    HY_TRY(read_record(line, size, &r, NULL, 0));
    int64_t last = j->count ? j->records[j->count - 1].rollout : -1;
    HY_FAIL_IF(r.rollout <= last, HY_ERR_INPUT,
               "rollout %" PRId64 " follows rollout %" PRId64 "; expected a larger number",
               r.rollout, last);
    HY_TRY(hy_array_reserve(&j->records, &j->room, j->count + 1, sizeof *j->records, "records"));
    j->records[j->count++] = r;
    j->end = offset + size + 1;
    return HY_OK;
}

/* Takes whole lines from j->line, which begins at j->end in the file. */
static hy_status take_lines(hy_journal *j) {
    hy_text *text = &j->line;
    HY_TRY(hy_text_status(text));
    size_t at = 0;
    for (const char *end; (end = memchr(text->data + at, '\n', text->size - at));) {
        size_t size = (size_t)(end - text->data) - at;
        hy_status status = add_line(j, text->data + at, size, j->end);
        if (status != HY_OK)
            return hy_fail_context(status, "%s: line %zu is damaged", j->path, j->count + 1);
        at += size + 1;
    }
    text->size -= at;
    memmove(text->data, text->data + at, text->size);
    HY_FAIL_IF(text->size > LINE_MOST, HY_ERR_INPUT,
               "%s: line %zu is damaged: it has more than %zu MiB", j->path, j->count + 1,
               LINE_MOST >> 20);
    return HY_OK;
}

static hy_status read_all(hy_journal *j, const hy_reader *reader) {
    uint64_t size = hy_reader_size(reader);
    hy_text_clear(&j->line);
    for (uint64_t at = 0; at < size;) {
        size_t part = size - at < CHUNK ? (size_t)(size - at) : CHUNK;
        if (hy_text_reserve(&j->line, part)) {
            HY_TRY(hy_reader_get(reader, at, j->line.data + j->line.size, part));
            j->line.size += part;
        }
        HY_TRY(take_lines(j));
        at += part;
    }
    return HY_OK;
}

/* Replaces the file by its first j->end bytes and `size` more. */
static hy_status copy_file(const hy_journal *j, hy_writer *w, const void *more, size_t size) {
    char *chunk = malloc(CHUNK);
    hy_reader *reader = NULL;
    HY_FAIL_IF(!chunk, HY_ERR_MEMORY, "not enough memory to write %s", j->path);
    hy_status status = j->end ? hy_reader_open(j->path, &reader) : HY_OK;
    for (uint64_t at = 0; at < j->end && status == HY_OK;) {
        size_t part = j->end - at < CHUNK ? (size_t)(j->end - at) : CHUNK;
        status = hy_reader_get(reader, at, chunk, part);
        if (status == HY_OK) status = hy_writer_put(w, chunk, part);
        at += part;
    }
    hy_reader_close(reader);
    free(chunk);
    return status == HY_OK && size ? hy_writer_put(w, more, size) : status;
}

static hy_status replace_file(const hy_journal *j, const void *more, size_t size) {
    hy_writer *w;
    HY_TRY(hy_writer_replace(j->path, &w));
    hy_status status = copy_file(j, w, more, size);
    if (status == HY_OK) return hy_writer_close(w, true);
    hy_writer_abandon(w);
    return status;
}

static hy_status open_file(hy_journal *j, bool goes_on) {
    hy_reader *reader;
    if (!goes_on || !hy_path_exists(j->path)) return hy_file_write_atomic(j->path, "", 0);
    HY_TRY(hy_reader_open(j->path, &reader));
    hy_status status = read_all(j, reader);
    bool has_torn_line = status == HY_OK && j->end < hy_reader_size(reader);
    hy_reader_close(reader);
    if (status == HY_ERR_INPUT)
        hy_fail_hint(status, "without this file, a resumed run scores its answers again");
    return has_torn_line ? replace_file(j, NULL, 0) : status;
}

hy_status hy_journal_open(const char *path, bool goes_on, hy_journal **out) {
    hy_journal *j = calloc(1, sizeof *j);
    *out = NULL;
    if (j) j->path = strdup(path);
    hy_status status = j && j->path ? open_file(j, goes_on)
                                    : hy_fail(HY_ERR_MEMORY, "not enough memory to open %s", path);
    if (status == HY_OK)
        *out = j;
    else
        hy_journal_close(j);
    return status;
}

void hy_journal_close(hy_journal *j) {
    if (!j) return;
    hy_text_free(&j->line);
    free(j->records);
    free(j->path);
    free(j);
}

/* ---- finding --------------------------------------------------------------------------------- */

/* The number of records of rollouts before this one. */
static size_t count_before(const hy_journal *j, int64_t rollout) {
    size_t low = 0, high = j->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (j->records[middle].rollout < rollout)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static hy_status read_line(hy_journal *j, const record *r) {
    hy_reader *reader;
    hy_text_clear(&j->line);
    hy_text_reserve(&j->line, r->size);
    HY_TRY(hy_text_status(&j->line));
    HY_TRY(hy_reader_open(j->path, &reader));
    hy_status status = hy_reader_get(reader, r->offset, j->line.data, r->size);
    hy_reader_close(reader);
    j->line.size = r->size;
    j->line.data[r->size] = '\0';
    return status;
}

hy_status hy_journal_find(hy_journal *j, int64_t rollout, uint64_t hash, double *values,
                          size_t count, bool *found) {
    *found = false;
    size_t at = j ? count_before(j, rollout) : 0;
    if (!j || at == j->count) return HY_OK;
    const record *r = &j->records[at];
    if (r->rollout != rollout || r->hash != hash || r->count != count) return HY_OK;
    record again = {0};
    HY_TRY(read_line(j, r));
    hy_status status = read_record(j->line.data, r->size, &again, values, count);
    bool is_same = again.rollout == rollout && again.hash == hash && again.count == count;
    if (status == HY_OK && !is_same)
        status = hy_fail(HY_ERR_INPUT, "it was changed while the run goes on");
    if (status != HY_OK) return hy_fail_context(status, "%s: line %zu", j->path, at + 1);
    *found = true;
    return HY_OK;
}

/* ---- adding ---------------------------------------------------------------------------------- */

static hy_status append(const hy_journal *j, const void *data, size_t size) {
    struct stat info;
    int fd = hy_disk_open(j->path, O_WRONLY | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) return hy_fail_path("cannot write", j->path);
    bool is_ours =
        fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && (uint64_t)info.st_size == j->end;
    hy_status status = HY_OK;
    if (!is_ours)
        status = hy_fail(HY_ERR_INPUT, "%s was changed while the run goes on", j->path);
    else if (hy_disk_write_at(fd, data, size, j->end) != 0)
        status = hy_fail_path("cannot write", j->path);
    else if (hy_disk_sync(fd) != 0)
        status = hy_fail_path("cannot sync", j->path);
    if (hy_disk_close(fd) != 0 && status == HY_OK) status = hy_fail_path("cannot write", j->path);
    return status;
}

/* Forgets this rollout and later ones. */
static void drop_from(hy_journal *j, int64_t rollout) {
    size_t kept = count_before(j, rollout);
    if (kept == j->count) return;
    j->end = j->records[kept].offset;
    j->count = kept;
    j->is_dirty = true;
}

hy_status hy_journal_put(hy_journal *j, int64_t rollout, uint64_t hash, const double *values,
                         size_t count, const hy_journal_example *example) {
    if (!j) return HY_OK;
    HY_FAIL_IF(rollout < 0, HY_ERR_INPUT, "%s: rollout %" PRId64 " is negative", j->path, rollout);
    HY_FAIL_IF(count > HY_JOURNAL_SCORES, HY_ERR_INPUT,
               "%s: %zu scores are too many for a record; at most %d are accepted", j->path, count,
               HY_JOURNAL_SCORES);
    for (size_t i = 0; i < count; i++) {
        HY_FAIL_IF(!isfinite(values[i]), HY_ERR_INPUT, "%s: score %zu is not finite", j->path,
                   i + 1);
    }
    write_record(&j->line, rollout, hash, values, count, example);
    HY_TRY(hy_text_status(&j->line));
    HY_TRY(hy_array_reserve(&j->records, &j->room, j->count + 1, sizeof *j->records, "records"));
    drop_from(j, rollout);
    bool was_dirty = j->is_dirty;
    j->is_dirty = true;
    HY_TRY(was_dirty ? replace_file(j, j->line.data, j->line.size)
                     : append(j, j->line.data, j->line.size));
    j->is_dirty = false;
    j->records[j->count++] = (record){rollout, hash, j->end, j->line.size - 1, count};
    j->end += j->line.size;
    return HY_OK;
}
