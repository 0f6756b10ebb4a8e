/* test_kernels_ops.c: ops of the CPU backend against the double-precision reference; those that
 * work on heads are in test_kernels_heads.c.
 *
 * Shapes are odd on purpose: single rows, lengths that no vector or tile divides, several tiles and
 * chunks. Each op runs in fp32, bf16, fp16 and mixtures, with optional tensors given and absent. */
#include "kernel_rig.h"
#include "kernels/cpu/blas.h"

static rig cpu;

/* Once, before tests are forked off: they then share the loaded BLAS and its timing. */
static void load(void) { hy_blas_get(); }
static void set_up(void) { cpu = rig_create(2); }
static void tear_down(void) { rig_destroy(&cpu); }

static void run_both(trial *t) { rig_run_both(&cpu, t); }

/* ---- matmul ---------------------------------------------------------------------------------- */

typedef struct matmul_case {
    int64_t M, N, K;
    bool trans_a, trans_b, has_bias, has_c, accumulate;
} matmul_case;

static trial matmul_trial(const matmul_case *m, int mixture, uint64_t seed) {
    trial t = trial_begin(HY_OP_MATMUL, seed);
    double size = 1 / sqrt((double)m->K);
    t.call.attr.matmul.alpha = mixture == 0 ? 1.0f : -0.5f;
    t.call.attr.matmul.trans_a = m->trans_a;
    t.call.attr.matmul.trans_b = m->trans_b;
    t.call.attr.accumulate = m->accumulate;
    trial_normal(&t, 0, pick_dtype(mixture, &t.dice), m->trans_a ? m->K : m->M,
                 m->trans_a ? m->M : m->K, 0, 1);
    trial_normal(&t, 1, pick_dtype(mixture, &t.dice), m->trans_b ? m->N : m->K,
                 m->trans_b ? m->K : m->N, 0, size);
    trial_normal(&t, 2, pick_dtype(mixture, &t.dice), m->M, m->N, 0, 1);
    if (m->has_bias) trial_normal(&t, 3, pick_dtype(mixture, &t.dice), 0, m->N, 0, 1);
    if (m->has_c) trial_normal(&t, 4, pick_dtype(mixture, &t.dice), m->M, m->N, 0, 1);
    return t;
}

static const matmul_case matmul_cases[] = {
    {1, 1, 1, false, false, false, false, false},
    {1, 777, 130, false, true, true, false, false},
    {3, 5, 700, true, false, false, true, false},
    {129, 67, 33, false, true, true, true, false},
    {300, 515, 70, false, true, false, false, true},
    {70, 200, 1030, true, false, false, false, true},
    {257, 385, 19, true, true, true, false, false},
    {64, 96, 513, false, false, false, false, false},
};

EACH_MIXTURE(matmul_agrees_with_the_reference, 0, MIXTURES) {
    for (size_t i = 0; i < sizeof matmul_cases / sizeof matmul_cases[0]; i++) {
        trial t = matmul_trial(&matmul_cases[i], mixture, 100 * i + (uint64_t)mixture);
        run_both(&t);
        trial_check(&t, 2, 1);
        trial_end(&t);
    }
}

EACH_MIXTURE(matmul_may_add_to_c_in_place, 0, PURE_TYPES) {
    matmul_case m = {70, 210, 65, false, true, true, true, false};
    trial apart = matmul_trial(&m, mixture, 7);
    hy_tensor result = copy_tensor(&apart.call.t[4]);
    hy_op_call same = apart.call;
    same.t[2] = same.t[4] = result;
    rig_run(&cpu, &apart.call);
    rig_run(&cpu, &same);
    ck_assert_mem_eq(result.data, apart.call.t[2].data, hy_tensor_bytes(&result));
    free(result.data);
    trial_end(&apart);
}

START_TEST(matmul_overwrites_nan_when_it_does_not_accumulate) {
    matmul_case m = {5, 7, 9, false, false, false, false, false};
    trial t = matmul_trial(&m, 0, 3);
    memset(t.call.t[2].data, 0xff, hy_tensor_bytes(&t.call.t[2]));
    run_both(&t);
    trial_check(&t, 2, 1);
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
        trial_normal(&t, 0, pick_dtype(mixture, &t.dice), N, C, 0.5, 1);
        trial_normal(&t, 1, pick_dtype(mixture, &t.dice), 0, C, 0, 10);
        run_both(&t);
        trial_check(&t, 1, 1);
        trial_end(&t);
    }
}

EACH_MIXTURE(sums_and_square_sums_are_exact_to_double_precision, -1, PURE_TYPES) {
    static const int64_t counts[] = {1, 1023, 65536, 200001};
    for (int i = 0; i < 8; i++) {
        trial t =
            trial_begin(mixture < 0 ? HY_OP_SUM : HY_OP_SQ_NORM, (uint64_t)(10 * i + mixture));
        t.call.attr.accumulate = i % 2;
        trial_normal(&t, 0, mixture < 0 ? HY_F32 : pick_dtype(mixture, &t.dice), 0, counts[i / 2],
                     1, 1);
        trial_normal(&t, 1, HY_F64, 0, 1, 1000, 1);
        run_both(&t);
        double found = *(double *)t.call.t[1].data, expected = *(double *)t.exact.t[1].data;
        ck_assert_double_le(fabs(found - expected), 1e-12 * fabs(expected));
        trial_end(&t);
    }
}

/* ---- norms ----------------------------------------------------------------------------------- */

static const int64_t norm_shapes[][2] = {{1, 1}, {1, 4099}, {37, 768}, {600, 17}, {9, 1001}};

static trial norm_trial(int shape, int mixture, bool is_rms, bool has_bias) {
    int64_t N = norm_shapes[shape][0], C = norm_shapes[shape][1];
    trial t = trial_begin(HY_OP_NORM, (uint64_t)(1000 * shape + 10 * mixture + is_rms));
    t.call.attr.norm.eps = 1e-5f;
    t.call.attr.norm.is_rms = is_rms;
    trial_normal(&t, 0, pick_dtype(mixture, &t.dice), N, C, 0.7, 1);
    trial_normal(&t, 1, pick_dtype(mixture, &t.dice), 0, C, 1, 0.5);
    if (has_bias) trial_normal(&t, 2, pick_dtype(mixture, &t.dice), 0, C, 0, 0.5);
    trial_tensor(&t, 3, pick_dtype(mixture, &t.dice), N, C);
    if (!is_rms) trial_tensor(&t, 4, HY_F32, 0, N);
    trial_tensor(&t, 5, HY_F32, 0, N);
    return t;
}

EACH_MIXTURE(norm_agrees_with_the_reference, 0, MIXTURES) {
    for (int shape = 0; shape < 5; shape++) {
        for (int variant = 0; variant < 4; variant++) {
            if (norm_shapes[shape][1] == 1 && !(variant & 1)) continue; /* layernorm of one is 0 */
            trial t = norm_trial(shape, mixture, variant & 1, variant & 2);
            run_both(&t);
            trial_check(&t, 3, 1);
            if (!(variant & 1)) trial_check(&t, 4, 1);
            trial_check(&t, 5, 1);
            trial_end(&t);
        }
    }
}

/* Backward of a forward trial: statistics from the reference, the rest random. */
static trial norm_bwd_trial(int shape, int mixture, bool is_rms, bool has_residual,
                            bool wants_weights) {
    trial f = norm_trial(shape, mixture, is_rms, true);
    int64_t N = norm_shapes[shape][0], C = norm_shapes[shape][1];
    trial t = trial_begin(HY_OP_NORM_BWD, f.dice.seed + 77);
    f.exact.attr = t.call.attr = f.call.attr;
    reference_run(&f.exact);
    trial_normal(&t, 0, pick_dtype(mixture, &t.dice), N, C, 0, 1);
    for (int i = 0; i < 2; i++) {
        trial_tensor(&t, 1 + i, f.call.t[i].dtype, i == 0 ? N : 0, C);
        trial_adopt(&t, 1 + i, f.exact.t[i].data);
    }
    if (!is_rms) {
        trial_tensor(&t, 3, HY_F32, 0, N);
        trial_adopt(&t, 3, f.exact.t[4].data);
    }
    trial_tensor(&t, 4, HY_F32, 0, N);
    trial_adopt(&t, 4, f.exact.t[5].data);
    if (has_residual) trial_normal(&t, 5, pick_dtype(mixture, &t.dice), N, C, 0, 1);
    trial_tensor(&t, 6, has_residual ? t.call.t[5].dtype : pick_dtype(mixture, &t.dice), N, C);
    if (wants_weights) {
        trial_normal(&t, 7, pick_dtype(mixture, &t.dice), 0, C, 0, 1);
        trial_normal(&t, 8, pick_dtype(mixture, &t.dice), 0, C, 0, 1);
    }
    trial_end(&f);
    return t;
}

EACH_MIXTURE(norm_backward_agrees_with_the_reference, 0, MIXTURES) {
    for (int shape = 1; shape < 5; shape++) {
        for (int variant = 0; variant < 8; variant++) {
            trial t = norm_bwd_trial(shape, mixture, variant & 1, variant & 2, variant & 4);
            t.call.attr.accumulate = variant & 2;
            run_both(&t);
            trial_check(&t, 6, 2);
            if (variant & 4) trial_check(&t, 7, 1);
            if (variant & 4) trial_check(&t, 8, 1);
            trial_end(&t);
        }
    }
}

EACH_MIXTURE(norm_backward_may_write_over_the_residual, 0, PURE_TYPES) {
    trial t = norm_bwd_trial(2, mixture, false, true, true);
    hy_op_call same = t.call;
    hy_tensor residual = copy_tensor(&t.call.t[5]);
    same.t[5] = same.t[6] = residual;
    rig_run(&cpu, &t.call);
    rig_run(&cpu, &same);
    ck_assert_mem_eq(residual.data, t.call.t[6].data, hy_tensor_bytes(&residual));
    free(residual.data);
    trial_end(&t);
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

START_TEST(gelu_is_quiet_at_the_ends) {
    static const float ends[] = {-1e30f, -300, -20, -0.0f, 0, 20, 300, 1e30f};
    float out[8];
    hy_op_call call = {.kind = HY_OP_GELU};
    call.t[0] = hy_tensor_2d((void *)(uintptr_t)ends, HY_F32, 1, 8);
    call.t[1] = hy_tensor_2d(out, HY_F32, 1, 8);
    rig_run(&cpu, &call);
    for (int i = 0; i < 8; i++) ck_assert_float_eq(out[i], ends[i] > 0 ? ends[i] : 0);
}
END_TEST

EACH_MIXTURE(swiglu_and_its_backward_agree_with_the_reference, 0, MIXTURES) {
    static const int64_t shapes[][2] = {{1, 1}, {5, 1025}, {40, 700}};
    for (int i = 0; i < 6; i++) {
        int64_t N = shapes[i / 2][0], F = shapes[i / 2][1];
        trial t =
            trial_begin(i % 2 ? HY_OP_SWIGLU_BWD : HY_OP_SWIGLU, (uint64_t)(10 * i + mixture));
        if (i % 2) {
            trial_normal(&t, 0, pick_dtype(mixture, &t.dice), N, F, 0, 1);
            trial_normal(&t, 1, pick_dtype(mixture, &t.dice), N, 2 * F, 0, 3);
            trial_tensor(&t, 2, pick_dtype(mixture, &t.dice), N, 2 * F);
        } else {
            trial_normal(&t, 0, pick_dtype(mixture, &t.dice), N, 2 * F, 0, 3);
            trial_tensor(&t, 1, pick_dtype(mixture, &t.dice), N, F);
        }
        run_both(&t);
        trial_check(&t, i % 2 ? 2 : 1, 1);
        trial_end(&t);
    }
}

EACH_MIXTURE(activations_backward_work_in_place, 0, PURE_TYPES) {
    for (int kind = 0; kind < 2; kind++) {
        int64_t N = 9, F = 1030;
        trial t =
            trial_begin(kind ? HY_OP_SWIGLU_BWD : HY_OP_GELU_BWD, (uint64_t)(kind + 2 * mixture));
        hy_dtype dtype = pick_dtype(mixture, &t.dice);
        trial_normal(&t, 0, dtype, N, F, 0, 1);
        trial_normal(&t, 1, dtype, N, kind ? 2 * F : F, 0, 2);
        trial_tensor(&t, 2, dtype, N, kind ? 2 * F : F);
        hy_op_call same = t.call;
        hy_tensor both = copy_tensor(&t.call.t[kind]); /* gelu: dy; swiglu: gate_up */
        same.t[kind] = same.t[2] = both;
        rig_run(&cpu, &t.call);
        rig_run(&cpu, &same);
        ck_assert_mem_eq(both.data, t.call.t[2].data, hy_tensor_bytes(&both));
        free(both.data);
        trial_end(&t);
    }
}

/* ---- embedding and loss ---------------------------------------------------------------------- */

EACH_MIXTURE(embedding_agrees_with_the_reference, 0, MIXTURES) {
    for (int has_positions = 0; has_positions < 2; has_positions++) {
        trial t = trial_begin(HY_OP_EMBED, (uint64_t)(has_positions + 2 * mixture));
        int64_t B = 3, T = 11, V = 50, C = 1027;
        t.call.attr.embed.seq = (int32_t)T;
        trial_ints(&t, 0, B * T, 0, V - 1);
        trial_normal(&t, 1, pick_dtype(mixture, &t.dice), V, C, 0, 1);
        if (has_positions) trial_normal(&t, 2, pick_dtype(mixture, &t.dice), T + 2, C, 0, 1);
        trial_tensor(&t, 3, pick_dtype(mixture, &t.dice), B * T, C);
        run_both(&t);
        trial_check(&t, 3, 1);
        trial_end(&t);
    }
}

EACH_MIXTURE(embedding_backward_sums_tokens_that_repeat, 0, MIXTURES) {
    for (int variant = 0; variant < 8; variant++) {
        trial t = trial_begin(HY_OP_EMBED_BWD, (uint64_t)(variant + 8 * mixture));
        int64_t B = 4, T = 50, V = variant & 1 ? 70000 : 30, C = variant & 1 ? 3 : 131;
        t.call.attr.embed.seq = (int32_t)T;
        t.call.attr.accumulate = variant & 2;
        trial_ints(&t, 0, B * T, 0, V - 1);
        for (int64_t i = 0; i < 40; i++) trial_put(&t, 0, 3 * i, 7);
        trial_normal(&t, 1, pick_dtype(mixture, &t.dice), B * T, C, 0, 1);
        if (variant != 4) trial_normal(&t, 2, pick_dtype(mixture, &t.dice), V, C, 0, 1);
        if (variant & 4) trial_normal(&t, 3, pick_dtype(mixture, &t.dice), T + 3, C, 0, 1);
        run_both(&t);
        if (variant != 4) trial_check(&t, 2, 1);
        if (variant & 4) trial_check(&t, 3, 1);
        trial_end(&t);
    }
}

START_TEST(tokens_and_targets_outside_the_vocabulary_are_named) {
    trial t = trial_begin(HY_OP_EMBED, 1);
    t.call.attr.embed.seq = 4;
    trial_ints(&t, 0, 4, 0, 9);
    trial_normal(&t, 1, HY_F32, 10, 8, 0, 1);
    trial_tensor(&t, 3, HY_F32, 4, 8);
    ((int32_t *)t.call.t[0].data)[2] = 10;
    must_fail(rig_try(&cpu, &t.call), HY_ERR_INPUT, "token 2 is 10, expected 0 to 9");
    trial_end(&t);

    trial loss = trial_begin(HY_OP_CROSS_ENTROPY, 1);
    loss.call.attr.loss.vocab = 10;
    trial_normal(&loss, 0, HY_F32, 3, 12, 0, 1);
    trial_ints(&loss, 1, 3, 0, 9);
    trial_tensor(&loss, 2, HY_F32, 0, 3);
    ((int32_t *)loss.call.t[1].data)[1] = 10;
    must_fail(rig_try(&cpu, &loss.call), HY_ERR_INPUT, "target 1 is 10, expected below 10");
    trial_end(&loss);
}
END_TEST

EACH_MIXTURE(cross_entropy_agrees_with_the_reference, 0, MIXTURES) {
    static const int64_t shapes[][3] = {
        {1, 1, 1}, {5, 50257, 50304}, {70, 257, 257}, {3, 4096, 4100}};
    for (int i = 0; i < 8; i++) {
        trial t = trial_begin(HY_OP_CROSS_ENTROPY, (uint64_t)(10 * i + mixture));
        int64_t N = shapes[i / 2][0], vocab = shapes[i / 2][1], V = shapes[i / 2][2];
        t.call.attr.loss.vocab = (int32_t)vocab;
        t.call.attr.loss.scale = 0.25f;
        t.call.attr.loss.wants_grad = i % 2;
        trial_normal(&t, 0, pick_dtype(mixture, &t.dice), N, V, 30, 4);
        trial_ints(&t, 1, N, 0, vocab - 1);
        if (N > 1) trial_put(&t, 1, 1, -1);
        trial_tensor(&t, 2, HY_F32, 0, N);
        run_both(&t);
        trial_check(&t, 0, 1);
        trial_check(&t, 2, 1);
        trial_end(&t);
    }
}

START_TEST(cross_entropy_of_huge_and_missing_logits_is_finite) {
    enum { V = 5000 };
    trial t = trial_begin(HY_OP_CROSS_ENTROPY, 1);
    t.call.attr.loss.vocab = V;
    t.call.attr.loss.scale = 1;
    t.call.attr.loss.wants_grad = true;
    trial_tensor(&t, 0, HY_F32, 2, V);
    trial_tensor(&t, 1, HY_I32, 0, 2);
    trial_tensor(&t, 2, HY_F32, 0, 2);
    for (int64_t i = 0; i < V; i++) {
        trial_put(&t, 0, i, i == 3000 ? 1e30 : -1e30);
        trial_put(&t, 0, V + i, i < 4500 ? -INFINITY : 1); /* whole blocks of minus infinity */
    }
    trial_put(&t, 1, 0, 3000);
    trial_put(&t, 1, 1, 4600);
    rig_run(&cpu, &t.call);
    const float *losses = t.call.t[2].data, *gradient = t.call.t[0].data;
    ck_assert_float_eq(losses[0], 0);
    ck_assert_float_eq_tol(losses[1], logf(500), 1e-5f);
    for (int64_t i = 0; i < 2 * V; i++) ck_assert(isfinite(gradient[i]));
    ck_assert_float_eq(gradient[V], 0);
    ck_assert_float_eq_tol(gradient[V + 4600], 1.0f / 500 - 1, 1e-6f);
    trial_end(&t);
}
END_TEST

START_TEST(nan_logits_give_a_nan_loss) {
    float logits[6] = {1, 2, NAN, 4, 5, 6}, loss;
    int32_t target = 0;
    hy_op_call call = {.kind = HY_OP_CROSS_ENTROPY, .attr.loss = {.vocab = 6, .scale = 1}};
    call.t[0] = hy_tensor_2d(logits, HY_F32, 1, 6);
    call.t[1] = hy_tensor_1d(&target, HY_I32, 1);
    call.t[2] = hy_tensor_1d(&loss, HY_F32, 1);
    rig_run(&cpu, &call);
    ck_assert(isnan(loss));
}
END_TEST

/* ---- casts and fills ------------------------------------------------------------------------- */

START_TEST(casts_round_once_to_nearest) {
    static const hy_dtype reals[] = {HY_F32, HY_BF16, HY_F16};
    for (int pair = 0; pair < 9; pair++) {
        trial t = trial_begin(HY_OP_CAST, (uint64_t)pair);
        trial_normal(&t, 0, reals[pair / 3], 0, 5001, 0, 1);
        trial_tensor(&t, 1, reals[pair % 3], 0, 5001);
        rig_run(&cpu, &t.call);
        for (int64_t i = 0; i < 5001; i++) {
            double rounded, found = real_at(&t.call.t[1], i);
            trial_put(&t, 1, i, real_at(&t.call.t[0], i)); /* rounds one number, by half.h */
            rounded = real_at(&t.call.t[1], i);
            ck_assert_double_eq(found, rounded);
        }
        trial_end(&t);
    }
}
END_TEST

START_TEST(fill_writes_every_element_of_every_type) {
    static const hy_dtype all[] = {HY_F32, HY_BF16, HY_F16, HY_F64, HY_I32};
    for (int i = 0; i < 5; i++) {
        trial t = trial_begin(HY_OP_FILL, 0);
        t.call.attr.fill.value = -3;
        trial_tensor(&t, 0, all[i], 0, 65540);
        rig_run(&cpu, &t.call);
        for (int64_t k = 0; k < 65540; k++) {
            if (real_at(&t.call.t[0], k) != -3) ck_abort_msg("element %lld", (long long)k);
        }
        trial_end(&t);
    }
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("kernels: ops");
    TCase *all = tcase_create("ops");
    tcase_set_timeout(all, 120);
    tcase_add_unchecked_fixture(all, load, NULL);
    tcase_add_checked_fixture(all, set_up, tear_down);
    tcase_add_test(all, matmul_agrees_with_the_reference);
    tcase_add_test(all, matmul_may_add_to_c_in_place);
    tcase_add_test(all, matmul_overwrites_nan_when_it_does_not_accumulate);
    tcase_add_test(all, bias_gradient_sums_the_columns);
    tcase_add_test(all, sums_and_square_sums_are_exact_to_double_precision);
    tcase_add_test(all, norm_agrees_with_the_reference);
    tcase_add_test(all, norm_backward_agrees_with_the_reference);
    tcase_add_test(all, norm_backward_may_write_over_the_residual);
    tcase_add_test(all, gelu_and_its_backward_agree_with_the_reference);
    tcase_add_test(all, gelu_is_quiet_at_the_ends);
    tcase_add_test(all, swiglu_and_its_backward_agree_with_the_reference);
    tcase_add_test(all, activations_backward_work_in_place);
    tcase_add_test(all, embedding_agrees_with_the_reference);
    tcase_add_test(all, embedding_backward_sums_tokens_that_repeat);
    tcase_add_test(all, tokens_and_targets_outside_the_vocabulary_are_named);
    tcase_add_test(all, cross_entropy_agrees_with_the_reference);
    tcase_add_test(all, cross_entropy_of_huge_and_missing_logits_is_finite);
    tcase_add_test(all, nan_logits_give_a_nan_loss);
    tcase_add_test(all, casts_round_once_to_nearest);
    tcase_add_test(all, fill_writes_every_element_of_every_type);
    suite_add_tcase(suite, all);
    return suite;
}

HY_TEST_MAIN(make_suite)
