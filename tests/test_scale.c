/* test_scale.c: the weights of a run, scaled away from those that it began with: in a trainer, and in
 * what is exported. */
#include <math.h>

#include "small_run.h"

#define PLAIN SMALL_RUN "predictor none "

/* A base run of a few steps in `base`, and a run in `out` that begins with it. The losses of both
 * ends. */
static void make_runs(const char *words, const char *base, const char *out, const char *const *with,
                      double ends[2]) {
    double losses[10];
    char from[1100];
    hy_eval_info info;
    hy_trainer *t = small_trainer(PLAIN, base, NULL, NULL);
    next_losses(t, 6, losses);
    must(hy_trainer_save(t));
    hy_trainer_destroy(t);
    snprintf(from, sizeof from, "%s init_from %s", words, base);
    t = small_trainer(from, out, NULL, with);
    must(hy_trainer_evaluate(t, &info));
    ends[0] = info.loss;
    next_losses(t, 10, losses);
    must(hy_trainer_evaluate(t, &info));
    ends[1] = info.loss;
    must(hy_trainer_save(t));
    hy_trainer_destroy(t);
}

static double loss_at(hy_trainer *t, double scale) {
    hy_eval_info info;
    must(hy_trainer_scale(t, scale));
    must(hy_trainer_evaluate(t, &info));
    return info.loss;
}

/* Opens the run of `folder` as it was configured. */
static hy_trainer *reopen(const char *folder) {
    hy_config *config;
    hy_trainer *t;
    must(hy_config_create(&config));
    must(hy_config_load_run(config, folder));
    must(hy_config_set(config, "resume", folder, HY_FROM_CALLER));
    must(hy_config_set(config, "out", "none", HY_FROM_CALLER));
    must(hy_trainer_create(config, NULL, &t));
    hy_config_destroy(config);
    return t;
}

static double loss_of(const char *model) {
    hy_config *config = small_run(PLAIN, "none", PAIRS("model", model));
    hy_evaluation found;
    must(hy_evaluate(config, NULL, &found));
    hy_config_destroy(config);
    return found.loss;
}

static const char *const *const kinds[] = {
    NULL,
    PAIRS("lora", "true", "lora_rank", "4"),
    PAIRS("lora", "true", "lora_rank", "4", "lora_modules", "embed"),
    PAIRS("precision", "bf16"),
};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

START_TEST(zero_is_the_beginning_and_one_the_end) {
    char base[256], out[256];
    double ends[2];
    temp_folder(base);
    temp_folder(out);
    make_runs(PLAIN, base, out, kinds[_i], ends);
    hy_trainer *t = reopen(out);
    ck_assert_double_eq(loss_at(t, 1), ends[1]);
    double further = loss_at(t, 2);
    ck_assert(fabs(further - ends[1]) > 1e-4);
    ck_assert_double_eq(loss_at(t, 0), ends[0]);
    ck_assert_double_eq(loss_at(t, 2), further); /* does not depend on the scales before */
    ck_assert_double_eq(loss_at(t, 1), ends[1]);
    must_fail(hy_trainer_step(t, NULL), HY_ERR_STATE, "were scaled");
    must_fail(hy_trainer_save(t), HY_ERR_STATE, "were scaled");
    must_fail(hy_trainer_run(t), HY_ERR_STATE, "were scaled");
    must_fail(hy_trainer_scale(t, NAN), HY_ERR_INPUT, "from 0 to 100");
    must_fail(hy_trainer_scale(t, -1), HY_ERR_INPUT, "from 0 to 100");
    hy_trainer_destroy(t);
    remove_folder(base);
    remove_folder(out);
}
END_TEST

/* The run that it began with has gone on since. */
START_TEST(the_beginning_is_what_it_was) {
    char base[256], out[256], words[1100];
    double ends[2], losses[3];
    temp_folder(base);
    temp_folder(out);
    make_runs(PLAIN, base, out, NULL, ends);
    snprintf(words, sizeof words, "%s resume auto", PLAIN);
    hy_trainer *t = small_trainer(words, base, NULL, NULL);
    next_losses(t, 3, losses);
    must(hy_trainer_save(t));
    hy_trainer_destroy(t);
    t = reopen(out);
    ck_assert_double_eq(loss_at(t, 0), ends[0]);
    hy_trainer_destroy(t);
    remove_folder(base);
    t = reopen(out);
    must_fail(hy_trainer_scale(t, 2), HY_ERR_INPUT, "which is not there any more");
    hy_trainer_destroy(t);
    remove_folder(out);
}
END_TEST

/* The average of the last steps is what a run delivers. */
START_TEST(an_average_is_scaled) {
    char base[256], out[256];
    double ends[2];
    temp_folder(base);
    temp_folder(out);
    make_runs(SMALL_RUN "predictor outer tail_share 0.9 ", base, out, NULL, ends);
    hy_trainer *t = reopen(out);
    ck_assert_double_eq_tol(loss_at(t, 1), ends[1], 1e-6);
    ck_assert_double_eq_tol(loss_at(t, 0), ends[0], 1e-6);
    hy_trainer_destroy(t);
    remove_folder(base);
    remove_folder(out);
}
END_TEST

/* ---- exports --------------------------------------------------------------------------------- */

START_TEST(an_export_has_the_scaled_weights) {
    char base[256], out[256], model[512];
    double ends[2];
    temp_folder(base);
    temp_folder(out);
    make_runs(PLAIN, base, out, kinds[_i], ends);
    snprintf(model, sizeof model, "%s/exported", out);
    hy_export_options options = {
        .out = model, .scale = 2.5, .merge = _i == 1 || _i == 2, .dtype = "fp32"};
    must(hy_export(out, &options, NULL));
    hy_trainer *t = reopen(out);
    ck_assert_double_eq_tol(loss_of(model), loss_at(t, 2.5), _i == 3 ? 2e-3 : 2e-6);
    hy_trainer_destroy(t);
    remove_folder(base);
    remove_folder(out);
}
END_TEST

/* ---- refusals -------------------------------------------------------------------------------- */

START_TEST(what_has_no_beginning_is_refused) {
    char base[256], out[256], model[512];
    double ends[2];
    temp_folder(base);
    temp_folder(out);
    make_runs(PLAIN, base, out, PAIRS("lora", "true"), ends);
    snprintf(model, sizeof model, "%s/exported", out);
    hy_export_options options = {.out = model, .scale = 2};
    must_fail(hy_export(base, &options, NULL), HY_ERR_INPUT, "began with random weights");
    hy_trainer *t = reopen(base);
    must_fail(hy_trainer_scale(t, 2), HY_ERR_INPUT, "began with random weights");
    ck_assert(isfinite(loss_at(t, 1))); /* needs no beginning */
    hy_trainer_destroy(t);
    t = small_trainer(PLAIN, "none", NULL, NULL);
    must_fail(hy_trainer_scale(t, 2), HY_ERR_STATE, "resumed from a checkpoint");
    hy_trainer_destroy(t);
    options.scale = 101;
    must_fail(hy_export(out, &options, NULL), HY_ERR_INPUT, "from 0 to 100");
    options.scale = 1; /* a model folder is exported as it is, but has no beginning */
    options.merge = true;
    must(hy_export(out, &options, NULL));
    snprintf(model, sizeof model, "%s/again", out);
    hy_export_options again = {.out = model, .scale = 2};
    char folder[512];
    snprintf(folder, sizeof folder, "%s/exported", out);
    must_fail(hy_export(folder, &again, NULL), HY_ERR_INPUT, "what it began with is not known");
    remove_folder(base);
    remove_folder(out);
}
END_TEST

/* Both matrices of such adapters changed. */
START_TEST(adapters_that_began_with_others_are_refused) {
    char first[256], out[256], from[1100];
    double losses[4];
    temp_folder(first);
    temp_folder(out);
    hy_trainer *t = small_trainer(PLAIN, first, NULL, PAIRS("lora", "true"));
    next_losses(t, 4, losses);
    must(hy_trainer_save(t));
    hy_trainer_destroy(t);
    snprintf(from, sizeof from, "%s init_from %s", PLAIN, first);
    t = small_trainer(from, out, NULL, PAIRS("lora", "true"));
    next_losses(t, 4, losses);
    must(hy_trainer_save(t));
    hy_trainer_destroy(t);
    t = reopen(out);
    must_fail(hy_trainer_scale(t, 2), HY_ERR_INPUT, "began with the adapters of");
    hy_trainer_destroy(t);
    remove_folder(first);
    remove_folder(out);
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("scale");
    TCase *cases = tcase_create("scale");
    tcase_set_timeout(cases, 120);
    tcase_add_loop_test(cases, zero_is_the_beginning_and_one_the_end, 0, KINDS);
    tcase_add_test(cases, the_beginning_is_what_it_was);
    tcase_add_test(cases, an_average_is_scaled);
    tcase_add_loop_test(cases, an_export_has_the_scaled_weights, 0, KINDS);
    tcase_add_test(cases, what_has_no_beginning_is_refused);
    tcase_add_test(cases, adapters_that_began_with_others_are_refused);
    suite_add_tcase(suite, cases);
    return suite;
}

HY_TEST_MAIN(make_suite)
