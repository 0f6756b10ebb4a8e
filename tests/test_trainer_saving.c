/* test_trainer_saving.c: when a run saves itself, what it does without room, and what it never gives up. */
#include "small_run.h"

#include <math.h>

#include "formats/checkpoint.h"
#include "trainer/trainer.h"

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

static Suite *saving_suite(void) {
    Suite *suite = suite_create("trainer: saving");
    TCase *tests = tcase_create("saving");
    tcase_set_timeout(tests, 60);
    tcase_add_checked_fixture(tests, make_folder, drop_folder);
    tcase_add_test(tests, the_clock_saves_too_and_changes_no_loss);
    tcase_add_test(tests, half_an_hour_is_the_default_and_a_save_has_a_price);
    suite_add_tcase(suite, tests);
    return suite;
}

HY_TEST_MAIN(saving_suite)
