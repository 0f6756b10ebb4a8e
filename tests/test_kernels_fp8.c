/* test_kernels_fp8.c: fp8 on the CPU: values and scales compared with a computation that does not
 * use fp8.h, and the ops that convert and multiply them. */
#include "kernel_rig.h"

#include <float.h>

#include "fp8_calls.h"
#include "kernels/cpu/blas.h"

static rig cpu;

/* Once, before tests are forked off: they then share the loaded BLAS and its timing. */
static void load(void) { hy_blas_get(); }
static void set_up(void) { cpu = rig_create(2); }
static void tear_down(void) { rig_destroy(&cpu); }

static void run_call(const hy_op_call *call) { rig_run(&cpu, call); }
static bool run_served(const hy_op_call *call) {
    rig_run(&cpu, call);
    return true;
}

static const hy_dtype kinds[] = {HY_E4M3, HY_E5M2};
static uint32_t largest_code(hy_dtype dtype) { return dtype == HY_E4M3 ? 0x7e : 0x7b; }

/* ---- one number ------------------------------------------------------------------------------ */

/* From the exponent and mantissa, by the formats' definition. */
static double number_of(hy_dtype dtype, uint32_t code) {
    int mantissa = dtype == HY_E4M3 ? 3 : 2, bias = dtype == HY_E4M3 ? 7 : 15;
    int exponent = (int)(code >> mantissa);
    double share = (double)(code & ((1u << mantissa) - 1)) / (1 << mantissa);
    return exponent == 0 ? ldexp(share, 1 - bias) : ldexp(1 + share, exponent - bias);
}

START_TEST(every_code_is_the_number_of_its_format) {
    for (int k = 0; k < 2; k++) {
        for (uint32_t code = 0; code <= largest_code(kinds[k]); code++) {
            float x = hy_fp8_decode(kinds[k], (uint8_t)code);
            ck_assert_double_eq((double)x, number_of(kinds[k], code));
            ck_assert_double_eq((double)hy_fp8_decode(kinds[k], (uint8_t)(code | 0x80)),
                                -(double)x);
            ck_assert_uint_eq(hy_fp8_encode(kinds[k], x), code);
            ck_assert_uint_eq(hy_fp8_encode(kinds[k], -x), code | 0x80);
        }
    }
    ck_assert_float_eq(hy_fp8_decode(HY_E4M3, 0x7e), 448);
    ck_assert_float_eq(hy_fp8_decode(HY_E5M2, 0x7b), 57344);
    ck_assert(isnan(hy_fp8_decode(HY_E4M3, 0x7f)) && isnan(hy_fp8_decode(HY_E4M3, 0xff)));
    for (int code = 0x7d; code <= 0x7f; code++) {
        ck_assert(isnan(hy_fp8_decode(HY_E5M2, (uint8_t)code)));
    }
    ck_assert(isinf(hy_fp8_decode(HY_E5M2, 0x7c)));
}
END_TEST

/* The nearest of all codes; of two that are as near, the even one. */
static uint32_t nearest(hy_dtype dtype, double x) {
    uint32_t best = 0;
    if (x > number_of(dtype, largest_code(dtype))) return largest_code(dtype);
    for (uint32_t code = 1; code <= largest_code(dtype); code++) {
        double now = fabs(number_of(dtype, code) - x), before = fabs(number_of(dtype, best) - x);
        if (now < before || (now == before && code % 2 == 0)) best = code;
    }
    return best;
}

static void check_nearest(hy_dtype dtype, float x) {
    uint32_t expected = nearest(dtype, fabs((double)x)) | (signbit(x) ? 0x80 : 0);
    uint32_t found = hy_fp8_encode(dtype, x);
    ck_assert_msg(found == expected, "%s: %a is code %02x, expected %02x", hy_dtype_name(dtype),
                  (double)x, found, expected);
}

START_TEST(a_number_gets_the_nearest_code) {
    for (int k = 0; k < 2; k++) {
        for (int64_t i = 0; i < 20000; i++) check_nearest(kinds[k], wide_number(i, 4));
        for (uint32_t code = 0; code < largest_code(kinds[k]); code++) {
            float middle = (float)((number_of(kinds[k], code) + number_of(kinds[k], code + 1)) / 2);
            check_nearest(kinds[k], middle);
            check_nearest(kinds[k], -middle);
            check_nearest(kinds[k], nextafterf(middle, 0));
            check_nearest(kinds[k], nextafterf(middle, INFINITY));
        }
        check_nearest(kinds[k], FLT_MAX);
        check_nearest(kinds[k], -1e6f);
        check_nearest(kinds[k], FLT_TRUE_MIN);
        ck_assert_uint_eq(hy_fp8_encode(kinds[k], INFINITY), largest_code(kinds[k]));
        ck_assert_uint_eq(hy_fp8_encode(kinds[k], NAN), 0x7f);
        ck_assert_uint_eq(hy_fp8_encode(kinds[k], -NAN), 0x7f);
        ck_assert_uint_eq(hy_fp8_encode(kinds[k], -0.0f), 0x80);
    }
}
END_TEST

/* ---- scales ---------------------------------------------------------------------------------- */

/* A power of two, the smallest that brings `largest` to the largest code or below. */
static void check_scale(hy_dtype dtype, float largest) {
    float scale = hy_fp8_scale(dtype, largest), inverse = hy_fp8_inverse(dtype, largest);
    double top = number_of(dtype, largest_code(dtype)), share = (double)largest / (double)scale;
    int exponent;
    ck_assert_double_eq((double)frexpf(scale, &exponent), 0.5);
    ck_assert_float_eq(scale * inverse, 1);
    ck_assert_msg(share <= top, "%s: %a has scale %a", hy_dtype_name(dtype), (double)largest,
                  (double)scale);
    ck_assert_msg(2 * share > top || scale == 0x1p-120f, "%s: %a has scale %a",
                  hy_dtype_name(dtype), (double)largest, (double)scale);
}

START_TEST(the_scale_is_the_smallest_power_of_two_that_fits) {
    for (int k = 0; k < 2; k++) {
        for (int exponent = -149; exponent < 128; exponent++) {
            float power = ldexpf(1, exponent), border = 1.75f * power;
            check_scale(kinds[k], power);
            check_scale(kinds[k], nextafterf(power, 0) > 0 ? nextafterf(power, 0) : power);
            check_scale(kinds[k], border);
            check_scale(kinds[k], nextafterf(border, 0));
            if (isfinite(nextafterf(border, INFINITY))) {
                check_scale(kinds[k], nextafterf(border, INFINITY));
            }
        }
        check_scale(kinds[k], FLT_MAX);
        ck_assert_float_eq(hy_fp8_scale(kinds[k], 0), 1);
        ck_assert_float_eq(hy_fp8_inverse(kinds[k], 0), 1);
        ck_assert(isnan(hy_fp8_scale(kinds[k], INFINITY)) && isnan(hy_fp8_scale(kinds[k], NAN)));
        ck_assert(isnan(hy_fp8_inverse(kinds[k], INFINITY)) &&
                  isnan(hy_fp8_inverse(kinds[k], NAN)));
    }
    ck_assert_float_eq(hy_fp8_scale(HY_E4M3, 448), 1);
    ck_assert_float_eq(hy_fp8_scale(HY_E4M3, nextafterf(448, 500)), 2);
    ck_assert_float_eq(hy_fp8_scale(HY_E5M2, 57344), 1);
    ck_assert_float_eq(hy_fp8_scale(HY_E5M2, 1.75f), 0x1p-15f);
}
END_TEST

/* ---- ops ------------------------------------------------------------------------------------- */

START_TEST(the_largest_magnitude_is_found) {
    for (int dtype = HY_F32; dtype <= HY_F16; dtype++) {
        check_largest((hy_dtype)dtype, 1, run_call);
        check_largest((hy_dtype)dtype, 1003, run_call);
        check_largest((hy_dtype)dtype, 200000, run_call);
    }
}
END_TEST

START_TEST(ops_give_the_largest_magnitude_of_what_they_store) {
    for (int dtype = HY_F32; dtype <= HY_F16; dtype++) {
        check_largest_of_ops((hy_dtype)dtype, run_call);
    }
}
END_TEST

START_TEST(codes_and_scales_are_those_of_fp8_h) {
    check_to_fp8_forms(1, 1, run_call);
    check_to_fp8_forms(48, 272, run_call);
    check_to_fp8_forms(130, 99, run_call);
    check_every_bf16(HY_E4M3, run_call);
    check_every_bf16(HY_E5M2, run_call);
}
END_TEST

START_TEST(codes_are_transposed) {
    check_transposing(HY_E4M3, 1, 7, run_call);
    check_transposing(HY_E5M2, 144, 272, run_call);
    check_transposing(HY_E4M3, 130, 99, run_call);
}
END_TEST

START_TEST(what_is_not_finite_leaves_no_number) {
    check_no_numbers(40, 33, INFINITY, run_call);
    check_no_numbers(48, 64, NAN, run_call);
    check_no_numbers(48, 64, -NAN, run_call);
    check_nan_product(INFINITY, run_call);
    check_nan_product(-INFINITY, run_call);
    check_nan_product(NAN, run_call);
}
END_TEST

/* Of two tensors after each other, the one that is not finite is remembered. */
START_TEST(statistics_of_conversions_add_up) {
    fp8_case c = {16, 16, HY_F32, HY_E4M3, true, false, true};
    hy_op_call call = to_fp8_call(&c, 1);
    double *seen = call.t[HY_TO_FP8_SEEN].data;
    float *largest = call.t[HY_TO_FP8_LARGEST].data, finite = *largest;
    run_call(&call);
    ck_assert_double_eq(seen[0], (double)finite);
    double lost = seen[1] - 7;
    ck_assert_double_gt(lost, 0);
    *largest = NAN;
    run_call(&call);
    ck_assert(isnan(seen[0]));
    *largest = finite;
    run_call(&call);
    ck_assert(isnan(seen[0]));
    ck_assert_double_eq(seen[1], 7 + 2 * lost);
    ck_assert_double_eq(seen[2], 11 + 3 * 256);
    free_call(&call);
}
END_TEST

START_TEST(a_matmul_of_codes_is_one_of_their_numbers) {
    for (int i = 0; i < FP8_MATMULS; i++) check_fp8_matmul(&fp8_matmuls[i], 0, run_served);
}
END_TEST

START_TEST(one_thread_and_two_give_the_same_codes) {
    fp8_case c = {515, 300, HY_BF16, HY_E4M3, true, true, true};
    hy_op_call one = to_fp8_call(&c, 6), two = to_fp8_call(&c, 6);
    rig alone = rig_create(1);
    rig_run(&alone, &one);
    run_call(&two);
    for (int i = HY_TO_FP8_CODES; i <= HY_TO_FP8_SEEN; i++) {
        ck_assert_mem_eq(one.t[i].data, two.t[i].data, hy_tensor_bytes(&one.t[i]));
    }
    free_call(&one);
    free_call(&two);
    rig_destroy(&alone);
}
END_TEST

static hy_status tried(const hy_op_call *call) { return cpu.backend->supports(cpu.backend, call); }

START_TEST(wrong_calls_are_refused_in_words) {
    fp8_case c = {16, 32, HY_F32, HY_E4M3, true, true, false};
    hy_op_call call = to_fp8_call(&c, 1), wrong = call;
    wrong.t[HY_TO_FP8_LARGEST].data = NULL;
    must_fail(tried(&wrong), HY_ERR_INPUT, "largest is missing");
    wrong = call;
    wrong.t[HY_TO_FP8_CODES].data = wrong.t[HY_TO_FP8_TRANSPOSED].data = NULL;
    must_fail(tried(&wrong), HY_ERR_INPUT, "both codes and transposed are missing");
    wrong = call;
    wrong.t[HY_TO_FP8_TRANSPOSED].dtype = HY_E5M2;
    must_fail(tried(&wrong), HY_ERR_INPUT, "transposed is");
    wrong = call;
    wrong.t[HY_TO_FP8_CODES].quant.scale = NULL;
    must_fail(tried(&wrong), HY_ERR_INPUT, "has no scale");
    free_call(&call);
    hy_op_call matmul = fp8_matmul_call(&fp8_matmuls[3]);
    matmul.t[HY_MATMUL_B].dtype = HY_E5M2;
    must_fail(tried(&matmul), HY_ERR_INPUT, "at least one e4m3");
    matmul.t[HY_MATMUL_B].dtype = HY_E4M3;
    matmul.attr.matmul.is_gelu = true;
    must_fail(tried(&matmul), HY_ERR_INPUT, "without gelu");
    free_call(&matmul);
    ck_assert(cpu.backend->op_seconds == NULL);
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("kernels: fp8");
    TCase *all = tcase_create("fp8");
    tcase_set_timeout(all, 120);
    tcase_add_unchecked_fixture(all, load, NULL);
    tcase_add_checked_fixture(all, set_up, tear_down);
    tcase_add_test(all, every_code_is_the_number_of_its_format);
    tcase_add_test(all, a_number_gets_the_nearest_code);
    tcase_add_test(all, the_scale_is_the_smallest_power_of_two_that_fits);
    tcase_add_test(all, the_largest_magnitude_is_found);
    tcase_add_test(all, ops_give_the_largest_magnitude_of_what_they_store);
    tcase_add_test(all, codes_and_scales_are_those_of_fp8_h);
    tcase_add_test(all, codes_are_transposed);
    tcase_add_test(all, what_is_not_finite_leaves_no_number);
    tcase_add_test(all, statistics_of_conversions_add_up);
    tcase_add_test(all, a_matmul_of_codes_is_one_of_their_numbers);
    tcase_add_test(all, one_thread_and_two_give_the_same_codes);
    tcase_add_test(all, wrong_calls_are_refused_in_words);
    suite_add_tcase(suite, all);
    return suite;
}

HY_TEST_MAIN(make_suite)
