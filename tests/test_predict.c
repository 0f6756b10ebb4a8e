/* test_predict.c: Predict in the built-in trainer: moves, guard, rollback, offload, precision, forks. */
#include "small_run.h"

#include <math.h>

#include "trainer/trainer.h"

#define STEPS 48

/* Jumps every six optimizer steps, from the start to the end. */
static hy_config *predict_config(const char *out, const char *const *pairs) {
    return small_run(SMALL_RUN "steps 48 grad_accum_steps 2 full_steps 4 correct_steps 2 "
                               "predict_from 0 predict_until 1 confidence_threshold 0.5 "
                               "cooldown_steps 4",
                     out, pairs);
}

static hy_trainer *open_trainer(const char *out, const char *const *pairs,
                                const hy_observer *observer) {
    hy_config *config = predict_config(out, pairs);
    hy_trainer *t;
    must(hy_trainer_create(config, observer, &t));
    hy_config_destroy(config);
    return t;
}

static hy_summary run_summary(const char *const *pairs) {
    static hy_summary summary; /* its strings are not used after the trainer is gone */
    hy_trainer *t = open_trainer("none", pairs, NULL);
    must(hy_trainer_run(t));
    hy_trainer_summary(t, &summary);
    hy_trainer_destroy(t);
    return summary;
}

/* Losses of optimizer steps and of jumps, in order. */
static void losses_of(const char *const *pairs, int count, double *losses) {
    hy_trainer *t = open_trainer("none", pairs, NULL);
    for (int i = 0; i < count; i++) {
        hy_step_info info;
        must(hy_trainer_step(t, &info));
        losses[i] = info.loss;
    }
    hy_trainer_destroy(t);
}

static hy_trainer *trainer_before_move(const char *const *pairs) {
    hy_trainer *t = open_trainer("none", pairs, NULL);
    while (t->progress.machine.phase != HY_PREDICT) must(hy_trainer_step(t, NULL));
    return t;
}

static float *copy_of_weights(const hy_trainer *t) {
    float *copy = malloc(hy_store_of(&t->engine, HY_ROW_MASTER)->layout.bytes);
    ck_assert_ptr_nonnull(copy);
    memcpy(copy, hy_store_of(&t->engine, HY_ROW_MASTER)->data,
           hy_store_of(&t->engine, HY_ROW_MASTER)->layout.bytes);
    return copy;
}

static bool weights_equal(const hy_trainer *t, const float *copy) {
    for (int32_t i = 0; i < t->engine.model->params.count; i++) {
        size_t offset =
            (size_t)((char *)hy_store_backing(hy_store_of(&t->engine, HY_ROW_MASTER), i) -
                     hy_store_of(&t->engine, HY_ROW_MASTER)->data);
        if (memcmp(hy_store_backing(hy_store_of(&t->engine, HY_ROW_MASTER), i),
                   (const char *)copy + offset,
                   (size_t)t->engine.model->params.list[i].count * sizeof(float)) != 0) {
            return false;
        }
    }
    return true;
}

START_TEST(every_predictor_moves_and_learns) {
    static const char *const kinds[] = {"outer", "line", "ema"};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        hy_summary s = run_summary(PAIRS("predictor", kinds[i], "max_predict_steps", "4"));
        ck_assert_int_gt(s.moves + s.rejected_moves, 1);
        ck_assert_double_lt(s.val_loss, 4.5);
        ck_assert_double_eq_tol(s.spent, STEPS, 0.01 * STEPS + 1.4);
        ck_assert_int_gt(s.phases[HY_PREDICT].steps, 1);
    }
}
END_TEST

START_TEST(an_accepted_move_is_the_outer_formula) {
    hy_trainer *t = trainer_before_move(NULL);
    double mu = t->engine.plan.predictor.mu, eta = t->engine.plan.predictor.eta;
    float *theta = copy_of_weights(t);
    float *phi = malloc(hy_store_of(&t->engine, HY_ROW_MASTER)->layout.bytes),
          *b = malloc(hy_store_of(&t->engine, HY_ROW_MASTER)->layout.bytes);
    must(hy_store_settle(hy_store_of(&t->engine, HY_ROW_SLOW + 0)));
    memcpy(phi, hy_store_of(&t->engine, HY_ROW_SLOW + 0)->data,
           hy_store_of(&t->engine, HY_ROW_MASTER)->layout.bytes);
    memcpy(b, hy_store_of(&t->engine, HY_ROW_SLOW + 1)->data,
           hy_store_of(&t->engine, HY_ROW_MASTER)->layout.bytes);
    hy_step_info info;
    must(hy_trainer_step(t, &info));
    ck_assert(!info.was_rejected);
    ck_assert_double_gt(info.predicted_steps, 0);
    ck_assert_int_eq(t->progress.machine.phase, HY_CORRECT);
    int32_t item = hy_params_find(&t->engine.model->params, 1, HY_P_QKV);
    size_t at = (size_t)((float *)hy_store_backing(hy_store_of(&t->engine, HY_ROW_MASTER), item) -
                         (float *)hy_store_of(&t->engine, HY_ROW_MASTER)->data);
    for (int64_t k = 0; k < t->engine.model->params.list[item].count; k++) {
        double d = (double)theta[at + k] - phi[at + k], v = mu * b[at + k] + d;
        double expected = phi[at + k] + eta * (mu * v + d);
        ck_assert_double_eq_tol(
            ((float *)hy_store_backing(hy_store_of(&t->engine, HY_ROW_MASTER), item))[k], expected,
            1e-6);
    }
    free(theta);
    free(phi);
    free(b);
    hy_trainer_destroy(t);
}
END_TEST

/* bench/predict_value's control: the guard is paid for and nothing moves. */
START_TEST(outer_without_momentum_and_of_length_1_moves_nothing) {
    hy_trainer *t = trainer_before_move(PAIRS("outer_mu", "0", "outer_eta", "1"));
    float *before = copy_of_weights(t);
    hy_step_info info;
    must(hy_trainer_step(t, &info));
    ck_assert(!info.was_rejected);
    ck_assert(info.predicted_steps == 0);
    ck_assert_int_eq(t->progress.machine.phase, HY_CORRECT);
    ck_assert(weights_equal(t, before));
    free(before);
    hy_trainer_destroy(t);
}
END_TEST

START_TEST(the_first_window_begins_at_the_weights_before_its_first_step) {
    /* predict_from 0.25 of 48: step 12 is the first of a window, warm-up and all before it are not */
    hy_trainer *t = open_trainer("none", PAIRS("predict_from", "0.25"), NULL);
    while (t->progress.step < 12) must(hy_trainer_step(t, NULL));
    float *first = copy_of_weights(t);
    while (t->progress.machine.phase != HY_PREDICT) must(hy_trainer_step(t, NULL));
    ck_assert_int_eq(t->progress.step, 12 + 6);
    must(hy_store_settle(hy_store_of(&t->engine, HY_ROW_SLOW + 0)));
    int32_t item = hy_params_find(&t->engine.model->params, 1, HY_P_QKV);
    size_t at = (size_t)((float *)hy_store_backing(hy_store_of(&t->engine, HY_ROW_MASTER), item) -
                         (float *)hy_store_of(&t->engine, HY_ROW_MASTER)->data);
    ck_assert_mem_eq(hy_store_backing(hy_store_of(&t->engine, HY_ROW_SLOW + 0), item), first + at,
                     (size_t)t->engine.model->params.list[item].count * sizeof(float));
    free(first);
    hy_trainer_destroy(t);
}
END_TEST

START_TEST(a_rejected_move_writes_nothing) {
    hy_trainer *t = trainer_before_move(NULL);
    float *before = copy_of_weights(t);
    hy_step_info info;
    must(hy_store_settle(hy_store_of(&t->engine, HY_ROW_SLOW + 0)));
    ((float *)hy_store_of(&t->engine, HY_ROW_SLOW + 0)->data)[7] =
        NAN; /* the candidate will not be finite */
    hy_store_forget(hy_store_of(&t->engine, HY_ROW_SLOW + 0));
    must(hy_trainer_step(t, &info));
    ck_assert(info.was_rejected);
    ck_assert_int_eq(t->progress.machine.phase, HY_FULL);
    ck_assert_int_eq(t->progress.machine.cooldown, 4);
    ck_assert(weights_equal(t, before));
    must(hy_trainer_step(t, &info));
    ck_assert(isfinite(info.loss) && !info.was_skipped);
    free(before);
    hy_trainer_destroy(t);
}
END_TEST

START_TEST(a_divergence_in_correct_restores_the_weights_bit_for_bit) {
    hy_trainer *t = trainer_before_move(NULL);
    float *before = copy_of_weights(t);
    hy_step_info info;
    must(hy_trainer_step(t, &info));
    ck_assert(!weights_equal(t, before));
    t->progress.divergence = (hy_divergence){.count = 100, .loss_mean = 0.001, .grad_level = 0};
    must(hy_trainer_step(t, &info)); /* its loss is far above 0.001 */
    ck_assert(info.was_rolled_back);
    ck_assert(weights_equal(t, before));
    ck_assert_int_eq(t->progress.machine.phase, HY_FULL);
    ck_assert_int_eq(t->progress.machine.divergences, 1);
    free(before);
    hy_trainer_destroy(t);
}
END_TEST

/* Every optimizer step is a window of its own: Correct, Predict, Correct, ... */
START_TEST(ema_looks_ahead_before_every_step) {
    hy_trainer *t = trainer_before_move(
        PAIRS("predictor", "ema", "full_steps", "0", "correct_steps", "1", "guard_share", "0.25"));
    for (int i = 0; i < 10; i++) {
        hy_step_info info;
        float *before = copy_of_weights(t);
        must(hy_trainer_step(t, &info));
        ck_assert_int_eq(info.phase, HY_PREDICT);
        ck_assert(!info.was_rejected);
        ck_assert(!weights_equal(t, before));
        free(before);
        must(hy_trainer_step(t, &info));
        ck_assert_int_eq(info.phase, HY_CORRECT);
    }
    hy_trainer_destroy(t);
}
END_TEST

START_TEST(strategies_that_move_state_are_exact) {
    double plain[40], other[40];
    static const char *const strategies[] = {"cpu", "pinned"};
    static const char *const lookaheads[] = {"0", "1", "3"};
    losses_of(PAIRS("offload_strategy", "none"), 40, plain);
    for (int s = 0; s < 2; s++) {
        for (int l = 0; l < 3; l++) {
            losses_of(PAIRS("offload_strategy", strategies[s], "lookahead", lookaheads[l]), 40,
                      other);
            ck_assert_mem_eq(plain, other, sizeof plain);
        }
    }
    losses_of(PAIRS("offload_strategy", "pinned", "async_restore", "false"), 40, other);
    ck_assert_mem_eq(plain, other, sizeof plain);
}
END_TEST

START_TEST(lossy_strategies_stay_close) {
    double plain, compressed, dropped;
    plain = run_summary(PAIRS("offload_strategy", "none", "steps", "200", "full_steps", "15",
                              "correct_steps", "5", "predict_until", "0.75"))
                .val_loss;
    compressed = run_summary(PAIRS("offload_strategy", "compress", "steps", "200", "full_steps",
                                   "15", "correct_steps", "5", "predict_until", "0.75"))
                     .val_loss;
    dropped = run_summary(PAIRS("offload_strategy", "drop", "steps", "200", "full_steps", "15",
                                "correct_steps", "5", "predict_until", "0.75"))
                  .val_loss;
    ck_assert_double_lt(fabs(compressed / plain - 1), 0.005);
    ck_assert_double_lt(fabs(dropped / plain - 1), 0.02);
    ck_assert(compressed != plain && dropped != plain);
}
END_TEST

START_TEST(offloaded_state_is_not_live_on_the_device_in_predict) {
    static const struct {
        const char *strategy;
        hy_place place;
    } cases[] = {{"cpu", HY_HOST}, {"pinned", HY_PINNED}, {"drop", HY_NOWHERE}};
    for (int i = 0; i < 3; i++) {
        hy_trainer *t =
            trainer_before_move(PAIRS("offload_strategy", cases[i].strategy, "lookahead", "0"));
        uint64_t full = t->engine.ledger.live_in[HY_DEVICE];
        must(hy_trainer_step(t, NULL));
        ck_assert_uint_eq(t->engine.ledger.live[HY_OPTIM][HY_DEVICE], 0);
        ck_assert_uint_eq(t->engine.ledger.live[HY_GRADS][HY_DEVICE], 0);
        ck_assert_int_eq(t->engine.ledger.cell[HY_OPTIM][HY_PREDICT].place, cases[i].place);
        ck_assert_uint_lt(t->engine.ledger.live_in[HY_DEVICE], full);
        must(hy_trainer_step(t, NULL));
        ck_assert_uint_eq(t->engine.ledger.live_in[HY_DEVICE], full);
        hy_trainer_destroy(t);
    }
    hy_summary s = run_summary(PAIRS("offload_strategy", "pinned", "lookahead", "0"));
    for (int phase = 0; phase < HY_PHASE_COUNT; phase++) {
        ck_assert_uint_eq(s.phases[phase].vram_peak_bytes, s.phases[phase].vram_planned_bytes);
    }
    ck_assert_uint_gt(s.phases[HY_PREDICT].bytes_moved, 0);
}
END_TEST

/* Seconds that Correct waited for the optimizer's state over two moves. It is large enough for the trip to
 * matter: 4 M parameters, 32 MB of state. */
static double waited_in_correct(const char *lookahead) {
    hy_trainer *t =
        open_trainer("none",
                     PAIRS("width", "256", "heads", "4", "mlp_width", "1024", "layers", "4",
                           "batch_size", "1", "offload_strategy", "pinned", "lookahead", lookahead),
                     NULL);
    while (t->progress.machine.moves < 2 || t->progress.machine.phase != HY_FULL) {
        must(hy_trainer_step(t, NULL));
    }
    double waited = t->progress.phase_wait[HY_CORRECT];
    hy_trainer_destroy(t);
    return waited;
}

START_TEST(lookahead_takes_the_waiting_out_of_correct) {
    double without = 0, with = INFINITY;
    /* Other programs on the same cores can hide a wait or make one: a few tries must show it once. */
    for (int i = 0; i < 5 && !(without > 3e-4 && with <= 0.1 * without); i++) {
        without = waited_in_correct("0");
        with = waited_in_correct("2");
    }
    ck_assert_double_gt(without, 3e-4);
    ck_assert_double_le(with, 0.1 * without);
}
END_TEST

START_TEST(a_run_with_moves_resumes_bit_for_bit) {
    static const char *const kinds[] = {"outer", "ema"};
    char folder[256];
    double straight[20], resumed[20];
    const char *const *pairs =
        PAIRS("offload_strategy", "pinned", "tail_share", "0.5", "predictor", kinds[_i]);
    for (int before = 8; before <= 11; before++) { /* in Full, at a move, in Correct */
        temp_folder(folder);
        hy_trainer *t = open_trainer(folder, pairs, NULL);
        for (int i = 0; i < before; i++) must(hy_trainer_step(t, NULL));
        must(hy_trainer_save(t));
        for (int i = 0; i < 20; i++) {
            hy_step_info info;
            must(hy_trainer_step(t, &info));
            straight[i] = info.loss;
        }
        hy_trainer_destroy(t);
        hy_config *config = predict_config(folder, pairs);
        must(hy_config_set(config, "resume", "auto", HY_FROM_CALLER));
        must(hy_trainer_create(config, NULL, &t));
        for (int i = 0; i < 20; i++) {
            hy_step_info info;
            must(hy_trainer_step(t, &info));
            resumed[i] = info.loss;
        }
        ck_assert_mem_eq(straight, resumed, sizeof straight);
        hy_trainer_destroy(t);
        hy_config_destroy(config);
        remove_folder(folder);
    }
}
END_TEST

START_TEST(a_move_can_still_be_undone_after_resuming_in_correct) {
    char folder[256];
    temp_folder(folder);
    hy_trainer *t = open_trainer(folder, NULL, NULL);
    while (t->progress.machine.phase != HY_PREDICT) must(hy_trainer_step(t, NULL));
    float *before = copy_of_weights(t);
    must(hy_trainer_step(t, NULL));
    must(hy_trainer_step(t, NULL));
    ck_assert_int_eq(t->progress.machine.phase, HY_CORRECT);
    must(hy_trainer_save(t));
    hy_trainer_destroy(t);
    t = open_trainer(folder, PAIRS("resume", "auto"), NULL);
    ck_assert(!weights_equal(t, before));
    t->progress.divergence = (hy_divergence){.count = 100, .loss_mean = 0.001, .grad_level = 0};
    hy_step_info info;
    must(hy_trainer_step(t, &info));
    ck_assert(info.was_rolled_back);
    ck_assert(weights_equal(t, before));
    free(before);
    hy_trainer_destroy(t);
    remove_folder(folder);
}
END_TEST

START_TEST(the_residual_of_a_move_is_measured_after_correct) {
    hy_trainer *t = trainer_before_move(NULL);
    hy_step_info info;
    must(hy_trainer_step(t, &info));
    ck_assert(isnan(info.residual_cosine));
    for (int i = 0; i < 3; i++) must(hy_trainer_step(t, &info)); /* two in Correct, one in Full */
    ck_assert(info.residual_cosine >= -1.0001 && info.residual_cosine <= 1.0001);
    ck_assert_double_gt(info.residual_length, 0);
    hy_trainer_destroy(t);
}
END_TEST

START_TEST(each_phase_has_its_own_precision) {
    hy_trainer *t =
        open_trainer("none", PAIRS("precision", "bf16", "precision_correct", "fp32"), NULL);
    hy_step_info info;
    bool seen[HY_PHASE_COUNT] = {false};
    for (int i = 0; i < 20; i++) {
        must(hy_trainer_step(t, &info));
        seen[info.phase] = true;
        ck_assert_int_eq(info.precision, info.phase == HY_CORRECT ? HY_F32 : HY_BF16);
        ck_assert(isfinite(info.loss));
    }
    ck_assert(seen[HY_WARMUP] && seen[HY_FULL] && seen[HY_PREDICT] && seen[HY_CORRECT]);
    hy_trainer_destroy(t);
    double fp32 = run_summary(NULL).val_loss;
    ck_assert_double_lt(fabs(run_summary(PAIRS("precision_predict", "bf16")).val_loss / fp32 - 1),
                        0.01);
    ck_assert_double_lt(fabs(run_summary(PAIRS("precision", "bf16")).val_loss / fp32 - 1), 0.03);
    ck_assert_double_lt(fabs(run_summary(PAIRS("precision", "fp16")).val_loss / fp32 - 1), 0.03);
}
END_TEST

START_TEST(precisions_that_make_no_sense_are_refused_with_the_reason) {
    static const struct {
        const char *pairs[5];
        const char *fragment;
    } cases[] = {
        {{"precision_correct", "bf16"}, "coarser than Full"},
        {{"precision", "bf16", "precision_predict", "fp32"}, "finer than Full"},
        {{"precision_warmup", "bf16"}, "delicate"},
        {{"precision", "bf16", "precision_predict", "fp16"}, "both bf16 and fp16"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        hy_config *config = predict_config("none", cases[i].pairs);
        hy_trainer *t;
        must_fail(hy_trainer_create(config, NULL, &t), HY_ERR_INPUT, cases[i].fragment);
        hy_config_destroy(config);
    }
}
END_TEST

START_TEST(fp16_finds_its_loss_scale_again) {
    hy_trainer *t = open_trainer("none", PAIRS("precision", "fp16", "predictor", "none"), NULL);
    hy_step_info info;
    t->engine.progress.loss_scale.scale = 0x1p32; /* far too large: the first gradients overflow */
    int skipped = 0;
    for (int i = 0; i < 40; i++) {
        hy_status status = hy_trainer_step(t, &info);
        if (status == HY_ERR_NUMERIC) break;
        skipped += info.was_skipped;
    }
    ck_assert_int_gt(skipped, 3);
    ck_assert(!info.was_skipped);
    ck_assert_double_lt(t->engine.progress.loss_scale.scale, 0x1p32);
    hy_trainer_destroy(t);
}
END_TEST

START_TEST(a_nan_in_any_phase_ends_in_a_skip_a_rollback_or_a_clear_stop) {
    for (int phase = 0; phase < HY_PHASE_COUNT; phase++) {
        hy_trainer *t = open_trainer("none", NULL, NULL);
        while ((int)t->progress.machine.phase != phase) must(hy_trainer_step(t, NULL));
        int32_t item = hy_params_find(&t->engine.model->params, 1, HY_P_NORM1);
        float *weight = hy_store_backing(hy_store_of(&t->engine, HY_ROW_MASTER), item),
              healthy = *weight;
        hy_step_info info;
        *weight = NAN;
        must(hy_trainer_step(t, &info));
        if (phase == HY_PREDICT) {
            ck_assert(info.was_rejected);
        } else {
            ck_assert(info.was_skipped);
        }
        if (phase != HY_CORRECT) *weight = healthy; /* in Correct the rollback has healed it */
        for (int i = 0; i < 12; i++) {
            must(hy_trainer_step(t, &info));
            ck_assert(isfinite(info.loss) && !info.was_skipped);
        }
        hy_trainer_destroy(t);
    }
}
END_TEST

START_TEST(averaging_the_tail_gives_another_loss_and_leaves_training_alone) {
    double plain[40], other[40];
    losses_of(NULL, 40, plain);
    losses_of(PAIRS("tail_share", "0.3"), 40, other);
    ck_assert_mem_eq(plain, other, sizeof plain);
    hy_summary s = run_summary(PAIRS("tail_share", "0.3"));
    ck_assert(isfinite(s.raw_val_loss) && s.val_loss != s.raw_val_loss);
    ck_assert_double_lt(fabs(s.val_loss / s.raw_val_loss - 1), 0.2);
}
END_TEST

static void count_forks(void *user, hy_message_level level, const char *text) {
    (void)level;
    if (strncmp(text, "fork at step", 12) == 0) ++*(int *)user;
}

START_TEST(a_fork_decides_and_leaves_the_run_as_it_was) {
    const char *const *pairs =
        PAIRS("regime", "fine-tuning", "fork_budget", "0.5", "fork_steps", "6", "schedule",
              "constant", "steps", "60", "cooldown_steps", "1");
    double plain[30];
    int forks = 0;
    losses_of(PAIRS("predictor", "none", "schedule", "constant", "steps", "60"), 30, plain);
    hy_observer observer = {.user = &forks, .on_message = count_forks};
    hy_trainer *t = open_trainer("none", pairs, &observer);
    double prior = hy_confidence_value(&t->progress.confidence);
    ck_assert_double_lt(prior, 0.5);
    for (int i = 0; i < 24; i++) { /* warm-up, a window, the fork's arm without moves */
        hy_step_info info;
        must(hy_trainer_step(t, &info));
        ck_assert_double_eq(info.loss, plain[i]);
        must(hy_trainer_consider_fork(t));
        if (forks) break;
    }
    ck_assert_int_eq(forks, 1);
    ck_assert_int_eq(t->progress.confidence.forks, 1);
    ck_assert(hy_confidence_value(&t->progress.confidence) != prior);
    ck_assert_double_gt(t->progress.spent, (double)t->progress.step + 5);
    hy_trainer_destroy(t);
}
END_TEST

/* The arm of a fork may break off in Predict, with the optimizer's state away. */
START_TEST(what_a_fork_puts_back_stays_whatever_was_away) {
    static const char *const strategies[] = {"cpu", "pinned", "compress", "drop"};
    hy_trainer *t = open_trainer("none", PAIRS("offload_strategy", strategies[_i]), NULL);
    hy_engine *e = &t->engine;
    for (int i = 0; i < 3; i++) must(hy_trainer_step(t, NULL));
    uint64_t bytes = hy_rows_forked_bytes(&e->rows);
    char *before = malloc(bytes), *after = malloc(bytes);
    ck_assert(before && after);
    must(hy_mover_copy_forked(e, before, true));
    hy_ledger ledger = e->ledger;
    must(hy_mover_leave(e));
    must(hy_mover_copy_forked(e, before, false));
    must(hy_mover_await(e));
    must(hy_mover_copy_forked(e, after, true));
    ck_assert_mem_eq(before, after, bytes);
    ck_assert_mem_eq(ledger.live, e->ledger.live, sizeof ledger.live);
    free(before);
    free(after);
    hy_trainer_destroy(t);
}
END_TEST

START_TEST(fine_tuning_starts_from_the_weights_of_a_checkpoint) {
    char folder[256];
    hy_step_info first, tuned;
    temp_folder(folder);
    hy_trainer *t = open_trainer(folder, NULL, NULL);
    must(hy_trainer_step(t, &first));
    must(hy_trainer_run(t));
    hy_trainer_destroy(t);
    t = open_trainer("none", PAIRS("init_from", folder, "seed", "9"), NULL);
    ck_assert_int_eq(t->course.regime, HY_FINE_TUNING);
    must(hy_trainer_step(t, &tuned));
    ck_assert_double_lt(tuned.loss, first.loss - 1);
    ck_assert_int_eq(tuned.step, 1);
    hy_trainer_destroy(t);
    remove_folder(folder);
}
END_TEST

/* Validations of a run, and a stop after a step. */
typedef struct validations {
    hy_trainer *trainer;
    int64_t stop_after, step[STEPS];
    double loss[STEPS];
    int count;
} validations;

static void note_validation(void *user, const hy_eval_info *info) {
    validations *v = user;
    ck_assert_int_lt(v->count, STEPS);
    v->step[v->count] = info->step;
    v->loss[v->count++] = info->loss;
}

static void stop_after_step(void *user, const hy_step_info *info) {
    validations *v = user;
    if (info->step == v->stop_after && info->phase != HY_PREDICT) {
        hy_trainer_request_stop(v->trainer);
    }
}

static void run_and_note(const char *folder, const char *const *pairs, validations *v,
                         hy_status expected) {
    hy_observer observer = {.user = v, .on_eval = note_validation, .on_step = stop_after_step};
    v->trainer = open_trainer(folder, pairs, &observer);
    ck_assert_int_eq(hy_trainer_run(v->trainer), expected);
}

START_TEST(a_validation_that_waits_for_predict_is_made_after_a_resume_too) {
    char folder[256];
    int waited = 0;
    validations whole = {0};
    run_and_note("none", PAIRS("eval_every", "5"), &whole, HY_OK);
    hy_trainer_destroy(whole.trainer);
    ck_assert_int_gt(whole.count, 3);
    for (int stop = 5; stop <= 15; stop += 5) {
        validations cut = {.stop_after = stop};
        temp_folder(folder);
        run_and_note(folder, PAIRS("eval_every", "5"), &cut, HY_STOPPED);
        waited += cut.trainer->course.is_validation_due;
        hy_trainer_destroy(cut.trainer);
        cut.stop_after = 0;
        run_and_note(folder, PAIRS("eval_every", "5", "resume", "auto"), &cut, HY_OK);
        hy_trainer_destroy(cut.trainer);
        ck_assert_int_eq(cut.count, whole.count);
        ck_assert_mem_eq(cut.step, whole.step, sizeof whole.step);
        ck_assert_mem_eq(cut.loss, whole.loss, sizeof whole.loss);
        remove_folder(folder);
    }
    ck_assert_int_gt(waited, 0);
}
END_TEST

static Suite *predict_suite(void) {
    Suite *suite = suite_create("predict");
    TCase *tests = tcase_create("predict");
    tcase_set_timeout(tests, 240);
    tcase_add_test(tests, every_predictor_moves_and_learns);
    tcase_add_test(tests, an_accepted_move_is_the_outer_formula);
    tcase_add_test(tests, outer_without_momentum_and_of_length_1_moves_nothing);
    tcase_add_test(tests, the_first_window_begins_at_the_weights_before_its_first_step);
    tcase_add_test(tests, ema_looks_ahead_before_every_step);
    tcase_add_test(tests, a_rejected_move_writes_nothing);
    tcase_add_test(tests, a_divergence_in_correct_restores_the_weights_bit_for_bit);
    tcase_add_test(tests, strategies_that_move_state_are_exact);
    tcase_add_test(tests, lossy_strategies_stay_close);
    tcase_add_test(tests, offloaded_state_is_not_live_on_the_device_in_predict);
    tcase_add_test(tests, lookahead_takes_the_waiting_out_of_correct);
    tcase_add_loop_test(tests, a_run_with_moves_resumes_bit_for_bit, 0, 2);
    tcase_add_test(tests, a_move_can_still_be_undone_after_resuming_in_correct);
    tcase_add_test(tests, the_residual_of_a_move_is_measured_after_correct);
    tcase_add_test(tests, each_phase_has_its_own_precision);
    tcase_add_test(tests, precisions_that_make_no_sense_are_refused_with_the_reason);
    tcase_add_test(tests, fp16_finds_its_loss_scale_again);
    tcase_add_test(tests, a_nan_in_any_phase_ends_in_a_skip_a_rollback_or_a_clear_stop);
    tcase_add_test(tests, averaging_the_tail_gives_another_loss_and_leaves_training_alone);
    tcase_add_test(tests, a_fork_decides_and_leaves_the_run_as_it_was);
    tcase_add_loop_test(tests, what_a_fork_puts_back_stays_whatever_was_away, 0, 4);
    tcase_add_test(tests, fine_tuning_starts_from_the_weights_of_a_checkpoint);
    tcase_add_test(tests, a_validation_that_waits_for_predict_is_made_after_a_resume_too);
    suite_add_tcase(suite, tests);
    return suite;
}

HY_TEST_MAIN(predict_suite)
