/* test_gpu_generate.c: a generator on CUDA: answers have the same bits alone and among others, and
 * log-probabilities as on a CPU; attention and linear attention. */
#include "gpu_harness.h"

#include <math.h>

#include "generate_rig.h"

enum { PLAIN, LINEAR, STATES, ODD, MODELS };
enum { FP32, BF16, TYPES };

static const char *const names[MODELS] = {"plain", "linear", "states", "odd"};
static const char *const types[TYPES] = {"fp32", "bf16"};

#define SIZES(key, value)                                                                          \
    "architecture", "qwen3_5_text", "layers", "4", "width", "64", "arch_options",                  \
        "{\"linear_num_key_heads\": 2, \"linear_num_value_heads\": 4, "                            \
        "\"full_attention_interval\": 2, \"linear_key_head_dim\": " key                            \
        ", \"linear_value_head_dim\": " value "}"

static void make_models(void) {
    temp_folder(rig_folder);
    make_run("plain", NULL);
    make_run("linear", PAIRS(SIZES("128", "128")));
    make_run("states", PAIRS(ALL_LINEAR));
    make_run("odd", PAIRS(SIZES("20", "36")));
}

static void remove_models(void) { remove_folder(rig_folder); }

static const char *card(void) {
    const char *device = getenv("HYBRID_GPU_TESTS_DEVICE");
    return device ? device : "cuda";
}

static hy_generator *open_on_card(int model, int type, int32_t streams) {
    return open_run(
        names[model],
        PAIRS("device", card(), "precision", types[type], "tune", "off", "tune_cache", "none"),
        (hy_generator_options){.streams = streams});
}

/* ---- alone and among others ------------------------------------------------------------------ */

enum { COMPANY = 30 };

static void run_numbers(hy_generator *g, const int *numbers, int count, heard *all) {
    int32_t prompt[CONTEXT];
    for (int i = 0; i < count; i++) ask(g, numbered(numbers[i], prompt), &all[i]);
    must(hy_generator_run(g));
}

/* Thirty in sixteen slots, some of them cancelled; then each of a few with nobody else. */
START_TEST(an_answer_has_the_same_bits_alone_and_among_others) {
    static heard among[COMPANY], alone;
    static const int compared[] = {0, 3, 5, 13, 21, 29};
    int numbers[COMPANY], reused = 0;
    hy_generator *g = open_on_card(_i / TYPES, _i % TYPES, 16);
    for (int i = 0; i < COMPANY; i++) {
        numbers[i] = i;
        if (i % 4 == 2) among[i].cancel_at = 1 + i % 5;
    }
    run_numbers(g, numbers, COMPANY, among);
    for (int i = 0; i < COMPANY; i++) reused += among[i].last.reused_tokens > 0;
    ck_assert_int_gt(reused, 0);
    hy_generator_close(g);
    for (size_t i = 0; i < sizeof compared / sizeof compared[0]; i++) {
        g = open_on_card(_i / TYPES, _i % TYPES, 3);
        run_numbers(g, &compared[i], 1, &alone);
        check_same(&among[compared[i]], &alone);
        unhear(&alone);
        hy_generator_close(g);
    }
    for (int i = 0; i < COMPANY; i++) unhear(&among[i]);
}
END_TEST

START_TEST(answers_of_one_request_are_those_of_its_seeds) {
    static heard one[4];
    static heard_answers several;
    int32_t prompt[CONTEXT];
    draw_prompt(8, 300, prompt);
    hy_request request = {.tokens = prompt,
                          .token_count = 300,
                          .max_tokens = 25,
                          .temperature = 1,
                          .seed = 70,
                          .ignores_end = true};
    hy_generator *g = open_on_card(_i / TYPES, _i % TYPES, 6);
    ask_several(g, request, 4, &several);
    must(hy_generator_run(g));
    for (int i = 0; i < 4; i++) {
        request.seed = 70 + (uint64_t)i;
        ask(g, request, &one[i]);
    }
    must(hy_generator_run(g));
    for (int i = 0; i < 4; i++) check_same(&several.answers[i], &one[i]);
    for (int i = 0; i < 4; i++) unhear(&one[i]), unhear(&several.answers[i]);
    hy_generator_close(g);
}
END_TEST

/* ---- against a CPU --------------------------------------------------------------------------- */

/* The prompt, taken in chunks, and the answer, in steps, while both choose the same likeliest token.
 * The mean distance is that of the number type: the CPU's are in fp32. */
START_TEST(log_probabilities_are_those_of_a_cpu) {
    static const double bounds[TYPES] = {2e-5, 0.1};
    static heard here, there;
    int32_t prompt[CONTEXT];
    draw_prompt(3, 401, prompt);
    hy_request request = {
        .tokens = prompt, .token_count = 401, .max_tokens = 60, .wants_prompt_logprobs = true};
    hy_generator *g = open_on_card(_i / TYPES, _i % TYPES, 2);
    ask(g, request, &here);
    must(hy_generator_run(g));
    hy_generator_close(g);
    g = open_run(names[_i / TYPES], NULL, (hy_generator_options){.streams = 2});
    ask(g, request, &there);
    must(hy_generator_run(g));
    hy_generator_close(g);
    double sum = 0;
    int count = 0;
    ck_assert_int_eq(here.prompt_count, 401);
    for (int i = 1; i < 401; i++, count++)
        sum += fabs((double)here.prompt[i] - (double)there.prompt[i]);
    for (int i = 0; i < here.count && here.tokens[i] == there.tokens[i]; i++, count++)
        sum += fabs((double)here.logprobs[i] - (double)there.logprobs[i]);
    ck_assert_int_gt(count, 401);
    ck_assert_msg(sum / count < bounds[_i % TYPES], "%s in %s: %.2e apart", names[_i / TYPES],
                  types[_i % TYPES], sum / count);
    unhear(&here);
    unhear(&there);
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("cuda: generate");
    TCase *all = tcase_create("generate");
    tcase_set_timeout(all, 300);
    tcase_add_unchecked_fixture(all, make_models, remove_models);
    tcase_add_loop_test(all, an_answer_has_the_same_bits_alone_and_among_others, 0, MODELS * TYPES);
    tcase_add_loop_test(all, answers_of_one_request_are_those_of_its_seeds, 0, MODELS * TYPES);
    tcase_add_loop_test(all, log_probabilities_are_those_of_a_cpu, 0, MODELS * TYPES);
    suite_add_tcase(suite, all);
    return suite;
}

GPU_TEST_MAIN(make_suite)
