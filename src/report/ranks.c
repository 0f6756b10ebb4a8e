/* ranks.c: the cost of steps on each rank of a run. See hybrid_report.h and run.h.
 *
 * Figures are for the current ranks: a session with another number of ranks starts over. */
#include "base/sized.h"
#include "report/run.h"

#define LATEST 64 /* steps, as in other live views */

void hy_run_forget_ranks(hy_run *run) {
    hy_rank_figures_fini(&run->ranks);
    hy_rank_figures_fini(&run->latest_ranks);
}

/* A jump is not a step. A line with arrays of different lengths is ignored. */
static bool tells_of_ranks(const hy_point_line *line) {
    int32_t count = line->of_ranks[0].count;
    for (int k = 1; k < HY_RANK_FIGURES; k++)
        if (line->of_ranks[k].count != count) return false;
    return count > 1 && line->point.phase != HY_PREDICT;
}

hy_status hy_run_take_ranks(hy_run *run, const hy_point_line *line) {
    const double *of_ranks[HY_RANK_FIGURES];
    int32_t count = line->of_ranks[0].count;
    if (!tells_of_ranks(line)) return HY_OK;
    if (count != run->ranks.ranks) {
        hy_run_forget_ranks(run);
        hy_status status = hy_rank_figures_init(&run->ranks, count, 0);
        if (status == HY_OK) status = hy_rank_figures_init(&run->latest_ranks, count, LATEST);
        if (status != HY_OK) {
            hy_run_forget_ranks(run);
            return status;
        }
    }
    for (int k = 0; k < HY_RANK_FIGURES; k++) of_ranks[k] = line->of_ranks[k].values;
    hy_rank_figures_add(&run->ranks, of_ranks);
    hy_rank_figures_add(&run->latest_ranks, of_ranks);
    return HY_OK;
}

bool hy_run_rank_sized(const hy_run *run, int32_t rank, bool is_latest, hy_rank_cost *out,
                       size_t size) {
    hy_rank_cost cost;
    bool is_known = hy_rank_figures_of(is_latest ? &run->latest_ranks : &run->ranks, rank, &cost);
    if (is_known) hy_copy_sized(out, size, &cost, sizeof cost);
    return is_known;
}
