/* test_evaluate.c: a model's loss on data (--eval-only): every token once, with the weights that
 * were exported. */
#include <math.h>

#include "base/rng.h"
#include "infer/inference.h"
#include "small_run.h"

enum { SEQ = 24, TEXT = 24 * 9 + 1 + 13 }; /* nine whole windows, and a rest of 13 targets */

static char folder[256], run[300], text[TEXT + 1], text_path[300];
static hy_summary summary;

static void path_of(const char *name, char path[300]) {
    snprintf(path, 300, "%s/%s", folder, name);
}

/* A run that averages its weights over its second half, in steps large enough for that to
 * differ. */
static void make_run(void) {
    temp_folder(folder);
    path_of("run", run);
    path_of("text.txt", text_path);
    for (size_t i = 0; i < TEXT; i++) text[i] = (char)('a' + hy_rng_u64(5, HY_RNG_GRAMMAR, i) % 26);
    must(hy_file_write_atomic(text_path, text, TEXT));
    hy_config *config =
        small_run(SMALL_RUN, run,
                  PAIRS("predictor", "none", "tail_share", "0.5", "lr", "0.02", "precision", "fp32",
                        "val_data", text_path, "seq_len", "24", "eval_batches", "0"));
    hy_trainer *t;
    must(hy_trainer_create(config, NULL, &t));
    must(hy_trainer_run(t));
    hy_trainer_summary(t, &summary);
    hy_trainer_destroy(t);
    hy_config_destroy(config);
}

static void drop_run(void) { remove_folder(folder); }

static hy_evaluation evaluate(const char *model, const char *data, const char *batches) {
    hy_config *config;
    hy_evaluation found;
    must(hy_config_create(&config));
    must(hy_config_use_model(config, model));
    must(hy_config_set(config, "data", data, HY_FROM_CALLER));
    must(hy_config_set(config, "seq_len", "24", HY_FROM_CALLER));
    must(hy_config_set(config, "device", "cpu", HY_FROM_CALLER));
    must(hy_config_set(config, "precision", "fp32", HY_FROM_CALLER));
    if (batches) must(hy_config_set(config, "eval_batches", batches, HY_FROM_CALLER));
    must(hy_evaluate(config, NULL, &found));
    hy_config_destroy(config);
    return found;
}

/* The rows of a chunk of the mlps if the device has so much memory; 0: whole mlps. */
static int32_t mlp_rows_within(const char *memory) {
    char from[HY_PATH_MAX];
    hy_config *config;
    hy_used_model *m;
    hy_batch_plan *plan;
    must(hy_config_create(&config));
    must(hy_config_use_model(config, run));
    const char *const pairs[][2] = {{"data", text_path}, {"seq_len", "24"},
                                    {"device", "cpu"},   {"eval_batch_size", "256"},
                                    {"mlp_chunks", "0"}, {"max_gpu_mem", memory}};
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++)
        must(hy_config_set(config, pairs[i][0], pairs[i][1], HY_FROM_CALLER));
    must(hy_model_open(config, NULL, &m));
    must(hy_model_prepare(m, 0, &plan, from));
    int32_t rows = plan->size.tile_rows[HY_RANGE_MLP];
    hy_model_close(m);
    hy_config_destroy(config);
    return rows;
}

START_TEST(mlps_are_evaluated_in_chunks_where_whole_ones_leave_no_room) {
    ck_assert_int_eq(mlp_rows_within("10GiB"), 0);
    ck_assert_int_eq(mlp_rows_within("8MiB"), 2048);
}
END_TEST

/* The slow way: each window alone, in a separate file. */
static double sum_of_windows(const char *model, int64_t *tokens) {
    double sum = 0;
    *tokens = 0;
    for (int first = 0; first < TEXT - 1; first += SEQ) {
        char path[300];
        int left = TEXT - first, size = left < SEQ + 1 ? left : SEQ + 1;
        path_of("window.txt", path);
        must(hy_file_write_atomic(path, text + first, (size_t)size));
        hy_evaluation e = evaluate(model, path, NULL);
        ck_assert_int_eq(e.tokens, size - 1);
        sum += e.loss * (double)e.tokens;
        *tokens += e.tokens;
    }
    return sum;
}

START_TEST(every_token_of_a_text_counts_once_and_the_same) {
    int64_t tokens;
    double sum = sum_of_windows(run, &tokens);
    hy_evaluation all = evaluate(run, text_path, NULL);
    ck_assert_int_eq(all.tokens, TEXT - 1);
    ck_assert_int_eq(tokens, TEXT - 1);
    ck_assert_int_eq(all.sequences, 10);
    ck_assert_double_eq_tol(all.loss, sum / (double)tokens, 1e-6);
    ck_assert_double_eq_tol(all.bits_per_byte, all.loss / log(2), 1e-12);
}
END_TEST

START_TEST(eval_batches_bounds_what_is_looked_at) {
    char path[300];
    hy_evaluation two = evaluate(run, text_path, "2"); /* of 4 sequences each */
    ck_assert_int_eq(two.sequences, 8);
    ck_assert_int_eq(two.tokens, 8 * SEQ);
    path_of("begin.txt", path);
    must(hy_file_write_atomic(path, text, 8 * SEQ + 1));
    ck_assert_double_eq_tol(two.loss, evaluate(run, path, NULL).loss, 1e-9);
    ck_assert_int_eq(evaluate(run, text_path, "0").tokens, TEXT - 1);
}
END_TEST

/* The run's own loss was of whole windows. */
START_TEST(a_run_is_evaluated_with_the_weights_that_it_exported) {
    char exported[320], whole[300];
    snprintf(exported, sizeof exported, "%s/model", run);
    path_of("whole.txt", whole);
    must(hy_file_write_atomic(whole, text, 9 * SEQ + 1));
    hy_evaluation of_run = evaluate(run, whole, NULL), of_model = evaluate(exported, whole, NULL);
    ck_assert_double_eq_tol(of_run.loss, of_model.loss, 1e-6);
    ck_assert_double_eq_tol(of_run.loss, summary.val_loss, 1e-5);
    ck_assert(fabs(summary.val_loss - summary.raw_val_loss) >
              1e-3); /* else it would prove nothing */
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("evaluate");
    TCase *cases = tcase_create("evaluate");
    tcase_add_unchecked_fixture(cases, make_run, drop_run);
    tcase_add_test(cases, mlps_are_evaluated_in_chunks_where_whole_ones_leave_no_room);
    tcase_add_test(cases, every_token_of_a_text_counts_once_and_the_same);
    tcase_add_test(cases, eval_batches_bounds_what_is_looked_at);
    tcase_add_test(cases, a_run_is_evaluated_with_the_weights_that_it_exported);
    suite_add_tcase(suite, cases);
    return suite;
}

HY_TEST_MAIN(make_suite)
