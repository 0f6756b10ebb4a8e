/* test_trainer_sparse.c: runs with block-sparse attention: what they keep, and what they refuse. */
#include "small_run.h"

#include "base/file.h"
#include "config/derived.h"
#include "config/settings.h"
#include "hub/hf_export.h"
#include "model/arch/arch.h"

#define LONG_RUN SMALL_RUN "seq_len 300 context 300 batch_size 1 predictor none kv_heads 2 "
#define SPARSE LONG_RUN "attention_type sparse sparse_local 2 "

enum { STEPS = 8 };

static void losses_of(const char *words, const char *const *pairs, double *losses) {
    hy_trainer *t = small_trainer(words, "none", NULL, pairs);
    next_losses(t, STEPS, losses);
    hy_trainer_destroy(t);
}

static bool are_equal(const double *a, const double *b) {
    return memcmp(a, b, STEPS * sizeof *a) == 0;
}

START_TEST(a_sparse_run_resumes_to_the_same_bits) { check_resume(SPARSE, NULL, NULL, 5, 6); }
END_TEST

START_TEST(threads_and_recomputation_change_no_bit_of_a_sparse_run) {
    double once[STEPS], again[STEPS];
    losses_of(SPARSE, NULL, once);
    losses_of(SPARSE, PAIRS("threads", "1", "recompute", "all"), again);
    ck_assert(are_equal(once, again));
    ck_assert_double_lt(again[STEPS - 1], again[0]);
}
END_TEST

START_TEST(blocks_that_cover_a_sequence_train_as_full_attention) {
    double full[STEPS], sparse[STEPS];
    losses_of(LONG_RUN, NULL, full);
    losses_of(SPARSE, NULL, sparse);
    ck_assert(!are_equal(full, sparse));
    losses_of(SPARSE, PAIRS("sparse_local", "4"), sparse); /* and one global block */
    ck_assert(are_equal(full, sparse));
    losses_of(SPARSE, PAIRS("sliding_layers", "ff"), sparse);
    ck_assert(are_equal(full, sparse));
}
END_TEST

static double evaluate(const char *out, const char *const *pairs) {
    char model[300];
    hy_config *config = small_run(LONG_RUN, "none", pairs);
    hy_trainer *t;
    hy_eval_info info;
    snprintf(model, sizeof model, "%s/checkpoint-12", out);
    must(hy_config_set(config, "init_from", model, HY_FROM_CALLER));
    must(hy_trainer_create(config, NULL, &t));
    must(hy_trainer_evaluate(t, &info));
    hy_trainer_destroy(t);
    hy_config_destroy(config);
    return info.loss;
}

/* The folder of a run has the blocks; a model folder could not say so. */
START_TEST(a_finished_run_keeps_its_blocks_and_is_not_exported) {
    char out[256], path[300];
    hy_config *config;
    hy_shape shape;
    temp_folder(out);
    hy_trainer *t = small_trainer(SPARSE, out, NULL, PAIRS("sliding_layers", "sf"));
    must(hy_trainer_run(t));
    hy_trainer_destroy(t);
    snprintf(path, sizeof path, "%s/model", out);
    ck_assert(!hy_path_exists(path));
    must(hy_config_create(&config));
    must(hy_config_use_model(config, out));
    must(hy_shape_from_settings(hy_config_settings(config), &shape));
    ck_assert_int_eq(shape.sparse_local, 2);
    ck_assert_int_eq(shape.sparse_global, 1);
    ck_assert(hy_shape_is_sparse(&shape, 0) && !hy_shape_is_sparse(&shape, 1));
    hy_config_destroy(config);
    hy_export_options options = {.out = path};
    must_fail(hy_export(out, &options, NULL), HY_ERR_INPUT,
              "no architecture of transformers has block-sparse attention");
    options.gguf = path;
    options.out = NULL;
    must_fail(hy_export(out, &options, NULL), HY_ERR_INPUT, "block-sparse attention");
    /* the same weights with other attention are another model */
    const char *const *sparse =
        PAIRS("attention_type", "sparse", "sparse_local", "2", "sliding_layers", "sf");
    ck_assert_double_ne(evaluate(out, sparse), evaluate(out, NULL));
    remove_folder(out);
}
END_TEST

static void set(hy_config *config, const char *key, const char *value) {
    must(hy_config_set(config, key, value, HY_FROM_CALLER));
}

START_TEST(a_family_keeps_its_layers_and_a_window_is_refused) {
    hy_config *config;
    hy_shape shape;
    must(hy_config_create(&config));
    set(config, "architecture", "gemma2");
    set(config, "attention_type", "sparse");
    must(hy_shape_from_settings(hy_config_settings(config), &shape));
    ck_assert_int_eq(shape.arch, HY_ARCH_GEMMA2);
    must_fail(hy_arch_check(&shape), HY_ERR_INPUT, "block-sparse attention");
    set(config, "sliding_window", "32");
    must_fail(hy_shape_from_settings(hy_config_settings(config), &shape), HY_ERR_INPUT,
              "attention_type is sparse, but shape.sliding_window is 32");
    set(config, "sliding_window", "0");
    set(config, "qk_norm", "true"); /* which Gemma 2 has not */
    must_fail(hy_shape_from_settings(hy_config_settings(config), &shape), HY_ERR_INPUT, "qk-norm");
    hy_config_destroy(config);
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("trainer: block-sparse attention");
    TCase *all = tcase_create("block-sparse attention");
    tcase_set_timeout(all, 120);
    tcase_add_test(all, a_sparse_run_resumes_to_the_same_bits);
    tcase_add_test(all, threads_and_recomputation_change_no_bit_of_a_sparse_run);
    tcase_add_test(all, blocks_that_cover_a_sequence_train_as_full_attention);
    tcase_add_test(all, a_finished_run_keeps_its_blocks_and_is_not_exported);
    tcase_add_test(all, a_family_keeps_its_layers_and_a_window_is_refused);
    suite_add_tcase(suite, all);
    return suite;
}

HY_TEST_MAIN(make_suite)
