/* test_kernels_predict.c: the ops of prediction: combinations, dot products of differences, 8-bit
 * state, bytes beside bf16 numbers. */
#include "harness.h"

#include <math.h>

#include "base/rng.h"
#include "kernels/grid.h"
#include "kernels/half.h"
#include "kernels/kernels.h"

#define N 150001 /* several tasks and an odd end */

static hy_backend *backend;
static hy_stream *stream;
static float *x, *y, *z, *out;

static void set_up(void) {
    must(hy_cpu_backend_create(&(hy_cpu_options){.threads = 2}, &backend));
    must(backend->stream_create(backend, "test", &stream));
    float **all[] = {&x, &y, &z, &out};
    for (int k = 0; k < 4; k++) {
        *all[k] = malloc(N * sizeof(float));
        ck_assert_ptr_nonnull(*all[k]);
        for (int i = 0; i < N; i++) {
            (*all[k])[i] = (float)hy_rng_normal(3, HY_RNG_TEST, (uint64_t)(k * N + i));
        }
    }
}

static void tear_down(void) {
    backend->stream_destroy(stream);
    backend->destroy(backend);
    free(x);
    free(y);
    free(z);
    free(out);
}

static void run(hy_op_call *call) {
    uint64_t bytes = backend->workspace(backend, call);
    void *workspace = malloc(bytes + 1);
    call->workspace = hy_tensor_1d(workspace, HY_U8, (int64_t)bytes);
    must(backend->supports(backend, call));
    must(backend->enqueue(stream, call));
    must(backend->stream_sync(stream));
    free(workspace);
}

START_TEST(a_combination_is_the_sum_of_scaled_inputs) {
    hy_op_call call = {.kind = HY_OP_COMBINE};
    float before[3] = {x[0], x[77777], x[N - 1]};
    call.attr.combine.coefficient[0] = 1.5f;
    call.attr.combine.coefficient[1] = -0.25f;
    call.attr.combine.coefficient[2] = 3;
    call.t[HY_COMBINE_OUT] = call.t[HY_COMBINE_X0] = hy_tensor_1d(x, HY_F32, N); /* in place */
    call.t[HY_COMBINE_X1] = hy_tensor_1d(y, HY_F32, N);
    call.t[HY_COMBINE_X2] = hy_tensor_1d(z, HY_F32, N);
    run(&call);
    int at[3] = {0, 77777, N - 1};
    for (int i = 0; i < 3; i++) {
        double expected = 1.5 * before[i] - 0.25 * y[at[i]] + 3.0 * z[at[i]];
        ck_assert_double_eq_tol(x[at[i]], expected, 1e-5);
    }
}
END_TEST

START_TEST(a_combination_rounds_once_into_a_narrow_type) {
    hy_op_call call = {.kind = HY_OP_COMBINE};
    uint16_t *narrow = malloc(N * sizeof *narrow);
    call.attr.combine.coefficient[0] = 0.5f;
    call.t[HY_COMBINE_OUT] = hy_tensor_1d(narrow, HY_BF16, N);
    call.t[HY_COMBINE_X0] = hy_tensor_1d(x, HY_F32, N);
    run(&call);
    for (int i = 0; i < N; i += 97) ck_assert_uint_eq(narrow[i], hy_f32_to_bf16(0.5f * x[i]));
    free(narrow);
}
END_TEST

START_TEST(noise_belongs_to_the_logical_element) {
    hy_op_call call = {.kind = HY_OP_COMBINE};
    call.attr.combine.noise = 2;
    call.attr.seed = 5;
    call.attr.first = 1000;
    call.t[HY_COMBINE_OUT] = hy_tensor_1d(out, HY_F32, N);
    run(&call);
    double square = 0;
    for (int i = 0; i < N; i++) square += (double)out[i] * out[i];
    ck_assert_double_eq_tol(sqrt(square / N), 2, 0.02);
    call.attr.first = 1500;
    call.t[HY_COMBINE_OUT] = hy_tensor_1d(z, HY_F32, 100);
    run(&call);
    ck_assert_mem_eq(z, out + 500, 100 * sizeof(float));
}
END_TEST

START_TEST(dot_products_of_differences_are_sums_in_double) {
    hy_op_call call = {.kind = HY_OP_DIFF_DOT};
    double sums[3], expected[3] = {0};
    for (int i = 0; i < N; i++) {
        double a = (double)x[i] - y[i], b = z[i];
        expected[0] += a * a;
        expected[1] += b * b;
        expected[2] += a * b;
    }
    call.t[HY_DIFF_DOT_A] = hy_tensor_1d(x, HY_F32, N);
    call.t[HY_DIFF_DOT_B] = hy_tensor_1d(y, HY_F32, N);
    call.t[HY_DIFF_DOT_C] = hy_tensor_1d(z, HY_F32, N);
    call.t[HY_DIFF_DOT_OUT] = hy_tensor_1d(sums, HY_F64, 3);
    run(&call);
    for (int k = 0; k < 3; k++) {
        ck_assert_double_eq_tol(sums[k], expected[k], 1e-6 * (fabs(expected[k]) + 1000));
    }
    call.attr.accumulate = true;
    run(&call);
    ck_assert_double_eq_tol(sums[0], 2 * expected[0], 1e-6 * expected[0] + 1e-3);
}
END_TEST

static void round_trip(float *values, bool is_signed, float *result) {
    uint8_t *codes = malloc(N);
    float *scales = malloc((N / 256 + 1) * sizeof *scales);
    hy_op_call call = {.kind = HY_OP_QUANTIZE};
    call.attr.quantize.block = 256;
    call.attr.quantize.is_signed = is_signed;
    call.t[HY_QUANTIZE_X] = hy_tensor_1d(values, HY_F32, N);
    call.t[HY_QUANTIZE_CODES] = hy_tensor_1d(codes, HY_U8, N);
    call.t[HY_QUANTIZE_SCALES] = hy_tensor_1d(scales, HY_F32, N / 256 + 1);
    run(&call);
    call.kind = HY_OP_DEQUANTIZE;
    hy_tensor source = call.t[HY_QUANTIZE_CODES], scale = call.t[HY_QUANTIZE_SCALES];
    call.t[HY_DEQUANTIZE_CODES] = source;
    call.t[HY_DEQUANTIZE_SCALES] = scale;
    call.t[HY_DEQUANTIZE_X] = hy_tensor_1d(result, HY_F32, N);
    run(&call);
    free(codes);
    free(scales);
}

START_TEST(eight_bits_keep_sign_size_and_the_smallest_squares) {
    round_trip(x, true, out);
    double error = 0, size = 0;
    for (int i = 0; i < N; i++) {
        error += (out[i] - x[i]) * (double)(out[i] - x[i]);
        size += (double)x[i] * x[i];
        if (fabsf(x[i]) > 0.1f) ck_assert_int_eq(out[i] > 0, x[i] > 0);
    }
    ck_assert_double_lt(sqrt(error / size), 0.02);
    for (int i = 0; i < N; i++) y[i] = powf(10, -7.0f * fabsf(y[i])); /* like v: many magnitudes */
    round_trip(y, false, out);
    for (int i = 0; i < N; i++) {
        ck_assert(out[i] > 0); /* it is divided by */
        if (y[i] > 1e-4f) ck_assert_double_lt(fabs(out[i] / y[i] - 1), 0.12);
    }
}
END_TEST

/* ---- a byte beside a bf16 number ------------------------------------------------------------- */

static const int exponents[] = {-HY_GRID_EXPONENT_MAX, -16, -13, -7, 0, HY_GRID_EXPONENT_MAX};
enum { EXPONENTS = sizeof exponents / sizeof exponents[0], BIGGEST = 0x7f7f };

static double number(uint16_t bits) { return (double)hy_bf16_to_f32(bits); }

/* The grid as it is said to be: multiples of a step up to 128 of them, then all bf16 numbers. */
START_TEST(grid_points_are_multiples_of_a_step_and_then_bf16_numbers) {
    int exponent = exponents[_i];
    double step = ldexp(1, exponent), last = -1;
    ck_assert_uint_eq(hy_grid_number(0, exponent), 0);
    ck_assert_uint_eq(hy_grid_wrap(0x8000, exponent), 0); /* -0 */
    for (int32_t point = 0; point <= hy_grid_point(BIGGEST, exponent); point++) {
        uint16_t bits = hy_grid_number(point, exponent);
        if (point <= 128) ck_assert_double_eq(number(bits), point * step);
        ck_assert_double_gt(number(bits), last); /* so none is left out between two bf16 numbers */
        ck_assert_int_eq(hy_grid_point(bits, exponent), point);
        ck_assert_int_eq(hy_grid_point(bits | 0x8000, exponent), -point);
        ck_assert_uint_eq(hy_grid_number(-point, exponent), point ? bits | 0x8000 : 0);
        last = number(bits);
    }
    ck_assert_double_eq(last, number(BIGGEST));
}
END_TEST

START_TEST(a_number_goes_to_its_nearest_point) {
    int exponent = exponents[_i];
    double step = ldexp(1, exponent);
    for (uint32_t bits = 0; bits <= BIGGEST; bits++) {
        double given = number((uint16_t)bits);
        double found = number(hy_grid_number(hy_grid_point((uint16_t)bits, exponent), exponent));
        ck_assert_double_eq(found, given < 128 * step ? rint(given / step) * step : given);
    }
}
END_TEST

/* Every bf16 number as theta, and beside it every point that is fewer than 128 away: across zero,
 * too. */
START_TEST(a_byte_is_enough_beside_a_number_that_is_near) {
    int exponent = exponents[_i];
    int32_t most = hy_grid_point(BIGGEST, exponent);
    for (int sign = 0; sign < 2; sign++) {
        for (uint32_t bits = 0; bits <= BIGGEST; bits++) {
            uint16_t theta = (uint16_t)(bits | (uint32_t)sign << 15);
            int32_t here = hy_grid_point(theta, exponent);
            for (int32_t apart = -128; apart < 128; apart++) {
                int32_t there = here + apart;
                if (there > most || there < -most) continue;
                uint16_t phi = hy_grid_number(there, exponent);
                if (hy_grid_unwrap(hy_grid_wrap(phi, exponent), theta, exponent) == phi) continue;
                ck_abort_msg("2^%d: %g beside %g", exponent, number(phi), number(theta));
            }
        }
    }
}
END_TEST

/* Whatever the byte says: finite, and no farther away than 129 steps or the number itself. */
START_TEST(a_byte_that_wrapped_around_stays_near) {
    int exponent = exponents[_i];
    double step = ldexp(1, exponent);
    for (uint32_t bits = 0; bits <= BIGGEST; bits++) {
        for (int code = 0; code < 256; code++) {
            double theta = number((uint16_t)bits);
            double phi = number(hy_grid_unwrap((uint8_t)code, (uint16_t)bits, exponent));
            if (fabs(phi - theta) <= fmax(129 * step, theta)) continue;
            ck_abort_msg("2^%d: code %d beside %g is %g", exponent, code, theta, phi);
        }
    }
}
END_TEST

/* The ops over an odd count: each element as the functions have it, which the tests above hold
 * against what they are for. */
START_TEST(wrapping_ops_are_the_grid_element_by_element) {
    uint16_t *theta = malloc(N * sizeof *theta), *phi = malloc(N * sizeof *phi), *back;
    uint8_t *codes = malloc(N);
    back = malloc(N * sizeof *back);
    for (int i = 0; i < N; i++) {
        theta[i] = hy_f32_to_bf16(0.02f * x[i]);
        phi[i] = hy_f32_to_bf16(0.02f * x[i] + 0.003f * y[i]);
    }
    hy_op_call call = {.kind = HY_OP_WRAP, .attr.grid.exponent = -12};
    call.t[HY_WRAP_X] = hy_tensor_1d(phi, HY_BF16, N);
    call.t[HY_WRAP_CODES] = hy_tensor_1d(codes, HY_U8, N);
    run(&call);
    call = (hy_op_call){.kind = HY_OP_UNWRAP, .attr.grid.exponent = -12};
    call.t[HY_UNWRAP_CODES] = hy_tensor_1d(codes, HY_U8, N);
    call.t[HY_UNWRAP_NEAR] = hy_tensor_1d(theta, HY_BF16, N);
    call.t[HY_UNWRAP_X] = hy_tensor_1d(back, HY_BF16, N);
    run(&call);
    for (int i = 0; i < N; i++) {
        ck_assert_uint_eq(codes[i], hy_grid_wrap(phi[i], -12));
        double error = fabs(number(back[i]) - number(phi[i]));
        if (error >
            (fabs(number(phi[i])) < 0x1p-5 ? 0x1p-13 : 0)) /* below 128 steps, half of one */
            ck_abort_msg("%d: %g, not %g", i, number(back[i]), number(phi[i]));
    }
    call.attr.grid.exponent = HY_GRID_EXPONENT_MAX + 1;
    ck_assert_int_eq(backend->supports(backend, &call), HY_ERR_INPUT);
    ck_assert_ptr_nonnull(strstr(hy_error_message(), "101"));
    free(theta);
    free(phi);
    free(back);
    free(codes);
}
END_TEST

static Suite *predict_ops_suite(void) {
    Suite *suite = suite_create("kernels: prediction");
    TCase *tests = tcase_create("prediction");
    tcase_add_checked_fixture(tests, set_up, tear_down);
    tcase_add_test(tests, a_combination_is_the_sum_of_scaled_inputs);
    tcase_add_test(tests, a_combination_rounds_once_into_a_narrow_type);
    tcase_add_test(tests, noise_belongs_to_the_logical_element);
    tcase_add_test(tests, dot_products_of_differences_are_sums_in_double);
    tcase_add_test(tests, eight_bits_keep_sign_size_and_the_smallest_squares);
    tcase_add_loop_test(tests, grid_points_are_multiples_of_a_step_and_then_bf16_numbers, 0,
                        EXPONENTS);
    tcase_add_loop_test(tests, a_number_goes_to_its_nearest_point, 0, EXPONENTS);
    tcase_add_loop_test(tests, a_byte_is_enough_beside_a_number_that_is_near, 0, EXPONENTS);
    tcase_add_loop_test(tests, a_byte_that_wrapped_around_stays_near, 0, EXPONENTS);
    tcase_add_test(tests, wrapping_ops_are_the_grid_element_by_element);
    suite_add_tcase(suite, tests);
    return suite;
}

HY_TEST_MAIN(predict_ops_suite)
