/* test_generate_use.c: requests of a generator: what is refused, how answers end, stopping and
 * going on, other threads, a full cache, a device that fails.
 *
 * This program intercepts hy_batch_decoder_step (make/tests.mk). */
#include "generate_rig.h"

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "base/utf8.h"
#include "model/batch_decode.h"
#include "tokenizer/tokenizer.h"

/* ---- a device that fails --------------------------------------------------------------------- */

static int steps_until_failure; /* 0: none fails */

hy_status __real_hy_batch_decoder_step(hy_batch_decoder *decoder, int32_t rows,
                                       const int32_t *first, const hy_sampling *sampling);
hy_status __wrap_hy_batch_decoder_step(hy_batch_decoder *decoder, int32_t rows,
                                       const int32_t *first, const hy_sampling *sampling);

hy_status __wrap_hy_batch_decoder_step(hy_batch_decoder *decoder, int32_t rows,
                                       const int32_t *first, const hy_sampling *sampling) {
    if (steps_until_failure > 0 && --steps_until_failure == 0)
        return hy_fail(HY_ERR_DEVICE, "the device has fallen over");
    return __real_hy_batch_decoder_step(decoder, rows, first, sampling);
}

/* ---- models ---------------------------------------------------------------------------------- */

static void make_models(void) {
    temp_folder(rig_folder);
    make_run("plain", NULL);
}

static void remove_models(void) { remove_folder(rig_folder); }

static hy_generator *open_plain(hy_generator_options options) {
    return open_run("plain", NULL, options);
}

static hy_request text_request(const char *text, int32_t most) {
    return (hy_request){.text = text, .text_size = strlen(text), .max_tokens = most};
}

/* ---- requests -------------------------------------------------------------------------------- */

START_TEST(wrong_requests_are_refused) {
    hy_generator *g = open_plain((hy_generator_options){.context = 64, .top_logprobs = 3});
    char large[65];
    memset(large, 'x', sizeof large);
    int32_t wrong[] = {5, 258};
    static const char *const empty_stop[] = {"a", ""};
    struct {
        hy_request request;
        const char *message;
    } cases[] = {
        {{.text = large, .text_size = 64}, "64 tokens; the context of 64 tokens"},
        {{.max_tokens = 3}, "one of text, tokens and messages, but this has none"},
        {{.text = "a", .text_size = 1, .tokens = wrong, .token_count = 1}, "has several"},
        {{.tokens = wrong, .token_count = 2}, "token 1 of the prompt is 258, expected 0 to 257"},
        {{.tokens = wrong}, "the prompt is empty"},
        {{.text = "a", .text_size = 1, .temperature = -1},
         "temperature is -1; accepted: 0 or more"},
        {{.text = "a", .text_size = 1, .temperature = (double)NAN}, "temperature is nan"},
        {{.text = "a", .text_size = 1, .top_p = 1.5}, "top_p is 1.5; accepted: 0 to 1"},
        {{.text = "a", .text_size = 1, .min_p = -0.1}, "min_p is -0.1"},
        {{.text = "a", .text_size = 1, .top_k = -1}, "top_k is -1"},
        {{.text = "a", .text_size = 1, .answers = 5000}, "answers is 5000; accepted: 0 to 4096"},
        {{.text = "a", .text_size = 1, .max_tokens = -2}, "max_tokens is -2"},
        {{.text = "a", .text_size = 1, .top_logprobs = 4}, "top_logprobs is 4; accepted: 0 to 3"},
        {{.text = "a", .text_size = 1, .repetition_penalty = -1}, "repetition_penalty is -1"},
        {{.text = "a", .text_size = 1, .stop = empty_stop, .stop_count = 2},
         "stop text 1 is empty"},
        {{.messages = "[]", .messages_size = 2}, "\"messages\" is not a list of turns"},
        {{.messages = "[{}]", .messages_size = 4}, "turn 1 needs a string \"role\""},
        {{.messages = "nope", .messages_size = 4}, "messages"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        must_fail(hy_generator_add(g, &cases[i].request, NULL), HY_ERR_INPUT, cases[i].message);
    }
    must(hy_generator_run(g)); /* there is nothing to do */
    ck_assert(!hy_generator_cancel(g, 1));
    hy_generator_close(g);
}
END_TEST

START_TEST(wrong_options_are_refused) {
    static const struct {
        hy_generator_options options;
        const char *message;
    } cases[] = {{{.context = 601}, "a context of 601 tokens is not supported; accepted: 1 to 600"},
                 {{.streams = 1025}, "1025 streams are not supported; accepted: 1 to 1024"},
                 {{.waiting = -1}, "waiting is -1"},
                 {{.top_logprobs = 21}, "top_logprobs is 21; accepted: 0 to 20"}};
    hy_config *config = config_of_run("plain", NULL);
    hy_generator *g;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        must_fail(hy_generator_open(config, &cases[i].options, NULL, &g), HY_ERR_INPUT,
                  cases[i].message);
    }
    must(hy_config_set(config, "max_gpu_mem", "300KiB", HY_FROM_CALLER));
    must_fail(hy_generator_open(config, NULL, NULL, &g), HY_ERR_INPUT,
              "choose fewer streams or a shorter context");
    hy_config_destroy(config);
}
END_TEST

START_TEST(text_becomes_tokens_and_text_again) {
    hy_generator *g = open_plain((hy_generator_options){.streams = 1});
    int32_t *ids, mixed[] = {'a', 257, 'b'};
    size_t count, size;
    char *text;
    must(hy_generator_encode(g, "h\xc3\xa9", 3, false, &ids, &count));
    ck_assert_uint_eq(count, 3);
    must(hy_generator_decode(g, ids, count, &text, &size));
    ck_assert_str_eq(text, "h\xc3\xa9");
    hy_free(text);
    hy_free(ids);
    must(hy_generator_encode(g, "", 0, true, &ids, &count));
    ck_assert_uint_eq(count, 1); /* a text begins after a new line */
    hy_free(ids);
    must(hy_generator_decode(g, mixed, 3, &text, &size));
    ck_assert_str_eq(text, "a?b");
    hy_free(text);
    mixed[1] = 258;
    must_fail(hy_generator_decode(g, mixed, 3, &text, NULL), HY_ERR_INPUT,
              "token 1 is 258, expected 0 to 257");
    hy_generator_close(g);
}
END_TEST

/* ---- how answers end ------------------------------------------------------------------------- */

START_TEST(answers_end_at_max_tokens_at_the_context_and_before_stop_texts) {
    static heard most, full, stopped;
    hy_generator *g = open_plain((hy_generator_options){.context = 64});
    hy_request request = text_request("abcd", 20);
    request.ignores_end = true;
    ask(g, request, &most);
    request.max_tokens = 0;
    ask(g, request, &full);
    must(hy_generator_run(g));
    ck_assert_int_eq(most.end, HY_END_MAX_TOKENS);
    ck_assert_int_eq(most.count, 20);
    ck_assert_int_eq(most.last.answer_tokens, 20);
    ck_assert_int_eq(most.last.prompt_tokens, 4);
    ck_assert(most.last.seconds >= most.last.prompt_seconds);
    ck_assert_int_eq(full.end, HY_END_CONTEXT);
    ck_assert_int_eq(full.count, 60);
    /* what the answer has from byte 11 to 13 */
    char stop[4] = "", not_there[] = "this is not in the answer";
    memcpy(stop, full.text.data + 11, 3);
    const char *stops[] = {not_there, stop};
    request.stop = stops;
    request.stop_count = 2;
    ask(g, request, &stopped);
    memset(stop, 0, sizeof stop); /* the request has a copy */
    must(hy_generator_run(g));
    ck_assert_int_eq(stopped.end, HY_END_STOP_TEXT);
    ck_assert_uint_eq(stopped.text.size, 11);
    ck_assert_mem_eq(stopped.text.data, full.text.data, 11);
    ck_assert_int_eq(stopped.count, 11);
    ck_assert_int_eq(stopped.last.answer_tokens, 14);
    unhear(&most), unhear(&full), unhear(&stopped);
    hy_generator_close(g);
}
END_TEST

/* Temperature 50: almost any byte comes, also the one that ends an answer. */
START_TEST(the_models_end_ends_an_answer_unless_it_is_ignored) {
    static heard ended[40], ignored[40];
    hy_generator *g = open_plain((hy_generator_options){.context = 400});
    for (int i = 0; i < 40; i++) {
        hy_request request = text_request("a", 300);
        request.temperature = 50;
        request.seed = (uint64_t)i;
        ask(g, request, &ended[i]);
        request.ignores_end = true;
        ask(g, request, &ignored[i]);
    }
    must(hy_generator_run(g));
    int ends = 0;
    for (int i = 0; i < 40; i++) {
        int32_t at = 0;
        while (at < 300 && ignored[i].tokens[at] != 0) at++;
        ck_assert_int_eq(ended[i].end, at < 300 ? HY_END_MODEL : HY_END_MAX_TOKENS);
        ck_assert_int_eq(ended[i].count, at);
        ck_assert_int_eq(ended[i].last.answer_tokens, at < 300 ? at + 1 : 300);
        ck_assert_mem_eq(ended[i].tokens, ignored[i].tokens, (size_t)at * sizeof(int32_t));
        ends += at < 300;
    }
    ck_assert_int_gt(ends, 5); /* else nothing was tested */
    for (int i = 0; i < 40; i++) unhear(&ended[i]), unhear(&ignored[i]);
    hy_generator_close(g);
}
END_TEST

START_TEST(logits_that_are_not_finite_end_an_answer) {
    static heard h;
    char path[340], model[300], *data;
    size_t size;
    hy_config *config;
    hy_generator *g;
    snprintf(model, sizeof model, "%s/plain/model", rig_folder);
    snprintf(path, sizeof path, "%s/model.safetensors", model);
    must(hy_file_read(path, &data, &size));
    memset(data + size - 512, 0xff, 512); /* NaN */
    must(hy_file_write_atomic(path, data, size));
    free(data);
    must(hy_config_create(&config));
    set_pairs(config, PAIRS("model", model, "device", "cpu", "threads", "2"));
    must(hy_generator_open(config, NULL, NULL, &g));
    hy_config_destroy(config);
    ask(g, text_request("abcd", 20), &h);
    must(hy_generator_run(g));
    ck_assert_int_eq(h.ends, 1);
    ck_assert_int_eq(h.end, HY_END_NOT_FINITE);
    ck_assert_int_eq(h.count, 0);
    unhear(&h);
    hy_generator_close(g);
}
END_TEST

/* Without a listener there is nothing to see but the counts. */
START_TEST(a_request_needs_no_listener) {
    hy_generator *g = open_plain((hy_generator_options){.streams = 2});
    const char *stops[] = {"\x01"};
    hy_request request = text_request("abcd", 50);
    hy_generator_state now;
    request.ignores_end = true;
    must(hy_generator_add(g, &request, NULL));
    request.stop = stops;
    request.stop_count = 1;
    request.wants_prompt_logprobs = true;
    must(hy_generator_add(g, &request, NULL));
    must(hy_generator_run(g));
    hy_generator_now(g, &now);
    ck_assert_int_eq(now.finished, 2);
    ck_assert_int_eq(now.prompt_tokens, 8);
    ck_assert_int_gt(now.tokens, 50);
    ck_assert(now.busy_seconds > 0);
    hy_generator_close(g);
}
END_TEST

/* ---- conversations --------------------------------------------------------------------------- */

/* A tokenizer of the 256 bytes and the two tokens of ChatML, as tokenizer.json has them. */
static void write_tokenizer(char path[300]) {
    hy_text json = {0};
    hy_text_add(&json, "{\"added_tokens\": [{\"id\": 256, \"content\": \"<|im_start|>\", "
                       "\"special\": true}, {\"id\": 257, \"content\": \"<|im_end|>\", "
                       "\"special\": true}], \"normalizer\": null, \"pre_tokenizer\": {\"type\": "
                       "\"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": false}, "
                       "\"decoder\": {\"type\": \"ByteLevel\"}, \"model\": {\"type\": \"BPE\", "
                       "\"merges\": [], \"vocab\": {");
    for (int byte = 0; byte < 256; byte++) {
        char letter[5] = "";
        letter[hy_utf8_encode(hy_byte_spelling((uint8_t)byte), letter)] = 0;
        const char *escape = strchr("\"\\", letter[0]) ? "\\" : "";
        hy_text_addf(&json, "%s\"%s%s\": %d", byte ? ", " : "", escape, letter, byte);
    }
    hy_text_add(&json, "}}}");
    snprintf(path, 300, "%s/tokenizer.json", rig_folder);
    must(hy_file_write_atomic(path, json.data, json.size));
    hy_text_free(&json);
}

static void keep_text(void *user, const char *text, size_t size) {
    hy_text_add_bytes(user, text, size);
}

START_TEST(messages_are_written_by_the_chat_template) {
    static const char list[] = "[{\"role\": \"system\", \"content\": \"S\"}, "
                               "{\"role\": \"user\", \"content\": \"hello\"}]";
    static const char answered[] = "[{\"role\": \"assistant\", \"content\": \"S\"}]";
    static heard h;
    char path[300];
    hy_text text = {0};
    hy_generated info;
    hy_inference *in;
    hy_generator_facts facts;
    hy_config *config = config_of_run("plain", NULL);
    write_tokenizer(path);
    hy_inference_options options = {.tokenizer = path, .chat_template = "chatml"};
    must(hy_inference_open(config, &options, NULL, &in));
    must(hy_inference_set_messages(in, list, sizeof list - 1));
    must(hy_inference_say(in, NULL, &(hy_generate_options){.max_tokens = 20}, keep_text, &text,
                          &info));
    hy_generator *g = open_plain(
        (hy_generator_options){.streams = 2, .tokenizer = path, .chat_template = "chatml"});
    hy_generator_describe(g, &facts);
    ck_assert_str_eq(facts.chat_template, "chatml");
    ck_assert_str_eq(facts.tokenizer, path);
    hy_request request = {.messages = list, .messages_size = sizeof list - 1, .max_tokens = 20};
    ask(g, request, &h);
    must(hy_generator_run(g));
    ck_assert_int_eq(h.last.prompt_tokens, info.prompt_tokens);
    ck_assert_str_eq(hy_text_string(&h.text), hy_text_string(&text));
    request.messages = answered;
    request.messages_size = sizeof answered - 1;
    must_fail(hy_generator_add(g, &request, NULL), HY_ERR_INPUT, "the last message is the assis");
    hy_text_free(&text);
    unhear(&h);
    hy_config_destroy(config);
    hy_inference_close(in);
    hy_generator_close(g);
}
END_TEST

/* ---- running --------------------------------------------------------------------------------- */

enum { MANY = 24 };

static void ask_many(hy_generator *g, heard *all) {
    int32_t prompt[CONTEXT];
    for (int i = 0; i < MANY; i++) {
        int32_t count = 5 + 17 * i;
        draw_prompt((uint64_t)i, count, prompt);
        ask(g,
            (hy_request){.tokens = prompt,
                         .token_count = (size_t)count,
                         .max_tokens = 3 + 2 * i,
                         .temperature = 1,
                         .seed = 5},
            &all[i]);
    }
}

static void unhear_many(heard *all) {
    for (int i = 0; i < MANY; i++) unhear(&all[i]);
}

/* The bits of undisturbed answers. */
static void answer_many(heard *all) {
    hy_generator *g = open_plain((hy_generator_options){.streams = 5});
    ask_many(g, all);
    must(hy_generator_run(g));
    hy_generator_close(g);
}

START_TEST(a_stopped_generator_goes_on) {
    static heard expected[MANY], all[MANY];
    int stops = 0;
    answer_many(expected);
    hy_generator *g = open_plain((hy_generator_options){.streams = 5});
    ask_many(g, all);
    for (int i = 0; i < MANY; i += 5) all[i].stop_at = 1 + i % 3;
    hy_generator_request_stop(g);
    must_fail(hy_generator_run(g), HY_STOPPED, "");
    ck_assert_int_eq(all[0].pieces, 0);
    hy_status status;
    while ((status = hy_generator_run(g)) == HY_STOPPED) stops++;
    must(status);
    ck_assert_int_eq(stops, 5);
    for (int i = 0; i < MANY; i++) check_same(&all[i], &expected[i]);
    unhear_many(expected), unhear_many(all);
    hy_generator_close(g);
}
END_TEST

START_TEST(a_full_cache_makes_requests_wait) {
    static heard expected[MANY], all[MANY];
    hy_generator_facts facts;
    answer_many(expected);
    hy_generator *g = open_run("plain", PAIRS("max_gpu_mem", "2500KiB"),
                               (hy_generator_options){.streams = 5, .context = CONTEXT});
    hy_generator_describe(g, &facts);
    ck_assert_int_lt(facts.cache_tokens, 3 * CONTEXT);
    ask_many(g, all);
    must(hy_generator_run(g));
    for (int i = 0; i < MANY; i++) check_same(&all[i], &expected[i]);
    unhear_many(expected), unhear_many(all);
    hy_generator_close(g);
}
END_TEST

START_TEST(one_more_than_may_wait_is_refused) {
    hy_generator *g = open_plain((hy_generator_options){.streams = 2, .waiting = 3});
    hy_request request = text_request("abcd", 5);
    int64_t ids[3];
    for (int i = 0; i < 3; i++) must(hy_generator_add(g, &request, &ids[i]));
    must_fail(hy_generator_add(g, &request, NULL), HY_ERR_STATE, "3 requests wait already");
    ck_assert(hy_generator_cancel(g, ids[1]));
    must(hy_generator_run(g));
    must(hy_generator_add(g, &request, NULL));
    hy_generator_close(g); /* ends it without a callback */
}
END_TEST

static void run_inside(void *user, const hy_piece *piece) {
    (void)piece;
    must_fail(hy_generator_run(user), HY_ERR_STATE, "the generator is running already");
}

START_TEST(a_callback_cannot_run_the_generator) {
    hy_generator *g = open_plain((hy_generator_options){.streams = 2});
    hy_request request = text_request("abcd", 5);
    request.on_piece = run_inside;
    request.user = g;
    must(hy_generator_add(g, &request, NULL));
    must(hy_generator_run(g));
    hy_generator_close(g);
}
END_TEST

static void see_that_it_runs(void *user, const hy_piece *piece) {
    hy_generator_state now;
    hy_generator_now(user, &now);
    (void)piece;
    ck_assert_int_eq(now.running, 1);
    ck_assert_int_eq(now.waiting, 0);
}

START_TEST(what_has_a_token_runs) {
    hy_generator *g = open_plain((hy_generator_options){.streams = 2});
    hy_request request = text_request("abcd", 5);
    request.on_piece = see_that_it_runs;
    request.user = g;
    request.ignores_end = true;
    must(hy_generator_add(g, &request, NULL));
    must(hy_generator_run(g));
    hy_generator_close(g);
}
END_TEST

START_TEST(after_a_failure_of_the_device_the_rest_is_answered) {
    static heard expected[MANY], all[MANY];
    int stopped = 0;
    answer_many(expected);
    hy_generator *g = open_plain((hy_generator_options){.streams = 5});
    ask_many(g, all);
    steps_until_failure = 12;
    must_fail(hy_generator_run(g), HY_ERR_DEVICE, "the device has fallen over");
    for (int i = 0; i < MANY; i++) stopped += all[i].ends && all[i].end == HY_END_STOPPED;
    ck_assert(stopped > 0 && stopped <= 5);
    must(hy_generator_run(g));
    for (int i = 0; i < MANY; i++) {
        if (all[i].end != HY_END_STOPPED) check_same(&all[i], &expected[i]);
    }
    unhear_many(expected), unhear_many(all);
    hy_generator_close(g);
}
END_TEST

/* ---- other threads --------------------------------------------------------------------------- */

enum { THREADS = 4, EACH = 12 };

typedef struct client {
    hy_generator *generator;
    int number;
    atomic_int answered;
    heard heard[EACH];
} client;

static void hear_client(void *user, const hy_piece *piece) {
    heard *h = user;
    client *c = (client *)(void *)h->generator; /* the thread that asked */
    hear(h, piece);
    if (piece->is_last) atomic_fetch_add(&c->answered, 1);
}

static char large_prompt[540];

/* Every third has three chunks, and is cancelled soon. */
static hy_request thread_request(int i) {
    hy_request request = text_request("a prompt from a thread", 5 + i);
    if (i % 3 == 2) request.text = large_prompt, request.text_size = sizeof large_prompt;
    return request;
}

static void *add_and_cancel(void *argument) {
    client *c = argument;
    hy_generator_state now;
    for (int i = 0; i < EACH; i++) {
        heard *h = &c->heard[i];
        hy_request request = thread_request(i);
        int64_t id;
        request.on_piece = hear_client;
        request.user = h;
        request.seed = (uint64_t)c->number;
        request.wants_logprobs = true;
        h->generator = (hy_generator *)(void *)c;
        must(hy_generator_add(c->generator, &request, &id));
        hy_generator_now(c->generator, &now);
        ck_assert_int_ge(now.waiting, 0);
        if (i % 3 == 2) (void)hy_generator_cancel(c->generator, id);
    }
    while (atomic_load(&c->answered) < EACH) sched_yield();
    return NULL;
}

static void *serve(void *generator) {
    must_fail(hy_generator_serve(generator), HY_STOPPED, "");
    return NULL;
}

START_TEST(other_threads_add_and_cancel_while_it_serves) {
    static client clients[THREADS];
    static heard expected[EACH];
    pthread_t threads[THREADS], server;
    memset(large_prompt, 'p', sizeof large_prompt);
    hy_generator *g = open_plain((hy_generator_options){.streams = 5});
    ck_assert_int_eq(pthread_create(&server, NULL, serve, g), 0);
    for (int i = 0; i < THREADS; i++) {
        clients[i].generator = g;
        clients[i].number = i;
        ck_assert_int_eq(pthread_create(&threads[i], NULL, add_and_cancel, &clients[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    hy_generator_request_stop(g);
    pthread_join(server, NULL);
    for (int i = 0; i < EACH; i++) ask(g, thread_request(i), &expected[i]);
    must(hy_generator_run(g));
    for (int t = 0; t < THREADS; t++) {
        for (int i = 0; i < EACH; i++) {
            heard *h = &clients[t].heard[i];
            if (h->end != HY_END_STOPPED)
                check_same(h, &expected[i]);
            else
                ck_assert_int_eq(i % 3, 2);
            unhear(h);
        }
    }
    for (int i = 0; i < EACH; i++) unhear(&expected[i]);
    hy_generator_close(g);
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("generate: use");
    TCase *all = tcase_create("use");
    tcase_add_unchecked_fixture(all, make_models, remove_models);
    tcase_add_test(all, wrong_requests_are_refused);
    tcase_add_test(all, wrong_options_are_refused);
    tcase_add_test(all, text_becomes_tokens_and_text_again);
    tcase_add_test(all, answers_end_at_max_tokens_at_the_context_and_before_stop_texts);
    tcase_add_test(all, the_models_end_ends_an_answer_unless_it_is_ignored);
    tcase_add_test(all, logits_that_are_not_finite_end_an_answer);
    tcase_add_test(all, a_request_needs_no_listener);
    tcase_add_test(all, messages_are_written_by_the_chat_template);
    tcase_add_test(all, a_stopped_generator_goes_on);
    tcase_add_test(all, a_full_cache_makes_requests_wait);
    tcase_add_test(all, one_more_than_may_wait_is_refused);
    tcase_add_test(all, a_callback_cannot_run_the_generator);
    tcase_add_test(all, what_has_a_token_runs);
    tcase_add_test(all, after_a_failure_of_the_device_the_rest_is_answered);
    tcase_add_test(all, other_threads_add_and_cancel_while_it_serves);
    suite_add_tcase(suite, all);
    return suite;
}

HY_TEST_MAIN(make_suite)
