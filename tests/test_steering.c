/* test_steering.c: micro-batches that change while a run goes on, on a card that others take memory of.
 *
 * Whatever the size, a step has the same tokens in the same order, so losses stay within what another
 * order of sums gives. The card is a fake one (fake_card.h): its memory is counted, and tests take some. */
#include "fake_card.h"
#include "hybrid_tools.h"
#include "small_run.h"

#include <math.h>

#include "base/json.h"
#include "trainer/monitor.h"
#include "trainer/trainer.h"

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
    if (t->monitor) t->monitor->asked_at = t->monitor->looked_at = 0;
    must(hy_trainer_step(t, info));
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

/* ---- changes in place ------------------------------------------------------------------------------ */

static void check_changes(const char *const *pairs) {
    static const int64_t sizes[] = {8, 4, 4, 2, 1, 8, 8, 2, 4, 8, 1, 8};
    double plain[STEPS];
    int64_t tokens[STEPS];
    run_plain(pairs, plain, tokens);
    hy_trainer *t = begin("none", pairs);
    t->settings.train.dynamic_batch = HY_OFF; /* nobody else changes it */
    for (int i = 0; i < STEPS; i++) {
        hy_step_info info;
        if (i % 2 == 0) must(hy_trainer_resize(t, sizes[i / 2], "a test asks for it"));
        step(t, &info);
        check_close(i, info.loss, plain[i]);
        ck_assert_int_eq(info.tokens, tokens[i]);
        ck_assert_int_eq(info.batch_size * info.grad_accum, 8);
        ck_assert_int_eq(info.batch_size, sizes[i / 2]);
        ck_assert_uint_lt(info.bytes_moved, 1 << 30); /* counted on, whatever store is gone */
    }
    ck_assert_int_gt(t->progress.machine.moves, 1);
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

START_TEST(a_change_keeps_tokens_order_and_losses) { check_changes(places[_i]); }
END_TEST

START_TEST(the_same_size_again_changes_no_bit) {
    double plain[STEPS];
    int64_t tokens[STEPS];
    run_plain(places[_i], plain, tokens);
    hy_trainer *t = begin("none", places[_i]);
    for (int i = 0; i < STEPS; i++) {
        hy_step_info info;
        must(hy_trainer_resize(t, 8, "a test asks for it"));
        step(t, &info);
        ck_assert_msg(info.loss == plain[i], "step %d: %.17g, undisturbed %.17g", i + 1, info.loss,
                      plain[i]);
    }
    hy_trainer_destroy(t);
}
END_TEST

START_TEST(what_a_size_needs_is_known_before) {
    hy_trainer *t = begin("none", places[_i]);
    static const int64_t sizes[] = {1, 2, 4, 8};
    for (int i = 0; i < 4; i++) {
        hy_plan need;
        must(hy_trainer_work_at(t, sizes[i], &need));
        must(hy_trainer_resize(t, sizes[i], "a test asks for it"));
        ck_assert_uint_eq(need.work.activations, t->engine.plan.work.activations);
        ck_assert_uint_eq(need.work.workspace, t->engine.plan.work.workspace);
        ck_assert_uint_eq(need.work.data, t->engine.plan.work.data);
        hy_plan_facts facts;
        hy_trainer_plan_facts(t, &facts);
        ck_assert_uint_eq(facts.vram_bytes, need.device);
        ck_assert_uint_eq(facts.vram_bytes, hy_engine_reserved(&t->engine, HY_DEVICE));
    }
    hy_trainer_destroy(t);
}
END_TEST

/* What was measured is not compared: a small micro-batch has less for activations and more for evaluation's
 * workspace behind them, which then is the most that there was, and that a plan had, of it. */
static void check_planned(const hy_ledger *now, const hy_ledger *before) {
    for (int i = 0; i < HY_CLASS_COUNT * HY_PHASE_COUNT; i++) {
        const hy_cell *a = &now->cell[i / HY_PHASE_COUNT][i % HY_PHASE_COUNT];
        const hy_cell *b = &before->cell[i / HY_PHASE_COUNT][i % HY_PHASE_COUNT];
        ck_assert_int_eq(a->place, b->place);
        ck_assert_int_eq(a->dtype, b->dtype);
        ck_assert_uint_ge(a->planned, b->planned);
        if (i / HY_PHASE_COUNT != HY_WORKSPACE) ck_assert_uint_eq(a->planned, b->planned);
    }
}

START_TEST(the_ledger_follows) {
    hy_trainer *t = begin("none", places[_i]);
    hy_ledger before = t->engine.state.ledger;
    must(hy_trainer_resize(t, 2, "a test asks for it"));
    ck_assert_uint_lt(t->engine.state.ledger.live_in[HY_DEVICE], before.live_in[HY_DEVICE]);
    must(hy_trainer_resize(t, 8, "a test asks for it"));
    ck_assert_mem_eq(t->engine.state.ledger.live, before.live, sizeof before.live);
    check_planned(&t->engine.state.ledger, &before);
    hy_trainer_destroy(t);
}
END_TEST

/* ---- pressure -------------------------------------------------------------------------------------- */

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
    ck_assert_int_ge(t->fate.batch_changes, 2);
    hy_trainer_destroy(t);
}
END_TEST

/* A plan that fills its budget has no room below the target, but what it had it may have again. */
START_TEST(a_full_plan_grows_back_to_what_it_was) {
    hy_trainer *t = begin("none", PAIRS("recompute", "none"));
    uint64_t taken = t->facts.vram_bytes;
    int64_t least = 8, last = 8;
    hy_trainer_destroy(t);
    card.memory_free = ((size_t)256 << 20) + taken + taken / 50;
    t = small_trainer(STEERED, "none", NULL, PAIRS("recompute", "none"));
    ck_assert_int_eq(t->engine.plan.choice.batch, 8);
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

START_TEST(a_run_may_be_told_to_keep_its_size) {
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
    ck_assert_int_eq(hy_smaller_batch(t), 0);
    ck_assert_int_eq(hy_larger_batch(t), 0);
    hy_trainer_destroy(t);
}
END_TEST

/* ---- the fastest ----------------------------------------------------------------------------------- */

/* Which one is fastest is the machine's business; that they are tried in optimizer steps is ours. */
START_TEST(the_first_steps_try_a_few_sizes) {
    const char *const *kept = PAIRS("step_tokens", "256", "dynamic_batch", "on");
    double plain[STEPS];
    int64_t tokens[STEPS], sizes = 0, settled = 0;
    run_plain(kept, plain, tokens);
    hy_trainer *t = begin("none", PAIRS("step_tokens", "256", "dynamic_batch", "auto"));
    int64_t last = t->engine.plan.choice.batch;
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
    ck_assert_int_eq(t->steering.trials, 0);
    ck_assert_int_eq(t->first_batch, settled);
    hy_trainer_destroy(t);
}
END_TEST

/* ---- out of memory --------------------------------------------------------------------------------- */

/* The card refuses the next launches. */
static int refused;
static hy_status (*true_enqueue)(hy_stream *s, const hy_op_call *call);

static hy_status refuse(hy_stream *s, const hy_op_call *call) {
    if (refused <= 0) return true_enqueue(s, call);
    refused--;
    return hy_fail(HY_ERR_MEMORY, "a launch could not be had");
}

START_TEST(a_step_that_runs_out_is_done_again) {
    double plain[STEPS];
    int64_t tokens[STEPS];
    run_plain(NULL, plain, tokens);
    hy_trainer *t = begin("none", NULL);
    true_enqueue = t->engine.device.backend->enqueue;
    t->engine.device.backend->enqueue = refuse;
    for (int i = 0; i < STEPS; i++) {
        hy_step_info info;
        refused = i % 3; /* twice in a row: with smaller micro-batches */
        step(t, &info);
        check_close(i, info.loss, plain[i]);
        if (i < 2) ck_assert(info.loss == plain[i]); /* the split has not changed yet */
    }
    ck_assert_int_gt(t->engine.retries.count, 10);
    t->engine.device.backend->enqueue = true_enqueue;
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
    true_enqueue = t->engine.device.backend->enqueue;
    t->engine.device.backend->enqueue = refuse;
    refused = 1000000;
    ck_assert_int_eq(hy_trainer_run(t), HY_ERR_MEMORY);
    ck_assert_ptr_nonnull(strstr(hy_error_message(), "a launch could not be had"));
    ck_assert_ptr_nonnull(strstr(hy_error_message(), "--resume goes on with it"));
    t->engine.device.backend->enqueue = true_enqueue;
    hy_trainer_destroy(t);
    must(hy_config_set(config, "resume", "auto", HY_FROM_CALLER));
    must(hy_trainer_create(config, NULL, &t));
    ck_assert_int_eq(t->progress.step, 3);
    next_losses(t, 3, resumed);
    for (int i = 0; i < 3; i++) check_close(i + 3, resumed[i], plain[i + 3]);
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
    t->settings.memory.host_reserve = (int64_t)1 << 50;
    ck_assert_int_eq(hy_trainer_run(t), HY_ERR_MEMORY);
    ck_assert_ptr_nonnull(strstr(hy_error_message(), "the machine is running out of memory"));
    ck_assert_ptr_nonnull(strstr(hy_error_message(), "--resume goes on with it"));
    ck_assert_int_lt(t->progress.step, 40);
    ck_assert_int_eq(t->fate.saved_step, t->progress.step);
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
    uint64_t taken = t->facts.vram_bytes;
    hy_trainer_destroy(t);
    card.memory_free = CARD_BYTES;
    card.others = 0;
    card.hidden = CARD_BYTES - taken * 9 / 10; /* the driver does not tell of it */
    t = small_trainer(STEERED, "none", NULL, PAIRS("recompute", "auto"));
    card.hidden = 0;
    ck_assert_uint_lt(t->facts.vram_bytes, taken * 9 / 10);
    hy_step_info info;
    step(t, &info);
    ck_assert_int_eq(info.batch_size * info.grad_accum, 8);
    hy_trainer_destroy(t);
}
END_TEST

/* ---- a cheaper plan -------------------------------------------------------------------------------- */

/* Where the optimizer's state is now. */
static hy_place optim_place(const hy_trainer *t) {
    return hy_store_of(&t->engine, HY_ROW_OPTIM)->place;
}

/* State leaves the card, its rings get another depth, and it comes back; what the run keeps is where the
 * plan says, as much as the plan says. */
START_TEST(another_plan_in_mid_run_changes_no_bit) {
    const char *const *pairs =
        PAIRS("recompute", "all", "batch_size", "1", "grad_accum_steps", "8", "tail_share", "0");
    double plain[STEPS];
    int64_t tokens[STEPS];
    run_plain(pairs, plain, tokens);
    hy_trainer *t = begin("none", pairs);
    uint64_t before = t->facts.vram_bytes;
    for (int i = 0; i < STEPS; i++) {
        hy_step_info info;
        if (i == 7) {
            hy_plan need;
            must(hy_trainer_work_at(t, 1, &need));
            uint64_t work = need.work.activations + need.work.workspace + need.work.data;
            must(hy_trainer_replan(t, before - (before - work) / 2, 0, "a test asks for it"));
            ck_assert_int_eq(t->fate.plan_changes, 1);
            ck_assert_uint_lt(t->facts.vram_bytes, before);
            ck_assert_int_eq(t->engine.plan.choice.batch, 1);
            ck_assert_int_eq(optim_place(t), HY_PINNED);
        }
        if (i == 10) {
            hy_plan deeper = t->engine.plan;
            deeper.choice.ring_depth++;
            deeper.choice.resident_units++;
            t->engine.request.device_cap = 0; /* there is room for it */
            must(hy_plan_with(&t->engine.request, &deeper, &deeper.choice, &deeper));
            must(hy_engine_change(&t->engine, &deeper));
            ck_assert_uint_eq(hy_engine_reserved(&t->engine, HY_DEVICE), t->engine.plan.device);
        }
        if (i == 13) {
            must(hy_trainer_replan(t, 0, 0, "there is room again"));
            ck_assert_int_eq(t->fate.plan_changes, 2);
            ck_assert_uint_eq(t->facts.vram_bytes, before);
            ck_assert_int_eq(optim_place(t), HY_DEVICE);
        }
        step(t, &info);
        ck_assert_msg(info.loss == plain[i], "step %d: %.17g, undisturbed %.17g", i + 1, info.loss,
                      plain[i]);
        ck_assert_uint_eq(hy_engine_reserved(&t->engine, HY_DEVICE), t->engine.plan.device);
    }
    hy_trainer_destroy(t);
}
END_TEST

static int64_t takings, refused_at;
static hy_status (*take_plainly)(hy_backend *, hy_place, size_t, void **);

static hy_status take_or_refuse(hy_backend *b, hy_place place, size_t bytes, void **out) {
    if (++takings != refused_at) return take_plainly(b, place, bytes, out);
    return hy_fail(HY_ERR_MEMORY, "allocation %lld is refused", (long long)takings);
}

/* To other places in Predict and back, or to more layers that stay on the device and to none; one allocation of
 * one of these changes is refused. Returns how many there were. */
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
    take_plainly = t->engine.device.backend->alloc;
    t->engine.device.backend->alloc = take_or_refuse;
    for (int i = 0; i < 18; i++) {
        hy_step_info info;
        if (i == 8 || i == 12) {
            if (are_layers) {
                t->settings.memory.resident_units = i == 8 ? 2 : 0;
            } else {
                t->settings.memory.optim_place = t->settings.memory.grads_place =
                    i == 8 ? HY_PINNED : HY_PLACE_AUTO;
            }
            takings = 0;
            refused_at = i == when ? at : 0;
            hy_status status = hy_trainer_replan(t, 0, 0, "a test asks for it");
            ck_assert_int_eq(status, refused_at && tries == 0 ? HY_ERR_INPUT : HY_OK);
            ck_assert_uint_eq(hy_engine_reserved(&t->engine, HY_DEVICE), t->engine.plan.device);
            if (i == when) asked = takings;
            refused_at = 0;
        }
        step(t, &info);
        if (plain) ck_assert_msg(info.loss == plain[i], "step %d, refused %d", i + 1, (int)at);
    }
    hy_trainer_destroy(t);
    return asked;
}

/* With another try all of it is there; without, the run goes on as it was. */
START_TEST(what_is_refused_on_the_way_to_another_plan_changes_no_bit) {
    int when = _i % 4 < 2 ? 8 : 12;
    bool are_layers = _i >= 4;
    double plain[STEPS];
    int64_t tokens[STEPS];
    run_plain(are_layers
                  ? PAIRS("layers", "3", "dynamic_batch", "off", "seq_len", "8")
                  : PAIRS("offload_strategy", "pinned", "dynamic_batch", "off", "seq_len", "8"),
              plain, tokens);
    int64_t count = change_places(are_layers, when, 0, 0, plain);
    ck_assert_int_gt(count, 8);
    for (int64_t at = count; at > 0; at -= at > count - 5 ? 1 : 7)
        change_places(are_layers, when, at, _i % 2, plain);
}
END_TEST

/* Pinned or on disk, more layers stay and fewer, through all phases: what is taken is what was planned, and
 * the file does not grow with every change. */
START_TEST(other_resident_layers_change_no_bit) {
    const char *const *const kinds[] = {
        PAIRS(ALL_PINNED, "layers", "3", "optimizer", "adamw8bit"),
        PAIRS("weights_place", "disk", "master_place", "disk", "grads_place", "disk", "optim_place",
              "disk", "offload_folder", ".", "offload_size", "1GiB", "layers", "3"),
        PAIRS(ALL_PINNED, "layers", "3", "precision", "bf16", "update", "gather"),
    };
    static const int residents[] = {2, 0, 1, 3, 1, 2};
    double plain[STEPS];
    int64_t tokens[STEPS];
    uint64_t most_disk = 0, most = 0, least = UINT64_MAX;
    run_plain(kinds[_i], plain, tokens);
    hy_trainer *t = begin("none", kinds[_i]);
    hy_engine *e = &t->engine;
    for (int i = 0; i < STEPS; i++) {
        hy_step_info info;
        if (i % 4 == 3) {
            t->settings.memory.resident_units = residents[i / 4];
            must(hy_trainer_replan(t, 0, 0, "a test asks for it"));
            ck_assert_int_eq(e->plan.choice.resident_units, residents[i / 4]);
        }
        if (i % 4 == 1) { /* the same ones in another ring */
            t->settings.memory.ring_depth = 2 + i % 3;
            must(hy_trainer_replan(t, 0, 0, "a test asks for it"));
        }
        uint64_t host = hy_engine_reserved(e, HY_PINNED) + hy_engine_reserved(e, HY_HOST);
        ck_assert_uint_eq(host, e->plan.host);
        ck_assert_uint_eq(hy_engine_reserved(e, HY_DEVICE), e->plan.device);
        if (e->plan.disk > most_disk) most_disk = e->plan.disk;
        if (host + e->plan.disk > most) most = host + e->plan.disk;
        if (host + e->plan.disk < least) least = host + e->plan.disk;
        step(t, &info);
        ck_assert_msg(info.loss == plain[i], "step %d: %.17g, undisturbed %.17g", i + 1, info.loss,
                      plain[i]);
        uint64_t disk = 0;
        for (int r = 0; r < HY_ROW_COUNT; r++) {
            const hy_row *row = &e->state.rows.row[r];
            if (row->store.place != HY_DISK) continue;
            disk += row->store.ring.disk_bytes;
            ck_assert_uint_le(row->disk_at + row->store.ring.disk_bytes, 2 * most_disk);
        }
        ck_assert_uint_eq(disk, e->plan.disk);
    }
    ck_assert_uint_lt(least, most);
    hy_trainer_destroy(t);
}
END_TEST

/* As in runs whose checkpoints name the base of their adapters. */
START_TEST(weights_that_no_checkpoint_holds_move_with_their_numbers) {
    static const hy_place homes[] = {HY_PINNED, HY_DEVICE, HY_PINNED};
    const char *const *pairs = PAIRS("lora", "true", "weights_place", "device");
    double plain[STEPS];
    int64_t tokens[STEPS];
    run_plain(pairs, plain, tokens);
    hy_trainer *t = begin("none", pairs);
    t->engine.state.rows.row[HY_ROW_FROZEN].kind = &hy_state_kinds[HY_KIND_FROZEN_BASE];
    for (int i = 0; i < STEPS; i++) {
        hy_step_info info;
        if (i % 4 == 1 && i / 4 < 3) {
            t->settings.memory.weights_place = homes[i / 4];
            must(hy_trainer_replan(t, 0, 0, "a test asks for it"));
            ck_assert_int_eq(hy_store_of(&t->engine, HY_ROW_FROZEN)->place, homes[i / 4]);
        }
        step(t, &info);
        ck_assert_msg(info.loss == plain[i], "step %d: %.17g, undisturbed %.17g", i + 1, info.loss,
                      plain[i]);
    }
    hy_trainer_destroy(t);
}
END_TEST

/* State cannot go to a folder that is none: it is where it was. */
START_TEST(a_place_that_is_refused_is_not_taken) {
    hy_trainer *t = begin("none", PAIRS("dynamic_batch", "off"));
    double losses[2];
    next_losses(t, 1, losses);
    snprintf(t->settings.memory.offload_folder, HY_TEXT_MAX, "/dev/null");
    t->settings.memory.offload_size = 1 << 30;
    t->settings.memory.optim_place = HY_DISK;
    ck_assert_int_eq(hy_trainer_replan(t, 0, 0, "a test asks for it"), HY_ERR_INPUT);
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
    hy_plan_facts before = t->facts;
    ck_assert_int_eq(hy_trainer_replan(t, 1, 0, "a test asks for it"), HY_ERR_INPUT);
    ck_assert_int_eq(t->fate.plan_changes, 0);
    ck_assert_mem_eq(&t->facts, &before, sizeof before);
    double loss;
    next_losses(t, 1, &loss);
    hy_trainer_destroy(t);
}
END_TEST

/* There is nothing left of the card for another plan: the run is saved, and its handle still answers. */
START_TEST(a_run_that_finds_no_other_plan_is_saved) {
    char folder[256];
    temp_folder(folder);
    hy_trainer *t = begin(folder, PAIRS("predictor", "none", "recovery_tries", "1"));
    double losses[3];
    hy_summary summary;
    next_losses(t, 3, losses);
    card.hidden = CARD_BYTES;
    ck_assert_int_eq(hy_trainer_give_up(t, hy_trainer_replan(t, 0, 0, "a test asks for it")),
                     HY_ERR_MEMORY);
    card.hidden = 0;
    ck_assert_ptr_nonnull(strstr(hy_error_message(), "--resume goes on with it"));
    hy_trainer_summary(t, &summary);
    ck_assert_str_eq(summary.out, folder);
    hy_memory_state state;
    hy_savings savings;
    must(hy_trainer_memory(t, &state));
    must(hy_trainer_savings(t, &savings));
    ck_assert_int_eq(hy_trainer_step(t, NULL), HY_ERR_STATE);
    hy_trainer_destroy(t);
    t = small_trainer(STEERED, folder, NULL, PAIRS("predictor", "none", "resume", "auto"));
    ck_assert_int_eq(t->progress.step, 3);
    hy_trainer_destroy(t);
    remove_folder(folder);
}
END_TEST

/* Not even the smallest micro-batch can be had: the state is still there to be saved. */
START_TEST(a_run_without_memory_to_work_in_can_be_saved) {
    char folder[256];
    temp_folder(folder);
    hy_trainer *t = begin(folder, PAIRS("predictor", "none"));
    double losses[3];
    hy_eval_info eval;
    next_losses(t, 3, losses);
    card.hidden = CARD_BYTES;
    ck_assert_int_eq(hy_trainer_resize(t, 4, "a test asks for it"), HY_ERR_MEMORY);
    card.hidden = 0;
    ck_assert_int_eq(hy_trainer_step(t, NULL), HY_ERR_STATE);
    ck_assert_int_eq(hy_trainer_evaluate(t, &eval), HY_ERR_STATE);
    must(hy_trainer_save(t));
    hy_trainer_destroy(t);
    t = small_trainer(STEERED, folder, NULL, PAIRS("predictor", "none", "resume", "auto"));
    ck_assert_int_eq(t->progress.step, 3);
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
    int rows = (int)(sizeof places / sizeof places[0]);
    tcase_add_loop_test(change, a_change_keeps_tokens_order_and_losses, 0, rows);
    tcase_add_loop_test(change, the_same_size_again_changes_no_bit, 0, rows);
    tcase_add_loop_test(change, what_a_size_needs_is_known_before, 0, rows);
    tcase_add_loop_test(change, the_ledger_follows, 0, rows);
    tcase_add_test(change, a_split_that_would_change_the_loss_is_not_made);
    tcase_add_test(change, another_plan_in_mid_run_changes_no_bit);
    tcase_add_loop_test(change, other_resident_layers_change_no_bit, 0, 3);
    tcase_add_test(change, weights_that_no_checkpoint_holds_move_with_their_numbers);
    tcase_add_loop_test(refusal, what_is_refused_on_the_way_to_another_plan_changes_no_bit, 0, 8);
    tcase_add_test(refusal, a_place_that_is_refused_is_not_taken);
    tcase_add_test(refusal, a_plan_that_needs_no_less_is_not_taken);
    tcase_add_test(change, a_run_that_finds_no_other_plan_is_saved);
    tcase_add_test(change, a_run_without_memory_to_work_in_can_be_saved);
    tcase_add_test(pressure, others_take_memory_and_give_it_back);
    tcase_add_test(pressure, a_full_plan_grows_back_to_what_it_was);
    tcase_add_test(pressure, a_run_may_be_told_to_keep_its_size);
    tcase_add_test(pressure, it_never_leaves_its_bounds);
    tcase_add_test(pressure, the_first_steps_try_a_few_sizes);
    tcase_add_test(pressure, a_step_that_runs_out_is_done_again);
    tcase_add_test(pressure, after_too_many_in_a_row_the_run_is_saved);
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
