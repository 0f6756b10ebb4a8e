/* test_data_thinking.c: templates with a place for reasoning, as in Qwen3.
 *
 * The expected texts are those of transformers for the same messages and template. */
#include "data/conversation.h"
#include "harness.h"

#define GOLDEN HY_SOURCE_DIR "/tests/golden/rows/"
/* A template with Qwen3's ways: a thought is written behind the last question, where it is the last
 * turn or there is something in it. */
#define THINKS                                                                                     \
    "{%- set ns = namespace(last=messages | length) %}\n"                                          \
    "{%- for m in messages %}\n"                                                                   \
    "    {%- if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}\n"                   \
    "{%- endfor %}\n"                                                                              \
    "{%- for m in messages %}\n"                                                                   \
    "    {%- set said, thought = m.content, '' %}\n"                                               \
    "    {%- if m.reasoning_content is string %}\n"                                                \
    "        {%- set thought = m.reasoning_content %}\n"                                           \
    "    {%- elif m.role == 'assistant' and '</think>' in said %}\n"                               \
    "        {%- set thought = said.split('</think>')[0].rstrip('\\n').split('<think>')[-1] %}\n"  \
    "        {%- set said = said.split('</think>')[-1].lstrip('\\n') %}\n"                         \
    "    {%- endif %}\n"                                                                           \
    "    {{- '<|im_start|>' + m.role + '\\n' }}\n"                                                 \
    "    {%- if m.role == 'assistant' and loop.index0 > ns.last and (loop.last or thought) %}\n"   \
    "        {{- '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' + said.lstrip('\\n') "  \
    "}}\n"                                                                                         \
    "    {%- else %}\n"                                                                            \
    "        {{- said }}\n"                                                                        \
    "    {%- endif %}\n"                                                                           \
    "    {{- '<|im_end|>\\n' }}\n"                                                                 \
    "{%- endfor %}\n"                                                                              \
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}\n"
#define MAY_SKIP                                                                                   \
    "{%- if add_generation_prompt and enable_thinking is false %}"                                 \
    "{{- '<think>\\n\\n</think>\\n\\n' }}"
#define MAY THINKS MAY_SKIP "{% endif %}"
#define ALWAYS THINKS MAY_SKIP "{% elif add_generation_prompt %}{{- '<think>\\n' }}{% endif %}"
#define PLAIN                                                                                      \
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"   \
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"

#define USER(text) "{\"role\": \"user\", \"content\": \"" text "\"}"
#define ASKED(text) "<|im_start|>user\n" text "<|im_end|>\n"
#define ANSWERED(text) "<|im_start|>assistant\n" text "<|im_end|>\n"
#define SAID(text) "{\"role\": \"assistant\", \"content\": \"" text "\"}"
#define THOUGHT(text, thought)                                                                     \
    "{\"role\": \"assistant\", \"content\": \"" text "\", \"reasoning_content\": \"" thought "\"}"

static hy_tokenizer *tokenizer;

static void open_tokenizer(void) { must(hy_tokenizer_open(GOLDEN, &tokenizer)); }
static void close_tokenizer(void) { hy_tokenizer_close(tokenizer); }

static hy_chat_template template_of(const char *text) {
    hy_chat_template chat;
    must(hy_chat_template_open(HY_CHAT_AUTO, tokenizer, NULL, &chat));
    must(hy_own_template_open(text, strlen(text), (hy_own_tokens){0}, tokenizer, &chat));
    ck_assert_int_eq(chat.kind, HY_CHAT_OWN);
    return chat;
}

/* The text of messages as the template writes them, special tokens spelt out; `answers` is what of
 * it belongs to answers. */
static void write_messages(const hy_chat_template *chat, const char *messages, bool asks,
                           hy_text *all, hy_text *answers) {
    hy_conversation conversation = {0};
    hy_rendered r = {0};
    hy_json *json;
    char row[1024];
    snprintf(row, sizeof row, "{\"messages\": [%s]}", messages);
    must(hy_json_parse(row, strlen(row), "row", &json));
    must(hy_conversation_read(hy_json_root(json), HY_ROWS_MESSAGES, &conversation));
    must(hy_chat_render(chat, &conversation, asks, &r));
    for (size_t i = 0; i < r.count; i++) {
        const hy_rendered_piece *p = &r.pieces[i];
        const char *text =
            p->token >= 0 ? hy_tokenizer_token(tokenizer, p->token, NULL) : r.text.data + p->begin;
        size_t size = p->token >= 0 ? strlen(text) : p->size;
        hy_text_add_bytes(all, text, size);
        if (p->is_answer) hy_text_add_bytes(answers, text, size);
    }
    hy_rendered_free(&r);
    hy_conversation_free(&conversation);
    hy_json_free(json);
}

static void check(const hy_chat_template *chat, const char *messages, bool asks, const char *text,
                  const char *answers) {
    hy_text all = {0}, learnt = {0};
    write_messages(chat, messages, asks, &all, &learnt);
    ck_assert_str_eq(hy_text_string(&all), text);
    if (answers) ck_assert_str_eq(hy_text_string(&learnt), answers);
    hy_text_free(&all);
    hy_text_free(&learnt);
}

START_TEST(an_answer_without_a_thought_has_an_empty_one) {
    hy_chat_template chat = template_of(MAY);
    check(&chat, USER("Q") "," SAID("A"), false, ASKED("Q") ANSWERED("<think>\n\n</think>\n\nA"),
          "<think>\n\n</think>\n\nA<|im_end|>");
    check(&chat, USER("Q") "," SAID(""), false, ASKED("Q") ANSWERED("<think>\n\n</think>\n\n"),
          NULL);
    hy_chat_template_close(&chat);
}
END_TEST

START_TEST(a_thought_in_the_text_stays_behind_the_last_question_alone) {
    hy_chat_template chat = template_of(MAY);
    check(&chat,
          USER("Q") "," SAID("<think>\\n\\nR\\n</think>\\n\\nA") "," USER("Q2") "," SAID(
              "\\n\\n<think>\\nR2\\n\\n</think>\\n\\n\\nA2\\n"),
          false, ASKED("Q") ANSWERED("A") ASKED("Q2") ANSWERED("<think>\nR2\n</think>\n\nA2\n"),
          "A<|im_end|><think>\nR2\n</think>\n\nA2\n<|im_end|>");
    check(&chat, USER("Q") "," SAID("a</think>b<think>c</think>\\n\\nd"), false,
          ASKED("Q") ANSWERED("<think>\na\n</think>\n\nd"), NULL);
    hy_chat_template_close(&chat);
}
END_TEST

START_TEST(a_thought_may_be_a_separate_field_of_its_answer) {
    hy_chat_template chat = template_of(MAY);
    check(&chat,
          USER("Q") "," THOUGHT("\\n\\nA", "\\n\\nR\\n") "," USER("Q2") "," THOUGHT("\\n\\nA2",
                                                                                    "\\n\\nR2\\n"),
          false, ASKED("Q") ANSWERED("\n\nA") ASKED("Q2") ANSWERED("<think>\nR2\n</think>\n\nA2"),
          NULL);
    hy_chat_template_close(&chat);
}
END_TEST

START_TEST(of_answers_in_a_row_the_last_and_the_thoughtful_have_a_thought) {
    hy_chat_template chat = template_of(MAY);
    check(&chat, USER("Q") "," SAID("one") "," SAID("<think>x</think>two") "," SAID("three"), false,
          ASKED("Q") ANSWERED("one") ANSWERED("<think>\nx\n</think>\n\ntwo")
              ANSWERED("<think>\n\n</think>\n\nthree"),
          NULL);
    check(&chat, SAID("hello"), false, ANSWERED("hello"), NULL);
    hy_chat_template_close(&chat);
}
END_TEST

START_TEST(a_model_is_asked_to_think_or_not_to) {
    hy_chat_template may = template_of(MAY), must_think = template_of(ALWAYS);
    hy_chat_template plain = template_of(PLAIN);
    check(&may, USER("Q"), true, ASKED("Q") "<|im_start|>assistant\n", NULL);
    check(&must_think, USER("Q"), true, ASKED("Q") "<|im_start|>assistant\n<think>\n", NULL);
    may.skips_thinking = must_think.skips_thinking = plain.skips_thinking = true;
    check(&may, USER("Q"), true, ASKED("Q") "<|im_start|>assistant\n<think>\n\n</think>\n\n", NULL);
    check(&must_think, USER("Q"), true, ASKED("Q") "<|im_start|>assistant\n<think>\n\n</think>\n\n",
          NULL);
    check(&plain, USER("Q"), true, ASKED("Q") "<|im_start|>assistant\n", NULL);
    hy_chat_template_close(&may);
    hy_chat_template_close(&plain);
    hy_chat_template_close(&must_think);
}
END_TEST

START_TEST(other_templates_leave_the_text_as_it_is) {
    hy_chat_template chat = template_of(PLAIN);
    check(&chat, USER("Q") "," THOUGHT("<think>x</think>A", "R"), false,
          ASKED("Q") ANSWERED("<think>x</think>A"), NULL);
    hy_chat_template_close(&chat);
}
END_TEST

START_TEST(a_thought_that_is_no_string_is_named) {
    hy_conversation conversation = {0};
    hy_json *json;
    static const char row[] = "{\"messages\": [{\"role\": \"assistant\", \"content\": \"A\", "
                              "\"reasoning_content\": 3}]}";
    must(hy_json_parse(row, sizeof row - 1, "row", &json));
    must_fail(hy_conversation_read(hy_json_root(json), HY_ROWS_MESSAGES, &conversation),
              HY_ERR_INPUT, "\"reasoning_content\" is not a string");
    hy_conversation_free(&conversation);
    hy_json_free(json);
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("data: thinking");
    TCase *cases = tcase_create("thinking");
    tcase_add_checked_fixture(cases, open_tokenizer, close_tokenizer);
    tcase_add_test(cases, an_answer_without_a_thought_has_an_empty_one);
    tcase_add_test(cases, a_thought_in_the_text_stays_behind_the_last_question_alone);
    tcase_add_test(cases, a_thought_may_be_a_separate_field_of_its_answer);
    tcase_add_test(cases, of_answers_in_a_row_the_last_and_the_thoughtful_have_a_thought);
    tcase_add_test(cases, a_model_is_asked_to_think_or_not_to);
    tcase_add_test(cases, other_templates_leave_the_text_as_it_is);
    tcase_add_test(cases, a_thought_that_is_no_string_is_named);
    suite_add_tcase(suite, cases);
    return suite;
}

HY_TEST_MAIN(make_suite)
