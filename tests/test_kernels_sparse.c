/* test_kernels_sparse.c: block-sparse attention against the double-precision reference, and against
 * full attention, documents and windows where they are the same. */
#include "kernels/cpu/blas.h"
#include "kernels/ops.h"
#include "sparse_calls.h"

static rig cpu;

static void load(void) { hy_blas_get(); }
static void set_up(void) { cpu = rig_create(2); }
static void tear_down(void) { rig_destroy(&cpu); }
static void run_both(trial *t) { rig_run_both(&cpu, t); }
static void run_call(const hy_op_call *call) { rig_run(&cpu, call); }

/* ---- the pattern ----------------------------------------------------------------------------- */

/* As the reference says it. */
static bool sees(int local, int global, int document, int i, int j) {
    hy_op_call call = {.attr.heads = {.sparse_local = local, .sparse_global = global}};
    return reference_sees(&call, document, i, j);
}

START_TEST(a_gap_is_what_a_query_does_not_see) {
    for (int local = 1; local < 4; local++) {
        for (int n = 0; n < 4 * 3 * 500; n++) {
            int global = n % 4, document = n / 4 % 3 * 37, i = document + n / 12;
            hy_gap gap = hy_sparse_gap(local, global, document, i);
            for (int j = document; j <= i; j++) {
                bool is_in_gap = j >= gap.begin && j < gap.end;
                ck_assert_msg(is_in_gap != sees(local, global, document, i, j),
                              "local %d global %d document %d: query %d, key %d", local, global,
                              document, i, j);
            }
        }
    }
}
END_TEST

START_TEST(pairs_are_counted) {
    for (int local = 1; local < 4; local++) {
        for (int global = 0; global < 4; global++) {
            hy_heads_attr a = {.sparse_local = local, .sparse_global = global};
            int64_t pairs = 0;
            for (int i = 0; i < 700; i++) {
                ck_assert_int_eq(hy_attention_pairs(&a, i), pairs);
                for (int j = 0; j <= i; j++) pairs += sees(local, global, 0, i, j);
            }
        }
    }
}
END_TEST

/* The tiles of keys that the kernels of a GPU go through, for tiles of queries of `own` rows: once
 * each, all of which a query sees a key, and without documents no others. */
static void check_tiles(int own, int tile, int local, int global, int document, int T) {
    for (int query = 0; query < T; query += own) {
        int after = query + own < T ? query + own : T, seen[64] = {0}, visits[64] = {0};
        hy_gap gap = hy_sparse_gap(local, global, query < document ? 0 : document, query);
        for (int i = query; i < after; i++) {
            int of = i < document ? 0 : document;
            if (of < query) gap = hy_gap_join(gap, hy_sparse_gap(local, global, of, i));
            for (int j = 0; j <= i; j++) seen[j / tile] += sees(local, global, of, i, j);
        }
        if ((query < document ? 0 : document) == query) gap.end = gap.begin;
        hy_left_out out = hy_left_out_of(gap, tile);
        int low = (query >= document ? document : 0) / tile, high = (after - 1) / tile;
        for (int n = low; n <= high - out.count; n++) visits[hy_tile_behind(out, n)]++;
        for (int t = 0; t <= high; t++) {
            ck_assert_int_le(visits[t], 1);
            ck_assert(seen[t] == 0 || visits[t] == 1);
            ck_assert(document > 0 || seen[t] > 0 || visits[t] == 0);
        }
    }
}

START_TEST(tiles_of_keys_are_those_that_are_seen) {
    static const int shapes[][2] = {{128, 64}, {128, 32}, {64, 32}, {64, 16}, {32, 16}, {64, 64}};
    for (int i = 0; i < 6 * 3 * 4 * 3; i++) {
        static const int documents[] = {0, 70, 395};
        check_tiles(shapes[i % 6][0], shapes[i % 6][1], 1 + i / 6 % 3, i / 18 % 4,
                    documents[i / 72], 1000);
    }
}
END_TEST

START_TEST(the_last_query_is_the_last_that_sees_a_key) {
    enum { T = 700 };
    for (int n = 0; n < 3 * 4 * 2; n++) {
        int local = 1 + n % 3, global = n / 3 % 4, document = n / 12 * 45;
        for (int j = document; j < T; j++) {
            int last = j;
            for (int i = j; i < T; i++) {
                if (sees(local, global, document, i, j)) last = i;
            }
            ck_assert_int_eq(hy_sparse_last_query(local, global, document, j, T), last);
        }
    }
}
END_TEST

/* ---- passes ---------------------------------------------------------------------------------- */

EACH_MIXTURE(sparse_attention_agrees_with_the_reference, 0, MIXTURES) {
    for (int i = 0; i < SPARSE_CASES; i++) check_sparse(&sparse_cases[i], mixture, 0, run_both);
}

EACH_MIXTURE(sparse_attention_with_options_agrees_with_the_reference, 0, PURE_TYPES) {
    for (int i = 0; i < SPARSE_CASES; i++) {
        check_sparse(&sparse_cases[i], mixture, 1 + i % ATTENTION_VARIANTS, run_both);
    }
}

EACH_MIXTURE(blocks_that_cover_everything_are_full_attention, 0, PURE_TYPES) {
    static const heads_case cases[] = {{1, 200, 4, 2, 24, 0, false}, {2, 129, 2, 2, 64, 0, true}};
    for (int i = 0; i < 2; i++) check_sparse_is_another(&cases[i], mixture, run_call);
}

/* Documents of 64 tokens, and one local block. */
EACH_MIXTURE(one_block_alone_is_a_document_of_64_tokens, 0, PURE_TYPES) {
    heads_case h = {1, 330, 4, 2, 24, 0, true};
    trial f = attention_trial(&h, mixture), b = attention_bwd_trial(&h, mixture);
    hy_op_call sparse = f.call, back = b.call;
    for (int i = 0; i < 330; i++) {
        trial_put(&f, HY_ATTENTION_DOC_STARTS, i, i / 64 * 64);
        trial_put(&b, HY_ATTENTION_BWD_DOC_STARTS, i, i / 64 * 64);
    }
    sparse.attr.heads.sparse_local = back.attr.heads.sparse_local = 1;
    sparse.t[HY_ATTENTION_DOC_STARTS] = back.t[HY_ATTENTION_BWD_DOC_STARTS] = (hy_tensor){0};
    check_same_bits(&f.call, &sparse, HY_ATTENTION_OUT, run_call);
    check_same_bits(&f.call, &sparse, HY_ATTENTION_LSE, run_call);
    check_same_bits(&b.call, &back, HY_ATTENTION_BWD_DQKV, run_call);
    trial_end(&f);
    trial_end(&b);
}

/* The last token of a block sees as many tokens as a window of its local blocks. */
EACH_MIXTURE(the_last_token_of_a_block_sees_a_window, 0, PURE_TYPES) {
    heads_case h = {1, 640, 2, 1, 32, 128, false};
    trial windows = attention_trial(&h, mixture);
    rig_run_both(&cpu, &windows);
    windows.call.attr.heads.window = 0;
    windows.call.attr.heads.sparse_local = 2;
    hy_tensor *out = &windows.call.t[HY_ATTENTION_OUT];
    memset(out->data, 0, hy_tensor_bytes(out));
    run_call(&windows.call);
    double worst = 0, before = 0;
    for (int i = 63; i < 640; i += 64) {
        for (int d = 0; d < 64; d++) {
            const double *exact = windows.exact.t[HY_ATTENTION_OUT].data;
            worst = fmax(worst, fabs(real_at(out, i * 64 + d) - exact[i * 64 + d]));
            if (i > 128) {
                int64_t at = (i - 1) * 64 + d; /* sees two tokens less */
                before = fmax(before, fabs(real_at(out, at) - exact[at]));
            }
        }
    }
    ck_assert_double_lt(worst, 6 * tolerance_of(out->dtype));
    ck_assert_double_gt(before, 6 * tolerance_of(out->dtype));
    trial_end(&windows);
}

/* Document starts do not have to be at blocks of the sequence. */
START_TEST(a_document_has_its_pattern_wherever_it_begins) {
    enum { LONG = 500, DOCUMENT = 300, WIDTH = 8 * 16 };
    heads_with.sparse_local = heads_with.sparse_global = 1;
    heads_case packed = {1, LONG, 4, 2, 16, 0, true}, alone = {1, DOCUMENT, 4, 2, 16, 0, false};
    trial all = attention_trial(&packed, 0), one = attention_trial(&alone, 0);
    int starts[] = {0, 64, 101, 200};
    for (int s = 0; s < 4; s++) {
        for (int i = 0; i < LONG; i++) {
            bool is_before = i < starts[s], is_after = i >= starts[s] + DOCUMENT;
            trial_put(&all, HY_ATTENTION_DOC_STARTS, i,
                      is_before  ? 0
                      : is_after ? starts[s] + DOCUMENT
                                 : starts[s]);
        }
        for (int i = 0; i < DOCUMENT * WIDTH; i++) {
            trial_put(&all, HY_ATTENTION_QKV, starts[s] * WIDTH + i,
                      real_at(&one.call.t[HY_ATTENTION_QKV], i));
        }
        run_call(&one.call);
        run_call(&all.call);
        const float *mine = one.call.t[HY_ATTENTION_OUT].data;
        const float *other = (float *)all.call.t[HY_ATTENTION_OUT].data + starts[s] * 64;
        for (int i = 0; i < DOCUMENT * 64; i++) {
            ck_assert_double_lt(fabs((double)mine[i] - (double)other[i]), 1e-5);
        }
    }
    clear_options();
    trial_end(&all);
    trial_end(&one);
}
END_TEST

START_TEST(sparse_attention_has_the_same_bits_with_any_number_of_threads) {
    for (int i = 1; i < 4; i++) {
        set_sparse(&sparse_cases[i]);
        trial t = attention_bwd_trial(&sparse_cases[i].heads, 0);
        hy_op_call calls[2] = {t.call, t.call};
        for (int k = 0; k < 2; k++) {
            rig r = rig_create(1 + 2 * k);
            calls[k].t[HY_ATTENTION_BWD_DQKV] = copy_tensor(&t.call.t[HY_ATTENTION_BWD_DQKV]);
            rig_run(&r, &calls[k]);
            rig_destroy(&r);
        }
        hy_tensor *one = &calls[0].t[HY_ATTENTION_BWD_DQKV];
        ck_assert_mem_eq(one->data, calls[1].t[HY_ATTENTION_BWD_DQKV].data, hy_tensor_bytes(one));
        for (int k = 0; k < 2; k++) free(calls[k].t[HY_ATTENTION_BWD_DQKV].data);
        trial_end(&t);
        clear_options();
    }
}
END_TEST

START_TEST(sparse_attention_names_what_it_refuses) {
    set_sparse(&sparse_cases[0]);
    trial t = attention_trial(&sparse_cases[0].heads, 0);
    t.call.attr.heads.window = 9;
    must_fail(hy_op_check(&t.call), HY_ERR_INPUT, "cannot be combined with a window of 9");
    t.call.attr.heads.window = 0;
    t.call.attr.heads.sparse_global = -1;
    must_fail(hy_op_check(&t.call), HY_ERR_INPUT, "1 local and -1 global blocks, expected 0 to");
    clear_options();
    trial_end(&t);
}
END_TEST

/* ---- with a cache ---------------------------------------------------------------------------- */

/* Blocks of the cache that only the gap would need do not exist. */
EACH_MIXTURE(sparse_attention_with_a_cache_agrees_with_the_reference, 0, MIXTURES) {
    for (int i = 0; i < SPARSE_BLOCKS_CASES * SPARSE_PATTERNS; i++) {
        const blocks_case *k = &sparse_blocks_cases[i / SPARSE_PATTERNS];
        trial t = sparse_blocks_trial(k, mixture, i % SPARSE_PATTERNS);
        rig_run_both(&cpu, &t);
        forget_idle(&t, HY_ATTENTION_CACHED_OUT, t.call.t[HY_ATTENTION_CACHED_FIRST].data,
                    k->heads.T);
        trial_check(&t, HY_ATTENTION_CACHED_OUT, 1);
        trial_end(&t);
    }
}

EACH_MIXTURE(a_sparse_sequence_has_the_same_bits_among_any_others, 0, PURE_TYPES) {
    for (int i = 0; i < SPARSE_BLOCKS_CASES; i++) {
        trial t = sparse_blocks_trial(&sparse_blocks_cases[i], mixture, i % SPARSE_PATTERNS);
        check_sequences_alone(&t.call, run_call);
        trial_end(&t);
    }
}

EACH_MIXTURE(a_sparse_prompt_has_the_same_bits_in_chunks_of_any_size, 0, PURE_TYPES) {
    static const blocks_case k = {{1, 300, 6, 2, 24, 0, false}, 32, 290};
    static const int32_t chunks[] = {1, 7, 64, 100};
    for (int i = 0; i < 4 * SPARSE_PATTERNS; i++) {
        trial t = sparse_blocks_trial(&k, mixture, i / 4);
        check_chunks(&t.call, chunks[i % 4], run_call);
        trial_end(&t);
    }
}

static Suite *make_suite(void) {
    Suite *suite = suite_create("kernels: block-sparse attention");
    TCase *all = tcase_create("block-sparse attention");
    tcase_set_timeout(all, 120);
    tcase_add_unchecked_fixture(all, load, NULL);
    tcase_add_checked_fixture(all, set_up, tear_down);
    tcase_add_test(all, a_gap_is_what_a_query_does_not_see);
    tcase_add_test(all, pairs_are_counted);
    tcase_add_test(all, tiles_of_keys_are_those_that_are_seen);
    tcase_add_test(all, the_last_query_is_the_last_that_sees_a_key);
    tcase_add_test(all, sparse_attention_agrees_with_the_reference);
    tcase_add_test(all, sparse_attention_with_options_agrees_with_the_reference);
    tcase_add_test(all, blocks_that_cover_everything_are_full_attention);
    tcase_add_test(all, one_block_alone_is_a_document_of_64_tokens);
    tcase_add_test(all, the_last_token_of_a_block_sees_a_window);
    tcase_add_test(all, a_document_has_its_pattern_wherever_it_begins);
    tcase_add_test(all, sparse_attention_has_the_same_bits_with_any_number_of_threads);
    tcase_add_test(all, sparse_attention_names_what_it_refuses);
    tcase_add_test(all, sparse_attention_with_a_cache_agrees_with_the_reference);
    tcase_add_test(all, a_sparse_sequence_has_the_same_bits_among_any_others);
    tcase_add_test(all, a_sparse_prompt_has_the_same_bits_in_chunks_of_any_size);
    suite_add_tcase(suite, all);
    return suite;
}

HY_TEST_MAIN(make_suite)
