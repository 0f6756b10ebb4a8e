/* test_gpu_families.c: the folders of tests/golden/families on CUDA: logits, loss, gradients and
 * greedy tokens in fp32, loss and gradients in bf16. */
#include "gpu_harness.h"

#include "golden/families.h"

/* fp32 adds in another order than PyTorch's double; attention's exponentials are the card's own. */
#define BOUND 5e-5
#define BF16_LOSS 0.02
#define BF16_GRADIENT 0.12

START_TEST(logits_are_those_of_transformers) {
    golden g;
    open_family_on(&g, cases[_i], folder_of(cases[_i]), gpu.backend, HY_F32);
    double far = logits_far(&g);
    ck_assert_msg(far <= BOUND, "%s: the logits are off by %.2e", g.name, far);
    close_golden(&g);
}
END_TEST

static void check_gradients(hy_dtype dtype, const char *name, int recompute, double loss_bound,
                            double bound) {
    golden g;
    trial t;
    char folder[256], out[300], worst[HY_HF_NAME_MAX] = "";
    open_family_on(&g, name, folder_of(name), gpu.backend, dtype);
    snprintf(out, sizeof out, "%s/gradients", temp_folder(folder));
    open_trial(&t, &g, recompute, 2, true);
    train(&t);
    double loss = loss_distance(&g);
    ck_assert_msg(loss <= loss_bound, "%s in %s: the loss is off by %.2e", g.name,
                  hy_dtype_name(dtype), loss);
    must(write_store(&g, &g.grads, NULL, HY_F32, out));
    double far = gradients_far(&g, out, worst);
    ck_assert_msg(far <= bound, "%s in %s, recompute %d: the gradient of %s is off by %.2e", g.name,
                  hy_dtype_name(dtype), recompute, worst, far);
    close_trial(&t);
    remove_folder(folder);
    close_golden(&g);
}

START_TEST(loss_and_gradients_are_those_of_pytorch) {
    check_gradients(HY_F32, cases[_i], 0, BOUND, BOUND);
    check_gradients(HY_F32, cases[_i], HY_KEEP_ALL, BOUND, BOUND);
    check_gradients(HY_BF16, cases[_i], 0, BF16_LOSS, BF16_GRADIENT);
}
END_TEST

START_TEST(greedy_tokens_are_those_of_transformers) {
    golden g;
    open_family_on(&g, cases[_i], folder_of(cases[_i]), gpu.backend, HY_F32);
    check_greedy(&g);
    close_golden(&g);
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("cuda: families");
    TCase *all = tcase_create("transformers");
    if (hy_dir_list(folder_of(""), &cases, &case_count) != HY_OK) exit(EXIT_FAILURE);
    tcase_add_loop_test(all, logits_are_those_of_transformers, 0, (int)case_count);
    tcase_add_loop_test(all, loss_and_gradients_are_those_of_pytorch, 0, (int)case_count);
    tcase_add_loop_test(all, greedy_tokens_are_those_of_transformers, 0, (int)case_count);
    suite_add_tcase(suite, all);
    return suite;
}

GPU_TEST_MAIN(make_suite)
