/* test_trainer_card.c: whole runs on a device whose memory the host cannot touch. See fake_card.h.
 *
 * In fp32 such a run gives the bits of the CPU, so everything that moves between host and device is
 * held against it: weights, batches, losses, predictor state, optimizer, checkpoints, samples. */
#include "fake_card.h"
#include "run_facts.h"
#include "small_run.h"

#include <math.h>

#define STEPS 18

/* Layers of a class that lives elsewhere may live on the card alone. */
#define STREAMED(place)                                                                            \
    "weights_place", place, "master_place", place, "grads_place", place, "optim_place", place,     \
        "offload_folder", ".", "layers", "3"

static hy_config *config_on(const char *device, const char *out, const char *const *pairs) {
    hy_config *config =
        small_run(SMALL_RUN "steps 48 grad_accum_steps 2 full_steps 4 correct_steps 2 "
                            "predict_from 0 predict_until 1 confidence_threshold 0.5 "
                            "cooldown_steps 4 tune_cache none",
                  out, PAIRS("device", device, "precision", "fp32", "precision_correct", "same"));
    for (int i = 0; pairs && pairs[i]; i += 2) {
        must(hy_config_set(config, pairs[i], pairs[i + 1], HY_FROM_CALLER));
    }
    return config;
}

static hy_trainer *trainer_on(const char *device, const char *out, const char *const *pairs) {
    hy_trainer *t;
    hy_config *config = config_on(device, out, pairs);
    must(hy_trainer_create(config, NULL, &t));
    hy_config_destroy(config);
    return t;
}

static void take_losses(hy_trainer *t, int count, double *losses) {
    for (int i = 0; i < count; i++) {
        hy_step_info info;
        must(hy_trainer_step(t, &info));
        losses[i] = info.loss;
    }
}

/* Steps, moves, validation and a sample give the same on both. */
static void same_on_both(const char *const *pairs) {
    double losses[2][STEPS], held_out[2];
    char *text[2];
    static const char *const devices[] = {"cpu", "cuda"};
    for (int d = 0; d < 2; d++) {
        hy_trainer *t = trainer_on(devices[d], "none", pairs);
        hy_eval_info eval;
        hy_sample_options sample = {.prompt = "a", .tokens = 20, .temperature = 0.9, .seed = 3};
        ck_assert_int_eq(summary_of(t).is_gpu, d);
        take_losses(t, STEPS, losses[d]);
        must(hy_trainer_evaluate(t, &eval));
        held_out[d] = eval.loss;
        must(hy_trainer_sample(t, &sample, &text[d], NULL));
        hy_trainer_destroy(t);
    }
    ck_assert_mem_eq(losses[0], losses[1], sizeof losses[0]);
    ck_assert(held_out[0] == held_out[1]);
    ck_assert_mem_eq(text[0], text[1], 20);
    hy_free(text[0]);
    hy_free(text[1]);
}

START_TEST(a_run_gives_the_bits_of_the_cpu_with_every_strategy) {
    static const char *const strategies[] = {"none", "cpu", "pinned", "compress", "drop"};
    for (size_t i = 0; i < sizeof strategies / sizeof strategies[0]; i++) {
        same_on_both(PAIRS("offload_strategy", strategies[i], "tail_share", "0.6"));
    }
    same_on_both(PAIRS("optim_place", "pinned", "tail_share", "0.6"));
    same_on_both(PAIRS("optim_place", "pinned", "optimizer", "adamw8bit"));
    same_on_both(PAIRS("weights_place", "pinned", "master_place", "pinned", "grads_place", "pinned",
                       "optim_place", "pinned", "tail_share", "0.6"));
}
END_TEST

START_TEST(a_run_with_resident_layers_gives_the_bits_of_the_cpu) {
    same_on_both(PAIRS(STREAMED("pinned"), "resident_units", "2", "tail_share", "0.6"));
    same_on_both(PAIRS(STREAMED("pinned"), "resident_units", "3", "precision", "bf16", "optimizer",
                       "adamw8bit", "update", "gather"));
    same_on_both(PAIRS(STREAMED("disk"), "resident_units", "1", "snapshot", "true"));
}
END_TEST

/* What a run with resident layers takes of the host is less than what one without does: by those
 * layers. */
START_TEST(resident_layers_take_no_host_memory) {
    static const char *const residents[] = {"0", "1", "3"};
    uint64_t pinned[3], disk[3];
    for (int i = 0; i < 3; i++) {
        hy_trainer *t = trainer_on(
            "cuda", "none",
            PAIRS(STREAMED("pinned"), "resident_units", residents[i], "predictor", "none"));
        hy_memory_state memory;
        must(hy_trainer_memory(t, &memory));
        ck_assert_uint_eq(memory.host.reserved, facts_of(t).host_pinned_bytes);
        ck_assert_uint_eq(memory.device.reserved, facts_of(t).vram_bytes);
        ck_assert_int_eq(plan_number(t, "choices.resident_units"), atoi(residents[i]));
        must(hy_trainer_step(t, NULL));
        for (int cls = 0; cls < HY_CLASS_COUNT; cls++) {
            hy_memory_cell cell = cell_of(t, (hy_class)cls, HY_WARMUP);
            ck_assert_uint_eq(cell.measured_bytes, cell.planned_bytes);
        }
        pinned[i] = memory.host.reserved;
        hy_trainer_destroy(t);
        t = trainer_on("cuda", "none", PAIRS(STREAMED("disk"), "resident_units", residents[i]));
        must(hy_trainer_memory(t, &memory));
        disk[i] = 0;
        for (int cls = 0; cls < HY_CLASS_COUNT; cls++) {
            disk[i] += memory.classes[cls].live[HY_DISK];
        }
        ck_assert_uint_eq(disk[i], facts_of(t).disk_bytes);
        if (i > 0) ck_assert_uint_lt(disk[i], disk[i - 1]);
        hy_trainer_destroy(t);
    }
    /* Weights, gradients and two arrays of the optimizer, of one layer and of all three. */
    uint64_t layer = pinned[0] - pinned[1];
    ck_assert_uint_ge(layer, 4 * 4 * (4 * 32 * 32 + 3 * 32 * 48));
    ck_assert_uint_gt(pinned[0] - pinned[2], 2 * layer);
}
END_TEST

START_TEST(a_run_gives_the_bits_of_the_cpu_with_every_predictor) {
    static const char *const kinds[] = {"outer", "line", "none"};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        same_on_both(PAIRS("predictor", kinds[i], "max_predict_steps", "4"));
        same_on_both(PAIRS("predictor", kinds[i], "max_predict_steps", "4", "precision", "bf16",
                           "master_dtype", "bf16", "predictor_dtype", "8bit"));
    }
}
END_TEST

START_TEST(a_run_gives_the_bits_of_the_cpu_in_16_bits_and_in_other_shapes) {
    same_on_both(PAIRS("precision", "bf16", "precision_correct", "fp32"));
    same_on_both(PAIRS("precision", "fp16"));
    same_on_both(PAIRS("positions", "learned", "norm", "layernorm", "activation", "gelu",
                       "qkv_bias", "true", "proj_bias", "true", "tied_head", "false"));
    same_on_both(PAIRS("recompute", "all", "loss_chunks", "4"));
}
END_TEST

#define FORKED                                                                                     \
    "confidence_threshold", "0.99", "fork_budget", "0.5", "fork_steps", "3", "steps", "60"

START_TEST(a_paired_test_runs_to_its_end) {
    double summary_loss[3];
    static const char *const devices[] = {"cpu", "cuda", "cuda"};
    for (int d = 0; d < 3; d++) {
        hy_summary s;
        const char *const *here = PAIRS(FORKED, "layers", "3");
        const char *const *partly = PAIRS(FORKED, STREAMED("pinned"), "resident_units", "2");
        hy_trainer *t = trainer_on(devices[d], "none", d == 2 ? partly : here);
        must(hy_trainer_run(t));
        hy_trainer_summary(t, &s);
        ck_assert_int_gt(s.forks, 0);
        summary_loss[d] = s.val_loss;
        hy_trainer_destroy(t);
    }
    ck_assert(summary_loss[0] == summary_loss[1]);
    ck_assert(summary_loss[0] == summary_loss[2]);
}
END_TEST

/* Saves on one device and continues with the other, there with other places. */
static void moves_from_to(const char *from, const char *const *places, const char *to,
                          const char *const *other_places) {
    char folder[256];
    double straight[20], resumed[20];
    temp_folder(folder);
    hy_trainer *t = trainer_on(from, folder, places);
    for (int i = 0; i < 10; i++) must(hy_trainer_step(t, NULL));
    must(hy_trainer_save(t));
    take_losses(t, 20, straight);
    hy_trainer_destroy(t);
    hy_config *config = config_on(to, folder, other_places);
    must(hy_config_set(config, "resume", "auto", HY_FROM_CALLER));
    must(hy_trainer_create(config, NULL, &t));
    hy_config_destroy(config);
    take_losses(t, 20, resumed);
    hy_trainer_destroy(t);
    ck_assert_mem_eq(straight, resumed, sizeof straight);
    remove_folder(folder);
}

START_TEST(a_checkpoint_moves_between_devices_bit_for_bit) {
    const char *const *here = PAIRS("tail_share", "0.5");
    moves_from_to("cuda", here, "cuda", here);
    moves_from_to("cuda", here, "cpu", here);
    moves_from_to("cpu", here, "cuda", here);
}
END_TEST

START_TEST(a_checkpoint_of_resident_layers_moves_bit_for_bit) {
    const char *const *here = PAIRS("tail_share", "0.5", "layers", "3");
    const char *const *two = PAIRS(STREAMED("pinned"), "tail_share", "0.5", "resident_units", "2");
    const char *const *one = PAIRS(STREAMED("disk"), "tail_share", "0.5", "resident_units", "1");
    moves_from_to("cuda", two, "cuda", here);
    moves_from_to("cuda", here, "cuda", two);
    moves_from_to("cuda", two, "cuda", one);
    moves_from_to("cuda", one, "cpu", two);
}
END_TEST

/* Weights of files: into memory that the host reaches, and into layers that it does not. */
START_TEST(weights_of_files_reach_resident_layers) {
    char folder[256];
    double losses[3][6];
    temp_folder(folder);
    hy_trainer *t = trainer_on("cpu", folder, PAIRS("layers", "3"));
    for (int i = 0; i < 3; i++) must(hy_trainer_step(t, NULL));
    must(hy_trainer_save(t));
    hy_trainer_destroy(t);
    const char *const *pairs[] = {
        PAIRS("layers", "3", "init_from", folder),
        PAIRS(STREAMED("pinned"), "resident_units", "2", "init_from", folder),
        PAIRS(STREAMED("disk"), "resident_units", "1", "init_from", folder)};
    for (int i = 0; i < 3; i++) {
        t = trainer_on(i == 0 ? "cpu" : "cuda", "none", pairs[i]);
        take_losses(t, 6, losses[i]);
        hy_trainer_destroy(t);
        ck_assert_mem_eq(losses[0], losses[i], sizeof losses[0]);
    }
    remove_folder(folder);
}
END_TEST

START_TEST(the_table_of_algorithms_is_kept_and_comes_back_before_any_plan) {
    char folder[256], path[512], *text;
    size_t size;
    temp_folder(folder);
    hy_trainer *t = trainer_on("cuda", folder, NULL);
    must(hy_trainer_step(t, NULL));
    must(hy_trainer_save(t));
    ck_assert_str_eq(card.loaded, "");
    hy_trainer_destroy(t);
    snprintf(path, sizeof path, "%s/checkpoint-1/matmul-algorithms", folder);
    must(hy_file_read(path, &text, &size));
    ck_assert_str_eq(text, CARD_TABLE);
    free(text);
    t = trainer_on("cuda", folder, PAIRS("resume", "auto"));
    ck_assert_str_eq(card.loaded, CARD_TABLE);
    ck_assert_int_eq(card.prepared_before_load, 0);
    hy_trainer_destroy(t);
    remove_folder(folder);
}
END_TEST

START_TEST(auto_precision_follows_the_card) {
    static const struct {
        int capability;
        hy_dtype full;
    } cases[] = {{75, HY_F16}, {80, HY_BF16}, {90, HY_BF16}, {120, HY_BF16}};
    char folder[256];
    temp_folder(folder);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        card.capability = cases[i].capability;
        hy_trainer *t = trainer_on("cuda", folder, PAIRS("precision", "auto", "overwrite", "true"));
        hy_step_info info;
        must(hy_trainer_step(t, &info));
        ck_assert_int_eq(info.precision, cases[i].full);
        must(hy_trainer_save(t));
        ck_assert_int_eq(saved_number(folder, "loss_scale") > 1, cases[i].full == HY_F16);
        hy_trainer_destroy(t);
    }
    card.capability = 75;
    hy_trainer *t = trainer_on("cuda", "none", PAIRS("precision_predict", "16bit"));
    hy_step_info info;
    do must(hy_trainer_step(t, &info));
    while (info.phase != HY_PREDICT);
    ck_assert_int_eq(info.precision, HY_F16);
    hy_trainer_destroy(t);
    remove_folder(folder);
    hy_config *config = config_on("cuda", "none", PAIRS("precision", "bf16"));
    must_fail(hy_trainer_create(config, NULL, &t), HY_ERR_INPUT, "sm_75");
    hy_config_destroy(config);
    card.capability = 90;
}
END_TEST

START_TEST(what_does_not_fit_the_card_is_refused_in_words) {
    static const struct {
        size_t memory_free;
        const char *pairs[5], *said;
    } cases[] = {
        {CARD_BYTES, {"max_gpu_mem", "1MiB"}, "max_gpu_mem is 1.0 MiB"},
        {(size_t)257 << 20,
         {"layers", "4", "width", "128"},
         "the card's free memory minus 256 MiB is 1.0 MiB"},
        {CARD_BYTES, {"cpu_mem", "1000", "snapshot", "true"}, "host memory, but cpu_mem is"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        hy_trainer *t;
        hy_config *config = config_on("cuda", "none", cases[i].pairs);
        card.memory_free = cases[i].memory_free;
        must_fail(hy_trainer_create(config, NULL, &t), HY_ERR_INPUT, cases[i].said);
        hy_config_destroy(config);
    }
    card.memory_free = CARD_BYTES;
}
END_TEST

START_TEST(options_reach_the_backend) {
    char folder[256], cache[300], inside[512];
    temp_folder(folder);
    snprintf(cache, sizeof cache, "%s/deep/er/table", folder);
    snprintf(inside, sizeof inside, "%s/deep/er", folder);
    hy_trainer *t =
        trainer_on("cuda:0", "none",
                   PAIRS("tune", "max", "tf32", "on", "tune_cache", cache, "attention", "cudnn"));
    ck_assert_int_eq(card.options.device, 0);
    ck_assert_int_eq(card.options.tune, HY_TUNE_MAX);
    ck_assert(card.options.allow_tf32);
    ck_assert_int_eq(card.options.attention, HY_ATTENTION_CUDNN);
    ck_assert_str_eq(card.options.cache, cache);
    ck_assert(hy_path_is_dir(inside));
    hy_trainer_destroy(t);

    setenv("XDG_CACHE_HOME", folder, 1);
    t = trainer_on("cuda", "none", PAIRS("tune_cache", "auto", "tune", "off"));
    snprintf(cache, sizeof cache, "%s/hybrid-train/matmul-algorithms", folder);
    ck_assert_str_eq(card.options.cache, cache);
    ck_assert_int_eq(card.options.tune, HY_TUNE_OFF);
    ck_assert(!card.options.allow_tf32);
    ck_assert_int_eq(card.options.attention, HY_ATTENTION_AUTO);
    hy_trainer_destroy(t);
    t = trainer_on("cuda", "none",
                   PAIRS("precision", "bf16", "precision_correct", "fp32", "attention", "own"));
    ck_assert(card.options.allow_tf32);
    ck_assert_int_eq(card.options.attention, HY_ATTENTION_OWN);
    hy_trainer_destroy(t);
    remove_folder(folder);

    hy_config *config = config_on("cuda:3", "none", NULL);
    must_fail(hy_trainer_create(config, NULL, &t), HY_ERR_INPUT, "there is no CUDA device 3");
    hy_config_destroy(config);
}
END_TEST

START_TEST(utilisation_is_reported_against_the_data_sheet_and_the_timed_matmul) {
    hy_trainer *t = trainer_on("cuda", "none", NULL);
    hy_step_info info;
    hy_summary s;
    must(hy_trainer_step(t, &info));
    hy_trainer_summary(t, &s);
    double flops = info.tokens_per_second * s.flops_per_token;
    ck_assert_double_eq_tol(info.mfu, flops / 989.4e12, 1e-9 * info.mfu);
    ck_assert_double_eq_tol(info.sol, flops / 1e12, 1e-9 * info.sol);
    ck_assert_int_eq(s.capability, 90);
    ck_assert_double_eq(s.peak_flops, 989.4e12);
    hy_trainer_destroy(t);
    t = trainer_on("cpu", "none", NULL);
    must(hy_trainer_step(t, &info));
    ck_assert(info.mfu == 0 && info.sol == 0);
    hy_trainer_destroy(t);
}
END_TEST

static Suite *card_suite(void) {
    Suite *suite = suite_create("trainer: card");
    TCase *tests = tcase_create("card");
    tcase_set_timeout(tests, 240);
    tcase_add_test(tests, a_run_gives_the_bits_of_the_cpu_with_every_strategy);
    tcase_add_test(tests, a_run_with_resident_layers_gives_the_bits_of_the_cpu);
    tcase_add_test(tests, resident_layers_take_no_host_memory);
    tcase_add_test(tests, a_run_gives_the_bits_of_the_cpu_with_every_predictor);
    tcase_add_test(tests, a_run_gives_the_bits_of_the_cpu_in_16_bits_and_in_other_shapes);
    tcase_add_test(tests, a_paired_test_runs_to_its_end);
    tcase_add_test(tests, a_checkpoint_moves_between_devices_bit_for_bit);
    tcase_add_test(tests, a_checkpoint_of_resident_layers_moves_bit_for_bit);
    tcase_add_test(tests, weights_of_files_reach_resident_layers);
    tcase_add_test(tests, the_table_of_algorithms_is_kept_and_comes_back_before_any_plan);
    tcase_add_test(tests, auto_precision_follows_the_card);
    tcase_add_test(tests, what_does_not_fit_the_card_is_refused_in_words);
    tcase_add_test(tests, options_reach_the_backend);
    tcase_add_test(tests, utilisation_is_reported_against_the_data_sheet_and_the_timed_matmul);
    suite_add_tcase(suite, tests);
    return suite;
}

HY_TEST_MAIN(card_suite)
