/* test_gpu_preference.c: pairs of answers on CUDA: the op that makes their losses, and runs. */
#include "gpu_rig.h"
#include "pair_rows.h"
#include "pairs_rig.h"
#include "small_run.h"

/* ---- the op ---------------------------------------------------------------------------------- */

START_TEST(losses_and_statistics) { check_pair_losses(&all_losses[_i], gpu_must_run); }
END_TEST

START_TEST(weights_are_slopes) { check_pair_weights(&all_losses[_i], gpu_must_run); }
END_TEST

/* ---- runs ------------------------------------------------------------------------------------ */

#define RUN                                                                                        \
    "model nano layers 2 width 64 heads 4 mlp_width 128 seq_len 128 batch_size 2 steps 40 "        \
    "grad_accum_steps 2 lr 3e-3 lr_warmup_steps 3 sample_tokens 0 predictor none val_fraction "    \
    "0.2 tune off tune_cache none "

static const char *card(void) {
    const char *device = getenv("HYBRID_GPU_TESTS_DEVICE");
    return device ? device : "cuda";
}

/* Policy and reference run the same ops, in every type. */
START_TEST(policy_and_reference_agree_to_the_bit) {
    static const char *const precision[] = {"fp32", "bf16", "bf16", "fp16", "fp8"};
    static const char *const frozen[] = {"auto", "auto", "nf4", "int8", "auto"};
    hy_step_info info;
    hy_trainer *t = small_trainer(RUN, "none", card(),
                                  PAIRS("data", pair_rows, "task", "dpo", "lora", "true",
                                        "precision", precision[_i], "frozen_dtype", frozen[_i],
                                        "recompute", _i % 2 ? "all" : "none"));
    must(hy_trainer_step(t, &info));
    ck_assert_double_eq(info.train_reward_chosen, 0);
    ck_assert_double_eq(info.train_reward_rejected, 0);
    ck_assert_double_eq_tol(info.loss, log(2), 1e-6);
    for (int i = 0; i < 8; i++) must(hy_trainer_step(t, &info));
    ck_assert_double_gt(info.train_reward_chosen, info.train_reward_rejected);
    hy_trainer_destroy(t);
}
END_TEST

START_TEST(losses_are_those_of_the_cpu) {
    static const char *const tasks[] = {"dpo", "ipo", "orpo", "simpo"};
    double here[10], there[10];
    for (int i = 0; i < 2; i++) {
        hy_trainer *t =
            small_trainer(RUN, "none", i ? "cpu" : card(),
                          PAIRS("data", pair_rows, "task", tasks[_i], "precision", "fp32"));
        next_losses(t, 10, i ? there : here);
        hy_trainer_destroy(t);
    }
    for (int i = 0; i < 10; i++)
        ck_assert_double_eq_tol(here[i], there[i], 1e-4 * (1 + fabs(there[i])));
}
END_TEST

START_TEST(a_run_resumes_bit_for_bit) {
    check_resume(
        RUN, card(),
        PAIRS("data", pair_rows, "task", "dpo", "lora", _i ? "true" : "false", "precision", "bf16"),
        5, 6);
}
END_TEST

START_TEST(places_change_no_bit) {
    double plain[6], other[6];
    const char *lora = _i ? "true" : "false";
    hy_trainer *t =
        small_trainer(RUN, "none", card(), PAIRS("data", pair_rows, "task", "dpo", "lora", lora));
    next_losses(t, 6, plain);
    hy_trainer_destroy(t);
    t = small_trainer(RUN, "none", card(),
                      PAIRS("data", pair_rows, "task", "dpo", "lora", lora, "recompute", "all",
                            "weights_place", "pinned", "optim_place", "pinned", "grads_place",
                            "pinned", "activations_place", "pinned"));
    next_losses(t, 6, other);
    hy_trainer_destroy(t);
    ck_assert_mem_eq(plain, other, sizeof plain);
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("cuda: pairs of answers");
    TCase *op = tcase_create("op"), *runs = tcase_create("runs");
    tcase_add_loop_test(op, losses_and_statistics, 0, ALL_LOSSES);
    tcase_add_loop_test(op, weights_are_slopes, 0, ALL_LOSSES);
    tcase_add_unchecked_fixture(runs, write_rows, drop_rows);
    tcase_add_loop_test(runs, policy_and_reference_agree_to_the_bit, 0, 5);
    tcase_add_loop_test(runs, losses_are_those_of_the_cpu, 0, 4);
    tcase_add_loop_test(runs, a_run_resumes_bit_for_bit, 0, 2);
    tcase_add_loop_test(runs, places_change_no_bit, 0, 2);
    suite_add_tcase(suite, op);
    suite_add_tcase(suite, runs);
    return suite;
}

GPU_TEST_MAIN(make_suite)
