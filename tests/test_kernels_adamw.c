/* test_kernels_adamw.c: the optimizer's ops: clipping, the AdamW step, its stochastic rounding, and
 * m and v in 8 bits. */
#include "kernels/cpu/blas.h"
#include "optimizer_checks.h"

static rig cpu;

static void load(void) { hy_blas_get(); }
static void set_up(void) { cpu = rig_create(2); }
static void tear_down(void) { rig_destroy(&cpu); }
static void run_call(const hy_op_call *call) { rig_run(&cpu, call); }

START_TEST(adamw_agrees_with_the_reference) {
    for (int i = 0; i < UPDATE_MIXTURES; i++) {
        trial t = update_mixture(adamw_trial, i, 40011);
        rig_run_both(&cpu, &t);
        trial_check(&t, HY_UPDATE_PARAM,
                    2); /* one stochastic rounding costs up to two to nearest */
        trial_check(&t, HY_UPDATE_M, 2);
        trial_check(&t, HY_UPDATE_V, 2);
        if (t.call.t[HY_UPDATE_MASTER].data) trial_check(&t, HY_UPDATE_MASTER, 1);
        trial_end(&t);
    }
}
END_TEST

START_TEST(a_scale_of_zero_leaves_everything_as_it_was) { check_zero_scale(run_call, adamw_trial); }
END_TEST

START_TEST(with_a_master_the_parameter_is_its_rounding_to_nearest) {
    check_master_rounding(run_call, adamw_trial);
}
END_TEST

START_TEST(stochastic_rounding_takes_its_noise_from_the_logical_index) {
    check_rounding_noise(run_call, adamw_trial, 42, 1000001);
}
END_TEST

START_TEST(a_step_cut_in_pieces_gives_the_same_bits) { check_cut_step(run_call, adamw_trial); }
END_TEST

START_TEST(stochastic_rounding_keeps_small_steps_on_average) { check_small_steps(run_call); }
END_TEST

START_TEST(fp16_rounding_covers_subnormals_and_the_largest_numbers) {
    static const float values[] = {0, 1e-9f, 3.1e-8f, 5e-6f,  6.1e-5f,
                                   1, 65504, 70000,   -2e-7f, -65000};
    for (size_t k = 0; k < sizeof values / sizeof values[0]; k++) {
        enum { COUNT = 4000 };
        trial t = adamw_trial(HY_F16, HY_F32, HY_F32, true, COUNT);
        free(t.call.t[HY_UPDATE_MASTER].data); /* the value goes in as a step from 0 */
        t.call.t[HY_UPDATE_MASTER].data = NULL;
        t.call.attr.adamw.lr = values[k];
        t.call.attr.adamw.weight_decay = 0;
        t.call.attr.adamw.beta1 = t.call.attr.adamw.beta2 = 0;
        t.call.attr.adamw.correction1 = t.call.attr.adamw.correction2 = 1;
        t.call.attr.adamw.eps = 0;
        for (int64_t i = 0; i < COUNT; i++) {
            trial_put(&t, HY_UPDATE_PARAM, i, 0);
            trial_put(&t, HY_UPDATE_GRAD, i, -1);
        }
        rig_run(&cpu, &t.call);
        double sum = 0, value = (double)values[k];
        double spacing = fabs(value) < 0x1p-14 ? 0x1p-24 : ldexp(1, ilogb(fabs(value)) - 10);
        for (int64_t i = 0; i < COUNT; i++) {
            double found = real_at(&t.call.t[HY_UPDATE_PARAM], i);
            if (fabs(value) > 65520) {
                ck_assert(isinf(found));
            } else {
                ck_assert_double_le(fabs(found - value), spacing);
                sum += found - value;
            }
        }
        ck_assert_double_le(fabs(sum) / COUNT, 0.05 * spacing);
        trial_end(&t);
    }
}
END_TEST

/* ---- 8 bits ---------------------------------------------------------------------------------- */

static double decoded(const hy_tensor *t, int64_t i, bool is_signed) {
    int code = ((const uint8_t *)t->data)[i];
    double scale = (double)t->quant.scale[i / t->quant.block];
    return scale * (is_signed ? pow((code - 128) / 127.0, 3) : pow(code / 255.0, 4));
}

/* How far the next code is from a number of this size. */
static double spacing_at(double size, double scale, bool is_signed) {
    double steps = is_signed ? 127 : 255, p = is_signed ? 3 : 4;
    double k = fmin(floor(pow(size / scale, 1 / p) * steps), steps - 1);
    return scale * (pow((k + 1) / steps, p) - pow(k / steps, p));
}

/* Tensor `at` as random codes with random scales; the reference gets what they stand for. */
static void give_codes(trial *t, int at, int64_t count, int32_t block) {
    hy_tensor *mine = trial_tensor(t, at, HY_U8, 0, count);
    int64_t blocks = (count + block - 1) / block;
    mine->quant.block = block;
    mine->quant.scale = calloc((size_t)blocks, sizeof(float));
    for (int64_t i = 0; i < blocks; i++)
        mine->quant.scale[i] = 0.01f * (float)roll(&t->dice, 1, 20);
    for (int64_t i = 0; i < count; i++) {
        ((uint8_t *)mine->data)[i] = (uint8_t)roll(&t->dice, at == HY_UPDATE_M ? 1 : 0, 255);
        ((double *)t->exact.t[at].data)[i] = decoded(mine, i, at == HY_UPDATE_M);
    }
}

static trial coded_trial(int64_t count, int32_t m_block, int32_t v_block) {
    trial t = adamw_trial(HY_F32, HY_F32, HY_F32, false, count);
    for (int at = HY_UPDATE_M; at <= HY_UPDATE_V; at++) {
        free(t.call.t[at].data);
        free(t.exact.t[at].data);
        give_codes(&t, at, count, at == HY_UPDATE_M ? m_block : v_block);
    }
    return t;
}

static void coded_trial_end(trial *t) {
    free(t->call.t[HY_UPDATE_M].quant.scale);
    free(t->call.t[HY_UPDATE_V].quant.scale);
    trial_end(t);
}

static void check_codes(const trial *t, int at) {
    const hy_tensor *found = &t->call.t[at];
    const double *expected = t->exact.t[at].data;
    int64_t count = hy_tensor_count(found), block = found->quant.block;
    for (int64_t i = 0; i < count; i++) {
        double scale = (double)found->quant.scale[i / block];
        double allowed = spacing_at(fabs(expected[i]), scale, at == HY_UPDATE_M) + 1e-6 * scale;
        ck_assert_double_le(fabs(decoded(found, i, at == HY_UPDATE_M) - expected[i]), allowed);
    }
    for (int64_t first = 0; first < count; first += block) {
        double largest = 0;
        for (int64_t i = first; i < first + block && i < count; i++) {
            largest = fmax(largest, fabs(expected[i]));
        }
        ck_assert_double_eq_tol((double)found->quant.scale[first / block], largest, 1e-6 * largest);
    }
}

START_TEST(eight_bit_state_steps_as_the_reference) {
    static const int32_t blocks[] = {8, 64, 256};
    for (int i = 0; i < 9; i++) {
        trial t = coded_trial(i == 0 ? 1 : 40011, blocks[i % 3], blocks[i / 3]);
        rig_run(&cpu, &t.call);
        reference_run(&t.exact);
        trial_check(&t, HY_UPDATE_PARAM, 1);
        check_codes(&t, HY_UPDATE_M);
        check_codes(&t, HY_UPDATE_V);
        coded_trial_end(&t);
    }
}
END_TEST

/* Dequantise, step in fp32, quantise: three ops that the one must equal bit for bit. */
START_TEST(eight_bit_state_is_quantised_as_the_op_does_it) {
    enum { COUNT = 5003, BLOCK = 256, BLOCKS = (COUNT + BLOCK - 1) / BLOCK };
    trial coded = coded_trial(COUNT, BLOCK, BLOCK), wide = coded_trial(COUNT, BLOCK, BLOCK);
    float *state[2], scales[BLOCKS];
    uint8_t *codes = malloc(COUNT);
    hy_op_call step = wide.call;
    for (int k = 0; k < 2; k++) {
        state[k] = malloc(COUNT * sizeof(float));
        hy_tensor *t = &wide.call.t[HY_UPDATE_M + k];
        hy_op_call call = {.kind = HY_OP_DEQUANTIZE, .attr.quantize = {BLOCK, k == 0}};
        call.t[HY_DEQUANTIZE_CODES] = hy_tensor_1d(t->data, HY_U8, COUNT);
        call.t[HY_DEQUANTIZE_SCALES] = hy_tensor_1d(t->quant.scale, HY_F32, BLOCKS);
        call.t[HY_DEQUANTIZE_X] = step.t[HY_UPDATE_M + k] = hy_tensor_1d(state[k], HY_F32, COUNT);
        rig_run(&cpu, &call);
    }
    rig_run(&cpu, &step);
    rig_run(&cpu, &coded.call);
    ck_assert_mem_eq(coded.call.t[HY_UPDATE_PARAM].data, step.t[HY_UPDATE_PARAM].data,
                     COUNT * sizeof(float));
    for (int k = 0; k < 2; k++) {
        const hy_tensor *found = &coded.call.t[HY_UPDATE_M + k];
        hy_op_call call = {.kind = HY_OP_QUANTIZE, .attr.quantize = {BLOCK, k == 0}};
        call.t[HY_QUANTIZE_X] = step.t[HY_UPDATE_M + k];
        call.t[HY_QUANTIZE_CODES] = hy_tensor_1d(codes, HY_U8, COUNT);
        call.t[HY_QUANTIZE_SCALES] = hy_tensor_1d(scales, HY_F32, BLOCKS);
        rig_run(&cpu, &call);
        ck_assert_mem_eq(found->data, codes, COUNT);
        ck_assert_mem_eq(found->quant.scale, scales, sizeof scales);
        free(state[k]);
    }
    free(codes);
    coded_trial_end(&coded);
    coded_trial_end(&wide);
}
END_TEST

/* Squares that underflow beside their block's largest: the step divides by them. */
START_TEST(eight_bit_v_never_becomes_zero_unless_it_is) {
    enum { COUNT = 1024 };
    trial t = coded_trial(COUNT, 256, 256);
    for (int64_t i = 0; i < COUNT; i++) {
        ((uint8_t *)t.call.t[HY_UPDATE_V].data)[i] = i % 3 == 0 ? 0 : 1;
        trial_put(&t, HY_UPDATE_GRAD, i, i % 256 == 100 ? 1000 : i % 3 == 1 ? 1e-12 : 0);
    }
    for (int step = 0; step < 20; step++) {
        rig_run(&cpu, &t.call);
        for (int64_t i = 0; i < COUNT; i++) {
            int code = ((uint8_t *)t.call.t[HY_UPDATE_V].data)[i];
            bool is_zero = i % 3 == 0 && i % 256 != 100;
            ck_assert_msg(is_zero ? code == 0 : code > 0, "element %lld has code %d", (long long)i,
                          code);
            ck_assert(isfinite(real_at(&t.call.t[HY_UPDATE_PARAM], i)));
        }
    }
    coded_trial_end(&t);
}
END_TEST

/* 300 steps with gradients of four sizes in a block, from 1 to 1/64, and a beta2 that changes v by
 * less than the distance of two codes in a step. */
START_TEST(eight_bit_state_follows_the_fp32_one) {
    enum { COUNT = 2048, STEPS = 300 };
    trial wide = adamw_trial(HY_F32, HY_F32, HY_F32, false, COUNT),
          narrow = coded_trial(COUNT, 256, 256);
    float *start = malloc(COUNT * sizeof *start);
    memcpy(narrow.call.t[HY_UPDATE_PARAM].data, wide.call.t[HY_UPDATE_PARAM].data,
           COUNT * sizeof *start);
    memcpy(start, wide.call.t[HY_UPDATE_PARAM].data, COUNT * sizeof *start);
    for (int at = HY_UPDATE_M; at <= HY_UPDATE_V; at++) {
        memset(wide.call.t[at].data, 0, COUNT * sizeof(float));
        memset(narrow.call.t[at].data, at == HY_UPDATE_M ? 128 : 0, COUNT);
    }
    for (int step = 1; step <= STEPS; step++) {
        for (int64_t i = 0; i < COUNT; i++) {
            double gradient = pow(4, -(double)(i % 4)) * (roll_normal(&wide.dice) + 0.5);
            trial_put(&wide, HY_UPDATE_GRAD, i, gradient);
            trial_put(&narrow, HY_UPDATE_GRAD, i, gradient);
        }
        trial *both[] = {&wide, &narrow};
        for (int k = 0; k < 2; k++) {
            both[k]->call.attr.adamw.lr = 1e-3f;
            both[k]->call.attr.adamw.weight_decay = 0;
            both[k]->call.attr.adamw.beta2 = 0.999f;
            both[k]->call.attr.adamw.correction1 = (float)(1 - pow(0.9, step));
            both[k]->call.attr.adamw.correction2 = (float)(1 - pow(0.999, step));
            both[k]->call.attr.seed = (uint64_t)step;
            rig_run(&cpu, &both[k]->call);
        }
    }
    double wrong = 0, moved = 0;
    for (int64_t i = 0; i < COUNT; i++) {
        double exact = real_at(&wide.call.t[HY_UPDATE_PARAM], i),
               found = real_at(&narrow.call.t[HY_UPDATE_PARAM], i);
        wrong += (found - exact) * (found - exact);
        moved += (exact - (double)start[i]) * (exact - (double)start[i]);
    }
    ck_assert_double_le(sqrt(wrong / moved), 0.07);
    free(start);
    trial_end(&wide);
    coded_trial_end(&narrow);
}
END_TEST

START_TEST(eight_bit_state_gives_the_same_bits_on_any_number_of_threads) {
    enum { COUNT = 100003 };
    trial first = coded_trial(COUNT, 128, 256);
    rig_run(&cpu, &first.call);
    for (int threads = 1; threads <= 5; threads += 4) {
        rig other = rig_create(threads);
        trial again = coded_trial(COUNT, 128, 256);
        rig_run(&other, &again.call);
        for (int at = HY_UPDATE_PARAM; at <= HY_UPDATE_V; at++) {
            if (!hy_tensor_is_given(&first.call.t[at])) continue;
            ck_assert_mem_eq(again.call.t[at].data, first.call.t[at].data,
                             hy_tensor_bytes(&first.call.t[at]));
        }
        ck_assert_mem_eq(again.call.t[HY_UPDATE_M].quant.scale,
                         first.call.t[HY_UPDATE_M].quant.scale,
                         (COUNT + 127) / 128 * sizeof(float));
        coded_trial_end(&again);
        rig_destroy(&other);
    }
    coded_trial_end(&first);
}
END_TEST

START_TEST(eight_bit_state_wants_scales_and_a_block_size) {
    static const int32_t wrong[] = {0, 4, 100, 512};
    trial t = coded_trial(1000, 256, 256);
    for (size_t k = 0; k < sizeof wrong / sizeof wrong[0]; k++) {
        hy_op_call call = t.call;
        call.t[HY_UPDATE_V].quant.block = wrong[k];
        ck_assert_int_eq(cpu.backend->supports(cpu.backend, &call), HY_ERR_INPUT);
        ck_assert_ptr_nonnull(strstr(hy_error_message(), "power of two"));
    }
    hy_op_call call = t.call;
    call.t[HY_UPDATE_M].quant.scale = NULL;
    ck_assert_int_eq(cpu.backend->supports(cpu.backend, &call), HY_ERR_INPUT);
    ck_assert_ptr_nonnull(strstr(hy_error_message(), "m is u8 but has no scales"));
    coded_trial_end(&t);
}
END_TEST

/* ---- clipping -------------------------------------------------------------------------------- */

static void clip(double total, float max_norm, float grad_scale, float result[2]) {
    hy_op_call call = {.kind = HY_OP_CLIP, .attr.clip = {max_norm, grad_scale}};
    call.t[HY_CLIP_TOTAL] = hy_tensor_1d(&total, HY_F64, 1);
    call.t[HY_CLIP_RESULT] = hy_tensor_1d(result, HY_F32, 2);
    rig_run(&cpu, &call);
}

START_TEST(clip_scales_gradients_down_to_the_limit) {
    float result[2];
    clip(9, 1, 1, result);
    ck_assert_float_eq(result[0], 3);
    ck_assert_float_eq_tol(result[1], 1.0f / 3, 1e-7f);
    clip(0.25, 1, 1, result);
    ck_assert_float_eq(result[1], 1);
    clip(9, 0, 1, result);
    ck_assert_float_eq(result[1], 1);
    clip(0, 1, 1, result);
    ck_assert_float_eq(result[0], 0);
    ck_assert_float_eq(result[1], 1);
}
END_TEST

START_TEST(clip_takes_the_loss_scale_out_first) {
    float result[2];
    clip(9, 1, 0.25f, result); /* true norm 0.75: below the limit */
    ck_assert_float_eq(result[1], 0.25f);
    clip(64, 1, 0.25f, result); /* true norm 2 */
    ck_assert_float_eq(result[1], 0.125f);
}
END_TEST

START_TEST(clip_of_a_norm_that_is_not_finite_gives_zero) {
    float result[2];
    clip(NAN, 1, 1, result);
    ck_assert_float_eq(result[1], 0);
    clip(INFINITY, 0, 1, result);
    ck_assert_float_eq(result[1], 0);
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("kernels: adamw");
    TCase *all = tcase_create("adamw");
    tcase_set_timeout(all, 120);
    tcase_add_unchecked_fixture(all, load, NULL);
    tcase_add_checked_fixture(all, set_up, tear_down);
    tcase_add_test(all, adamw_agrees_with_the_reference);
    tcase_add_test(all, a_scale_of_zero_leaves_everything_as_it_was);
    tcase_add_test(all, with_a_master_the_parameter_is_its_rounding_to_nearest);
    tcase_add_test(all, stochastic_rounding_takes_its_noise_from_the_logical_index);
    tcase_add_test(all, a_step_cut_in_pieces_gives_the_same_bits);
    tcase_add_test(all, stochastic_rounding_keeps_small_steps_on_average);
    tcase_add_test(all, fp16_rounding_covers_subnormals_and_the_largest_numbers);
    tcase_add_test(all, eight_bit_state_steps_as_the_reference);
    tcase_add_test(all, eight_bit_state_is_quantised_as_the_op_does_it);
    tcase_add_test(all, eight_bit_v_never_becomes_zero_unless_it_is);
    tcase_add_test(all, eight_bit_state_follows_the_fp32_one);
    tcase_add_test(all, eight_bit_state_gives_the_same_bits_on_any_number_of_threads);
    tcase_add_test(all, eight_bit_state_wants_scales_and_a_block_size);
    tcase_add_test(all, clip_scales_gradients_down_to_the_limit);
    tcase_add_test(all, clip_takes_the_loss_scale_out_first);
    tcase_add_test(all, clip_of_a_norm_that_is_not_finite_gives_zero);
    suite_add_tcase(suite, all);
    return suite;
}

HY_TEST_MAIN(make_suite)
