/* test_own_model.c: a model of the caller's: accumulation, precision, loss scale, guard passes, the
 * optimizer's state in Predict, failures, the record. */
#include "own_rig.h"

#include <errno.h>

#include "base/json.h"
#include "kernels/half.h"

/* ---- the model ------------------------------------------------------------------------------- */

typedef struct task {
    int64_t samples; /* in a micro-batch */
    double overflow; /* loss scales above this overflow; 0: none do */
    int64_t fail_at; /* forward call that fails; 0: none */
    hy_status failure;
    int64_t backwards, forwards, evaluations;
    int64_t last_trained;     /* micro-batch */
    int64_t guard[2];         /* micro-batches of the last two guard passes */
    logistic seen, evaluated; /* weights as the callbacks found them */
    logistic before_move;
    double largest_scale, smallest_scale;
} task;

static task work;

static hy_status forward(void *user, int64_t batch, double *sum, int64_t *counted) {
    task *t = user;
    t->forwards++;
    t->guard[0] = t->guard[1];
    t->guard[1] = batch;
    t->seen = learned;
    if (t->forwards % 2) t->before_move = learned;
    if (t->fail_at && t->forwards == t->fail_at) return t->failure;
    ck_assert_int_gt(batch, t->last_trained); /* training has not reached it */
    *sum = loss_sum(&learned, batch * t->samples, t->samples, 1, NULL);
    *counted = t->samples;
    return HY_OK;
}

static hy_status backward(void *user, int64_t batch, double scale, double *sum, int64_t *counted) {
    task *t = user;
    t->backwards++;
    t->seen = learned;
    ck_assert_int_eq(batch, t->last_trained + 1);
    t->last_trained = batch;
    t->largest_scale = fmax(t->largest_scale, scale);
    t->smallest_scale = fmin(t->smallest_scale, scale);
    *sum = loss_sum(&learned, batch * t->samples, t->samples, scale, &gradient);
    *counted = t->samples;
    if (t->overflow > 0 && scale > t->overflow) gradient.weights[2] = INFINITY;
    return HY_OK;
}

static hy_status evaluate(void *user, double *sum, int64_t *counted) {
    task *t = user;
    t->evaluations++;
    t->evaluated = learned;
    *sum = loss_sum(&learned, HELD_OUT_FIRST, HELD_OUT_COUNT, 1, NULL);
    *counted = HELD_OUT_COUNT;
    return HY_OK;
}

static const hy_own_model model = {&work, parameters, 2, forward, backward, evaluate};

static void fresh(void) {
    work = (task){.samples = 32, .last_trained = -1, .smallest_scale = INFINITY};
    learned = nothing;
    gradient = nothing;
}

static hy_own_summary train(const char *const *pairs) {
    hy_config *config = config_with(pairs);
    hy_own_summary summary;
    must(hy_train_own(config, &model, NULL, &summary));
    hy_config_destroy(config);
    return summary;
}

/* ---- learning -------------------------------------------------------------------------------- */

START_TEST(an_own_model_learns_with_and_without_prediction) {
    hy_own_summary s = train(KEYS("predictor", _i ? "outer" : "none"));
    ck_assert_double_lt(held_out_loss(&learned), held_out_loss(&truth) + 0.02);
    ck_assert_double_eq_tol(s.val_loss, held_out_loss(&learned), 1e-12);
    ck_assert_int_eq(s.phase_steps[HY_WARMUP], 10);
    ck_assert_int_eq(s.steps + s.phase_steps[HY_PREDICT],
                     s.phase_steps[0] + s.phase_steps[1] + s.phase_steps[2] + s.phase_steps[3]);
    ck_assert_int_eq(s.moves + s.rejected_moves, s.phase_steps[HY_PREDICT]);
    ck_assert_int_eq(s.backward_passes, s.steps);
    ck_assert_int_eq(work.evaluations, 1);
    if (_i == 0) ck_assert_int_eq(s.steps, 200);
    if (_i == 1) ck_assert_int_ge(s.moves, 10);
    /* a guard pass is a whole micro-batch here, a third of a step */
    double moves = (double)s.phase_steps[HY_PREDICT];
    ck_assert_double_eq_tol(s.spent, (double)s.steps + moves * 2 / 3, 1e-9);
    ck_assert_double_ge(s.spent, 200 - 1e-9);
    ck_assert_double_lt(s.spent, 201);
}
END_TEST

START_TEST(two_runs_give_the_same_bits) {
    train(KEYS("predictor", "outer", "precision", "bf16", "grad_accum_steps", "2"));
    logistic first = learned;
    fresh();
    train(KEYS("predictor", "outer", "precision", "bf16", "grad_accum_steps", "2"));
    ck_assert_mem_eq(&first, &learned, sizeof first);
}
END_TEST

START_TEST(guard_passes_look_at_the_same_fresh_data_twice) {
    train(KEYS("predictor", "outer"));
    ck_assert_int_ge(work.forwards, 20);
    ck_assert_int_eq(work.guard[0], work.guard[1]);
    ck_assert_int_eq(work.forwards % 2, 0);
}
END_TEST

/* ---- accumulation ---------------------------------------------------------------------------- */

/* Micro-batches of 8, 16, 24 and 32 samples, four to a step of 80. */
static hy_status uneven_backward(void *user, int64_t batch, double scale, double *sum,
                                 int64_t *counted) {
    static const int64_t first[] = {0, 8, 24, 48};
    (void)user;
    *counted = 8 * (batch % 4 + 1);
    *sum = loss_sum(&learned, batch / 4 * 80 + first[batch % 4], *counted, scale, &gradient);
    return HY_OK;
}

static void note_norm(void *user, const hy_step_info *info) {
    double *norms = user;
    if (info->step <= 100) norms[info->step - 1] = info->grad_norm;
}

START_TEST(every_target_weighs_the_same_whatever_the_split) {
    hy_own_model uneven = model;
    uneven.backward = uneven_backward;
    double norms[2][100];
    for (int i = 0; i < 2; i++) {
        hy_config *config = config_with(
            KEYS("predictor", "none", "steps", "100", "grad_accum_steps", i ? "4" : "1"));
        hy_observer observer = {.user = norms[i], .on_step = note_norm};
        fresh();
        work.samples = 80;
        must(hy_train_own(config, i ? &uneven : &model, &observer, NULL));
        hy_config_destroy(config);
    }
    for (int step = 0; step < 100; step++) {
        ck_assert_double_eq_tol(norms[1][step] / norms[0][step], 1, 1e-3);
    }
}
END_TEST

/* Gradients known by hand: a micro-batch that counts c targets has a sum of gradients of 6 c^2. */
static hy_status known_backward(void *user, int64_t batch, double scale, double *sum,
                                int64_t *counted) {
    (void)user;
    *counted = batch % 2 + 1;
    *sum = (double)*counted;
    gradient.weights[0] += (float)(scale * 6 * (double)(*counted * *counted));
    return HY_OK;
}

START_TEST(without_normalize_the_means_of_micro_batches_are_summed) {
    hy_own_model known = model;
    known.backward = known_backward;
    double norms[100];
    hy_config *config = config_with(KEYS("predictor", "none", "steps", "3", "grad_accum_steps", "2",
                                         "normalize", _i ? "true" : "false"));
    hy_observer observer = {.user = norms, .on_step = note_norm};
    must(hy_train_own(config, &known, &observer, NULL));
    hy_config_destroy(config);
    for (int i = 0; i < 3; i++) {
        ck_assert_double_eq_tol(norms[i], _i ? (6 + 24) / 3.0 : 6 + 24 / 2.0, 1e-5);
    }
}
END_TEST

/* ---- precision ------------------------------------------------------------------------------- */

static bool is_bf16(const logistic *m) {
    for (int j = 0; j < FEATURES; j++) {
        if (hy_bf16_to_f32(hy_f32_to_bf16(m->weights[j])) != m->weights[j]) return false;
    }
    return true;
}

static void assert_exact_weights(void *user, const hy_step_info *info) {
    (void)user;
    bool is_low = info->precision == HY_BF16;
    if (info->step > 2) ck_assert(!is_bf16(&learned)); /* what the observer sees is exact */
    if (info->step > 2) ck_assert(is_bf16(&work.seen) == is_low);
}

START_TEST(callbacks_see_rounded_weights_and_nobody_else_does) {
    hy_config *config = config_with(KEYS("predictor", "outer", "precision_full", "bf16",
                                         "precision_predict", "bf16", "eval_every", "20"));
    hy_observer observer = {.on_step = assert_exact_weights};
    hy_own_summary s;
    must(hy_train_own(config, &model, &observer, &s));
    hy_config_destroy(config);
    ck_assert_int_ge(s.moves, 5);
    ck_assert(!is_bf16(&work.evaluated));
    ck_assert_mem_eq(&work.evaluated, &learned, sizeof learned);
    ck_assert_double_lt(held_out_loss(&learned), held_out_loss(&truth) + 0.02);
}
END_TEST

START_TEST(precisions_that_make_no_sense_are_refused) {
    static const struct {
        const char *key, *value, *full, *message;
    } cases[] = {{"precision_correct", "bf16", "fp32", "correct cannot be coarser"},
                 {"precision_warmup", "fp16", "fp32", "warmup cannot be coarser"},
                 {"precision_predict", "fp32", "bf16", "predict cannot be finer"}};
    hy_config *config = config_with(KEYS("precision_full", cases[_i].full, "precision",
                                         cases[_i].full, cases[_i].key, cases[_i].value));
    must_fail(hy_train_own(config, &model, NULL, NULL), HY_ERR_INPUT, cases[_i].message);
    hy_config_destroy(config);
}
END_TEST

typedef struct scaling {
    int64_t skipped, troubled;
} scaling;

static void note_scaling(void *user, const hy_step_info *info) {
    scaling *s = user;
    s->skipped += info->was_skipped;
    s->troubled += strstr(info->reason, "diverged") != NULL;
}

START_TEST(the_loss_scale_finds_its_level_and_grows_again) {
    hy_config *config =
        config_with(KEYS("predictor", "outer", "precision", "fp16", "steps", "300"));
    scaling seen = {0};
    hy_observer observer = {.user = &seen, .on_step = note_scaling};
    hy_own_summary s;
    work.overflow = 1024;
    must(hy_train_own(config, &model, &observer, &s));
    hy_config_destroy(config);
    /* 65536 is halved six times; after 200 good steps it doubles, overflows once and is halved */
    ck_assert_double_eq(work.largest_scale, 65536);
    ck_assert_double_eq(work.smallest_scale, 1024);
    ck_assert_int_eq(seen.skipped, 7);
    ck_assert_int_eq(s.skipped_steps, 7);
    ck_assert_int_eq(seen.troubled, 0); /* an overflow is not a divergence */
    ck_assert_int_ge(s.moves, 10);
    ck_assert_double_lt(held_out_loss(&learned), held_out_loss(&truth) + 0.02);
}
END_TEST

START_TEST(gradients_that_overflow_at_every_scale_end_the_run) {
    hy_config *config = config_with(KEYS("predictor", "outer", "precision", "fp16"));
    hy_own_summary s;
    work.overflow = 0.5;
    must_fail(hy_train_own(config, &model, NULL, &s), HY_ERR_NUMERIC, "gradient of weights");
    ck_assert_int_eq(s.steps, 20);
    ck_assert_mem_eq(&learned, &nothing, sizeof learned);
    hy_config_destroy(config);
}
END_TEST

/* ---- the optimizer's state in Predict -------------------------------------------------------- */

#define STATE_BYTES (2 * (FEATURES + 1) * sizeof(float))

START_TEST(moving_the_optimizer_state_away_changes_no_bit) {
    static const char *const strategies[] = {"cpu", "pinned"};
    hy_own_summary stays = train(KEYS("predictor", "outer", "offload_strategy", "none"));
    logistic expected = learned;
    fresh();
    hy_own_summary moves = train(KEYS("predictor", "outer", "offload_strategy", strategies[_i]));
    ck_assert_mem_eq(&expected, &learned, sizeof expected);
    ck_assert(stays.val_loss == moves.val_loss);
    for (int phase = 0; phase < HY_PHASE_COUNT; phase++) {
        ck_assert_uint_eq(stays.optimizer_bytes[phase], STATE_BYTES);
        ck_assert_uint_eq(moves.optimizer_bytes[phase], phase == HY_PREDICT ? 0 : STATE_BYTES);
    }
}
END_TEST

START_TEST(lossy_strategies_stay_close) {
    hy_own_summary exact = train(KEYS("predictor", "outer", "offload_strategy", "none"));
    logistic same = learned;
    fresh();
    hy_own_summary lossy =
        train(KEYS("predictor", "outer", "offload_strategy", _i ? "drop" : "compress"));
    ck_assert_mem_ne(&same, &learned, sizeof same);
    ck_assert_int_ge(lossy.moves, 10);
    ck_assert_double_lt(fabs(lossy.val_loss / exact.val_loss - 1), _i ? 0.02 : 0.005);
    uint64_t codes = 2 * (FEATURES + 1) + 2 * sizeof(float);
    ck_assert_uint_eq(lossy.optimizer_bytes[HY_PREDICT], _i ? 0 : codes);
    ck_assert_uint_eq(lossy.optimizer_bytes[HY_CORRECT], STATE_BYTES);
}
END_TEST

/* With a first gradient, the optimizer takes a step of the length of the learning rate. */
static void assert_first_step_length(void *user, const hy_step_info *info) {
    static bool was_move;
    float *bias = user;
    if (was_move) ck_assert_double_eq_tol(fabs(learned.bias[0] - *bias) / info->lr, 1, 1e-3);
    was_move = info->phase == HY_PREDICT;
    *bias = learned.bias[0];
}

START_TEST(drop_restarts_the_bias_correction) {
    float bias;
    hy_config *config = config_with(KEYS("predictor", "outer", "offload_strategy", "drop"));
    hy_observer observer = {.user = &bias, .on_step = assert_first_step_length};
    hy_own_summary s;
    must(hy_train_own(config, &model, &observer, &s));
    ck_assert_int_ge(s.moves, 10);
    hy_config_destroy(config);
}
END_TEST

/* One element swings by 1, its neighbour has a small steady gradient that is missing right after
 * each move: if its v came back as zero, the step would be m / eps. */
static hy_status lopsided_backward(void *user, int64_t batch, double scale, double *sum,
                                   int64_t *counted) {
    static int64_t forwards_before;
    const task *t = user;
    gradient.weights[0] += (float)scale * (batch % 2 ? 1 : -1);
    gradient.weights[1] += t->forwards == forwards_before ? (float)scale * 0.0015f : 0;
    forwards_before = t->forwards;
    *sum = 1;
    *counted = 1;
    return HY_OK;
}

static hy_status constant_forward(void *user, int64_t batch, double *sum, int64_t *counted) {
    task *t = user;
    (void)batch;
    t->forwards++;
    *sum = 1;
    *counted = 1;
    return HY_OK;
}

static void assert_short_steps(void *user, const hy_step_info *info) {
    float *before = user;
    double length = fabs(learned.weights[1] - *before);
    if (info->phase != HY_PREDICT) ck_assert_double_lt(length, 1.5 * info->lr + 1e-6);
    *before = learned.weights[1];
}

START_TEST(compressed_state_never_makes_a_long_step) {
    float before = 0;
    hy_config *config = config_with(KEYS("predictor", "outer", "offload_strategy", "compress"));
    hy_observer observer = {.user = &before, .on_step = assert_short_steps};
    hy_own_model lopsided = model;
    hy_own_summary s;
    lopsided.backward = lopsided_backward;
    lopsided.forward = constant_forward;
    must(hy_train_own(config, &lopsided, &observer, &s));
    ck_assert_int_ge(s.moves, 10);
    hy_config_destroy(config);
}
END_TEST

/* ---- stopping and failing -------------------------------------------------------------------- */

START_TEST(a_callback_that_fails_ends_the_run_with_its_status) {
    hy_config *config = config_with(KEYS("predictor", "outer"));
    hy_own_summary s;
    work.fail_at = 2 + 2 * 4; /* in the fifth move, when its candidate is in the weights */
    work.failure = HY_STOPPED;
    must_fail(hy_train_own(config, &model, NULL, &s), HY_STOPPED, "the forward callback gave");
    ck_assert_mem_ne(&work.seen, &learned, sizeof learned);
    ck_assert_mem_eq(&work.before_move, &learned, sizeof learned); /* the move was taken back */
    ck_assert_int_eq(s.moves + s.rejected_moves, 4);
    hy_config_destroy(config);
}
END_TEST

static hy_status count_nothing(void *user, int64_t batch, double scale, double *sum,
                               int64_t *counted) {
    (void)user, (void)batch, (void)scale;
    *sum = 0;
    *counted = 0;
    return HY_OK;
}

static hy_status fail_backward(void *user, int64_t batch, double scale, double *sum,
                               int64_t *counted) {
    return batch == 7 ? HY_ERR_IO : backward(user, batch, scale, sum, counted);
}

START_TEST(wrong_models_are_refused_with_a_reason) {
    hy_config *config = config_with(KEYS("predictor", "outer", "precision", "bf16"));
    hy_own_model wrong = model;
    wrong.forward = NULL;
    must_fail(hy_train_own(config, &wrong, NULL, NULL), HY_ERR_INPUT, "needs a forward callback");
    wrong = model;
    wrong.backward = count_nothing;
    must_fail(hy_train_own(config, &wrong, NULL, NULL), HY_ERR_INPUT, "counted no target");
    wrong.backward = fail_backward;
    must_fail(hy_train_own(config, &wrong, NULL, NULL), HY_ERR_IO, "on micro-batch 7");
    ck_assert(!is_bf16(&learned)); /* exact weights are back */
    must_fail(hy_train_own(config, NULL, NULL, NULL), HY_ERR_INPUT, "one is NULL");
    must(hy_config_set(config, "resume", "auto", HY_FROM_CALLER));
    must_fail(hy_train_own(config, &model, NULL, NULL), HY_ERR_INPUT, "no checkpoints");
    hy_config_destroy(config);
}
END_TEST

/* ---- the record ------------------------------------------------------------------------------ */

static double number_in(const hy_json *json, const hy_json_node *object, const char *key) {
    double value;
    must(hy_json_double(json, object, key, &value));
    return value;
}

typedef struct lines {
    int64_t starts, true_steps, moves, validated;
    double predicted, spent, moved, pinned;
} lines;

static void read_line(const char *text, size_t size, lines *l) {
    static const char *const always[] = {"step",
                                         "loss",
                                         "lr",
                                         "grad_norm",
                                         "tokens",
                                         "tokens_per_second",
                                         "seconds",
                                         "confidence",
                                         "grad_accum",
                                         "vram_bytes",
                                         "vram_peak_bytes",
                                         "host_pinned_bytes",
                                         "wait_seconds",
                                         "bytes_moved",
                                         "spent"};
    hy_json *json;
    const char *phase;
    must(hy_json_parse(text, size, "line", &json));
    const hy_json_node *root = hy_json_root(json);
    if (hy_json_get(root, "event")) {
        ck_assert_int_eq(l->true_steps, 0); /* it begins once */
        ck_assert_double_eq(number_in(json, root, "parameters"), FEATURES + 1);
        l->starts++;
        hy_json_free(json);
        return;
    }
    for (size_t i = 0; i < sizeof always / sizeof always[0]; i++) number_in(json, root, always[i]);
    must(hy_json_string(json, root, "phase", &phase, NULL));
    bool is_move = strcmp(phase, "predict") == 0;
    l->true_steps += !is_move;
    l->moves += is_move;
    l->validated += hy_json_get(root, "val_loss") != NULL;
    l->spent = number_in(json, root, "spent");
    l->moved += number_in(json, root, "bytes_moved");
    if (is_move) l->predicted += number_in(json, root, "predicted_steps");
    if (is_move) l->pinned = number_in(json, root, "host_pinned_bytes");
    ck_assert((hy_json_get(root, "guard_before") != NULL) == is_move);
    hy_json_free(json);
}

static lines read_metrics(const char *folder) {
    lines l = {0};
    char path[512], *text;
    size_t size;
    snprintf(path, sizeof path, "%s/metrics.jsonl", folder);
    must(hy_file_read(path, &text, &size));
    for (char *at = text, *end; (end = strchr(at, '\n')); at = end + 1) {
        read_line(at, (size_t)(end - at), &l);
    }
    free(text);
    return l;
}

START_TEST(a_run_leaves_metrics_and_a_summary) {
    char parent[256], folder[300], path[320];
    snprintf(folder, sizeof folder, "%s/run", temp_folder(parent));
    hy_own_summary s = train(KEYS("predictor", "outer", "out", folder, "eval_every", "50",
                                  "offload_strategy", "pinned"));
    lines l = read_metrics(folder);
    ck_assert_int_eq(l.starts, 1);
    ck_assert_int_eq(l.true_steps, s.steps);
    ck_assert_int_eq(l.moves, s.moves + s.rejected_moves);
    ck_assert_int_eq(l.validated, work.evaluations);
    ck_assert_int_eq(l.validated, (s.steps - 1) / 50 + 1);
    ck_assert_double_eq_tol(l.predicted, s.predicted_steps, 1e-9);
    ck_assert_double_eq_tol(l.spent, s.spent, 1e-9);
    ck_assert_double_eq(l.moved, (double)(2 * STATE_BYTES) * (double)l.moves);
    ck_assert_double_eq(l.pinned, (double)STATE_BYTES);

    hy_json *json;
    snprintf(path, sizeof path, "%s/summary.json", folder);
    must(hy_json_read_file(path, &json));
    const hy_json_node *root = hy_json_root(json);
    const hy_json_node *predict = hy_json_get(hy_json_get(root, "phases"), "predict");
    bool is_finished;
    must(hy_json_bool(json, root, "finished", &is_finished));
    ck_assert(is_finished);
    ck_assert_double_eq(number_in(json, root, "steps"), (double)s.steps);
    ck_assert_double_eq(number_in(json, root, "parameters"), FEATURES + 1);
    ck_assert_double_eq(number_in(json, root, "val_loss"), s.val_loss);
    ck_assert_double_eq(number_in(json, predict, "steps"), (double)l.moves);
    ck_assert_double_eq(number_in(json, predict, "optimizer_bytes"), 0);
    hy_json_free(json);
    remove_folder(parent);
}
END_TEST

START_TEST(a_folder_with_a_run_is_not_written_over_unasked) {
    char parent[256], folder[300];
    snprintf(folder, sizeof folder, "%s/run", temp_folder(parent));
    train(KEYS("steps", "3", "out", folder));
    hy_config *config = config_with(KEYS("steps", "5", "out", folder));
    fresh();
    must_fail(hy_train_own(config, &model, NULL, NULL), HY_ERR_INPUT, "holds a run already");
    ck_assert_int_eq(read_metrics(folder).true_steps, 3);
    must(hy_config_set(config, "overwrite", "true", HY_FROM_CALLER));
    must(hy_train_own(config, &model, NULL, NULL));
    ck_assert_int_eq(read_metrics(folder).true_steps, 5);
    hy_config_destroy(config);
    remove_folder(parent);
}
END_TEST

START_TEST(a_disk_that_fails_ends_the_record_and_not_the_training) {
    char parent[256], folder[300];
    hy_own_summary s;
    snprintf(folder, sizeof folder, "%s/run", temp_folder(parent));
    hy_config *config = config_with(KEYS("steps", "40", "out", folder));
    hy_fault_arm(8, ENOSPC, true); /* once the record is open */
    hy_status status = hy_train_own(config, &model, NULL, &s);
    ck_assert_int_gt(hy_fault_disarm(), 8);
    ck_assert_int_eq(status, HY_ERR_IO); /* the summary could not be written */
    ck_assert_int_ge(s.steps, 36);
    ck_assert_mem_ne(&learned, &nothing, sizeof learned);
    hy_config_destroy(config);
    remove_folder(parent);
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("own model");
    TCase *tests = tcase_create("own model");
    tcase_add_checked_fixture(tests, fresh, NULL);
    tcase_add_loop_test(tests, an_own_model_learns_with_and_without_prediction, 0, 2);
    tcase_add_test(tests, two_runs_give_the_same_bits);
    tcase_add_test(tests, guard_passes_look_at_the_same_fresh_data_twice);
    tcase_add_test(tests, every_target_weighs_the_same_whatever_the_split);
    tcase_add_loop_test(tests, without_normalize_the_means_of_micro_batches_are_summed, 0, 2);
    tcase_add_test(tests, callbacks_see_rounded_weights_and_nobody_else_does);
    tcase_add_loop_test(tests, precisions_that_make_no_sense_are_refused, 0, 3);
    tcase_add_test(tests, the_loss_scale_finds_its_level_and_grows_again);
    tcase_add_test(tests, gradients_that_overflow_at_every_scale_end_the_run);
    tcase_add_loop_test(tests, moving_the_optimizer_state_away_changes_no_bit, 0, 2);
    tcase_add_loop_test(tests, lossy_strategies_stay_close, 0, 2);
    tcase_add_test(tests, drop_restarts_the_bias_correction);
    tcase_add_test(tests, compressed_state_never_makes_a_long_step);
    tcase_add_test(tests, a_callback_that_fails_ends_the_run_with_its_status);
    tcase_add_test(tests, wrong_models_are_refused_with_a_reason);
    tcase_add_test(tests, a_run_leaves_metrics_and_a_summary);
    tcase_add_test(tests, a_folder_with_a_run_is_not_written_over_unasked);
    tcase_add_test(tests, a_disk_that_fails_ends_the_record_and_not_the_training);
    suite_add_tcase(suite, tests);
    return suite;
}

HY_TEST_MAIN(make_suite)
