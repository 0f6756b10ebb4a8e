/* test_gpu_optim.c: the optimizer's ops and those of prediction on CUDA.
 *
 * Clipping and optimizers against the double-precision reference, stochastic rounding bit by bit;
 * combinations, dot products of differences and 8-bit state against the CPU backend, whose own
 * tests tie them to their definitions. */
#include "gpu_rig.h"

#include "muon_checks.h"
#include "optimizer_checks.h"

static const int64_t counts[] = {1, 7, 1000, 40011};
enum { COUNTS = sizeof counts / sizeof counts[0] };

/* ---- optimizers ------------------------------------------------------------------------------ */

/* The element-wise first. */
static const update_trial updates[] = {adamw_trial, sgd_trial,       muon_trial,
                                       lion_trial,  adafactor_trial, factored_trial};
enum { UPDATES = sizeof updates / sizeof updates[0], ELEMENT_WISE = 4 };

START_TEST(an_update_agrees_with_the_reference) {
    for (int i = 0; i < UPDATE_MIXTURES * COUNTS; i++) {
        if (gpu_leaves_out(counts[i / UPDATE_MIXTURES])) continue;
        trial t = update_mixture(updates[_i], i % UPDATE_MIXTURES, counts[i / UPDATE_MIXTURES]);
        ck_assert(gpu_run_both(&t, 0));
        /* one stochastic rounding is up to twice as far off as one to nearest */
        gpu_check(&t, HY_UPDATE_PARAM, 2);
        for (int k = HY_UPDATE_M; k <= HY_UPDATE_V; k++) {
            if (t.call.t[k].data) gpu_check(&t, k, 2);
        }
        if (t.call.t[HY_UPDATE_MASTER].data) gpu_check(&t, HY_UPDATE_MASTER, 1);
        trial_end(&t);
    }
}
END_TEST

START_TEST(what_muon_makes_orthogonal_agrees_with_the_reference) {
    static const hy_dtype types[] = {HY_F32, HY_BF16};
    for (int i = 0; i < 16; i++) {
        trial blend =
            muon_blend_trial(types[i % 2], types[i / 2 % 2], types[i / 4 % 2], 40010 + i / 8);
        trial unit = to_unit_trial(types[i % 2], types[i / 2 % 2], 3, i == 9 ? 140011 : 10011 + i);
        ck_assert(gpu_run_both(&blend, 0) && gpu_run_both(&unit, 0));
        gpu_check(&blend, HY_MUON_BLEND_OUT, 1);
        gpu_check(&unit, HY_TO_UNIT_Y, 1);
        trial_end(&blend);
        trial_end(&unit);
    }
}
END_TEST

START_TEST(a_row_has_the_same_bits_in_any_company) { check_unit_company(gpu_must_run); }
END_TEST

START_TEST(updates_of_muon_are_those_of_the_formulas) {
    muon_device here = {.backend = gpu.backend};
    must(gpu.backend->stream_create(gpu.backend, "muon", &here.stream));
    check_muon(&here, &muon_cases[_i]);
    gpu.backend->stream_destroy(here.stream);
}
END_TEST

START_TEST(sgd_goes_without_a_buffer) {
    for (int i = 0; i < UPDATE_MIXTURES; i++) {
        trial t = update_mixture(sgd_trial, i, 1000);
        free(t.call.t[HY_UPDATE_M].data);
        free(t.exact.t[HY_UPDATE_M].data);
        t.call.t[HY_UPDATE_M] = t.exact.t[HY_UPDATE_M] = (hy_tensor){0};
        ck_assert(gpu_run_both(&t, 0));
        gpu_check(&t, HY_UPDATE_PARAM, 2);
        trial_end(&t);
    }
}
END_TEST

/* Tiles that are whole and cut, rows that packs divide and that they do not, few rows and many. */
START_TEST(factored_steps_agree_with_the_reference_in_any_shape) {
    static const int64_t shapes[][2] = {{1, 5},      {64, 256},  {65, 257},  {129, 512},
                                        {300, 1000}, {3, 20000}, {20000, 8}, {33000, 12},
                                        {1, 1},      {513, 3}};
    for (int i = 0; i < 2 * 10; i++) {
        const int64_t *shape = shapes[i / 2];
        if (gpu_leaves_out(shape[0] * shape[1])) continue;
        trial t = adafactor_trial_of(HY_BF16, i % 2 ? HY_BF16 : HY_F32, i % 2, shape[0], shape[1]);
        t.call.attr.adafactor.is_relative = i / 2 % 3 > 0;
        ck_assert(gpu_run_both(&t, 0));
        gpu_check(&t, HY_UPDATE_PARAM, 2);
        gpu_check(&t, HY_UPDATE_M, 1);
        if (i % 2) gpu_check(&t, HY_UPDATE_MASTER, 1);
        trial_end(&t);
    }
}
END_TEST

/* Tensors that begin anywhere go element by element. */
START_TEST(a_factored_step_does_not_depend_on_how_tensors_are_aligned) {
    for (int i = 0; i < 4; i++) {
        trial a = adafactor_trial_of(HY_BF16, HY_BF16, false, 70, i % 2 ? 300 : 301);
        trial b = adafactor_trial_of(HY_BF16, HY_BF16, false, 70, i % 2 ? 300 : 301);
        gpu_must_run(&a.call);
        gpu.shifted = i < 2 ? 1 << HY_UPDATE_GRAD : 1 << HY_UPDATE_PARAM | 1 << HY_UPDATE_M;
        gpu_must_run(&b.call);
        gpu.shifted = 0;
        for (int k = HY_UPDATE_PARAM; k <= HY_UPDATE_M; k++) {
            if (!a.call.t[k].data) continue;
            ck_assert_mem_eq(a.call.t[k].data, b.call.t[k].data, hy_tensor_bytes(&a.call.t[k]));
        }
        trial_end(&a);
        trial_end(&b);
    }
}
END_TEST

START_TEST(a_scale_of_zero_leaves_everything_as_it_was) {
    check_zero_scale(gpu_must_run, updates[_i]);
}
END_TEST

START_TEST(with_a_master_the_parameter_is_its_rounding_to_nearest) {
    check_master_rounding(gpu_must_run, updates[_i]);
}
END_TEST

START_TEST(stochastic_rounding_takes_its_noise_from_the_logical_index) {
    check_rounding_noise(gpu_must_run, updates[_i], 42, 1000001);
}
END_TEST

START_TEST(a_step_cut_in_pieces_gives_the_same_bits) { check_cut_step(gpu_must_run, updates[_i]); }
END_TEST

START_TEST(stochastic_rounding_keeps_small_steps_on_average) { check_small_steps(gpu_must_run); }
END_TEST

/* ---- clipping -------------------------------------------------------------------------------- */

START_TEST(clip_is_that_of_the_reference_and_zero_where_the_norm_is_not_finite) {
    static const double totals[] = {9, 0.25, 0, 64, 1e-30, 1e30, NAN, INFINITY};
    static const float limits[] = {1, 0, 0.5f}, scales[] = {1, 0.25f};
    for (int i = 0; i < 48; i++) {
        double total = totals[i % 8];
        float result[2] = {7, 7};
        hy_op_call call = {.kind = HY_OP_CLIP, .attr.clip = {limits[i / 8 % 3], scales[i / 24]}};
        call.t[HY_CLIP_TOTAL] = hy_tensor_1d(&total, HY_F64, 1);
        call.t[HY_CLIP_RESULT] = hy_tensor_1d(result, HY_F32, 2);
        gpu_must_run(&call);
        if (!isfinite(total)) {
            ck_assert_float_eq(result[1], 0);
            continue;
        }
        double exact[2];
        call.t[HY_CLIP_RESULT] = hy_tensor_1d(exact, HY_F64, 2);
        reference_run(&call);
        for (int k = 0; k < 2; k++) {
            ck_assert_double_eq_tol((double)result[k], exact[k], 2e-7 * fabs(exact[k]) + 1e-44);
        }
    }
}
END_TEST

/* ---- prediction ------------------------------------------------------------------------------ */

static rig cpu;
static void open_cpu(void) { cpu = rig_create(2); }
static void close_cpu(void) { rig_destroy(&cpu); }

/* The call on the device and on the CPU; the CPU's result of tensor `at`, to be freed. */
static hy_tensor run_here_and_there(const hy_op_call *call, int at) {
    hy_op_call there = *call;
    there.t[at] = copy_tensor(&call->t[at]);
    for (int i = 0; i < HY_OP_TENSORS; i++) { /* what shares memory continues sharing it */
        if (i != at && call->t[i].data == call->t[at].data) there.t[i].data = there.t[at].data;
    }
    rig_run(&cpu, &there);
    gpu_must_run(call);
    return there.t[at];
}

static trial combine_trial(int64_t count, int variant, hy_dtype out) {
    static const hy_dtype reals[] = {HY_F32, HY_BF16, HY_F16};
    trial t = trial_begin(HY_OP_COMBINE, (uint64_t)variant);
    t.call.attr.combine.coefficient[0] = 1.5f;
    t.call.attr.combine.coefficient[1] = -0.25f;
    t.call.attr.combine.coefficient[2] = 3;
    t.call.attr.combine.noise = variant & 8 ? 0.5f : 0;
    t.call.attr.seed = 5;
    t.call.attr.first = 1000003;
    trial_normal(&t, HY_COMBINE_OUT, out, 0, count, 0, 1);
    for (int k = 0; k < 3; k++) {
        if (variant >> k & 1)
            trial_normal(&t, HY_COMBINE_X0 + k, reals[(variant + k) % 3], 0, count, 0, 1);
    }
    return t;
}

/* The fp32 sum may be fused or not, and the normal numbers come from other functions: differences
 * of a few units in fp32 may turn a rounding to 16 bits by one step. */
START_TEST(a_combination_is_that_of_the_cpu) {
    static const hy_dtype reals[] = {HY_F32, HY_BF16, HY_F16};
    for (int i = 0; i < 3 * 16 * COUNTS; i++) {
        int64_t count = counts[i / 48];
        int variant = i % 16;
        if (variant == 0) continue; /* no input and no noise is a fill with zero */
        trial t = combine_trial(count, variant, reals[i / 16 % 3]);
        hy_tensor expected = run_here_and_there(&t.call, HY_COMBINE_OUT);
        for (int64_t k = 0; k < count; k++) {
            double a = real_at(&t.call.t[HY_COMBINE_OUT], k), b = real_at(&expected, k);
            double allowed = expected.dtype == HY_F32 ? 2e-6 : 2.01 * half_spacing(expected.dtype);
            if (fabs(a - b) > allowed * (fabs(b) + 1)) {
                ck_abort_msg("variant %d: element %lld of %lld is %.9g, on the CPU %.9g", variant,
                             (long long)k, (long long)count, a, b);
            }
        }
        free(expected.data);
        trial_end(&t);
    }
}
END_TEST

START_TEST(a_combination_may_write_over_an_input) {
    for (int at = HY_COMBINE_X0; at <= HY_COMBINE_X2; at++) {
        trial t = combine_trial(5001, 7, HY_F32);
        hy_op_call call = t.call;
        free(t.call.t[at].data);
        t.call.t[at] = call.t[at] = call.t[HY_COMBINE_OUT];
        hy_tensor expected = run_here_and_there(&call, HY_COMBINE_OUT);
        for (int64_t k = 0; k < 5001; k++) {
            double a = real_at(&call.t[HY_COMBINE_OUT], k), b = real_at(&expected, k);
            if (fabs(a - b) > 2e-6 * (fabs(b) + 1))
                ck_abort_msg("input %d, %lld", at, (long long)k);
        }
        free(expected.data);
        t.call.t[at].data = NULL; /* freed as the result */
        trial_end(&t);
    }
}
END_TEST

START_TEST(noise_belongs_to_the_logical_element) {
    trial whole = combine_trial(4000, 8, HY_F32), part = combine_trial(100, 8, HY_F32);
    part.call.attr.first += 1501;
    gpu_must_run(&whole.call);
    gpu_must_run(&part.call);
    ck_assert_mem_eq((float *)whole.call.t[HY_COMBINE_OUT].data + 1501,
                     part.call.t[HY_COMBINE_OUT].data, 100 * sizeof(float));
    trial_end(&whole);
    trial_end(&part);
}
END_TEST

START_TEST(dot_products_of_differences_are_sums_in_double) {
    static const hy_dtype reals[] = {HY_F32, HY_BF16, HY_F16};
    for (int i = 0; i < 24 * COUNTS; i++) {
        int64_t count = counts[i / 24];
        trial t = trial_begin(HY_OP_DIFF_DOT, (uint64_t)i);
        t.call.attr.accumulate = i & 1;
        for (int k = 0; k < 4; k++) {
            bool is_there = k % 2 == 0 || (i >> (1 + k / 2) & 1);
            if (is_there) trial_normal(&t, k, reals[(i / 8 + k) % 3], 0, count, 0.1 * k, 1);
        }
        trial_normal(&t, HY_DIFF_DOT_OUT, HY_F64, 0, 3, 10, 1);
        hy_tensor expected = run_here_and_there(&t.call, 4);
        const double *a = t.call.t[HY_DIFF_DOT_OUT].data, *b = expected.data;
        for (int k = 0; k < 3; k++) {
            ck_assert_double_eq_tol(a[k], b[k], 1e-6 * (fabs(b[0]) + fabs(b[1]) + fabs(b[k])));
        }
        free(expected.data);
        trial_end(&t);
    }
}
END_TEST

/* ---- 8 bits ---------------------------------------------------------------------------------- */

static trial quantize_trial(int64_t count, int32_t block, bool is_signed) {
    trial t = trial_begin(HY_OP_QUANTIZE, (uint64_t)(count + block));
    t.call.attr.quantize.block = block;
    t.call.attr.quantize.is_signed = is_signed;
    trial_tensor(&t, HY_QUANTIZE_X, HY_F32, 0, count);
    for (int64_t i = 0; i < count; i++) {
        double x = roll_normal(&t.dice);
        trial_put(&t, HY_QUANTIZE_X, i, is_signed ? x : pow(10, -7 * fabs(x))); /* like m, like v */
    }
    if (count > 10) trial_put(&t, HY_QUANTIZE_X, 3, 0);
    t.call.t[HY_QUANTIZE_CODES] = hy_tensor_1d(calloc(1, (size_t)count), HY_U8, count);
    t.call.t[HY_QUANTIZE_SCALES] = hy_tensor_1d(NULL, HY_F32, (count + block - 1) / block);
    t.call.t[HY_QUANTIZE_SCALES].data = calloc(1, hy_tensor_bytes(&t.call.t[HY_QUANTIZE_SCALES]));
    return t;
}

/* Codes within one step of the CPU's: roots are rounded by each in its own way. */
static void check_codes(const hy_tensor *found, const hy_tensor *expected) {
    const uint8_t *a = found->data, *b = expected->data;
    int64_t others = 0, count = hy_tensor_count(found);
    for (int64_t i = 0; i < count; i++) {
        int apart = abs((int)a[i] - (int)b[i]);
        if (apart > 1) ck_abort_msg("code %lld is %d, on the CPU %d", (long long)i, a[i], b[i]);
        others += apart;
    }
    ck_assert_int_le(others, count / 1000 + 1);
}

/* State of a trial as codes of the quantiser, and their scales. */
static void make_codes(trial *t, int at, bool is_signed, int32_t block) {
    hy_tensor *x = &t->call.t[at];
    int64_t count = hy_tensor_count(x), blocks = (count + block - 1) / block;
    hy_op_call call = {.kind = HY_OP_QUANTIZE,
                       .attr.quantize = {.block = block, .is_signed = is_signed}};
    call.t[HY_QUANTIZE_X] = *x;
    call.t[HY_QUANTIZE_CODES] = hy_tensor_1d(calloc(1, (size_t)count), HY_U8, count);
    call.t[HY_QUANTIZE_SCALES] =
        hy_tensor_1d(calloc(sizeof(float), (size_t)blocks), HY_F32, blocks);
    rig_run(&cpu, &call);
    free(x->data);
    *x = call.t[HY_QUANTIZE_CODES];
    x->quant.scale = call.t[HY_QUANTIZE_SCALES].data;
    x->quant.block = block;
}

/* A largest number that differs in its last bit moves every code of its block a little, and one
 * that lies on the border between two codes goes the other way. */
START_TEST(an_update_of_eight_bit_state_is_that_of_the_cpu) {
    static const int32_t blocks[] = {256, 64, 8};
    for (int i = 0; i < 2 * 3 * COUNTS; i++) {
        int64_t count = counts[i / 6];
        trial t = updates[_i](HY_BF16, HY_BF16, HY_F32, i % 2, count);
        int end = t.call.t[HY_UPDATE_V].data ? HY_UPDATE_V + 1 : HY_UPDATE_V;
        for (int k = HY_UPDATE_M; k < end; k++)
            make_codes(&t, k, k == HY_UPDATE_M, blocks[i / 2 % 3]);
        hy_op_call there = t.call;
        for (int k = 0; k < HY_OP_TENSORS; k++) there.t[k] = copy_tensor(&t.call.t[k]);
        for (int k = HY_UPDATE_M; k < end; k++) {
            size_t bytes = hy_tensor_scale_bytes(&t.call.t[k]);
            there.t[k].quant.scale = malloc(bytes);
            memcpy(there.t[k].quant.scale, t.call.t[k].quant.scale, bytes);
        }
        rig_run(&cpu, &there);
        gpu_must_run(&t.call);
        for (int k = HY_UPDATE_M; k < end; k++) {
            const float *a = t.call.t[k].quant.scale, *b = there.t[k].quant.scale;
            for (int64_t n = 0; n * blocks[i / 2 % 3] < count; n++) {
                if (fabsf(a[n] - b[n]) > 1e-6f * b[n]) ck_abort_msg("scale %lld", (long long)n);
            }
            check_codes(&t.call.t[k], &there.t[k]);
            free(t.call.t[k].quant.scale);
            free(there.t[k].quant.scale);
        }
        for (int64_t n = 0; n < count; n++) {
            double a = real_at(&t.call.t[HY_UPDATE_PARAM], n),
                   b = real_at(&there.t[HY_UPDATE_PARAM], n);
            if (fabs(a - b) > 0x1p-7 * fabs(b) + 1e-6) ck_abort_msg("parameter %lld", (long long)n);
        }
        for (int k = 0; k < HY_OP_TENSORS; k++) free(there.t[k].data);
        trial_end(&t);
    }
}
END_TEST

START_TEST(eight_bit_state_is_that_of_the_cpu) {
    static const int32_t blocks[] = {256, 64, 100, 1, 2048};
    for (int i = 0; i < 2 * 5 * COUNTS; i++) {
        trial t = quantize_trial(counts[i / 10], blocks[i / 2 % 5], i % 2);
        hy_op_call back = {.kind = HY_OP_DEQUANTIZE, .attr = t.call.attr};
        hy_tensor codes = run_here_and_there(&t.call, HY_QUANTIZE_CODES);
        check_codes(&t.call.t[HY_QUANTIZE_CODES], &codes);
        const float *x = t.call.t[HY_QUANTIZE_X].data, *scales = t.call.t[HY_QUANTIZE_SCALES].data;
        int64_t count = counts[i / 10], block = blocks[i / 2 % 5];
        for (int64_t b = 0; b * block < count; b++) {
            float largest = 0;
            for (int64_t k = b * block; k < count && k < (b + 1) * block; k++) {
                largest = fmaxf(largest, fabsf(x[k]));
                bool is_lost = x[k] > 0 && ((uint8_t *)t.call.t[HY_QUANTIZE_CODES].data)[k] == 0;
                if (is_lost && !(i % 2)) ck_abort_msg("%lld became zero", (long long)k);
            }
            ck_assert_float_eq(scales[b], largest);
        }
        back.t[HY_DEQUANTIZE_CODES] = t.call.t[HY_QUANTIZE_CODES];
        back.t[HY_DEQUANTIZE_SCALES] = t.call.t[HY_QUANTIZE_SCALES];
        back.t[HY_DEQUANTIZE_X] =
            hy_tensor_1d(calloc(1, (size_t)count * sizeof(float)), HY_F32, count);
        hy_tensor values = run_here_and_there(&back, HY_DEQUANTIZE_X);
        for (int64_t k = 0; k < count; k++) {
            double a = real_at(&back.t[HY_DEQUANTIZE_X], k), b = real_at(&values, k);
            if (fabs(a - b) > 5e-7 * fabs(b)) ck_abort_msg("value %lld", (long long)k);
        }
        free(back.t[HY_DEQUANTIZE_X].data);
        free(values.data);
        free(codes.data);
        trial_end(&t);
    }
}
END_TEST

/* Every bf16 number and every byte, bit for bit: aligned or not, and with an end that no thread has
 * whole. */
START_TEST(bytes_beside_bf16_numbers_are_those_of_the_cpu) {
    static const int exponents[] = {-100, -13, 0, 100};
    int64_t count = gpu.is_small ? 70001 : 3 * 65536 + 5;
    uint16_t *near = malloc((size_t)count * sizeof *near), *x = calloc(sizeof *x, (size_t)count);
    uint8_t *codes = calloc(1, (size_t)count);
    for (int64_t i = 0; i < count; i++) near[i] = (uint16_t)(i % 0x7f80 | (i >> 3 & 1) << 15);
    for (int i = 0; i < 4 * 4; i++) {
        hy_op_call wrap = {.kind = HY_OP_WRAP, .attr.grid.exponent = exponents[i / 4]};
        hy_op_call unwrap = {.kind = HY_OP_UNWRAP, .attr.grid.exponent = exponents[i / 4]};
        gpu.shifted = (unsigned)(i % 4);
        wrap.t[HY_WRAP_X] = hy_tensor_1d(near, HY_BF16, count);
        wrap.t[HY_WRAP_CODES] = hy_tensor_1d(codes, HY_U8, count);
        hy_tensor expected = run_here_and_there(&wrap, HY_WRAP_CODES);
        ck_assert_mem_eq(codes, expected.data, (size_t)count);
        free(expected.data);
        for (int64_t k = 0; k < count; k++) codes[k] = (uint8_t)(codes[k] + k / 7);
        unwrap.t[HY_UNWRAP_CODES] = hy_tensor_1d(codes, HY_U8, count);
        unwrap.t[HY_UNWRAP_NEAR] = hy_tensor_1d(near, HY_BF16, count);
        unwrap.t[HY_UNWRAP_X] = hy_tensor_1d(x, HY_BF16, count);
        expected = run_here_and_there(&unwrap, HY_UNWRAP_X);
        ck_assert_mem_eq(x, expected.data, (size_t)count * sizeof *x);
        free(expected.data);
    }
    gpu.shifted = 0;
    free(near);
    free(x);
    free(codes);
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("cuda: optimizer and prediction");
    TCase *all = tcase_create("optimizer");
    tcase_add_unchecked_fixture(all, open_cpu, close_cpu);
    tcase_add_loop_test(all, an_update_agrees_with_the_reference, 0, UPDATES);
    tcase_add_test(all, what_muon_makes_orthogonal_agrees_with_the_reference);
    tcase_add_test(all, a_row_has_the_same_bits_in_any_company);
    tcase_add_loop_test(all, updates_of_muon_are_those_of_the_formulas, 0, MUON_CASES);
    tcase_add_test(all, sgd_goes_without_a_buffer);
    tcase_add_test(all, factored_steps_agree_with_the_reference_in_any_shape);
    tcase_add_test(all, a_factored_step_does_not_depend_on_how_tensors_are_aligned);
    tcase_add_loop_test(all, a_scale_of_zero_leaves_everything_as_it_was, 0, UPDATES);
    tcase_add_loop_test(all, with_a_master_the_parameter_is_its_rounding_to_nearest, 0, UPDATES);
    tcase_add_loop_test(all, stochastic_rounding_takes_its_noise_from_the_logical_index, 0,
                        UPDATES);
    tcase_add_loop_test(all, a_step_cut_in_pieces_gives_the_same_bits, 0, ELEMENT_WISE);
    tcase_add_test(all, stochastic_rounding_keeps_small_steps_on_average);
    tcase_add_test(all, clip_is_that_of_the_reference_and_zero_where_the_norm_is_not_finite);
    tcase_add_test(all, a_combination_is_that_of_the_cpu);
    tcase_add_test(all, a_combination_may_write_over_an_input);
    tcase_add_test(all, noise_belongs_to_the_logical_element);
    tcase_add_test(all, dot_products_of_differences_are_sums_in_double);
    tcase_add_test(all, eight_bit_state_is_that_of_the_cpu);
    tcase_add_loop_test(all, an_update_of_eight_bit_state_is_that_of_the_cpu, 0, ELEMENT_WISE);
    tcase_add_test(all, bytes_beside_bf16_numbers_are_those_of_the_cpu);
    suite_add_tcase(suite, all);
    return suite;
}

GPU_TEST_MAIN(make_suite)
