/* test_gpu_heads.c: head norm, rope and attention on CUDA against the double-precision reference.
 *
 * Grouped heads, sliding windows, documents, every head size that has a fast path and sizes that have
 * none, sequences of one token, of several tiles and with an odd end. */
#include "gpu_rig.h"

#include "head_calls.h"

/* ---- cases ------------------------------------------------------------------------------------- */

static const heads_case cases[] = {
    {1, 1, 1, 1, 16, 0, false},    {2, 7, 4, 2, 16, 0, true},     {1, 70, 3, 3, 64, 0, false},
    {3, 65, 6, 2, 40, 9, false},   {1, 130, 8, 1, 128, 0, true},  {1, 600, 2, 1, 24, 0, false},
    {2, 129, 2, 2, 256, 64, true}, {2, 128, 4, 2, 64, 0, false},  {1, 257, 4, 4, 64, 0, true},
    {1, 513, 2, 2, 64, 100, true}, {1, 200, 2, 1, 80, 0, false},  {1, 131, 3, 1, 80, 33, true},
    {1, 193, 2, 2, 96, 0, true},   {2, 64, 6, 2, 96, 0, false},   {1, 385, 4, 1, 128, 0, false},
    {1, 320, 2, 2, 128, 1, false}, {1, 300, 7, 1, 128, 50, true}, {1, 150, 2, 1, 256, 0, false},
    {3, 33, 2, 2, 6, 0, false},    {1, 100, 2, 1, 8, 0, true},    {1, 90, 2, 2, 72, 20, false},
    {1, 77, 2, 1, 112, 0, true},   {1, 50, 1, 1, 192, 0, false},  {1, 1030, 1, 1, 64, 0, true},
};
enum { CASES = sizeof cases / sizeof cases[0] };

static bool leaves_out(const heads_case *h) { return gpu_leaves_out(rows_of(h) * packed_width(h)); }

/* ---- head norm --------------------------------------------------------------------------------- */

EACH_TYPE(head_norm_agrees_with_the_reference, 5) {
    for (int i = 0; i < CASES; i++) {
        if (leaves_out(&cases[i])) continue;
        trial t = head_norm_trial(&cases[i], mixture);
        if (gpu_run_both(&t, mixture)) {
            gpu_check(&t, HY_HEAD_NORM_OUT, 1);
            gpu_check(&t, HY_HEAD_NORM_RSTD, 1);
        }
        trial_end(&t);
    }
}

EACH_TYPE(head_norm_backward_agrees_with_the_reference, GPU_MIXTURES) {
    for (int i = 0; i < CASES; i++) {
        if (leaves_out(&cases[i])) continue;
        trial t = head_norm_bwd_trial(&cases[i], mixture, i != 2);
        t.call.attr.accumulate = i % 2;
        if (gpu_run_both(&t, mixture)) {
            gpu_check(&t, HY_HEAD_NORM_BWD_DQKV, 2);
            if (i != 2) gpu_check(&t, HY_HEAD_NORM_BWD_DWQ, 2);
            if (i != 2) gpu_check(&t, HY_HEAD_NORM_BWD_DWK, 2);
        }
        trial_end(&t);
    }
}

EACH_TYPE(head_norm_backward_may_write_over_its_input, PURE_TYPES) {
    for (int i = 2; i < 5; i++) check_head_norm_in_place(&cases[i], mixture, gpu_must_run);
}

/* ---- rope -------------------------------------------------------------------------------------- */

EACH_TYPE(rope_turns_as_the_reference_and_back, PURE_TYPES) {
    for (int i = 0; i < CASES; i++) {
        if (leaves_out(&cases[i])) continue;
        trial t = rope_trial(&cases[i], mixture);
        hy_tensor before = copy_tensor(&t.exact.t[HY_ROPE_QKV]);
        ck_assert(gpu_run_both(&t, mixture));
        gpu_check(&t, HY_ROPE_QKV, 1);
        check_rope_back(&t, before.data, gpu_must_run);
        free(before.data);
        trial_end(&t);
    }
}

/* ---- attention --------------------------------------------------------------------------------- */

/* What attention in 16 bits may cost: the weights are rounded to the type before they meet v, and the
 * result once more; both are one rounding in size. Tokens that see few keys have larger results than
 * most, and an error to match. lse is fp32, from exact products. */
static void check_forward(const trial *t) {
    bool is_fp32 = t->call.t[HY_ATTENTION_QKV].dtype == HY_F32;
    gpu_check_to(t, HY_ATTENTION_OUT, is_fp32 ? 1 : 1.5, is_fp32 ? 1 : 4);
    gpu_check(t, HY_ATTENTION_LSE, 1);
}

EACH_TYPE(attention_agrees_with_the_reference, 5) {
    for (int i = 0; i < CASES; i++) {
        if (leaves_out(&cases[i])) continue;
        trial t = attention_trial(&cases[i], mixture);
        if (gpu_run_both(&t, mixture)) check_forward(&t);
        trial_end(&t);
    }
}

EACH_TYPE(attention_of_any_shape_agrees_with_the_reference, PURE_TYPES) {
    static const int32_t sizes[] = {64, 128, 80, 96, 256, 32};
    dice d = {.seed = 5 + (uint64_t)mixture};
    for (int i = 0; i < 12; i++) {
        heads_case h = {.B = (int32_t)roll(&d, 1, 3), .T = (int32_t)roll(&d, 1, 300)};
        h.K = (int32_t)roll(&d, 1, 3);
        h.H = h.K * (int32_t)roll(&d, 1, 4);
        h.D = sizes[i % 6];
        h.window = roll(&d, 0, 1) ? (int32_t)roll(&d, 1, 300) : 0;
        h.has_doc_starts = roll(&d, 0, 1);
        if (leaves_out(&h)) continue;
        trial t = attention_trial(&h, mixture);
        ck_assert(gpu_run_both(&t, mixture));
        check_forward(&t);
        trial_end(&t);
    }
}

/* Scores that grow along the sequence make each tile raise the running maximum. */
EACH_TYPE(attention_survives_scores_that_would_overflow, 2) {
    heads_case h = {1, 1100, 1, 1, 64, 0, false};
    if (leaves_out(&h)) return;
    trial t = attention_trial(&h, mixture);
    for (int64_t i = 0; i < h.T; i++) {
        for (int64_t d = 0; d < h.D; d++) {
            trial_put(&t, HY_ATTENTION_QKV, i * 3 * h.D + d, 1);
            trial_put(&t, HY_ATTENTION_QKV, i * 3 * h.D + h.D + d, (double)(i / 8 * 8));
        }
    }
    ck_assert(gpu_run_both(&t, mixture));
    gpu_check(&t, HY_ATTENTION_OUT, 3);
    gpu_check(&t, HY_ATTENTION_LSE, 1);
    trial_end(&t);
}

/* Roundings on the way in 16 bits: `out` as it comes (and with it delta), the weights, the gradient of
 * the scores, the result. They add up over a sequence like chance does, and more where few keys are
 * seen: the worst of 10^5 elements is off by up to ten times the usual error. */
static double backward_factor(const trial *t) {
    double out = tolerance_of(t->call.t[HY_ATTENTION_BWD_OUT].dtype) /
                 tolerance_of(t->call.t[HY_ATTENTION_BWD_DQKV].dtype);
    return 1 + 1.5 * out + (t->call.t[HY_ATTENTION_BWD_QKV].dtype == HY_F32 ? 0 : 0.5);
}

EACH_TYPE(attention_backward_agrees_with_the_reference, 5) {
    for (int i = 0; i < CASES; i++) {
        if (leaves_out(&cases[i])) continue;
        trial t = attention_bwd_trial(&cases[i], mixture);
        double factor = backward_factor(&t);
        if (gpu_run_both(&t, mixture)) gpu_check_to(&t, HY_ATTENTION_BWD_DQKV, factor, 10 * factor);
        trial_end(&t);
    }
}

/* One token's weights are 1 whatever it scores: no gradient reaches q and k. */
START_TEST(attention_backward_of_single_tokens_passes_dout_to_v) {
    heads_case h = {1, 40, 2, 2, 64, 1, false};
    trial t = attention_bwd_trial(&h, 0);
    gpu_must_run(&t.call);
    const float *dout = t.call.t[HY_ATTENTION_BWD_DOUT].data,
                *dqkv = t.call.t[HY_ATTENTION_BWD_DQKV].data;
    for (int64_t n = 0; n < h.T; n++) {
        for (int64_t i = 0; i < 4 * h.D; i++) {
            if (fabsf(dqkv[n * 6 * h.D + i]) > 1e-5f) ck_abort_msg("token %lld", (long long)n);
        }
        for (int64_t i = 0; i < 2 * h.D; i++) {
            float found = dqkv[n * 6 * h.D + 4 * h.D + i];
            if (fabsf(found - dout[n * 2 * h.D + i]) > 1e-5f) ck_abort_msg("v %lld", (long long)n);
        }
    }
    trial_end(&t);
}
END_TEST

/* ---- cached attention -------------------------------------------------------------------------- */

/* Matmuls are in fp32 whatever the types: only the result is rounded. */
EACH_TYPE(cached_attention_agrees_with_the_reference, PURE_TYPES) {
    static const int32_t firsts[] = {0, 1, 130, 900};
    for (int i = 0; i < CASES * 4; i++) {
        heads_case h = cases[i / 4];
        h.T = i % 4 == 1 ? 1 : h.T > 100 ? 100 : h.T;
        if (leaves_out(&h)) continue;
        trial t = attention_cached_trial(&h, firsts[i % 4], mixture);
        ck_assert(gpu_run_both(&t, mixture));
        gpu_check(&t, HY_ATTENTION_CACHED_OUT, 1);
        check_appended(&t, &h, firsts[i % 4]);
        trial_end(&t);
    }
}

static Suite *make_suite(void) {
    Suite *suite = suite_create("cuda: heads");
    TCase *all = tcase_create("heads");
    tcase_add_test(all, head_norm_agrees_with_the_reference);
    tcase_add_test(all, head_norm_backward_agrees_with_the_reference);
    tcase_add_test(all, head_norm_backward_may_write_over_its_input);
    tcase_add_test(all, rope_turns_as_the_reference_and_back);
    tcase_add_test(all, attention_agrees_with_the_reference);
    tcase_add_test(all, attention_of_any_shape_agrees_with_the_reference);
    tcase_add_test(all, attention_survives_scores_that_would_overflow);
    tcase_add_test(all, attention_backward_agrees_with_the_reference);
    tcase_add_test(all, attention_backward_of_single_tokens_passes_dout_to_v);
    tcase_add_test(all, cached_attention_agrees_with_the_reference);
    suite_add_tcase(suite, all);
    return suite;
}

GPU_TEST_MAIN(make_suite)
