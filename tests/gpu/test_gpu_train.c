/* test_gpu_train.c: whole runs through hybrid.h on CUDA: against the CPU, against themselves,
 * resumed, recomputed, offloaded, with moves and forks.
 *
 * Small models: GPT-2's blocks, Llama's with grouped heads and Qwen's bias, those with Qwen3's head
 * norms, odd sizes, block-sparse attention. What DESIGN calls exact is compared bit for bit, what it calls reordered by
 * its bounds. */
#include "gpu_rig.h"
#include "small_run.h"

enum { STEPS = 50, MODELS = 5 };

#define RUN                                                                                        \
    "model nano layers 2 seq_len 64 context 64 batch_size 4 grad_accum_steps 1 steps 50 lr 3e-3 "  \
    "builtin_bytes 60000 lr_warmup_steps 5 eval_batches 2 sample_tokens 4 threads 4 tune off "     \
    "tune_cache none predictor none precision fp32 offload_strategy none "
#define GPT2                                                                                       \
    "width 64 heads 4 kv_heads 4 mlp_width 256 norm layernorm positions learned activation gelu "  \
    "qkv_bias true proj_bias true tied_head true "
#define LLAMA                                                                                      \
    "width 64 heads 4 kv_heads 2 mlp_width 160 norm rmsnorm positions rope activation swiglu "     \
    "qkv_bias true tied_head false "

static const char *const models[MODELS] = {
    RUN GPT2,
    RUN LLAMA,
    RUN LLAMA "qk_norm true head_size 32 tied_head true ",
    /* nothing is a multiple of eight, and attention looks back nine tokens */
    RUN
    "width 36 heads 3 kv_heads 1 head_size 14 mlp_width 50 vocab 257 sliding_window 9 seq_len 37 ",
    /* five blocks, of which three are seen; heads of 64: in 16 bits on tensor cores */
    RUN LLAMA "width 128 heads 2 kv_heads 1 seq_len 300 context 300 batch_size 1 "
              "attention_type sparse sparse_local 2 ",
};
static const char *const names[MODELS] = {"gpt2", "llama", "qwen3", "odd", "sparse"};

/* ---- runs ------------------------------------------------------------------------------------ */

/* The device under test; HYBRID_GPU_TESTS_DEVICE=cpu tries the tests themselves. */
static const char *card(void) {
    const char *device = getenv("HYBRID_GPU_TESTS_DEVICE");
    return device ? device : "cuda";
}

static void losses_on(const char *device, const char *words, const char *const *pairs, int count,
                      double *losses) {
    hy_trainer *trainer = small_trainer(words, "none", device, pairs);
    next_losses(trainer, count, losses);
    hy_trainer_destroy(trainer);
}

static void check_close(const char *what, const double *found, const double *expected, int count,
                        double bound) {
    for (int i = 0; i < count; i++) {
        double far = fabs(found[i] / expected[i] - 1);
        if (far <= bound) continue;
        ck_abort_msg("%s, step %d: the loss is %.8g, expected %.8g: off by %.2e, allowed %.0e",
                     what, i + 1, found[i], expected[i], far, bound);
    }
}

static int models_here(void) { return gpu.is_small ? 2 : MODELS; }
static int steps_here(void) { return gpu.is_small ? 5 : STEPS; }

/* ---- against the CPU ------------------------------------------------------------------------- */

START_TEST(fifty_steps_in_fp32_are_those_of_the_cpu) {
    double here[STEPS], there[STEPS];
    for (int m = 0; m < models_here(); m++) {
        losses_on("cpu", models[m], NULL, steps_here(), there);
        losses_on(card(), models[m], NULL, steps_here(), here);
        check_close(names[m], here, there, steps_here(), 1e-4);
        if (!gpu.is_small) ck_assert_double_lt(here[STEPS - 1], 0.9 * here[0]); /* it learns */
    }
}
END_TEST

START_TEST(fifty_steps_in_bf16_are_within_one_percent_of_the_cpu) {
    double here[STEPS], there[STEPS];
    for (int m = 0; m < models_here(); m++) {
        losses_on("cpu", models[m], PAIRS("precision", "bf16"), steps_here(), there);
        losses_on(card(), models[m], PAIRS("precision", "bf16"), steps_here(), here);
        check_close(names[m], here, there, steps_here(), 0.01);
    }
}
END_TEST

START_TEST(ten_steps_in_fp16_are_within_one_percent_of_fp32) {
    double half[10], exact[10];
    for (int m = 0; m < models_here(); m++) {
        losses_on(card(), models[m], NULL, 10, exact);
        losses_on(card(), models[m], PAIRS("precision", "fp16"), 10, half);
        check_close(names[m], half, exact, 10, 0.01);
    }
}
END_TEST

START_TEST(a_large_vocabulary_in_chunks_is_that_of_the_cpu) {
    double here[10], there[10];
    for (int tied = 0; tied < 2; tied++) {
        const char *const *pairs = PAIRS("vocab", "3001", "tied_head", tied ? "true" : "false",
                                         "loss_chunks", "4", "grad_accum_steps", "3");
        losses_on("cpu", models[tied], pairs, 10, there);
        losses_on(card(), models[tied], pairs, 10, here);
        check_close(names[tied], here, there, 10, 1e-4);
    }
}
END_TEST

START_TEST(held_out_loss_is_that_of_the_cpu) {
    for (int m = 0; m < models_here(); m++) {
        hy_trainer *here = small_trainer(models[m], "none", card(), NULL);
        hy_trainer *there = small_trainer(models[m], "none", "cpu", NULL);
        hy_eval_info a, b;
        must(hy_trainer_step(here, NULL));
        must(hy_trainer_step(there, NULL));
        must(hy_trainer_evaluate(here, &a));
        must(hy_trainer_evaluate(there, &b));
        ck_assert_int_eq(a.tokens, b.tokens);
        check_close(names[m], &a.loss, &b.loss, 1, 1e-5);
        hy_trainer_destroy(here);
        hy_trainer_destroy(there);
    }
}
END_TEST

/* ---- exact ----------------------------------------------------------------------------------- */

START_TEST(the_same_run_twice_gives_the_same_bits) {
    static const char *const types[] = {"fp32", "bf16", "fp16"};
    double a[STEPS], b[STEPS];
    size_t bytes = (size_t)steps_here() * sizeof(double);
    for (int i = 0; i < 3 * models_here(); i++) {
        const char *const *pairs = PAIRS("precision", types[i % 3], "grad_accum_steps", "2");
        losses_on(card(), models[i / 3], pairs, steps_here(), a);
        losses_on(card(), models[i / 3], pairs, steps_here(), b);
        ck_assert_msg(memcmp(a, b, bytes) == 0, "%s in %s", names[i / 3], types[i % 3]);
    }
}
END_TEST

START_TEST(recomputation_changes_no_bit) {
    static const char *const levels[] = {"norm", "attention", "mlp", "all"};
    double plain[8], other[8];
    for (int i = 0; i < 2 * models_here(); i++) {
        const char *type = i % 2 ? "bf16" : "fp32";
        losses_on(card(), models[i / 2], PAIRS("recompute", "none", "precision", type), 8, plain);
        for (int k = 0; k < 4; k++) {
            losses_on(card(), models[i / 2], PAIRS("recompute", levels[k], "precision", type), 8,
                      other);
            ck_assert_msg(memcmp(plain, other, sizeof plain) == 0, "%s in %s, recompute %s",
                          names[i / 2], type, levels[k]);
        }
    }
}
END_TEST

START_TEST(resume_gives_the_same_losses_bit_for_bit) {
    for (int m = 0; m < models_here(); m++) {
        check_resume(models[m], card(), NULL, 5, 7);
        check_resume(models[m], card(), PAIRS("precision", "bf16"), 4, 4);
        check_resume(models[m], card(), PAIRS("precision", "bf16", "grad_accum_steps", "3"), 3, 9);
    }
    /* with algorithms that were timed, and so may be others the next time */
    check_resume(models[0], card(), PAIRS("precision", "bf16", "tune", "fast"), 4, 6);
}
END_TEST

/* Heads of 64 are served by our own attention and by cuDNN; which was faster may differ from one
 * time to the next. */
START_TEST(resume_keeps_the_attention_that_was_timed_faster) {
    static const char *const whose[] = {"auto", "own", "cudnn"};
    for (int i = 0; i < 3; i++) {
        check_resume(models[i % 2], card(),
                     PAIRS("precision", "bf16", "tune", "fast", "attention", whose[i], "width",
                           "128", "heads", "2", "kv_heads", i % 2 ? "1" : "2", "seq_len", "128",
                           "context", "128"),
                     4, 6);
    }
}
END_TEST

START_TEST(a_stopped_run_resumes_from_its_folder_alone) {
    char folder[256];
    temp_folder(folder);
    double straight[20], resumed[20];
    losses_on(card(), models[0], NULL, 20, straight);
    hy_trainer *t = small_trainer(models[0], folder, card(), NULL);
    next_losses(t, 10, resumed);
    must(hy_trainer_save(t));
    hy_trainer_destroy(t);
    hy_config *config;
    must(hy_config_create(&config));
    must(hy_config_load_run(config, folder));
    must(hy_config_set(config, "resume", folder, HY_FROM_CALLER));
    must(hy_trainer_create(config, NULL, &t));
    next_losses(t, 10, resumed + 10);
    ck_assert_mem_eq(straight, resumed, sizeof straight);
    hy_trainer_destroy(t);
    hy_config_destroy(config);
    remove_folder(folder);
}
END_TEST

/* Ten steps on the card, ten on the CPU, ten on the card, against thirty on the CPU. */
START_TEST(a_checkpoint_moves_between_card_and_cpu) {
    for (int m = 0; m < models_here(); m++) {
        const char *const devices[] = {card(), "cpu", card()};
        char folder[256];
        double straight[30], moved[30];
        temp_folder(folder);
        losses_on("cpu", models[m], NULL, 30, straight);
        for (int leg = 0; leg < 3; leg++) {
            hy_trainer *t = small_trainer(models[m], folder, devices[leg],
                                          leg ? PAIRS("resume", "auto") : NULL);
            next_losses(t, 10, moved + 10 * leg);
            must(hy_trainer_save(t));
            hy_trainer_destroy(t);
        }
        check_close(names[m], moved, straight, 30, 1e-4);
        remove_folder(folder);
    }
}
END_TEST

START_TEST(a_bf16_checkpoint_moves_between_card_and_cpu) {
    char folder[256];
    double straight[20], moved[20];
    const char *const *bf16 = PAIRS("precision", "bf16");
    temp_folder(folder);
    losses_on("cpu", models[1], bf16, 20, straight);
    hy_trainer *t = small_trainer(models[1], folder, card(), bf16);
    next_losses(t, 10, moved);
    must(hy_trainer_save(t));
    hy_trainer_destroy(t);
    t = small_trainer(models[1], folder, "cpu", PAIRS("precision", "bf16", "resume", "auto"));
    next_losses(t, 10, moved + 10);
    hy_trainer_destroy(t);
    check_close("llama", moved, straight, 20, 0.01);
    remove_folder(folder);
}
END_TEST

/* m and v in 16 or 8 bits are rounded with noise keyed by the element: as exact as fp32 when a run
 * is repeated or resumed; and near it, and near the CPU's. */
START_TEST(small_optimizer_state_repeats_resumes_and_stays_close) {
    static const char *const kinds[] = {"bf16", "8bit"};
    double exact[20], a[20], b[20], cpu[20];
    losses_on(card(), models[0], PAIRS("precision", "bf16"), 20, exact);
    for (int i = 0; i < 4; i++) {
        const char *const *pairs = PAIRS("precision", "bf16", "optim_dtype", kinds[i % 2],
                                         "grad_dtype", i < 2 ? "fp32" : "bf16");
        losses_on(card(), models[0], pairs, 20, a);
        losses_on(card(), models[0], pairs, 20, b);
        losses_on("cpu", models[0], pairs, 20, cpu);
        ck_assert_msg(memcmp(a, b, sizeof a) == 0, "state in %s", kinds[i % 2]);
        check_close(kinds[i % 2], a, exact, 20, 0.02);
        check_close(kinds[i % 2], a, cpu, 20, 0.01);
        check_resume(models[0], card(), pairs, 4, 6);
    }
}
END_TEST

#define FP8(grad, tune)                                                                            \
    "precision", "fp8", "fp8", "all", "fp8_grad", grad, "tune", tune, "grad_accum_steps", "3"

/* Matmuls in fp8: the same codes on both, so the card is as near the CPU as in bf16, with every
 * form of unit. */
START_TEST(steps_in_fp8_are_those_of_the_cpu_repeat_and_resume) {
    static const char *const grads[] = {"e4m3", "e5m2"};
    double a[20], b[20], cpu[20];
    for (int i = 0; i < 4; i++) { /* gpt2 and llama; the others have odd widths */
        const char *words = models[i / 2];
        const char *tune =
            i % 2 ? "off" : "fast"; /* sums over micro-batches by tuned algorithms too */
        const char *const *pairs = PAIRS(FP8(grads[i % 2], tune));
        const char *const *again = PAIRS(FP8(grads[i % 2], tune), "recompute", "all");
        hy_summary s;
        hy_trainer *t = small_trainer(words, "none", card(), pairs);
        hy_trainer_summary(t, &s);
        ck_assert_int_eq(s.fp8_matmuls, s.block_matmuls);
        hy_trainer_destroy(t);
        losses_on(card(), words, pairs, 20, a);
        losses_on(card(), words, again, 20, b);
        losses_on("cpu", words, pairs, 20, cpu);
        ck_assert_msg(memcmp(a, b, sizeof a) == 0, "%s, recomputed", grads[i % 2]);
        check_close(grads[i % 2], a, cpu, 20, 0.01);
        check_resume(words, card(), pairs, 4, 6);
    }
}
END_TEST

/* ---- reordered ------------------------------------------------------------------------------- */

START_TEST(loss_chunks_and_micro_batches_stay_within_the_reordered_bound) {
    static const char *const splits[][3] = {
        {"8", "1", "2"}, {"8", "1", "8"}, {"4", "2", "1"}, {"2", "4", "1"}, {"1", "8", "1"}};
    double whole[10], split[10];
    for (int m = 0; m < models_here(); m++) {
        losses_on(card(), models[m], PAIRS("batch_size", "8", "loss_chunks", "1"), 10, whole);
        for (int i = 0; i < 5; i++) {
            losses_on(card(), models[m],
                      PAIRS("batch_size", splits[i][0], "grad_accum_steps", splits[i][1],
                            "loss_chunks", splits[i][2]),
                      10, split);
            check_close(names[m], split, whole, 1, 1e-6);
            check_close(names[m], split, whole, 10, 1e-4);
        }
    }
}
END_TEST

/* ---- phases ---------------------------------------------------------------------------------- */

/* Jumps every six optimizer steps, from the start to the end. */
#define PREDICT                                                                                    \
    "steps 48 grad_accum_steps 2 full_steps 4 correct_steps 2 predict_from 0 predict_until 1 "     \
    "confidence_threshold 0.5 cooldown_steps 4 predictor outer max_predict_steps 4 "

static hy_summary summary_of(const char *words, const char *const *pairs) {
    hy_summary summary; /* its strings are not used after the trainer is gone */
    hy_trainer *t = small_trainer(words, "none", card(), pairs);
    must(hy_trainer_run(t));
    hy_trainer_summary(t, &summary);
    hy_trainer_destroy(t);
    return summary;
}

START_TEST(every_predictor_moves_and_learns) {
    static const char *const kinds[] = {"outer", "line"};
    for (int i = 0; i < 2; i++) {
        hy_summary s = summary_of(RUN LLAMA PREDICT, PAIRS("predictor", kinds[i]));
        ck_assert_int_gt(s.moves + s.rejected_moves, 1);
        ck_assert_int_gt(s.phases[HY_PREDICT].steps, 1);
        ck_assert_int_gt(s.phases[HY_CORRECT].steps, 1);
        ck_assert_double_lt(s.val_loss, 4.5);
    }
}
END_TEST

/* Losses of optimizer steps and of jumps, in order. */
START_TEST(moves_are_those_of_the_cpu) {
    double here[30], there[30];
    for (int m = 0; m < 2; m++) {
        const char *words = m ? RUN LLAMA PREDICT : RUN GPT2 PREDICT;
        losses_on("cpu", words, NULL, 30, there);
        losses_on(card(), words, NULL, 30, here);
        check_close(names[m], here, there, 30, 2e-4);
    }
}
END_TEST

START_TEST(strategies_that_move_state_are_exact) {
    static const char *const strategies[] = {"cpu", "pinned"}, *const lookaheads[] = {"0", "1",
                                                                                      "3"};
    double plain[30], other[30];
    for (int bf16 = 0; bf16 < 2; bf16++) {
        const char *type = bf16 ? "bf16" : "fp32";
        losses_on(card(), RUN LLAMA PREDICT, PAIRS("precision", type), 30, plain);
        for (int i = 0; i < 6; i++) {
            losses_on(card(), RUN LLAMA PREDICT,
                      PAIRS("precision", type, "offload_strategy", strategies[i / 3], "lookahead",
                            lookaheads[i % 3]),
                      30, other);
            ck_assert_msg(memcmp(plain, other, sizeof plain) == 0, "%s, %s, lookahead %s", type,
                          strategies[i / 3], lookaheads[i % 3]);
        }
    }
}
END_TEST

START_TEST(lossy_strategies_stay_close) {
    static const char *const strategies[] = {"none", "compress", "drop"};
    static const double bounds[] = {0, 0.01, 0.03};
    double loss[3];
    for (int i = 0; i < 3; i++) {
        loss[i] = summary_of(RUN LLAMA PREDICT,
                             PAIRS("offload_strategy", strategies[i], "steps", "150", "full_steps",
                                   "15", "correct_steps", "5", "predict_until", "0.75"))
                      .val_loss;
        ck_assert_double_le(fabs(loss[i] / loss[0] - 1), bounds[i]);
        ck_assert(i == 0 || loss[i] != loss[0]);
    }
}
END_TEST

START_TEST(a_run_with_moves_resumes_bit_for_bit) {
    for (int before = 8; before <= 11; before++) { /* in Full, at a move, in Correct */
        check_resume(RUN LLAMA PREDICT, card(),
                     PAIRS("offload_strategy", "pinned", "tail_share", "0.5", "precision", "bf16"),
                     before, 20);
    }
}
END_TEST

START_TEST(forks_are_run_and_counted) {
    hy_summary s = summary_of(
        RUN LLAMA PREDICT, PAIRS("regime", "fine-tuning", "fork_budget", "0.5", "fork_steps", "6",
                                 "schedule", "constant", "steps", "60", "cooldown_steps", "1"));
    ck_assert_int_gt(s.forks, 0);
    ck_assert(isfinite(s.fork_gain) && isfinite(s.val_loss));
}
END_TEST

START_TEST(every_profile_runs_and_measures_what_it_planned) {
    static const char *const profiles[] = {"conservative", "balanced", "aggressive"};
    for (int i = 0; i < 3; i++) {
        hy_config *config = small_run(
            "model nano layers 2 width 64 heads 4 seq_len 64 batch_size 2 steps 60 predict_from 0 "
            "predictor outer full_steps 4 correct_steps 2 builtin_bytes 60000 lr_warmup_steps 3 "
            "tune off "
            "tune_cache none sample_tokens 4 eval_batches 2 ",
            "none", PAIRS("profile", profiles[i], "device", card()));
        hy_trainer *t;
        hy_summary s;
        must(hy_trainer_create(config, NULL, &t));
        must(hy_trainer_run(t));
        hy_trainer_summary(t, &s);
        ck_assert(isfinite(s.val_loss) && s.val_loss < 5);
        for (int phase = 0; phase < HY_PHASE_COUNT; phase++) {
            if (s.phases[phase].steps == 0) continue;
            ck_assert_msg(s.phases[phase].vram_peak_bytes == s.phases[phase].vram_planned_bytes,
                          "%s, %s: %llu bytes planned, %llu measured", profiles[i],
                          hy_phase_name((hy_phase)phase),
                          (unsigned long long)s.phases[phase].vram_planned_bytes,
                          (unsigned long long)s.phases[phase].vram_peak_bytes);
        }
        hy_trainer_destroy(t);
        hy_config_destroy(config);
    }
}
END_TEST

/* ---- the rest -------------------------------------------------------------------------------- */

START_TEST(samples_are_a_function_of_the_seed) {
    hy_trainer *t = small_trainer(models[1], "none", card(), PAIRS("steps", "5"));
    hy_sample_options o = {.prompt = "a", .tokens = 40, .temperature = 0.8, .top_k = 20, .seed = 5};
    char *a, *b;
    size_t size;
    must(hy_trainer_run(t));
    must(hy_trainer_sample(t, &o, &a, &size));
    ck_assert_uint_eq(size, 40);
    must(hy_trainer_sample(t, &o, &b, NULL));
    ck_assert_mem_eq(a, b, 40);
    hy_free(a);
    hy_free(b);
    hy_trainer_destroy(t);
}
END_TEST

START_TEST(a_budget_that_is_too_small_says_what_is_short) {
    hy_trainer *t;
    hy_config *config =
        small_run(models[0], "none", PAIRS("max_gpu_mem", "100k", "device", card()));
    must_fail(hy_trainer_create(config, NULL, &t), HY_ERR_INPUT, "short");
    hy_config_destroy(config);
}
END_TEST

/* Memory goes back: with leaks this many runs of 2 GiB each would not fit a small card. */
START_TEST(a_trainer_gives_back_what_it_took) {
    if (gpu.is_small || strcmp(card(), "cuda") != 0) return;
    for (int i = 0; i < 12; i++) {
        hy_trainer *t =
            small_trainer(models[0], "none", card(),
                          PAIRS("width", "1024", "heads", "16", "kv_heads", "16", "layers", "12",
                                "mlp_width", "4096", "batch_size", "8"));
        must(hy_trainer_step(t, NULL));
        hy_trainer_destroy(t);
    }
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("cuda: training");
    TCase *same = tcase_create("cpu"), *exact = tcase_create("exact"),
          *phases = tcase_create("phases");
    tcase_add_test(same, fifty_steps_in_fp32_are_those_of_the_cpu);
    tcase_add_test(same, fifty_steps_in_bf16_are_within_one_percent_of_the_cpu);
    tcase_add_test(same, ten_steps_in_fp16_are_within_one_percent_of_fp32);
    tcase_add_test(same, a_large_vocabulary_in_chunks_is_that_of_the_cpu);
    tcase_add_test(same, held_out_loss_is_that_of_the_cpu);
    tcase_add_test(exact, the_same_run_twice_gives_the_same_bits);
    tcase_add_test(exact, recomputation_changes_no_bit);
    tcase_add_test(exact, resume_gives_the_same_losses_bit_for_bit);
    tcase_add_test(exact, resume_keeps_the_attention_that_was_timed_faster);
    tcase_add_test(exact, a_stopped_run_resumes_from_its_folder_alone);
    tcase_add_test(exact, a_checkpoint_moves_between_card_and_cpu);
    tcase_add_test(exact, a_bf16_checkpoint_moves_between_card_and_cpu);
    tcase_add_test(exact, small_optimizer_state_repeats_resumes_and_stays_close);
    tcase_add_test(exact, steps_in_fp8_are_those_of_the_cpu_repeat_and_resume);
    tcase_add_test(exact, loss_chunks_and_micro_batches_stay_within_the_reordered_bound);
    tcase_add_test(phases, every_predictor_moves_and_learns);
    tcase_add_test(phases, moves_are_those_of_the_cpu);
    tcase_add_test(phases, strategies_that_move_state_are_exact);
    tcase_add_test(phases, lossy_strategies_stay_close);
    tcase_add_test(phases, a_run_with_moves_resumes_bit_for_bit);
    tcase_add_test(phases, forks_are_run_and_counted);
    tcase_add_test(phases, every_profile_runs_and_measures_what_it_planned);
    tcase_add_test(phases, samples_are_a_function_of_the_seed);
    tcase_add_test(phases, a_budget_that_is_too_small_says_what_is_short);
    tcase_add_test(phases, a_trainer_gives_back_what_it_took);
    suite_add_tcase(suite, same);
    suite_add_tcase(suite, exact);
    suite_add_tcase(suite, phases);
    return suite;
}

GPU_TEST_MAIN(make_suite)
