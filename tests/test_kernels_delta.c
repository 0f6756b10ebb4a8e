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

/* Each sequence among others, alone, and in parts of any length. */
EACH_MIXTURE(a_cached_convolution_has_the_same_bits_in_any_parts, 0, PURE_TYPES) {
    static const int32_t parts[] = {1, 2, 7, 1000};
    for (int i = 0; i < 4 * CONV_CASES; i++) {
        trial t = conv_cached_trial(&conv_cases[i / 4], mixture);
        check_cached_parts(&t.call, parts[i % 4], 0, run_call);
        trial_end(&t);
    }
}

EACH_MIXTURE(a_cached_convolution_gives_what_a_whole_one_does, 0, PURE_TYPES) {
    for (int i = 0; i < CONV_CASES; i++) {
        trial t = conv_trial(&conv_cases[i], mixture);
        check_cached_as_whole(&t.call, 0, run_call);
        trial_end(&t);
    }
}

EACH_MIXTURE(a_convolution_does_not_see_other_documents, 0, PURE_TYPES) {
    for (int i = 0; i < CONV_CASES; i++) {
        if (!conv_cases[i].has_doc_starts) continue;
        trial f = conv_trial(&conv_cases[i], mixture);
        trial b = conv_bwd_trial(&conv_cases[i], mixture, true);
        check_documents_apart(&f.call, 0, run_call);
        check_documents_apart(&b.call, 0, run_call);
        trial_end(&f);
        trial_end(&b);
    }
}

START_TEST(wrong_convolutions_are_refused) {
    trial t = conv_trial(&conv_cases[4], 0), b = conv_bwd_trial(&conv_cases[4], 0, true);
    trial c = conv_cached_trial(&conv_cases[4], 0);
    hy_op_call call = t.call;
    call.attr.conv.seq = 7;
    must_fail(hy_op_check(&call), HY_ERR_INPUT, "convolution: 300 tokens are no sequences of 7");
    call = t.call;
    call.t[HY_CONV_WEIGHT].shape[1] = 1;
    must_fail(hy_op_check(&call), HY_ERR_INPUT, "weight has 1 numbers per column, expected 2 to 8");
    call.t[HY_CONV_WEIGHT].shape[1] = 9;
    must_fail(hy_op_check(&call), HY_ERR_INPUT, "weight has 9 numbers per column, expected 2 to 8");
    call = t.call;
    call.t[HY_CONV_WEIGHT].shape[0] = 41;
    must_fail(hy_op_check(&call), HY_ERR_INPUT, "weight has shape (41, 4), expected (40, J)");
    ((int32_t *)t.call.t[HY_CONV_DOC_STARTS].data)[3] = 4;
    must_fail(rig_try(&cpu, &t.call), HY_ERR_INPUT, "the document of token 3 begins at 4");
    ((int32_t *)b.call.t[HY_CONV_BWD_DOC_STARTS].data)[3] = -1;
    must_fail(rig_try(&cpu, &b.call), HY_ERR_INPUT, "the document of token 3 begins at -1");
    call = c.call;
    call.t[HY_CONV_CACHED_STATE].shape[1] = 2;
    must_fail(hy_op_check(&call), HY_ERR_INPUT,
              "state has shape (5, 2, 40), expected (slots, 3, 40)");
    call = c.call;
    call.attr.conv.seq = 50;
    must_fail(hy_op_check(&call), HY_ERR_INPUT, "x has 300 rows, expected 2 sequences of 50");
    ((int32_t *)c.call.t[HY_CONV_CACHED_SLOTS].data)[0] = 5;
    must_fail(rig_try(&cpu, &c.call), HY_ERR_INPUT, "slot of sequence 0 is 5, expected 0 to 4");
    trial_end(&t);
    trial_end(&b);
    trial_end(&c);
}
END_TEST

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

EACH_MIXTURE(a_cached_delta_rule_has_the_same_bits_in_any_parts, 0, PURE_TYPES) {
    static const int32_t parts[] = {1, 3, 32, 1000};
    for (int i = 0; i < 4 * DELTA_CASES; i++) {
        trial t = delta_cached_trial(&delta_cases[i / 4], mixture);
        check_cached_parts(&t.call, parts[i % 4], 0, run_call);
        trial_end(&t);
    }
}

EACH_MIXTURE(a_cached_delta_rule_gives_what_a_whole_one_does, 0, PURE_TYPES) {
    for (int i = 0; i < DELTA_CASES; i++) {
        trial t = delta_trial(&delta_cases[i], mixture);
        check_cached_as_whole(&t.call, 0, run_call);
        trial_end(&t);
    }
}

EACH_MIXTURE(the_delta_rule_forgets_other_documents, 0, PURE_TYPES) {
    for (int i = 0; i < DELTA_CASES; i++) {
        if (!delta_cases[i].has_doc_starts) continue;
        trial f = delta_trial(&delta_cases[i], mixture);
        trial b = delta_bwd_trial(&delta_cases[i], mixture, true);
        check_documents_apart(&f.call, 0, run_call);
        check_documents_apart(&b.call, 0, run_call);
        trial_end(&f);
        trial_end(&b);
    }
}

/* Gradients of a_log and dt_bias, sums of terms of both signs, against the sum of magnitudes. */
static void check_parameter_sums(const trial *b, double allowed) {
    int64_t H = b->call.attr.delta.heads, N = hy_tensor_height(&b->call.t[HY_DELTA_BWD_GATES]);
    for (int64_t head = 0; head < H; head++) {
        double sizes[2] = {0};
        for (int64_t n = 0; n < N; n++) {
            double slope, log = reference_log_decay(&b->exact, HY_DELTA_BWD_QKV, n, head, &slope);
            double da = reference_data(&b->exact, HY_DELTA_BWD_DGATES)[(2 * n + 1) * H + head];
            sizes[0] += fabs(da / slope * log);
            sizes[1] += fabs(da);
        }
        for (int i = 0; i < 2; i++) {
            int at = HY_DELTA_BWD_DA_LOG + i;
            double found = fabs(real_at(&b->call.t[at], head) - real_at(&b->exact.t[at], head));
            ck_assert_msg(found <= allowed * sizes[i], "%s is off by %.3g of its terms",
                          hy_op_tensor_name(HY_OP_DELTA_BWD, at), found / sizes[i]);
        }
    }
}

static void check_long_sequence(const delta_case *k, bool is_constant) {
    trial f = delta_trial(k, 0), b = delta_bwd_trial(k, 0, true);
    for (int64_t n = 0; is_constant && n < k->T * 2 * k->H; n++) {
        double gate = n % (2 * k->H) < k->H ? -3 : k->gate;
        trial_put(&f, HY_DELTA_GATES, n, gate);
        trial_put(&b, HY_DELTA_BWD_GATES, n, gate);
    }
    run_both(&f);
    run_both(&b);
    trial_check(&f, HY_DELTA_OUT, 1);
    trial_check(&b, HY_DELTA_BWD_DQKV, 1);
    trial_check(&b, HY_DELTA_BWD_DGATES, 1);
    check_parameter_sums(&b, 2e-6);
    trial_end(&f);
    trial_end(&b);
}

/* More tokens than chunks of the usual length; decays near 1, near 0 and mixed. */
START_TEST(the_delta_rule_keeps_its_precision_over_long_sequences) {
    static const double gates[] = {-7, 0, 5};
    for (int i = 0; i < 3; i++) {
        check_long_sequence(&(delta_case){1, 8192, 1, 2, 24, 20, false, gates[i]}, false);
    }
}
END_TEST

/* The same gates at every token: the rounding of a decay would have the same sign each time. */
START_TEST(the_delta_rule_keeps_its_precision_with_constant_decays) {
    static const double gates[] = {-9, -6, 0};
    for (int i = 0; i < 3; i++) {
        check_long_sequence(&(delta_case){1, 8192, 1, 1, 16, 16, false, gates[i]}, true);
    }
}
END_TEST

/* Gates at which a decay or a strength becomes exactly 0 or 1, and queries and keys of 0. */
START_TEST(the_delta_rule_is_quiet_at_the_ends) {
    static const double ends[] = {-200, -90, 90, 200};
    delta_case k = {1, 70, 1, 1, 8, 8, false, 0};
    for (int i = 0; i < 16; i++) {
        trial f = delta_trial(&k, 0), b = delta_bwd_trial(&k, 0, true);
        for (int64_t n = 0; n < k.T; n++) {
            trial_put(&f, HY_DELTA_GATES, 2 * n, ends[i % 4]);
            trial_put(&f, HY_DELTA_GATES, 2 * n + 1, ends[i / 4]);
            trial_put(&b, HY_DELTA_BWD_GATES, 2 * n, ends[i % 4]);
            trial_put(&b, HY_DELTA_BWD_GATES, 2 * n + 1, ends[i / 4]);
        }
        for (int64_t c = 0; c < 16; c++) {
            trial_put(&f, HY_DELTA_QKV, 3 * 24 + c, 0);
            trial_put(&b, HY_DELTA_BWD_QKV, 3 * 24 + c, 0);
        }
        run_both(&f);
        run_both(&b);
        bool writes = ends[i % 4] > 0; /* otherwise all results are 0 or nearly so */
        if (writes) trial_check(&f, HY_DELTA_OUT, 1);
        if (writes) trial_check(&b, HY_DELTA_BWD_DQKV, 2);
        ck_assert(isfinite(distance(&f.call.t[HY_DELTA_OUT], f.exact.t[HY_DELTA_OUT].data)));
        for (int at = HY_DELTA_BWD_DQKV; at <= HY_DELTA_BWD_DDT_BIAS; at++) {
            ck_assert(isfinite(distance(&b.call.t[at], b.exact.t[at].data)));
        }
        trial_end(&f);
        trial_end(&b);
    }
}
END_TEST

START_TEST(wrong_delta_rules_are_refused) {
    trial t = delta_trial(&delta_cases[3], 0), b = delta_bwd_trial(&delta_cases[3], 0, true);
    trial c = delta_cached_trial(&delta_cases[3], 0);
    hy_op_call call = t.call;
    call.attr.delta.key_heads = 3;
    must_fail(hy_op_check(&call), HY_ERR_INPUT, "expected positive numbers, heads a multiple of");
    call.attr.delta.key_heads = 2;
    call.attr.delta.key_dim = 257;
    must_fail(hy_op_check(&call), HY_ERR_INPUT, "key_dim and value_dim at most 256");
    call.attr.delta.key_dim = 25;
    must_fail(hy_op_check(&call), HY_ERR_INPUT, "delta rule: qkv has shape (99, 256), expected");
    call = t.call;
    call.t[HY_DELTA_GATES].shape[1] = 4;
    must_fail(hy_op_check(&call), HY_ERR_INPUT, "gates has shape (99, 4), expected (99, 8)");
    ((int32_t *)t.call.t[HY_DELTA_DOC_STARTS].data)[3] = 4;
    must_fail(rig_try(&cpu, &t.call), HY_ERR_INPUT, "the document of token 3 begins at 4");
    ((int32_t *)b.call.t[HY_DELTA_BWD_DOC_STARTS].data)[3] = 4;
    must_fail(rig_try(&cpu, &b.call), HY_ERR_INPUT, "the document of token 3 begins at 4");
    call = c.call;
    call.t[HY_DELTA_CACHED_STATE].shape[2] = 40;
    must_fail(hy_op_check(&call), HY_ERR_INPUT,
              "state has shape (7, 4, 40, 40), expected (slots, 4, 24, 40)");
    call = c.call;
    call.t[HY_DELTA_CACHED_STATE].dtype = HY_BF16;
    must_fail(hy_op_check(&call), HY_ERR_INPUT, "state");
    ((int32_t *)c.call.t[HY_DELTA_CACHED_SLOTS].data)[2] = 7;
    must_fail(rig_try(&cpu, &c.call), HY_ERR_INPUT, "slot of sequence 2 is 7, expected 0 to 6");
    trial_end(&t);
    trial_end(&b);
    trial_end(&c);
}
END_TEST

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

EACH_MIXTURE(the_backward_of_gates_may_write_over_its_input, 0, PURE_TYPES) {
    for (int i = 0; i < GATE_CASES; i++) check_gate_in_place(&gate_cases[i], mixture, run_call);
}

START_TEST(wrong_gates_are_refused) {
    trial t = gate_trial(&gate_cases[4], 0), b = gate_bwd_trial(&gate_cases[4], 0, true);
    hy_op_call call = t.call;
    call.attr.gate.column = 17;
    must_fail(
        hy_op_check(&call), HY_ERR_INPUT,
        "gates of 5 heads of 24 numbers from column 17 on, 40 apart, are not in a row of 200");
    call.attr.gate.column = 3;
    call.attr.gate.stride = 23;
    must_fail(hy_op_check(&call), HY_ERR_INPUT, "23 apart");
    call.attr.gate.stride = 40;
    call.attr.gate.head_dim = 1025;
    must_fail(hy_op_check(&call), HY_ERR_INPUT, "head_dim at most 1024");
    call = t.call;
    call.t[HY_GATE_RSTD] = (hy_tensor){0};
    must_fail(hy_op_check(&call), HY_ERR_INPUT, "rstd is missing; it is required with weight");
    call = b.call;
    call.t[HY_GATE_BWD_DX].data = call.t[HY_GATE_BWD_DY].data;
    call.t[HY_GATE_BWD_DX].dtype = HY_BF16;
    must_fail(hy_op_check(&call), HY_ERR_INPUT, "share memory but are");
    trial_end(&t);
    trial_end(&b);
}
END_TEST

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

START_TEST(a_wrong_head_norm_with_gates_is_refused) {
    trial t = gated_norm_trial(&gated_norm_cases[1], 0);
    trial b = gated_norm_bwd_trial(&gated_norm_cases[1], 0);
    hy_op_call call = t.call;
    call.attr.heads.is_whole = true;
    must_fail(hy_op_check(&call), HY_ERR_INPUT, "has_gates and is_whole cannot be combined");
    call = t.call;
    call.attr.heads.has_gates = false;
    must_fail(hy_op_check(&call), HY_ERR_INPUT, "qkv has shape (7, 480), expected (N, 320)");
    call = b.call;
    call.t[HY_HEAD_NORM_BWD_DOUT].data = call.t[HY_HEAD_NORM_BWD_DQKV].data;
    must_fail(hy_op_check(&call), HY_ERR_INPUT, "with has_gates dqkv cannot be dout");
    trial_end(&t);
    trial_end(&b);
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("kernels: delta");
    TCase *all = tcase_create("delta");
    tcase_set_timeout(all, 120);
    tcase_add_unchecked_fixture(all, load, NULL);
    tcase_add_checked_fixture(all, set_up, tear_down);
    tcase_add_test(all, convolution_agrees_with_the_reference);
    tcase_add_test(all, convolution_backward_agrees_with_the_reference);
    tcase_add_test(all, cached_convolution_agrees_with_the_reference);
    tcase_add_test(all, a_cached_convolution_has_the_same_bits_in_any_parts);
    tcase_add_test(all, a_cached_convolution_gives_what_a_whole_one_does);
    tcase_add_test(all, a_convolution_does_not_see_other_documents);
    tcase_add_test(all, wrong_convolutions_are_refused);
    tcase_add_test(all, the_delta_rule_agrees_with_the_reference);
    tcase_add_test(all, the_backward_of_the_delta_rule_agrees_with_the_reference);
    tcase_add_test(all, the_cached_delta_rule_agrees_with_the_reference);
    tcase_add_test(all, a_cached_delta_rule_has_the_same_bits_in_any_parts);
    tcase_add_test(all, a_cached_delta_rule_gives_what_a_whole_one_does);
    tcase_add_test(all, the_delta_rule_forgets_other_documents);
    tcase_add_test(all, the_delta_rule_keeps_its_precision_over_long_sequences);
    tcase_add_test(all, the_delta_rule_keeps_its_precision_with_constant_decays);
    tcase_add_test(all, the_delta_rule_is_quiet_at_the_ends);
    tcase_add_test(all, wrong_delta_rules_are_refused);
    tcase_add_test(all, gates_agree_with_the_reference);
    tcase_add_test(all, the_backward_of_gates_agrees_with_the_reference);
    tcase_add_test(all, the_backward_of_gates_may_write_over_its_input);
    tcase_add_test(all, wrong_gates_are_refused);
    tcase_add_test(all, head_norm_leaves_gates_out);
    tcase_add_test(all, a_wrong_head_norm_with_gates_is_refused);
    suite_add_tcase(suite, all);
    return suite;
}

HY_TEST_MAIN(make_suite)
