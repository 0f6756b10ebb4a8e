/* rounding.c: factors second moments and rounds with them. See rounding.h. */
#include "hub/rounding.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/in_order.h"
#include "base/say.h"
#include "kernels/cpu/blas.h"

#define PANEL 256 /* columns; every block's length divides it */
#define TILE 32   /* rows that a thread computes at a time */

hy_status hy_moments_init(hy_moments *m, int64_t size) {
    *m = (hy_moments){.size = size};
    m->u = calloc((size_t)size * (size_t)size, sizeof *m->u);
    m->importance = calloc((size_t)size, sizeof *m->importance);
    m->diagonal = calloc((size_t)size, sizeof *m->diagonal);
    if (m->u && m->importance && m->diagonal) return HY_OK;
    hy_moments_fini(m);
    return hy_fail(HY_ERR_MEMORY, "not enough memory for the second moments of %lld inputs",
                   (long long)size);
}

void hy_moments_fini(hy_moments *m) {
    free(m->u);
    free(m->importance);
    free(m->diagonal);
    *m = (hy_moments){0};
}

/* ---- threads --------------------------------------------------------------------------------- */

/* Ranges of rows, TILE at a time, for many threads. */
typedef struct sweep {
    int64_t next, end;
    hy_status (*work)(const struct sweep *sweep, int64_t begin, int64_t end);
    const void *context;
    int64_t first, last; /* the columns of a panel */
} sweep;

typedef struct range {
    int64_t begin, end;
} range;

static bool next_range(void *context, void *slot) {
    sweep *s = context;
    range *r = slot;
    if (s->next >= s->end) return false;
    *r = (range){s->next, s->next + TILE < s->end ? s->next + TILE : s->end};
    s->next = r->end;
    return true;
}

static hy_status run_range(void *context, void *slot) {
    const sweep *s = context;
    const range *r = slot;
    return s->work(s, r->begin, r->end);
}

static hy_status sweep_rows(sweep *s, int threads) {
    range slots[HY_MOST_WORKERS];
    if (s->next >= s->end) return HY_OK;
    return hy_in_order_run(
        &(hy_in_order){.context = s,
                       .next = next_range,
                       .work = run_range,
                       .slots = slots,
                       .slot_size = sizeof slots[0],
                       .workers = threads < HY_MOST_WORKERS ? threads : HY_MOST_WORKERS});
}

/* ---- factors --------------------------------------------------------------------------------- */

/* H = M M^T with M upper triangular, panel by panel from the last: the panel's diagonal block, the
 * rows above it, and what remains of H above and to the left. M overwrites the upper part of H. */

static hy_status factor_diagonal(const hy_moments *m, int64_t first, int64_t last) {
    float *h = m->u;
    int64_t n = m->size;
    for (int64_t j = last - 1; j >= first; j--) {
        for (int64_t i = j; i >= first; i--) {
            double sum = h[i * n + j];
            for (int64_t k = j + 1; k < last; k++) sum -= (double)h[i * n + k] * h[j * n + k];
            HY_FAIL_IF(i == j && !(sum > 0), HY_ERR_NUMERIC,
                       "the second moments of a matrix's inputs are not positive definite");
            h[i * n + j] = (float)(i == j ? sqrt(sum) : sum / h[j * n + j]);
        }
    }
    return HY_OK;
}

/* Rows above the diagonal block: x M^T = h. */
static hy_status solve_rows(const sweep *s, int64_t begin, int64_t end) {
    const hy_moments *m = s->context;
    int64_t n = m->size;
    for (int64_t i = begin; i < end; i++) {
        float *x = m->u + i * n;
        for (int64_t j = s->last - 1; j >= s->first; j--) {
            const float *row = m->u + j * n;
            double sum = x[j];
            for (int64_t k = j + 1; k < s->last; k++) sum -= (double)x[k] * row[k];
            x[j] = (float)(sum / row[j]);
        }
    }
    return HY_OK;
}

static hy_status subtract_rows(const sweep *s, int64_t begin, int64_t end) {
    const hy_moments *m = s->context;
    int64_t n = m->size;
    hy_sgemm(hy_blas_get(), &(hy_gemm){.m = end - begin,
                                       .n = s->first - begin,
                                       .k = s->last - s->first,
                                       .a = m->u + begin * n + s->first,
                                       .b = m->u + begin * n + s->first,
                                       .c = m->u + begin * n + begin,
                                       .lda = n,
                                       .ldb = n,
                                       .ldc = n,
                                       .alpha = -1,
                                       .beta = 1,
                                       .trans_b = true});
    return HY_OK;
}

static hy_status damp(const hy_moments *m, double damping) {
    double sum = 0;
    int64_t n = m->size;
    for (int64_t i = 0; i < n; i++) sum += m->u[i * n + i];
    HY_FAIL_IF(!isfinite(sum), HY_ERR_NUMERIC, "the second moments of a matrix's inputs are %g",
               sum);
    float added = (float)(sum > 0 ? damping * sum / (double)n : 1);
    for (int64_t i = 0; i < n; i++) m->diagonal[i] = m->u[i * n + i] += added;
    return HY_OK;
}

hy_status hy_moments_factor(hy_moments *m, double damping, int threads) {
    int64_t n = m->size;
    HY_TRY(damp(m, damping));
    for (int64_t last = n, first; last > 0; last = first) {
        first = (last - 1) / PANEL * PANEL;
        HY_TRY(factor_diagonal(m, first, last));
        sweep solve = {
            .end = first, .work = solve_rows, .context = m, .first = first, .last = last};
        sweep subtract = solve;
        subtract.work = subtract_rows;
        HY_TRY(sweep_rows(&solve, threads));
        HY_TRY(sweep_rows(&subtract, threads));
    }
    for (int64_t i = 0; i < n; i++) m->importance[i] = m->u[i * n + i];
    for (int64_t j = 0; j < n; j++) {
        for (int64_t i = j + 1; i < n; i++) m->u[j * n + i] /= m->importance[i];
    }
    for (int64_t i = 0; i < n; i++) m->importance[i] *= m->importance[i];
    return HY_OK;
}

hy_status hy_moments_take(const hy_moments_source *source, const hy_param *param, int threads,
                          const hy_observer *observer, hy_moments *out) {
    static const double damping[] = {0.01, 0.1, 1};
    for (size_t i = 0; i < sizeof damping / sizeof *damping; i++) {
        HY_TRY(source->measure(source->context, param, out));
        hy_status status = out->size > 0 ? hy_moments_factor(out, damping[i], threads) : HY_OK;
        if (status == HY_OK) return HY_OK;
        hy_moments_fini(out);
        if (status != HY_ERR_NUMERIC) return status;
    }
    hy_say_to(observer, HY_WARNING, "%s is rounded to nearest, without calibration: %s",
              param->name, hy_error_message());
    return HY_OK;
}

/* ---- rounding -------------------------------------------------------------------------------- */

typedef struct rounding {
    hy_block_type type;
    const hy_moments *moments;
    hy_rounding_cost *cost;
} rounding;

/* Rounds a block of one row: the scales fit the corrected numbers as they are at its beginning;
 * then each column corrects those after it, to the end of the panel. `work`: the row's panel,
 * `at`: the block's first column there. For hy_blocks_encode the block is a row: the types of 32
 * numbers weigh them by the mean square of the block, because the rest of the row will change. */
static void round_block(const rounding *r, float *work, int64_t at, int64_t first, int64_t width,
                        const float *numbers, float *errors, void *block) {
    int64_t size = hy_block_traits_of(r->type)->elements, n = r->moments->size;
    uint8_t codes[PANEL];
    hy_block_grid grid;
    hy_blocks_encode(r->type, work + at, 1, size, r->moments->importance + first + at, block);
    hy_block_grid_of(r->type, block, &grid);
    for (int64_t i = at; i < at + size; i++) {
        const float *u = r->moments->u + (first + i) * n + first;
        float step = grid.step[i - at], low = grid.low[i - at];
        float code = step == 0 ? 0 : rintf((work[i] - low) / step);
        code = code < 0 ? 0 : code > (float)grid.last ? (float)grid.last : code;
        codes[i - at] = (uint8_t)code;
        float error = numbers[first + i] - (low + step * code);
        errors[first + i] = error;
        double corrected = work[i] - (low + step * code), number = numbers[first + i];
        r->cost->error += r->moments->importance[first + i] * corrected * corrected;
        r->cost->signal += r->moments->diagonal[first + i] * number * number;
        for (int64_t k = i + 1; k < width; k++) work[k] += error * u[k];
    }
    hy_block_set_codes(r->type, codes, block);
}

/* At most TILE rows. Panel by panel: the errors of all panels before correct a panel in one
 * matmul. `work`: (TILE, PANEL), `errors`: (TILE, size). */
static void round_tile(const rounding *r, const float *numbers, int64_t rows, float *work,
                       float *errors, char *out) {
    const hy_block_traits *traits = hy_block_traits_of(r->type);
    int64_t n = r->moments->size, row_bytes = (int64_t)hy_blocks_bytes(r->type, n);
    for (int64_t first = 0; first < n; first += PANEL) {
        int64_t width = n - first < PANEL ? n - first : PANEL;
        for (int64_t i = 0; i < rows; i++)
            memcpy(work + i * PANEL, numbers + i * n + first, (size_t)width * sizeof *work);
        if (first > 0)
            hy_sgemm(hy_blas_get(), &(hy_gemm){.m = rows,
                                               .n = width,
                                               .k = first,
                                               .a = errors,
                                               .b = r->moments->u + first,
                                               .c = work,
                                               .lda = n,
                                               .ldb = n,
                                               .ldc = PANEL,
                                               .alpha = 1,
                                               .beta = 1});
        for (int64_t i = 0; i < rows; i++) {
            for (int64_t at = 0; at < width; at += traits->elements)
                round_block(r, work + i * PANEL, at, first, width, numbers + i * n, errors + i * n,
                            out + i * row_bytes + (first + at) / traits->elements * traits->bytes);
        }
    }
}

hy_status hy_round_rows(hy_block_type type, const float *numbers, int64_t rows,
                        const hy_moments *moments, void *out, hy_rounding_cost *cost) {
    rounding r = {type, moments, cost};
    int64_t n = moments->size, row_bytes = (int64_t)hy_blocks_bytes(type, n);
    float *work = malloc(TILE * PANEL * sizeof *work);
    float *errors = malloc((size_t)(TILE * n) * sizeof *errors);
    bool has_memory = work && errors;
    for (int64_t at = 0; has_memory && at < rows; at += TILE)
        round_tile(&r, numbers + at * n, rows - at < TILE ? rows - at : TILE, work, errors,
                   (char *)out + at * row_bytes);
    free(work);
    free(errors);
    return has_memory ? HY_OK : hy_fail(HY_ERR_MEMORY, "not enough memory to round");
}
