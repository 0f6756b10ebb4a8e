/* merge.c: adds adapters to their matrices. See merge.h.
 *
 * Export wraps its reader of weights with it. Sums are computed in double precision and rounded
 * once, so the result does not depend on how a matrix is divided into pieces. */
#include "hub/merge.h"

#include <stdlib.h>

#include "base/error.h"

hy_merge hy_merge_begin(const hy_shape *shape, const hy_params *params, hy_weight_reader read,
                        void *context) {
    return (hy_merge){
        .shape = shape, .params = params, .read = read, .context = context, .held = -1};
}

void hy_merge_end(hy_merge *m) {
    free(m->a);
    free(m->b);
    m->a = m->b = NULL;
    m->held = -1;
}

static hy_status hold(hy_merge *m, int32_t param, int32_t adapter) {
    const hy_param *a = &m->params->list[adapter], *b = a + 1;
    if (m->held == param) return HY_OK;
    hy_merge_end(m);
    m->a = malloc((size_t)a->count * sizeof *m->a);
    m->b = malloc((size_t)b->count * sizeof *m->b);
    HY_FAIL_IF(!m->a || !m->b, HY_ERR_MEMORY, "not enough memory for the adapter of %s",
               m->params->list[param].name);
    HY_TRY(m->read(m->context, adapter, 0, a->count, m->a));
    HY_TRY(m->read(m->context, adapter + 1, 0, b->count, m->b));
    m->held = param;
    return HY_OK;
}

#define SOME 512 /* sums at a time */

/* Columns [from, from + count) of a row of the matrix. Sums are computed in double precision:
 * the result is W + s B A, rounded once. */
static void add_row(const hy_merge *m, const hy_adapter_pieces *pieces, int64_t row, int64_t width,
                    int64_t from, int64_t count, float *out) {
    int64_t rank = m->shape->adapter.rank, begin = 0;
    int32_t piece = 0;
    while (row >= begin + pieces->rows[piece]) begin += pieces->rows[piece++];
    if (!pieces->is_there[piece]) return;
    hy_adapter_rows at_piece = hy_adapter_rows_before(pieces, piece, rank);
    const float *a = m->a + at_piece.a * width + from;
    const float *b = m->b + (at_piece.b + row - begin) * rank;
    for (int64_t at = 0; at < count; at += SOME) {
        int64_t some = count - at < SOME ? count - at : SOME;
        double sum[SOME] = {0};
        for (int64_t k = 0; k < rank; k++) {
            const float *row_of_a = a + k * width + at;
            for (int64_t c = 0; c < some; c++) sum[c] += (double)b[k] * row_of_a[c];
        }
        for (int64_t c = 0; c < some; c++) {
            out[at + c] = (float)(out[at + c] + m->shape->adapter.scale * sum[c]);
        }
    }
}

hy_status hy_merge_read(void *merge, int32_t param, int64_t first, int64_t count, float *out) {
    hy_merge *m = merge;
    const hy_param *p = &m->params->list[param];
    HY_TRY(m->read(m->context, param, first, count, out));
    if (!hy_linear_bit(p->kind)) return HY_OK;
    hy_adapter_pieces pieces = hy_shape_adapter_pieces(m->shape, p->kind);
    if (pieces.adapted == 0) return HY_OK;
    HY_TRY(hold(m, param, hy_params_find(m->params, p->unit, hy_adapter_kind(p->kind))));
    int64_t width = hy_param_width(p);
    for (int64_t at = first; at < first + count;) {
        int64_t row = at / width, from = at % width, some = width - from;
        if (some > first + count - at) some = first + count - at;
        add_row(m, &pieces, row, width, from, some, out + (at - first));
        at += some;
    }
    return HY_OK;
}
