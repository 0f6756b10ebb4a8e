/* top_page.h: the whole page: which parts there is room for, and where they go.
 *
 * A page is drawn from views alone: the same views and the same size give the same page. */
#pragma once

#include "cli/top_canvas.h"
#include "cli/top_view.h"

typedef struct hy_top_page {
    const hy_top_runs *runs;
    int chosen;
    bool is_live; /* there are keys to name */
    bool is_paused;
    double interval;
} hy_top_page;

/* Draws as much as the canvas has room for. At least one run is there. */
void hy_top_draw_page(hy_top_canvas *canvas, const hy_top_page *page);

/* What the keys do and what the signs mean. */
void hy_top_draw_help(hy_top_canvas *canvas, const hy_top_page *page);
