/* top_panels.h: the parts of a page, each drawn into a box with the rows it was given.
 *
 * The first row of a part always shows the most important figures, so a part is useful with a
 * single row. A field that does not fit in a row is left out completely, from the right. */
#pragma once

#include "cli/top_canvas.h"
#include "cli/top_view.h"

void hy_top_panel_step(const hy_top_box *box, const hy_top_view *view);
void hy_top_panel_phase(const hy_top_box *box, const hy_top_view *view);
void hy_top_panel_loss(const hy_top_box *box, const hy_top_view *view);
void hy_top_panel_speed(const hy_top_box *box, const hy_top_view *view);
void hy_top_panel_rate(const hy_top_box *box, const hy_top_view *view);
void hy_top_panel_gpu(const hy_top_box *box, const hy_top_view *view);
void hy_top_panel_memory(const hy_top_box *box, const hy_top_view *view);
void hy_top_panel_ranks(const hy_top_box *box, const hy_top_view *view);
void hy_top_panel_events(const hy_top_box *box, const hy_top_view *view);

bool hy_top_knows_gpu(const hy_top_view *view);
/* Rows for all ranks, or for a summary of many; 0: the run has no other ranks. */
int hy_top_ranks_rows(const hy_top_view *view);
/* The rows needed to show every class in a box of this width. */
int hy_top_memory_rows(const hy_top_box *box, const hy_top_view *view);
