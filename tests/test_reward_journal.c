/* test_reward_journal.c: the journal of scores: what is found again after a crash, damage, records
 * of another course of a run, failures of the disk. */
#include <errno.h>
#include <math.h>
#include <sys/wait.h>

#include "harness.h"
#include "reward/journal.h"

static char folder[256], path[300];

static void make_folder(void) {
    temp_folder(folder);
    snprintf(path, sizeof path, "%s/rewards.jsonl", folder);
}
static void drop_folder(void) { remove_folder(folder); }

static hy_journal *open_journal(bool goes_on) {
    hy_journal *journal;
    must(hy_journal_open(path, goes_on, &journal));
    return journal;
}

static void put(hy_journal *journal, int64_t rollout, double value) {
    double values[] = {value, -value};
    must(hy_journal_put(journal, rollout, (uint64_t)rollout * 7, values, 2, NULL));
}

/* Whether the record of put() is there, with this value. */
static bool has(hy_journal *journal, int64_t rollout, double value) {
    double values[2] = {NAN, NAN};
    bool is_found;
    must(hy_journal_find(journal, rollout, (uint64_t)rollout * 7, values, 2, &is_found));
    if (is_found) ck_assert(values[0] == value && values[1] == -value);
    return is_found;
}

static char *read_journal(size_t *size) {
    char *text = NULL;
    must(hy_file_read(path, &text, size));
    return text;
}

static void write_journal(const char *text, size_t size) {
    must(hy_file_write_atomic(path, text, size));
}

START_TEST(records_are_found_again) {
    for (int round = 0; round < 2; round++) {
        hy_journal *journal = open_journal(round > 0);
        for (int i = 0; i < 3 && round == 0; i++) put(journal, 3 * i, i + 0.1);
        for (int i = 0; i < 9; i++) ck_assert(has(journal, i, i / 3 + 0.1) == (i % 3 == 0));
        hy_journal_close(journal);
    }
}
END_TEST

/* An example is for readers of the file: scores are found as without it, and long or damaged texts
 * make no damaged line. */
START_TEST(a_record_has_an_example) {
    char *text, longer[5000];
    double values[2] = {0.5, 1}, again[2];
    bool is_found;
    size_t size;
    memset(longer, '"', sizeof longer);
    hy_journal_example example = {.prompt = "1+1=\xff",
                                  .prompt_size = 5,
                                  .best = {"2", 1, 1},
                                  .worst = {longer, sizeof longer, 0.5}};
    hy_journal *journal = open_journal(false);
    must(hy_journal_put(journal, 0, 7, values, 2, &example));
    hy_journal_close(journal);
    journal = open_journal(true);
    must(hy_journal_find(journal, 0, 7, again, 2, &is_found));
    ck_assert(is_found && again[0] == 0.5 && again[1] == 1);
    hy_journal_close(journal);
    text = read_journal(&size);
    ck_assert_ptr_nonnull(strstr(text, "\"example\":{\"prompt\":\"1+1=\xEF\xBF\xBD\",\"best\":{"
                                       "\"answer\":\"2\",\"reward\":1}"));
    ck_assert_uint_lt(size, 5000);
    free(text);
}
END_TEST

START_TEST(other_hashes_and_counts_are_not_found) {
    double values[3];
    bool is_found = true;
    hy_journal *journal = open_journal(false);
    put(journal, 3, 1);
    must(hy_journal_find(journal, 3, 22, values, 2, &is_found));
    ck_assert(!is_found);
    must(hy_journal_find(journal, 3, 21, values, 1, &is_found));
    ck_assert(!is_found);
    must(hy_journal_find(journal, 3, 21, values, 3, &is_found));
    ck_assert(!is_found);
    must(hy_journal_find(journal, 2, 21, values, 2, &is_found));
    ck_assert(!is_found);
    must(hy_journal_find(journal, 3, 21, values, 2, &is_found));
    ck_assert(is_found);
    hy_journal_close(journal);
}
END_TEST

START_TEST(without_a_journal_nothing_is_kept) {
    bool is_found = true;
    double value = 1;
    must(hy_journal_put(NULL, 1, 2, &value, 1, NULL));
    must(hy_journal_find(NULL, 1, 2, &value, 1, &is_found));
    ck_assert(!is_found);
    hy_journal_close(NULL);
}
END_TEST

START_TEST(values_keep_their_bits) {
    static const double values[] = {0,
                                    -0.0,
                                    1,
                                    -1,
                                    0.1,
                                    1.0 / 3,
                                    1e300,
                                    5e-324,
                                    1e22,
                                    123456789012345678.0,
                                    2.2250738585072014e-308,
                                    -1e-7};
    enum { COUNT = sizeof values / sizeof values[0] };
    double again[COUNT];
    bool is_found;
    hy_journal *journal = open_journal(false);
    must(hy_journal_put(journal, 0, UINT64_MAX, values, COUNT, NULL));
    must(hy_journal_put(journal, INT64_MAX, 0, values, 0, NULL));
    hy_journal_close(journal);
    journal = open_journal(true);
    must(hy_journal_find(journal, 0, UINT64_MAX, again, COUNT, &is_found));
    ck_assert(is_found && memcmp(values, again, sizeof values) == 0);
    must(hy_journal_find(journal, INT64_MAX, 0, NULL, 0, &is_found));
    ck_assert(is_found);
    hy_journal_close(journal);
}
END_TEST

START_TEST(values_that_are_not_finite_are_refused) {
    double values[] = {1, INFINITY};
    hy_journal *journal = open_journal(false);
    must_fail(hy_journal_put(journal, 0, 0, values, 2, NULL), HY_ERR_INPUT,
              "score 2 is not finite");
    must_fail(hy_journal_put(journal, -1, 0, values, 1, NULL), HY_ERR_INPUT,
              "rollout -1 is negative");
    hy_journal_close(journal);
    size_t size;
    free(read_journal(&size));
    ck_assert_uint_eq(size, 0);
}
END_TEST

START_TEST(a_new_run_begins_empty) {
    hy_journal *journal = open_journal(false);
    put(journal, 1, 1);
    hy_journal_close(journal);
    journal = open_journal(false);
    ck_assert(!has(journal, 1, 1));
    hy_journal_close(journal);
    must(hy_dir_remove(folder));
    must(hy_dir_make(folder));
    journal = open_journal(true); /* there is no file */
    ck_assert(!has(journal, 1, 1));
    put(journal, 1, 2);
    ck_assert(has(journal, 1, 2));
    hy_journal_close(journal);
}
END_TEST

START_TEST(a_line_that_is_cut_at_any_byte_is_dropped) {
    size_t size, first;
    hy_journal *journal = open_journal(false);
    put(journal, 1, 0.25);
    put(journal, 2, 1e-9);
    hy_journal_close(journal);
    char *text = read_journal(&size);
    first = strcspn(text, "\n") + 1;
    for (size_t cut = first; cut <= size; cut++) {
        write_journal(text, cut);
        journal = open_journal(true);
        ck_assert(has(journal, 1, 0.25));
        ck_assert(has(journal, 2, 1e-9) == (cut == size));
        size_t now;
        free(read_journal(&now));
        ck_assert_uint_eq(now, cut == size ? size : first);
        put(journal, 2 + (cut == size), 4);
        hy_journal_close(journal);
        journal = open_journal(true);
        ck_assert(has(journal, 1, 0.25) && has(journal, 2 + (cut == size), 4));
        hy_journal_close(journal);
    }
    free(text);
}
END_TEST

START_TEST(a_tail_of_zeros_is_dropped) {
    size_t size;
    hy_journal *journal = open_journal(false);
    put(journal, 1, 0.25);
    hy_journal_close(journal);
    char *text = read_journal(&size), *longer = calloc(1, size + 5000);
    memcpy(longer, text, size);
    write_journal(longer, size + 5000);
    journal = open_journal(true);
    ck_assert(has(journal, 1, 0.25));
    hy_journal_close(journal);
    free(text);
    free(longer);
}
END_TEST

START_TEST(other_damage_is_named_with_its_line) {
#define GOOD "{\"rollout\":4,\"hash\":\"0123456789abcdef\",\"scores\":[1,2]}\n"
    static const struct {
        const char *line, *message;
    } cases[] = {
        {"\n", "line 2 is damaged: record:1:1: expected a value"},
        {"x\n", "line 2 is damaged"},
        {"{}\n", "rollout"},
        {"[]\n", "rollout"},
        {GOOD, "rollout 4 follows rollout 4; expected a larger number"},
        {"{\"rollout\":3,\"hash\":\"0123456789abcdef\",\"scores\":[]}\n", "rollout 3 follows"},
        {"{\"rollout\":-1,\"hash\":\"0123456789abcdef\",\"scores\":[]}\n",
         "rollout -1 is negative"},
        {"{\"rollout\":5.5,\"hash\":\"0123456789abcdef\",\"scores\":[]}\n", "rollout"},
        {"{\"rollout\":5,\"hash\":\"0123456789abcde\",\"scores\":[]}\n", "16 hexadecimal digits"},
        {"{\"rollout\":5,\"hash\":\"0123456789abcdeg\",\"scores\":[]}\n", "16 hexadecimal digits"},
        {"{\"rollout\":5,\"hash\":12,\"scores\":[]}\n", "hash"},
        {"{\"rollout\":5,\"hash\":\"0123456789abcdef\"}\n", "\"scores\" is not a list"},
        {"{\"rollout\":5,\"hash\":\"0123456789abcdef\",\"scores\":{}}\n", "is not a list"},
        {"{\"rollout\":5,\"hash\":\"0123456789abcdef\",\"scores\":[1,null]}\n",
         "score 2 is not a number"},
        {"{\"rollout\":5,\"hash\":\"0123456789abcdef\",\"scores\":[1e999]}\n", "too large"},
        {"{\"rollout\":5,\"hash\":\"0123456789abcdef\",\"scores\":[1]\n", "line 2 is damaged"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[500];
        hy_journal *journal;
        snprintf(text, sizeof text, GOOD "%s" GOOD, cases[i].line);
        write_journal(text, strlen(text));
        must_fail(hy_journal_open(path, true, &journal), HY_ERR_INPUT, cases[i].message);
        ck_assert_ptr_null(journal);
        ck_assert_ptr_nonnull(strstr(hy_error_message(), "rewards.jsonl: line 2 is damaged"));
        ck_assert_ptr_nonnull(strstr(hy_error_message(), "scores its answers again"));
        size_t size; /* and nothing was changed */
        char *now = read_journal(&size);
        ck_assert_str_eq(now, text);
        free(now);
    }
}
END_TEST

START_TEST(a_line_without_an_end_is_bounded) {
    size_t size = (size_t)17 << 20;
    char *text = malloc(size);
    memset(text, ' ', size);
    write_journal(text, size);
    hy_journal *journal;
    must_fail(hy_journal_open(path, true, &journal), HY_ERR_INPUT,
              "line 1 is damaged: it has more");
    free(text);
    enum { COUNT = (1 << 19) + 1 };
    double *values = malloc(COUNT * sizeof *values);
    for (int i = 0; i < COUNT; i++) values[i] = 1.0 / 3 + i;
    journal = open_journal(false);
    must_fail(hy_journal_put(journal, 0, 0, values, COUNT, NULL), HY_ERR_INPUT,
              "too many for a record");
    hy_journal_close(journal);
    free(values);
}
END_TEST

START_TEST(a_rollout_again_removes_later_ones) {
    hy_journal *journal = open_journal(false);
    for (int i = 0; i < 6; i++) put(journal, i, i);
    put(journal, 3, 30);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 6; i++) ck_assert(has(journal, i, i == 3 ? 30 : i) == (i <= 3));
        hy_journal_close(journal);
        journal = open_journal(true);
    }
    put(journal, 4, 40);
    put(journal, 0, 50);
    for (int i = 0; i < 6; i++) ck_assert(has(journal, i, 50) == (i == 0));
    hy_journal_close(journal);
    size_t size;
    char *text = read_journal(&size);
    ck_assert_str_eq(text, "{\"rollout\":0,\"hash\":\"0000000000000000\",\"scores\":[50,-50]}\n");
    free(text);
}
END_TEST

START_TEST(a_file_that_another_program_changed_is_not_believed) {
    double values[2];
    bool is_found;
    hy_journal *journal = open_journal(false);
    put(journal, 1, 1);
    size_t size;
    char *text = read_journal(&size);
    text[11] = '2';
    write_journal(text, size);
    must_fail(hy_journal_find(journal, 1, 7, values, 2, &is_found), HY_ERR_INPUT,
              "line 1: it was changed");
    write_journal(text, size - 5);
    must_fail(hy_journal_find(journal, 1, 7, values, 2, &is_found), HY_ERR_IO, "it ends at byte");
    must_fail(hy_journal_put(journal, 2, 7, values, 0, NULL), HY_ERR_INPUT, "was changed");
    hy_journal_close(journal);
    free(text);
}
END_TEST

START_TEST(records_may_be_longer_than_what_is_read_at_once) {
    enum { COUNT = 40000 };
    double *values = malloc(COUNT * sizeof *values);
    bool is_found;
    for (int i = 0; i < COUNT; i++) values[i] = 1.0 / 3 + i;
    hy_journal *journal = open_journal(false);
    for (int i = 0; i < 3; i++) must(hy_journal_put(journal, i, 0, values, COUNT, NULL));
    must(hy_journal_put(journal, 1, 0, values, COUNT, NULL));
    hy_journal_close(journal);
    journal = open_journal(true);
    memset(values, 0, COUNT * sizeof *values);
    must(hy_journal_find(journal, 1, 0, values, COUNT, &is_found));
    ck_assert(is_found && values[COUNT - 1] == 1.0 / 3 + (COUNT - 1));
    hy_journal_close(journal);
    free(values);
}
END_TEST

/* Every call that changes the disk fails in turn: appending, and replacing the file. */
START_TEST(a_failed_put_can_be_repeated) {
    for (int removes = 0; removes < 2; removes++) {
        bool is_over = false; /* fewer calls than `at` were made */
        for (long at = 0; !is_over; at++) {
            double values[] = {removes ? 30 : 0.1, removes ? -30 : -0.1};
            int64_t rollout = removes ? 3 : 6;
            hy_journal *journal = open_journal(false);
            for (int i = 0; i < 6; i++) put(journal, i, i);
            hy_fault_arm(at, ENOSPC, false);
            hy_status status =
                hy_journal_put(journal, rollout, (uint64_t)rollout * 7, values, 2, NULL);
            is_over = hy_fault_disarm() <= at;
            ck_assert(is_over ? status == HY_OK && at >= 4 : status == HY_ERR_IO);
            for (int i = 0; i < 3; i++) ck_assert(has(journal, i, i));
            must(hy_journal_put(journal, rollout, (uint64_t)rollout * 7, values, 2, NULL));
            for (int round = 0; round < 2; round++) {
                for (int i = 0; i < 3; i++) ck_assert(has(journal, i, i));
                ck_assert(has(journal, rollout, values[0]) && !has(journal, rollout + 1, 0));
                hy_journal_close(journal);
                journal = open_journal(true);
            }
            hy_journal_close(journal);
        }
    }
}
END_TEST

START_TEST(a_crash_in_a_put_leaves_a_journal) {
    for (int removes = 0; removes < 2; removes++) {
        for (long at = 0; at < 8; at++) {
            int64_t rollout = removes ? 3 : 6;
            hy_journal *journal = open_journal(false);
            for (int i = 0; i < 6; i++) put(journal, i, i);
            pid_t child = fork();
            if (child == 0) {
                hy_fault_arm_kill(at, 0);
                put(journal, rollout, 0.5);
                _exit(0);
            }
            int end;
            ck_assert(waitpid(child, &end, 0) == child && end == 0);
            hy_journal_close(journal);
            journal = open_journal(true);
            for (int i = 0; i < 3; i++) ck_assert(has(journal, i, i));
            put(journal, rollout, 0.75);
            ck_assert(has(journal, rollout, 0.75));
            hy_journal_close(journal);
        }
    }
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("reward: the journal");
    TCase *cases = tcase_create("journal");
    tcase_add_checked_fixture(cases, make_folder, drop_folder);
    tcase_add_test(cases, records_are_found_again);
    tcase_add_test(cases, a_record_has_an_example);
    tcase_add_test(cases, other_hashes_and_counts_are_not_found);
    tcase_add_test(cases, without_a_journal_nothing_is_kept);
    tcase_add_test(cases, values_keep_their_bits);
    tcase_add_test(cases, values_that_are_not_finite_are_refused);
    tcase_add_test(cases, a_new_run_begins_empty);
    tcase_add_test(cases, a_line_that_is_cut_at_any_byte_is_dropped);
    tcase_add_test(cases, a_tail_of_zeros_is_dropped);
    tcase_add_test(cases, other_damage_is_named_with_its_line);
    tcase_add_test(cases, a_line_without_an_end_is_bounded);
    tcase_add_test(cases, a_rollout_again_removes_later_ones);
    tcase_add_test(cases, a_file_that_another_program_changed_is_not_believed);
    tcase_add_test(cases, records_may_be_longer_than_what_is_read_at_once);
    tcase_add_test(cases, a_failed_put_can_be_repeated);
    tcase_add_test(cases, a_crash_in_a_put_leaves_a_journal);
    suite_add_tcase(suite, cases);
    return suite;
}

HY_TEST_MAIN(make_suite)
