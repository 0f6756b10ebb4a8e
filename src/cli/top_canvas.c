/* top_canvas.c: writes characters into cells, cuts what does not fit, and prints rows.
 *
 * A cell contains one character of one column. A wide character fills two cells, the second with
 * "". Characters without a width, or that cannot be shown, are replaced. Rows are padded to the
 * width of the page, so that older text disappears without clearing the screen. */
#include "cli/top_canvas.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>

#include "cli/progress.h"
#include "cli/terminal.h"

#define PRINT_BYTES 1024

/* ---- pages and rectangles -------------------------------------------------------------------- */

static int between(int value, int low, int high) {
    return value < low ? low : value > high ? high : value;
}

static hy_top_cell *cell_at(const hy_top_canvas *canvas, int row, int column) {
    return &canvas->cells[(size_t)row * (size_t)canvas->columns + (size_t)column];
}

bool hy_top_canvas_init(hy_top_canvas *canvas, const hy_cli_terminal *terminal, int columns,
                        int rows) {
    columns = between(columns, 1, HY_TOP_COLUMNS_MAX);
    rows = between(rows, 1, HY_TOP_ROWS_MAX);
    if (canvas->cells == NULL || columns != canvas->columns || rows != canvas->rows) {
        hy_top_cell *cells = calloc((size_t)columns * (size_t)rows, sizeof *cells);
        if (cells == NULL) return false;
        free(canvas->cells);
        *canvas = (hy_top_canvas){.columns = columns, .rows = rows, .cells = cells};
    }
    canvas->terminal = terminal;
    for (int i = 0; i < columns * rows; i++) canvas->cells[i] = (hy_top_cell){" ", HY_CLI_PLAIN};
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

/* The width of a character; -1: it cannot be shown. In a UTF-8 locale the C library knows it;
 * otherwise Latin letters and our drawing characters have width 1. */
static int character_columns(uint32_t value) {
    if (value < 0x80) return value >= 0x20 && value < 0x7F ? 1 : -1;
    int columns = wcwidth((wchar_t)value);
    bool is_narrow = (value >= 0xA0 && value < 0x300) || (value >= 0x2010 && value < 0x2600);
    return columns >= 0 ? columns : is_narrow ? 1 : -1;
}

typedef struct glyph {
    char text[5];
    int columns;
    size_t bytes; /* bytes of the text that it was read from */
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

int hy_top_text(const hy_top_box *box, int row, int column, hy_cli_colour colour,
                const char *text) {
    if (column == HY_TOP_RIGHT)
        column = between(box->columns - hy_top_width(text), 0, box->columns);
    if (row < 0 || row >= box->rows || column < 0) return column;
    while (*text != '\0') {
        glyph next = next_glyph(text);
        if (column + next.columns > box->columns) return box->columns;
        if (next.columns > 0) {
            hy_top_cell *cell = cell_at(box->canvas, box->row + row, box->column + column);
            memcpy(cell->text, next.text, sizeof cell->text);
            cell->colour = (unsigned char)colour;
            if (next.columns == 2) cell[1] = (hy_top_cell){"", (unsigned char)colour};
        }
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

int hy_top_sentence(const hy_top_box *box, int row, int column, hy_cli_colour colour,
                    const char *text) {
    const char *ellipsis = box->canvas->terminal->is_utf8 ? "\u2026" : "~";
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

/* blanks keep the current colour, because it is not visible */
static void write_row(const hy_top_canvas *canvas, int row, int columns, FILE *out) {
    const hy_cli_terminal *terminal = canvas->terminal;
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

void hy_top_write_lines(const hy_top_canvas *canvas, int rows, FILE *out) {
    for (int row = 0; row < rows && row < canvas->rows; row++) {
        write_row(canvas, row, used_columns(canvas, row), out);
        fputc('\n', out);
    }
}

void hy_top_write_changes(const hy_top_canvas *canvas, const hy_top_canvas *shown, FILE *out) {
    bool has_size = shown && canvas->columns == shown->columns && canvas->rows == shown->rows;
    size_t bytes = (size_t)canvas->columns * sizeof *canvas->cells;
    for (int row = 0; row < canvas->rows; row++) {
        /* Unused bytes of a cell's text are zero, so cells can be compared as bytes. */
        if (has_size && memcmp(cell_at(canvas, row, 0), cell_at(shown, row, 0), bytes) == 0)
            continue;
        fprintf(out, "\033[%d;1H", row + 1);
        write_row(canvas, row, canvas->columns, out);
    }
}

/* ---- bars and charts ------------------------------------------------------------------------- */

/* Uses block characters with UTF-8, else ASCII. A cell of a bar has eight parts from left to right,
 * a cell of a chart eight parts from bottom to top. A value above zero shows at least one part, so
 * that it differs from zero. */

#define PARTS 8

static const char *const from_left[] = {" ",      "\u258f", "\u258e", "\u258d", "\u258c",
                                        "\u258b", "\u258a", "\u2589", "\u2588"};
static const char *const from_below[] = {" ",      "\u2581", "\u2582", "\u2583", "\u2584",
                                         "\u2585", "\u2586", "\u2587", "\u2588"};
static const char *const plain_left[] = {" ", "-", "-", "-", "=", "=", "=", "#", "#"};
static const char *const plain_below[] = {" ", "_", ".", ":", "-", "=", "+", "*", "#"};

static double limited(double share) { return share > 0 ? share < 1 ? share : 1 : 0; }

/* ---- bars ------------------------------------------------------------------------------------ */

static int parts_of(double share, int columns) {
    int parts = (int)lround(limited(share) * columns * PARTS);
    return parts == 0 && share > 0 ? 1 : parts;
}

/* The mark in this column; the later of two wins. */
static int mark_in(const hy_top_bar *bar, int column, int columns) {
    for (int i = HY_TOP_MARKS_MAX - 1; i >= 0; i--) {
        bool is_drawn = bar->marks[i] > 0 && bar->marks[i] <= 1;
        if (is_drawn && column == between((int)(bar->marks[i] * columns), 0, columns - 1)) return i;
    }
    return -1;
}

void hy_top_draw_bar(const hy_top_box *box, int row, int column, int columns,
                     const hy_top_bar *bar) {
    bool is_utf8 = box->canvas->terminal->is_utf8;
    int filled = parts_of(bar->share, columns), planned = parts_of(bar->planned, columns);
    for (int i = 0; i < columns; i++) {
        int inside = between(filled - i * PARTS, 0, PARTS), mark = mark_in(bar, i, columns);
        if (inside > 0)
            hy_top_text(box, row, column + i, bar->colour,
                        (is_utf8 ? from_left : plain_left)[inside]);
        else if (mark >= 0)
            hy_top_text(box, row, column + i, bar->mark_colours[mark], is_utf8 ? "\u250a" : "|");
        else if (planned > i * PARTS)
            hy_top_text(box, row, column + i, HY_CLI_DIM, is_utf8 ? "\u2591" : ":");
        else
            hy_top_text(box, row, column + i, HY_CLI_DIM, is_utf8 ? "\u00b7" : ".");
    }
}

void hy_top_draw_progress(const hy_top_box *box, int row, int column, int columns, double share,
                          hy_cli_colour colour) {
    bool is_utf8 = box->canvas->terminal->is_utf8;
    const char *done = is_utf8 ? "\u2501" : "#", *left = is_utf8 ? "\u2500" : "-";
    int end = (int)(limited(share) * columns);
    for (int i = 0; i < columns; i++)
        hy_top_text(box, row, column + i, i < end ? colour : HY_CLI_DIM, i < end ? done : left);
}

/* ---- charts ---------------------------------------------------------------------------------- */

void hy_top_draw_chart(const hy_top_box *box, const double *values, int count, double low,
                       double high, hy_cli_colour colour) {
    const char *const *signs = box->canvas->terminal->is_utf8 ? from_below : plain_below;
    for (int i = 0; i < count && i < box->columns; i++) {
        if (isnan(values[i])) continue;
        double share = high > low ? limited((values[i] - low) / (high - low)) : 0.5;
        int parts = (int)lround(share * box->rows * PARTS);
        if (parts == 0) parts = 1;
        for (int row = box->rows - 1; row >= 0 && parts > 0; row--, parts -= PARTS)
            hy_top_text(box, row, i, colour, signs[parts < PARTS ? parts : PARTS]);
    }
}

void hy_top_draw_phase(const hy_top_box *box, int row, int column, hy_phase phase,
                       bool was_rejected) {
    static const char *const letters[HY_PHASE_COUNT] = {"w", "f", "P", "c", "e", "r", "g"};
    hy_cli_colour colour = was_rejected ? HY_CLI_RED : hy_cli_phase_colour(phase);
    const hy_cli_terminal *terminal = box->canvas->terminal;
    const char *letter = was_rejected ? "x" : letters[phase];
    hy_top_text(box, row, column, colour,
                terminal->has_colour && terminal->is_utf8 ? "\u2584" : letter);
}
