/* test_kernels_cards.c: cards by name, and the driver's library where there is none. */
#include "harness.h"

#include <math.h>

#include "kernels/card_backend.h"
#include "kernels/card_list.h"
#include "kernels/nvml.h"

START_TEST(cards_are_known_by_the_names_the_driver_gives) {
    static const struct {
        const char *name;
        double teraflops;
    } cards[] = {
        {"NVIDIA H200", 989.4},
        {"NVIDIA H100 80GB HBM3", 989.4},
        {"NVIDIA H100 PCIe", 756},
        {"NVIDIA A100-SXM4-80GB", 312},
        {"NVIDIA A10", 125},
        {"NVIDIA A10G", 70},
        {"NVIDIA L4", 121},
        {"NVIDIA L40", 181.05},
        {"NVIDIA L40S", 362.05},
        {"Tesla T4", 65},
        {"NVIDIA GeForce RTX 5080", 112.6},
        {"NVIDIA GeForce RTX 5070", 61.7},
        {"NVIDIA GeForce RTX 5070 Ti", 87.9},
        {"NVIDIA GeForce RTX 4070 Ti SUPER", 88.2},
        {"NVIDIA GeForce RTX 4070 SUPER", 71.0},
        {"NVIDIA GeForce RTX 3090", 71.2},
        {"NVIDIA GeForce RTX 2060 SUPER", 28.7},
        {"NVIDIA GeForce RTX 4090 D", 147.1},
        {"NVIDIA GeForce RTX 5090 D", 209.5},
        {"NVIDIA H100 NVL", 835.5},
        {"NVIDIA H200 NVL", 835.5},
        {"NVIDIA RTX A5000", 111.1},
        {"NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 503.8},
        {"NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", 438.9},
        {"NVIDIA RTX PRO 6000 Blackwell Server Edition", 480},
        {"NVIDIA RTX 6000 Ada Generation", 364.2},
    };
    for (size_t i = 0; i < sizeof cards / sizeof cards[0]; i++) {
        double peak = hy_card_peak(cards[i].name);
        ck_assert_msg(peak == 1e12 * cards[i].teraflops, "%s: %g", cards[i].name, peak);
    }
}
END_TEST

START_TEST(what_is_not_known_has_no_peak) {
    static const char *const names[] = {"",
                                        "CPU: Neoverse-V1",
                                        "NVIDIA GeForce GTX 1080",
                                        "NVIDIA GeForce RTX 4090 Laptop GPU",
                                        "NVIDIA GeForce RTX 2060 with Max-Q Design",
                                        "NVIDIA GeForce RTX 5080 SUPER",
                                        "NVIDIA GeForce RTX 5080 Super",
                                        "NVIDIA GeForce RTX 50800"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        ck_assert_double_eq(hy_card_peak(names[i]), 0);
    }
}
END_TEST

/* The figures on the page on which NVIDIA compares GeForce cards, for sparse fp8 (RTX 40) and fp4
 * (RTX 50). */
START_TEST(rates_agree_with_the_ai_tops_that_nvidia_gives) {
    static const struct {
        const char *name;
        double tops, times;
    } cards[] = {
        {"RTX 5090", 3352, 16},        {"RTX 5080", 1801, 16},     {"RTX 5070 Ti", 1406, 16},
        {"RTX 5070", 988, 16},         {"RTX 5060 Ti", 759, 16},   {"RTX 5060", 614, 16},
        {"RTX 4090", 1321, 8},         {"RTX 4080 SUPER", 836, 8}, {"RTX 4080", 780, 8},
        {"RTX 4070 Ti SUPER", 706, 8}, {"RTX 4070 Ti", 641, 8},    {"RTX 4070 SUPER", 568, 8},
        {"RTX 4070", 466, 8},          {"RTX 4060 Ti", 353, 8},    {"RTX 4060", 242, 8},
    };
    for (size_t i = 0; i < sizeof cards / sizeof cards[0]; i++) {
        double rate = hy_card_peak(cards[i].name) / 1e12, tops = cards[i].times * rate;
        ck_assert_msg(fabs(tops - cards[i].tops) < 0.002 * tops, "%s: %g", cards[i].name, tops);
    }
}
END_TEST

/* Cards with nearly the same name, of which one number differs. */
START_TEST(a_longer_name_is_another_card) {
    static const struct {
        const char *name;
        int32_t mib;
        double gigabytes_per_second;
    } cases[] = {
        {"NVIDIA A100-SXM4-80GB", 81920, 2039},
        {"NVIDIA A100 80GB PCIe", 81920, 1935},
        {"NVIDIA A100-PCIE-40GB", 40960, 1555},
        {"NVIDIA A800 80GB PCIe", 81920, 1935},
        {"NVIDIA GeForce RTX 2060", 6144, 336},
        {"rtx2060super", 8192, 448},
        {"NVIDIA GeForce RTX 5090 D", 32607, 1792},
        {"NVIDIA GeForce RTX 5090 D v2", 24455, 1344},
        {"NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 97887, 1792},
        {"NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887, 1597},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const hy_card *card = hy_card_find(cases[i].name);
        ck_assert_msg(card && card->memory_mib == cases[i].mib &&
                          card->bandwidth == 1e9 * cases[i].gigabytes_per_second,
                      "%s: %s", cases[i].name, card ? card->name : "not found");
    }
    ck_assert_ptr_null(hy_card_find("RTX 5080 Super"));
}
END_TEST

START_TEST(a_card_that_nobody_knows_is_not_watched) {
    char version[64];
    ck_assert_ptr_null(hy_nvml_watch_create("no such card", 0));
    ck_assert(!hy_nvml_latest(NULL).is_known);
    hy_nvml_watch_destroy(NULL);
    if (hy_nvml_driver_version(version, sizeof version)) ck_assert_uint_gt(strlen(version), 0);
}
END_TEST

/* What a card by its data sheet says of a matmul in fp8. */
static hy_status fp8_on(const char *card, int64_t rows, hy_dtype d, hy_dtype bias) {
    hy_backend *b;
    void *somewhere = (void *)(uintptr_t)256;
    hy_op_call call = {.kind = HY_OP_MATMUL, .attr.matmul = {.trans_b = true, .alpha = 1}};
    call.t[HY_MATMUL_A] = hy_tensor_2d(somewhere, HY_E4M3, rows, 64);
    call.t[HY_MATMUL_B] = hy_tensor_2d(somewhere, HY_E4M3, 32, 64);
    call.t[HY_MATMUL_A].quant.scale = call.t[HY_MATMUL_B].quant.scale = somewhere;
    call.t[HY_MATMUL_D] = hy_tensor_2d(somewhere, d, rows, 32);
    call.t[HY_MATMUL_BIAS] = hy_tensor_1d(somewhere, bias, 32);
    must(hy_card_backend_create(card, &b));
    hy_status status = b->supports(b, &call);
    b->destroy(b);
    return status;
}

START_TEST(cards_refuse_fp8_as_the_cuda_backend_does) {
    must(fp8_on("NVIDIA GeForce RTX 5080", 48, HY_BF16, HY_BF16));
    must_fail(fp8_on("NVIDIA GeForce RTX 3090", 48, HY_BF16, HY_BF16), HY_ERR_INPUT,
              "fp8 needs sm_89 or newer");
    must_fail(fp8_on("NVIDIA GeForce RTX 5080", 50, HY_BF16, HY_BF16), HY_ERR_INPUT,
              "50 x 32 x 64 are not supported in fp8; expected multiples of 16");
    must(fp8_on("NVIDIA GeForce RTX 5080", 48, HY_F32, HY_BF16));
    must_fail(fp8_on("NVIDIA GeForce RTX 5080", 48, HY_F32, HY_F32), HY_ERR_INPUT,
              "the bias must be bf16");
}
END_TEST

static Suite *cards_suite(void) {
    Suite *suite = suite_create("kernels: cards");
    TCase *tests = tcase_create("cards");
    tcase_add_test(tests, cards_are_known_by_the_names_the_driver_gives);
    tcase_add_test(tests, what_is_not_known_has_no_peak);
    tcase_add_test(tests, rates_agree_with_the_ai_tops_that_nvidia_gives);
    tcase_add_test(tests, a_longer_name_is_another_card);
    tcase_add_test(tests, a_card_that_nobody_knows_is_not_watched);
    tcase_add_test(tests, cards_refuse_fp8_as_the_cuda_backend_does);
    suite_add_tcase(suite, tests);
    return suite;
}

HY_TEST_MAIN(cards_suite)
