/* top_charts.h: bars, sparklines and the strip of phases, drawn into a canvas.
 *
 * Block characters where the page has UTF-8, ASCII where not. Nothing here knows what is drawn. */
#ifndef HY_CLI_TOP_CHARTS_H
#define HY_CLI_TOP_CHARTS_H

#include "cli/top_canvas.h"
#include "hybrid_types.h"

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
 * colours. A rejected move is red, or "x". */
void hy_top_draw_phase(const hy_top_box *box, int row, int column, hy_phase phase,
                       bool was_rejected, bool has_colour);

#endif
