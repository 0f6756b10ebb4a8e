/* test_data_rows.c: rows of JSON as sequences: kinds, masks, packing, mixtures, malformed rows. */
#include "base/rng.h"
#include "data/dataset.h"
#include "data/json_rows.h"
#include "data/mixture.h"
#include "data/packing.h"
#include "data_rig.h"
#include "harness.h"

static char folder[256];
static char last_warning[1024];
static int warnings;

static void make_folder(void) {
    temp_folder(folder);
    last_warning[0] = '\0';
    warnings = 0;
}
static void drop_folder(void) { remove_folder(folder); }

static const char *path_of(const char *name) {
    static char paths[4][512];
    static int next;
    char *path = paths[next++ % 4];
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
    warnings++;
}

static hy_dataset_options options_of(const char *path, int32_t seq) {
    return (hy_dataset_options){.path = path,
                                .val_fraction = 0.1,
                                .seq = seq,
                                .vocab = 256,
                                .seed = 7,
                                .packs = true,
                                .workers = 2,
                                .on_warning = keep_warning};
}

/* ---- cutting files into rows ----------------------------------------------------------------- */

static void check_rows(const char *text, const char *const *expected, const uint64_t *lines,
                       size_t count) {
    hy_row_scan scan;
    hy_row row;
    size_t i = 0;
    hy_rows_begin(&scan, text, strlen(text));
    for (; hy_rows_next(&scan, &row); i++) {
        ck_assert_uint_lt(i, count);
        ck_assert_ptr_null(row.broken);
        ck_assert_uint_eq(row.size, strlen(expected[i]));
        ck_assert_mem_eq(row.data, expected[i], row.size);
        ck_assert_uint_eq(row.line, lines[i]);
    }
    ck_assert_uint_eq(i, count);
}

START_TEST(lines_and_arrays_are_cut_alike) {
    const char *rows[] = {"{\"a\": \"],[\\\"\"}", "[1, {\"b\": 2}]", "3"};
    check_rows("\xEF\xBB\xBF{\"a\": \"],[\\\"\"}\n\n  [1, {\"b\": 2}]\r\n3", rows,
               (uint64_t[]){1, 3, 4}, 3);
    check_rows("[\n{\"a\": \"],[\\\"\"},\n[1, {\"b\": 2}]\n,3 ]\n ", rows, (uint64_t[]){2, 3, 4},
               3);
    check_rows("", NULL, NULL, 0);
    check_rows("[]", NULL, NULL, 0);
}
END_TEST

static const char *broken_by(const char *text, uint64_t line) {
    hy_row_scan scan;
    hy_row row = {0};
    const char *broken = NULL;
    hy_rows_begin(&scan, text, strlen(text));
    while (hy_rows_next(&scan, &row)) {
        if (!row.broken) continue;
        broken = row.broken;
        ck_assert_uint_eq(row.line, line);
    }
    return broken ? broken : "nothing";
}

START_TEST(a_broken_array_is_reported_with_its_position) {
    ck_assert_str_eq(broken_by("[1,\n2", 2), "the array ends inside this row");
    ck_assert_str_eq(broken_by("[1,\n", 2), "the array has no closing bracket");
    ck_assert_str_eq(broken_by("[1,\n{\"a\": \"x", 2), "the array ends inside this row");
    ck_assert_str_eq(broken_by("[1]\n\nx", 3), "text after the end of the array");
    ck_assert_str_eq(broken_by("[1,,2]", 1), "no value before the comma");
}
END_TEST

/* ---- kinds of rows --------------------------------------------------------------------------- */

/* The first training sequence of a file as text, with the targets that count in capitals' place. */
static void check_first(const char *name, const char *rows, hy_chat_kind chat, const char *tokens,
                        const char *answer) {
    hy_dataset_options options = options_of(write_file(name, rows), 512);
    int32_t ids[512], targets[512], doc_starts[512];
    options.val_path = options.path;
    options.chat_template = chat;
    options.packs = false;
    hy_dataset *data = open_data(options);
    int64_t counted = hy_dataset_fill(data, HY_TRAIN, 0, ids, targets, doc_starts);
    size_t size = strlen(tokens), answer_size = strlen(answer) + 1; /* and the end token */
    for (size_t i = 0; i < size; i++) {
        ck_assert_msg(ids[i] == (uint8_t)tokens[i], "%s: token %zu is %d, expected %d", name, i,
                      ids[i], (uint8_t)tokens[i]);
        size_t begin = size - answer_size; /* the place whose target is the answer's first byte */
        int32_t next = i + 1 < size ? (uint8_t)tokens[i + 1] : 0;
        ck_assert_int_eq(targets[i], i >= begin ? next : -1);
    }
    for (size_t i = size; i < 512; i++) ck_assert_int_eq(targets[i], -1);
    ck_assert_int_eq(counted, (int64_t)answer_size);
    ck_assert_uint_eq(hy_dataset_describe(data)->targets[HY_TRAIN], answer_size);
    hy_dataset_close(data);
}

START_TEST(every_kind_of_rows_is_recognised) {
    check_first("a.jsonl", "{\"prompt\": \"Q\", \"completion\": \" A\"}\n", HY_CHAT_AUTO, "Q A",
                " A");
    check_first("b.jsonl", "{\"question\": \"Q\", \"answer\": \"A\"}\n", HY_CHAT_AUTO, "Q\nA", "A");
    check_first("c.json",
                "[{\"instruction\": \"Q\", \"input\": \"\", \"output\": \"A\", \"id\": 3}]",
                HY_CHAT_AUTO,
                "Below is an instruction that describes a task. Write a response that "
                "appropriately completes the request.\n\n### Instruction:\nQ\n\n### Response:\nA",
                "A");
    check_first("d.jsonl",
                "{\"conversations\": [{\"from\": \"human\", \"value\": \"Q\"}, {\"from\": \"gpt\", "
                "\"value\": \"A\"}]}",
                HY_CHAT_ALPACA,
                "Below is an instruction that describes a task. Write a response that "
                "appropriately completes the request.\n\n### Instruction:\nQ\n\n### Response:\nA",
                "A");
    check_first("e.jsonl",
                "{\"messages\": [{\"role\": \"system\", \"content\": \"S\"}, {\"role\": \"user\", "
                "\"content\": \"Q\"}, {\"role\": \"assistant\", \"content\": \"A\"}]}",
                HY_CHAT_ALPACA, "S\n\n### Instruction:\nQ\n\n### Response:\nA", "A");
}
END_TEST

START_TEST(a_long_text_becomes_several_examples_that_predict_every_token_once) {
    char rows[600] = "{\"text\": \"";
    for (int i = 0; i < 300; i++) rows[10 + i] = (char)('a' + i % 26);
    strcpy(rows + 310, "\"}\n");
    hy_dataset_options options = options_of(write_file("long.jsonl", rows), 64);
    options.val_path = options.path;
    hy_dataset *data = open_data(options);
    /* 300 letters and the end: 300 targets in windows of 64. */
    ck_assert_uint_eq(hy_dataset_describe(data)->targets[HY_TRAIN], 300);
    ck_assert_uint_eq(hy_dataset_describe(data)->sequences[HY_TRAIN], 5);
    int32_t tokens[64], targets[64], at = 0;
    for (uint64_t p = 0; p < 5; p++) {
        hy_dataset_fill(data, HY_TRAIN, p, tokens, targets, NULL);
        for (int i = 0; i < 64 && targets[i] >= 0; i++, at++) {
            ck_assert_int_eq(tokens[i], 'a' + at % 26);
            ck_assert_int_eq(targets[i], at == 299 ? 0 : 'a' + (at + 1) % 26);
        }
    }
    ck_assert_int_eq(at, 300);
    hy_dataset_close(data);
}
END_TEST

START_TEST(long_conversations_are_cut_and_counted) {
    char rows[1200] = "{\"prompt\": \"ab\", \"completion\": \"";
    size_t at = strlen(rows);
    memset(rows + at, 'x', 200);
    strcpy(rows + at + 200, "\"}\n{\"prompt\": \"");
    at = strlen(rows);
    memset(rows + at, 'y', 200);
    strcpy(rows + at + 200,
           "\", \"completion\": \"z\"}\n{\"prompt\": \"q\", \"completion\": \"z\"}\n");
    hy_dataset_options options = options_of(write_file("long.jsonl", rows), 50);
    options.val_path = options.path;
    hy_dataset *data = open_data(options);
    ck_assert_uint_eq(hy_dataset_describe(data)->cut_rows, 1);
    ck_assert_ptr_nonnull(
        strstr(last_warning, "cut 1 of 3 rows because they are longer than the sequence of 50"));
    ck_assert_str_eq(hy_dataset_describe(data)->row_losses,
                     "1 of 3 rows dropped (1: no answer is left after cutting), 1 cut");
    ck_assert_str_eq(hy_dataset_describe(data)->row_format,
                     "prompt and completion; no chat template; loss on answers");
    /* The first is cut to 51 tokens: 49 targets after "ab"; the last has two. */
    ck_assert_uint_eq(hy_dataset_describe(data)->targets[HY_TRAIN], 49 + 2);
    hy_dataset_close(data);
}
END_TEST

START_TEST(lists_of_turns_may_use_the_keys_of_the_other_kind) {
    static const char expected[] =
        "Below is an instruction that describes a task. Write a response that appropriately "
        "completes the request.\n\n### Instruction:\nQ\n\n### Response:\nA";
    check_first("a.jsonl",
                "{\"conversations\": [{\"role\": \"user\", \"content\": \"Q\"}, {\"role\": "
                "\"assistant\", \"content\": \"A\"}]}",
                HY_CHAT_ALPACA, expected, "A");
    check_first("b.jsonl",
                "{\"messages\": [{\"from\": \"human\", \"value\": \"Q\"}, {\"from\": \"gpt\", "
                "\"value\": \"A\"}]}",
                HY_CHAT_ALPACA, expected, "A");
}
END_TEST

static void check_format(const char *name, const char *rows, const char *columns,
                         const char *expected) {
    hy_dataset_options options = options_of(write_file(name, rows), 512);
    options.val_path = options.path;
    options.columns = columns;
    hy_dataset *data = open_data(options);
    ck_assert_str_eq(hy_dataset_describe(data)->row_format, expected);
    hy_dataset_close(data);
}

START_TEST(ignored_keys_of_all_rows_are_named_and_counted) {
    check_format("a.jsonl",
                 "{\"question\": \"Q\", \"answer\": \"A\", \"id\": 1}\n"
                 "{\"question\": \"Q\", \"answer\": \"A\", \"id\": 2, \"context\": \"C\"}\n"
                 "{\"question\": \"Q\", \"answer\": \"A\", \"id\": 3, \"context\": null}\n",
                 NULL,
                 "question and answer; no chat template; loss on answers; ignored keys: id, "
                 "context (1 of 3 rows)");
    check_format("b.csv", "question,answer,context\nQ,A,\nQ,A,C\n", NULL,
                 "question and answer; no chat template; loss on answers; ignored keys: context "
                 "(1 of 2 rows)");
    hy_dataset_options options =
        options_of(write_file("c.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"Q\", "
                                         "\"name\": \"x\"}, {\"role\": \"assistant\", \"content\": "
                                         "\"A\", \"weight\": 0.5, \"train\": true}]}\n"),
                   512);
    options.val_path = options.path;
    options.chat_template = HY_CHAT_ALPACA;
    hy_dataset *data = open_data(options);
    ck_assert_str_eq(hy_dataset_describe(data)->row_format,
                     "messages; chat template alpaca; loss on answers; ignored keys: name (in 1 "
                     "message), weight (in 1 message)");
    hy_dataset_close(data);
}
END_TEST

START_TEST(answers_with_weight_0_or_train_false_do_not_count) {
    static const char *const masks[] = {"\"weight\": 0", "\"train\": false"};
    for (int i = 0; i < 4; i++) {
        char rows[512];
        bool is_sharegpt = i >= 2;
        snprintf(rows, sizeof rows,
                 is_sharegpt ? "{\"conversations\": [{\"from\": \"human\", \"value\": \"q\"}, "
                               "{\"from\": \"gpt\", \"value\": \"BAD\", %s}, "
                               "{\"from\": \"human\", \"value\": \"r\"}, "
                               "{\"from\": \"gpt\", \"value\": \"GOOD\", \"weight\": 1}]}"
                             : "{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}, "
                               "{\"role\": \"assistant\", \"content\": \"BAD\", %s}, "
                               "{\"role\": \"user\", \"content\": \"r\"}, "
                               "{\"role\": \"assistant\", \"content\": \"GOOD\"}]}",
                 masks[i % 2]);
        hy_dataset_options options = options_of(write_file("masked.jsonl", rows), 64);
        int32_t ids[64], targets[64];
        options.val_path = options.path;
        options.chat_template = HY_CHAT_LINES;
        hy_dataset *data = open_data(options);
        ck_assert_int_eq(hy_dataset_fill(data, HY_TRAIN, 0, ids, targets, NULL), 5);
        for (int k = 0; k < 5; k++) ck_assert_int_eq(targets[7 + k], "GOOD"[k]);
        hy_dataset_close(data);
    }
}
END_TEST

#define ALPACA_AFTER_SYSTEM(system) system "\n\n### Instruction:\nQ\n\n### Response:\nA"

START_TEST(system_beside_other_keys_is_a_system_turn) {
    static const char expected[] = ALPACA_AFTER_SYSTEM("S");
    check_first("a.jsonl", "{\"question\": \"Q\", \"answer\": \"A\", \"system\": \"S\"}",
                HY_CHAT_ALPACA, expected, "A");
    check_first("b.jsonl", "{\"system\": \"S\", \"prompt\": \"Q\", \"completion\": \"A\"}",
                HY_CHAT_ALPACA, expected, "A");
    check_first("c.jsonl",
                "{\"system\": \"S\", \"conversations\": [{\"from\": \"human\", \"value\": \"Q\"}, "
                "{\"from\": \"gpt\", \"value\": \"A\"}]}",
                HY_CHAT_ALPACA, expected, "A");
    /* the list has its own */
    check_first("d.jsonl",
                "{\"system\": \"T\", \"messages\": [{\"role\": \"system\", \"content\": \"S\"}, "
                "{\"role\": \"user\", \"content\": \"Q\"}, {\"role\": \"assistant\", "
                "\"content\": \"A\"}]}",
                HY_CHAT_ALPACA, expected, "A");
}
END_TEST

START_TEST(prompt_and_completion_may_be_messages) {
    check_first("a.jsonl",
                "{\"prompt\": [{\"role\": \"system\", \"content\": \"S\"}, {\"role\": \"user\", "
                "\"content\": \"Q\"}], \"completion\": [{\"role\": \"assistant\", \"content\": "
                "\"A\"}]}",
                HY_CHAT_ALPACA, ALPACA_AFTER_SYSTEM("S"), "A");
}
END_TEST

START_TEST(answers_may_be_numbers_and_keys_in_capitals) {
    check_first("a.jsonl", "{\"question\": \"2+2?\", \"answer\": 4.5}", HY_CHAT_AUTO, "2+2?\n4.5",
                "4.5");
    check_first("b.jsonl", "{\"Question\": \"so?\", \"ANSWER\": true}", HY_CHAT_AUTO, "so?\ntrue",
                "true");
}
END_TEST

START_TEST(keys_that_are_ignored_are_named) {
    check_format("a.jsonl",
                 "{\"question\": \"Q\", \"system\": \"S\", \"answer\": \"A\", \"id\": 3}\n", NULL,
                 "question and answer; no chat template; loss on answers; ignored keys: "
                 "system, id");
    check_format("b.csv", "question,answer,context\nQ,A,C\n", NULL,
                 "question and answer; no chat template; loss on answers; ignored keys: context");
    check_format("c.jsonl", "{\"instruction\": \"Q\", \"input\": \"I\", \"output\": \"A\"}\n", NULL,
                 "instruction and output; chat template alpaca; loss on answers");
    check_format("d.jsonl", "{\"q\": \"Q\", \"completion\": \"A\", \"input\": \"I\"}\n", "prompt=q",
                 "prompt and completion; no chat template; loss on answers; ignored "
                 "keys: input");
}
END_TEST

START_TEST(a_row_with_an_empty_answer_is_dropped_and_counted) {
    hy_dataset_options options = options_of(
        write_file("a.jsonl", "{\"question\": \"Q\", \"answer\": \"\"}\n{\"question\": \"Q\", "
                              "\"answer\": \"A\"}\n{\"question\": \"Q\", \"answer\": \"B\"}\n"),
        64);
    options.val_path = options.path;
    hy_dataset *data = open_data(options);
    ck_assert_str_eq(hy_dataset_describe(data)->row_losses,
                     "1 of 3 rows dropped (1: the answer is empty), 0 cut");
    ck_assert_uint_eq(hy_dataset_describe(data)->targets[HY_TRAIN], 4);
    hy_dataset_close(data);
    options.chat_template = HY_CHAT_CONVERSATIONS; /* as in runs that began with 0.1 */
    data = open_data(options);
    ck_assert_uint_eq(hy_dataset_describe(data)->targets[HY_TRAIN], 5);
    hy_dataset_close(data);
}
END_TEST

START_TEST(rows_in_a_text_file_cause_a_warning) {
    static const char *const texts[] = {"{\"question\": \"Q\", \"answer\": \"A\"}\n",
                                        "question,answer\nwhat is that,a test\n"};
    for (int i = 0; i < 2; i++) {
        hy_dataset_options options = options_of(write_file("rows.txt", texts[i]), 16);
        options.val_path = options.path;
        warnings = 0;
        hy_dataset_close(open_data(options));
        ck_assert_int_eq(warnings, 1);
        ck_assert_ptr_nonnull(
            strstr(last_warning, "looks like rows of JSON or CSV: name it .jsonl"));
        options.format = HY_FORMAT_TEXT; /* the user says that it is text */
        hy_dataset_close(open_data(options));
        ck_assert_int_eq(warnings, 1);
    }
}
END_TEST

/* ---- malformed rows -------------------------------------------------------------------------- */

static const char *const malformed[][2] = {
    {"{\"prompt\": \"a\", \"completion\": ", "column"},
    {"{\"prompt\": \"a\"}", "\"completion\" is missing"},
    {"{\"prompt\": {}, \"completion\": \"b\"}", "\"prompt\" is not a text, a number or"},
    {"[1, 2]", "a row must be a JSON object"},
    {"{\"prompt\": \"\xC3(\", \"completion\": \"b\"}", "UTF-8"},
    {"{\"prompt\": \"a\", \"prompt\": \"a\", \"completion\": \"b\"}", "column"},
};

START_TEST(malformed_rows_are_named_and_skipped_or_fatal) {
    for (size_t i = 0; i < sizeof malformed / sizeof malformed[0]; i++) {
        char rows[512];
        snprintf(rows, sizeof rows,
                 "{\"prompt\": \"a\", \"completion\": \"b\"}\n%s\n"
                 "{\"prompt\": \"c\", \"completion\": \"d\"}\n",
                 malformed[i][0]);
        hy_dataset_options options = options_of(write_file("m.jsonl", rows), 32);
        warnings = 0;
        hy_dataset *data = open_data(options);
        ck_assert_uint_eq(hy_dataset_describe(data)->rows, 3);
        ck_assert_uint_eq(hy_dataset_describe(data)->bad_rows, 1);
        ck_assert_int_eq(warnings, 2); /* the row, and the count */
        ck_assert_ptr_nonnull(strstr(last_warning, "dropped 1 of 3 rows, more than a tenth (1: "));
        hy_dataset_close(data);
        options.stops_at_bad_row = true;
        must_refuse(options, "m.jsonl:2: ");
        must_refuse(options, malformed[i][1]);
    }
}
END_TEST

START_TEST(files_without_a_usable_row_are_refused) {
    must_refuse(options_of(write_file("a.jsonl", "{\"a\": 1, \"b\": 2}\n"), 32),
                "a.jsonl:1: the row has the keys (a, b); expected text, prompt and completion");
    must_refuse(
        options_of(write_file("a.jsonl", "{\"a\": 1}\n{\"b\": 1}\n{\"c\": 1}\n"), 32),
        "a.jsonl:1: the row has the keys (a); expected text"); /* the first row, not the last */
    must_refuse(options_of(write_file("b.jsonl", "\n\n"), 32), "b.jsonl contains no rows");
    must_refuse(options_of(write_file("c.jsonl", ""), 32), "c.jsonl contains no rows");
    must_refuse(options_of(write_file("d.jsonl", "{\"messages\": [{\"role\": \"robot\", "
                                                 "\"content\": \"x\"}]}"),
                           32),
                "this model has no chat template; choose one with --chat-template: alpaca, lines, "
                "plain"); /* bytes have no tokens of chatml */
    hy_dataset_options options = options_of(
        write_file("e.jsonl", "{\"messages\": [{\"role\": \"robot\", \"content\": \"x\"}]}"), 32);
    options.chat_template = HY_CHAT_ALPACA;
    must_refuse(options, "unknown role \"robot\"");
    options.path =
        write_file("f.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}");
    must_refuse(options, "the sequence of 32 tokens is too short");
    options.seq = 200;
    must_refuse(options, "no answer to learn from");
    options = options_of(write_file("g.jsonl", "{\"text\": \"\xC3\xA9t\xC3\xA9 abc\"}\n"), 32);
    options.val_path = options.path;
    options.vocab = 100;
    must_refuse(options,
                "line 1: a row has the byte 195, but the model's vocabulary has the ids 0 to 99");
}
END_TEST

START_TEST(a_folder_of_rows_may_hold_a_readme_but_no_other_text) {
    write_file("a.jsonl", "{\"prompt\": \"a\", \"completion\": \"b\"}\n");
    write_file("b.json", "[{\"prompt\": \"c\", \"completion\": \"d\"}]");
    write_file("README.md", "About this data.");
    hy_dataset *data = open_data(options_of(folder, 32));
    ck_assert_uint_eq(hy_dataset_describe(data)->rows, 2);
    hy_dataset_close(data);
    write_file("c.txt", "text");
    must_refuse(options_of(folder, 32), "contains both rows of JSON");
    must_refuse(options_of(folder, 32), "c.txt");
}
END_TEST

/* ---- packing --------------------------------------------------------------------------------- */

/* Rows whose lengths differ; their first byte tells which is which. */
static const char *write_examples(const char *name, int count) {
    hy_text rows = {0};
    for (int i = 0; i < count; i++) {
        int size = 1 + (int)hy_rng_below(3, HY_RNG_TEST, (uint64_t)i, 30);
        hy_text_addf(&rows, "{\"prompt\": \"%c%c\", \"completion\": \"", 'A' + i % 26,
                     'a' + i / 26);
        for (int k = 0; k < size; k++) hy_text_addf(&rows, "%c", 'a' + (i + k) % 26);
        hy_text_add(&rows, "\"}\n");
    }
    const char *path = write_file(name, hy_text_string(&rows));
    hy_text_free(&rows);
    return path;
}

START_TEST(every_example_is_in_one_sequence_and_sees_itself_alone) {
    enum { SEQ = 48, COUNT = 200 };
    hy_dataset_options options = options_of(write_examples("x.jsonl", COUNT), SEQ);
    options.val_path = options.path;
    options.shuffle = true;
    hy_dataset *data = open_data(options);
    const hy_dataset_facts *facts = hy_dataset_describe(data);
    int seen[COUNT] = {0};
    int64_t counted = 0;
    ck_assert(facts->has_doc_starts);
    for (uint64_t p = 0; p < facts->sequences[HY_TRAIN]; p++) {
        int32_t tokens[SEQ], targets[SEQ], doc_starts[SEQ];
        counted += hy_dataset_fill(data, HY_TRAIN, p, tokens, targets, doc_starts);
        for (int i = 0; i < SEQ; i++) {
            bool begins = doc_starts[i] == i;
            ck_assert(begins || (i > 0 && doc_starts[i] == doc_starts[i - 1]));
            if (!begins || tokens[i] == 0) continue;
            seen[tokens[i] - 'A' + 26 * (tokens[i + 1] - 'a')]++;
            ck_assert_int_eq(targets[i], -1);         /* the prompt's second byte */
            ck_assert(i == 0 || targets[i - 1] == 0); /* the end of the one before */
        }
    }
    for (int i = 0; i < COUNT; i++) ck_assert_msg(seen[i] == 1, "example %d: %d", i, seen[i]);
    ck_assert_int_eq(counted, (int64_t)facts->targets[HY_TRAIN]);
    /* First fit with many small examples wastes little. */
    ck_assert_uint_le(facts->sequences[HY_TRAIN], facts->tokens[HY_TRAIN] / SEQ + 8);
    hy_dataset_close(data);
}
END_TEST

/* All that is read from a dataset, as one number. */
static uint64_t digest(const hy_dataset *data, uint64_t first, uint64_t count) {
    int32_t values[3 * 64];
    uint64_t hash = 0;
    int32_t seq = hy_dataset_describe(data)->seq;
    for (uint64_t p = first; p < first + count; p++) {
        hy_dataset_fill(data, HY_TRAIN, p, values, values + seq, values + 2 * seq);
        hash = hy_hash_bytes(values, (size_t)(3 * seq) * sizeof *values, hash);
    }
    return hash;
}

START_TEST(sequences_depend_on_their_number_and_the_seed_alone) {
    hy_dataset_options options = options_of(write_examples("x.jsonl", 300), 48);
    options.shuffle = true;
    hy_dataset *a = open_data(options);
    options.workers = 1;
    options.buffer_bytes = 200; /* a few rows at a time */
    hy_dataset *b = open_data(options);
    options.seed = 8;
    hy_dataset *c = open_data(options);
    uint64_t epoch = hy_dataset_describe(a)->sequences[HY_TRAIN];
    ck_assert_uint_eq(digest(a, 0, 3 * epoch), digest(b, 0, 3 * epoch));
    ck_assert_uint_eq(digest(a, 2 * epoch, 5), digest(b, 2 * epoch, 5)); /* resumed there */
    ck_assert_uint_ne(digest(a, 0, epoch), digest(c, 0, epoch));
    ck_assert_uint_ne(digest(a, 0, epoch), digest(a, epoch, epoch)); /* another order */
    hy_dataset_close(a);
    hy_dataset_close(b);
    hy_dataset_close(c);
}
END_TEST

START_TEST(held_out_rows_are_the_last_ones) {
    hy_dataset_options options = options_of(write_examples("x.jsonl", 100), 48);
    options.packs = false;
    hy_dataset *data = open_data(options);
    int32_t tokens[48], targets[48];
    ck_assert_uint_eq(hy_dataset_describe(data)->sequences[HY_VAL], 10);
    ck_assert_uint_eq(hy_dataset_describe(data)->sequences[HY_TRAIN], 90);
    for (int i = 0; i < 10; i++) {
        hy_dataset_fill(data, HY_VAL, (uint64_t)i, tokens, targets, NULL);
        ck_assert_int_eq(tokens[0] - 'A' + 26 * (tokens[1] - 'a'), 90 + i);
    }
    ck_assert(!hy_dataset_describe(data)->has_doc_starts);
    hy_dataset_close(data);
}
END_TEST

START_TEST(data_that_is_also_held_out_data_is_read_once) {
    hy_dataset_options options = options_of(write_examples("x.jsonl", 100), 48);
    options.val_path = options.path;
    options.packs = false;
    hy_dataset *data = open_data(options);
    ck_assert_uint_eq(hy_dataset_describe(data)->rows, 100);
    int32_t tokens[2][48], targets[2][48];
    for (uint64_t i = 0; i < 100; i++) {
        hy_dataset_fill(data, HY_TRAIN, i, tokens[0], targets[0], NULL);
        hy_dataset_fill(data, HY_VAL, i, tokens[1], targets[1], NULL);
        ck_assert_mem_eq(tokens[0], tokens[1], sizeof tokens[0]);
        ck_assert_mem_eq(targets[0], targets[1], sizeof targets[0]);
    }
    hy_dataset_close(data);
}
END_TEST

START_TEST(loss_on_all_counts_every_token_but_the_first) {
    hy_dataset_options options =
        options_of(write_file("a.jsonl", "{\"prompt\": \"abc\", \"completion\": \"de\"}\n"), 32);
    options.val_path = options.path;
    hy_dataset *answers = open_data(options);
    options.counts_all = true;
    hy_dataset *all = open_data(options);
    ck_assert_uint_eq(hy_dataset_describe(answers)->targets[HY_TRAIN], 3);
    ck_assert_uint_eq(hy_dataset_describe(all)->targets[HY_TRAIN], 5);
    hy_dataset_close(answers);
    hy_dataset_close(all);
}
END_TEST

/* ---- mixtures -------------------------------------------------------------------------------- */

START_TEST(paths_and_weights_are_distinguished) {
    hy_mixture m;
    must(hy_mixture_parse("a.jsonl:2,b.txt:0.5,c", &m));
    ck_assert_uint_eq(m.count, 3);
    ck_assert_str_eq(m.parts[0].path, "a.jsonl");
    ck_assert_double_eq(m.parts[1].weight, 0.5);
    ck_assert_double_eq(m.parts[2].weight, 1);
    ck_assert(m.has_weights);
    hy_mixture_free(&m);
    const char *odd = write_file("odd,name:3", "text"); /* it exists as it is written */
    must(hy_mixture_parse(odd, &m));
    ck_assert_uint_eq(m.count, 1);
    ck_assert_str_eq(m.parts[0].path, odd);
    ck_assert(!m.has_weights);
    hy_mixture_free(&m);
    must_fail(hy_mixture_parse("a:0,b:1", &m), HY_ERR_INPUT, "the weight of a:0 is 0");
    must_fail(hy_mixture_parse("a,,b", &m), HY_ERR_INPUT, "an empty path");
}
END_TEST

START_TEST(parts_take_turns_as_their_weights_say) {
    hy_cycle cycle;
    uint64_t next[3] = {0}, counts[3] = {0};
    hy_cycle_make((double[]){5, 2, 1}, 3, &cycle);
    ck_assert_uint_eq(cycle.length, 8);
    for (uint64_t p = 0; p < 80; p++) {
        size_t part;
        uint64_t n;
        hy_cycle_find(&cycle, p, &part, &n);
        ck_assert_uint_eq(n, next[part]++); /* none is left out, none comes twice */
        counts[part]++;
    }
    ck_assert_uint_eq(counts[0], 50);
    ck_assert_uint_eq(counts[1], 20);
    ck_assert_uint_eq(counts[2], 10);
    hy_cycle_make((double[]){0.7, 0.3}, 2, &cycle);
    ck_assert_uint_eq(cycle.per_cycle[0] + cycle.per_cycle[1], 4096);
    ck_assert_int_le(abs((int)cycle.per_cycle[0] - 2867), 1);
}
END_TEST

START_TEST(a_mixture_reads_its_parts_in_their_shares) {
    char path[1200];
    int counts[2] = {0};
    int32_t tokens[40], targets[40];
    write_file("a.jsonl", "{\"prompt\": \"a\", \"completion\": \"a\"}\n{\"prompt\": \"a\", "
                          "\"completion\": \"b\"}\n");
    write_examples("b.jsonl", 50);
    snprintf(path, sizeof path, "%s:3,%s:1", path_of("a.jsonl"), path_of("b.jsonl"));
    hy_dataset_options options = options_of(path, 40);
    options.packs = false;
    hy_dataset *data = open_data(options);
    for (uint64_t p = 0; p < 80; p++) {
        hy_dataset_fill(data, HY_TRAIN, p, tokens, targets, NULL);
        counts[tokens[0] != 'a']++;
    }
    ck_assert_int_eq(counts[0], 60);
    ck_assert_int_eq(counts[1], 20);
    hy_dataset_close(data);
    snprintf(path, sizeof path, "%s,%s", path_of("a.jsonl"), path_of("b.jsonl"));
    options.path = path;
    data = open_data(options); /* without weights: each once an epoch */
    ck_assert_uint_eq(hy_dataset_describe(data)->sequences[HY_TRAIN], 1 + 45);
    ck_assert_uint_eq(hy_dataset_describe(data)->sequences[HY_VAL], 1 + 5);
    hy_dataset_close(data);
}
END_TEST

START_TEST(text_with_a_tokenizer_is_tokens) {
    hy_text text = {0};
    for (int i = 0; i < 400; i++) hy_text_addf(&text, "line number %d of this text\n", i);
    hy_dataset_options options = options_of(write_file("t.txt", hy_text_string(&text)), 32);
    options.tokenizer = HY_SOURCE_DIR "/tests/golden/rows/tokenizer.json";
    options.vocab = 1000;
    hy_dataset *data = open_data(options);
    ck_assert(!hy_dataset_describe(data)->is_bytes);
    /* What is read in order is the text. */
    hy_text back = {0};
    int32_t tokens[32], targets[32];
    for (uint64_t p = 0; p < hy_dataset_describe(data)->sequences[HY_TRAIN]; p++) {
        hy_dataset_fill(data, HY_TRAIN, p, tokens, targets, NULL);
        must(hy_tokenizer_decode(hy_dataset_tokenizer(data), tokens, 32, 0, &back));
    }
    ck_assert_uint_gt(back.size, text.size * 8 / 10);
    ck_assert_mem_eq(back.data, text.data, back.size);
    hy_dataset_close(data);
    /* However it is cut for the threads. */
    options.shuffle = true;
    hy_dataset *whole = open_data(options);
    options.buffer_bytes = 300;
    hy_dataset *cut = open_data(options);
    ck_assert_uint_eq(digest(whole, 0, 100), digest(cut, 0, 100));
    hy_dataset_close(whole);
    hy_dataset_close(cut);
    options.vocab = 300;
    must_refuse(options, "check that the tokenizer belongs to the model");
    hy_text_free(&text);
    hy_text_free(&back);
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("data: rows");
    TCase *cases = tcase_create("rows");
    tcase_add_checked_fixture(cases, make_folder, drop_folder);
    tcase_add_test(cases, lines_and_arrays_are_cut_alike);
    tcase_add_test(cases, a_broken_array_is_reported_with_its_position);
    tcase_add_test(cases, every_kind_of_rows_is_recognised);
    tcase_add_test(cases, lists_of_turns_may_use_the_keys_of_the_other_kind);
    tcase_add_test(cases, keys_that_are_ignored_are_named);
    tcase_add_test(cases, system_beside_other_keys_is_a_system_turn);
    tcase_add_test(cases, prompt_and_completion_may_be_messages);
    tcase_add_test(cases, answers_may_be_numbers_and_keys_in_capitals);
    tcase_add_test(cases, ignored_keys_of_all_rows_are_named_and_counted);
    tcase_add_test(cases, answers_with_weight_0_or_train_false_do_not_count);
    tcase_add_test(cases, a_row_with_an_empty_answer_is_dropped_and_counted);
    tcase_add_test(cases, rows_in_a_text_file_cause_a_warning);
    tcase_add_test(cases, a_long_text_becomes_several_examples_that_predict_every_token_once);
    tcase_add_test(cases, long_conversations_are_cut_and_counted);
    tcase_add_test(cases, malformed_rows_are_named_and_skipped_or_fatal);
    tcase_add_test(cases, files_without_a_usable_row_are_refused);
    tcase_add_test(cases, a_folder_of_rows_may_hold_a_readme_but_no_other_text);
    tcase_add_test(cases, every_example_is_in_one_sequence_and_sees_itself_alone);
    tcase_add_test(cases, sequences_depend_on_their_number_and_the_seed_alone);
    tcase_add_test(cases, held_out_rows_are_the_last_ones);
    tcase_add_test(cases, data_that_is_also_held_out_data_is_read_once);
    tcase_add_test(cases, loss_on_all_counts_every_token_but_the_first);
    tcase_add_test(cases, paths_and_weights_are_distinguished);
    tcase_add_test(cases, parts_take_turns_as_their_weights_say);
    tcase_add_test(cases, a_mixture_reads_its_parts_in_their_shares);
    tcase_add_test(cases, text_with_a_tokenizer_is_tokens);
    suite_add_tcase(suite, cases);
    return suite;
}

HY_TEST_MAIN(make_suite)
