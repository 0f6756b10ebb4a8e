/* top_canvas.h: a page of character cells, drawn into by rectangles and sent to a terminal.
 *
 * Everything that is drawn is cut to its rectangle, so no line can be longer than the page, whatever
 * a file holds: widths are counted in columns, not in bytes. Colours are names here; they become
 * escape codes, or nothing, on the way out. */
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

/* A rectangle of a canvas. Its rows and columns count from 0. */
typedef struct hy_top_box {
    hy_top_canvas *canvas;
    int row, column, rows, columns;
} hy_top_box;

/* An empty page of this size (cut to the limits above) for a terminal that outlives it; also makes an
 * earlier one empty or of another size. Start from a canvas of zeros. False: no memory. */
bool hy_top_canvas_init(hy_top_canvas *canvas, const hy_cli_terminal *terminal, int columns,
                        int rows);
void hy_top_canvas_fini(hy_top_canvas *canvas);

hy_top_box hy_top_whole(hy_top_canvas *canvas);
/* A rectangle inside another, cut to it. */
hy_top_box hy_top_part(const hy_top_box *box, int row, int column, int rows, int columns);

#define HY_TOP_RIGHT (-1) /* as a column: the text ends at the box's right edge */

/* Writes text into a row from a column on; what lies outside the box is cut off. Returns the column
 * after the text, where it is cut: the box's width. */
int hy_top_text(const hy_top_box *box, int row, int column, hy_cli_colour colour, const char *text);
int hy_top_print(const hy_top_box *box, int row, int column, hy_cli_colour colour,
                 const char *format, ...) __attribute__((format(printf, 5, 6)));
/* The same for text that may be long: where it is cut, it ends in an ellipsis. */
int hy_top_sentence(const hy_top_box *box, int row, int column, hy_cli_colour colour,
                    const char *text);
/* Columns of a text. */
int hy_top_width(const char *text);

/* Rows that hold something, counted from the top. */
int hy_top_used_rows(const hy_top_canvas *canvas);

/* As lines of text, `rows` of them. */
void hy_top_write_lines(const hy_top_canvas *canvas, int rows, FILE *out);
/* For a screen that shows `shown` (NULL: nothing known): only rows that differ, each put to its
 * place. */
void hy_top_write_changes(const hy_top_canvas *canvas, const hy_top_canvas *shown, FILE *out);

#define HY_TOP_MARKS_MAX 4

/* A bar of shares of one whole: what is, what was planned, and marks on the way. Values at or below
 * zero, and NaN, are not drawn. */
typedef struct hy_top_bar {
    double share, planned;
    hy_cli_colour colour;
    double marks[HY_TOP_MARKS_MAX];
    hy_cli_colour mark_colours[HY_TOP_MARKS_MAX];
} hy_top_bar;

void hy_top_draw_bar(const hy_top_box *box, int row, int column, int columns,
                     const hy_top_bar *bar);

/* The line of how far something has come. */
void hy_top_draw_progress(const hy_top_box *box, int row, int column, int columns, double share,
                          hy_cli_colour colour);

/* Values over the box's columns, one each from the left, between low (an empty cell's foot) and high
 * (the top of the box); NaN leaves a gap, what lies outside is cut. */
void hy_top_draw_chart(const hy_top_box *box, const double *values, int count, double low,
                       double high, hy_cli_colour colour);

/* One cell of the strip of phases: a block in the phase's colour, or its letter where there are no
 * colours. A rejected jump is red, or "x". */
void hy_top_draw_phase(const hy_top_box *box, int row, int column, hy_phase phase,
                       bool was_rejected);
