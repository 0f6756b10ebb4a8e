/* test_own_card.c: a loop with units beside its caller's memory on a card (fake_card.h). */
#include "fake_card.h"
#include "own_config.h"

#include "engine/engine.h"
#include "trainer/trainer.h"

#define UNITS 8
#define WIDTH ((int64_t)1 << 20)
#define MIB ((uint64_t)1 << 20)
#define RESERVE (256 * MIB) /* of the card, which stays free */

/* Weights, gradients and state of a unit are 16 MiB. */
static hy_loop *new_loop(int64_t caller_bytes, uint64_t caller_held) {
    static const int32_t unit_of[UNITS] = {0, 1, 2, 3, 4, 5, 6, 7};
    static const char *const names[UNITS] = {"a", "b", "c", "d", "e", "f", "g", "h"};
    hy_parameter list[UNITS] = {0};
    hy_loop_options options = {.parameters = {.list = list, .count = UNITS},
                               .unit_of = unit_of,
                               .caller_bytes = caller_bytes,
                               .caller_held = caller_held};
    hy_config *config = config_with(KEYS("device", "cuda", "predictor", "none"));
    hy_loop *loop;
    for (int i = 0; i < UNITS; i++) {
        list[i] = (hy_parameter){.name = names[i], .ndim = 2, .shape = {1, WIDTH}};
    }
    must(hy_loop_create(config, &options, NULL, &loop));
    hy_config_destroy(config);
    return loop;
}

static uint64_t planned(hy_loop *loop) {
    hy_plan_facts facts;
    hy_trainer_plan_facts(hy_loop_trainer(loop), &facts);
    return facts.vram_bytes;
}

/* The caller needs more than it has now; meanwhile a driver has loaded its code. */
START_TEST(a_plan_during_a_run_counts_what_the_caller_has_now) {
    const uint64_t has = 40 * MIB, needs = 500 * MIB, driver = 300 * MIB;
    card.memory_free = 900 * MIB;
    card.others = 0;
    hy_loop *loop = new_loop(-1, 0);
    card.others = has + driver;
    must(hy_loop_plan_again(loop, (int64_t)needs, has));
    ck_assert_uint_gt(planned(loop), needs);
    ck_assert_uint_le(planned(loop), card.memory_free - driver);
    hy_loop_destroy(loop);
}
END_TEST

/* What the caller has beyond the bytes that the plan counts is not for the library. */
START_TEST(memory_that_the_caller_occupies_is_not_planned) {
    const uint64_t has = 200 * MIB, needs = 100 * MIB;
    card.memory_free = 560 * MIB;
    card.others = has;
    hy_loop *loop = new_loop((int64_t)needs, has);
    ck_assert_uint_gt(planned(loop), needs);
    ck_assert_uint_le(planned(loop), card.memory_free - has + needs - RESERVE);
    hy_loop_destroy(loop);
}
END_TEST

static hy_status refuse_copy(hy_stream *stream, void *to, const void *from, size_t bytes) {
    (void)stream, (void)to, (void)from, (void)bytes;
    return hy_fail(HY_ERR_DEVICE, "refused by the test");
}

START_TEST(quantised_weights_of_a_failed_write_are_not_used) {
    static float numbers[8 * 64];
    hy_parameter list[] = {{.name = "a", .ndim = 2, .shape = {8, 64}, .is_frozen = true},
                           {.name = "b", .ndim = 1, .shape = {64}}};
    hy_loop_options options = {.parameters = {.list = list, .count = 2},
                               .unit_of = (const int32_t[]){0, 0}};
    hy_config *config =
        config_with(KEYS("device", "cuda", "predictor", "none", "frozen_dtype", "nf4"));
    void *weights[2];
    hy_loop *loop;
    card.memory_free = CARD_BYTES;
    card.others = 0;
    must(hy_loop_create(config, &options, NULL, &loop));
    must(hy_loop_write_weights(loop, 0, 0, 8 * 64, numbers));
    must(hy_loop_hold(loop, 0, weights));
    must(hy_loop_release(loop, 0));
    hy_backend *backend = hy_loop_trainer(loop)->engine->device.backend;
    backend->copy = refuse_copy;
    must_fail(hy_loop_write_weights(loop, 0, 0, 8 * 64, numbers), HY_ERR_DEVICE, "refused");
    backend->copy = card_copy;
    must_fail(hy_loop_hold(loop, 0, weights), HY_ERR_STATE, "a has no weights");
    hy_loop_destroy(loop);
    hy_config_destroy(config);
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("own_card");
    TCase *tests = tcase_create("own_card");
    tcase_set_timeout(tests, 120);
    tcase_add_test(tests, a_plan_during_a_run_counts_what_the_caller_has_now);
    tcase_add_test(tests, memory_that_the_caller_occupies_is_not_planned);
    tcase_add_test(tests, quantised_weights_of_a_failed_write_are_not_used);
    suite_add_tcase(suite, tests);
    return suite;
}

HY_TEST_MAIN(make_suite)
