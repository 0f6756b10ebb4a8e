/* test_kernels_delta.c: the ops of gated delta layers against the double-precision reference. */
#include "delta_calls.h"
#include "kernels/cpu/blas.h"

static rig cpu;

static void load(void) { hy_blas_get(); }
static void set_up(void) { cpu = rig_create(2); }
static void tear_down(void) { rig_destroy(&cpu); }
static void run_both(trial *t) { rig_run_both(&cpu, t); }
static void run_call(const hy_op_call *call) { rig_run(&cpu, call); }

/* Runs a call with states both ways, checks that others are untouched, and compares. */
static void check_cached(trial *t, double factor) {
    cached_places p = cached_places_of(t->call.kind);
    hy_tensor before = copy_tensor(&t->call.t[p.state]);
    run_both(t);
    forget_unused(t, &before);
    trial_check(t, p.out, factor);
    trial_check(t, p.state, factor);
    free(before.data);
}

/* ---- convolution ----------------------------------------------------------------------------- */

EACH_MIXTURE(convolution_agrees_with_the_reference, 0, MIXTURES) {
    for (int i = 0; i < CONV_CASES; i++) {
        trial t = conv_trial(&conv_cases[i], mixture);
        run_both(&t);
        trial_check(&t, HY_CONV_Y, 1);
        trial_end(&t);
    }
}

EACH_MIXTURE(convolution_backward_agrees_with_the_reference, 0, MIXTURES) {
    for (int i = 0; i < 2 * CONV_CASES; i++) {
        trial t = conv_bwd_trial(&conv_cases[i / 2], mixture, i % 5 != 4);
        t.call.attr.accumulate = i % 2;
        run_both(&t);
        trial_check(&t, HY_CONV_BWD_DX, 1);
        if (i % 5 != 4) trial_check(&t, HY_CONV_BWD_DWEIGHT, 1);
        trial_end(&t);
    }
}

EACH_MIXTURE(cached_convolution_agrees_with_the_reference, 0, MIXTURES) {
    for (int i = 0; i < CONV_CASES; i++) {
        trial t = conv_cached_trial(&conv_cases[i], mixture);
        check_cached(&t, 1);
        trial_end(&t);
    }
}

/* ---- the gated delta rule -------------------------------------------------------------------- */

EACH_MIXTURE(the_delta_rule_agrees_with_the_reference, 0, MIXTURES) {
    for (int i = 0; i < DELTA_CASES; i++) {
        trial t = delta_trial(&delta_cases[i], mixture);
        run_both(&t);
        trial_check(&t, HY_DELTA_OUT, 1);
        trial_end(&t);
    }
}

EACH_MIXTURE(the_backward_of_the_delta_rule_agrees_with_the_reference, 0, MIXTURES) {
    for (int i = 0; i < 2 * DELTA_CASES; i++) {
        trial t = delta_bwd_trial(&delta_cases[i / 2], mixture, i % 5 != 4);
        t.call.attr.accumulate = i % 2;
        run_both(&t);
        trial_check(&t, HY_DELTA_BWD_DQKV, 2);
        trial_check(&t, HY_DELTA_BWD_DGATES, 2);
        if (i % 5 != 4) trial_check(&t, HY_DELTA_BWD_DA_LOG, 2);
        if (i % 5 != 4) trial_check(&t, HY_DELTA_BWD_DDT_BIAS, 2);
        trial_end(&t);
    }
}

EACH_MIXTURE(the_cached_delta_rule_agrees_with_the_reference, 0, MIXTURES) {
    for (int i = 0; i < DELTA_CASES; i++) {
        trial t = delta_cached_trial(&delta_cases[i], mixture);
        check_cached(&t, 1);
        trial_end(&t);
    }
}

/* ---- gates ----------------------------------------------------------------------------------- */

EACH_MIXTURE(gates_agree_with_the_reference, 0, MIXTURES) {
    for (int i = 0; i < GATE_CASES; i++) {
        trial t = gate_trial(&gate_cases[i], mixture);
        run_both(&t);
        trial_check(&t, HY_GATE_Y, 1);
        if (gate_cases[i].has_weight) trial_check(&t, HY_GATE_RSTD, 1);
        trial_end(&t);
    }
}

EACH_MIXTURE(the_backward_of_gates_agrees_with_the_reference, 0, MIXTURES) {
    for (int i = 0; i < 2 * GATE_CASES; i++) {
        trial t = gate_bwd_trial(&gate_cases[i / 2], mixture, i % 5 != 4);
        t.call.attr.accumulate = i % 2;
        run_both(&t);
        trial_check(&t, HY_GATE_BWD_DX, 2);
        trial_check(&t, HY_GATE_BWD_DGATE, 1);
        if (t.call.t[HY_GATE_BWD_DWEIGHT].data) trial_check(&t, HY_GATE_BWD_DWEIGHT, 1);
        trial_end(&t);
    }
}

EACH_MIXTURE(head_norm_leaves_gates_out, 0, MIXTURES) {
    for (int i = 0; i < 2 * GATED_NORM_CASES; i++) {
        trial f = gated_norm_trial(&gated_norm_cases[i / 2], mixture);
        trial b = gated_norm_bwd_trial(&gated_norm_cases[i / 2], mixture);
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
}

static Suite *make_suite(void) {
    Suite *suite = suite_create("kernels: delta");
    TCase *all = tcase_create("delta");
    tcase_set_timeout(all, 120);
    tcase_add_unchecked_fixture(all, load, NULL);
    tcase_add_checked_fixture(all, set_up, tear_down);
    tcase_add_test(all, convolution_agrees_with_the_reference);
    tcase_add_test(all, convolution_backward_agrees_with_the_reference);
    tcase_add_test(all, cached_convolution_agrees_with_the_reference);
    tcase_add_test(all, the_delta_rule_agrees_with_the_reference);
    tcase_add_test(all, the_backward_of_the_delta_rule_agrees_with_the_reference);
    tcase_add_test(all, the_cached_delta_rule_agrees_with_the_reference);
    tcase_add_test(all, gates_agree_with_the_reference);
    tcase_add_test(all, the_backward_of_gates_agrees_with_the_reference);
    tcase_add_test(all, head_norm_leaves_gates_out);
    suite_add_tcase(suite, all);
    return suite;
}

HY_TEST_MAIN(make_suite)
