/* rank_figures.h: the cost of steps on each of several ranks: medians, and which rank was the
 * slowest.
 *
 * Memory is allocated once, whatever the number of steps. All steps are kept until there is no more
 * room, then every second step, and so on; or only the latest are kept. The counts of slowest steps
 * and the memory cover all steps. */
#pragma once

#include <stdbool.h>

#include "hybrid_types.h"

/* A step's line has an array of each figure, with one number per rank. */
typedef enum hy_rank_figure {
    HY_RANK_SECONDS,
    HY_RANK_WAITED,
    HY_RANK_EXCHANGED,
    HY_RANK_BYTES,
    HY_RANK_MEMORY,
    HY_RANK_FIGURES
} hy_rank_figure;

typedef struct hy_rank_figures {
    int32_t ranks;          /* 0: nothing is collected */
    bool is_of_latest;      /* else of all steps */
    int64_t steps, every;   /* steps seen; one of this many is kept */
    int64_t rows, capacity; /* rows kept */
    double *kept;           /* (rows, HY_RANK_FIGURES - 1, ranks): all figures except memory */
    double *memory;         /* (ranks), the maximum; NaN: not reported */
    int64_t *slowest;       /* (ranks) */
} hy_rank_figures;

/* `ranks`: 1 or more. `latest`: how many steps count, at most 512; 0: all. */
hy_status hy_rank_figures_init(hy_rank_figures *it, int32_t ranks, int32_t latest);
void hy_rank_figures_fini(hy_rank_figures *it);
/* The medians of a rank; NaN if not known. */
void hy_rank_figures_add(hy_rank_figures *it, const double *const of_ranks[HY_RANK_FIGURES]);
/* False: there is no such rank, or no step yet. */
bool hy_rank_figures_of(const hy_rank_figures *it, int32_t rank, hy_rank_cost *out);
