/* test_kernels_cards.c: cards by name, and the driver's library where there is none. */
#include "harness.h"

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
        {"NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 503.8},
        {"NVIDIA RTX 6000 Ada Generation", 364.2},
    };
    for (size_t i = 0; i < sizeof cards / sizeof cards[0]; i++) {
        double peak = hy_card_peak(cards[i].name);
        ck_assert_msg(peak == 1e12 * cards[i].teraflops, "%s: %g", cards[i].name, peak);
    }
}
END_TEST

START_TEST(what_is_not_known_has_no_peak) {
    static const char *const names[] = {"", "CPU: Neoverse-V1", "NVIDIA GeForce GTX 1080",
                                        "NVIDIA GeForce RTX 4090 Laptop GPU",
                                        "NVIDIA GeForce RTX 50800"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        ck_assert_double_eq(hy_card_peak(names[i]), 0);
    }
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

static Suite *cards_suite(void) {
    Suite *suite = suite_create("kernels: cards");
    TCase *tests = tcase_create("cards");
    tcase_add_test(tests, cards_are_known_by_the_names_the_driver_gives);
    tcase_add_test(tests, what_is_not_known_has_no_peak);
    tcase_add_test(tests, a_card_that_nobody_knows_is_not_watched);
    suite_add_tcase(suite, tests);
    return suite;
}

HY_TEST_MAIN(cards_suite)
