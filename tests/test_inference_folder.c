/* test_inference_folder.c: the folder of a run can be used for chat: it has the tokenizer, and a
 * chat template in it is used. */
#include <errno.h>

#include "base/file.h"
#include "config/derived.h"
#include "harness.h"
#include "hybrid.h"
#include "hybrid_tools.h"
#include "infer/inference.h"
#include "model/model.h"
#include "record/record.h"

#define TOKENIZER HY_SOURCE_DIR "/tests/golden/rows/tokenizer.json"
#define EMPTY_THOUGHT "<think>\n\n</think>\n\n"

static char folder[256], model[300];

static hy_config *config_of(const char *const pairs[][2], size_t count) {
    hy_config *config;
    must(hy_config_create(&config));
    for (size_t i = 0; i < count; i++) {
        must(hy_config_set(config, pairs[i][0], pairs[i][1], HY_FROM_CALLER));
    }
    return config;
}

#define CONFIG(pairs) config_of(pairs, sizeof(pairs) / sizeof(pairs)[0])

static char warning[1024]; /* the last one */
static char said[1024];    /* the last message about a chat template */

static void keep_warning(void *user, hy_message_level level, const char *text) {
    (void)user;
    if (level == HY_WARNING) snprintf(warning, sizeof warning, "%s", text);
    if (strstr(text, "chat template")) snprintf(said, sizeof said, "%s", text);
}

/* Trains a model for two steps on the text of a file with this name. */
static void train_as(const char *from, const char *tokenizer, const char *name, const char *text,
                     const char *run, const char *chat, const char *lora) {
    char data[300], out[300];
    snprintf(data, sizeof data, "%s/%s", folder, name);
    snprintf(out, sizeof out, "%s/%s", folder, run);
    must(hy_file_write_atomic(data, text, strlen(text)));
    const char *const values[][2] = {
        {"model", from},   {"layers", "1"},         {"width", "32"},
        {"heads", "4"},    {"vocab", "640"},        {"seq_len", "16"},
        {"context", "64"}, {"batch_size", "1"},     {"steps", "2"},
        {"data", data},    {"device", "cpu"},       {"eval_batches", "1"},
        {"threads", "2"},  {"predictor", "none"},   {"tokenizer", tokenizer},
        {"out", out},      {"chat_template", chat}, {"lora", lora}};
    hy_config *config = CONFIG(values);
    hy_observer observer = {.on_message = keep_warning};
    hy_trainer *trainer;
    warning[0] = said[0] = 0;
    must(hy_trainer_create(config, &observer, &trainer));
    must(hy_trainer_run(trainer));
    hy_trainer_destroy(trainer);
    hy_config_destroy(config);
}

static void train(const char *from, const char *tokenizer, const char *name, const char *text,
                  const char *run) {
    train_as(from, tokenizer, name, text, run, "auto", "false");
}

/* A preset, trained for two steps on text with somebody's tokenizer. */
static void make_model(void) {
    char text[600] = "";
    temp_folder(folder);
    for (int i = 0; i < 30; i++) strcat(text, "one two three four\n");
    snprintf(model, sizeof model, "%s/run/model", folder);
    train("nano", TOKENIZER, "text.txt", text, "run");
}

static void drop_model(void) { remove_folder(folder); }

static void put(const char *name, const char *text) {
    char path[400];
    snprintf(path, sizeof path, "%s/%s", model, name);
    must(hy_file_write_atomic(path, text, strlen(text)));
}

static hy_inference *open_model(bool without_thinking) {
    const char *const values[][2] = {{"model", model}, {"device", "cpu"}, {"threads", "2"}};
    hy_inference_options options = {.without_thinking = without_thinking};
    hy_config *config = CONFIG(values);
    hy_inference *in;
    must(hy_inference_open(config, &options, NULL, &in));
    hy_config_destroy(config);
    return in;
}

START_TEST(the_tokenizer_of_a_run_lies_beside_its_model) {
    hy_inference_facts facts;
    int32_t *ids;
    size_t count;
    hy_inference *in = open_model(false);
    hy_inference_describe(in, &facts);
    ck_assert_ptr_nonnull(strstr(facts.tokenizer, "run/model/tokenizer.json"));
    must(hy_inference_encode(in, "<|im_end|>", 10, &ids, &count));
    ck_assert_uint_eq(count, 1);
    hy_free(ids);
    hy_inference_close(in);
}
END_TEST

#define CHATML                                                                                     \
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"   \
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"

static int32_t prompt_tokens(bool without_thinking, size_t *thought) {
    hy_generate_options options = {.max_tokens = 1};
    hy_generated info;
    int32_t *ids;
    hy_inference *in = open_model(without_thinking);
    must(hy_inference_say(in, "hello", &options, NULL, NULL, &info));
    must(hy_inference_encode(in, EMPTY_THOUGHT, sizeof EMPTY_THOUGHT - 1, &ids, thought));
    hy_free(ids);
    hy_inference_close(in);
    return info.prompt_tokens;
}

START_TEST(a_model_that_may_think_is_asked_not_to) {
    size_t thought;
    put("chat_template.jinja", CHATML "{% if add_generation_prompt and enable_thinking is false %}"
                                      "{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}");
    int32_t thinking = prompt_tokens(false, &thought);
    int32_t at_once = prompt_tokens(true, &thought);
    /* the line end before it is in one piece with it, or not */
    ck_assert_int_gt(at_once, thinking + (int32_t)thought - 3);
    ck_assert_int_le(at_once, thinking + (int32_t)thought);
    put("chat_template.jinja", CHATML);
    ck_assert_int_eq(prompt_tokens(false, &thought), prompt_tokens(true, &thought));
}
END_TEST

static int32_t tokens_of(hy_inference *in, const char *text) {
    int32_t *ids;
    size_t count;
    must(hy_inference_encode(in, text, strlen(text), &ids, &count));
    hy_free(ids);
    return (int32_t)count;
}

START_TEST(a_conversation_comes_in_as_messages) {
    static const char list[] =
        "[{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"Q\"}]}, "
        "{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"function\": {\"name\": "
        "\"f\"}}]}, {\"role\": \"tool\", \"content\": \"4\"}]";
    hy_generate_options options = {.max_tokens = 1};
    hy_inference_facts facts;
    hy_generated info;
    hy_text object = {0};
    put("chat_template.jinja", "{{ tools | length if tools else '' }}" CHATML);
    hy_inference *in = open_model(false);
    hy_inference_describe(in, &facts);
    ck_assert_str_eq(facts.chat_template, "its own");
    must(hy_inference_set_messages(in, list, sizeof list - 1));
    must(hy_inference_say(in, NULL, &options, NULL, NULL, &info));
    ck_assert_int_eq(info.prompt_tokens,
                     tokens_of(in,
                               "<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\n<|im_end|>"
                               "\n<|im_start|>tool\n4<|im_end|>\n<|im_start|>assistant\n"));
    hy_text_addf(&object, "{\"tools\": [{}, {}], \"messages\": %s}", list);
    must(hy_inference_set_messages(in, object.data, object.size));
    must(hy_inference_say(in, "next", &options, NULL, NULL, &info));
    ck_assert_int_eq(
        info.prompt_tokens,
        tokens_of(in,
                  "2<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\n<|im_end|>\n<|im_start|>"
                  "tool\n4<|im_end|>\n<|im_start|>user\nnext<|im_end|>\n<|im_start|>assistant\n"));
    /* texts of the JSON are not freed as if they were turns of a conversation */
    static const char sharegpt[] =
        "{\"system\": \"S\", \"messages\": [{\"from\": \"human\", \"value\": \"Q\"}]}";
    must(hy_inference_set_messages(in, sharegpt, sizeof sharegpt - 1));
    must(hy_inference_reset(in, NULL));
    must_fail(hy_inference_set_messages(in, "[{}]", 4), HY_ERR_INPUT,
              "turn 1 needs a string \"role\"");
    must_fail(hy_inference_say(in, NULL, &options, NULL, NULL, &info), HY_ERR_INPUT,
              "the conversation is empty");
    hy_text_free(&object);
    hy_inference_close(in);
}
END_TEST

/* ---- the format of rows ---------------------------------------------------------------------- */

#define QUESTIONS                                                                                  \
    "{\"question\": \"one two\", \"answer\": \"three\"}\n"                                         \
    "{\"question\": \"two three\", \"answer\": \"four\"}\n"                                        \
    "{\"question\": \"three four\", \"answer\": \"one\"}\n"

/* The tokens before the answer to "one two", asked of a run or a model folder. */
static int32_t asked_of(const char *what, const char *template) {
    char path[300];
    hy_generate_options options = {.max_tokens = 1};
    hy_inference_facts facts;
    hy_generated info;
    hy_inference *in;
    hy_config *config;
    snprintf(path, sizeof path, "%s/%s", folder, what);
    must(hy_config_create(&config));
    must(hy_config_use_model(config, path));
    must(hy_inference_open(config, NULL, NULL, &in));
    hy_inference_describe(in, &facts);
    ck_assert_str_eq(facts.chat_template, template);
    must(hy_inference_say(in, "one two", &options, NULL, NULL, &info));
    ck_assert_int_eq(info.prompt_tokens, tokens_of(in, "one two\n"));
    hy_inference_close(in);
    hy_config_destroy(config);
    return info.prompt_tokens;
}

START_TEST(a_model_without_a_template_gets_the_format_of_its_rows) {
    char run[300], out[300], path[400], *text;
    size_t size;
    train(model, "auto", "rows.jsonl", QUESTIONS, "tuned");
    ck_assert_int_eq(asked_of("tuned", "lines"), asked_of("tuned/model", "lines"));
    snprintf(run, sizeof run, "%s/tuned", folder);
    snprintf(out, sizeof out, "%s/exported", folder);
    must(hy_export(run, &(hy_export_options){.out = out}, NULL));
    asked_of("exported", "lines");
    /* for other programs */
    snprintf(path, sizeof path, "%s/hybrid_format.json", out);
    must(hy_file_write_atomic(path, "{}", 2));
    asked_of("exported", "its own");
    /* a template of the folder stays */
    put("chat_template.jinja", CHATML);
    train(model, "auto", "rows.jsonl", QUESTIONS, "other");
    snprintf(path, sizeof path, "%s/other/model/chat_template.jinja", folder);
    must(hy_file_read(path, &text, &size));
    ck_assert_str_eq(text, CHATML);
    free(text);
}
END_TEST

START_TEST(another_template_than_the_folders_becomes_the_models) {
    char run[300], out[300], path[400], *text;
    size_t size;
    put("tokenizer_config.json", "{\"chat_template\": \"mine\", \"eos_token\": \"</s>\"}");
    train_as(model, "auto", "rows.jsonl", QUESTIONS, "tuned", "lines", "false");
    ck_assert_ptr_nonnull(strstr(said,
                                 "tuned/model/chat_template.jinja is the format of the rows, "
                                 "lines, instead of the chat template of the starting model"));
    snprintf(run, sizeof run, "%s/tuned", folder);
    snprintf(out, sizeof out, "%s/exported", folder);
    must(hy_export(run, &(hy_export_options){.out = out}, NULL));
    static const char *const folders[] = {"tuned/model", "exported"};
    for (int i = 0; i < 2; i++) {
        asked_of(folders[i], "lines");
        snprintf(path, sizeof path, "%s/%s/tokenizer_config.json", folder, folders[i]);
        must(hy_file_read(path, &text, &size));
        ck_assert_ptr_null(strstr(text, "mine"));
        ck_assert_ptr_nonnull(strstr(text, "</s>"));
        free(text);
        snprintf(path, sizeof path, "%s/%s/chat_template.jinja", folder, folders[i]);
        ck_assert(hy_path_exists(path));
    }
    train_as(model, "auto", "rows.jsonl", QUESTIONS, "other", "mistral", "false");
    ck_assert_ptr_nonnull(
        strstr(warning, "other/model keeps the chat template of the starting model, but the rows "
                        "were written as mistral"));
    snprintf(path, sizeof path, "%s/other/model/tokenizer_config.json", folder);
    must(hy_file_read(path, &text, &size));
    ck_assert_ptr_nonnull(strstr(text, "mine"));
    free(text);
}
END_TEST

START_TEST(an_adapter_keeps_its_format_wherever_it_is) {
    char from[300], moved[300], out[300];
    hy_inference_facts facts;
    hy_inference *in;
    put("chat_template.jinja", CHATML);
    train_as(model, "auto", "rows.jsonl", QUESTIONS, "tuned", "lines", "true");
    snprintf(from, sizeof from, "%s/tuned/adapter", folder);
    snprintf(moved, sizeof moved, "%s/moved", folder);
    snprintf(out, sizeof out, "%s/merged", folder);
    must(hy_path_rename(from, moved));
    const char *const values[][2] = {{"model", model}, {"adapter", moved}, {"device", "cpu"}};
    hy_config *config = CONFIG(values);
    must(hy_inference_open(config, NULL, NULL, &in));
    hy_inference_describe(in, &facts);
    ck_assert_str_eq(facts.message_format, "as in training, the question and a line end; each "
                                           "message is asked alone");
    hy_inference_close(in);
    hy_config_destroy(config);
    must(hy_merge_adapter(moved, &(hy_export_options){.out = out, .base = model}, NULL));
    asked_of("merged", "lines");
}
END_TEST

START_TEST(a_run_and_its_model_are_evaluated_in_the_format_of_its_rows) {
    char path[300];
    hy_evaluation found[2];
    static const char *const names[] = {"tuned", "tuned/model"};
    static const char rows[] = "{\"prompt\": \"one two\", \"completion\": \"three\"}\n"
                               "{\"prompt\": \"two three\", \"completion\": \"four\"}\n";
    train(model, "auto", "rows.jsonl", QUESTIONS, "tuned");
    snprintf(path, sizeof path, "%s/pairs.jsonl", folder);
    must(hy_file_write_atomic(path, rows, sizeof rows - 1));
    for (int i = 0; i < 2; i++) {
        char name[300], *json;
        hy_config *config;
        snprintf(name, sizeof name, "%s/%s", folder, names[i]);
        must(hy_config_create(&config));
        must(hy_config_use_model(config, name));
        must(hy_config_set(config, "data", path, HY_FROM_CALLER));
        must(hy_config_set(config, "seq_len", "16", HY_FROM_CALLER));
        must(hy_config_set(config, "device", "cpu", HY_FROM_CALLER));
        must(hy_evaluate(config, NULL, &found[i]));
        ck_assert_str_eq(found[i].row_format,
                         "prompt and completion; chat template lines; loss on answers; begins with "
                         "no special token, ends with <|endoftext|>");
        must(hy_evaluation_json(&found[i], &json));
        ck_assert_ptr_nonnull(strstr(json, "\"row_format\": \"prompt and completion; chat"));
        hy_free(json);
        hy_config_destroy(config);
    }
    ck_assert_int_eq(found[0].tokens, found[1].tokens);
    ck_assert_double_eq_tol(found[0].loss, found[1].loss, 1e-5);
}
END_TEST

static void ignore_row(void *user, const hy_row_view *row) {
    (void)user;
    (void)row;
}

START_TEST(another_tokenizer_than_the_folders_is_named) {
    char path[300], *text, *digits;
    size_t size;
    must(hy_file_read(TOKENIZER, &text, &size));
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    must(hy_file_write_atomic(path, text, size));
    train(model, path, "rows.jsonl", QUESTIONS, "same"); /* the same tokens in another file */
    ck_assert_str_eq(warning, "");
    digits = strstr(text, "\"!\":0,\"\\\"\":1");
    ck_assert_ptr_nonnull(digits);
    digits[4] = '1';
    digits[11] = '0';
    must(hy_file_write_atomic(path, text, size));
    train(model, path, "rows.jsonl", QUESTIONS, "others");
    ck_assert_ptr_nonnull(strstr(warning, "tokenizer.json is not the one of the model folder"));
    ck_assert_ptr_nonnull(strstr(warning, "2 of 6"));
    free(text);
    char data[300];
    snprintf(data, sizeof data, "%s/rows.jsonl", folder);
    const char *const values[][2] = {{"model", model}, {"data", data}, {"tokenizer", path}};
    hy_config *config = CONFIG(values);
    warning[0] = 0;
    must(hy_show_rows(config, &(hy_observer){.on_message = keep_warning}, 1, ignore_row, NULL));
    ck_assert_ptr_nonnull(strstr(warning, "tokenizer.json is not the one of the model folder"));
    hy_config_destroy(config);
}
END_TEST

/* An answer is decoded as it grows. SentencePiece drops the blank of the first token alone. */
START_TEST(a_blank_behind_a_skipped_special_token_is_shown) {
#define METASPACE                                                                                  \
    "{\"type\":\"Metaspace\",\"replacement\":\"\u2581\",\"prepend_scheme\":\"first\","             \
    "\"split\":false}"
    static const char json[] =
        "{\"pre_tokenizer\":" METASPACE ",\"decoder\":" METASPACE ",\"added_tokens\":["
        "{\"id\":0,\"content\":\"<q>\",\"special\":true},"
        "{\"id\":2,\"content\":\"<call>\",\"special\":true}],\"model\":{\"type\":\"BPE\",\"vocab\":"
        "{\"<q>\":0,\"\u2581a\":1,\"<call>\":2,\"\u2581b\":3},\"merges\":[]}}";
    hy_tokenizer *t;
    must(hy_tokenizer_parse(json, sizeof json - 1, "t.json", &t));
    static const int32_t tokens[] = {0, 1, 2, 2, 3, 2, 1};
    hy_ids known = {0};
    hy_text text = {0};
    hy_decode_window window = {.next = 1};
    for (size_t i = 0; i < sizeof tokens / sizeof tokens[0]; i++) {
        must(hy_ids_append(&known, &tokens[i], 1));
        if (i > 0) must(hy_decode_more(t, &known, &window, &text));
    }
    ck_assert_str_eq(hy_text_string(&text), "a b a");
    hy_text_free(&text);
    hy_ids_free(&known);
    hy_tokenizer_close(t);
}
END_TEST

/* Each call that changes the disk fails in turn. */
START_TEST(what_a_run_keeps_of_its_model_is_whole_or_not_there) {
    static hy_record record;
    char origin[320], list[340];
    hy_shape shape;
    hy_model *shaped;
    hy_kept_origin kept;
    bool is_done = false;
    snprintf(record.out, sizeof record.out, "%s/second", folder);
    snprintf(origin, sizeof origin, "%s/second/origin", folder);
    snprintf(list, sizeof list, "%s/second/origin/origin.json", folder);
    must(hy_dir_make(record.out));
    const char *const values[][2] = {{"model", model}, {"device", "cpu"}};
    hy_config *config = CONFIG(values);
    must(hy_shape_from_settings(hy_config_settings(config), &shape));
    must(hy_model_create(&shape, &shaped));
    for (long at = 0; !is_done; at++) {
        hy_settings settings = *hy_config_settings(config);
        ck_assert_int_lt(at, 100);
        hy_fault_arm(at, EIO, false);
        hy_status status = hy_origin_keep(&record, &settings, shaped);
        is_done = hy_fault_disarm() <= at;
        ck_assert(!is_done || status == HY_OK);
        ck_assert(hy_path_exists(origin) == hy_path_exists(list));
        ck_assert(status != HY_OK || hy_path_exists(list));
        must(hy_origin_read(record.out, &kept));
        ck_assert(status != HY_OK || kept.kind == HY_FILES_HF);
    }
    hy_model_destroy(shaped);
    hy_config_destroy(config);
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("inference: folders");
    TCase *cases = tcase_create("folders");
    tcase_add_checked_fixture(cases, make_model, drop_model);
    tcase_add_test(cases, the_tokenizer_of_a_run_lies_beside_its_model);
    tcase_add_test(cases, a_model_that_may_think_is_asked_not_to);
    tcase_add_test(cases, a_conversation_comes_in_as_messages);
    tcase_add_test(cases, a_model_without_a_template_gets_the_format_of_its_rows);
    tcase_add_test(cases, another_template_than_the_folders_becomes_the_models);
    tcase_add_test(cases, an_adapter_keeps_its_format_wherever_it_is);
    tcase_add_test(cases, a_run_and_its_model_are_evaluated_in_the_format_of_its_rows);
    tcase_add_test(cases, another_tokenizer_than_the_folders_is_named);
    tcase_add_test(cases, a_blank_behind_a_skipped_special_token_is_shown);
    tcase_add_test(cases, what_a_run_keeps_of_its_model_is_whole_or_not_there);
    suite_add_tcase(suite, cases);
    return suite;
}

HY_TEST_MAIN(make_suite)
