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

EACH_MIXTURE(a_batch_invariant_matmul_reads_stored_weights_as_their_cast, 0, PURE_TYPES) {
    static const hy_dtype stored[] = {HY_I8, HY_NF4, HY_E4M3};
    for (int i = 0; i < 3; i++) check_invariant_coded(stored[i], mixture, run_call);
    coded_rows_are_plain = true;
    check_invariant_coded(HY_NF4, mixture, run_call);
    coded_rows_are_plain = false;
}

START_TEST(a_batch_invariant_matmul_refuses_what_it_cannot_do) {
    trial t = invariant_trial(&invariant_cases[2], 0);
    t.call.attr.matmul.trans_b = false;
    must_fail(hy_op_check(&t.call), HY_ERR_INPUT, "b has shape (200, 130)");
    t.call.attr.matmul.trans_b = true;
    t.call.attr.matmul.batch = t.call.attr.matmul.batch_most = 1;
    must_fail(hy_op_check(&t.call), HY_ERR_INPUT, "a batch-invariant matmul needs trans_b");
    trial_end(&t);
}
END_TEST

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

EACH_MIXTURE(embeddings_are_at_the_position_of_each_sequence, 0, PURE_TYPES) {
    for (int32_t T = 1; T < 12; T += 10) {
        trial t = embed_first_trial(7, T, mixture);
        rig_run_both(&cpu, &t);
        forget_idle(&t, HY_EMBED_X, t.call.t[HY_EMBED_FIRST].data, T);
        trial_check(&t, HY_EMBED_X, 1);
        trial_end(&t);
    }
}

START_TEST(positions_beyond_a_table_are_refused) {
    heads_case h = {5, 8, 4, 2, 16, 0, false};
    trial rope = rope_first_trial(&h, 0), embed = embed_first_trial(3, 4, 0);
    ((int32_t *)rope.call.t[HY_ROPE_FIRST].data)[1] = 60; /* of 61 rows */
    must_fail(rig_try(&cpu, &rope.call), HY_ERR_INPUT,
              "sequence 1 ends at position 68, but the table has 61 rows");
    ((int32_t *)embed.call.t[HY_EMBED_FIRST].data)[0] = 51;
    must_fail(rig_try(&cpu, &embed.call), HY_ERR_INPUT,
              "sequence 0 ends at position 55, but wpe has 54 rows");
    embed.call.attr.embed.seq = 3;
    must_fail(hy_op_check(&embed.call), HY_ERR_INPUT, "first has 3 elements for 12 tokens, 3 each");
    rope.call.attr.heads.seq = 4;
    must_fail(hy_op_check(&rope.call), HY_ERR_INPUT, "expected 5 sequences of 4");
    trial_end(&rope);
    trial_end(&embed);
}
END_TEST

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

EACH_MIXTURE(a_prompt_has_the_same_bits_in_chunks_of_any_size, 0, PURE_TYPES) {
    static const blocks_case cases[] = {{{1, 300, 6, 2, 24, 0, false}, 32, 90},
                                        {{1, 150, 4, 1, 80, 33, false}, 16, 290},
                                        {{1, 90, 4, 1, 40, 300, false}, 8, 400}};
    static const int32_t chunks[] = {1, 2, 7, 64};
    for (int i = 0; i < 12; i++) {
        trial t = blocks_trial(&cases[i / 4], mixture);
        check_chunks(&t.call, chunks[i % 4], run_call);
        trial_end(&t);
    }
}

START_TEST(a_cache_in_blocks_names_what_is_wrong_with_it) {
    blocks_case k = {{2, 3, 4, 2, 16, 0, false}, 16, 40};
    trial t = blocks_trial(&k, 0);
    int32_t *blocks = t.call.t[HY_ATTENTION_CACHED_BLOCKS].data,
            *first = t.call.t[HY_ATTENTION_CACHED_FIRST].data;
    blocks[4 + 1] = 8; /* of 8 */
    first[1] = 20;
    must_fail(rig_try(&cpu, &t.call), HY_ERR_INPUT, "block 1 of sequence 1 is 8, expected 0 to 7");
    first[1] = 62;
    must_fail(rig_try(&cpu, &t.call), HY_ERR_INPUT, "sequence 1 ends at position 65");
    first[1] = -5; /* idle: its blocks do not matter */
    rig_run(&cpu, &t.call);
    hy_op_call call = t.call;
    call.t[HY_ATTENTION_CACHED_CACHE].shape[1] = 24;
    must_fail(hy_op_check(&call), HY_ERR_INPUT, "expected (blocks, a divisor of 256, 64)");
    call = t.call;
    call.t[HY_ATTENTION_CACHED_FIRST] = (hy_tensor){0};
    must_fail(hy_op_check(&call), HY_ERR_INPUT, "first is missing");
    trial_end(&t);
}
END_TEST

/* ---- sampling -------------------------------------------------------------------------------- */

/* Options of rows: every combination of a limit of each kind. */
static hy_sampling options_of(int64_t row, bool has_penalty) {
    static const float temperatures[] = {1, 0.7f, 1.5f}, shares[] = {0, 0.95f, 0.5f, 1e-12f, 1};
    static const int32_t counts[] = {0, 40, 1, 300, 1000000};
    static const float least[] = {0, 0.05f, 0.5f};
    return (hy_sampling){.temperature = row % 16 == 15 ? 0 : temperatures[row % 3],
                         .top_p = shares[row % 5],
                         .top_k = counts[row / 5 % 5],
                         .min_p = least[row / 25 % 3],
                         .penalty = has_penalty ? 1 + 0.1f * (float)(row % 4) : 0,
                         .forced = row % 32 == 9 ? (int32_t)row : -1,
                         .seed = 5,
                         .position = (uint64_t)row};
}

static hy_op_call random_call(const sample_rows *s, double deviation, uint64_t seed) {
    hy_op_call call = sample_call(s, deviation, seed);
    for (int64_t row = 0; row < s->rows; row++) {
        *sampling_at(&call, row) = options_of(row, s->has_seen);
    }
    for (int64_t i = 0; s->has_seen && i < hy_tensor_count(&call.t[HY_SAMPLE_SEEN]); i++) {
        ((uint32_t *)call.t[HY_SAMPLE_SEEN].data)[i] = (uint32_t)(i * 0x9e3779b9u);
    }
    return call;
}

static const sample_rows sample_shapes[] = {
    {75, 5003, 5, HY_F32, 5000, 1, 0, true},    {75, 4096, 20, HY_BF16, 4096, 0, 0, false},
    {75, 9001, 0, HY_F16, 9001, 0.5f, 0, true}, {75, 700, 1, HY_F32, 641, 1, 5, false},
    {40, 20, 20, HY_F32, 20, 1, 0, true},
};

enum { SAMPLE_SHAPES = sizeof sample_shapes / sizeof sample_shapes[0] };

START_TEST(sampled_tokens_are_those_of_a_full_sort) {
    const sample_rows *s = &sample_shapes[_i];
    for (int flat = 0; flat < 2; flat++) {
        hy_op_call call = random_call(s, flat ? 0.1 : 3, (uint64_t)_i), before = call;
        before.t[HY_SAMPLE_SEEN] = copy_tensor(&call.t[HY_SAMPLE_SEEN]);
        run_call(&call);
        before.t[HY_SAMPLE_TOKENS] = call.t[HY_SAMPLE_TOKENS];
        ck_assert_int_gt(check_tokens_chosen(&before), s->rows * 8 / 10);
        check_log_probabilities(&call);
        free(before.t[HY_SAMPLE_SEEN].data);
        free_call(&call);
    }
}
END_TEST

START_TEST(a_sampled_row_has_the_same_bits_among_any_others) {
    hy_op_call call = random_call(&sample_shapes[_i], 1, 9);
    check_samples_alone(&call, run_call);
    free_call(&call);
}
END_TEST

/* 20,000 tokens of 60 against their probabilities: chi-square with 59 degrees of freedom is above
 * 110 once in 10,000 times. */
START_TEST(sampled_tokens_have_the_probabilities_of_the_model) {
    enum { ROWS = 2000, ROUNDS = 10, V = 60 };
    sample_rows s = {ROWS, V, 0, HY_F32, V, 1, 0, false};
    hy_op_call call = sample_call(&s, 1, 3);
    float *logits = call.t[HY_SAMPLE_LOGITS].data;
    double found[V] = {0}, sum = 0, chi = 0;
    for (int i = V; i < ROWS * V; i++) logits[i] = logits[i % V];
    for (int round = 0; round < ROUNDS; round++) {
        for (int row = 0; row < ROWS; row++) {
            sampling_at(&call, row)->temperature = 0.8f;
            sampling_at(&call, row)->seed = (uint64_t)(row % 7);
            sampling_at(&call, row)->position = (uint64_t)(round * ROWS + row);
        }
        run_call(&call);
        for (int row = 0; row < ROWS; row++) found[token_at(&call, row)]++;
    }
    for (int i = 0; i < V; i++) sum += exp((double)logits[i] / 0.8);
    for (int i = 0; i < V; i++) {
        double expected = ROWS * ROUNDS * exp((double)logits[i] / 0.8) / sum;
        chi += (found[i] - expected) * (found[i] - expected) / expected;
    }
    ck_assert_double_le(chi, 110);
    free_call(&call);
}
END_TEST

/* Of equal logits, the lowest ids are candidates. */
START_TEST(among_equal_logits_the_lowest_ids_are_first) {
    enum { ROWS = 400, V = 5120 };
    sample_rows s = {ROWS, V, 3, HY_F32, V, 1, 0, false};
    hy_op_call call = sample_call(&s, 0, 3); /* zeros of either sign */
    for (int64_t i = 0; i < ROWS * V; i++) {
        ((float *)call.t[HY_SAMPLE_LOGITS].data)[i] = i % 2 ? 0.0f : -0.0f;
    }
    for (int64_t row = 0; row < ROWS; row++) {
        hy_sampling *with = sampling_at(&call, row);
        with->temperature = row % 4 ? 1 : 0;
        with->top_k = row % 2 ? 10 : 0;
        with->top_p = row % 4 == 2 ? 0x1p-10f : 0; /* exactly five of 5,120 */
    }
    run_call(&call);
    bool has_token[10] = {false};
    for (int64_t row = 0; row < ROWS; row++) {
        int32_t limit = row % 4 == 0 ? 1 : row % 2 ? 10 : 5;
        ck_assert_int_lt(token_at(&call, row), limit);
        has_token[token_at(&call, row)] = true;
        for (int i = 0; i < 3; i++) {
            ck_assert_int_eq(((int32_t *)call.t[HY_SAMPLE_TOP_TOKENS].data)[row * 3 + i], i);
        }
    }
    for (int i = 0; i < 10; i++) ck_assert(has_token[i]);
    free_call(&call);
}
END_TEST

START_TEST(the_penalty_applies_to_tokens_seen_and_the_chosen_one_is_marked) {
    enum { V = 70 };
    sample_rows s = {2, V, 0, HY_F32, V, 1, 0, true};
    hy_op_call call = sample_call(&s, 0, 3);
    float *logits = call.t[HY_SAMPLE_LOGITS].data;
    uint32_t *seen = call.t[HY_SAMPLE_SEEN].data;
    logits[66] = 2, logits[3] = 1.5f; /* 2 / 1.6 is below 1.5 */
    for (int i = 0; i < V; i++) logits[V + i] = -3;
    logits[V + 5] = -1, logits[V + 65] = -1.5f; /* -1 * 1.6 is below -1.5 */
    seen[2] = 1u << 2, seen[3] = 1u << 5;
    for (int i = 0; i < 2; i++) sampling_at(&call, i)->penalty = 1.6f;
    run_call(&call);
    ck_assert_int_eq(token_at(&call, 0), 3);
    ck_assert_int_eq(token_at(&call, 1), 65);
    ck_assert_uint_eq(seen[0], 1u << 3);
    ck_assert_uint_eq(seen[2], 1u << 2);
    ck_assert_uint_eq(seen[3], 1u << 5);
    ck_assert_uint_eq(seen[5], 1u << 1);
    /* the log-probability is without penalty */
    ck_assert_double_lt(
        fabs((double)logprob_at(&call, 0) - (1.5 - log(exp(2.0) + exp(1.5) + V - 2))), 1e-5);
    free_call(&call);
}
END_TEST

/* Rows with NaN, with infinities, and without any number. */
START_TEST(logits_that_are_no_numbers_give_a_token_that_exists) {
    enum { ROWS = 12, V = 300 };
    sample_rows s = {ROWS, V, 4, HY_F32, 290, 1, 0, false};
    hy_op_call call = sample_call(&s, 1, 3);
    float *logits = call.t[HY_SAMPLE_LOGITS].data;
    for (int row = 0; row < ROWS; row++) {
        sampling_at(&call, row)->temperature = (float)(row % 3);
        sampling_at(&call, row)->top_p = row % 2 ? 0.9f : 0;
        for (int i = 0; row >= 3 && i < V; i++) {
            logits[row * V + i] = row < 6 ? NAN : row < 9 ? -INFINITY : logits[row * V + i];
        }
        if (row < 3) logits[row * V + 7 * row] = NAN;
        if (row >= 9) logits[row * V + 11] = INFINITY;
    }
    run_call(&call);
    for (int row = 0; row < ROWS; row++) {
        const int32_t *top = (int32_t *)call.t[HY_SAMPLE_TOP_TOKENS].data + row * 4;
        ck_assert(token_at(&call, row) >= 0 && token_at(&call, row) < 290);
        ck_assert(isnan(logprob_at(&call, row)));
        for (int i = 0; i < 4; i++) {
            ck_assert(top[i] >= 0 && top[i] < 290);
            for (int k = 0; k < i; k++) ck_assert_int_ne(top[i], top[k]);
        }
        if (row < 3) ck_assert_int_ne(token_at(&call, row), 7 * row);
        if (row >= 9) ck_assert_int_eq(token_at(&call, row), 11);
    }
    free_call(&call);
}
END_TEST

START_TEST(sampling_names_what_it_refuses) {
    sample_rows s = {3, 64, 20, HY_F32, 60, 1, 0, true};
    hy_op_call good = sample_call(&s, 1, 3), call = good;
    call.attr.sample.vocab = 65;
    must_fail(hy_op_check(&call), HY_ERR_INPUT, "vocab is 65, expected 1 to 64");
    call.attr.sample.vocab = 19;
    must_fail(hy_op_check(&call), HY_ERR_INPUT, "top_tokens has 20 columns, expected at most 19");
    call = good;
    call.t[HY_SAMPLE_TOP_LOGPROBS] = (hy_tensor){0};
    must_fail(hy_op_check(&call), HY_ERR_INPUT, "top_tokens and top_logprobs are needed together");
    call = good;
    call.t[HY_SAMPLE_SEEN].shape[1] = 1;
    must_fail(hy_op_check(&call), HY_ERR_INPUT, "seen has shape (3, 1), expected (rows, 2)");
    call = good;
    call.t[HY_SAMPLE_SAMPLING].shape[1] = 8;
    must_fail(hy_op_check(&call), HY_ERR_INPUT, "a row of sampling has 8 bytes");
    sampling_at(&good, 2)->forced = 60;
    must_fail(rig_try(&cpu, &good), HY_ERR_INPUT,
              "the forced token of row 2 is 60, expected below 60");
    free_call(&good);
}
END_TEST

/* ---- threads --------------------------------------------------------------------------------- */

/* Runs a copy of the call with `threads` threads; the tensors of the copy are to be freed. */
static hy_op_call run_with(const hy_op_call *call, int threads) {
    hy_op_call copy = *call;
    rig r = rig_create(threads);
    for (int i = 0; i < HY_OP_TENSORS; i++) copy.t[i] = copy_tensor(&call->t[i]);
    rig_run(&r, &copy);
    rig_destroy(&r);
    return copy;
}

static void same_with_any_threads(const hy_op_call *call) {
    hy_op_call one = run_with(call, 1);
    for (int threads = 2; threads < 8; threads += 3) {
        hy_op_call other = run_with(call, threads);
        for (int i = 0; i < HY_OP_TENSORS; i++) {
            if (!call->t[i].data) continue;
            ck_assert_mem_eq(one.t[i].data, other.t[i].data, hy_tensor_bytes(&call->t[i]));
        }
        free_call(&other);
    }
    free_call(&one);
}

START_TEST(decoding_gives_the_same_bits_with_any_number_of_threads) {
    trial matmul = invariant_trial(&invariant_cases[_i + 2], _i);
    trial attention = blocks_trial(&blocks_cases[_i + 1], _i);
    hy_op_call sample = random_call(&sample_shapes[_i], 1, 9);
    same_with_any_threads(&matmul.call);
    same_with_any_threads(&attention.call);
    same_with_any_threads(&sample);
    trial_end(&matmul);
    trial_end(&attention);
    free_call(&sample);
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
    tcase_add_test(all, a_batch_invariant_matmul_reads_stored_weights_as_their_cast);
    tcase_add_test(all, a_batch_invariant_matmul_refuses_what_it_cannot_do);
    tcase_add_test(all, rope_rotates_each_sequence_at_its_own_position);
    tcase_add_test(all, embeddings_are_at_the_position_of_each_sequence);
    tcase_add_test(all, positions_beyond_a_table_are_refused);
    tcase_add_test(all, attention_with_a_cache_in_blocks_agrees_with_the_reference);
    tcase_add_test(all, a_sequence_has_the_same_bits_among_any_others);
    tcase_add_test(all, a_prompt_has_the_same_bits_in_chunks_of_any_size);
    tcase_add_test(all, a_cache_in_blocks_names_what_is_wrong_with_it);
    tcase_add_loop_test(all, sampled_tokens_are_those_of_a_full_sort, 0, SAMPLE_SHAPES);
    tcase_add_loop_test(all, a_sampled_row_has_the_same_bits_among_any_others, 0, SAMPLE_SHAPES);
    tcase_add_test(all, sampled_tokens_have_the_probabilities_of_the_model);
    tcase_add_test(all, among_equal_logits_the_lowest_ids_are_first);
    tcase_add_test(all, the_penalty_applies_to_tokens_seen_and_the_chosen_one_is_marked);
    tcase_add_test(all, logits_that_are_no_numbers_give_a_token_that_exists);
    tcase_add_test(all, sampling_names_what_it_refuses);
    tcase_add_loop_test(all, decoding_gives_the_same_bits_with_any_number_of_threads, 0, 3);
    suite_add_tcase(suite, all);
    return suite;
}

HY_TEST_MAIN(make_suite)
