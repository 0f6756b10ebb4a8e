/* rank_figures.c: medians of the steps of ranks. See rank_figures.h.
 *
 * The trainer collects these figures for its summary, and a report for its tables; both add one
 * step at a time. A row holds all figures but memory, each for all ranks. */
#include "report/rank_figures.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

#define ROWS 512                          /* enough for a median */
#define MEDIANS ((int64_t)HY_RANK_MEMORY) /* the figures before it */

hy_status hy_rank_figures_init(hy_rank_figures *it, int32_t ranks, int32_t latest) {
    *it = (hy_rank_figures){.every = 1, .is_of_latest = latest > 0};
    it->capacity = latest > 0 && latest < ROWS ? latest : ROWS;
    size_t row = (size_t)MEDIANS * (size_t)ranks;
    it->kept = calloc((size_t)it->capacity * row, sizeof *it->kept);
    it->memory = calloc((size_t)ranks, sizeof *it->memory);
    it->slowest = calloc((size_t)ranks, sizeof *it->slowest);
    if (!it->kept || !it->memory || !it->slowest) {
        hy_rank_figures_fini(it);
        return hy_fail(HY_ERR_MEMORY, "no memory for the figures of %d ranks", ranks);
    }
    it->ranks = ranks;
    for (int32_t r = 0; r < ranks; r++) it->memory[r] = NAN;
    return HY_OK;
}

void hy_rank_figures_fini(hy_rank_figures *it) {
    free(it->kept);
    free(it->memory);
    free(it->slowest);
    *it = (hy_rank_figures){0};
}

static double *row_at(const hy_rank_figures *it, int64_t row) {
    return it->kept + row * MEDIANS * it->ranks;
}

/* Drops every second row. */
static void thin(hy_rank_figures *it) {
    size_t bytes = (size_t)(MEDIANS * it->ranks) * sizeof *it->kept;
    for (int64_t row = 1; 2 * row < it->rows; row++)
        memcpy(row_at(it, row), row_at(it, 2 * row), bytes);
    it->rows = (it->rows + 1) / 2;
    it->every *= 2;
}

/* The row for a step; NULL: the step is not kept. */
static double *next_row(hy_rank_figures *it) {
    if (it->is_of_latest) {
        double *row = row_at(it, it->steps % it->capacity);
        if (it->rows < it->capacity) it->rows++;
        return row;
    }
    if (it->steps % it->every != 0) return NULL;
    if (it->rows == it->capacity) thin(it);
    return it->steps % it->every == 0 ? row_at(it, it->rows++) : NULL;
}

/* All ranks end a step together, because they need each other's gradients: the slowest is the one
 * that waits least. */
static int32_t find_slowest(const hy_rank_figures *it, const double *seconds,
                            const double *waited) {
    int32_t slowest = -1;
    double most = -INFINITY;
    for (int32_t r = 0; r < it->ranks; r++) {
        double worked = seconds[r] - (isnan(waited[r]) ? 0 : waited[r]);
        if (!(worked > most)) continue;
        most = worked;
        slowest = r;
    }
    return slowest;
}

void hy_rank_figures_add(hy_rank_figures *it, const double *const of_ranks[HY_RANK_FIGURES]) {
    double *row = next_row(it);
    for (int64_t k = 0; k < MEDIANS && row; k++)
        memcpy(row + k * it->ranks, of_ranks[k], (size_t)it->ranks * sizeof *row);
    for (int32_t r = 0; r < it->ranks; r++)
        it->memory[r] = fmax(it->memory[r], of_ranks[HY_RANK_MEMORY][r]);
    int32_t slowest = find_slowest(it, of_ranks[HY_RANK_SECONDS], of_ranks[HY_RANK_WAITED]);
    if (slowest >= 0) it->slowest[slowest]++;
    it->steps++;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* With an even number, the mean of the middle two. */
static double median_of(const hy_rank_figures *it, int64_t figure, int32_t rank) {
    double values[ROWS];
    size_t count = 0;
    for (int64_t row = 0; row < it->rows && count < ROWS; row++) {
        double value = row_at(it, row)[figure * it->ranks + rank];
        if (!isnan(value)) values[count++] = value;
    }
    if (count == 0) return NAN;
    qsort(values, count, sizeof values[0], by_size);
    return 0.5 * values[(count - 1) / 2] + 0.5 * values[count / 2];
}

bool hy_rank_figures_of(const hy_rank_figures *it, int32_t rank, hy_rank_cost *out) {
    if (rank < 0 || rank >= it->ranks || it->steps == 0) return false;
    *out = (hy_rank_cost){.size = sizeof *out,
                          .seconds = median_of(it, HY_RANK_SECONDS, rank),
                          .waited = median_of(it, HY_RANK_WAITED, rank),
                          .exchanged = median_of(it, HY_RANK_EXCHANGED, rank),
                          .bytes = median_of(it, HY_RANK_BYTES, rank),
                          .memory = it->memory[rank],
                          .slowest = it->slowest[rank],
                          .steps = it->steps};
    return true;
}
