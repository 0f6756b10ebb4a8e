/* gate.c: heads times a function of their gates: x sigmoid(gate) (gated attention), or with weight
 * x rstd weight silu(gate) (the norm behind the gated delta rule), and both backward.
 *
 * Gradients of the weight sum over rows and heads: rows in blocks, heads within a row in order
 * (columns.h). */
#include <math.h>

#include "kernels/cpu/columns.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/vector_math.h"

#define MAX_HEAD 1024 /* ops.c accepts no larger head */

typedef struct gates {
    int64_t H, D, column, stride, width;
    float eps;
} gates;

static gates gates_of(const hy_op_call *call, const hy_tensor *gate) {
    return (gates){.H = call->attr.gate.heads,
                   .D = call->attr.gate.head_dim,
                   .column = call->attr.gate.column,
                   .stride = call->attr.gate.stride,
                   .width = hy_tensor_width(gate),
                   .eps = call->attr.gate.eps};
}

/* The element where the gate of a head begins. */
static int64_t gate_at(const gates *g, int64_t row, int64_t head) {
    return row * g->width + g->column + head * g->stride;
}

/* ---- forward --------------------------------------------------------------------------------- */

HY_CLONES static void gate_head(const float *x, const float *gate, float *y, int64_t n) {
    HY_SIMD
    for (int64_t i = 0; i < n; i++) y[i] = x[i] * hy_sigmoid(gate[i]);
}

HY_CLONES static void gate_normed(const float *x, const float *gate, const float *w, float rstd,
                                  float *y, int64_t n) {
    HY_SIMD
    for (int64_t i = 0; i < n; i++) y[i] = x[i] * rstd * w[i] * (gate[i] * hy_sigmoid(gate[i]));
}

static void gate_rows(const hy_op_call *call, int64_t first, int64_t rows) {
    const hy_tensor *t = call->t, *x = &t[HY_GATE_X], *gate = &t[HY_GATE_GATE], *y = &t[HY_GATE_Y],
                    *weight = &t[HY_GATE_WEIGHT];
    gates g = gates_of(call, gate);
    float x_buffer[MAX_HEAD], gate_buffer[MAX_HEAD], w_buffer[MAX_HEAD], y_buffer[MAX_HEAD];
    float *rstds = t[HY_GATE_RSTD].data;
    const float *w = weight->data ? hy_read(weight, 0, g.D, w_buffer) : NULL;
    for (int64_t i = first * g.H; i < (first + rows) * g.H; i++) {
        const float *in = hy_read(x, i * g.D, g.D, x_buffer);
        const float *by = hy_read(gate, gate_at(&g, i / g.H, i % g.H), g.D, gate_buffer);
        float *out = hy_target(y, i * g.D, y_buffer);
        if (w) {
            float rstd = 1.0f / sqrtf(hy_cpu_square_sum(in, g.D) / (float)g.D + g.eps);
            gate_normed(in, by, w, rstd, out, g.D);
            rstds[i] = rstd;
        } else {
            gate_head(in, by, out, g.D);
        }
        hy_write(y, i * g.D, g.D, out);
    }
}

hy_status hy_cpu_gate(const hy_cpu_run *run) {
    const hy_tensor *x = &run->call->t[HY_GATE_X];
    int64_t each = hy_max64(1, 16 * 1024 / hy_tensor_width(x));
    return hy_cpu_for_rows(run, hy_tensor_height(x), each, gate_rows);
}

/* ---- backward -------------------------------------------------------------------------------- */

HY_CLONES static void gate_head_bwd(const float *dy, const float *x, const float *gate, float *dx,
                                    float *dgate, int64_t n) {
    HY_SIMD
    for (int64_t i = 0; i < n; i++) {
        float part = hy_sigmoid(gate[i]), d = dy[i];
        dgate[i] = d * x[i] * part * (1.0f - part);
        dx[i] = d * part;
    }
}

/* The mean of g xhat over the head, g = dy silu(gate) weight. */
HY_CLONES static float gradient_mean(const float *dy, const float *x, const float *gate,
                                     const float *w, float rstd, int64_t n) {
    float sum = 0;
    HY_SIMD_SUM(sum)
    for (int64_t i = 0; i < n; i++) {
        sum += dy[i] * (gate[i] * hy_sigmoid(gate[i])) * w[i] * (x[i] * rstd);
    }
    return sum / (float)n;
}

typedef struct normed_head {
    const float *dy, *x, *gate, *w;
    float rstd, mean;
    float *dx, *dgate;
    double *dw; /* added to */
} normed_head;

HY_CLONES static void gate_normed_bwd(const normed_head *h, int64_t n) {
    const float *dy = h->dy, *x = h->x, *gate = h->gate, *w = h->w;
    float *dx = h->dx, *dgate = h->dgate, rstd = h->rstd, mean = h->mean;
    double *dw = h->dw;
    HY_SIMD
    for (int64_t i = 0; i < n; i++) {
        float part = hy_sigmoid(gate[i]), silu = gate[i] * part, xhat = x[i] * rstd, d = dy[i];
        dw[i] += (double)(d * silu * xhat);
        dgate[i] = d * xhat * w[i] * part * (1.0f + gate[i] * (1.0f - part));
        dx[i] = rstd * (d * silu * w[i] - xhat * mean);
    }
}

size_t hy_cpu_gate_bwd_workspace(const hy_op_call *call, int threads) {
    (void)threads;
    if (!call->t[HY_GATE_BWD_WEIGHT].data) return 0;
    int64_t blocks = hy_block_count(hy_tensor_height(&call->t[HY_GATE_BWD_X]));
    return (size_t)(blocks * call->attr.gate.head_dim) * sizeof(double);
}

static void gate_bwd_rows(const hy_op_call *call, int64_t first, int64_t rows) {
    const hy_tensor *t = call->t, *x = &t[HY_GATE_BWD_X], *dx = &t[HY_GATE_BWD_DX];
    const hy_tensor *gate = &t[HY_GATE_BWD_GATE], *dgate = &t[HY_GATE_BWD_DGATE];
    const hy_tensor *weight = &t[HY_GATE_BWD_WEIGHT];
    float buffers[6][MAX_HEAD];
    gates g = gates_of(call, gate);
    int64_t D = g.D, block = first / hy_block_rows(hy_tensor_height(x));
    const float *rstds = t[HY_GATE_BWD_RSTD].data;
    normed_head h = {.w = weight->data ? hy_read(weight, 0, D, buffers[0]) : NULL};
    if (h.w) h.dw = (double *)call->workspace.data + block * D;
    for (int64_t i = 0; h.w && i < D; i++) h.dw[i] = 0;
    for (int64_t i = first * g.H; i < (first + rows) * g.H; i++) {
        int64_t at = gate_at(&g, i / g.H, i % g.H);
        h.dy = hy_read(&t[HY_GATE_BWD_DY], i * D, D, buffers[1]);
        h.x = hy_read(x, i * D, D, buffers[2]);
        h.gate = hy_read(gate, at, D, buffers[3]);
        h.dx = hy_target(dx, i * D, buffers[4]);
        h.dgate = hy_target(dgate, at, buffers[5]);
        if (h.w) {
            h.rstd = rstds[i];
            h.mean = gradient_mean(h.dy, h.x, h.gate, h.w, h.rstd, D);
            gate_normed_bwd(&h, D);
        } else {
            gate_head_bwd(h.dy, h.x, h.gate, h.dx, h.dgate, D);
        }
        hy_write(dx, i * D, D, h.dx);
        hy_write(dgate, at, D, h.dgate);
    }
}

hy_status hy_cpu_gate_bwd(const hy_cpu_run *run) {
    const hy_op_call *call = run->call;
    const hy_tensor *dweight = &call->t[HY_GATE_BWD_DWEIGHT];
    int64_t N = hy_tensor_height(&call->t[HY_GATE_BWD_X]);
    hy_cpu_for_rows(run, N, hy_block_rows(N), gate_bwd_rows);
    if (dweight->data) {
        hy_cpu_fold_columns(call->workspace.data, hy_block_count(N), call->attr.gate.head_dim,
                            dweight, call->attr.accumulate);
    }
    return HY_OK;
}
