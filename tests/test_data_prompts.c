/* test_data_prompts.c: rows as prompts for rewards: their forms, tokens and texts, what is dropped
 * and refused, splits, order and mixtures. */
#include <pthread.h>

#include "data/dataset.h"
#include "data_rig.h"
#include "harness.h"

#define GOLDEN HY_SOURCE_DIR "/tests/golden/rows/"
#define CHATML                                                                                     \
    "{{ tools | tojson if tools else '' }}{% for m in messages %}{{ '<|im_start|>' + m.role + "    \
    "'\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}"             \
    "{{ '<|im_start|>assistant\\n' }}{% endif %}"

enum { SEQ = 512 };

static char folder[256];
static char last_warning[1024];

static void make_folder(void) {
    temp_folder(folder);
    last_warning[0] = '\0';
}
static void drop_folder(void) { remove_folder(folder); }

static const char *path_of(const char *name) {
    static char paths[8][512];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static const char *write_file(const char *name, const char *text) {
    const char *path = path_of(name);
    must(hy_file_write_atomic(path, text, strlen(text)));
    return path;
}

static void keep_warning(void *user, const char *text) {
    (void)user;
    snprintf(last_warning, sizeof last_warning, "%s", text);
}

/* Bytes as tokens, no template, and the data is also the held-out data. */
static hy_dataset_options options_of(const char *path, int32_t seq) {
    return (hy_dataset_options){.path = path,
                                .val_path = path,
                                .seq = seq,
                                .vocab = 256,
                                .seed = 7,
                                .prompts = true,
                                .prompt_most = seq,
                                .packs = true,
                                .workers = 2,
                                .on_warning = keep_warning};
}

static hy_prompt_row prompt_at(const hy_dataset *data, hy_split split, uint64_t p) {
    hy_prompt_row row;
    must(hy_dataset_prompt(data, split, p, &row));
    ck_assert_uint_eq(strlen(row.row), row.row_size);
    if (row.expected) ck_assert_uint_eq(strlen(row.expected), row.expected_size);
    if (!row.expected) ck_assert_uint_eq(row.expected_size, 0);
    return row;
}

/* ---- forms of rows --------------------------------------------------------------------------- */

#define MESSAGE(role, text) "{\"role\": \"" role "\", \"content\": \"" text "\"}"
#define ASKS(text) MESSAGE("user", text)
#define SAYS(text) MESSAGE("assistant", text)
#define HUMAN(text) "{\"from\": \"human\", \"value\": \"" text "\"}"
#define GPT(text) "{\"from\": \"gpt\", \"value\": \"" text "\"}"
#define ROW(prompt, completion) "{\"prompt\": [" prompt "], \"completion\": [" completion "]}"

/* `trained` has the same prompt and is fine-tuned; NULL: the row itself. */
typedef struct row_form {
    const char *row, *trained, *expected, *columns;
} row_form;

#define TEXT_ROW "{\"prompt\": \"Q?\", \"completion\": \" A\"}"
static const row_form texts[] = {
    {"{\"question\": \"6 * 7?\", \"answer\": \"six\\n#### 42\"}", NULL, "six\n#### 42", NULL},
    {"{\"question\": \"6 * 7?\"}", "{\"question\": \"6 * 7?\", \"answer\": \"b\"}", NULL, NULL},
    {"{\"system\": \"S\", \"Prompt\": \"Q?\", \"completion\": \" A\"}", NULL, " A", NULL},
    {"{\"prompt\": \"Q?\"}", TEXT_ROW, NULL, NULL},
    {"{\"prompt\": 12.50, \"completion\": true}", NULL, "true", NULL},
    {"{\"prompt\": \"Q?\", \"answer\": 42}", TEXT_ROW, "42", NULL},
    {"{\"prompt\": \"Q?\", \"ground_truth\": \"\\u00e4\"}", TEXT_ROW, "\xc3\xa4", NULL},
    {"{\"prompt\": \"Q?\", \"solution\": false}", TEXT_ROW, "false", NULL},
    {"{\"prompt\": \"Q?\", \"Target\": \"t\"}", TEXT_ROW, "t", NULL},
    {"{\"prompt\": \"Q?\", \"output\": \"o\"}", TEXT_ROW, "o", NULL},
    /* the first of them that has a text */
    {"{\"prompt\": \"Q?\", \"target\": 1, \"solution\": 2, \"ground_truth\": 3}", TEXT_ROW, "3",
     NULL},
    {"{\"prompt\": \"Q?\", \"completion\": \" A\", \"answer\": \"4\"}", TEXT_ROW, "4", NULL},
    {"{\"prompt\": \"Q?\", \"answer\": null, \"ground_truth\": \"\", \"target\": 5}", TEXT_ROW, "5",
     NULL},
    {"{\"prompt\": \"Q?\", \"answer\": [1], \"solution\": {\"a\": 1}}", TEXT_ROW, NULL, NULL},
    {"{\"question\": \"6 * 7?\", \"answer\": {\"a\": 1}}",
     "{\"question\": \"6 * 7?\", \"answer\": \"b\"}", NULL, NULL},
    /* other names */
    {"{\"ask\": \"Q?\", \"gold\": 6, \"answer\": 7}", TEXT_ROW, "6", "prompt=ask,answer=gold"},
    {"{\"prompt\": \"Q?\", \"gold\": 6, \"answer\": 7}", TEXT_ROW, "6", "answer=gold"},
    {"{\"ask\": \"Q?\", \"gold\": 6, \"answer\": 7}", TEXT_ROW, "6", "prompt=ask,completion=gold"},
    {"{\"ask\": \"Q?\", \"gold\": null, \"answer\": 7}", TEXT_ROW, NULL, "prompt=ask,answer=gold"},
    {"{\"solution\": \"Q?\", \"target\": 8}", TEXT_ROW, "8", "prompt=solution"},
    {"{\"prompt\": \"Q?\", \"chosen\": \"a\", \"rejected\": \"b\"}", TEXT_ROW, NULL,
     "prompt=prompt"},
    {"{\"question\": \"Q?\", \"choices\": [\"a\", \"b\"], \"answer\": 1}", TEXT_ROW, "1",
     "prompt=question"},
};

static const row_form lists[] = {
    {"{\"instruction\": \"Add\", \"input\": \"1 2\", \"output\": \"3\"}", NULL, "3", NULL},
    {"{\"instruction\": \"Add\"}", "{\"instruction\": \"Add\", \"output\": \"3\"}", NULL, NULL},
    {"{\"messages\": [" ASKS("Q") "," SAYS("A") "]}", NULL, "A", NULL},
    {"{\"messages\": [" MESSAGE("system",
                                "Y") "," ASKS("Q") "," SAYS("R") "," ASKS("S") "," SAYS("A") "]}",
     NULL, "A", NULL},
    {"{\"messages\": [" ASKS("Q") "," SAYS("R") "," ASKS("S") "]}",
     "{\"messages\": [" ASKS("Q") "," SAYS("R") "," ASKS("S") "," SAYS("A") "]}", NULL, NULL},
    {"{\"messages\": [" ASKS("Q") "," SAYS("long") "], \"answer\": 7}",
     "{\"messages\": [" ASKS("Q") "," SAYS("long") "]}", "7", NULL},
    {"{\"messages\": [" ASKS("Q") "," SAYS("") "]}",
     "{\"messages\": [" ASKS("Q") "," SAYS("A") "]}", NULL, NULL},
    {"{\"system\": \"Y\", \"tools\": [{\"name\": \"f\"}], \"messages\": [" ASKS("Q") "," SAYS(
         "A") "]}",
     NULL, "A", NULL},
    {"{\"conversations\": [" HUMAN("Q") "," GPT("A") "]}", NULL, "A", NULL},
    {ROW(ASKS("Q"), SAYS("A")), NULL, "A", NULL},
    {ROW(ASKS("Q") "," SAYS("R"), ASKS("S") "," SAYS("A")), NULL, "A", NULL},
    {"{\"prompt\": [" ASKS("Q") "], \"completion\": \"A\"}", ROW(ASKS("Q"), SAYS("A")), "A", NULL},
    {"{\"prompt\": [" ASKS("Q") "], \"solution\": \"s\"}", ROW(ASKS("Q"), SAYS("A")), "s", NULL},
    {"{\"prompt\": [" ASKS("Q") "], \"reward_model\": {\"style\": \"rule\", \"ground_truth\": 9}}",
     ROW(ASKS("Q"), SAYS("A")), "9", NULL},
};

/* How many tokens of a fine-tuned row are before its last answer; `tokens` has room for SEQ. */
static int32_t prompt_of_trained(hy_dataset_options options, const char *row, int32_t *tokens) {
    int32_t targets[SEQ], at = SEQ;
    options.path = options.val_path = write_file("trained.jsonl", row);
    options.prompts = options.packs = false;
    options.columns = NULL;
    hy_dataset *data = open_data(options);
    ck_assert_int_gt(hy_dataset_fill(data, HY_TRAIN, 0, tokens, targets, NULL), 0);
    hy_dataset_close(data);
    while (targets[at - 1] < 0) at--;
    while (at > 0 && targets[at - 1] >= 0) at--;
    return at + 1;
}

static void check_form(const row_form *form, hy_dataset_options options) {
    int32_t tokens[SEQ];
    options.seq = options.prompt_most = SEQ;
    int32_t count = prompt_of_trained(options, form->trained ? form->trained : form->row, tokens);
    options.path = options.val_path = write_file("prompt.jsonl", form->row);
    options.columns = form->columns;
    hy_dataset *data = open_data(options);
    const hy_dataset_facts *facts = hy_dataset_describe(data);
    hy_prompt_row row = prompt_at(data, HY_TRAIN, 0);
    ck_assert_msg(row.count == count, "%s: %d tokens, not %d", form->row, row.count, count);
    ck_assert_msg(!memcmp(row.tokens, tokens, (size_t)count * sizeof *tokens), "%s", form->row);
    ck_assert_msg(!row.expected == !form->expected, "%s", form->row);
    if (row.expected) ck_assert_str_eq(row.expected, form->expected);
    ck_assert(facts->rows == 2 || facts->rows == 1);
    ck_assert_uint_eq(facts->targets[HY_TRAIN], 1);
    ck_assert_uint_eq(facts->sequences[HY_TRAIN], 1);
    ck_assert_uint_eq(facts->tokens[HY_TRAIN], (uint64_t)count);
    hy_dataset_close(data);
}

static void check_texts(hy_dataset_options options) {
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) check_form(&texts[i], options);
}

static void check_lists(hy_dataset_options options) {
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) check_form(&lists[i], options);
}

START_TEST(a_prompt_has_the_tokens_of_a_trained_row_before_its_answer) {
    hy_dataset_options options = options_of("", SEQ);
    check_texts(options);
    options.chat_template = HY_CHAT_ALPACA;
    check_lists(options);
    options.chat_template = HY_CHAT_PLAIN;
    check_texts(options);
    check_lists(options);
    options.chat_template = HY_CHAT_AUTO;
    options.tokenizer = GOLDEN "tokenizer.json";
    options.vocab = 1000;
    check_texts(options);
    options.chat_template = HY_CHAT_CHATML;
    check_texts(options);
    check_lists(options);
    options.chat_template = HY_CHAT_AUTO;
    options.model_folder = folder;
    write_file("chat_template.jinja", CHATML);
    check_texts(options);
    check_lists(options);
}
END_TEST

START_TEST(a_prompt_is_asked_as_in_a_chat) {
    hy_ids ids = {0};
    int32_t end;
    hy_dataset_options options =
        options_of(write_file("a.jsonl", "{\"question\": \"6 * 7?\", \"answer\": \"42\"}"), SEQ);
    options.model_folder = folder;
    options.tokenizer = GOLDEN "tokenizer.json";
    options.vocab = 1000;
    for (int has_template = 0; has_template < 2; has_template++) {
        if (has_template) write_file("chat_template.jinja", CHATML);
        hy_dataset *data = open_data(options);
        hy_prompt_row row = prompt_at(data, HY_TRAIN, 0);
        ids.count = 0;
        must(hy_dataset_encode_question(data, "6 * 7?", &ids, &end));
        ck_assert_uint_eq(ids.count, (size_t)row.count);
        ck_assert_mem_eq(ids.data, row.tokens, ids.count * sizeof *ids.data);
        ck_assert_int_ge(end, 0);
        hy_dataset_close(data);
    }
    hy_ids_free(&ids);
}
END_TEST

/* ---- texts of rows --------------------------------------------------------------------------- */

static void check_row(const char *name, const char *rows, const char *json) {
    hy_dataset *data = open_data(options_of(write_file(name, rows), SEQ));
    ck_assert_str_eq(prompt_at(data, HY_TRAIN, 0).row, json);
    hy_dataset_close(data);
}

START_TEST(the_whole_row_is_kept_in_one_line) {
    static const char odd[] = "{\"id\":12345678901234567890,\"prompt\":\"a  \\\"b\\\\\",\"meta\":"
                              "{\"\\\" x\":[1.50,-0,{\"k\":null}]},\"answer\":\"\\u00e4\\n\"}";
    check_row("a.jsonl", odd, odd);
    check_row("b.jsonl", "\xEF\xBB\xBF\n  { \"x\" :\t[ 1 , 2 ] , \"prompt\" : \"q r\" }  \r\n",
              "{\"x\":[1,2],\"prompt\":\"q r\"}");
    check_row("e.jsonl", "{\"prompt\": \"a\\\" b\"}", "{\"prompt\":\"a\\\" b\"}");
    check_row("c.json",
              "[\n  {\n    \"prompt\": \"q  r\",\r\n    \"level\": {\n      \"n\": [\n 1 ]\n    }\n"
              "  }\n]\n",
              "{\"prompt\":\"q  r\",\"level\":{\"n\":[1]}}");
    check_row("d.csv", "Level,Question,Answer,\n\"a, \"\"b\"\"\",\"two\nlines\",,x\n",
              "{\"level\":\"a, \\\"b\\\"\",\"question\":\"two\\nlines\",\"answer\":\"\"}");
}
END_TEST

START_TEST(rows_of_csv_are_prompts) {
    hy_dataset *data =
        open_data(options_of(write_file("a.csv", "prompt;ground_truth\nQ;\"a, b\"\nR;\n"), SEQ));
    ck_assert_uint_eq(hy_dataset_describe(data)->targets[HY_VAL], 2);
    hy_prompt_row first = prompt_at(data, HY_VAL, 0), second = prompt_at(data, HY_VAL, 1);
    ck_assert(first.count == 1 && first.tokens[0] == 'Q');
    ck_assert_str_eq(first.expected, "a, b");
    ck_assert(second.count == 1 && second.tokens[0] == 'R');
    ck_assert_ptr_null(second.expected);
    hy_dataset_close(data);
}
END_TEST

START_TEST(a_zero_in_an_answer_is_counted) {
    hy_prompt_row row;
    hy_dataset *data = open_data(
        options_of(write_file("a.jsonl", "{\"prompt\": \"q\", \"answer\": \"a\\u0000b\"}"), SEQ));
    must(hy_dataset_prompt(data, HY_TRAIN, 0, &row));
    ck_assert_uint_eq(row.expected_size, 3);
    ck_assert_mem_eq(row.expected, "a\0b", 4);
    hy_dataset_close(data);
}
END_TEST

/* ---- what is dropped and refused ------------------------------------------------------------- */

#define KEPT "{\"prompt\": \"p\", \"answer\": \"a\"}\n"

START_TEST(rows_without_a_prompt_are_dropped_with_their_reason) {
    static const struct {
        const char *row, *why;
    } lost[] = {
        {"{\"prompt\": \"\", \"answer\": \"a\"}", "the prompt is empty"},
        {"{\"system\": \"s\", \"prompt\": \"\"}", "the prompt is empty"},
        {"{\"answer\": \"a\"}", "\"prompt\" is missing"},
        {"{\"text\": \"a\"}", "\"prompt\" is missing"},
        {"{\"prompt\": null}", "\"prompt\" is not a text, a number or a boolean"},
        {"{\"prompt\": {\"a\": 1}}", "\"prompt\" is not a text, a number or a boolean"},
        {"{\"prompt\": \"p\", \"chosen\": \"a\", \"rejected\": \"b\"}",
         "the row has a chosen and a rejected answer"},
        {"{\"prompt\": \"p\", \"choices\": [\"a\", \"b\"], \"answer\": 1}", "the row has choices"},
        {"[1]", "a row must be a JSON object"},
    };
    char rows[400], expected[200];
    for (size_t i = 0; i < sizeof lost / sizeof lost[0]; i++) {
        snprintf(rows, sizeof rows, KEPT "%s\n" KEPT, lost[i].row);
        hy_dataset_options options = options_of(write_file("m.jsonl", rows), 20);
        hy_dataset *data = open_data(options);
        const hy_dataset_facts *facts = hy_dataset_describe(data);
        snprintf(expected, sizeof expected, "1 of 3 rows dropped (1: %s", lost[i].why);
        ck_assert_msg(!strncmp(facts->row_losses, expected, strlen(expected)), "%s: %s",
                      lost[i].row, facts->row_losses);
        ck_assert_uint_eq(facts->bad_rows, 1);
        ck_assert_uint_eq(facts->targets[HY_TRAIN], 2);
        hy_dataset_close(data);
        options.stops_at_bad_row = true;
        must_refuse(options, "m.jsonl:2: ");
        must_refuse(options, lost[i].why);
    }
}
END_TEST

START_TEST(lists_without_a_prompt_are_dropped) {
    static const char *const rows[] = {"{\"messages\": [" SAYS("a") "]}",
                                       "{\"messages\": [" MESSAGE("system", "s") "]}",
                                       "{\"messages\": [" ASKS("") "," SAYS("a") "]}",
                                       "{\"prompt\": [" MESSAGE("system", "s") "," SAYS("a") "]}"};
    hy_dataset_options options = options_of("", SEQ);
    options.tokenizer = GOLDEN "tokenizer.json";
    options.vocab = 1000;
    options.chat_template = HY_CHAT_CHATML;
    options.stops_at_bad_row = true;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        options.path = options.val_path = write_file("a.jsonl", rows[i]);
        must_refuse(options, "the prompt is empty");
    }
}
END_TEST

START_TEST(prompts_that_are_too_long_are_dropped) {
    hy_dataset_options options = options_of(
        write_file("a.jsonl", "{\"prompt\": \"1\"}\n{\"prompt\": \"1234\"}\n{\"prompt\": "
                              "\"12345\"}\n{\"prompt\": \"123\"}\n"),
        20);
    options.stops_at_bad_row = true; /* they are well-formed */
    for (int by_seq = 0; by_seq < 2; by_seq++) {
        options.seq = by_seq ? 4 : 20;
        options.prompt_most = by_seq ? 20 : 4;
        hy_dataset *data = open_data(options);
        const hy_dataset_facts *facts = hy_dataset_describe(data);
        ck_assert_str_eq(facts->row_losses,
                         "1 of 4 rows dropped (1: the prompt has more than 4 tokens), 0 cut");
        ck_assert(facts->rows == 4 && facts->bad_rows == 0 && facts->dropped_rows == 1);
        ck_assert_uint_eq(facts->targets[HY_TRAIN], 3);
        ck_assert_uint_eq(facts->tokens[HY_TRAIN], 8);
        const char *const kept[] = {"1", "1234", "123"};
        for (uint64_t p = 0; p < 3; p++) {
            hy_prompt_row row = prompt_at(data, HY_VAL, p);
            ck_assert_int_eq(row.count, (int32_t)strlen(kept[p]));
            ck_assert_int_eq(row.tokens[row.count - 1], kept[p][row.count - 1]);
        }
        ck_assert_msg(strstr(last_warning, "dropped 1 of 4 rows, more than a tenth"), "%s",
                      last_warning);
        hy_dataset_close(data);
    }
    options.seq = 20;
    options.prompt_most = 2;
    must_refuse(options, "dropped 3 of 4 rows, more than a tenth (3: the prompt has more than 2 "
                         "tokens); check the data, or set bad_rows = skip-any");
    options.drops_any = true;
    hy_dataset_close(open_data(options));
    options.path = options.val_path = write_file("b.jsonl", "{\"prompt\": \"123\"}\n");
    must_refuse(options, "b.jsonl can be used: every prompt has more than 2 tokens");
    options.prompt_most = 0;
    must_refuse(options, "a prompt may have at most 0 tokens; expected 1 or more");
}
END_TEST

START_TEST(other_data_is_refused) {
    must_refuse(options_of(write_file("a.jsonl", "{\"text\": \"t\", \"answer\": 1}"), 32),
                "a.jsonl:1: the row has the keys (text, answer), but the task learns from the "
                "model's own answers to prompts; expected prompt, question, instruction, "
                "conversations or messages");
    must_refuse(options_of(write_file("a.jsonl", "{\"prompt\": \"p\", \"chosen\": \"a\", "
                                                 "\"rejected\": \"b\"}"),
                           32),
                "a.jsonl:1: the row has a chosen and a rejected answer, from which --task dpo");
    must_refuse(options_of(write_file("a.csv", "chosen,prompt,rejected\na,b,c\n"), 32),
                "a.csv: cannot read the column names in the first line (for plain text, use "
                "--data-format text): the row has a chosen and a rejected answer");
    must_refuse(options_of(write_file("a.jsonl", "{\"prompt\": \"p\", \"choices\": [1, 2], "
                                                 "\"answer\": 1}"),
                           32),
                "a.jsonl:1: the row has choices, which --eval-only and --eval-rows score");
    must_refuse(options_of(write_file("c.txt", "only a text\n"), 32),
                "c.txt is text, but the task learns from the model's own answers to prompts; "
                "expected rows of JSON or CSV with prompt or question");
    must_refuse(options_of("builtin", 32), "the built-in text has no prompts");
    must_refuse(options_of(NULL, 32), "the built-in text has no prompts");
    hy_dataset_options options = options_of(write_file("d.jsonl", KEPT), 32);
    options.counts_all = true;
    must_refuse(options, "loss_on is all, but the loss of a prompt is that of the model's answers");
    options = options_of(options.path, 32);
    options.streams = HY_STREAM_ON;
    must_refuse(options, "stream_rows is on, but prompts are read before the run begins");
    options = options_of(options.path, 32);
    options.columns = "answer=gold";
    must_refuse(options, "\"gold\" is missing");
    options = options_of(options.path, 32);
    options.val_path = NULL;
    options.val_fraction = 0.1;
    must_refuse(options, "d.jsonl has only one prompt; training and held-out data need one each");
    options.val_path = write_file("v.txt", "only a text\n");
    must_refuse(options, "v.txt is text, but the task learns");
}
END_TEST

START_TEST(rows_of_other_tasks_are_no_prompts) {
    hy_prompt_row row;
    hy_dataset_options options =
        options_of(write_file("a.jsonl", "{\"prompt\": \"p\", \"completion\": \"c\"}\n"), 32);
    options.prompts = false;
    hy_dataset *data = open_data(options);
    must_fail(hy_dataset_prompt(data, HY_TRAIN, 0, &row), HY_ERR_INPUT,
              "the rows were not read as prompts");
    hy_dataset_close(data);
    options.path = "builtin";
    options.val_path = NULL;
    options.builtin_bytes = 1000;
    data = open_data(options);
    must_fail(hy_dataset_prompt(data, HY_TRAIN, 0, &row), HY_ERR_INPUT,
              "the rows were not read as prompts");
    hy_dataset_close(data);
}
END_TEST

/* ---- splits, order and mixtures -------------------------------------------------------------- */

enum { COUNT = 120 };

/* Rows [first, first + count) with their numbers; all of them are questions and answers. */
static const char *write_rows(const char *name, int first, int count) {
    hy_text text = {0};
    for (int i = first; i < first + count; i++)
        hy_text_addf(&text, "{\"prompt\": \"<%d>\", \"completion\": \"%.*s%d\", \"id\": %d}\n", i,
                     i % 13, "abcdefghijklm", i, i);
    const char *path = write_file(name, hy_text_string(&text));
    hy_text_free(&text);
    return path;
}

static int number_in(const int32_t *tokens, int32_t count) {
    char text[16] = "";
    int number = -1;
    for (int32_t i = 0; i < count && i < 15; i++) text[i] = (char)tokens[i];
    ck_assert_int_eq(sscanf(text, "<%d>", &number), 1);
    return number;
}

/* The number of the row that is prompt p. All of its parts are of this row. */
static int row_of(const hy_dataset *data, hy_split split, uint64_t p) {
    char json[100];
    hy_prompt_row row = prompt_at(data, split, p);
    int number = number_in(row.tokens, row.count);
    snprintf(json, sizeof json, "{\"prompt\":\"<%d>\",\"completion\":\"%.*s%d\",\"id\":%d}", number,
             number % 13, "abcdefghijklm", number, number);
    ck_assert_str_eq(row.row, json);
    snprintf(json, sizeof json, "%.*s%d", number % 13, "abcdefghijklm", number);
    ck_assert_str_eq(row.expected, json);
    return number;
}

/* Checks that prompts are the rows that would be trained in their place. */
static void check_order(hy_dataset_options options) {
    hy_dataset *prompts = open_data(options);
    options.prompts = options.packs = false;
    hy_dataset *trained = open_data(options);
    const hy_dataset_facts *a = hy_dataset_describe(prompts), *b = hy_dataset_describe(trained);
    for (int s = 0; s < 2; s++) {
        uint64_t count = (s == HY_TRAIN ? 3 : 1) * a->sequences[s];
        ck_assert_uint_eq(a->sequences[s], b->sequences[s]);
        ck_assert_uint_eq(a->targets[s], a->sequences[s]);
        for (uint64_t p = 0; p < count; p++) {
            int32_t tokens[SEQ], targets[SEQ];
            hy_dataset_fill(trained, (hy_split)s, p, tokens, targets, NULL);
            ck_assert_int_eq(row_of(prompts, (hy_split)s, p), number_in(tokens, options.seq));
        }
    }
    ck_assert(a->epoch_sequences == b->epoch_sequences);
    ck_assert_uint_eq(a->rows, b->rows);
    ck_assert(!a->has_doc_starts && a->stream_window == 0 && a->pair_count == 0);
    ck_assert_uint_gt(a->disk_bytes, b->disk_bytes);
    hy_dataset_close(trained);
    hy_dataset_close(prompts);
}

START_TEST(splits_and_order_are_those_of_rows_that_are_not_packed) {
    hy_dataset_options options = options_of(write_rows("x.jsonl", 0, COUNT), 64);
    for (int i = 0; i < 16; i++) {
        options.val_path = i & 1 ? options.path : NULL;
        options.val_fraction = 0.1;
        options.shuffle = i & 2;
        options.seed = i & 4 ? 8 : 7;
        options.buffer_bytes = i & 8 ? 200 : 0;
        options.workers = i & 8 ? 4 : 1;
        check_order(options);
    }
    options.val_path = NULL;
    options.val_fraction = 0;
    check_order(options);
    hy_dataset *data = open_data(options);
    ck_assert_str_eq(hy_dataset_describe(data)->description, "x.jsonl, 490 B; 120 prompts");
    hy_dataset_close(data);
}
END_TEST

START_TEST(mixtures_have_the_order_of_other_rows) {
    char path[1200];
    hy_dataset_options options = options_of(path, 64);
    write_rows("a.jsonl", 0, 40);
    write_rows("b.jsonl", 40, 50);
    options.val_path = write_rows("c.jsonl", 90, 30);
    options.shuffle = true;
    for (int has_weights = 0; has_weights < 2; has_weights++) {
        snprintf(path, sizeof path, "%s%s,%s", path_of("a.jsonl"), has_weights ? ":3" : "",
                 path_of("b.jsonl"));
        check_order(options);
        hy_dataset *data = open_data(options);
        ck_assert_uint_eq(hy_dataset_describe(data)->targets[HY_TRAIN], 90);
        ck_assert_uint_eq(hy_dataset_describe(data)->targets[HY_VAL], 30);
        ck_assert_uint_eq(hy_dataset_describe(data)->rows, 120);
        hy_dataset_close(data);
    }
    write_file("b.jsonl", "{\"text\": \"t\"}\n");
    must_refuse(options, "b.jsonl:1: the row has the keys (text), but the task");
}
END_TEST

typedef struct reader {
    pthread_t thread;
    const hy_dataset *data;
    int first, wrong;
} reader;

static void *read_prompts(void *user) {
    reader *r = user;
    for (int i = 0; i < 4000; i++) {
        hy_prompt_row row;
        char id[40];
        uint64_t p = (uint64_t)(r->first + i * 7);
        if (hy_dataset_prompt(r->data, HY_TRAIN, p, &row) != HY_OK) r->wrong++;
        snprintf(id, sizeof id, "\"id\":%d}", number_in(row.tokens, row.count));
        r->wrong += !strstr(row.row, id);
    }
    return NULL;
}

START_TEST(several_threads_read_many_prompts) {
    reader readers[4];
    hy_dataset_options options = options_of(write_rows("x.jsonl", 0, 3000), 64);
    options.shuffle = true;
    options.workers = 4;
    options.buffer_bytes = 4000;
    hy_dataset *data = open_data(options);
    ck_assert_uint_eq(hy_dataset_describe(data)->targets[HY_VAL], 3000);
    for (int i = 0; i < 3000; i++) ck_assert_int_eq(row_of(data, HY_VAL, (uint64_t)i), i);
    for (int i = 0; i < 4; i++) {
        readers[i] = (reader){.data = data, .first = i * 1000};
        ck_assert_int_eq(pthread_create(&readers[i].thread, NULL, read_prompts, &readers[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        ck_assert_int_eq(pthread_join(readers[i].thread, NULL), 0);
        ck_assert_int_eq(readers[i].wrong, 0);
    }
    hy_dataset_close(data);
}
END_TEST

START_TEST(prompts_may_come_from_standard_input) {
    FILE *from = fopen(write_rows("x.jsonl", 0, COUNT), "r");
    ck_assert_ptr_nonnull(from);
    ck_assert_int_ge(dup2(fileno(from), STDIN_FILENO), 0);
    fclose(from);
    hy_dataset_options options = options_of("-", 64);
    options.shuffle = true;
    options.val_path = NULL;
    options.val_fraction = 0.1;
    check_order(options);
}
END_TEST

/* ---- what a run shows ------------------------------------------------------------------------ */

static const char *format_of(const char *row, const char *columns) {
    static char format[256];
    hy_dataset_options options = options_of(write_file("a.jsonl", row), SEQ);
    options.columns = columns;
    options.chat_template = HY_CHAT_PLAIN;
    hy_dataset *data = open_data(options);
    snprintf(format, sizeof format, "%s", hy_dataset_describe(data)->row_format);
    hy_dataset_close(data);
    return format;
}

START_TEST(the_format_of_prompts_is_described) {
#define ANSWERED "; no chat template; answered by the model"
    ck_assert_str_eq(format_of(KEPT, NULL), "prompts: prompt" ANSWERED);
    ck_assert_str_eq(format_of("{\"ask\": \"q\", \"id\": 7, \"answer\": 1}", "prompt=ask"),
                     "prompts: ask" ANSWERED "; other keys: id");
    ck_assert_str_eq(
        format_of("{\"question\": \"q\", \"answer\": 1}\n{\"question\": \"q\", \"id\": 2}", NULL),
        "prompts: question" ANSWERED "; other keys: id (1 of 2 rows)");
    ck_assert_str_eq(format_of("{\"messages\": [" ASKS("q") "], \"reward_model\": {\"ground_truth\""
                                                            ": 1}, \"solution\": 3, \"x\": 1}",
                               NULL),
                     "prompts: messages" ANSWERED "; other keys: solution, x");
}
END_TEST

static hy_status keep_row(void *user, const hy_shown_row *row) {
    hy_text *out = user;
    hy_text_addf(out, "%d: %s: ", (int)row->line, row->format);
    if (row->dropped) hy_text_addf(out, "dropped: %s", row->dropped);
    for (uint32_t i = 0; i < row->count; i++) {
        ck_assert_int_ge(row->tokens[i], 0); /* nothing counts */
        hy_text_addf(out, "%c", row->tokens[i]);
    }
    hy_text_addf(out, "; %s\n", row->expected ? row->expected : "nothing expected");
    ck_assert(!row->is_cut && !row->answer && row->parts == !row->dropped);
    return HY_OK;
}

START_TEST(a_prompt_is_shown_with_its_expected_answer) {
    hy_text text = {0};
    hy_dataset_options options = options_of(
        write_file("a.jsonl", "{\"prompt\": \"pq\", \"completion\": \"a b\"}\n{\"prompt\": \"r\"}\n"
                              "{\"prompt\": \"long\"}\n{\"prompt\": \"\"}\n{}\n"),
        3);
    must(hy_dataset_show_rows(&options, 4, keep_row, &text));
    ck_assert_str_eq(hy_text_string(&text),
                     "1: prompts: prompt" ANSWERED ": pq; a b\n"
                     "2: prompts: prompt" ANSWERED ": r; nothing expected\n"
                     "3: prompts: prompt" ANSWERED
                     ": dropped: the prompt has more than 3 tokens; nothing expected\n"
                     "4: prompts: prompt" ANSWERED
                     ": dropped: the prompt is empty; nothing expected\n");
    hy_text_free(&text);
}
END_TEST

START_TEST(the_held_out_row_is_a_prompt_with_an_expected_answer) {
    hy_ids question = {0}, answer = {0};
    hy_dataset *data = open_data(options_of(
        write_file("a.jsonl", "{\"prompt\": \"p\"}\n{\"prompt\": \"qr\", \"answer\": 7}\n"), 32));
    must(hy_dataset_held_out_row(data, &question, &answer));
    ck_assert(question.count == 2 && question.data[0] == 'q' && question.data[1] == 'r');
    ck_assert(answer.count == 2 && answer.data[0] == '7' && answer.data[1] == 0);
    hy_dataset_close(data);
    question.count = answer.count = 0;
    data = open_data(options_of(write_file("a.jsonl", "{\"prompt\": \"p\"}\n"), 32));
    must(hy_dataset_held_out_row(data, &question, &answer));
    ck_assert_uint_eq(question.count + answer.count, 0);
    hy_ids_free(&question);
    hy_ids_free(&answer);
    hy_dataset_close(data);
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("data: prompts");
    TCase *cases = tcase_create("prompts");
    tcase_add_checked_fixture(cases, make_folder, drop_folder);
    tcase_add_test(cases, a_prompt_has_the_tokens_of_a_trained_row_before_its_answer);
    tcase_add_test(cases, a_prompt_is_asked_as_in_a_chat);
    tcase_add_test(cases, the_whole_row_is_kept_in_one_line);
    tcase_add_test(cases, rows_of_csv_are_prompts);
    tcase_add_test(cases, a_zero_in_an_answer_is_counted);
    tcase_add_test(cases, rows_without_a_prompt_are_dropped_with_their_reason);
    tcase_add_test(cases, lists_without_a_prompt_are_dropped);
    tcase_add_test(cases, prompts_that_are_too_long_are_dropped);
    tcase_add_test(cases, other_data_is_refused);
    tcase_add_test(cases, rows_of_other_tasks_are_no_prompts);
    tcase_add_test(cases, splits_and_order_are_those_of_rows_that_are_not_packed);
    tcase_add_test(cases, mixtures_have_the_order_of_other_rows);
    tcase_add_test(cases, several_threads_read_many_prompts);
    tcase_add_test(cases, prompts_may_come_from_standard_input);
    tcase_add_test(cases, the_format_of_prompts_is_described);
    tcase_add_test(cases, a_prompt_is_shown_with_its_expected_answer);
    tcase_add_test(cases, the_held_out_row_is_a_prompt_with_an_expected_answer);
    suite_add_tcase(suite, cases);
    return suite;
}

HY_TEST_MAIN(make_suite)
