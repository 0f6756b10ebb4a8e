/* test_own_trouble.c: custom loops and models that are stopped, killed and resumed in every kind of
 * question, with 32-bit and 16-bit weights and with state in every place. */
#include "own_rig.h"

#include <signal.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "formats/safetensors.h"
#include "kernels/half.h"

#define BATCH 32

static char folder[256];

/* ---- a task whose memory has either width ---------------------------------------------------- */

static bool is_low; /* the caller's memory is bf16 */
static uint16_t low[FEATURES + 1], low_grads[FEATURES + 1];

static void set_up(void) {
    temp_folder(folder);
    is_low = false;
}
static void tear_down(void) { remove_folder(folder); }

/* A path below it, in one of a few buffers. */
static char *path_in(const char *name) {
    static char paths[8][400];
    static int at;
    char *path = paths[at++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static void widen(void) {
    if (!is_low) return;
    for (int j = 0; j < FEATURES; j++) learned.weights[j] = hy_bf16_to_f32(low[j]);
    learned.bias[0] = hy_bf16_to_f32(low[FEATURES]);
}

static void narrow_gradient(void) {
    for (int j = 0; j < FEATURES; j++) low_grads[j] = hy_f32_to_bf16(gradient.weights[j]);
    low_grads[FEATURES] = hy_f32_to_bf16(gradient.bias[0]);
}

/* What stands in the caller's memory. */
static logistic seen(void) {
    widen();
    return learned;
}

static hy_loop_options task(hy_parameter list[2]) {
    hy_dtype dtype = is_low ? HY_BF16 : HY_F32;
    list[0] = parameters[0];
    list[1] = parameters[1];
    if (is_low) {
        list[0].weights = low;
        list[0].grads = low_grads;
        list[1].weights = low + FEATURES;
        list[1].grads = low_grads + FEATURES;
    }
    return (hy_loop_options){
        .parameters = {.list = list, .count = 2, .dtype = dtype, .grad_dtype = dtype},
        .can_evaluate = true,
        .can_rewind = true};
}

static void forget(void) {
    learned = gradient = nothing;
    memset(low, 0, sizeof low);
    memset(low_grads, 0, sizeof low_grads);
}

static double loss_of(const hy_loop_step *step) {
    bool wants = step->todo == HY_DO_GRADIENTS;
    int64_t first = step->batch * BATCH, count = step->count * BATCH;
    widen();
    if (step->todo == HY_DO_EVALUATE) return held_out_loss(&learned);
    if (wants) gradient = nothing;
    double loss = loss_sum(&learned, first, count, wants ? step->loss_scale / (double)count : 1,
                           wants ? &gradient : NULL);
    if (wants) narrow_gradient();
    return loss / (double)count;
}

static hy_loop_step next_step(hy_loop *loop) {
    hy_loop_step step;
    must(hy_loop_next(loop, &step));
    return step;
}

static hy_config *config_of(const char *const *keys, const char *key, const char *value) {
    hy_config *config = config_with(keys);
    if (key) must(hy_config_set(config, key, value, HY_FROM_CALLER));
    return config;
}

static hy_loop *open_loop(const hy_loop_options *options, const char *const *keys, const char *key,
                          const char *value) {
    hy_config *config = config_of(keys, key, value);
    hy_loop *loop;
    forget();
    must(hy_loop_create(config, options, NULL, &loop));
    hy_config_destroy(config);
    return loop;
}

/* Honest answers to so many questions, or to all; how many there were. */
static int64_t answer_up_to(hy_loop *loop, int64_t most) {
    int64_t count = 0;
    for (; count < most; count++) {
        hy_loop_step step = next_step(loop);
        if (step.is_over) break;
        must(hy_loop_answer(loop, loss_of(&step), BATCH));
    }
    return count;
}

static logistic learn(const hy_loop_options *options, const char *const *keys, const char *key,
                      const char *value) {
    hy_loop *loop = open_loop(options, keys, key, value);
    answer_up_to(loop, INT64_MAX);
    hy_loop_destroy(loop);
    return seen();
}

/* ---- where gradients and master weights lie -------------------------------------------------- */

static const char *const places[] = {"pinned", "disk"};

START_TEST(gradients_that_we_sum_may_lie_anywhere) {
    hy_parameter list[2];
    hy_step_info last;
    hy_loop_options options = task(list);
    const char *const *keys = KEYS("predictor", "outer", "grad_accum_steps", "3", "grad_clip",
                                   "0.05", "optim_place", places[_i], "offload_folder", folder);
    options.parameters.sums_gradients = true;
    logistic here = learn(&options, keys, NULL, NULL);
    hy_loop *loop = open_loop(&options, keys, "grads_place", places[_i]);
    answer_up_to(loop, INT64_MAX);
    ck_assert(hy_loop_last(loop, &last));
    ck_assert_double_gt(last.grad_norm, 0.05); /* they are clipped */
    hy_loop_destroy(loop);
    ck_assert_mem_eq(&here, &learned, sizeof here);
}
END_TEST

START_TEST(a_master_copy_may_lie_anywhere) {
    hy_parameter list[2];
    is_low = true;
    hy_loop_options options = task(list);
    const char *const *keys = KEYS("predictor", "outer", "tail_share", "0.2", "optim_place",
                                   places[_i], "offload_folder", folder);
    logistic here = learn(&options, keys, NULL, NULL);
    logistic there = learn(&options, keys, "master_place", places[_i]);
    ck_assert_mem_eq(&here, &there, sizeof here);
}
END_TEST

/* ---- stopped in any question ----------------------------------------------------------------- */

/* Jumps, forks, validations in all phases, an average. */
#define EVERYTHING                                                                                 \
    KEYS("predictor", "outer", "regime", "fine-tuning", "fork_budget", "0.5", "steps", "70",       \
         "full_steps", "4", "tail_share", "0.4", "eval_every", "5", "lr_warmup_steps", "3",        \
         "predict_from", "0.05", "predict_until", "0.95", "confidence_threshold", "0.5")

#define MOST_QUESTIONS 400

/* All questions of a run, to its end. */
typedef struct asked {
    hy_loop_step list[MOST_QUESTIONS];
    int count;
} asked;

static asked ask_all(hy_loop *loop) {
    asked all = {.count = 0};
    for (hy_loop_step step = next_step(loop); !step.is_over; step = next_step(loop)) {
        ck_assert_int_lt(all.count, MOST_QUESTIONS);
        all.list[all.count++] = step;
        must(hy_loop_answer(loop, loss_of(&step), BATCH));
    }
    hy_loop_destroy(loop);
    return all;
}

/* The part of a fork that is thrown away: after it the run goes back to an earlier step. */
static bool is_in_arm(const asked *all, int at) {
    const hy_loop_step *this = &all->list[at];
    for (int i = at + 1; i < all->count; i++) {
        const hy_loop_step *later = &all->list[i];
        if (later->todo != HY_DO_GRADIENTS) continue;
        if (later->step < this->step || (this->todo == later->todo && later->step == this->step)) {
            return true;
        }
    }
    return false;
}

/* The last question of each kind that the run asks, by number. */
static int list_kinds(const asked *all, int at[MOST_QUESTIONS]) {
    int count = 0, kinds[MOST_QUESTIONS];
    for (int number = 0; number < all->count; number++) {
        const hy_loop_step *step = &all->list[number];
        int kind = ((int)step->todo * HY_PHASE_COUNT + (int)step->phase) * 2, i = 0;
        kind += is_in_arm(all, number);
        while (i < count && kinds[i] != kind) i++;
        count += i == count;
        kinds[i] = kind;
        at[i] = number;
    }
    return count;
}

static int64_t lines_with(const char *path, const char *text) {
    char *bytes;
    size_t size;
    int64_t count = 0;
    must(hy_file_read(path, &bytes, &size));
    for (const char *at = bytes; (at = strstr(at, text)); at++) count++;
    free(bytes);
    return count;
}

/* With the same lines in its record. */
START_TEST(a_loop_that_is_stopped_in_any_question_goes_on_to_the_same_bits) {
    hy_parameter list[2];
    int at[MOST_QUESTIONS];
    is_low = _i % 2;
    hy_loop_options options = task(list);
    hy_loop *loop = open_loop(&options, EVERYTHING, "out", path_in("whole"));
    asked all = ask_all(loop);
    logistic expected = seen();
    int kinds = list_kinds(&all, at);
    int64_t lines = lines_with(path_in("whole/metrics.jsonl"), "\"loss\"");
    ck_assert_int_ge(kinds, 9);
    for (int i = 0; i < kinds; i++) {
        char name[64], record[96];
        snprintf(name, sizeof name, "run-%d", i);
        snprintf(record, sizeof record, "%s/metrics.jsonl", name);
        loop = open_loop(&options, EVERYTHING, "out", path_in(name));
        answer_up_to(loop, at[i]);
        must(hy_loop_stop(loop));
        hy_loop_destroy(loop);
        hy_config *config = config_of(EVERYTHING, "out", path_in(name));
        must(hy_config_set(config, "resume", path_in(name), HY_FROM_CALLER));
        forget();
        must(hy_loop_create(config, &options, NULL, &loop));
        hy_config_destroy(config);
        answer_up_to(loop, INT64_MAX);
        hy_loop_destroy(loop);
        logistic found = seen();
        ck_assert_msg(memcmp(&expected, &found, sizeof found) == 0, "question %d", at[i]);
        ck_assert_int_eq(lines_with(path_in(record), "\"loss\""), lines);
    }
}
END_TEST

START_TEST(an_arm_of_a_paired_test_is_not_saved) {
    hy_parameter list[2];
    hy_loop_options options = task(list);
    int refused = 0, number = 0;
    asked all = ask_all(open_loop(&options, EVERYTHING, "out", path_in("whole")));
    hy_loop *loop = open_loop(&options, EVERYTHING, "out", path_in("run"));
    for (hy_loop_step step = next_step(loop); !step.is_over; step = next_step(loop), number++) {
        bool is_arm = step.todo == HY_DO_GRADIENTS && is_in_arm(&all, number);
        if (is_arm) must_fail(hy_loop_save(loop), HY_ERR_STATE, "during a paired test");
        refused += is_arm;
        must(hy_loop_answer(loop, loss_of(&step), BATCH));
    }
    ck_assert_int_gt(refused, 0);
    hy_loop_destroy(loop);
}
END_TEST

/* Nobody measures a held-out loss here. */
START_TEST(a_high_loss_in_the_last_step_is_an_outlier) {
    static const double last[] = {30, INFINITY};
    bool is_finite = isfinite(last[_i]);
    hy_parameter list[2];
    hy_loop_options options = task(list);
    options.can_evaluate = false;
    const char *const *keys = KEYS("steps", "40", "predictor", "none");
    hy_loop *loop = open_loop(&options, keys, "out", path_in("run"));
    for (hy_loop_step step = next_step(loop); !step.is_over; step = next_step(loop)) {
        hy_status status = hy_loop_answer(loop, step.step == 39 ? last[_i] : 1, BATCH);
        ck_assert_int_eq(status, step.step < 39 || is_finite ? HY_OK : HY_ERR_NUMERIC);
        if (status != HY_OK) break;
    }
    hy_loop_destroy(loop);
    ck_assert_int_eq(hy_path_exists(path_in("run/checkpoint-40")), is_finite);
}
END_TEST

/* ---- killed ---------------------------------------------------------------------------------- */

#define SAVING                                                                                     \
    KEYS("predictor", "outer", "regime", "fine-tuning", "fork_budget", "0.5", "steps", "70",       \
         "full_steps", "4", "tail_share", "0.4", "eval_every", "5", "lr_warmup_steps", "3",        \
         "predict_from", "0.05", "predict_until", "0.95", "confidence_threshold", "0.5",           \
         "save_every", "3", "keep", "2")

/* A process of its own that goes on with the run where there is one. It ends by SIGKILL after so many
 * questions; at the end of the run the bits are in a file. */
static void run_apart(const hy_loop_options *options, int64_t questions) {
    const char *out = path_in("run");
    hy_config *config = config_of(SAVING, "out", out);
    hy_loop *loop;
    bool has_begun = hy_path_exists(out);
    if (has_begun) must(hy_config_set(config, "resume", "auto", HY_FROM_CALLER));
    forget();
    hy_status status = hy_loop_create(config, options, NULL, &loop);
    if (status != HY_OK && has_begun) { /* killed before its first checkpoint */
        ck_assert_msg(strstr(hy_error_message(), "no checkpoint") != NULL, "%s",
                      hy_error_message());
        must(hy_config_set(config, "resume", "", HY_FROM_CALLER));
        must(hy_config_set(config, "overwrite", "true", HY_FROM_CALLER));
        status = hy_loop_create(config, options, NULL, &loop);
    }
    must(status);
    hy_config_destroy(config);
    answer_up_to(loop, questions);
    if (questions < INT64_MAX) kill(getpid(), SIGKILL);
    hy_loop_destroy(loop);
    logistic bits = seen();
    must(hy_file_write_atomic(path_in("bits"), &bits, sizeof bits));
}

START_TEST(a_loop_that_is_killed_again_and_again_goes_on_to_the_same_bits) {
    hy_parameter list[2];
    is_low = _i == 1;
    hy_loop_options options = task(list);
    double begin = hy_clock();
    logistic expected = learn(&options, EVERYTHING, NULL, NULL);
    double whole = hy_clock() - begin;
    int64_t kills = 0, status = 1;
    for (uint64_t i = 0; status != 0; i++) {
        /* The first dies at a question, so that one is killed however fast the machine is; the
         * others at any moment, later and later, so that they get somewhere on a slow one. */
        double share = hy_rng_uniform(7, HY_RNG_TEST, i) + 0.05 * (double)i;
        useconds_t patience = (useconds_t)(1e6 * whole * (0.2 + share));
        pid_t child = fork();
        ck_assert_int_ge(child, 0);
        if (child == 0) {
            run_apart(&options, i == 0 ? 20 : INT64_MAX);
            _exit(0);
        }
        if (i > 0) usleep(patience);
        if (i > 0) kill(child, SIGKILL);
        int ended;
        ck_assert_int_eq(waitpid(child, &ended, 0), child);
        ck_assert(WIFSIGNALED(ended) || WEXITSTATUS(ended) == 0);
        kills += WIFSIGNALED(ended);
        status = WIFSIGNALED(ended);
        ck_assert_int_lt(kills, 500);
    }
    char *bits;
    size_t size;
    must(hy_file_read(path_in("bits"), &bits, &size));
    ck_assert_uint_eq(size, sizeof expected);
    ck_assert_mem_eq(bits, &expected, sizeof expected);
    ck_assert_int_gt(kills, 0);
    free(bits);
}
END_TEST

/* ---- 16 bits --------------------------------------------------------------------------------- */

static void read_master(int64_t step, logistic *out) {
    char name[80];
    hy_safetensors *file;
    snprintf(name, sizeof name, "run/checkpoint-%d/weights.safetensors", (int)step);
    must(hy_safetensors_open(path_in(name), &file));
    must(hy_safetensors_read(file, hy_safetensors_find(file, "weights"), 0, out->weights,
                             sizeof out->weights));
    must(hy_safetensors_read(file, hy_safetensors_find(file, "bias"), 0, out->bias,
                             sizeof out->bias));
    hy_safetensors_close(file);
}

static void must_be_rounded(const logistic *master) {
    for (int j = 0; j < FEATURES; j++) {
        ck_assert_uint_eq(low[j], hy_f32_to_bf16(master->weights[j]));
    }
    ck_assert_uint_eq(low[FEATURES], hy_f32_to_bf16(master->bias[0]));
}

START_TEST(weights_of_16_bits_are_the_rounded_master_after_every_verdict) {
    hy_parameter list[2];
    is_low = true;
    hy_loop_options options = task(list);
    const char *const *keys = KEYS("predictor", "outer", "steps", "90", "tail_share", "0.3");
    hy_loop *loop = open_loop(&options, keys, "out", path_in("run"));
    int64_t looks = 0;
    hy_summary s;
    for (hy_loop_step step = next_step(loop); !step.is_over; step = next_step(loop)) {
        logistic master;
        if (step.todo == HY_DO_GRADIENTS && step.phase != HY_WARMUP) {
            must(hy_loop_save(loop));
            read_master(step.step, &master);
            must_be_rounded(&master);
        }
        looks += step.todo == HY_DO_LOSS;
        bool is_refused = step.todo == HY_DO_LOSS && looks % 12 == 4;
        must(hy_loop_answer(loop, is_refused ? NAN : loss_of(&step), BATCH));
    }
    hy_trainer_summary(hy_loop_trainer(loop), &s);
    ck_assert_int_gt(s.moves, 1);
    ck_assert_int_gt(s.rejected_moves, 1);
    hy_loop_destroy(loop);
}
END_TEST

static hy_status look(int64_t batch, double scale, logistic *into, double *sum, int64_t *counted) {
    widen();
    gradient = nothing;
    *sum = loss_sum(&learned, batch * BATCH, BATCH, scale, into);
    if (into) narrow_gradient();
    *counted = BATCH;
    return HY_OK;
}

static hy_status forward(void *user, int64_t batch, double *sum, int64_t *counted) {
    (void)user;
    return look(batch, 1, NULL, sum, counted);
}

static hy_status backward(void *user, int64_t batch, double scale, double *sum, int64_t *counted) {
    (void)user;
    return look(batch, scale, &gradient, sum, counted);
}

/* Between steps, too: after a jump, and when a run is resumed. */
START_TEST(weights_of_16_bits_are_current_whenever_a_call_returns) {
    hy_parameter list[2];
    is_low = true;
    hy_own_model model = {
        .parameters = task(list).parameters, .forward = forward, .backward = backward};
    hy_config *config = config_of(KEYS("predictor", "outer"), "out", path_in("run"));
    hy_trainer *trainer;
    hy_step_info info = {0};
    logistic master;
    forget();
    must(hy_trainer_create_own(config, &model, NULL, &trainer));
    while (info.phase != HY_PREDICT || info.was_rejected) must(hy_trainer_step(trainer, &info));
    must(hy_trainer_save(trainer));
    read_master(info.step, &master);
    must_be_rounded(&master);
    hy_trainer_destroy(trainer);
    must(hy_config_set(config, "resume", path_in("run"), HY_FROM_CALLER));
    forget();
    must(hy_trainer_create_own(config, &model, NULL, &trainer));
    must_be_rounded(&master);
    hy_trainer_destroy(trainer);
    hy_config_destroy(config);
}
END_TEST

/* ---- validation ------------------------------------------------------------------------------ */

/* Honest answers until gradients of this phase are asked for, or, for Predict, its first loss. */
static hy_loop_step answer_until(hy_loop *loop, hy_phase phase) {
    hy_todo todo = phase == HY_PREDICT ? HY_DO_LOSS : HY_DO_GRADIENTS;
    for (;;) {
        hy_loop_step step = next_step(loop);
        ck_assert(!step.is_over);
        if (step.phase == phase && step.todo == todo) return step;
        must(hy_loop_answer(loop, loss_of(&step), BATCH));
    }
}

/* The weights wait in the snapshot while the average is looked at: not while it is there to undo a
 * jump. */
START_TEST(a_jump_can_be_undone_though_the_average_is_validated) {
    hy_parameter list[2];
    hy_loop_options options = task(list);
    const char *const *keys = KEYS("predictor", "outer", "tail_share", "0.9", "eval_every", "1");
    hy_loop *loop = open_loop(&options, keys, NULL, NULL);
    answer_until(loop, HY_PREDICT);
    answer_until(loop, HY_CORRECT);
    answer_until(loop, HY_FULL);
    answer_until(loop, HY_PREDICT);
    logistic before = learned;
    hy_loop_step step = answer_until(loop, HY_CORRECT);
    must(hy_loop_answer(loop, loss_of(&step), BATCH)); /* the first of two goes well */
    step = answer_until(loop, HY_CORRECT);
    loss_of(&step);
    must(hy_loop_answer(loop, 3, BATCH));
    answer_until(loop, HY_FULL);
    ck_assert_mem_eq(&before, &learned, sizeof before);
    hy_loop_destroy(loop);
}
END_TEST

START_TEST(a_resumed_loop_knows_its_best_validation) {
    hy_parameter list[2];
    hy_loop_options options = task(list);
    const char *const *keys = KEYS("predictor", "none", "eval_every", "5", "early_stop", "100");
    hy_summary before, after;
    hy_loop *loop = open_loop(&options, keys, "out", path_in("run"));
    for (hy_loop_step step = next_step(loop); step.step < 32; step = next_step(loop)) {
        double loss = loss_of(&step);
        must(hy_loop_answer(loop, step.todo == HY_DO_EVALUATE && step.step > 12 ? 9 : loss, BATCH));
    }
    must(hy_loop_stop(loop));
    hy_trainer_summary(hy_loop_trainer(loop), &before);
    hy_loop_destroy(loop);
    ck_assert_int_eq(before.best_val_step, 10);
    loop = open_loop(&options, keys, "resume", path_in("run"));
    hy_trainer_summary(hy_loop_trainer(loop), &after);
    ck_assert_int_eq(after.best_val_step, 10);
    ck_assert(after.best_val_loss == before.best_val_loss);
    hy_loop_destroy(loop);
    /* Four were no better: the fifth ends it. */
    keys = KEYS("predictor", "none", "eval_every", "5", "early_stop", "5");
    loop = open_loop(&options, keys, "resume", path_in("run"));
    for (hy_loop_step step = next_step(loop); !step.is_over; step = next_step(loop)) {
        ck_assert_int_le(step.step, 35);
        double loss = loss_of(&step);
        must(hy_loop_answer(loop, step.todo == HY_DO_EVALUATE ? 9 : loss, BATCH));
    }
    hy_trainer_summary(hy_loop_trainer(loop), &after);
    ck_assert(after.is_stopped_early && after.steps == 35);
    hy_loop_destroy(loop);
}
END_TEST

/* ---- lists of parameters --------------------------------------------------------------------- */

#define CELLS 24

typedef struct cells {
    float a[CELLS], b[CELLS], c[CELLS], d[CELLS];
} cells;

static cells numbers, slopes;

static void list_cells(hy_parameter list[4]) {
    list[0] = (hy_parameter){
        .name = "a", .weights = numbers.a, .grads = slopes.a, .ndim = 3, .shape = {2, 3, 4}};
    list[1] = (hy_parameter){
        .name = "b", .weights = numbers.b, .grads = slopes.b, .ndim = 1, .shape = {5}};
    list[2] = (hy_parameter){.name = "c", .weights = numbers.c, .grads = slopes.c, .ndim = 0};
    list[3] = (hy_parameter){
        .name = "d", .weights = numbers.d, .grads = slopes.d, .ndim = 1, .shape = {2}};
}

static hy_status run_cells(const hy_loop_options *options, const char *const *keys) {
    hy_config *config = config_with(keys);
    hy_loop *loop;
    hy_status status = hy_loop_create(config, options, NULL, &loop);
    for (int i = 0; status == HY_OK && !next_step(loop).is_over; i++) {
        for (int j = 0; j < CELLS; j++) slopes.a[j] = slopes.b[j] = slopes.c[j] = (float)(i + j);
        status = hy_loop_answer(loop, 1, 1);
    }
    char message[1024];
    snprintf(message, sizeof message, "%s", hy_error_message());
    hy_loop_destroy(loop);
    hy_config_destroy(config);
    return status == HY_OK ? HY_OK : hy_fail(status, "%s", message);
}

START_TEST(a_run_of_other_parameters_is_refused_and_changes_nothing) {
    static const char *const refusals[] = {"it has no tensor e",
                                           "the shape of b is (5), in this model (6)",
                                           "the shape of a is (2, 3, 4), in this model (2, 3, 2)",
                                           "it has no tensor d",
                                           "this model does not have c",
                                           "for optimizer sgd",
                                           "the shape of a is (2, 3, 4), in this model (6, 4)"};
    hy_parameter list[4];
    hy_loop_options options = {.parameters = {.list = list, .count = 3}};
    list_cells(list);
    must(run_cells(&options, KEYS("predictor", "none", "steps", "3", "out", path_in("run"))));
    cells after = numbers;
    if (_i == 0) list[1].name = "e";
    if (_i == 1) list[1].shape[0] = 6;
    if (_i == 2) list[0].shape[2] = 2;
    if (_i == 3 || _i == 4) options.parameters.count += _i == 3 ? 1 : -1;
    if (_i == 6) list[0].ndim = 2, list[0].shape[0] = 6, list[0].shape[1] = 4;
    numbers = slopes = (cells){{1}, {2}, {3}, {4}};
    cells before = numbers;
    const char *const *keys = KEYS("predictor", "none", "steps", "6", "resume", path_in("run"),
                                   "optimizer", _i == 5 ? "sgd" : "adamw");
    must_fail(run_cells(&options, keys), HY_ERR_INPUT, refusals[_i]);
    ck_assert_mem_eq(&before, &numbers, sizeof before);
    list_cells(list);
    options.parameters.count = 3;
    must(run_cells(&options, KEYS("predictor", "none", "steps", "3", "resume", path_in("run"))));
    ck_assert_mem_eq(numbers.a, after.a, sizeof after.a); /* it is over already */
}
END_TEST

/* A single number is saved as it was given; either way can be gone on with as the other. */
START_TEST(a_parameter_may_have_no_dimension) {
    hy_parameter list[4];
    hy_loop_options options = {.parameters = {.list = list, .count = 3}};
    hy_safetensors *file;
    list_cells(list);
    list[1].ndim = _i;
    list[1].shape[0] = 1;
    must(run_cells(&options, KEYS("predictor", "none", "steps", "3", "out", path_in("run"))));
    must(hy_safetensors_open(path_in("run/checkpoint-3/weights.safetensors"), &file));
    ck_assert_int_eq(hy_safetensors_find(file, "b")->ndim, _i);
    hy_safetensors_close(file);
    cells after = numbers;
    for (list[1].ndim = 0; list[1].ndim < 2; list[1].ndim++) {
        numbers = (cells){{1}, {2}, {3}, {4}};
        must(
            run_cells(&options, KEYS("predictor", "none", "steps", "3", "resume", path_in("run"))));
        ck_assert(numbers.b[0] == after.b[0] && after.b[0] != 2);
    }
}
END_TEST

START_TEST(names_that_no_file_can_have_are_refused_at_once) {
    static const char *const odd[][3] = {{"__metadata__", "b", "cannot be the name"},
                                         {"\xff\xfe", "b", "cannot be the name"},
                                         {"w", "w.scale", "parameter w conflicts with w.scale"},
                                         {"same", "same", "two parameters have the name same"},
                                         {"a \"quoted\" \\ name", "new\nline", NULL},
                                         {"caf\xc3\xa9", "..", NULL}};
    hy_parameter list[4];
    hy_loop_options options = {.parameters = {.list = list, .count = 2}};
    list_cells(list);
    list[0].name = odd[_i][0];
    list[1].name = odd[_i][1];
    const char *const *keys = KEYS("predictor", "none", "steps", "2", "out", path_in("run"));
    if (odd[_i][2]) {
        must_fail(run_cells(&options, keys), HY_ERR_INPUT, odd[_i][2]);
        return;
    }
    must(run_cells(&options, keys));
    must(run_cells(&options, KEYS("predictor", "none", "steps", "4", "resume", path_in("run"))));
}
END_TEST

/* Where they are summed here, too: they are read at once. */
START_TEST(gradients_that_cannot_be_read_are_refused_by_name) {
    hy_parameter list[4];
    hy_loop_options options = {.parameters = {.list = list, .count = 2, .sums_gradients = _i == 1}};
    list_cells(list);
    list[1].grads = (char *)slopes.b + 1;
    must_fail(run_cells(&options, KEYS("predictor", "none", "steps", "2")), HY_ERR_INPUT,
              "the gradients of parameter b begin at an address");
}
END_TEST

START_TEST(programs_that_cannot_use_a_custom_run_say_why) {
    static const char words[] = "is a checkpoint of a custom model or loop";
    hy_parameter list[4];
    hy_loop_options options = {.parameters = {.list = list, .count = 3}};
    hy_export_options exported = {.out = path_in("model")};
    hy_trainer *trainer;
    hy_inference *model;
    list_cells(list);
    must(run_cells(&options, KEYS("predictor", "none", "steps", "3", "out", path_in("run"))));
    must_fail(hy_export(path_in("run"), &exported, NULL), HY_ERR_INPUT, words);
    hy_config *config = config_of(KEYS("predictor", "none"), "resume", path_in("run"));
    must_fail(hy_trainer_create(config, NULL, &trainer), HY_ERR_INPUT, words);
    hy_config_destroy(config);
    must(hy_config_create(&config));
    must(hy_config_use_model(config, path_in("run")));
    must_fail(hy_inference_open(config, NULL, NULL, &model), HY_ERR_INPUT, words);
    hy_config_destroy(config);
}
END_TEST

/* Words of a file become others of the same length. */
static void replace_in(const char *path, const char *old, const char *new) {
    char *text;
    size_t size;
    must(hy_file_read(path, &text, &size));
    char *at = memmem(text, size, old, strlen(old));
    ck_assert_ptr_nonnull(at);
    memcpy(at, new, strlen(new));
    FILE *file = fopen(path, "wb");
    ck_assert_uint_eq(fwrite(text, 1, size, file), size);
    ck_assert_int_eq(fclose(file), 0);
    free(text);
}

START_TEST(a_plan_of_a_custom_run_uses_its_shapes) {
    hy_parameter list[4];
    hy_loop_options options = {.parameters = {.list = list, .count = 3}};
    hy_trainer *expected, *found;
    hy_summary a, b;
    list_cells(list);
    must(run_cells(&options, KEYS("predictor", "none", "steps", "3", "out", path_in("run"))));
    hy_config *config;
    must(hy_config_create(&config));
    must(hy_config_load_run(config, path_in("run")));
    must(hy_config_set(config, "resume", path_in("run"), HY_FROM_CALLER));
    must(hy_trainer_plan_own(config, &options.parameters, NULL, &expected));
    must(hy_trainer_plan(config, NULL, &found));
    hy_trainer_summary(expected, &a);
    hy_trainer_summary(found, &b);
    ck_assert_str_eq(b.model, "own");
    ck_assert_int_eq(b.parameters, a.parameters);
    ck_assert_int_eq(b.steps_total, 3);
    ck_assert_mem_eq(&b.phases[HY_FULL].memory, &a.phases[HY_FULL].memory,
                     sizeof a.phases[HY_FULL].memory);
    ck_assert_uint_eq(b.checkpoint_bytes, a.checkpoint_bytes);
    hy_trainer_destroy(expected);
    hy_trainer_destroy(found);
    /* As versions wrote it that did not note the types. */
    replace_in(path_in("run/checkpoint-3/trainer.json"), "own_parameters", "own_xxxxxxxxxx");
    must_fail(hy_trainer_plan(config, NULL, &found), HY_ERR_INPUT, "--plan-shapes");
    must(hy_config_set(config, "resume", folder, HY_FROM_CALLER));
    must_fail(hy_trainer_plan(config, NULL, &found), HY_ERR_INPUT, "no checkpoint in");
    hy_config_destroy(config);
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("own_trouble");
    TCase *tests = tcase_create("own_trouble");
    tcase_add_checked_fixture(tests, set_up, tear_down);
    tcase_set_timeout(tests, 120);
    tcase_add_loop_test(tests, gradients_that_we_sum_may_lie_anywhere, 0, 2);
    tcase_add_loop_test(tests, a_master_copy_may_lie_anywhere, 0, 2);
    tcase_add_loop_test(tests, a_loop_that_is_stopped_in_any_question_goes_on_to_the_same_bits, 0,
                        2);
    tcase_add_loop_test(tests, a_high_loss_in_the_last_step_is_an_outlier, 0, 2);
    tcase_add_test(tests, an_arm_of_a_paired_test_is_not_saved);
    tcase_add_loop_test(tests, a_loop_that_is_killed_again_and_again_goes_on_to_the_same_bits, 0,
                        2);
    tcase_add_test(tests, weights_of_16_bits_are_the_rounded_master_after_every_verdict);
    tcase_add_test(tests, weights_of_16_bits_are_current_whenever_a_call_returns);
    tcase_add_test(tests, a_jump_can_be_undone_though_the_average_is_validated);
    tcase_add_test(tests, a_resumed_loop_knows_its_best_validation);
    tcase_add_loop_test(tests, a_run_of_other_parameters_is_refused_and_changes_nothing, 0, 7);
    tcase_add_loop_test(tests, a_parameter_may_have_no_dimension, 0, 2);
    tcase_add_loop_test(tests, names_that_no_file_can_have_are_refused_at_once, 0, 6);
    tcase_add_loop_test(tests, gradients_that_cannot_be_read_are_refused_by_name, 0, 2);
    tcase_add_test(tests, a_plan_of_a_custom_run_uses_its_shapes);
    tcase_add_test(tests, programs_that_cannot_use_a_custom_run_say_why);
    suite_add_tcase(suite, tests);
    return suite;
}

HY_TEST_MAIN(make_suite)
