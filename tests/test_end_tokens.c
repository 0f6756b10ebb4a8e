/* test_end_tokens.c: generation ends at every end token that a model folder names. */
#include <unistd.h>

#include "base/file.h"
#include "base/text.h"
#include "harness.h"
#include "hub/end_tokens.h"
#include "hybrid.h"

static char folder[256];

static void make_folder(void) { temp_folder(folder); }
static void drop_folder(void) { remove_folder(folder); }

static void put(const char *name, const char *text) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    must(hy_file_write_atomic(path, text, strlen(text)));
}

static void check_read(int32_t count, int32_t first, int32_t last) {
    hy_end_tokens tokens;
    must(hy_end_tokens_read(folder, &tokens));
    ck_assert_int_eq(tokens.count, count);
    if (count == 0) return;
    ck_assert_int_eq(tokens.ids[0], first);
    ck_assert_int_eq(tokens.ids[count - 1], last);
    ck_assert(hy_end_tokens_has(&tokens, first));
    ck_assert(!hy_end_tokens_has(&tokens, 99));
}

START_TEST(one_token_or_a_list_is_read) {
    check_read(0, 0, 0);
    put("config.json", "{\"eos_token_id\": 7}");
    check_read(1, 7, 7);
    put("config.json", "{\"eos_token_id\": [7, 8, 7]}");
    check_read(2, 7, 8);
    put("generation_config.json", "{\"do_sample\": true}");
    check_read(2, 7, 8);
    put("generation_config.json", "{\"eos_token_id\": [5, 6, 3]}");
    check_read(3, 5, 3);
    put("generation_config.json", "{\"eos_token_id\": null}");
    check_read(2, 7, 8);
    put("config.json", "{\"eos_token_id\": -1}");
    check_read(0, 0, 0);
    hy_end_tokens none;
    must(hy_end_tokens_read("", &none));
    ck_assert_int_eq(none.count, 0);
}
END_TEST

START_TEST(what_is_no_token_is_named_with_its_file) {
    static const char *const wrong[] = {"\"</s>\"", "[1, \"x\"]", "1.5", "{}", "99999999999"};
    hy_end_tokens tokens;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        char text[64];
        snprintf(text, sizeof text, "{\"eos_token_id\": %s}", wrong[i]);
        put("generation_config.json", text);
        must_fail(
            hy_end_tokens_read(folder, &tokens), HY_ERR_INPUT,
            "generation_config.json: \"eos_token_id\" is not a token id or a list of token ids");
    }
    hy_text many = {0};
    hy_text_add(&many, "{\"eos_token_id\": [0");
    for (int i = 1; i <= HY_MOST_END_TOKENS; i++) hy_text_addf(&many, ", %d", i);
    hy_text_add(&many, "]}");
    put("generation_config.json", hy_text_string(&many));
    hy_text_free(&many);
    must_fail(hy_end_tokens_read(folder, &tokens), HY_ERR_INPUT, "more than 32 tokens");
    put("generation_config.json", "{");
    must_fail(hy_end_tokens_read(folder, &tokens), HY_ERR_INPUT, "generation_config.json");
}
END_TEST

/* ---- in use ---------------------------------------------------------------------------------- */

static hy_config *config_of(const char *const pairs[][2], size_t count) {
    hy_config *config;
    must(hy_config_create(&config));
    for (size_t i = 0; i < count; i++) {
        must(hy_config_set(config, pairs[i][0], pairs[i][1], HY_FROM_CALLER));
    }
    return config;
}

#define CONFIG(pairs) config_of(pairs, sizeof(pairs) / sizeof(pairs)[0])

/* A model's folder of a few steps; its tokens are bytes. */
static void make_model(char model[512]) {
    char out[400];
    snprintf(out, sizeof out, "%s/run", folder);
    const char *const values[][2] = {
        {"model", "nano"}, {"layers", "1"},       {"width", "32"},  {"heads", "4"},
        {"seq_len", "32"}, {"batch_size", "2"},   {"steps", "2"},   {"builtin_bytes", "20000"},
        {"device", "cpu"}, {"eval_batches", "1"}, {"threads", "2"}, {"predictor", "none"},
        {"out", out}};
    hy_config *config = CONFIG(values);
    hy_trainer *trainer;
    must(hy_trainer_create(config, NULL, &trainer));
    must(hy_trainer_run(trainer));
    hy_trainer_destroy(trainer);
    hy_config_destroy(config);
    snprintf(model, 512, "%s/run/model", folder);
}

static void hear(void *user, const char *text, size_t size) { hy_text_add_bytes(user, text, size); }

/* What the model says to "the", always the likeliest. */
static hy_end complete(const char *model, hy_text *heard) {
    const char *const values[][2] = {{"model", model}, {"device", "cpu"}, {"threads", "2"}};
    hy_generate_options greedy = {.max_tokens = 6};
    hy_generated info;
    hy_inference *in;
    hy_config *config = CONFIG(values);
    hy_text_clear(heard);
    must(hy_inference_open(config, NULL, NULL, &in));
    must(hy_inference_complete(in, "the", &greedy, hear, heard, &info));
    hy_inference_close(in);
    hy_config_destroy(config);
    return info.end;
}

START_TEST(a_model_ends_with_a_token_that_its_folder_names) {
    char model[512], path[600], text[64];
    hy_text heard = {0};
    make_model(model);
    ck_assert_int_eq(complete(model, &heard), HY_END_MAX_TOKENS);
    ck_assert_uint_eq(heard.size, 6);
    snprintf(path, sizeof path, "%s/generation_config.json", model);
    snprintf(text, sizeof text, "{\"eos_token_id\": [300, %d]}", (uint8_t)heard.data[0]);
    must(hy_file_write_atomic(path, text, strlen(text)));
    ck_assert_int_eq(complete(model, &heard), HY_END_MODEL);
    ck_assert_uint_eq(heard.size, 0);
    hy_text_free(&heard);
}
END_TEST

static size_t sample(const char *model, char *first) {
    const char *const values[][2] = {
        {"model", model},  {"seq_len", "32"}, {"batch_size", "2"}, {"builtin_bytes", "20000"},
        {"device", "cpu"}, {"threads", "2"},  {"steps", "2"},      {"predictor", "none"},
        {"out", "none"}};
    hy_sample_options greedy = {.prompt = "the", .tokens = 4};
    hy_config *config = CONFIG(values);
    hy_trainer *trainer;
    char *text;
    size_t size;
    must(hy_trainer_create(config, NULL, &trainer));
    must(hy_trainer_sample(trainer, &greedy, &text, &size));
    if (size > 0) *first = text[0];
    hy_free(text);
    hy_trainer_destroy(trainer);
    hy_config_destroy(config);
    return size;
}

START_TEST(so_does_the_sample_of_a_run) {
    char model[512], path[600], text[64], first = 0;
    make_model(model);
    ck_assert_uint_eq(sample(model, &first), 4);
    snprintf(path, sizeof path, "%s/generation_config.json", model);
    snprintf(text, sizeof text, "{\"eos_token_id\": %d}", (uint8_t)first);
    must(hy_file_write_atomic(path, text, strlen(text)));
    ck_assert_uint_eq(sample(model, &first), 0);
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("end tokens");
    TCase *cases = tcase_create("end tokens");
    tcase_add_checked_fixture(cases, make_folder, drop_folder);
    tcase_add_test(cases, one_token_or_a_list_is_read);
    tcase_add_test(cases, what_is_no_token_is_named_with_its_file);
    tcase_add_test(cases, a_model_ends_with_a_token_that_its_folder_names);
    tcase_add_test(cases, so_does_the_sample_of_a_run);
    suite_add_tcase(suite, cases);
    return suite;
}

HY_TEST_MAIN(make_suite)
