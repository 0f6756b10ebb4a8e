/* test_own_model.c: a custom model with callbacks: accumulation, loss scale, guard passes,
 * optimizer state in Predict, failures, the record, resuming, plans. */
#include "hybrid_tools.h"
#include "own_rig.h"

#include "base/error.h"
#include "base/json.h"

/* ---- the model ------------------------------------------------------------------------------- */

typedef struct task {
    int64_t samples; /* in a micro-batch */
    bool diverges;   /* backward tells a loss far above */
    double overflow; /* loss scales above this overflow; 0: none do */
    int64_t fail_at; /* forward call that fails; 0: none */
    hy_status failure;
    int64_t backwards, forwards, evaluations;
    int64_t last_trained;         /* micro-batch */
    int64_t guard[2], earlier[2]; /* micro-batches of the last two guard passes */
    logistic seen, evaluated;     /* weights as the callbacks found them */
    logistic before_move;
    double largest_scale, smallest_scale;
} task;

static task work;

static hy_status forward(void *user, int64_t batch, double *sum, int64_t *counted) {
    task *t = user;
    t->forwards++;
    t->earlier[0] = t->earlier[1];
    t->earlier[1] = t->guard[0];
    t->guard[0] = t->guard[1];
    t->guard[1] = batch;
    t->seen = learned;
    if (t->forwards % 4 == 1) t->before_move = learned;
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

static const hy_own_model model = {.parameters = {.list = parameters, .count = 2},
                                   .user = &work,
                                   .forward = forward,
                                   .backward = backward,
                                   .evaluate = evaluate};

static void fresh(void) {
    work = (task){.samples = 32, .last_trained = -1, .smallest_scale = INFINITY};
    learned = nothing;
    gradient = nothing;
}

/* Runs one to its end, or to a failure; what it came to is in `summary`, which may be NULL. */
static hy_status run(const hy_config *config, const hy_own_model *m, const hy_observer *observer,
                     hy_summary *summary) {
    hy_trainer *trainer;
    hy_status status = hy_trainer_create_own(config, m, observer, &trainer);
    if (status == HY_OK) status = hy_trainer_run(trainer);
    if (summary && trainer) hy_trainer_summary(trainer, summary);
    char message[1024];
    snprintf(message, sizeof message, "%s", hy_error_message());
    hy_trainer_destroy(trainer);
    return status == HY_OK ? HY_OK : hy_fail(status, "%s", message);
}

static hy_summary train(const char *const *pairs) {
    hy_config *config = config_with(pairs);
    hy_summary summary;
    must(run(config, &model, NULL, &summary));
    hy_config_destroy(config);
    return summary;
}

/* ---- learning -------------------------------------------------------------------------------- */

START_TEST(a_custom_model_learns_with_and_without_prediction) {
    hy_summary s = train(KEYS("predictor", _i ? "outer" : "none"));
    ck_assert_double_lt(held_out_loss(&learned), held_out_loss(&truth) + 0.02);
    ck_assert_double_eq_tol(s.val_loss, held_out_loss(&learned), 1e-12);
    ck_assert_int_eq(s.phases[HY_WARMUP].steps, 10);
    ck_assert_int_eq(s.steps + s.phases[HY_PREDICT].steps,
                     s.phases[0].steps + s.phases[1].steps + s.phases[2].steps + s.phases[3].steps);
    ck_assert_int_eq(s.moves + s.rejected_moves, s.phases[HY_PREDICT].steps);
    ck_assert_int_eq(s.backward_passes, s.steps);
    ck_assert_int_eq(work.evaluations, 1);
    if (_i == 0) ck_assert_int_eq(s.steps, 200);
    if (_i == 1) ck_assert_int_ge(s.moves, 10);
    /* a guard pass is two micro-batches at least, a third of a step each */
    double moves = (double)s.phases[HY_PREDICT].steps;
    ck_assert_double_eq_tol(s.spent, (double)s.steps + moves * 4 / 3, 1e-9);
    ck_assert_double_ge(s.spent, 199.5);
    ck_assert_double_lt(s.spent, 201.5);
}
END_TEST

START_TEST(two_runs_give_the_same_bits) {
    train(KEYS("predictor", "outer", "grad_accum_steps", "2"));
    logistic first = learned;
    fresh();
    train(KEYS("predictor", "outer", "grad_accum_steps", "2"));
    ck_assert_mem_eq(&first, &learned, sizeof first);
}
END_TEST

START_TEST(guard_passes_look_at_the_same_fresh_data_twice) {
    train(KEYS("predictor", "outer"));
    ck_assert_int_ge(work.forwards, 20);
    ck_assert_int_eq(work.forwards % 4, 0); /* two before, and the same two after */
    ck_assert_int_eq(work.guard[0] + 1, work.guard[1]);
    ck_assert_int_eq(work.earlier[0], work.guard[0]);
    ck_assert_int_eq(work.earlier[1], work.guard[1]);
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
        must(run(config, i ? &uneven : &model, &observer, NULL));
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
    must(run(config, &known, &observer, NULL));
    hy_config_destroy(config);
    for (int i = 0; i < 3; i++) {
        ck_assert_double_eq_tol(norms[i], _i ? (6 + 24) / 3.0 : 6 + 24 / 2.0, 1e-5);
    }
}
END_TEST

/* ---- the loss scale -------------------------------------------------------------------------- */

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
    hy_summary s;
    work.overflow = 1024;
    must(run(config, &model, &observer, &s));
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
    hy_summary s;
    work.overflow = 0.5;
    must_fail(run(config, &model, NULL, &s), HY_ERR_NUMERIC, "in the last 20 steps");
    ck_assert_mem_eq(&learned, &nothing, sizeof learned);
    hy_config_destroy(config);
}
END_TEST

/* ---- the optimizer's state in Predict -------------------------------------------------------- */

#define STATE_BYTES ((uint64_t)2 * 2 * 256) /* two tensors on borders of 256 bytes, m and v */

START_TEST(moving_the_optimizer_state_away_changes_no_bit) {
    static const char *const strategies[] = {"cpu", "pinned"};
    hy_summary stays = train(KEYS("predictor", "outer", "offload_strategy", "none"));
    logistic expected = learned;
    fresh();
    hy_summary moves = train(KEYS("predictor", "outer", "offload_strategy", strategies[_i]));
    ck_assert_mem_eq(&expected, &learned, sizeof expected);
    ck_assert(stays.val_loss == moves.val_loss);
    for (int phase = 0; phase <= HY_EVALUATE; phase++) {
        const hy_memory_cell *here = &stays.phases[phase].memory[HY_OPTIM];
        const hy_memory_cell *gone = &moves.phases[phase].memory[HY_OPTIM];
        ck_assert_uint_eq(here->measured_bytes, STATE_BYTES);
        ck_assert_int_eq(here->place, HY_DEVICE);
        ck_assert_int_eq(gone->place == HY_DEVICE, phase != HY_PREDICT);
        ck_assert_uint_eq(gone->planned_bytes, STATE_BYTES);
    }
}
END_TEST

START_TEST(state_that_is_dropped_stays_close) {
    hy_summary exact = train(KEYS("predictor", "outer", "offload_strategy", "none"));
    logistic same = learned;
    fresh();
    hy_summary lossy = train(KEYS("predictor", "outer", "offload_strategy", "drop"));
    ck_assert_mem_ne(&same, &learned, sizeof same);
    ck_assert_int_ge(lossy.moves, 10);
    ck_assert_double_lt(fabs(lossy.val_loss / exact.val_loss - 1), 0.02);
    ck_assert_uint_eq(lossy.phases[HY_CORRECT].memory[HY_OPTIM].measured_bytes, STATE_BYTES);
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
    hy_summary s;
    must(run(config, &model, &observer, &s));
    ck_assert_int_ge(s.moves, 10);
    hy_config_destroy(config);
}
END_TEST

/* It would lie where gradients were, and those are the caller's. */
START_TEST(compressed_state_is_refused) {
    hy_config *config = config_with(KEYS("predictor", "outer", "offload_strategy", "compress"));
    must_fail(run(config, &model, NULL, NULL), HY_ERR_INPUT, "which belongs to the caller here");
    hy_config_destroy(config);
}
END_TEST

/* ---- stopping and failing -------------------------------------------------------------------- */

START_TEST(a_callback_that_fails_ends_the_run_with_its_status) {
    hy_config *config = config_with(KEYS("predictor", "outer"));
    hy_summary s;
    work.fail_at = 4 * 4 + 3; /* in the fifth move, when its candidate is in the weights */
    work.failure = HY_STOPPED;
    must_fail(run(config, &model, NULL, &s), HY_STOPPED, "stopped on request");
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
    must_fail(run(config, &wrong, NULL, NULL), HY_ERR_INPUT, "forward is NULL");
    wrong = model;
    wrong.backward = count_nothing;
    must_fail(run(config, &wrong, NULL, NULL), HY_ERR_INPUT, "contain no target tokens");
    wrong.backward = fail_backward;
    must_fail(run(config, &wrong, NULL, NULL), HY_ERR_IO, "on micro-batch 7");
    must_fail(run(config, NULL, NULL, NULL), HY_ERR_INPUT, "one is NULL");
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
    hy_summary s = train(KEYS("predictor", "outer", "out", folder, "eval_every", "50",
                              "offload_strategy", "pinned"));
    lines l = read_metrics(folder);
    ck_assert_int_eq(l.starts, 1);
    ck_assert_int_eq(l.true_steps, s.steps);
    ck_assert_int_eq(l.moves, s.moves + s.rejected_moves);
    ck_assert_int_eq(l.validated, work.evaluations);
    ck_assert_int_eq(l.validated, (s.steps - 1) / 50 + 1);
    ck_assert_double_eq_tol(l.predicted, (double)s.predicted_steps, 0.5);
    ck_assert_double_eq_tol(l.spent, s.spent, 1e-9);
    ck_assert_double_ge(l.moved, (double)(2 * STATE_BYTES) * (double)l.moves);
    ck_assert_double_ge(l.pinned, (double)STATE_BYTES);

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
    /* What a step's tokens are, only the caller knows. */
    ck_assert_int_eq(s.tokens_per_step, 0);
    ck_assert_ptr_null(hy_json_get(root, "tokens_per_step"));
    ck_assert_ptr_null(hy_json_get(root, "batch_size"));
    ck_assert_double_eq_tol(s.tokens_per_second, (double)s.tokens / s.seconds, 1e-6);
    ck_assert_double_eq(number_in(json, predict, "steps"), (double)l.moves);
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
    must_fail(run(config, &model, NULL, NULL), HY_ERR_INPUT, "already holds a run");
    ck_assert_int_eq(read_metrics(folder).true_steps, 3);
    must(hy_config_set(config, "overwrite", "true", HY_FROM_CALLER));
    must(run(config, &model, NULL, NULL));
    ck_assert_int_eq(read_metrics(folder).true_steps, 5);
    hy_config_destroy(config);
    remove_folder(parent);
}
END_TEST

/* ---- a trainer like any other ---------------------------------------------------------------- */

static hy_status answer_again(void *user, int64_t batch, double scale, double *sum,
                              int64_t *counted) {
    task *t = user;
    t->last_trained = batch - 1; /* a fork, or a run that is resumed, goes back */
    return backward(user, batch, scale, sum, counted);
}

/* Saved on the way, killed (nothing of it is left in memory) and resumed from its folder. */
START_TEST(a_run_that_ended_goes_on_to_the_same_bits) {
    char parent[256], folder[300], path[400];
    const char *const *keys = KEYS("predictor", "outer", "tail_share", "0.2", "save_every", "37");
    hy_own_model again = model;
    again.backward = answer_again;
    if (_i % 2)
        parameters[1].name = "a.lora_b"; /* what adapters of ours are called means nothing here */
    train(keys);
    logistic expected = learned;
    snprintf(folder, sizeof folder, "%s/run", temp_folder(parent));
    hy_config *config = config_with(keys);
    must(hy_config_set(config, "out", folder, HY_FROM_CALLER));
    must(hy_config_set(config, "keep", "9", HY_FROM_CALLER));
    fresh();
    must(run(config, &model, NULL, NULL));
    ck_assert_mem_eq(&expected, &learned, sizeof expected);
    snprintf(path, sizeof path, "%s/checkpoint-%d", folder, 37 * (_i + 1));
    must(hy_config_set(config, "resume", path, HY_FROM_CALLER));
    fresh();
    must(run(config, &again, NULL, NULL));
    ck_assert_mem_eq(&expected, &learned, sizeof expected);
    hy_config_destroy(config);
    remove_folder(parent);
}
END_TEST

/* At the end the average is looked at too, in the caller's own memory; then the weights are
 * back. */
START_TEST(the_average_is_evaluated_and_the_weights_come_back) {
    hy_summary s = train(KEYS("predictor", _i ? "outer" : "none", "tail_share", "0.2"));
    ck_assert_int_eq(work.evaluations, 2);
    ck_assert_mem_ne(&work.evaluated, &learned, sizeof learned);
    ck_assert_double_eq_tol(s.val_loss, held_out_loss(&work.evaluated), 1e-9);
    ck_assert_double_eq_tol(s.raw_val_loss, held_out_loss(&learned), 1e-9);
}
END_TEST

static hy_status diverge(void *user, int64_t batch, double scale, double *sum, int64_t *counted) {
    hy_status status = backward(user, batch, scale, sum, counted);
    if (work.diverges) *sum = 3 * (double)*counted;
    return status;
}

/* Whoever looks at the average between a jump and its Correct leaves the weights before the jump
 * where they are. */
START_TEST(evaluating_after_a_jump_leaves_it_to_be_undone) {
    const char *strategy = _i ? "pinned" : "none";
    hy_config *config =
        config_with(KEYS("predictor", "outer", "tail_share", "0.9", "offload_strategy", strategy));
    hy_own_model own = model;
    hy_trainer *trainer;
    hy_step_info info;
    hy_eval_info eval;
    logistic before = nothing, after;
    own.backward = diverge;
    must(hy_trainer_create_own(config, &own, NULL, &trainer));
    do { /* the second jump that is kept: there is an average by then */
        before = learned;
        must(hy_trainer_step(trainer, &info));
    } while (info.phase != HY_PREDICT || info.was_rejected || info.step < 40);
    after = learned;
    must(hy_trainer_evaluate(trainer, &eval));
    ck_assert_mem_ne(&work.evaluated, &after, sizeof after); /* it was the average */
    ck_assert_mem_eq(&learned, &after, sizeof after);
    ck_assert_mem_ne(&before, &after, sizeof after);
    must(hy_trainer_step(trainer, &info));
    ck_assert_int_eq(info.phase, HY_CORRECT);
    must(hy_trainer_evaluate(trainer, &eval));
    work.diverges = true;
    must(hy_trainer_step(trainer, &info));
    ck_assert(info.was_rolled_back);
    ck_assert_mem_eq(&learned, &before, sizeof before);
    hy_trainer_destroy(trainer);
    hy_config_destroy(config);
}
END_TEST

START_TEST(it_is_stepped_looked_at_and_saved_like_ours) {
    hy_config *config = config_with(KEYS("predictor", "outer"));
    hy_trainer *trainer;
    hy_step_info info;
    hy_eval_info eval;
    hy_memory_state memory;
    char *text;
    must(hy_trainer_create_own(config, &model, NULL, &trainer));
    for (int i = 0; i < 5; i++) must(hy_trainer_step(trainer, &info));
    ck_assert_int_eq(info.step, 5);
    ck_assert_int_eq(info.tokens, 5 * 32);
    must(hy_trainer_evaluate(trainer, &eval));
    ck_assert_double_eq_tol(eval.loss, held_out_loss(&learned), 1e-12);
    must(hy_trainer_memory(trainer, &memory));
    ck_assert_uint_eq(memory.classes[HY_OPTIM].live[HY_DEVICE], STATE_BYTES);
    ck_assert_uint_eq(memory.classes[HY_WEIGHTS].live[HY_DEVICE], 512);
    must_fail(hy_trainer_sample(trainer, &(hy_sample_options){.tokens = 4}, &text, NULL),
              HY_ERR_STATE, "samples of text: not available for a custom model");
    must_fail(hy_trainer_save(trainer), HY_ERR_STATE, "no folder");
    hy_activation_estimate estimates[HY_RECOMPUTE_LEVELS];
    must_fail(hy_trainer_estimate_activations(trainer, 0, 0, estimates), HY_ERR_STATE,
              "a custom model");
    hy_savings savings;
    must(hy_trainer_savings(trainer, &savings));
    for (int i = 0; i < savings.count; i++) { /* of passes that are not ours */
        ck_assert_str_ne(savings.list[i].key, "recompute");
        ck_assert_str_ne(savings.list[i].key, "weights_place");
    }
    hy_trainer_destroy(trainer);
    hy_config_destroy(config);
}
END_TEST

/* 1.5 billion parameters in bf16, whose state has to go to pinned memory: planned, with nothing
 * behind it. */
START_TEST(a_list_of_shapes_can_be_planned) {
    enum { LAYERS = 28 };
    static char names[LAYERS + 1][32];
    hy_parameter list[LAYERS + 1];
    for (int i = 0; i <= LAYERS; i++) {
        snprintf(names[i], sizeof names[i], i ? "layer.%d" : "embedding", i);
        list[i] = (hy_parameter){
            .name = names[i], .ndim = 2, .shape = {i ? 30000 : 151936, i ? 1560 : 1536}};
    }
    hy_own_parameters p = {
        .list = list, .count = LAYERS + 1, .dtype = HY_BF16, .grad_dtype = HY_BF16};
    hy_config *config = config_with(KEYS("card", "rtx5080", "device", "auto", "max_gpu_mem", "4GiB",
                                         "cpu_mem", "62GiB", "predictor", "none"));
    hy_trainer *plan;
    hy_plan_facts facts;
    hy_summary s;
    must(hy_trainer_plan_own(config, &p, NULL, &plan));
    hy_trainer_plan_facts(plan, &facts);
    hy_trainer_summary(plan, &s);
    const hy_memory_cell *cells = s.phases[HY_FULL].memory;
    ck_assert_msg(facts.fits, "%s", facts.problem);
    ck_assert_int_eq(cells[HY_OPTIM].place, HY_PINNED);
    ck_assert_int_eq(cells[HY_WEIGHTS].place, HY_DEVICE);
    uint64_t count = (uint64_t)151936 * 1536 + (uint64_t)LAYERS * 30000 * 1560;
    ck_assert_uint_eq(cells[HY_WEIGHTS].planned_bytes / 2 / 1000000, count / 1000000);
    ck_assert_uint_eq(s.parameters, count);
    ck_assert_uint_gt(facts.host_pinned_bytes, 8 * count);
    ck_assert_uint_lt(facts.vram_bytes, (uint64_t)4 << 30);
    hy_trainer_destroy(plan);
    hy_config_destroy(config);
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("own model");
    TCase *tests = tcase_create("own model");
    tcase_add_checked_fixture(tests, fresh, NULL);
    tcase_add_loop_test(tests, a_custom_model_learns_with_and_without_prediction, 0, 2);
    tcase_add_test(tests, two_runs_give_the_same_bits);
    tcase_add_test(tests, guard_passes_look_at_the_same_fresh_data_twice);
    tcase_add_test(tests, every_target_weighs_the_same_whatever_the_split);
    tcase_add_loop_test(tests, without_normalize_the_means_of_micro_batches_are_summed, 0, 2);
    tcase_add_test(tests, the_loss_scale_finds_its_level_and_grows_again);
    tcase_add_test(tests, gradients_that_overflow_at_every_scale_end_the_run);
    tcase_add_loop_test(tests, moving_the_optimizer_state_away_changes_no_bit, 0, 2);
    tcase_add_test(tests, state_that_is_dropped_stays_close);
    tcase_add_test(tests, drop_restarts_the_bias_correction);
    tcase_add_test(tests, compressed_state_is_refused);
    tcase_add_test(tests, a_callback_that_fails_ends_the_run_with_its_status);
    tcase_add_test(tests, wrong_models_are_refused_with_a_reason);
    tcase_add_test(tests, a_run_leaves_metrics_and_a_summary);
    tcase_add_test(tests, a_folder_with_a_run_is_not_written_over_unasked);
    tcase_add_loop_test(tests, a_run_that_ended_goes_on_to_the_same_bits, 0, 4);
    tcase_add_loop_test(tests, the_average_is_evaluated_and_the_weights_come_back, 0, 2);
    tcase_add_loop_test(tests, evaluating_after_a_jump_leaves_it_to_be_undone, 0, 2);
    tcase_add_test(tests, it_is_stepped_looked_at_and_saved_like_ours);
    tcase_add_test(tests, a_list_of_shapes_can_be_planned);
    suite_add_tcase(suite, tests);
    return suite;
}

HY_TEST_MAIN(make_suite)
