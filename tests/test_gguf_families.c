/* test_gguf_families.c: GGUF files of every model family, compared with transformers. */
#include "golden/families.h"

#define BOUND 1e-5

START_TEST(x) {
    golden g;
    char path[600];
    hy_shape shape;
    snprintf(path, sizeof path, "%s/%s.gguf", getenv("HYBRID_GGUF"), cases[_i]);
    if (!hy_path_exists(path)) return;
    if (find_shape(path, 8, &shape) != HY_OK) {
        printf("%s: %s\n", cases[_i], hy_error_message());
        return;
    }
    open_family(&g, cases[_i], path);
    double far = logits_far(&g);
    printf("%s: %.1e%s\n", cases[_i], far, far > BOUND ? " FAR" : "");
    close_golden(&g);
}
END_TEST

static Suite *gguf_suite(void) {
    Suite *suite = suite_create("gguf");
    TCase *tc = tcase_create("families");
    if (hy_dir_list(folder_of(""), &cases, &case_count) != HY_OK) exit(EXIT_FAILURE);
    tcase_add_loop_test(tc, x, 0, (int)case_count);
    suite_add_tcase(suite, tc);
    return suite;
}
HY_TEST_MAIN(gguf_suite)
