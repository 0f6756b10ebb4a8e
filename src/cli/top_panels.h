/* top_panels.h: the parts of a page, each drawn into a box of as many rows as it was given.
 *
 * The first row of a part always holds what matters most, so a part that was given one row is still
 * worth having. Fields that do not fit into a row are left out whole, from the right. */
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
/* Rows for all ranks, or for what sums many of them up; 0: the run is alone. */
int hy_top_ranks_rows(const hy_top_view *view);
/* Rows that would show every class in a box of this width. */
int hy_top_memory_rows(const hy_top_box *box, const hy_top_view *view);
