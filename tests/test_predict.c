/* test_predict.c: Predict in the built-in trainer: moves, guard, rollback, offload, precision,
 * forks. */
#include "fake_card.h"
#include "hybrid_report.h"
#include "run_facts.h"
#include "small_run.h"

#define STEPS 48

static char folder[256];

static void make_folder(void) { temp_folder(folder); }
static void drop_folder(void) { remove_folder(folder); }

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

/* In `folder`, so that it can be saved and looked at; a jump comes next. */
static hy_trainer *trainer_before_move(const char *const *pairs) {
    hy_step_info info = {.obstacle = "it has not begun"};
    hy_trainer *t = open_trainer(folder, pairs, NULL);
    while (info.obstacle[0]) must(hy_trainer_step(t, &info));
    return t;
}

/* All weights as they are now, as the bytes of their file. */
static char *copy_of_weights(hy_trainer *t, size_t *size) {
    char path[512], *data;
    must(hy_trainer_save(t));
    must(hy_file_read(saved_path(folder, "weights.safetensors", path), &data, size));
    return data;
}

static bool weights_equal(hy_trainer *t, const char *copy, size_t size) {
    size_t size_now;
    char *now = copy_of_weights(t, &size_now);
    bool is_same = size_now == size && memcmp(now, copy, size) == 0;
    free(now);
    return is_same;
}

static float *saved_qkv(const char *file, const char *slot, int64_t *count) {
    char name[100];
    uint64_t bytes;
    snprintf(name, sizeof name, "%sblocks.0.attn.qkv.weight", slot);
    float *data = saved_tensor(folder, file, name, &bytes);
    *count = (int64_t)(bytes / sizeof *data);
    return data;
}

static double key_of(const char *key) {
    hy_config *config = predict_config("none", NULL);
    const char *value;
    must(hy_config_get(config, key, &value, NULL));
    double number = atof(value);
    hy_config_destroy(config);
    return number;
}

START_TEST(every_predictor_moves_and_learns) {
    static const char *const kinds[] = {"outer", "line"};
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
    double mu = key_of("outer_mu"), eta = key_of("outer_eta");
    int64_t count;
    must(hy_trainer_save(t));
    float *theta = saved_qkv("weights.safetensors", "", &count);
    float *phi = saved_qkv("predictor.safetensors", "slot0.", &count);
    float *b = saved_qkv("predictor.safetensors", "slot1.", &count);
    hy_step_info info;
    must(hy_trainer_step(t, &info));
    ck_assert_int_eq(info.phase, HY_PREDICT);
    ck_assert(!info.was_rejected);
    ck_assert_double_gt(info.predicted_steps, 0);
    must(hy_trainer_save(t));
    float *moved = saved_qkv("weights.safetensors", "", &count);
    for (int64_t k = 0; k < count; k++) {
        double d = (double)theta[k] - phi[k], v = mu * b[k] + d;
        ck_assert_double_eq_tol(moved[k], phi[k] + eta * (mu * v + d), 1e-6);
    }
    must(hy_trainer_step(t, &info));
    ck_assert_int_eq(info.phase, HY_CORRECT);
    free(theta);
    free(phi);
    free(b);
    free(moved);
    hy_trainer_destroy(t);
}
END_TEST

/* bench/predict_value's control: the guard is paid for and nothing moves. */
START_TEST(outer_without_momentum_and_of_length_1_moves_nothing) {
    hy_trainer *t = trainer_before_move(PAIRS("outer_mu", "0", "outer_eta", "1"));
    size_t size;
    char *before = copy_of_weights(t, &size);
    hy_step_info info;
    must(hy_trainer_step(t, &info));
    ck_assert(!info.was_rejected);
    ck_assert(info.predicted_steps == 0);
    ck_assert(weights_equal(t, before, size));
    must(hy_trainer_step(t, &info));
    ck_assert_int_eq(info.phase, HY_CORRECT);
    free(before);
    hy_trainer_destroy(t);
}
END_TEST

START_TEST(the_first_window_begins_at_the_weights_before_its_first_step) {
    /* predict_from 0.25 of 48: step 12 is the first of a window, warm-up and all before it are
     * not */
    hy_trainer *t = open_trainer(folder, PAIRS("predict_from", "0.25"), NULL);
    hy_step_info info = {0};
    int64_t count;
    while (info.step < 12) must(hy_trainer_step(t, &info));
    must(hy_trainer_save(t));
    float *first = saved_qkv("weights.safetensors", "", &count);
    while (info.obstacle[0]) must(hy_trainer_step(t, &info));
    ck_assert_int_eq(info.step, 12 + 6);
    must(hy_trainer_save(t));
    float *slow = saved_qkv("predictor.safetensors", "slot0.", &count);
    ck_assert_mem_eq(slow, first, (size_t)count * sizeof *first);
    free(first);
    free(slow);
    hy_trainer_destroy(t);
}
END_TEST

START_TEST(a_rejected_move_writes_nothing) {
    hy_trainer *t = trainer_before_move(NULL);
    size_t size;
    char *before = copy_of_weights(t, &size);
    hy_step_info info;
    hy_trainer_destroy(t);
    change_tensor(folder, "predictor.safetensors", "slot0.embed.tokens.weight", 7 * sizeof(float),
                  &(float){NAN}, sizeof(float)); /* the candidate will not be finite */
    t = open_trainer(folder, PAIRS("resume", "auto"), NULL);
    must(hy_trainer_step(t, &info));
    ck_assert(info.was_rejected);
    ck_assert(weights_equal(t, before, size));
    ck_assert_double_eq(saved_number(folder, "cooldown"), 4);
    must(hy_trainer_step(t, &info));
    ck_assert_int_eq(info.phase, HY_FULL);
    ck_assert(isfinite(info.loss) && !info.was_skipped);
    free(before);
    hy_trainer_destroy(t);
}
END_TEST

static void note_rejected(void *user, hy_message_level level, const char *text) {
    double *losses = user;
    const char *at = strstr(text, "the loss would go from");
    (void)level;
    if (at)
        ck_assert_int_eq(sscanf(at, "the loss would go from %lf to %lf", losses, losses + 1), 2);
}

/* The shortest of the tested lengths changes the loss least. */
START_TEST(a_rejected_jump_along_a_line_reports_the_loss_that_it_would_have) {
    double losses[2] = {0};
    hy_observer observer = {.user = losses, .on_message = note_rejected};
    hy_trainer *t = open_trainer("none", PAIRS("predictor", "line", "lr", "0.1"), &observer);
    must(hy_trainer_run(t));
    hy_trainer_destroy(t);
    ck_assert_double_gt(losses[0], 0);
    ck_assert_double_gt(losses[1], 0.5 * losses[0]);
}
END_TEST

#define ON_CARD "device", "cuda", "precision", "fp32", "tune_cache", "none"

START_TEST(a_divergence_in_correct_restores_the_weights_bit_for_bit) {
    hy_trainer *t = trainer_before_move(PAIRS(ON_CARD, "full_steps", "30", "steps", "120"));
    float *final_norm = card.last_norm_weight; /* of the weights, not of those that are proposed */
    size_t size;
    char *before = copy_of_weights(t, &size);
    hy_step_info info;
    must(hy_trainer_step(t, &info));
    ck_assert_int_eq(info.phase, HY_PREDICT);
    ck_assert(!weights_equal(t, before, size));
    *final_norm = 1e4F; /* the loss of the next step is far above those before */
    must(hy_trainer_step(t, &info));
    ck_assert(info.was_rolled_back);
    ck_assert(weights_equal(t, before, size));
    ck_assert_int_eq(summary_of(t).divergences, 1);
    must(hy_trainer_step(t, &info));
    ck_assert_int_eq(info.phase, HY_FULL);
    free(before);
    hy_trainer_destroy(t);
}
END_TEST

/* Every optimizer step is a window: Correct, Predict, Correct, ... */
START_TEST(windows_of_one_step_jump_before_every_step) {
    hy_trainer *t =
        trainer_before_move(PAIRS("full_steps", "0", "correct_steps", "1", "guard_share", "0.25"));
    for (int i = 0; i < 10; i++) {
        hy_step_info info;
        size_t size;
        char *before = copy_of_weights(t, &size);
        must(hy_trainer_step(t, &info));
        ck_assert_int_eq(info.phase, HY_PREDICT);
        ck_assert(!info.was_rejected);
        ck_assert(!weights_equal(t, before, size));
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
        hy_trainer *t = trainer_before_move(
            PAIRS("offload_strategy", cases[i].strategy, "lookahead", "0", "overwrite", "true"));
        hy_memory_state full, predict, correct;
        must(hy_trainer_memory(t, &full));
        must(hy_trainer_step(t, NULL));
        must(hy_trainer_memory(t, &predict));
        ck_assert_uint_eq(predict.classes[HY_OPTIM].live[HY_DEVICE], 0);
        ck_assert_uint_eq(predict.classes[HY_GRADS].live[HY_DEVICE], 0);
        ck_assert_int_eq(cell_of(t, HY_OPTIM, HY_PREDICT).place, cases[i].place);
        ck_assert_uint_lt(predict.device.used, full.device.used);
        must(hy_trainer_step(t, NULL));
        must(hy_trainer_memory(t, &correct));
        ck_assert_uint_eq(correct.device.used, full.device.used);
        hy_trainer_destroy(t);
    }
    hy_summary s = run_summary(PAIRS("offload_strategy", "pinned", "lookahead", "0"));
    for (int phase = 0; phase <= HY_EVALUATE; phase++) {
        ck_assert_uint_eq(s.phases[phase].vram_peak_bytes, s.phases[phase].vram_planned_bytes);
    }
    ck_assert_uint_gt(s.phases[HY_PREDICT].bytes_moved, 0);
}
END_TEST

/* Seconds that Correct waited for the optimizer's state over two moves. It is large enough for the
 * trip to matter: 4 M parameters, 32 MB of state. */
static double waited_in_correct(const char *lookahead) {
    hy_trainer *t =
        open_trainer("none",
                     PAIRS("width", "256", "heads", "4", "mlp_width", "1024", "layers", "4",
                           "batch_size", "1", "offload_strategy", "pinned", "lookahead", lookahead),
                     NULL);
    hy_step_info info = {0};
    while (summary_of(t).moves < 2 || info.phase != HY_FULL) must(hy_trainer_step(t, &info));
    double waited = summary_of(t).phases[HY_CORRECT].wait_seconds;
    hy_trainer_destroy(t);
    return waited;
}

START_TEST(lookahead_takes_the_waiting_out_of_correct) {
    double without = 0, with = INFINITY;
    /* Other programs on the same cores can hide a wait or make one: a few tries must show it
     * once. */
    for (int i = 0; i < 5 && !(without > 3e-4 && with <= 0.1 * without); i++) {
        without = waited_in_correct("0");
        with = waited_in_correct("2");
    }
    ck_assert_double_gt(without, 3e-4);
    ck_assert_double_le(with, 0.1 * without);
}
END_TEST

START_TEST(a_run_with_moves_resumes_bit_for_bit) {
    static const char *const kinds[] = {"outer", "line"};
    double straight[20], resumed[20];
    const char *const *pairs =
        PAIRS("offload_strategy", "pinned", "tail_share", "0.5", "predictor", kinds[_i]);
    for (int before = 8; before <= 11; before++) { /* in Full, at a move, in Correct */
        hy_config *config = predict_config(folder, pairs);
        hy_trainer *t;
        must(hy_config_set(config, "overwrite", "true", HY_FROM_CALLER));
        must(hy_trainer_create(config, NULL, &t));
        for (int i = 0; i < before; i++) must(hy_trainer_step(t, NULL));
        must(hy_trainer_save(t));
        for (int i = 0; i < 20; i++) {
            hy_step_info info;
            must(hy_trainer_step(t, &info));
            straight[i] = info.loss;
        }
        hy_trainer_destroy(t);
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
    }
}
END_TEST

START_TEST(a_move_can_still_be_undone_after_resuming_in_correct) {
    hy_trainer *t = trainer_before_move(NULL);
    size_t size;
    char *before = copy_of_weights(t, &size);
    hy_step_info info;
    for (int i = 0; i < 2; i++) must(hy_trainer_step(t, &info));
    ck_assert_int_eq(info.phase, HY_CORRECT);
    ck_assert(!weights_equal(t, before, size));
    hy_trainer_destroy(t);
    change_saved(folder, "healthy_steps", "100"); /* the next loss is far above those before */
    change_saved(folder, "loss_mean", "0.001");
    change_saved(folder, "loss_variance", "0");
    t = open_trainer(folder, PAIRS("resume", "auto"), NULL);
    must(hy_trainer_step(t, &info));
    ck_assert(info.was_rolled_back);
    ck_assert(weights_equal(t, before, size));
    free(before);
    hy_trainer_destroy(t);
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

START_TEST(each_phase_has_a_precision) {
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
        {{"precision_correct", "bf16"}, "lower than Full's"},
        {{"precision", "bf16", "precision_predict", "fp32"}, "higher precision than Full uses"},
        {{"precision_warmup", "bf16"}, "most sensitive steps"},
        {{"precision", "bf16", "precision_predict", "fp16"},
         "some phases use bf16 and others fp16"},
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
    const char *const *pairs = PAIRS("precision", "fp16", "predictor", "none");
    hy_trainer *t = open_trainer(folder, pairs, NULL);
    hy_step_info info;
    must(hy_trainer_save(t));
    hy_trainer_destroy(t);
    change_saved(folder, "loss_scale",
                 "4294967296"); /* so large that the first gradients overflow */
    t = open_trainer(folder, PAIRS("precision", "fp16", "predictor", "none", "resume", "auto"),
                     NULL);
    int skipped = 0;
    for (int i = 0; i < 40; i++) {
        hy_status status = hy_trainer_step(t, &info);
        if (status == HY_ERR_NUMERIC) break;
        skipped += info.was_skipped;
    }
    ck_assert_int_gt(skipped, 3);
    ck_assert(!info.was_skipped);
    must(hy_trainer_save(t));
    ck_assert_double_lt(saved_number(folder, "loss_scale"), 0x1p32);
    hy_trainer_destroy(t);
}
END_TEST

/* A run whose next step or jump is in this phase. */
static hy_trainer *trainer_before(hy_phase phase) {
    hy_step_info info = {.obstacle = "it has not begun"};
    hy_trainer *t = open_trainer("none", PAIRS(ON_CARD), NULL);
    must(hy_trainer_step(t, &info)); /* of three in warm-up */
    while (phase == HY_FULL && info.phase != HY_FULL) must(hy_trainer_step(t, &info));
    while (phase == HY_PREDICT && info.obstacle[0]) must(hy_trainer_step(t, &info));
    while (phase == HY_CORRECT && info.phase != HY_PREDICT) must(hy_trainer_step(t, &info));
    return t;
}

START_TEST(a_nan_in_any_phase_ends_in_a_skip_a_rollback_or_a_clear_stop) {
    for (int phase = HY_WARMUP; phase <= HY_CORRECT; phase++) {
        hy_trainer *t = trainer_before((hy_phase)phase);
        float *weight = card.norm_weight, healthy = *weight;
        hy_step_info info;
        *weight = NAN;
        must(hy_trainer_step(t, &info));
        ck_assert_int_eq(info.phase, phase);
        ck_assert(phase == HY_PREDICT ? info.was_rejected : info.was_skipped);
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

/* A run that is stopped when its first fork has decided. */
typedef struct forked {
    hy_trainer *trainer;
    int forks, steps;
    double losses[60], confidence; /* before it */
} forked;

static void count_forks(void *user, hy_message_level level, const char *text) {
    forked *f = user;
    (void)level;
    if (strncmp(text, "paired test at step", 12) != 0) return;
    f->forks++;
    hy_trainer_request_stop(f->trainer);
}

static void keep_loss(void *user, const hy_step_info *info) {
    forked *f = user;
    ck_assert_int_lt(f->steps, 60);
    if (f->steps == 0) f->confidence = info->confidence;
    f->losses[f->steps++] = info->loss;
}

/* The arm of a fork may break off in Predict, with the optimizer's state away: what it puts back
 * stays. */
START_TEST(a_paired_test_decides_and_leaves_the_run_unchanged) {
    static const char *const strategies[] = {"none", "cpu", "pinned", "compress", "drop"};
    static const char *const lengths[] = {"6", "7"};
    const char *const *pairs = PAIRS("regime", "fine-tuning", "fork_budget", "0.5", "fork_steps",
                                     lengths[_i / 5], "schedule", "constant", "steps", "60",
                                     "cooldown_steps", "1", "offload_strategy", strategies[_i % 5]);
    double plain[30];
    forked f = {0};
    losses_of(PAIRS("predictor", "none", "schedule", "constant", "steps", "60"), 30, plain);
    hy_observer observer = {.user = &f, .on_message = count_forks, .on_step = keep_loss};
    f.trainer = open_trainer("none", pairs, &observer);
    ck_assert_int_eq(hy_trainer_run(f.trainer), HY_STOPPED);
    ck_assert_double_lt(f.confidence, 0.5);
    ck_assert_int_ge(f.steps, 10); /* warm-up, a window, the fork's arm without moves */
    ck_assert_int_le(f.steps, 30);
    ck_assert_mem_eq(f.losses, plain, (size_t)f.steps * sizeof *plain);
    hy_summary s = summary_of(f.trainer);
    ck_assert_int_eq(f.forks, 1);
    ck_assert_int_eq(s.forks, 1);
    ck_assert(s.confidence != f.confidence);
    ck_assert_double_gt(s.spent, (double)s.steps + 5);
    hy_trainer_destroy(f.trainer);
}
END_TEST

START_TEST(fine_tuning_starts_from_the_weights_of_a_checkpoint) {
    hy_step_info first, tuned;
    hy_trainer *t = open_trainer(folder, NULL, NULL);
    must(hy_trainer_step(t, &first));
    must(hy_trainer_run(t));
    hy_trainer_destroy(t);
    t = open_trainer("none", PAIRS("init_from", folder, "seed", "9"), NULL);
    must(hy_trainer_step(t, &tuned));
    ck_assert_double_lt(tuned.confidence, first.confidence); /* it is taken for fine-tuning */
    ck_assert_double_lt(tuned.loss, first.loss - 1);
    ck_assert_int_eq(tuned.step, 1);
    hy_trainer_destroy(t);
}
END_TEST

/* Validations of a run, and a stop after a step. */
typedef struct validations {
    hy_trainer *trainer;
    int64_t stop_after, step[STEPS];
    double loss[STEPS];
    int count;
    int stop_in;       /* the number of the validation that is broken off, from 1 on; 0: none */
    int batches_after; /* of that validation, when the stop was requested */
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

static void stop_in_validation(void *user, const char *what, double fraction) {
    validations *v = user;
    if (v->count + 1 != v->stop_in || strcmp(what, "validating") != 0) return;
    if (v->batches_after++ > 0) return;
    ck_assert_double_lt(fraction, 0.5);
    hy_trainer_request_stop(v->trainer);
}

static void run_and_note(const char *out, const char *const *pairs, validations *v,
                         hy_status expected) {
    hy_observer observer = {.user = v,
                            .on_eval = note_validation,
                            .on_step = stop_after_step,
                            .on_progress = stop_in_validation};
    v->trainer = open_trainer(out, pairs, &observer);
    ck_assert_int_eq(hy_trainer_run(v->trainer), expected);
}

START_TEST(a_validation_that_waits_for_predict_is_made_after_a_resume_too) {
    double waited = 0;
    validations whole = {0};
    run_and_note("none", PAIRS("eval_every", "5"), &whole, HY_OK);
    hy_trainer_destroy(whole.trainer);
    ck_assert_int_gt(whole.count, 3);
    for (int stop = 5; stop <= 15; stop += 5) {
        validations cut = {.stop_after = stop};
        run_and_note(folder, PAIRS("eval_every", "5", "overwrite", "true"), &cut, HY_STOPPED);
        waited += saved_number(folder, "validation_due");
        hy_trainer_destroy(cut.trainer);
        if (stop % 2) /* a paired test was broken off, but not the validation */
            change_saved(folder, "rest_owed", "true");
        cut.stop_after = 0;
        run_and_note(folder, PAIRS("eval_every", "5", "resume", "auto"), &cut, HY_OK);
        hy_trainer_destroy(cut.trainer);
        ck_assert_int_eq(cut.count, whole.count);
        ck_assert_mem_eq(cut.step, whole.step, sizeof whole.step);
        ck_assert_mem_eq(cut.loss, whole.loss, sizeof whole.loss);
    }
    ck_assert_double_gt(waited, 0);
}
END_TEST

/* Held-out losses that the files of a run show, by step. */
static void recorded(const char *out, double loss[STEPS + 1]) {
    hy_run *run;
    must(hy_run_open(out, &run));
    for (int i = 0; i <= STEPS; i++) loss[i] = 0;
    for (size_t i = 0; i < hy_run_points(run); i++) {
        const hy_run_point *point = hy_run_point_at(run, i);
        if (!isnan(point->val_loss)) loss[point->step] = point->val_loss;
    }
    hy_run_close(run);
}

/* Validations between steps, in Predict and at the end, with state that leaves the device and that stays. */
START_TEST(a_stop_breaks_a_validation_off_and_a_resume_repeats_it) {
#define MANY "eval_every", "5", "eval_batches", "0", "eval_batch_size", "1", "threads", "1"
    const char *strategy = _i ? "pinned" : "none";
    double expected[STEPS + 1], found[STEPS + 1];
    validations whole = {0};
    run_and_note(folder, PAIRS(MANY, "offload_strategy", strategy), &whole, HY_OK);
    hy_trainer_destroy(whole.trainer);
    recorded(folder, expected);
    ck_assert_int_gt(whole.count, 3);
    for (int i = 1; i <= whole.count; i++) {
        validations cut = {.stop_in = i};
        run_and_note(folder, PAIRS(MANY, "offload_strategy", strategy, "overwrite", "true"), &cut,
                     HY_STOPPED);
        ck_assert_int_eq(cut.count, i - 1);
        ck_assert_int_le(cut.batches_after, 2); /* the one that was on its way */
        hy_trainer_destroy(cut.trainer);
        cut.stop_in = 0;
        run_and_note(folder, PAIRS(MANY, "offload_strategy", strategy, "resume", "auto"), &cut,
                     HY_OK);
        hy_trainer_destroy(cut.trainer);
        ck_assert_int_eq(cut.count, whole.count);
        ck_assert_mem_eq(cut.step, whole.step, sizeof whole.step);
        ck_assert_mem_eq(cut.loss, whole.loss, sizeof whole.loss);
        recorded(folder, found);
        ck_assert_mem_eq(found, expected, sizeof expected);
    }
}
END_TEST

static Suite *predict_suite(void) {
    Suite *suite = suite_create("predict");
    TCase *tests = tcase_create("predict");
    tcase_set_timeout(tests, 240);
    tcase_add_checked_fixture(tests, make_folder, drop_folder);
    tcase_add_test(tests, every_predictor_moves_and_learns);
    tcase_add_test(tests, an_accepted_move_is_the_outer_formula);
    tcase_add_test(tests, outer_without_momentum_and_of_length_1_moves_nothing);
    tcase_add_test(tests, the_first_window_begins_at_the_weights_before_its_first_step);
    tcase_add_test(tests, windows_of_one_step_jump_before_every_step);
    tcase_add_test(tests, a_rejected_move_writes_nothing);
    tcase_add_test(tests, a_rejected_jump_along_a_line_reports_the_loss_that_it_would_have);
    tcase_add_test(tests, a_divergence_in_correct_restores_the_weights_bit_for_bit);
    tcase_add_test(tests, strategies_that_move_state_are_exact);
    tcase_add_test(tests, lossy_strategies_stay_close);
    tcase_add_test(tests, offloaded_state_is_not_live_on_the_device_in_predict);
    tcase_add_test(tests, lookahead_takes_the_waiting_out_of_correct);
    tcase_add_loop_test(tests, a_run_with_moves_resumes_bit_for_bit, 0, 2);
    tcase_add_test(tests, a_move_can_still_be_undone_after_resuming_in_correct);
    tcase_add_test(tests, the_residual_of_a_move_is_measured_after_correct);
    tcase_add_test(tests, each_phase_has_a_precision);
    tcase_add_test(tests, precisions_that_make_no_sense_are_refused_with_the_reason);
    tcase_add_test(tests, fp16_finds_its_loss_scale_again);
    tcase_add_test(tests, a_nan_in_any_phase_ends_in_a_skip_a_rollback_or_a_clear_stop);
    tcase_add_test(tests, averaging_the_tail_gives_another_loss_and_leaves_training_alone);
    tcase_add_loop_test(tests, a_paired_test_decides_and_leaves_the_run_unchanged, 0, 10);
    tcase_add_test(tests, fine_tuning_starts_from_the_weights_of_a_checkpoint);
    tcase_add_test(tests, a_validation_that_waits_for_predict_is_made_after_a_resume_too);
    tcase_add_loop_test(tests, a_stop_breaks_a_validation_off_and_a_resume_repeats_it, 0, 2);
    suite_add_tcase(suite, tests);
    return suite;
}

HY_TEST_MAIN(predict_suite)
