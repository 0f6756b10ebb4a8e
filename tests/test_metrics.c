/* test_metrics.c: the contents of OUT/metrics.jsonl and OUT/plan.json, and what stays in them when
 * a run resumes. */
#include <errno.h>
#include <math.h>
#include <sys/wait.h>

#include "base/json.h"
#include "record/record.h"
#include "record/row_scores.h"
#include "run_facts.h"
#include "small_run.h"

#define LINES 128

static char folder[256];
static hy_json *line[LINES]; /* of metrics.jsonl */
static int line_count;

static void make_folder(void) {
    temp_folder(folder);
    line_count = 0;
}

static void forget_lines(void) {
    for (int i = 0; i < line_count; i++) hy_json_free(line[i]);
    line_count = 0;
}

static void drop_folder(void) {
    hy_fault_disarm();
    forget_lines();
    remove_folder(folder);
}

static void read_lines(void) {
    char path[512], *text;
    size_t size;
    forget_lines();
    must(hy_path_join(path, sizeof path, folder, "metrics.jsonl"));
    must(hy_file_read(path, &text, &size));
    for (char *at = strtok(text, "\n"); at; at = strtok(NULL, "\n")) {
        ck_assert_int_lt(line_count, LINES);
        must(hy_json_parse(at, strlen(at), "metrics.jsonl", &line[line_count++]));
    }
    free(text);
}

static const hy_json_node *root(int i) { return hy_json_root(line[i]); }

static double number(int i, const char *key) {
    double value;
    must(hy_json_double(line[i], root(i), key, &value));
    return value;
}

static const char *string(int i, const char *key) {
    const char *value;
    must(hy_json_string(line[i], root(i), key, &value, NULL));
    return value;
}

static bool is_event(int i, const char *kind) {
    return hy_json_get(root(i), "event") && strcmp(string(i, "event"), kind) == 0;
}

static int count_events(const char *kind) {
    int count = 0;
    for (int i = 0; i < line_count; i++) count += is_event(i, kind);
    return count;
}

static hy_trainer *trainer_with(const char *words, const char *const *pairs) {
    return small_trainer(words, folder, NULL, pairs);
}

static int64_t stop_at;
static void stop(void *user, const hy_step_info *info) {
    if (info->step == stop_at) hy_trainer_request_stop(*(hy_trainer **)user);
}

/* A run that is stopped, and saved, after this step. */
static void run_to(int64_t step, const char *words) {
    hy_trainer *t;
    hy_observer observer = {.user = &t, .on_step = stop};
    hy_config *config = small_run(words, folder, NULL);
    must(hy_trainer_create(config, &observer, &t));
    hy_config_destroy(config);
    stop_at = step;
    ck_assert_int_eq(hy_trainer_run(t), HY_STOPPED);
    hy_trainer_destroy(t);
}

/* ---- a record without a run ------------------------------------------------------------------ */

typedef struct sitting {
    hy_record record;
    hy_moment now;
} sitting;

static void sit_down(sitting *it, const hy_moment *checkpoint, const hy_observer *observer) {
    hy_config *config;
    *it = (sitting){.now = checkpoint ? *checkpoint : (hy_moment){0}};
    if (observer) it->record.observer = *observer;
    snprintf(it->record.out, sizeof it->record.out, "%s", folder);
    must(hy_config_create(&config));
    hy_start_line start = {.resumed = checkpoint ? "a checkpoint" : "", .zero_stage = -1};
    must(hy_record_open(&it->record, hy_config_settings(config), &start, &it->now));
    hy_config_destroy(config);
}

static void advance(sitting *it, int steps) {
    static const hy_ledger ledger;
    for (int i = 0; i < steps; i++) {
        it->now.step++;
        it->now.spent++;
        it->now.elapsed += 0.5;
        hy_step_line step = {.step = {.step = it->now.step,
                                      .spent = it->now.spent,
                                      .elapsed = it->now.elapsed,
                                      .reason = "",
                                      .obstacle = "",
                                      .loss = 2},
                             .val_loss = NAN,
                             .rows = hy_row_scores_none()};
        hy_record_step(&it->record, &step, &ledger);
    }
}

static void tell(sitting *it, const hy_event_line *event) {
    hy_record_event(&it->record, event, &it->now);
}

/* ---- beginnings ------------------------------------------------------------------------------ */

START_TEST(a_sitting_begins_with_what_it_is) {
    hy_trainer *t;
    double target;
    hy_config *config = small_run(
        SMALL_RUN, folder, PAIRS("max_gpu_mem", "3G", "cpu_mem", "2G", "target_usage", "0.88"));
    must(hy_config_set_command(config, "prog --data 'a b'"));
    must(hy_trainer_create(config, NULL, &t));
    hy_config_destroy(config);
    read_lines(); /* it is in the file before the first step */
    ck_assert_int_eq(line_count, 1);
    ck_assert(is_event(0, "start"));
    ck_assert_double_eq(number(0, "step"), 0);
    ck_assert_double_eq(number(0, "spent"), 0);
    ck_assert_double_eq(number(0, "elapsed"), 0);
    ck_assert_double_gt(number(0, "time"), 1.7e9);
    ck_assert_str_eq(string(0, "version"), HYBRID_VERSION);
    ck_assert_str_eq(string(0, "command"), "prog --data 'a b'");
    ck_assert_str_eq(string(0, "model"), "nano");
    ck_assert_str_eq(string(0, "device"), summary_of(t).device);
    ck_assert_double_eq(number(0, "parameters"), (double)summary_of(t).parameters);
    ck_assert_double_eq(number(0, "steps_total"), 12);
    ck_assert_double_eq(number(0, "tokens_per_step"), 4 * 32);
    ck_assert_double_eq(number(0, "seq_len"), 32);
    ck_assert_double_eq(number(0, "vram_budget_bytes"), 3e9);
    ck_assert_double_eq(number(0, "host_budget_bytes"), 2e9);
    const hy_json_node *thresholds = hy_json_get(root(0), "thresholds");
    must(hy_json_double(line[0], thresholds, "target", &target));
    ck_assert_double_eq(target, 0.88);
    ck_assert_ptr_null(hy_json_get(root(0), "resumed"));
    hy_trainer_destroy(t);
}
END_TEST

static void die(void *user, const hy_step_info *info) {
    (void)user, (void)info;
    _exit(0);
}

/* Whatever becomes of it before it saves. */
static void begin_and_die(void) {
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        hy_trainer *t;
        hy_observer observer = {.on_step = die};
        hy_config *config = small_run(SMALL_RUN "resume auto ", folder, NULL);
        if (hy_trainer_create(config, &observer, &t) == HY_OK) (void)hy_trainer_run(t);
        _exit(1);
    }
    int ended;
    ck_assert_int_eq(waitpid(child, &ended, 0), child);
    ck_assert_int_eq(ended, 0);
}

START_TEST(a_resumed_run_has_a_beginning_for_each_sitting) {
    run_to(4, SMALL_RUN);
    begin_and_die();
    hy_trainer *t = trainer_with(SMALL_RUN "resume auto ", NULL);
    must(hy_trainer_run(t));
    hy_trainer_destroy(t);
    read_lines();
    ck_assert_int_eq(count_events("start"), 3);
    ck_assert_int_eq(line_count, 12 + 3);
    ck_assert(is_event(0, "start") && is_event(5, "start") && is_event(6, "start"));
    ck_assert_double_eq(number(6, "step"), 4);
    ck_assert_double_eq(number(6, "spent"), 4);
    ck_assert_ptr_nonnull(strstr(string(6, "resumed"), "checkpoint-4"));
    for (int i = 0, step = 1; i < line_count; i++) {
        if (!hy_json_get(root(i), "event")) ck_assert_double_eq(number(i, "step"), step++);
        ck_assert(i == 0 || number(i, "elapsed") >= number(i - 1, "elapsed"));
    }
}
END_TEST

/* ---- events ---------------------------------------------------------------------------------- */

static void tell_all(sitting *it) {
    tell(it, &(hy_event_line){.event = "batch",
                              .batch_size = 2,
                              .grad_accum = 2,
                              .old_batch_size = 4,
                              .old_grad_accum = 1,
                              .reason = "memory is \"short\""});
    tell(it, &(hy_event_line){.event = "memory",
                              .status = "warning",
                              .old_status = "normal",
                              .utilization = 0.93,
                              .text = "93 % of the budget"});
    tell(it, &(hy_event_line){.event = "recovery", .text = "tried again"});
}

START_TEST(events_are_written_between_the_steps) {
    sitting it;
    sit_down(&it, NULL, NULL);
    advance(&it, 2);
    tell_all(&it);
    read_lines(); /* they are there at once, and what came before them */
    ck_assert_int_eq(line_count, 6);
    ck_assert(is_event(3, "batch") && is_event(4, "memory") && is_event(5, "recovery"));
    for (int i = 3; i < 6; i++) {
        ck_assert_double_eq(number(i, "step"), 2);
        ck_assert_double_eq(number(i, "spent"), 2);
        ck_assert_double_eq(number(i, "elapsed"), number(2, "elapsed"));
        ck_assert_ptr_null(hy_json_get(root(i), "loss"));
    }
    ck_assert_double_eq(number(3, "batch_size"), 2);
    ck_assert_double_eq(number(3, "old_batch_size"), 4);
    ck_assert_double_eq(number(3, "grad_accum"), 2);
    ck_assert_double_eq(number(3, "old_grad_accum"), 1);
    ck_assert_str_eq(string(3, "reason"), "memory is \"short\"");
    ck_assert_ptr_null(hy_json_get(root(3), "status"));
    ck_assert_str_eq(string(4, "status"), "warning");
    ck_assert_str_eq(string(4, "old_status"), "normal");
    ck_assert_double_eq(number(4, "utilization"), 0.93);
    ck_assert_str_eq(string(5, "text"), "tried again");
    ck_assert_ptr_null(hy_json_get(root(5), "batch_size"));
    hy_record_release(&it.record);
}
END_TEST

START_TEST(a_resumed_run_drops_events_after_its_checkpoint) {
    sitting it;
    sit_down(&it, NULL, NULL);
    advance(&it, 2);
    tell_all(&it);
    advance(&it, 1);
    hy_moment saved = it.now;
    advance(&it, 2);
    tell_all(&it);
    advance(&it, 1);
    hy_record_release(&it.record);
    sit_down(&it, &saved, NULL);
    hy_record_release(&it.record);
    read_lines();
    ck_assert_int_eq(line_count, 2 + 3 + 3);
    ck_assert_int_eq(count_events("batch"), 1);
    ck_assert(is_event(7, "start"));
}
END_TEST

START_TEST(an_event_ahead_of_its_time_takes_no_steps_with_it) {
    sitting it;
    sit_down(&it, NULL, NULL);
    advance(&it, 2);
    it.now.spent += 5; /* as in the arm of a fork */
    tell_all(&it);
    it.now.spent -= 5;
    advance(&it, 2);
    hy_moment saved = it.now;
    hy_record_release(&it.record);
    sit_down(&it, &saved, NULL);
    hy_record_release(&it.record);
    read_lines();
    ck_assert_int_eq(line_count, 2 + 4); /* two beginnings, four steps */
    ck_assert_double_eq(number(4, "step"), 4);
}
END_TEST

START_TEST(a_line_cut_by_a_crash_is_dropped) {
    char path[512];
    run_to(2, SMALL_RUN);
    must(hy_path_join(path, sizeof path, folder, "metrics.jsonl"));
    uint64_t end = HY_FILE_END;
    must(hy_file_put_at(path, &end, "{\"step\":3,\"sp", 13));
    run_to(3, SMALL_RUN "resume auto ");
    read_lines(); /* every line is whole again */
    ck_assert_int_eq(line_count, 2 + 3);
    ck_assert_double_eq(number(4, "step"), 3);
}
END_TEST

static int late_warnings, last_warnings;
static void count_warning(void *user, hy_message_level level, const char *text) {
    (void)user;
    late_warnings += level == HY_WARNING && strstr(text, "writes these lines later");
    last_warnings += level == HY_WARNING && strstr(text, "continues without metrics");
}

static void sit_down_counted(sitting *it) {
    hy_observer observer = {.on_message = count_warning};
    sit_down(it, NULL, &observer);
    late_warnings = last_warnings = 0;
}

/* A line that was half written stood in the file for ever, and all after it were missing. */
START_TEST(lines_a_disk_refused_are_written_later) {
    sitting it;
    sit_down_counted(&it);
    advance(&it, 1);
    for (long at = 0; at < 2; at++) { /* when it is opened, and in the middle of a line */
        hy_fault_arm(at, ENOSPC, true);
        tell(&it, &(hy_event_line){.event = "plan", .text = "one"});
        tell(&it, &(hy_event_line){.event = "plan", .text = "two"});
        hy_fault_disarm();
        ck_assert_int_eq(late_warnings, at + 1); /* of two refusals in a row */
        hy_record_flush(&it.record);
    }
    advance(&it, 2);
    hy_record_release(&it.record);
    read_lines(); /* each of them whole */
    ck_assert_int_eq(line_count, 1 + 3 + 4);
    ck_assert_int_eq(last_warnings, 0);
    ck_assert_double_eq(number(7, "step"), 3);
}
END_TEST

START_TEST(a_disk_that_stays_full_ends_the_record_with_a_warning) {
    sitting it;
    sit_down_counted(&it);
    char *text = calloc(1 << 20, 1);
    memset(text, 'x', (1 << 20) - 1);
    hy_fault_arm(0, ENOSPC, true);
    for (int i = 0; i < 20; i++) tell(&it, &(hy_event_line){.event = "plan", .text = text});
    hy_fault_disarm();
    free(text);
    ck_assert_int_eq(late_warnings, 1);
    ck_assert_int_eq(last_warnings, 1);
    advance(&it, 2); /* nothing is left to write to, and nothing complains */
    hy_record_release(&it.record);
    ck_assert_int_eq(late_warnings + last_warnings, 2);
    read_lines();
    ck_assert_int_eq(line_count, 1);
}
END_TEST

/* ---- memory ---------------------------------------------------------------------------------- */

static double bytes_in(int i, const char *place, const char *cls) {
    double bytes = 0;
    hy_json_as_double(hy_json_get(hy_json_get(root(i), place), cls), &bytes);
    return bytes;
}

static double sum_of(int i, const char *place) {
    const hy_json_node *object = hy_json_get(root(i), place);
    double sum = 0, bytes;
    for (const hy_json_node *at = hy_json_first(object); at; at = hy_json_next(at)) {
        ck_assert(hy_json_as_double(at, &bytes));
        ck_assert_double_gt(bytes, 0); /* what is not there is left out */
        sum += bytes;
    }
    return sum;
}

#define RUN_WITH_MOVES                                                                             \
    SMALL_RUN "steps 30 predictor outer full_steps 4 correct_steps 2 fork_budget 0 "               \
              "confidence_threshold 0 predict_from 0 save_model false offload_strategy pinned "    \
              "lookahead 0 "

START_TEST(memory_by_class_is_that_of_the_phase) {
    hy_trainer *t = trainer_with(RUN_WITH_MOVES, NULL);
    must(hy_trainer_run(t));
    read_lines();
    double optim = (double)cell_of(t, HY_OPTIM, HY_FULL).planned_bytes;
    double weights = (double)cell_of(t, HY_WEIGHTS, HY_FULL).planned_bytes;
    int moves = 0;
    for (int i = 0; i < line_count; i++) {
        if (hy_json_get(root(i), "event")) continue;
        bool is_move = strcmp(string(i, "phase"), "predict") == 0;
        moves += is_move;
        ck_assert_double_eq(bytes_in(i, "memory", "weights"), weights);
        ck_assert((bytes_in(i, "memory", "grads") == 0) == is_move);
        ck_assert_double_eq(bytes_in(i, "memory", "optim"), is_move ? 0 : optim);
        if (is_move) ck_assert_double_eq(bytes_in(i, "pinned", "optim"), optim);
        ck_assert_double_gt(bytes_in(i, "pinned", "predictor"), 0);
        ck_assert_double_eq(sum_of(i, "memory"), number(i, "vram_bytes"));
        ck_assert_double_ge(sum_of(i, "pinned"), number(i, "host_pinned_bytes"));
    }
    ck_assert_int_gt(moves, 0);
    hy_trainer_destroy(t);
}
END_TEST

START_TEST(memory_that_comes_back_within_a_move_counts_for_it) {
    hy_trainer *t = trainer_with(RUN_WITH_MOVES, PAIRS("lookahead", "1"));
    must(hy_trainer_run(t));
    read_lines();
    double optim = (double)cell_of(t, HY_OPTIM, HY_FULL).planned_bytes;
    int moves = 0;
    for (int i = 0; i < line_count; i++) {
        if (hy_json_get(root(i), "event") || strcmp(string(i, "phase"), "predict") != 0) continue;
        moves++;
        ck_assert_double_eq(bytes_in(i, "memory", "optim"), optim);
        ck_assert_double_eq(bytes_in(i, "pinned", "optim"), optim);
    }
    ck_assert_int_gt(moves, 0);
    hy_trainer_destroy(t);
}
END_TEST

/* ---- the plan -------------------------------------------------------------------------------- */

START_TEST(the_plan_of_a_run_is_the_plan_that_was_made_for_it) {
    char path[512], *planned, *text;
    size_t size;
    bool fits;
    hy_trainer *plan;
    hy_json *json;
    hy_trainer *t = trainer_with(RUN_WITH_MOVES, NULL);
    must(hy_path_join(path, sizeof path, folder, "plan.json"));
    must(hy_json_read_file(path, &json));
    must(hy_json_bool(json, hy_json_root(json), "fits", &fits));
    ck_assert(fits);
    hy_json_free(json);
    must(hy_file_read(path, &text, &size));
    hy_config *config = small_run(RUN_WITH_MOVES, folder, NULL);
    must(hy_trainer_plan(config, NULL, &plan));
    must(hy_trainer_plan_json(plan, &planned));
    ck_assert_str_eq(strstr(text, "\"phases\""), strstr(planned, "\"phases\""));
    ck_assert_str_eq(strndupa(strstr(text, "\"vram_peak_bytes\""), 40),
                     strndupa(strstr(planned, "\"vram_peak_bytes\""), 40));
    hy_free(planned);
    free(text);
    hy_trainer_destroy(plan);
    hy_config_destroy(config);
    hy_trainer_destroy(t);
}
END_TEST

static Suite *suite(void) {
    Suite *s = suite_create("metrics");
    TCase *tests = tcase_create("metrics");
    tcase_add_checked_fixture(tests, make_folder, drop_folder);
    tcase_add_test(tests, a_sitting_begins_with_what_it_is);
    tcase_add_test(tests, a_resumed_run_has_a_beginning_for_each_sitting);
    tcase_add_test(tests, events_are_written_between_the_steps);
    tcase_add_test(tests, a_resumed_run_drops_events_after_its_checkpoint);
    tcase_add_test(tests, an_event_ahead_of_its_time_takes_no_steps_with_it);
    tcase_add_test(tests, a_line_cut_by_a_crash_is_dropped);
    tcase_add_test(tests, lines_a_disk_refused_are_written_later);
    tcase_add_test(tests, a_disk_that_stays_full_ends_the_record_with_a_warning);
    tcase_add_test(tests, memory_by_class_is_that_of_the_phase);
    tcase_add_test(tests, memory_that_comes_back_within_a_move_counts_for_it);
    tcase_add_test(tests, the_plan_of_a_run_is_the_plan_that_was_made_for_it);
    suite_add_tcase(s, tests);
    return s;
}

HY_TEST_MAIN(suite)
