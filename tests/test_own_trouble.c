/* test_own_trouble.c: loops and models of the caller's own that are stopped, killed and resumed in every kind of
 * question, with weights of 32 and 16 bits and with state in every place. */
#include "own_rig.h"

#include "formats/safetensors.h"
#include "kernels/half.h"
#include "trainer/trainer.h"

#define BATCH 32

static char folder[256];

/* ---- a task whose memory has either width ----------------------------------------------------------- */

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

/* ---- where gradients and master weights lie -------------------------------------------------------- */

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

static Suite *make_suite(void) {
    Suite *suite = suite_create("own_trouble");
    TCase *tests = tcase_create("own_trouble");
    tcase_add_checked_fixture(tests, set_up, tear_down);
    tcase_set_timeout(tests, 120);
    tcase_add_loop_test(tests, gradients_that_we_sum_may_lie_anywhere, 0, 2);
    tcase_add_loop_test(tests, a_master_copy_may_lie_anywhere, 0, 2);
    suite_add_tcase(suite, tests);
    return suite;
}

HY_TEST_MAIN(make_suite)
