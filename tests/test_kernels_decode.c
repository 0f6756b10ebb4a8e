/* test_kernels_decode.c: the ops of batched decoding: a row or a sequence has the same bits alone
 * and among others, and all agree with plain references. */
#include "decode_calls.h"
#include "kernels/cpu/blas.h"

static rig cpu;

static void load(void) { hy_blas_get(); }
static void set_up(void) { cpu = rig_create(2); }
static void tear_down(void) { rig_destroy(&cpu); }
static void run_call(const hy_op_call *call) { rig_run(&cpu, call); }

/* ---- matmul ---------------------------------------------------------------------------------- */

EACH_MIXTURE(batch_invariant_matmul_agrees_with_the_reference, 0, MIXTURES) {
    for (int i = 0; i < INVARIANT_CASES; i++) {
        trial t = invariant_trial(&invariant_cases[i], mixture);
        rig_run_both(&cpu, &t);
        trial_check(&t, HY_MATMUL_D, 1);
        trial_end(&t);
    }
}

EACH_MIXTURE(a_row_of_a_matmul_has_the_same_bits_among_any_others, 0, MIXTURES) {
    for (int i = 0; i < INVARIANT_CASES; i++) {
        trial t = invariant_trial(&invariant_cases[i], mixture);
        check_rows_alone(&t.call, run_call);
        trial_end(&t);
    }
}

/* ---- positions ------------------------------------------------------------------------------- */

EACH_MIXTURE(rope_rotates_each_sequence_at_its_own_position, 0, PURE_TYPES) {
    static const heads_case cases[] = {{5, 1, 4, 2, 16, 0, false}, {4, 8, 6, 2, 40, 0, false}};
    for (int i = 0; i < 2; i++) {
        trial t = rope_first_trial(&cases[i], mixture);
        rig_run_both(&cpu, &t);
        trial_check(&t, HY_ROPE_QKV, 1);
        trial_end(&t);
    }
}

/* ---- a cache in blocks ----------------------------------------------------------------------- */

EACH_MIXTURE(attention_with_a_cache_in_blocks_agrees_with_the_reference, 0, MIXTURES) {
    for (int i = 0; i < BLOCKS_CASES; i++) {
        for (int variant = 0; variant < ATTENTION_VARIANTS + 1; variant++) {
            if (variant > 0) set_attention_options(variant - 1);
            trial t = blocks_trial(&blocks_cases[i], mixture);
            rig_run_both(&cpu, &t);
            forget_idle(&t, HY_ATTENTION_CACHED_OUT, t.call.t[HY_ATTENTION_CACHED_FIRST].data,
                        blocks_cases[i].heads.T);
            trial_check(&t, HY_ATTENTION_CACHED_OUT, 1);
            trial_end(&t);
            clear_options();
        }
    }
}

EACH_MIXTURE(a_sequence_has_the_same_bits_among_any_others, 0, PURE_TYPES) {
    for (int i = 0; i < BLOCKS_CASES; i++) {
        trial t = blocks_trial(&blocks_cases[i], mixture);
        check_sequences_alone(&t.call, run_call);
        trial_end(&t);
    }
}

/* ---- sampling -------------------------------------------------------------------------------- */

START_TEST(sampled_tokens_are_those_of_a_full_sort) {
    static const hy_sampling options[] = {
        {.temperature = 0},
        {.temperature = 1},
        {.temperature = 0.7f, .top_k = 40},
        {.temperature = 1, .top_p = 0.95f},
        {.temperature = 1.3f, .top_p = 0.5f, .top_k = 100},
        {.temperature = 1, .min_p = 0.05f},
        {.temperature = 0.8f, .top_p = 0.9f, .top_k = 50, .min_p = 0.1f, .penalty = 1.3f},
    };
    sample_rows s = {.rows = 40, .V = 5003, .E = 5, .dtype = HY_F32, .vocab = 5000, .factor = 1};
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        hy_op_call call = sample_call(&s, i % 2 ? 0.5 : 3, i);
        for (int64_t row = 0; row < s.rows; row++) {
            hy_sampling with = options[i];
            with.forced = -1, with.seed = 5, with.position = (uint64_t)row;
            *sampling_at(&call, row) = with;
        }
        run_call(&call);
        ck_assert_int_gt(check_tokens_chosen(&call, "tokens"), s.rows / 2);
        check_log_probabilities(&call);
        free_call(&call);
    }
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("kernels: decode");
    TCase *all = tcase_create("decode");
    tcase_set_timeout(all, 120);
    tcase_add_unchecked_fixture(all, load, NULL);
    tcase_add_checked_fixture(all, set_up, tear_down);
    tcase_add_test(all, batch_invariant_matmul_agrees_with_the_reference);
    tcase_add_test(all, a_row_of_a_matmul_has_the_same_bits_among_any_others);
    tcase_add_test(all, rope_rotates_each_sequence_at_its_own_position);
    tcase_add_test(all, attention_with_a_cache_in_blocks_agrees_with_the_reference);
    tcase_add_test(all, a_sequence_has_the_same_bits_among_any_others);
    tcase_add_test(all, sampled_tokens_are_those_of_a_full_sort);
    suite_add_tcase(suite, all);
    return suite;
}

HY_TEST_MAIN(make_suite)
