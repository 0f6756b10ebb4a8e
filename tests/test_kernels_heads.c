/* test_kernels_heads.c: head norm, rope and attention against the double-precision reference.
 *
 * Grouped heads, sliding windows, documents, head sizes from 16 to 256, sequences of one token, of
 * several tiles and of several chunks. */
#include "head_calls.h"
#include "kernels/cpu/blas.h"

static rig cpu;

static void load(void) { hy_blas_get(); }
static void set_up(void) { cpu = rig_create(2); }
static void tear_down(void) { rig_destroy(&cpu); }
static void run_both(trial *t) { rig_run_both(&cpu, t); }
static void run_call(const hy_op_call *call) { rig_run(&cpu, call); }

/* ---- heads ----------------------------------------------------------------------------------- */

static const heads_case heads_cases[] = {
    {1, 1, 1, 1, 16, 0, false},    {2, 7, 4, 2, 16, 0, true},    {1, 70, 3, 3, 64, 0, false},
    {3, 65, 6, 2, 40, 9, false},   {1, 130, 8, 1, 128, 0, true}, {1, 600, 2, 1, 24, 0, false},
    {2, 129, 2, 2, 256, 64, true},
};
enum { HEADS_CASES = sizeof heads_cases / sizeof heads_cases[0] };

EACH_MIXTURE(head_norm_agrees_with_the_reference, 0, MIXTURES) {
    for (int i = 0; i < HEADS_CASES; i++) {
        trial t = head_norm_trial(&heads_cases[i], mixture);
        run_both(&t);
        trial_check(&t, HY_HEAD_NORM_OUT, 1);
        trial_check(&t, HY_HEAD_NORM_RSTD, 1);
        trial_end(&t);
    }
}

EACH_MIXTURE(head_norm_backward_agrees_with_the_reference, 0, MIXTURES) {
    for (int i = 0; i < HEADS_CASES; i++) {
        trial t = head_norm_bwd_trial(&heads_cases[i], mixture, i != 2);
        t.call.attr.accumulate = i % 2;
        run_both(&t);
        trial_check(&t, HY_HEAD_NORM_BWD_DQKV, 2);
        if (i != 2) trial_check(&t, HY_HEAD_NORM_BWD_DWQ, 2);
        if (i != 2) trial_check(&t, HY_HEAD_NORM_BWD_DWK, 2);
        trial_end(&t);
    }
}

EACH_MIXTURE(head_norm_with_options_agrees_with_the_reference, 0, MIXTURES) {
    static const heads_case wide = {1, 11, 20, 5, 72, 0, false}; /* more than one piece */
    for (int i = 0; i < 3 * (HEADS_CASES + 1); i++) {
        heads_case of = i / 3 < HEADS_CASES ? heads_cases[i / 3] : wide;
        heads_with.norm_offset = i % 3 == 0 ? 0 : 1;
        heads_with.is_whole = i % 3 != 2;
        trial f = head_norm_trial(&of, mixture), b = head_norm_bwd_trial(&of, mixture, true);
        b.call.attr.accumulate = i % 2;
        run_both(&f);
        run_both(&b);
        trial_check(&f, HY_HEAD_NORM_OUT, 1);
        trial_check(&f, HY_HEAD_NORM_RSTD, 1);
        trial_check(&b, HY_HEAD_NORM_BWD_DQKV, 2);
        trial_check(&b, HY_HEAD_NORM_BWD_DWQ, 2);
        trial_check(&b, HY_HEAD_NORM_BWD_DWK, 2);
        trial_end(&f);
        trial_end(&b);
    }
    clear_options();
}

EACH_MIXTURE(head_norm_backward_may_write_over_its_input, 0, PURE_TYPES) {
    for (int i = 0; i < 2; i++) {
        heads_with.is_whole = i;
        check_head_norm_in_place(&heads_cases[3], mixture, run_call);
    }
    clear_options();
}

START_TEST(a_whole_head_norm_names_weights_of_the_wrong_length) {
    heads_case h = heads_cases[3];
    trial t = head_norm_trial(&h, 0);
    t.call.attr.heads.is_whole = true;
    must_fail(hy_op_check(&t.call), HY_ERR_INPUT, "wq has shape (40), expected (240)");
    trial_end(&t);
}
END_TEST

EACH_MIXTURE(rope_turns_as_the_reference_and_back, 0, PURE_TYPES) {
    for (int i = 0; i < HEADS_CASES; i++) {
        trial t = rope_trial(&heads_cases[i], mixture);
        hy_tensor before = copy_tensor(&t.exact.t[HY_ROPE_QKV]);
        run_both(&t);
        trial_check(&t, HY_ROPE_QKV, 1);
        check_rope_back(&t, before.data, run_call);
        free(before.data);
        trial_end(&t);
    }
}

EACH_MIXTURE(rope_of_part_of_a_head_agrees_with_the_reference, 0, PURE_TYPES) {
    for (int i = 0; i < 8 * HEADS_CASES; i++) {
        const heads_case *h = &heads_cases[i / 8];
        set_rope_options(h, i % 4);
        trial t = rope_trial(h, mixture);
        t.call.attr.heads.inverse = i & 4;
        run_both(&t);
        trial_check(&t, HY_ROPE_QKV, 1);
        trial_end(&t);
    }
    clear_options();
}

START_TEST(rope_refuses_what_it_cannot_rotate) {
    static const int32_t wrong[] = {-2, 1, 7, 18};
    trial t = rope_trial(&heads_cases[1], 0);
    for (int i = 0; i < 4; i++) {
        t.call.attr.heads.rotary = wrong[i];
        must_fail(hy_op_check(&t.call), HY_ERR_INPUT, "expected an even number from 2 to 16");
    }
    t.call.attr.heads.rotary = 8;
    must_fail(hy_op_check(&t.call), HY_ERR_INPUT, "table has shape (10, 8, 2), expected");
    t.call.attr.heads.rotary = 0;
    trial_tensor(&t, HY_ROPE_QUERY, HY_F32, 0, 6);
    must_fail(hy_op_check(&t.call), HY_ERR_INPUT, "query has shape (6), expected (at least 7)");
    trial_end(&t);
}
END_TEST

/* ---- attention ------------------------------------------------------------------------------- */

EACH_MIXTURE(attention_agrees_with_the_reference, 0, MIXTURES) {
    for (int i = 0; i < HEADS_CASES; i++) {
        trial t = attention_trial(&heads_cases[i], mixture);
        run_both(&t);
        trial_check(&t, HY_ATTENTION_OUT, 1);
        trial_check(&t, HY_ATTENTION_LSE, 1);
        trial_end(&t);
    }
}

/* Scores that grow along the sequence make each chunk raise the running maximum. */
START_TEST(attention_survives_scores_that_would_overflow) {
    heads_case h = {1, 1100, 1, 1, 16, 0, false};
    trial t = attention_trial(&h, 0);
    for (int64_t i = 0; i < h.T; i++) {
        for (int64_t d = 0; d < 16; d++) {
            trial_put(&t, HY_ATTENTION_QKV, i * 48 + d, 1);
            trial_put(&t, HY_ATTENTION_QKV, i * 48 + 16 + d, (double)i);
        }
    }
    run_both(&t);
    trial_check(&t, HY_ATTENTION_OUT, 3);
    trial_check(&t, HY_ATTENTION_LSE, 1);
    trial_end(&t);
}
END_TEST

EACH_MIXTURE(attention_backward_agrees_with_the_reference, 0, MIXTURES) {
    for (int i = 0; i < HEADS_CASES; i++) {
        trial t = attention_bwd_trial(&heads_cases[i], mixture);
        run_both(&t);
        trial_check(&t, HY_ATTENTION_BWD_DQKV, rounding_of_out(&t, HY_ATTENTION_BWD_DQKV));
        trial_end(&t);
    }
}

EACH_MIXTURE(attention_with_sinks_and_capped_scores_agrees_with_the_reference, 0, MIXTURES) {
    static const heads_case more[] = {
        {1, 40, 5, 1, 80, 0, true}, {1, 33, 2, 2, 96, 0, false}, {2, 50, 4, 1, 192, 11, false}};
    for (int i = 0; i < ATTENTION_VARIANTS * (HEADS_CASES + 3); i++) {
        int k = i / ATTENTION_VARIANTS;
        const heads_case *h = k < HEADS_CASES ? &heads_cases[k] : &more[k - HEADS_CASES];
        set_attention_options(i % ATTENTION_VARIANTS);
        trial f = attention_trial(h, mixture), b = attention_bwd_trial(h, mixture);
        b.call.attr.accumulate = i % 2;
        run_both(&f);
        run_both(&b);
        trial_check(&f, HY_ATTENTION_OUT, 1);
        trial_check(&f, HY_ATTENTION_LSE, 1);
        trial_check(&b, HY_ATTENTION_BWD_DQKV, rounding_of_out(&b, HY_ATTENTION_BWD_DQKV));
        check_sink_gradient(&b);
        trial_end(&f);
        trial_end(&b);
    }
    clear_options();
}

START_TEST(attention_refuses_a_gradient_of_sinks_without_sinks) {
    set_attention_options(0);
    trial t = attention_bwd_trial(&heads_cases[1], 0);
    hy_op_call call = t.call;
    call.t[HY_ATTENTION_BWD_SINKS] = (hy_tensor){0};
    must_fail(hy_op_check(&call), HY_ERR_INPUT, "sinks is missing; it is required for dsinks");
    call = t.call;
    call.t[HY_ATTENTION_BWD_SINKS].shape[0] = 3;
    must_fail(hy_op_check(&call), HY_ERR_INPUT, "sinks has shape (3), expected (4)");
    call = t.call;
    call.attr.heads.softcap = -2;
    must_fail(hy_op_check(&call), HY_ERR_INPUT, "softcap is -2, expected a number above 0");
    clear_options();
    trial_end(&t);
}
END_TEST

START_TEST(attention_rejects_a_document_that_begins_after_its_token) {
    heads_case h = {1, 9, 1, 1, 16, 0, true};
    trial t = attention_trial(&h, 0);
    ((int32_t *)t.call.t[HY_ATTENTION_DOC_STARTS].data)[4] = 5;
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
    tcase_add_test(all, head_norm_with_options_agrees_with_the_reference);
    tcase_add_test(all, head_norm_backward_may_write_over_its_input);
    tcase_add_test(all, a_whole_head_norm_names_weights_of_the_wrong_length);
    tcase_add_test(all, rope_turns_as_the_reference_and_back);
    tcase_add_test(all, rope_of_part_of_a_head_agrees_with_the_reference);
    tcase_add_test(all, rope_refuses_what_it_cannot_rotate);
    tcase_add_test(all, attention_agrees_with_the_reference);
    tcase_add_test(all, attention_survives_scores_that_would_overflow);
    tcase_add_test(all, attention_backward_agrees_with_the_reference);
    tcase_add_test(all, attention_with_sinks_and_capped_scores_agrees_with_the_reference);
    tcase_add_test(all, attention_refuses_a_gradient_of_sinks_without_sinks);
    tcase_add_test(all, attention_rejects_a_document_that_begins_after_its_token);
    suite_add_tcase(suite, all);
    return suite;
}

HY_TEST_MAIN(make_suite)
