/* test_own_same.c: trains the same model on the same data as a built-in and as a custom model: the
 * losses agree.
 *
 * The custom model computes with our passes in its own memory, so the test compares everything
 * else: phases, jumps, guard, optimizer, clipping, schedule, validation. Only the gradient norm is
 * summed in another order, so losses may differ by its rounding. */
#include "config/derived.h"
#include "config/settings.h"
#include "data/dataset.h"
#include "model_rig.h"
#include "small_run.h"

#include <math.h>

#define MOST_STEPS 256

#define SAME_RUN                                                                                   \
    "model nano layers 2 width 32 heads 4 mlp_width 48 seq_len 32 batch_size 1 steps 60 "          \
    "grad_accum_steps 4 lr 3e-3 builtin_bytes 60000 lr_warmup_steps 6 eval_every 0 "               \
    "sample_tokens 0 threads 2 device cpu micro_batch given full_steps 4 correct_steps 2 "         \
    "predict_from 0.1 predict_until 0.95 confidence_threshold 0 fork_budget 0 guard_share 0.5 "    \
    "precision fp32 dynamic_batch off "

static model_rig rig;
static hy_dataset *data;

static hy_status look(int64_t sequence, bool is_backward, double scale, double *sum,
                      int64_t *counted) {
    *counted = hy_dataset_fill(data, HY_TRAIN, (uint64_t)sequence, rig.tokens, rig.targets, NULL);
    hy_batch_input input = rig_input(&rig, (float)scale, true);
    must(is_backward ? hy_batch_train(rig.plan, &input) : hy_batch_evaluate(rig.plan, &input));
    rig_sync(&rig);
    *sum = rig_loss_sum(&rig);
    return HY_OK;
}

/* Ours are gradients of the mean over a step, so that rounding is the same: theirs are of the
 * sum. */
static hy_status backward(void *user, int64_t batch, double scale, double *sum, int64_t *counted) {
    (void)user;
    return look(batch, true, scale, sum, counted);
}

static hy_status forward(void *user, int64_t batch, double *sum, int64_t *counted) {
    (void)user;
    return look(batch, false, 1, sum, counted);
}

static void open_rig(const hy_config *config) {
    const hy_settings *s = hy_config_settings(config);
    hy_shape shape;
    hy_batch_options options = {.batch = 1,
                                .seq = (int32_t)s->train.seq_len,
                                .chunks = 1,
                                .dtype = HY_F32,
                                .grad_dtype = HY_F32,
                                .frozen_dtype = HY_F32,
                                .is_training = true};
    must(hy_shape_from_settings(s, &shape));
    rig_open(&rig, &shape, &options, (uint64_t)s->seed);
    hy_dataset_options opened = {.val_fraction = s->input.val_fraction,
                                 .builtin_bytes = s->input.builtin_bytes,
                                 .seq = options.seq,
                                 .vocab = rig.model->shape.vocab,
                                 .seed = (uint64_t)s->seed,
                                 .shuffle = s->input.shuffle};
    must(hy_dataset_open(&opened, &data));
}

static void close_rig(void) {
    hy_dataset_close(data);
    rig_close(&rig);
}

typedef struct run_steps {
    int count;
    hy_phase phase[MOST_STEPS];
    double loss[MOST_STEPS], predicted[MOST_STEPS];
} run_steps;

static void note_step(void *user, const hy_step_info *info) {
    run_steps *c = user;
    ck_assert_int_lt(c->count, MOST_STEPS);
    c->phase[c->count] = info->phase;
    c->loss[c->count] = info->loss;
    c->predicted[c->count++] = info->predicted_steps;
}

static run_steps ours(const hy_config *config) {
    run_steps c = {0};
    hy_observer observer = {.user = &c, .on_step = note_step};
    hy_trainer *trainer;
    must(hy_trainer_create(config, &observer, &trainer));
    must(hy_trainer_run(trainer));
    hy_trainer_destroy(trainer);
    return c;
}

static run_steps theirs(const hy_config *config) {
    run_steps c = {0};
    hy_observer observer = {.user = &c, .on_step = note_step};
    const hy_params *params = &rig.model->params;
    hy_parameter *list = calloc((size_t)params->count, sizeof *list);
    for (int32_t i = 0; i < params->count; i++) {
        const hy_param *p = &params->list[i];
        list[i] = (hy_parameter){.name = p->name,
                                 .weights = hy_store_backing(&rig.weights, i),
                                 .grads = hy_store_backing(&rig.grads, i),
                                 .ndim = p->ndim};
        memcpy(list[i].shape, p->shape, sizeof list[i].shape);
    }
    hy_own_model model = {.parameters = {.list = list, .count = params->count},
                          .forward = forward,
                          .backward = backward};
    hy_trainer *trainer;
    must(hy_trainer_create_own(config, &model, &observer, &trainer));
    must(hy_trainer_run(trainer));
    hy_trainer_destroy(trainer);
    free(list);
    return c;
}

START_TEST(a_custom_model_trains_as_the_built_in_model_does) {
    static const char *const keys[][2] = {{"predictor", "none"}, {"predictor", "outer"},
                                          {"predictor", "line"}, {"optimizer", "sgd"},
                                          {"optimizer", "lion"}, {"optimizer", "adafactor"}};
    hy_config *config = small_run(SAME_RUN, "none", PAIRS(keys[_i][0], keys[_i][1]));
    bool predicts = strcmp(keys[_i][0], "predictor") == 0 && strcmp(keys[_i][1], "none") != 0;
    if (!predicts) must(hy_config_set(config, "predictor", "none", HY_FROM_CALLER));
    run_steps expected = ours(config);
    open_rig(config);
    run_steps found = theirs(config);
    close_rig();
    hy_config_destroy(config);
    int jumps = 0;
    ck_assert_int_eq(found.count, expected.count);
    for (int i = 0; i < expected.count; i++) {
        ck_assert_int_eq(found.phase[i], expected.phase[i]);
        ck_assert_msg(fabs(found.loss[i] - expected.loss[i]) < 1e-5 * expected.loss[i],
                      "step %d: %.9f instead of %.9f", i, found.loss[i], expected.loss[i]);
        ck_assert_double_eq_tol(found.predicted[i], expected.predicted[i], 1e-3);
        jumps += expected.phase[i] == HY_PREDICT;
    }
    if (predicts) ck_assert_int_ge(jumps, 3);
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("own_same");
    TCase *tests = tcase_create("own_same");
    tcase_add_loop_test(tests, a_custom_model_trains_as_the_built_in_model_does, 0, 6);
    suite_add_tcase(suite, tests);
    return suite;
}

HY_TEST_MAIN(make_suite)
