/* test_data_own.c: conversations rendered by the templates of model folders: tokens, answers,
 * tools, parts.
 *
 * The templates are written for this test in the style of the families that they are named
 * after. */
#include "data/conversation.h"
#include "harness.h"

#define GOLDEN HY_SOURCE_DIR "/tests/golden/rows/"

#define CHATML                                                                                     \
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"     \
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
/* The system's text goes into the last question, answers are trimmed, turns must alternate. */
#define MISTRAL                                                                                    \
    "{% set system, rest = '', messages %}"                                                        \
    "{% if messages[0].role == 'system' %}"                                                        \
    "{% set system, rest = messages[0].content + '\n\n', messages[1:] %}{% endif %}"               \
    "<s>{% for m in rest %}"                                                                       \
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"                                        \
    "{{ raise_exception('roles must alternate') }}{% endif %}"                                     \
    "{% if m.role == 'user' %}[INST] {{ (system if loop.last or loop.index0 + 2 == rest | length " \
    "else '') + m.content }} [/INST]{% else %} {{ m.content | trim }}</s>{% endif %}{% endfor %}"
/* A prompt continues with <think>; earlier answers lose their thoughts. */
#define THINKER                                                                                    \
    "{% for m in messages %}{% if m.role == 'user' %}<s>{{ m.content }}"                           \
    "{% else %}<|im_start|>{{ m.content.split('</think>')[-1] }}<|im_end|>{% endif %}{% endfor %}" \
    "{% if add_generation_prompt %}<|im_start|><think>\n{% endif %}"

static hy_tokenizer *tokenizer;
static hy_chat_template chat;
static hy_json *json;
static hy_conversation conversation;
static hy_rendered rendered;

static void open_tokenizer(void) { must(hy_tokenizer_open(GOLDEN, &tokenizer)); }
static void close_tokenizer(void) {
    hy_conversation_free(&conversation);
    hy_rendered_free(&rendered);
    hy_json_free(json);
    hy_chat_template_close(&chat);
    hy_tokenizer_close(tokenizer);
    json = NULL;
}

static void use(const char *template) {
    hy_chat_template_close(&chat);
    must(hy_chat_template_open(HY_CHAT_AUTO, tokenizer, NULL, &chat));
    must(hy_own_template_open(template, strlen(template), (hy_own_tokens){0}, tokenizer, &chat));
    if (chat.kind == HY_CHAT_UNKNOWN) ck_abort_msg("%s", chat.reason);
}

static hy_status render(const char *row, bool asks) {
    hy_json_free(json);
    json = NULL;
    must(hy_json_parse(row, strlen(row), "row", &json));
    HY_TRY(hy_conversation_read(hy_json_root(json), HY_ROWS_MESSAGES, &conversation));
    return hy_chat_render(&chat, &conversation, asks, &rendered);
}

#define ROW(messages) "{\"messages\": [" messages "]}"
#define SAYS(role, text) "{\"role\": \"" role "\", \"content\": \"" text "\"}"

/* The whole text with answers in (( )). */
static void check(const char *row, const char *expected) {
    hy_text out = {0};
    bool was = false;
    must(render(row, false));
    for (size_t i = 0; i < rendered.count; i++) {
        const hy_rendered_piece *p = &rendered.pieces[i];
        if (p->is_answer != was) hy_text_add(&out, p->is_answer ? "((" : "))");
        was = p->is_answer;
        if (p->token >= 0)
            hy_text_add(&out, hy_tokenizer_token(tokenizer, p->token, NULL));
        else
            hy_text_add_bytes(&out, rendered.text.data + p->begin, p->size);
    }
    if (was) hy_text_add(&out, "))");
    ck_assert_str_eq(hy_text_string(&out), expected);
    hy_text_free(&out);
}

START_TEST(an_answer_is_its_text_and_the_token_that_ends_it) {
    use(CHATML);
    ck_assert_int_eq(hy_chat_template_end(&chat), hy_tokenizer_find(tokenizer, "<|im_end|>"));
    check(ROW(SAYS("system", "S") "," SAYS("user", "Q") "," SAYS("assistant", "A") "," SAYS(
              "user", "Q2") "," SAYS("assistant", "A2")),
          "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\n"
          "((A<|im_end|>))\n<|im_start|>user\nQ2<|im_end|>\n<|im_start|>assistant\n((A2<|im_end|>))"
          "\n");
}
END_TEST

/* Other families, with tokens that this tokenizer has. All of them write the header of an answer
 * at the end, asked or not, as Llama 3 does. */
START_TEST(a_token_that_opens_a_turn_never_ends_an_answer) {
    static const char row[] = ROW(SAYS("user", "Q") "," SAYS("assistant", "A") "," SAYS(
        "user", "Q2") "," SAYS("assistant", "A2"));
    static const struct {
        const char *template, *end, *expected;
    } cases[] = {
        {"{{ '<|begin_of_text|>' }}{% for m in messages %}{{ '<|start_header_id|>' + m.role + "
         "'<|end_header_id|>' + m.content + '<|eot_id|>' }}{% endfor %}"
         "{{ '<|start_header_id|>assistant<|end_header_id|>' }}",
         "<|eot_id|>",
         "<|begin_of_text|><|start_header_id|>user<|end_header_id|>Q<|eot_id|><|start_header_id|>"
         "assistant<|end_header_id|>((A<|eot_id|>))<|start_header_id|>user<|end_header_id|>Q2"
         "<|eot_id|><|start_header_id|>assistant<|end_header_id|>((A2<|eot_id|>))"
         "<|start_header_id|>assistant<|end_header_id|>"},
        /* Phi, DeepSeek: a token for each role; here the question has no end. */
        {"{% for m in messages %}{% if m.role == 'user' %}<|start_header_id|>{{ m.content }}"
         "{% else %}<|end_header_id|>{{ m.content }}<|eot_id|>{% endif %}{% endfor %}"
         "<|end_header_id|>",
         "<|eot_id|>",
         "<|start_header_id|>Q<|end_header_id|>((A<|eot_id|>))<|start_header_id|>Q2"
         "<|end_header_id|>((A2<|eot_id|>))<|end_header_id|>"},
        /* An end token of its own follows the one that ends the turn. */
        {"{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' }}"
         "{% endfor %}{{ '</s>' }}",
         "</s>",
         "<|im_start|>user\nQ<|im_end|><|im_start|>assistant\n((A<|im_end|>))<|im_start|>user\nQ2"
         "<|im_end|><|im_start|>assistant\n((A2<|im_end|></s>))"},
        /* One token separates everything. */
        {"{{ '<s>' }}{% for m in messages %}{{ m.content + '<s>' }}{% endfor %}", "<s>",
         "<s>Q<s>((A<s>))Q2<s>((A2<s>))"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        use(cases[i].template);
        check(row, cases[i].expected);
        ck_assert_str_eq(hy_tokenizer_token(tokenizer, hy_chat_template_end(&chat), NULL),
                         cases[i].end);
    }
}
END_TEST

START_TEST(it_is_found_whatever_happens_to_other_turns) {
    use(MISTRAL);
    check(ROW(SAYS("system", "S") "," SAYS("user", "Q") "," SAYS("assistant", " A ") "," SAYS(
              "user", "Q2") "," SAYS("assistant", "\\nA2")),
          "<s>[INST] Q [/INST](( A</s>))[INST] S\n\nQ2 [/INST](( A2</s>))");
    use(THINKER);
    check(ROW(SAYS("user", "Q") "," SAYS("assistant", "R</think>A") "," SAYS("user", "Q2") "," SAYS(
              "assistant", "A2")),
          "<s>Q<|im_start|>((A<|im_end|>))<s>Q2<|im_start|>((A2<|im_end|>))");
}
END_TEST

START_TEST(a_template_may_say_itself_what_an_answer_is) {
    use("{% for m in messages %}{{ m.role }}: {% if m.role == 'assistant' %}{% generation %}"
        "<think></think>{{ m.content }}</s>{% endgeneration %}{% else %}{{ m.content }}{% endif %};"
        "{% endfor %}");
    check(ROW(SAYS("user", "Q") "," SAYS("assistant", "A") "," SAYS("user", "Q2")),
          "user: Q;assistant: ((<think></think>A</s>));user: Q2;");
}
END_TEST

START_TEST(an_answer_that_is_masked_does_not_count) {
    static const char row[] =
        ROW(SAYS("user", "Q") "," SAYS("assistant", "B\", \"weight\": 0, \"x\": \"") "," SAYS(
            "user", "Q2") "," SAYS("assistant", "A"));
    use("{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}[{{ m.content }}</s>"
        "{% endgeneration %}{% else %}{{ m.content }}{% endif %};{% endfor %}");
    check(row, "Q;[B</s>;Q2;(([A</s>));");
    use("{% for m in messages %}{{ m.content }}</s>{% endfor %}");
    check(row, "Q</s>B</s>Q2</s>((A</s>))");
    ck_assert(hy_chat_template_reads(&chat, "content"));
    ck_assert(!hy_chat_template_reads(&chat, "thinking"));
}
END_TEST

START_TEST(where_prompt_and_text_disagree_the_turn_itself_is_the_answer) {
    use("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}<s>bot:{% endif %}");
    check(ROW(SAYS("user", "Q") "," SAYS("assistant", "A")),
          "<|im_start|>user\nQ<|im_end|><|im_start|>assistant\n((A<|im_end|>))");
}
END_TEST

START_TEST(a_template_that_mixes_turns_is_refused) {
    use("{% for m in messages %}{{ m.content[0] }}{% endfor %}"
        "{% for m in messages %}{{ m.content[1:] }}{% endfor %}");
    must_fail(render(ROW(SAYS("user", "Question") "," SAYS("assistant", "Answer")), false),
              HY_ERR_INPUT, "the chat template mixes turn 2 with other turns");
    chat.ignores_answers = true;
    must(render(ROW(SAYS("user", "Question") "," SAYS("assistant", "Answer")), false));
}
END_TEST

START_TEST(a_refusal_of_a_template_shows_its_own_message) {
    use(MISTRAL);
    must_fail(render(ROW(SAYS("user", "Q") "," SAYS("user", "Q")), false), HY_ERR_INPUT,
              "the template raised an exception: roles must alternate");
}
END_TEST

START_TEST(text_that_spells_a_special_token_stays_text) {
    hy_ids ids = {0};
    hy_flags answers = {0};
    int ends = 0;
    use(CHATML);
    must(render(ROW(SAYS("user", "stop <|im_end|> now") "," SAYS("assistant", "<|im_end|>")),
                false));
    must(hy_rendered_encode(&rendered, tokenizer, &ids, &answers));
    for (size_t i = 0; i < ids.count; i++) ends += ids.data[i] == chat.tokens.im_end;
    ck_assert_int_eq(ends, 2);
    ck_assert_uint_eq(ids.count, answers.count);
    hy_ids_free(&ids);
    hy_flags_free(&answers);
}
END_TEST

/* ---- tools and parts ------------------------------------------------------------------------- */

#define CALL                                                                                       \
    "{\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{\"type\": \"function\", "      \
    "\"function\": {\"name\": \"add\", \"arguments\": {\"a\": 1}}}]}"
#define TOOLS                                                                                      \
    "{% if tools %}{{ tools | map(attribute='function.name') | join(' ') }}\n{% endif %}"          \
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content %}{{ m.content }}{% endif "  \
    "%}"                                                                                           \
    "{% for c in m.tool_calls %}<call>{{ c.function | tojson }}</call>{% endfor %}<|im_end|>\n"    \
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"

START_TEST(calls_of_tools_and_what_they_give_are_turns) {
    use(TOOLS);
    check("{\"tools\": [{\"function\": {\"name\": \"add\"}}], \"messages\": [" SAYS(
              "user", "Q") "," CALL "," SAYS("tool", "42") "," SAYS("assistant", "A") "]}",
          "add\n<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\n"
          "((<call>{\"name\": \"add\", \"arguments\": {\"a\": 1}}</call><|im_end|>))\n"
          "<|im_start|>tool\n42<|im_end|>\n<|im_start|>assistant\n((A<|im_end|>))\n");
}
END_TEST

static void put(const char *folder, const char *name, const char *text) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    must(hy_file_write_atomic(path, text, strlen(text)));
}

static void check_both(const char *folder, const char *without, const char *with) {
    hy_chat_template_close(&chat);
    must(hy_chat_template_open(HY_CHAT_AUTO, tokenizer, folder, &chat));
    must(hy_chat_template_check(&chat));
    check(ROW(SAYS("user", "Q")), without);
    check("{\"tools\": [{}], \"messages\": [" SAYS("user", "Q") "]}", with);
}

START_TEST(conversations_with_tools_may_have_a_separate_template) {
    static const char with_tools[] = "{\"tools\": [], \"messages\": [" SAYS("user", "Q") "]}";
    char folder[256], path[512];
    temp_folder(folder);
    put(folder, "tokenizer_config.json",
        "{\"bos_token\": \"B\", \"chat_template\": ["
        "{\"name\": \"tool_use\", \"template\": \"{{ bos_token }}{{ messages[0].content[0].text "
        "}}\"}, "
        "{\"name\": \"default\", \"template\": \"{{ messages[0].content }}\"}]}");
    check_both(folder, "Q", "BQ"); /* each gets content as it wants it */
    put(folder, "chat_template.jinja", "file {{ messages[0].content }}");
    check_both(folder, "file Q", "file Q");
    snprintf(path, sizeof path, "%s/additional_chat_templates", folder);
    must(hy_dir_make(path));
    put(folder, "additional_chat_templates/tool_use.jinja", "tools {{ messages[0].content }}");
    check_both(folder, "file Q", "tools Q");
    put(folder, "additional_chat_templates/tool_use.jinja", "\n{% include 'x' %}");
    hy_chat_template_close(&chat);
    must(hy_chat_template_open(HY_CHAT_AUTO, tokenizer, folder, &chat));
    check(ROW(SAYS("user", "Q")), "file Q");
    must_fail(
        render(with_tools, false), HY_ERR_INPUT,
        "the chat template for tools cannot be rendered: the chat template for tools, line 2: "
        "{% include %} is not supported");
    remove_folder(folder);
}
END_TEST

#define NULL_CALL                                                                                  \
    "{\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{\"function\": {\"name\": "     \
    "\"add\", \"arguments\": {\"a\": 1}}}]}"

START_TEST(null_content_is_never_the_word_none) {
    use("{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{{ m.content }}"
        "{% if m.tool_calls %}{{ m.tool_calls[0].function.name }}{% endif %}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}");
    check(ROW(SAYS("user", "None?") "," NULL_CALL),
          "<|im_start|>user\nNone?<|im_end|><|im_start|>assistant\n((add<|im_end|>))");
    use("{% for m in messages %}{% if m.content is none %}(null){% else %}{{ m.content }}"
        "{% endif %};{% endfor %}");
    check(ROW(SAYS("user", "Q") "," NULL_CALL), "Q;(null);");
}
END_TEST

START_TEST(numbers_of_tools_keep_their_digits) {
    use("{{ tools | tojson }}{% for t in tools %} {{ t }} {{ t.x is integer }}{% endfor %};"
        "{{ messages[0].content }}");
    check("{\"tools\": [{\"x\": 9223372036854775808}, {\"x\": -123456789012345678901234567890}, "
          "{\"x\": 1e300}, {\"x\": -0}, {\"x\": 18446744073709551616.5}], "
          "\"messages\": [" SAYS("user", "Q") "]}",
          "[{\"x\": 9223372036854775808}, {\"x\": -123456789012345678901234567890}, "
          "{\"x\": 1e+300}, {\"x\": 0}, {\"x\": 1.8446744073709552e+19}] "
          "{'x': 9223372036854775808} True {'x': -123456789012345678901234567890} True "
          "{'x': 1e+300} False {'x': 0} True {'x': 1.8446744073709552e+19} False;Q");
}
END_TEST

START_TEST(built_in_templates_know_what_a_tool_gave_but_no_calls) {
    hy_chat_template_close(&chat);
    must(hy_chat_template_open(HY_CHAT_CHATML, tokenizer, NULL, &chat));
    check(ROW(SAYS("tool", "42") "," SAYS("assistant", "A")),
          "<|im_start|>tool\n42<|im_end|>\n<|im_start|>assistant\n((A<|im_end|>))\n");
    must_fail(render(ROW(SAYS("user", "Q") "," CALL), false), HY_ERR_INPUT,
              "turn 2 calls tools, but the chat template chatml does not support tools");
    must(hy_chat_template_open(HY_CHAT_LLAMA2, tokenizer, NULL, &chat));
    must_fail(render(ROW(SAYS("user", "Q") "," SAYS("tool", "42")), false), HY_ERR_INPUT,
              "turn 2 is tool, but the chat template llama2 expects assistant");
}
END_TEST

#define PARTS(role, parts) "{\"role\": \"" role "\", \"content\": [" parts "]}"
#define PART(text) "{\"type\": \"text\", \"text\": \"" text "\"}"

START_TEST(content_in_parts_is_written_by_every_template) {
    static const char *const templates[] = {
        CHATML, /* knows texts alone */
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}"
        "{{ m.content }}{% else %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}"
        "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% for p in m.content %}" /* parts */
        "{{ p.text }}{% endfor %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
        NULL, /* built in */
    };
    for (int i = 0; i < 4; i++) {
        if (templates[i]) {
            use(templates[i]);
        } else {
            hy_chat_template_close(&chat);
            must(hy_chat_template_open(HY_CHAT_CHATML, tokenizer, NULL, &chat));
        }
        check(ROW(PARTS("user", PART("Q") "," PART("2")) "," PARTS("assistant", PART("A")) "," SAYS(
                  "user", "Q") "," SAYS("assistant", "A2")),
              "<|im_start|>user\nQ2<|im_end|>\n<|im_start|>assistant\n((A<|im_end|>))\n"
              "<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\n((A2<|im_end|>))\n");
    }
}
END_TEST

START_TEST(messages_that_cannot_be_used_are_named) {
    use(CHATML);
    must_fail(render(ROW(PARTS("user", "{\"type\": \"image\", \"url\": \"x\"}")), false),
              HY_ERR_INPUT, "the content has a part of type \"image\"; only text is supported");
    must_fail(render(ROW(PARTS("user", "{\"type\": \"text\"}")), false), HY_ERR_INPUT,
              "needs a string \"text\"");
    must_fail(render(ROW(SAYS("ghost", "x")), false), HY_ERR_INPUT,
              "unknown role \"ghost\"; expected system, user, assistant or tool");
    must_fail(render(ROW("{\"role\": \"user\", \"content\": null}"), false), HY_ERR_INPUT,
              "\"content\" is neither a string nor a list of parts");
    must_fail(render("{\"tools\": 5, \"messages\": [" SAYS("user", "x") "]}", false), HY_ERR_INPUT,
              "\"tools\" is not a list");
}
END_TEST

START_TEST(data_has_the_same_date_every_day) {
    use("{{ strftime_now('%d %b %Y') }}");
    must(render(ROW(SAYS("user", "Q")), false));
    ck_assert_str_eq(hy_text_string(&rendered.whole.text), "26 Jul 2024");
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("data: own templates");
    TCase *cases = tcase_create("own");
    tcase_add_checked_fixture(cases, open_tokenizer, close_tokenizer);
    tcase_add_test(cases, an_answer_is_its_text_and_the_token_that_ends_it);
    tcase_add_test(cases, a_token_that_opens_a_turn_never_ends_an_answer);
    tcase_add_test(cases, it_is_found_whatever_happens_to_other_turns);
    tcase_add_test(cases, a_template_may_say_itself_what_an_answer_is);
    tcase_add_test(cases, an_answer_that_is_masked_does_not_count);
    tcase_add_test(cases, where_prompt_and_text_disagree_the_turn_itself_is_the_answer);
    tcase_add_test(cases, a_template_that_mixes_turns_is_refused);
    tcase_add_test(cases, a_refusal_of_a_template_shows_its_own_message);
    tcase_add_test(cases, text_that_spells_a_special_token_stays_text);
    tcase_add_test(cases, calls_of_tools_and_what_they_give_are_turns);
    tcase_add_test(cases, conversations_with_tools_may_have_a_separate_template);
    tcase_add_test(cases, null_content_is_never_the_word_none);
    tcase_add_test(cases, numbers_of_tools_keep_their_digits);
    tcase_add_test(cases, built_in_templates_know_what_a_tool_gave_but_no_calls);
    tcase_add_test(cases, content_in_parts_is_written_by_every_template);
    tcase_add_test(cases, messages_that_cannot_be_used_are_named);
    tcase_add_test(cases, data_has_the_same_date_every_day);
    suite_add_tcase(suite, cases);
    return suite;
}

HY_TEST_MAIN(make_suite)
