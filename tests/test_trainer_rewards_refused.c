/* test_trainer_rewards_refused.c: runs that learn from rewards: rows and settings that are refused, and
 * what a resumed run may change. */
#include "reward_rows.h"

/* ---- resuming with other settings ------------------------------------------------------------ */

START_TEST(settings_that_may_not_change_are_named) {
    static const struct {
        const char *key, *value, *why; /* NULL: it may change */
    } cases[] = {
        {"iterations", "3", "grpo.iterations was 2 when this was saved and is 3 now"},
        {"samples", "8", "grpo.samples was 4 when this was saved and is 8 now"},
        {"prompts", "2", "grpo.prompts was 4 when this was saved and is 2 now"},
        {"answer_tokens", "29", "grpo.answer_tokens and grpo.reward decide which rows are kept"},
        {"rollout_temperature", "0.5", "grpo.rollout_temperature was 1 when this was saved"},
        {"reward", "regex:[n-z]", NULL},
        {"answer_tokens", "4", NULL},
        {"clip", "0.3", NULL},
    };
    char out[256];
    reward_step steps[3];
    temp_folder(out);
    hy_trainer *t =
        small_trainer(REWARDS_RUN, out, NULL, REWARDED(LETTERS, "iterations", "2", "steps", "9"));
    next_rewards(t, 3, steps);
    must(hy_trainer_save(t));
    hy_trainer_destroy(t);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        hy_config *config = small_run(
            REWARDS_RUN " resume auto", out,
            REWARDED(LETTERS, "iterations", "2", "steps", "9", cases[i].key, cases[i].value));
        if (cases[i].why) {
            must_fail(hy_trainer_create(config, NULL, &t), HY_ERR_INPUT, cases[i].why);
        } else {
            must(hy_trainer_create(config, NULL, &t));
            next_rewards(t, 3, steps);
            hy_trainer_destroy(t);
        }
        hy_config_destroy(config);
    }
    remove_folder(out);
}
END_TEST

/* A run on the texts of rows does not become one on rewards of answers to them. */
START_TEST(a_run_keeps_its_task) {
    char out[256];
    double losses[2];
    hy_trainer *t;
    temp_folder(out);
    t = small_trainer(REWARDS_RUN, out, NULL,
                      REWARDED("task", "next-token", "columns", "completion=answer"));
    next_losses(t, 2, losses);
    must(hy_trainer_save(t));
    hy_trainer_destroy(t);
    hy_config *config = small_run(REWARDS_RUN " resume auto", out, REWARDED(LETTERS));
    must_fail(hy_trainer_create(config, NULL, &t), HY_ERR_INPUT,
              "task was next-token when this was saved and is grpo now");
    hy_config_destroy(config);
    remove_folder(out);
}
END_TEST

/* After all updates with its answers were made, a run goes on with other sizes. */
START_TEST(sizes_may_change_between_rollouts) {
    char out[256];
    reward_step steps[4];
    hy_step_info info;
    temp_folder(out);
    hy_trainer *t = small_trainer(REWARDS_RUN, out, NULL, REWARDED(LETTERS, "iterations", "2"));
    next_rewards(t, 4, steps);
    must(hy_trainer_save(t));
    hy_trainer_destroy(t);
    t = resumed_rewards(out, REWARDED(LETTERS, "iterations", "2", "prompts", "2", "samples", "8"));
    for (int i = 0; i < 3; i++) must(hy_trainer_step(t, &info));
    ck_assert_double_eq(info.rewards.reward * 16, (double)(int)(info.rewards.reward * 16));
    hy_trainer_destroy(t);
    remove_folder(out);
}
END_TEST

/* ---- rows ------------------------------------------------------------------------------------ */

static const char *write_file(const char *name, const char *text) {
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", reward_folder, name);
    must(hy_file_write_atomic(path, text, strlen(text)));
    return path;
}

static void refuse(const char *const *pairs, const char *why) {
    hy_trainer *t;
    hy_config *config = small_run(REWARDS_RUN, "none", pairs);
    must_fail(hy_trainer_create(config, NULL, &t), HY_ERR_INPUT, why);
    hy_config_destroy(config);
}

/* Before the first step, not when a rollout reaches the row. */
START_TEST(rows_that_cannot_be_compared_are_named) {
    static const char good[] = "{\"prompt\": \"1+1=\", \"answer\": \"2\"}\n";
    static const struct {
        const char *reward, *row, *why;
    } cases[] = {
        {"exact", "{\"prompt\": \"a\"}", "rows.jsonl:2: the row has no answer"},
        {"exact", "{\"prompt\": \"a\", \"answer\": [1]}", "rows.jsonl:2: the row has no answer"},
        {"length:3; boxed", "{\"prompt\": \"a\"}", "reward boxed compares with; expected answer, "},
        {"number", "{\"prompt\": \"a\", \"answer\": \"two\"}", "\"two\" has no number"},
        {"contains", "{\"prompt\": \"a\", \"answer\": \" \"}", "rows.jsonl:2: reward contains"},
        {"number", "{\"answer\": \"2\"}", "rows.jsonl:2: \"prompt\" is missing"},
        {"number", "{\"prompt\": \"\", \"answer\": \"2\"}", "rows.jsonl:2: the prompt is empty"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[600];
        snprintf(text, sizeof text, "%s%s\n%s%s", good, cases[i].row, good, good);
        const char *path = write_file("rows.jsonl", text);
        refuse(PAIRS("data", path, "reward", cases[i].reward, "bad_rows", "stop"), cases[i].why);
        /* Skipped by default, with their number. */
        hy_trainer *t = small_trainer(REWARDS_RUN, "none", NULL,
                                      PAIRS("data", path, "reward", cases[i].reward, "prompts", "2",
                                            "val_fraction", "0", "steps", "3"));
        reward_step steps[3];
        next_rewards(t, 3, steps);
        hy_trainer_destroy(t);
        /* Other rewards take a row without an answer. */
        if (i > 1) continue;
        t = small_trainer(REWARDS_RUN, "none", NULL,
                          PAIRS("data", path, LETTERS, "bad_rows", "stop", "steps", "3"));
        hy_trainer_destroy(t);
    }
    refuse(PAIRS("data", write_file("none.jsonl", "{\"prompt\": \"a\"}\n{\"prompt\": \"b\"}\n"),
                 "reward", "exact"),
           "line 1: the row has no answer");
}
END_TEST

static void note_drops(void *user, hy_message_level level, const char *text) {
    if (level == HY_WARNING && strstr(text, "dropped ")) snprintf(user, 300, "%.299s", text);
}

/* The window has room for the prompt and answer_tokens: 27 + 6 tokens, of which the last is only a
 * target. */
START_TEST(prompts_that_fill_the_window_are_dropped_and_counted) {
    char text[300] = "", dropped[300] = "";
    for (int i = 26; i <= 29; i++)
        sprintf(text + strlen(text), "{\"prompt\": \"%.*s\"}\n", i,
                "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa");
    hy_observer observer = {.user = dropped, .on_message = note_drops};
    hy_trainer *t;
    hy_config *config = small_run(
        REWARDS_RUN, "none",
        PAIRS("data", write_file("long.jsonl", text), LETTERS, "steps", "2", "val_fraction", "0"));
    must(hy_trainer_create(config, &observer, &t));
    ck_assert_ptr_nonnull(strstr(dropped, "dropped 2 of 4 rows"));
    ck_assert_ptr_nonnull(strstr(dropped, "2: the prompt has more than 27 tokens"));
    reward_step steps[2];
    next_rewards(t, 2, steps);
    hy_trainer_destroy(t);
    hy_config_destroy(config);
}
END_TEST

/* ---- what is refused ------------------------------------------------------------------------- */

START_TEST(what_cannot_be_trained_is_named) {
    const struct {
        const char *const *pairs;
        const char *why;
    } cases[] = {
        {REWARDED("seed", "1"), "there are none; name a check"},
        {REWARDED("reward", "exakt"), "did you mean exact"},
        {REWARDED("reward", "regex:["), "grpo.reward: reward \"regex:[\""},
        {REWARDED(LETTERS, "answer_tokens", "32"), "grpo.answer_tokens is 32"},
        {REWARDED(LETTERS, "kl", "0.1"), "train only adapters (--lora), or use --kl 0"},
        {REWARDED(LETTERS, "step_tokens", "4096"), "train.step_tokens is 4096"},
        {REWARDED(LETTERS, "steps", "0", "tokens", "4096"), "train.tokens is 4096"},
        {REWARDED(LETTERS, "eval_batches", "2"), "set grpo.eval_prompts"},
        {REWARDED(LETTERS, "tail_share", "0.2"), "phases.tail_share is 0.2"},
        {REWARDED(LETTERS, "clip_high", "-0.5"), "grpo.clip_high = -0.5"},
        {REWARDED(LETTERS, "prompts", "60000", "samples", "9"), "are 540000 answers of a step"},
        {REWARDED(LETTERS, "loss_on", "all"), "loss_on is all"},
        {REWARDED(LETTERS, "stream_rows", "on"), "stream_rows is on"},
        {PAIRS("data", "builtin", LETTERS), "the built-in text has no prompts"},
        {PAIRS("data", write_file("text.txt", "once upon a time, once upon a time\n"), LETTERS),
         "own answers to prompts"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        refuse(cases[i].pairs, cases[i].why);
    hy_trainer *t;
    hy_config *config = small_run(REWARDS_RUN, "none", REWARDED(LETTERS));
    must_fail(hy_trainer_plan_ranks(config, 2, false, NULL, &t), HY_ERR_INPUT,
              "accepted: one rank");
    hy_config_destroy(config);
}
END_TEST

typedef struct heard {
    const char *wanted;
    int times;
} heard;

static void note_message(void *user, hy_message_level level, const char *text) {
    heard *h = user;
    (void)level;
    h->times += strstr(text, h->wanted) != NULL;
}

START_TEST(warnings_are_said_once) {
    const struct {
        const char *const *pairs;
        const char *wanted;
    } cases[] = {
        {REWARDED(LETTERS, "beta", "0.3"), "preference.beta has no effect: the task is grpo"},
        {REWARDED(LETTERS, "reference", "once"), "preference.reference has no effect"},
        {REWARDED(LETTERS, "steps", "0", "epochs", "0.1", "prompts", "48"),
         "a step answers 48 rows, but 0.1 epochs of this data have only 10"},
        {REWARDED("task", "next-token", "columns", "completion=answer", LETTERS),
         "grpo.reward has no effect: the task is next-token"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        heard h = {.wanted = cases[i].wanted};
        hy_observer observer = {.user = &h, .on_message = note_message};
        hy_trainer *t;
        hy_config *config = small_run(REWARDS_RUN, "none", cases[i].pairs);
        must(hy_trainer_create(config, &observer, &t));
        ck_assert_msg(h.times == 1, "said %d times: %s", h.times, h.wanted);
        hy_trainer_destroy(t);
        hy_config_destroy(config);
    }
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("trainer: rewards, what is refused");
    TCase *cases = tcase_create("refused");
    tcase_set_timeout(cases, 120);
    tcase_add_checked_fixture(cases, write_reward_rows, drop_reward_rows);
    tcase_add_test(cases, settings_that_may_not_change_are_named);
    tcase_add_test(cases, a_run_keeps_its_task);
    tcase_add_test(cases, sizes_may_change_between_rollouts);
    tcase_add_test(cases, rows_that_cannot_be_compared_are_named);
    tcase_add_test(cases, prompts_that_fill_the_window_are_dropped_and_counted);
    tcase_add_test(cases, what_cannot_be_trained_is_named);
    tcase_add_test(cases, warnings_are_said_once);
    suite_add_tcase(suite, cases);
    return suite;
}

HY_TEST_MAIN(make_suite)
