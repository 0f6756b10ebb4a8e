/* top_page.h: the whole page: which parts fit, and where they are drawn.
 *
 * A page depends only on its views and its size: equal input gives an equal page. */
#pragma once

#include "cli/top_canvas.h"
#include "cli/top_view.h"

typedef struct hy_top_page {
    const hy_top_runs *runs;
    int chosen;
    bool is_live; /* keys can be used */
    bool is_paused;
    double interval;
} hy_top_page;

/* Draws as much as fits on the canvas. There is at least one run. */
void hy_top_draw_page(hy_top_canvas *canvas, const hy_top_page *page);

/* Draws the page with the keys and symbols. */
void hy_top_draw_help(hy_top_canvas *canvas, const hy_top_page *page);
