/* activation.c: activation functions, alone (gelu) and of a gate (swiglu), forward and backward.
 *
 * gelu in its tanh form is x times a sigmoid: (1 + tanh u) / 2 = sigmoid(2 u), so it needs one
 * exponential and one division per element, as silu does. Everything is elementwise, so it also
 * works in place. Loops are compiled once for each activation function. */
#include "kernels/cpu/rows.h"
#include "kernels/cpu/vector_math.h"

#define ELEMENTS_PER_TASK (16 * 1024)

#define INLINE static inline __attribute__((always_inline))

/* 2 u = x (A + B x^2) with u = sqrt(2/pi) (x + 0.044715 x^3) */
#define GELU_A 1.5957691216f
#define GELU_B 0.0713548162726f

INLINE float act(hy_act kind, float v) {
    switch (kind) {
    case HY_ACT_GELU: return v * hy_normal_cdf(v);
    case HY_ACT_RELU2: return v < 0 ? 0 : v * v;
    case HY_ACT_SILU: return v * hy_sigmoid(v);
    default: return v * hy_sigmoid(v * (GELU_A + GELU_B * v * v));
    }
}

/* Its derivative. */
INLINE float act_slope(hy_act kind, float v) {
    float s;
    switch (kind) {
    case HY_ACT_GELU: /* with the density of normal numbers */
        return hy_normal_cdf(v) + v * (0.398942280f * hy_exp(-0.5f * v * v));
    case HY_ACT_RELU2: return v < 0 ? 0 : 2.0f * v;
    case HY_ACT_SILU: s = hy_sigmoid(v); return s * (1.0f + v * (1.0f - s));
    default:
        s = hy_sigmoid(v * (GELU_A + GELU_B * v * v));
        return s + v * s * (1.0f - s) * (GELU_A + 3.0f * GELU_B * v * v);
    }
}

/* Runs a loop that is written for a constant kind. */
#define FOR_KIND(kind, loop, ...)                                                                  \
    switch (kind) {                                                                                \
    case HY_ACT_GELU: loop(HY_ACT_GELU, __VA_ARGS__); break;                                       \
    case HY_ACT_RELU2: loop(HY_ACT_RELU2, __VA_ARGS__); break;                                     \
    case HY_ACT_SILU: loop(HY_ACT_SILU, __VA_ARGS__); break;                                       \
    default: loop(HY_ACT_GELU_TANH, __VA_ARGS__); break;                                           \
    }

/* ---- gelu ------------------------------------------------------------------------------------ */

INLINE void gelu_loop(hy_act kind, const float *x, float *y, int64_t n) {
    HY_SIMD
    for (int64_t i = 0; i < n; i++) y[i] = act(kind, x[i]);
}

HY_CLONES static void gelu_run(hy_act kind, const float *x, float *y,
                               int64_t n){FOR_KIND(kind, gelu_loop, x, y, n)}

INLINE void gelu_bwd_loop(hy_act kind, const float *dy, const float *x, float *dx, int64_t n) {
    HY_SIMD
    for (int64_t i = 0; i < n; i++) dx[i] = dy[i] * act_slope(kind, x[i]);
}

HY_CLONES static void gelu_bwd_run(hy_act kind, const float *dy, const float *x, float *dx,
                                   int64_t n) {
    FOR_KIND(kind, gelu_bwd_loop, dy, x, dx, n)
}

static void gelu_elements(const hy_op_call *call, int64_t at, int64_t n) {
    const hy_tensor *x = &call->t[HY_GELU_X], *y = &call->t[HY_GELU_Y];
    float in[HY_CPU_RUN], out[HY_CPU_RUN], *values = hy_target(y, at, out);
    gelu_run(call->attr.act.kind, hy_read(x, at, n, in), values, n);
    hy_write(y, at, n, values);
}

static void gelu_bwd_elements(const hy_op_call *call, int64_t at, int64_t n) {
    const hy_tensor *dy = &call->t[HY_GELU_BWD_DY], *x = &call->t[HY_GELU_BWD_X],
                    *dx = &call->t[HY_GELU_BWD_DX];
    float in[2][HY_CPU_RUN], out[HY_CPU_RUN], *values = hy_target(dx, at, out);
    gelu_bwd_run(call->attr.act.kind, hy_read(dy, at, n, in[0]), hy_read(x, at, n, in[1]), values,
                 n);
    hy_write(dx, at, n, values);
}

hy_status hy_cpu_gelu(const hy_cpu_run *run) {
    int64_t count = hy_tensor_count(&run->call->t[HY_GELU_X]);
    return hy_cpu_for_elements(run, count, ELEMENTS_PER_TASK, gelu_elements);
}

hy_status hy_cpu_gelu_bwd(const hy_cpu_run *run) {
    int64_t count = hy_tensor_count(&run->call->t[HY_GELU_BWD_DY]);
    return hy_cpu_for_elements(run, count, ELEMENTS_PER_TASK, gelu_bwd_elements);
}

/* ---- swiglu ---------------------------------------------------------------------------------- */

static hy_act gate_kind(const hy_op_call *call) {
    return call->attr.act.kind == HY_ACT_DEFAULT ? HY_ACT_SILU : call->attr.act.kind;
}

INLINE void swiglu_loop(hy_act kind, const float *gate, const float *up, float *y, int64_t n) {
    HY_SIMD
    for (int64_t i = 0; i < n; i++) y[i] = act(kind, gate[i]) * up[i];
}

HY_CLONES static void swiglu_run(hy_act kind, const float *gate, const float *up, float *y,
                                 int64_t n){FOR_KIND(kind, swiglu_loop, gate, up, y, n)}

/* silu shares its sigmoid, with products in an order of its own. */
INLINE void swiglu_bwd_loop(hy_act kind, const float *dy, const float *gate, const float *up,
                            float *dgate, float *dup, int64_t n) {
    HY_SIMD
    for (int64_t i = 0; i < n; i++) {
        float g = gate[i], u = up[i], d = dy[i];
        if (kind == HY_ACT_SILU) {
            float s = hy_sigmoid(g);
            dgate[i] = d * u * s * (1.0f + g * (1.0f - s));
            dup[i] = d * g * s;
        } else {
            dgate[i] = d * u * act_slope(kind, g);
            dup[i] = d * act(kind, g);
        }
    }
}

HY_CLONES static void swiglu_bwd_run(hy_act kind, const float *dy, const float *gate,
                                     const float *up, float *dgate, float *dup, int64_t n) {
    FOR_KIND(kind, swiglu_bwd_loop, dy, gate, up, dgate, dup, n)
}

/* Where the weight of a row is among all weights. */
static int64_t weight_at(const hy_tensor *order, int64_t row) {
    return order->data ? ((const int32_t *)order->data)[row] : row;
}

HY_CLONES static void scale_run(const float *x, float by, float *out, int64_t n) {
    HY_SIMD
    for (int64_t i = 0; i < n; i++) out[i] = by * x[i];
}

static void swiglu_rows(const hy_op_call *call, int64_t first, int64_t rows) {
    const hy_tensor *gate_up = &call->t[HY_SWIGLU_GATE_UP], *y = &call->t[HY_SWIGLU_Y];
    const float *weights = call->t[HY_SWIGLU_WEIGHTS].data;
    int64_t F = hy_tensor_width(y);
    float in[2][HY_CPU_RUN], out[HY_CPU_RUN];
    for (int64_t row = first; row < first + rows; row++) {
        for (int64_t at = 0; at < F; at += HY_CPU_RUN) {
            int64_t n = hy_min64(HY_CPU_RUN, F - at), gate = row * 2 * F + at;
            float *values = hy_target(y, row * F + at, out);
            swiglu_run(gate_kind(call), hy_read(gate_up, gate, n, in[0]),
                       hy_read(gate_up, gate + F, n, in[1]), values, n);
            if (weights) {
                float weight = weights[weight_at(&call->t[HY_SWIGLU_ORDER], row)];
                scale_run(values, weight, values, n);
            }
            hy_write(y, row * F + at, n, values);
        }
    }
}

/* y again: computed before gate, up and dy are overwritten, stored afterwards. */
static void swiglu_bwd_rows(const hy_op_call *call, int64_t first, int64_t rows) {
    const hy_tensor *t = call->t, *dy = &t[HY_SWIGLU_BWD_DY];
    const hy_tensor *gate_up = &t[HY_SWIGLU_BWD_GATE_UP], *dx = &t[HY_SWIGLU_BWD_DGATE_UP];
    const hy_tensor *active = &t[HY_SWIGLU_BWD_ACTIVE];
    const float *weights = t[HY_SWIGLU_BWD_WEIGHTS].data;
    float *dweights = t[HY_SWIGLU_BWD_DWEIGHTS].data;
    int64_t F = hy_tensor_width(dy);
    float in[3][HY_CPU_RUN], out[2][HY_CPU_RUN], again[HY_CPU_RUN], scaled[HY_CPU_RUN];
    for (int64_t row = first; row < first + rows; row++) {
        int64_t of_weight = weight_at(&t[HY_SWIGLU_BWD_ORDER], row);
        double dweight = 0;
        for (int64_t at = 0; at < F; at += HY_CPU_RUN) {
            int64_t n = hy_min64(HY_CPU_RUN, F - at), gate = row * 2 * F + at;
            float *dgate = hy_target(dx, gate, out[0]), *dup = hy_target(dx, gate + F, out[1]);
            const float *g = hy_read(gate_up, gate, n, in[1]),
                        *u = hy_read(gate_up, gate + F, n, in[2]);
            const float *d = hy_read(dy, row * F + at, n, in[0]);
            if (active->data || dweights) swiglu_run(gate_kind(call), g, u, again, n);
            for (int64_t i = 0; dweights && i < n; i++) dweight += (double)(d[i] * again[i]);
            if (weights) {
                if (active->data) scale_run(again, weights[of_weight], again, n);
                scale_run(d, weights[of_weight], scaled, n);
                d = scaled;
            }
            swiglu_bwd_run(gate_kind(call), d, g, u, dgate, dup, n);
            hy_write(dx, gate, n, dgate);
            hy_write(dx, gate + F, n, dup);
            if (!active->data) continue;
            hy_cpu_narrow(active->dtype, again, hy_element(active, row * F + at), n);
        }
        if (dweights) dweights[of_weight] = (float)dweight;
    }
}

/* A task has about as many elements as one of gelu. */
static hy_status for_rows_of(const hy_cpu_run *run, const hy_tensor *y, hy_cpu_work work) {
    int64_t each = hy_max64(1, ELEMENTS_PER_TASK / hy_tensor_width(y));
    return hy_cpu_for_rows(run, hy_tensor_height(y), each, work);
}

hy_status hy_cpu_swiglu(const hy_cpu_run *run) {
    return for_rows_of(run, &run->call->t[HY_SWIGLU_Y], swiglu_rows);
}

hy_status hy_cpu_swiglu_bwd(const hy_cpu_run *run) {
    return for_rows_of(run, &run->call->t[HY_SWIGLU_BWD_DY], swiglu_bwd_rows);
}
