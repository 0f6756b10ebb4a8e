/* test_trainer.c: whole runs through hybrid.h: reproducibility, resuming, stopping, failing. */
#include "fake_card.h"
#include "run_facts.h"
#include "small_run.h"

#include <errno.h>
#include <math.h>

static hy_config *small_config(const char *out, const char *const *pairs) {
    return small_run(SMALL_RUN, out, pairs);
}

static hy_trainer *open_trainer(const char *out, const char *const *pairs) {
    return small_trainer(SMALL_RUN, out, NULL, pairs);
}

static void losses_of(const char *const *pairs, int count, double *losses) {
    hy_trainer *trainer = open_trainer("none", pairs);
    next_losses(trainer, count, losses);
    hy_trainer_destroy(trainer);
}

START_TEST(every_preset_has_its_exact_parameter_count) {
    static const struct {
        const char *name;
        int64_t parameters;
    } known[] = {
        {"gpt2-124m", 124439808},     {"gpt2-350m", 354823168},     {"gpt2-774m", 774030080},
        {"gpt2-1558m", 1557611200},   {"llama-3.2-1b", 1235814400}, {"qwen2.5-0.5b", 494032768},
        {"qwen2.5-1.5b", 1543714304}, {"qwen2.5-3b", 3085938688},   {"qwen2.5-7b", 7615616512},
        {"llama-2-7b", 6738415616},   {"llama-3.1-8b", 8030261248}, {"qwen3-0.6b", 596049920},
        {"qwen3-8b", 8190735360},     {"qwen2.5-32b", 32763876352}, {"mistral-7b", 7241732096},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        int64_t parameters;
        must(hy_model_parameters(known[i].name, &parameters));
        ck_assert_msg(parameters == known[i].parameters, "%s has %lld, expected %lld",
                      known[i].name, (long long)parameters, (long long)known[i].parameters);
    }
}
END_TEST

START_TEST(training_lowers_the_loss) {
    hy_trainer *trainer = open_trainer("none", PAIRS("steps", "40"));
    hy_summary summary;
    double first;
    next_losses(trainer, 1, &first);
    must(hy_trainer_run(trainer));
    hy_trainer_summary(trainer, &summary);
    ck_assert_double_gt(first, 5);
    ck_assert_double_lt(summary.val_loss, 4);
    ck_assert_int_eq(summary.steps, 40);
    ck_assert_int_eq(summary.tokens, 40 * 4 * 32);
    hy_trainer_destroy(trainer);
}
END_TEST

START_TEST(the_same_run_twice_gives_the_same_bits) {
    double a[12], b[12];
    losses_of(NULL, 12, a);
    losses_of(NULL, 12, b);
    ck_assert_mem_eq(a, b, sizeof a);
}
END_TEST

START_TEST(threads_and_recomputation_change_no_bit) {
    static const char *const levels[] = {"norm", "attention", "mlp", "all"};
    double plain[8], other[8];
    losses_of(NULL, 8, plain);
    losses_of(PAIRS("threads", "1"), 8, other);
    ck_assert_mem_eq(plain, other, sizeof plain);
    for (int i = 0; i < 4; i++) {
        losses_of(PAIRS("recompute", levels[i]), 8, other);
        ck_assert_mem_eq(plain, other, sizeof plain);
    }
}
END_TEST

START_TEST(micro_batches_stay_within_the_reordered_bound) {
    static const char *const splits[][2] = {{"4", "2"}, {"2", "4"}, {"1", "8"}};
    double whole[10], split[10];
    losses_of(PAIRS("batch_size", "8"), 10, whole);
    for (int i = 0; i < 3; i++) {
        losses_of(PAIRS("batch_size", splits[i][0], "grad_accum_steps", splits[i][1]), 10, split);
        ck_assert_double_lt(fabs(split[0] / whole[0] - 1), 1e-6);
        ck_assert_double_lt(fabs(split[9] / whole[9] - 1), 1e-4);
        ck_assert(memcmp(whole, split, sizeof whole) != 0); /* the order of sums did change */
    }
}
END_TEST

START_TEST(without_normalize_gradients_of_micro_batches_add_up) {
    hy_trainer *mean = open_trainer("none", PAIRS("grad_accum_steps", "4"));
    hy_trainer *sum = open_trainer("none", PAIRS("grad_accum_steps", "4", "normalize", "false"));
    hy_step_info a, b;
    must(hy_trainer_step(mean, &a));
    must(hy_trainer_step(sum, &b));
    ck_assert_double_eq_tol(b.grad_norm / a.grad_norm, 4, 1e-5);
    ck_assert_double_eq(a.loss, b.loss);
    hy_trainer_destroy(mean);
    hy_trainer_destroy(sum);
}
END_TEST

START_TEST(scale_lr_multiplies_the_rate_by_the_accumulation) {
    hy_trainer *t = open_trainer("none", PAIRS("grad_accum_steps", "2", "scale_lr", "true"));
    hy_step_info info;
    must(hy_trainer_step(t, &info));
    ck_assert_double_eq_tol(info.lr, 2 * 3e-3 / 3, 1e-9);
    hy_trainer_destroy(t);
}
END_TEST

START_TEST(resume_gives_the_same_losses_bit_for_bit) {
    check_resume(SMALL_RUN, NULL, NULL, 5, 7);
    check_resume(SMALL_RUN, NULL, PAIRS("grad_accum_steps", "3", "builtin_bytes", "30000"), 7, 5);
    check_resume(SMALL_RUN, NULL, PAIRS("precision", "bf16"), 4, 4);
}
END_TEST

START_TEST(resume_goes_on_in_the_middle_of_an_epoch_and_across_its_end) {
    /* 30000 bytes: about 840 windows of 32; 7 sequences a step do not divide an epoch */
    check_resume(SMALL_RUN, NULL,
                 PAIRS("builtin_bytes", "4100", "batch_size", "7", "val_fraction", "0.1"), 9, 20);
}
END_TEST

static int64_t steps_in_metrics(const char *folder, bool *each_once) {
    char path[512];
    char *text;
    size_t size;
    int64_t expected = 1;
    snprintf(path, sizeof path, "%s/metrics.jsonl", folder);
    must(hy_file_read(path, &text, &size));
    *each_once = true;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        hy_json *json;
        int64_t step;
        double loss;
        must(hy_json_parse(line, strlen(line), "line", &json));
        must(hy_json_int(json, hy_json_root(json), "step", &step));
        if (!hy_json_get(hy_json_root(json), "event")) {
            must(hy_json_double(json, hy_json_root(json), "loss", &loss));
            *each_once &= step == expected++;
        }
        hy_json_free(json);
    }
    free(text);
    return expected - 1;
}

START_TEST(a_run_writes_metrics_summary_and_a_checkpoint) {
    char folder[256], path[512];
    bool each_once;
    hy_json *json;
    double val_loss;
    temp_folder(folder);
    hy_trainer *t = open_trainer(folder, PAIRS("eval_every", "5"));
    must(hy_trainer_run(t));
    hy_trainer_destroy(t);
    ck_assert_int_eq(steps_in_metrics(folder, &each_once), 12);
    ck_assert(each_once);
    snprintf(path, sizeof path, "%s/summary.json", folder);
    must(hy_json_read_file(path, &json));
    must(hy_json_double(json, hy_json_root(json), "val_loss", &val_loss));
    ck_assert(val_loss > 0 && val_loss < 6);
    hy_json_free(json);
    snprintf(path, sizeof path, "%s/checkpoint-12", folder);
    must(hy_checkpoint_verify(path, true));
    remove_folder(folder);
}
END_TEST

static void stop_at_four(void *user, const hy_step_info *info) {
    if (info->step == 4) hy_trainer_request_stop(*(hy_trainer **)user);
}

START_TEST(a_stopped_run_is_saved_and_resumes_to_the_same_end) {
    char folder[256], other[256];
    hy_trainer *t, *straight;
    hy_summary a, b;
    bool each_once;
    temp_folder(folder);
    temp_folder(other);
    hy_config *config = small_config(folder, NULL);
    hy_observer observer = {.user = &t, .on_step = stop_at_four};
    must(hy_trainer_create(config, &observer, &t));
    must_fail(hy_trainer_run(t), HY_STOPPED, "step 4");
    hy_trainer_destroy(t);
    hy_config_destroy(config);

    must(hy_config_create(&config));
    must(hy_config_load_run(config, folder)); /* the run's own configuration is enough */
    must(hy_config_set(config, "resume", folder, HY_FROM_CALLER));
    must(hy_trainer_create(config, NULL, &t));
    must(hy_trainer_run(t));
    straight = open_trainer(other, NULL);
    must(hy_trainer_run(straight));
    hy_trainer_summary(t, &a);
    hy_trainer_summary(straight, &b);
    ck_assert_double_eq(a.val_loss, b.val_loss);
    ck_assert_double_eq(a.final_loss, b.final_loss);
    ck_assert_int_eq(a.tokens, b.tokens);
    ck_assert_int_eq(steps_in_metrics(folder, &each_once), 12);
    ck_assert(each_once);
    hy_trainer_destroy(t);
    hy_trainer_destroy(straight);
    hy_config_destroy(config);
    remove_folder(folder);
    remove_folder(other);
}
END_TEST

START_TEST(only_the_newest_checkpoints_are_kept) {
    char folder[256], path[512];
    temp_folder(folder);
    hy_trainer *t = open_trainer(folder, PAIRS("save_every", "3", "keep", "2"));
    must(hy_trainer_run(t));
    hy_trainer_destroy(t);
    for (int step = 3; step <= 12; step += 3) {
        snprintf(path, sizeof path, "%s/checkpoint-%d", folder, step);
        ck_assert_int_eq(hy_path_exists(path), step >= 9);
    }
    remove_folder(folder);
}
END_TEST

START_TEST(a_checkpoint_of_another_model_is_refused_by_name) {
    char folder[256];
    hy_trainer *t;
    temp_folder(folder);
    t = open_trainer(folder, NULL);
    next_losses(t, 1, (double[1]){0});
    must(hy_trainer_save(t));
    hy_trainer_destroy(t);
    hy_config *config = small_config(folder, PAIRS("width", "48", "resume", folder));
    must_fail(hy_trainer_create(config, NULL, &t), HY_ERR_INPUT, "another model");
    hy_config_destroy(config);
    config = small_config(folder, PAIRS("layers", "1", "resume", folder));
    must_fail(hy_trainer_create(config, NULL, &t), HY_ERR_INPUT, "another model");
    hy_config_destroy(config);
    config = small_config(folder, PAIRS("seq_len", "16", "resume", folder));
    must_fail(hy_trainer_create(config, NULL, &t), HY_ERR_INPUT, "seq_len was 32");
    hy_config_destroy(config);
    remove_folder(folder);
}
END_TEST

START_TEST(a_damaged_checkpoint_is_named_and_the_one_before_it_is_taken) {
    char folder[256], path[512];
    hy_trainer *t;
    temp_folder(folder);
    t = open_trainer(folder, PAIRS("save_every", "4", "keep", "0"));
    must(hy_trainer_run(t));
    hy_trainer_destroy(t);
    snprintf(path, sizeof path, "%s/checkpoint-12/weights.safetensors", folder);
    FILE *file = fopen(path, "r+b");
    ck_assert_ptr_nonnull(file);
    fseek(file, -5, SEEK_END);
    fputc(0x5a, file);
    fclose(file);
    snprintf(path, sizeof path, "%s/checkpoint-12", folder);
    hy_config *config = small_config(folder, PAIRS("resume", path));
    must_fail(hy_trainer_create(config, NULL, &t), HY_ERR_INPUT, "weights.safetensors");
    hy_config_destroy(config);
    t = open_trainer(folder, PAIRS("resume", "auto"));
    hy_step_info info;
    must(hy_trainer_step(t, &info));
    ck_assert_int_eq(info.step, 9);
    hy_trainer_destroy(t);
    remove_folder(folder);
}
END_TEST

static void count_warnings(void *user, hy_message_level level, const char *text) {
    if (level == HY_WARNING && strstr(text, "continues without this checkpoint")) ++*(int *)user;
}

START_TEST(a_full_disk_costs_a_checkpoint_but_not_the_run) {
    char folder[256], path[512];
    hy_trainer *t;
    int warnings = 0;
    temp_folder(folder);
    hy_config *config = small_config(folder, PAIRS("save_every", "4", "keep", "0"));
    hy_observer observer = {.user = &warnings, .on_message = count_warnings};
    must(hy_trainer_create(config, &observer, &t));
    for (int i = 0; i < 4; i++) must(hy_trainer_step(t, NULL));
    must(hy_trainer_save(t));
    hy_fault_arm(4, ENOSPC, false);
    for (int i = 0; i < 3; i++) must(hy_trainer_step(t, NULL));
    must(hy_trainer_run(t)); /* the save at step 8 fails, the one at the end does not */
    hy_fault_disarm();
    ck_assert_int_eq(warnings, 1);
    snprintf(path, sizeof path, "%s/checkpoint-8", folder);
    ck_assert(!hy_path_exists(path));
    snprintf(path, sizeof path, "%s/checkpoint-4", folder);
    must(hy_checkpoint_verify(path, true));
    snprintf(path, sizeof path, "%s/checkpoint-12", folder);
    must(hy_checkpoint_verify(path, true));
    hy_trainer_destroy(t);
    hy_config_destroy(config);
    remove_folder(folder);
}
END_TEST

START_TEST(a_folder_with_a_run_in_it_is_not_touched_unasked) {
    char folder[256];
    hy_trainer *t;
    temp_folder(folder);
    t = open_trainer(folder, NULL);
    must(hy_trainer_run(t));
    hy_trainer_destroy(t);
    hy_config *config = small_config(folder, NULL);
    must_fail(hy_trainer_create(config, NULL, &t), HY_ERR_INPUT, "--overwrite");
    hy_config_destroy(config);
    t = open_trainer(folder, PAIRS("overwrite", "true", "steps", "2"));
    must(hy_trainer_run(t));
    hy_trainer_destroy(t);
    bool each_once;
    ck_assert_int_eq(steps_in_metrics(folder, &each_once), 2);
    remove_folder(folder);
}
END_TEST

START_TEST(a_budget_that_is_too_small_says_what_is_short) {
    hy_trainer *t;
    hy_config *config = small_config("none", PAIRS("max_gpu_mem", "100k"));
    must_fail(hy_trainer_create(config, NULL, &t), HY_ERR_INPUT, "short");
    hy_config_destroy(config);
}
END_TEST

START_TEST(planned_memory_is_what_is_measured) {
    hy_trainer *t = open_trainer("none", NULL);
    hy_summary s;
    must(hy_trainer_run(t));
    hy_trainer_summary(t, &s);
    const hy_phase_summary *full = &s.phases[HY_FULL];
    ck_assert_uint_gt(full->vram_peak_bytes, 0);
    ck_assert_uint_eq(full->vram_peak_bytes, full->vram_planned_bytes);
    for (int cls = 0; cls < HY_CLASS_COUNT; cls++) {
        ck_assert_uint_eq(full->memory[cls].measured_bytes, full->memory[cls].planned_bytes);
    }
    hy_trainer_destroy(t);
}
END_TEST

START_TEST(a_plan_is_what_the_run_takes_and_takes_nothing) {
    static const char *const runs[][4] = {
        {"predictor", "none", NULL},
        {"optim_place", "pinned", NULL},
        {"offload_strategy", "pinned", NULL},
    };
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
        hy_config *config = small_config("none", runs[i]);
        hy_trainer *plan, *run;
        hy_plan_facts facts;
        hy_summary planned, taken;
        hy_memory_state memory;
        must(hy_trainer_plan(config, NULL, &plan));
        must(hy_trainer_create(config, NULL, &run));
        hy_trainer_plan_facts(plan, &facts);
        hy_trainer_summary(plan, &planned);
        hy_trainer_summary(run, &taken);
        ck_assert(facts.fits);
        must(hy_trainer_memory(run, &memory));
        ck_assert_uint_eq(facts.vram_bytes, memory.device.reserved);
        for (int phase = 0; phase < HY_PHASE_COUNT; phase++) {
            ck_assert_uint_eq(planned.phases[phase].vram_planned_bytes,
                              taken.phases[phase].vram_planned_bytes);
        }
        ck_assert_uint_eq(planned.checkpoint_bytes, taken.checkpoint_bytes);
        ck_assert_uint_eq(planned.phases[HY_FULL].vram_peak_bytes, 0);
        must_fail(hy_trainer_step(plan, NULL), HY_ERR_STATE, "a plan");
        must_fail(hy_trainer_run(plan), HY_ERR_STATE, "a plan");
        must_fail(hy_trainer_save(plan), HY_ERR_STATE, "a plan");
        must(hy_trainer_step(run, NULL));
        hy_trainer_destroy(plan);
        hy_trainer_destroy(run);
        hy_config_destroy(config);
    }
}
END_TEST

START_TEST(a_gradient_that_is_not_finite_is_skipped_and_the_run_goes_on) {
    char folder[256];
    temp_folder(folder);
    hy_trainer *t = open_trainer(folder, PAIRS("device", "cuda", "precision", "fp32"));
    hy_step_info info;
    must(hy_trainer_step(t, &info));
    float *weight = card.norm_weight, healthy = *weight;
    *weight = NAN;
    must(hy_trainer_step(t, &info));
    ck_assert(info.was_skipped);
    *weight = healthy;
    must(hy_trainer_step(t, &info));
    ck_assert(!info.was_skipped && isfinite(info.loss));
    must(hy_trainer_save(t));
    ck_assert_double_eq(saved_number(folder, "updates"), 2);
    ck_assert_double_eq(saved_number(folder, "skipped"), 1);
    *weight = NAN;
    hy_status status = HY_OK;
    for (int i = 0; i < 25 && status == HY_OK; i++) status = hy_trainer_step(t, &info);
    ck_assert_int_eq(status, HY_ERR_NUMERIC);
    ck_assert_ptr_nonnull(strstr(hy_error_message(), "not finite"));
    hy_trainer_destroy(t);
    remove_folder(folder);
}
END_TEST

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
/* Without those of files: code that runs for the first time, because a thread had to sleep, is no
 * growth. */
static long resident_pages(void) {
    long size = 0, resident = 0, of_files = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fscanf(file, "%ld %ld %ld", &size, &resident, &of_files), 3);
    fclose(file);
    return resident - of_files;
}

typedef struct growth {
    hy_trainer *trainer;
    long early, late; /* pages */
} growth;

static void note_pages(void *user, const hy_step_info *info) {
    growth *g = user;
    if (info->step == 1000) g->early = resident_pages(); /* each thread has had each kind of task */
    if (info->step == 2400) g->late = resident_pages(), hy_trainer_request_stop(g->trainer);
}

START_TEST(nothing_grows) {
    char folder[256];
    growth g = {0};
    hy_observer observer = {.user = &g, .on_step = note_pages};
    hy_config *config =
        small_config(temp_folder(folder), PAIRS("layers", "1", "seq_len", "16", "batch_size", "2",
                                                "steps", "9000", "eval_every", "0"));
    must(hy_trainer_create(config, &observer, &g.trainer));
    ck_assert_int_eq(hy_trainer_run(g.trainer), HY_STOPPED);
    ck_assert_int_gt(g.early, 0);
    ck_assert_int_eq(g.late, g.early);
    hy_trainer_destroy(g.trainer);
    hy_config_destroy(config);
    remove_folder(folder);
}
END_TEST

#endif

START_TEST(samples_are_a_function_of_the_seed) {
    hy_trainer *t = open_trainer("none", NULL);
    hy_sample_options o = {.prompt = "a", .tokens = 40, .temperature = 0.8, .top_k = 20, .seed = 5};
    char *a, *b, *c;
    size_t size;
    must(hy_trainer_run(t));
    must(hy_trainer_sample(t, &o, &a, &size));
    ck_assert_uint_eq(size, 40);
    must(hy_trainer_sample(t, &o, &b, NULL));
    ck_assert_mem_eq(a, b, 40);
    o.seed = 6;
    must(hy_trainer_sample(t, &o, &c, NULL));
    ck_assert(memcmp(a, c, 40) != 0);
    hy_free(a);
    hy_free(b);
    hy_free(c);
    hy_trainer_destroy(t);
}
END_TEST

START_TEST(what_cannot_be_is_refused_before_anything_is_written) {
    static const char *const wrong[][3] = {
        {"heads", "5", "heads"},       {"seq_len", "1024", "context"},
        {"device", "cuda:99", "CUDA"}, {"data", "no-such-file.txt", "no-such-file.txt"},
        {"vocab", "100", "vocab"},     {"resume", "no-such-folder", "no-such-folder"},
    };
    char folder[256], out[512];
    temp_folder(folder);
    snprintf(out, sizeof out, "%s/run", folder);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        hy_trainer *t;
        hy_config *config = small_config(out, PAIRS(wrong[i][0], wrong[i][1]));
        must_fail(hy_trainer_create(config, NULL, &t), HY_ERR_INPUT, wrong[i][2]);
        ck_assert(!hy_path_exists(out));
        hy_config_destroy(config);
    }
    remove_folder(folder);
}
END_TEST

static Suite *trainer_suite(void) {
    Suite *suite = suite_create("trainer");
    TCase *tests = tcase_create("trainer");
    tcase_set_timeout(tests, 240);
    tcase_add_test(tests, every_preset_has_its_exact_parameter_count);
    tcase_add_test(tests, training_lowers_the_loss);
    tcase_add_test(tests, the_same_run_twice_gives_the_same_bits);
    tcase_add_test(tests, threads_and_recomputation_change_no_bit);
    tcase_add_test(tests, micro_batches_stay_within_the_reordered_bound);
    tcase_add_test(tests, without_normalize_gradients_of_micro_batches_add_up);
    tcase_add_test(tests, scale_lr_multiplies_the_rate_by_the_accumulation);
    tcase_add_test(tests, resume_gives_the_same_losses_bit_for_bit);
    tcase_add_test(tests, resume_goes_on_in_the_middle_of_an_epoch_and_across_its_end);
    tcase_add_test(tests, a_run_writes_metrics_summary_and_a_checkpoint);
    tcase_add_test(tests, a_stopped_run_is_saved_and_resumes_to_the_same_end);
    tcase_add_test(tests, only_the_newest_checkpoints_are_kept);
    tcase_add_test(tests, a_checkpoint_of_another_model_is_refused_by_name);
    tcase_add_test(tests, a_damaged_checkpoint_is_named_and_the_one_before_it_is_taken);
    tcase_add_test(tests, a_full_disk_costs_a_checkpoint_but_not_the_run);
    tcase_add_test(tests, a_folder_with_a_run_in_it_is_not_touched_unasked);
    tcase_add_test(tests, a_budget_that_is_too_small_says_what_is_short);
    tcase_add_test(tests, planned_memory_is_what_is_measured);
    tcase_add_test(tests, a_plan_is_what_the_run_takes_and_takes_nothing);
    tcase_add_test(tests, a_gradient_that_is_not_finite_is_skipped_and_the_run_goes_on);
#if !defined(__SANITIZE_ADDRESS__) &&                                                              \
    !defined(__SANITIZE_THREAD__) /* they keep books of their own */
    tcase_add_test(tests, nothing_grows);
#endif
    tcase_add_test(tests, samples_are_a_function_of_the_seed);
    tcase_add_test(tests, what_cannot_be_is_refused_before_anything_is_written);
    suite_add_tcase(suite, tests);
    return suite;
}

HY_TEST_MAIN(trainer_suite)
