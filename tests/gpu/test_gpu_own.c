/* test_gpu_own.c: a custom loop with weights and gradients on the card.
 *
 * The caller computes on the host and copies on the default stream; the library's side is
 * tested. */
#include "gpu/gpu_harness.h"

#include "own_rig.h"

#define BATCH 32
#define ROOM 256 /* bytes of one tensor */

static char *card;              /* weights, bias and their gradients, ROOM bytes each */
static hy_parameter on_card[2]; /* fp32 */
static char folder[256];

static void *at(int tensor) { return card + (size_t)tensor * ROOM; }

static void set_up(void) {
    temp_folder(folder);
    must(gpu.backend->alloc(gpu.backend, HY_DEVICE, 4 * ROOM, (void **)&card));
    for (int i = 0; i < 2; i++) {
        on_card[i] = parameters[i];
        on_card[i].weights = at(i);
        on_card[i].grads = at(2 + i);
    }
}

static void tear_down(void) {
    gpu.backend->release(gpu.backend, HY_DEVICE, card, 4 * ROOM);
    remove_folder(folder);
}

static void copy(void *to, const void *from, size_t bytes) {
    must(gpu.backend->copy(gpu.stream, to, from, bytes));
    must(gpu.backend->stream_sync(gpu.stream));
}

static void fetch_weights(void) {
    copy(learned.weights, at(0), sizeof learned.weights);
    copy(learned.bias, at(1), sizeof learned.bias);
}

static void send(const logistic *numbers, int first) {
    copy(at(first), numbers->weights, sizeof numbers->weights);
    copy(at(first + 1), numbers->bias, sizeof numbers->bias);
}

static hy_loop *loop_on_card(const char *const *pairs) {
    hy_loop_options options = {.parameters = {.list = on_card, .count = 2}};
    hy_config *config = config_with(pairs);
    hy_loop *loop;
    must(hy_config_set(config, "device", "cuda", HY_FROM_CALLER));
    send(&nothing, 0);
    must(hy_loop_create(config, &options, NULL, &loop));
    hy_config_destroy(config);
    return loop;
}

static bool answer_one(hy_loop *loop) {
    hy_loop_step step;
    must(hy_loop_next(loop, &step));
    if (step.is_over) return false;
    bool wants = step.todo == HY_DO_GRADIENTS;
    fetch_weights();
    gradient = nothing;
    double loss = loss_sum(&learned, step.batch * BATCH, BATCH, 1.0 / BATCH, &gradient) / BATCH;
    if (wants) send(&gradient, 2);
    must(hy_loop_answer(loop, loss, BATCH));
    return true;
}

static logistic learn(const char *const *pairs) {
    hy_loop *loop = loop_on_card(pairs);
    while (answer_one(loop)) continue;
    hy_loop_destroy(loop);
    fetch_weights();
    return learned;
}

START_TEST(a_loop_learns_on_the_card_wherever_its_state_lives) {
    static const char *const places[][2] = {{"optim_place", "device"},
                                            {"optim_place", "pinned"},
                                            {"optim_place", "disk"},
                                            {"offload_strategy", "pinned"}};
    static logistic first;
    logistic found =
        learn(KEYS("predictor", "outer", places[_i][0], places[_i][1], "offload_folder", folder));
    ck_assert_double_lt(held_out_loss(&found), held_out_loss(&truth) + 0.02);
    if (_i == 0) first = found;
    ck_assert_mem_eq(&first, &found, sizeof first);
}
END_TEST

START_TEST(a_loop_on_the_card_goes_on_to_the_same_bits) {
    char out[300];
    snprintf(out, sizeof out, "%s/run", folder);
    logistic expected = learn(KEYS("predictor", "outer"));
    hy_loop *loop = loop_on_card(KEYS("predictor", "outer", "out", out));
    for (int i = 0; i < 117; i++) answer_one(loop);
    must(hy_loop_stop(loop));
    hy_loop_destroy(loop);
    logistic found = learn(KEYS("predictor", "outer", "resume", out));
    ck_assert_mem_eq(&expected, &found, sizeof expected);
}
END_TEST

START_TEST(memory_that_the_card_does_not_reach_is_refused_by_name) {
    hy_config *config = config_with(KEYS("device", "cuda"));
    hy_loop *loop;
    hy_loop_options options = {.parameters = {.list = parameters, .count = 2}};
    must_fail(hy_loop_create(config, &options, NULL, &loop), HY_ERR_INPUT,
              "the weights of parameter weights");
    options.parameters.list = on_card;
    on_card[1].weights = (char *)at(1) + 4;
    must_fail(hy_loop_create(config, &options, NULL, &loop), HY_ERR_INPUT, "multiple of 16 bytes");
    on_card[1].weights = at(1);
    on_card[1].grads = gradient.bias;
    must_fail(hy_loop_create(config, &options, NULL, &loop), HY_ERR_INPUT,
              "the gradients of parameter bias");
    hy_config_destroy(config);
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("gpu_own");
    TCase *tests = tcase_create("gpu_own");
    tcase_set_timeout(tests, 120);
    tcase_add_checked_fixture(tests, set_up, tear_down);
    tcase_add_loop_test(tests, a_loop_learns_on_the_card_wherever_its_state_lives, 0, 4);
    tcase_add_test(tests, a_loop_on_the_card_goes_on_to_the_same_bits);
    tcase_add_test(tests, memory_that_the_card_does_not_reach_is_refused_by_name);
    suite_add_tcase(suite, tests);
    return suite;
}

GPU_TEST_MAIN(make_suite)
