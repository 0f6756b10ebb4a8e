/* test_steering.c: micro-batches that change during a run, on a card of which other programs take
 * memory.
 *
 * With any size a step has the same tokens in the same order, so losses differ only by the order of
 * sums. The card is a fake one (fake_card.h): its memory is counted, and tests take some of it. */
#include "fake_card.h"
#include "hybrid_tools.h"
#include "inside.h"
#include "run_facts.h"
#include "small_run.h"

#include <dirent.h>
#include <sys/stat.h>

#include "skipped_time.h"

#define STEPS 24
#define FIRST_BOUND 1e-6 /* relative, at the first step, */
#define TENTH_BOUND 1e-4 /* and at the tenth, of runs that differ in the order of sums */

#define STEERED                                                                                    \
    SMALL_RUN "batch_size 8 steps 60 full_steps 4 correct_steps 2 predict_from 0 predict_until 1 " \
              "confidence_threshold 0.5 tail_share 0.3 tune_cache none precision fp32 "            \
              "precision_correct same monitor silent batch_check_every 1 device cuda "

#define ALL_PINNED                                                                                 \
    "weights_place", "pinned", "master_place", "pinned", "grads_place", "pinned", "optim_place",   \
        "pinned"

static hy_trainer *begin(const char *out, const char *const *pairs) {
    card.others = 0;
    card.memory_free = CARD_BYTES;
    return small_trainer(STEERED, out, NULL, pairs);
}

/* What the monitor knows of the card is at most a second old; tests are faster. */
static void step(hy_trainer *t, hy_step_info *info) {
    skip_time(2);
    must(hy_trainer_step(t, info));
}

static double summary_number(const hy_trainer *t, const char *key) {
    char *text;
    hy_json *json;
    must(hy_trainer_summary_json(t, &text));
    must(hy_json_parse(text, strlen(text), "summary", &json));
    double value = json_number(json, key);
    hy_json_free(json);
    hy_free(text);
    return value;
}

static hy_memory_state memory_of(const hy_trainer *t) {
    hy_memory_state memory;
    must(hy_trainer_memory(t, &memory));
    return memory;
}

/* All that is planned is taken, and no more. */
static void must_hold_what_is_planned(const hy_trainer *t) {
    hy_memory_state memory = memory_of(t);
    ck_assert_uint_eq(memory.device.reserved, facts_of(t).vram_bytes);
    ck_assert_uint_eq(memory.host.reserved, facts_of(t).host_pinned_bytes);
}

static void run_plain(const char *const *pairs, double *losses, int64_t *tokens) {
    hy_trainer *t = begin("none", pairs);
    for (int i = 0; i < STEPS; i++) {
        hy_step_info info;
        step(t, &info);
        losses[i] = info.loss;
        tokens[i] = info.tokens;
    }
    hy_trainer_destroy(t);
}

/* As if the sums were in another order: close at first, drifting slowly. */
static void check_close(int i, double loss, double plain) {
    double bound = i == 0 ? FIRST_BOUND : TENTH_BOUND * fmax(1, (i + 1) / 10.0);
    ck_assert_msg(fabs(loss - plain) <= bound * fabs(plain), "step %d: %.9g, undisturbed %.9g",
                  i + 1, loss, plain);
}

/* ---- changes in place ------------------------------------------------------------------------ */

static void check_changes(const char *const *pairs) {
    static const int64_t sizes[] = {8, 4, 4, 2, 1, 8, 8, 2, 4, 8, 1, 8};
    double plain[STEPS];
    int64_t tokens[STEPS];
    run_plain(pairs, plain, tokens);
    hy_trainer *t = begin("none", pairs);
    inside_set(t, "dynamic_batch", "off"); /* nobody else changes it */
    for (int i = 0; i < STEPS; i++) {
        hy_step_info info;
        if (i % 2 == 0) must(inside_resize(t, sizes[i / 2]));
        step(t, &info);
        check_close(i, info.loss, plain[i]);
        ck_assert_int_eq(info.tokens, tokens[i]);
        ck_assert_int_eq(info.batch_size * info.grad_accum, 8);
        ck_assert_int_eq(info.batch_size, sizes[i / 2]);
        ck_assert_uint_lt(info.bytes_moved, 1 << 30); /* counted on, whatever store is gone */
    }
    ck_assert_int_gt(summary_of(t).moves, 1);
    hy_trainer_destroy(t);
}

static const char *const *const places[] = {
    PAIRS("recompute", "none"),
    PAIRS("recompute", "all"),
    PAIRS("weights_place", "pinned", "grads_place", "pinned", "optim_place", "pinned"),
    PAIRS("weights_place", "pinned", "grads_place", "pinned", "optim_place", "pinned",
          "resident_units", "1"),
    PAIRS("optim_place", "pinned", "update", "gather", "activations_place", "pinned"),
    PAIRS("offload_strategy", "pinned", "lookahead", "2"),
};

/* Among the fast tests half of them see one half of these, and half the other. */
#define EVEN (_i * EVERY(2))
#define ODD (_i * EVERY(2) + EVERY(2) - 1)

START_TEST(a_change_keeps_tokens_order_and_losses) { check_changes(places[ODD]); }
END_TEST

START_TEST(the_same_size_again_changes_no_bit) {
    double plain[STEPS];
    int64_t tokens[STEPS];
    run_plain(places[EVEN], plain, tokens);
    hy_trainer *t = begin("none", places[EVEN]);
    for (int i = 0; i < STEPS; i++) {
        hy_step_info info;
        must(inside_resize(t, 8));
        step(t, &info);
        ck_assert_msg(info.loss == plain[i], "step %d: %.17g, undisturbed %.17g", i + 1, info.loss,
                      plain[i]);
    }
    hy_trainer_destroy(t);
}
END_TEST

START_TEST(what_a_size_needs_is_known_before) {
    hy_trainer *t = begin("none", places[EVEN]);
    static const int64_t sizes[] = {1, 2, 4, 8};
    for (int i = 0; i < 4; i++) {
        uint64_t need;
        must(inside_device_at(t, sizes[i], &need));
        must(inside_resize(t, sizes[i]));
        ck_assert_uint_eq(facts_of(t).vram_bytes, need);
        ck_assert_uint_eq(memory_of(t).device.reserved, need);
    }
    hy_trainer_destroy(t);
}
END_TEST

/* What was measured is not compared: a small micro-batch has less for activations and more for
 * evaluation's workspace behind them, which then is the most that there was, and that a plan had,
 * of it. */
static void check_planned(const hy_summary *now, const hy_summary *before) {
    for (int i = 0; i < HY_CLASS_COUNT * HY_PHASE_COUNT; i++) {
        int cls = i / HY_PHASE_COUNT, phase = i % HY_PHASE_COUNT;
        const hy_memory_cell *a = &now->phases[phase].memory[cls];
        const hy_memory_cell *b = &before->phases[phase].memory[cls];
        ck_assert_int_eq(a->place, b->place);
        ck_assert_int_eq(a->dtype, b->dtype);
        ck_assert_uint_ge(a->planned_bytes, b->planned_bytes);
        if (cls != HY_WORKSPACE) ck_assert_uint_eq(a->planned_bytes, b->planned_bytes);
    }
}

START_TEST(the_figures_of_memory_follow) {
    hy_trainer *t = begin("none", places[ODD]);
    hy_summary before = summary_of(t);
    hy_memory_state held = memory_of(t);
    must(inside_resize(t, 2));
    ck_assert_uint_lt(memory_of(t).device.used, held.device.used);
    must(inside_resize(t, 8));
    hy_memory_state again = memory_of(t);
    for (int cls = 0; cls < HY_CLASS_COUNT; cls++) {
        ck_assert_mem_eq(again.classes[cls].live, held.classes[cls].live,
                         sizeof held.classes[cls].live);
    }
    hy_summary after = summary_of(t);
    check_planned(&after, &before);
    hy_trainer_destroy(t);
}
END_TEST

/* ---- pressure -------------------------------------------------------------------------------- */

/* Others take what is left of the card, but for a page. */
static void fill_card(void) { card.others = card.memory_free - card.live - 4096; }

START_TEST(others_take_memory_and_give_it_back) {
    double plain[STEPS];
    int64_t tokens[STEPS];
    run_plain(PAIRS("recompute", "none"), plain, tokens);
    hy_trainer *t = begin("none", PAIRS("recompute", "none"));
    int64_t least = 8, last = 8;
    for (int i = 0; i < STEPS; i++) {
        hy_step_info info;
        if (i == 4) fill_card();
        if (i == 10) card.others = 0;
        step(t, &info);
        check_close(i, info.loss, plain[i]);
        ck_assert_int_eq(info.tokens, tokens[i]);
        if (info.batch_size < least) least = info.batch_size;
        if (i > 12) ck_assert_int_ge(info.batch_size, last); /* it only grows back */
        last = info.batch_size;
    }
    ck_assert_int_lt(least, 8);
    ck_assert_int_eq(last, 8);
    ck_assert_double_ge(summary_number(t, "batch_changes"), 2);
    hy_trainer_destroy(t);
}
END_TEST

/* A plan that fills its budget has no room below the target, but what it had it may have again. */
START_TEST(a_full_plan_grows_back_to_what_it_was) {
    hy_trainer *t = begin("none", PAIRS("recompute", "none"));
    uint64_t taken = facts_of(t).vram_bytes;
    int64_t least = 8, last = 8;
    hy_trainer_destroy(t);
    card.memory_free = ((size_t)256 << 20) + taken + taken / 50;
    t = small_trainer(STEERED, "none", NULL, PAIRS("recompute", "none"));
    ck_assert_int_eq(facts_of(t).batch_size, 8);
    for (int i = 0; i < STEPS; i++) {
        hy_step_info info;
        if (i == 4) fill_card();
        if (i == 10) card.others = 0;
        step(t, &info);
        if (info.batch_size < least) least = info.batch_size;
        last = info.batch_size;
    }
    ck_assert_int_lt(least, 8);
    ck_assert_int_eq(last, 8);
    hy_trainer_destroy(t);
}
END_TEST

START_TEST(a_run_can_keep_its_micro_batch_fixed) {
    hy_trainer *t = begin("none", PAIRS("dynamic_batch", "off"));
    for (int i = 0; i < 10; i++) {
        hy_step_info info;
        if (i == 4) fill_card();
        step(t, &info);
        ck_assert_int_eq(info.batch_size, 8);
    }
    hy_trainer_destroy(t);
}
END_TEST

START_TEST(it_never_leaves_its_bounds) {
    hy_trainer *t = begin("none", PAIRS("min_batch_size", "4"));
    for (int i = 0; i < 12; i++) {
        hy_step_info info;
        if (i == 2) fill_card();
        if (i == 6) card.others = 0;
        step(t, &info);
        ck_assert_int_ge(info.batch_size, 4);
        ck_assert_int_le(info.batch_size, 8);
    }
    hy_trainer_destroy(t);
}
END_TEST

/* Sums of means over micro-batches are other sums when they are split otherwise. */
START_TEST(a_split_that_would_change_the_loss_is_not_made) {
    hy_trainer *t = begin("none", PAIRS("normalize", "false", "grad_accum_steps", "2"));
    for (int i = 0; i < 12; i++) {
        hy_step_info info;
        if (i == 2) fill_card();
        if (i == 6) card.others = 0;
        step(t, &info);
        ck_assert_int_eq(info.batch_size, 8);
        ck_assert_int_eq(info.grad_accum, 2);
    }
    hy_trainer_destroy(t);
}
END_TEST

/* ---- the fastest ----------------------------------------------------------------------------- */

/* Which one is fastest is the machine's business; that they are tried in optimizer steps is
 * ours. */
START_TEST(the_first_steps_try_a_few_sizes) {
    const char *const *kept = PAIRS("step_tokens", "256", "dynamic_batch", "on");
    double plain[STEPS];
    int64_t tokens[STEPS], sizes = 0, settled = 0;
    run_plain(kept, plain, tokens);
    char folder[256];
    hy_trainer *t =
        begin(temp_folder(folder), PAIRS("step_tokens", "256", "dynamic_batch", "auto"));
    int64_t last = facts_of(t).batch_size;
    for (int i = 0; i < STEPS; i++) {
        hy_step_info info;
        step(t, &info);
        check_close(i, info.loss, plain[i]);
        ck_assert_int_eq(info.tokens, tokens[i]);
        sizes += i < 9 && info.batch_size != last;
        if (i == 10) settled = info.batch_size;
        if (i > 10) ck_assert_int_eq(info.batch_size, settled);
        last = info.batch_size;
    }
    ck_assert_int_ge(sizes, 1);
    must(hy_trainer_save(t));
    ck_assert_double_eq(saved_number(folder, "split.first_batch_size"), (double)settled);
    hy_trainer_destroy(t);
    remove_folder(folder);
}
END_TEST

/* ---- out of memory --------------------------------------------------------------------------- */

START_TEST(a_step_that_runs_out_is_done_again) {
    double plain[STEPS];
    int64_t tokens[STEPS];
    run_plain(NULL, plain, tokens);
    hy_trainer *t = begin("none", NULL);
    for (int i = 0; i < STEPS; i++) {
        hy_step_info info;
        card.refused_launches = i % 3; /* twice in a row: with smaller micro-batches */
        step(t, &info);
        check_close(i, info.loss, plain[i]);
        if (i < 2) ck_assert(info.loss == plain[i]); /* the split has not changed yet */
    }
    ck_assert_double_gt(summary_number(t, "recoveries"), 10);
    hy_trainer_destroy(t);
}
END_TEST

START_TEST(after_too_many_in_a_row_the_run_is_saved) {
    char folder[256];
    temp_folder(folder);
    hy_config *config = small_run(STEERED, folder, PAIRS("predictor", "none", "tail_share", "0"));
    hy_trainer *t;
    double plain[6], resumed[3];
    card.others = 0;
    must(hy_trainer_create(config, NULL, &t));
    next_losses(t, 6, plain);
    hy_trainer_destroy(t);
    must(hy_config_set(config, "overwrite", "true", HY_FROM_CALLER));
    must(hy_trainer_create(config, NULL, &t));
    next_losses(t, 3, resumed);
    card.refused_launches = 1000000;
    ck_assert_int_eq(hy_trainer_run(t), HY_ERR_MEMORY);
    ck_assert_ptr_nonnull(strstr(hy_error_message(), "the launch failed"));
    ck_assert_ptr_nonnull(strstr(hy_error_message(), "--resume continues it"));
    card.refused_launches = 0;
    hy_trainer_destroy(t);
    must(hy_config_set(config, "resume", "auto", HY_FROM_CALLER));
    must(hy_trainer_create(config, NULL, &t));
    ck_assert_int_eq(summary_of(t).steps, 3);
    next_losses(t, 3, resumed);
    for (int i = 0; i < 3; i++) check_close(i + 3, resumed[i], plain[i + 3]);
    hy_trainer_destroy(t);
    hy_config_destroy(config);
    remove_folder(folder);
}
END_TEST

/* 3 chunks of 128 rows become 4, but 3 of 96 rows stay 3. */
START_TEST(a_smaller_micro_batch_has_the_same_chunks_after_a_resume) {
    char folder[256];
    temp_folder(folder);
    hy_config *config =
        small_run(STEERED, folder,
                  PAIRS("batch_size", "4", "grad_accum_steps", "3", "seq_len", "32", "loss_chunks",
                        "3", "mlp_chunks", "3", "predictor", "none", "dynamic_batch", "off"));
    hy_trainer *t;
    double losses[4], resumed[2];
    card.others = 0;
    must(hy_trainer_create(config, NULL, &t));
    ck_assert_int_eq(plan_number(t, "choices.loss_chunks"), 4);
    must(inside_resize(t, 3));
    must_hold_what_is_planned(t);
    ck_assert_int_eq(plan_number(t, "choices.loss_chunks"), 3);
    ck_assert_int_eq(plan_number(t, "choices.mlp_chunks"), 3);
    next_losses(t, 2, losses);
    must(hy_trainer_save(t));
    next_losses(t, 2, losses + 2);
    hy_trainer_destroy(t);
    must(hy_config_set(config, "resume", "auto", HY_FROM_CALLER));
    must(hy_trainer_create(config, NULL, &t));
    ck_assert_int_eq(plan_number(t, "choices.batch_size"), 3);
    ck_assert_int_eq(plan_number(t, "choices.loss_chunks"), 3);
    next_losses(t, 2, resumed);
    ck_assert_mem_eq(resumed, losses + 2, sizeof resumed);
    hy_trainer_destroy(t);
    hy_config_destroy(config);
    remove_folder(folder);
}
END_TEST

/* The rest of the machine wants more than there is: as if another program had taken it. */
START_TEST(a_run_is_saved_before_the_system_kills_it) {
    char folder[256];
    temp_folder(folder);
    hy_trainer *t =
        small_trainer(STEERED, folder, _i ? "cpu" : NULL, PAIRS("recompute", "all", "steps", "40"));
    double losses[3];
    next_losses(t, 3, losses);
    inside_set(t, "host_reserve", "1125899906842624");
    ck_assert_int_eq(hy_trainer_run(t), HY_ERR_MEMORY);
    ck_assert_ptr_nonnull(strstr(hy_error_message(), "the machine is running out of memory"));
    ck_assert_ptr_nonnull(strstr(hy_error_message(), "--resume continues it"));
    ck_assert_int_lt(summary_of(t).steps, 40);
    ck_assert_double_eq(saved_number(folder, "step"), (double)summary_of(t).steps);
    hy_trainer_destroy(t);
    remove_folder(folder);
}
END_TEST

START_TEST(a_run_that_would_take_the_reserve_does_not_begin) {
    hy_config *config = small_run(STEERED, "none", PAIRS("host_reserve", "500TiB"));
    hy_trainer *t;
    ck_assert_int_eq(hy_trainer_create(config, NULL, &t), HY_ERR_INPUT);
    ck_assert_ptr_nonnull(strstr(hy_error_message(), "host_reserve"));
    hy_config_destroy(config);
}
END_TEST

/* What is free at the start is not there when it is asked for. */
START_TEST(a_plan_that_cannot_be_had_is_made_smaller) {
    hy_trainer *t = begin("none", PAIRS("recompute", "auto"));
    uint64_t taken = facts_of(t).vram_bytes;
    hy_trainer_destroy(t);
    card.memory_free = CARD_BYTES;
    card.others = 0;
    card.hidden = CARD_BYTES - taken * 9 / 10; /* the driver does not tell of it */
    t = small_trainer(STEERED, "none", NULL, PAIRS("recompute", "auto"));
    card.hidden = 0;
    ck_assert_uint_lt(facts_of(t).vram_bytes, taken * 9 / 10);
    hy_step_info info;
    step(t, &info);
    ck_assert_int_eq(info.batch_size * info.grad_accum, 8);
    hy_trainer_destroy(t);
}
END_TEST

/* ---- a cheaper plan -------------------------------------------------------------------------- */

/* Where the optimizer's state is now, but for layers that stay on the device. */
static hy_place optim_place(const hy_trainer *t) {
    hy_memory_state memory = memory_of(t);
    hy_place place = memory.classes[HY_OPTIM].place;
    ck_assert_uint_gt(memory.classes[HY_OPTIM].live[place], 0);
    return place;
}

/* State leaves the card, its rings get another depth, and it comes back; what the run keeps is
 * where the plan says, as much as the plan says. */
START_TEST(another_plan_in_mid_run_changes_no_bit) {
    const char *const *pairs =
        PAIRS("recompute", "all", "batch_size", "1", "grad_accum_steps", "8", "tail_share", "0");
    double plain[STEPS];
    int64_t tokens[STEPS];
    run_plain(pairs, plain, tokens);
    hy_trainer *t = begin("none", pairs);
    uint64_t before = facts_of(t).vram_bytes;
    for (int i = 0; i < STEPS; i++) {
        hy_step_info info;
        if (i == 7) {
            hy_phase_summary full = summary_of(t).phases[HY_FULL];
            uint64_t work = full.memory[HY_ACTIVATIONS].planned_bytes +
                            full.memory[HY_WORKSPACE].planned_bytes +
                            full.memory[HY_DATA].planned_bytes;
            must(inside_replan(t, before - (before - work) / 2));
            ck_assert_uint_lt(facts_of(t).vram_bytes, before);
            ck_assert_int_eq(facts_of(t).batch_size, 1);
            ck_assert_int_eq(optim_place(t), HY_PINNED);
        }
        if (i == 10) {
            inside_set(t, "ring_depth", "4");
            inside_set(t, "resident_units", "1");
            inside_set(t, "optim_place", "pinned");
            must(inside_replan(t, 0));
            ck_assert_int_eq(plan_number(t, "choices.ring_depth"), 4);
            ck_assert_int_eq(optim_place(t), HY_PINNED);
            must_hold_what_is_planned(t);
        }
        if (i == 13) {
            inside_set(t, "ring_depth", "0");
            inside_set(t, "resident_units", "-1");
            inside_set(t, "optim_place", "auto");
            must(inside_replan(t, 0));
            ck_assert_uint_eq(facts_of(t).vram_bytes, before);
            ck_assert_int_eq(optim_place(t), HY_DEVICE);
        }
        step(t, &info);
        ck_assert_msg(info.loss == plain[i], "step %d: %.17g, undisturbed %.17g", i + 1, info.loss,
                      plain[i]);
        must_hold_what_is_planned(t);
    }
    hy_trainer_destroy(t);
}
END_TEST

/* To other places in Predict and back, or to more layers that stay on the device and to none; one
 * allocation of one of these changes is refused. Returns how many there were. */
static int64_t change_places(bool are_layers, int when, int64_t at, int64_t tries,
                             const double *plain) {
    char text[24];
    int64_t asked = 0;
    snprintf(text, sizeof text, "%lld", (long long)tries);
    const char *const *moving = PAIRS("offload_strategy", "pinned", "dynamic_batch", "off",
                                      "seq_len", "8", "recovery_tries", text);
    const char *const *layers =
        PAIRS(ALL_PINNED, "resident_units", "1", "layers", "3", "dynamic_batch", "off", "seq_len",
              "8", "recovery_tries", text);
    hy_trainer *t = begin("none", are_layers ? layers : moving);
    for (int i = 0; i < 18; i++) {
        hy_step_info info;
        if (i == 8 || i == 12) {
            if (are_layers) {
                inside_set(t, "resident_units", i == 8 ? "2" : "0");
            } else {
                inside_set(t, "optim_place", i == 8 ? "pinned" : "auto");
                inside_set(t, "grads_place", i == 8 ? "pinned" : "auto");
            }
            card.takings = 0;
            card.refused_taking = i == when ? at : 0;
            hy_status status = inside_replan(t, 0);
            bool is_refused = card.refused_taking && tries == 0;
            card.refused_taking = 0;
            if (i == when) asked = card.takings;
            ck_assert_int_eq(status, is_refused ? HY_ERR_INPUT : HY_OK);
            ck_assert_uint_eq(memory_of(t).device.reserved, facts_of(t).vram_bytes);
        }
        step(t, &info);
        if (plain) ck_assert_msg(info.loss == plain[i], "step %d, refused %d", i + 1, (int)at);
    }
    hy_trainer_destroy(t);
    return asked;
}

/* With another try all of it is there; without, the run continues as it was. */
START_TEST(what_is_refused_on_the_way_to_another_plan_changes_no_bit) {
    static const int half[] = {0, 3, 5, 6}; /* each pair of what differs occurs in one of them */
    int at_case = EVERY(2) == 1 ? _i : half[_i], when = at_case % 4 < 2 ? 8 : 12;
    bool are_layers = at_case >= 4;
    double plain[STEPS];
    int64_t tokens[STEPS];
    run_plain(are_layers
                  ? PAIRS("layers", "3", "dynamic_batch", "off", "seq_len", "8")
                  : PAIRS("offload_strategy", "pinned", "dynamic_batch", "off", "seq_len", "8"),
              plain, tokens);
    int64_t count = change_places(are_layers, when, 0, 0, plain);
    ck_assert_int_gt(count, 8);
    for (int64_t at = count; at > 0; at -= at > count - 5 ? 1 : 7)
        change_places(are_layers, when, at, at_case % 2, plain);
}
END_TEST

/* The sizes of files in a folder that this process has open, whether they have names or not. */
static uint64_t open_bytes_in(const char *folder) {
    uint64_t bytes = 0;
    DIR *dir = opendir("/proc/self/fd");
    ck_assert_ptr_nonnull(dir);
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        char link[300], target[600] = "";
        struct stat facts;
        snprintf(link, sizeof link, "/proc/self/fd/%s", entry->d_name);
        if (readlink(link, target, sizeof target - 1) <= 0) continue;
        bool is_there = strncmp(target, folder, strlen(folder)) == 0;
        if (is_there && stat(link, &facts) == 0) bytes += (uint64_t)facts.st_size;
    }
    closedir(dir);
    return bytes;
}

/* Pinned or on disk, more layers stay and fewer, through all phases: what is taken is what was
 * planned, and the file does not grow with every change. */
START_TEST(other_resident_layers_change_no_bit) {
    char folder[256];
    temp_folder(folder);
    const char *const *const kinds[] = {
        PAIRS(ALL_PINNED, "layers", "3", "optimizer", "adamw8bit"),
        PAIRS("weights_place", "disk", "master_place", "disk", "grads_place", "disk", "optim_place",
              "disk", "offload_folder", folder, "offload_size", "1GiB", "layers", "3"),
        PAIRS(ALL_PINNED, "layers", "3", "precision", "bf16", "update", "gather"),
    };
    static const int residents[] = {2, 0, 1, 3, 1, 2};
    double plain[STEPS];
    int64_t tokens[STEPS];
    uint64_t most_disk = 0, most = 0, least = UINT64_MAX;
    run_plain(kinds[_i], plain, tokens);
    hy_trainer *t = begin("none", kinds[_i]);
    for (int i = 0; i < STEPS; i++) {
        hy_step_info info;
        if (i % 4 == 3) {
            char count[8];
            snprintf(count, sizeof count, "%d", residents[i / 4]);
            inside_set(t, "resident_units", count);
            must(inside_replan(t, 0));
            ck_assert_int_eq(plan_number(t, "choices.resident_units"), residents[i / 4]);
        }
        if (i % 4 == 1) { /* the same ones in another ring */
            char depth[8];
            snprintf(depth, sizeof depth, "%d", 2 + i % 3);
            inside_set(t, "ring_depth", depth);
            must(inside_replan(t, 0));
        }
        must_hold_what_is_planned(t);
        hy_plan_facts facts = facts_of(t);
        if (facts.disk_bytes > most_disk) most_disk = facts.disk_bytes;
        uint64_t elsewhere = facts.host_pinned_bytes + facts.disk_bytes;
        if (elsewhere > most) most = elsewhere;
        if (elsewhere < least) least = elsewhere;
        step(t, &info);
        ck_assert_msg(info.loss == plain[i], "step %d: %.17g, undisturbed %.17g", i + 1, info.loss,
                      plain[i]);
        uint64_t disk = 0;
        hy_memory_state memory = memory_of(t);
        for (int cls = 0; cls < HY_CLASS_COUNT; cls++) disk += memory.classes[cls].live[HY_DISK];
        if (info.phase != HY_PREDICT) ck_assert_uint_eq(disk, facts.disk_bytes); /* no gradients */
        ck_assert_uint_le(open_bytes_in(folder), 2 * most_disk);
    }
    ck_assert_uint_lt(least, most);
    hy_trainer_destroy(t);
    remove_folder(folder);
}
END_TEST

/* A run with adapters beside a model's files: its checkpoints name these and do not hold them. */
START_TEST(weights_that_no_checkpoint_holds_move_with_their_numbers) {
    static const char *const homes[] = {"pinned", "device", "pinned"};
    char folder[256], base[300], model[400];
    double plain[STEPS];
    int64_t tokens[STEPS];
    snprintf(base, sizeof base, "%s/base", temp_folder(folder));
    snprintf(model, sizeof model, "%s/model", base);
    hy_trainer *t = small_trainer(SMALL_RUN "steps 1 predictor none ", base, NULL, NULL);
    must(hy_trainer_run(t));
    hy_trainer_destroy(t);
    const char *const *pairs = PAIRS("model", model, "lora", "true", "weights_place", "device");
    run_plain(pairs, plain, tokens);
    t = begin("none", pairs);
    for (int i = 0; i < STEPS; i++) {
        hy_step_info info;
        if (i % 4 == 1 && i / 4 < 3) {
            inside_set(t, "weights_place", homes[i / 4]);
            must(inside_replan(t, 0));
            must_plan(t, "choices.weights_place", homes[i / 4]);
        }
        step(t, &info);
        ck_assert_msg(info.loss == plain[i], "step %d: %.17g, undisturbed %.17g", i + 1, info.loss,
                      plain[i]);
    }
    hy_trainer_destroy(t);
    remove_folder(folder);
}
END_TEST

/* State cannot go to a folder that is none: it is where it was. */
START_TEST(a_place_that_is_refused_is_not_taken) {
    hy_trainer *t = begin("none", PAIRS("dynamic_batch", "off"));
    double losses[2];
    next_losses(t, 1, losses);
    inside_set(t, "offload_folder", "/dev/null");
    inside_set(t, "offload_size", "1073741824");
    inside_set(t, "optim_place", "disk");
    ck_assert_int_eq(inside_replan(t, 0), HY_ERR_INPUT);
    ck_assert_ptr_nonnull(strstr(hy_error_message(), "/dev/null"));
    ck_assert_int_eq(optim_place(t), HY_DEVICE);
    next_losses(t, 1, losses);
    hy_trainer_destroy(t);
}
END_TEST

/* What cannot be less is left as it is. */
START_TEST(a_plan_that_needs_no_less_is_not_taken) {
    hy_trainer *t = begin("none", PAIRS("recompute", "all", "batch_size", "1", "optim_place",
                                        "device", "grads_place", "device", "weights_place",
                                        "device", "activations_place", "device"));
    hy_plan_facts before = facts_of(t), after;
    ck_assert_int_eq(inside_replan(t, 1), HY_ERR_INPUT);
    after = facts_of(t);
    ck_assert_mem_eq(&after, &before, sizeof before);
    double loss;
    next_losses(t, 1, &loss);
    hy_trainer_destroy(t);
}
END_TEST

/* There is nothing left of the card for another plan: the run is saved, and its handle still
 * answers. */
START_TEST(a_run_that_finds_no_other_plan_is_saved) {
    char folder[256];
    temp_folder(folder);
    hy_trainer *t = begin(folder, PAIRS("predictor", "none", "recovery_tries", "1"));
    double losses[3];
    hy_summary summary;
    next_losses(t, 3, losses);
    card.hidden = CARD_BYTES;
    ck_assert_int_eq(inside_give_up(t, inside_replan(t, 0)), HY_ERR_MEMORY);
    card.hidden = 0;
    ck_assert_ptr_nonnull(strstr(hy_error_message(), "--resume continues it"));
    hy_trainer_summary(t, &summary);
    ck_assert_str_eq(summary.out, folder);
    hy_memory_state state;
    hy_savings savings;
    must(hy_trainer_memory(t, &state));
    must(hy_trainer_savings(t, &savings));
    ck_assert_int_eq(hy_trainer_step(t, NULL), HY_ERR_STATE);
    hy_trainer_destroy(t);
    t = small_trainer(STEERED, folder, NULL, PAIRS("predictor", "none", "resume", "auto"));
    ck_assert_int_eq(summary_of(t).steps, 3);
    hy_trainer_destroy(t);
    remove_folder(folder);
}
END_TEST

/* Not even the smallest micro-batch fits: the state can still be saved. */
START_TEST(a_run_without_memory_to_work_in_can_be_saved) {
    char folder[256];
    temp_folder(folder);
    hy_trainer *t = begin(folder, PAIRS("predictor", "none"));
    double losses[3];
    hy_eval_info eval;
    next_losses(t, 3, losses);
    card.hidden = CARD_BYTES;
    ck_assert_int_eq(inside_resize(t, 4), HY_ERR_MEMORY);
    card.hidden = 0;
    ck_assert_int_eq(hy_trainer_step(t, NULL), HY_ERR_STATE);
    ck_assert_int_eq(hy_trainer_evaluate(t, &eval), HY_ERR_STATE);
    must(hy_trainer_save(t));
    hy_trainer_destroy(t);
    t = small_trainer(STEERED, folder, NULL, PAIRS("predictor", "none", "resume", "auto"));
    ck_assert_int_eq(summary_of(t).steps, 3);
    hy_trainer_destroy(t);
    remove_folder(folder);
}
END_TEST

static Suite *steering_suite(void) {
    Suite *suite = suite_create("steering");
    TCase *change = tcase_create("changes"), *pressure = tcase_create("pressure");
    TCase *refusal = tcase_create("refusal");
    tcase_set_timeout(change, 120);
    tcase_set_timeout(pressure, 120);
    int rows = COUNT_EVERY((int)(sizeof places / sizeof places[0]), 2);
    tcase_add_loop_test(change, a_change_keeps_tokens_order_and_losses, 0, rows);
    tcase_add_loop_test(change, the_same_size_again_changes_no_bit, 0, rows);
    tcase_add_loop_test(change, what_a_size_needs_is_known_before, 0, rows);
    tcase_add_loop_test(change, the_figures_of_memory_follow, 0, rows);
    tcase_add_test(change, a_split_that_would_change_the_loss_is_not_made);
    tcase_add_test(change, another_plan_in_mid_run_changes_no_bit);
    tcase_add_loop_test(change, other_resident_layers_change_no_bit, 0, 3);
    tcase_add_test(change, weights_that_no_checkpoint_holds_move_with_their_numbers);
    tcase_add_loop_test(refusal, what_is_refused_on_the_way_to_another_plan_changes_no_bit, 0,
                        COUNT_EVERY(8, 2));
    tcase_add_test(refusal, a_place_that_is_refused_is_not_taken);
    tcase_add_test(refusal, a_plan_that_needs_no_less_is_not_taken);
    tcase_add_test(change, a_run_that_finds_no_other_plan_is_saved);
    tcase_add_test(change, a_run_without_memory_to_work_in_can_be_saved);
    tcase_add_test(pressure, others_take_memory_and_give_it_back);
    tcase_add_test(pressure, a_full_plan_grows_back_to_what_it_was);
    tcase_add_test(pressure, a_run_can_keep_its_micro_batch_fixed);
    tcase_add_test(pressure, it_never_leaves_its_bounds);
    tcase_add_test(pressure, the_first_steps_try_a_few_sizes);
    tcase_add_test(pressure, a_step_that_runs_out_is_done_again);
    tcase_add_test(pressure, after_too_many_in_a_row_the_run_is_saved);
    tcase_add_test(pressure, a_smaller_micro_batch_has_the_same_chunks_after_a_resume);
    tcase_add_loop_test(pressure, a_run_is_saved_before_the_system_kills_it, 0, 2);
    tcase_add_test(pressure, a_run_that_would_take_the_reserve_does_not_begin);
    tcase_add_test(pressure, a_plan_that_cannot_be_had_is_made_smaller);
    suite_add_tcase(suite, change);
    suite_add_tcase(suite, pressure);
    tcase_set_timeout(refusal, 120);
    suite_add_tcase(suite, refusal);
    return suite;
}

HY_TEST_MAIN(steering_suite)
