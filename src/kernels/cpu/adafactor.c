/* adafactor.c: one step of Adafactor. The formulas are at HY_OP_ADAFACTOR in kernels.h.
 *
 * There are three passes over the gradient: update the state; compute the size of the update; apply
 * the update, in update.c, which handles types and rounding. Sums use double precision over blocks
 * that depend only on the shape, and are added in order. */
#include "kernels/cpu/adafactor.h"

#include <math.h>

#include "kernels/cpu/columns.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/vector_math.h"

#define ELEMENTS_PER_TASK (32 * 1024)
#define STRIPE 512 /* columns of a task */

/* ---- workspace ------------------------------------------------------------------------------- */

/* Values for the last pass. */
typedef struct step_size {
    float ratio; /* 1 / max(mean of r, eps1) */
    float step;  /* alpha / max(1, rms(u) / threshold) */
} step_size;

typedef struct scratch {
    step_size *size;
    double *updates, *params; /* (tasks) sums of squares */
    double *columns;          /* (blocks, N): of g^2 */
    size_t bytes;
} scratch;

static scratch scratch_of(const hy_op_call *call) {
    const hy_tensor *param = &call->t[HY_UPDATE_PARAM];
    size_t tasks = (size_t)hy_ceil_div(hy_tensor_count(param), ELEMENTS_PER_TASK);
    int64_t sums = hy_block_count(hy_tensor_height(param)) * hy_tensor_width(param);
    hy_cpu_workspace w = {.base = call->workspace.data};
    scratch s = {.size = hy_cpu_take(&w, sizeof *s.size),
                 .updates = hy_cpu_take(&w, tasks * sizeof(double)),
                 .params = hy_cpu_take(&w, tasks * sizeof(double))};
    if (call->attr.adafactor.is_factored) {
        s.columns = hy_cpu_take(&w, (size_t)sums * sizeof(double));
    }
    s.bytes = w.used;
    return s;
}

size_t hy_cpu_adafactor_workspace(const hy_op_call *call, int threads) {
    (void)threads;
    return scratch_of(call).bytes;
}

static float *state_of(const hy_op_call *call) { return call->t[HY_UPDATE_M].data; }

static float grad_scale_of(const hy_op_call *call) {
    return ((const float *)call->t[HY_UPDATE_CLIP].data)[1];
}

/* ---- state: means by rows and columns -------------------------------------------------------- */

HY_CLONES static double square_run(const float *grad, double scale, double *columns, int64_t n) {
    double sum = 0;
    HY_SIMD_SUM(sum)
    for (int64_t i = 0; i < n; i++) {
        double g = scale * (double)grad[i];
        columns[i] += g * g;
        sum += g * g;
    }
    return sum;
}

static void mix_in(float *mean, double sum, int64_t count, float share) {
    *mean += share * ((float)(sum / (double)count) - *mean);
}

/* Rows of a block: updates their means, and stores the block's share of the column sums. */
static void square_rows(const hy_cpu_run *run, int64_t block, int worker) {
    (void)worker;
    const hy_op_call *call = run->call;
    const hy_tensor *grad = &call->t[HY_UPDATE_GRAD], *param = &call->t[HY_UPDATE_PARAM];
    int64_t M = hy_tensor_height(param), N = hy_tensor_width(param), rows = hy_block_rows(M);
    double scale = (double)grad_scale_of(call), *columns = scratch_of(call).columns + block * N;
    float buffer[HY_CPU_RUN];
    for (int64_t i = 0; i < N; i++) columns[i] = 0;
    for (int64_t row = block * rows; row < hy_min64((block + 1) * rows, M); row++) {
        double sum = 0;
        for (int64_t at = 0; at < N; at += HY_CPU_RUN) {
            int64_t n = hy_min64(HY_CPU_RUN, N - at);
            sum += square_run(hy_read(grad, row * N + at, n, buffer), scale, columns + at, n);
        }
        mix_in(state_of(call) + row, sum, N, call->attr.adafactor.mix);
    }
}

static void fold_columns(const hy_cpu_run *run, int64_t stripe, int worker) {
    (void)worker;
    const hy_tensor *param = &run->call->t[HY_UPDATE_PARAM];
    int64_t M = hy_tensor_height(param), N = hy_tensor_width(param), blocks = hy_block_count(M);
    const double *parts = scratch_of(run->call).columns;
    float *means = state_of(run->call) + M;
    for (int64_t i = stripe * STRIPE; i < hy_min64((stripe + 1) * STRIPE, N); i++) {
        double sum = 0;
        for (int64_t b = 0; b < blocks; b++) sum += parts[b * N + i];
        mix_in(means + i, sum, M, run->call->attr.adafactor.mix);
    }
}

static void factor(const hy_cpu_run *run) {
    const hy_op_call *call = run->call;
    const hy_tensor *param = &call->t[HY_UPDATE_PARAM];
    int64_t M = hy_tensor_height(param), N = hy_tensor_width(param);
    double sum = 0;
    hy_cpu_for_each(run, hy_block_count(M), square_rows);
    hy_cpu_for_each(run, hy_ceil_div(N, STRIPE), fold_columns);
    for (int64_t row = 0; row < M; row++) sum += (double)state_of(call)[row];
    scratch_of(call).size->ratio =
        (float)(1 / fmax(sum / (double)M, (double)call->attr.adafactor.eps1));
}

/* ---- state: one number per element ----------------------------------------------------------- */

HY_CLONES static void mix_run(float *v, const float *grad, float scale, float share, int64_t n) {
    HY_SIMD
    for (int64_t i = 0; i < n; i++) {
        float g = scale * grad[i];
        v[i] += share * (g * g - v[i]);
    }
}

static void mix_elements(const hy_op_call *call, int64_t at, int64_t n) {
    float buffer[HY_CPU_RUN];
    const float *grad = hy_read(&call->t[HY_UPDATE_GRAD], at, n, buffer);
    mix_run(state_of(call) + at, grad, grad_scale_of(call), call->attr.adafactor.mix, n);
}

/* ---- the update ------------------------------------------------------------------------------ */

/* u = scale grad / sqrt(max(factor variance, least)) */
HY_CLONES static void divide_run(const float *grad, const float *variance, float factor,
                                 float scale, float least, float *u, int64_t n) {
    HY_SIMD
    for (int64_t i = 0; i < n; i++) {
        float x = factor * variance[i];
        u[i] = scale * grad[i] / hy_sqrt(x > least ? x : least);
    }
}

/* Elements [at, at + n) of u; grad has the same elements. */
static void make_updates(const hy_op_call *call, const float *grad, int64_t at, int64_t n,
                         float *u) {
    const hy_tensor *param = &call->t[HY_UPDATE_PARAM];
    const float *v = state_of(call);
    float scale = grad_scale_of(call), eps = call->attr.adafactor.eps1, least = eps * eps;
    if (!call->attr.adafactor.is_factored) {
        divide_run(grad, v + at, 1, scale, least, u, n);
        return;
    }
    int64_t M = hy_tensor_height(param), N = hy_tensor_width(param);
    float ratio = scratch_of(call).size->ratio;
    for (int64_t done = 0; done < n;) {
        int64_t row = (at + done) / N, column = (at + done) % N;
        int64_t length = hy_min64(N - column, n - done);
        divide_run(grad + done, v + M + column, v[row] * ratio, scale, least, u + done, length);
        done += length;
    }
}

HY_CLONES static double sum_squares(const float *x, int64_t n) {
    double sum = 0;
    HY_SIMD_SUM(sum)
    for (int64_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    return sum;
}

static const hy_tensor *exact_of(const hy_op_call *call) {
    const hy_tensor *master = &call->t[HY_UPDATE_MASTER];
    return hy_tensor_is_given(master) ? master : &call->t[HY_UPDATE_PARAM];
}

/* Sums the squares of a task's updates and parameters. */
static void measure(const hy_op_call *call, int64_t begin, int64_t count) {
    float buffer[HY_CPU_RUN], u[HY_CPU_RUN];
    double updates = 0, params = 0;
    scratch s = scratch_of(call);
    for (int64_t at = begin; at < begin + count; at += HY_CPU_RUN) {
        int64_t n = hy_min64(HY_CPU_RUN, begin + count - at);
        make_updates(call, hy_read(&call->t[HY_UPDATE_GRAD], at, n, buffer), at, n, u);
        updates += sum_squares(u, n);
        params += sum_squares(hy_read(exact_of(call), at, n, buffer), n);
    }
    s.updates[begin / ELEMENTS_PER_TASK] = updates;
    s.params[begin / ELEMENTS_PER_TASK] = params;
}

static double rms(const double *sums, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < hy_ceil_div(count, ELEMENTS_PER_TASK); i++) sum += sums[i];
    return sqrt(sum / (double)count);
}

void hy_cpu_adafactor_apply(const hy_op_call *call, const float *grad, float *p, int64_t at,
                            int64_t n) {
    const hy_adafactor_attr *a = &call->attr.adafactor;
    float u[HY_CPU_RUN], keep = 1.0f - a->lr * a->weight_decay;
    float step = scratch_of(call).size->step;
    make_updates(call, grad, at, n, u);
    HY_SIMD
    for (int64_t i = 0; i < n; i++) p[i] = p[i] * keep - step * u[i];
}

hy_status hy_cpu_adafactor(const hy_cpu_run *run) {
    const hy_op_call *call = run->call;
    const hy_adafactor_attr *a = &call->attr.adafactor;
    int64_t count = hy_tensor_count(&call->t[HY_UPDATE_PARAM]);
    scratch s = scratch_of(call);
    if (grad_scale_of(call) == 0) return HY_OK;
    if (a->is_factored) {
        factor(run);
    } else {
        hy_cpu_for_elements(run, count, ELEMENTS_PER_TASK, mix_elements);
    }
    hy_cpu_for_rows(run, count, ELEMENTS_PER_TASK, measure);
    double alpha = (double)a->rate;
    if (a->is_relative) alpha *= fmax((double)a->eps2, rms(s.params, count));
    s.size->step = (float)(alpha / fmax(1, rms(s.updates, count) / (double)a->threshold));
    return hy_cpu_update(run);
}
