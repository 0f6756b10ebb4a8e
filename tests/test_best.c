/* test_best.c: validations of a run: when and on how much, the best checkpoint, and early
 * stopping. */
#include <math.h>
#include <unistd.h>

#include "base/rng.h"
#include "formats/checkpoint.h"
#include "run_facts.h"
#include "small_run.h"

static char folder[256], train_path[300], val_path[300];

static void write_words(const char *name, uint64_t seed, size_t size, char path[300]) {
    char text[4096];
    ck_assert_uint_le(size, sizeof text);
    for (size_t i = 0; i < size; i++) {
        text[i] = (char)('a' + hy_rng_u64(seed, HY_RNG_GRAMMAR, i) % 8);
    }
    snprintf(path, 300, "%s/%s", folder, name);
    must(hy_file_write_atomic(path, text, size));
}

/* A text so short that it is soon known by heart, and another one held out: its loss falls, then
 * rises. */
static void make_data(void) {
    temp_folder(folder);
    write_words("train.txt", 1, 400, train_path);
    write_words("val.txt", 2, 2000, val_path);
}
static void drop_data(void) { remove_folder(folder); }

/* ---- a run that is watched ------------------------------------------------------------------- */

typedef struct watched {
    hy_trainer *trainer;
    int64_t stop_at; /* 0: never */
    int64_t stop_in; /* the step whose validation is broken off; 0: none */
    int stop_eval;   /* the number of the validation that is broken off; 0: none */
    int64_t steps[512];
    double losses[512], train_losses[2560];
    int count;
    int64_t last;
    hy_summary summary;
} watched;

static void note_eval(void *user, const hy_eval_info *info) {
    watched *w = user;
    ck_assert_int_lt(w->count, 512);
    w->steps[w->count] = info->step;
    w->losses[w->count++] = info->loss;
}

static void note_step(void *user, const hy_step_info *info) {
    watched *w = user;
    ck_assert_int_lt(info->step, 2560);
    w->train_losses[info->step] = info->loss;
    w->last = info->step;
    if (info->step == w->stop_at) hy_trainer_request_stop(w->trainer);
}

static void note_progress(void *user, const char *what, double fraction) {
    watched *w = user;
    bool is_here = (w->stop_in > 0 && w->last == w->stop_in) || w->count + 1 == w->stop_eval;
    if (is_here && strcmp(what, "validating") == 0 && fraction < 0.5)
        hy_trainer_request_stop(w->trainer);
}

#define SHORT_TEXT                                                                                 \
    "model nano layers 1 width 32 heads 4 mlp_width 64 seq_len 16 batch_size 8 steps 600 "         \
    "grad_accum_steps 1 lr 6e-3 lr_warmup_steps 3 schedule constant weight_decay 0 "               \
    "predictor none sample_tokens 0 threads 1 device cpu keep 1 save_minutes 0 eval_every 10 "

static void run(const char *out, const char *const *pairs, hy_status expected, watched *w) {
    hy_config *config = small_run(SHORT_TEXT, out, pairs);
    must(hy_config_set(config, "data", train_path, HY_FROM_CALLER));
    must(hy_config_set(config, "val_data", val_path, HY_FROM_CALLER));
    hy_observer observer = {
        .user = w, .on_eval = note_eval, .on_step = note_step, .on_progress = note_progress};
    must(hy_trainer_create(config, &observer, &w->trainer));
    ck_assert_int_eq(hy_trainer_run(w->trainer), expected);
    hy_trainer_summary(w->trainer, &w->summary);
    hy_trainer_destroy(w->trainer);
    hy_config_destroy(config);
}

static int lowest(const watched *w) {
    int best = 0;
    for (int i = 1; i < w->count; i++) best = w->losses[i] < w->losses[best] ? i : best;
    return best;
}

static const char *run_path(const char *name) {
    static char paths[4][600];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

/* How many lines of metrics.jsonl are events of this name. */
static int events_named(const char *out, const char *name) {
    char path[700], line[100], *text;
    size_t size;
    int count = 0;
    snprintf(path, sizeof path, "%s/metrics.jsonl", out);
    snprintf(line, sizeof line, "{\"event\":\"%s\"", name);
    must(hy_file_read(path, &text, &size));
    for (const char *at = text; (at = strstr(at, line)); at++) count++;
    free(text);
    return count;
}

/* ---- early stopping -------------------------------------------------------------------------- */

START_TEST(a_run_stops_when_its_held_out_loss_falls_no_more_and_keeps_the_best) {
    watched w = {0};
    char link[64] = "", expected[64], path[600];
    run(run_path("run"), PAIRS("early_stop", "3"), HY_OK, &w);
    int best = lowest(&w), periodic = w.count - 1; /* the last one is the closing one, same step */
    ck_assert(w.summary.is_stopped_early);
    ck_assert_int_lt(w.last, 600);
    ck_assert_int_gt(best, 0);
    ck_assert_int_eq(best, periodic - 4); /* three in a row behind it were not lower */
    ck_assert_int_eq(w.steps[periodic], w.steps[periodic - 1]);
    ck_assert_int_eq(w.summary.best_val_step, w.steps[best]);
    ck_assert_double_eq(w.summary.best_val_loss, w.losses[best]);
    /* With keep = 1: the newest, and the best. */
    snprintf(expected, sizeof expected, "checkpoint-%lld", (long long)w.steps[best]);
    ck_assert_int_gt(readlink(run_path("run/best"), link, sizeof link - 1), 0);
    ck_assert_str_eq(link, expected);
    must(hy_checkpoint_verify(run_path("run/best"), true));
    snprintf(path, sizeof path, "%s/checkpoint-%lld", run_path("run"), (long long)w.last);
    must(hy_checkpoint_verify(path, true));
    /* It can be named, and is what it was. */
    hy_config *config;
    hy_evaluation found;
    must(hy_config_create(&config));
    must(hy_config_use_model(config, run_path("run/best")));
    must(hy_config_set(config, "data", val_path, HY_FROM_CALLER));
    must(hy_evaluate(config, NULL, &found));
    ck_assert_double_eq_tol(found.loss, w.losses[best], 2e-2); /* and the rest of the text */
    hy_config_destroy(config);
}
END_TEST

START_TEST(a_difference_that_is_too_small_does_not_count) {
    watched all = {0}, coarse = {0};
    run("none", PAIRS("early_stop", "2"), HY_OK, &all);
    run("none", PAIRS("early_stop", "2", "early_stop_delta", "5"), HY_OK, &coarse);
    ck_assert_int_eq(coarse.last, 30); /* the first sets the mark, two more are not 5 nats lower */
    ck_assert_int_gt(all.last, 30);
}
END_TEST

/* A stop after a step, and one in the validation that gives the lowest loss. */
START_TEST(early_stopping_is_the_same_after_a_resume) {
#define PATIENT "early_stop", "3", "eval_batch_size", "1"
    watched whole = {0}, cut = {0}, rest = {0};
    run(run_path("whole"), PAIRS(PATIENT), HY_OK, &whole);
    ck_assert_int_gt(whole.last, 50);
    if (_i == 0) cut.stop_at = 37;
    if (_i == 1) cut.stop_in = whole.summary.best_val_step;
    if (_i == 2) cut.stop_eval = whole.count; /* the closing one */
    run(run_path("cut"), PAIRS(PATIENT), HY_STOPPED, &cut);
    run(run_path("cut"), PAIRS(PATIENT, "resume", "auto"), HY_OK, &rest);
    ck_assert_int_eq(_i == 2 ? cut.last : rest.last, whole.last);
    ck_assert_int_eq(cut.count + rest.count, whole.count);
    ck_assert_int_eq(events_named(run_path("cut"), "early_stop"), 1);
    for (int i = 0; i < whole.count; i++) {
        const watched *part = i < cut.count ? &cut : &rest;
        int at = i < cut.count ? i : i - cut.count;
        ck_assert_int_eq(part->steps[at], whole.steps[i]);
        ck_assert_double_eq(part->losses[at], whole.losses[i]);
    }
    char a[64] = "", b[64] = "";
    ck_assert_int_gt(readlink(run_path("whole/best"), a, sizeof a - 1), 0);
    ck_assert_int_gt(readlink(run_path("cut/best"), b, sizeof b - 1), 0);
    ck_assert_str_eq(a, b);
    watched over = {0}; /* nothing is left to do */
    run(run_path("cut"), PAIRS(PATIENT, "resume", "auto"), HY_OK, &over);
    ck_assert_int_eq(over.count, 0);
    ck_assert_int_eq(events_named(run_path("cut"), "early_stop"), 1);
}
END_TEST

START_TEST(early_stopping_without_validations_is_refused) {
    hy_config *config = small_run(SMALL_RUN, "none", PAIRS("early_stop", "2", "eval_every", "0"));
    hy_trainer *t;
    must_fail(hy_trainer_create(config, NULL, &t), HY_ERR_INPUT, "eval_every is 0");
    hy_config_destroy(config);
}
END_TEST

/* ---- the best checkpoint --------------------------------------------------------------------- */

/* Somebody's own folder of that name stays, and the run continues. */
START_TEST(what_is_named_best_and_is_no_link_is_left_alone) {
    watched w = {0};
    must(hy_dir_make(run_path("run/best")));
    must(hy_file_write_atomic(run_path("run/best/notes"), "mine", 4));
    run(run_path("run"), PAIRS("early_stop", "2"), HY_OK, &w);
    ck_assert(hy_path_exists(run_path("run/best/notes")));
    ck_assert(!hy_path_is_link(run_path("run/best")));
}
END_TEST

/* Another branch has its own best: the link follows the one that continues. */
START_TEST(a_run_that_goes_back_has_the_best_of_its_branch) {
    watched w = {0}, back = {0};
    char link[64] = "";
    run(run_path("run"), PAIRS("steps", "40", "save_every", "10", "keep", "0"), HY_OK, &w);
    hy_config *config = small_run(SHORT_TEXT, run_path("run"),
                                  PAIRS("steps", "30", "keep", "0", "save_every", "10", "lr", "0",
                                        "resume", run_path("run/checkpoint-20")));
    must(hy_config_set(config, "data", train_path, HY_FROM_CALLER));
    must(hy_config_set(config, "val_data", val_path, HY_FROM_CALLER));
    hy_observer observer = {.user = &back, .on_eval = note_eval, .on_step = note_step};
    must(hy_trainer_create(config, &observer, &back.trainer));
    must(hy_trainer_run(back.trainer));
    hy_trainer_destroy(back.trainer);
    hy_config_destroy(config);
    int64_t best = w.losses[0] <= w.losses[1] ? 10 : 20; /* shared; with lr 0 step 30 is as 20 */
    char expected[64];
    snprintf(expected, sizeof expected, "checkpoint-%lld", (long long)best);
    ck_assert_int_gt(readlink(run_path("run/best"), link, sizeof link - 1), 0);
    ck_assert_str_eq(link, expected);
}
END_TEST

/* Whoever loads a checkpoint of a run that averages gets the average: that is what is compared. */
START_TEST(the_best_of_a_run_that_averages_is_that_of_its_averages) {
    watched w = {0};
    hy_evaluation found;
    run(run_path("run"),
        PAIRS("steps", "24", "eval_every", "4", "eval_batches", "0", "early_stop", "50", "keep",
              "0", "tail_share", "0.8"),
        HY_OK, &w);
    for (int i = 0; i < w.count; i++) {
        char path[600];
        hy_config *config;
        snprintf(path, sizeof path, "%s/checkpoint-%lld", run_path("run"), (long long)w.steps[i]);
        if (!hy_path_exists(path)) continue; /* it was not lower */
        must(hy_config_create(&config));
        must(hy_config_use_model(config, path));
        must(hy_config_set(config, "data", val_path, HY_FROM_CALLER));
        must(hy_evaluate(config, NULL, &found));
        ck_assert_double_eq_tol(found.loss, w.losses[i], 1e-2); /* and the rest of the text */
        hy_config_destroy(config);
    }
    ck_assert_double_eq(w.summary.best_val_loss, w.losses[lowest(&w)]);
}
END_TEST

/* A lower loss of something else is no mark to be below. */
START_TEST(other_held_out_data_begins_anew) {
    watched first = {0}, other = {0};
    char link[64] = "";
    run(run_path("run"), PAIRS("steps", "20", "early_stop", "2"), HY_OK, &first);
    char text[1000];
    for (size_t i = 0; i < sizeof text; i++) text[i] = (char)('A' + i * i % 23); /* never seen */
    must(hy_file_write_atomic(val_path, text, sizeof text));
    run(run_path("run"), PAIRS("steps", "40", "early_stop", "2", "resume", "auto"), HY_OK, &other);
    ck_assert_int_ge(other.count, 2);
    ck_assert_int_eq(other.steps[0], 30);
    ck_assert_int_ge(other.summary.best_val_step, 30);
    ck_assert_int_gt(readlink(run_path("run/best"), link, sizeof link - 1), 0);
    ck_assert_int_ge(atoi(link + strlen("checkpoint-")), 30);
}
END_TEST

/* Tokens of a validation now. */
static int64_t looked_at(hy_trainer *t) {
    hy_eval_info info;
    must(hy_trainer_evaluate(t, &info));
    ck_assert(!info.is_final);
    return info.tokens;
}

/* By default a longer run has larger validations; one that is lengthened stays with its own. */
START_TEST(a_run_that_is_lengthened_compares_the_same_sequences) {
    static const char small[] = SMALL_RUN "predictor none save_minutes 0 ";
#define LENGTH(n)                                                                                  \
    PAIRS("steps", n, "batch_size", "512", "seq_len", "8", "layers", "1", "builtin_bytes", "2M",   \
          "val_fraction", "0.4", "eval_batches", "-1", "eval_every", "-1", "resume",               \
          n[0] == '1' ? "" : "auto", "save_model", "false")
    hy_config *config = small_run(small, run_path("run"), LENGTH("100"));
    hy_trainer *t;
    must(hy_trainer_create(config, NULL, &t));
    must(hy_trainer_run(t));
    double before = saved_number(run_path("run"), "best.sequences");
    double best = summary_of(t).best_val_loss;
    ck_assert(isfinite(best) && before > 0);
    hy_trainer_destroy(t);
    hy_config_destroy(config);
    t = small_trainer(small, "none", NULL,
                      PAIRS("steps", "2000", "batch_size", "512", "seq_len", "8", "layers", "1",
                            "builtin_bytes", "2M", "val_fraction", "0.4", "eval_batches", "-1",
                            "eval_every", "-1"));
    ck_assert_int_gt(looked_at(t), 8 * (int64_t)before);
    hy_trainer_destroy(t);
    config = small_run(small, run_path("run"), LENGTH("2000"));
    must(hy_trainer_create(config, NULL, &t));
    ck_assert_int_eq(looked_at(t), 8 * (int64_t)before);
    ck_assert_double_eq(summary_of(t).best_val_loss, best);
    hy_trainer_destroy(t);
    hy_config_destroy(config);
#undef LENGTH
}
END_TEST

/* A short run has the closing validation alone; a longer one would have few if each were as
 * large. */
START_TEST(the_closing_validation_of_a_short_run_is_no_measure_for_a_longer_one) {
    static const char small[] =
        SMALL_RUN "predictor none save_minutes 0 batch_size 64 builtin_bytes 1M val_fraction 0.4 "
                  "eval_batches -1 eval_every -1 save_model false ";
    hy_config *config = small_run(small, run_path("run"), PAIRS("steps", "3"));
    hy_trainer *t;
    must(hy_trainer_create(config, NULL, &t));
    must(hy_trainer_run(t));
    hy_trainer_destroy(t);
    hy_config_destroy(config);
    hy_trainer *fresh = small_trainer(small, "none", NULL, PAIRS("steps", "2000"));
    config = small_run(small, run_path("run"), PAIRS("steps", "2000", "resume", "auto"));
    must(hy_trainer_create(config, NULL, &t));
    ck_assert_int_eq(looked_at(t), looked_at(fresh));
    hy_trainer_destroy(fresh);
    hy_trainer_destroy(t);
    hy_config_destroy(config);
}
END_TEST

/* What the link led to is of a branch that was left, and its name is given to another
 * checkpoint. */
START_TEST(a_branch_without_a_best_has_no_link) {
    watched w = {0}, back = {.stop_at = 25};
    run(run_path("run"), PAIRS("steps", "20", "save_every", "5", "keep", "0", "eval_every", "20"),
        HY_OK, &w);
    ck_assert(hy_path_is_link(run_path("run/best"))); /* to step 20 */
    run(run_path("run"),
        PAIRS("steps", "40", "save_every", "5", "keep", "0", "eval_every", "0", "resume",
              run_path("run/checkpoint-5")),
        HY_STOPPED, &back);
    must(hy_checkpoint_verify(run_path("run/checkpoint-20"), true));
    ck_assert(!hy_path_is_link(run_path("run/best")));
}
END_TEST

/* Validation waits for Predict, which has the memory for it: what it finds is saved from there. */
START_TEST(the_best_of_a_validation_in_predict_is_saved) {
    watched w = {0};
    char link[64] = "", expected[64];
    const char *const *jumps =
        PAIRS("predictor", "outer", "full_steps", "3", "correct_steps", "2", "predict_from", "0",
              "predict_until", "1", "confidence_threshold", "0", "fork_budget", "0", "steps", "60",
              "lr", "1e-3", "eval_every", "4", "early_stop", "50", "keep", "0");
    run(run_path("run"), jumps, HY_OK, &w);
    int in_predict = 0;
    for (int i = 0; i < w.count; i++) {
        bool is_lowest = true;
        for (int k = 0; k < i; k++) is_lowest &= w.losses[i] < w.losses[k];
        if (!is_lowest) continue;
        char path[600];
        snprintf(path, sizeof path, "%s/checkpoint-%lld", run_path("run"), (long long)w.steps[i]);
        must(hy_checkpoint_verify(path, true));
        in_predict += w.steps[i] % 4 != 0; /* it was due before */
    }
    ck_assert_int_gt(in_predict, 0);
    snprintf(expected, sizeof expected, "checkpoint-%lld", (long long)w.steps[lowest(&w)]);
    ck_assert_int_gt(readlink(run_path("run/best"), link, sizeof link - 1), 0);
    ck_assert_str_eq(link, expected);
}
END_TEST

/* ---- when, and on how much ------------------------------------------------------------------- */

#define LEFT_TO_IT                                                                                 \
    "eval_batches", "-1", "builtin_bytes", "300k", "val_fraction", "0.5", "layers", "1", "width",  \
        "16", "heads", "2", "save_model", "false", "save_minutes", "0", "predictor", "none"

/* Of a run of any length: at most 3 % of its compute. */
START_TEST(validations_take_little_of_a_run_of_any_length) {
    static const struct {
        const char *steps, *batch;
    } runs[] = {{"1", "4"}, {"60", "4"}, {"500", "4"}, {"100", "64"}, {"12", "512"}};
    int with_some = 0;
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
        watched w = {0};
        hy_observer observer = {.user = &w, .on_eval = note_eval};
        hy_config *config =
            small_run(SMALL_RUN, "none",
                      PAIRS(LEFT_TO_IT, "steps", runs[i].steps, "batch_size", runs[i].batch));
        must(hy_trainer_create(config, &observer, &w.trainer));
        hy_config_destroy(config);
        double total = atof(runs[i].steps) * atof(runs[i].batch) * 32;
        double each = (double)looked_at(w.trainer);
        must(hy_trainer_run(w.trainer));
        hy_trainer_destroy(w.trainer);
        double times = w.count - 1; /* but for the closing one */
        ck_assert_double_le(each, 131072 + 32);
        ck_assert_double_ge(each, 8192 - 256); /* less the first of each sequence */
        ck_assert_double_le(times * each / 3, 0.03 * total * 1.01);
        if (0.09 * total >= 2 * each * 1.1) ck_assert_double_ge(times, 1);
        with_some += times > 0;
    }
    ck_assert_int_ge(with_some, 2);
}
END_TEST

/* About twenty times where that allows it, and then never further apart than a thousand steps. */
START_TEST(long_runs_validate_twenty_times_or_every_thousand_steps) {
    static const struct {
        const char *steps, *batch, *before;
        int64_t every;
    } runs[] = {
        {"5000", "512", "248", 250}, {"40000", "512", "998", 1000}, {"40000", "4", "1998", 2000}};
    for (int i = 0; i < 3; i++) {
        watched w = {0};
        const char *const *first = PAIRS(LEFT_TO_IT, "steps", runs[i].steps, "batch_size",
                                         runs[i].batch, "overwrite", "true");
        w.trainer = small_trainer(SMALL_RUN, run_path("run"), NULL, first);
        must(hy_trainer_step(w.trainer, NULL));
        must(hy_trainer_save(w.trainer));
        hy_trainer_destroy(w.trainer);
        change_saved(run_path("run"), "step", runs[i].before);
        change_saved(run_path("run"), "spent", runs[i].before);
        hy_config *config = small_run(SMALL_RUN, run_path("run"),
                                      PAIRS(LEFT_TO_IT, "steps", runs[i].steps, "batch_size",
                                            runs[i].batch, "resume", "auto"));
        hy_observer observer = {.user = &w, .on_eval = note_eval, .on_step = note_step};
        w.stop_at = runs[i].every + 1;
        must(hy_trainer_create(config, &observer, &w.trainer));
        ck_assert_int_le(looked_at(w.trainer), 131072 + 32);
        ck_assert_int_eq(hy_trainer_run(w.trainer), HY_STOPPED);
        ck_assert_int_eq(w.count, 1);
        ck_assert_int_eq(w.steps[0], runs[i].every);
        hy_trainer_destroy(w.trainer);
        hy_config_destroy(config);
    }
}
END_TEST

/* What is asked for is what happens; the losses of training know nothing of it. */
START_TEST(validating_more_often_changes_no_step) {
    watched rare = {0}, often = {0};
    run("none", PAIRS("steps", "40", "eval_every", "0"), HY_OK, &rare);
    run("none", PAIRS("steps", "40", "eval_every", "7", "eval_batches", "1"), HY_OK, &often);
    ck_assert_int_eq(rare.count, 1);
    ck_assert_int_eq(often.count, 6);
    for (int i = 1; i <= 40; i++) {
        ck_assert_double_eq(rare.train_losses[i], often.train_losses[i]);
    }
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("best");
    TCase *cases = tcase_create("best");
    tcase_add_checked_fixture(cases, make_data, drop_data);
    tcase_add_test(cases, a_run_stops_when_its_held_out_loss_falls_no_more_and_keeps_the_best);
    tcase_add_test(cases, a_difference_that_is_too_small_does_not_count);
    tcase_add_loop_test(cases, early_stopping_is_the_same_after_a_resume, 0, 3);
    tcase_add_test(cases, early_stopping_without_validations_is_refused);
    tcase_add_test(cases, what_is_named_best_and_is_no_link_is_left_alone);
    tcase_add_test(cases, a_run_that_goes_back_has_the_best_of_its_branch);
    tcase_add_test(cases, the_best_of_a_run_that_averages_is_that_of_its_averages);
    tcase_add_test(cases, other_held_out_data_begins_anew);
    tcase_add_test(cases, a_run_that_is_lengthened_compares_the_same_sequences);
    tcase_add_test(cases, the_closing_validation_of_a_short_run_is_no_measure_for_a_longer_one);
    tcase_add_test(cases, a_branch_without_a_best_has_no_link);
    tcase_add_test(cases, the_best_of_a_validation_in_predict_is_saved);
    tcase_add_test(cases, validations_take_little_of_a_run_of_any_length);
    tcase_add_test(cases, long_runs_validate_twenty_times_or_every_thousand_steps);
    tcase_add_test(cases, validating_more_often_changes_no_step);
    suite_add_tcase(suite, cases);
    return suite;
}

HY_TEST_MAIN(make_suite)
