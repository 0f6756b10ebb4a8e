/* test_optim.c: schedules and the optimizer step. */
#include "harness.h"

#include <math.h>

#include "model/params.h"
#include "optim/adamw.h"
#include "optim/schedule.h"

static hy_schedule schedule_of(hy_schedule_kind kind) {
    return (hy_schedule){
        .kind = kind, .lr = 2, .min_ratio = 0.1, .cooldown = 0.25, .warmup = 10, .total = 110};
}

START_TEST(warm_up_rises_in_equal_steps_to_the_rate) {
    for (int kind = HY_SCHEDULE_CONSTANT; kind <= HY_SCHEDULE_WSD; kind++) {
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
    ck_assert_double_eq_tol(hy_schedule_rate(&wsd, 84), 2, 1e-12);
    ck_assert_double_lt(hy_schedule_rate(&wsd, 90), 2);
    for (int kind = HY_SCHEDULE_LINEAR; kind <= HY_SCHEDULE_WSD; kind++) {
        hy_schedule s = schedule_of((hy_schedule_kind)kind);
        ck_assert_double_eq_tol(hy_schedule_rate(&s, 110), 0.2, 1e-12);
        ck_assert_double_eq_tol(hy_schedule_rate(&s, 5000), 0.2, 1e-12);
    }
}
END_TEST

START_TEST(a_run_that_is_all_warm_up_has_no_division_by_zero) {
    hy_schedule s = schedule_of(HY_SCHEDULE_COSINE);
    s.total = 10;
    ck_assert(isfinite(hy_schedule_rate(&s, 10)));
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
    hy_store weights, grads, m, v;
    hy_adamw_state state;
} optim_rig;

static void rig_open(optim_rig *r) {
    hy_layout layout;
    *r = (optim_rig){0};
    must(hy_cpu_backend_create(&(hy_cpu_options){.threads = 1}, &r->backend));
    must(r->backend->stream_create(r->backend, "test", &r->stream));
    r->list[0] = (hy_param){.unit = 0,
                            .ndim = 2,
                            .shape = {2, 2},
                            .count = 4,
                            .is_trainable = true,
                            .has_decay = true,
                            .lr_scale = 1};
    r->list[1] = (hy_param){.unit = 0,
                            .ndim = 1,
                            .shape = {3},
                            .count = 3,
                            .first = 4,
                            .is_trainable = true,
                            .lr_scale = 1};
    r->params = (hy_params){.list = r->list, .count = 2, .units = 1, .elements = 7};
    must(hy_params_layout(&r->params, HY_F32, &layout));
    must(hy_arena_init(&r->arena, r->backend, &r->ledger, HY_DEVICE, 4 * layout.bytes + 1024, "x"));
    must(hy_store_init(&r->weights, &r->arena, HY_WEIGHTS, &layout));
    must(hy_store_init(&r->grads, &r->arena, HY_GRADS, &layout));
    must(hy_store_init(&r->m, &r->arena, HY_OPTIM, &layout));
    must(hy_store_init(&r->v, &r->arena, HY_OPTIM, &layout));
    r->state = (hy_adamw_state){.weights = &r->weights, .grads = &r->grads, .m = &r->m, .v = &r->v};
    uint64_t workspace = hy_adamw_workspace(&r->params, r->backend, HY_F32);
    r->state.workspace = hy_tensor_1d(NULL, HY_U8, (int64_t)workspace);
    must(hy_arena_push(&r->arena, HY_WORKSPACE, workspace, &r->state.workspace.data));
    must(hy_arena_push(&r->arena, HY_DATA, 8, (void **)&r->state.square_sum));
    must(hy_arena_push(&r->arena, HY_DATA, 8, (void **)&r->state.clip));
    for (int i = 0; i < 2; i++) {
        float *w = hy_store_backing(&r->weights, i), *g = hy_store_backing(&r->grads, i);
        float *m = hy_store_backing(&r->m, i), *v = hy_store_backing(&r->v, i);
        for (int k = 0; k < r->list[i].count; k++) {
            w[k] = 0.5f * (float)(k + 1) - (float)i;
            g[k] = 0.3f * (float)(k - 1) + 0.1f * (float)i;
            m[k] = v[k] = 0;
        }
    }
    hy_layout_fini(&layout);
}

static void rig_close(optim_rig *r) {
    r->backend->stream_destroy(r->stream);
    hy_store *stores[] = {&r->weights, &r->grads, &r->m, &r->v};
    for (int i = 0; i < 4; i++) hy_store_fini(stores[i]);
    hy_arena_fini(&r->arena);
    r->backend->destroy(r->backend);
}

static const hy_adamw settings = {
    .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .max_norm = 0.5};

static void step(optim_rig *r, double lr, int64_t count) {
    must(hy_adamw_clip(&settings, &r->params, r->backend, r->stream, &r->state, 1));
    must(hy_adamw_update(&settings, &r->params, r->backend, r->stream, &r->state,
                         &(hy_adamw_step){.lr = lr, .count = count, .seed = 1},
                         &(hy_adamw_cursor){0}));
    must(r->backend->stream_sync(r->stream));
}

START_TEST(three_steps_follow_the_formula_in_double_precision) {
    optim_rig r;
    double w[2][4], m[2][4] = {{0}}, v[2][4] = {{0}};
    rig_open(&r);
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < r.list[i].count; k++)
            w[i][k] = ((float *)hy_store_backing(&r.weights, i))[k];
    }
    for (int t = 1; t <= 3; t++) {
        double square = 0;
        for (int i = 0; i < 2; i++) {
            for (int k = 0; k < r.list[i].count; k++) {
                double g = ((float *)hy_store_backing(&r.grads, i))[k];
                square += g * g;
            }
        }
        double norm = sqrt(square), scale = fmin(1, 0.5 / norm);
        for (int i = 0; i < 2; i++) {
            for (int k = 0; k < r.list[i].count; k++) {
                double g = scale * ((float *)hy_store_backing(&r.grads, i))[k];
                m[i][k] = 0.9 * m[i][k] + 0.1 * g;
                v[i][k] = 0.95 * v[i][k] + 0.05 * g * g;
                double update =
                    m[i][k] / (1 - pow(0.9, t)) / (sqrt(v[i][k] / (1 - pow(0.95, t))) + 1e-8);
                w[i][k] -= 0.01 * (update + (i == 0 ? 0.1 * w[i][k] : 0));
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
END_TEST

START_TEST(a_gradient_that_is_not_finite_changes_nothing) {
    optim_rig r;
    float before[3][3], *stores[3];
    rig_open(&r);
    step(&r, 0.01, 0);
    stores[0] = hy_store_backing(&r.weights, 1);
    stores[1] = hy_store_backing(&r.m, 1);
    stores[2] = hy_store_backing(&r.v, 1);
    for (int i = 0; i < 3; i++) memcpy(before[i], stores[i], sizeof before[i]);
    ((float *)hy_store_backing(&r.grads, 0))[2] = NAN;
    step(&r, 0.01, 1);
    ck_assert_float_eq(r.state.clip[1], 0);
    for (int i = 0; i < 3; i++) ck_assert_mem_eq(before[i], stores[i], sizeof before[i]);
    ((float *)hy_store_backing(&r.grads, 0))[2] = INFINITY;
    step(&r, 0.01, 1);
    for (int i = 0; i < 3; i++) ck_assert_mem_eq(before[i], stores[i], sizeof before[i]);
    rig_close(&r);
}
END_TEST

static Suite *optim_suite(void) {
    Suite *suite = suite_create("optim");
    TCase *tests = tcase_create("optim");
    tcase_add_test(tests, warm_up_rises_in_equal_steps_to_the_rate);
    tcase_add_test(tests, each_schedule_falls_as_its_name_says);
    tcase_add_test(tests, a_run_that_is_all_warm_up_has_no_division_by_zero);
    tcase_add_test(tests, three_steps_follow_the_formula_in_double_precision);
    tcase_add_test(tests, a_gradient_that_is_not_finite_changes_nothing);
    suite_add_tcase(suite, tests);
    return suite;
}

HY_TEST_MAIN(optim_suite)
