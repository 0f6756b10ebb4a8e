/* activation.c: gelu and swiglu, forward and backward.
 *
 * gelu in its tanh form is x times a sigmoid: (1 + tanh u) / 2 = sigmoid(2 u), so both activations
 * need one exponential and one division per element. Everything is elementwise, hence in place
 * too. */
#include <string.h>

#include "kernels/cpu/rows.h"
#include "kernels/cpu/vector_math.h"

#define ELEMENTS_PER_TASK (16 * 1024)

/* 2 u = x (A + B x^2) with u = sqrt(2/pi) (x + 0.044715 x^3) */
#define GELU_A 1.5957691216f
#define GELU_B 0.0713548162726f

HY_CLONES static void gelu_run(const float *x, float *y, int64_t n) {
    HY_SIMD
    for (int64_t i = 0; i < n; i++) {
        float v = x[i];
        y[i] = v * hy_sigmoid(v * (GELU_A + GELU_B * v * v));
    }
}

HY_CLONES static void gelu_bwd_run(const float *dy, const float *x, float *dx, int64_t n) {
    HY_SIMD
    for (int64_t i = 0; i < n; i++) {
        float v = x[i];
        float s = hy_sigmoid(v * (GELU_A + GELU_B * v * v));
        float slope = GELU_A + 3.0f * GELU_B * v * v;
        dx[i] = dy[i] * (s + v * s * (1.0f - s) * slope);
    }
}

static void gelu_task(const hy_cpu_run *run, int64_t task, int worker) {
    (void)worker;
    const hy_tensor *x = &run->call->t[HY_GELU_X], *y = &run->call->t[HY_GELU_Y];
    int64_t begin = task * ELEMENTS_PER_TASK;
    int64_t end = hy_min64(begin + ELEMENTS_PER_TASK, hy_tensor_count(x));
    float in[HY_CPU_RUN], out[HY_CPU_RUN];
    for (int64_t at = begin; at < end; at += HY_CPU_RUN) {
        int64_t n = hy_min64(HY_CPU_RUN, end - at);
        float *values = hy_target(y, at, out);
        gelu_run(hy_read(x, at, n, in), values, n);
        hy_write(y, at, n, values);
    }
}

static void gelu_bwd_task(const hy_cpu_run *run, int64_t task, int worker) {
    (void)worker;
    const hy_tensor *dy = &run->call->t[HY_GELU_BWD_DY], *x = &run->call->t[HY_GELU_BWD_X],
                    *dx = &run->call->t[HY_GELU_BWD_DX];
    int64_t begin = task * ELEMENTS_PER_TASK;
    int64_t end = hy_min64(begin + ELEMENTS_PER_TASK, hy_tensor_count(x));
    float in[2][HY_CPU_RUN], out[HY_CPU_RUN];
    for (int64_t at = begin; at < end; at += HY_CPU_RUN) {
        int64_t n = hy_min64(HY_CPU_RUN, end - at);
        float *values = hy_target(dx, at, out);
        gelu_bwd_run(hy_read(dy, at, n, in[0]), hy_read(x, at, n, in[1]), values, n);
        hy_write(dx, at, n, values);
    }
}

hy_status hy_cpu_gelu(const hy_cpu_run *run) {
    int64_t count = hy_tensor_count(&run->call->t[HY_GELU_X]);
    hy_cpu_for_each(run, hy_ceil_div(count, ELEMENTS_PER_TASK), gelu_task);
    return HY_OK;
}

hy_status hy_cpu_gelu_bwd(const hy_cpu_run *run) {
    int64_t count = hy_tensor_count(&run->call->t[HY_GELU_BWD_DY]);
    hy_cpu_for_each(run, hy_ceil_div(count, ELEMENTS_PER_TASK), gelu_bwd_task);
    return HY_OK;
}

/* ---- swiglu ---------------------------------------------------------------------------------- */

HY_CLONES static void swiglu_run(const float *gate, const float *up, float *y, int64_t n) {
    HY_SIMD
    for (int64_t i = 0; i < n; i++) y[i] = gate[i] * hy_sigmoid(gate[i]) * up[i];
}

HY_CLONES static void swiglu_bwd_run(const float *dy, const float *gate, const float *up,
                                     float *dgate, float *dup, int64_t n) {
    HY_SIMD
    for (int64_t i = 0; i < n; i++) {
        float g = gate[i], u = up[i], s = hy_sigmoid(g);
        dgate[i] = dy[i] * u * s * (1.0f + g * (1.0f - s));
        dup[i] = dy[i] * g * s;
    }
}

/* What was made in a buffer of its own goes to a tensor of any type. */
static void put(const hy_tensor *t, int64_t at, int64_t n, const float *values) {
    if (t->dtype == HY_F32) memcpy(hy_element(t, at), values, (size_t)n * sizeof *values);
    hy_write(t, at, n, values);
}

/* Rows of a task: about as many elements as gelu's. */
static int64_t swiglu_rows(int64_t F) { return hy_max64(1, ELEMENTS_PER_TASK / F); }

static void swiglu_task(const hy_cpu_run *run, int64_t task, int worker) {
    (void)worker;
    const hy_tensor *gate_up = &run->call->t[HY_SWIGLU_GATE_UP], *y = &run->call->t[HY_SWIGLU_Y];
    int64_t N = hy_tensor_height(y), F = hy_tensor_width(y), rows = swiglu_rows(F);
    float in[2][HY_CPU_RUN], out[HY_CPU_RUN];
    for (int64_t row = task * rows; row < hy_min64((task + 1) * rows, N); row++) {
        for (int64_t at = 0; at < F; at += HY_CPU_RUN) {
            int64_t n = hy_min64(HY_CPU_RUN, F - at), gate = row * 2 * F + at;
            float *values = hy_target(y, row * F + at, out);
            swiglu_run(hy_read(gate_up, gate, n, in[0]), hy_read(gate_up, gate + F, n, in[1]),
                       values, n);
            hy_write(y, row * F + at, n, values);
        }
    }
}

/* y again: made before gate, up and dy are written over, put in its place after. */
static void swiglu_bwd_task(const hy_cpu_run *run, int64_t task, int worker) {
    (void)worker;
    const hy_tensor *t = run->call->t, *dy = &t[HY_SWIGLU_BWD_DY];
    const hy_tensor *gate_up = &t[HY_SWIGLU_BWD_GATE_UP], *dx = &t[HY_SWIGLU_BWD_DGATE_UP];
    const hy_tensor *active = &t[HY_SWIGLU_BWD_ACTIVE];
    int64_t N = hy_tensor_height(dy), F = hy_tensor_width(dy), rows = swiglu_rows(F);
    float in[3][HY_CPU_RUN], out[2][HY_CPU_RUN], again[HY_CPU_RUN];
    for (int64_t row = task * rows; row < hy_min64((task + 1) * rows, N); row++) {
        for (int64_t at = 0; at < F; at += HY_CPU_RUN) {
            int64_t n = hy_min64(HY_CPU_RUN, F - at), gate = row * 2 * F + at;
            float *dgate = hy_target(dx, gate, out[0]), *dup = hy_target(dx, gate + F, out[1]);
            const float *g = hy_read(gate_up, gate, n, in[1]),
                        *u = hy_read(gate_up, gate + F, n, in[2]);
            if (active->data) swiglu_run(g, u, again, n);
            swiglu_bwd_run(hy_read(dy, row * F + at, n, in[0]), g, u, dgate, dup, n);
            hy_write(dx, gate, n, dgate);
            hy_write(dx, gate + F, n, dup);
            if (active->data) put(active, row * F + at, n, again);
        }
    }
}

hy_status hy_cpu_swiglu(const hy_cpu_run *run) {
    const hy_tensor *y = &run->call->t[HY_SWIGLU_Y];
    int64_t N = hy_tensor_height(y), F = hy_tensor_width(y);
    hy_cpu_for_each(run, hy_ceil_div(N, swiglu_rows(F)), swiglu_task);
    return HY_OK;
}

hy_status hy_cpu_swiglu_bwd(const hy_cpu_run *run) {
    const hy_tensor *dy = &run->call->t[HY_SWIGLU_BWD_DY];
    int64_t N = hy_tensor_height(dy), F = hy_tensor_width(dy);
    hy_cpu_for_each(run, hy_ceil_div(N, swiglu_rows(F)), swiglu_bwd_task);
    return HY_OK;
}
