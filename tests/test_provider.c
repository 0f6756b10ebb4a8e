/* test_provider.c: a provider of gradients that neither trainer nor engine knows: a quadratic
 * function with weights in its own memory. It trains, predicts, saves and resumes through the
 * interface alone. */
#include "harness.h"

#include <math.h>

#include "engine/update.h"
#include "formats/checkpoint.h"
#include "trainer/provider.h"

#define SIZE 4
#define STEPS 40
#define LR 0.05
#define BETA1 0.9
#define BETA2 0.95
#define EPS 1e-8
#define FILE_NAME "quadratic.bin"

typedef struct quadratic {
    hy_provider provider; /* first: operations are given this */
    hy_custom_side side;
    hy_param_spec spec;
    float weights[SIZE], grads[SIZE];
    void *weights_at[1], *grads_at[1];
    int64_t computed; /* steps; checkpoints keep it */
    int64_t probed;   /* sequences in `losses` */
    int64_t trained;  /* highest number in `gradients` */
    int64_t fails_at; /* step that returns an error; 0: none does */
    bool is_released;
} quadratic;

static const int64_t shape[] = {SIZE};
static const double curvature[SIZE] = {1, 0.5, 2, 0.25}, center[SIZE] = {1, -2, 0.5, 3};

/* Sum of a (w - c)^2 / 2, where c moves a little with the number of the sequence. */
static double formula(const double *w, int64_t number, double *grads) {
    double sum = 0;
    for (int i = 0; i < SIZE; i++) {
        double off = w[i] - center[i] - 0.1 * sin((double)number + i);
        sum += curvature[i] * off * off / 2;
        if (grads) grads[i] = curvature[i] * off;
    }
    return sum;
}

static double loss_now(const quadratic *q, int64_t number, double *grads) {
    double w[SIZE];
    for (int i = 0; i < SIZE; i++) w[i] = (double)q->weights[i];
    return formula(w, number, grads);
}

/* ---- the provider ---------------------------------------------------------------------------- */

static hy_status gradients(hy_provider *p, hy_trainer *t, const hy_step_request *request,
                           hy_step_report *report) {
    quadratic *q = (quadratic *)p;
    hy_engine *e = hy_trainer_engine(t);
    double grads[SIZE];
    int64_t number = hy_trainer_next_sequence(t);
    ck_assert_double_ge(request->lr, 0);
    ck_assert_int_ge(request->attempt, 1);
    HY_TRY(hy_custom_begin_step(e, request->dtype));
    HY_TRY(hy_custom_lend(e));
    if (q->computed + 1 == q->fails_at) return hy_fail(HY_STOPPED, "the quadratic has had enough");
    *report = (hy_step_report){.loss = loss_now(q, number, grads), .tokens = 1, .computed = 1};
    for (int i = 0; i < SIZE; i++) q->grads[i] = (float)grads[i];
    q->computed++;
    q->trained = number;
    HY_TRY(hy_custom_take_back(e));
    return hy_update_clip(e, 1);
}

static hy_status losses(hy_provider *p, hy_trainer *t, hy_batch_plan *plan, hy_probe *probe) {
    quadratic *q = (quadratic *)p;
    (void)plan;
    HY_TRY(hy_custom_lend(hy_trainer_engine(t)));
    probe->mean = 0;
    for (uint64_t i = 0; i < probe->count; i++) {
        int64_t number = (int64_t)(probe->first + i);
        double loss = loss_now(q, number, NULL);
        ck_assert_int_gt(number, q->trained); /* unseen sequences alone test a jump */
        if (probe->each) probe->each[i] = loss;
        probe->mean += loss / (double)probe->count;
        q->probed++;
    }
    probe->counted = (int64_t)probe->count;
    return hy_custom_take_back(hy_trainer_engine(t));
}

static hy_status evaluate(hy_provider *p, hy_trainer *t, hy_probe *probe) {
    HY_TRY(hy_custom_lend(hy_trainer_engine(t)));
    probe->mean = loss_now((quadratic *)p, 0, NULL);
    probe->counted = 1;
    return HY_OK;
}

static int64_t batches(hy_provider *p, hy_trainer *t, hy_split split, uint64_t sequences) {
    (void)p, (void)t, (void)split, (void)sequences;
    return 0; /* nothing counts down */
}

static hy_status save(hy_provider *p, struct hy_checkpoint *checkpoint) {
    const quadratic *q = (quadratic *)p;
    return hy_checkpoint_put(checkpoint, FILE_NAME, &q->computed, sizeof q->computed);
}

static hy_status load(hy_provider *p, const char *checkpoint) {
    char path[HY_PATH_MAX], *bytes;
    size_t size;
    HY_TRY(hy_path_join(path, sizeof path, checkpoint, FILE_NAME));
    HY_TRY(hy_file_read(path, &bytes, &size));
    ck_assert_uint_eq(size, sizeof(int64_t));
    memcpy(&((quadratic *)p)->computed, bytes, size);
    free(bytes);
    return HY_OK;
}

static void release(hy_provider *p) { ((quadratic *)p)->is_released = true; }

static const hy_provider_ops ops = {.gradients = gradients,
                                    .losses = losses,
                                    .evaluate = evaluate,
                                    .batches = batches,
                                    .save = save,
                                    .load = load,
                                    .release = release};

static void make_quadratic(quadratic *q) {
    *q = (quadratic){.provider = {.ops = &ops,
                                  .facts = {.can_evaluate = true,
                                            .can_rewind = true,
                                            .may_stop = true,
                                            .data = {.description = "points of a formula",
                                                     .sequences[HY_VAL] = 1}}},
                     .spec = {.name = "w", .ndim = 1, .shape = shape, .lr_scale = 1, .decay = -1},
                     .trained = -1};
    q->weights_at[0] = q->weights;
    q->grads_at[0] = q->grads;
    q->side = (hy_custom_side){.types = {.weights = HY_F32, .grads = HY_F32},
                               .params = &q->spec,
                               .count = 1,
                               .weights = q->weights_at,
                               .grads = q->grads_at};
    q->provider.memory = &q->side;
}

static hy_config *config_of(const char *const (*more)[2], size_t count) {
    static const char *const usual[][2] = {
        {"steps", "40"},           {"lr", "0.05"},        {"lr_warmup_steps", "0"},
        {"schedule", "constant"},  {"weight_decay", "0"}, {"grad_clip", "1000"},
        {"beta1", "0.9"},          {"beta2", "0.95"},     {"adam_eps", "1e-8"},
        {"grad_accum_steps", "1"}, {"precision", "fp32"}, {"predictor", "none"},
        {"tail_share", "0"},       {"device", "cpu"},     {"threads", "1"},
        {"out", "none"},           {"save_every", "0"},   {"save_minutes", "0"},
    };
    hy_config *config;
    must(hy_config_create(&config));
    for (size_t i = 0; i < sizeof usual / sizeof usual[0]; i++) {
        must(hy_config_set(config, usual[i][0], usual[i][1], HY_FROM_CALLER));
    }
    for (size_t i = 0; i < count; i++) {
        must(hy_config_set(config, more[i][0], more[i][1], HY_FROM_CALLER));
    }
    return config;
}

static hy_trainer *trainer_of(quadratic *q, const char *const (*more)[2], size_t count) {
    hy_config *config = config_of(more, count);
    hy_trainer *trainer;
    make_quadratic(q);
    must(hy_trainer_create_with(config, &q->provider, NULL, &trainer));
    hy_config_destroy(config);
    return trainer;
}

/* ---- training -------------------------------------------------------------------------------- */

/* AdamW of the formula in double precision. */
typedef struct reference {
    double w[SIZE], m[SIZE], v[SIZE];
} reference;

static double reference_step(reference *r, int64_t step) {
    double grads[SIZE], loss = formula(r->w, step, grads);
    double unbias1 = 1 - pow(BETA1, (double)step + 1), unbias2 = 1 - pow(BETA2, (double)step + 1);
    for (int i = 0; i < SIZE; i++) {
        r->m[i] = BETA1 * r->m[i] + (1 - BETA1) * grads[i];
        r->v[i] = BETA2 * r->v[i] + (1 - BETA2) * grads[i] * grads[i];
        r->w[i] -= LR * (r->m[i] / unbias1) / (sqrt(r->v[i] / unbias2) + EPS);
    }
    return loss;
}

START_TEST(the_losses_of_a_third_provider_are_those_of_its_formula) {
    quadratic q;
    hy_trainer *trainer = trainer_of(&q, NULL, 0);
    reference r = {0};
    for (int64_t step = 0; step < STEPS; step++) {
        hy_step_info info;
        must(hy_trainer_step(trainer, &info));
        ck_assert_double_eq_tol(info.loss, reference_step(&r, step), 1e-5);
        ck_assert_double_eq_tol(info.lr, LR, 1e-12);
        ck_assert_int_eq(info.tokens, step + 1);
        for (int i = 0; i < SIZE; i++) ck_assert_double_eq_tol(q.weights[i], r.w[i], 1e-5);
    }
    hy_eval_info held_out;
    must(hy_trainer_evaluate(trainer, &held_out));
    ck_assert_double_eq(held_out.loss, loss_now(&q, 0, NULL));
    ck_assert_double_lt(held_out.loss, formula((double[SIZE]){0}, 0, NULL) / 2);
    ck_assert(!q.is_released);
    hy_trainer_destroy(trainer);
    ck_assert(q.is_released);
}
END_TEST

/* ---- saved and resumed ----------------------------------------------------------------------- */

static void take_steps(hy_trainer *trainer, int64_t count, double *out) {
    for (int64_t i = 0; i < count; i++) {
        hy_step_info info;
        must(hy_trainer_step(trainer, &info));
        out[i] = info.loss;
    }
}

START_TEST(a_third_provider_is_resumed_to_the_same_bits) {
    char folder[256];
    temp_folder(folder);
    const char *const out[][2] = {{"out", folder}};
    const char *const resumed[][2] = {{"out", folder}, {"resume", folder}};
    double whole[STEPS], parts[STEPS];
    quadratic q, first;
    hy_trainer *trainer = trainer_of(&q, NULL, 0);
    take_steps(trainer, STEPS, whole);
    hy_trainer_destroy(trainer);

    remove_folder(folder);
    trainer = trainer_of(&first, out, 1);
    take_steps(trainer, 15, parts);
    must(hy_trainer_save(trainer));
    hy_trainer_destroy(trainer);
    quadratic second;
    trainer = trainer_of(&second, resumed, 2);
    ck_assert_int_eq(second.computed, 15); /* from its own file */
    ck_assert_mem_eq(second.weights, first.weights, sizeof first.weights);
    take_steps(trainer, STEPS - 15, parts + 15);
    hy_trainer_destroy(trainer);
    ck_assert_mem_eq(parts, whole, sizeof whole);
    ck_assert_mem_eq(second.weights, q.weights, sizeof q.weights);
    ck_assert_int_eq(second.computed, STEPS);
    remove_folder(folder);
}
END_TEST

/* ---- whole runs ------------------------------------------------------------------------------ */

START_TEST(a_third_provider_is_asked_for_losses_of_proposed_weights) {
    const char *const keys[][2] = {{"predictor", "outer"},        {"full_steps", "4"},
                                   {"correct_steps", "1"},        {"predict_from", "0"},
                                   {"predict_until", "1"},        {"regime", "scratch"},
                                   {"confidence_threshold", "0"}, {"fork_budget", "0"}};
    quadratic q;
    hy_summary summary;
    hy_trainer *trainer = trainer_of(&q, keys, sizeof keys / sizeof keys[0]);
    must(hy_trainer_run(trainer));
    hy_trainer_summary(trainer, &summary);
    ck_assert_int_gt(summary.phases[HY_PREDICT].steps, 0);
    ck_assert_int_ge(q.probed, 2 * summary.phases[HY_PREDICT].steps);
    ck_assert_int_eq(q.computed, summary.steps);
    ck_assert_str_eq(summary.data, "points of a formula");
    /* the weights are back after each test of a jump */
    ck_assert_double_eq(summary.val_loss, loss_now(&q, 0, NULL));
    hy_trainer_destroy(trainer);
}
END_TEST

START_TEST(a_third_provider_that_stops_the_run_leaves_it_saved) {
    char folder[256];
    temp_folder(folder);
    remove_folder(folder);
    const char *const out[][2] = {{"out", folder}};
    const char *const resumed[][2] = {{"out", folder}, {"resume", folder}};
    quadratic q;
    hy_trainer *trainer = trainer_of(&q, out, 1);
    q.fails_at = 8;
    must_fail(hy_trainer_run(trainer), HY_STOPPED, "after step 7");
    hy_trainer_destroy(trainer);
    trainer = trainer_of(&q, resumed, 2);
    must(hy_trainer_run(trainer));
    ck_assert_int_eq(q.computed, STEPS);
    hy_trainer_destroy(trainer);
    remove_folder(folder);
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("provider");
    TCase *tests = tcase_create("a third provider");
    tcase_add_test(tests, the_losses_of_a_third_provider_are_those_of_its_formula);
    tcase_add_test(tests, a_third_provider_is_resumed_to_the_same_bits);
    tcase_add_test(tests, a_third_provider_is_asked_for_losses_of_proposed_weights);
    tcase_add_test(tests, a_third_provider_that_stops_the_run_leaves_it_saved);
    suite_add_tcase(suite, tests);
    return suite;
}

HY_TEST_MAIN(make_suite)
