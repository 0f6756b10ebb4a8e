/* top_canvas.c: puts characters into cells, cuts what does not fit, writes rows.
 *
 * A cell holds one character of one column; a wide character fills two cells, the second with "".
 * Characters that take no column, or that cannot be shown, never reach a cell as they are. A row is
 * padded with blanks to the page's width, so that what stood there before is gone without clearing. */
#include "cli/top_canvas.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>

#include "cli/safe_text.h"

#define PRINT_BYTES 1024

/* ---- pages and rectangles -------------------------------------------------------------------- */

static int between(int value, int low, int high) {
    return value < low ? low : value > high ? high : value;
}

static hy_top_cell *cell_at(const hy_top_canvas *canvas, int row, int column) {
    return &canvas->cells[(size_t)row * (size_t)canvas->columns + (size_t)column];
}

static void clear(hy_top_canvas *canvas) {
    for (int row = 0; row < canvas->rows; row++) {
        for (int column = 0; column < canvas->columns; column++)
            *cell_at(canvas, row, column) = (hy_top_cell){" ", HY_CLI_PLAIN};
    }
}

bool hy_top_canvas_init(hy_top_canvas *canvas, int columns, int rows, bool is_utf8) {
    columns = between(columns, 1, HY_TOP_COLUMNS_MAX);
    rows = between(rows, 1, HY_TOP_ROWS_MAX);
    if (canvas->cells == NULL || columns != canvas->columns || rows != canvas->rows) {
        hy_top_cell *cells = calloc((size_t)columns * (size_t)rows, sizeof *cells);
        if (cells == NULL) return false;
        free(canvas->cells);
        *canvas = (hy_top_canvas){.columns = columns, .rows = rows, .cells = cells};
    }
    canvas->is_utf8 = is_utf8;
    clear(canvas);
    return true;
}

void hy_top_canvas_fini(hy_top_canvas *canvas) {
    free(canvas->cells);
    *canvas = (hy_top_canvas){0};
}

hy_top_box hy_top_whole(hy_top_canvas *canvas) {
    return (hy_top_box){canvas, 0, 0, canvas->rows, canvas->columns};
}

hy_top_box hy_top_part(const hy_top_box *box, int row, int column, int rows, int columns) {
    row = between(row, 0, box->rows);
    column = between(column, 0, box->columns);
    return (hy_top_box){box->canvas, box->row + row, box->column + column,
                        between(rows, 0, box->rows - row),
                        between(columns, 0, box->columns - column)};
}

/* ---- text into cells ------------------------------------------------------------------------- */

/* Columns of a character; -1: it cannot be shown. The C library knows them in a UTF-8 locale; where
 * it has none, Latin letters and the characters we draw with are known to be narrow. */
static int character_columns(uint32_t value) {
    if (value < 0x80) return value >= 0x20 && value < 0x7F ? 1 : -1;
    int columns = wcwidth((wchar_t)value);
    bool is_narrow = (value >= 0xA0 && value < 0x300) || (value >= 0x2010 && value < 0x2600);
    return columns >= 0 ? columns : is_narrow ? 1 : -1;
}

typedef struct glyph {
    char text[5];
    int columns;
    size_t bytes; /* of the text it was read from */
} glyph;

static glyph next_glyph(const char *text) {
    uint32_t value;
    glyph next = {"?", 1, 1};
    size_t length = hy_cli_decode(text, strlen(text), &value);
    if (length == 0) return next;
    int columns = character_columns(value);
    next.bytes = length;
    if (columns < 0) return next;
    next.columns = columns;
    memcpy(next.text, text, length);
    next.text[length] = '\0';
    return next;
}

int hy_top_width(const char *text) {
    int columns = 0;
    while (*text != '\0') {
        glyph next = next_glyph(text);
        columns += next.columns;
        text += next.bytes;
    }
    return columns;
}

static void put_glyph(const hy_top_box *box, int row, int column, hy_cli_colour colour,
                      const glyph *g) {
    hy_top_cell *cell = cell_at(box->canvas, box->row + row, box->column + column);
    memcpy(cell->text, g->text, sizeof cell->text);
    cell->colour = (unsigned char)colour;
    if (g->columns == 2) cell[1] = (hy_top_cell){"", (unsigned char)colour};
}

int hy_top_text(const hy_top_box *box, int row, int column, hy_cli_colour colour,
                const char *text) {
    if (row < 0 || row >= box->rows || column < 0) return column;
    while (*text != '\0') {
        glyph next = next_glyph(text);
        if (column + next.columns > box->columns) return box->columns;
        if (next.columns > 0) put_glyph(box, row, column, colour, &next);
        column += next.columns;
        text += next.bytes;
    }
    return column;
}

int hy_top_print(const hy_top_box *box, int row, int column, hy_cli_colour colour,
                 const char *format, ...) {
    char text[PRINT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return hy_top_text(box, row, column, colour, text);
}

int hy_top_print_right(const hy_top_box *box, int row, hy_cli_colour colour, const char *format,
                       ...) {
    char text[PRINT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    int column = box->columns - hy_top_width(text);
    if (column < 0) column = 0;
    hy_top_text(box, row, column, colour, text);
    return column;
}

int hy_top_sentence(const hy_top_box *box, int row, int column, hy_cli_colour colour,
                    const char *text) {
    const char *ellipsis = box->canvas->is_utf8 ? "\u2026" : "~";
    int end = hy_top_text(box, row, column, colour, text);
    if (column + hy_top_width(text) > box->columns && box->columns > 0 && row < box->rows) {
        hy_top_cell *last = cell_at(box->canvas, box->row + row, box->column + box->columns - 1);
        if (last->text[0] == '\0') last[-1] = (hy_top_cell){" ", (unsigned char)colour};
        hy_top_text(box, row, box->columns - 1, colour, ellipsis);
    }
    return end;
}

/* ---- rows to a terminal ---------------------------------------------------------------------- */

static bool is_blank(const hy_top_cell *cell) { return strcmp(cell->text, " ") == 0; }

static int used_columns(const hy_top_canvas *canvas, int row) {
    int columns = canvas->columns;
    while (columns > 0 && is_blank(cell_at(canvas, row, columns - 1))) columns--;
    return columns;
}

int hy_top_used_rows(const hy_top_canvas *canvas) {
    int rows = canvas->rows;
    while (rows > 0 && used_columns(canvas, rows - 1) == 0) rows--;
    return rows;
}

/* Blanks keep the colour that is on: nothing shows it. */
static void write_row(const hy_top_canvas *canvas, int row, int columns,
                      const hy_cli_terminal *terminal, FILE *out) {
    int colour = HY_CLI_PLAIN;
    for (int column = 0; column < columns; column++) {
        const hy_top_cell *cell = cell_at(canvas, row, column);
        if (cell->colour != colour && !is_blank(cell)) {
            colour = cell->colour;
            fputs(hy_cli_colour_code(terminal, HY_CLI_PLAIN), out);
            if (colour != HY_CLI_PLAIN)
                fputs(hy_cli_colour_code(terminal, (hy_cli_colour)colour), out);
        }
        fputs(cell->text, out);
    }
    if (colour != HY_CLI_PLAIN) fputs(hy_cli_colour_code(terminal, HY_CLI_PLAIN), out);
}

void hy_top_write_lines(const hy_top_canvas *canvas, int rows, const hy_cli_terminal *terminal,
                        FILE *out) {
    for (int row = 0; row < rows && row < canvas->rows; row++) {
        write_row(canvas, row, used_columns(canvas, row), terminal, out);
        fputc('\n', out);
    }
}

static bool is_same_row(const hy_top_canvas *a, const hy_top_canvas *b, int row) {
    if (b == NULL || a->columns != b->columns || a->rows != b->rows) return false;
    for (int column = 0; column < a->columns; column++) {
        const hy_top_cell *x = cell_at(a, row, column), *y = cell_at(b, row, column);
        if (x->colour != y->colour || strcmp(x->text, y->text) != 0) return false;
    }
    return true;
}

void hy_top_write_changes(const hy_top_canvas *canvas, const hy_top_canvas *shown,
                          const hy_cli_terminal *terminal, FILE *out) {
    for (int row = 0; row < canvas->rows; row++) {
        if (is_same_row(canvas, shown, row)) continue;
        fprintf(out, "\033[%d;1H", row + 1);
        write_row(canvas, row, canvas->columns, terminal, out);
    }
}
