/* test_trainer_rewards_program.c: runs that learn from rewards: programs that fail, and stops. Nothing
 * is lost. */
#include "reward_rows.h"

/* ---- a program that fails -------------------------------------------------------------------- */

/* Rewards are the bytes of a line, unless a file in the folder asks for something else. */
static const char program_text[] = "while read -r line; do\n"
                                   "  [ -e \"$1/die\" ] && exit 3\n"
                                   "  [ -e \"$1/hang\" ] && sleep 30\n"
                                   "  [ -e \"$1/few\" ] && exec sleep 30\n"
                                   "  if [ -e \"$1/words\" ]; then echo nonsense; continue; fi\n"
                                   "  [ -e \"$1/broken\" ] && echo '{\"rewards\": 1}' && continue\n"
                                   "  echo ${#line}\n"
                                   "done\n";

static const struct {
    const char *what;
    hy_status status;
    const char *why;
} failures[] = {
    {"die", HY_ERR_IO, "3"},
    {"hang", HY_ERR_IO, "0.3"},
    {"few", HY_ERR_IO, "0.3"},
    {"words", HY_ERR_INPUT, "nonsense"},
    {"broken", HY_ERR_INPUT, "rewards"},
};
enum { FAILURES = sizeof failures / sizeof failures[0] };

static void set_failure(const char *what, bool is_on) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", reward_folder, what);
    if (is_on)
        must(hy_file_write_atomic(path, "", 0));
    else
        ck_assert_int_eq(remove(path), 0);
}

static void write_program(char command[1024]) {
    char path[512];
    snprintf(path, sizeof path, "%s/score.sh", reward_folder);
    must(hy_file_write_atomic(path, program_text, strlen(program_text)));
    snprintf(command, 1024, "sh %s %s", path, reward_folder);
}

/* The run stops with a checkpoint, which resumes to the bits of an undisturbed run; so does the same
 * trainer, when the program works again. */
START_TEST(a_program_that_fails_loses_nothing) {
    char out[256], command[1024];
    reward_step straight[6], again[6];
    hy_step_info info;
    write_program(command);
    temp_folder(out);
    const char *const *pairs =
        REWARDED("reward_program", command, "reward_seconds", "0.3", "steps", "6");
    first_rewards(pairs, 6, straight);
    hy_trainer *t = small_trainer(REWARDS_RUN, out, NULL, pairs);
    next_rewards(t, 3, again);
    set_failure(failures[_i].what, true);
    must_fail(hy_trainer_step(t, &info), failures[_i].status, failures[_i].why);
    must_fail(hy_trainer_run(t), failures[_i].status, "--resume continues it");
    hy_trainer_destroy(t);
    set_failure(failures[_i].what, false);
    t = resumed_rewards(out, pairs);
    next_rewards(t, 3, again + 3);
    ck_assert(are_same_steps(straight, again, 6));
    hy_trainer_destroy(t);
    remove_folder(out);
}
END_TEST

/* Scores in the journal are used again: the program is not asked. */
START_TEST(a_resumed_run_does_not_score_twice) {
    char out[256], command[1024];
    reward_step straight[5], again[3];
    hy_step_info info;
    write_program(command);
    temp_folder(out);
    const char *const *pairs = REWARDED("reward_program", command, "reward_seconds", "0.3");
    hy_trainer *t = small_trainer(REWARDS_RUN, out, NULL, pairs);
    next_rewards(t, 2, straight);
    must(hy_trainer_save(t));
    next_rewards(t, 3, straight + 2);
    hy_trainer_destroy(t);
    set_failure("die", true);
    t = resumed_rewards(out, pairs);
    next_rewards(t, 3, again);
    ck_assert(are_same_steps(straight + 2, again, 3));
    must_fail(hy_trainer_step(t, &info), HY_ERR_IO, "3");
    hy_trainer_destroy(t);
    remove_folder(out);
}
END_TEST

typedef struct validated {
    reward_step steps[7]; /* by number */
    int64_t breaks_at;    /* the program fails from then on; 0: never */
    double last;          /* reward of held-out rows */
    int64_t last_step;
} validated;

static void keep_step(void *user, const hy_step_info *info) {
    validated *v = user;
    v->steps[info->step] = step_of(info);
    if (info->step == v->breaks_at) set_failure("die", true);
}

static void keep_validation(void *user, const hy_eval_info *info) {
    validated *v = user;
    v->last = info->row_scores.val_reward;
    v->last_step = info->step;
}

static hy_status run_validated(const char *words, const char *out, const char *const *pairs,
                               validated *v) {
    hy_observer observer = {.user = v, .on_step = keep_step, .on_eval = keep_validation};
    hy_config *config = small_run(words, out, pairs);
    hy_trainer *t;
    must(hy_trainer_create(config, &observer, &t));
    hy_config_destroy(config);
    hy_status status = hy_trainer_run(t);
    hy_trainer_destroy(t);
    return status;
}

/* The resumed run repeats the validation, in the middle or at the end. */
START_TEST(a_program_that_fails_in_a_validation_loses_nothing) {
    char out[256], command[1024];
    validated straight = {0}, broken = {.breaks_at = _i ? 6 : 2};
    write_program(command);
    temp_folder(out);
    const char *const *pairs = REWARDED("reward_program", command, "reward_seconds", "0.3", "steps",
                                        "6", "eval_every", "2", "lr_warmup_steps", "1");
    must(run_validated(REWARDS_RUN, "none", pairs, &straight));
    must_fail(run_validated(REWARDS_RUN, out, pairs, &broken), HY_ERR_IO, "--resume continues it");
    ck_assert_int_lt(broken.last_step, broken.breaks_at);
    set_failure("die", false);
    broken.breaks_at = 0;
    must(run_validated(REWARDS_RUN " resume auto", out, pairs, &broken));
    ck_assert(are_same_steps(straight.steps, broken.steps, 7));
    ck_assert_int_eq(broken.last_step, 6);
    ck_assert_double_eq(broken.last, straight.last);
    remove_folder(out);
}
END_TEST

/* ---- stops ----------------------------------------------------------------------------------- */

typedef struct stopper {
    hy_trainer *trainer;
    int64_t done; /* steps */
    int64_t stops_after;
    bool has_stopped;
} stopper;

static void count_step(void *user, const hy_step_info *info) {
    ((stopper *)user)->done = info->step;
}

static void stop_there(void *user, const char *what, double share) {
    stopper *s = user;
    if (strcmp(what, "generating answers") != 0 || s->done < s->stops_after || share > 0.5) return;
    s->has_stopped = true;
    hy_trainer_request_stop(s->trainer);
}

/* In the middle of a rollout: the run saves itself, and nothing of its course changes. */
START_TEST(a_stop_breaks_off_a_rollout) {
    char out[256];
    reward_step straight[6], again[6];
    const char *const *pairs = REWARDED(LETTERS, "steps", "6", "iterations", _i ? "2" : "1",
                                        "rollout_streams", "2", "eval_every", "0");
    stopper s = {.stops_after = _i ? 2 : 3};
    hy_observer observer = {.user = &s, .on_step = count_step, .on_progress = stop_there};
    temp_folder(out);
    first_rewards(pairs, 6, straight);
    hy_config *config = small_run(REWARDS_RUN, out, pairs);
    must(hy_trainer_create(config, &observer, &s.trainer));
    hy_config_destroy(config);
    ck_assert_int_eq(hy_trainer_run(s.trainer), HY_STOPPED);
    ck_assert(s.has_stopped);
    ck_assert_int_eq(s.done, s.stops_after);
    hy_trainer_destroy(s.trainer);
    hy_trainer *t = resumed_rewards(out, pairs);
    int left = 6 - (int)s.done;
    next_rewards(t, left, again);
    ck_assert(are_same_steps(straight + s.done, again, left));
    hy_trainer_destroy(t);
    remove_folder(out);
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("trainer: rewards, programs");
    TCase *cases = tcase_create("programs");
    tcase_set_timeout(cases, 120);
    tcase_add_checked_fixture(cases, write_reward_rows, drop_reward_rows);
    tcase_add_loop_test(cases, a_program_that_fails_loses_nothing, 0, FAILURES);
    tcase_add_loop_test(cases, a_program_that_fails_in_a_validation_loses_nothing, 0, 2);
    tcase_add_test(cases, a_resumed_run_does_not_score_twice);
    tcase_add_loop_test(cases, a_stop_breaks_off_a_rollout, 0, 2);
    suite_add_tcase(suite, cases);
    return suite;
}

HY_TEST_MAIN(make_suite)
