/* test_decode_inference.c: a model in use, through hybrid.h: text, conversations, loss on data.
 *
 * The model is a small one after a few steps; its tokens are bytes. This program intercepts
 * hy_batch_decoder_read (make/tests.mk). */
#include "harness.h"

#include <math.h>
#include <unistd.h>

#include "base/file.h"
#include "base/text.h"
#include "base/utf8.h"
#include "hybrid.h"
#include "model/batch_decode.h"

static char folder[] = "/tmp/hy-inference-XXXXXX";
static char run[64];
static hy_eval_info run_loss;

/* ---- a device that fails --------------------------------------------------------------------- */

static int reads_until_failure; /* 0: none fails */

hy_status __real_hy_batch_decoder_read(hy_batch_decoder *decoder, hy_step_tokens *out);
hy_status __wrap_hy_batch_decoder_read(hy_batch_decoder *decoder, hy_step_tokens *out);

hy_status __wrap_hy_batch_decoder_read(hy_batch_decoder *decoder, hy_step_tokens *out) {
    if (reads_until_failure > 0 && --reads_until_failure == 0)
        return hy_fail(HY_ERR_DEVICE, "the device has fallen over");
    return __real_hy_batch_decoder_read(decoder, out);
}

/* ---- a run ----------------------------------------------------------------------------------- */

static hy_config *tiny_config(void) {
    static const char *const values[][2] = {
        {"model", "nano"}, {"layers", "2"},      {"width", "32"},   {"heads", "4"},
        {"kv_heads", "2"}, {"seq_len", "64"},    {"context", "64"}, {"batch_size", "2"},
        {"steps", "4"},    {"vocab", "258"},     {"threads", "2"},  {"builtin_bytes", "60000"},
        {"device", "cpu"}, {"eval_batches", "0"}};
    hy_config *config;
    must(hy_config_create(&config));
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        must(hy_config_set(config, values[i][0], values[i][1], HY_FROM_CALLER));
    }
    return config;
}

/* Once for all tests: a run with a checkpoint, and its held-out loss. */
static void make_run(void) {
    hy_config *config = tiny_config();
    hy_trainer *trainer;
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(run, sizeof run, "%s/run", folder);
    must(hy_config_set(config, "out", run, HY_FROM_CALLER));
    must(hy_trainer_create(config, NULL, &trainer));
    must(hy_trainer_run(trainer));
    must(hy_trainer_evaluate(trainer, &run_loss));
    hy_trainer_destroy(trainer);
    hy_config_destroy(config);
}

static void remove_run(void) { must(hy_dir_remove(folder)); }

static hy_inference *open_run(int32_t context) {
    hy_config *config;
    hy_inference *model;
    must(hy_config_create(&config));
    must(hy_config_use_model(config, run));
    must(hy_inference_open(config, &(hy_inference_options){.context = context}, NULL, &model));
    hy_config_destroy(config);
    return model;
}

/* What a callback has heard. */
typedef struct heard {
    hy_text text;
    size_t ends[512]; /* of the pieces */
    int pieces;
    hy_inference *stop_after_ten; /* or NULL */
} heard;

static void hear(void *user, const char *text, size_t size) {
    heard *h = user;
    ck_assert_uint_gt(size, 0);
    hy_text_add_bytes(&h->text, text, size);
    if (h->pieces < 512) h->ends[h->pieces] = h->text.size;
    if (++h->pieces == 10 && h->stop_after_ten) hy_inference_request_stop(h->stop_after_ten);
}

static hy_generated complete(hy_inference *model, const char *prompt, int32_t most, heard *h) {
    hy_generate_options options = {.max_tokens = most, .temperature = 1.5, .seed = 7};
    hy_generated info;
    *h = (heard){0};
    must(hy_inference_complete(model, prompt, &options, hear, h, &info));
    return info;
}

START_TEST(the_same_seed_gives_the_same_text_and_another_another) {
    hy_inference *model = open_run(0), *again = open_run(0);
    heard a, b, c;
    complete(model, "the ", 40, &a);
    complete(again, "the ", 40, &b);
    ck_assert_str_eq(hy_text_string(&a.text), hy_text_string(&b.text));
    c = (heard){0};
    must(hy_inference_complete(
        model, "the ", &(hy_generate_options){.max_tokens = 40, .temperature = 1.5, .seed = 8},
        hear, &c, NULL));
    ck_assert_str_ne(hy_text_string(&a.text), hy_text_string(&c.text));
    hy_text_free(&a.text);
    hy_text_free(&b.text);
    hy_text_free(&c.text);
    hy_inference_close(model);
    hy_inference_close(again);
}
END_TEST

/* A prompt that continues where the last one was is not computed again, and makes no difference. */
START_TEST(what_is_known_is_used_again_and_changes_nothing) {
    hy_inference *model = open_run(0), *fresh = open_run(0);
    heard a, b;
    complete(model, "one two three", 10, &a);
    hy_text_free(&a.text);
    hy_generated info = complete(model, "one two threads of wool", 20, &a);
    ck_assert_int_eq(info.prompt_tokens, 23);
    ck_assert_int_eq(info.reused_tokens, 12);
    info = complete(fresh, "one two threads of wool", 20, &b);
    ck_assert_int_eq(info.reused_tokens, 0);
    ck_assert_int_eq(info.tokens, 20);
    ck_assert_int_eq(info.end, HY_END_MAX_TOKENS);
    ck_assert_str_eq(hy_text_string(&a.text), hy_text_string(&b.text));
    hy_text_free(&a.text);
    hy_text_free(&b.text);
    hy_inference_close(model);
    hy_inference_close(fresh);
}
END_TEST

/* After a failure nothing is known, and the same question has the same answer. */
START_TEST(an_answer_that_failed_can_be_asked_for_again) {
    hy_inference *model = open_run(0);
    hy_generate_options options = {.max_tokens = 20, .temperature = 1, .seed = 2};
    hy_generated info;
    heard first = {0}, again = {0};
    must(hy_inference_say(model, "one two three", &options, hear, &first, &info));
    for (int read = 1; read <= 3; read += 2) {
        must(hy_inference_reset(model, NULL));
        reads_until_failure = read;
        must_fail(hy_inference_say(model, "one two three", &options, NULL, NULL, &info),
                  HY_ERR_DEVICE, "fallen over");
        ck_assert_int_eq(reads_until_failure, 0);
        must(hy_inference_say(model, "one two three", &options, hear, &again, &info));
        ck_assert_int_eq(info.reused_tokens, 0);
        ck_assert_int_eq(info.prompt_tokens, 13);
        ck_assert_str_eq(hy_text_string(&first.text), hy_text_string(&again.text));
        hy_text_free(&again.text);
    }
    hy_text_free(&first.text);
    hy_inference_close(model);
}
END_TEST

/* Values that mean nothing count as 0, and small ones are not 0. */
START_TEST(odd_values_of_sampling_are_accepted) {
    static const hy_generate_options same[] = {{.temperature = -1, .top_k = -3, .top_p = -1},
                                               {.temperature = 1, .top_k = 1},
                                               {.temperature = 1, .top_p = 1e-300},
                                               {.temperature = 1e-300, .top_p = 2}};
    hy_inference *model = open_run(0);
    heard likeliest = {0};
    hy_generate_options options = {.max_tokens = 30};
    must(hy_inference_complete(model, "the ", &options, hear, &likeliest, NULL));
    for (int i = 0; i < 4; i++) {
        heard h = {0};
        options = same[i];
        options.max_tokens = 30;
        must(hy_inference_complete(model, "the ", &options, hear, &h, NULL));
        ck_assert_str_eq(hy_text_string(&h.text), hy_text_string(&likeliest.text));
        hy_text_free(&h.text);
    }
    hy_text_free(&likeliest.text);
    hy_inference_close(model);
}
END_TEST

/* No piece ends inside a character of the whole text. Almost any byte comes here. */
START_TEST(pieces_are_whole_characters) {
    hy_inference *model = open_run(0);
    int characters = 0;
    for (uint64_t seed = 0; seed < 60; seed++) {
        hy_generate_options options = {.temperature = 50, .seed = seed};
        heard h = {0};
        must(hy_inference_complete(model, "a", &options, hear, &h, NULL));
        const uint8_t *text = (const uint8_t *)h.text.data;
        int piece = 0;
        for (size_t at = 0; at < h.text.size;) {
            int length = hy_utf8_length(text + at, h.text.size - at);
            at += length > 0 ? (size_t)length : 1;
            characters += length > 1;
            while (piece < h.pieces && h.ends[piece] < at) {
                if (h.ends[piece] > at - (size_t)(length > 0 ? length : 1)) {
                    ck_abort_msg("piece %d ends inside a character", piece);
                }
                piece++;
            }
        }
        hy_text_free(&h.text);
    }
    ck_assert_int_gt(characters, 10); /* else nothing was tested */
    hy_inference_close(model);
}
END_TEST

START_TEST(answers_end_when_asked_to_or_when_the_context_does) {
    hy_inference *model = open_run(32);
    heard h;
    hy_generated info = complete(model, "abcd", 0, &h);
    ck_assert_int_eq(info.end, HY_END_CONTEXT);
    ck_assert_int_eq(info.tokens, 28);
    hy_text_free(&h.text);
    h = (heard){.stop_after_ten = model};
    must(hy_inference_complete(model, "abcd", &(hy_generate_options){.temperature = 0.1}, hear, &h,
                               &info));
    ck_assert_int_eq(info.end, HY_END_STOPPED);
    ck_assert_int_eq(info.tokens, 10);
    hy_text_free(&h.text);
    info = complete(model, "abcd", 3, &h); /* and it continues afterwards */
    ck_assert_int_eq(info.tokens, 3);
    hy_text_free(&h.text);
    char large[64];
    memset(large, 'x', sizeof large);
    large[40] = 0;
    must_fail(hy_inference_complete(model, large, NULL, NULL, NULL, NULL), HY_ERR_INPUT,
              "40 tokens; the context of 32");
    hy_inference_close(model);
}
END_TEST

/* Without a template a conversation is one text. */
START_TEST(a_conversation_remembers_what_was_said) {
    hy_inference *model = open_run(0), *fresh = open_run(0);
    hy_generate_options options = {.max_tokens = 8};
    hy_inference_facts facts;
    heard first = {0}, second = {0}, all = {0};
    hy_generated info;
    hy_inference_describe(model, &facts);
    ck_assert_str_eq(facts.chat_template, "plain");
    ck_assert_str_eq(facts.tokenizer, "bytes");
    must(hy_inference_reset(model, "SYS "));
    must(hy_inference_say(model, "hello ", &options, hear, &first, &info));
    ck_assert_int_eq(info.prompt_tokens, 10);
    must(hy_inference_say(model, " again", &options, hear, &second, &info));
    ck_assert_int_eq(info.prompt_tokens, 10 + 8 + 6);
    ck_assert_int_eq(info.reused_tokens, 10 + 7); /* the last token was not taken */
    hy_text prompt = {0};
    hy_text_addf(&prompt, "SYS hello %s again", hy_text_string(&first.text));
    must(hy_inference_complete(fresh, hy_text_string(&prompt), &options, hear, &all, NULL));
    ck_assert_str_eq(hy_text_string(&second.text), hy_text_string(&all.text));
    must(hy_inference_reset(model, NULL));
    must(hy_inference_say(model, "hello ", &options, NULL, NULL, &info));
    ck_assert_int_eq(info.prompt_tokens, 6);
    hy_text_free(&prompt);
    hy_text_free(&first.text);
    hy_text_free(&second.text);
    hy_text_free(&all.text);
    hy_inference_close(model);
    hy_inference_close(fresh);
}
END_TEST

/* A tokenizer of the 256 bytes and the two tokens of ChatML, as tokenizer.json has them. */
static void write_tokenizer(char path[96]) {
    hy_text json = {0};
    int next = 256;
    hy_text_add(&json, "{\"added_tokens\": [{\"id\": 256, \"content\": \"<|im_start|>\", "
                       "\"special\": true}, {\"id\": 257, \"content\": \"<|im_end|>\", "
                       "\"special\": true}], \"normalizer\": null, \"pre_tokenizer\": {\"type\": "
                       "\"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": false}, "
                       "\"decoder\": {\"type\": \"ByteLevel\"}, \"model\": {\"type\": \"BPE\", "
                       "\"merges\": [], \"vocab\": {");
    for (int byte = 0; byte < 256;
         byte++) { /* those that cannot be seen have letters from 256 on */
        bool is_seen = (byte > 32 && byte < 127) || (byte > 160 && byte != 173);
        char letter[5] = "", escaped[8];
        letter[hy_utf8_encode((uint32_t)(is_seen ? byte : next++), letter)] = 0;
        snprintf(escaped, sizeof escaped, "%s%s", strchr("\"\\", letter[0]) ? "\\" : "", letter);
        hy_text_addf(&json, "%s\"%s\": %d", byte ? ", " : "", escaped, byte);
    }
    hy_text_add(&json, "}}}");
    snprintf(path, 96, "%s/tokenizer.json", folder);
    must(hy_file_write_atomic(path, json.data, json.size));
    hy_text_free(&json);
}

static hy_inference *open_chatml(const char *tokenizer) {
    hy_config *config;
    hy_inference *model;
    hy_inference_options options = {.tokenizer = tokenizer, .chat_template = "chatml"};
    must(hy_config_create(&config));
    must(hy_config_use_model(config, run));
    must(hy_inference_open(config, &options, NULL, &model));
    hy_config_destroy(config);
    return model;
}

/* <|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n: 23 tokens; of the second turn's
 * prompt all before the last token of the first answer is in the cache. */
START_TEST(turns_are_written_as_the_template_has_them) {
    char path[96];
    write_tokenizer(path);
    hy_inference *model = open_chatml(path), *fresh = open_chatml(path);
    hy_generate_options options = {.max_tokens = 4};
    hy_inference_facts facts;
    hy_generated info;
    heard first = {0}, second = {0}, again = {0};
    hy_inference_describe(model, &facts);
    ck_assert_str_eq(facts.chat_template, "chatml");
    must(hy_inference_say(model, "hello", &options, hear, &first, &info));
    int32_t opening = info.prompt_tokens;
    ck_assert_int_ge(opening, 1 + 5 + 5 + 1 + 1 + 1 + 10);
    must(hy_inference_say(model, "<|im_end|>", &options, hear, &second, &info));
    /* the answer, its end, a message whose ten letters are no token, and what is around it */
    ck_assert_int_eq(info.prompt_tokens, opening + 4 + 2 + (1 + 5 + 10 + 1 + 1 + 1 + 10));
    ck_assert_int_eq(info.reused_tokens, opening + 3);
    must(hy_inference_say(fresh, "hello", &options, NULL, NULL, NULL));
    must(hy_inference_reset(fresh, NULL));
    must(hy_inference_say(fresh, "hello", &options, hear, &again, NULL));
    ck_assert_str_eq(hy_text_string(&first.text), hy_text_string(&again.text));
    hy_text_free(&first.text);
    hy_text_free(&second.text);
    hy_text_free(&again.text);
    hy_inference_close(model);
    hy_inference_close(fresh);
}
END_TEST

START_TEST(old_turns_go_when_the_context_is_small) {
    hy_inference *model = open_run(48);
    hy_generate_options options = {.max_tokens = 6};
    hy_generated info;
    for (int i = 0; i < 12; i++) {
        must(hy_inference_say(model, "ten bytes.", &options, NULL, NULL, &info));
        ck_assert_int_eq(info.tokens, 6);
        ck_assert_int_le(info.prompt_tokens, 42);
    }
    ck_assert_int_eq(info.prompt_tokens, 42); /* two old turns of 16 and the message */
    hy_inference_close(model);
}
END_TEST

START_TEST(text_becomes_tokens_and_text_again) {
    hy_inference *model = open_run(0);
    int32_t *ids;
    size_t count, size;
    char *text;
    must(hy_inference_encode(model, "h\xc3\xa9", 3, &ids, &count));
    ck_assert_uint_eq(count, 3);
    ck_assert_int_eq(ids[1], 0xc3);
    must(hy_inference_decode(model, ids, count, &text, &size));
    ck_assert_str_eq(text, "h\xc3\xa9");
    ck_assert_uint_eq(size, 3);
    ids[1] = 258;
    hy_free(text);
    must_fail(hy_inference_decode(model, ids, count, &text, NULL), HY_ERR_INPUT,
              "token 1 is 258, expected 0 to 255");
    hy_free(ids);
    hy_inference_close(model);
}
END_TEST

START_TEST(a_shape_alone_cannot_be_used) {
    hy_config *config = tiny_config();
    hy_inference *model;
    must_fail(hy_inference_open(config, NULL, NULL, &model), HY_ERR_INPUT, "without weights");
    must_fail(hy_config_use_model(config, "/nowhere/at/all"), HY_ERR_INPUT, "/nowhere/at/all");
    hy_config_destroy(config);
}
END_TEST

/* The run's own held-out text, and any file. */
START_TEST(evaluation_gives_the_loss_that_the_run_had) {
    hy_config *config;
    hy_evaluation found;
    char path[96], *json;
    must(hy_config_create(&config));
    must(hy_config_use_model(config, run));
    must(hy_evaluate(config, NULL, &found));
    ck_assert_double_eq(found.loss, run_loss.loss);
    ck_assert_int_eq(found.tokens, run_loss.tokens);
    ck_assert_double_eq_tol(found.perplexity, exp(run_loss.loss), 1e-9);
    ck_assert_double_eq_tol(found.bits_per_byte, run_loss.loss / log(2), 1e-9);
    must(hy_evaluation_json(&found, &json));
    ck_assert_ptr_nonnull(strstr(json, "\"perplexity\""));
    hy_free(json);
    snprintf(path, sizeof path, "%s/text", folder);
    char text[1000];
    memset(text, 'a', sizeof text);
    must(hy_file_write_atomic(path, text, sizeof text));
    must(hy_config_set(config, "data", path, HY_FROM_CALLER));
    must(hy_evaluate(config, NULL, &found));
    ck_assert_int_eq(found.sequences, 16); /* 15 of 64 bytes and the one after, and what is left */
    ck_assert_int_eq(found.tokens, 999);
    hy_config_destroy(config);
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("decode: inference");
    TCase *all = tcase_create("inference");
    tcase_set_timeout(all, 120);
    tcase_add_unchecked_fixture(all, make_run, remove_run);
    tcase_add_test(all, the_same_seed_gives_the_same_text_and_another_another);
    tcase_add_test(all, what_is_known_is_used_again_and_changes_nothing);
    tcase_add_test(all, an_answer_that_failed_can_be_asked_for_again);
    tcase_add_test(all, odd_values_of_sampling_are_accepted);
    tcase_add_test(all, pieces_are_whole_characters);
    tcase_add_test(all, answers_end_when_asked_to_or_when_the_context_does);
    tcase_add_test(all, a_conversation_remembers_what_was_said);
    tcase_add_test(all, turns_are_written_as_the_template_has_them);
    tcase_add_test(all, old_turns_go_when_the_context_is_small);
    tcase_add_test(all, text_becomes_tokens_and_text_again);
    tcase_add_test(all, a_shape_alone_cannot_be_used);
    tcase_add_test(all, evaluation_gives_the_loss_that_the_run_had);
    suite_add_tcase(suite, all);
    return suite;
}

HY_TEST_MAIN(make_suite)
