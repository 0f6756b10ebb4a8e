/* top_panels.h: the parts of a page, each drawn into a box of as many rows as it was given.
 *
 * The first row of a part always holds what matters most, so a part that was given one row is still
 * worth having. Fields that do not fit into a row are left out whole, from the right. */
#ifndef HY_CLI_TOP_PANELS_H
#define HY_CLI_TOP_PANELS_H

#include "cli/top_canvas.h"
#include "cli/top_view.h"

void hy_top_panel_step(const hy_top_box *box, const hy_top_view *view);
void hy_top_panel_phase(const hy_top_box *box, const hy_top_view *view, bool has_colour);
void hy_top_panel_loss(const hy_top_box *box, const hy_top_view *view);
void hy_top_panel_speed(const hy_top_box *box, const hy_top_view *view);
void hy_top_panel_rate(const hy_top_box *box, const hy_top_view *view);
void hy_top_panel_gpu(const hy_top_box *box, const hy_top_view *view);
void hy_top_panel_memory(const hy_top_box *box, const hy_top_view *view);
void hy_top_panel_events(const hy_top_box *box, const hy_top_view *view);

bool hy_top_knows_gpu(const hy_top_view *view);
/* Rows that would show every class in a box of this width. */
int hy_top_memory_rows(const hy_top_box *box, const hy_top_view *view);

/* Columns of the names at the left, and a name there. */
int hy_top_label_columns(const hy_top_box *box);
void hy_top_label(const hy_top_box *box, int row, hy_cli_colour colour, const char *text);

/* Adds words to a row at *column, which goes on behind them, where all of them fit; false: they do not,
 * and nothing was written. */
bool hy_top_add(const hy_top_box *box, int row, int *column, hy_cli_colour colour,
                const char *format, ...) __attribute__((format(printf, 5, 6)));

#endif
