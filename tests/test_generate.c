/* test_generate.c: a generator's answers are those of the model, alone and among others.
 *
 * Small random models of every kind: learned positions, windows in some and in all layers, linear
 * attention in some and in all layers, a quantised base with adapters, weights that stream. */
#include "generate_rig.h"

#include <math.h>

enum { PLAIN, LEARNED, MIXED, WINDOW, LINEAR, STATES, ADAPTED, NF4, LINEAR_NF4, MODELS };

static const char *const names[MODELS] = {"plain",  "learned", "mixed", "window",    "linear",
                                          "states", "adapted", "nf4",   "linear-nf4"};

static void make_models(void) {
    temp_folder(rig_folder);
    make_run("plain", NULL);
    make_run("learned", PAIRS("positions", "learned", "norm", "layernorm", "activation", "gelu",
                              "qkv_bias", "true", "proj_bias", "true", "kv_heads", "4"));
    make_run("mixed", PAIRS("sliding_window", "37", "sliding_layers", "fs"));
    make_run("window", PAIRS("sliding_window", "37"));
    make_run("adapted",
             PAIRS("lora", "true", "lora_rank", "4", "frozen_dtype", "int8", "lr", "0.1"));
    make_run("linear", PAIRS(SOME_LINEAR));
    make_run("states", PAIRS(ALL_LINEAR));
    make_run("linear-nf4", PAIRS(SOME_LINEAR, "qlora", "true", "lora_rank", "4", "lr", "0.1"));
    make_run("deep", PAIRS("layers", "16", "sliding_window", "37", "sliding_layers", "ffs"));
    make_run("nf4", PAIRS("qlora", "true", "lora_rank", "4", "lr", "0.1"));
}

static void remove_models(void) { remove_folder(rig_folder); }

/* ---- against other passes over the model ----------------------------------------------------- */

static void keep_text(void *user, const char *text, size_t size) {
    hy_text_add_bytes(user, text, size);
}

/* The likeliest tokens of the decoder for one sequence; where two are nearly alike, both may. */
START_TEST(greedy_answers_are_those_of_the_decoder_for_one_sequence) {
    static const char prompt[] = "The prompt of a test, which is longer than two blocks.";
    hy_generator *g = open_run(names[_i], NULL, (hy_generator_options){.top_logprobs = 2});
    hy_config *config = config_of_run(names[_i], NULL);
    hy_inference *in;
    hy_text text = {0};
    static heard h;
    hy_generate_options options = {.max_tokens = 40};
    must(hy_inference_open(config, NULL, NULL, &in));
    must(hy_inference_complete(in, prompt, &options, keep_text, &text, NULL));
    ask(g,
        (hy_request){
            .text = prompt, .text_size = sizeof prompt - 1, .max_tokens = 40, .top_logprobs = 2},
        &h);
    must(hy_generator_run(g));
    size_t same = 0;
    while (same < h.text.size && same < text.size && h.text.data[same] == text.data[same]) same++;
    bool is_tie = (int32_t)same < h.count && h.logprobs[same] - h.top_logprobs[same] < 1e-3f;
    ck_assert(same > 10);
    ck_assert_msg((same == h.text.size && same == text.size) || is_tie,
                  "answers differ from token %zu on, where the likeliest are %g apart", same,
                  (double)(h.logprobs[same] - h.top_logprobs[same]));
    for (int32_t i = 0; i < h.count; i++) ck_assert_int_eq(h.tokens[i], h.top[i]);
    unhear(&h);
    hy_text_free(&text);
    hy_config_destroy(config);
    hy_inference_close(in);
    hy_generator_close(g);
}
END_TEST

/* The loss of the model on a text of one sequence is the mean over its tokens but the first. */
START_TEST(log_probabilities_of_a_prompt_are_those_of_an_evaluation) {
    enum { COUNT = 401 };
    int32_t prompt[COUNT];
    char text[COUNT], path[300];
    static heard h;
    hy_evaluation found;
    draw_prompt(3, COUNT, prompt);
    for (int i = 0; i < COUNT; i++) text[i] = (char)prompt[i];
    snprintf(path, sizeof path, "%s/text", rig_folder);
    must(hy_file_write_atomic(path, text, COUNT));
    hy_config *config =
        config_of_run(names[_i], PAIRS("data", path, "data_format", "bytes", "seq_len", "400"));
    must(hy_evaluate(config, NULL, &found));
    ck_assert_int_eq(found.tokens, COUNT - 1);
    hy_generator *g = open_run(names[_i], NULL, (hy_generator_options){0});
    ask(g,
        (hy_request){
            .tokens = prompt, .token_count = COUNT, .max_tokens = 1, .wants_prompt_logprobs = true},
        &h);
    must(hy_generator_run(g));
    double sum = 0;
    ck_assert_int_eq(h.prompt_count, COUNT);
    ck_assert(isnan(h.prompt[0]));
    for (int i = 1; i < COUNT; i++) sum -= (double)h.prompt[i];
    ck_assert_double_eq_tol(sum / (COUNT - 1), found.loss, 1e-5);
    unhear(&h);
    hy_config_destroy(config);
    hy_generator_close(g);
}
END_TEST

/* ---- alone and among others ------------------------------------------------------------------ */

static void run_alone(const char *name, int number, const char *const *pairs, heard *h) {
    hy_generator *g = open_run(name, pairs, (hy_generator_options){.streams = 3});
    int32_t prompt[CONTEXT];
    ask(g, numbered(number, prompt), h);
    must(hy_generator_run(g));
    hy_generator_close(g);
}

enum { COMPANY = 30 };

/* Thirty in sixteen slots; some are cancelled on the way, and one has four answers. */
START_TEST(an_answer_has_the_same_bits_alone_and_among_others) {
    static heard among[COMPANY], alone, several;
    static const int compared[] = {0, 5, 13, 21, 29};
    int32_t prompt[CONTEXT];
    hy_generator *g = open_run(names[_i], NULL, (hy_generator_options){.streams = 16});
    for (int i = 0; i < COMPANY; i++) {
        if (i % 4 == 2) among[i].cancel_at = 1 + i % 5;
        ask(g, numbered(i, prompt), &among[i]);
    }
    must(hy_generator_run(g));
    int reused = 0;
    for (int i = 0; i < COMPANY; i++) {
        ck_assert_int_eq(among[i].ends, 1);
        if (i % 4 == 2) ck_assert_int_le(among[i].count, 2 + i % 5);
        reused += among[i].last.reused_tokens > 0;
    }
    if (_i == PLAIN || _i == LINEAR || _i == STATES) ck_assert_int_gt(reused, 0);
    for (size_t i = 0; i < sizeof compared / sizeof compared[0]; i++) {
        run_alone(names[_i], compared[i], NULL, &alone);
        check_same(&among[compared[i]], &alone);
        unhear(&alone);
    }
    for (int i = 0; i < COMPANY; i++) unhear(&among[i]);
    unhear(&several);
    hy_generator_close(g);
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
                          .repetition_penalty = 1.1,
                          .seed = 70};
    hy_generator *g = open_run(names[_i], NULL, (hy_generator_options){.streams = 6});
    ask_several(g, request, 4, &several);
    must(hy_generator_run(g));
    for (int i = 0; i < 4; i++) {
        request.seed = 70 + (uint64_t)i;
        ask(g, request, &one[i]);
    }
    must(hy_generator_run(g));
    for (int i = 0; i < 4; i++) check_same(&several.answers[i], &one[i]);
    ck_assert_int_ne(memcmp(one[0].tokens, one[1].tokens, sizeof one[0].tokens), 0);
    for (int i = 0; i < 4; i++) unhear(&one[i]), unhear(&several.answers[i]);
    hy_generator_close(g);
}
END_TEST

/* Chunks of the first prompt begin at 0, 256 and 384, and there are states to go back to. What the
 * model answers does not depend on what it was asked before. */
START_TEST(a_text_goes_back_to_a_state_and_is_continued_alike) {
    static const struct {
        size_t shared;  /* bytes of the first prompt; then comes another letter */
        int32_t reused; /* by a model with states */
    } turns[] = {{400, 0}, {390, 385}, {300, 256}, {300, 285}, {100, 0}, {100, 85}, {400, 85}};
    bool has_states = _i == LINEAR || _i == STATES;
    hy_config *config = config_of_run(names[_i], NULL);
    hy_generate_options options = {.max_tokens = 20};
    hy_inference *in, *fresh;
    hy_generated info;
    char prompt[402];
    must(hy_inference_open(config, NULL, NULL, &in));
    for (size_t i = 0; i < 7; i++) {
        hy_text text = {0}, expected = {0};
        size_t end = turns[i].shared;
        for (size_t k = 0; k < end; k++) prompt[k] = (char)('a' + k * k % 23);
        memcpy(prompt + end, "+", 2);
        must(hy_inference_complete(in, prompt, &options, keep_text, &text, &info));
        if (has_states) ck_assert_int_eq(info.reused_tokens, turns[i].reused);
        must(hy_inference_open(config, NULL, NULL, &fresh));
        must(hy_inference_complete(fresh, prompt, &options, keep_text, &expected, &info));
        ck_assert_int_eq(info.reused_tokens, 0);
        ck_assert_str_eq(hy_text_string(&text), hy_text_string(&expected));
        hy_inference_close(fresh);
        hy_text_free(&text);
        hy_text_free(&expected);
    }
    hy_inference_close(in);
    hy_config_destroy(config);
}
END_TEST

/* As memory becomes less, streams go before the context: it needs no memory here. */
START_TEST(states_that_do_not_fit_take_fewer_streams_and_are_named) {
    hy_generator_facts facts = {.streams = 16};
    hy_generator *g;
    char limit[32];
    for (int kib = 2500; facts.streams == 16; kib -= 50) {
        snprintf(limit, sizeof limit, "%dKiB", kib);
        g = open_run("states", PAIRS("max_gpu_mem", limit), (hy_generator_options){0});
        hy_generator_describe(g, &facts);
        ck_assert_int_eq(facts.context, CONTEXT);
        uint64_t each = 3 * (3 * (2 * 2 * 12 + 4 * 10) + 4 * 12 * 10) * sizeof(float);
        uint64_t states = (uint64_t)(facts.streams + facts.streams / 8 + 1);
        ck_assert_uint_eq(facts.cache_bytes, states * each);
        hy_generator_close(g);
    }
    ck_assert_int_eq(facts.streams, 8);
    hy_config *config = config_of_run("states", PAIRS("max_gpu_mem", "400KiB"));
    must_fail(hy_generator_open(config, &(hy_generator_options){.streams = 7}, NULL, &g),
              HY_ERR_INPUT,
              "(of it 69.8 KiB for the states of 3 layers, 8.7 KiB for each stream), but only");
    hy_config_destroy(config);
}
END_TEST

START_TEST(streamed_weights_give_the_same_bits) {
    static heard resident, streamed;
    hy_generator_facts facts;
    int32_t prompt[CONTEXT];
    hy_generator *g =
        open_run("deep", PAIRS("max_gpu_mem", "1700KiB"), (hy_generator_options){.streams = 3});
    hy_generator_describe(g, &facts);
    ck_assert_int_eq(facts.weights_place, HY_PINNED);
    ck_assert_int_ge(facts.cache_tokens, facts.context);
    ask(g, numbered(7, prompt), &streamed);
    must(hy_generator_run(g));
    run_alone("deep", 7, NULL, &resident);
    check_same(&streamed, &resident);
    unhear(&resident);
    unhear(&streamed);
    hy_generator_close(g);
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("generate");
    TCase *all = tcase_create("generate");
    tcase_add_unchecked_fixture(all, make_models, remove_models);
    tcase_add_loop_test(all, greedy_answers_are_those_of_the_decoder_for_one_sequence, 0, MODELS);
    tcase_add_loop_test(all, log_probabilities_of_a_prompt_are_those_of_an_evaluation, 0, MODELS);
    tcase_add_loop_test(all, an_answer_has_the_same_bits_alone_and_among_others, 0, MODELS);
    tcase_add_loop_test(all, answers_of_one_request_are_those_of_its_seeds, 0, MODELS);
    tcase_add_loop_test(all, a_text_goes_back_to_a_state_and_is_continued_alike, PLAIN, ADAPTED);
    tcase_add_test(all, states_that_do_not_fit_take_fewer_streams_and_are_named);
    tcase_add_test(all, streamed_weights_give_the_same_bits);
    suite_add_tcase(suite, all);
    return suite;
}

HY_TEST_MAIN(make_suite)
