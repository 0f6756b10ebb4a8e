/* test_gpu_delta.c: the ops of gated delta layers on CUDA against the double-precision reference.
 *
 * The delta rule has two sets of kernels: on tensor cores products are of bf16 numbers, also for
 * fp16 tensors, so errors are those of bf16 whatever the type; and the order of sums depends on
 * where a chunk begins. The plain kernels, for other types and sizes, are held to fp32. */
#include "gpu_rig.h"

#include "delta_calls.h"
#include "kernels/delta_layout.h"

/* Head sizes of both tiles, not square, grouped; chunks with an odd end, and several of them. */
static const delta_case tile_cases[] = {
    {1, 64, 1, 1, 64, 64, false, 0},
    {2, 70, 1, 2, 64, 48, true, -3},
    {1, 200, 2, 2, 128, 128, true, -6},
    {2, 129, 2, 4, 128, 128, false, 0},
    {1, 257, 1, 3, 96, 32, true, 4},
    {3, 20, 2, 2, 16, 128, true, -6},
    {1, 1000, 1, 1, 128, 64, true, -6},
    {2, 500, 3, 3, 128, 128, false, -6},
    /* as in training: more blocks than multiprocessors, with four warps each */
    {6, 65, 3, 36, 16, 16, true, -3},
    {3, 65, 6, 36, 80, 16, true, -3},
};
enum { TILE_CASES = sizeof tile_cases / sizeof tile_cases[0] };

/* All cases of the CPU's tests, then those for tensor cores. */
enum { ALL_DELTA = DELTA_CASES + TILE_CASES };
static const delta_case *delta_at(int i) {
    return i < DELTA_CASES ? &delta_cases[i] : &tile_cases[i - DELTA_CASES];
}

static bool leaves_out(const delta_case *k) {
    return gpu_leaves_out((int64_t)k->B * k->T * delta_width(k));
}

static bool has_tiles(const hy_op_call *call) {
    return hy_delta_has_tiles(call, gpu.backend->facts.capability);
}

/* Relative to the norm of the result: what is rounded to bf16 on the way (T, R, V', the state) adds
 * about two roundings of a number; gradients pass twice through that. */
#define TILE_ERROR 0.012

static void check_delta(const trial *t, int at, double factor) {
    double found = distance(&t->call.t[at], t->exact.t[at].data);
    if (!has_tiles(&t->call)) {
        trial_check(t, at, factor);
        return;
    }
    ck_assert_msg(found <= TILE_ERROR * factor, "%s: %s (%s) is off by %.3g, allowed %.3g",
                  hy_op_name(t->call.kind), hy_op_tensor_name(t->call.kind, at),
                  hy_dtype_name(t->call.t[at].dtype), found, TILE_ERROR * factor);
}

static double alike(const hy_op_call *call) {
    return has_tiles(call) ? TILE_ERROR : call->t[0].dtype == HY_F32 ? 1e-5 : 0.01;
}

static void check_cached(trial *t, int mixture) {
    cached_places p = cached_places_of(t->call.kind);
    hy_tensor before = copy_tensor(&t->call.t[p.state]);
    if (gpu_run_both(t, mixture)) {
        forget_unused(t, &before);
        if (t->call.kind == HY_OP_CONV_CACHED) {
            trial_check(t, p.out, 1);
            trial_check(t, p.state, 1);
        } else {
            check_delta(t, p.out, 1);
            check_delta(t, p.state, 1);
        }
    }
    free(before.data);
}

/* ---- convolution ----------------------------------------------------------------------------- */

EACH_TYPE(convolution_agrees_with_the_reference, GPU_MIXTURES) {
    for (int i = 0; i < 2 * CONV_CASES; i++) {
        trial f = conv_trial(&conv_cases[i / 2], mixture);
        trial b = conv_bwd_trial(&conv_cases[i / 2], mixture, i % 5 != 4);
        b.call.attr.accumulate = i % 2;
        gpu.shifted = i % 3 == 2 ? 0x3f : 0; /* element by element */
        if (gpu_run_both(&f, mixture)) trial_check(&f, HY_CONV_Y, 1);
        if (gpu_run_both(&b, mixture)) {
            trial_check(&b, HY_CONV_BWD_DX, 1);
            if (i % 5 != 4) trial_check(&b, HY_CONV_BWD_DWEIGHT, 1);
        }
        gpu.shifted = 0;
        trial_end(&f);
        trial_end(&b);
    }
}

EACH_TYPE(cached_convolution_agrees_with_the_reference, GPU_MIXTURES) {
    for (int i = 0; i < CONV_CASES; i++) {
        trial t = conv_cached_trial(&conv_cases[i], mixture);
        check_cached(&t, mixture);
        trial_end(&t);
    }
}

EACH_TYPE(a_cached_convolution_has_the_same_bits_in_any_parts, PURE_TYPES) {
    static const int32_t parts[] = {1, 2, 7, 1000};
    for (int i = 0; i < 4 * CONV_CASES; i++) {
        const conv_case *k = &conv_cases[i / 4];
        if (k->T / parts[i % 4] > 40) continue;
        trial t = conv_cached_trial(k, mixture);
        check_cached_parts(&t.call, parts[i % 4], 0, gpu_must_run);
        trial_end(&t);
    }
}

EACH_TYPE(a_convolution_does_not_see_other_documents, PURE_TYPES) {
    for (int i = 0; i < CONV_CASES; i++) {
        if (!conv_cases[i].has_doc_starts) continue;
        trial f = conv_trial(&conv_cases[i], mixture);
        trial b = conv_bwd_trial(&conv_cases[i], mixture, true);
        check_documents_apart(&f.call, 0, gpu_must_run);
        check_documents_apart(&b.call, 0, gpu_must_run);
        check_cached_as_whole(&f.call, 0, gpu_must_run);
        trial_end(&f);
        trial_end(&b);
    }
}

/* ---- the gated delta rule -------------------------------------------------------------------- */

EACH_TYPE(the_delta_rule_agrees_with_the_reference, GPU_MIXTURES) {
    for (int i = 0; i < ALL_DELTA; i++) {
        if (leaves_out(delta_at(i))) continue;
        trial t = delta_trial(delta_at(i), mixture);
        if (gpu_run_both(&t, mixture)) check_delta(&t, HY_DELTA_OUT, 1);
        trial_end(&t);
    }
}

EACH_TYPE(the_backward_of_the_delta_rule_agrees_with_the_reference, GPU_MIXTURES) {
    for (int i = 0; i < ALL_DELTA; i++) {
        if (leaves_out(delta_at(i))) continue;
        trial t = delta_bwd_trial(delta_at(i), mixture, i % 5 != 4);
        t.call.attr.accumulate = i % 2;
        if (gpu_run_both(&t, mixture)) {
            check_delta(&t, HY_DELTA_BWD_DQKV, 2);
            check_delta(&t, HY_DELTA_BWD_DGATES, 2);
            /* sums over rows, of terms that cancel */
            if (i % 5 != 4) check_delta(&t, HY_DELTA_BWD_DA_LOG, 6);
            if (i % 5 != 4) check_delta(&t, HY_DELTA_BWD_DDT_BIAS, 6);
        }
        trial_end(&t);
    }
}

EACH_TYPE(the_cached_delta_rule_agrees_with_the_reference, GPU_MIXTURES) {
    for (int i = 0; i < ALL_DELTA; i++) {
        delta_case one = *delta_at(i);
        if (leaves_out(delta_at(i))) continue;
        trial t = delta_cached_trial(delta_at(i), mixture);
        check_cached(&t, mixture);
        trial_end(&t);
        one.T = 1; /* decoding */
        t = delta_cached_trial(&one, mixture);
        check_cached(&t, mixture);
        trial_end(&t);
    }
}

/* A sequence alone has the bits that it has among others; in parts, their errors. */
EACH_TYPE(a_cached_delta_rule_does_not_depend_on_other_sequences, PURE_TYPES) {
    for (int i = 0; i < ALL_DELTA; i++) {
        delta_case one = *delta_at(i);
        if (leaves_out(delta_at(i))) continue;
        trial t = delta_cached_trial(delta_at(i), mixture);
        check_cached_parts(&t.call, 1000, 0, gpu_must_run);
        check_cached_parts(&t.call, 100, 2 * alike(&t.call), gpu_must_run);
        trial_end(&t);
        one.T = 1;
        t = delta_cached_trial(&one, mixture);
        check_cached_parts(&t.call, 1, 0, gpu_must_run);
        trial_end(&t);
    }
}

EACH_TYPE(the_delta_rule_forgets_other_documents, PURE_TYPES) {
    for (int i = 0; i < ALL_DELTA; i++) {
        if (leaves_out(delta_at(i)) || !delta_at(i)->has_doc_starts) continue;
        trial f = delta_trial(delta_at(i), mixture);
        trial b = delta_bwd_trial(delta_at(i), mixture, true);
        bool has_bits = !has_tiles(&f.call);
        check_documents_apart(&f.call, has_bits ? 0 : TILE_ERROR, gpu_must_run);
        check_documents_apart(&b.call, has_bits ? 0 : 2 * TILE_ERROR, gpu_must_run);
        check_cached_as_whole(&f.call, has_bits ? 0 : TILE_ERROR, gpu_must_run);
        trial_end(&f);
        trial_end(&b);
    }
}

static void check_long_sequence(const delta_case *k, int mixture, bool is_constant) {
    trial f = delta_trial(k, mixture), b = delta_bwd_trial(k, mixture, false);
    for (int64_t n = 0; is_constant && n < k->T * 2 * k->H; n++) {
        double gate = n % (2 * k->H) < k->H ? -3 : k->gate;
        trial_put(&f, HY_DELTA_GATES, n, gate);
        trial_put(&b, HY_DELTA_BWD_GATES, n, gate);
    }
    gpu_run_both(&f, mixture);
    gpu_run_both(&b, mixture);
    check_delta(&f, HY_DELTA_OUT, 1);
    check_delta(&b, HY_DELTA_BWD_DQKV, 1);
    check_delta(&b, HY_DELTA_BWD_DGATES, 1);
    trial_end(&f);
    trial_end(&b);
}

/* Decays near 1, near 0 and mixed; random ones, and the same at every token. */
EACH_TYPE(the_delta_rule_keeps_its_precision_over_long_sequences, 2) {
    static const double gates[] = {-9, -6, 0, 5};
    for (int i = 0; i < 8 && !gpu.is_small; i++) {
        delta_case k = {1, 8192, 1, 1, 16, 16, false, gates[i / 2]};
        check_long_sequence(&k, mixture, i % 2);
    }
}

/* Gates at which a decay or a strength becomes exactly 0 or 1, and queries and keys of 0. */
EACH_TYPE(the_delta_rule_is_quiet_at_the_ends, PURE_TYPES) {
    static const double ends[] = {-200, -90, 90, 200};
    for (int i = 0; i < 16; i++) {
        delta_case k = {1, 150, 1, 1, 64, 64, false, 0};
        trial f = delta_trial(&k, mixture), b = delta_bwd_trial(&k, mixture, true);
        for (int64_t n = 0; n < k.T; n++) {
            trial_put(&f, HY_DELTA_GATES, 2 * n, ends[i % 4]);
            trial_put(&f, HY_DELTA_GATES, 2 * n + 1, ends[i / 4]);
            trial_put(&b, HY_DELTA_BWD_GATES, 2 * n, ends[i % 4]);
            trial_put(&b, HY_DELTA_BWD_GATES, 2 * n + 1, ends[i / 4]);
        }
        for (int64_t c = 0; c < 128; c++) {
            trial_put(&f, HY_DELTA_QKV, 3 * 192 + c, 0);
            trial_put(&b, HY_DELTA_BWD_QKV, 3 * 192 + c, 0);
        }
        gpu_must_run(&f.call);
        gpu_must_run(&b.call);
        ck_assert(isfinite(distance(&f.call.t[HY_DELTA_OUT], f.exact.t[HY_DELTA_OUT].data)));
        for (int at = HY_DELTA_BWD_DQKV; at <= HY_DELTA_BWD_DDT_BIAS; at++) {
            ck_assert(isfinite(distance(&b.call.t[at], b.exact.t[at].data)));
        }
        trial_end(&f);
        trial_end(&b);
    }
}

/* ---- gates ----------------------------------------------------------------------------------- */

EACH_TYPE(gates_agree_with_the_reference, GPU_MIXTURES) {
    for (int i = 0; i < 2 * GATE_CASES; i++) {
        trial f = gate_trial(&gate_cases[i / 2], mixture);
        trial b = gate_bwd_trial(&gate_cases[i / 2], mixture, i % 5 != 4);
        b.call.attr.accumulate = i % 2;
        gpu.shifted = i % 3 == 2 ? 0xff : 0;
        if (gpu_run_both(&f, mixture)) {
            trial_check(&f, HY_GATE_Y, 1);
            if (gate_cases[i / 2].has_weight) trial_check(&f, HY_GATE_RSTD, 1);
        }
        if (gpu_run_both(&b, mixture)) {
            trial_check(&b, HY_GATE_BWD_DX, 2);
            trial_check(&b, HY_GATE_BWD_DGATE, 1);
            if (b.call.t[HY_GATE_BWD_DWEIGHT].data) trial_check(&b, HY_GATE_BWD_DWEIGHT, 1);
        }
        gpu.shifted = 0;
        trial_end(&f);
        trial_end(&b);
    }
}

EACH_TYPE(the_backward_of_gates_may_write_over_its_input, PURE_TYPES) {
    for (int i = 0; i < GATE_CASES; i++) {
        check_gate_in_place(&gate_cases[i], mixture, gpu_must_run);
    }
}

EACH_TYPE(head_norm_leaves_gates_out, GPU_MIXTURES) {
    for (int i = 0; i < 2 * GATED_NORM_CASES; i++) {
        trial f = gated_norm_trial(&gated_norm_cases[i / 2], mixture);
        trial b = gated_norm_bwd_trial(&gated_norm_cases[i / 2], mixture);
        b.call.attr.accumulate = i % 2;
        if (gpu_run_both(&f, mixture)) {
            trial_check(&f, HY_HEAD_NORM_OUT, 1);
            trial_check(&f, HY_HEAD_NORM_RSTD, 1);
        }
        if (gpu_run_both(&b, mixture)) {
            trial_check(&b, HY_HEAD_NORM_BWD_DQKV, 2);
            trial_check(&b, HY_HEAD_NORM_BWD_DWQ, 2);
            trial_check(&b, HY_HEAD_NORM_BWD_DWK, 2);
        }
        trial_end(&f);
        trial_end(&b);
    }
}

static Suite *make_suite(void) {
    Suite *suite = suite_create("gpu: delta");
    TCase *all = tcase_create("delta");
    tcase_set_timeout(all, 600);
    tcase_add_test(all, convolution_agrees_with_the_reference);
    tcase_add_test(all, cached_convolution_agrees_with_the_reference);
    tcase_add_test(all, a_cached_convolution_has_the_same_bits_in_any_parts);
    tcase_add_test(all, a_convolution_does_not_see_other_documents);
    tcase_add_test(all, the_delta_rule_agrees_with_the_reference);
    tcase_add_test(all, the_backward_of_the_delta_rule_agrees_with_the_reference);
    tcase_add_test(all, the_cached_delta_rule_agrees_with_the_reference);
    tcase_add_test(all, a_cached_delta_rule_does_not_depend_on_other_sequences);
    tcase_add_test(all, the_delta_rule_forgets_other_documents);
    tcase_add_test(all, the_delta_rule_keeps_its_precision_over_long_sequences);
    tcase_add_test(all, the_delta_rule_is_quiet_at_the_ends);
    tcase_add_test(all, gates_agree_with_the_reference);
    tcase_add_test(all, the_backward_of_gates_may_write_over_its_input);
    tcase_add_test(all, head_norm_leaves_gates_out);
    suite_add_tcase(suite, all);
    return suite;
}

GPU_TEST_MAIN(make_suite)
