/* test_small_predictor.c: runs with an 8-bit predictor: its memory, decisions equal to those with
 * 16 bits, resuming to the same bits, and settings that it cannot be combined with.
 *
 * test_engine_exact.c tests that places, paired tests and divergences change no bit of such a run;
 * test_kernels_predict.c tests the 8-bit format. */
#include "run_facts.h"
#include "small_run.h"

#include "kernels/grid.h"
#include "kernels/half.h"
#include "phases/predictor.h"
#include "state/tiles.h"

/* Jumps every six optimizer steps. */
#define MOVING_RUN                                                                                 \
    SMALL_RUN "width 64 mlp_width 128 grad_accum_steps 2 full_steps 4 correct_steps 2 "            \
              "predict_from 0 predict_until 1 confidence_threshold 0.5 cooldown_steps 4 "          \
              "precision bf16 precision_correct same master_dtype bf16 steps 60 "

static hy_trainer *open_run(const char *const *pairs) {
    return small_trainer(MOVING_RUN, "none", NULL, pairs);
}

/* Jumps that were made or refused so far. */
static int64_t verdicts_of(const hy_trainer *t) {
    hy_summary s = summary_of(t);
    return s.moves + s.rejected_moves;
}

START_TEST(two_buffers_take_two_bytes_of_a_parameter_and_a_line_one) {
    static const struct {
        const char *predictor, *dtype;
        double least, most; /* bytes for each parameter */
    } kinds[] = {{"outer", "8bit", 2, 2.1}, {"line", "8bit", 1, 1.05}, {"outer", "bf16", 4, 4.1}};
    for (int i = 0; i < 3; i++) {
        hy_trainer *t = open_run(PAIRS("predictor", kinds[i].predictor, "predictor_dtype",
                                       kinds[i].dtype, "max_predict_steps", "4"));
        while (verdicts_of(t) < 2) must(hy_trainer_step(t, NULL));
        hy_summary s = summary_of(t);
        double each =
            (double)s.phases[HY_FULL].memory[HY_PREDICTOR].planned_bytes / (double)s.parameters;
        ck_assert_double_ge(each, kinds[i].least);
        ck_assert_double_le(each, kinds[i].most);
        for (int phase = HY_FULL; phase <= HY_CORRECT; phase++) {
            const hy_phase_summary *p = &s.phases[phase];
            if (p->steps == 0) continue;
            ck_assert_uint_eq(p->memory[HY_PREDICTOR].measured_bytes,
                              p->memory[HY_PREDICTOR].planned_bytes);
            ck_assert_uint_eq(p->vram_peak_bytes, p->vram_planned_bytes);
        }
        hy_trainer_destroy(t);
    }
}
END_TEST

/* ---- the numbers that it keeps --------------------------------------------------------------- */

/* A tensor's codes of slow weights in the newest checkpoint, read beside the weights there. */
static uint16_t *read_slow(const char *folder, const char *name, int64_t *count) {
    char slot[100];
    uint64_t bytes, codes_bytes;
    snprintf(slot, sizeof slot, "slot0.%s", name);
    uint16_t *theta = saved_tensor(folder, "weights.safetensors", name, &bytes);
    uint8_t *codes = saved_tensor(folder, "predictor.safetensors", slot, &codes_bytes);
    int32_t exponent = (int32_t)saved_number(folder, "slow_exponent");
    *count = (int64_t)(bytes / sizeof *theta);
    ck_assert_uint_eq(codes_bytes, (uint64_t)*count);
    for (int64_t i = 0; i < *count; i++) theta[i] = hy_grid_unwrap(codes[i], theta[i], exponent);
    free(codes);
    return theta;
}

/* How far slow weights are from those of another checkpoint. */
typedef struct nearness {
    int64_t all, exact, moved;
} nearness;

static void compare_slow(const char *folder, const hy_safetensors *first, const char *name,
                         nearness *out) {
    uint64_t bytes;
    int64_t count;
    double step = ldexp(1, (int)saved_number(folder, "slow_exponent"));
    uint16_t *then = read_tensor(first, name, &bytes);
    uint16_t *now = saved_tensor(folder, "weights.safetensors", name, &bytes);
    uint16_t *slow = read_slow(folder, name, &count);
    for (int64_t i = 0; i < count; i++) {
        double is = (double)hy_bf16_to_f32(slow[i]), was = (double)hy_bf16_to_f32(then[i]);
        double allowed = fabs(was) < 128 * step ? step / 2 : 0;
        if (fabs(is - was) > allowed) ck_abort_msg("%s: %g, was %g", name, is, was);
        out->exact += slow[i] == then[i];
        out->moved += now[i] != then[i];
    }
    out->all += count;
    free(then);
    free(now);
    free(slow);
}

START_TEST(slow_weights_are_those_at_the_start_of_the_window) {
    char folder[256];
    hy_step_info info = {0};
    nearness near = {0};
    hy_trainer *t = small_trainer(MOVING_RUN, temp_folder(folder), NULL,
                                  PAIRS("predictor_dtype", "8bit", "predict_from", "0.25"));
    while (info.spent < 15) must(hy_trainer_step(t, &info)); /* 0.25 of 60 steps */
    must(hy_trainer_save(t));
    hy_safetensors *first = open_saved(folder, "weights.safetensors");
    while (info.obstacle[0]) must(hy_trainer_step(t, &info));
    must(hy_trainer_save(t));
    ck_assert_double_eq(saved_number(folder, "window"), 6);
    for (size_t i = 0; i < hy_safetensors_count(first); i++) {
        compare_slow(folder, first, hy_safetensors_at(first, i)->name, &near);
    }
    ck_assert_int_gt(near.exact, near.all / 4); /* those from 128 steps on, and many below */
    ck_assert_int_gt(near.moved, near.all / 2);
    hy_safetensors_close(first);
    hy_trainer_destroy(t);
    remove_folder(folder);
}
END_TEST

/* ---- what it decides ------------------------------------------------------------------------- */

/* The runs are one until the first jump. From there on they differ by what 8 bits leave out, and so
 * do the losses that the guard compares: little enough that no verdict is another. */
static void moves_alike(const char *predictor) {
    /* line tries 3, 6 and 12 steps */
    const char *most = strcmp(predictor, "line") == 0 ? "12" : "6";
    hy_trainer *half = open_run(
        PAIRS("predictor", predictor, "max_predict_steps", most, "correction_interval", "12"));
    hy_trainer *byte = open_run(PAIRS("predictor", predictor, "max_predict_steps", most,
                                      "correction_interval", "12", "predictor_dtype", "8bit"));
    int jumps = 0;
    hy_step_info a = {0}, b;
    while (a.step < 54) {
        must(hy_trainer_step(half, &a));
        must(hy_trainer_step(byte, &b));
        ck_assert_int_eq(a.phase, b.phase);
        ck_assert_int_eq(a.was_rejected, b.was_rejected);
        if (a.phase == HY_PREDICT) {
            ck_assert_double_eq_tol(a.predicted_steps, b.predicted_steps,
                                    0.05 * a.predicted_steps + 0.05);
            jumps++;
        } else if (jumps == 0) {
            ck_assert(a.loss == b.loss);
        }
        if (isfinite(a.residual_length)) {
            ck_assert_double_eq_tol(a.residual_length, b.residual_length, 0.1 * a.residual_length);
            ck_assert_double_eq_tol(a.residual_cosine, b.residual_cosine, 0.1);
        }
        ck_assert_double_eq_tol(a.loss, b.loss, 0.02 * a.loss);
    }
    ck_assert_int_ge(jumps, 5);
    ck_assert_int_ge(summary_of(half).moves, 3);
    hy_eval_info expected, found;
    must(hy_trainer_evaluate(half, &expected));
    must(hy_trainer_evaluate(byte, &found));
    ck_assert(found.loss != expected.loss); /* it was used */
    ck_assert_double_eq_tol(found.loss, expected.loss, 0.01 * expected.loss);
    hy_trainer_destroy(half);
    hy_trainer_destroy(byte);
}

START_TEST(outer_in_8_bits_decides_as_in_16) { moves_alike("outer"); }
END_TEST

START_TEST(line_in_8_bits_decides_as_in_16) { moves_alike("line"); }
END_TEST

/* ---- resuming -------------------------------------------------------------------------------- */

/* To the third step of the window that follows a jump. */
static void go_into_a_window(hy_trainer *t) {
    hy_step_info info;
    do must(hy_trainer_step(t, &info));
    while (info.phase != HY_PREDICT || info.was_rejected);
    for (int i = 0; i < 3; i++) must(hy_trainer_step(t, &info));
}

/* After a jump, in the middle of the window that began with it, and on to the next jumps. The
 * vocabulary is padded in the middle of a block of codes: what a file does not hold of a block is
 * zero. */
START_TEST(a_run_resumes_in_the_middle_of_a_window_bit_for_bit) {
    static const char *const predictors[] = {"outer", "line"};
    for (int i = 0; i < 2; i++) {
        char folder[256];
        hy_step_info straight[16], resumed;
        const char *const *pairs = PAIRS("predictor", predictors[i]);
        temp_folder(folder);
#define PADDED_RUN MOVING_RUN "vocab 1025 predictor_dtype 8bit max_predict_steps 6 "
        hy_trainer *t = small_trainer(PADDED_RUN, folder, NULL, pairs);
        go_into_a_window(t);
        must(hy_trainer_save(t));
        ck_assert_double_eq(saved_number(folder, "window"), 3);
        for (int k = 0; k < 16; k++) must(hy_trainer_step(t, &straight[k]));
        ck_assert_int_ge(verdicts_of(t), 3);
        hy_trainer_destroy(t);
        t = small_trainer(PADDED_RUN "resume auto ", folder, NULL, pairs);
        for (int k = 0; k < 16; k++) {
            must(hy_trainer_step(t, &resumed));
            ck_assert(resumed.loss == straight[k].loss);
            ck_assert(resumed.predicted_steps == straight[k].predicted_steps);
        }
        hy_trainer_destroy(t);
        remove_folder(folder);
    }
}
END_TEST

/* An embedding of more than a tile: codes, scales, codes, scales. Saved after a jump, so that there
 * is a velocity, and gone on with to the next one. */
START_TEST(tiles_with_scales_between_them_resume_bit_for_bit) {
#define LARGE_RUN                                                                                  \
    "model nano layers 1 width 256 heads 4 mlp_width 64 seq_len 4 batch_size 1 steps 20 "          \
    "grad_accum_steps 1 vocab 66000 builtin_bytes 20000 lr 1e-3 lr_warmup_steps 0 "                \
    "eval_batches 1 sample_tokens 0 threads 2 device cpu tied_head true full_steps 1 "             \
    "correct_steps 1 predict_from 0 predict_until 1 confidence_threshold 0.5 snapshot false "      \
    "guard_share 2 precision bf16 precision_correct same master_dtype bf16 grad_dtype bf16 "       \
    "predictor outer predictor_dtype 8bit "
    char folder[256];
    double straight[4], resumed[4];
    temp_folder(folder);
    hy_trainer *t = small_trainer(LARGE_RUN, folder, NULL, NULL);
    ck_assert_int_gt(66000 * 256, HY_TILE_ELEMENTS);
    while (summary_of(t).moves < 1) must(hy_trainer_step(t, NULL));
    must(hy_trainer_save(t));
    next_losses(t, 4, straight);
    ck_assert_int_eq(verdicts_of(t), 2);
    hy_trainer_destroy(t);
    t = small_trainer(LARGE_RUN "resume auto ", folder, NULL, NULL);
    next_losses(t, 4, resumed);
    ck_assert_mem_eq(straight, resumed, sizeof straight);
    hy_trainer_destroy(t);
    remove_folder(folder);
}
END_TEST

/* The codes of a window are read by the grid that they were written with. */
START_TEST(another_learning_rate_after_resuming_is_a_new_grid_with_the_next_window) {
    char folder[256];
    temp_folder(folder);
    const char *words = MOVING_RUN "predictor_dtype 8bit ";
    hy_trainer *t = small_trainer(words, folder, NULL, NULL);
    go_into_a_window(t);
    must(hy_trainer_save(t));
    double before = saved_number(folder, "slow_exponent");
    hy_trainer_destroy(t);
    int64_t count;
    uint16_t *expected = read_slow(folder, "blocks.0.attn.qkv.weight", &count);
    t = small_trainer(MOVING_RUN "predictor_dtype 8bit resume auto ", folder, NULL,
                      PAIRS("lr", "0.024"));
    must(hy_trainer_save(t));
    ck_assert_double_eq(saved_number(folder, "slow_exponent"), before);
    uint16_t *found = read_slow(folder, "blocks.0.attn.qkv.weight", &count);
    ck_assert_mem_eq(expected, found, (size_t)count * sizeof *found);
    hy_step_info info;
    do must(hy_trainer_step(t, &info));
    while (info.phase != HY_PREDICT);
    must(hy_trainer_save(t));
    ck_assert_double_eq(saved_number(folder, "slow_exponent"), before + 3);
    free(expected);
    free(found);
    hy_trainer_destroy(t);
    remove_folder(folder);
}
END_TEST

/* ---- what it does not go with ---------------------------------------------------------------- */

static void is_refused(const char *const *pairs, const char *const *words) {
    hy_config *config = small_run(MOVING_RUN "predictor_dtype 8bit ", "none", pairs);
    hy_trainer *t = NULL;
    ck_assert_int_eq(hy_trainer_create(config, NULL, &t), HY_ERR_INPUT);
    for (int i = 0; words[i]; i++) ck_assert_ptr_nonnull(strstr(hy_error_message(), words[i]));
    hy_config_destroy(config);
}

START_TEST(what_8_bits_do_not_go_with_is_named) {
    is_refused(PAIRS("master_dtype", "fp32"),
               PAIRS("predictor_dtype is 8bit", "master_dtype is fp32", "master_dtype = bf16",
                     "predictor_dtype = auto, fp32 or bf16"));
    is_refused(PAIRS("optimizer", "sgd"),
               PAIRS("predictor_dtype is 8bit", "optimizer is sgd", "optimizer = adamw",
                     "predictor_dtype = auto, fp32 or bf16"));
    hy_trainer *t = small_trainer(MOVING_RUN "predictor_dtype 8bit ", "none", NULL,
                                  PAIRS("master_dtype", "fp32", "predictor", "none"));
    hy_trainer_destroy(t); /* nothing is kept in it */
}
END_TEST

START_TEST(the_grid_covers_what_adamw_can_move_in_a_window) {
    /* 128 steps are 1.25 lr a step of the window, or a power of two's share more */
    for (int64_t window = 1; window < 1000; window += 7) {
        double reach = 128 * ldexp(1, hy_predictor_exponent(3e-4, 0.9, 0.95, window));
        double steps = fmax((double)window, fmin(1, 0.1 * (double)window) / sqrt(0.05));
        ck_assert_double_ge(reach * (1 + 1e-12), 1.25 * 3e-4 * steps);
        ck_assert_double_lt(reach, 2 * 1.25 * 3e-4 * steps);
    }
    ck_assert_int_eq(hy_predictor_exponent(0x1p-10 * 128 / 1.25, 0.9, 0.95, 1), -10);
    /* a single gradient after a long silence: 1 / sqrt(1 - beta2) in the end */
    ck_assert_double_ge(128 * ldexp(1, hy_predictor_exponent(1, 0.9, 0.999, 10)), 31);
    ck_assert_int_eq(hy_predictor_exponent(0, 0.9, 0.95, 20), -HY_GRID_EXPONENT_MAX);
    ck_assert_int_eq(hy_predictor_exponent(1e300, 0.9, 0.95, 20), HY_GRID_EXPONENT_MAX);
}
END_TEST

static Suite *small_predictor_suite(void) {
    Suite *suite = suite_create("predictor in 8 bits");
    TCase *tests = tcase_create("predictor");
    tcase_set_timeout(tests, 240);
    tcase_add_test(tests, two_buffers_take_two_bytes_of_a_parameter_and_a_line_one);
    tcase_add_test(tests, slow_weights_are_those_at_the_start_of_the_window);
    tcase_add_test(tests, outer_in_8_bits_decides_as_in_16);
    tcase_add_test(tests, line_in_8_bits_decides_as_in_16);
    tcase_add_test(tests, a_run_resumes_in_the_middle_of_a_window_bit_for_bit);
    tcase_add_test(tests, tiles_with_scales_between_them_resume_bit_for_bit);
    tcase_add_test(tests, another_learning_rate_after_resuming_is_a_new_grid_with_the_next_window);
    tcase_add_test(tests, what_8_bits_do_not_go_with_is_named);
    tcase_add_test(tests, the_grid_covers_what_adamw_can_move_in_a_window);
    suite_add_tcase(suite, tests);
    return suite;
}

HY_TEST_MAIN(small_predictor_suite)
