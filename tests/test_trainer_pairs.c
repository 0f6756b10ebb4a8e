/* test_trainer_pairs.c: runs on pairs of answers: what a step reports, the two ways to compute the
 * reference, exact resume, and what a run refuses. */
#include <math.h>

#include "pair_rows.h"
#include "small_run.h"

#define PAIRS_RUN                                                                                  \
    "model nano layers 2 width 32 heads 4 mlp_width 48 seq_len 64 batch_size 2 steps 40 "          \
    "grad_accum_steps 2 lr 3e-3 lr_warmup_steps 3 sample_tokens 0 threads 2 device cpu "           \
    "predictor none val_fraction 0.2 "

static const char *const tasks[] = {"dpo", "ipo", "orpo", "simpo"};
enum { TASKS = 4 };

/* ---- the loss -------------------------------------------------------------------------------- */

START_TEST(a_run_learns_to_prefer_the_chosen_answer) {
    const char *const *with[] = {
        PAIRS("data", pair_rows, "task", tasks[_i]),
        PAIRS("data", pair_rows, "task", tasks[_i], "lora", "true", "lr", "1e-2")};
    for (int k = 0; k < 2; k++) {
        hy_eval_info before, after;
        hy_step_info info;
        hy_trainer *t = small_trainer(PAIRS_RUN, "none", NULL, with[k]);
        must(hy_trainer_evaluate(t, &before));
        ck_assert_int_eq(before.tokens, 24);
        ck_assert_int_eq(before.row_scores.pairs, 24);
        for (int i = 0; i < 30; i++) {
            must(hy_trainer_step(t, &info));
            if (i > 0 || _i >= 2) continue;
            /* With adapters off: to the bit. Sums that were computed once are rounded. */
            ck_assert_double_le(fabs(info.train_reward_chosen), k ? 0 : 1e-6);
            ck_assert_double_le(fabs(info.train_reward_rejected), k ? 0 : 1e-6);
        }
        ck_assert_double_gt(info.train_reward_chosen, info.train_reward_rejected);
        must(hy_trainer_evaluate(t, &after));
        ck_assert_double_lt(after.loss, before.loss);
        ck_assert_double_gt(after.row_scores.pair_accuracy, 0.9);
        ck_assert_double_gt(after.row_scores.reward_margin, before.row_scores.reward_margin);
        hy_trainer_destroy(t);
    }
}
END_TEST

/* Adapters off in every step, or computed once before the first: the same numbers. */
START_TEST(both_ways_to_compute_the_reference_agree) {
    double losses[2][6];
    for (int i = 0; i < 2; i++) {
        hy_trainer *t = small_trainer(PAIRS_RUN, "none", NULL,
                                      PAIRS("data", pair_rows, "task", tasks[_i], "lora", "true",
                                            "reference", i ? "once" : "inline"));
        next_losses(t, 6, losses[i]);
        hy_trainer_destroy(t);
    }
    double first = _i == 0 ? log(2) : 25;
    ck_assert_double_eq_tol(losses[0][0], first, 1e-6 * first);
    ck_assert(fabs(losses[0][5] - first) > 1e-5 * first);
    for (int k = 0; k < 6; k++) {
        ck_assert_double_eq_tol(losses[0][k], losses[1][k], 2e-6 * first);
    }
}
END_TEST

/* Policy and reference run the same ops, in narrow types and with a quantised base, too. */
START_TEST(in_every_type_policy_and_reference_agree_to_the_bit) {
    static const char *const precision[] = {"fp8", "bf16", "fp16", "bf16", "fp32"};
    static const char *const frozen[] = {"auto", "nf4", "auto", "int8", "nf4"};
    hy_step_info info;
    hy_trainer *t =
        small_trainer(PAIRS_RUN, "none", NULL,
                      PAIRS("data", pair_rows, "task", "dpo", "lora", "true", "precision",
                            precision[_i], "frozen_dtype", frozen[_i], "width", "64", "mlp_width",
                            "128", "lora_dropout", "0.1", "recompute", _i % 2 ? "all" : "none"));
    must(hy_trainer_step(t, &info));
    ck_assert_double_eq(info.train_reward_chosen, 0);
    ck_assert_double_eq(info.train_reward_rejected, 0);
    for (int i = 0; i < 6; i++) must(hy_trainer_step(t, &info));
    ck_assert_double_ne(info.train_reward_chosen, info.train_reward_rejected);
    hy_trainer_destroy(t);
}
END_TEST

/* The loss is a mean over the pairs of a step, however it is split. */
START_TEST(micro_batches_and_packing_weigh_pairs_alike) {
    double losses[2][4];
    static const char *const batch[] = {"4", "1"}, *const accum[] = {"1", "4"};
    for (int i = 0; i < 2; i++) {
        hy_trainer *t =
            small_trainer(PAIRS_RUN, "none", NULL,
                          PAIRS("data", pair_rows, "task", tasks[_i], "batch_size", batch[i],
                                "grad_accum_steps", accum[i], "dynamic_batch", "off"));
        next_losses(t, 4, losses[i]);
        hy_trainer_destroy(t);
    }
    for (int k = 0; k < 4; k++) {
        ck_assert_double_eq_tol(losses[0][k], losses[1][k], 1e-5 * fabs(losses[0][k]));
    }
}
END_TEST

START_TEST(places_and_recompute_change_no_bit) {
    double plain[4], other[4];
    const char *lora = _i % 2 ? "true" : "false", *task = tasks[_i / 2];
    hy_trainer *t = small_trainer(PAIRS_RUN, "none", NULL,
                                  PAIRS("data", pair_rows, "task", task, "lora", lora));
    next_losses(t, 4, plain);
    hy_trainer_destroy(t);
    t = small_trainer(PAIRS_RUN, "none", NULL,
                      PAIRS("data", pair_rows, "task", task, "lora", lora, "recompute", "all",
                            "weights_place", "pinned", "optim_place", "pinned", "grads_place",
                            "pinned", "activations_place", "pinned"));
    next_losses(t, 4, other);
    hy_trainer_destroy(t);
    ck_assert_mem_eq(plain, other, sizeof plain);
}
END_TEST

START_TEST(validations_and_jumps_work_on_pairs) {
    hy_eval_info first, second;
    hy_step_info info;
    hy_trainer *t = small_trainer(PAIRS_RUN, "none", NULL,
                                  PAIRS("data", pair_rows, "task", tasks[_i], "predictor", "line",
                                        "fork_budget", "0", "confidence_threshold", "0",
                                        "full_steps", "4", "correct_steps", "2", "predict_from",
                                        "0", "lora", _i == 0 ? "true" : "false"));
    bool has_jumped = false;
    for (int i = 0; i < 36 && !has_jumped; i++) {
        must(hy_trainer_step(t, &info));
        has_jumped = info.phase == HY_PREDICT;
    }
    ck_assert(has_jumped);
    must(hy_trainer_evaluate(t, &first));
    must(hy_trainer_evaluate(t, &second));
    ck_assert_double_eq(first.loss, second.loss);
    ck_assert_double_eq(first.row_scores.reward_margin, second.row_scores.reward_margin);
    hy_trainer_destroy(t);
}
END_TEST

/* ---- resuming -------------------------------------------------------------------------------- */

START_TEST(a_run_resumes_bit_for_bit) {
    const char *task = tasks[_i % TASKS];
    check_resume(PAIRS_RUN, NULL,
                 PAIRS("data", pair_rows, "task", task, "lora", _i < TASKS ? "false" : "true"), 5,
                 6);
}
END_TEST

static void save_and_end(char out[256]) {
    double losses[2];
    temp_folder(out);
    hy_trainer *t = small_trainer(PAIRS_RUN, out, NULL, PAIRS("data", pair_rows, "task", "dpo"));
    next_losses(t, 2, losses);
    must(hy_trainer_save(t));
    hy_trainer_destroy(t);
}

static void refuse_resume(const char *out, const char *key, const char *value, const char *why) {
    hy_trainer *t;
    hy_config *config = small_run(PAIRS_RUN " resume auto", out,
                                  PAIRS("data", pair_rows, "task", "dpo", key, value));
    must_fail(hy_trainer_create(config, NULL, &t), HY_ERR_INPUT, why);
    hy_config_destroy(config);
}

START_TEST(a_resumed_run_needs_its_reference) {
    char out[256], path[512];
    size_t size;
    char *data;
    save_and_end(out);
    snprintf(path, sizeof path, "%s/reference.bin", out);
    refuse_resume(out, "columns", "chosen=rejected,rejected=chosen", "is of other rows");
    must(hy_file_read(path, &data, &size));
    data[60] ^= 1;
    must(hy_file_write_atomic(path, data, size));
    refuse_resume(out, "seed", "1", "reference.bin is damaged");
    must(hy_file_write_atomic(path, data, size / 2));
    refuse_resume(out, "seed", "1", "reference.bin is damaged");
    free(data);
    ck_assert_int_eq(remove(path), 0);
    refuse_resume(out, "seed", "1", "reference.bin is missing");
    remove_folder(out);
}
END_TEST

/* A run that is overwritten leaves no reference to the next. */
START_TEST(the_reference_of_an_overwritten_run_is_removed) {
    char out[256], path[512];
    save_and_end(out);
    snprintf(path, sizeof path, "%s/reference.bin", out);
    ck_assert(hy_path_exists(path));
    hy_trainer *t = small_trainer(PAIRS_RUN, out, NULL,
                                  PAIRS("data", pair_rows, "task", "orpo", "overwrite", "true"));
    hy_trainer_destroy(t);
    ck_assert(!hy_path_exists(path));
    remove_folder(out);
}
END_TEST

/* Nothing has changed when a stop comes while the reference is measured. */
START_TEST(a_stop_breaks_off_the_reference) {
    hy_step_info info;
    hy_trainer *t = small_trainer(PAIRS_RUN, "none", NULL, PAIRS("data", pair_rows, "task", "dpo"));
    hy_trainer_request_stop(t);
    ck_assert_int_eq(hy_trainer_run(t), HY_STOPPED);
    ck_assert_int_ne(hy_trainer_step(t, &info), HY_ERR_STATE);
    hy_trainer_destroy(t);
}
END_TEST

/* ---- the model before training --------------------------------------------------------------- */

/* Of a mixture with weights, an epoch has some pairs often and others not at all. */
START_TEST(all_pairs_of_a_mixture_have_a_reference) {
    char data[1200];
    double losses[40];
    snprintf(data, sizeof data, "%s:9,%s:1", pair_rows, pair_rows);
    hy_trainer *t =
        small_trainer(PAIRS_RUN, "none", NULL, PAIRS("data", data, "task", "dpo", "lr", "1e-12"));
    next_losses(t, 40, losses);
    for (int i = 0; i < 40; i++) ck_assert_double_eq_tol(losses[i], log(2), 1e-5);
    hy_trainer_destroy(t);
}
END_TEST

/* Adapters that come from another run are a part of it. */
START_TEST(adapters_of_an_earlier_run_belong_to_the_reference) {
    char out[256];
    double losses[6];
    hy_step_info info;
    temp_folder(out);
    hy_trainer *t = small_trainer(PAIRS_RUN, out, NULL,
                                  PAIRS("data", pair_rows, "task", "simpo", "lora", "true"));
    next_losses(t, 6, losses);
    must(hy_trainer_save(t));
    hy_trainer_destroy(t);
    const char *const *next = PAIRS("data", pair_rows, "task", "dpo", "lora", "true", "init_from",
                                    out, "reference", _i ? "inline" : "auto");
    if (_i == 0) {
        t = small_trainer(PAIRS_RUN, "none", NULL, next);
        must(hy_trainer_step(t, &info));
        ck_assert_double_eq_tol(info.loss, log(2), 1e-6);
        hy_trainer_destroy(t);
    } else {
        hy_config *config = small_run(PAIRS_RUN, "none", next);
        must_fail(hy_trainer_create(config, NULL, &t), HY_ERR_INPUT, "use --reference once");
        hy_config_destroy(config);
    }
    remove_folder(out);
}
END_TEST

/* ---- what is refused ------------------------------------------------------------------------- */

START_TEST(what_cannot_be_trained_is_named) {
    const struct {
        const char *const *pairs;
        const char *why;
    } cases[] = {
        {PAIRS("data", pair_rows, "task", "dpo", "reference", "inline"),
         "train only adapters (--lora), or use --reference once"},
        {PAIRS("data", pair_rows, "task", "dpo", "lora", "true", "lora_modules", "norm",
               "reference", "inline"),
         "norm"},
        {PAIRS("data", pair_rows, "task", "dpo", "stream_rows", "on"), "--stream-rows off"},
        {PAIRS("data", "builtin", "task", "dpo"), "pairs"},
        {PAIRS("data", pair_rows), "--task dpo"},
        {PAIRS("data", pair_rows, "task", "simpo", "loss_on", "all"), "loss_on is all"},
        {PAIRS("data", pair_rows, "task", "simpo", "simpo_margin", "-0.5"), "accepted: -1"},
        {PAIRS("data", pair_rows, "task", "simpo", "beta", "1e-60"), "is too small"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        hy_trainer *t;
        hy_config *config = small_run(PAIRS_RUN, "none", cases[i].pairs);
        must_fail(hy_trainer_create(config, NULL, &t), HY_ERR_INPUT, cases[i].why);
        hy_config_destroy(config);
    }
}
END_TEST

START_TEST(names_of_other_trainers_are_known) {
    hy_config *config;
    must(hy_config_create(&config));
    static const char *const keys[][3] = {
        {"rl", "dpo", "task"},
        {"loss_type", "sigmoid", "task"},
        {"pref_beta", "0.3", "preference.beta"},
        {"simpo_gamma", "0.4", "preference.simpo_margin"},
        {"cpo_alpha", "0.2", "preference.likelihood"},
        {"precompute_ref_log_probs", "true", "preference.reference"},
    };
    static const char *const values[] = {"dpo", "dpo", "0.3", "0.4", "0.2", "once"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        const char *value, *origin;
        must(hy_config_set(config, keys[i][0], keys[i][1], HY_FROM_CALLER));
        must(hy_config_get(config, keys[i][2], &value, &origin));
        ck_assert_str_eq(value, values[i]);
    }
    hy_config_destroy(config);
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("trainer: pairs of answers");
    TCase *cases = tcase_create("pairs");
    tcase_set_timeout(cases, 120);
    tcase_add_checked_fixture(cases, write_rows, drop_rows);
    tcase_add_loop_test(cases, a_run_learns_to_prefer_the_chosen_answer, 0, TASKS);
    tcase_add_loop_test(cases, both_ways_to_compute_the_reference_agree, 0, 2);
    tcase_add_loop_test(cases, in_every_type_policy_and_reference_agree_to_the_bit, 0, 5);
    tcase_add_loop_test(cases, micro_batches_and_packing_weigh_pairs_alike, 0, TASKS);
    tcase_add_loop_test(cases, places_and_recompute_change_no_bit, 0, 2 * TASKS);
    tcase_add_loop_test(cases, validations_and_jumps_work_on_pairs, 0, TASKS);
    tcase_add_loop_test(cases, a_run_resumes_bit_for_bit, 0, 2 * TASKS);
    tcase_add_test(cases, a_resumed_run_needs_its_reference);
    tcase_add_test(cases, the_reference_of_an_overwritten_run_is_removed);
    tcase_add_test(cases, a_stop_breaks_off_the_reference);
    tcase_add_test(cases, all_pairs_of_a_mixture_have_a_reference);
    tcase_add_loop_test(cases, adapters_of_an_earlier_run_belong_to_the_reference, 0, 2);
    tcase_add_test(cases, what_cannot_be_trained_is_named);
    tcase_add_test(cases, names_of_other_trainers_are_known);
    suite_add_tcase(suite, cases);
    return suite;
}

HY_TEST_MAIN(make_suite)
