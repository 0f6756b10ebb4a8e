/* test_trainer_disk.c: runs with state on disk: the same losses, and messages about an unusable
 * folder. */
#include "small_run.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>

static char folder[256];
static void make_folder(void) { temp_folder(folder); }
static void drop_folder(void) { remove_folder(folder); }

#define DISK "offload_folder", folder

static void losses_of(const char *const *pairs, int count, double *losses) {
    hy_trainer *t = small_trainer(SMALL_RUN, "none", NULL, pairs);
    for (int i = 0; i < count; i++) {
        hy_step_info info;
        must(hy_trainer_step(t, &info));
        losses[i] = info.loss;
    }
    hy_trainer_destroy(t);
}

static size_t names_in_folder(void) {
    char **names;
    size_t count;
    must(hy_dir_list(folder, &names, &count));
    hy_dir_list_free(names, count);
    return count;
}

START_TEST(state_on_disk_changes_no_bit) {
    static const char *const classes[] = {"weights_place", "grads_place", "optim_place",
                                          "master_place"};
    double plain[12], moved[12];
    losses_of(PAIRS("precision", "bf16", "predictor", "none"), 12, plain);
    for (int i = 0; i < 4; i++) {
        losses_of(PAIRS("precision", "bf16", "predictor", "none", classes[i], "disk", DISK), 12,
                  moved);
        ck_assert_mem_eq(plain, moved, sizeof plain);
    }
    losses_of(PAIRS("precision", "bf16", "predictor", "none", "weights_place", "disk",
                    "master_place", "disk", "grads_place", "disk", "optim_place", "disk",
                    "resident_units", "1", "ring_depth", "2", DISK),
              12, moved);
    ck_assert_mem_eq(plain, moved, sizeof plain);
    ck_assert_uint_eq(names_in_folder(), 0);
}
END_TEST

START_TEST(a_predicting_run_with_all_state_on_disk_changes_no_bit) {
    double plain[16], moved[16];
    const char *common[] = {"predictor", "outer",        "full_steps", "3",     "correct_steps",
                            "1",         "predict_from", "0",          "steps", "30"};
    const char *pairs[32];
    int n = 0;
    for (int i = 0; i < 10; i++) pairs[n++] = common[i];
    pairs[n] = NULL;
    losses_of(pairs, 16, plain);
    const char *places[] = {"weights_place", "disk", "grads_place", "disk",
                            "optim_place",   "disk", DISK};
    for (int i = 0; i < 8; i++) pairs[n++] = places[i];
    pairs[n] = NULL;
    losses_of(pairs, 16, moved);
    ck_assert_mem_eq(plain, moved, sizeof plain);
}
END_TEST

START_TEST(state_on_disk_resumes_to_the_same_bits) {
    check_resume(SMALL_RUN, NULL,
                 PAIRS("predictor", "none", "optimizer", "adamw8bit", "weights_place", "disk",
                       "optim_place", "disk", "grads_place", "disk", DISK),
                 3, 5);
}
END_TEST

START_TEST(an_unusable_folder_is_reported_before_training) {
    hy_trainer *t;
    hy_config *config = small_run(SMALL_RUN, "none", PAIRS("optim_place", "disk"));
    must_fail(hy_trainer_create(config, NULL, &t), HY_ERR_INPUT, "offload_folder");
    hy_config_destroy(config);
    config = small_run(SMALL_RUN, "none",
                       PAIRS("optim_place", "disk", "offload_folder", "/nonexistent/folder"));
    must_fail(hy_trainer_create(config, NULL, &t), HY_ERR_INPUT, "/nonexistent/folder");
    hy_config_destroy(config);
    config =
        small_run(SMALL_RUN, "none", PAIRS("optim_place", "disk", "offload_size", "1000", DISK));
    must_fail(hy_trainer_create(config, NULL, &t), HY_ERR_INPUT, "offload_size");
    hy_config_destroy(config);
}
END_TEST

/* ---- what goes wrong in the middle ----------------------------------------------------------- */

#define ALL_ON_DISK                                                                                \
    "predictor", "none", "weights_place", "disk", "grads_place", "disk", "optim_place", "disk",    \
        "offload_folder", folder

/* What the run's file was becomes one that cannot be written: the disk is gone. */
static void break_disk(void) {
    int broken = 0, nowhere = open("/dev/null", O_RDONLY);
    ck_assert_int_ge(nowhere, 0);
    for (int fd = 3; fd < 256; fd++) {
        char link[64], target[512];
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t length = readlink(link, target, sizeof target - 1);
        if (length <= 0) continue;
        target[length] = 0;
        if (strncmp(target, folder, strlen(folder)) != 0) continue;
        ck_assert_int_eq(dup2(nowhere, fd), fd);
        broken++;
    }
    close(nowhere);
    ck_assert_int_gt(broken, 0);
}

/* Three steps, a checkpoint, and what `after` does; then the run continues from the checkpoint. */
static void go_on_after(void (*after)(hy_trainer *)) {
    char out[256];
    double plain[6], resumed[3];
    temp_folder(out);
    losses_of(PAIRS("predictor", "none"), 6, plain);
    pid_t child = fork();
    if (child == 0) {
        double losses[3];
        hy_trainer *t = small_trainer(SMALL_RUN, out, NULL, PAIRS(ALL_ON_DISK));
        next_losses(t, 3, losses);
        must(hy_trainer_save(t));
        after(t);
        _exit(0);
    }
    int state;
    ck_assert_int_eq(waitpid(child, &state, 0), child);
    ck_assert(WIFSIGNALED(state) ? WTERMSIG(state) == SIGKILL : WEXITSTATUS(state) == 0);
    ck_assert_uint_eq(names_in_folder(), 0);
    hy_trainer *t = small_trainer(SMALL_RUN "resume auto ", out, NULL, PAIRS(ALL_ON_DISK));
    next_losses(t, 3, resumed);
    ck_assert_mem_eq(plain + 3, resumed, sizeof resumed);
    hy_trainer_destroy(t);
    remove_folder(out);
}

static void be_killed(hy_trainer *t) {
    hy_step_info info;
    must(hy_trainer_step(t, &info));
    kill(getpid(), SIGKILL);
}

static void lose_disk(hy_trainer *t) {
    hy_step_info info;
    hy_status status = HY_OK;
    break_disk();
    for (int i = 0; i < 3 && status == HY_OK; i++) status = hy_trainer_step(t, &info);
    ck_assert_int_eq(status, HY_ERR_IO);
    ck_assert_ptr_nonnull(strstr(hy_error_message(), folder));
    ck_assert_int_ne(hy_trainer_save(t), HY_OK); /* a step that broke off is not saved */
    hy_trainer_destroy(t);
}

START_TEST(a_killed_run_goes_on_from_its_checkpoint) { go_on_after(be_killed); }
END_TEST

START_TEST(a_disk_that_is_lost_ends_the_run_and_harms_no_checkpoint) { go_on_after(lose_disk); }
END_TEST

static Suite *disk_suite(void) {
    Suite *suite = suite_create("trainer disk");
    TCase *tests = tcase_create("disk");
    tcase_set_timeout(tests, 120);
    tcase_add_checked_fixture(tests, make_folder, drop_folder);
    tcase_add_test(tests, state_on_disk_changes_no_bit);
    tcase_add_test(tests, a_predicting_run_with_all_state_on_disk_changes_no_bit);
    tcase_add_test(tests, state_on_disk_resumes_to_the_same_bits);
    tcase_add_test(tests, an_unusable_folder_is_reported_before_training);
    tcase_add_test(tests, a_killed_run_goes_on_from_its_checkpoint);
    tcase_add_test(tests, a_disk_that_is_lost_ends_the_run_and_harms_no_checkpoint);
    suite_add_tcase(suite, tests);
    return suite;
}

HY_TEST_MAIN(disk_suite)
