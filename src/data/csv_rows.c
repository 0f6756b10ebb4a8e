/* csv_rows.c: rows of CSV files. See csv_rows.h.
 *
 * A free thread finds the next records, as for lines of JSON. A thread that encodes a record
 * first converts it to a JSON object; after that, JSON and CSV take the same path. */
#include "data/csv_rows.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "base/utf8.h"

#define UNTERMINATED "a quoted field has no closing quote"
static const char separators[] = ",;\t";

/* ---- fields ---------------------------------------------------------------------------------- */

/* Reads the field at *at into `out`, without its quotes. Moves *at after the field and its
 * separator; NULL after the last field of the record. Returns what is wrong, or NULL. */
static const char *read_field(const char **at, const char *end, char separator, hy_text *out) {
    const char *p = *at;
    bool is_quoted = p < end && *p == '"';
    hy_text_clear(out);
    if (is_quoted) {
        for (p++;; p++) {
            const char *quote = memchr(p, '"', (size_t)(end - p));
            if (!quote) return UNTERMINATED;
            hy_text_add_bytes(out, p, (size_t)(quote - p));
            p = quote + 1;
            if (p == end || *p != '"') break;
            hy_text_add(out, "\"");
        }
        if (p < end && *p != separator) return "there is text after a closing quote";
    } else {
        const char *next = memchr(p, separator, (size_t)(end - p));
        size_t size = (size_t)((next ? next : end) - p);
        hy_text_add_bytes(out, p, size);
        p += size;
    }
    *at = p < end ? p + 1 : NULL;
    return NULL;
}

/* ---- records --------------------------------------------------------------------------------- */

/* A quote opens a quoted part only at the beginning of a field; elsewhere it is a plain
 * character. */
static void find_end(hy_row_scan *s, const char *parting, const char *most, bool *is_inside) {
    bool may_open = true;
    *is_inside = false;
    for (; s->at < most; s->at++) {
        char c = *s->at;
        if (c == '\n' && !*is_inside) return;
        s->line += c == '\n';
        if (c == '"' && (*is_inside || may_open)) {
            *is_inside = !*is_inside;
            may_open = true; /* a second quote directly after it is a quote character */
        } else if (!*is_inside) {
            may_open = c != '\0' && strchr(parting, c) != NULL;
        }
    }
}

static bool next_record(hy_row_scan *s, const char *parting, hy_row *row) {
    size_t blank;
    for (;; s->at += blank, s->line++) {
        size_t left = (size_t)(s->end - s->at);
        if (left == 0 || s->is_over) return false;
        blank = *s->at == '\n' ? 1 : left > 1 && memcmp(s->at, "\r\n", 2) == 0 ? 2 : 0;
        if (blank == 0) break;
    }
    *row = (hy_row){.data = s->at, .line = s->line, .csv = s->csv};
    bool is_inside;
    find_end(s, parting, s->end - s->at > (ptrdiff_t)HY_ROW_MOST ? s->at + HY_ROW_MOST : s->end,
             &is_inside);
    row->size = (size_t)(s->at - row->data);
    /* The beginning of the next record is unknown in these cases. */
    s->is_over = is_inside || (s->at < s->end && *s->at != '\n');
    if (s->is_over)
        row->broken = is_inside ? UNTERMINATED "; the rest of the file is ignored"
                                : "the row is larger than 16 MiB; the rest of the file is ignored";
    if (row->size > 0 && row->data[row->size - 1] == '\r') row->size--;
    return true;
}

bool hy_csv_next(hy_row_scan *scan, hy_row *row) {
    const char parting[] = {scan->csv->separator, '\0'};
    return next_record(scan, parting, row);
}

/* ---- names ----------------------------------------------------------------------------------- */

void hy_csv_close(hy_csv *csv) {
    for (size_t i = 0; i < csv->count; i++) free(csv->names[i]);
    free(csv->names);
    *csv = (hy_csv){0};
}

static hy_status add_name(hy_csv *csv, size_t *room, const char *text, size_t size) {
    HY_FAIL_IF(csv->count == HY_CSV_MOST_COLUMNS, HY_ERR_INPUT, "more than %d columns",
               HY_CSV_MOST_COLUMNS);
    while (size > 0 && isspace((unsigned char)text[size - 1])) size--;
    while (size > 0 && isspace((unsigned char)*text)) text++, size--;
    HY_TRY(hy_array_reserve(&csv->names, room, csv->count + 1, sizeof *csv->names, "columns"));
    char *name = strndup(text, size);
    if (!name) return hy_fail(HY_ERR_MEMORY, "not enough memory for the names of columns");
    for (char *c = name; *c; c++) *c = (char)tolower((unsigned char)*c);
    csv->names[csv->count++] = name;
    for (size_t i = 0; name[0] && i + 1 < csv->count; i++) {
        HY_FAIL_IF(strcmp(csv->names[i], name) == 0, HY_ERR_INPUT,
                   "two columns have the name \"%.40s\"", name);
    }
    return HY_OK;
}

static hy_status read_names(const hy_row *row, char separator, hy_csv *csv) {
    const char *at = row->data, *end = row->data + row->size;
    size_t room = 0;
    hy_text field = {0};
    hy_status status = HY_OK;
    *csv = (hy_csv){.separator = separator};
    while (status == HY_OK && at) {
        const char *reason = read_field(&at, end, separator, &field);
        status = reason ? hy_fail(HY_ERR_INPUT, "%s", reason) : hy_text_status(&field);
        if (status == HY_OK) status = add_name(csv, &room, hy_text_string(&field), field.size);
    }
    hy_text_free(&field);
    return status;
}

/* The kind of rows that has these keys. */
static hy_status recognise(const hy_csv *csv, const hy_columns *columns, hy_row_kind *kind) {
    hy_text text = {0};
    hy_json_writer w;
    hy_json *json;
    hy_json_begin(&w, &text, false);
    hy_json_open_object(&w, NULL);
    for (size_t i = 0; i < csv->count; i++) {
        if (csv->names[i][0]) hy_json_put_string(&w, csv->names[i], "");
    }
    hy_json_close_object(&w);
    hy_status status = hy_text_status(&text);
    if (status == HY_OK) status = hy_json_parse(text.data, text.size, "the header", &json);
    hy_text_free(&text);
    HY_TRY(status);
    status = hy_row_recognise(hy_json_root(json), columns, kind);
    hy_json_free(json);
    return status;
}

/* The first record of a text; false if there is none. */
static bool first_record(hy_row_scan *scan, const char *data, size_t size, hy_row *row) {
    *scan = (hy_row_scan){.at = data, .end = data ? data + size : data, .line = 1};
    if (size >= 3 && memcmp(data, "\xEF\xBB\xBF", 3) == 0) scan->at += 3; /* a byte order mark */
    return next_record(scan, separators, row) && !row->broken;
}

static hy_status try_separator(const hy_row *row, char separator, const hy_columns *columns,
                               hy_csv *csv, hy_row_kind *kind) {
    hy_status status = read_names(row, separator, csv);
    if (status == HY_OK) status = recognise(csv, columns, kind);
    if (status != HY_OK) hy_csv_close(csv);
    return status;
}

static hy_status choose_separator(const hy_row *row, const hy_columns *columns, hy_csv *csv,
                                  hy_row_kind *kind) {
    char likely = '\0'; /* the error message lists the columns found with this separator */
    for (const char *c = separators; *c; c++) {
        hy_status status = try_separator(row, *c, columns, csv, kind);
        if (status != HY_ERR_INPUT) return status;
        if (!likely && memchr(row->data, *c, row->size)) likely = *c;
    }
    return try_separator(row, likely ? likely : ',', columns, csv, kind);
}

bool hy_csv_is_header(const char *text, size_t size) {
    hy_row_scan scan;
    hy_row row;
    hy_csv csv = {0};
    hy_row_kind kind;
    bool is_line = size > 0 && memchr(text, '\n', size) != NULL;
    bool has_more = is_line && first_record(&scan, text, size, &row) && scan.at < scan.end;
    bool is_header = false;
    for (int i = 0; has_more && !is_header && i < 2; i++) {
        hy_columns columns = {.pairs = i == 1};
        is_header = choose_separator(&row, &columns, &csv, &kind) == HY_OK;
        hy_csv_close(&csv);
    }
    return is_header;
}

hy_status hy_csv_begin(hy_row_scan *scan, const char *data, size_t size, const hy_columns *columns,
                       hy_csv *csv, hy_row_kind *kind) {
    hy_row row;
    *csv = (hy_csv){0};
    HY_FAIL_IF(!first_record(scan, data, size, &row), HY_ERR_INPUT,
               "the file has no line with column names");
    /* Some Mac programs end lines with carriage returns only. Split at line feeds, such a file
     * would have one long header, and its rows would begin inside texts. Carriage returns at the
     * end of the header belong to a doubled line end. */
    size_t header = row.size;
    while (header > 0 && row.data[header - 1] == '\r') header--;
    HY_FAIL_IF(
        header > 0 && memchr(row.data, '\r', header), HY_ERR_INPUT,
        "the lines end with carriage returns; expected line feeds (convert them: tr '\\r' '\\n')");
    HY_TRY(choose_separator(&row, columns, csv, kind));
    scan->csv = csv;
    return HY_OK;
}

/* ---- rows ------------------------------------------------------------------------------------ */

static hy_status add_fields(const hy_row *row, hy_json_writer *w, hy_text *field) {
    const hy_csv *csv = row->csv;
    const char *at = row->data, *end = row->data + row->size;
    size_t i = 0;
    for (; at; i++) {
        const char *reason = read_field(&at, end, csv->separator, field);
        HY_FAIL_IF(reason, HY_ERR_INPUT, "%s", reason);
        HY_TRY(hy_text_status(field));
        if (i >= csv->count || !csv->names[i][0]) continue;
        const char *text = hy_text_string(field), *name = csv->names[i];
        HY_FAIL_IF(memchr(text, 0, field->size), HY_ERR_INPUT,
                   "the column \"%.40s\" contains a zero byte", name);
        for (size_t k = 0; k < field->size;) {
            int length = hy_utf8_length((const uint8_t *)text + k, field->size - k);
            HY_FAIL_IF(length == 0, HY_ERR_INPUT, "the column \"%.40s\" is not valid UTF-8", name);
            k += (size_t)length;
        }
        hy_json_put_string(w, name, text);
    }
    HY_FAIL_IF(i != csv->count, HY_ERR_INPUT,
               "the row has %zu columns, but the first line names %zu", i, csv->count);
    return HY_OK;
}

hy_status hy_csv_to_json(const hy_row *row, hy_text *out) {
    hy_text field = {0};
    hy_json_writer w;
    hy_json_begin(&w, out, false);
    hy_json_open_object(&w, NULL);
    hy_status status = add_fields(row, &w, &field);
    hy_text_free(&field);
    HY_TRY(status);
    hy_json_close_object(&w);
    return hy_text_status(out);
}
