/* test_data_stream.c: streamed rows: their order, where a run continues, and what goes wrong while
 * rows are read. */
#include <math.h>
#include <pthread.h>
#include <unistd.h>

#include "base/hash.h"
#include "data/dataset.h"
#include "data_rig.h"
#include "harness.h"

enum { SEQ = 64, WINDOW = 4096, ROWS = 600 };

static char folder[256];
static char last_warning[1024];
static int warnings;

static void make_folder(void) {
    temp_folder(folder);
    last_warning[0] = 0;
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

static const char *write_file(const char *name, const hy_text *text) {
    const char *path = path_of(name);
    must(hy_file_write_atomic(path, text->data, text->size));
    return path;
}

static void keep_warning(void *user, const char *text) {
    (void)user;
    snprintf(last_warning, sizeof last_warning, "%s", text);
    warnings++;
}

static hy_dataset_options options_of(const char *path) {
    return (hy_dataset_options){.path = path,
                                .val_fraction = 0.05,
                                .seq = SEQ,
                                .vocab = 256,
                                .seed = 7,
                                .shuffle = true,
                                .workers = 2,
                                .streams = HY_STREAM_ON,
                                .stream_window = WINDOW,
                                .on_warning = keep_warning};
}

/* Row i has its number in its text, so that it can be found in a sequence. */
static void add_row(hy_text *out, int i) {
    hy_text_addf(out, "{\"prompt\": \"<%d>\", \"completion\": \"%.*s\"}\n", i, 5 + i % 17,
                 "abcdefghijklmnopqrstuvwxyz");
}

static const char *write_rows(const char *name, int count) {
    hy_text text = {0};
    for (int i = 0; i < count; i++) add_row(&text, i);
    const char *path = write_file(name, &text);
    hy_text_free(&text);
    return path;
}

/* The row of a sequence without packing, or -1 after an error. */
static int row_at(const hy_dataset *data, hy_split split, uint64_t n) {
    int32_t tokens[SEQ], targets[SEQ];
    char text[SEQ + 1] = "";
    int row = -1;
    if (hy_dataset_fill(data, split, n, tokens, targets, NULL) < 0) return -1;
    for (int i = 0; i < SEQ; i++) text[i] = (char)tokens[i];
    ck_assert_int_eq(sscanf(text, "<%d>", &row), 1);
    return row;
}

static uint64_t digest(const hy_dataset *data, uint64_t first, uint64_t count) {
    int32_t tokens[SEQ], targets[SEQ], starts[SEQ];
    hy_hash hash;
    hy_hash_init(&hash, 0);
    for (uint64_t n = first; n < first + count; n++) {
        ck_assert_int_ge(hy_dataset_fill(data, HY_TRAIN, n, tokens, targets, starts), 1);
        hy_hash_add(&hash, tokens, sizeof tokens);
        hy_hash_add(&hash, targets, sizeof targets);
    }
    return hy_hash_value(&hash);
}

static uint64_t digest_of(hy_dataset_options options, uint64_t first, uint64_t count) {
    hy_dataset *data = open_data(options);
    uint64_t hash = digest(data, first, count);
    hy_dataset_close(data);
    return hash;
}

/* ---- order ----------------------------------------------------------------------------------- */

START_TEST(every_row_is_trained_once_in_each_epoch_or_held_out) {
    hy_dataset *data = open_data(options_of(write_rows("rows.jsonl", ROWS)));
    int held_out = (int)hy_dataset_describe(data)->sequences[HY_VAL], moved = 0;
    uint64_t each = (uint64_t)(ROWS - held_out);
    bool is_held_out[ROWS] = {0};
    ck_assert_int_gt(held_out, 0);
    for (int i = 0; i < held_out; i++) is_held_out[row_at(data, HY_VAL, (uint64_t)i)] = true;
    for (uint64_t epoch = 0; epoch < 3; epoch++) {
        bool is_seen[ROWS] = {0};
        for (uint64_t n = 0; n < each; n++) {
            int row = row_at(data, HY_TRAIN, epoch * each + n);
            ck_assert(!is_seen[row] && !is_held_out[row]);
            is_seen[row] = true;
            /* the first epoch follows the file, window by window; later ones do not */
            if (epoch == 0) ck_assert_int_lt(abs(row - (int)n), 150);
            if (epoch == 1) moved += abs(row - (int)n) > 150;
        }
    }
    ck_assert_int_gt(moved, ROWS / 4);
    hy_dataset_close(data);
}
END_TEST

START_TEST(rows_that_fit_a_window_have_the_order_of_rows_that_are_read_whole) {
    const char *path = write_rows("rows.jsonl", 300);
    hy_dataset_options options = options_of(path);
    options.stream_window = 1 << 20;
    options.packs = true;
    uint64_t streamed = digest_of(options, 0, 500);
    options.streams = HY_STREAM_OFF;
    ck_assert_uint_eq(digest_of(options, 0, 500), streamed);
    options.streams = HY_STREAM_AUTO; /* small files are read whole */
    hy_dataset *data = open_data(options);
    ck_assert_uint_eq(hy_dataset_describe(data)->stream_window, 0);
    ck_assert_uint_eq(digest(data, 0, 500), streamed);
    hy_dataset_close(data);
}
END_TEST

static void pipe_file(const char *path) {
    char command[1024];
    snprintf(command, sizeof command, "cat %s", path);
    FILE *from = popen(command, "r");
    ck_assert_ptr_nonnull(from);
    ck_assert_int_ge(dup2(fileno(from), STDIN_FILENO), 0);
}

START_TEST(files_packed_files_and_pipes_have_one_order) {
    const char *path = write_rows("rows.jsonl", ROWS);
    char command[1200], packed[600];
    hy_dataset_options options = options_of(path);
    options.packs = true;
    uint64_t expected = digest_of(options, 0, 900);
    options.workers = 5;
    ck_assert_uint_eq(digest_of(options, 0, 900), expected);
    snprintf(packed, sizeof packed, "%s.gz", path);
    snprintf(command, sizeof command, "gzip -k %s", path);
    ck_assert_int_eq(system(command), 0);
    options.path = packed;
    ck_assert_uint_eq(digest_of(options, 0, 900), expected);
    pipe_file(path);
    options.path = "-";
    ck_assert_uint_eq(digest_of(options, 0, 900), expected);
    ck_assert_uint_eq(digest_of(options, 0, 900), expected); /* again, from the copy */
    pipe_file(packed);
    ck_assert_uint_eq(digest_of(options, 0, 900), expected);
}
END_TEST

/* Windows end between rows, however rows are separated. */
START_TEST(arrays_and_csv_files_and_folders_lose_no_row_at_the_border_of_a_window) {
    hy_text array = {0}, csv = {0};
    hy_text_add(&array, "[ ");
    hy_text_add(&csv, "prompt,completion\n");
    for (int i = 0; i < ROWS; i++) {
        hy_text_addf(&array, "{\"prompt\": \"<%d>\",\n \"completion\": \"],[ %d\"}%s", i, i,
                     i == ROWS - 1 ? "\n]\n \n" : " ,\n");
        hy_text_addf(&csv, "\"<%d>\",\"a \"\"b\"\",\n%d\"%s\n", i, i, i % 3 ? "" : "\r");
    }
    char parts[512], json_path[512], csv_path[512];
    snprintf(json_path, sizeof json_path, "%s", write_file("rows.json", &array));
    snprintf(csv_path, sizeof csv_path, "%s", write_file("rows.csv", &csv));
    const char *paths[] = {json_path, csv_path, parts};
    snprintf(parts, sizeof parts, "%s/parts", folder);
    must(hy_dir_make(parts));
    for (int part = 0; part < 40; part++) { /* several files share a window */
        char name[64];
        hy_text rows = {0};
        for (int i = 0; i < ROWS / 40; i++) add_row(&rows, part * ROWS / 40 + i);
        snprintf(name, sizeof name, "parts/%02d.jsonl", part);
        write_file(name, &rows);
        hy_text_free(&rows);
    }
    for (int k = 0; k < 3; k++) {
        for (int64_t window = 1000; window < 9000; window += 1117) {
            hy_dataset_options options = options_of(paths[k]);
            options.stream_window = window;
            hy_dataset *data = open_data(options);
            uint64_t each = ROWS - hy_dataset_describe(data)->sequences[HY_VAL];
            bool is_seen[ROWS] = {0};
            for (uint64_t n = 0; n < each; n++) {
                int row = row_at(data, HY_TRAIN, n);
                ck_assert_msg(row >= 0 && !is_seen[row], "%s: row %d", paths[k], row);
                is_seen[row] = true;
            }
            ck_assert_int_ge(row_at(data, HY_TRAIN, each), 0);
            hy_dataset_refresh(data, keep_warning, NULL);
            ck_assert_uint_eq(hy_dataset_describe(data)->rows, ROWS);
            ck_assert_uint_eq(hy_dataset_describe(data)->dropped_rows, 0);
            hy_dataset_close(data);
        }
    }
    hy_text_free(&array);
    hy_text_free(&csv);
}
END_TEST

START_TEST(any_sequence_can_be_read_at_any_time) {
    hy_dataset *data = open_data(options_of(write_rows("rows.jsonl", ROWS)));
    int expected[1500];
    for (int n = 0; n < 1500; n++) expected[n] = row_at(data, HY_TRAIN, (uint64_t)n);
    hy_dataset_close(data);
    data = open_data(options_of(path_of("rows.jsonl")));
    for (int i = 0; i < 300; i++) {
        int n = i * 733 % 1500;
        ck_assert_int_eq(row_at(data, HY_TRAIN, (uint64_t)n), expected[n]);
    }
    hy_dataset_close(data);
}
END_TEST

START_TEST(paths_without_weights_take_turns_by_their_sizes) {
    char both[1100];
    snprintf(both, sizeof both, "%s,%s", write_rows("a.jsonl", ROWS), write_rows("b.jsonl", 200));
    hy_dataset *data = open_data(options_of(both));
    const hy_dataset_facts *facts = hy_dataset_describe(data);
    ck_assert_double_gt(facts->epoch_sequences, 600);
    ck_assert_double_lt(facts->epoch_sequences, 900);
    ck_assert_uint_eq(digest(data, 0, 300), digest_of(options_of(both), 0, 300));
    hy_dataset_close(data);
}
END_TEST

/* ---- continuing ------------------------------------------------------------------------------ */

static hy_json *saved(const hy_dataset *data, bool is_old) {
    hy_text text = {0};
    hy_json_writer w;
    hy_json *json;
    hy_json_begin(&w, &text, false);
    hy_json_open_object(&w, NULL);
    hy_dataset_write_streams(data, &w);
    hy_json_close_object(&w);
    /* older checkpoints have no numbers after the hash of a window */
    for (char *end = text.data; is_old && (end = strstr(end, "\",")); end++) {
        char *hash = end;
        while (hash[-1] != '"') hash--;
        size_t rest = strcspn(end, "]");
        if (end - hash == 16) memset(end + 1, ' ', rest - 1);
    }
    must(hy_json_parse(text.data, text.size, "saved", &json));
    hy_text_free(&text);
    return json;
}

/* Changes a byte of the rows that hold `number`. */
static void change_row(const char *path, int number) {
    char *data, mark[32];
    size_t size;
    must(hy_file_read(path, &data, &size));
    snprintf(mark, sizeof mark, "<%d>", number);
    char *at = memmem(data, size, mark, strlen(mark));
    ck_assert_ptr_nonnull(at);
    at[strlen(mark) + strlen("\", \"completion\": \"")] = 'X';
    must(hy_file_write_atomic(path, data, size));
    free(data);
}

START_TEST(a_resumed_run_continues_without_reading_earlier_windows) {
    const char *path = write_rows("rows.jsonl", ROWS);
    for (uint64_t used = 10; used < 1300; used += 211) {
        hy_dataset *data = open_data(options_of(path));
        (void)digest(data, 0, used);
        hy_json *json = saved(data, false);
        uint64_t expected = digest(data, used, 400);
        hy_dataset_close(data);
        data = open_data(options_of(path));
        must(hy_dataset_read_streams(data, hy_json_root(json)));
        ck_assert_uint_eq(digest(data, used, 400), expected);
        hy_dataset_close(data);
        hy_json_free(json);
    }
    /* Row 150 is in the second window: a run in a later window does not read it again until then,
     * and notices that it has changed. */
    hy_dataset *data = open_data(options_of(path));
    (void)digest(data, 0, 400);
    hy_json *json = saved(data, false);
    hy_dataset_close(data);
    change_row(path, 150);
    data = open_data(options_of(path));
    must(hy_dataset_read_streams(data, hy_json_root(json)));
    (void)digest(data, 400, 100);
    ck_assert_int_eq(row_at(data, HY_TRAIN, 100), -1);
    ck_assert_ptr_nonnull(strstr(hy_error_message(), "have changed since the run read them"));
    hy_dataset_close(data);
    change_row(path, 3); /* in the first window */
    data = open_data(options_of(path));
    must_fail(hy_dataset_read_streams(data, hy_json_root(json)), HY_ERR_INPUT, "not those");
    hy_dataset_close(data);
    hy_json_free(json);
}
END_TEST

/* The tokenizer has no piece for U+2260, which begins in a later window. */
START_TEST(text_without_tokens_is_counted_and_reported_as_rows_come) {
    static const char pieces[] = HY_SOURCE_DIR "/tests/golden/sentencepiece/unigram.model";
    hy_text text = {0};
    for (int i = 0; i < ROWS; i++)
        hy_text_add(&text, "{\"prompt\": \"the\", \"completion\": \"abc\"}\n");
    for (int i = 0; i < 3; i++)
        hy_text_add(&text, "{\"prompt\": \"the\", \"completion\": \"\xE2\x89\xA0 x\"}\n");
    hy_dataset_options options = options_of(write_file("rows.jsonl", &text));
    hy_text_free(&text);
    options.tokenizer = pieces;
    options.vocab = 400;
    options.seq = 200;
    hy_dataset *data = open_data(options);
    const hy_unknown_text *unknown = &hy_dataset_describe(data)->unknown;
    uint64_t tokens = unknown->tokens;
    ck_assert_uint_eq(unknown->count, 0);
    int32_t *room = calloc(3 * 200, sizeof *room);
    for (uint64_t n = 0; hy_dataset_epochs(data, n) < 1; n++)
        ck_assert_int_ge(hy_dataset_fill(data, HY_TRAIN, n, room, room + 200, room + 400), 1);
    warnings = 0;
    hy_dataset_refresh(data, keep_warning, NULL);
    ck_assert_uint_eq(unknown->count, 3);
    ck_assert_int_eq(warnings, 1);
    ck_assert_ptr_nonnull(strstr(last_warning, ", for example \"\xE2\x89\xA0 x"));
    ck_assert_uint_gt(unknown->tokens, tokens);
    ck_assert_ptr_nonnull(strstr(hy_dataset_describe(data)->row_losses, "tokens are <unk>"));
    hy_json *json = saved(data, false);
    hy_unknown_text all = *unknown;
    hy_dataset_close(data);
    data = open_data(options);
    must(hy_dataset_read_streams(data, hy_json_root(json)));
    hy_dataset_refresh(data, keep_warning, NULL);
    ck_assert_uint_eq(hy_dataset_describe(data)->unknown.count, all.count);
    ck_assert_uint_eq(hy_dataset_describe(data)->unknown.tokens, all.tokens);
    hy_json_free(json);
    json = saved(data, true);
    hy_dataset_close(data);
    data = open_data(options);
    must(hy_dataset_read_streams(data, hy_json_root(json)));
    hy_dataset_refresh(data, keep_warning, NULL);
    ck_assert(hy_dataset_describe(data)->unknown.is_partial);
    hy_dataset_close(data);
    hy_json_free(json);
    free(room);
}
END_TEST

/* The share of unknown tokens rises above a tenth, falls, and rises again. */
START_TEST(much_text_without_tokens_is_reported_once) {
    static const int rows[] = {600, 600, 6000, 6000};
    hy_text text = {0};
    for (int i = 0; i < 4; i++) {
        for (int k = 0; k < rows[i]; k++)
            hy_text_addf(&text, "{\"prompt\": \"the\", \"completion\": \"%s\"}\n",
                         i % 2 ? "\xE2\x89\xA0 \xE2\x89\xA0 \xE2\x89\xA0 \xE2\x89\xA0" : "abc");
    }
    hy_dataset_options options = options_of(write_file("rows.jsonl", &text));
    hy_text_free(&text);
    options.tokenizer = HY_SOURCE_DIR "/tests/golden/sentencepiece/unigram.model";
    options.vocab = 400;
    options.seq = 200;
    hy_dataset *data = open_data(options);
    int32_t *room = calloc(3 * 200, sizeof *room);
    warnings = 0;
    for (uint64_t n = 0; hy_dataset_epochs(data, n) < 1; n++) {
        ck_assert_int_ge(hy_dataset_fill(data, HY_TRAIN, n, room, room + 200, room + 400), 1);
        hy_dataset_refresh(data, keep_warning, NULL);
    }
    ck_assert_int_eq(warnings, 2); /* the first, and much */
    ck_assert_ptr_nonnull(strstr(last_warning, "more than a tenth"));
    hy_dataset_close(data);
    free(room);
}
END_TEST

START_TEST(a_damaged_checkpoint_is_an_error) {
    const char *path = write_rows("rows.jsonl", ROWS);
    hy_dataset *data = open_data(options_of(path));
    (void)digest(data, 0, 300);
    hy_json *json = saved(data, false);
    hy_dataset_close(data);
    static const char *const texts[] = {
        "{}", "{\"streams\": [{}]}", "{\"streams\": [{\"windows\": [[0]]}]}",
        "{\"streams\": [{\"windows\": [[-1,0,0,0,0,0,0,0,\"\"]]}]}"};
    for (size_t i = 0; i < 4; i++) {
        hy_json *bad;
        must(hy_json_parse(texts[i], strlen(texts[i]), "bad", &bad));
        data = open_data(options_of(path));
        must_fail(hy_dataset_read_streams(data, hy_json_root(bad)), HY_ERR_INPUT, "damaged");
        hy_dataset_close(data);
        hy_json_free(bad);
    }
    hy_json_free(json);
}
END_TEST

/* ---- while rows arrive ----------------------------------------------------------------------- */

START_TEST(sequences_of_an_open_pipe_can_be_used) {
    int ends[2];
    hy_text text = {0};
    for (int i = 0; i < 200; i++) add_row(&text, i);
    ck_assert_int_eq(pipe(ends), 0);
    ck_assert_int_ge(dup2(ends[0], STDIN_FILENO), 0);
    ck_assert_int_eq(close(ends[0]), 0);
    ck_assert_int_eq(write(ends[1], text.data, text.size), (ssize_t)text.size);
    hy_dataset *data = open_data(options_of("-"));
    ck_assert_int_ge(row_at(data, HY_TRAIN, 0), 0);
    ck_assert_int_ge(row_at(data, HY_TRAIN, 100), 0); /* of a later window, too */
    ck_assert(isnan(hy_dataset_epochs(data, 100)));   /* nobody knows how much will come */
    hy_dataset_close(data);                           /* does not wait for the writer */
    ck_assert_int_eq(close(ends[1]), 0);
    hy_text_free(&text);
}
END_TEST

static void *stop_soon(void *argument) {
    usleep(200000);
    hy_dataset_stop(argument);
    return NULL;
}

START_TEST(a_run_that_ends_does_not_wait_for_a_silent_pipe) {
    int ends[2];
    pthread_t thread;
    hy_text text = {0};
    for (int i = 0; i < 200; i++) add_row(&text, i);
    ck_assert_int_eq(pipe(ends), 0);
    ck_assert_int_ge(dup2(ends[0], STDIN_FILENO), 0);
    ck_assert_int_eq(write(ends[1], text.data, text.size), (ssize_t)text.size);
    hy_dataset *data = open_data(options_of("-"));
    ck_assert_int_eq(pthread_create(&thread, NULL, stop_soon, data), 0);
    ck_assert_int_eq(row_at(data, HY_TRAIN, 1000), -1);
    pthread_join(thread, NULL);
    hy_dataset_close(data);
    hy_text_free(&text);
}
END_TEST

START_TEST(a_file_that_becomes_shorter_is_named_when_its_rows_are_needed) {
    const char *path = write_rows("rows.jsonl", 3 * ROWS);
    hy_dataset *data = open_data(options_of(path));
    ck_assert_int_ge(row_at(data, HY_TRAIN, 0), 0);
    ck_assert_int_eq(truncate(path, 40000), 0);
    uint64_t n = 1;
    while (row_at(data, HY_TRAIN, n) >= 0) n++;
    ck_assert_uint_gt(n, 50);
    ck_assert_uint_lt(n, 3 * ROWS);
    ck_assert_ptr_nonnull(strstr(hy_error_message(), "rows.jsonl"));
    ck_assert(hy_dataset_has_failed(data));
    ck_assert_int_ge(row_at(data, HY_TRAIN, 0), 0);
    hy_dataset_close(data);
}
END_TEST

START_TEST(bad_rows_are_reported_while_the_run_reads_them) {
    hy_text text = {0};
    for (int i = 0; i < ROWS; i++) {
        add_row(&text, i);
        if (i == 400) hy_text_add(&text, "{\"prompt\": 3}\n");
    }
    const char *path = write_file("rows.jsonl", &text);
    hy_dataset *data = open_data(options_of(path));
    hy_dataset_refresh(data, keep_warning, NULL);
    ck_assert_int_eq(warnings, 0);
    (void)digest(data, 0, 580);
    hy_dataset_refresh(data, keep_warning, NULL);
    ck_assert_int_eq(warnings, 1);
    ck_assert_ptr_nonnull(strstr(last_warning, "rows.jsonl:402: "));
    ck_assert_uint_eq(hy_dataset_describe(data)->bad_rows, 1);
    hy_dataset_close(data);
    hy_dataset_options strict = options_of(path);
    strict.stops_at_bad_row = true;
    data = open_data(strict);
    (void)digest(data, 0, 300);
    ck_assert_int_eq(row_at(data, HY_TRAIN, 590), -1);
    ck_assert_ptr_nonnull(strstr(hy_error_message(), "rows.jsonl:402: "));
    hy_dataset_close(data);
    /* More than half of the rows so far: an error, unless the user accepts it. */
    for (int i = 0; i < 2 * ROWS; i++) hy_text_add(&text, "{\"prompt\": 3}\n");
    path = write_file("rows.jsonl", &text);
    data = open_data(options_of(path));
    ck_assert_int_eq(row_at(data, HY_TRAIN, 1000), -1);
    ck_assert_ptr_nonnull(strstr(hy_error_message(), "skip-any"));
    hy_dataset_close(data);
    hy_dataset_options any = options_of(path);
    any.drops_any = true;
    data = open_data(any);
    ck_assert_int_ge(row_at(data, HY_TRAIN, 1000), 0);
    hy_dataset_close(data);
    hy_text_free(&text);
}
END_TEST

static void add_long_row(hy_text *text, size_t size) {
    hy_text_add(text, "{\"prompt\": \"");
    ck_assert(hy_text_reserve(text, size));
    memset(text->data + text->size, 'x', size);
    text->size += size;
    hy_text_add(text, "\", \"completion\": \"y\"}\n");
}

START_TEST(rows_of_many_megabytes_are_skipped_or_refused) {
    hy_text text = {0};
    for (int i = 0; i < 300; i++) add_row(&text, i);
    add_long_row(&text, (size_t)17 << 20);
    for (int i = 300; i < ROWS; i++) add_row(&text, i);
    hy_dataset *data = open_data(options_of(write_file("rows.jsonl", &text)));
    (void)digest(data, 0, 590);
    hy_dataset_refresh(data, keep_warning, NULL);
    ck_assert_ptr_nonnull(strstr(last_warning, "larger than 16 MiB"));
    ck_assert_uint_eq(hy_dataset_describe(data)->rows, ROWS + 1);
    hy_dataset_close(data);
    add_long_row(&text, (size_t)80 << 20);
    data = open_data(options_of(write_file("rows.jsonl", &text)));
    ck_assert_int_eq(row_at(data, HY_TRAIN, 595), -1);
    ck_assert_ptr_nonnull(strstr(hy_error_message(), "rows.jsonl:"));
    hy_dataset_close(data);
    hy_text_free(&text);
}
END_TEST

/* Anonymous memory of this process in bytes. */
static double own_memory(void) {
    FILE *file = fopen("/proc/self/status", "r");
    char line[256];
    double kilobytes = 0;
    while (fgets(line, sizeof line, file)) (void)sscanf(line, "RssAnon: %lf", &kilobytes);
    fclose(file);
    return kilobytes * 1024;
}

START_TEST(memory_does_not_grow_with_the_data) {
    hy_text text = {0};
    int count = 0;
    for (; text.size < (size_t)12 << 20; count++) {
        hy_text_addf(&text, "{\"text\": \"<%d> %0*d\"}\n", count, 3000, count);
    }
    const char *path = write_file("rows.jsonl", &text);
    hy_text_free(&text);
    hy_dataset_options options = options_of(path);
    options.seq = 4096;
    options.stream_window = 256 << 10;
    double before = own_memory();
    (void)before; /* not used with sanitizers */
    hy_dataset *data = open_data(options);
    int32_t *room = malloc(2 * 4096 * sizeof *room);
    for (int n = 0; n < 2 * count; n += 40)
        ck_assert_int_gt(hy_dataset_fill(data, HY_TRAIN, (uint64_t)n, room, room + 4096, NULL), 0);
#if !defined __SANITIZE_ADDRESS__ && !defined __SANITIZE_THREAD__ /* they keep freed memory */
    ck_assert_double_lt(own_memory() - before, 8e6);
#endif
    free(room);
    hy_dataset_close(data);
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("data: streamed rows");
    TCase *cases = tcase_create("stream");
    tcase_add_checked_fixture(cases, make_folder, drop_folder);
    tcase_set_timeout(cases, 120);
    tcase_add_test(cases, every_row_is_trained_once_in_each_epoch_or_held_out);
    tcase_add_test(cases, rows_that_fit_a_window_have_the_order_of_rows_that_are_read_whole);
    tcase_add_test(cases, files_packed_files_and_pipes_have_one_order);
    tcase_add_test(cases, arrays_and_csv_files_and_folders_lose_no_row_at_the_border_of_a_window);
    tcase_add_test(cases, any_sequence_can_be_read_at_any_time);
    tcase_add_test(cases, paths_without_weights_take_turns_by_their_sizes);
    tcase_add_test(cases, a_resumed_run_continues_without_reading_earlier_windows);
    tcase_add_test(cases, a_damaged_checkpoint_is_an_error);
    tcase_add_test(cases, text_without_tokens_is_counted_and_reported_as_rows_come);
    tcase_add_test(cases, much_text_without_tokens_is_reported_once);
    tcase_add_test(cases, sequences_of_an_open_pipe_can_be_used);
    tcase_add_test(cases, a_run_that_ends_does_not_wait_for_a_silent_pipe);
    tcase_add_test(cases, a_file_that_becomes_shorter_is_named_when_its_rows_are_needed);
    tcase_add_test(cases, bad_rows_are_reported_while_the_run_reads_them);
    tcase_add_test(cases, rows_of_many_megabytes_are_skipped_or_refused);
    tcase_add_test(cases, memory_does_not_grow_with_the_data);
    suite_add_tcase(suite, cases);
    return suite;
}

HY_TEST_MAIN(make_suite)
