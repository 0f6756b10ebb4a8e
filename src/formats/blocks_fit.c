/* blocks_fit.c: the search for the scales of eight groups at once.
 *
 * The loops over lanes become vector instructions; within a lane every sum is taken in the order of
 * the numbers, as llama.cpp takes it, so the result does not depend on the width of vectors. A lane
 * in which nothing can be found (all numbers equal) computes NaN and is set at the end. */
#include <math.h>

#include "formats/blocks_parts.h"
#include "kernels/clones.h"

/* A part of a search: compiled into each clone of it. */
#define PART static inline __attribute__((always_inline)) void
#define EACH_LANE HY_SIMD for (int k = 0; k < HY_LANES; k++)

/* ---- hy_fit_range ---------------------------------------------------------------------------- */

/* x ~ scale * q + low, with q = nearest(inverse * (x - origin)) in 0..top. */
typedef struct range_line {
    hy_lanes inverse, origin, scale, low, error;
    float q[32][HY_LANES];
} range_line;

typedef struct range_facts {
    hy_lanes low, high, sum_w, sum_wx;
} range_facts;

PART find_range(const hy_groups *g, range_facts *f) {
    EACH_LANE {
        f->low[k] = f->high[k] = g->x[0][k];
        f->sum_w[k] = g->weight[0][k];
        f->sum_wx[k] = g->weight[0][k] * g->x[0][k];
    }
    for (int i = 1; i < g->count; i++) {
        EACH_LANE {
            float x = g->x[i][k], w = g->weight[i][k];
            f->low[k] = x < f->low[k] ? x : f->low[k];
            f->high[k] = x > f->high[k] ? x : f->high[k];
            f->sum_w[k] += w;
            f->sum_wx[k] += w * x;
        }
    }
    EACH_LANE f->low[k] = f->low[k] > 0 ? 0 : f->low[k];
}

/* Rounds, and finds the line with the least error for these q: weighted least squares. */
PART fit_line(const hy_groups *g, const range_facts *f, int top, range_line *line,
              float has_line[HY_LANES]) {
    hy_lanes sum_q = {0}, sum_qq = {0}, sum_qx = {0};
    for (int i = 0; i < g->count; i++) {
        EACH_LANE {
            float x = g->x[i][k];
            float q = (float)hy_clamp(hy_nearest(line->inverse[k] * (x - line->origin[k])), 0, top);
            float wq = g->weight[i][k] * q;
            line->q[i][k] = q;
            sum_q[k] += wq;
            sum_qq[k] += wq * q;
            sum_qx[k] += wq * x;
        }
    }
    EACH_LANE {
        float det = f->sum_w[k] * sum_qq[k] - sum_q[k] * sum_q[k];
        float scale = (f->sum_w[k] * sum_qx[k] - f->sum_wx[k] * sum_q[k]) / det;
        float low = (sum_qq[k] * f->sum_wx[k] - sum_q[k] * sum_qx[k]) / det;
        float scale_from_0 = sum_qx[k] / sum_qq[k];
        line->scale[k] = low > 0 ? scale_from_0 : scale;
        line->low[k] = low > 0 ? 0 : low;
        has_line[k] = det > 0 ? 1.f : 0.f;
    }
}

PART measure_error(const hy_groups *g, range_line *line) {
    hy_lanes error = {0};
    for (int i = 0; i < g->count; i++) {
        EACH_LANE {
            float miss = line->scale[k] * line->q[i][k] + line->low[k] - g->x[i][k];
            error[k] += g->weight[i][k] * (miss * miss);
        }
    }
    EACH_LANE line->error[k] = error[k];
}

PART round_range(hy_groups *g, int top, const range_line *line) {
    for (int i = 0; i < g->count; i++) {
        EACH_LANE {
            float q = line->inverse[k] * (g->x[i][k] - line->origin[k]);
            g->q[i][k] = (uint8_t)hy_clamp(hy_nearest(q), 0, top);
        }
    }
}

HY_CLONES void hy_fit_range(hy_groups *g, int top, float first, float step, int steps) {
    range_facts f;
    range_line best, line;
    float has_line[HY_LANES];
    find_range(g, &f);
    EACH_LANE {
        best.origin[k] = best.low[k] = f.low[k];
        best.inverse[k] = (float)top / (f.high[k] - f.low[k]);
        best.scale[k] = 1 / best.inverse[k];
    }
    round_range(g, top, &best);
    for (int i = 0; i < g->count; i++) EACH_LANE best.q[i][k] = g->q[i][k];
    measure_error(g, &best);
    for (int s = 0; s <= steps; s++) {
        float wanted = first + step * (float)s + (float)top;
        EACH_LANE {
            line.origin[k] = best.low[k];
            line.inverse[k] = wanted / (f.high[k] - best.low[k]);
        }
        fit_line(g, &f, top, &line, has_line);
        measure_error(g, &line);
        EACH_LANE {
            int is_better = (has_line[k] != 0) & (line.error[k] < best.error[k]);
            best.origin[k] = is_better ? line.origin[k] : best.origin[k];
            best.inverse[k] = is_better ? line.inverse[k] : best.inverse[k];
            best.scale[k] = is_better ? line.scale[k] : best.scale[k];
            best.low[k] = is_better ? line.low[k] : best.low[k];
            best.error[k] = is_better ? line.error[k] : best.error[k];
        }
    }
    round_range(g, top, &best);
    EACH_LANE {
        int is_flat = f.high[k] == f.low[k];
        g->scale[k] = is_flat ? 0 : best.scale[k];
        g->min[k] = is_flat ? -f.low[k] : -best.low[k];
    }
    for (int k = 0; k < HY_LANES; k++) {
        if (f.high[k] != f.low[k]) continue;
        for (int i = 0; i < g->count; i++) g->q[i][k] = 0;
    }
}

/* ---- hy_fit_signed --------------------------------------------------------------------------- */

#define TINY 1e-15f /* a group with no larger magnitude counts as zero */

/* With q = nearest(inverse * x) in -top..top-1: sums of w x q and of w q q. */
PART sum_signed(const hy_groups *g, int top, const hy_lanes inverse, hy_lanes sum_xq,
                hy_lanes sum_qq) {
    hy_lanes xq = {0}, qq = {0};
    for (int i = 0; i < g->count; i++) {
        EACH_LANE {
            float x = g->x[i][k], w = g->weight[i][k];
            float q = (float)hy_clamp(hy_nearest(inverse[k] * x), -top, top - 1);
            xq[k] += w * x * q;
            qq[k] += w * q * q;
        }
    }
    EACH_LANE {
        sum_xq[k] = xq[k];
        sum_qq[k] = qq[k];
    }
}

HY_CLONES void hy_fit_signed(hy_groups *g, int top) {
    hy_lanes largest = {0}, extreme = {0}, inverse, best_inverse, best, sum_xq, sum_qq;
    for (int i = 0; i < g->count; i++) {
        EACH_LANE {
            float x = g->x[i][k], magnitude = fabsf(x);
            extreme[k] = magnitude > largest[k] ? x : extreme[k];
            largest[k] = magnitude > largest[k] ? magnitude : largest[k];
        }
    }
    EACH_LANE best_inverse[k] = (float)-top / extreme[k];
    sum_signed(g, top, best_inverse, sum_xq, sum_qq);
    EACH_LANE {
        float scale = sum_xq[k] / sum_qq[k];
        g->scale[k] = sum_qq[k] != 0 ? scale : 0;
        best[k] = g->scale[k] * sum_xq[k];
    }
    for (int s = -9; s <= 9; s++) {
        if (s == 0) continue;
        float wanted = -((float)top + 0.1f * (float)s);
        EACH_LANE inverse[k] = wanted / extreme[k];
        sum_signed(g, top, inverse, sum_xq, sum_qq);
        EACH_LANE {
            int is_better = (sum_qq[k] > 0) & (sum_xq[k] * sum_xq[k] > best[k] * sum_qq[k]);
            float scale = sum_xq[k] / sum_qq[k];
            g->scale[k] = is_better ? scale : g->scale[k];
            best[k] = is_better ? scale * sum_xq[k] : best[k];
            best_inverse[k] = is_better ? inverse[k] : best_inverse[k];
        }
    }
    for (int i = 0; i < g->count; i++) {
        EACH_LANE {
            int q = hy_clamp(hy_nearest(best_inverse[k] * g->x[i][k]), -top, top - 1) + top;
            g->q[i][k] = (uint8_t)(largest[k] < TINY ? 0 : q);
        }
    }
    EACH_LANE g->scale[k] = largest[k] < TINY ? 0 : g->scale[k];
}
