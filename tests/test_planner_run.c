/* test_planner_run.c: the planner inside a run: its choices, its figures compared with those of the
 * run, and its suggestions when nothing fits. */
#include <math.h>

#include "run_facts.h"
#include "small_run.h"

#include "kernels/card_list.h"

/* A preset as it is, for a card; its data is small. */
#define CARD_RUN "builtin_bytes 60000 steps 4 seq_len 1024 predictor outer "

static hy_trainer *plan_small(const char *const *pairs) { return plan_words(SMALL_RUN, pairs); }

/* ---- defaults -------------------------------------------------------------------------------- */

START_TEST(a_run_that_fits_is_left_as_it_was) {
    hy_trainer *t = small_trainer(SMALL_RUN, "none", NULL, NULL);
    must_plan(t, "choices.recompute", "none");
    must_plan(t, "choices.weights_place", "device");
    must_plan(t, "choices.grads_place", "device");
    must_plan(t, "choices.optim_place", "device");
    must_plan(t, "choices.activations_place", "device");
    must_plan(t, "choices.update", "now");
    ck_assert_int_eq(cell_of(t, HY_MASTER, HY_FULL).place, HY_NOWHERE); /* there is none */
    ck_assert_int_eq(plan_number(t, "choices.resident_units"), 0);
    ck_assert_int_eq(plan_number(t, "choices.loss_chunks"), 0);
    ck_assert_int_eq(plan_number(t, "choices.batch_size"), 4);
    ck_assert_int_eq(plan_number(t, "choices.grad_accum_steps"), 1);
    hy_trainer_destroy(t);
}
END_TEST

/* Profile conservative asks for recompute = all: that alone opens nothing else. */
START_TEST(a_choice_of_the_user_leaves_the_rest_as_it_was) {
    hy_trainer *t = plan_small(PAIRS("recompute", "all"));
    must_plan(t, "choices.recompute", "all");
    ck_assert_int_eq(plan_number(t, "choices.recompute_layers"), 0);
    ck_assert_int_eq(plan_number(t, "choices.loss_chunks"), 0);
    must_plan(t, "choices.optim_place", "device");
    hy_trainer_destroy(t);
}
END_TEST

START_TEST(a_place_that_was_asked_for_is_kept) {
    hy_trainer *t = plan_small(PAIRS("optim_place", "pinned"));
    must_plan(t, "choices.optim_place", "pinned");
    must_plan(t, "choices.weights_place", "device");
    must_plan(t, "choices.update", "gather");
    ck_assert_int_eq(plan_number(t, "choices.resident_units"), 0);
    hy_trainer_destroy(t);
}
END_TEST

/* ---- figures --------------------------------------------------------------------------------- */

static const char *const choices[] = {
    "batch_size",        "grad_accum_steps", "recompute",    "recompute_layers", "loss_chunks",
    "mlp_chunks",        "weights_place",    "master_place", "grads_place",      "optim_place",
    "activations_place", "predictor_place",  "update",       "ring_depth",       "resident_units"};

/* The same plan with all that it chose said by hand. */
static hy_trainer *plan_by_hand(const char *words, const char *const *pairs, const hy_trainer *t) {
    hy_config *config = small_run(words, "none", pairs);
    hy_json *plan = plan_of(t);
    hy_trainer *again;
    for (size_t i = 0; i < sizeof choices / sizeof choices[0]; i++) {
        char path[64], value[64];
        snprintf(path, sizeof path, "choices.%s", choices[i]);
        json_text(plan, path, value);
        if (!value[0]) snprintf(value, sizeof value, "%.0f", json_number(plan, path));
        must(hy_config_set(config, choices[i], value, HY_FROM_CALLER));
    }
    hy_json_free(plan);
    must(hy_trainer_plan(config, NULL, &again));
    hy_config_destroy(config);
    return again;
}

/* What the planner counts for the choice it made is what a plan of that choice says, and, where it
 * can be run here, what a run of it takes. */
static void check_figures(const char *words, const char *const *pairs) {
    hy_trainer *t = plan_words(words, pairs), *again = plan_by_hand(words, pairs, t);
    hy_plan_facts facts = facts_of(t), same = facts_of(again);
    ck_assert_msg(same.vram_bytes == facts.vram_bytes, "%s %s: device %llu planned, %llu by hand",
                  pairs[0], pairs[1], (unsigned long long)facts.vram_bytes,
                  (unsigned long long)same.vram_bytes);
    ck_assert_msg(same.host_pinned_bytes == facts.host_pinned_bytes,
                  "%s %s: host %llu planned, %llu by hand", pairs[0], pairs[1],
                  (unsigned long long)facts.host_pinned_bytes,
                  (unsigned long long)same.host_pinned_bytes);
    ck_assert_uint_eq(same.disk_bytes, facts.disk_bytes);
    hy_trainer_destroy(again);
    hy_trainer_destroy(t);
    if (strcmp(words, SMALL_RUN) != 0) return;
    hy_memory_state memory;
    t = small_trainer(words, "none", NULL, pairs);
    must(hy_trainer_memory(t, &memory));
    ck_assert_uint_eq(memory.device.reserved, facts.vram_bytes);
    ck_assert(memory.is_unified);
    ck_assert_uint_eq(memory.host.reserved, facts.vram_bytes + facts.host_pinned_bytes);
    hy_trainer_destroy(t);
}

START_TEST(the_planner_counts_what_the_run_takes) {
    check_figures(SMALL_RUN, PAIRS("seed", "1"));
    check_figures(SMALL_RUN, PAIRS("recompute", "all"));
    check_figures(SMALL_RUN, PAIRS("recompute", "mlp", "recompute_layers", "1"));
    check_figures(SMALL_RUN, PAIRS("precision", "bf16"));
    check_figures(SMALL_RUN,
                  PAIRS("precision", "bf16", "master_dtype", "bf16", "precision_correct", "bf16"));
    check_figures(SMALL_RUN, PAIRS("grad_dtype", "bf16", "optim_dtype", "8bit"));
    check_figures(SMALL_RUN, PAIRS("predictor", "none"));
    check_figures(SMALL_RUN, PAIRS("batch_size", "16", "loss_chunks", "8"));
    check_figures(SMALL_RUN, PAIRS("mlp_chunks", "4"));
    check_figures(SMALL_RUN, PAIRS("mlp_chunks", "3", "recompute", "all", "precision", "bf16"));
    check_figures(SMALL_RUN, PAIRS("mlp_chunks", "8", "activations_place", "pinned"));
    check_figures(SMALL_RUN, PAIRS("eval_batch_size", "3"));
    check_figures(SMALL_RUN, PAIRS("model", "tiny-llama", "layers", "3", "seq_len", "64"));
    check_figures(SMALL_RUN, PAIRS("optim_place", "pinned", "grads_place", "pinned"));
    check_figures(SMALL_RUN,
                  PAIRS("weights_place", "pinned", "ring_depth", "4", "resident_units", "1"));
    check_figures(SMALL_RUN, PAIRS("activations_place", "pinned"));
    check_figures(SMALL_RUN, PAIRS("optim_place", "disk", "offload_folder", "."));
    check_figures(SMALL_RUN, PAIRS("predictor_place", "disk", "offload_folder", "."));
    check_figures(SMALL_RUN, PAIRS("tail_share", "0.2", "predictor", "none"));
}
END_TEST

START_TEST(plans_for_a_named_card_count_alike) {
    check_figures(CARD_RUN, PAIRS("card", "rtx5080", "model", "gpt2-124m"));
    check_figures(CARD_RUN, PAIRS("card", "rtx5080", "model", "qwen2.5-1.5b", "cpu_mem", "100GiB"));
    check_figures(CARD_RUN, PAIRS("card", "h200", "model", "qwen3-0.6b", "max_gpu_mem", "8GiB",
                                  "cpu_mem", "100GiB"));
}
END_TEST

/* More layers than rings hold, and what changes sums is fixed. */
#define DEEP "layers", "12", "loss_chunks", "1", "step_tokens", "0"

/* ---- a device budget, emulated --------------------------------------------------------------- */

/* A run within a budget: the plan's bytes are within it, and its losses are those of the run
 * without. */
static void check_budget(uint64_t budget, const double *plain) {
    char limit[32];
    double losses[4];
    snprintf(limit, sizeof limit, "%llu", (unsigned long long)budget);
    hy_trainer *t = small_trainer(SMALL_RUN, "none", NULL, PAIRS(DEEP, "max_gpu_mem", limit));
    ck_assert_uint_le(facts_of(t).vram_bytes, budget);
    next_losses(t, 4, losses);
    for (int i = 0; i < 4; i++) ck_assert_double_eq(losses[i], plain[i]);
    bool is_plain = plan_says(t, "choices.recompute", "none") &&
                    plan_says(t, "choices.optim_place", "device") &&
                    plan_says(t, "choices.grads_place", "device") &&
                    plan_says(t, "choices.weights_place", "device") &&
                    plan_says(t, "choices.activations_place", "device");
    ck_assert(!is_plain);
    hy_trainer_destroy(t);
}

/* The smaller the budget, the more leaves the device. */
START_TEST(a_budget_is_met_and_changes_no_bit) {
    double plain[4];
    hy_trainer *t = small_trainer(SMALL_RUN, "none", NULL, PAIRS(DEEP));
    uint64_t all = facts_of(t).vram_bytes;
    next_losses(t, 4, plain);
    hy_trainer_destroy(t);
    for (uint64_t percent = 90; percent >= 60; percent -= 10) {
        check_budget(all * percent / 100, plain);
    }
}
END_TEST

START_TEST(step_tokens_decide_the_micro_batch) {
    hy_trainer *t = plan_small(PAIRS("step_tokens", "256"));
    ck_assert_int_eq(facts_of(t).batch_size * facts_of(t).grad_accum_steps * 32, 256);
    hy_trainer_destroy(t);
    t = plan_small(PAIRS("step_tokens", "2048", "card", "rtx5080"));
    ck_assert_int_eq(facts_of(t).batch_size * facts_of(t).grad_accum_steps * 32, 2048);
    ck_assert_int_eq(facts_of(t).batch_size, 64);
    hy_trainer_destroy(t);
    hy_config *config = small_run(SMALL_RUN, "none", PAIRS("step_tokens", "100"));
    must_fail(hy_trainer_plan(config, NULL, &t), HY_ERR_INPUT, "must be a multiple of 32");
    hy_config_destroy(config);
}
END_TEST

/* 127 sequences are a prime number. */
START_TEST(a_step_without_a_micro_batch_in_the_limits_is_refused) {
    hy_trainer *t;
    hy_config *config = small_run(CARD_RUN, "none",
                                  PAIRS("card", "rtx5080", "model", "gpt2-124m", "step_tokens",
                                        "130048", "min_batch_size", "2"));
    must_fail(hy_trainer_plan(config, NULL, &t), HY_ERR_INPUT,
              "change the size of a step, min_batch_size or max_batch_size");
    hy_config_destroy(config);
    t = plan_words(CARD_RUN, PAIRS("card", "rtx5080", "model", "gpt2-124m", "step_tokens", "204800",
                                   "min_batch_size", "100", "recompute", "all"));
    ck_assert_int_eq(facts_of(t).batch_size, 100); /* more than keeps a card busy */
    hy_trainer_destroy(t);
}
END_TEST

#define NOTHING_OPEN "layers", "24", "batch_size", "1", "recompute", "none", "loss_chunks", "1"

/* A host too small for what the predictor keeps, and a folder. */
START_TEST(the_predictor_goes_to_disk_where_the_host_is_short) {
    hy_trainer *t = plan_small(PAIRS(NOTHING_OPEN));
    hy_plan_facts facts = facts_of(t);
    char limit[32];
    hy_trainer_destroy(t);
    snprintf(limit, sizeof limit, "%llu",
             (unsigned long long)(facts.vram_bytes + facts.host_pinned_bytes * 9 / 10));
    t = plan_small(PAIRS(NOTHING_OPEN, "cpu_mem", limit, "snapshot", "false"));
    ck_assert(facts_of(t).fits); /* nothing was as large as the snapshot */
    hy_trainer_destroy(t);
    t = plan_small(PAIRS(NOTHING_OPEN, "cpu_mem", limit));
    ck_assert(facts_of(t).fits && cell_of(t, HY_SNAPSHOT, HY_CORRECT).place == HY_NOWHERE);
    hy_trainer_destroy(t);
    t = plan_small(PAIRS(NOTHING_OPEN, "cpu_mem", limit, "offload_folder", "."));
    facts = facts_of(t);
    ck_assert_msg(facts.fits, "%s", facts.problem);
    must_plan(t, "choices.predictor_place", "disk");
    ck_assert_uint_gt(facts.disk_bytes, 0);
    hy_trainer_destroy(t);
}
END_TEST

START_TEST(mlps_in_chunks_change_only_the_order_of_sums_and_resume) {
    double whole[4], tiled[4];
    for (int i = 0; i < 2; i++) {
        const char *const *pairs = PAIRS("mlp_chunks", i ? "4" : "1", "step_tokens", "0");
        hy_trainer *t = small_trainer(SMALL_RUN, "none", NULL, pairs);
        next_losses(t, 4, i ? tiled : whole);
        hy_trainer_destroy(t);
    }
    for (int i = 0; i < 4; i++) ck_assert_double_eq_tol(tiled[i] / whole[i], 1, 1e-6);
    check_resume(SMALL_RUN, NULL, PAIRS("mlp_chunks", "4", "predictor", "none"), 3, 5);
    check_resume(SMALL_RUN, NULL, PAIRS("mlp_chunks", "4", "predictor", "none", "precision", "fp8"),
                 3, 5);
}
END_TEST

/* A sequence so long that the mlps of one layer fill the card. */
#define LONG                                                                                       \
    "card", "rtx5080", "model", "llama-3.2-1b", "seq_len", "131072", "batch_size", "1",            \
        "builtin_bytes", "400000", "predictor", "none"

START_TEST(mlps_in_chunks_are_chosen_only_where_nothing_fits_without) {
    hy_trainer *t = plan_words(CARD_RUN, PAIRS(LONG, "cpu_mem", "20GiB"));
    ck_assert(!facts_of(t).fits);
    ck_assert_int_eq(plan_number(t, "choices.mlp_chunks"), 1);
    hy_trainer_destroy(t);
    t = plan_words(CARD_RUN, PAIRS(LONG, "cpu_mem", "20GiB", "mlp_chunks", "0"));
    hy_plan_facts facts = facts_of(t);
    ck_assert_msg(facts.fits, "%s", facts.problem);
    ck_assert_int_gt(plan_number(t, "choices.mlp_chunks"), 1);
    bool is_explained = false;
    for (int i = 0; i < facts.reason_count; i++)
        is_explained |= strstr(facts.reasons[i], "chunks: whole mlps would need") != NULL;
    ck_assert(is_explained);
    hy_trainer_destroy(t);
    t = plan_words(CARD_RUN, PAIRS(LONG, "seq_len", "8192", "cpu_mem", "20GiB", "mlp_chunks", "0"));
    ck_assert(facts_of(t).fits);
    ck_assert_int_eq(plan_number(t, "choices.mlp_chunks"), 1);
    hy_trainer_destroy(t);
}
END_TEST

/* Of 4 x 32 rows: 7 chunks become a divisor of the rows, and there is at most one per row. */
START_TEST(a_plan_names_the_number_of_chunks_that_passes_have) {
    hy_trainer *t = plan_small(
        PAIRS("mlp_chunks", "7", "loss_chunks", "1000", "seq_len", "32", "step_tokens", "0"));
    ck_assert_int_eq(plan_number(t, "choices.mlp_chunks"), 8);
    ck_assert_int_eq(plan_number(t, "choices.loss_chunks"), 128);
    hy_trainer_destroy(t);
}
END_TEST

/* ---- nothing fits ---------------------------------------------------------------------------- */

static int check_changes(const char *const *tight) {
    hy_trainer *t = plan_words(CARD_RUN, tight);
    hy_plan_facts facts = facts_of(t), changed;
    int tried = 0;
    ck_assert(!facts.fits);
    for (int i = 0; i < facts.change_count; i++) {
        hy_config *config = small_run(CARD_RUN, "none", tight);
        hy_trainer *again;
        char *folder = strstr(facts.changes[i], "FOLDER");
        if (folder) memcpy(folder, "./    ", strlen("FOLDER"));
        if (apply_change(config, facts.changes[i])) {
            must(hy_trainer_plan(config, NULL, &again));
            changed = facts_of(again);
            ck_assert_msg(changed.fits, "%s: %s", facts.changes[i], changed.problem);
            ck_assert_double_eq_tol(changed.tokens_per_second,
                                    facts.change_costs[i].tokens_per_second,
                                    0.01 * changed.tokens_per_second);
            ck_assert_uint_eq(changed.vram_bytes, facts.change_costs[i].vram_bytes);
            hy_trainer_destroy(again);
            tried++;
        }
        hy_config_destroy(config);
    }
    hy_trainer_destroy(t);
    return tried;
}

START_TEST(changes_that_are_suggested_do_fit) {
    ck_assert_int_gt(check_changes(PAIRS("card", "rtx5080", "model", "qwen2.5-7b", "cpu_mem",
                                         "60GiB", "precision", "bf16")),
                     0);
    ck_assert_int_gt(check_changes(PAIRS("card", "rtx5080", "model", "qwen2.5-7b", "cpu_mem",
                                         "48GiB", "precision", "bf16")),
                     0);
    ck_assert_int_gt(
        check_changes(PAIRS("card", "rtx4060", "model", "qwen2.5-1.5b", "cpu_mem", "12GiB")), 0);
    ck_assert_int_gt(check_changes(PAIRS("card", "rtx4060", "model", "qwen2.5-1.5b", "cpu_mem",
                                         "24GiB", "optim_place", "device", "optim_dtype", "fp32")),
                     0);
    check_changes(PAIRS("card", "rtx5080", "model", "gpt2-124m", "cpu_mem", "64GiB", "step_tokens",
                        "65536", "max_gpu_mem", "1GiB", "min_batch_size", "64"));
}
END_TEST

/* How many changes have this flag; all changes must be in the order of their speed. */
static int count_changes(const char *const *tight, const char *flag) {
    hy_trainer *t = plan_words(CARD_RUN, tight);
    hy_plan_facts facts = facts_of(t);
    int count = 0;
    for (int i = 0; i < facts.change_count; i++) {
        bool is_flag = strncmp(facts.changes[i], "--", 2) == 0;
        count += strstr(facts.changes[i], flag) != NULL;
        ck_assert(!is_flag || i == 0 ||
                  facts.change_costs[i].tokens_per_second <=
                      facts.change_costs[i - 1].tokens_per_second);
    }
    hy_trainer_destroy(t);
    return count;
}

START_TEST(mlps_in_chunks_are_suggested_if_nothing_else_fits) {
    const char *const *tight = PAIRS(LONG, "cpu_mem", "10GiB", "small_types", "all");
    ck_assert_int_gt(check_changes(tight), 0);
    ck_assert_int_eq(count_changes(tight, "--mlp-chunks 0"), 1);
    ck_assert_int_eq(count_changes(PAIRS(LONG, "cpu_mem", "20GiB"), "--mlp-chunks"), 0);
}
END_TEST

START_TEST(adapters_are_suggested_for_a_named_model_that_does_not_fit) {
#define SEVEN "card", "rtx5080", "model", "qwen2.5-7b", "cpu_mem", "28GiB"
    check_changes(PAIRS(SEVEN));
    ck_assert_int_eq(count_changes(PAIRS(SEVEN), "--qlora"), 1);
    ck_assert_int_eq(count_changes(PAIRS(SEVEN), "--lora"), 1);
    ck_assert_int_eq(count_changes(PAIRS(SEVEN, "train", "blocks.0.*"), "lora"), 0);
    ck_assert_int_eq(count_changes(PAIRS("card", "rtx5080", "model", "qwen2.5-32b", "cpu_mem",
                                         "28GiB", "lora", "true"),
                                   "lora"),
                     0);
}
END_TEST

/* The fastest change that trains all parameters. */
static double fastest_full(const char *const *tight, const char *flags) {
    hy_trainer *t = plan_words(CARD_RUN, tight);
    hy_plan_facts facts = facts_of(t);
    double fastest = 0;
    hy_trainer_destroy(t);
    for (int i = 0; i < facts.change_count; i++) {
        double speed = facts.change_costs[i].tokens_per_second;
        bool is_full =
            strncmp(facts.changes[i], "--", 2) == 0 && strstr(facts.changes[i], "lora") == NULL;
        if (!is_full) continue;
        if (fastest == 0) ck_assert_str_eq(facts.changes[i], flags);
        fastest = fmax(fastest, speed);
        ck_assert_double_le(fastest, 3 * speed); /* no line for a way that is much slower */
    }
    return fastest;
}

START_TEST(the_fastest_way_to_train_all_parameters_is_suggested) {
    ck_assert_double_gt(
        fastest_full(PAIRS(SEVEN, "predictor", "none"),
                     "--small-types all --step-tokens 65536 --offload-folder FOLDER"),
        1000);
    ck_assert_double_gt(fastest_full(PAIRS("card", "rtx5080", "model", "qwen2.5-7b", "cpu_mem",
                                           "60GiB", "predictor", "none"),
                                     "--small-types all --step-tokens 65536"),
                        1500);
    ck_assert_double_gt(fastest_full(PAIRS(SEVEN, "profile", "aggressive"),
                                     "--predictor none --step-tokens 65536 "
                                     "--offload-folder FOLDER"),
                        1000);
    check_changes(PAIRS(SEVEN, "profile", "aggressive"));
}
END_TEST

/* 3B in 16 GB: passes of the fastest plan of a step leave no room for the weights. */
START_TEST(a_plan_leaves_room_for_answers) {
    char folder[256], rows[512];
    temp_folder(folder);
    snprintf(rows, sizeof rows, "%s/prompts.jsonl", folder);
    must(hy_file_write_atomic(rows, "{\"prompt\": \"a\"}\n{\"prompt\": \"b\"}\n", 32));
    hy_trainer *t =
        plan_words("model qwen2.5-3b card h200 max_gpu_mem 15309M cpu_mem 90GiB seq_len 384 steps 4 "
                   "precision bf16 predictor none val_fraction 0 task grpo prompts 64 samples 8 "
                   "answer_tokens 256 reward ended ",
                   PAIRS("data", rows));
    hy_plan_facts f = facts_of(t);
    bool is_said = false;
    for (int i = 0; i < f.reason_count; i++)
        is_said |= strstr(f.reasons[i], "answers are generated there") != NULL;
    ck_assert(is_said);
    ck_assert_uint_le(f.vram_bytes, (uint64_t)15309 << 20);
    /* Each of 256 tokens with weights from the host would take 0.1 s. */
    ck_assert_double_gt(f.rollout_seconds, 2);
    ck_assert_double_lt(f.rollout_seconds, 10);
    hy_trainer_destroy(t);
    remove_folder(folder);
}
END_TEST

START_TEST(a_budget_below_the_minimum_says_what_would_do) {
    hy_trainer *t = plan_small(PAIRS("max_gpu_mem", "4KiB"));
    hy_plan_facts facts = facts_of(t);
    ck_assert(!facts.fits);
    ck_assert_ptr_nonnull(strstr(facts.problem, "max_gpu_mem"));
    ck_assert_int_gt(facts.change_count, 0);
    ck_assert_ptr_nonnull(strstr(facts.changes[facts.change_count - 1], "of device memory"));
    hy_trainer_destroy(t);
}
END_TEST

/* ---- cards ----------------------------------------------------------------------------------- */

START_TEST(a_card_by_name_is_for_plans_and_must_be_known) {
    hy_trainer *t;
    hy_config *config = small_run(SMALL_RUN, "none", PAIRS("card", "rtx5080"));
    must_fail(hy_trainer_create(config, NULL, &t), HY_ERR_INPUT, "--plan");
    hy_config_destroy(config);
    config = small_run(SMALL_RUN, "none", PAIRS("card", "voodoo2"));
    must_fail(hy_trainer_plan(config, NULL, &t), HY_ERR_INPUT, "RTX 5080");
    hy_config_destroy(config);
}
END_TEST

START_TEST(cards_are_found_however_they_are_written) {
    static const char *const names[] = {"rtx5080", "RTX 5080", "NVIDIA GeForce RTX 5080",
                                        "rtx-5080"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const hy_card *card = hy_card_find(names[i]);
        ck_assert_msg(card && strcmp(card->name, "RTX 5080") == 0, "%s", names[i]);
    }
    ck_assert_str_eq(hy_card_find("NVIDIA H100 80GB HBM3")->name, "H100");
    ck_assert_str_eq(hy_card_find("rtx 5070 ti")->name, "RTX 5070 Ti");
    /* with gigabytes behind it */
    ck_assert_str_eq(hy_card_find("h100-80")->name, "H100");
    ck_assert_str_eq(hy_card_find("a100-80gb")->name, "A100");
    ck_assert_ptr_null(hy_card_find("h100-40"));
    ck_assert_ptr_null(hy_card_find("NVIDIA GeForce RTX 4090 Laptop GPU"));
    ck_assert_ptr_null(hy_card_find("rtx50800"));
    ck_assert_ptr_null(hy_card_find(""));
}
END_TEST

START_TEST(a_card_that_was_sold_with_two_sizes_has_the_one_that_is_named) {
    static const struct {
        const char *name;
        int32_t mib;
    } cases[] = {{"RTX 4060 Ti 16GB", 16380},
                 {"rtx4060ti", 8188},
                 {"4060ti-16", 16380},
                 {"NVIDIA GeForce RTX 4060 Ti 8 GB", 8188},
                 {"RTX 5060 Ti 8GB", 8151},
                 {"RTX 5060 Ti", 16311},
                 {"RTX 3080 12 GiB", 12288},
                 {"rtx3060-8gb", 8192},
                 {"rtx3050-6", 6144},
                 {"rtx2060-12g", 12288},
                 {"a100-40", 40960},
                 {"A100", 81920},
                 {"NVIDIA A100-SXM4-40GB", 40960},
                 {"NVIDIA A100 80GB PCIe", 81920},
                 {"A6000", 49140},
                 {"l40s-48", 46068}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const hy_card *card = hy_card_find(cases[i].name);
        ck_assert_msg(card && card->memory_mib == cases[i].mib, "%s", cases[i].name);
    }
    ck_assert_ptr_null(hy_card_find("RTX 4090 48GB"));
    ck_assert_ptr_null(hy_card_find("NVIDIA A100-SXM4-60GB"));
    for (size_t i = 0; hy_card_at(i); i++) { /* every card is found by the name that is shown */
        char name[HY_CARD_NAME];
        hy_card_describe(hy_card_at(i), name, sizeof name);
        ck_assert_msg(hy_card_find(name) == hy_card_at(i), "%s", name);
    }
}
END_TEST

START_TEST(a_card_that_is_too_old_is_refused_with_the_reason) {
    static const char *const names[] = {"V100", "v100-32", "Tesla V100-SXM2-16GB", "gtx1080ti"};
    hy_trainer *t;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        hy_config *config = small_run(SMALL_RUN, "none", PAIRS("card", names[i]));
        must_fail(hy_trainer_plan(config, NULL, &t), HY_ERR_INPUT, "compute capability 7.5");
        must_fail(hy_config_load(config, names[i]), HY_ERR_INPUT, "compute capability 7.5");
        hy_config_destroy(config);
    }
}
END_TEST

START_TEST(a_configuration_knows_every_card_that_a_plan_knows) {
    for (size_t i = 0; hy_card_at(i); i++) {
        char name[HY_CARD_NAME + 8];
        for (int is_safe = 0; is_safe < 2; is_safe++) {
            const char *limit;
            hy_config *config;
            hy_card_describe(hy_card_at(i), name, HY_CARD_NAME);
            if (is_safe) strcat(name, "-safe");
            must(hy_config_create(&config));
            must(hy_config_load(config, name));
            must(hy_config_get(config, "max_gpu_mem", &limit, NULL));
            double share = strtod(limit, NULL) * 1024 / hy_card_at(i)->memory_mib;
            ck_assert_msg(share > 0.65 && share < 0.96, "%s: %s", name, limit);
            hy_config_destroy(config);
        }
    }
}
END_TEST

static Suite *planner_run_suite(void) {
    Suite *suite = suite_create("trainer: planner in a run");
    TCase *tests = tcase_create("runs");
    tcase_set_timeout(tests, 120);
    tcase_add_test(tests, a_run_that_fits_is_left_as_it_was);
    tcase_add_test(tests, a_choice_of_the_user_leaves_the_rest_as_it_was);
    tcase_add_test(tests, a_place_that_was_asked_for_is_kept);
    tcase_add_test(tests, the_planner_counts_what_the_run_takes);
    tcase_add_test(tests, plans_for_a_named_card_count_alike);
    tcase_add_test(tests, a_budget_is_met_and_changes_no_bit);
    tcase_add_test(tests, step_tokens_decide_the_micro_batch);
    tcase_add_test(tests, a_step_without_a_micro_batch_in_the_limits_is_refused);
    tcase_add_test(tests, the_predictor_goes_to_disk_where_the_host_is_short);
    tcase_add_test(tests, mlps_in_chunks_change_only_the_order_of_sums_and_resume);
    tcase_add_test(tests, mlps_in_chunks_are_chosen_only_where_nothing_fits_without);
    tcase_add_test(tests, changes_that_are_suggested_do_fit);
    tcase_add_test(tests, a_plan_names_the_number_of_chunks_that_passes_have);
    tcase_add_test(tests, mlps_in_chunks_are_suggested_if_nothing_else_fits);
    tcase_add_test(tests, adapters_are_suggested_for_a_named_model_that_does_not_fit);
    tcase_add_test(tests, the_fastest_way_to_train_all_parameters_is_suggested);
    tcase_add_test(tests, a_plan_leaves_room_for_answers);
    tcase_add_test(tests, a_budget_below_the_minimum_says_what_would_do);
    tcase_add_test(tests, a_card_by_name_is_for_plans_and_must_be_known);
    tcase_add_test(tests, cards_are_found_however_they_are_written);
    tcase_add_test(tests, a_card_that_was_sold_with_two_sizes_has_the_one_that_is_named);
    tcase_add_test(tests, a_card_that_is_too_old_is_refused_with_the_reason);
    tcase_add_test(tests, a_configuration_knows_every_card_that_a_plan_knows);
    suite_add_tcase(suite, tests);
    return suite;
}

HY_TEST_MAIN(planner_run_suite)
