/* test_small_state.c: runs with m and v in 16 or 8 bits, or gradients in 16: their memory, resuming
 * to the same bits, and settings that they cannot be combined with. */
#include "run_facts.h"
#include "small_run.h"

/* Wide enough that matrices are quantised and only biases and norms stay fp32. */
#define WIDE_RUN SMALL_RUN "width 64 mlp_width 128 steps 60 "

static hy_trainer *open_run(const char *out, const char *const *pairs) {
    hy_config *config = small_run(WIDE_RUN, out, pairs);
    hy_trainer *trainer;
    must(hy_trainer_create(config, NULL, &trainer));
    hy_config_destroy(config);
    return trainer;
}

static hy_status try_run(const char *const *pairs) {
    hy_config *config = small_run(WIDE_RUN, "none", pairs);
    hy_trainer *trainer = NULL;
    hy_status status = hy_trainer_create(config, NULL, &trainer);
    hy_trainer_destroy(trainer);
    hy_config_destroy(config);
    return status;
}

static void take_losses(hy_trainer *trainer, int count, double *losses) {
    for (int i = 0; i < count; i++) {
        hy_step_info info;
        must(hy_trainer_step(trainer, &info));
        losses[i] = info.loss;
    }
}

static double held_out(const char *const *pairs) {
    hy_trainer *trainer = open_run("none", pairs);
    hy_summary summary;
    must(hy_trainer_run(trainer));
    hy_trainer_summary(trainer, &summary);
    double loss = summary.val_loss;
    hy_trainer_destroy(trainer);
    return loss;
}

START_TEST(small_state_ends_where_fp32_ends) {
    static const char *const small[][2] = {
        {"optim_dtype", "bf16"}, {"optimizer", "adamw8bit"}, {"grad_dtype", "bf16"}};
    double plain = held_out(PAIRS("predictor", "none"));
    for (int i = 0; i < 3; i++) {
        double loss = held_out(PAIRS("predictor", "none", small[i][0], small[i][1]));
        ck_assert_msg(fabs(loss / plain - 1) < 0.01, "%s %s: %g, fp32 %g", small[i][0], small[i][1],
                      loss, plain);
        ck_assert(loss != plain); /* it was used */
    }
}
END_TEST

static uint64_t planned(hy_trainer *trainer, hy_class cls) {
    hy_summary summary;
    hy_trainer_summary(trainer, &summary);
    return summary.phases[HY_FULL].memory[cls].planned_bytes;
}

START_TEST(small_state_takes_the_bytes_that_it_says) {
    hy_trainer *plain = open_run("none", NULL);
    hy_trainer *half = open_run("none", PAIRS("optim_dtype", "bf16", "grad_dtype", "bf16"));
    hy_trainer *quarter = open_run("none", PAIRS("optim_dtype", "8bit"));
    double full = (double)planned(plain, HY_OPTIM);
    ck_assert_double_lt((double)planned(half, HY_OPTIM) / full, 0.53);
    ck_assert_double_lt((double)planned(quarter, HY_OPTIM) / full, 0.29);
    ck_assert_double_lt((double)planned(half, HY_GRADS) / (double)planned(plain, HY_GRADS), 0.53);
    hy_trainer_destroy(plain);
    hy_trainer_destroy(half);
    hy_trainer_destroy(quarter);
}
END_TEST

START_TEST(small_tensors_keep_fp32_state) {
    char folder[256], name[100];
    hy_trainer *t = open_run(temp_folder(folder), PAIRS("optimizer", "adamw8bit"));
    must(hy_trainer_save(t));
    hy_trainer_destroy(t);
    hy_safetensors *weights = open_saved(folder, "weights.safetensors");
    hy_safetensors *state = open_saved(folder, "optimizer.safetensors");
    int small = 0, large = 0;
    for (size_t i = 0; i < hy_safetensors_count(weights); i++) {
        const hy_safetensors_entry *p = hy_safetensors_at(weights, i);
        uint64_t count = p->bytes / sizeof(float);
        bool is_small = count < 4096;
        snprintf(name, sizeof name, "m.%s", p->name);
        ck_assert_int_eq(hy_safetensors_find(state, name)->dtype, is_small ? HY_F32 : HY_U8);
        snprintf(name, sizeof name, "m.%s.scale", p->name);
        const hy_safetensors_entry *scale = hy_safetensors_find(state, name);
        ck_assert_int_eq(scale == NULL, is_small);
        if (scale) ck_assert_uint_eq(scale->bytes, count / 256 * sizeof(float));
        small += is_small;
        large += !is_small;
    }
    ck_assert(small > 0 && large > 0);
    hy_safetensors_close(weights);
    hy_safetensors_close(state);
    remove_folder(folder);
}
END_TEST

START_TEST(small_state_resumes_to_the_same_bits) {
    static const char *const dtypes[] = {"bf16", "8bit"};
    for (int i = 0; i < 2; i++) {
        char folder[256];
        double whole[10], part[10];
        temp_folder(folder);
        const char *const *pairs = PAIRS("optim_dtype", dtypes[i], "grad_dtype", "bf16",
                                         "predictor", "none", "overwrite", "true");
        hy_trainer *trainer = open_run(folder, pairs);
        take_losses(trainer, 4, whole);
        must(hy_trainer_save(trainer));
        take_losses(trainer, 6, whole + 4);
        hy_trainer_destroy(trainer);
        trainer = open_run(folder, PAIRS("optim_dtype", dtypes[i], "grad_dtype", "bf16",
                                         "predictor", "none", "resume", "auto"));
        take_losses(trainer, 6, part + 4);
        ck_assert_mem_eq(whole + 4, part + 4, 6 * sizeof(double));
        hy_trainer_destroy(trainer);
        remove_folder(folder);
    }
}
END_TEST

/* Padding of the vocabulary that begins in the middle of a block has the code of zero, not code
 * zero: else it would move, and the losses of a resumed run with it. */
START_TEST(a_padded_vocabulary_in_8_bits_resumes_to_the_same_bits) {
    check_resume(
        WIDE_RUN, NULL,
        PAIRS("vocab", "1025", "optim_dtype", "8bit", "predictor", "none", "tied_head", "true"), 3,
        6);
}
END_TEST

START_TEST(where_small_state_waits_in_predict_changes_no_bit) {
    static const char *const strategies[] = {"cpu", "pinned", "compress"};
    double plain[40], moved[40];
    const char *phases[] = {
        "optimizer", "adamw8bit", "full_steps",   "4", "correct_steps",    "2",
        "predictor", "outer",     "predict_from", "0", "offload_strategy", "none",
        NULL};
    hy_trainer *trainer = open_run("none", phases);
    take_losses(trainer, 40, plain);
    hy_trainer_destroy(trainer);
    for (int i = 0; i < 3; i++) {
        phases[11] = strategies[i];
        trainer = open_run("none", phases);
        take_losses(trainer, 40, moved);
        ck_assert_msg(memcmp(plain, moved, sizeof plain) == 0, "%s changed a loss", strategies[i]);
        hy_trainer_destroy(trainer);
    }
}
END_TEST

START_TEST(where_the_state_lives_changes_no_bit) {
    static const char *const dtypes[] = {"fp32", "bf16", "8bit"};
    for (int i = 0; i < 3; i++) {
        double here[30], there[30];
        hy_trainer *device = open_run("none", PAIRS("optim_dtype", dtypes[i]));
        hy_trainer *pinned =
            open_run("none", PAIRS("optim_dtype", dtypes[i], "optim_place", "pinned"));
        take_losses(device, 30, here);
        take_losses(pinned, 30, there);
        ck_assert_mem_eq(here, there, sizeof here);
        hy_trainer_destroy(device);
        hy_trainer_destroy(pinned);
    }
}
END_TEST

/* Each class alone, pairs, and all of them: with moves of the predictor, their rollback, the tail
 * and 16-bit phases in between. */
START_TEST(any_class_may_live_on_the_host) {
    static const char *const places[][8] = {
        {"weights_place", "pinned"},
        {"master_place", "pinned"},
        {"grads_place", "pinned"},
        {"weights_place", "pinned", "grads_place", "pinned"},
        {"master_place", "pinned", "optim_place", "pinned"},
        {"weights_place", "pinned", "master_place", "pinned", "grads_place", "pinned",
         "optim_place", "pinned"},
    };
    static const char *const precisions[] = {"fp32", "bf16"};
    for (int p = 0; p < 2; p++) {
        const char *pairs[32] = {"precision",
                                 precisions[p],
                                 "full_steps",
                                 "4",
                                 "correct_steps",
                                 "2",
                                 "predict_from",
                                 "0",
                                 "grad_accum_steps",
                                 "2",
                                 "predictor",
                                 "outer",
                                 "tail_share",
                                 "0.9",
                                 "steps",
                                 "30",
                                 "snapshot",
                                 "true",
                                 NULL};
        double here[30], there[30];
        hy_trainer *trainer = open_run("none", pairs);
        take_losses(trainer, 30, here);
        hy_trainer_destroy(trainer);
        for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
            memcpy(pairs + 18, places[i], sizeof places[i]);
            pairs[26] = NULL;
            trainer = open_run("none", pairs);
            take_losses(trainer, 30, there);
            ck_assert_msg(memcmp(here, there, sizeof here) == 0,
                          "%s and others changed a loss in %s", places[i][0], precisions[p]);
            hy_trainer_destroy(trainer);
        }
    }
}
END_TEST

START_TEST(with_everything_on_the_host_the_device_holds_rings) {
    const char *const *pairs = PAIRS("layers", "12", "predictor", "none", "weights_place", "pinned",
                                     "grads_place", "pinned", "optim_place", "pinned");
    hy_trainer *trainer = open_run("none", pairs);
    hy_summary summary;
    double losses[3];
    take_losses(trainer, 3, losses);
    hy_trainer_summary(trainer, &summary);
    const hy_phase_summary *warmup = &summary.phases[HY_WARMUP];
    static const hy_class classes[] = {HY_WEIGHTS, HY_GRADS, HY_OPTIM};
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(warmup->memory[classes[i]].place, HY_PINNED);
        ck_assert_uint_eq(warmup->memory[classes[i]].measured_bytes,
                          warmup->memory[classes[i]].planned_bytes);
    }
    ck_assert_uint_eq(warmup->vram_peak_bytes, warmup->vram_planned_bytes);
    /* A step brings the weights twice and gradients three times; all but the norm's go back. */
    ck_assert_uint_gt(warmup->bytes_moved, 3 * 5 * warmup->memory[HY_WEIGHTS].planned_bytes);
    hy_memory_state memory;
    must(hy_trainer_memory(trainer, &memory));
    for (int i = 0; i < 3; i++) {
        ck_assert_uint_eq(memory.classes[classes[i]].live[HY_PINNED],
                          warmup->memory[classes[i]].planned_bytes);
    }
    ck_assert_uint_eq(memory.device.reserved, facts_of(trainer).vram_bytes);
    hy_trainer_destroy(trainer);
}
END_TEST

START_TEST(state_on_the_host_leaves_only_rings_on_the_device) {
    hy_trainer *device = open_run("none", PAIRS("layers", "8", "predictor", "none"));
    hy_trainer *pinned =
        open_run("none", PAIRS("layers", "8", "predictor", "none", "optim_place", "pinned"));
    hy_summary a, b;
    double losses[4];
    take_losses(device, 4, losses);
    take_losses(pinned, 4, losses);
    hy_trainer_summary(device, &a);
    hy_trainer_summary(pinned, &b);
    const hy_memory_cell *cell = &b.phases[HY_WARMUP].memory[HY_OPTIM];
    ck_assert_int_eq(cell->place, HY_PINNED);
    ck_assert_uint_eq(cell->planned_bytes, cell->measured_bytes);
    ck_assert_uint_eq(cell->planned_bytes, planned(device, HY_OPTIM));
    /* Three units of m and three of v: a block's norms, attention and mlp. */
    uint64_t rings = 6 * 4 * (2 * 64 + 4 * 64 * 64 + 3 * 64 * 128);
    uint64_t saved = a.phases[HY_WARMUP].vram_peak_bytes - b.phases[HY_WARMUP].vram_peak_bytes;
    ck_assert_uint_eq(saved, cell->planned_bytes - rings);
    ck_assert_uint_eq(b.phases[HY_WARMUP].vram_peak_bytes, b.phases[HY_WARMUP].vram_planned_bytes);
    hy_trainer_destroy(device);
    hy_trainer_destroy(pinned);
}
END_TEST

START_TEST(state_may_move_when_a_run_is_resumed) {
    char folder[256];
    double whole[8], part[8];
    temp_folder(folder);
    hy_trainer *trainer = open_run(folder, PAIRS("optim_place", "pinned", "overwrite", "true"));
    take_losses(trainer, 4, whole);
    must(hy_trainer_save(trainer));
    take_losses(trainer, 4, whole + 4);
    hy_trainer_destroy(trainer);
    trainer = open_run(folder, PAIRS("resume", "auto"));
    take_losses(trainer, 4, part + 4);
    ck_assert_mem_eq(whole + 4, part + 4, 4 * sizeof(double));
    hy_trainer_destroy(trainer);
    remove_folder(folder);
}
END_TEST

START_TEST(compressing_what_is_narrow_already_is_refused_in_words) {
    must_fail(
        try_run(PAIRS("offload_strategy", "compress", "optim_dtype", "bf16", "predictor", "outer")),
        HY_ERR_INPUT, "optim_dtype fp32");
    must_fail(
        try_run(PAIRS("offload_strategy", "compress", "grad_dtype", "bf16", "predictor", "outer")),
        HY_ERR_INPUT, "grad_dtype fp32");
    must_fail(
        try_run(PAIRS("offload_strategy", "drop", "optim_place", "pinned", "predictor", "outer")),
        HY_ERR_INPUT, "optim_place device");
}
END_TEST

static Suite *small_state_suite(void) {
    Suite *suite = suite_create("small state");
    TCase *tests = tcase_create("small state");
    tcase_set_timeout(tests, 120);
    tcase_add_test(tests, small_state_ends_where_fp32_ends);
    tcase_add_test(tests, small_state_takes_the_bytes_that_it_says);
    tcase_add_test(tests, small_tensors_keep_fp32_state);
    tcase_add_test(tests, small_state_resumes_to_the_same_bits);
    tcase_add_test(tests, a_padded_vocabulary_in_8_bits_resumes_to_the_same_bits);
    tcase_add_test(tests, where_small_state_waits_in_predict_changes_no_bit);
    tcase_add_test(tests, where_the_state_lives_changes_no_bit);
    tcase_add_test(tests, any_class_may_live_on_the_host);
    tcase_add_test(tests, with_everything_on_the_host_the_device_holds_rings);
    tcase_add_test(tests, state_on_the_host_leaves_only_rings_on_the_device);
    tcase_add_test(tests, state_may_move_when_a_run_is_resumed);
    tcase_add_test(tests, compressing_what_is_narrow_already_is_refused_in_words);
    suite_add_tcase(suite, tests);
    return suite;
}

HY_TEST_MAIN(small_state_suite)
