/* test_optim.c: schedules, the optimizer step, and the interface of optimizers. */
#include "harness.h"

#include <math.h>

#include "model/param_layout.h"
#include "optim/schedule.h"
#include "update_all.h"

static hy_schedule schedule_of(hy_schedule_kind kind) {
    return (hy_schedule){
        .kind = kind, .lr = 2, .min_ratio = 0.1, .cooldown = 0.25, .warmup = 10, .total = 110};
}

START_TEST(warm_up_rises_in_equal_steps_to_the_rate) {
    for (int kind = HY_SCHEDULE_CONSTANT; kind <= HY_SCHEDULE_INVERSE_SQRT; kind++) {
        hy_schedule s = schedule_of((hy_schedule_kind)kind);
        ck_assert_double_eq_tol(hy_schedule_rate(&s, 0), 0.2, 1e-12);
        ck_assert_double_eq_tol(hy_schedule_rate(&s, 4), 1.0, 1e-12);
        ck_assert_double_eq_tol(hy_schedule_rate(&s, 9), 2.0, 1e-12);
        ck_assert_double_eq_tol(hy_schedule_rate(&s, 10), 2.0, 1e-12);
    }
}
END_TEST

START_TEST(each_schedule_falls_as_its_name_says) {
    hy_schedule constant = schedule_of(HY_SCHEDULE_CONSTANT);
    hy_schedule linear = schedule_of(HY_SCHEDULE_LINEAR);
    hy_schedule cosine = schedule_of(HY_SCHEDULE_COSINE);
    hy_schedule wsd = schedule_of(HY_SCHEDULE_WSD);
    ck_assert_double_eq_tol(hy_schedule_rate(&constant, 109), 2, 1e-12);
    ck_assert_double_eq_tol(hy_schedule_rate(&linear, 60), 2 * 0.55, 1e-12);
    ck_assert_double_eq_tol(hy_schedule_rate(&cosine, 60), 2 * 0.55, 1e-12);
    ck_assert_double_eq_tol(hy_schedule_rate(&cosine, 35), 2 * (0.1 + 0.9 * 0.853553390593), 1e-9);
    ck_assert_double_eq_tol(hy_schedule_rate(&wsd, 82), 2, 1e-12); /* a quarter of 110 is left */
    ck_assert_double_lt(hy_schedule_rate(&wsd, 83), 2);
    for (int kind = HY_SCHEDULE_LINEAR; kind <= HY_SCHEDULE_WSD; kind++) {
        hy_schedule s = schedule_of((hy_schedule_kind)kind);
        ck_assert_double_eq_tol(hy_schedule_rate(&s, 110), 0.2, 1e-12);
        ck_assert_double_eq_tol(hy_schedule_rate(&s, 5000), 0.2, 1e-12);
    }
}
END_TEST

START_TEST(wsd_falls_along_a_root_or_a_line) {
    hy_schedule root = schedule_of(HY_SCHEDULE_WSD), line = root;
    line.cooldown_shape = HY_COOLDOWN_LINEAR;
    root.total = line.total = 100; /* the last 25 steps fall */
    ck_assert_double_eq_tol(hy_schedule_rate(&line, 75), 2, 1e-12);
    ck_assert_double_eq_tol(hy_schedule_rate(&line, 80), 2 * (0.1 + 0.9 * 0.8), 1e-12);
    ck_assert_double_eq_tol(hy_schedule_rate(&root, 75), 2, 1e-12);
    ck_assert_double_eq_tol(hy_schedule_rate(&root, 79), 2 * (0.1 + 0.9 * 0.6), 1e-12);
    ck_assert_double_eq_tol(hy_schedule_rate(&line, 100), 0.2, 1e-12);
    line.min_ratio = 0;
    ck_assert_double_eq_tol(hy_schedule_rate(&line, 99), 2 * 0.04, 1e-12);
    line.cooldown = 0;
    ck_assert_double_eq_tol(hy_schedule_rate(&line, 100), 2, 1e-12);
}
END_TEST

START_TEST(inverse_sqrt_goes_on_from_the_warm_up_and_has_a_floor) {
    hy_schedule s = schedule_of(HY_SCHEDULE_INVERSE_SQRT);
    s.total = 100000;
    ck_assert_double_eq_tol(hy_schedule_rate(&s, 11), 2 * sqrt(10.0 / 11), 1e-12);
    ck_assert_double_eq_tol(hy_schedule_rate(&s, 40), 1, 1e-12);
    ck_assert_double_eq_tol(hy_schedule_rate(&s, 1000), 0.2, 1e-12);
    ck_assert_double_eq_tol(hy_schedule_rate(&s, 99999), 0.2, 1e-12);
    s.min_ratio = 0;
    ck_assert_double_eq_tol(hy_schedule_rate(&s, 4000), 0.1, 1e-12);
    double last = hy_schedule_rate(&s, 100000);
    ck_assert_double_eq(hy_schedule_rate(&s, 5000000), last);
    /* Without warm-up a tenth of the run is flat. */
    s.warmup = 0;
    s.total = 1000;
    ck_assert_double_eq(hy_schedule_rate(&s, 0), 2);
    ck_assert_double_eq(hy_schedule_rate(&s, 100), 2);
    ck_assert_double_eq_tol(hy_schedule_rate(&s, 400), 1, 1e-12);
    s.total = 1;
    ck_assert(isfinite(hy_schedule_rate(&s, 0)) && isfinite(hy_schedule_rate(&s, 1)));
}
END_TEST

START_TEST(a_run_that_is_all_warm_up_has_no_division_by_zero) {
    for (int kind = HY_SCHEDULE_CONSTANT; kind <= HY_SCHEDULE_INVERSE_SQRT; kind++) {
        hy_schedule s = schedule_of((hy_schedule_kind)kind);
        s.total = 10;
        ck_assert(isfinite(hy_schedule_rate(&s, 10)));
    }
}
END_TEST

/* Two parameters, a matrix and a vector, as a tiny model. */
typedef struct optim_rig {
    hy_backend *backend;
    hy_stream *stream;
    hy_ledger ledger;
    hy_arena arena;
    hy_param list[2];
    hy_params params;
    hy_store weights, grads, arrays[HY_OPTIM_ARRAYS_MAX];
    int array_count;
    hy_optimizer optimizer;
    hy_optimizer_state state;
} optim_rig;

static void rig_open(optim_rig *r, const hy_optimizer *optimizer) {
    hy_layout layout;
    *r = (optim_rig){.optimizer = *optimizer};
    must(hy_cpu_backend_create(&(hy_cpu_options){.threads = 1}, &r->backend));
    must(r->backend->stream_create(r->backend, "test", &r->stream));
    r->list[0] = (hy_param){.lr_scale = 1,
                            .own_decay = -1,
                            .unit = 0,
                            .ndim = 2,
                            .shape = {2, 2},
                            .count = 4,
                            .is_trainable = true,
                            .has_decay = true};
    r->list[1] = (hy_param){.lr_scale = 1,
                            .own_decay = -1,
                            .unit = 0,
                            .ndim = 1,
                            .shape = {3},
                            .count = 3,
                            .first = 4,
                            .is_trainable = true};
    r->params = (hy_params){.list = r->list, .count = 2, .units = 1, .elements = 7};
    must(hy_params_layout(&r->params, HY_SET_ALL, HY_F32, &layout));
    must(hy_arena_init(&r->arena, r->backend, &r->ledger, HY_DEVICE, 4 * layout.bytes + (1 << 20),
                       "x"));
    must(hy_store_init(&r->weights, &r->arena, HY_WEIGHTS, &layout));
    must(hy_store_init(&r->grads, &r->arena, HY_GRADS, &layout));
    r->state = (hy_optimizer_state){.optimizer = &r->optimizer,
                                    .params = &r->params,
                                    .backend = r->backend,
                                    .weights = &r->weights,
                                    .grads = &r->grads};
    r->array_count = hy_optimizer_arrays(optimizer, &r->params);
    for (int k = 0; k < r->array_count; k++) {
        hy_layout own;
        must(hy_optimizer_layout(optimizer, &r->params, k, HY_F32, &own));
        must(hy_store_init(&r->arrays[k], &r->arena, HY_OPTIM, &own));
        memset(r->arrays[k].data, 0, own.bytes);
        r->state.arrays[k] = &r->arrays[k];
        hy_layout_fini(&own);
    }
    uint64_t workspace = hy_optimizer_workspace(optimizer, &r->params, r->backend, HY_F32);
    r->state.workspace = hy_tensor_1d(NULL, HY_U8, (int64_t)workspace);
    must(hy_arena_push(&r->arena, HY_WORKSPACE, workspace, &r->state.workspace.data));
    must(hy_arena_push(&r->arena, HY_DATA, 8, (void **)&r->state.square_sum));
    must(hy_arena_push(&r->arena, HY_DATA, 8, (void **)&r->state.clip));
    for (int i = 0; i < 2; i++) {
        float *w = hy_store_backing(&r->weights, i), *g = hy_store_backing(&r->grads, i);
        for (int k = 0; k < r->list[i].count; k++) {
            w[k] = 0.5f * (float)(k + 1) - (float)i;
            g[k] = 0.3f * (float)(k - 1) + 0.1f * (float)i;
        }
    }
    hy_layout_fini(&layout);
}

static void rig_close(optim_rig *r) {
    r->backend->stream_destroy(r->stream);
    hy_store_fini(&r->weights);
    hy_store_fini(&r->grads);
    for (int i = 0; i < r->array_count; i++) hy_store_fini(&r->arrays[i]);
    hy_arena_fini(&r->arena);
    r->backend->destroy(r->backend);
}

static hy_optimizer adamw(void) {
    return (hy_optimizer){.kind = hy_optimizer_kind_of(HY_ADAMW),
                          .beta1 = 0.9,
                          .beta2 = 0.95,
                          .eps = 1e-8,
                          .weight_decay = 0.1,
                          .max_norm = 0.5};
}

static hy_optimizer sgd(double momentum) {
    return (hy_optimizer){.kind = hy_optimizer_kind_of(HY_SGD),
                          .momentum = momentum,
                          .is_nesterov = momentum > 0,
                          .weight_decay = 0.1,
                          .max_norm = 0.5};
}

static void step(optim_rig *r, double lr, int64_t count) {
    must(hy_optimizer_clip(&r->state, r->stream, 1));
    update_all(&r->state, r->stream, (hy_optimizer_step){.lr = lr, .count = count, .seed = 1});
    must(r->backend->stream_sync(r->stream));
}

/* What the clipped gradient is, and the norm it had. */
static double clip_of(optim_rig *r, double *norm) {
    double square = 0;
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < r->list[i].count; k++) {
            double g = ((float *)hy_store_backing(&r->grads, i))[k];
            square += g * g;
        }
    }
    *norm = sqrt(square);
    return fmin(1, 0.5 / *norm);
}

/* One update of one number in double precision; t counts from 1. */
typedef void (*formula)(double *w, double g, double state[2], double decay, int t);

static void adamw_formula(double *w, double g, double state[2], double decay, int t) {
    state[0] = 0.9 * state[0] + 0.1 * g;
    state[1] = 0.95 * state[1] + 0.05 * g * g;
    double update = state[0] / (1 - pow(0.9, t)) / (sqrt(state[1] / (1 - pow(0.95, t))) + 1e-8);
    *w -= 0.01 * (update + decay * *w);
}

static void sgd_formula(double *w, double g, double state[2], double decay, int t) {
    g += decay * *w;
    state[0] = t == 1 ? g : 0.8 * state[0] + g;
    *w -= 0.01 * (g + 0.8 * state[0]);
}

static void plain_formula(double *w, double g, double state[2], double decay, int t) {
    (void)state, (void)t;
    *w -= 0.01 * (g + decay * *w);
}

static void check_three_steps(const hy_optimizer *optimizer, formula follow) {
    optim_rig r;
    double w[2][4], state[2][4][2] = {{{0}}};
    rig_open(&r, optimizer);
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < r.list[i].count; k++)
            w[i][k] = ((float *)hy_store_backing(&r.weights, i))[k];
    }
    for (int t = 1; t <= 3; t++) {
        double norm, scale = clip_of(&r, &norm);
        for (int i = 0; i < 2; i++) {
            for (int k = 0; k < r.list[i].count; k++) {
                double g = scale * ((float *)hy_store_backing(&r.grads, i))[k];
                follow(&w[i][k], g, state[i][k], i == 0 ? 0.1 : 0, t);
            }
        }
        step(&r, 0.01, t - 1);
        ck_assert_double_eq_tol(r.state.clip[0], norm, 1e-6);
        for (int i = 0; i < 2; i++) {
            for (int k = 0; k < r.list[i].count; k++) {
                ck_assert_double_eq_tol(((float *)hy_store_backing(&r.weights, i))[k], w[i][k],
                                        2e-6);
            }
        }
    }
    rig_close(&r);
}

START_TEST(three_steps_follow_the_formula_in_double_precision) {
    hy_optimizer all[] = {adamw(), sgd(0.8), sgd(0)};
    static const formula formulas[] = {adamw_formula, sgd_formula, plain_formula};
    for (int i = 0; i < 3; i++) check_three_steps(&all[i], formulas[i]);
}
END_TEST

START_TEST(a_gradient_that_is_not_finite_changes_nothing) {
    hy_optimizer all[] = {adamw(), sgd(0.8)};
    for (int n = 0; n < 2; n++) {
        optim_rig r;
        float before[3][3], *numbers[3] = {NULL};
        rig_open(&r, &all[n]);
        step(&r, 0.01, 0);
        int count = 1 + r.array_count;
        for (int i = 0; i < count; i++) {
            numbers[i] = hy_store_backing(i == 0 ? &r.weights : &r.arrays[i - 1], 1);
            memcpy(before[i], numbers[i], sizeof before[i]);
        }
        static const float bad[] = {NAN, INFINITY};
        for (int k = 0; k < 2; k++) {
            ((float *)hy_store_backing(&r.grads, 0))[2] = bad[k];
            step(&r, 0.01, 1);
            ck_assert_float_eq(r.state.clip[1], 0);
            for (int i = 0; i < count; i++) {
                ck_assert_mem_eq(before[i], numbers[i], sizeof before[i]);
            }
        }
        rig_close(&r);
    }
}
END_TEST

START_TEST(a_parameter_that_is_not_trained_stays) {
    hy_optimizer optimizer = sgd(0.8);
    optim_rig r;
    float before[4];
    rig_open(&r, &optimizer);
    memcpy(before, hy_store_backing(&r.weights, 0), sizeof before);
    r.list[0].is_trainable = false;
    ((float *)hy_store_backing(&r.grads, 0))[2] = NAN; /* nobody looks at it */
    float other = ((float *)hy_store_backing(&r.weights, 1))[2];
    step(&r, 0.01, 0);
    ck_assert_mem_eq(before, hy_store_backing(&r.weights, 0), sizeof before);
    ck_assert_float_ne(((float *)hy_store_backing(&r.weights, 1))[2], other);
    rig_close(&r);
}
END_TEST

START_TEST(every_row_is_complete) {
    hy_param matrix = {.ndim = 2, .shape = {4, 8}, .count = 32, .is_trainable = true};
    hy_params one = {.list = &matrix, .count = 1, .units = 1, .elements = 32};
    for (int id = 0; id < HY_OPTIMIZER_COUNT; id++) {
        const hy_optimizer_kind *kind = hy_optimizer_kind_of((hy_optimizer_id)id);
        hy_optimizer all = {.kind = kind, .beta1 = 0.9, .beta2 = 0.9, .momentum = 0.9};
        ck_assert(kind && kind->name && kind->update);
        for (int k = 0; k < hy_optimizer_arrays(&all, &one); k++) {
            ck_assert_ptr_nonnull(hy_optimizer_array_name(&all, k));
        }
    }
    hy_optimizer plain = sgd(0), heavy = sgd(0.9);
    ck_assert_int_eq(hy_optimizer_arrays(&plain, &one), 0);
    ck_assert_int_eq(hy_optimizer_arrays(&heavy, &one), 1);
}
END_TEST

/* An optimizer that works on whole matrices, in several ops and with workspace of its own: w (C,C)
 * becomes w - lr g g^T, which is made in the workspace; vectors take a plain step. */
static hy_op_call square_call(const hy_param *param, void *grad, char *workspace) {
    int64_t side = param->shape[0];
    hy_op_call call = {.kind = HY_OP_MATMUL, .attr.matmul = {.trans_b = true, .alpha = 1}};
    call.t[HY_MATMUL_A] = call.t[HY_MATMUL_B] = hy_tensor_2d(grad, HY_F32, side, side);
    call.t[HY_MATMUL_D] = hy_tensor_2d(workspace, HY_F32, side, side);
    return call;
}

static uint64_t square_workspace(const hy_optimizer *optimizer, const hy_param *const *params,
                                 int count, hy_backend *backend) {
    (void)optimizer;
    ck_assert_int_eq(count, 1); /* it does not work ahead */
    if (params[0]->ndim != 2) return 0;
    hy_op_call call = square_call(params[0], NULL, NULL);
    return hy_align(hy_tensor_bytes(&call.t[HY_MATMUL_D])) + backend->workspace(backend, &call);
}

static hy_status square_update(const hy_param_update *u, hy_backend *backend, hy_stream *stream) {
    hy_tensor step = u->grad;
    if (u->param->ndim == 2) {
        hy_op_call call = square_call(u->param, u->grad.data, u->workspace.data);
        uint64_t used = hy_align(hy_tensor_bytes(&call.t[HY_MATMUL_D]));
        step.data = call.t[HY_MATMUL_D].data;
        call.workspace = hy_tensor_1d((char *)u->workspace.data + used, HY_U8,
                                      u->workspace.shape[0] - (int64_t)used);
        HY_TRY(backend->enqueue(stream, &call));
    }
    hy_op_call combine = {.kind = HY_OP_COMBINE, .attr.combine = {.coefficient = {1, -u->lr}}};
    combine.t[HY_COMBINE_OUT] = combine.t[HY_COMBINE_X0] = u->weight;
    combine.t[HY_COMBINE_X1] = step;
    return backend->enqueue(stream, &combine);
}

START_TEST(an_optimizer_may_work_on_whole_matrices) {
    static const hy_optimizer_kind square = {
        .name = "square", .workspace = square_workspace, .update = square_update};
    hy_optimizer optimizer = {.kind = &square};
    optim_rig r;
    float w[4], v[3], g[4], h[3];
    rig_open(&r, &optimizer);
    ck_assert_int_ge(r.state.workspace.shape[0], 4 * sizeof(float));
    memcpy(w, hy_store_backing(&r.weights, 0), sizeof w);
    memcpy(v, hy_store_backing(&r.weights, 1), sizeof v);
    memcpy(g, hy_store_backing(&r.grads, 0), sizeof g);
    memcpy(h, hy_store_backing(&r.grads, 1), sizeof h);
    step(&r, 0.01, 0);
    const float *found = hy_store_backing(&r.weights, 0), *vector = hy_store_backing(&r.weights, 1);
    for (int i = 0; i < 4; i++) {
        double product = 0;
        for (int k = 0; k < 2; k++) product += (double)g[i / 2 * 2 + k] * (double)g[i % 2 * 2 + k];
        ck_assert_double_eq_tol(found[i], (double)w[i] - 0.01 * product, 1e-6);
    }
    for (int i = 0; i < 3; i++) {
        ck_assert_double_eq_tol(vector[i], (double)v[i] - 0.01 * (double)h[i], 1e-6);
    }
    rig_close(&r);
}
END_TEST

static Suite *optim_suite(void) {
    Suite *suite = suite_create("optim");
    TCase *tests = tcase_create("optim");
    tcase_add_test(tests, warm_up_rises_in_equal_steps_to_the_rate);
    tcase_add_test(tests, each_schedule_falls_as_its_name_says);
    tcase_add_test(tests, wsd_falls_along_a_root_or_a_line);
    tcase_add_test(tests, inverse_sqrt_goes_on_from_the_warm_up_and_has_a_floor);
    tcase_add_test(tests, a_run_that_is_all_warm_up_has_no_division_by_zero);
    tcase_add_test(tests, three_steps_follow_the_formula_in_double_precision);
    tcase_add_test(tests, a_gradient_that_is_not_finite_changes_nothing);
    tcase_add_test(tests, a_parameter_that_is_not_trained_stays);
    tcase_add_test(tests, every_row_is_complete);
    tcase_add_test(tests, an_optimizer_may_work_on_whole_matrices);
    suite_add_tcase(suite, tests);
    return suite;
}

HY_TEST_MAIN(optim_suite)
