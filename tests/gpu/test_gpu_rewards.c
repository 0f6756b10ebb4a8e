/* test_gpu_rewards.c: answers with rewards on CUDA: the op that makes their losses, and runs. */
#include "base/text.h"
#include "gpu_rig.h"
#include "policy_rig.h"
#include "small_run.h"

START_TEST(losses_weights_and_statistics) { check_policy(&all_policies[_i], gpu_must_run); }
END_TEST

/* ---- runs ------------------------------------------------------------------------------------ */

#define RUN                                                                                        \
    "model nano layers 2 width 64 heads 4 mlp_width 128 seq_len 48 steps 60 lr 2e-3 "              \
    "lr_warmup_steps 3 sample_tokens 0 val_fraction 0.2 tune off tune_cache none prompts 8 "       \
    "samples 8 answer_tokens 12 "

static char folder[256], rows[512];

static void make_rows(void) {
    hy_text text = {0};
    temp_folder(folder);
    for (int i = 0; i < 60; i++) hy_text_addf(&text, "{\"prompt\": \"%d+%d?\"}\n", i % 10, i % 7);
    snprintf(rows, sizeof rows, "%s/prompts.jsonl", folder);
    must(hy_file_write_atomic(rows, text.data, text.size));
    hy_text_free(&text);
}

static void drop_rows(void) { remove_folder(folder); }

static const char *card(void) {
    const char *device = getenv("HYBRID_GPU_TESTS_DEVICE");
    return device ? device : "cuda";
}

#define REWARDED "data", rows, "task", "grpo", "reward", "regex:[a-e]"

#define LINEAR_FIRST                                                                               \
    "{\"linear_num_key_heads\": 2, \"linear_num_value_heads\": 4, \"linear_key_head_dim\": 32, "   \
    "\"linear_value_head_dim\": 32, \"full_attention_interval\": 2}"

/* Decoder and training compute the same log-probabilities, up to rounding, in every type. */
START_TEST(a_run_learns) {
    static const char *const precision[] = {"fp32", "bf16", "bf16", "fp16", "fp8", "fp32", "bf16"};
    static const char *const frozen[] = {"auto", "auto", "nf4", "auto", "auto", "auto", "auto"};
    static const double apart[] = {1e-5, 0.02, 0.02, 0.01, 0.2, 1e-5, 0.02};
    bool is_linear = _i >= 5;
    hy_step_info info;
    hy_trainer *t = small_trainer(RUN, "none", card(),
                                  PAIRS(REWARDED, "lora", _i == 2 ? "true" : "false", "precision",
                                        precision[_i], "frozen_dtype", frozen[_i], "architecture",
                                        is_linear ? "qwen3_5_text" : "auto", "arch_options",
                                        is_linear ? LINEAR_FIRST : ""));
    double first = 0, last = 0;
    for (int i = 0; i < 60; i++) {
        must(hy_trainer_step(t, &info));
        ck_assert_double_lt(info.rewards.apart, apart[_i]);
        ck_assert_double_eq(info.rewards.clipped, 0);
        if (i < 5) first += info.rewards.reward / 5;
        if (i >= 55) last += info.rewards.reward / 5;
    }
    ck_assert_double_gt(last, first + 0.1);
    hy_trainer_destroy(t);
}
END_TEST

START_TEST(a_run_resumes_bit_for_bit) {
    check_resume(RUN, card(),
                 PAIRS(REWARDED, "lora", _i == 1 ? "true" : "false", "kl", _i == 1 ? "0.1" : "0",
                       "iterations", _i == 2 ? "3" : "1"),
                 4, 5);
}
END_TEST

/* Weights in host memory, and fewer streams, change no bit. */
START_TEST(places_change_no_bit) {
    double plain[6], other[6];
    hy_trainer *t = small_trainer(RUN, "none", card(), PAIRS(REWARDED, "batch_size", "8"));
    next_losses(t, 6, plain);
    hy_trainer_destroy(t);
    t = small_trainer(RUN, "none", card(),
                      PAIRS(REWARDED, "batch_size", "8", "weights_place", "pinned", "optim_place",
                            "pinned", "recompute", _i ? "all" : "none", "rollout_streams",
                            _i ? "3" : "0"));
    next_losses(t, 6, other);
    hy_trainer_destroy(t);
    ck_assert_mem_eq(plain, other, sizeof plain);
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("cuda: answers with rewards");
    TCase *op = tcase_create("op"), *runs = tcase_create("runs");
    tcase_add_loop_test(op, losses_weights_and_statistics, 0, ALL_POLICIES);
    tcase_add_unchecked_fixture(runs, make_rows, drop_rows);
    tcase_add_loop_test(runs, a_run_learns, 0, 7);
    tcase_add_loop_test(runs, a_run_resumes_bit_for_bit, 0, 3);
    tcase_add_loop_test(runs, places_change_no_bit, 0, 2);
    suite_add_tcase(suite, op);
    suite_add_tcase(suite, runs);
    return suite;
}

GPU_TEST_MAIN(make_suite)
