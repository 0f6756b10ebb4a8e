/* test_trainer_rewards.c: runs that learn from rewards: they learn, the same bits wherever state is
 * and however many answers are generated at once, exact resume, and what figures say. */
#include <math.h>

#include "base/json.h"
#include "reward_rows.h"
#include "trainer/resize.h"

/* ---- learning -------------------------------------------------------------------------------- */

/* Every loss, all weights and adapters: the rewarded letters become more frequent. */
START_TEST(a_run_learns) {
    static const char *const losses[] = {"dapo", "grpo", "dr-grpo", "dapo"};
    static const char *const scales[] = {"group", "batch", "none", "group"};
    hy_eval_info before, after;
    reward_step steps[40];
    double first = 0, last = 0;
    hy_trainer *t =
        small_trainer(REWARDS_RUN, "none", NULL,
                      REWARDED(LETTERS, "grpo_loss", losses[_i], "reward_scale", scales[_i], "lora",
                               _i == 3 ? "true" : "false", "lr", _i == 3 ? "5e-2" : "1e-2"));
    must(hy_trainer_evaluate(t, &before));
    next_rewards(t, 40, steps);
    must(hy_trainer_evaluate(t, &after));
    for (int i = 0; i < 5; i++) first += steps[i].reward / 5;
    for (int i = 35; i < 40; i++) last += steps[i].reward / 5;
    ck_assert_double_lt(first, 0.5);
    ck_assert_double_gt(last, first + (_i == 3 ? 0.1 : 0.3));
    ck_assert_int_eq(after.row_scores.rewarded_rows, 24);
    ck_assert_double_eq(after.loss, -after.row_scores.val_reward);
    if (_i < 3) /* the most likely letters of adapters change later */
        ck_assert_double_gt(after.row_scores.val_reward, before.row_scores.val_reward);
    hy_trainer_destroy(t);
}
END_TEST

/* Attention in all layers, or linear attention in the first. */
static const char *const families[] = {"auto", "qwen3_5_text"};
static const char *const family_options[] = {
    "", "{\"linear_num_key_heads\": 2, \"linear_num_value_heads\": 4, \"linear_key_head_dim\": 12, "
        "\"linear_value_head_dim\": 10, \"full_attention_interval\": 2}"};
#define FAMILY(i) "architecture", families[i], "arch_options", family_options[i]

/* Decoder and training compute the same probabilities, up to rounding. */
START_TEST(decoder_and_training_agree) {
    reward_step steps[6];
    first_rewards(REWARDED(LETTERS, FAMILY(_i)), 6, steps);
    for (int i = 0; i < 6; i++) ck_assert_double_lt(steps[i].apart, 1e-5);
    for (int i = 0; i < 6; i++) ck_assert_double_gt(steps[i].entropy, 1);
}
END_TEST

/* ---- the same bits --------------------------------------------------------------------------- */

START_TEST(the_number_of_streams_changes_no_bit) {
    static const char *const streams[] = {"1", "4", "8", "0"};
    reward_step plain[5], other[5];
    first_rewards(REWARDED(LETTERS, FAMILY(_i), "rollout_streams", "3"), 5, plain);
    for (int i = 0; i < 4; i++) {
        first_rewards(REWARDED(LETTERS, FAMILY(_i), "rollout_streams", streams[i]), 5, other);
        ck_assert(are_same_steps(plain, other, 5));
    }
    first_rewards(REWARDED(LETTERS, FAMILY(_i), "seed", "4"), 5, other);
    ck_assert(!are_same_steps(plain, other, 5));
}
END_TEST

START_TEST(places_and_recompute_change_no_bit) {
    reward_step plain[4], other[4];
    const char *lora = _i ? "true" : "false";
    first_rewards(REWARDED(LETTERS, "lora", lora), 4, plain);
    first_rewards(REWARDED(LETTERS, "lora", lora, "recompute", "all", "weights_place", "pinned",
                           "optim_place", "pinned", "grads_place", "pinned", "activations_place",
                           "pinned"),
                  4, other);
    ck_assert(are_same_steps(plain, other, 4));
    if (_i) return;
    first_rewards(REWARDED(LETTERS, "weights_place", "disk", "master_place", "disk", "grads_place",
                           "disk", "optim_place", "disk", "offload_folder", reward_folder),
                  4, other);
    ck_assert(are_same_steps(plain, other, 4));
}
END_TEST

static bool has_room_for_answers(const hy_trainer *t) {
    hy_plan_facts f = facts_of(t);
    for (int i = 0; i < f.reason_count; i++) {
        if (strstr(f.reasons[i], "answers are generated there")) return true;
    }
    return false;
}

#define DEEP "layers", "4", "answer_tokens", "20", "batch_size", "2"

/* With little memory, a plan may leave room for answers beside a copy of the weights. */
START_TEST(room_for_answers_changes_no_bit) {
    static const char *const limits[] = {"900k", "1000k", "1100k", "1200k", "1400k"};
    reward_step plain[3], other[3];
    int with_room = 0;
    first_rewards(REWARDED(LETTERS, DEEP), 3, plain);
    for (int i = 0; i < 5; i++) {
        hy_trainer *t = small_trainer(REWARDS_RUN, "none", NULL,
                                      REWARDED(LETTERS, DEEP, "max_gpu_mem", limits[i]));
        with_room += has_room_for_answers(t);
        ck_assert_double_gt(facts_of(t).rollout_seconds, 0);
        next_rewards(t, 3, other);
        ck_assert(are_same_steps(plain, other, 3));
        hy_trainer_destroy(t);
    }
    ck_assert_int_gt(with_room, 0);
}
END_TEST

/* Smaller micro-batches because memory is short leave no room, so they do free memory. */
START_TEST(room_for_answers_is_given_up_when_memory_is_short) {
    static const char *const limits[] = {"900k", "1000k", "1100k", "1200k", "1400k"};
    reward_step steps[2];
    int tried = 0;
    for (int i = 0; i < 5; i++) {
        hy_plan smaller;
        hy_trainer *t = small_trainer(REWARDS_RUN, "none", NULL,
                                      REWARDED(LETTERS, DEEP, "max_gpu_mem", limits[i]));
        uint64_t before = facts_of(t).vram_bytes;
        if (has_room_for_answers(t)) {
            must(hy_trainer_work_at(t, 1, &smaller));
            ck_assert_uint_eq(smaller.area, 0);
            hy_trainer_give_up_room(t);
            must(hy_trainer_resize(t, 1, "a test"));
            ck_assert_uint_eq(t->engine->plan->area, 0);
            ck_assert_uint_lt(facts_of(t).vram_bytes, before);
            next_rewards(t, 2, steps);
            tried++;
        }
        hy_trainer_destroy(t);
    }
    ck_assert_int_gt(tried, 0);
}
END_TEST

/* Loss and gradient of a step are sums over its answers, however they are split. */
START_TEST(micro_batches_weigh_answers_alike) {
    reward_step plain[3], other[3];
    first_rewards(REWARDED(LETTERS, "batch_size", "1", "dynamic_batch", "off"), 3, plain);
    first_rewards(REWARDED(LETTERS, "batch_size", "4", "dynamic_batch", "off"), 3, other);
    for (int i = 0; i < 3; i++) {
        ck_assert_double_eq(plain[i].reward, other[i].reward);
        ck_assert_double_eq_tol(plain[i].grad_norm, other[i].grad_norm, 1e-4 * plain[i].grad_norm);
    }
}
END_TEST

/* ---- killed and resumed ---------------------------------------------------------------------- */

/* A run that is killed: its newest checkpoint is some steps old, and the journal is ahead of it. With
 * iterations the checkpoint is also between two steps with the same answers. */
START_TEST(a_killed_run_resumes_bit_for_bit) {
    static const char *const iterations[] = {"1", "2", "2", "3", "3"};
    static const int saved_at[] = {3, 4, 5, 4, 5};
    const char *const *pairs = REWARDED(LETTERS, "iterations", iterations[_i], "lora",
                                        _i % 2 ? "true" : "false", "kl", _i % 2 ? "0.1" : "0");
    reward_step straight[10], again[10];
    char out[256];
    temp_folder(out);
    first_rewards(pairs, 10, straight);
    hy_trainer *t = small_trainer(REWARDS_RUN, out, NULL, pairs);
    next_rewards(t, saved_at[_i], again);
    ck_assert(are_same_steps(straight, again, saved_at[_i]));
    must(hy_trainer_save(t));
    next_rewards(t, 2, again);
    hy_trainer_destroy(t);
    t = resumed_rewards(out, pairs);
    next_rewards(t, 10 - saved_at[_i], again);
    ck_assert(are_same_steps(straight + saved_at[_i], again, 10 - saved_at[_i]));
    hy_trainer_destroy(t);
    remove_folder(out);
}
END_TEST

/* Rewards that are known go along, so nothing is scored twice. */
START_TEST(a_run_that_goes_on_elsewhere_takes_its_rewards_along) {
    const char *const *pairs = REWARDED(LETTERS);
    char out[256], other[256], words[1100], path[512], *text;
    reward_step steps[3];
    size_t size;
    temp_folder(out);
    temp_folder(other);
    hy_trainer *t = small_trainer(REWARDS_RUN, out, NULL, pairs);
    next_rewards(t, 3, steps);
    must(hy_trainer_save(t));
    hy_trainer_destroy(t);
    snprintf(words, sizeof words, "%s resume %s", REWARDS_RUN, out);
    t = small_trainer(words, other, NULL, pairs);
    next_rewards(t, 1, steps);
    hy_trainer_destroy(t);
    snprintf(path, sizeof path, "%s/rewards.jsonl", other);
    must(hy_file_read(path, &text, &size));
    for (int i = 0; i < 4; i++) {
        char record[32];
        snprintf(record, sizeof record, "{\"rollout\":%d,", i);
        ck_assert_ptr_nonnull(strstr(text, record));
    }
    free(text);
    remove_folder(out);
    remove_folder(other);
}
END_TEST

/* ---- what counts ----------------------------------------------------------------------------- */

/* Without weight decay a step changes nothing if all answers to each row have the same reward. */
START_TEST(groups_of_equal_reward_contribute_nothing) {
    hy_step_info info;
    reward_step steps[4], kept[4];
    hy_trainer *t = small_trainer(REWARDS_RUN, "none", NULL,
                                  REWARDED("reward", "regex:^this is never written$"));
    for (int i = 0; i < 2; i++) {
        must(hy_trainer_step(t, &info));
        ck_assert_double_eq(info.rewards.groups_equal, 1);
        ck_assert_double_eq(info.rewards.reward_deviation, 0);
        ck_assert_double_eq(info.grad_norm, 0);
        ck_assert_double_eq(info.loss, 0);
    }
    hy_trainer_destroy(t);
    /* A constant is added to all rewards: only differences count. */
    first_rewards(REWARDED(LETTERS), 4, steps);
    first_rewards(REWARDED("reward", "regex:[a-m]; length*2:100"), 4, kept);
    for (int i = 0; i < 4; i++) {
        ck_assert_double_eq_tol(kept[i].reward, steps[i].reward + 2, 1e-12);
        ck_assert_double_eq(kept[i].grad_norm, steps[i].grad_norm);
    }
}
END_TEST

START_TEST(some_equal_groups_are_counted) {
    hy_step_info info;
    double equal = 0;
    hy_trainer *t = small_trainer(REWARDS_RUN, "none", NULL, REWARDED(LETTERS));
    for (int i = 0; i < 6; i++) {
        must(hy_trainer_step(t, &info));
        double rows = info.rewards.groups_equal * 4;
        ck_assert_double_eq(rows, floor(rows));
        if (rows < 4) ck_assert_double_gt(info.grad_norm, 0);
        equal += rows;
    }
    ck_assert(equal > 0 && equal < 24);
    hy_trainer_destroy(t);
}
END_TEST

/* Answers of one token are nearly all cut: then there is nothing to learn from. */
START_TEST(answers_that_were_cut_can_be_skipped) {
    for (int skips = 0; skips < 2; skips++) {
        int all_cut = 0;
        hy_trainer *t = small_trainer(REWARDS_RUN, "none", NULL,
                                      REWARDED("reward", "regex:[a-z]", "answer_tokens", "1",
                                               "skip_cut", skips ? "true" : "false"));
        for (int i = 0; i < 12; i++) {
            hy_step_info info;
            must(hy_trainer_step(t, &info));
            if (info.rewards.answers_ended > 0 || info.rewards.groups_equal == 1) continue;
            all_cut++;
            if (skips)
                ck_assert_double_eq(info.grad_norm, 0);
            else
                ck_assert_double_gt(info.grad_norm, 0);
        }
        ck_assert_int_gt(all_cut, 0);
        hy_trainer_destroy(t);
    }
}
END_TEST

/* At the start the adapters are the model before training. */
START_TEST(the_divergence_begins_at_zero_and_is_kept_small) {
    static const char *const weights[] = {"0.0001", "10"};
    double last[2];
    for (int k = 0; k < 2; k++) {
        hy_step_info info;
        hy_trainer *t =
            small_trainer(REWARDS_RUN, "none", NULL,
                          REWARDED(LETTERS, "lora", "true", "lr", "5e-3", "kl", weights[k]));
        must(hy_trainer_step(t, &info));
        ck_assert_double_eq_tol(info.rewards.kl, 0, 1e-9);
        for (int i = 0; i < 24; i++) must(hy_trainer_step(t, &info));
        last[k] = info.rewards.kl;
        hy_trainer_destroy(t);
    }
    ck_assert_double_gt(last[0], 1e-3);
    ck_assert_double_lt(last[1], last[0] / 2);
}
END_TEST

/* ---- what a run shows ------------------------------------------------------------------------ */

START_TEST(metrics_have_the_figures_of_rewards) {
    static const char *const keys[] = {
        "reward",          "reward_deviation", "answer_tokens", "answers_ended", "groups_equal",
        "rollout_seconds", "rollout_speed",    "clipped",       "apart",         "entropy"};
    char out[256], path[512], *text;
    size_t size;
    int lines = 0;
    temp_folder(out);
    hy_trainer *t =
        small_trainer(REWARDS_RUN " eval_every 2", out, NULL, REWARDED(LETTERS, "steps", "4"));
    must(hy_trainer_run(t));
    hy_trainer_destroy(t);
    snprintf(path, sizeof path, "%s/metrics.jsonl", out);
    must(hy_file_read(path, &text, &size));
    ck_assert_ptr_nonnull(strstr(text, "\"val_reward\":"));
    for (char *rest = NULL, *line = strtok_r(text, "\n", &rest); line;
         line = strtok_r(NULL, "\n", &rest)) {
        hy_json *json;
        must(hy_json_parse(line, strlen(line), "metrics", &json));
        bool is_step = hy_json_get(hy_json_root(json), "grad_norm") != NULL;
        for (size_t i = 0; is_step && i < sizeof keys / sizeof keys[0]; i++) {
            double value;
            ck_assert_msg(hy_json_as_double(hy_json_get(hy_json_root(json), keys[i]), &value),
                          "%s is missing", keys[i]);
        }
        lines += is_step;
        hy_json_free(json);
    }
    ck_assert_int_eq(lines, 4);
    free(text);
    remove_folder(out);
}
END_TEST

START_TEST(a_plan_has_the_memory_of_rollouts) {
    char *text;
    hy_trainer *t = plan_words(REWARDS_RUN, REWARDED(LETTERS));
    must(hy_trainer_plan_json(t, &text));
    const char *phase = strstr(text, "\"rollout\"");
    ck_assert_ptr_nonnull(phase);
    ck_assert_ptr_nonnull(strstr(phase, "weights"));
    hy_free(text);
    hy_trainer_destroy(t);
    t = plan_words(SMALL_RUN, NULL);
    must(hy_trainer_plan_json(t, &text));
    ck_assert_ptr_null(strstr(text, "\"rollout\""));
    hy_free(text);
    hy_trainer_destroy(t);
}
END_TEST

/* Steps that use the answers of an earlier one took no time for generating them. */
START_TEST(the_time_of_a_rollout_counts_once) {
    hy_step_info info;
    hy_trainer *t = small_trainer(REWARDS_RUN, "none", NULL, REWARDED(LETTERS, "iterations", "2"));
    for (int i = 0; i < 6; i++) {
        must(hy_trainer_step(t, &info));
        ck_assert(i % 2 ? info.rewards.rollout_seconds == 0 : info.rewards.rollout_seconds > 0);
        ck_assert(isnan(info.rewards.kl)); /* there is no penalty, so it is not computed */
    }
    /* The caller's measurement is not the run's: a request to stop does not break it off. */
    hy_trainer_request_stop(t);
    must(hy_trainer_evaluate(t, NULL));
    hy_trainer_destroy(t);
}
END_TEST

/* ---- held-out rows --------------------------------------------------------------------------- */

/* By default a validation of few steps answers few rows, whatever is held out. */
START_TEST(validations_answer_as_many_rows_as_asked) {
    static const char *const asked[] = {"-1", "0", "5", "400"};
    static const int answered[] = {64, 120, 5, 120};
    hy_eval_info info;
    for (int i = 0; i < 4; i++) {
        hy_trainer *t = small_trainer(
            REWARDS_RUN, "none", NULL,
            REWARDED(LETTERS, "val_data", reward_rows, "steps", "4", "eval_prompts", asked[i]));
        must(hy_trainer_evaluate(t, &info));
        ck_assert_int_eq(info.row_scores.rewarded_rows, answered[i]);
        hy_trainer_destroy(t);
    }
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("trainer: rewards");
    TCase *cases = tcase_create("rewards");
    tcase_set_timeout(cases, 120);
    tcase_add_checked_fixture(cases, write_reward_rows, drop_reward_rows);
    tcase_add_loop_test(cases, a_run_learns, 0, 4);
    tcase_add_loop_test(cases, decoder_and_training_agree, 0, 2);
    tcase_add_loop_test(cases, the_number_of_streams_changes_no_bit, 0, 2);
    tcase_add_test(cases, room_for_answers_changes_no_bit);
    tcase_add_test(cases, room_for_answers_is_given_up_when_memory_is_short);
    tcase_add_loop_test(cases, places_and_recompute_change_no_bit, 0, 2);
    tcase_add_test(cases, micro_batches_weigh_answers_alike);
    tcase_add_loop_test(cases, a_killed_run_resumes_bit_for_bit, 0, 5);
    tcase_add_test(cases, a_run_that_goes_on_elsewhere_takes_its_rewards_along);
    tcase_add_test(cases, groups_of_equal_reward_contribute_nothing);
    tcase_add_test(cases, some_equal_groups_are_counted);
    tcase_add_test(cases, answers_that_were_cut_can_be_skipped);
    tcase_add_test(cases, the_divergence_begins_at_zero_and_is_kept_small);
    tcase_add_test(cases, metrics_have_the_figures_of_rewards);
    tcase_add_test(cases, a_plan_has_the_memory_of_rollouts);
    tcase_add_test(cases, the_time_of_a_rollout_counts_once);
    tcase_add_test(cases, validations_answer_as_many_rows_as_asked);
    suite_add_tcase(suite, cases);
    return suite;
}

HY_TEST_MAIN(make_suite)
