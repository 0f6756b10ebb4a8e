/* json_rows.c: cuts a JSON file into rows. See json_rows.h.
 *
 * `line` is always the line of `at`. If a row breaks the array, reading ends there, because the
 * beginning of the next element is unknown. */
#include "data/json_rows.h"

#include <string.h>

#include "base/json.h"
#include "data/csv_rows.h"

static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

static void skip_space(hy_row_scan *s) {
    for (; s->at < s->end && is_space(*s->at); s->at++) s->line += *s->at == '\n';
}

void hy_rows_begin(hy_row_scan *s, const char *data, size_t size) {
    *s = (hy_row_scan){.at = data, .end = data ? data + size : data, .line = 1};
    if (size >= 3 && memcmp(data, "\xEF\xBB\xBF", 3) == 0) s->at += 3; /* a byte order mark */
    skip_space(s);
    s->is_array = s->at < s->end && *s->at == '[';
    if (s->is_array) s->at++;
}

static bool break_off(hy_row_scan *s, hy_row *row, const char *reason) {
    row->broken = reason;
    row->size = 0;
    s->is_over = true;
    return true;
}

static bool next_line(hy_row_scan *s, hy_row *row) {
    skip_space(s);
    if (s->at == s->end) return false;
    size_t left = (size_t)(s->end - s->at);
    const char *newline = memchr(s->at, '\n', left);
    *row = (hy_row){.data = s->at, .line = s->line};
    row->size = newline ? (size_t)(newline - s->at) : left;
    s->at += row->size; /* the newline counts as blank space before the next row */
    while (row->size > 0 && is_space(row->data[row->size - 1])) row->size--;
    return true;
}

/* Moves after the string that begins at `at`; false if the string has no end. */
static bool skip_string(hy_row_scan *s) {
    for (s->at++; s->at < s->end; s->at++) {
        if (*s->at == '"') {
            s->at++;
            return true;
        }
        s->line += *s->at == '\n';
        if (*s->at == '\\' && s->end - s->at > 1) s->at++;
    }
    return false;
}

/* Moves to the comma or bracket that ends the element at `at`; false if there is none. */
static bool skip_element(hy_row_scan *s) {
    uint64_t depth = 0;
    while (s->at < s->end) {
        char c = *s->at;
        if (depth == 0 && (c == ',' || c == ']')) return true;
        if (c == '"') {
            if (!skip_string(s)) return false;
            continue;
        }
        if (c == '{' || c == '[') depth++;
        if ((c == '}' || c == ']') && depth > 0) depth--;
        s->line += c == '\n';
        s->at++;
    }
    return false;
}

static bool next_element(hy_row_scan *s, hy_row *row) {
    skip_space(s);
    *row = (hy_row){.data = s->at, .line = s->line};
    if (s->at == s->end) return break_off(s, row, "the array has no closing bracket");
    if (*s->at == ']') {
        /* Only blank space may follow the closing bracket. */
        s->at++;
        skip_space(s);
        s->is_over = true;
        if (s->at == s->end) return false;
        *row = (hy_row){.data = s->at, .line = s->line};
        return break_off(s, row, "text after the end of the array");
    }
    if (!skip_element(s)) return break_off(s, row, "the array ends inside this row");
    row->size = (size_t)(s->at - row->data);
    while (row->size > 0 && is_space(row->data[row->size - 1])) row->size--;
    if (row->size == 0) row->broken = "no value before the comma";
    if (*s->at == ',') s->at++;
    return true;
}

bool hy_rows_next(hy_row_scan *s, hy_row *row) {
    if (s->is_over) return false;
    if (s->csv) return hy_csv_next(s, row);
    if (!(s->is_array ? next_element(s, row) : next_line(s, row))) return false;
    if (row->size > HY_ROW_MOST) row->broken = "the row is larger than 16 MiB";
    return true;
}

bool hy_rows_are_there(const char *text, size_t size) {
    hy_row_scan scan;
    hy_row row;
    hy_json *json;
    hy_rows_begin(&scan, text, size);
    if (scan.at == scan.end) return false;
    if (scan.is_array) skip_space(&scan);
    bool is_object = scan.at < scan.end && *scan.at == '{';
    /* A line that is longer than the inspected part is assumed to be an object. */
    bool is_whole = is_object && memchr(scan.at, '\n', (size_t)(scan.end - scan.at));
    if (scan.is_array || !is_whole) return is_object;
    if (!next_line(&scan, &row) || hy_json_parse(row.data, row.size, "", &json) != HY_OK) {
        return false;
    }
    hy_json_free(json);
    return true;
}
