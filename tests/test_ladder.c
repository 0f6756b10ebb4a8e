/* test_ladder.c: precision levels: which types each profile allows, which are chosen when memory is
 * short, that speed decides, and that a run keeps its types. */
#include "run_facts.h"
#include "small_run.h"

#include "base/text.h"

#define CARD_RUN "card rtx5080 builtin_bytes 60000 steps 4 seq_len 1024 predictor outer "

/* ---- what is allowed ------------------------------------------------------------------------- */

/* What training changes: the master where there is one, else the weights themselves. */
static hy_dtype master_of(const hy_trainer *t) {
    hy_memory_cell master = cell_of(t, HY_MASTER, HY_FULL);
    return master.place != HY_NOWHERE ? master.dtype : cell_of(t, HY_WEIGHTS, HY_FULL).dtype;
}

static bool has_reason(const hy_plan_facts *facts, const char *words) {
    for (int i = 0; i < facts->reason_count; i++) {
        if (strstr(facts->reasons[i], words)) return true;
    }
    return false;
}

static void check_types(const char *const *pairs, hy_dtype optim, hy_dtype grads, hy_dtype master) {
    hy_trainer *t = plan_words(CARD_RUN, pairs);
    hy_plan_facts facts = facts_of(t);
    ck_assert_msg(facts.fits, "%s", facts.problem);
    ck_assert_int_eq(cell_of(t, HY_OPTIM, HY_FULL).dtype, optim);
    ck_assert_int_eq(cell_of(t, HY_GRADS, HY_FULL).dtype, grads);
    ck_assert_int_eq(master_of(t), master);
    ck_assert_int_eq(has_reason(&facts, "optimizer state in 8 bits"), optim == HY_U8);
    hy_trainer_destroy(t);
}

START_TEST(a_profile_says_how_small_types_may_be) {
    check_types(PAIRS("profile", "aggressive", "model", "qwen2.5-7b", "cpu_mem", "60GiB"), HY_U8,
                HY_BF16, HY_BF16);
    check_types(PAIRS("profile", "balanced", "model", "qwen2.5-7b", "cpu_mem", "120GiB"), HY_U8,
                HY_F32, HY_F32);
    check_types(PAIRS("profile", "conservative", "model", "qwen2.5-1.5b", "cpu_mem", "60GiB"),
                HY_F32, HY_F32, HY_F32);
    check_types(PAIRS("profile", "conservative", "small_types", "optimizer", "model",
                      "qwen2.5-1.5b", "cpu_mem", "18GiB"),
                HY_U8, HY_F32, HY_F32);
}
END_TEST

START_TEST(what_is_fixed_stays) {
    check_types(PAIRS("profile", "aggressive", "model", "qwen2.5-1.5b", "cpu_mem", "60GiB",
                      "optim_dtype", "fp32", "grad_dtype", "fp32", "master_dtype", "fp32"),
                HY_F32, HY_F32, HY_F32);
    check_types(PAIRS("profile", "aggressive", "model", "qwen2.5-7b", "cpu_mem", "80GiB",
                      "grad_dtype", "fp32"),
                HY_U8, HY_F32, HY_BF16);
    check_types(PAIRS("profile", "aggressive", "model", "qwen2.5-7b", "cpu_mem", "80GiB",
                      "optim_dtype", "bf16"),
                HY_BF16, HY_BF16, HY_BF16);
    check_types(PAIRS("profile", "aggressive", "model", "qwen2.5-7b", "cpu_mem", "60GiB",
                      "optimizer", "adafactor"),
                HY_F32, HY_BF16, HY_BF16); /* its state is small and exact */
}
END_TEST

/* 8 bits need bf16 weights: these are taken where the profile allows it. */
START_TEST(what_is_fixed_may_ask_for_small_types) {
    hy_trainer *t;
    check_types(PAIRS("profile", "aggressive", "model", "qwen2.5-7b", "cpu_mem", "60GiB",
                      "predictor_dtype", "8bit"),
                HY_U8, HY_BF16, HY_BF16);
    hy_config *config =
        small_run(CARD_RUN, "none", PAIRS("model", "qwen2.5-7b", "predictor_dtype", "8bit"));
    must_fail(hy_trainer_plan(config, NULL, &t), HY_ERR_INPUT, "master_dtype = bf16");
    hy_config_destroy(config);
}
END_TEST

/* Nothing streams and nothing is made again: small types would bring little. */
START_TEST(what_fits_the_card_stays_fp32) {
    check_types(PAIRS("profile", "aggressive", "model", "gpt2-124m", "cpu_mem", "60GiB"), HY_F32,
                HY_F32, HY_F32);
}
END_TEST

/* ---- what the table and the reasons say ------------------------------------------------------ */

/* Phases that train share one area. Its type is that of the phase that needs most. */
START_TEST(activations_have_the_type_that_their_bytes_are_for) {
    const char *const *wide = PAIRS("model", "gpt2-124m", "precision_correct", "fp32");
    const char *const *same = PAIRS("model", "gpt2-124m", "precision_correct", "same");
    hy_trainer *t = plan_words(CARD_RUN, wide);
    hy_memory_cell both = cell_of(t, HY_ACTIVATIONS, HY_FULL);
    hy_plan_facts facts = facts_of(t);
    ck_assert_int_eq(both.dtype, HY_F32);
    ck_assert_int_eq(cell_of(t, HY_ACTIVATIONS, HY_EVALUATE).dtype, HY_BF16);
    ck_assert(has_reason(&facts, "because precision_correct is fp32; Full in bf16 needs"));
    hy_trainer_destroy(t);
    t = plan_words(CARD_RUN, same);
    facts = facts_of(t);
    ck_assert_int_eq(cell_of(t, HY_ACTIVATIONS, HY_FULL).dtype, HY_BF16);
    ck_assert_uint_lt(cell_of(t, HY_ACTIVATIONS, HY_FULL).planned_bytes, both.planned_bytes);
    ck_assert(!has_reason(&facts, "precision_correct"));
    hy_trainer_destroy(t);
}
END_TEST

START_TEST(reasons_of_a_plan_that_does_not_fit_do_not_say_that_it_fits) {
    hy_trainer *t = plan_words(CARD_RUN, PAIRS("model", "qwen2.5-14b", "step_tokens", "65536",
                                               "small_types", "none", "cpu_mem", "16GiB"));
    hy_plan_facts facts = facts_of(t);
    ck_assert(!facts.fits);
    ck_assert(has_reason(&facts, "nothing fits, and this lacks the least memory"));
    ck_assert(!has_reason(&facts, "that fits"));
    hy_trainer_destroy(t);
}
END_TEST

/* On the device, the optimizer state would move to the host in Predict, which has no room. */
START_TEST(the_reason_for_a_place_names_the_memory_that_is_missing) {
    hy_trainer *t = plan_words("card h100-80 builtin_bytes 60000 steps 400 predictor outer ",
                               PAIRS("model", "qwen2.5-1.5b", "small_types", "none", "cpu_mem",
                                     "22GiB", "profile", "balanced", "offload_strategy", "pinned"));
    hy_plan_facts facts = facts_of(t);
    ck_assert_msg(facts.fits, "%s", facts.problem);
    ck_assert(has_reason(&facts, "optimizer state in pinned memory: with"));
    ck_assert(has_reason(&facts, "of host memory would be missing"));
    hy_trainer_destroy(t);
}
END_TEST

/* ---- how a step is cut ----------------------------------------------------------------------- */

/* The micro-batch of a plan; tokens per step are those of preset and profile in any case. */
static int planned_batch(const char *card, const char *const *pairs, bool *is_advised) {
    char words[128];
    snprintf(words, sizeof words, "%s builtin_bytes 60000 seq_len 1024 profile aggressive ", card);
    hy_config *config = small_run(words, "none", pairs);
    hy_trainer *t;
    const char *size, *accum;
    must(hy_trainer_plan(config, NULL, &t));
    hy_plan_facts facts = facts_of(t);
    int batch = (int)facts.batch_size;
    ck_assert_msg(facts.fits, "%s", facts.problem);
    must(hy_config_get(config, "batch_size", &size, NULL));
    must(hy_config_get(config, "grad_accum_steps", &accum, NULL));
    ck_assert_int_eq(facts.batch_size * facts.grad_accum_steps, atoi(size) * atoi(accum));
    hy_config_destroy(config);
    *is_advised = has_reason(&facts, "--step-tokens");
    hy_trainer_destroy(t);
    return batch;
}

START_TEST(a_cut_that_nobody_asked_for_is_the_planners_where_state_streams) {
    bool is_advised;
    const char *const *large = PAIRS("model", "qwen2.5-7b", "cpu_mem", "60GiB");
    ck_assert_int_eq(planned_batch("card rtx5080", large, &is_advised), 4); /* preset: 1, times 4 */
    large = PAIRS("model", "qwen2.5-7b", "cpu_mem", "60GiB", "batch_size", "1");
    ck_assert_int_eq(planned_batch("card rtx5080", large, &is_advised), 1);
    large = PAIRS("model", "qwen2.5-7b", "cpu_mem", "60GiB", "grad_accum_steps", "4");
    ck_assert_int_eq(planned_batch("card rtx5080", large, &is_advised), 1);
    large = PAIRS("model", "qwen2.5-7b", "cpu_mem", "60GiB", "dynamic_batch", "off");
    ck_assert_int_eq(planned_batch("card rtx5080", large, &is_advised), 1);
    const char *const *small = PAIRS("model", "gpt2-124m", "cpu_mem", "60GiB");
    ck_assert_int_eq(planned_batch("card rtx5080", small, &is_advised), 8); /* all fits as it is */
}
END_TEST

START_TEST(a_plan_that_mostly_waits_suggests_a_longer_step) {
    bool is_advised;
    const char *const *fast =
        PAIRS("model", "qwen2.5-7b", "cpu_mem", "60GiB", "max_gpu_mem", "15GiB");
    planned_batch("card h200", fast, &is_advised);
    ck_assert(is_advised);
    const char *const *slow = PAIRS("model", "qwen2.5-7b", "cpu_mem", "60GiB");
    planned_batch("card rtx5080", slow, &is_advised); /* 14 % */
    ck_assert(!is_advised);
}
END_TEST

/* ---- what is given up, and when -------------------------------------------------------------- */

/* How much of prediction is kept: 3 all, 2 no snapshot, 1 in 8 bits, 0 nothing. */
static int kept_of(const hy_trainer *t) {
    hy_memory_cell slow = cell_of(t, HY_PREDICTOR, HY_FULL);
    if (slow.place == HY_NOWHERE) return 0;
    if (cell_of(t, HY_SNAPSHOT, HY_CORRECT).place != HY_NOWHERE) return 3;
    return slow.dtype == HY_U8 ? 1 : 2;
}

START_TEST(prediction_gives_way_as_host_memory_shrinks) {
    static const char *const sizes[] = {"200GiB", "90GiB", "75GiB", "64GiB", "60GiB", "50GiB"};
    int before = 3, seen = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        hy_trainer *t = plan_words(CARD_RUN, PAIRS("profile", "aggressive", "model", "qwen2.5-7b",
                                                   "cpu_mem", sizes[i], "step_tokens", "65536"));
        hy_plan_facts facts = facts_of(t);
        int kept = kept_of(t);
        ck_assert_msg(facts.fits, "%s: %s", sizes[i], facts.problem);
        ck_assert_int_le(kept, before);
        ck_assert_int_eq(kept == 0, facts.aside[0] != 0);
        seen |= 1 << kept;
        before = kept;
        hy_trainer_destroy(t);
    }
    ck_assert_int_eq(seen, 0xf); /* every way of keeping it was the best once */
}
END_TEST

/* The planner's choice against every set of types that can be written by hand. */
START_TEST(no_hand_set_types_are_much_faster) {
    static const char *const optim[] = {"fp32", "8bit"}, *const other[] = {"fp32", "bf16"};
    static const char *const models[] = {"qwen2.5-1.5b", "llama-3.2-1b", "qwen2.5-7b"};
    for (size_t m = 0; m < 3; m++) {
        hy_trainer *t = plan_words(CARD_RUN, PAIRS("profile", "aggressive", "model", models[m],
                                                   "cpu_mem", "56GiB", "step_tokens", "16384"));
        double ours = facts_of(t).tokens_per_second, best = 0;
        ck_assert(facts_of(t).fits);
        hy_trainer_destroy(t);
        for (int i = 0; i < 8; i++) {
            t = plan_words(CARD_RUN, PAIRS("profile", "aggressive", "model", models[m], "cpu_mem",
                                           "56GiB", "step_tokens", "16384", "predictor", "none",
                                           "optim_dtype", optim[i & 1], "grad_dtype",
                                           other[i >> 1 & 1], "master_dtype", other[i >> 2 & 1]));
            hy_plan_facts facts = facts_of(t);
            if (facts.fits && facts.tokens_per_second > best) best = facts.tokens_per_second;
            hy_trainer_destroy(t);
        }
        ck_assert_msg(ours >= 0.92 * best, "%s: %.0f tokens/s, by hand %.0f", models[m], ours,
                      best);
    }
}
END_TEST

/* ---- runs ------------------------------------------------------------------------------------ */

/* So little memory that the optimizer's state has to be small. */
static const char *tight_memory(void) {
    static char limit[32];
    hy_trainer *t = plan_words(SMALL_RUN "predictor none dynamic_batch off recompute all ", NULL);
    hy_plan_facts facts = facts_of(t);
    uint64_t optim = cell_of(t, HY_OPTIM, HY_FULL).planned_bytes;
    snprintf(limit, sizeof limit, "%llu",
             (unsigned long long)(facts.vram_bytes + facts.host_pinned_bytes +
                                  facts.data_host_bytes - optim / 8));
    hy_trainer_destroy(t);
    return limit;
}

#define TIGHT_RUN SMALL_RUN "predictor none dynamic_batch off recompute all "

START_TEST(a_run_keeps_its_types_when_it_is_resumed) {
    char folder[256];
    double straight[6], resumed[6];
    const char *limit = tight_memory();
    temp_folder(folder);
    hy_trainer *t = small_trainer(TIGHT_RUN, folder, NULL, PAIRS("cpu_mem", limit));
    ck_assert_int_eq(cell_of(t, HY_OPTIM, HY_FULL).dtype, HY_U8);
    next_losses(t, 3, straight);
    must(hy_trainer_save(t));
    next_losses(t, 6, straight);
    hy_trainer_destroy(t);
    /* There is room now; a run that changed its types would continue with other bits. */
    t = small_trainer(TIGHT_RUN "resume auto", folder, NULL, NULL);
    ck_assert_int_eq(cell_of(t, HY_OPTIM, HY_FULL).dtype, HY_U8);
    next_losses(t, 6, resumed);
    ck_assert_mem_eq(straight, resumed, sizeof straight);
    hy_trainer_destroy(t);
    hy_config *config; /* what it was asked for is as the user said it */
    const char *asked;
    must(hy_config_create(&config));
    must(hy_config_load_run(config, folder));
    must(hy_config_get(config, "optim_dtype", &asked, NULL));
    ck_assert_str_eq(asked, "auto");
    hy_config_destroy(config);
    remove_folder(folder);
}
END_TEST

/* Nor does it make room for any: the plan is that of a run without. */
START_TEST(disabled_prediction_costs_no_speed) {
    hy_trainer *aside = plan_words(CARD_RUN, PAIRS("profile", "aggressive", "model", "qwen2.5-7b",
                                                   "cpu_mem", "56GiB", "regime", "fine-tuning"));
    hy_trainer *none = plan_words(CARD_RUN, PAIRS("profile", "aggressive", "model", "qwen2.5-7b",
                                                  "cpu_mem", "56GiB", "predictor", "none"));
    ck_assert_uint_eq(facts_of(aside).vram_bytes, facts_of(none).vram_bytes);
    ck_assert_uint_eq(facts_of(aside).host_pinned_bytes, facts_of(none).host_pinned_bytes);
    ck_assert(facts_of(aside).tokens_per_second == facts_of(none).tokens_per_second);
    hy_trainer_destroy(aside);
    hy_trainer_destroy(none);
}
END_TEST

static uint64_t kept_bytes(const hy_trainer *t) {
    hy_memory_state state;
    uint64_t bytes = 0;
    must(hy_trainer_memory(t, &state));
    for (int place = 0; place < HY_PLACE_COUNT; place++) {
        bytes += state.classes[HY_PREDICTOR].live[place] + state.classes[HY_SNAPSHOT].live[place];
    }
    return bytes;
}

/* A run that stops after so many steps, or with the first fork; the most that was kept, and what is
 * now. */
typedef struct tuned {
    hy_trainer *trainer;
    hy_text said;
    int64_t stop_at;
    uint64_t early, most, last;
} tuned;

static void collect(void *user, hy_message_level level, const char *text) {
    tuned *u = user;
    (void)level;
    hy_text_addf(&u->said, "%s\n", text);
    if (strstr(text, "paired test at step")) hy_trainer_request_stop(u->trainer);
}

/* As above, without a stop. */
static void listen(void *user, hy_message_level level, const char *text) {
    (void)level;
    if (strstr(text, "paired test at step")) hy_text_addf(&((tuned *)user)->said, "%s\n", text);
}

static void look(void *user, const hy_step_info *info) {
    tuned *u = user;
    u->last = kept_bytes(u->trainer);
    if (u->last > u->most) u->most = u->last;
    if (info->step < 4) u->early += u->last;
    if (info->step == u->stop_at) hy_trainer_request_stop(u->trainer);
}

static void tune(tuned *u, const char *words, const char *out, const char *const *pairs) {
    hy_observer observer = {.user = u, .on_message = collect, .on_step = look};
    hy_config *config = small_run(words, out, pairs);
    must(hy_trainer_create(config, &observer, &u->trainer));
    hy_config_destroy(config);
    u->early = kept_bytes(u->trainer);
    ck_assert_int_eq(hy_trainer_run(u->trainer), HY_STOPPED);
    hy_trainer_destroy(u->trainer);
}

static bool was_said(const tuned *u, const char *words) {
    return strstr(hy_text_string(&u->said), words) != NULL;
}

#define TUNING                                                                                     \
    "regime fine-tuning fork_budget 0.5 fork_steps 4 steps 60 full_steps 4 correct_steps 2 "       \
    "predict_from 0.1 predict_until 1 schedule constant "

/* Until a fork is due there is no memory for it; a window before it there is; and after it only
 * where the fork has spoken for prediction. */
START_TEST(disabled_prediction_takes_no_memory) {
    tuned first = {.stop_at = 40}, later = {0};
    char folder[256];
    temp_folder(folder);
    hy_trainer *t = plan_words(SMALL_RUN TUNING, NULL);
    uint64_t weights = cell_of(t, HY_WEIGHTS, HY_FULL).planned_bytes;
    hy_trainer_destroy(t);
    tune(&first, SMALL_RUN TUNING, folder, NULL);
    ck_assert(was_said(&first, "is disabled and uses no memory"));
    ck_assert(was_said(&first, "paired test at step"));
    ck_assert_uint_eq(first.early, 0);
    ck_assert_uint_gt(first.most, 2 * weights);
    /* It continues as if it had lost. */
    later.stop_at = (int64_t)saved_number(folder, "step") + 12;
    ck_assert_double_lt((double)later.stop_at, 40 + 12);
    change_saved(folder, "log_odds", "-2");
    change_saved(folder, "next_fork", "1000");
    tune(&later, SMALL_RUN TUNING "resume auto ", folder, NULL);
    ck_assert_uint_eq(later.last, 0);
    hy_text_free(&first.said);
    hy_text_free(&later.said);
    remove_folder(folder);
}
END_TEST

/* Killed in the window before a fork, and in the one after. */
START_TEST(a_run_resumed_before_a_paired_test_makes_the_same_test) {
    static const int before[] = {5, 9, 12, 15};
    check_resume(SMALL_RUN TUNING, NULL, NULL, before[_i], 20);
}
END_TEST

static void run_to(hy_status expected, tuned *u, const char *out, const char *const *pairs) {
    hy_observer observer = {.user = u, .on_message = listen, .on_step = look};
    hy_config *config = small_run(SMALL_RUN TUNING, out, pairs);
    must(hy_trainer_create(config, &observer, &u->trainer));
    hy_config_destroy(config);
    ck_assert_int_eq(hy_trainer_run(u->trainer), expected);
    hy_trainer_destroy(u->trainer);
}

START_TEST(a_stop_leaves_the_paired_test_to_the_resumed_run) {
    tuned whole = {0};
    char folder[256];
    int owed = 0;
    temp_folder(folder);
    run_to(HY_OK, &whole, "none", PAIRS("steps", "30"));
    ck_assert_uint_gt(whole.said.size, 0);
    for (int stop = 8; stop < 20; stop++) {
        tuned cut = {.stop_at = stop};
        run_to(HY_STOPPED, &cut, folder, PAIRS("steps", "30", "overwrite", "true"));
        owed += saved_number(folder, "rest_owed") == 1;
        cut.stop_at = 0;
        run_to(HY_OK, &cut, folder, PAIRS("steps", "30", "resume", "auto"));
        ck_assert_str_eq(hy_text_string(&cut.said), hy_text_string(&whole.said));
        hy_text_free(&cut.said);
    }
    ck_assert_int_gt(owed, 0);
    hy_text_free(&whole.said);
    remove_folder(folder);
}
END_TEST

/* No room for the copy: nothing is asked, and the run continues. */
START_TEST(a_paired_test_without_room_is_omitted) {
    tuned u = {.stop_at = 30};
    hy_trainer *plan = plan_words(SMALL_RUN TUNING, NULL);
    hy_plan_facts facts = facts_of(plan);
    char limit[32];
    hy_trainer_destroy(plan);
    snprintf(limit, sizeof limit, "%llu",
             (unsigned long long)(facts.vram_bytes + facts.host_pinned_bytes +
                                  facts.data_host_bytes + facts.host_fork_bytes / 2));
    tune(&u, SMALL_RUN TUNING, "none", PAIRS("cpu_mem", limit));
    ck_assert(was_said(&u, "skipping the paired test; prediction stays disabled"));
    ck_assert_uint_eq(u.early + u.last, 0);
    hy_text_free(&u.said);
}
END_TEST

static Suite *ladder_suite(void) {
    Suite *suite = suite_create("ladder");
    TCase *plans = tcase_create("plans"), *runs = tcase_create("runs");
    tcase_set_timeout(plans, 120);
    tcase_set_timeout(runs, 120);
    tcase_add_test(plans, a_profile_says_how_small_types_may_be);
    tcase_add_test(plans, what_is_fixed_stays);
    tcase_add_test(plans, what_is_fixed_may_ask_for_small_types);
    tcase_add_test(plans, what_fits_the_card_stays_fp32);
    tcase_add_test(plans, activations_have_the_type_that_their_bytes_are_for);
    tcase_add_test(plans, reasons_of_a_plan_that_does_not_fit_do_not_say_that_it_fits);
    tcase_add_test(plans, the_reason_for_a_place_names_the_memory_that_is_missing);
    tcase_add_test(plans, prediction_gives_way_as_host_memory_shrinks);
    tcase_add_test(plans, no_hand_set_types_are_much_faster);
    tcase_add_test(plans, disabled_prediction_costs_no_speed);
    tcase_add_test(plans, a_cut_that_nobody_asked_for_is_the_planners_where_state_streams);
    tcase_add_test(plans, a_plan_that_mostly_waits_suggests_a_longer_step);
    tcase_add_test(runs, a_run_keeps_its_types_when_it_is_resumed);
    tcase_add_test(runs, disabled_prediction_takes_no_memory);
    tcase_add_loop_test(runs, a_run_resumed_before_a_paired_test_makes_the_same_test, 0, 4);
    tcase_add_test(runs, a_paired_test_without_room_is_omitted);
    tcase_add_test(runs, a_stop_leaves_the_paired_test_to_the_resumed_run);
    suite_add_tcase(suite, plans);
    suite_add_tcase(suite, runs);
    return suite;
}

HY_TEST_MAIN(ladder_suite)
