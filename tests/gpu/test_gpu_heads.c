/* test_gpu_heads.c: head norm, rope and attention on CUDA against the double-precision reference.
 *
 * Grouped heads, sliding windows, documents, every head size that has a fast path and sizes that have
 * none, sequences of one token, of several tiles and with an odd end. */
#include "gpu_rig.h"

/* ---- cases ------------------------------------------------------------------------------------- */

typedef struct heads_case {
    int32_t B, T, H, K, D, window;
    bool has_docs;
} heads_case;

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

static int64_t packed_width(const heads_case *h) { return (int64_t)(h->H + 2 * h->K) * h->D; }
static int64_t rows_of(const heads_case *h) { return (int64_t)h->B * h->T; }
static bool leaves_out(const heads_case *h) { return gpu_leaves_out(rows_of(h) * packed_width(h)); }

static void set_heads(trial *t, const heads_case *h) {
    t->call.attr.heads.batch = h->B;
    t->call.attr.heads.seq = h->T;
    t->call.attr.heads.heads = h->H;
    t->call.attr.heads.kv_heads = h->K;
    t->call.attr.heads.head_dim = h->D;
    t->call.attr.heads.window = h->window;
    t->call.attr.heads.scale = (float)(1 / sqrt((double)h->D));
    t->call.attr.heads.eps = 1e-6f;
}

/* ---- head norm --------------------------------------------------------------------------------- */

static trial head_norm_trial(const heads_case *h, int mixture) {
    trial t = trial_begin(HY_OP_HEAD_NORM, (uint64_t)(h->T * 10 + mixture));
    set_heads(&t, h);
    trial_normal(&t, 0, gpu_dtype(mixture, &t.dice), rows_of(h), packed_width(h), 0.2, 2);
    trial_normal(&t, 1, gpu_dtype(mixture, &t.dice), 0, h->D, 1, 0.3);
    trial_normal(&t, 2, gpu_dtype(mixture, &t.dice), 0, h->D, 1, 0.3);
    trial_tensor(&t, 3, gpu_dtype(mixture, &t.dice), rows_of(h), packed_width(h));
    trial_tensor(&t, 4, HY_F32, rows_of(h), h->H + h->K);
    return t;
}

EACH_TYPE(head_norm_agrees_with_the_reference, 5) {
    for (int i = 0; i < CASES; i++) {
        if (leaves_out(&cases[i])) continue;
        trial t = head_norm_trial(&cases[i], mixture);
        if (gpu_run_both(&t, mixture)) {
            gpu_check(&t, 3, 1);
            gpu_check(&t, 4, 1);
        }
        trial_end(&t);
    }
}

static trial head_norm_bwd_trial(const heads_case *h, int mixture, bool wants_weights) {
    trial f = head_norm_trial(h, mixture);
    trial t = trial_begin(HY_OP_HEAD_NORM_BWD, f.dice.seed + 5);
    int64_t N = rows_of(h), P = packed_width(h);
    f.exact.attr = t.call.attr = f.call.attr;
    reference_run(&f.exact);
    trial_normal(&t, 0, gpu_dtype(mixture, &t.dice), N, P, 0, 1);
    for (int i = 0; i < 3; i++) {
        trial_tensor(&t, 1 + i, f.call.t[i].dtype, i == 0 ? N : 0, i == 0 ? P : h->D);
        trial_adopt(&t, 1 + i, f.exact.t[i].data);
    }
    trial_tensor(&t, 4, HY_F32, N, h->H + h->K);
    trial_adopt(&t, 4, f.exact.t[4].data);
    trial_tensor(&t, 5, t.call.t[0].dtype, N, P);
    for (int i = 6; wants_weights && i < 8; i++) {
        trial_normal(&t, i, gpu_grad_dtype(mixture, &t.dice), 0, h->D, 0, 1);
    }
    trial_end(&f);
    return t;
}

EACH_TYPE(head_norm_backward_agrees_with_the_reference, GPU_MIXTURES) {
    for (int i = 0; i < CASES; i++) {
        if (leaves_out(&cases[i])) continue;
        trial t = head_norm_bwd_trial(&cases[i], mixture, i != 2);
        t.call.attr.accumulate = i % 2;
        if (gpu_run_both(&t, mixture)) {
            gpu_check(&t, 5, 2);
            if (i != 2) gpu_check(&t, 6, 2);
            if (i != 2) gpu_check(&t, 7, 2);
        }
        trial_end(&t);
    }
}

EACH_TYPE(head_norm_backward_may_write_over_its_input, PURE_TYPES) {
    for (int i = 2; i < 5; i++) {
        trial t = head_norm_bwd_trial(&cases[i], mixture, true);
        hy_op_call same = t.call;
        hy_tensor dout = copy_tensor(&t.call.t[0]);
        same.t[0] = same.t[5] = dout;
        gpu_must_run(&same);
        gpu_must_run(&t.call);
        ck_assert_mem_eq(dout.data, t.call.t[5].data, hy_tensor_bytes(&dout));
        free(dout.data);
        trial_end(&t);
    }
}

/* ---- rope -------------------------------------------------------------------------------------- */

static trial rope_trial(const heads_case *h, int mixture) {
    trial t = trial_begin(HY_OP_ROPE, (uint64_t)(h->T * 10 + mixture));
    int64_t half = h->D / 2, longest = h->T + 3;
    set_heads(&t, h);
    trial_normal(&t, 0, gpu_dtype(mixture, &t.dice), rows_of(h), packed_width(h), 0, 1);
    trial_tensor(&t, 1, HY_F32, longest, 2 * half);
    for (int64_t i = 0; i < longest * half; i++) {
        double angle = (double)(i / half) * pow(100, -(double)(i % half) / (double)half);
        trial_put(&t, 1, 2 * i, cos(angle));
        trial_put(&t, 1, 2 * i + 1, sin(angle));
    }
    hy_tensor *table = &t.call.t[1];
    table->ndim = 3;
    table->shape[1] = half;
    table->shape[2] = 2;
    return t;
}

EACH_TYPE(rope_turns_as_the_reference_and_back, PURE_TYPES) {
    for (int i = 0; i < CASES; i++) {
        if (leaves_out(&cases[i])) continue;
        trial t = rope_trial(&cases[i], mixture);
        hy_tensor before = copy_tensor(&t.exact.t[0]);
        ck_assert(gpu_run_both(&t, mixture));
        gpu_check(&t, 0, 1);
        t.call.attr.heads.inverse = true;
        gpu_must_run(&t.call);
        double found = distance(&t.call.t[0], before.data);
        ck_assert_double_le(found, 2 * tolerance_of(t.call.t[0].dtype));
        free(before.data);
        trial_end(&t);
    }
}

/* ---- attention --------------------------------------------------------------------------------- */

/* Documents of 1 to some 60 tokens. */
static void put_docs(trial *t, int at, const heads_case *h) {
    if (!h->has_docs) return;
    trial_tensor(t, at, HY_I32, 0, rows_of(h));
    for (int32_t b = 0; b < h->B; b++) {
        int32_t start = 0;
        for (int32_t i = 0; i < h->T; i++) {
            if (roll(&t->dice, 0, 20) == 0) start = i;
            trial_put(t, at, (int64_t)b * h->T + i, start);
        }
    }
}

static trial attention_trial(const heads_case *h, int mixture) {
    trial t = trial_begin(HY_OP_ATTENTION, (uint64_t)(h->T * 10 + mixture));
    int64_t N = rows_of(h);
    set_heads(&t, h);
    trial_normal(&t, 0, gpu_dtype(mixture, &t.dice), N, packed_width(h), 0, 1.5);
    put_docs(&t, 1, h);
    trial_tensor(&t, 2, gpu_dtype(mixture, &t.dice), N, (int64_t)h->H * h->D);
    trial_tensor(&t, 3, HY_F32, 0, N * h->H);
    return t;
}

/* What attention in 16 bits may cost: the weights are rounded to the type before they meet v, and the
 * result once more; both are one rounding in size. Tokens that see few keys have larger results than
 * most, and an error to match. lse is fp32, from exact products. */
static void check_forward(const trial *t) {
    bool is_fp32 = t->call.t[0].dtype == HY_F32;
    gpu_check_to(t, 2, is_fp32 ? 1 : 1.5, is_fp32 ? 1 : 4);
    gpu_check(t, 3, 1);
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
        h.has_docs = roll(&d, 0, 1);
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
            trial_put(&t, 0, i * 3 * h.D + d, 1);
            trial_put(&t, 0, i * 3 * h.D + h.D + d, (double)(i / 8 * 8));
        }
    }
    ck_assert(gpu_run_both(&t, mixture));
    gpu_check(&t, 2, 3);
    gpu_check(&t, 3, 1);
    trial_end(&t);
}

static trial attention_bwd_trial(const heads_case *h, int mixture) {
    trial f = attention_trial(h, mixture);
    trial t = trial_begin(HY_OP_ATTENTION_BWD, f.dice.seed + 5);
    int64_t N = rows_of(h), width = (int64_t)h->H * h->D;
    f.exact.attr = t.call.attr = f.call.attr;
    reference_run(&f.exact);
    trial_normal(&t, 0, gpu_dtype(mixture, &t.dice), N, width, 0, 1);
    trial_tensor(&t, 1, f.call.t[0].dtype, N, packed_width(h));
    trial_adopt(&t, 1, f.exact.t[0].data);
    if (h->has_docs) {
        trial_tensor(&t, 2, HY_I32, 0, N);
        for (int64_t i = 0; i < N; i++) trial_put(&t, 2, i, real_at(&f.call.t[1], i));
    }
    trial_tensor(&t, 3, f.call.t[2].dtype, N, width);
    trial_adopt(&t, 3, f.exact.t[2].data);
    trial_tensor(&t, 4, HY_F32, 0, N * h->H);
    trial_adopt(&t, 4, f.exact.t[3].data);
    trial_tensor(&t, 5, gpu_dtype(mixture, &t.dice), N, packed_width(h));
    trial_end(&f);
    return t;
}

/* Roundings on the way in 16 bits: `out` as it comes (and with it delta), the weights, the gradient of
 * the scores, the result. They add up over a sequence like chance does, and more where few keys are
 * seen: the worst of 10^5 elements is off by up to ten times the usual error. */
static double backward_factor(const trial *t) {
    double out = tolerance_of(t->call.t[3].dtype) / tolerance_of(t->call.t[5].dtype);
    return 1 + 1.5 * out + (t->call.t[1].dtype == HY_F32 ? 0 : 0.5);
}

EACH_TYPE(attention_backward_agrees_with_the_reference, 5) {
    for (int i = 0; i < CASES; i++) {
        if (leaves_out(&cases[i])) continue;
        trial t = attention_bwd_trial(&cases[i], mixture);
        double factor = backward_factor(&t);
        if (gpu_run_both(&t, mixture)) gpu_check_to(&t, 5, factor, 10 * factor);
        trial_end(&t);
    }
}

/* One token's weights are 1 whatever it scores: no gradient reaches q and k. */
START_TEST(attention_backward_of_single_tokens_passes_dout_to_v) {
    heads_case h = {1, 40, 2, 2, 64, 1, false};
    trial t = attention_bwd_trial(&h, 0);
    gpu_must_run(&t.call);
    const float *dout = t.call.t[0].data, *dqkv = t.call.t[5].data;
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
    suite_add_tcase(suite, all);
    return suite;
}

GPU_TEST_MAIN(make_suite)
