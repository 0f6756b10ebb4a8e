/* test_data_chat.c: conversations as tokens, against Hugging Face's tokenizers.
 *
 * tests/golden/rows was made by make_rows.py: a small tokenizer, conversations, and for each
 * template the ids and which of them are answers. Real tokenizers are used too where the data
 * folder is at hand. */
#include "base/json.h"
#include "data/conversation.h"
#include "data/examples.h"
#include "data/json_rows.h"
#include "harness.h"

#define GOLDEN HY_SOURCE_DIR "/tests/golden/rows/"
#define MOST_CHATS 16

static hy_tokenizer *tokenizer;
static hy_json *chats[MOST_CHATS];
static size_t chat_count;

static void open_files(void) {
    hy_row_scan scan;
    hy_row row;
    char *text;
    size_t size;
    must(hy_tokenizer_open(GOLDEN "tokenizer.json", &tokenizer));
    must(hy_file_read(GOLDEN "chats.jsonl", &text, &size));
    hy_rows_begin(&scan, text, size);
    for (chat_count = 0; hy_rows_next(&scan, &row); chat_count++) {
        ck_assert_uint_lt(chat_count, MOST_CHATS);
        must(hy_json_parse(row.data, row.size, "chats.jsonl", &chats[chat_count]));
    }
    free(text);
}

static void close_files(void) {
    for (size_t i = 0; i < chat_count; i++) hy_json_free(chats[i]);
    hy_tokenizer_close(tokenizer);
}

/* ---- against the reference ------------------------------------------------------------------- */

static void compare(const hy_json_node *line, const char *key, const hy_ids *ids,
                    const hy_flags *flags, const char *what) {
    const hy_json_node *list = hy_json_get(line, key);
    size_t i = 0;
    ck_assert_ptr_nonnull(list);
    ck_assert_msg(hy_json_size(list) == ids->count, "%s: %zu tokens, expected %zu", what,
                  ids->count, hy_json_size(list));
    for (const hy_json_node *n = hy_json_first(list); n; n = hy_json_next(n), i++) {
        int64_t expected;
        ck_assert(hy_json_as_int(n, &expected));
        int64_t ours = flags ? flags->data[i] : ids->data[i];
        ck_assert_msg(ours == expected, "%s: %s of token %zu is %lld, expected %lld", what, key, i,
                      (long long)ours, (long long)expected);
    }
}

static void check_line(const hy_json_node *line, const hy_tokenizer *with) {
    const char *name;
    int64_t number;
    hy_chat_template chat;
    hy_conversation conversation = {0};
    hy_rendered rendered = {0};
    hy_ids ids = {0};
    hy_flags answers = {0};
    char what[64];
    ck_assert(hy_json_as_string(hy_json_get(line, "template"), &name, NULL));
    ck_assert(hy_json_as_int(hy_json_get(line, "chat"), &number));
    snprintf(what, sizeof what, "%s, chat %d", name, (int)number);
    hy_chat_kind kind;
    must(hy_chat_kind_parse(name, &kind));
    must(hy_chat_template_open(kind, with, NULL, &chat));
    must(hy_conversation_read(hy_json_root(chats[number]), HY_ROWS_MESSAGES, &conversation));
    must(hy_chat_render(&chat, &conversation, false, &rendered));
    must(hy_rendered_encode(&rendered, with, &ids, &answers));
    ck_assert_uint_eq(ids.count, answers.count);
    compare(line, "ids", &ids, NULL, what);
    compare(line, "answers", &ids, &answers, what);
    hy_conversation_free(&conversation);
    hy_rendered_free(&rendered);
    hy_ids_free(&ids);
    hy_flags_free(&answers);
}

static size_t check_file(const char *path, const char *only, const hy_tokenizer *with) {
    hy_row_scan scan;
    hy_row row;
    char *text;
    size_t size, checked = 0;
    must(hy_file_read(path, &text, &size));
    hy_rows_begin(&scan, text, size);
    while (hy_rows_next(&scan, &row)) {
        hy_json *json;
        const char *name = NULL;
        must(hy_json_parse(row.data, row.size, path, &json));
        (void)hy_json_as_string(hy_json_get(hy_json_root(json), "tokenizer"), &name, NULL);
        if (!only || strcmp(name, only) == 0) {
            check_line(hy_json_root(json), with);
            checked++;
        }
        hy_json_free(json);
    }
    free(text);
    return checked;
}

START_TEST(every_template_gives_the_tokens_and_answers_of_the_reference) {
    ck_assert_uint_eq(check_file(GOLDEN "expected.jsonl", NULL, tokenizer), 5 * chat_count);
}
END_TEST

/* ---- rows, as tests/rows/compare.py wrote them ----------------------------------------------- */

/* Where a row, or a template, is written so that it is read like data of a user. */
typedef struct place {
    char folder[256], row[512], template[512];
} place;

static void check_row(const hy_encoding *encoding, const place *at, const hy_json_node *line,
                      const char *text, size_t size) {
    hy_examples x;
    hy_file_list list;
    hy_file_kind kind;
    hy_ids ids = {0};
    uint32_t count;
    must(hy_file_write_atomic(at->row, text, size));
    must(hy_file_list_find(at->row, HY_FORMAT_AUTO, &list));
    must(hy_file_list_kind(at->row, &list, &kind));
    hy_status status = hy_examples_open(&list, encoding, &x);
    bool is_empty = status == HY_ERR_INPUT && strstr(hy_error_message(), "the answer is empty");
    if (is_empty) hy_file_list_free(&list); /* transformers would train the end token */
    if (is_empty) return;
    must(status);
    const int32_t *tokens = hy_examples_get(&x, 0, &count);
    for (uint32_t k = 0; k < count; k++) {
        must(hy_ids_append(&ids, &(int32_t){tokens[k] & ~HY_COUNTS}, 1));
    }
    compare(line, "ids", &ids, NULL, text);
    for (uint32_t k = 0; k < count; k++) ids.data[k] = tokens[k] < 0;
    compare(line, "counts", &ids, NULL, text);
    hy_ids_free(&ids);
    hy_examples_close(&x);
    hy_file_list_free(&list);
}

/* Opens the template of the lines that follow; "": none. */
static void use_template(const place *at, const char *text, size_t size, hy_encoding *encoding,
                         hy_dataset_options *options) {
    hy_chat_template_close(&encoding->chat);
    options->chat_template = size ? HY_CHAT_AUTO : HY_CHAT_PLAIN;
    if (size) must(hy_file_write_atomic(at->template, text, size));
    must(hy_chat_template_open(options->chat_template, encoding->tokenizer, at->folder,
                               &encoding->chat));
}

/* Returns the number of rows. */
static size_t check_rows(const char *path, const hy_tokenizer *with, const char *config) {
    hy_dataset_options options = {.seq = 4096, .vocab = hy_tokenizer_vocab(with)};
    hy_encoding encoding = {
        .options = &options, .tokenizer = with, .workers = 1, .buffer = 1 << 20};
    place at;
    char *text, name[512];
    hy_row_scan scan;
    hy_row row;
    size_t size, rows = 0;
    temp_folder(at.folder);
    snprintf(at.row, sizeof at.row, "%s/row.jsonl", at.folder);
    snprintf(at.template, sizeof at.template, "%s/chat_template.jinja", at.folder);
    snprintf(name, sizeof name, "%s/tokenizer_config.json", at.folder);
    must(hy_file_write_atomic(name, config, strlen(config)));
    must(hy_file_read(path, &text, &size));
    hy_rows_begin(&scan, text, size);
    while (hy_rows_next(&scan, &row)) {
        hy_json *json;
        const char *template;
        size_t length;
        must(hy_json_parse(row.data, row.size, path, &json));
        if (hy_json_as_string(hy_json_get(hy_json_root(json), "template"), &template, &length)) {
            use_template(&at, template, length, &encoding, &options);
        } else {
            const char *begin = strstr(row.data, "{\"row\": ") + 8;
            const char *end = strstr(begin, ", \"ids\"");
            check_row(&encoding, &at, hy_json_root(json), begin, (size_t)(end - begin));
            rows++;
        }
        hy_json_free(json);
    }
    hy_chat_template_close(&encoding.chat);
    remove_folder(at.folder);
    free(text);
    return rows;
}

/* The tokenizer puts a blank before the first word alone. */
START_TEST(rows_without_a_template_have_the_ids_of_their_text) {
    hy_tokenizer *metaspace;
    must(hy_tokenizer_open(GOLDEN "metaspace", &metaspace));
    ck_assert_uint_eq(check_rows(GOLDEN "metaspace/plain.jsonl", metaspace, "{}"), 36);
    hy_tokenizer_close(metaspace);
}
END_TEST

/* "  " alone is one token, "  a" is two. The first of them ends in the prompt. */
START_TEST(an_answer_begins_at_its_token_although_the_prompt_alone_has_others) {
    static const char json[] =
        "{\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"Prepend\", "
        "\"prepend\": \"\u2581\"}, {\"type\": \"Replace\", \"pattern\": {\"String\": \" \"}, "
        "\"content\": \"\u2581\"}]}, \"decoder\": {\"type\": \"Sequence\", \"decoders\": "
        "[{\"type\": "
        "\"Replace\", \"pattern\": {\"String\": \"\u2581\"}, \"content\": \" \"}, {\"type\": "
        "\"Fuse\"}, "
        "{\"type\": \"Strip\", \"content\": \" \", \"start\": 1, \"stop\": 0}]}, \"added_tokens\": "
        "[{\"id\": 0, \"content\": \"</s>\", \"special\": true}], \"model\": {\"type\": \"BPE\", "
        "\"vocab\": {\"</s>\": 0, \"\u2581\": 1, \"\u2581\u2581\": 2, \"a\": 3, \"\u2581a\": 4, "
        "\"\u2581\u2581\u2581\": 5}, \"merges\": [\"\u2581 a\", \"\u2581 \u2581\", "
        "\"\u2581\u2581 \u2581\"]}}";
    static const char config[] = "{\"eos_token\": \"</s>\"}";
    static const char rows[] = "{\"template\": \"\"}\n"
                               "{\"row\": {\"prompt\": \"  \", \"completion\": \"a\"}, "
                               "\"ids\": [2, 4, 0], \"counts\": [0, 1, 1]}\n"
                               "{\"row\": {\"prompt\": \"a  \", \"completion\": \"aa\"}, "
                               "\"ids\": [4, 1, 4, 3, 0], \"counts\": [0, 0, 1, 1, 1]}\n";
    char folder[256], path[512];
    hy_tokenizer *blanks;
    temp_folder(folder);
    snprintf(path, sizeof path, "%s/tokenizer_config.json", folder);
    must(hy_file_write_atomic(path, config, sizeof config - 1));
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    must(hy_file_write_atomic(path, json, sizeof json - 1));
    must(hy_tokenizer_open(path, &blanks));
    snprintf(path, sizeof path, "%s/rows.jsonl", folder);
    must(hy_file_write_atomic(path, rows, sizeof rows - 1));
    ck_assert_uint_eq(check_rows(path, blanks, config), 2);
    hy_tokenizer_close(blanks);
    remove_folder(folder);
}
END_TEST

START_TEST(rows_of_every_kind_have_the_ids_and_masks_of_transformers) {
    static const char config[] = "{\"bos_token\": \"<s>\", \"eos_token\": \"<|endoftext|>\"}";
    ck_assert_uint_eq(check_rows(GOLDEN "compared.jsonl", tokenizer, config), 36);
}
END_TEST

START_TEST(real_tokenizers_give_the_tokens_and_answers_of_the_reference) {
    static const char *const names[] = {"llama2", "llama3", "gpt2"};
    const char *folder = getenv("HYBRID_DATA");
    for (int i = 0; i < 3; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/tokenizers/%s",
                 folder && folder[0] ? folder : HY_SOURCE_DIR "/../shared/data", names[i]);
        if (!hy_path_is_dir(path)) {
            printf("skipped: there is no %s\n", path);
            continue;
        }
        hy_tokenizer *real;
        must(hy_tokenizer_open(path, &real));
        ck_assert_uint_ge(check_file(GOLDEN "expected_real.jsonl", names[i], real), chat_count);
        hy_tokenizer_close(real);
    }
}
END_TEST

/* ---- what templates promise ------------------------------------------------------------------ */

/* The text of a rendered conversation, special tokens spelt out. */
static const char *spell(hy_chat_kind kind, hy_turn *turns, size_t count, bool asks) {
    static hy_text out;
    hy_chat_template chat;
    hy_rendered rendered = {0};
    hy_text_clear(&out);
    must(hy_chat_template_open(kind, tokenizer, NULL, &chat));
    must(
        hy_chat_render(&chat, &(hy_conversation){.turns = turns, .count = count}, asks, &rendered));
    for (size_t i = 0; i < rendered.count; i++) {
        const hy_rendered_piece *p = &rendered.pieces[i];
        if (p->token >= 0)
            hy_text_add(&out, hy_tokenizer_token(tokenizer, p->token, NULL));
        else
            hy_text_add_bytes(&out, rendered.text.data + p->begin, p->size);
    }
    hy_rendered_free(&rendered);
    return hy_text_string(&out);
}

/* The same of one question, with the template in a folder. */
static const char *spell_with(const char *folder) {
    static hy_text out;
    hy_turn turn = {.role = HY_ROLE_USER, .text = "Q", .size = 1};
    hy_chat_template chat;
    hy_rendered rendered = {0};
    hy_text_clear(&out);
    must(hy_chat_template_open(HY_CHAT_AUTO, tokenizer, folder, &chat));
    ck_assert_int_eq(chat.kind, HY_CHAT_OWN);
    must(hy_chat_render(&chat, &(hy_conversation){.turns = &turn, .count = 1}, false, &rendered));
    hy_text_add(&out, hy_text_string(&rendered.whole.text));
    hy_rendered_free(&rendered);
    hy_chat_template_close(&chat);
    return hy_text_string(&out);
}

#define TURN(who, words) ((hy_turn){.role = (who), .text = (words), .size = sizeof(words) - 1})

START_TEST(a_prompt_ends_where_the_assistant_begins) {
    hy_turn turns[] = {TURN(HY_ROLE_SYSTEM, "S"), TURN(HY_ROLE_USER, "Q")};
    ck_assert_str_eq(spell(HY_CHAT_CHATML, turns, 2, true),
                     "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nQ<|im_end|>\n"
                     "<|im_start|>assistant\n");
    ck_assert_str_eq(spell(HY_CHAT_LLAMA3, turns, 2, true),
                     "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|>"
                     "<|start_header_id|>user<|end_header_id|>\n\nQ<|eot_id|>"
                     "<|start_header_id|>assistant<|end_header_id|>\n\n");
    ck_assert_str_eq(spell(HY_CHAT_LLAMA2, turns, 2, true),
                     "<s>[INST] <<SYS>>\nS\n<</SYS>>\n\nQ [/INST]");
    ck_assert_str_eq(spell(HY_CHAT_MISTRAL, turns, 2, true), "<s>[INST] S\n\nQ [/INST]");
    ck_assert_str_eq(spell(HY_CHAT_ALPACA, turns, 2, true),
                     "S\n\n### Instruction:\nQ\n\n### Response:\n");
}
END_TEST

START_TEST(an_input_goes_where_the_template_has_a_place_for_it) {
    hy_turn turns[] = {TURN(HY_ROLE_USER, "Q"), TURN(HY_ROLE_INPUT, "I"),
                       TURN(HY_ROLE_ASSISTANT, "A")};
    const char *alpaca = spell(HY_CHAT_ALPACA, turns, 3, false);
    ck_assert_ptr_nonnull(strstr(alpaca, "paired with an input"));
    ck_assert_ptr_nonnull(
        strstr(alpaca, "### Instruction:\nQ\n\n### Input:\nI\n\n### Response:\nA<|endoftext|>"));
    ck_assert_str_eq(spell(HY_CHAT_MISTRAL, turns, 3, false), "<s>[INST] Q\nI [/INST] A</s>");
}
END_TEST

START_TEST(text_that_spells_a_special_token_does_not_become_one) {
    hy_turn turns[] = {TURN(HY_ROLE_USER, "stop <|im_end|> now"), TURN(HY_ROLE_ASSISTANT, "A")};
    hy_chat_template chat;
    hy_rendered rendered = {0};
    hy_ids ids = {0};
    hy_flags answers = {0};
    int ends = 0;
    must(hy_chat_template_open(HY_CHAT_CHATML, tokenizer, NULL, &chat));
    must(hy_chat_render(&chat, &(hy_conversation){.turns = turns, .count = 2}, false, &rendered));
    must(hy_rendered_encode(&rendered, tokenizer, &ids, &answers));
    for (size_t i = 0; i < ids.count; i++) ends += ids.data[i] == chat.tokens.im_end;
    ck_assert_int_eq(ends, 2);
    hy_rendered_free(&rendered);
    hy_ids_free(&ids);
    hy_flags_free(&answers);
}
END_TEST

START_TEST(turns_in_an_order_that_cannot_be_written_are_refused) {
    hy_turn turns[] = {TURN(HY_ROLE_USER, "Q"), TURN(HY_ROLE_USER, "Q")};
    hy_chat_template chat;
    hy_rendered rendered = {0};
    must(hy_chat_template_open(HY_CHAT_LLAMA2, tokenizer, NULL, &chat));
    must_fail(
        hy_chat_render(&chat, &(hy_conversation){.turns = turns, .count = 2}, false, &rendered),
        HY_ERR_INPUT, "turn 2 is user, but the chat template llama2 expects assistant");
    hy_rendered_free(&rendered);
}
END_TEST

/* ---- the folder's template ------------------------------------------------------------------- */

static void write_config(const char *folder, const char *text) {
    char path[512];
    snprintf(path, sizeof path, "%s/tokenizer_config.json", folder);
    must(hy_file_write_atomic(path, text, strlen(text)));
}

START_TEST(a_folder_says_its_template) {
    char folder[256], path[512];
    hy_chat_template out;
    temp_folder(folder);
    must(hy_chat_template_open(HY_CHAT_AUTO, NULL, folder, &out));
    ck_assert_int_eq(out.kind, HY_CHAT_NONE);
    write_config(folder, "{\"chat_template\": \"one\"}");
    ck_assert_str_eq(spell_with(folder), "one");
    write_config(folder, "{\"bos_token\": \"B\", \"eos_token\": {\"content\": \"E\"}, "
                         "\"chat_template\": [{\"name\": \"tools\", \"template\": \"two\"}, "
                         "{\"name\": \"default\", \"template\": \"three {{ bos_token }}"
                         "{{ eos_token }}{{ pad_token }}\"}]}");
    ck_assert_str_eq(spell_with(folder), "three BE");
    snprintf(path, sizeof path, "%s/special_tokens_map.json", folder); /* of older folders */
    static const char map[] = "{\"pad_token\": \"P\", \"bos_token\": {\"content\": \"M\"}}";
    must(hy_file_write_atomic(path, map, sizeof map - 1));
    ck_assert_str_eq(spell_with(folder), "three MEP");
    write_config(folder, "{\"bos_token\": \"B\", \"added_tokens_decoder\": {}}");
    snprintf(path, sizeof path, "%s/chat_template.jinja", folder);
    must(hy_file_write_atomic(path, "four {{ bos_token }}{{ pad_token }}", 35));
    ck_assert_str_eq(spell_with(folder), "four B");
    must(hy_file_write_atomic(path, "\n{% include 'x' %}", 18));
    must(hy_chat_template_open(HY_CHAT_AUTO, tokenizer, folder, &out));
    must_fail(hy_chat_template_check(&out), HY_ERR_INPUT,
              "line 2: {% include %} is not supported; choose one with --chat-template: chatml, "
              "llama2, llama3, mistral, alpaca, lines, plain");
    must(hy_chat_template_open(HY_CHAT_CHATML, tokenizer, folder, &out));
    ck_assert_int_eq(out.kind, HY_CHAT_CHATML);
    write_config(folder, "{\"chat_template\": ");
    must_fail(hy_chat_template_open(HY_CHAT_AUTO, tokenizer, folder, &out), HY_ERR_INPUT,
              "tokenizer_config.json");
    remove_folder(folder);
}
END_TEST

/* The tokens of turns in the template of a folder. */
static void encode_with(const hy_chat_template *chat, const hy_turn *turns, size_t count, bool asks,
                        hy_ids *ids, hy_flags *answers) {
    hy_rendered rendered = {0};
    hy_conversation conversation = {.turns = (hy_turn *)turns, .count = count};
    ids->count = answers->count = 0;
    must(hy_chat_render(chat, &conversation, asks, &rendered));
    must(hy_rendered_encode(&rendered, tokenizer, ids, answers));
    hy_rendered_free(&rendered);
}

START_TEST(a_built_in_template_in_jinja_gives_the_same_tokens) {
    static const hy_chat_kind kinds[] = {HY_CHAT_PLAIN, HY_CHAT_LINES, HY_CHAT_ALPACA,
                                         HY_CHAT_CHATML, HY_CHAT_LLAMA3};
    hy_turn turns[] = {TURN(HY_ROLE_SYSTEM, "Be brief."), TURN(HY_ROLE_USER, "How many?"),
                       TURN(HY_ROLE_ASSISTANT, "Three of them."), TURN(HY_ROLE_USER, "Of which?")};
    char folder[256], path[512];
    temp_folder(folder);
    snprintf(path, sizeof path, "%s/chat_template.jinja", folder);
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        hy_chat_template built_in, own;
        hy_text text = {0};
        hy_ids ids[2] = {{0}};
        hy_flags answers[2] = {{0}};
        must(hy_chat_template_open(kinds[i], tokenizer, NULL, &built_in));
        must(hy_chat_template_jinja(&built_in, tokenizer, &text));
        must(hy_file_write_atomic(path, text.data, text.size));
        must(hy_chat_template_open(HY_CHAT_AUTO, tokenizer, folder, &own));
        ck_assert_int_eq(own.kind, HY_CHAT_OWN);
        const hy_chat_template *both[2] = {&built_in, &own};
        for (size_t first = 0; first < 2; first++) { /* with and without a system turn */
            for (size_t last = 2; last <= 4; last++) {
                bool asks = turns[last - 1].role == HY_ROLE_USER;
                for (int k = 0; k < 2; k++)
                    encode_with(both[k], turns + first, last - first, asks, &ids[k], &answers[k]);
                ck_assert_uint_eq(ids[0].count, ids[1].count);
                ck_assert_mem_eq(ids[0].data, ids[1].data, ids[0].count * sizeof *ids[0].data);
                if (!asks) ck_assert_mem_eq(answers[0].data, answers[1].data, answers[0].count);
            }
        }
        for (int k = 0; k < 2; k++) hy_ids_free(&ids[k]);
        for (int k = 0; k < 2; k++) hy_flags_free(&answers[k]);
        hy_chat_template_close(&own);
        hy_text_free(&text);
    }
    remove_folder(folder);
}
END_TEST

START_TEST(a_quote_in_the_end_token_is_escaped_in_jinja) {
    hy_chat_template chat;
    hy_text text = {0};
    hy_ids ids = {0};
    must(hy_chat_template_open(HY_CHAT_LINES, tokenizer, NULL, &chat));
    must(hy_encode_text(tokenizer, "'", 1, 0, &ids));
    ck_assert_uint_eq(ids.count, 1);
    chat.tokens.eos = ids.data[0];
    must(hy_chat_template_jinja(&chat, tokenizer, &text));
    ck_assert_ptr_nonnull(strstr(hy_text_string(&text), "m['content'] + '\\'' }}"));
    hy_ids_free(&ids);
    hy_text_free(&text);
}
END_TEST

START_TEST(a_template_with_missing_tokens_is_refused) {
    hy_chat_template out;
    must_fail(hy_chat_template_open(HY_CHAT_CHATML, NULL, NULL, &out), HY_ERR_INPUT,
              "<|im_start|>");
    must_fail(hy_chat_template_open(HY_CHAT_LLAMA3, NULL, NULL, &out), HY_ERR_INPUT,
              "<|begin_of_text|>, but the tokenizer does not have it; choose another "
              "--chat-template: alpaca, lines, plain"); /* only templates without such tokens */
    must_fail(hy_chat_kind_parse("vicuna", &out.kind), HY_ERR_INPUT,
              "chat template \"vicuna\" is unknown; expected auto, chatml");
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("data: chat");
    TCase *cases = tcase_create("chat");
    tcase_add_checked_fixture(cases, open_files, close_files);
    tcase_add_test(cases, every_template_gives_the_tokens_and_answers_of_the_reference);
    tcase_add_test(cases, rows_without_a_template_have_the_ids_of_their_text);
    tcase_add_test(cases, an_answer_begins_at_its_token_although_the_prompt_alone_has_others);
    tcase_add_test(cases, rows_of_every_kind_have_the_ids_and_masks_of_transformers);
    tcase_add_test(cases, real_tokenizers_give_the_tokens_and_answers_of_the_reference);
    tcase_add_test(cases, a_prompt_ends_where_the_assistant_begins);
    tcase_add_test(cases, an_input_goes_where_the_template_has_a_place_for_it);
    tcase_add_test(cases, text_that_spells_a_special_token_does_not_become_one);
    tcase_add_test(cases, turns_in_an_order_that_cannot_be_written_are_refused);
    tcase_add_test(cases, a_folder_says_its_template);
    tcase_add_test(cases, a_quote_in_the_end_token_is_escaped_in_jinja);
    tcase_add_test(cases, a_template_with_missing_tokens_is_refused);
    tcase_add_test(cases, a_built_in_template_in_jinja_gives_the_same_tokens);
    suite_add_tcase(suite, cases);
    return suite;
}

HY_TEST_MAIN(make_suite)
