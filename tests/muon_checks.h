/* muon_checks.h: updates of Muon against its formulas in double, on any backend. */
#ifndef HY_TESTS_MUON_CHECKS_H
#define HY_TESTS_MUON_CHECKS_H

#include <math.h>

#include "base/error.h"
#include "base/rng.h"
#include "harness.h"
#include "kernels/half.h"
#include "optim/optimizer.h"

/* A matrix as its pieces, the types of its state, and how the optimizer is set. */
typedef struct muon_case {
    int64_t rows, cols;
    int32_t pieces;
    int64_t piece_rows[HY_PARAM_PIECES];
    hy_dtype matrix,
        weight; /* in which it multiplies; of the weight: fp32, or bf16 with a master */
    bool is_nesterov, is_cautious;
    int32_t steps;  /* of Newton and Schulz */
    double allowed; /* of the length of all that moved */
    int64_t rising; /* updates in which the momentum rises */
} muon_case;

static const muon_case muon_cases[] = {
    {48, 96, 0, {0}, HY_F32, HY_F32, true, false, 5, 1e-5, 0},
    {96, 48, 0, {0}, HY_F32, HY_F32, true, false, 5, 1e-5, 0},
    {33, 33, 0, {0}, HY_F32, HY_F32, false, true, 5, 1e-5, 2},
    {32 + 2 * 16, 32, 3, {32, 16, 16}, HY_F32, HY_F32, true, false, 5, 1e-5, 0},
    {2 * 80, 32, 2, {80, 80}, HY_F32, HY_F32, true, true, 4, 1e-5, 10},
    {48, 96, 0, {0}, HY_BF16, HY_BF16, true, false, 5, 0.02, 0},
    {32 + 2 * 16, 32, 3, {32, 16, 16}, HY_BF16, HY_BF16, true, false, 5, 0.02, 0},
    {2 * 80, 32, 2, {80, 80}, HY_BF16, HY_BF16, false, false, 1, 0.02, 0},
};
enum { MUON_CASES = sizeof muon_cases / sizeof muon_cases[0], MUON_STEPS = 3 };

#define MUON_LR 0.02
#define MUON_DECAY 0.1
#define MUON_MU 0.95

/* ---- in double ------------------------------------------------------------------------------- */

static inline double *muon_array(int64_t count) {
    double *x = calloc((size_t)count, sizeof *x);
    ck_assert_ptr_nonnull(x);
    return x;
}

/* c (n,m) = a (n,k) b (k,m), where b may be given transposed. */
static inline void muon_multiply(const double *a, const double *b, bool is_transposed, int64_t n,
                                 int64_t k, int64_t m, double *c) {
    for (int64_t i = 0; i < n * m; i++) {
        c[i] = 0;
        for (int64_t s = 0; s < k; s++) {
            c[i] += a[i / m * k + s] * (is_transposed ? b[i % m * k + s] : b[s * m + i % m]);
        }
    }
}

/* x = a x + b (x x^T) x + c (x x^T)^2 x, so many times, from length one. */
static inline void muon_orthogonal(double *x, int64_t rows, int64_t cols, int32_t steps) {
    double length = 0, *p = muon_array(rows * rows), *q = muon_array(rows * rows),
           *y = muon_array(rows * cols);
    for (int64_t i = 0; i < rows * cols; i++) length += x[i] * x[i];
    for (int64_t i = 0; i < rows * cols; i++) x[i] /= sqrt(length) + 1e-7;
    for (int32_t step = 0; step < steps; step++) {
        muon_multiply(x, x, true, rows, cols, rows, p);
        muon_multiply(p, p, false, rows, rows, rows, q);
        for (int64_t i = 0; i < rows * rows; i++) q[i] = -4.7750 * p[i] + 2.0315 * q[i];
        muon_multiply(q, x, false, rows, rows, cols, y);
        for (int64_t i = 0; i < rows * cols; i++) x[i] = 3.4445 * x[i] + y[i];
    }
    free(p);
    free(q);
    free(y);
}

/* Step `step` of w and m with gradient g. */
static inline void muon_exact(const muon_case *c, double *w, double *m, const double *g, int step) {
    int64_t count = c->rows * c->cols, first = 0;
    double *u = muon_array(count), mu = MUON_MU;
    if (step < c->rising) mu -= 0.1 * (1 - (double)step / (double)c->rising);
    for (int64_t i = 0; i < count; i++) {
        m[i] = mu * m[i] + (1 - mu) * g[i];
        u[i] = c->is_nesterov ? mu * m[i] + (1 - mu) * g[i] : m[i];
    }
    for (int32_t k = 0; k < (c->pieces ? c->pieces : 1); k++) {
        int64_t rows = c->pieces ? c->piece_rows[k] : c->rows;
        muon_orthogonal(u + first, rows, c->cols, c->steps);
        double along = 0.2 * sqrt((double)(rows > c->cols ? rows : c->cols));
        for (int64_t i = first; i < first + rows * c->cols; i++) {
            bool decays = !c->is_cautious || u[i] * w[i] > 0;
            w[i] -= MUON_LR * ((decays ? MUON_DECAY * w[i] : 0) + along * u[i]);
        }
        first += rows * c->cols;
    }
    free(u);
}

/* ---- on a backend ---------------------------------------------------------------------------- */

typedef struct muon_device {
    hy_backend *backend;
    hy_stream *stream;
} muon_device;

static inline hy_tensor muon_tensor(const muon_device *d, hy_dtype dtype, int64_t count) {
    hy_tensor t = hy_tensor_1d(NULL, dtype, count);
    must(d->backend->alloc(d->backend, HY_DEVICE, hy_tensor_bytes(&t), &t.data));
    return t;
}

static inline void muon_copy(const muon_device *d, void *to, const void *from, size_t bytes) {
    must(d->backend->copy(d->stream, to, from, bytes));
    must(d->backend->stream_sync(d->stream));
}

/* Puts numbers, as fp32 or rounded to bf16. */
static inline void muon_put(const muon_device *d, const hy_tensor *t, const double *x) {
    int64_t count = hy_tensor_count(t);
    float *wide = malloc((size_t)count * sizeof *wide);
    uint16_t *narrow = malloc((size_t)count * sizeof *narrow);
    for (int64_t i = 0; i < count; i++) {
        wide[i] = (float)x[i];
        narrow[i] = hy_f32_to_bf16(wide[i]);
    }
    muon_copy(d, t->data, t->dtype == HY_F32 ? (void *)wide : (void *)narrow, hy_tensor_bytes(t));
    free(wide);
    free(narrow);
}

typedef struct muon_state {
    hy_optimizer optimizer;
    hy_param param;
    hy_param_update update;
} muon_state;

static inline void muon_begin(const muon_device *d, const muon_case *c, muon_state *s) {
    int64_t count = c->rows * c->cols;
    static const float clip[2] = {1, 1};
    s->optimizer = (hy_optimizer){.kind = hy_optimizer_kind_of(HY_MUON),
                                  .muon_momentum = MUON_MU,
                                  .muon_momentum_warmup = c->rising,
                                  .is_muon_nesterov = c->is_nesterov,
                                  .muon_steps = c->steps,
                                  .matrix_dtype = c->matrix,
                                  .is_cautious = c->is_cautious};
    s->param = (hy_param){.ndim = 2,
                          .shape = {c->rows, c->cols},
                          .count = count,
                          .is_trainable = true,
                          .is_hidden = true,
                          .pieces = c->pieces};
    memcpy(s->param.piece_rows, c->piece_rows, sizeof c->piece_rows);
    const hy_optimizer_kind *kind = hy_optimizer_kind_for(&s->optimizer, &s->param);
    ck_assert_str_eq(kind->name, "muon");
    const hy_param *params[] = {&s->param};
    uint64_t bytes = kind->workspace(&s->optimizer, params, 1, d->backend);
    s->update = (hy_param_update){.optimizer = &s->optimizer,
                                  .param = &s->param,
                                  .weight = muon_tensor(d, c->weight, count),
                                  .grad = muon_tensor(d, HY_F32, count),
                                  .clip = muon_tensor(d, HY_F32, 2),
                                  .workspace = muon_tensor(d, HY_U8, (int64_t)bytes),
                                  .lr = (float)MUON_LR,
                                  .weight_decay = (float)MUON_DECAY};
    if (c->weight != HY_F32) s->update.master = muon_tensor(d, HY_F32, count);
    s->update.arrays[0] = muon_tensor(d, HY_F32, count);
    muon_copy(d, s->update.clip.data, clip, sizeof clip);
}

static inline void muon_end(const muon_device *d, muon_state *s) {
    hy_tensor *all[] = {&s->update.weight, &s->update.master,    &s->update.grad,
                        &s->update.clip,   &s->update.arrays[0], &s->update.workspace};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (!all[i]->data) continue;
        d->backend->release(d->backend, HY_DEVICE, all[i]->data, hy_tensor_bytes(all[i]));
    }
}

static inline void muon_update(const muon_device *d, muon_state *s) {
    must(s->optimizer.kind->work_ahead(&s->update, 1, d->backend, d->stream));
    must(s->optimizer.kind->update(&s->update, d->backend, d->stream));
}

/* Returns how far the weights are from where the formulas take them, as a share of the way. */
static inline double muon_error(const muon_device *d, const muon_case *c) {
    int64_t count = c->rows * c->cols;
    muon_state s;
    muon_begin(d, c, &s);
    double *w = muon_array(count), *start = muon_array(count), *m = muon_array(count),
           *g = muon_array(count), off = 0, way = 0;
    float *found = malloc((size_t)count * sizeof *found);
    hy_tensor *truth = s.update.master.data ? &s.update.master : &s.update.weight;
    for (int64_t i = 0; i < count; i++) {
        start[i] = w[i] = (double)(float)(0.1 * hy_rng_normal(3, HY_RNG_TEST, (uint64_t)i));
    }
    muon_put(d, truth, w);
    muon_put(d, &s.update.arrays[0], m);
    for (int step = 0; step < MUON_STEPS; step++) {
        for (int64_t i = 0; i < count; i++) {
            uint64_t at = (uint64_t)(step * count + i);
            g[i] = (double)(float)(0.01 * hy_rng_normal(4, HY_RNG_TEST, at));
        }
        muon_put(d, &s.update.grad, g);
        s.update.count = step;
        muon_update(d, &s);
        muon_exact(c, w, m, g, step);
    }
    muon_copy(d, found, truth->data, hy_tensor_bytes(truth));
    for (int64_t i = 0; i < count; i++) {
        off += ((double)found[i] - w[i]) * ((double)found[i] - w[i]);
        way += (w[i] - start[i]) * (w[i] - start[i]);
    }
    free(w), free(start), free(m), free(g), free(found);
    muon_end(d, &s);
    return sqrt(off / way);
}

static inline void check_muon(const muon_device *d, const muon_case *c) {
    double error = muon_error(d, c);
    if (getenv("HYBRID_SHOW")) {
        printf("muon %lld x %lld, %d pieces, %s: off by %.2g of the way\n", (long long)c->rows,
               (long long)c->cols, c->pieces, hy_dtype_name(c->matrix), error);
    }
    ck_assert_msg(error <= c->allowed, "%lld x %lld, %d pieces, %s: off by %.3g of the way",
                  (long long)c->rows, (long long)c->cols, c->pieces, hy_dtype_name(c->matrix),
                  error);
}

#endif
