/* test_comm_launch.c: ranks started on this machine: their environment, output, signals and
 * ends. */
#include "comm_rig.h"

#include <fcntl.h>

#include "comm/launch.h"

/* One launch of "sh -c SCRIPT" in a separate process, its standard output and errors in files. */
typedef struct trial {
    char folder[256];
    pid_t pid;
    int code;
    double began, seconds;
    char *output, *errors;
} trial;

static void begin_trial(trial *t, int count, const char *script, double grace, double kill_after) {
    *t = (trial){.began = hy_clock()};
    temp_folder(t->folder);
    fflush(NULL);
    t->pid = fork();
    ck_assert_int_ge(t->pid, 0);
    if (t->pid > 0) return;
    char path[300];
    snprintf(path, sizeof path, "%s/out", t->folder);
    dup2(open(path, O_WRONLY | O_CREAT | O_APPEND, 0600), 1);
    snprintf(path, sizeof path, "%s/err", t->folder);
    dup2(open(path, O_WRONLY | O_CREAT | O_APPEND, 0600), 2);
    require(chdir(t->folder) == 0);
    char *argv[] = {"sh", "-c", (char *)(uintptr_t)script, NULL};
    hy_launch_options options = {
        .count = count, .argv = argv, .grace = grace, .kill_after = kill_after};
    int code;
    require(hy_launch(&options, &code) == HY_OK);
    _exit(code);
}

static char *text_of(const trial *t, const char *name) {
    char path[300], *text;
    size_t size;
    snprintf(path, sizeof path, "%s/%s", t->folder, name);
    must(hy_file_read(path, &text, &size));
    return text;
}

static void end_trial(trial *t) {
    double deadline = hy_clock() + 60;
    int status = 0;
    while (waitpid(t->pid, &status, WNOHANG) == 0) {
        if (hy_clock() > deadline) kill(t->pid, SIGKILL);
        ck_assert_msg(hy_clock() < deadline + 1, "the launcher hung");
        rig_sleep(0.002);
    }
    t->code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    t->seconds = hy_clock() - t->began;
    t->output = text_of(t, "out");
    t->errors = text_of(t, "err");
}

static void free_trial(trial *t) {
    free(t->output);
    free(t->errors);
    remove_folder(t->folder);
}

static bool is_there(const trial *t, const char *name) {
    char path[300];
    snprintf(path, sizeof path, "%s/%s", t->folder, name);
    return access(path, F_OK) == 0;
}

static void wait_until_there(const trial *t, const char *name) {
    double deadline = hy_clock() + 60;
    while (!is_there(t, name) && hy_clock() < deadline) rig_sleep(0.002);
    ck_assert_msg(is_there(t, name), "%s never came", name);
}

START_TEST(ranks_know_who_they_are_and_print_with_their_number) {
    trial t;
    begin_trial(&t, 3,
                "echo $HYBRID_RANK of $HYBRID_RANKS, $HYBRID_LOCAL_RANK of $HYBRID_LOCAL_RANKS; "
                "echo $HYBRID_ADDRESS $HYBRID_JOB > address$HYBRID_RANK; "
                "echo wrong >&2; printf 'no end'",
                5, 5);
    end_trial(&t);
    ck_assert_int_eq(t.code, 0);
    ck_assert_str_eq(t.output, "0 of 3, 0 of 3\nno end");
    ck_assert_ptr_nonnull(strstr(t.errors, "rank 1: 1 of 3, 1 of 3\n"));
    ck_assert_ptr_nonnull(strstr(t.errors, "rank 1: wrong\n"));
    ck_assert_ptr_nonnull(strstr(t.errors, "rank 2: 2 of 3, 2 of 3\n"));
    ck_assert_ptr_nonnull(strstr(t.errors, "rank 2: no end\n"));
    ck_assert_ptr_nonnull(strstr(t.errors, "wrong\n"));
    char *a = text_of(&t, "address0"), *b = text_of(&t, "address2");
    ck_assert_str_eq(a, b);
    ck_assert_ptr_nonnull(strstr(a, "127.0.0.1:"));
    free(a);
    free(b);
    free_trial(&t);
}
END_TEST

typedef struct ending {
    const char *script;
    int code;
    const char *line; /* on standard error; NULL: nothing at all */
} ending;

static const ending endings[] = {
    {"exit 0", 0, NULL},
    {"exit 75", 75, NULL},
    {"exit 2", 2, "ended with exit code 2"},
    {"[ $HYBRID_RANK = 1 ] && exit 3; exit 0", 1, "rank 1 ended with exit code 3"},
    {"[ $HYBRID_RANK = 1 ] && exit 3; sleep 0.2; exit 4", 4, "rank 1 ended with exit code 3"},
    {"[ $HYBRID_RANK = 0 ] && exit 4; exec sleep 20", 4, "rank 1 did not end by itself"},
    {"[ $HYBRID_RANK = 2 ] && kill -SEGV $$; sleep 0.2; exit 1", 1,
     "rank 2 was ended by signal 11 (Segmentation fault)"},
    {"[ $HYBRID_RANK = 0 ] && kill -KILL $$; sleep 0.2; exit 9", 1, "rank 0 was ended by signal 9"},
};

START_TEST(the_exit_code_is_rank_0s_or_says_that_something_failed) {
    const ending *e = &endings[_i];
    trial t;
    begin_trial(&t, 3, e->script, 0.5, 5);
    end_trial(&t);
    ck_assert_msg(t.code == e->code, "%s: %d: %s", e->script, t.code, t.errors);
    if (e->line)
        ck_assert_msg(strstr(t.errors, e->line) != NULL, "%s: %s", e->script, t.errors);
    else
        ck_assert_str_eq(t.errors, "");
    free_trial(&t);
}
END_TEST

START_TEST(a_command_that_is_not_there_is_named) {
    char *argv[] = {"no-such-command-here", NULL};
    hy_launch_options options = {.count = 2, .argv = argv, .grace = 5};
    int code;
    int errors = open("/dev/null", O_WRONLY);
    options.errors = errors;
    must(hy_launch(&options, &code));
    ck_assert_int_eq(code, 127);
    close(errors);
    options.count = 0;
    must_fail(hy_launch(&options, &code), HY_ERR_INPUT, "0 ranks");
}
END_TEST

START_TEST(a_signal_is_passed_on_to_every_rank_once) {
    static const int signals[] = {SIGINT, SIGTERM, SIGUSR1};
    static const char *const names[] = {"INT", "TERM", "USR1"};
    char script[300];
    trial t;
    snprintf(script, sizeof script,
             "n=0; trap 'n=$((n+1)); echo $n > got$HYBRID_RANK' %s; : > ready$HYBRID_RANK; "
             "i=0; while [ $i -lt 40 ]; do sleep 0.02; i=$((i+1)); done; exit 75",
             names[_i]);
    begin_trial(&t, 3, script, 5, 5);
    for (int r = 0; r < 3; r++) {
        char name[16];
        snprintf(name, sizeof name, "ready%d", r);
        wait_until_there(&t, name);
    }
    rig_sleep(0.05);
    kill(t.pid, signals[_i]);
    end_trial(&t);
    ck_assert_int_eq(t.code, 75);
    for (int r = 0; r < 3; r++) {
        char name[16];
        snprintf(name, sizeof name, "got%d", r);
        char *text = text_of(&t, name);
        ck_assert_str_eq(text, "1\n");
        free(text);
    }
    free_trial(&t);
}
END_TEST

/* Ranks that do not notice by themselves: one can be asked, one has to be killed, one is
 * stopped. */
START_TEST(ranks_that_do_not_end_are_asked_and_then_killed) {
    trial t;
    begin_trial(&t, 4,
                "case $HYBRID_RANK in "
                "0) exec sleep 60;; "
                "1) trap '' TERM; while :; do sleep 0.05; done;; "
                "2) kill -STOP $$; sleep 60;; "
                "3) sleep 0.2; exit 1;; esac",
                0.4, 0.4);
    end_trial(&t);
    ck_assert_int_eq(t.code, 1);
    ck_assert_msg(t.seconds > 0.9 && t.seconds < 8, "%.1f s", t.seconds);
    ck_assert_ptr_nonnull(strstr(t.errors, "rank 0 did not end by itself: sending SIGTERM"));
    ck_assert_ptr_nonnull(strstr(t.errors, "rank 1 did not end by itself: sending SIGKILL"));
    ck_assert_ptr_null(strstr(t.errors, "rank 0 did not end by itself: sending SIGKILL"));
    ck_assert_ptr_nonnull(strstr(t.errors, "rank 3 ended with exit code 1"));
    free_trial(&t);
}
END_TEST

/* The others wait for one that never comes. */
START_TEST(ranks_end_soon_where_one_was_asked_for_something_wrong) {
    trial t;
    begin_trial(&t, 2, "[ $HYBRID_RANK = 1 ] && exec sleep 60; exit 2", 60, 0.4);
    end_trial(&t);
    ck_assert_int_eq(t.code, 2);
    ck_assert_msg(t.seconds > 1.5 && t.seconds < 10, "%.1f s", t.seconds);
    ck_assert_ptr_nonnull(strstr(t.errors, "rank 1 did not end by itself: sending SIGTERM"));
    free_trial(&t);
}
END_TEST

START_TEST(only_rank_0_reads_standard_input) {
    trial t;
    int saved = dup(STDIN_FILENO), ends[2];
    ck_assert_int_eq(pipe(ends), 0);
    ck_assert_int_eq(write(ends[1], "typed\n", 6), 6);
    close(ends[1]);
    dup2(ends[0], STDIN_FILENO);
    begin_trial(&t, 3, "[ $HYBRID_RANK = 0 ] && sleep 0.2; echo \"<$(cat)>\"", 5, 5);
    end_trial(&t);
    dup2(saved, STDIN_FILENO);
    close(saved);
    close(ends[0]);
    ck_assert_str_eq(t.output, "<typed>\n");
    ck_assert_ptr_nonnull(strstr(t.errors, "rank 1: <>\n"));
    ck_assert_ptr_nonnull(strstr(t.errors, "rank 2: <>\n"));
    free_trial(&t);
}
END_TEST

START_TEST(no_rank_outlives_a_killed_launcher) {
    trial t;
    begin_trial(
        &t, 3,
        "echo $$ > pid$HYBRID_RANK.new; mv pid$HYBRID_RANK.new pid$HYBRID_RANK; exec sleep 60", 5,
        5);
    pid_t pids[3];
    for (int r = 0; r < 3; r++) {
        char name[16];
        snprintf(name, sizeof name, "pid%d", r);
        wait_until_there(&t, name);
        char *text = text_of(&t, name);
        pids[r] = (pid_t)strtol(text, NULL, 10);
        free(text);
    }
    kill(t.pid, SIGKILL);
    end_trial(&t);
    ck_assert_int_eq(t.code, 128 + SIGKILL);
    double deadline = hy_clock() + 60;
    for (int r = 0; r < 3; r++) {
        char path[64];
        char state = 'Z';
        do { /* whoever inherits them may not have collected them */
            snprintf(path, sizeof path, "/proc/%d/stat", (int)pids[r]);
            FILE *file = fopen(path, "r");
            state = 'Z';
            if (file && fscanf(file, "%*d (%*[^)]) %c", &state) != 1) state = 'Z';
            if (file) fclose(file);
            rig_sleep(0.005);
        } while (state != 'Z' && hy_clock() < deadline);
        ck_assert_msg(state == 'Z', "rank %d is in state %c", r, state);
    }
    free_trial(&t);
}
END_TEST

START_TEST(many_lines_of_many_ranks_come_whole) {
    trial t;
    begin_trial(&t, 5,
                "i=0; while [ $i -lt 400 ]; do echo line $i of $HYBRID_RANK end; i=$((i+1)); done",
                5, 5);
    end_trial(&t);
    ck_assert_int_eq(t.code, 0);
    int next[5] = {0}, rank, number, again;
    for (char *line = strtok(t.errors, "\n"); line; line = strtok(NULL, "\n")) {
        ck_assert_msg(sscanf(line, "rank %d: line %d of %d end", &rank, &number, &again) == 3, "%s",
                      line);
        ck_assert_int_eq(rank, again);
        ck_assert_int_eq(number, next[rank]++);
    }
    for (int r = 1; r < 5; r++) ck_assert_int_eq(next[r], 400);
    free_trial(&t);
}
END_TEST

static Suite *suite(void) {
    Suite *s = suite_create("dist_launch");
    TCase *c = tcase_create("launch");
    tcase_add_test(c, ranks_know_who_they_are_and_print_with_their_number);
    tcase_add_loop_test(c, the_exit_code_is_rank_0s_or_says_that_something_failed, 0,
                        sizeof endings / sizeof endings[0]);
    tcase_add_test(c, a_command_that_is_not_there_is_named);
    tcase_add_loop_test(c, a_signal_is_passed_on_to_every_rank_once, 0, 3);
    tcase_add_test(c, ranks_that_do_not_end_are_asked_and_then_killed);
    tcase_add_test(c, ranks_end_soon_where_one_was_asked_for_something_wrong);
    tcase_add_test(c, only_rank_0_reads_standard_input);
    tcase_add_test(c, no_rank_outlives_a_killed_launcher);
    tcase_add_test(c, many_lines_of_many_ranks_come_whole);
    suite_add_tcase(s, c);
    return s;
}

HY_TEST_MAIN(suite)
