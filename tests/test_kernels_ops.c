/* test_kernels_ops.c: ops of the CPU backend against the double-precision reference; those that
 * work on heads are in test_kernels_heads.c.
 *
 * Shapes are odd on purpose: single rows, lengths that no vector or tile divides, several tiles and
 * chunks. Each op runs in fp32, bf16, fp16 and mixtures, with optional tensors given and absent. */
#include "kernels/cpu/blas.h"
#include "row_calls.h"

static rig cpu;

/* Once, before tests are forked off: they then share the loaded BLAS and its timing. */
static void load(void) { hy_blas_get(); }
static void set_up(void) { cpu = rig_create(2); }
static void tear_down(void) { rig_destroy(&cpu); }

static void run_both(trial *t) { rig_run_both(&cpu, t); }
static void run_call(const hy_op_call *call) { rig_run(&cpu, call); }

/* ---- matmul ---------------------------------------------------------------------------------- */

EACH_MIXTURE(matmul_agrees_with_the_reference, 0, MIXTURES) {
    for (size_t i = 0; i < MATMUL_CASES; i++) {
        trial t = matmul_trial(&matmul_cases[i], mixture, 100 * i + (uint64_t)mixture);
        run_both(&t);
        trial_check(&t, HY_MATMUL_D, 1);
        trial_end(&t);
    }
}

EACH_MIXTURE(matmul_may_add_to_c_in_place, 0, PURE_TYPES) {
    matmul_case m = {70, 210, 65, false, true, true, true, false};
    trial apart = matmul_trial(&m, mixture, 7);
    hy_tensor result = copy_tensor(&apart.call.t[HY_MATMUL_C]);
    hy_op_call same = apart.call;
    same.t[HY_MATMUL_D] = same.t[HY_MATMUL_C] = result;
    rig_run(&cpu, &apart.call);
    rig_run(&cpu, &same);
    ck_assert_mem_eq(result.data, apart.call.t[HY_MATMUL_D].data, hy_tensor_bytes(&result));
    free(result.data);
    trial_end(&apart);
}

START_TEST(matmul_overwrites_nan_when_it_does_not_accumulate) {
    matmul_case m = {5, 7, 9, false, false, false, false, false};
    trial t = matmul_trial(&m, 0, 3);
    memset(t.call.t[HY_MATMUL_D].data, 0xff, hy_tensor_bytes(&t.call.t[HY_MATMUL_D]));
    run_both(&t);
    trial_check(&t, HY_MATMUL_D, 1);
    trial_end(&t);
}
END_TEST

/* ---- sums ------------------------------------------------------------------------------------ */

EACH_MIXTURE(bias_gradient_sums_the_columns, 0, MIXTURES) {
    static const int64_t shapes[][2] = {{1, 1}, {1, 1300}, {700, 3}, {1003, 515}};
    for (int i = 0; i < 8; i++) {
        trial t = trial_begin(HY_OP_BIAS_GRAD, (uint64_t)(10 * i + mixture));
        int64_t N = shapes[i / 2][0], C = shapes[i / 2][1];
        t.call.attr.accumulate = i % 2;
        trial_normal(&t, HY_BIAS_GRAD_DY, pick_dtype(mixture, &t.dice), N, C, 0.5, 1);
        trial_normal(&t, HY_BIAS_GRAD_DBIAS, pick_dtype(mixture, &t.dice), 0, C, 0, 10);
        run_both(&t);
        trial_check(&t, HY_BIAS_GRAD_DBIAS, 1);
        trial_end(&t);
    }
}

EACH_MIXTURE(sums_and_square_sums_are_exact_to_double_precision, -1, PURE_TYPES) {
    static const int64_t counts[] = {1, 1023, 65536, 200001};
    for (int i = 0; i < 8; i++) {
        trial t =
            trial_begin(mixture < 0 ? HY_OP_SUM : HY_OP_SQ_NORM, (uint64_t)(10 * i + mixture));
        t.call.attr.accumulate = i % 2;
        trial_normal(&t, HY_REDUCE_X, mixture < 0 ? HY_F32 : pick_dtype(mixture, &t.dice), 0,
                     counts[i / 2], 1, 1);
        trial_normal(&t, HY_REDUCE_OUT, HY_F64, 0, 1, 1000, 1);
        run_both(&t);
        double found = *(double *)t.call.t[HY_REDUCE_OUT].data;
        double expected = *(double *)t.exact.t[HY_REDUCE_OUT].data;
        ck_assert_double_le(fabs(found - expected), 1e-12 * fabs(expected));
        trial_end(&t);
    }
}

/* ---- norms ----------------------------------------------------------------------------------- */

static const int64_t norm_shapes[][2] = {{1, 1}, {1, 4099}, {37, 768}, {600, 17}, {9, 1001}};

/* variant: bit 0 rmsnorm, bit 1 a bias, or a residual in backward, bit 2 gradients of weights */
static norm_case norm_at(int shape, int mixture, int variant) {
    return (norm_case){.N = norm_shapes[shape][0],
                       .C = norm_shapes[shape][1],
                       .seed = (uint64_t)(1000 * shape + 10 * mixture + (variant & 1)),
                       .is_rms = variant & 1,
                       .has_bias = variant & 2,
                       .has_residual = variant & 2,
                       .wants_dw = variant & 4,
                       .wants_db = variant & 4};
}

EACH_MIXTURE(norm_agrees_with_the_reference, 0, MIXTURES) {
    for (int shape = 0; shape < 5; shape++) {
        for (int variant = 0; variant < 4; variant++) {
            if (norm_shapes[shape][1] == 1 && !(variant & 1)) continue; /* layernorm of one is 0 */
            norm_case n = norm_at(shape, mixture, variant);
            trial t = norm_trial(&n, mixture);
            run_both(&t);
            trial_check(&t, HY_NORM_Y, 1);
            if (!(variant & 1)) trial_check(&t, HY_NORM_MEAN, 1);
            trial_check(&t, HY_NORM_RSTD, 1);
            trial_end(&t);
        }
    }
}

EACH_MIXTURE(norm_backward_agrees_with_the_reference, 0, MIXTURES) {
    for (int shape = 1; shape < 5; shape++) {
        for (int variant = 0; variant < 8; variant++) {
            norm_case n = norm_at(shape, mixture, variant);
            trial t = norm_bwd_trial(&n, mixture);
            t.call.attr.accumulate = variant & 2;
            run_both(&t);
            trial_check(&t, HY_NORM_BWD_DX, 2);
            if (variant & 4) trial_check(&t, HY_NORM_BWD_DWEIGHT, 1);
            if (variant & 4) trial_check(&t, HY_NORM_BWD_DBIAS, 1);
            trial_end(&t);
        }
    }
}

/* variant as above; bit 1 also adds a residual in the forward pass */
EACH_MIXTURE(norms_with_an_offset_agree_with_the_reference, 0, MIXTURES) {
    for (int i = 0; i < 4 * 4; i++) {
        norm_case n = norm_at(1 + i / 4, mixture, 4 + i % 4);
        n.offset = i % 2 ? 1 : 0.5f;
        n.adds_residual = i & 2;
        trial f = norm_trial(&n, mixture), b = norm_bwd_trial(&n, mixture);
        run_both(&f);
        run_both(&b);
        trial_check(&f, HY_NORM_Y, 1);
        trial_check(&b, HY_NORM_BWD_DX, 2);
        trial_check(&b, HY_NORM_BWD_DWEIGHT, 1);
        trial_end(&f);
        trial_end(&b);
    }
}

EACH_MIXTURE(a_norm_may_be_added_to_the_residual_in_place, 0, PURE_TYPES) {
    for (int variant = 0; variant < 4; variant++) {
        norm_case n = norm_at(4, mixture, variant);
        n.adds_residual = true;
        check_norm_onto_residual(&n, mixture, run_call);
    }
}

START_TEST(a_norm_with_residual_and_largest_is_refused) {
    norm_case n = norm_at(2, 0, 1);
    n.adds_residual = true;
    trial t = norm_trial(&n, 0);
    trial_tensor(&t, HY_NORM_LARGEST, HY_F32, 0, 1);
    must_fail(hy_op_check(&t.call), HY_ERR_INPUT, "residual and largest cannot be combined");
    trial_end(&t);
}
END_TEST

EACH_MIXTURE(norm_backward_may_write_over_the_residual, 0, PURE_TYPES) {
    norm_case n = norm_at(2, mixture, 6);
    check_norm_over_residual(&n, mixture, run_call);
}

/* ---- activations ----------------------------------------------------------------------------- */

EACH_MIXTURE(gelu_and_its_backward_agree_with_the_reference, 0, MIXTURES) {
    static const int64_t shapes[][2] = {{1, 1}, {3, 1025}, {17, 3072}};
    for (int i = 0; i < 6; i++) {
        bool is_backward = i % 2;
        trial t =
            trial_begin(is_backward ? HY_OP_GELU_BWD : HY_OP_GELU, (uint64_t)(10 * i + mixture));
        int64_t N = shapes[i / 2][0], F = shapes[i / 2][1];
        for (int k = 0; k < (is_backward ? 2 : 1); k++) {
            trial_normal(&t, k, pick_dtype(mixture, &t.dice), N, F, 0, 3);
        }
        trial_tensor(&t, is_backward ? 2 : 1, pick_dtype(mixture, &t.dice), N, F);
        run_both(&t);
        trial_check(&t, is_backward ? 2 : 1, 1);
        trial_end(&t);
    }
}

START_TEST(gelu_is_quiet_at_the_ends) { check_gelu_ends(run_call); }
END_TEST

EACH_MIXTURE(swiglu_and_its_backward_agree_with_the_reference, 0, MIXTURES) {
    static const int64_t shapes[][2] = {{1, 1}, {5, 1025}, {40, 700}};
    for (int i = 0; i < 6; i++) {
        int64_t N = shapes[i / 2][0], F = shapes[i / 2][1];
        trial t =
            trial_begin(i % 2 ? HY_OP_SWIGLU_BWD : HY_OP_SWIGLU, (uint64_t)(10 * i + mixture));
        if (i % 2) {
            trial_normal(&t, HY_SWIGLU_BWD_DY, pick_dtype(mixture, &t.dice), N, F, 0, 1);
            trial_normal(&t, HY_SWIGLU_BWD_GATE_UP, pick_dtype(mixture, &t.dice), N, 2 * F, 0, 3);
            trial_tensor(&t, HY_SWIGLU_BWD_DGATE_UP, pick_dtype(mixture, &t.dice), N, 2 * F);
        } else {
            trial_normal(&t, HY_SWIGLU_GATE_UP, pick_dtype(mixture, &t.dice), N, 2 * F, 0, 3);
            trial_tensor(&t, HY_SWIGLU_Y, pick_dtype(mixture, &t.dice), N, F);
        }
        run_both(&t);
        trial_check(&t, i % 2 ? HY_SWIGLU_BWD_DGATE_UP : HY_SWIGLU_Y, 1);
        trial_end(&t);
    }
}

EACH_MIXTURE(activations_of_each_kind_agree_with_the_reference, 0, MIXTURES) {
    static const hy_op_kind ops[] = {HY_OP_GELU, HY_OP_GELU_BWD, HY_OP_SWIGLU, HY_OP_SWIGLU_BWD};
    static const int64_t shapes[][2] = {{1, 1}, {3, 1025}, {9, 700}};
    for (int i = 0; i < 4 * 3 * HY_ACT_COUNT; i++) {
        const int64_t *shape = shapes[i / 4 % 3];
        int out;
        trial t = activation_trial(ops[i % 4], (hy_act)(i / 12), shape[0], shape[1], mixture, &out);
        run_both(&t);
        trial_check(&t, out, 1);
        trial_end(&t);
    }
}

EACH_MIXTURE(activations_backward_work_in_place, 0, PURE_TYPES) {
    for (int kind = 0; kind < 2; kind++)
        check_activation_in_place(kind, 9, 1030, mixture, run_call);
}

START_TEST(an_unknown_activation_function_is_refused) {
    int out;
    trial t = activation_trial(HY_OP_SWIGLU, HY_ACT_COUNT, 2, 3, 0, &out);
    must_fail(hy_op_check(&t.call), HY_ERR_INPUT, "activation function 5 does not exist");
    trial_end(&t);
}
END_TEST

EACH_MIXTURE(swiglu_backward_gives_swiglu_again, 0, PURE_TYPES) {
    for (int kind = 0; kind < HY_ACT_COUNT; kind++) {
        check_swiglu_again((hy_act)kind, 9, 1030, mixture, run_call);
    }
}

/* ---- embedding and loss ---------------------------------------------------------------------- */

EACH_MIXTURE(embedding_agrees_with_the_reference, 0, MIXTURES) {
    for (int kind = 0; kind < 3; kind++) { /* tokens alone, with positions, of documents */
        bool has_positions = kind > 0;
        trial t = trial_begin(HY_OP_EMBED, (uint64_t)(kind + 3 * mixture));
        int64_t B = 3, T = 11, V = 50, C = 1027;
        t.call.attr.embed.scale = mixture % 2 ? 11.25f : 0;
        t.call.attr.embed.seq = (int32_t)T;
        trial_ints(&t, HY_EMBED_TOKENS, B * T, 0, V - 1);
        trial_normal(&t, HY_EMBED_WTE, pick_dtype(mixture, &t.dice), V, C, 0, 1);
        if (has_positions)
            trial_normal(&t, HY_EMBED_WPE, pick_dtype(mixture, &t.dice), T + 2, C, 0, 1);
        trial_tensor(&t, HY_EMBED_X, pick_dtype(mixture, &t.dice), B * T, C);
        if (kind == 2) embed_doc_starts(&t, B, T);
        run_both(&t);
        trial_check(&t, HY_EMBED_X, 1);
        trial_end(&t);
    }
}

EACH_MIXTURE(embedding_backward_sums_tokens_that_repeat, 0, MIXTURES) {
    for (int variant = 0; variant < EMBED_VARIANTS; variant++) {
        int64_t V = variant & 1 ? 70000 : 30, C = variant & 1 ? 3 : 131;
        trial t = embed_bwd_trial(variant, mixture, 4, 50, V, C);
        run_both(&t);
        if (embed_wants_tokens(variant)) trial_check(&t, HY_EMBED_BWD_DWTE, 1);
        if (variant & 4) trial_check(&t, HY_EMBED_BWD_DWPE, 1);
        trial_end(&t);
    }
}

EACH_MIXTURE(the_gradient_of_a_scaled_embedding_is_scaled, 0, MIXTURES) {
    embed_scale = 11.25f;
    for (int variant = 4; variant < 8; variant++) {
        trial t = embed_bwd_trial(variant, mixture, 4, 50, 30, 131);
        run_both(&t);
        if (embed_wants_tokens(variant)) trial_check(&t, HY_EMBED_BWD_DWTE, 1);
        trial_check(&t, HY_EMBED_BWD_DWPE, 1);
        trial_end(&t);
    }
    embed_scale = 0;
}

START_TEST(a_document_that_begins_after_its_token_is_named) {
    trial t = embed_bwd_trial(12, 0, 2, 6, 10, 8);
    ((int32_t *)t.call.t[HY_EMBED_BWD_DOC_STARTS].data)[8] = 3;
    must_fail(rig_try(&cpu, &t.call), HY_ERR_INPUT,
              "the document of token 2 begins at 3, expected 0 to 2");
    trial_end(&t);
}
END_TEST

START_TEST(tokens_and_targets_outside_the_vocabulary_are_named) {
    trial t = trial_begin(HY_OP_EMBED, 1);
    t.call.attr.embed.seq = 4;
    trial_ints(&t, HY_EMBED_TOKENS, 4, 0, 9);
    trial_normal(&t, HY_EMBED_WTE, HY_F32, 10, 8, 0, 1);
    trial_tensor(&t, HY_EMBED_X, HY_F32, 4, 8);
    ((int32_t *)t.call.t[HY_EMBED_TOKENS].data)[2] = 10;
    must_fail(rig_try(&cpu, &t.call), HY_ERR_INPUT, "token 2 is 10, expected 0 to 9");
    trial_end(&t);

    trial loss = trial_begin(HY_OP_CROSS_ENTROPY, 1);
    loss.call.attr.loss.vocab = 10;
    trial_normal(&loss, HY_CROSS_ENTROPY_LOGITS, HY_F32, 3, 12, 0, 1);
    trial_ints(&loss, HY_CROSS_ENTROPY_TARGETS, 3, 0, 9);
    trial_tensor(&loss, HY_CROSS_ENTROPY_LOSSES, HY_F32, 0, 3);
    ((int32_t *)loss.call.t[HY_CROSS_ENTROPY_TARGETS].data)[1] = 10;
    must_fail(rig_try(&cpu, &loss.call), HY_ERR_INPUT, "target 1 is 10, expected below 10");
    trial_end(&loss);
}
END_TEST

EACH_MIXTURE(cross_entropy_agrees_with_the_reference, 0, MIXTURES) {
    static const int64_t shapes[][3] = {
        {1, 1, 1}, {5, 50257, 50304}, {70, 257, 257}, {3, 4096, 4100}};
    for (int i = 0; i < 8; i++) {
        const int64_t *s = shapes[i / 2];
        trial t = loss_trial(s[0], s[1], s[2], i % 2, mixture);
        run_both(&t);
        trial_check(&t, HY_CROSS_ENTROPY_LOGITS, 1);
        trial_check(&t, HY_CROSS_ENTROPY_LOSSES, 1);
        trial_end(&t);
    }
}

EACH_MIXTURE(cross_entropy_of_scaled_and_capped_logits_agrees_with_the_reference, 0, MIXTURES) {
    static const int64_t shapes[][3] = {{1, 1, 1}, {5, 50257, 50304}, {70, 257, 257}};
    for (int i = 0; i < 6 * LOGIT_VARIANTS; i++) {
        const int64_t *s = shapes[i / 2 % 3];
        set_logit_options(i / 6);
        trial t = loss_trial(s[0], s[1], s[2], i % 2, mixture);
        run_both(&t);
        trial_check(&t, HY_CROSS_ENTROPY_LOGITS, 2);
        trial_check(&t, HY_CROSS_ENTROPY_LOSSES, 1);
        trial_end(&t);
    }
    logit_factor = logit_softcap = 0;
}

START_TEST(numbers_that_cannot_cap_or_scale_are_refused) {
    trial t = loss_trial(3, 10, 12, true, 0);
    t.call.attr.loss.softcap = -1;
    must_fail(hy_op_check(&t.call), HY_ERR_INPUT, "softcap is -1, expected a number above 0");
    t.call.attr.loss.softcap = 0;
    t.call.attr.loss.factor = NAN;
    must_fail(hy_op_check(&t.call), HY_ERR_INPUT, "expected a finite number");
    trial_end(&t);
}
END_TEST

START_TEST(cross_entropy_of_huge_and_missing_logits_is_finite) { check_huge_logits(run_call); }
END_TEST

START_TEST(nan_logits_give_a_nan_loss) { check_nan_logits(run_call); }
END_TEST

EACH_MIXTURE(a_matrix_has_the_same_bits_in_any_company, 0, PURE_TYPES) {
    check_matmul_batches(mixture, run_call);
}

START_TEST(a_batch_that_cannot_be_is_refused) {
    static const matmul_case form = {64, 64, 64, false, true, true, false, false};
    trial t = matmul_trial(&form, 0, 3);
    t.call.t[HY_MATMUL_D].shape[1] = t.call.t[HY_MATMUL_BIAS].shape[0] = 32;
    t.call.attr.matmul.batch = 2;
    ck_assert_int_eq(hy_op_check(&t.call), HY_ERR_INPUT); /* chosen for none */
    ck_assert_ptr_nonnull(strstr(hy_error_message(), "batch is 2 and batch_most is 0"));
    t.call.attr.matmul.batch_most = 2;
    ck_assert_int_eq(hy_op_check(&t.call), HY_ERR_INPUT); /* with a bias */
    ck_assert_ptr_nonnull(strstr(hy_error_message(), "supports only c"));
    void *bias = t.call.t[HY_MATMUL_BIAS].data;
    t.call.t[HY_MATMUL_BIAS].data = NULL;
    must(hy_op_check(&t.call)); /* two matrices of 32 rows */
    t.call.attr.matmul.batch = 3;
    ck_assert_int_eq(hy_op_check(&t.call), HY_ERR_INPUT);
    ck_assert_ptr_nonnull(strstr(hy_error_message(), "3 times"));
    t.call.t[HY_MATMUL_BIAS].data = bias;
    trial_end(&t);
}
END_TEST

/* ---- int8 and fp8 weights -------------------------------------------------------------------- */

EACH_MIXTURE(a_matmul_by_int8_or_fp8_has_the_bits_of_one_by_their_numbers, 0, PURE_TYPES) {
    static const matmul_case forms[] = {{1, 777, 130, false, true, true, false, false},
                                        {128, 256, 64, false, true, true, true, false},
                                        {128, 64, 256, false, false, false, false, false},
                                        {129, 67, 33, false, true, true, true, false},
                                        {40, 72, 1030, false, false, false, true, false}};
    for (int i = 0; i < 5; i++) {
        check_coded_matmul(HY_I8, &forms[i], mixture, run_call);
        check_coded_matmul(HY_E4M3, &forms[i], mixture, run_call);
    }
}

START_TEST(casts_to_and_from_int8_are_exact) {
    check_coded_casts(HY_I8, 1, 1, run_call);
    check_coded_casts(HY_I8, 13, 48, run_call);
    check_coded_casts(HY_I8, 37, 1537, run_call);
    check_coded_casts(HY_I8, 3, 5000, run_call);
}
END_TEST

START_TEST(casts_from_fp8_are_exact) {
    check_coded_casts(HY_E4M3, 1, 1, run_call);
    check_coded_casts(HY_E4M3, 13, 48, run_call);
    check_coded_casts(HY_E4M3, 37, 1537, run_call);
}
END_TEST

START_TEST(rows_looked_up_in_an_int8_table_are_exact) {
    static const hy_dtype reals[] = {HY_F32, HY_BF16, HY_F16};
    for (int i = 0; i < 6; i++) {
        check_coded_embedding(HY_I8, 40, i % 2, reals[i / 2], run_call);
        check_coded_embedding(HY_I8, 1537, i % 2, reals[i / 2], run_call);
    }
}
END_TEST

/* ---- nf4 weights ----------------------------------------------------------------------------- */

EACH_MIXTURE(a_matmul_by_nf4_rows_has_the_bits_of_one_by_their_numbers, 0, PURE_TYPES) {
    static const matmul_case forms[] = {{1, 777, 128, false, true, true, false, false},
                                        {128, 256, 64, false, true, true, true, false},
                                        {128, 64, 256, false, false, false, false, false},
                                        {129, 67, 320, false, true, true, true, false},
                                        {40, 192, 1030, false, false, false, true, false}};
    for (int i = 0; i < 5; i++) check_coded_matmul(HY_NF4, &forms[i], mixture, run_call);
}

START_TEST(casts_from_nf4_are_exact) {
    check_coded_casts(HY_NF4, 1, 64, run_call);
    check_coded_casts(HY_NF4, 13, 192, run_call);
    check_coded_casts(HY_NF4, 36, 1536, run_call);
    check_coded_casts(HY_NF4, 512, 256, run_call);
}
END_TEST

START_TEST(rows_looked_up_in_an_nf4_table_are_exact) {
    static const hy_dtype reals[] = {HY_F32, HY_BF16, HY_F16};
    for (int i = 0; i < 6; i++) {
        check_coded_embedding(HY_NF4, 64, i % 2, reals[i / 2], run_call);
        check_coded_embedding(HY_NF4, 1536, i % 2, reals[i / 2], run_call);
    }
}
END_TEST

/* The same three where scales are fp32 (single quantisation). */
START_TEST(nf4_with_fp32_scales_is_exact_too) {
    static const matmul_case form = {129, 67, 320, false, true, true, true, false};
    coded_rows_are_plain = true;
    for (int mixture = 0; mixture < PURE_TYPES; mixture++) {
        check_coded_matmul(HY_NF4, &form, mixture, run_call);
    }
    check_coded_casts(HY_NF4, 13, 192, run_call);
    check_coded_casts(HY_NF4, 512, 256, run_call);
    check_coded_embedding(HY_NF4, 1536, true, HY_BF16, run_call);
    coded_rows_are_plain = false;
}
END_TEST

START_TEST(what_nf4_cannot_be_is_refused) {
    hy_tensor codes = coded_rows(HY_NF4, 12, 64, 3), real = real_rows(&codes, HY_F32);
    hy_op_call cast = {.kind = HY_OP_CAST, .t = {[HY_CAST_SRC] = codes, [HY_CAST_DST] = real}};
    must(hy_op_check(&cast));
    static const int32_t wrong[] = {-1, 3, 8, 512};
    for (int i = 0; i < 4; i++) {
        cast.t[HY_CAST_SRC].quant.group = wrong[i];
        ck_assert_int_eq(hy_op_check(&cast), HY_ERR_INPUT);
        ck_assert_ptr_nonnull(strstr(hy_error_message(), "divides the number of blocks, 12"));
    }
    cast.t[HY_CAST_SRC] = codes;
    cast.t[HY_CAST_SRC].shape[0] = cast.t[HY_CAST_DST].shape[0] = 24;
    cast.t[HY_CAST_SRC].shape[1] = cast.t[HY_CAST_DST].shape[1] = 32;
    ck_assert_int_eq(hy_op_check(&cast), HY_ERR_INPUT);
    ck_assert_ptr_nonnull(strstr(hy_error_message(), "row of 32"));
    cast.t[HY_CAST_SRC] = real;
    cast.t[HY_CAST_DST] = codes;
    ck_assert_int_eq(hy_op_check(&cast), HY_ERR_INPUT);
    ck_assert_ptr_nonnull(strstr(hy_error_message(), "whole matrix"));
    cast.t[HY_CAST_DST].quant.group = 0; /* nor is it made with fp32 scales */
    ck_assert_int_eq(hy_op_check(&cast), HY_ERR_INPUT);
    free(real.data);
    free_rows(&codes);
}
END_TEST

/* ---- casts and fills ------------------------------------------------------------------------- */

START_TEST(casts_round_once_to_nearest) { check_casts(5001, run_call); }
END_TEST

START_TEST(fill_writes_every_element_of_every_type) { check_fill(65540, run_call); }
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("kernels: ops");
    TCase *all = tcase_create("ops");
    tcase_set_timeout(all, 120);
    tcase_add_unchecked_fixture(all, load, NULL);
    tcase_add_checked_fixture(all, set_up, tear_down);
    tcase_add_test(all, matmul_agrees_with_the_reference);
    tcase_add_test(all, matmul_may_add_to_c_in_place);
    tcase_add_test(all, a_matrix_has_the_same_bits_in_any_company);
    tcase_add_test(all, a_batch_that_cannot_be_is_refused);
    tcase_add_test(all, matmul_overwrites_nan_when_it_does_not_accumulate);
    tcase_add_test(all, bias_gradient_sums_the_columns);
    tcase_add_test(all, sums_and_square_sums_are_exact_to_double_precision);
    tcase_add_test(all, norm_agrees_with_the_reference);
    tcase_add_test(all, norm_backward_agrees_with_the_reference);
    tcase_add_test(all, norms_with_an_offset_agree_with_the_reference);
    tcase_add_test(all, a_norm_may_be_added_to_the_residual_in_place);
    tcase_add_test(all, a_norm_with_residual_and_largest_is_refused);
    tcase_add_test(all, norm_backward_may_write_over_the_residual);
    tcase_add_test(all, gelu_and_its_backward_agree_with_the_reference);
    tcase_add_test(all, gelu_is_quiet_at_the_ends);
    tcase_add_test(all, swiglu_and_its_backward_agree_with_the_reference);
    tcase_add_test(all, activations_of_each_kind_agree_with_the_reference);
    tcase_add_test(all, activations_backward_work_in_place);
    tcase_add_test(all, an_unknown_activation_function_is_refused);
    tcase_add_test(all, swiglu_backward_gives_swiglu_again);
    tcase_add_test(all, embedding_agrees_with_the_reference);
    tcase_add_test(all, embedding_backward_sums_tokens_that_repeat);
    tcase_add_test(all, the_gradient_of_a_scaled_embedding_is_scaled);
    tcase_add_test(all, a_document_that_begins_after_its_token_is_named);
    tcase_add_test(all, tokens_and_targets_outside_the_vocabulary_are_named);
    tcase_add_test(all, cross_entropy_agrees_with_the_reference);
    tcase_add_test(all, cross_entropy_of_scaled_and_capped_logits_agrees_with_the_reference);
    tcase_add_test(all, numbers_that_cannot_cap_or_scale_are_refused);
    tcase_add_test(all, cross_entropy_of_huge_and_missing_logits_is_finite);
    tcase_add_test(all, nan_logits_give_a_nan_loss);
    tcase_add_test(all, a_matmul_by_int8_or_fp8_has_the_bits_of_one_by_their_numbers);
    tcase_add_test(all, casts_from_fp8_are_exact);
    tcase_add_test(all, casts_to_and_from_int8_are_exact);
    tcase_add_test(all, rows_looked_up_in_an_int8_table_are_exact);
    tcase_add_test(all, a_matmul_by_nf4_rows_has_the_bits_of_one_by_their_numbers);
    tcase_add_test(all, casts_from_nf4_are_exact);
    tcase_add_test(all, rows_looked_up_in_an_nf4_table_are_exact);
    tcase_add_test(all, nf4_with_fp32_scales_is_exact_too);
    tcase_add_test(all, what_nf4_cannot_be_is_refused);
    tcase_add_test(all, casts_round_once_to_nearest);
    tcase_add_test(all, fill_writes_every_element_of_every_type);
    suite_add_tcase(suite, all);
    return suite;
}

HY_TEST_MAIN(make_suite)
