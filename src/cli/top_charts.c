/* top_charts.c: shares and values become characters.
 *
 * A cell of a bar is divided into eight parts from left to right, a cell of a chart into eight from
 * bottom to top. What is greater than nothing shows at least one part, so that small is not taken
 * for none. */
#include "cli/top_charts.h"

#include <math.h>

#include "cli/bar.h"

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

/* The mark that belongs into this column; the later of two wins. */
static int mark_in(const hy_top_bar *bar, int column, int columns) {
    for (int i = HY_TOP_MARKS_MAX - 1; i >= 0; i--) {
        bool is_drawn = bar->marks[i] > 0 && bar->marks[i] <= 1;
        int at = (int)(bar->marks[i] * columns);
        if (is_drawn && column == (at < columns ? at : columns - 1)) return i;
    }
    return -1;
}

void hy_top_draw_bar(const hy_top_box *box, int row, int column, int columns,
                     const hy_top_bar *bar) {
    bool is_utf8 = box->canvas->is_utf8;
    int filled = parts_of(bar->share, columns), planned = parts_of(bar->planned, columns);
    for (int i = 0; i < columns; i++) {
        int inside = filled - i * PARTS, mark = mark_in(bar, i, columns);
        if (inside >= PARTS)
            hy_top_text(box, row, column + i, bar->colour, is_utf8 ? from_left[PARTS] : "#");
        else if (inside > 0)
            hy_top_text(box, row, column + i, bar->colour,
                        is_utf8 ? from_left[inside] : plain_left[inside]);
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
    bool is_utf8 = box->canvas->is_utf8;
    int done = (int)(limited(share) * columns);
    for (int i = 0; i < columns; i++) {
        bool is_done = i < done;
        hy_top_text(box, row, column + i, is_done ? colour : HY_CLI_DIM,
                    is_utf8   ? (is_done ? "\u2501" : "\u2500")
                    : is_done ? "#"
                              : "-");
    }
}

/* ---- charts ---------------------------------------------------------------------------------- */

static void draw_column(const hy_top_box *box, int column, int parts, hy_cli_colour colour) {
    bool is_utf8 = box->canvas->is_utf8;
    for (int row = 0; row < box->rows; row++) {
        int inside = parts - (box->rows - 1 - row) * PARTS;
        if (inside <= 0) continue;
        if (inside > PARTS) inside = PARTS;
        hy_top_text(box, row, column, colour, is_utf8 ? from_below[inside] : plain_below[inside]);
    }
}

void hy_top_draw_chart(const hy_top_box *box, const double *values, int count, double low,
                       double high, hy_cli_colour colour) {
    int most = box->rows * PARTS;
    for (int i = 0; i < count && i < box->columns; i++) {
        if (isnan(values[i])) continue;
        double share = high > low ? limited((values[i] - low) / (high - low)) : 0.5;
        int parts = (int)lround(share * most);
        draw_column(box, i, parts > 0 ? parts : 1, colour);
    }
}

void hy_top_draw_phase(const hy_top_box *box, int row, int column, hy_phase phase,
                       bool was_rejected, bool has_colour) {
    static const char *const letters[HY_PHASE_COUNT] = {"w", "f", "P", "c"};
    hy_cli_colour colour = was_rejected ? HY_CLI_RED : hy_cli_phase_colour(phase);
    bool is_block = has_colour && box->canvas->is_utf8;
    const char *letter = was_rejected ? "x" : letters[phase];
    hy_top_text(box, row, column, colour, is_block ? "\u2584" : letter);
}
