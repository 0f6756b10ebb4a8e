/* test_tfevents.c: event files for TensorBoard: their format by itself, and what a run writes
 * there. */
#include <errno.h>
#include <math.h>

#include "base/json.h"
#include "formats/tfevents.h"
#include "small_run.h"
#include "tfevents_reader.h"

static char folder[256];

static void make_folder(void) { temp_folder(folder); }

static void drop_folder(void) {
    hy_fault_disarm();
    remove_folder(folder);
}

/* Path of event file number i below a folder, and how many there are. */
static size_t event_file(const char *of, size_t i, char path[512]) {
    char **names;
    size_t count;
    must(hy_dir_list(of, &names, &count));
    if (i < count) must(hy_path_join(path, 512, of, names[i]));
    hy_dir_list_free(names, count);
    return count;
}

/* ---- checksums ------------------------------------------------------------------------------- */

START_TEST(checksums_are_the_known_ones) {
    uint8_t bytes[32];
    ck_assert_uint_eq(hy_crc32c("123456789", 9), 0xe3069283); /* the check value of CRC-32C */
    ck_assert_uint_eq(hy_crc32c("", 0), 0);
    memset(bytes, 0, sizeof bytes); /* RFC 3720, appendix B.4 */
    ck_assert_uint_eq(hy_crc32c(bytes, 32), 0x8a9136aa);
    memset(bytes, 0xff, sizeof bytes);
    ck_assert_uint_eq(hy_crc32c(bytes, 32), 0x62a8ab43);
    for (int i = 0; i < 32; i++) bytes[i] = (uint8_t)i;
    ck_assert_uint_eq(hy_crc32c(bytes, 32), 0x46dd794e);
    for (int i = 0; i < 32; i++) bytes[i] = (uint8_t)(31 - i);
    ck_assert_uint_eq(hy_crc32c(bytes, 32), 0x113fdb5c);
    ck_assert_uint_eq(hy_tfevents_mask(hy_crc32c(bytes, 32)), plain_crc(bytes, 32));
}
END_TEST

/* ---- files ----------------------------------------------------------------------------------- */

static void put_step(hy_tfevents *events, int64_t step) {
    hy_tfevents_add_scalar(events, "loss/train", 1.0 / (double)step);
    hy_tfevents_add_scalar(events, "memory/vram", 1e10 + (double)step);
    must(hy_tfevents_put(events, step, 1700000000.25 + (double)step));
}

static void write_some(int64_t steps) {
    hy_tfevents *events;
    must(hy_tfevents_open(folder, &events));
    hy_tfevents_add_text(events, "config", "a = 1\n\nb = \"two\"");
    must(hy_tfevents_put(events, 0, 5));
    must(hy_tfevents_put(events, 9, 5)); /* nothing was added: nothing is written */
    for (int64_t step = 1; step <= steps; step++) put_step(events, step);
    must(hy_tfevents_begin(events, steps + 1, 6));
    must(hy_tfevents_close(events, true));
}

START_TEST(what_is_written_is_read_back) {
    char path[512];
    write_some(300);
    ck_assert_uint_eq(event_file(folder, 0, path), 1);
    ck_assert_ptr_nonnull(strstr(path, "/events.out.tfevents."));
    read_file file = read_event_file(path);
    ck_assert_uint_eq(file.left, 0);
    ck_assert_int_eq(file.count, 303);
    ck_assert_str_eq(file.events[0].version, "brain.Event:2");
    ck_assert(file.events[0].time > 1.7e9);
    ck_assert_str_eq(value_of(&file.events[1], "config")->text,
                     "    a = 1\n    \n    b = \"two\"\n");
    for (int64_t step = 1; step <= 300; step++) {
        const read_event *event = &file.events[step + 1];
        ck_assert_int_eq(event->step, step);
        ck_assert_double_eq(event->time, 1700000000.25 + (double)step);
        ck_assert_int_eq(event->count, 2);
        ck_assert(value_of(event, "loss/train")->number == (float)(1.0 / (double)step));
        ck_assert(value_of(event, "memory/vram")->number == (float)(1e10 + (double)step));
    }
    ck_assert_int_eq(file.events[302].session, 1);
    ck_assert_int_eq(file.events[302].step, 301);
    forget_file(&file);
}
END_TEST

START_TEST(a_file_cut_anywhere_keeps_the_records_before) {
    char path[512], *data;
    size_t size;
    write_some(2);
    event_file(folder, 0, path);
    must(hy_file_read(path, &data, &size));
    int last = 0;
    for (size_t cut = 0; cut <= size; cut++) {
        read_file file = read_records((const uint8_t *)data, cut);
        ck_assert(file.count == last || file.count == last + 1);
        ck_assert(cut < size || file.left == 0);
        last = file.count;
        forget_file(&file);
    }
    ck_assert_int_eq(last, 5);
    free(data);
}
END_TEST

START_TEST(a_new_file_sorts_after_all_others) {
    char path[512], first[512], later[512];
    write_some(1);
    write_some(1); /* within the same second */
    ck_assert_uint_eq(event_file(folder, 0, first), 2);
    must(hy_path_join(path, sizeof path, folder, "events.out.tfevents.4000000000.elsewhere"));
    must(hy_file_write_atomic(path, "", 0)); /* by a clock that was ahead */
    write_some(1);
    ck_assert_uint_eq(event_file(folder, 3, later), 4);
    ck_assert_ptr_nonnull(strstr(later, ".4000000001."));
    ck_assert_str_lt(first, later);
}
END_TEST

START_TEST(every_failed_write_is_reported) {
    hy_tfevents *events;
    hy_fault_arm(1L << 30, 0, false);
    write_some(3);
    long calls = hy_fault_disarm();
    ck_assert_int_ge(calls, 4);
    for (long at = 0; at < calls; at++) {
        hy_fault_arm(at, ENOSPC, true);
        hy_status status = hy_tfevents_open(folder, &events);
        if (status == HY_OK) {
            hy_tfevents_add_scalar(events, "x", 1);
            status = hy_tfevents_put(events, 1, 1);
            hy_status closed = hy_tfevents_close(events, true);
            status = status != HY_OK ? status : closed;
        } else {
            ck_assert_ptr_null(events);
        }
        ck_assert_int_ne(status, HY_OK);
        hy_fault_disarm();
    }
}
END_TEST

/* ---- a run ----------------------------------------------------------------------------------- */

/* Lines of metrics.jsonl that are steps. */
typedef struct step_lines {
    hy_json *json[64];
    int count;
} step_lines;

static step_lines read_steps(void) {
    step_lines lines = {0};
    char path[512], *text;
    size_t size;
    must(hy_path_join(path, sizeof path, folder, "metrics.jsonl"));
    must(hy_file_read(path, &text, &size));
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        ck_assert_int_lt(lines.count, 64);
        must(hy_json_parse(line, strlen(line), "line", &lines.json[lines.count]));
        if (hy_json_get(hy_json_root(lines.json[lines.count]), "event")) {
            hy_json_free(lines.json[lines.count]);
        } else {
            lines.count++;
        }
    }
    free(text);
    return lines;
}

static void forget_steps(step_lines *lines) {
    for (int i = 0; i < lines->count; i++) hy_json_free(lines->json[i]);
}

/* A number of a line is the value of a tag, as fp32; where the line has none, there is no value. */
static void check_value(const read_event *event, const char *tag, const hy_json_node *line,
                        const char *key) {
    double number = NAN;
    const read_value *value = value_of(event, tag);
    bool is_there = hy_json_as_double(hy_json_get(line, key), &number);
    ck_assert_msg(is_there == (value != NULL), "%s and %s", tag, key);
    ck_assert_msg(!is_there || value->number == (float)number, "%s: %g is not %g", tag,
                  is_there ? (double)value->number : 0, number);
}

static void check_classes(const read_event *event, const hy_json_node *line) {
    const hy_json_node *memory = hy_json_get(line, "memory");
    ck_assert_uint_gt(hy_json_size(memory), 2);
    for (int cls = 0; cls < HY_CLASS_COUNT; cls++) {
        char tag[64];
        double bytes = 0;
        const char *name = hy_class_name((hy_class)cls);
        snprintf(tag, sizeof tag, "memory/%s", name);
        hy_json_as_double(hy_json_get(memory, name), &bytes);
        const read_value *value = value_of(event, tag);
        ck_assert_msg((value ? value->number : 0) == (float)bytes, "%s", tag);
    }
}

static void check_step(const read_event *event, const hy_json_node *line) {
    static const char *const phases[] = {"warmup", "full", "predict", "correct"};
    static const char *const both[][2] = {{"loss/validation", "val_loss"},
                                          {"confidence", "confidence"},
                                          {"wait_seconds", "wait_seconds"},
                                          {"memory/vram", "vram_bytes"},
                                          {"predicted_steps", "predicted_steps"}};
    static const char *const steps[][2] = {{"loss/train", "loss"},
                                           {"lr", "lr"},
                                           {"grad_norm", "grad_norm"},
                                           {"tokens_per_second", "tokens_per_second"},
                                           {"batch_size", "batch_size"}};
    int64_t step;
    const char *phase;
    ck_assert(hy_json_as_int(hy_json_get(line, "step"), &step));
    ck_assert(hy_json_as_string(hy_json_get(line, "phase"), &phase, NULL));
    ck_assert_int_eq(event->step, step);
    ck_assert_str_eq(phases[(int)value_of(event, "phase")->number], phase);
    bool is_move = strcmp(phase, "predict") == 0;
    for (size_t i = 0; i < sizeof both / sizeof both[0]; i++) {
        check_value(event, both[i][0], line, both[i][1]);
    }
    for (size_t i = 0; i < sizeof steps / sizeof steps[0] && !is_move; i++) {
        check_value(event, steps[i][0], line, steps[i][1]);
    }
    if (is_move) check_value(event, "loss/predict", line, "loss");
    ck_assert(is_move == (value_of(event, "loss/train") == NULL));
    check_classes(event, line);
}

#define FIRST_STEP 3 /* before it: version, beginning, texts */

#define RUN_WITH_MOVES                                                                             \
    SMALL_RUN "steps 30 eval_every 5 predictor outer full_steps 4 correct_steps 2 fork_budget 0 "  \
              "confidence_threshold 0 predict_from 0 save_model false "

static void run_to_the_end(const char *words, const char *const *pairs) {
    hy_trainer *t = small_trainer(words, folder, NULL, pairs);
    must(hy_trainer_run(t));
    hy_trainer_destroy(t);
}

START_TEST(a_run_writes_the_numbers_of_its_metrics) {
    char of[512], path[512];
    int moves = 0;
    run_to_the_end(RUN_WITH_MOVES, NULL);
    must(hy_path_join(of, sizeof of, folder, "tensorboard"));
    ck_assert_uint_eq(event_file(of, 0, path), 1);
    read_file file = read_event_file(path);
    step_lines lines = read_steps();
    ck_assert_int_ge(lines.count, 28);
    ck_assert_uint_eq(file.left, 0);
    ck_assert_int_eq(file.count, lines.count + FIRST_STEP);
    ck_assert_int_eq(file.events[1].session, 1);
    ck_assert_int_eq(file.events[1].step, 1);
    ck_assert_ptr_nonnull(strstr(value_of(&file.events[2], "config")->text, "batch_size = 4"));
    for (int i = 0; i < lines.count; i++) {
        const hy_json_node *line = hy_json_root(lines.json[i]);
        check_step(&file.events[i + FIRST_STEP], line);
        moves += value_of(&file.events[i + FIRST_STEP], "loss/predict") != NULL;
    }
    ck_assert_int_gt(moves, 0);
    forget_steps(&lines);
    forget_file(&file);
}
END_TEST

static void stop_at_eight(void *user, const hy_step_info *info) {
    if (info->step == 8) hy_trainer_request_stop(*(hy_trainer **)user);
}

static void run_until_eight(const char *const *pairs) {
    hy_trainer *t;
    hy_config *config = small_run(RUN_WITH_MOVES, folder, pairs);
    hy_observer observer = {.user = &t, .on_step = stop_at_eight};
    must(hy_trainer_create(config, &observer, &t));
    must_fail(hy_trainer_run(t), HY_STOPPED, "stopped");
    hy_trainer_destroy(t);
    hy_config_destroy(config);
}

START_TEST(a_run_that_goes_on_takes_back_what_it_does_again) {
    char of[512], path[512];
    run_until_eight(PAIRS("save_every", "5"));
    must(hy_path_join(path, sizeof path, folder, "checkpoint-8"));
    must(hy_dir_remove(path)); /* as if it had been killed: steps 6 to 8 are done again */
    run_to_the_end(RUN_WITH_MOVES, PAIRS("resume", "auto"));
    must(hy_path_join(of, sizeof of, folder, "tensorboard"));
    ck_assert_uint_eq(event_file(of, 1, path), 2);
    read_file later = read_event_file(path);
    ck_assert_int_eq(later.events[1].session, 1);
    ck_assert_int_eq(later.events[1].step, 6);
    event_file(of, 0, path);
    read_file first = read_event_file(path);
    step_lines lines = read_steps();
    for (int i = 0, next = FIRST_STEP, kept = FIRST_STEP; i < lines.count; i++) {
        const hy_json_node *line = hy_json_root(lines.json[i]);
        int64_t step;
        ck_assert(hy_json_as_int(hy_json_get(line, "step"), &step));
        check_step(step <= 5 ? &first.events[kept++] : &later.events[next++], line);
        ck_assert(i + 1 < lines.count || next == later.count);
    }
    forget_steps(&lines);
    forget_file(&first);
    forget_file(&later);
}
END_TEST

START_TEST(no_event_files_when_nobody_wants_them) {
    char path[512];
    run_to_the_end(SMALL_RUN, PAIRS("tensorboard", "false"));
    must(hy_path_join(path, sizeof path, folder, "tensorboard"));
    ck_assert(!hy_path_exists(path));
}
END_TEST

START_TEST(beginning_anew_removes_them) {
    char of[512], path[512];
    run_to_the_end(SMALL_RUN, NULL);
    run_to_the_end(SMALL_RUN, PAIRS("overwrite", "true", "steps", "2"));
    must(hy_path_join(of, sizeof of, folder, "tensorboard"));
    ck_assert_uint_eq(event_file(of, 0, path), 1);
}
END_TEST

static void count_warning(void *user, hy_message_level level, const char *text) {
    if (level == HY_WARNING && strstr(text, "TensorBoard")) ++*(int *)user;
}

START_TEST(a_folder_that_cannot_be_made_ends_the_record_alone) {
    char path[512];
    hy_trainer *t;
    int warnings = 0;
    hy_config *config = small_run(SMALL_RUN, folder, NULL);
    hy_observer observer = {.user = &warnings, .on_message = count_warning};
    must(hy_path_join(path, sizeof path, folder, "tensorboard"));
    must(hy_file_write_atomic(path, "a file", 6));
    must(hy_trainer_create(config, &observer, &t));
    must(hy_trainer_run(t));
    ck_assert_int_eq(warnings, 1);
    hy_trainer_destroy(t);
    hy_config_destroy(config);
    step_lines lines = read_steps();
    ck_assert_int_eq(lines.count, 12);
    forget_steps(&lines);
}
END_TEST

static Suite *suite(void) {
    Suite *s = suite_create("tfevents");
    TCase *tests = tcase_create("tfevents");
    tcase_add_checked_fixture(tests, make_folder, drop_folder);
    tcase_add_test(tests, checksums_are_the_known_ones);
    tcase_add_test(tests, what_is_written_is_read_back);
    tcase_add_test(tests, a_file_cut_anywhere_keeps_the_records_before);
    tcase_add_test(tests, a_new_file_sorts_after_all_others);
    tcase_add_test(tests, every_failed_write_is_reported);
    tcase_add_test(tests, a_run_writes_the_numbers_of_its_metrics);
    tcase_add_test(tests, a_run_that_goes_on_takes_back_what_it_does_again);
    tcase_add_test(tests, no_event_files_when_nobody_wants_them);
    tcase_add_test(tests, beginning_anew_removes_them);
    tcase_add_test(tests, a_folder_that_cannot_be_made_ends_the_record_alone);
    suite_add_tcase(s, tests);
    return s;
}

HY_TEST_MAIN(suite)
