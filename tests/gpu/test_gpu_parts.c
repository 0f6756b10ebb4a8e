/* test_gpu_parts.c: the sum over ranks on CUDA: the bits of a plain loop, whatever the
 * alignment. */
#include "gpu_rig.h"

#include "parts_checks.h"

static const hy_dtype reals[] = {HY_F32, HY_BF16, HY_F16};

/* Less than a block, whole blocks of either width, an odd end; a gap keeps parts aligned or does
 * not. */
START_TEST(the_sum_is_that_of_a_loop_over_ranks) {
    static const int64_t shapes[][2] = {{1, 0},     {7, 1},    {1024, 0},
                                        {4096, 16}, {6151, 1}, {6151, 9}};
    for (int i = 0; i < 6; i++)
        check_all_parts(gpu_must_run, reals[_i], shapes[i][0], shapes[i][1]);
}
END_TEST

START_TEST(the_sum_does_not_depend_on_how_tensors_are_aligned) {
    for (unsigned shifted = 1; shifted < 8; shifted++) {
        gpu.shifted = shifted;
        check_all_parts(gpu_must_run, reals[_i], 2051, 5);
    }
    gpu.shifted = 0;
}
END_TEST

START_TEST(many_blocks_and_more_ranks_than_are_loaded_at_once) {
    parts_case c = {.dtype = reals[_i],
                    .out = HY_F32,
                    .count = 9,
                    .rank = 6,
                    .n = 300007,
                    .stride = 300032,
                    .accumulate = true};
    if (!gpu_leaves_out(c.n)) check_parts(gpu_must_run, &c);
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("cuda: sums over ranks");
    TCase *all = tcase_create("parts");
    tcase_add_loop_test(all, the_sum_is_that_of_a_loop_over_ranks, 0, 3);
    tcase_add_loop_test(all, the_sum_does_not_depend_on_how_tensors_are_aligned, 0, 3);
    tcase_add_loop_test(all, many_blocks_and_more_ranks_than_are_loaded_at_once, 0, 3);
    suite_add_tcase(suite, all);
    return suite;
}

GPU_TEST_MAIN(make_suite)
