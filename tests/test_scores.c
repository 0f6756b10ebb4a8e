/* test_scores.c: rows with a known answer (--eval-only and eval.eval_rows): the figures of
 * lm-evaluation-harness (golden/make_scores.py), rows that cannot be scored, and validations of a
 * run. */
#include <math.h>

#include "base/json.h"
#include "ranks_rig.h"
#include "small_run.h"

#define GOLDEN HY_SOURCE_DIR "/tests/golden/scores"
#define CHOICES GOLDEN "/choices.jsonl"
#define ANSWERS GOLDEN "/answers.jsonl"

static char folder[256];

static void make_folder(void) { temp_folder(folder); }
static void drop_folder(void) { remove_folder(folder); }

/* Writes a file of the test's folder; its path is valid until the next call with this name. */
static const char *write_file(const char *name, const char *text) {
    static char paths[2][300];
    char *path = paths[strcmp(name, "train.jsonl") == 0];
    snprintf(path, 300, "%s/%s", folder, name);
    must(hy_file_write_atomic(path, text, strlen(text)));
    return path;
}

/* Pairs of key and value end with NULL; or NULL. */
static hy_status try_rows(const char *data, const char *const *pairs, hy_evaluation *out) {
    static const char *const usual[] = {"seq_len",   "48",   "device",     "cpu",
                                        "precision", "fp32", "batch_size", "2"};
    hy_config *config;
    must(hy_config_create(&config));
    must(hy_config_use_model(config, GOLDEN));
    must(hy_config_set(config, "data", data, HY_FROM_CALLER));
    for (size_t i = 0; i < sizeof usual / sizeof usual[0]; i += 2)
        must(hy_config_set(config, usual[i], usual[i + 1], HY_FROM_CALLER));
    for (int i = 0; pairs && pairs[i]; i += 2)
        must(hy_config_set(config, pairs[i], pairs[i + 1], HY_FROM_CALLER));
    hy_status status = hy_evaluate(config, NULL, out);
    hy_config_destroy(config);
    return status;
}

static hy_row_scores score(const char *data, const char *const *pairs) {
    hy_evaluation found;
    must(try_rows(data, pairs, &found));
    return found.row_scores;
}

/* ---- lm-evaluation-harness ------------------------------------------------------------------- */

static double number_of(const hy_json_node *object, const char *key) {
    double value = NAN;
    ck_assert(hy_json_as_double(hy_json_get(object, key), &value));
    return value;
}

START_TEST(accuracies_equal_those_of_lm_evaluation_harness) {
    hy_json *json;
    must(hy_json_read_file(GOLDEN "/expected.json", &json));
    const hy_json_node *root = hy_json_root(json);
    hy_row_scores s = score(CHOICES, NULL);
    ck_assert_int_eq(s.choice_rows, 10);
    ck_assert_int_eq(s.answer_rows, 0);
    ck_assert_double_eq_tol(s.accuracy, number_of(root, "acc"), 1e-12);
    ck_assert_double_eq_tol(s.accuracy_error, number_of(root, "acc_stderr"), 1e-12);
    ck_assert_double_eq_tol(s.accuracy_norm, number_of(root, "acc_norm"), 1e-12);
    ck_assert_double_eq_tol(s.accuracy_norm_error, number_of(root, "acc_norm_stderr"), 1e-12);
    ck_assert_double_ne(s.accuracy, s.accuracy_norm); /* else it would prove little */
    ck_assert_int_eq(s.cut_rows, 1);
    ck_assert(isnan(s.greedy_accuracy));
    double sum = 0, greedy = 0;
    const hy_json_node *n = hy_json_first(hy_json_get(root, "answers"));
    for (; n; n = hy_json_next(n)) {
        bool is_greedy = false;
        ck_assert(hy_json_as_bool(hy_json_get(n, "is_greedy"), &is_greedy));
        greedy += is_greedy;
        sum -= number_of(n, "log_probability");
    }
    hy_evaluation e;
    must(try_rows(ANSWERS, NULL, &e));
    ck_assert_int_eq(e.row_scores.answer_rows, 10);
    ck_assert(greedy > 0 && greedy < 10);
    ck_assert_double_eq_tol(e.row_scores.greedy_accuracy, greedy / 10, 1e-12);
    ck_assert_double_eq_tol(e.loss * (double)e.tokens, sum, 1e-4);
    ck_assert_double_eq_tol(e.perplexity, exp(sum / (double)e.tokens), 1e-2);
    hy_json_free(json);
}
END_TEST

/* Each choice alone, as the answer of a row. */
START_TEST(log_probabilities_equal_those_of_lm_evaluation_harness) {
    const char *key = _i ? "chatml" : "log_probabilities";
    hy_json *json, *rows;
    hy_text text = {0};
    char *data;
    size_t size;
    must(hy_json_read_file(GOLDEN "/expected.json", &json));
    must(hy_file_read(CHOICES, &data, &size));
    const hy_json_node *list = hy_json_first(hy_json_get(hy_json_root(json), key));
    for (char *line = strtok(data, "\n"); line;
         line = strtok(NULL, "\n"), list = hy_json_next(list)) {
        must(hy_json_parse(line, strlen(line), "row", &rows));
        const hy_json_node *row = hy_json_root(rows), *expected = hy_json_first(list);
        const hy_json_node *choice = hy_json_first(hy_json_get(row, "choices"));
        for (; choice; choice = hy_json_next(choice), expected = hy_json_next(expected)) {
            const char *prompt, *answer;
            double value;
            hy_json_writer w;
            ck_assert(hy_json_as_string(hy_json_get(row, "prompt"), &prompt, NULL));
            ck_assert(hy_json_as_string(choice, &answer, NULL));
            ck_assert(hy_json_as_double(expected, &value));
            hy_text_clear(&text);
            hy_json_begin(&w, &text, false);
            hy_json_open_object(&w, NULL);
            hy_json_put_string(&w, "prompt", prompt);
            hy_json_put_string(&w, "answer", answer);
            hy_json_close_object(&w);
            hy_row_scores s = score(write_file("one.jsonl", text.data),
                                    _i ? PAIRS("chat_template", "chatml") : NULL);
            double found = -s.answer_loss * (double)s.answer_tokens;
            ck_assert_msg(fabs(found - value) < 1e-4, "%s + %s: %.6f, expected %.6f", prompt,
                          answer, found, value);
        }
        hy_json_free(rows);
    }
    ck_assert_ptr_null(list);
    hy_text_free(&text);
    free(data);
    hy_json_free(json);
}
END_TEST

START_TEST(sequences_that_rows_share_change_no_score) {
    hy_row_scores all = score(CHOICES "," ANSWERS, NULL),
                  alone = score(CHOICES "," ANSWERS, PAIRS("packing", "off", "batch_size", "3"));
    ck_assert_int_eq(all.choice_rows, 10);
    ck_assert_int_eq(all.answer_rows, 10);
    ck_assert_double_eq(all.accuracy, alone.accuracy);
    ck_assert_double_eq(all.accuracy_norm, alone.accuracy_norm);
    ck_assert_double_eq(all.greedy_accuracy, alone.greedy_accuracy);
    ck_assert_double_eq_tol(all.answer_loss, alone.answer_loss, 1e-5);
    ck_assert_int_eq(all.answer_tokens, alone.answer_tokens);
}
END_TEST

/* ---- rows ------------------------------------------------------------------------------------ */

#define ROW(rest) "{\"prompt\": \"The sea is\", " rest "}\n"
#define TWO "\"choices\": [\" salt\", \" blue\"]"

START_TEST(a_row_that_cannot_be_scored_is_refused_by_name) {
    static const struct {
        const char *row, *reason;
    } cases[] = {
        {ROW(TWO ", \"answer\": 2"), "one.jsonl:1: \"answer\" is 2, but the row has 2 choices"},
        {ROW(TWO ", \"answer\": -1"), "\"answer\" is -1"},
        {ROW(TWO ", \"answer\": \"A\""),
         "\"answer\" is \"A\", which is none of the 2 choices; "
         "expected the text of a choice, or its "
         "number (0 to 1); letters and numbers in quotes are texts"},
        {ROW(TWO ", \"answer\": \"1\""), "\"answer\" is \"1\", which is none of the 2 choices"},
        {ROW(TWO ", \"answer\": 0.5"), "\"answer\" is neither the text of a choice nor its number"},
        {ROW(TWO ", \"answer\": null"),
         "\"answer\" is neither the text of a choice nor its number"},
        {ROW("\"choices\": [2, 3, 4, 1], \"answer\": 2"),
         "\"answer\" is 2, which may be a choice or the number of a choice"},
        {ROW("\"answer\": \" salt\"") ROW(TWO ", \"answer\": 0"),
         "one.jsonl:2: the row has \"choices\", unlike the first row of the file"},
        {ROW(TWO ", \"answer\": 0") ROW("\"answer\": \" salt\""),
         "one.jsonl:2: the row has no \"choices\", unlike the first row of the file"},
        {ROW("\"choices\": [\" a\", \" a\"], \"answer\": \" a\""), "2 choices have this text"},
        {ROW("\"choices\": [\" salt\"], \"answer\": 0"), "not a list of two or more texts"},
        {ROW("\"choices\": \"salt\", \"answer\": 0"), "\"choices\" is not a list of two or more"},
        {ROW("\"choices\": [\" salt\", \"\"], \"answer\": 0"), "choice 1 in \"choices\" is empty"},
        {ROW("\"choices\": [\" salt\", [1]], \"answer\": 0"), "\"choices\" is not a text"},
        {"{\"prompt\": \"\", \"answer\": \"a\"}\n", "the prompt is empty"},
        {ROW("\"answer\": \"\""), "the answer is empty"},
        {"{\"question\": \"The sea is\", " TWO ", \"answer\": 0}\n", "--columns prompt=question"},
    };
    hy_evaluation e;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *path = write_file("one.jsonl", cases[i].row);
        must_fail(try_rows(path, PAIRS("bad_rows", "stop"), &e), HY_ERR_INPUT, cases[i].reason);
    }
    must(try_rows(
        write_file("one.jsonl", "{\"question\": \"The sea is\", " TWO ", \"answer\": 1}\n"),
        PAIRS("columns", "prompt=question"), &e));
    ck_assert_int_eq(e.row_scores.choice_rows, 1);
    ck_assert(isnan(e.row_scores.accuracy_error)); /* of one row it is not known */
}
END_TEST

#define ASKED "\"question\": \"The sea is\""

START_TEST(columns_may_map_every_key_of_a_row_that_is_scored) {
    static const struct {
        const char *columns, *row;
        int choices;
    } cases[] = {
        {"prompt=question,choices=options,answer=answer_index",
         "{" ASKED ", \"options\": [\" salt\", \" blue\"], \"answer_index\": 1}\n", 1},
        {"prompt=question,answer=label", "{" ASKED ", \"label\": \" salt\"}\n", 0},
        {"prompt=question,completion=answer", "{" ASKED ", " TWO ", \"answer\": 1}\n", 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        hy_row_scores s =
            score(write_file("one.jsonl", cases[i].row), PAIRS("columns", cases[i].columns));
        ck_assert_int_eq(s.choice_rows, cases[i].choices);
        ck_assert_int_eq(s.answer_rows, 1 - cases[i].choices);
    }
    /* Numbers in quotes are texts, of choices that are numbers too. */
    const char *row = ROW("\"choices\": [2, 3], \"answer\": \"3\"");
    ck_assert_int_eq(score(write_file("one.jsonl", row), NULL).choice_rows, 1);
}
END_TEST

START_TEST(dropped_and_cut_rows_are_counted_and_the_others_scored) {
    const char *path =
        write_file("one.jsonl", ROW(TWO ", \"answer\": 0") ROW(TWO ", \"answer\": \"B\"")
                                    ROW(TWO ", \"answer\": 1"));
    hy_row_scores s = score(path, NULL);
    ck_assert_int_eq(s.choice_rows, 2);
    ck_assert_int_eq(s.dropped_rows, 1);
    ck_assert_double_eq(s.accuracy, 0.5); /* one of two opposite answers */
    ck_assert_int_eq(score(path, PAIRS("seq_len", "4")).cut_rows, 2);
}
END_TEST

static void keep_message(void *user, hy_message_level level, const char *text) {
    size_t used = strlen(user);
    if (level == HY_WARNING) snprintf((char *)user + used, 1000 - used, "%s\n", text);
}

START_TEST(dropped_rows_with_the_same_fault_are_counted_together) {
    hy_evaluation e;
    const char *path =
        write_file("one.jsonl", ROW(TWO ", \"answer\": \"B\"") ROW(TWO ", \"answer\": \"C\"")
                                    ROW(TWO ", \"answer\": 7") ROW(TWO ", \"answer\": 8")
                                        ROW(TWO ", \"answer\": 0"));
    must_fail(try_rows(path, NULL, &e), HY_ERR_INPUT, "2: \"answer\" is ..., which is none of");
    must_fail(try_rows(path, NULL, &e), HY_ERR_INPUT, "2: \"answer\" is ..., but the row has 2");
}
END_TEST

START_TEST(answers_that_continue_the_last_word_of_the_prompt_are_reported) {
    char said[1000] = "";
    hy_observer observer = {.user = said, .on_message = keep_message};
    hy_config *config;
    hy_evaluation e;
    must(hy_config_create(&config));
    must(hy_config_use_model(config, GOLDEN));
    const char *row = ROW("\"choices\": [\"Paris\", \" blue\"], \"answer\": 1");
    must(hy_config_set(config, "data", write_file("one.jsonl", row), HY_FROM_CALLER));
    must(hy_config_set(config, "device", "cpu", HY_FROM_CALLER));
    must(hy_evaluate(config, &observer, &e));
    ck_assert_msg(strstr(said, "1 of 2 answers continue the last word"), "%s", said);
    hy_config_destroy(config);
}
END_TEST

/* Rows of other kinds, too: what streams in training is read completely. */
START_TEST(an_evaluation_reads_all_rows_even_where_training_streams_them) {
    hy_text text = {0};
    for (int i = 0; i < 200; i++)
        hy_text_addf(&text, "{\"prompt\": \"row %d\", \"completion\": \" is one of many\"}\n", i);
    const char *path = write_file("one.jsonl", text.data);
    hy_evaluation whole, streamed;
    must(try_rows(path, PAIRS("stream_rows", "off"), &whole));
    must(try_rows(path, PAIRS("stream_rows", "on", "stream_window", "4096"), &streamed));
    ck_assert_int_eq(streamed.tokens, whole.tokens);
    ck_assert_double_eq(streamed.loss, whole.loss);
    ck_assert_int_eq(streamed.row_scores.choice_rows + streamed.row_scores.answer_rows, 0);
    hy_text_free(&text);
}
END_TEST

START_TEST(a_prompt_may_be_a_list_of_messages) {
    const char *turns = "{\"prompt\": [{\"role\": \"user\", \"content\": \"The sea is\"}], " TWO
                        ", \"answer\": 0}\n";
    const char *const chatml[] = {"chat_template", "chatml", NULL};
    double listed = score(write_file("one.jsonl", turns), chatml).answer_loss;
    double plain = score(write_file("one.jsonl", ROW(TWO ", \"answer\": 0")), chatml).answer_loss;
    ck_assert_double_eq(listed, plain);
}
END_TEST

/* ---- runs ------------------------------------------------------------------------------------ */

#define TRAINING                                                                                   \
    "{\"prompt\": \"one\", \"completion\": \" two\"}\n{\"prompt\": \"two\", \"completion\": \" "   \
    "three\"}\n{\"prompt\": \"three\", \"completion\": \" four\"}\n{\"prompt\": \"four\", "        \
    "\"completion\": \" five\"}\n"
#define RUN                                                                                        \
    "model " GOLDEN " seq_len 48 batch_size 4 grad_accum_steps 1 lr 0.01 device cpu precision "    \
    "fp32 val_fraction 0.25 eval_every 2 packing off sample_tokens 0 threads 1 save_model false "  \
    "transport sockets "

typedef struct seen_scores {
    int count;
    hy_trainer *stopped; /* after two validations; NULL: it runs to its end */
    hy_row_scores list[16];
    double loss[16];
} seen_scores;

static void on_eval(void *user, const hy_eval_info *info) {
    seen_scores *seen = user;
    seen->loss[seen->count] = info->loss;
    seen->list[seen->count++] = info->row_scores;
    if (seen->stopped && seen->count == 2) hy_trainer_request_stop(seen->stopped);
}

typedef struct heard_scores {
    seen_scores *seen;
    char *said; /* notes about rows */
} heard_scores;

static void hear_eval(void *user, const hy_eval_info *info) {
    on_eval(((heard_scores *)user)->seen, info);
}

static void hear_note(void *user, hy_message_level level, const char *text) {
    bool is_note = level == HY_NOTE && strstr(text, "eval_rows");
    if (is_note) snprintf(((heard_scores *)user)->said, 1000, "%s", text);
}

static seen_scores train_rows(const char *name, bool stops, const char *const *pairs) {
    char out[300];
    seen_scores seen = {0};
    hy_observer observer = {.user = &seen, .on_eval = on_eval};
    hy_trainer *t;
    hy_summary summary;
    snprintf(out, sizeof out, "%s/%s", folder, name);
    hy_config *config = small_run(RUN, out, pairs);
    must(hy_config_set(config, "data", write_file("train.jsonl", TRAINING), HY_FROM_CALLER));
    must(hy_trainer_create(config, &observer, &t));
    if (stops) seen.stopped = t;
    ck_assert_int_eq(hy_trainer_run(t), stops ? HY_STOPPED : HY_OK);
    hy_trainer_summary(t, &summary);
    const hy_row_scores *last = &seen.list[seen.count - 1];
    ck_assert_mem_eq(&summary.row_scores, last, sizeof *last);
    hy_trainer_destroy(t);
    hy_config_destroy(config);
    return seen;
}

START_TEST(a_run_scores_its_rows_and_trains_as_without_them) {
    seen_scores with =
        train_rows("with", false, PAIRS("eval_rows", CHOICES "," ANSWERS, "steps", "6"));
    seen_scores without = train_rows("without", false, PAIRS("steps", "6"));
    ck_assert_int_eq(with.count, 3);
    ck_assert_int_eq(without.count, 3);
    ck_assert_mem_eq(with.loss, without.loss, sizeof with.loss);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(with.list[i].choice_rows, 10);
        ck_assert_int_eq(with.list[i].answer_rows, 10);
        ck_assert_int_eq(without.list[i].choice_rows, 0);
        ck_assert(isnan(without.list[i].accuracy));
    }
    ck_assert_double_ne(with.list[0].answer_loss, with.list[2].answer_loss);
    char path[320], *text;
    size_t size;
    snprintf(path, sizeof path, "%s/with/metrics.jsonl", folder);
    must(hy_file_read(path, &text, &size));
    char key[64];
    snprintf(key, sizeof key, "\"accuracy\":%.4g", with.list[2].accuracy);
    ck_assert_ptr_nonnull(strstr(text, key));
    free(text);
    snprintf(path, sizeof path, "%s/with", folder);
    hy_row_scores again = score(CHOICES "," ANSWERS, PAIRS("init_from", path, "packing", "off"));
    ck_assert_double_eq(again.accuracy, with.list[2].accuracy);
}
END_TEST

START_TEST(a_resumed_run_scores_its_rows_to_the_same_bits) {
    seen_scores whole = train_rows("whole", false, PAIRS("eval_rows", CHOICES, "steps", "8"));
    train_rows("parts", true, PAIRS("eval_rows", CHOICES, "steps", "8"));
    seen_scores rest =
        train_rows("parts", false, PAIRS("eval_rows", CHOICES, "steps", "8", "resume", "auto"));
    ck_assert_int_eq(rest.count, 2);
    ck_assert_mem_eq(rest.list, whole.list + 2, 2 * sizeof rest.list[0]);
}
END_TEST

START_TEST(a_run_resumed_without_its_rows_reports_no_accuracy) {
    train_rows("parts", true, PAIRS("eval_rows", CHOICES, "steps", "8"));
    seen_scores rest =
        train_rows("parts", false, PAIRS("eval_rows", "", "steps", "8", "resume", "auto"));
    ck_assert_int_eq(rest.count, 2);
    ck_assert_int_eq(rest.list[1].choice_rows, 0);
    ck_assert(isnan(rest.list[1].accuracy));
}
END_TEST

/* Training maps columns that rows for evaluation do not have. */
START_TEST(columns_of_the_training_data_hide_no_rows) {
    char data[700], out[320];
    hy_trainer *t;
    hy_summary summary;
    snprintf(data, sizeof data, "%s",
             write_file("train.jsonl", "{\"question\": \"one\", \"answer\": \" two\"}\n"
                                       "{\"question\": \"two\", \"answer\": \" three\"}\n"));
    snprintf(out, sizeof out, "%s/run", folder);
    hy_config *config =
        small_run(RUN, out,
                  PAIRS("data", data, "val_fraction", "0.5", "eval_rows", CHOICES "," ANSWERS,
                        "columns", "prompt=question,completion=answer", "steps", "2"));
    must(hy_trainer_create(config, NULL, &t));
    must(hy_trainer_run(t));
    hy_trainer_summary(t, &summary);
    ck_assert_int_eq(summary.row_scores.choice_rows, 10);
    ck_assert_int_eq(summary.row_scores.answer_rows, 10);
    hy_trainer_destroy(t);
    hy_config_destroy(config);
}
END_TEST

/* The steps of validations follow from the held-out data; the run reports the cost of rows. */
START_TEST(many_rows_leave_the_validations_as_they_are) {
    hy_text rows = {0};
    char path[700], said[2][1000] = {"", ""};
    int counts[2];
    for (int i = 0; i < 400; i++) hy_text_add(&rows, ROW(TWO ", \"answer\": 0"));
    snprintf(path, sizeof path, "%s", write_file("one.jsonl", rows.data));
    for (int i = 0; i < 2; i++) {
        seen_scores seen = {0};
        char out[320];
        heard_scores heard = {&seen, said[i]};
        hy_observer observer = {.user = &heard, .on_eval = hear_eval, .on_message = hear_note};
        hy_trainer *t;
        snprintf(out, sizeof out, "%s/%d", folder, i);
        hy_config *config = small_run(RUN, out, PAIRS("eval_every", "-1", "steps", "40"));
        must(hy_config_set(config, "data", write_file("train.jsonl", TRAINING), HY_FROM_CALLER));
        if (i) must(hy_config_set(config, "eval_rows", path, HY_FROM_CALLER));
        must(hy_trainer_create(config, &observer, &t));
        must(hy_trainer_run(t));
        counts[i] = seen.count;
        hy_trainer_destroy(t);
        hy_config_destroy(config);
    }
    ck_assert_int_gt(counts[0], 1);
    ck_assert_int_eq(counts[1], counts[0]);
    ck_assert_ptr_null(strstr(said[0], "eval_rows"));
    ck_assert_msg(strstr(said[1], "rows of eval_rows, which takes about as long as"), "%s",
                  said[1]);
    hy_text_free(&rows);
}
END_TEST

/* Questions without a template end with a line end, here and in --eval-only of the run. */
START_TEST(a_run_writes_its_rows_as_it_writes_its_training_data) {
    char out[320], data[700];
    const char *questions = "{\"question\": \"one\", \"answer\": \"two\"}\n{\"question\": \"two\", "
                            "\"answer\": \"three\"}\n";
    snprintf(data, sizeof data, "%s", write_file("one.jsonl", questions));
    snprintf(out, sizeof out, "%s/run", folder);
    hy_config *config = small_run(
        RUN, out, PAIRS("data", data, "val_fraction", "0.5", "eval_rows", CHOICES, "steps", "2"));
    hy_trainer *t;
    hy_summary summary;
    must(hy_trainer_create(config, NULL, &t));
    must(hy_trainer_run(t));
    hy_trainer_summary(t, &summary);
    double loss = summary.row_scores.answer_loss;
    hy_trainer_destroy(t);
    hy_config_destroy(config);
    hy_evaluation e;
    must(hy_config_create(&config));
    must(hy_config_use_model(config, out));
    must(hy_config_set(config, "data", CHOICES, HY_FROM_CALLER));
    must(hy_evaluate(config, NULL, &e));
    hy_config_destroy(config);
    ck_assert_double_eq_tol(e.row_scores.answer_loss, loss, 1e-5);
    ck_assert_msg(strstr(e.row_format, "lines"), "%s", e.row_format);
}
END_TEST

static hy_row_scores scores_in(const char *out) {
    char path[1024];
    hy_json *json;
    snprintf(path, sizeof path, "%s/summary.json", out);
    must(hy_json_read_file(path, &json));
    const hy_json_node *s = hy_json_get(hy_json_root(json), "row_scores");
    hy_row_scores found = {.accuracy = number_of(s, "accuracy"),
                           .accuracy_norm = number_of(s, "accuracy_norm"),
                           .greedy_accuracy = number_of(s, "greedy_accuracy"),
                           .answer_loss = number_of(s, "answer_loss")};
    hy_json_free(json);
    return found;
}

START_TEST(ranks_share_the_rows_and_score_the_same) {
    char more[1200], out[3][300];
    hy_row_scores found[3];
    snprintf(more, sizeof more, "data %s steps 2 eval_rows %s", write_file("train.jsonl", TRAINING),
             CHOICES "," ANSWERS);
    for (int i = 0; i < 3; i++) {
        snprintf(out[i], sizeof out[i], "%s/%d", folder, i);
        ranks_run run = {.count = i ? 2 : 1,
                         .stage = i == 2 ? 3 : i - 1,
                         .words = RUN,
                         .more = more,
                         .out = out[i]};
        train(&run);
        found[i] = scores_in(out[i]);
        ck_assert_double_eq(found[i].accuracy, found[0].accuracy);
        ck_assert_double_eq(found[i].accuracy_norm, found[0].accuracy_norm);
        ck_assert_double_eq(found[i].greedy_accuracy, found[0].greedy_accuracy);
        ck_assert_double_eq_tol(found[i].answer_loss, found[0].answer_loss, 1e-4);
    }
    ck_assert_double_eq(found[1].answer_loss, found[2].answer_loss);
}
END_TEST

START_TEST(a_run_refuses_rows_that_it_cannot_use) {
    static const struct {
        const char *key, *value, *more, *reason;
    } cases[] = {
        {"eval_rows", CHOICES, "val_fraction 0", "needs held-out data"},
        {"eval_rows", "-", "", "cannot be standard input"},
        {"eval_rows", "-," CHOICES, "", "cannot be standard input"},
        {"data", CHOICES, "",
         "rows with a prompt and an answer are for --eval-only and --eval-rows"},
        {"data", ANSWERS, "", "--columns completion=answer trains them"},
    };
    const char *path = write_file("train.jsonl", TRAINING);
    hy_evaluation e;
    char words[2048];
    hy_trainer *t;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        snprintf(words, sizeof words, "%s data %s steps 2 %s", RUN, path, cases[i].more);
        hy_config *config = small_run(words, "none", PAIRS(cases[i].key, cases[i].value));
        must_fail(hy_trainer_create(config, NULL, &t), HY_ERR_INPUT, cases[i].reason);
        hy_config_destroy(config);
    }
    hy_config *config = small_run(RUN, "none", PAIRS("data", path, "eval_rows", path));
    must_fail(hy_trainer_create(config, NULL, &t), HY_ERR_INPUT,
              "has no rows with a known answer; expected rows with prompt, choices and answer");
    hy_config_destroy(config);
    char both[700];
    snprintf(both, sizeof both, "%s,%s", CHOICES, path);
    must_fail(try_rows(both, NULL, &e), HY_ERR_INPUT, "mixes rows for evaluation");
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("scores");
    TCase *cases = tcase_create("scores");
    tcase_add_checked_fixture(cases, make_folder, drop_folder);
    tcase_add_test(cases, accuracies_equal_those_of_lm_evaluation_harness);
    tcase_add_loop_test(cases, log_probabilities_equal_those_of_lm_evaluation_harness, 0, 2);
    tcase_add_test(cases, sequences_that_rows_share_change_no_score);
    tcase_add_test(cases, a_row_that_cannot_be_scored_is_refused_by_name);
    tcase_add_test(cases, columns_may_map_every_key_of_a_row_that_is_scored);
    tcase_add_test(cases, dropped_rows_with_the_same_fault_are_counted_together);
    tcase_add_test(cases, dropped_and_cut_rows_are_counted_and_the_others_scored);
    tcase_add_test(cases, answers_that_continue_the_last_word_of_the_prompt_are_reported);
    tcase_add_test(cases, an_evaluation_reads_all_rows_even_where_training_streams_them);
    tcase_add_test(cases, a_prompt_may_be_a_list_of_messages);
    tcase_add_test(cases, a_run_scores_its_rows_and_trains_as_without_them);
    tcase_add_test(cases, a_run_writes_its_rows_as_it_writes_its_training_data);
    tcase_add_test(cases, a_resumed_run_scores_its_rows_to_the_same_bits);
    tcase_add_test(cases, a_run_resumed_without_its_rows_reports_no_accuracy);
    tcase_add_test(cases, columns_of_the_training_data_hide_no_rows);
    tcase_add_test(cases, many_rows_leave_the_validations_as_they_are);
    tcase_add_test(cases, ranks_share_the_rows_and_score_the_same);
    tcase_add_test(cases, a_run_refuses_rows_that_it_cannot_use);
    suite_add_tcase(suite, cases);
    return suite;
}

HY_TEST_MAIN(make_suite)
