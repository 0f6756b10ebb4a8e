/* rank_figures.h: what steps cost each of several ranks, gathered step by step: medians, and who was the slowest.
 *
 * Memory is taken once, whatever the number of steps: all steps are kept until there is no room, then every second
 * of them, and so on; or the latest alone. How often a rank was the slowest, and its memory, are of all steps. */
#pragma once

#include <stdbool.h>

#include "hybrid_types.h"

/* In a step's line an array of each, with a number for each rank. */
typedef enum hy_rank_figure {
    HY_RANK_SECONDS,
    HY_RANK_WAITED,
    HY_RANK_EXCHANGED,
    HY_RANK_BYTES,
    HY_RANK_MEMORY,
    HY_RANK_FIGURES
} hy_rank_figure;

typedef struct hy_rank_figures {
    int32_t ranks;          /* 0: nothing is gathered */
    bool is_of_latest;      /* else of all */
    int64_t steps, every;   /* that came; of which every so many is kept */
    int64_t rows, capacity; /* kept */
    double *kept;           /* (rows, HY_RANK_FIGURES - 1, ranks): without memory */
    double *memory;         /* (ranks), the most; NaN: not told */
    int64_t *slowest;       /* (ranks) */
} hy_rank_figures;

/* `ranks`: 1 or more. `latest`: how many steps count, at most 512; 0: all. */
hy_status hy_rank_figures_init(hy_rank_figures *it, int32_t ranks, int32_t latest);
void hy_rank_figures_fini(hy_rank_figures *it);
/* Of each rank's figures; NaN where it is not known. */
void hy_rank_figures_add(hy_rank_figures *it, const double *const of_ranks[HY_RANK_FIGURES]);
/* False: there is no such rank, or no step yet. */
bool hy_rank_figures_of(const hy_rank_figures *it, int32_t rank, hy_rank_cost *out);
