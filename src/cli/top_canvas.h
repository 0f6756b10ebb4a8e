/* top_canvas.h: a page of character cells that is drawn in rectangles and sent to a terminal.
 *
 * All drawing is cut to its rectangle, so no line can be longer than the page, whatever a file
 * contains. Widths are counted in columns, not bytes. Colours are names; they become escape codes,
 * or nothing, when the page is written. */
#pragma once

#include <stdio.h>

#include "cli/terminal.h"
#include "hybrid_types.h"

#define HY_TOP_COLUMNS_MAX 500
#define HY_TOP_ROWS_MAX 300

typedef struct hy_top_cell {
    char text[5];         /* one character; "": the right half of a wide one */
    unsigned char colour; /* hy_cli_colour */
} hy_top_cell;

typedef struct hy_top_canvas {
    int columns, rows;
    const hy_cli_terminal *terminal;
    hy_top_cell *cells; /* (rows, columns) */
} hy_top_canvas;

/* A rectangle of a canvas. Rows and columns start at 0. */
typedef struct hy_top_box {
    hy_top_canvas *canvas;
    int row, column, rows, columns;
} hy_top_box;

/* Makes an empty page of this size (cut to the limits above); can be called again to clear or
 * resize it. Start from a canvas of zeros. The terminal must outlive it. False: no memory. */
bool hy_top_canvas_init(hy_top_canvas *canvas, const hy_cli_terminal *terminal, int columns,
                        int rows);
void hy_top_canvas_fini(hy_top_canvas *canvas);

hy_top_box hy_top_whole(hy_top_canvas *canvas);
/* A rectangle inside another, cut to it. */
hy_top_box hy_top_part(const hy_top_box *box, int row, int column, int rows, int columns);

#define HY_TOP_RIGHT (-1) /* used as a column: the text ends at the right edge of the box */

/* Writes text into a row, starting at a column, and cuts it at the edge of the box. Returns the
 * column after the text; the width of the box if it was cut. */
int hy_top_text(const hy_top_box *box, int row, int column, hy_cli_colour colour, const char *text);
int hy_top_print(const hy_top_box *box, int row, int column, hy_cli_colour colour,
                 const char *format, ...) __attribute__((format(printf, 5, 6)));
/* As above for long text: if it is cut, it ends in an ellipsis. */
int hy_top_sentence(const hy_top_box *box, int row, int column, hy_cli_colour colour,
                    const char *text);
/* The width of a text in columns. */
int hy_top_width(const char *text);

/* The number of rows up to the last that is not empty. */
int hy_top_used_rows(const hy_top_canvas *canvas);

/* As `rows` lines of text. */
void hy_top_write_lines(const hy_top_canvas *canvas, int rows, FILE *out);
/* For a screen that shows `shown` (NULL: unknown): writes only the rows that differ, each at its
 * position. */
void hy_top_write_changes(const hy_top_canvas *canvas, const hy_top_canvas *shown, FILE *out);

#define HY_TOP_MARKS_MAX 4

/* A bar of shares of a whole: the current value, the plan, and marks. Values at or below zero, and
 * NaN, are not drawn. */
typedef struct hy_top_bar {
    double share, planned;
    hy_cli_colour colour;
    double marks[HY_TOP_MARKS_MAX];
    hy_cli_colour mark_colours[HY_TOP_MARKS_MAX];
} hy_top_bar;

void hy_top_draw_bar(const hy_top_box *box, int row, int column, int columns,
                     const hy_top_bar *bar);

/* The progress bar of a run. */
void hy_top_draw_progress(const hy_top_box *box, int row, int column, int columns, double share,
                          hy_cli_colour colour);

/* Draws one value per column from the left, between low (bottom of the box) and high (top of the
 * box). NaN leaves a gap; values outside are cut. */
void hy_top_draw_chart(const hy_top_box *box, const double *values, int count, double low,
                       double high, hy_cli_colour colour);

/* One cell of the strip of phases: a block in the phase's colour, or its letter without colours. A
 * rejected jump is red, or "x". */
void hy_top_draw_phase(const hy_top_box *box, int row, int column, hy_phase phase,
                       bool was_rejected);
