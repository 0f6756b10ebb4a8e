/* test_kernels.c: basic functions below the ops: 16-bit floats, exp, our sgemm, the check of
 * calls. */
#include "kernel_rig.h"
#include "kernels/cpu/blas.h"
#include "kernels/cpu/vector_math.h"

/* ---- 16-bit floats --------------------------------------------------------------------------- */

START_TEST(every_bf16_and_fp16_pattern_survives_the_way_to_fp32_and_back) {
    for (uint32_t h = 0; h < 65536; h++) {
        float from_bf16 = hy_bf16_to_f32((uint16_t)h), from_f16 = hy_f16_to_f32((uint16_t)h);
        if (isnan(from_bf16)) {
            ck_assert(isnan(hy_bf16_to_f32(hy_f32_to_bf16(from_bf16))));
        } else {
            ck_assert_uint_eq(hy_f32_to_bf16(from_bf16), h);
        }
        if (isnan(from_f16)) {
            ck_assert(isnan(hy_f16_to_f32(hy_f32_to_f16(from_f16))));
        } else {
            ck_assert_uint_eq(hy_f32_to_f16(from_f16), h);
        }
    }
}
END_TEST

START_TEST(fp16_patterns_have_the_value_of_their_parts) {
    for (uint32_t h = 0; h < 65536; h++) {
        int exponent = (int)(h >> 10 & 31), mantissa = (int)(h & 1023);
        double value = exponent == 0 ? ldexp(mantissa, -24) : ldexp(1024 + mantissa, exponent - 25);
        if (h & 0x8000) value = -value;
        if (exponent == 31) {
            ck_assert(mantissa ? isnan(hy_f16_to_f32((uint16_t)h))
                               : isinf(hy_f16_to_f32((uint16_t)h)));
        } else {
            ck_assert_double_eq((double)hy_f16_to_f32((uint16_t)h), value);
        }
    }
}
END_TEST

/* Between two neighbours: below the middle goes down, above goes up, the middle goes to the even
 * one. */
START_TEST(rounding_is_to_nearest_and_ties_go_to_even) {
    for (uint32_t h = 0; h < 0x7bff; h++) { /* up to the largest finite fp16 */
        double low = (double)hy_f16_to_f32((uint16_t)h),
               high = (double)hy_f16_to_f32((uint16_t)(h + 1));
        float middle = (float)((low + high) / 2);
        ck_assert_uint_eq(hy_f32_to_f16(middle), h + (h & 1));
        ck_assert_uint_eq(hy_f32_to_f16(nextafterf(middle, 0)), h);
        ck_assert_uint_eq(hy_f32_to_f16(nextafterf(middle, 1e9f)), h + 1);
        ck_assert_uint_eq(hy_f32_to_f16(-middle), 0x8000 | (h + (h & 1)));
    }
    for (uint32_t h = 0; h < 0x7f7f; h++) {
        float middle = hy_bits_float(h << 16 | 0x8000);
        ck_assert_uint_eq(hy_f32_to_bf16(middle), h + (h & 1));
        ck_assert_uint_eq(hy_f32_to_bf16(hy_bits_float((h << 16) + 0x7fff)), h);
        ck_assert_uint_eq(hy_f32_to_bf16(hy_bits_float((h << 16) + 0x8001)), h + 1);
    }
}
END_TEST

START_TEST(numbers_too_large_become_infinity) {
    ck_assert_uint_eq(hy_f32_to_f16(65519), 0x7bff);
    ck_assert_uint_eq(hy_f32_to_f16(65520), 0x7c00);
    ck_assert_uint_eq(hy_f32_to_f16(-1e30f), 0xfc00);
    ck_assert_uint_eq(hy_f32_to_f16(INFINITY), 0x7c00);
    ck_assert_uint_eq(hy_f32_to_bf16(3.4e38f), 0x7f80);
    ck_assert_uint_eq(hy_f32_to_bf16(-INFINITY), 0xff80);
    ck_assert(isnan(hy_bf16_to_f32(hy_f32_to_bf16(hy_bits_float(0x7f800001)))));
}
END_TEST

/* ---- exp ------------------------------------------------------------------------------------- */

START_TEST(exp_is_within_two_units_in_the_last_place) {
    double worst = 0;
    for (double x = -87.2; x < 88.3; x += 0.00137) {
        float in = (float)x, out = hy_exp(in);
        double exact = exp((double)in), unit = ldexp(1, ilogb(exact) - 23);
        worst = fmax(worst, fabs((double)out - exact) / unit);
    }
    ck_assert_double_le(worst, 2);
    ck_assert_float_eq(hy_exp(0), 1);
}
END_TEST

START_TEST(exp_goes_to_zero_and_to_infinity_and_keeps_nan) {
    ck_assert_float_eq(hy_exp(-87.4f), 0);
    ck_assert_float_eq(hy_exp(-1e30f), 0);
    ck_assert_float_eq(hy_exp(-INFINITY), 0);
    ck_assert(isinf(hy_exp(90)) && isinf(hy_exp(1e30f)) && isinf(hy_exp(INFINITY)));
    ck_assert(isnan(hy_exp(hy_bits_float(0x7fc00000))) && isnan(hy_exp(hy_bits_float(0xffc00000))));
    ck_assert_float_eq(hy_sigmoid(-1e30f), 0);
    ck_assert_float_eq(hy_sigmoid(1e30f), 1);
}
END_TEST

START_TEST(square_roots_are_within_one_unit_in_the_last_place) {
    double worst = 0;
    for (double x = 1e-36; x < 1e38; x *= 1.00137) {
        double exact = sqrt((double)(float)x), unit = ldexp(1, ilogb(exact) - 23);
        worst = fmax(worst, fabs((double)hy_sqrt((float)x) - exact) / unit);
    }
    ck_assert_double_le(worst, 1);
    ck_assert_float_eq(hy_sqrt(0), 0);
    ck_assert_float_eq(hy_sqrt(1), 1);
    ck_assert_float_lt(hy_sqrt(1e-44f), 1e-18f);
    ck_assert(isinf(hy_sqrt(INFINITY)) && isnan(hy_sqrt(NAN)));
}
END_TEST

/* ---- sgemm ----------------------------------------------------------------------------------- */

static void check_sgemm(const hy_blas *blas, int variant, int64_t m, int64_t n, int64_t k) {
    trial t = trial_begin(HY_OP_MATMUL, (uint64_t)(m + n + k));
    bool trans_a = variant & 1, trans_b = variant & 2;
    t.exact.attr.matmul.alpha = 0.5f;
    t.exact.attr.matmul.trans_a = trans_a;
    t.exact.attr.matmul.trans_b = trans_b;
    t.exact.attr.accumulate = variant & 4;
    trial_normal(&t, HY_MATMUL_A, HY_F32, trans_a ? k : m, trans_a ? m : k, 0, 1);
    trial_normal(&t, HY_MATMUL_B, HY_F32, trans_b ? n : k, trans_b ? k : n, 0, 1);
    trial_normal(&t, HY_MATMUL_D, HY_F32, m, n, 0, 1);
    hy_gemm g = {.m = m,
                 .n = n,
                 .k = k,
                 .a = t.call.t[HY_MATMUL_A].data,
                 .b = t.call.t[HY_MATMUL_B].data,
                 .c = t.call.t[HY_MATMUL_D].data,
                 .lda = trans_a ? m : k,
                 .ldb = trans_b ? k : n,
                 .ldc = n,
                 .alpha = 0.5f,
                 .beta = variant & 4 ? 1 : 0,
                 .trans_a = trans_a,
                 .trans_b = trans_b};
    if (!(variant & 4)) g.c[0] = NAN;
    hy_sgemm(blas, &g);
    reference_run(&t.exact);
    trial_check(&t, HY_MATMUL_D, 1);
    trial_end(&t);
}

START_TEST(our_sgemm_and_the_library_agree_with_the_reference) {
    static const int64_t shapes[][3] = {{1, 1, 1},    {5, 17, 300},  {97, 193, 257},
                                        {13, 400, 5}, {200, 16, 31}, {12, 15, 1000}};
    const hy_blas own = {0};
    for (int variant = 0; variant < 8; variant++) {
        for (int i = 0; i < 6; i++) {
            check_sgemm(&own, variant, shapes[i][0], shapes[i][1], shapes[i][2]);
            check_sgemm(hy_blas_get(), variant, shapes[i][0], shapes[i][1], shapes[i][2]);
        }
    }
}
END_TEST

START_TEST(the_blas_says_what_it_is) {
    const hy_blas *blas = hy_blas_get();
    ck_assert_msg(blas->detail[0] != 0, "nothing is said");
    ck_assert_ptr_eq(blas, hy_blas_get());
    if (!blas->library) ck_assert_msg(blas->warning[0] != 0, "our own is used without a warning");
}
END_TEST

/* ---- the check of calls ---------------------------------------------------------------------- */

static float some[64];

static hy_op_call good_matmul(void) {
    hy_op_call call = {.kind = HY_OP_MATMUL, .attr.matmul.alpha = 1};
    call.t[HY_MATMUL_A] = hy_tensor_2d(some, HY_F32, 2, 3);
    call.t[HY_MATMUL_B] = hy_tensor_2d(some, HY_F32, 3, 4);
    call.t[HY_MATMUL_D] = hy_tensor_2d(some + 32, HY_F32, 2, 4);
    return call;
}

START_TEST(wrong_calls_are_refused_with_a_reason) {
    hy_op_call call = good_matmul();
    must(hy_op_check(&call));
    call.t[HY_MATMUL_B].shape[0] = 5;
    must_fail(hy_op_check(&call), HY_ERR_INPUT, "matmul: b has shape (5, 4), expected (3, N)");
    call = good_matmul();
    call.t[HY_MATMUL_D].shape[1] = 5;
    must_fail(hy_op_check(&call), HY_ERR_INPUT, "matmul: d has shape (2, 5), expected (2, 4)");
    call = good_matmul();
    call.t[HY_MATMUL_D].data = NULL;
    must_fail(hy_op_check(&call), HY_ERR_INPUT, "matmul: d is missing");
    call = good_matmul();
    call.t[HY_MATMUL_A].dtype = HY_I32;
    must_fail(hy_op_check(&call), HY_ERR_INPUT, "a is i32, expected fp32 or bf16 or fp16");
    call = good_matmul();
    call.t[HY_MATMUL_PRE + 1] = call.t[HY_MATMUL_A];
    must_fail(hy_op_check(&call), HY_ERR_INPUT, "position 7");
    call = good_matmul();
    call.attr.accumulate = true;
    call.t[HY_MATMUL_BIAS] = hy_tensor_1d(some, HY_F32, 4);
    must_fail(hy_op_check(&call), HY_ERR_INPUT, "cannot be combined with bias or c");
    call = good_matmul();
    call.t[HY_MATMUL_C] = call.t[HY_MATMUL_D];
    call.t[HY_MATMUL_C].dtype = HY_BF16;
    must_fail(hy_op_check(&call), HY_ERR_INPUT, "c and d share memory but are bf16 and fp32");
    call.kind = HY_OP_COUNT;
    must_fail(hy_op_check(&call), HY_ERR_INPUT, "does not exist");
}
END_TEST

START_TEST(wrong_heads_are_refused_with_a_reason) {
    hy_op_call call = {.kind = HY_OP_ATTENTION};
    call.attr.heads.batch = 1;
    call.attr.heads.seq = 2;
    call.attr.heads.heads = 3;
    call.attr.heads.kv_heads = 2;
    call.attr.heads.head_dim = 2;
    call.t[HY_ATTENTION_QKV] = hy_tensor_2d(some, HY_F32, 2, 10);
    call.t[HY_ATTENTION_OUT] = hy_tensor_2d(some, HY_F32, 2, 6);
    call.t[HY_ATTENTION_LSE] = hy_tensor_1d(some, HY_F32, 6);
    must_fail(hy_op_check(&call), HY_ERR_INPUT, "heads a multiple of kv_heads");
    call.attr.heads.kv_heads = 1;
    must(hy_op_check(&call));
    call.t[HY_ATTENTION_QKV].shape[1] = 12;
    must_fail(hy_op_check(&call), HY_ERR_INPUT,
              "attention: qkv has shape (2, 12), expected (2, 10)");
    call.kind = HY_OP_ROPE;
    call.t[HY_ROPE_QKV].shape[1] = 10;
    call.t[HY_ATTENTION_OUT].data = call.t[HY_ATTENTION_LSE].data = NULL;
    call.t[HY_ROPE_TABLE] = hy_tensor_2d(some, HY_F32, 1, 2);
    must_fail(hy_op_check(&call), HY_ERR_INPUT, "(at least 2, 1, 2)");
    call.attr.heads.head_dim = 5;
    call.attr.heads.heads = 1;
    call.t[HY_ROPE_QKV].shape[1] = 15;
    must_fail(hy_op_check(&call), HY_ERR_INPUT, "head_dim is 5, expected an even number");
}
END_TEST

START_TEST(other_wrong_calls_are_refused_with_a_reason) {
    hy_op_call loss = {.kind = HY_OP_CROSS_ENTROPY, .attr.loss.vocab = 9};
    loss.t[HY_CROSS_ENTROPY_LOGITS] = hy_tensor_2d(some, HY_F32, 2, 8);
    loss.t[HY_CROSS_ENTROPY_TARGETS] = hy_tensor_1d(some, HY_I32, 2);
    loss.t[HY_CROSS_ENTROPY_LOSSES] = hy_tensor_1d(some, HY_F32, 2);
    must_fail(hy_op_check(&loss), HY_ERR_INPUT, "vocab is 9, expected 1 to 8");
    hy_op_call norm = {.kind = HY_OP_NORM_BWD};
    for (int i = 0; i < 7; i++) norm.t[i] = hy_tensor_2d(some, HY_F32, 2, 4);
    norm.t[HY_NORM_BWD_WEIGHT] = hy_tensor_1d(some, HY_F32, 4);
    norm.t[HY_NORM_BWD_MEAN].data = NULL;
    norm.t[HY_NORM_BWD_RSTD] = hy_tensor_1d(some, HY_F32, 2);
    must_fail(hy_op_check(&norm), HY_ERR_INPUT, "mean is missing");
    norm.attr.norm.is_rms = true;
    must(hy_op_check(&norm));
    hy_op_call swiglu = {.kind = HY_OP_SWIGLU};
    swiglu.t[HY_SWIGLU_GATE_UP] = hy_tensor_2d(some, HY_F32, 2, 7);
    swiglu.t[HY_SWIGLU_Y] = hy_tensor_2d(some, HY_F32, 2, 4);
    must_fail(hy_op_check(&swiglu), HY_ERR_INPUT, "gate_up has shape (2, 7), expected (rows, 8)");
    hy_op_call embed = {.kind = HY_OP_EMBED, .attr.embed.seq = 6};
    embed.t[HY_EMBED_TOKENS] = hy_tensor_1d(some, HY_I32, 6);
    embed.t[HY_EMBED_WTE] = hy_tensor_2d(some, HY_F32, 5, 2);
    embed.t[HY_EMBED_WPE] = hy_tensor_2d(some, HY_F32, 4, 2);
    embed.t[HY_EMBED_X] = hy_tensor_2d(some, HY_F32, 6, 2);
    must_fail(hy_op_check(&embed), HY_ERR_INPUT, "wpe has shape (4, 2), expected at least 6 rows");
}
END_TEST

START_TEST(leading_dimensions_may_be_split) {
    hy_op_call call = good_matmul();
    call.t[HY_MATMUL_A].ndim = call.t[HY_MATMUL_D].ndim = 3;
    memcpy(call.t[HY_MATMUL_A].shape, (int64_t[]){1, 2, 3}, 3 * sizeof(int64_t));
    memcpy(call.t[HY_MATMUL_D].shape, (int64_t[]){2, 1, 4}, 3 * sizeof(int64_t));
    must(hy_op_check(&call));
}
END_TEST

START_TEST(every_op_has_a_name_and_names_for_its_tensors) {
    for (int kind = 0; kind < HY_OP_COUNT; kind++) {
        ck_assert_int_gt((int)strlen(hy_op_name((hy_op_kind)kind)), 2);
        ck_assert_int_gt((int)strlen(hy_op_tensor_name((hy_op_kind)kind, 0)), 0);
    }
    ck_assert_str_eq(hy_op_name(HY_OP_COUNT), "?");
    ck_assert_str_eq(hy_op_tensor_name(HY_OP_MATMUL, 7), "");
    ck_assert_str_eq(hy_op_tensor_name(HY_OP_SWIGLU_BWD, 2), "dgate_up");
    ck_assert_str_eq(hy_op_tensor_name(HY_OP_SWIGLU_BWD, 3), "active");
}
END_TEST

START_TEST(operations_are_counted) {
    hy_op_call call = good_matmul();
    ck_assert_double_eq(hy_op_flops(&call), 2 * 2 * 3 * 4);
    hy_op_call attention = {.kind = HY_OP_ATTENTION};
    attention.attr.heads.batch = 2;
    attention.attr.heads.seq = 4;
    attention.attr.heads.heads = 3;
    attention.attr.heads.head_dim = 5;
    ck_assert_double_eq(hy_op_flops(&attention), 2.0 * 2 * 2 * 3 * 5 * 10);
    attention.attr.heads.window = 2;
    ck_assert_double_eq(hy_op_flops(&attention), 2.0 * 2 * 2 * 3 * 5 * 7);
    attention.attr.heads.window = 9;
    ck_assert_int_eq(hy_attention_pairs(&attention.attr.heads, 4), 10);
    hy_op_call cached = attention;
    cached.kind = HY_OP_ATTENTION_CACHED;
    cached.attr.heads.window = 0;
    cached.t[HY_ATTENTION_CACHED_CACHE] = (hy_tensor){.shape = {9, 8, 30}, .ndim = 3};
    cached.t[HY_ATTENTION_CACHED_BLOCKS] = hy_tensor_2d(&call, HY_I32, 2, 2); /* 16 positions */
    ck_assert_double_eq(hy_op_flops(&cached), 4.0 * 2 * 3 * 5 * (13 + 14 + 15 + 16));
}
END_TEST

/* The delta rule as its plain recurrence, whatever a backend does. */
START_TEST(operations_of_gated_delta_layers_are_counted) {
    hy_op_call delta = {.kind = HY_OP_DELTA};
    delta.attr.delta = (hy_delta_attr){
        .batch = 2, .seq = 9, .key_heads = 1, .heads = 3, .key_dim = 4, .value_dim = 5};
    ck_assert_double_eq(hy_op_flops(&delta), 7.0 * 2 * 9 * 3 * 4 * 5);
    delta.kind = HY_OP_DELTA_CACHED;
    ck_assert_double_eq(hy_op_flops(&delta), 7.0 * 2 * 9 * 3 * 4 * 5);
    delta.kind = HY_OP_DELTA_BWD;
    ck_assert_double_eq(hy_op_flops(&delta), 20.0 * 2 * 9 * 3 * 4 * 5);
    hy_op_call conv = {.kind = HY_OP_CONV};
    conv.t[HY_CONV_X] = hy_tensor_2d(some, HY_F32, 7, 10);
    conv.t[HY_CONV_WEIGHT] = hy_tensor_2d(some, HY_F32, 10, 4);
    ck_assert_double_eq(hy_op_flops(&conv), 7.0 * 10 * (2 * 4 + 6));
    hy_op_call back = {.kind = HY_OP_CONV_BWD};
    back.t[HY_CONV_BWD_DY] = conv.t[HY_CONV_X];
    back.t[HY_CONV_BWD_WEIGHT] = conv.t[HY_CONV_WEIGHT];
    ck_assert_double_eq(hy_op_flops(&back), 7.0 * 10 * (6 * 4 + 8));
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("kernels");
    TCase *all = tcase_create("parts");
    tcase_add_test(all, every_bf16_and_fp16_pattern_survives_the_way_to_fp32_and_back);
    tcase_add_test(all, fp16_patterns_have_the_value_of_their_parts);
    tcase_add_test(all, rounding_is_to_nearest_and_ties_go_to_even);
    tcase_add_test(all, numbers_too_large_become_infinity);
    tcase_add_test(all, exp_is_within_two_units_in_the_last_place);
    tcase_add_test(all, exp_goes_to_zero_and_to_infinity_and_keeps_nan);
    tcase_add_test(all, square_roots_are_within_one_unit_in_the_last_place);
    tcase_add_test(all, our_sgemm_and_the_library_agree_with_the_reference);
    tcase_add_test(all, the_blas_says_what_it_is);
    tcase_add_test(all, wrong_calls_are_refused_with_a_reason);
    tcase_add_test(all, wrong_heads_are_refused_with_a_reason);
    tcase_add_test(all, other_wrong_calls_are_refused_with_a_reason);
    tcase_add_test(all, leading_dimensions_may_be_split);
    tcase_add_test(all, every_op_has_a_name_and_names_for_its_tensors);
    tcase_add_test(all, operations_are_counted);
    tcase_add_test(all, operations_of_gated_delta_layers_are_counted);
    suite_add_tcase(suite, all);
    return suite;
}

HY_TEST_MAIN(make_suite)
