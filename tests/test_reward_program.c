/* test_reward_program.c: a program that scores answers: what it is sent, what it may answer, and
 * what happens when it hangs, dies, floods or is stopped. Programs are written for sh; the one that
 * reads much is this test itself, started with an argument. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "base/text.h"
#include "harness.h"
#include "reward/reward.h"

#define EACH "while read -r line; do "

static char folder[256];
static hy_text said; /* notes and warnings, a line each */

static void say(void *user, hy_message_level level, const char *text) {
    (void)user;
    hy_text_addf(&said, "%s: %s\n", level == HY_WARNING ? "warning" : "note", text);
}

static const hy_observer observer = {.on_message = say};

/* ---- what must be left as it was ------------------------------------------------------------- */

static int descriptors_before;

static int count_descriptors(void) {
    int count = 0;
    DIR *list = opendir("/proc/self/fd");
    while (readdir(list)) count++;
    closedir(list);
    return count;
}

static void set_up(void) {
    temp_folder(folder);
    descriptors_before = count_descriptors();
}

static void check_left(void) {
    ck_assert_int_eq(count_descriptors(), descriptors_before);
    ck_assert(waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD);
    hy_text_free(&said);
    remove_folder(folder);
}

/* ---- programs -------------------------------------------------------------------------------- */

static hy_rewards *open_program(const char *command, double seconds) {
    hy_rewards *rewards;
    hy_reward_options options = {.seconds = seconds, .observer = &observer};
    hy_text text = {0};
    hy_text_addf(&text, "T='%s'; %s", folder, command);
    must(hy_rewards_open(NULL, 0, hy_text_string(&text), &options, &rewards));
    hy_text_free(&text);
    return rewards;
}

static hy_reward_item item_of(const char *answer) {
    return (hy_reward_item){.prompt = "p",
                            .prompt_size = 1,
                            .answer = answer,
                            .answer_size = strlen(answer),
                            .tokens = 3,
                            .ended = true};
}

static hy_status score_some(hy_rewards *rewards, size_t count, double *scores) {
    hy_reward_item items[16] = {0};
    for (size_t i = 0; i < count; i++) items[i] = item_of("x");
    return hy_rewards_score(rewards, items, count, NULL, scores, NULL);
}

/* Scores three answers with a program that must fail. */
static void fails(const char *command, double seconds, hy_status status, const char *message) {
    double scores[3];
    hy_rewards *rewards = open_program(command, seconds);
    must_fail(score_some(rewards, 3, scores), status, message);
    hy_rewards_close(rewards);
}

static char *read_text(const char *name) {
    char path[512], *text = NULL;
    size_t size;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    must(hy_file_read(path, &text, &size));
    return text;
}

/* ---- a program that works -------------------------------------------------------------------- */

START_TEST(a_program_gives_a_number_for_each_answer) {
    double scores[6];
    hy_rewards *rewards =
        open_program("i=0; " EACH "i=$((i + 1)); case $i in 1) echo 1;; 2) echo -0.25;; "
                     "3) echo ' 1e-3 ';; 4) echo '{\"reward\": 2.5}';; 5) printf '+7\\r\\n';; "
                     "*) echo '{\"x\": [1], \"reward\": -3}';; esac; done",
                     0);
    must(score_some(rewards, 6, scores));
    static const double expected[] = {1, -0.25, 1e-3, 2.5, 7, -3};
    for (size_t i = 0; i < 6; i++) ck_assert(scores[i] == expected[i]);
    hy_rewards_close(rewards);
    ck_assert_str_eq(hy_text_string(&said), "");
}
END_TEST

START_TEST(a_program_runs_on_from_batch_to_batch) {
    double scores[4];
    hy_rewards *rewards = open_program("i=0; " EACH "i=$((i + 1)); echo $i; done", 0);
    for (int batch = 0; batch < 3; batch++) {
        must(score_some(rewards, 4, scores));
        for (int i = 0; i < 4; i++) ck_assert(scores[i] == batch * 4 + i + 1);
    }
    must(score_some(rewards, 0, scores));
    hy_rewards_close(rewards);
}
END_TEST

START_TEST(a_program_is_weighted_as_other_rewards) {
    const char *list[] = {"program*-2", "ended*10"}, *alone[] = {"ended"};
    const char *const *names;
    hy_rewards *rewards;
    hy_reward_item item = item_of("x");
    double score, parts[2];
    must(hy_rewards_open(list, 2, EACH "echo 3; done", NULL, &rewards));
    must(hy_rewards_score(rewards, &item, 1, NULL, &score, parts));
    ck_assert(score == 4 && parts[0] == 3 && parts[1] == 1);
    hy_rewards_close(rewards);
    must(hy_rewards_open(alone, 1, EACH "echo 3; done", NULL, &rewards));
    must(hy_rewards_score(rewards, &item, 1, NULL, &score, parts));
    ck_assert(score == 4 && parts[0] == 1 && parts[1] == 3);
    ck_assert_uint_eq(hy_rewards_names(rewards, &names), 2);
    ck_assert_str_eq(names[1], "program");
    hy_rewards_close(rewards);
}
END_TEST

START_TEST(a_program_is_sent_a_line_of_json_for_each_answer) {
    hy_reward_item items[3] = {item_of("a\"\n\xC3"), item_of(""), item_of("x")};
    double scores[3];
    items[0].expected = "\xC3\xA9";
    items[0].expected_size = 2;
    items[0].row_json = "{\"a\":\n 1,\r\"b\": \"x\"}";
    items[0].row_size = strlen(items[0].row_json);
    items[1].answer = "z\0\xFF\xED\xA0\x80";
    items[1].answer_size = 6;
    items[1].ended = false;
    items[2].prompt = NULL;
    items[2].prompt_size = 0;
    items[2].expected = "";
    hy_rewards *rewards = open_program(EACH "printf '%s\\n' \"$line\" >> $T/sent; echo 1; done", 0);
    must(hy_rewards_score(rewards, items, 3, NULL, scores, NULL));
    hy_rewards_close(rewards);
    char *sent = read_text("sent");
    ck_assert_str_eq(sent, "{\"prompt\":\"p\",\"answer\":\"a\\\"\\n\xEF\xBF\xBD\",\"expected\":"
                           "\"\xC3\xA9\",\"row\":{\"a\":  1, \"b\": \"x\"},\"tokens\":3,\"ended\":"
                           "true}\n"
                           "{\"prompt\":\"p\",\"answer\":\"z\\u0000\xEF\xBF\xBD\xEF\xBF\xBD"
                           "\xEF\xBF\xBD\xEF\xBF\xBD\",\"expected\":null,\"row\":null,\"tokens\":3,"
                           "\"ended\":false}\n"
                           "{\"prompt\":\"\",\"answer\":\"x\",\"expected\":\"\",\"row\":null,"
                           "\"tokens\":3,\"ended\":true}\n");
    free(sent);
}
END_TEST

/* The test's own program: answers each line at once, with lines that are as long as `size`, and
 * writes to stderr as much. */
static int be_echo(int size) {
    char *line = NULL;
    size_t room = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (ssize_t got; (got = getline(&line, &room, stdin)) > 0;) {
        printf("{\"note\": \"%0*d\", \"reward\": %zd}\n", size, 0, got);
        fprintf(stderr, "%0*d\n", size, 0);
    }
    free(line);
    return 0;
}

START_TEST(large_batches_do_not_block) {
    enum { COUNT = 5000, SIZE = 20000 };
    static char answer[SIZE];
    char self[512], command[600];
    hy_reward_item *items = malloc(COUNT * sizeof *items);
    double *scores = malloc(COUNT * sizeof *scores);
    memset(answer, 'a', SIZE);
    for (int i = 0; i < COUNT; i++) {
        items[i] = item_of("");
        items[i].answer = answer;
        items[i].answer_size = (size_t)(SIZE - i % 7);
    }
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    ck_assert(length > 0);
    self[length] = '\0';
    snprintf(command, sizeof command, "exec '%s' 5000", self);
    hy_rewards *rewards = open_program(command, 60);
    must(hy_rewards_score(rewards, items, COUNT, NULL, scores, NULL));
    hy_rewards_close(rewards);
    for (int i = 0; i < COUNT; i++) ck_assert(scores[i] - scores[0] == -(i % 7));
    free(items);
    free(scores);
}
END_TEST

START_TEST(no_descriptor_and_no_blocked_signal_is_inherited) {
    double score;
    sigset_t set, before;
    int open_here = open("/dev/null", O_RDONLY); /* without O_CLOEXEC */
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigprocmask(SIG_BLOCK, &set, &before);
    signal(SIGPIPE, SIG_IGN);
    hy_rewards *rewards = open_program(
        EACH
        "ls -l /proc/self/fd > $T/open; grep -E 'Sig(Blk|Ign)' /proc/self/status > $T/signals; "
        "echo 1; done",
        0);
    must(score_some(rewards, 1, &score));
    hy_rewards_close(rewards);
    signal(SIGPIPE, SIG_DFL);
    sigprocmask(SIG_SETMASK, &before, NULL);
    close(open_here);
    char *text = read_text("open");
    int lines = 0;
    for (const char *at = text; (at = strstr(at, " -> ")); at++) lines++;
    ck_assert_msg(lines == 4, "%s", text); /* the three streams, and the folder that ls reads */
    free(text);
    text = read_text("signals");
    ck_assert_ptr_nonnull(strstr(text, "SigBlk:\t0000000000000000\n"));
    /* the C library ignores two signals of its own, 32 and 33 */
    ck_assert_str_eq(text + strlen(text) - 8, "0000000\n");
    free(text);
}
END_TEST

/* ---- wrong answers --------------------------------------------------------------------------- */

START_TEST(what_is_not_a_number_is_named_with_its_line) {
    fails("read -r l; read -r l; echo 1; echo a\x01good; read -r l; read -r l", 5, HY_ERR_INPUT,
          "the reward program's line 2 of this batch is \"a?good\"; expected a finite number, or "
          "an object such as {\"reward\": 0.5}");
    static const char *const wrong[] = {"nan",
                                        "inf",
                                        "-inf",
                                        "",
                                        "1 2",
                                        "0x10",
                                        "True",
                                        "1e999",
                                        "null",
                                        "[1]",
                                        "\"1\"",
                                        "1,5",
                                        "{\"reward\": \"1\"}",
                                        "{\"reward\": true}",
                                        "{\"score\": 1}",
                                        "{\"reward\": 1",
                                        "{\"reward\": NaN}",
                                        "{\"reward\": 1} x"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        char command[200], message[200];
        snprintf(command, sizeof command, EACH "echo '%s'; done", wrong[i]);
        snprintf(message, sizeof message, "line 1 of this batch is \"%s\"; expected", wrong[i]);
        fails(command, 5, HY_ERR_INPUT, message);
    }
    ck_assert_str_eq(hy_text_string(&said), "");
}
END_TEST

START_TEST(long_lines_are_cut_in_messages_and_bounded) {
    fails(EACH "head -c 2000 /dev/zero | tr '\\0' y; echo; done", 5, HY_ERR_INPUT,
          "is \"yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy...\"; expected");
    fails("read -r l; tr '\\0' y < /dev/zero", 5, HY_ERR_INPUT, "has more than 65536 bytes");
}
END_TEST

START_TEST(too_many_lines_are_refused) {
    fails(EACH "printf '1\\n2\\n'; done", 5, HY_ERR_INPUT,
          "but it was sent 3 answers; expected one line for each answer");
    fails("read -r l; read -r l; read -r l; printf '1\\n2\\n3\\nx'; cat", 5, HY_ERR_INPUT,
          "the reward program wrote line 4, \"x\", but it was sent 3 answers");
    fails("read -r l; yes 1", 5, HY_ERR_INPUT, "but it was sent 3 answers");
}
END_TEST

START_TEST(a_late_line_is_refused_in_the_next_batch) {
    double scores[1];
    hy_rewards *rewards = open_program(EACH "echo 1; (sleep 0.1; echo 2); done", 5);
    must(score_some(rewards, 1, scores));
    usleep(400000);
    must_fail(score_some(rewards, 1, scores), HY_ERR_INPUT,
              "wrote line 1, \"2\", but it was sent 0 answers");
    must(score_some(rewards, 1, scores)); /* it was started again */
    hy_rewards_close(rewards);
}
END_TEST

START_TEST(after_a_wrong_answer_the_next_batch_starts_it_again) {
    double scores[3];
    hy_rewards *rewards = open_program("n=$(cat $T/n 2>&1 | wc -l); echo >> $T/n; " EACH
                                       "if [ -e $T/once ]; then echo 5; else "
                                       ": > $T/once; echo bad; fi; done",
                                       5);
    must_fail(score_some(rewards, 3, scores), HY_ERR_INPUT, "\"bad\"");
    must(score_some(rewards, 3, scores));
    ck_assert(scores[0] == 5 && scores[2] == 5);
    hy_rewards_close(rewards);
    char *starts = read_text("n");
    ck_assert_str_eq(starts, "\n\n");
    free(starts);
}
END_TEST

/* ---- death and delay ------------------------------------------------------------------------- */

START_TEST(a_program_that_hangs_is_started_once_more) {
    double begin = hy_clock();
    fails("echo >> $T/n; read -r l; echo 1; sleep 100", 0.3, HY_ERR_IO,
          "the reward program was not ready after 0.3 s, the time limit; it gave ");
    double seconds = hy_clock() - begin;
    ck_assert_msg(seconds > 0.6 && seconds < 20, "%g s", seconds);
    ck_assert_ptr_nonnull(strstr(hy_error_message(), "it failed twice"));
    ck_assert_ptr_nonnull(strstr(hy_text_string(&said), "warning: the reward program was not ready "
                                                        "after 0.3 s"));
    ck_assert_ptr_nonnull(strstr(hy_text_string(&said), "it is started again and gets the same"));
    char *starts = read_text("n");
    ck_assert_str_eq(starts, "\n\n");
    free(starts);
}
END_TEST

START_TEST(a_program_that_dies_is_named_with_its_end) {
    fails("exit 3", 5, HY_ERR_IO,
          "the reward program ended with exit status 3; it gave 0 of 3 answers");
    fails("read -r l; echo 1; exec true", 5, HY_ERR_IO,
          "ended with exit status 0; it gave 1 of 3 answers");
    fails("read -r l; printf '1\\n2'", 5, HY_ERR_IO, "it gave 2 of 3 answers");
    fails("read -r l; kill -9 $$", 5, HY_ERR_IO, "was ended by signal 9 (Killed)");
    fails("/no/such/program", 5, HY_ERR_IO,
          "ended with exit status 127 (the shell did not find the command)");
    ck_assert_ptr_nonnull(strstr(hy_error_message(), "; its last line on stderr is \""));
    fails("echo one >&2; printf 'two\\001' >&2; exit 1", 5, HY_ERR_IO,
          "; its last line on stderr is \"two \"");
    fails("exec >&-; sleep 100", 5, HY_ERR_IO, "closed its standard output");
    fails("sleep 100 & exit 4", 5, HY_ERR_IO, "ended with exit status 4");
}
END_TEST

START_TEST(a_program_that_stops_reading_may_still_answer) {
    double scores[3];
    hy_rewards *rewards = open_program("read -r l; exec <&-; printf '1\\n2\\n3\\n'; sleep 100", 5);
    must(score_some(rewards, 3, scores));
    ck_assert(scores[2] == 3);
    hy_rewards_close(rewards);
}
END_TEST

START_TEST(a_batch_is_sent_again_after_a_death) {
    double scores[3];
    hy_rewards *rewards = open_program(
        "[ -e $T/once ] || { : > $T/once; read -r l; echo 9; exit 1; }; " EACH "echo 5; done", 5);
    must(score_some(rewards, 3, scores));
    ck_assert(scores[0] == 5 && scores[1] == 5 && scores[2] == 5);
    hy_rewards_close(rewards);
    ck_assert_ptr_nonnull(
        strstr(hy_text_string(&said), "ended with exit status 1; it gave 1 of 3"));
}
END_TEST

START_TEST(a_program_may_end_after_each_batch) {
    double scores[2];
    hy_rewards *rewards = open_program("read -r l; read -r l; echo 1; echo 2", 5);
    for (int i = 0; i < 3; i++) {
        must(score_some(rewards, 2, scores));
        ck_assert(scores[0] == 1 && scores[1] == 2);
        usleep(20000);
    }
    hy_rewards_close(rewards);
}
END_TEST

START_TEST(a_failed_program_is_started_again_by_the_next_call) {
    double scores[1];
    hy_rewards *rewards = open_program("[ -e $T/good ] || exit 1; " EACH "echo 1; done", 5);
    must_fail(score_some(rewards, 1, scores), HY_ERR_IO, "exit status 1");
    char path[512];
    snprintf(path, sizeof path, "%s/good", folder);
    must(hy_file_write_atomic(path, "", 0));
    must(score_some(rewards, 1, scores));
    hy_rewards_close(rewards);
}
END_TEST

/* ---- stderr ---------------------------------------------------------------------------------- */

START_TEST(lines_on_stderr_are_passed_on) {
    double scores[2];
    hy_rewards *rewards =
        open_program(EACH "printf 'a\\rb\\n\\nend' >&2; echo 1; done; echo ' bye' >&2", 5);
    must(score_some(rewards, 1, scores));
    hy_rewards_close(rewards);
    ck_assert_str_eq(hy_text_string(&said), "note: reward program: a\nnote: reward program: b\n"
                                            "note: reward program: end bye\n");
}
END_TEST

START_TEST(a_flood_on_stderr_is_counted) {
    double scores[2];
    hy_rewards *rewards = open_program(
        EACH "i=0; while [ $i -lt 2000 ]; do i=$((i + 1)); echo \"line $i of many\"; done >&2; "
             "echo 1; done",
        20);
    for (int batch = 0; batch < 2; batch++) {
        hy_text_clear(&said);
        must(score_some(rewards, 2, scores));
        ck_assert_ptr_nonnull(strstr(hy_text_string(&said), "note: reward program: line 20 of"));
        ck_assert_ptr_null(strstr(hy_text_string(&said), "line 21 of"));
        ck_assert_ptr_nonnull(strstr(hy_text_string(&said), "more lines on stderr were left out"));
    }
    hy_rewards_close(rewards);
    fails("yes >&2", 0.3, HY_ERR_IO, "was not ready after 0.3 s");
}
END_TEST

/* ---- stopping and closing -------------------------------------------------------------------- */

static void *set_later(void *stop) {
    usleep(150000);
    atomic_store((atomic_bool *)stop, true);
    return NULL;
}

START_TEST(a_stop_is_noticed_at_once) {
    atomic_bool stop = false;
    pthread_t thread;
    double score, begin;
    hy_reward_item item = item_of("x");
    hy_rewards *rewards =
        open_program("[ -e $T/once ] || { : > $T/once; sleep 100; }; " EACH "echo 1; done", 60);
    pthread_create(&thread, NULL, set_later, &stop);
    begin = hy_clock();
    must_fail(hy_rewards_score(rewards, &item, 1, &stop, &score, NULL), HY_STOPPED,
              "stopped while the reward program worked");
    ck_assert(hy_clock() - begin < 10);
    pthread_join(thread, NULL);
    must(hy_rewards_score(rewards, &item, 1, NULL, &score, NULL));
    hy_rewards_close(rewards);
}
END_TEST

static bool runs(const char *name) {
    char *text = read_text(name), path[300];
    snprintf(path, sizeof path, "/proc/%ld/stat", strtol(text, NULL, 10));
    free(text);
    FILE *file = fopen(path, "r");
    char state = 'X';
    if (!file) return false;
    if (fscanf(file, "%*d (%*[^)]) %c", &state) != 1) state = 'X';
    fclose(file);
    return state != 'X' && state != 'Z';
}

START_TEST(closing_kills_whatever_does_not_end) {
    double score;
    hy_rewards *rewards =
        open_program("trap '' TERM HUP INT; sleep 1000 & echo $! > $T/child; echo $$ > $T/self; "
                     "read -r l; echo 1; while :; do sleep 1000; done",
                     5);
    must(score_some(rewards, 1, &score));
    ck_assert(runs("self") && runs("child"));
    double begin = hy_clock();
    hy_rewards_close(rewards);
    double seconds = hy_clock() - begin;
    ck_assert_msg(seconds > 0.9 && seconds < 20, "%g s", seconds);
    usleep(50000);
    ck_assert(!runs("self") && !runs("child"));
}
END_TEST

START_TEST(closing_lets_a_program_finish) {
    double score;
    hy_rewards *rewards = open_program(EACH "echo 1; done; sleep 0.1; : > $T/finished", 5);
    must(score_some(rewards, 1, &score));
    hy_rewards_close(rewards);
    char *text = read_text("finished");
    free(text);
}
END_TEST

START_TEST(closed_streams_of_ours_stay_closed) {
    double scores[2];
    int saved[3];
    for (int i = 0; i < 3; i++) {
        saved[i] = fcntl(i, F_DUPFD, 100);
        close(i);
    }
    hy_rewards *rewards = NULL;
    hy_status opened = hy_rewards_open(NULL, 0, EACH "echo 4; echo x >&2; done", NULL, &rewards);
    bool is_free = true;
    for (int i = 0; i < 3; i++) is_free = is_free && fcntl(i, F_GETFD) == -1;
    hy_status scored = opened == HY_OK ? score_some(rewards, 2, scores) : opened;
    hy_rewards_close(rewards);
    for (int i = 0; i < 3; i++) {
        dup2(saved[i], i);
        close(saved[i]);
    }
    must(scored);
    ck_assert_msg(is_free, "a pipe has the number of a standard stream");
    ck_assert(scores[0] == 4 && scores[1] == 4);
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("reward: a program");
    TCase *cases = tcase_create("program");
    tcase_add_checked_fixture(cases, set_up, check_left);
    tcase_add_test(cases, a_program_gives_a_number_for_each_answer);
    tcase_add_test(cases, a_program_runs_on_from_batch_to_batch);
    tcase_add_test(cases, a_program_is_weighted_as_other_rewards);
    tcase_add_test(cases, a_program_is_sent_a_line_of_json_for_each_answer);
    tcase_add_test(cases, large_batches_do_not_block);
    tcase_add_test(cases, no_descriptor_and_no_blocked_signal_is_inherited);
    tcase_add_test(cases, what_is_not_a_number_is_named_with_its_line);
    tcase_add_test(cases, long_lines_are_cut_in_messages_and_bounded);
    tcase_add_test(cases, too_many_lines_are_refused);
    tcase_add_test(cases, a_late_line_is_refused_in_the_next_batch);
    tcase_add_test(cases, after_a_wrong_answer_the_next_batch_starts_it_again);
    tcase_add_test(cases, a_program_that_hangs_is_started_once_more);
    tcase_add_test(cases, a_program_that_dies_is_named_with_its_end);
    tcase_add_test(cases, a_program_that_stops_reading_may_still_answer);
    tcase_add_test(cases, a_batch_is_sent_again_after_a_death);
    tcase_add_test(cases, a_program_may_end_after_each_batch);
    tcase_add_test(cases, a_failed_program_is_started_again_by_the_next_call);
    tcase_add_test(cases, lines_on_stderr_are_passed_on);
    tcase_add_test(cases, a_flood_on_stderr_is_counted);
    tcase_add_test(cases, a_stop_is_noticed_at_once);
    tcase_add_test(cases, closing_kills_whatever_does_not_end);
    tcase_add_test(cases, closing_lets_a_program_finish);
    tcase_add_test(cases, closed_streams_of_ours_stay_closed);
    suite_add_tcase(suite, cases);
    return suite;
}

int main(int argc, char **argv) {
    return argc > 1 ? be_echo(atoi(argv[1])) : run_suite(make_suite());
}
