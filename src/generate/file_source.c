/* file_source.c: the rows of a file, or of standard input. See file.h.
 *
 * A file is mapped, so its rows can be found again from any place. Lines of standard input are
 * returned as they arrive: another program may wait for an answer before it writes the next. */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "base/disk.h"
#include "base/error.h"
#include "generate/file.h"

#define READ_BYTES ((size_t)64 << 10)
#define WAIT_MILLISECONDS 100 /* between two looks at is_stopped */

/* ---- files ----------------------------------------------------------------------------------- */

static hy_status open_file(hy_row_source *s, const char *path, const hy_columns *columns) {
    hy_row_kind kind;
    HY_TRY(hy_file_list_find(path, HY_FORMAT_AUTO, &s->list));
    const hy_input_file *file = s->list.files;
    bool is_rows = s->list.count == 1 && strcmp(file->path, path) == 0 &&
                   (file->kind == HY_DATA_ROWS || file->looks_like_rows);
    HY_FAIL_IF(!is_rows, HY_ERR_INPUT,
               "%s is not a file of rows; expected JSON lines, a JSON array or CSV", path);
    HY_TRY(hy_input_open(file, &s->file));
    hy_rows_begin(&s->scan, s->file.data, s->file.size);
    if (file->is_csv) {
        hy_status status =
            hy_csv_begin(&s->scan, s->file.data, s->file.size, columns, &s->csv, &kind);
        if (status != HY_OK) return hy_fail_context(status, "%s: the column names", path);
    }
    hy_row first;
    hy_row_scan scan = s->scan;
    HY_FAIL_IF(!hy_rows_next(&scan, &first), HY_ERR_INPUT, "%s contains no rows", path);
    return HY_OK;
}

hy_status hy_row_source_open(const char *data, const hy_columns *columns, hy_row_source *out) {
    *out = (hy_row_source){.name = data, .is_input = hy_is_standard_input(data)};
    if (out->is_input) out->name = "standard input";
    hy_status status = out->is_input ? HY_OK : open_file(out, data, columns);
    if (status != HY_OK) hy_row_source_close(out);
    return status;
}

void hy_row_source_close(hy_row_source *s) {
    hy_csv_close(&s->csv);
    hy_input_close(&s->file);
    hy_file_list_free(&s->list);
    hy_text_free(&s->lines);
    *s = (hy_row_source){0};
}

/* ---- standard input -------------------------------------------------------------------------- */

static hy_status read_more(hy_row_source *s, const atomic_bool *is_stopped) {
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    s->lines.size -= s->taken;
    if (s->taken > 0) memmove(s->lines.data, s->lines.data + s->taken, s->lines.size);
    s->taken = 0;
    if (!hy_text_reserve(&s->lines, READ_BYTES)) return hy_text_status(&s->lines);
    for (;;) {
        if (atomic_load(is_stopped)) return hy_fail(HY_STOPPED, "reading %s was stopped", s->name);
        int ready = poll(&input, 1, WAIT_MILLISECONDS);
        if (ready == 0) continue;
        ssize_t got =
            ready > 0 ? read(STDIN_FILENO, s->lines.data + s->lines.size, READ_BYTES) : -1;
        if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (got < 0) return hy_fail_path("cannot read", s->name);
        s->lines.size += (size_t)got;
        s->has_ended = got == 0;
        return HY_OK;
    }
}

/* The next line, which may be blank; false at the end. */
static hy_status next_line(hy_row_source *s, const atomic_bool *is_stopped, hy_row *row,
                           bool *has_row) {
    const char *newline = NULL;
    for (size_t searched = 0;;) {
        const char *at = s->lines.data + s->taken;
        size_t left = s->lines.size - s->taken;
        newline = left > searched ? memchr(at + searched, '\n', left - searched) : NULL;
        size_t size = newline ? (size_t)(newline - at) : left;
        HY_FAIL_IF(size > HY_ROW_MOST, HY_ERR_INPUT, "%s:%llu: the row is larger than 16 MiB",
                   s->name, (unsigned long long)s->line + 1);
        if (newline || s->has_ended) {
            *row = (hy_row){.data = at, .size = size, .line = ++s->line};
            *has_row = left > 0;
            s->taken += size + (newline != NULL);
            return HY_OK;
        }
        searched = left;
        HY_TRY(read_more(s, is_stopped));
    }
}

static bool is_blank(const hy_row *row) {
    size_t size = row->size;
    while (size > 0 && row->data[size - 1] != '\0' && strchr(" \t\r", row->data[size - 1])) size--;
    return size == 0;
}

hy_status hy_row_source_next(hy_row_source *s, const atomic_bool *is_stopped, hy_row *row,
                             bool *has_row) {
    if (!s->is_input) {
        *has_row = hy_rows_next(&s->scan, row);
        return HY_OK;
    }
    do HY_TRY(next_line(s, is_stopped, row, has_row));
    while (*has_row && is_blank(row));
    return HY_OK;
}
