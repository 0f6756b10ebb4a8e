/* test_fp8.c: training with fp8 matmuls on the CPU: which matmuls use fp8, its effect on numbers,
 * and what is refused. test_engine_exact.c tests that memory choices change no bit;
 * test_kernels_fp8.c tests the format. */
#include "run_facts.h"
#include "small_run.h"

#define FP8 "precision", "fp8", "predictor", "none"

static hy_status try_plan(const char *const *pairs) {
    hy_config *config = small_run(SMALL_RUN, "none", pairs);
    hy_trainer *t;
    hy_status status = hy_trainer_plan(config, NULL, &t);
    if (status == HY_OK) hy_trainer_destroy(t);
    hy_config_destroy(config);
    return status;
}

/* ---- what is asked for ----------------------------------------------------------------------- */

START_TEST(no_phase_is_coarser_than_full_and_predict_is_never_in_fp8) {
    static const struct {
        const char *key, *message;
    } wrong[] = {{"precision_predict", "Predict only evaluates"},
                 {"precision_warmup", "precision_warmup is fp8, but precision_full is not"},
                 {"precision_correct", "precision_correct is fp8, but precision_full is not"}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        must_fail(try_plan(PAIRS("precision", "bf16", wrong[i].key, "fp8")), HY_ERR_INPUT,
                  wrong[i].message);
    }
    must(try_plan(PAIRS("precision", "bf16", "precision_full", "fp8")));
    must(try_plan(PAIRS("precision", "fp8", "precision_correct", "fp32")));
}
END_TEST

START_TEST(a_card_without_fp8_is_named) {
    must_fail(try_plan(PAIRS("precision", "fp8", "card", "rtx3090")), HY_ERR_INPUT,
              "(sm_86) does not support it: fp8 needs sm_89");
    must(try_plan(PAIRS("precision", "fp8", "card", "rtx4090")));
    must(try_plan(PAIRS("precision", "fp8", "card", "rtx5080")));
}
END_TEST

START_TEST(matrices_that_a_card_cannot_multiply_in_fp8_stay_in_bf16) {
    hy_summary s;
    hy_trainer *t = plan_words(SMALL_RUN, PAIRS(FP8, "card", "rtx5080", "mlp_width", "36"));
    hy_trainer_summary(t, &s);
    ck_assert_int_eq(s.block_matmuls, 2 * 12);
    ck_assert_int_eq(s.fp8_matmuls, 2 * 6); /* qkv and attention out */
    hy_plan_facts facts = facts_of(t);
    bool is_told = false;
    for (int i = 0; i < facts.reason_count; i++) {
        is_told |=
            strstr(facts.reasons[i], "fp8 in 6 of the 12 kinds of matmuls in blocks; in bf16") &&
            strstr(facts.reasons[i], "mlp up, mlp down");
    }
    ck_assert(is_told);
    hy_trainer_destroy(t);
    /* None at all: a run in bf16. */
    t = plan_words(SMALL_RUN, PAIRS(FP8, "card", "rtx5080", "width", "40", "mlp_width", "40"));
    hy_trainer_summary(t, &s);
    ck_assert_int_eq(s.fp8_matmuls, 0);
    ck_assert_int_eq(cell_of(t, HY_QUANTS, HY_FULL).place, HY_NOWHERE);
    facts = facts_of(t);
    ck_assert_ptr_nonnull(
        strstr(facts.reasons[0], "no matrix has rows and columns in multiples of 16"));
    hy_trainer_destroy(t);
    /* A micro-batch may be cut down to a sequence. */
    t = plan_words(SMALL_RUN, PAIRS(FP8, "card", "rtx5080", "seq_len", "24", "batch_size", "2"));
    facts = facts_of(t);
    ck_assert_ptr_nonnull(strstr(facts.reasons[0], "seq_len is not a multiple of 16"));
    hy_trainer_destroy(t);
}
END_TEST

/* ---- what it computes ------------------------------------------------------------------------ */

START_TEST(losses_in_fp8_are_near_those_in_bf16_and_not_the_same) {
    double fp8[12], bf16[12];
    hy_trainer *t = small_trainer(SMALL_RUN, "none", NULL, PAIRS(FP8));
    next_losses(t, 12, fp8);
    hy_trainer_destroy(t);
    t = small_trainer(SMALL_RUN, "none", NULL, PAIRS("precision", "bf16", "predictor", "none"));
    next_losses(t, 12, bf16);
    hy_trainer_destroy(t);
    for (int i = 0; i < 12; i++) ck_assert_double_lt(fabs(fp8[i] / bf16[i] - 1), 0.01);
    ck_assert_mem_ne(fp8, bf16, sizeof fp8);
}
END_TEST

/* From that share of the run on steps are those of a run in bf16: the same weights give the same
 * loss. */
START_TEST(the_last_part_of_a_run_may_be_in_bf16) {
    hy_trainer *t = small_trainer(SMALL_RUN, "none", NULL, PAIRS(FP8, "fp8_until", "0.75"));
    for (int i = 0; i < 12; i++) {
        hy_step_info info;
        must(hy_trainer_step(t, &info));
        ck_assert_int_eq(info.precision, i < 9 ? HY_E4M3 : HY_BF16);
        ck_assert_int_eq(info.fp8_largest_layer >= 0, i < 9);
    }
    hy_trainer_destroy(t);
}
END_TEST

static void keep_info(void *user, const hy_step_info *info) {
    ((hy_step_info *)user)[info->step - 1] = *info;
}

/* In the line of each step; the step's own figures are of the layer with the most. */
START_TEST(every_layer_says_what_fp8_made_of_its_numbers) {
    static const char *const keys[] = {"fp8_largest", "fp8_grad_largest", "fp8_zeros",
                                       "fp8_grad_zeros"};
    hy_step_info infos[3];
    char folder[256], path[512], *text;
    size_t size;
    int steps = 0;
    hy_trainer *t;
    hy_observer observer = {.user = infos, .on_step = keep_info};
    hy_config *config = small_run(SMALL_RUN, temp_folder(folder),
                                  PAIRS(FP8, "grad_accum_steps", "3", "steps", "3"));
    must(hy_trainer_create(config, &observer, &t));
    hy_config_destroy(config);
    must(hy_trainer_run(t));
    hy_trainer_destroy(t);
    snprintf(path, sizeof path, "%s/metrics.jsonl", folder);
    must(hy_file_read(path, &text, &size));
    for (char *rest = text, *line; (line = strtok_r(rest, "\n", &rest)) != NULL;) {
        hy_json *json;
        must(hy_json_parse(line, strlen(line), path, &json));
        double most[2] = {0, 0}, value;
        for (int k = 0; k < 4 && !json_at(json, "event"); k++) {
            const hy_json_node *list = hy_json_get(hy_json_root(json), keys[k]);
            ck_assert_msg(hy_json_size(list) == 2, "%s", keys[k]);
            for (const hy_json_node *at = hy_json_first(list); at; at = hy_json_next(at)) {
                ck_assert(hy_json_as_double(at, &value));
                ck_assert(k < 2 ? value > 0 : value >= 0 && value < 0.05);
                most[k / 2] = fmax(most[k / 2], value);
            }
        }
        if (!json_at(json, "event")) {
            ck_assert_double_eq_tol(most[0], infos[steps].fp8_largest, 1e-3 * most[0]);
            ck_assert_double_eq_tol(most[1], infos[steps++].fp8_zeros, 1e-3 * most[1]);
        }
        hy_json_free(json);
    }
    ck_assert_int_eq(steps, 3);
    free(text);
    remove_folder(folder);
}
END_TEST

/* A run whose norm in the second block has this number from here on: one after the other continues
 * with it. */
static hy_step_info step_with(const char *folder, const char *precision, const float *value) {
    hy_step_info info;
    if (value) {
        change_tensor(folder, "weights.safetensors", "blocks.1.norm2.weight", 5 * sizeof *value,
                      value, sizeof *value);
    }
    hy_trainer *t = small_trainer(
        SMALL_RUN, folder, NULL,
        PAIRS("precision", precision, "predictor", "none", "resume", value ? "auto" : ""));
    must(hy_trainer_step(t, &info));
    must(hy_trainer_save(t));
    hy_trainer_destroy(t);
    info.reason = info.obstacle = "";
    return info;
}

/* An infinity or a NaN anywhere must come through the codes: the step is skipped as it is in
 * bf16. */
START_TEST(what_is_not_finite_skips_the_step_as_in_bf16) {
    static const float values[] = {INFINITY, -INFINITY, NAN};
    for (int i = 0; i < 6; i++) {
        const char *precision = i % 2 ? "fp8" : "bf16";
        char folder[256];
        temp_folder(folder);
        ck_assert(!step_with(folder, precision, NULL).was_skipped);
        ck_assert_msg(step_with(folder, precision, &values[i / 2]).was_skipped, "%s with %g",
                      precision, (double)values[i / 2]);
        hy_step_info info = step_with(folder, precision, &(float){1});
        ck_assert(!info.was_skipped && isfinite(info.loss));
        remove_folder(folder);
    }
}
END_TEST

/* One number far above the others takes their bits, and the run continues. */
START_TEST(an_outlier_is_reported_and_the_run_goes_on) {
    char folder[256];
    temp_folder(folder);
    hy_step_info before = step_with(folder, "fp8", NULL);
    hy_step_info after = step_with(folder, "fp8", &(float){10000});
    ck_assert(!after.was_skipped);
    ck_assert_double_gt(after.fp8_largest, 100 * before.fp8_largest);
    ck_assert_int_eq(after.fp8_largest_layer, 1);
    ck_assert_double_gt(after.fp8_zeros, before.fp8_zeros);
    remove_folder(folder);
}
END_TEST

static bool is_told(hy_trainer *t, const char *words) {
    hy_plan_facts facts = facts_of(t);
    for (int i = 0; i < facts.reason_count; i++) {
        if (strstr(facts.reasons[i], words)) return true;
    }
    return false;
}

/* Matrices of either kind of block; those that decide how fast a state decays stay as they are. */
START_TEST(linear_attention_is_described) {
    static const char *const options =
        "{\"linear_num_key_heads\": 2, \"linear_num_value_heads\": 2, \"linear_key_head_dim\": 16, "
        "\"linear_value_head_dim\": 16, \"full_attention_interval\": 2}";
    hy_trainer *t = plan_words(SMALL_RUN, PAIRS(FP8, "fp8", "all", "architecture", "qwen3_5_text",
                                                "arch_options", options));
    ck_assert(is_told(t, "fp8 in 21 of the 21 kinds of matmuls in blocks"));
    ck_assert(!is_told(t, "linear ba"));
    hy_trainer_destroy(t);
}
END_TEST

/* ---- frozen matrices ------------------------------------------------------------------------- */

static int64_t fp8_matmuls_of(hy_trainer *t, int64_t *of) {
    hy_summary s;
    hy_trainer_summary(t, &s);
    *of = s.block_matmuls;
    return s.fp8_matmuls;
}

/* A base in fp8 is multiplied as it is stored, forward and back; one in another type never. */
START_TEST(adapters_train_with_a_base_in_fp8) {
    static const struct {
        const char *dtype, *said;
        int64_t expected;
    } cases[] = {{"fp8", "fp8 in 8 of the 8 kinds of matmuls in blocks", 2 * 8},
                 {"auto", "frozen_dtype is not fp8", 0},
                 {"int8", "frozen_dtype is not fp8", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int64_t of;
        const char *const *pairs = PAIRS(FP8, "lora", "true", "frozen_dtype", cases[i].dtype);
        hy_trainer *t = plan_words(SMALL_RUN, pairs);
        ck_assert_int_eq(fp8_matmuls_of(t, &of), cases[i].expected);
        ck_assert_int_eq(of, 2 * 8);
        ck_assert_msg(is_told(t, cases[i].said), "%s", cases[i].dtype);
        hy_trainer_destroy(t);
    }
    int64_t of;
    hy_trainer *t = plan_words(SMALL_RUN, PAIRS(FP8, "lora", "true")); /* nobody said it */
    uint64_t in_fp8 = cell_of(t, HY_WEIGHTS, HY_FULL).planned_bytes;
    ck_assert_int_eq(fp8_matmuls_of(t, &of), 2 * 8);
    hy_trainer_destroy(t);
    t = plan_words(SMALL_RUN, PAIRS("precision", "bf16", "lora", "true"));
    ck_assert_uint_gt(cell_of(t, HY_WEIGHTS, HY_FULL).planned_bytes, in_fp8 * 6 / 5);
    hy_trainer_destroy(t);
}
END_TEST

START_TEST(trained_and_frozen_layers_may_both_be_in_fp8) {
    int64_t of;
    hy_trainer *t = small_trainer(SMALL_RUN, "none", NULL,
                                  PAIRS(FP8, "train", "last:1", "frozen_dtype", "fp8"));
    ck_assert_int_eq(fp8_matmuls_of(t, &of), 12 + 8);
    ck_assert_int_eq(of, 12 + 8);
    hy_step_info info;
    must(hy_trainer_step(t, &info));
    ck_assert(!info.was_skipped && isfinite(info.loss));
    hy_trainer_destroy(t);
    t = small_trainer(SMALL_RUN, "none", NULL, PAIRS(FP8, "train", "last:1"));
    ck_assert_int_eq(fp8_matmuls_of(t, &of), 12);
    hy_trainer_destroy(t);
}
END_TEST

/* Matmuls in fp8 differ from those in bf16 by the same codes of the base by the rounding of inputs
 * alone. */
START_TEST(losses_of_adapters_in_fp8_are_near_those_in_bf16_and_not_the_same) {
    double fp8[12], bf16[12];
    const char *words = SMALL_RUN "lora true frozen_dtype fp8 predictor none learning_rate 0.01 ";
    hy_trainer *t = small_trainer(words, "none", NULL, PAIRS("precision", "fp8"));
    next_losses(t, 12, fp8);
    hy_trainer_destroy(t);
    t = small_trainer(words, "none", NULL, PAIRS("precision", "bf16"));
    next_losses(t, 12, bf16);
    hy_trainer_destroy(t);
    for (int i = 0; i < 12; i++) ck_assert_double_lt(fabs(fp8[i] / bf16[i] - 1), 0.01);
    ck_assert_mem_ne(fp8, bf16, sizeof fp8);
    ck_assert_double_lt(fp8[11], fp8[0]);
}
END_TEST

START_TEST(where_a_base_in_fp8_lives_changes_no_bit) {
    static const char *const choices[] = {
        "", "weights_place pinned ring_depth 3 resident_units 0 ", "recompute all ",
        "update gather ",
        "weights_place disk offload_folder . offload_size 64MiB recompute attention "};
    double expected[6], found[6];
    for (size_t i = 0; i < sizeof choices / sizeof choices[0]; i++) {
        char words[1024];
        snprintf(words, sizeof words, SMALL_RUN "lora true precision fp8 predictor none %s",
                 choices[i]);
        hy_trainer *t = small_trainer(words, "none", NULL, NULL);
        next_losses(t, 6, i ? found : expected);
        if (i) ck_assert_msg(memcmp(expected, found, sizeof found) == 0, "%s", choices[i]);
        hy_trainer_destroy(t);
    }
}
END_TEST

/* ---- what is kept ---------------------------------------------------------------------------- */

START_TEST(a_resumed_run_keeps_which_matmuls_are_in_fp8) {
    char folder[256];
    double straight[3], resumed[3];
    hy_trainer *t = small_trainer(SMALL_RUN, temp_folder(folder), NULL, PAIRS(FP8));
    int64_t of, all = fp8_matmuls_of(t, &of);
    must(hy_trainer_save(t));
    hy_trainer_destroy(t);
    change_saved(folder, "fp8_weights", "7"); /* as a card would have chosen: mlp down in bf16 */
    change_saved(folder, "fp8_grads", "3");
    for (int i = 0; i < 2; i++) {
        t = small_trainer(SMALL_RUN "resume auto ", folder, NULL, PAIRS(FP8));
        int64_t kept = fp8_matmuls_of(t, &of);
        ck_assert(kept > 0 && kept < all);
        must(hy_trainer_save(t));
        ck_assert_double_eq(saved_number(folder, "kept.fp8_weights"), 7);
        ck_assert_double_eq(saved_number(folder, "kept.fp8_grads"), 3);
        next_losses(t, 3, i ? resumed : straight);
        hy_trainer_destroy(t);
    }
    ck_assert_mem_eq(straight, resumed, sizeof straight);
    remove_folder(folder);
}
END_TEST

/* A byte for each number of a matrix and some for its scales, and norms in 16 bits; no checkpoint
 * has them. */
START_TEST(the_plan_counts_the_codes_of_the_blocks) {
    char folder[256];
    double losses[1];
    hy_trainer *t = small_trainer(SMALL_RUN, temp_folder(folder), NULL, PAIRS(FP8));
    next_losses(t, 1, losses);
    must(hy_trainer_save(t));
    hy_memory_cell cell = cell_of(t, HY_QUANTS, HY_WARMUP);
    uint64_t matrices = 2 * (4 * 32 * 32 + 3 * 32 * 48);
    ck_assert_int_eq(cell.place, HY_DEVICE);
    ck_assert_uint_eq(cell.planned_bytes, cell.measured_bytes);
    ck_assert_uint_gt(cell.planned_bytes, matrices);
    ck_assert_uint_lt(cell.planned_bytes, matrices * 5 / 4);
    hy_trainer_destroy(t);
    hy_safetensors *weights = open_saved(folder, "weights.safetensors");
    for (size_t i = 0; i < hy_safetensors_count(weights); i++) {
        ck_assert_int_eq(hy_safetensors_at(weights, i)->dtype, HY_F32);
    }
    hy_safetensors_close(weights);
    remove_folder(folder);
}
END_TEST

static Suite *fp8_suite(void) {
    Suite *suite = suite_create("fp8");
    TCase *asked = tcase_create("asked"), *computed = tcase_create("computed"),
          *frozen = tcase_create("frozen"), *kept = tcase_create("kept");
    tcase_set_timeout(frozen, 120);
    tcase_set_timeout(computed, 120);
    tcase_add_test(asked, no_phase_is_coarser_than_full_and_predict_is_never_in_fp8);
    tcase_add_test(asked, a_card_without_fp8_is_named);
    tcase_add_test(asked, matrices_that_a_card_cannot_multiply_in_fp8_stay_in_bf16);
    tcase_add_test(computed, losses_in_fp8_are_near_those_in_bf16_and_not_the_same);
    tcase_add_test(computed, the_last_part_of_a_run_may_be_in_bf16);
    tcase_add_test(computed, every_layer_says_what_fp8_made_of_its_numbers);
    tcase_add_test(computed, what_is_not_finite_skips_the_step_as_in_bf16);
    tcase_add_test(computed, an_outlier_is_reported_and_the_run_goes_on);
    tcase_add_test(frozen, linear_attention_is_described);
    tcase_add_test(frozen, adapters_train_with_a_base_in_fp8);
    tcase_add_test(frozen, trained_and_frozen_layers_may_both_be_in_fp8);
    tcase_add_test(frozen, losses_of_adapters_in_fp8_are_near_those_in_bf16_and_not_the_same);
    tcase_add_test(frozen, where_a_base_in_fp8_lives_changes_no_bit);
    tcase_add_test(kept, a_resumed_run_keeps_which_matmuls_are_in_fp8);
    tcase_add_test(kept, the_plan_counts_the_codes_of_the_blocks);
    suite_add_tcase(suite, asked);
    suite_add_tcase(suite, computed);
    suite_add_tcase(suite, frozen);
    suite_add_tcase(suite, kept);
    return suite;
}

HY_TEST_MAIN(fp8_suite)
