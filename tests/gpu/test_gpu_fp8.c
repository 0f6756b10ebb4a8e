/* test_gpu_fp8.c: fp8 on CUDA: codes and scales bit by bit those of fp8.h, the largest magnitude of
 * what ops store, and matmuls of codes against the numbers that they stand for. Where the card
 * knows no fp8, matmuls are to be refused. */
#include "gpu_rig.h"

#include "fp8_calls.h"

static bool has_fp8_matmul(void) {
    const hy_device_facts *facts = &gpu.backend->facts;
    return !facts->is_gpu || facts->capability >= 89;
}

/* ---- the largest magnitude ------------------------------------------------------------------- */

START_TEST(the_largest_magnitude_is_found) {
    for (int dtype = HY_F32; dtype <= HY_F16; dtype++) {
        check_largest((hy_dtype)dtype, 1, gpu_must_run);
        check_largest((hy_dtype)dtype, 1003, gpu_must_run);
        if (!gpu_leaves_out(5000011)) check_largest((hy_dtype)dtype, 5000011, gpu_must_run);
        gpu.shifted = 1;
        check_largest((hy_dtype)dtype, 2050, gpu_must_run);
        gpu.shifted = 0;
    }
}
END_TEST

START_TEST(ops_give_the_largest_magnitude_of_what_they_store) {
    for (int dtype = HY_F32; dtype <= (gpu.is_small ? HY_BF16 : HY_F16); dtype++) {
        check_largest_of_ops((hy_dtype)dtype, gpu_must_run);
        gpu.shifted = 0x1f; /* element by element */
        check_norm_largest((hy_dtype)dtype, 37, 512, false, gpu_must_run);
        for (int kind = 0; kind < 5; kind++) {
            check_activation_largest(kind, (hy_dtype)dtype, 5, 264, 0, gpu_must_run);
        }
        gpu.shifted = 0;
    }
}
END_TEST

/* ---- codes ----------------------------------------------------------------------------------- */

START_TEST(codes_and_scales_are_those_of_fp8_h) {
    static const int64_t shapes[][2] = {{1, 1},    {16, 16},   {48, 272},  {128, 128}, {144, 400},
                                        {130, 99}, {300, 515}, {16, 1000}, {33, 4096}, {1040, 160}};
    for (int s = 0; s < 10; s++) {
        if (!gpu_leaves_out(shapes[s][0] * shapes[s][1])) {
            check_to_fp8_forms(shapes[s][0], shapes[s][1], gpu_must_run);
        }
    }
    check_every_bf16(HY_E4M3, gpu_must_run);
    check_every_bf16(HY_E5M2, gpu_must_run);
}
END_TEST

START_TEST(codes_of_memory_that_is_not_aligned_are_the_same) {
    for (unsigned at = HY_TO_FP8_X; at <= HY_TO_FP8_TRANSPOSED; at++) {
        if (at == HY_TO_FP8_LARGEST) continue;
        gpu.shifted = 1u << at;
        check_to_fp8_forms(48, 80, gpu_must_run);
    }
    gpu.shifted = 0;
}
END_TEST

START_TEST(large_matrices_have_the_right_codes) {
    static const int64_t widths[] = {1536, 17920};
    for (int i = 0; i < 6; i++) {
        fp8_case c = {8192, widths[i / 3], HY_BF16, HY_E4M3, i % 3 != 1, i % 3 != 0, i % 3 == 2};
        if (!gpu_leaves_out(c.M * c.C)) check_to_fp8(&c, (uint64_t)i, gpu_must_run);
    }
}
END_TEST

START_TEST(codes_are_transposed) {
    static const int64_t shapes[][2] = {{1, 7}, {16, 16}, {144, 272}, {130, 99}, {2048, 1536}};
    for (int s = 0; s < 5; s++) {
        if (gpu_leaves_out(shapes[s][0] * shapes[s][1])) continue;
        check_transposing(s % 2 ? HY_E5M2 : HY_E4M3, shapes[s][0], shapes[s][1], gpu_must_run);
    }
}
END_TEST

START_TEST(what_is_not_finite_leaves_no_number) {
    static const double odd[] = {INFINITY, -INFINITY, NAN, -NAN};
    for (int i = 0; i < 4; i++) {
        check_no_numbers(40, 33, odd[i], gpu_must_run);
        check_no_numbers(48, 64, odd[i], gpu_must_run);
        if (has_fp8_matmul()) check_nan_product(odd[i], gpu_must_run);
    }
}
END_TEST

/* ---- matmul ---------------------------------------------------------------------------------- */

/* Beside fp8_matmuls: a longer sum, and the smallest that there may be, which need not be
 * served. */
static const fp8_matmul more[] = {
    {256, 384, 4096, HY_E4M3, HY_E4M3, HY_BF16, true, false, false, false},
    {256, 384, 4096, HY_E5M2, HY_E4M3, HY_F32, false, false, true, true},
    {16, 16, 16, HY_E4M3, HY_E4M3, HY_BF16, false, false, false, false},
};
enum { SURE = 2, MORE = 3 };

/* The hardware keeps some 13 bits of the largest of the products that it adds at once, and without
 * is_fast adds those sums in fp32. */
static double allowed_of(const fp8_matmul *m) {
    return !gpu.backend->facts.is_gpu ? 0 : m->is_fast ? 1e-2 : 2e-3;
}

START_TEST(a_matmul_of_codes_is_one_of_their_numbers) {
    if (!has_fp8_matmul()) return;
    for (int i = 0; i < FP8_MATMULS + MORE; i++) {
        const fp8_matmul *m = i < FP8_MATMULS ? &fp8_matmuls[i] : &more[i - FP8_MATMULS];
        if (gpu.is_small && m->M * m->N * m->K > 4000000) continue;
        bool is_served = check_fp8_matmul(m, allowed_of(m), gpu_run);
        ck_assert_msg(is_served || i >= FP8_MATMULS + SURE, "refused: %s", hy_error_message());
    }
}
END_TEST

static hy_status tried(const fp8_matmul *m, hy_dtype bias) {
    hy_op_call call = fp8_matmul_call(m), planned = gpu_planned(&call);
    if (planned.t[HY_MATMUL_BIAS].data) planned.t[HY_MATMUL_BIAS].dtype = bias;
    hy_status status = gpu.backend->supports(gpu.backend, &planned);
    free_call(&call);
    return status;
}

START_TEST(what_the_card_cannot_multiply_is_refused_in_words) {
    if (!gpu.backend->facts.is_gpu) return;
    fp8_matmul m = {64, 48, 80, HY_E4M3, HY_E4M3, HY_BF16, true, false, false, false};
    if (!has_fp8_matmul()) {
        must_fail(tried(&m, HY_BF16), HY_ERR_INPUT, "fp8 needs sm_89 or newer");
        return;
    }
    must(tried(&m, HY_BF16));
    m.K = 72;
    must_fail(tried(&m, HY_BF16), HY_ERR_INPUT,
              "matmul: the sizes 64 x 48 x 72 are not supported in fp8");
    m.K = 80, m.M = 65;
    must_fail(tried(&m, HY_BF16), HY_ERR_INPUT,
              "matmul: the sizes 65 x 48 x 80 are not supported in fp8");
    m.M = 64, m.d = HY_F32;
    must(tried(&m, HY_BF16));
    must_fail(tried(&m, HY_F32), HY_ERR_INPUT, "the bias must be bf16, not fp32");
}
END_TEST

/* ---- time ------------------------------------------------------------------------------------ */

/* Prints what it is, for who looks: how fast a card is, no test can know. */
START_TEST(the_time_of_an_op_is_measured) {
    if (!gpu.backend->op_seconds || gpu.is_small) return;
    static const char *const forms[] = {"as they lie", "transposed", "both"};
    int64_t M = 8192, C = 17920;
    void *somewhere = (void *)(uintptr_t)GPU_ALIGNMENT;
    for (int form = 0; form < 3; form++) {
        hy_op_call call = {.kind = HY_OP_TO_FP8};
        hy_tensor codes = hy_tensor_2d(somewhere, HY_E4M3, M, C);
        hy_tensor transposed = hy_tensor_2d(somewhere, HY_E4M3, C, M);
        codes.quant.scale = transposed.quant.scale = somewhere;
        call.t[HY_TO_FP8_X] = hy_tensor_2d(somewhere, HY_BF16, M, C);
        call.t[HY_TO_FP8_LARGEST] = hy_tensor_1d(somewhere, HY_F32, 1);
        if (form != 1) call.t[HY_TO_FP8_CODES] = codes;
        if (form != 0) call.t[HY_TO_FP8_TRANSPOSED] = transposed;
        must(gpu.backend->prepare(gpu.backend, &call));
        double seconds = gpu.backend->op_seconds(gpu.backend, &call);
        ck_assert(seconds > 0 && seconds < 1);
        printf("codes of %lld x %lld bf16, %s: %.1f us, %.0f GB/s\n", (long long)M, (long long)C,
               forms[form], seconds * 1e6, (double)(M * C) * (form == 2 ? 4 : 3) / seconds * 1e-9);
    }
}
END_TEST

START_TEST(the_time_of_a_matmul_is_that_of_its_plan) {
    hy_cuda_options options = {.tune = HY_TUNE_FAST};
    hy_backend *b;
    if (!gpu.backend->op_seconds || gpu.is_small || !has_fp8_matmul()) return;
    fp8_matmul m = {1024, 2048, 512, HY_E4M3, HY_E4M3, HY_BF16, false, false, false, true};
    hy_op_call call = fp8_matmul_call(&m), planned = gpu_planned(&call);
    must(gpu.backend->prepare(gpu.backend, &planned));
    ck_assert_double_eq(gpu.backend->op_seconds(gpu.backend, &planned), 0); /* nothing was timed */
    must(hy_cuda_backend_create(&options, &b));
    must(b->prepare(b, &planned));
    double seconds = b->op_seconds(b, &planned);
    ck_assert_msg(seconds > 1e-7 && seconds < 1e-2, "%g s", seconds);
    b->destroy(b);
    free_call(&call);
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("cuda: fp8");
    TCase *all = tcase_create("fp8");
    tcase_add_test(all, the_largest_magnitude_is_found);
    tcase_add_test(all, ops_give_the_largest_magnitude_of_what_they_store);
    tcase_add_test(all, codes_and_scales_are_those_of_fp8_h);
    tcase_add_test(all, codes_of_memory_that_is_not_aligned_are_the_same);
    tcase_add_test(all, large_matrices_have_the_right_codes);
    tcase_add_test(all, codes_are_transposed);
    tcase_add_test(all, what_is_not_finite_leaves_no_number);
    tcase_add_test(all, a_matmul_of_codes_is_one_of_their_numbers);
    tcase_add_test(all, what_the_card_cannot_multiply_is_refused_in_words);
    tcase_add_test(all, the_time_of_an_op_is_measured);
    tcase_add_test(all, the_time_of_a_matmul_is_that_of_its_plan);
    suite_add_tcase(suite, all);
    return suite;
}

GPU_TEST_MAIN(make_suite)
