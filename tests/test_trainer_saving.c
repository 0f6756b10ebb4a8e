/* test_trainer_saving.c: when a run saves, what it does without disk space, and which checkpoints
 * it never deletes. */
#include <sys/stat.h>
#include <unistd.h>

#include "fake_card.h"
#include "run_facts.h"
#include "small_run.h"

#include <math.h>

#include "phases/divergence.h"

#define WITH_JUMPS                                                                                 \
    SMALL_RUN "steps 24 full_steps 4 correct_steps 2 predict_from 0 predict_until 1 "              \
              "confidence_threshold 0.5 save_model false "

static char folder[256];

static void make_folder(void) { temp_folder(folder); }
static void drop_folder(void) { remove_folder(folder); }

/* What a run said and saved, and its losses. */
typedef struct heard {
    hy_trainer *trainer;
    int saves, steps;
    double losses[256];
    char text[8192];
    void (*at_step)(struct heard *heard, int64_t step);
} heard;

static void on_step(void *user, const hy_step_info *info) {
    heard *h = user;
    h->losses[h->steps++] = info->loss;
    if (h->at_step) h->at_step(h, info->step);
}

static void on_save(void *user, const char *path, double seconds, uint64_t bytes) {
    (void)path, (void)seconds, (void)bytes;
    ((heard *)user)->saves++;
}

static void on_message(void *user, hy_message_level level, const char *text) {
    heard *h = user;
    size_t length = strlen(h->text);
    (void)level;
    snprintf(h->text + length, sizeof h->text - length, "%s\n", text);
}

static hy_status make_run(heard *h, const char *words, const char *out, const char *const *pairs) {
    hy_observer observer = {
        .user = h, .on_step = on_step, .on_save = on_save, .on_message = on_message};
    hy_config *config = small_run(words, out, pairs);
    hy_status status = hy_trainer_create(config, &observer, &h->trainer);
    hy_config_destroy(config);
    return status;
}

static hy_status whole_run(heard *h, const char *words, const char *out, const char *const *pairs) {
    must(make_run(h, words, out, pairs));
    hy_status status = hy_trainer_run(h->trainer);
    hy_trainer_destroy(h->trainer);
    return status;
}

START_TEST(the_clock_saves_too_and_changes_no_loss) {
    heard still = {0}, saving = {0};
    must(whole_run(&still, WITH_JUMPS, folder, PAIRS("save_minutes", "0")));
    ck_assert_int_eq(still.saves, 1); /* at the end */
    must(
        whole_run(&saving, WITH_JUMPS, folder, PAIRS("save_minutes", "1e-6", "overwrite", "true")));
    ck_assert_int_ge(saving.saves, 20); /* after every step */
    ck_assert_int_eq(saving.steps, still.steps);
    ck_assert_mem_eq(saving.losses, still.losses, sizeof still.losses);
}
END_TEST

START_TEST(half_an_hour_is_the_default_and_a_save_has_a_price) {
    hy_config *config = small_run(SMALL_RUN, "none", NULL);
    const char *value;
    must(hy_config_get(config, "save_minutes", &value, NULL));
    ck_assert_str_eq(value, "30");
    hy_config_destroy(config);
    hy_trainer *t = plan_words(SMALL_RUN, NULL);
    hy_summary summary;
    hy_trainer_summary(t, &summary);
    ck_assert_double_eq(facts_of(t).save_seconds, (double)summary.checkpoint_bytes / 1.5e9);
    hy_trainer_destroy(t);
}
END_TEST

/* ---- numbers that go wrong ------------------------------------------------------------------- */

static int64_t newest(void) {
    char path[512];
    int64_t step = -1;
    (void)hy_checkpoint_latest(folder, path, sizeof path, &step, NULL);
    return step;
}

/* From step 8 on no loss is finite; from step 12 on they are again where `kept` says what it
 * was. */
static float kept;
static void break_it(heard *h, int64_t step) {
    (void)h;
    if (step == 7) kept = *card.norm_weight, *card.norm_weight = NAN;
}
static void break_and_mend(heard *h, int64_t step) {
    break_it(h, step);
    if (step == 11) *card.norm_weight = kept;
}
static void break_and_stop(heard *h, int64_t step) {
    break_it(h, step);
    if (step == 9) hy_trainer_request_stop(h->trainer);
}

#define ON_CARD "predictor", "none", "device", "cuda", "precision", "fp32"
#define OFTEN ON_CARD, "save_every", "2", "keep", "2", "steps", "60"

START_TEST(steps_without_a_finite_loss_evict_no_checkpoint) {
    heard h = {.at_step = break_it};
    ck_assert_int_eq(whole_run(&h, SMALL_RUN, folder, PAIRS(OFTEN)), HY_ERR_NUMERIC);
    ck_assert_int_eq(newest(), 6); /* saved at 2, 4 and 6, and not at 8 to 26 */
    ck_assert_int_eq(h.saves, 3);
    heard again = {0};
    must(make_run(&again, SMALL_RUN, folder, PAIRS(OFTEN, "resume", "auto")));
    must(hy_trainer_step(again.trainer, NULL));
    ck_assert(isfinite(summary_of(again.trainer).final_loss));
    hy_trainer_destroy(again.trainer);
}
END_TEST

START_TEST(a_save_that_fell_due_meanwhile_is_made_after_it) {
    heard h = {.at_step = break_and_mend};
    must(whole_run(&h, SMALL_RUN, folder, PAIRS(OFTEN, "save_every", "9", "steps", "14")));
    char path[512];
    snprintf(path, sizeof path, "%s/checkpoint-12", folder);
    must(hy_checkpoint_verify(path, false)); /* for the one of step 9 */
    ck_assert_int_eq(h.saves, 2);            /* and one at the end */
}
END_TEST

START_TEST(a_stop_while_no_loss_is_finite_saves_nothing_and_says_so) {
    heard h = {.at_step = break_and_stop};
    must(make_run(&h, SMALL_RUN, folder, PAIRS(OFTEN)));
    must_fail(hy_trainer_run(h.trainer), HY_ERR_NUMERIC, "checkpoint-6");
    hy_trainer_destroy(h.trainer);
    ck_assert_int_eq(newest(), 6);
}
END_TEST

START_TEST(a_loss_that_stays_far_above_its_first_ends_the_run) {
    heard h = {0};
    char path[512];
    must(make_run(
        &h, SMALL_RUN, folder,
        PAIRS(OFTEN, "lr", "10", "grad_clip", "0", "lr_warmup_steps", "0", "steps", "200")));
    must_fail(hy_trainer_run(h.trainer), HY_ERR_NUMERIC, "the run diverged");
    hy_trainer_destroy(h.trainer);
    ck_assert_int_lt(h.steps, 60);
    snprintf(path, sizeof path, "%s/model", folder);
    ck_assert(!hy_path_exists(path));
    ck_assert_int_eq(newest(), -1); /* it was bad from its second step on */
    heard bold = {0}; /* who asks for it gets to the end, unless nothing is a number any more */
    hy_status status = whole_run(&bold, SMALL_RUN, "none",
                                 PAIRS("predictor", "none", "lr", "10", "grad_clip", "0", "steps",
                                       "50", "divergence_factor", "0"));
    ck_assert_int_eq(status, HY_OK);
    ck_assert_int_eq(bold.steps, 50);
}
END_TEST

START_TEST(the_bound_follows_from_how_a_run_began) {
    hy_loss_bound b = {0};
    ck_assert(isinf(hy_loss_limit(&b, 2, 5.5)));
    hy_loss_bound_observe(&b, 2, 5.5, NAN);
    ck_assert_int_eq(b.above, 1);
    hy_loss_bound_observe(&b, 2, 5.5, 0.5); /* a lucky first step ... */
    for (int i = 0; i < 7; i++) hy_loss_bound_observe(&b, 2, 5.5, 2.4);
    ck_assert_int_eq(b.above, 0);
    ck_assert_double_gt(hy_loss_limit(&b, 2, 5.5), 4); /* ... does not make the rest a divergence */
    hy_loss_bound_observe(&b, 2, 5.5, 4.5);
    ck_assert_int_eq(b.above, 1);
    hy_loss_bound blown = {0};
    hy_loss_bound_observe(&blown, 2, 5.5, 5.7);
    for (int i = 0; i < 40; i++) hy_loss_bound_observe(&blown, 2, 5.5, 870);
    ck_assert_int_eq(blown.above, 40);
}
END_TEST

START_TEST(weights_that_are_no_numbers_are_neither_evaluated_nor_talked_to_nor_exported) {
    heard h = {0};
    char path[512], out[600];
    hy_evaluation found;
    hy_inference *inference;
    must(make_run(&h, SMALL_RUN, folder, PAIRS(OFTEN)));
    must(hy_trainer_step(h.trainer, NULL));
    *card.norm_weight = NAN;
    must(hy_trainer_save(h.trainer)); /* on the caller's own word */
    hy_trainer_destroy(h.trainer);
    hy_config *config;
    snprintf(path, sizeof path, "%s/checkpoint-1", folder);
    must(hy_config_create(&config));
    must(hy_config_use_model(config, path));
    must_fail(hy_evaluate(config, NULL, &found), HY_ERR_NUMERIC, "not finite");
    must(hy_inference_open(config, NULL, NULL, &inference));
    must_fail(hy_inference_complete(inference, "a", &(hy_generate_options){0}, NULL, NULL, NULL),
              HY_ERR_NUMERIC, "not finite");
    hy_inference_close(inference);
    hy_config_destroy(config);
    snprintf(out, sizeof out, "%s/export", folder);
    must_fail(hy_export(path, &(hy_export_options){.out = out}, NULL), HY_ERR_NUMERIC,
              "not finite");
    ck_assert(!hy_path_exists(out));
}
END_TEST

/* ---- folders that go away -------------------------------------------------------------------- */

static void delete_folder(heard *h, int64_t step) {
    if (step == 5) must(hy_dir_remove(summary_of(h->trainer).out));
}

START_TEST(a_folder_deleted_in_mid_run_is_made_again_and_saved_into) {
    heard h = {.at_step = delete_folder}, again = {0};
    char out[300], path[512];
    snprintf(out, sizeof out, "%s/run", folder);
    must(whole_run(&h, SMALL_RUN, out, PAIRS("predictor", "none", "overwrite", "true")));
    ck_assert_ptr_nonnull(strstr(h.text, "was deleted or moved"));
    snprintf(path, sizeof path, "%s/checkpoint-12", out);
    must(hy_checkpoint_verify(path, true));
    must(whole_run(&again, SMALL_RUN, out,
                   PAIRS("predictor", "none", "resume", "auto", "steps", "14")));
    ck_assert_int_eq(again.steps, 2);
}
END_TEST

/* The lock alone was deleted: lines of metrics.jsonl were lost with it. */
static void delete_lock(heard *h, int64_t step) {
    char path[HY_PATH_MAX + 16];
    snprintf(path, sizeof path, "%s/.lock", summary_of(h->trainer).out);
    if (step == 5) ck_assert_int_eq(unlink(path), 0);
}

START_TEST(a_lock_that_was_deleted_is_taken_again) {
    heard h = {.at_step = delete_lock};
    char path[512], *text;
    size_t size;
    must(make_run(&h, SMALL_RUN, folder, PAIRS("predictor", "none", "save_every", "4")));
    must(hy_trainer_run(h.trainer));
    ck_assert_ptr_null(strstr(h.text, "was deleted or moved during"));
    hy_trainer_destroy(h.trainer);
    snprintf(path, sizeof path, "%s/metrics.jsonl", folder);
    must(hy_file_read(path, &text, &size));
    ck_assert_ptr_nonnull(strstr(text, "{\"step\":1,"));
    ck_assert_ptr_nonnull(strstr(text, "{\"step\":12,"));
    free(text);
}
END_TEST

START_TEST(a_resumed_run_is_saved_even_if_its_folder_was_deleted) {
    heard first = {0}, h = {.at_step = delete_folder};
    char path[512], out[300];
    snprintf(out, sizeof out, "%s/run", folder);
    must(whole_run(&first, SMALL_RUN, out, PAIRS("predictor", "none", "steps", "3")));
    must(whole_run(&h, SMALL_RUN, out, PAIRS("predictor", "none", "resume", "auto")));
    snprintf(path, sizeof path, "%s/checkpoint-12", out);
    must(hy_checkpoint_verify(path, true));
}
END_TEST

/* One that could not go stopped all saves after it. */
START_TEST(an_old_checkpoint_that_cannot_be_removed_stops_no_save) {
    heard h = {0};
    char path[512];
    ck_assert_int_eq(chmod(folder, 0777), 0);
    if (geteuid() == 0) ck_assert_int_eq(seteuid(65534), 0); /* nothing stops root */
    must(make_run(&h, SMALL_RUN, folder,
                  PAIRS("predictor", "none", "save_every", "2", "keep", "1")));
    hy_step_info info;
    for (int i = 0; i < 2; i++) must(hy_trainer_step(h.trainer, &info));
    must(hy_trainer_save(h.trainer));
    snprintf(path, sizeof path, "%s/checkpoint-2", folder);
    ck_assert_int_eq(chmod(path, 0500), 0);
    must(hy_trainer_run(h.trainer));
    hy_trainer_destroy(h.trainer);
    ck_assert_int_eq(newest(), 12);
    must(hy_checkpoint_verify(path, true));
    ck_assert_ptr_nonnull(strstr(h.text, "an older checkpoint could not be removed"));
    ck_assert_int_eq(chmod(path, 0700), 0);
    if (getuid() == 0) ck_assert_int_eq(seteuid(0), 0);
}
END_TEST

/* A loss that is above the bound for a moment: whoever stopped there lost all since the last
 * save. */
static void stop_in_spike(heard *h, int64_t step) {
    if (step == 4) *card.last_norm_weight = 1e4F; /* two steps with a loss far above the first */
    if (step == 6) hy_trainer_request_stop(h->trainer);
}

START_TEST(a_run_stopped_in_a_spike_is_saved) {
    heard h = {.at_step = stop_in_spike};
    must(make_run(&h, SMALL_RUN, folder, PAIRS(ON_CARD)));
    must_fail(hy_trainer_run(h.trainer), HY_STOPPED, "stopped on request");
    hy_trainer_destroy(h.trainer);
    ck_assert_int_eq(newest(), 6);
    ck_assert_double_eq(saved_number(folder, "steps_above"), 2);
}
END_TEST

/* ---- runs that continue for longer ----------------------------------------------------------- */

#define HALF_WARM "predictor none lr_warmup_steps -1 lr_warmup_ratio 0.5 "

START_TEST(another_length_changes_the_learning_rate_and_says_so) {
    heard h = {0}, same = {0}, longer = {0};
    must(whole_run(&h, SMALL_RUN HALF_WARM, folder, NULL));
    must(whole_run(&same, SMALL_RUN HALF_WARM, folder, PAIRS("resume", "auto")));
    ck_assert_ptr_null(strstr(same.text, "learning rate continues"));
    must(make_run(&longer, SMALL_RUN HALF_WARM, folder, PAIRS("resume", "auto", "steps", "100")));
    ck_assert_ptr_nonnull(strstr(longer.text, "the run is now 100 steps long instead of 12"));
    hy_step_info info; /* the warm-up is done, and not done again */
    must(hy_trainer_step(longer.trainer, &info));
    ck_assert_int_eq(info.phase, HY_FULL);
    ck_assert_str_eq(info.reason, "");
    ck_assert_double_gt(info.lr, 0.9 * 3e-3);
    hy_trainer_destroy(longer.trainer);
}
END_TEST

/* ---- disks that are full --------------------------------------------------------------------- */

START_TEST(a_run_that_cannot_be_saved_does_not_begin) {
    heard h = {0};
    char out[300];
    snprintf(out, sizeof out, "%s/run", folder);
    hy_fault_limit_disk(1000);
    must_fail(make_run(&h, SMALL_RUN, out, NULL), HY_ERR_INPUT, "a checkpoint needs");
    ck_assert(!hy_path_exists(out));
    hy_config *config = small_run(SMALL_RUN, out, NULL);
    hy_trainer *t;
    must(hy_trainer_plan(config, NULL, &t));
    hy_config_destroy(config);
    ck_assert(!facts_of(t).fits);
    ck_assert_ptr_nonnull(strstr(facts_of(t).problem, "a checkpoint needs"));
    ck_assert_uint_eq(facts_of(t).save_free, 1000);
    hy_trainer_destroy(t);
    must(make_run(&h, SMALL_RUN, "none", NULL)); /* nothing is written there */
    hy_trainer_destroy(h.trainer);
}
END_TEST

START_TEST(where_one_checkpoint_fits_the_run_says_so_before_it_begins) {
    heard h = {0};
    hy_summary summary;
    hy_trainer *t = plan_words(SMALL_RUN, NULL);
    hy_trainer_summary(t, &summary);
    hy_trainer_destroy(t);
    hy_fault_limit_disk(summary.checkpoint_bytes * 5 / 4 + (1 << 20));
    must(make_run(&h, SMALL_RUN, folder, NULL));
    ck_assert_ptr_nonnull(strstr(h.text, "one checkpoint of"));
    hy_trainer_destroy(h.trainer);
}
END_TEST

static uint64_t left_on_disk = 1000;

static void fill_disk(heard *h, int64_t step) {
    (void)h;
    if (step == 5) hy_fault_limit_disk(left_on_disk);
}

START_TEST(a_disk_that_fills_up_takes_neither_the_newest_checkpoint_nor_the_model) {
    heard h = {.at_step = fill_disk};
    char path[512];
    bool may_help = _i == 1; /* older ones are given up only where that makes room */
    hy_summary summary;
    must(make_run(&h, SMALL_RUN, folder, PAIRS("predictor", "none", "save_every", "2")));
    hy_trainer_summary(h.trainer, &summary);
    left_on_disk = may_help ? summary.checkpoint_bytes + (1u << 20) : 1000;
    must_fail(hy_trainer_run(h.trainer), HY_ERR_IO, "checkpoint of step 12: it needs");
    hy_trainer_destroy(h.trainer);
    ck_assert_int_eq(newest(), 4);
    ck_assert_int_eq(h.saves, 2);
    ck_assert_int_eq(strstr(h.text, "all checkpoints but the newest") != NULL, may_help);
    snprintf(path, sizeof path, "%s/checkpoint-2", folder);
    ck_assert_int_eq(hy_path_exists(path), !may_help);
    snprintf(path, sizeof path, "%s/model/model.safetensors", folder);
    ck_assert(hy_path_exists(path));
}
END_TEST

static void fill_disk_and_stop(heard *h, int64_t step) {
    fill_disk(h, step);
    if (step == 5) hy_trainer_request_stop(h->trainer);
}

START_TEST(a_run_stopped_where_no_checkpoint_fits_leaves_its_model) {
    heard h = {.at_step = fill_disk_and_stop};
    char path[512];
    must(make_run(&h, SMALL_RUN, folder, PAIRS("predictor", "none")));
    must_fail(hy_trainer_run(h.trainer), HY_ERR_IO, "the model was written");
    hy_trainer_destroy(h.trainer);
    snprintf(path, sizeof path, "%s/model/model.safetensors", folder);
    ck_assert(hy_path_exists(path));
}
END_TEST

static Suite *saving_suite(void) {
    Suite *suite = suite_create("trainer: saving");
    TCase *tests = tcase_create("saving");
    tcase_add_checked_fixture(tests, make_folder, drop_folder);
    tcase_add_test(tests, the_clock_saves_too_and_changes_no_loss);
    tcase_add_test(tests, half_an_hour_is_the_default_and_a_save_has_a_price);
    tcase_add_test(tests, steps_without_a_finite_loss_evict_no_checkpoint);
    tcase_add_test(tests, a_save_that_fell_due_meanwhile_is_made_after_it);
    tcase_add_test(tests, a_stop_while_no_loss_is_finite_saves_nothing_and_says_so);
    tcase_add_test(tests, a_loss_that_stays_far_above_its_first_ends_the_run);
    tcase_add_test(tests, the_bound_follows_from_how_a_run_began);
    tcase_add_test(tests,
                   weights_that_are_no_numbers_are_neither_evaluated_nor_talked_to_nor_exported);
    tcase_add_test(tests, a_folder_deleted_in_mid_run_is_made_again_and_saved_into);
    tcase_add_test(tests, a_lock_that_was_deleted_is_taken_again);
    tcase_add_test(tests, a_resumed_run_is_saved_even_if_its_folder_was_deleted);
    tcase_add_test(tests, an_old_checkpoint_that_cannot_be_removed_stops_no_save);
    tcase_add_test(tests, a_run_stopped_in_a_spike_is_saved);
    tcase_add_test(tests, another_length_changes_the_learning_rate_and_says_so);
    tcase_add_test(tests, a_run_that_cannot_be_saved_does_not_begin);
    tcase_add_test(tests, where_one_checkpoint_fits_the_run_says_so_before_it_begins);
    tcase_add_test(tests, a_run_stopped_where_no_checkpoint_fits_leaves_its_model);
    tcase_add_loop_test(
        tests, a_disk_that_fills_up_takes_neither_the_newest_checkpoint_nor_the_model, 0, 2);
    suite_add_tcase(suite, tests);
    return suite;
}

HY_TEST_MAIN(saving_suite)
