/* test_optim_steps.c: twenty steps of Lion and Adafactor behind the interface of optimizers:
 * against their formulas in double precision and against PyTorch's numbers; steps that are skipped;
 * padding; what state each parameter has. */
#include "harness.h"

#include <float.h>
#include <math.h>

#include "model/param_layout.h"
#include "update_all.h"

/* A matrix, a vector, a matrix of 5 rows of which the last two are padding, a part of a custom
 * model's matrix, and a convolution. */
enum { PARAMS = 5, MOST = 16, STEPS = 20 };

typedef struct steps_rig {
    hy_backend *backend;
    hy_stream *stream;
    hy_ledger ledger;
    hy_arena arena;
    hy_param list[PARAMS];
    hy_params params;
    hy_store weights, grads, array;
    hy_optimizer optimizer;
    hy_optimizer_state state;
} steps_rig;

static hy_param matrix_of(int64_t rows, int64_t columns, int64_t stored) {
    return (hy_param){.lr_scale = 1,
                      .own_decay = -1,
                      .ndim = 2,
                      .shape = {rows, columns},
                      .count = rows * columns,
                      .stored = stored * columns,
                      .is_trainable = true,
                      .has_decay = true};
}

static void list_params(steps_rig *r) {
    r->list[0] = matrix_of(3, 4, 3);
    r->list[1] = (hy_param){.lr_scale = 1,
                            .own_decay = -1,
                            .ndim = 1,
                            .shape = {5},
                            .count = 5,
                            .stored = 5,
                            .is_trainable = true};
    r->list[2] = matrix_of(5, 3, 3);
    r->list[3] = matrix_of(4, 4, 2);
    r->list[3].count = r->list[3].part = 8;
    r->list[4] = matrix_of(3, 4, 3);
    r->list[4].kind = HY_P_CONV;
    for (int i = 1; i < PARAMS; i++) r->list[i].first = r->list[i - 1].first + MOST;
    r->params = (hy_params){.list = r->list, .count = PARAMS, .units = 1, .elements = 52};
}

static float *numbers(hy_store *store, int param) { return hy_store_backing(store, param); }

static void set_weights(steps_rig *r) {
    for (int i = 0; i < PARAMS; i++) {
        float *w = numbers(&r->weights, i);
        for (int k = 0; k < r->list[i].count; k++) {
            w[k] = k < r->list[i].stored ? (float)(5 * k % 13 - 6) / 8 : 0;
        }
    }
}

/* Of step t; padding has none. */
static void set_grads(steps_rig *r, int t) {
    for (int i = 0; i < PARAMS; i++) {
        float *g = numbers(&r->grads, i);
        for (int k = 0; k < r->list[i].count; k++) {
            g[k] = k < r->list[i].stored ? (float)((7 * k + 5 * t) % 11 - 5) / 8 : 0;
        }
    }
}

static void open_rig(steps_rig *r, const hy_optimizer *optimizer, int threads) {
    hy_layout layout, own;
    *r = (steps_rig){.optimizer = *optimizer};
    must(hy_cpu_backend_create(&(hy_cpu_options){.threads = threads}, &r->backend));
    must(r->backend->stream_create(r->backend, "test", &r->stream));
    list_params(r);
    must(hy_params_layout(&r->params, HY_SET_ALL, HY_F32, &layout));
    must(hy_optimizer_layout(optimizer, &r->params, 0, HY_F32, &own));
    must(hy_arena_init(&r->arena, r->backend, &r->ledger, HY_DEVICE, 1 << 20, "x"));
    must(hy_store_init(&r->weights, &r->arena, HY_WEIGHTS, &layout));
    must(hy_store_init(&r->grads, &r->arena, HY_GRADS, &layout));
    must(hy_store_init(&r->array, &r->arena, HY_OPTIM, &own));
    memset(r->array.data, 0, own.bytes);
    r->state = (hy_optimizer_state){.optimizer = &r->optimizer,
                                    .params = &r->params,
                                    .backend = r->backend,
                                    .weights = &r->weights,
                                    .grads = &r->grads,
                                    .arrays = {&r->array}};
    uint64_t workspace = hy_optimizer_workspace(optimizer, &r->params, r->backend, HY_F32);
    r->state.workspace = hy_tensor_1d(NULL, HY_U8, (int64_t)workspace);
    must(hy_arena_push(&r->arena, HY_WORKSPACE, workspace, &r->state.workspace.data));
    must(hy_arena_push(&r->arena, HY_DATA, 8, (void **)&r->state.square_sum));
    must(hy_arena_push(&r->arena, HY_DATA, 8, (void **)&r->state.clip));
    memset(r->state.workspace.data, 0xff, workspace); /* whoever reads what nobody wrote gets NaN */
    set_weights(r);
    hy_layout_fini(&layout);
    hy_layout_fini(&own);
}

static void close_rig(steps_rig *r) {
    r->backend->stream_destroy(r->stream);
    hy_store_fini(&r->weights);
    hy_store_fini(&r->grads);
    hy_store_fini(&r->array);
    hy_arena_fini(&r->arena);
    r->backend->destroy(r->backend);
}

static void step(steps_rig *r, double lr, int64_t count) {
    must(hy_optimizer_clip(&r->state, r->stream, 1));
    update_all(&r->state, r->stream, (hy_optimizer_step){.lr = lr, .count = count, .seed = 1});
    must(r->backend->stream_sync(r->stream));
}

static hy_optimizer lion(void) {
    return (hy_optimizer){.kind = hy_optimizer_kind_of(HY_LION),
                          .beta1 = 0.9,
                          .beta2 = 0.99,
                          .weight_decay = 0.3,
                          .max_norm = 0.5};
}

static hy_optimizer adafactor(bool is_relative, double decay, double max_norm) {
    return (hy_optimizer){.kind = hy_optimizer_kind_of(HY_ADAFACTOR),
                          .is_relative = is_relative,
                          .weight_decay = decay,
                          .max_norm = max_norm};
}

/* ---- the formulas in double precision -------------------------------------------------------- */

/* One parameter: n numbers in rows of `columns`; 0: not factored. */
typedef struct numbers_of_one {
    int n, columns;
    double w[MOST], g[MOST], state[MOST], rows[MOST], cols[MOST];
} numbers_of_one;

typedef void (*formula)(const hy_optimizer *o, numbers_of_one *x, double lr, double decay, int t);

static void lion_formula(const hy_optimizer *o, numbers_of_one *x, double lr, double decay, int t) {
    (void)t;
    for (int i = 0; i < x->n; i++) {
        double c = o->beta1 * x->state[i] + (1 - o->beta1) * x->g[i];
        x->w[i] -= lr * ((c > 0) - (c < 0) + decay * x->w[i]);
        x->state[i] = o->beta2 * x->state[i] + (1 - o->beta2) * x->g[i];
    }
}

static double rms(const double *x, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += x[i] * x[i];
    return sqrt(sum / n);
}

static void variance_of(numbers_of_one *x, double keep, double eps, double variance[MOST]) {
    int N = x->columns, M = N ? x->n / N : 0;
    double mean = 0;
    for (int i = 0; i < M; i++) x->rows[i] = keep * x->rows[i];
    for (int i = 0; i < N; i++) x->cols[i] = keep * x->cols[i];
    for (int i = 0; i < x->n; i++) {
        double square = (1 - keep) * x->g[i] * x->g[i];
        x->state[i] = keep * x->state[i] + square;
        if (N) x->rows[i / N] += square / N, x->cols[i % N] += square / M;
    }
    for (int i = 0; i < M; i++) mean += x->rows[i] / M;
    for (int i = 0; i < x->n; i++) {
        variance[i] = N ? x->rows[i / N] * x->cols[i % N] / fmax(mean, eps) : x->state[i];
    }
}

static void adafactor_formula(const hy_optimizer *o, numbers_of_one *x, double lr, double decay,
                              int t) {
    double eps = (double)FLT_EPSILON, variance[MOST], u[MOST];
    double alpha = o->is_relative ? fmin(lr, 1 / sqrt(t)) * fmax(1e-3, rms(x->w, x->n)) : lr;
    variance_of(x, 1 - pow(t, -0.8), eps, variance);
    for (int i = 0; i < x->n; i++) u[i] = x->g[i] / sqrt(fmax(variance[i], eps * eps));
    double length = fmax(1, rms(u, x->n));
    for (int i = 0; i < x->n; i++) x->w[i] -= lr * decay * x->w[i] + alpha / length * u[i];
}

static double clip_factor(steps_rig *r) {
    double sum = 0;
    for (int i = 0; i < PARAMS; i++) {
        for (int k = 0; k < r->list[i].count; k++) sum += pow((double)numbers(&r->grads, i)[k], 2);
    }
    return r->optimizer.max_norm > 0 ? fmin(1, r->optimizer.max_norm / sqrt(sum)) : 1;
}

static void check_steps(const hy_optimizer *optimizer, formula follow, double lr) {
    steps_rig r;
    static numbers_of_one all[PARAMS];
    memset(all, 0, sizeof all);
    open_rig(&r, optimizer, 2);
    for (int i = 0; i < PARAMS; i++) {
        all[i].n = (int)r.list[i].stored;
        all[i].columns = i % 2 == 0 && i != 4 ? (int)r.list[i].shape[1] : 0;
        for (int k = 0; k < all[i].n; k++) all[i].w[k] = (double)numbers(&r.weights, i)[k];
    }
    for (int t = 1; t <= STEPS; t++) {
        set_grads(&r, t);
        double factor = clip_factor(&r);
        step(&r, lr, t - 1);
        for (int i = 0; i < PARAMS; i++) {
            for (int k = 0; k < all[i].n; k++) {
                all[i].g[k] = factor * (double)numbers(&r.grads, i)[k];
            }
            follow(optimizer, &all[i], lr, i == 1 ? 0 : optimizer->weight_decay, t);
            for (int k = 0; k < r.list[i].count; k++) {
                double expected = k < all[i].n ? all[i].w[k] : 0; /* padding stays zero */
                ck_assert_double_eq_tol((double)numbers(&r.weights, i)[k], expected, 1e-6);
            }
        }
    }
    close_rig(&r);
}

START_TEST(twenty_steps_follow_the_formula_in_double_precision) {
    hy_optimizer l = lion();
    check_steps(&l, lion_formula, 0.01);
    for (int i = 0; i < 8; i++) {
        hy_optimizer a = adafactor(i & 1, i & 2 ? 0.1 : 0, i & 4 ? 0.5 : 0);
        check_steps(&a, adafactor_formula, i & 1 ? 0.4 : 0.01);
    }
}
END_TEST

/* What PyTorch 2.15 on a CPU has after twenty steps:
 *   w = torch.tensor([(5 * i % 13 - 6) / 8 for i in range(n)]).reshape(shape).requires_grad_()
 *   opt = torch.optim.Adafactor([w], lr=L, weight_decay=D)
 *   for t in range(20):
 *       w.grad = torch.tensor([((7 * i + 5 * t) % 11 - 5) / 8 for i in range(n)]).reshape(shape)
 *       opt.step() */
START_TEST(twenty_steps_of_adafactor_are_those_of_pytorch) {
    static const struct {
        double lr, decay;
        float matrix[12], vector[5]; /* (3,4) and (5); the vector has no decay: D is 0 for it */
        float conv[12];              /* (3,1,4) */
    } cases[] = {
        {0.01,
         0,
         {-0.754699051f, -0.123026043f, 0.504563689f, -0.502862751f, 0.122181706f, 0.755243003f,
          -0.245427579f, 0.370766252f, -0.628881812f, 0.00414551748f, 0.630842447f, -0.380251139f},
         {-0.755378187f, -0.126894087f, 0.505486965f, -0.503935635f, 0.119556151f},
         {-0.754946411f, -0.126813978f, 0.505426109f, -0.503622651f, 0.118954346f, 0.750748575f,
          -0.242408529f, 0.370587379f, -0.627995968f, 0.00286847283f, 0.635690212f, -0.379946321f}},
        {0.5,
         0.1,
         {-0.278552771f, -0.00776382396f, 0.229946911f, -0.143316299f, -0.0736172721f, 0.347950488f,
          0.0520012341f, -0.0452323556f, -0.266308278f, 0.136498719f, 0.214411512f, -0.151641071f},
         {-0.75220418f, -0.199021801f, 0.558586061f, -0.401267946f, -0.328599304f},
         {-0.264677703f, -0.0653443038f, 0.214660108f, -0.156334266f, -0.103040017f, 0.258828998f,
          0.079054974f, -0.0395864807f, -0.237475336f, 0.0969252512f, 0.284603238f, -0.130245507f}},
    };
    for (int c = 0; c < 2; c++) {
        hy_optimizer optimizer = adafactor(true, cases[c].decay, 0);
        steps_rig r;
        open_rig(&r, &optimizer, 1);
        for (int t = 0; t < STEPS; t++) {
            set_grads(&r, t);
            step(&r, cases[c].lr, t);
        }
        for (int i = 0; i < 12; i++) {
            ck_assert_float_eq_tol(numbers(&r.weights, 0)[i], cases[c].matrix[i], 1e-6f);
            ck_assert_float_eq_tol(numbers(&r.weights, 4)[i], cases[c].conv[i], 1e-6f);
        }
        for (int i = 0; i < 5; i++) {
            ck_assert_float_eq_tol(numbers(&r.weights, 1)[i], cases[c].vector[i], 1e-6f);
        }
        close_rig(&r);
    }
}
END_TEST

START_TEST(a_matrix_with_padding_is_the_matrix_without_it) {
    hy_optimizer optimizer = adafactor(true, 0.1, 0);
    steps_rig padded, bare;
    open_rig(&padded, &optimizer, 1);
    open_rig(&bare, &optimizer, 1);
    bare.list[2].shape[0] = 3; /* the same memory, without its last rows */
    bare.list[2].count = 9;
    for (int t = 0; t < STEPS; t++) {
        set_grads(&padded, t);
        set_grads(&bare, t);
        step(&padded, 0.1, t);
        step(&bare, 0.1, t);
    }
    ck_assert_mem_eq(numbers(&padded.weights, 2), numbers(&bare.weights, 2), 9 * sizeof(float));
    ck_assert_mem_eq(numbers(&padded.array, 2), numbers(&bare.array, 2), 6 * sizeof(float));
    close_rig(&padded);
    close_rig(&bare);
}
END_TEST

/* ---- steps that are skipped, and threads ----------------------------------------------------- */

START_TEST(a_gradient_that_is_not_finite_changes_nothing) {
    hy_optimizer all[] = {lion(), adafactor(true, 0.1, 0.5), adafactor(false, 0.1, 0.5)};
    static const float bad[] = {NAN, INFINITY};
    for (int n = 0; n < 3 * 2; n++) {
        steps_rig r;
        char weights[1 << 12], state[1 << 12];
        open_rig(&r, &all[n / 2], 2);
        size_t bytes = r.weights.layout.bytes, own = r.array.layout.bytes;
        ck_assert(bytes <= sizeof weights && own <= sizeof state);
        set_grads(&r, 0);
        step(&r, 0.01, 0);
        memcpy(weights, r.weights.data, bytes);
        memcpy(state, r.array.data, own);
        numbers(&r.grads, 2)[1] = bad[n % 2];
        step(&r, 0.01, 1);
        ck_assert_float_eq(r.state.clip[1], 0);
        ck_assert_mem_eq(weights, r.weights.data, bytes);
        ck_assert_mem_eq(state, r.array.data, own);
        close_rig(&r);
    }
}
END_TEST

/* ---- what is kept ---------------------------------------------------------------------------- */

START_TEST(a_matrix_keeps_a_number_for_each_row_and_column) {
    hy_optimizer a = adafactor(true, 0, 0), l = lion();
    static const int64_t factored[PARAMS] = {3 + 4, 5, 3 + 3, 8, 12}; /* padding has none */
    steps_rig r;
    list_params(&r);
    for (int i = 0; i < PARAMS; i++) {
        hy_param_extent extent = a.kind->extent(&a, &r.list[i], 0);
        ck_assert_int_eq(extent.count, factored[i]);
        ck_assert(extent.is_exact);
        ck_assert_ptr_null(l.kind->extent); /* one for each element */
    }
    hy_param box = {.ndim = 3, .shape = {2, 3, 4}, .count = 24, .stored = 24};
    ck_assert_int_eq(a.kind->extent(&a, &box, 0).count, 24);
    ck_assert_int_eq(hy_optimizer_arrays(&a, &r.params), 1);
    ck_assert_int_eq(hy_optimizer_arrays(&l, &r.params), 1);
}
END_TEST

static Suite *steps_suite(void) {
    Suite *suite = suite_create("steps of optimizers");
    TCase *tests = tcase_create("steps of optimizers");
    tcase_add_test(tests, twenty_steps_follow_the_formula_in_double_precision);
    tcase_add_test(tests, twenty_steps_of_adafactor_are_those_of_pytorch);
    tcase_add_test(tests, a_matrix_with_padding_is_the_matrix_without_it);
    tcase_add_test(tests, a_gradient_that_is_not_finite_changes_nothing);
    tcase_add_test(tests, a_matrix_keeps_a_number_for_each_row_and_column);
    suite_add_tcase(suite, tests);
    return suite;
}

HY_TEST_MAIN(steps_suite)
