/* test_kernels_heads.c: head norm, rope and attention against the double-precision reference.
 *
 * Grouped heads, sliding windows, documents, head sizes from 16 to 256, sequences of one token, of
 * several tiles and of several chunks. */
#include "kernel_rig.h"
#include "kernels/cpu/blas.h"

static rig cpu;

static void load(void) { hy_blas_get(); }
static void set_up(void) { cpu = rig_create(2); }
static void tear_down(void) { rig_destroy(&cpu); }
static void run_both(trial *t) { rig_run_both(&cpu, t); }

/* ---- heads ----------------------------------------------------------------------------------- */

typedef struct heads_case {
    int32_t B, T, H, K, D, window;
    bool has_docs;
} heads_case;

static const heads_case heads_cases[] = {
    {1, 1, 1, 1, 16, 0, false},    {2, 7, 4, 2, 16, 0, true},    {1, 70, 3, 3, 64, 0, false},
    {3, 65, 6, 2, 40, 9, false},   {1, 130, 8, 1, 128, 0, true}, {1, 600, 2, 1, 24, 0, false},
    {2, 129, 2, 2, 256, 64, true},
};
enum { HEADS_CASES = sizeof heads_cases / sizeof heads_cases[0] };

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

static int64_t packed_width(const heads_case *h) { return (int64_t)(h->H + 2 * h->K) * h->D; }

static trial head_norm_trial(const heads_case *h, int mixture) {
    trial t = trial_begin(HY_OP_HEAD_NORM, (uint64_t)(h->T * 10 + mixture));
    int64_t N = (int64_t)h->B * h->T, P = packed_width(h);
    set_heads(&t, h);
    trial_normal(&t, 0, pick_dtype(mixture, &t.dice), N, P, 0.2, 2);
    trial_normal(&t, 1, pick_dtype(mixture, &t.dice), 0, h->D, 1, 0.3);
    trial_normal(&t, 2, pick_dtype(mixture, &t.dice), 0, h->D, 1, 0.3);
    trial_tensor(&t, 3, pick_dtype(mixture, &t.dice), N, P);
    trial_tensor(&t, 4, HY_F32, N, h->H + h->K);
    return t;
}

EACH_MIXTURE(head_norm_agrees_with_the_reference, 0, MIXTURES) {
    for (int i = 0; i < HEADS_CASES; i++) {
        trial t = head_norm_trial(&heads_cases[i], mixture);
        run_both(&t);
        trial_check(&t, 3, 1);
        trial_check(&t, 4, 1);
        trial_end(&t);
    }
}

static trial head_norm_bwd_trial(const heads_case *h, int mixture, bool wants_weights) {
    trial f = head_norm_trial(h, mixture);
    trial t = trial_begin(HY_OP_HEAD_NORM_BWD, f.dice.seed + 5);
    int64_t N = (int64_t)h->B * h->T, P = packed_width(h);
    f.exact.attr = t.call.attr = f.call.attr;
    reference_run(&f.exact);
    trial_normal(&t, 0, pick_dtype(mixture, &t.dice), N, P, 0, 1);
    for (int i = 0; i < 3; i++) {
        trial_tensor(&t, 1 + i, f.call.t[i].dtype, i == 0 ? N : 0, i == 0 ? P : h->D);
        trial_adopt(&t, 1 + i, f.exact.t[i].data);
    }
    trial_tensor(&t, 4, HY_F32, N, h->H + h->K);
    trial_adopt(&t, 4, f.exact.t[4].data);
    trial_tensor(&t, 5, t.call.t[0].dtype, N, P);
    for (int i = 6; wants_weights && i < 8; i++) {
        trial_normal(&t, i, pick_dtype(mixture, &t.dice), 0, h->D, 0, 1);
    }
    trial_end(&f);
    return t;
}

EACH_MIXTURE(head_norm_backward_agrees_with_the_reference, 0, MIXTURES) {
    for (int i = 0; i < HEADS_CASES; i++) {
        trial t = head_norm_bwd_trial(&heads_cases[i], mixture, i != 2);
        t.call.attr.accumulate = i % 2;
        run_both(&t);
        trial_check(&t, 5, 2);
        if (i != 2) trial_check(&t, 6, 2);
        if (i != 2) trial_check(&t, 7, 2);
        trial_end(&t);
    }
}

EACH_MIXTURE(head_norm_backward_may_write_over_its_input, 0, PURE_TYPES) {
    trial t = head_norm_bwd_trial(&heads_cases[3], mixture, true);
    hy_op_call same = t.call;
    hy_tensor dout = copy_tensor(&t.call.t[0]);
    same.t[0] = same.t[5] = dout;
    rig_run(&cpu, &t.call);
    rig_run(&cpu, &same);
    ck_assert_mem_eq(dout.data, t.call.t[5].data, hy_tensor_bytes(&dout));
    free(dout.data);
    trial_end(&t);
}

static trial rope_trial(const heads_case *h, int mixture) {
    trial t = trial_begin(HY_OP_ROPE, (uint64_t)(h->T * 10 + mixture));
    int64_t half = h->D / 2, longest = h->T + 3;
    set_heads(&t, h);
    trial_normal(&t, 0, pick_dtype(mixture, &t.dice), (int64_t)h->B * h->T, packed_width(h), 0, 1);
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

EACH_MIXTURE(rope_turns_as_the_reference_and_back, 0, PURE_TYPES) {
    for (int i = 0; i < HEADS_CASES; i++) {
        trial t = rope_trial(&heads_cases[i], mixture);
        hy_tensor before = copy_tensor(&t.exact.t[0]);
        run_both(&t);
        trial_check(&t, 0, 1);
        t.call.attr.heads.inverse = true;
        rig_run(&cpu, &t.call);
        double found = distance(&t.call.t[0], before.data);
        ck_assert_double_le(found, 2 * tolerance_of(t.call.t[0].dtype));
        free(before.data);
        trial_end(&t);
    }
}

/* ---- attention ------------------------------------------------------------------------------- */

/* Documents of 1 to 40 tokens. */
static void put_docs(trial *t, int at, const heads_case *h) {
    if (!h->has_docs) return;
    trial_tensor(t, at, HY_I32, 0, (int64_t)h->B * h->T);
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
    int64_t N = (int64_t)h->B * h->T;
    set_heads(&t, h);
    trial_normal(&t, 0, pick_dtype(mixture, &t.dice), N, packed_width(h), 0, 1.5);
    put_docs(&t, 1, h);
    trial_tensor(&t, 2, pick_dtype(mixture, &t.dice), N, (int64_t)h->H * h->D);
    trial_tensor(&t, 3, HY_F32, 0, N * h->H);
    return t;
}

EACH_MIXTURE(attention_agrees_with_the_reference, 0, MIXTURES) {
    for (int i = 0; i < HEADS_CASES; i++) {
        trial t = attention_trial(&heads_cases[i], mixture);
        run_both(&t);
        trial_check(&t, 2, 1);
        trial_check(&t, 3, 1);
        trial_end(&t);
    }
}

/* Scores that grow along the sequence make each chunk raise the running maximum. */
START_TEST(attention_survives_scores_that_would_overflow) {
    heads_case h = {1, 1100, 1, 1, 16, 0, false};
    trial t = attention_trial(&h, 0);
    for (int64_t i = 0; i < h.T; i++) {
        for (int64_t d = 0; d < 16; d++) {
            trial_put(&t, 0, i * 48 + d, 1);
            trial_put(&t, 0, i * 48 + 16 + d, (double)i);
        }
    }
    run_both(&t);
    trial_check(&t, 2, 3);
    trial_check(&t, 3, 1);
    trial_end(&t);
}
END_TEST

static trial attention_bwd_trial(const heads_case *h, int mixture) {
    trial f = attention_trial(h, mixture);
    trial t = trial_begin(HY_OP_ATTENTION_BWD, f.dice.seed + 5);
    int64_t N = (int64_t)h->B * h->T, width = (int64_t)h->H * h->D;
    f.exact.attr = t.call.attr = f.call.attr;
    reference_run(&f.exact);
    trial_normal(&t, 0, pick_dtype(mixture, &t.dice), N, width, 0, 1);
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
    trial_tensor(&t, 5, pick_dtype(mixture, &t.dice), N, packed_width(h));
    trial_end(&f);
    return t;
}

EACH_MIXTURE(attention_backward_agrees_with_the_reference, 0, MIXTURES) {
    for (int i = 0; i < HEADS_CASES; i++) {
        trial t = attention_bwd_trial(&heads_cases[i], mixture);
        /* `out` comes rounded to its type, and with it delta: its error is added */
        double factor = 1 + 1.5 * tolerance_of(t.call.t[3].dtype) / tolerance_of(t.call.t[5].dtype);
        run_both(&t);
        trial_check(&t, 5, factor);
        trial_end(&t);
    }
}

START_TEST(attention_rejects_a_document_that_begins_after_its_token) {
    heads_case h = {1, 9, 1, 1, 16, 0, true};
    trial t = attention_trial(&h, 0);
    ((int32_t *)t.call.t[1].data)[4] = 5;
    must_fail(rig_try(&cpu, &t.call), HY_ERR_INPUT, "token 4");
    trial_end(&t);
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("kernels: heads");
    TCase *all = tcase_create("heads");
    tcase_set_timeout(all, 120);
    tcase_add_unchecked_fixture(all, load, NULL);
    tcase_add_checked_fixture(all, set_up, tear_down);
    tcase_add_test(all, head_norm_agrees_with_the_reference);
    tcase_add_test(all, head_norm_backward_agrees_with_the_reference);
    tcase_add_test(all, head_norm_backward_may_write_over_its_input);
    tcase_add_test(all, rope_turns_as_the_reference_and_back);
    tcase_add_test(all, attention_agrees_with_the_reference);
    tcase_add_test(all, attention_survives_scores_that_would_overflow);
    tcase_add_test(all, attention_backward_agrees_with_the_reference);
    tcase_add_test(all, attention_rejects_a_document_that_begins_after_its_token);
    suite_add_tcase(suite, all);
    return suite;
}

HY_TEST_MAIN(make_suite)
