/* test_optimizer_run.c: runs with SGD, Lion and Adafactor: they learn; the size, places and saving
 * of their state; other optimizers refuse that state. */
#include "run_facts.h"
#include "small_run.h"

#include "base/file.h"
#include "base/json.h"
#include "formats/safetensors.h"

/* Wide enough that matrices are quantised. */
#define SGD_RUN SMALL_RUN "width 64 mlp_width 128 optimizer sgd lr 0.1 "
#define PLAIN "predictor", "none"
#define MOVES "predictor", "outer", "full_steps", "4", "correct_steps", "2", "predict_from", "0"

START_TEST(sgd_learns) {
    static const char *const others[][2] = {
        {"nesterov", "true"}, {"optim_dtype", "8bit"}, {"optim_dtype", "bf16"}, {"momentum", "0"}};
    for (int i = 0; i < 5; i++) {
        const char *pairs[] = {"predictor",
                               "none",
                               "steps",
                               "60",
                               i ? others[i - 1][0] : NULL,
                               i ? others[i - 1][1] : NULL,
                               NULL};
        double losses[60], first = 0, last = 0;
        hy_trainer *t = small_trainer(SGD_RUN, "none", NULL, pairs);
        next_losses(t, 60, losses);
        for (int k = 0; k < 5; k++) first += losses[k] / 5, last += losses[55 + k] / 5;
        double wanted = i == 4 ? 0.8 : 0.6; /* without momentum a step is a tenth as long */
        ck_assert_msg(last < wanted * first, "row %d: from %g to %g", i, first, last);
        hy_trainer_destroy(t);
    }
}
END_TEST

static uint64_t optim_bytes(const char *const *pairs) {
    hy_summary summary;
    hy_trainer *t = small_trainer(SGD_RUN, "none", NULL, pairs);
    double losses[2];
    next_losses(t, 2, losses);
    hy_trainer_summary(t, &summary);
    const hy_memory_cell *cell = &summary.phases[HY_WARMUP].memory[HY_OPTIM];
    ck_assert_uint_eq(cell->planned_bytes, cell->measured_bytes);
    hy_trainer_destroy(t);
    return cell->planned_bytes;
}

START_TEST(sgd_has_half_of_the_state_of_adamw_and_none_without_momentum) {
    uint64_t adamw = optim_bytes(PAIRS(PLAIN, "optimizer", "adamw", "lr", "1e-3"));
    ck_assert_uint_gt(adamw, 0);
    ck_assert_uint_eq(2 * optim_bytes(PAIRS(PLAIN)), adamw);
    ck_assert_uint_eq(optim_bytes(PAIRS(PLAIN, "momentum", "0")), 0);
    uint64_t pinned = optim_bytes(PAIRS(PLAIN, "optim_place", "pinned", "optim_dtype", "fp32"));
    ck_assert_uint_eq(2 * pinned, adamw);
    double small = (double)optim_bytes(PAIRS(PLAIN, "optim_dtype", "8bit"));
    ck_assert_double_lt(small / (double)adamw, 0.5 * 0.29);
}
END_TEST

START_TEST(sgd_resumes_to_the_same_bits) {
    check_resume(SGD_RUN, NULL, PAIRS(PLAIN), 3, 5);
    check_resume(SGD_RUN, NULL, PAIRS(PLAIN, "nesterov", "true", "optim_dtype", "8bit"), 3, 5);
    check_resume(SGD_RUN, NULL,
                 PAIRS(PLAIN, "optim_dtype", "bf16", "precision", "bf16", "master_dtype", "bf16",
                       "grad_dtype", "bf16"),
                 3, 5);
    check_resume(SGD_RUN, NULL, PAIRS(MOVES, "steps", "30"), 9, 15);
    if (EVERY(2) > 1) return;
    check_resume(SGD_RUN, NULL, PAIRS(PLAIN, "momentum", "0"), 3, 5);
    check_resume(SGD_RUN, NULL, PAIRS(MOVES, "steps", "30", "momentum", "0"), 9, 15);
}
END_TEST

/* Places, updates on gather, and where the state is in Predict. */
START_TEST(where_state_lies_changes_no_bit) {
    char folder[256];
    const char *const places[][8] = {{"optim_place", "pinned"},
                                     {"optim_place", "pinned", "weights_place", "pinned",
                                      "grads_place", "pinned", "layers", "2"},
                                     {"optim_place", "disk", "offload_folder", folder},
                                     {"offload_strategy", "cpu"},
                                     {"offload_strategy", "pinned"},
                                     {"update", "gather"}};
    static const char *const states[][2] = {
        {"optim_dtype", "fp32"}, {"optim_dtype", "8bit"}, {"momentum", "0"}};
    temp_folder(folder);
    for (int k = 0; k < 3; k++) {
        const char *pairs[32] = {MOVES, "steps", "30", states[k][0], states[k][1]};
        double here[24], there[24];
        hy_trainer *t = small_trainer(SGD_RUN, "none", NULL, pairs);
        next_losses(t, 24, here);
        hy_trainer_destroy(t);
        for (size_t i = (size_t)k % EVERY(3); i < sizeof places / sizeof places[0]; i += EVERY(3)) {
            memcpy(pairs + 12, places[i], sizeof places[i]);
            t = small_trainer(SGD_RUN, "none", NULL, pairs);
            next_losses(t, 24, there);
            ck_assert_msg(memcmp(here, there, sizeof here) == 0, "%s %s with %s %s", places[i][0],
                          places[i][1], states[k][0], states[k][1]);
            hy_trainer_destroy(t);
        }
    }
    remove_folder(folder);
}
END_TEST

START_TEST(state_may_be_compressed_or_dropped_in_predict) {
    static const char *const strategies[] = {"compress", "drop"};
    for (int i = 0; i < 4; i++) {
        double losses[24];
        hy_trainer *t = small_trainer(SGD_RUN, "none", NULL,
                                      PAIRS(MOVES, "steps", "30", "offload_strategy",
                                            strategies[i % 2], "momentum", i < 2 ? "0.9" : "0"));
        next_losses(t, 24, losses);
        ck_assert_double_lt(losses[23], losses[0]);
        hy_trainer_destroy(t);
    }
}
END_TEST

static void save_after_three(const char *folder, const char *const *pairs) {
    double losses[3];
    hy_trainer *t = small_trainer(SGD_RUN, folder, NULL, pairs);
    next_losses(t, 3, losses);
    must(hy_trainer_save(t));
    hy_trainer_destroy(t);
}

START_TEST(a_checkpoint_names_the_momentum) {
    char folder[256], path[512];
    hy_safetensors *st;
    temp_folder(folder);
    save_after_three(folder, PAIRS(PLAIN, "optim_dtype", "8bit"));
    snprintf(path, sizeof path, "%s/checkpoint-3/optimizer.safetensors", folder);
    must(hy_safetensors_open(path, &st));
    ck_assert_ptr_nonnull(hy_safetensors_find(st, "momentum.blocks.0.attn.qkv.weight"));
    ck_assert_ptr_nonnull(hy_safetensors_find(st, "momentum.blocks.0.attn.qkv.weight.scale"));
    ck_assert_ptr_null(hy_safetensors_find(st, "m.blocks.0.attn.qkv.weight"));
    hy_safetensors_close(st);
    remove_folder(folder);
    save_after_three(folder, PAIRS(PLAIN, "momentum", "0"));
    ck_assert(!hy_path_exists(path));
    remove_folder(folder);
}
END_TEST

static void must_refuse(const char *folder, const char *const *pairs, const char *words) {
    hy_trainer *t;
    hy_config *config = small_run(SGD_RUN "resume auto ", folder, pairs);
    must_fail(hy_trainer_create(config, NULL, &t), HY_ERR_INPUT, words);
    hy_config_destroy(config);
}

START_TEST(another_optimizers_state_is_refused_in_words) {
    char folder[256];
    temp_folder(folder);
    save_after_three(folder, PAIRS(PLAIN, "optimizer", "adamw"));
    must_refuse(folder, PAIRS(PLAIN), "optimizer adamw");
    remove_folder(folder);
    save_after_three(folder, PAIRS(PLAIN));
    must_refuse(folder, PAIRS(PLAIN, "optimizer", "adamw"), "optimizer sgd");
    remove_folder(folder);
    save_after_three(folder, PAIRS(PLAIN, "momentum", "0"));
    must_refuse(folder, PAIRS(PLAIN), "momentum 0");
    remove_folder(folder);
}
END_TEST

/* trainer.json of before says nothing about the optimizer: it was AdamW. */
START_TEST(an_older_checkpoint_is_adamws) {
    char folder[256], path[512], *text;
    size_t size;
    hy_json *json;
    temp_folder(folder);
    save_after_three(folder, PAIRS(PLAIN, "optimizer", "adamw"));
    must(hy_file_read(saved_path(folder, "trainer.json", path), &text, &size));
    char *line = strstr(text, "\"optimizer\""), *end = strstr(line, "\"step\"");
    ck_assert_ptr_nonnull(line);
    ck_assert_ptr_nonnull(end);
    memset(line, ' ', (size_t)(end - line));
    replace_saved(folder, "trainer.json", text, size);
    must(hy_json_read_file(path, &json));
    ck_assert_ptr_null(hy_json_get(hy_json_root(json), "optimizer"));
    hy_json_free(json);
    must_refuse(folder, PAIRS(PLAIN), "optimizer adamw");
    hy_trainer *t =
        small_trainer(SGD_RUN "resume auto ", folder, NULL, PAIRS(PLAIN, "optimizer", "adamw"));
    ck_assert_int_eq(summary_of(t).steps, 3);
    hy_trainer_destroy(t);
    free(text);
    remove_folder(folder);
}
END_TEST

/* ---- lion and adafactor ---------------------------------------------------------------------- */

#define LION_RUN SMALL_RUN "width 64 mlp_width 128 optimizer lion lr 1e-3 "
#define FACTORED_RUN SMALL_RUN "width 64 mlp_width 128 optimizer adafactor lr 0.05 "
#define BF16 "precision", "bf16", "master_dtype", "bf16", "grad_dtype", "bf16"
#define OTHERS 2
static const char *const others[OTHERS] = {LION_RUN, FACTORED_RUN};

START_TEST(lion_and_adafactor_learn) {
    static const struct {
        const char *run, *pairs[11];
    } rows[] = {{LION_RUN, {PLAIN}},
                {LION_RUN, {PLAIN, "optimizer", "lion8bit"}},
                {LION_RUN, {PLAIN, "optim_dtype", "bf16", BF16}},
                {FACTORED_RUN, {PLAIN}},
                {FACTORED_RUN, {PLAIN, BF16}},
                {FACTORED_RUN, {PLAIN, "adafactor_relative", "false", "lr", "2e-3"}}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        double losses[60], first = 0, last = 0;
        const char *pairs[16] = {"steps", "60"};
        memcpy(pairs + 2, rows[i].pairs, sizeof rows[i].pairs);
        hy_trainer *t = small_trainer(rows[i].run, "none", NULL, pairs);
        next_losses(t, 60, losses);
        for (int k = 0; k < 5; k++) first += losses[k] / 5, last += losses[55 + k] / 5;
        ck_assert_msg(last < 0.65 * first, "row %zu: from %g to %g", i, first, last);
        hy_trainer_destroy(t);
    }
}
END_TEST

START_TEST(lion_and_adafactor_resume_to_the_same_bits) {
    for (int i = 0; i < OTHERS; i++) {
        if (EVERY(2) == 1) check_resume(others[i], NULL, PAIRS(PLAIN), 3, 5);
        check_resume(others[i], NULL, PAIRS(PLAIN, BF16), 3, 5);
        check_resume(others[i], NULL, PAIRS(MOVES, "steps", "30"), 9, 15);
        check_resume(others[i], NULL, PAIRS(PLAIN, "vocab", "1030"), 3, 5); /* padding */
    }
    check_resume(LION_RUN, NULL, PAIRS(PLAIN, "optim_dtype", "8bit"), 3, 5);
    check_resume(LION_RUN, NULL, PAIRS(PLAIN, "optim_dtype", "bf16", BF16), 3, 5);
}
END_TEST

START_TEST(where_their_state_lies_changes_no_bit) {
    char folder[256];
    const char *const places[][8] = {{"optim_place", "pinned"},
                                     {"optim_place", "pinned", "weights_place", "pinned",
                                      "grads_place", "pinned", "layers", "2"},
                                     {"optim_place", "disk", "offload_folder", folder},
                                     {"offload_strategy", "cpu"},
                                     {"offload_strategy", "pinned"},
                                     {"threads", "1"},
                                     {"update", "gather"}};
    temp_folder(folder);
    for (int k = 0; k < OTHERS; k++) {
        const char *pairs[32] = {MOVES, "steps", "30"};
        double here[24], there[24];
        hy_trainer *t = small_trainer(others[k], "none", NULL, pairs);
        next_losses(t, 24, here);
        hy_trainer_destroy(t);
        for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
            memcpy(pairs + 10, places[i], sizeof places[i]);
            t = small_trainer(others[k], "none", NULL, pairs);
            next_losses(t, 24, there);
            ck_assert_msg(memcmp(here, there, sizeof here) == 0, "%s %s in row %d", places[i][0],
                          places[i][1], k);
            hy_trainer_destroy(t);
        }
    }
    remove_folder(folder);
}
END_TEST

START_TEST(their_state_may_be_dropped_in_predict_and_lions_compressed) {
    for (int i = 0; i < 3; i++) {
        double losses[24];
        hy_trainer *t = small_trainer(
            others[i / 2], "none", NULL,
            PAIRS(MOVES, "steps", "30", "offload_strategy", i == 1 ? "compress" : "drop"));
        next_losses(t, 24, losses);
        ck_assert_double_lt(losses[23], losses[0]);
        hy_trainer_destroy(t);
    }
}
END_TEST

START_TEST(lion_has_half_of_the_state_of_adamw_and_adafactor_next_to_none) {
    uint64_t adamw = optim_bytes(PAIRS(PLAIN, "optimizer", "adamw"));
    ck_assert_uint_eq(2 * optim_bytes(PAIRS(PLAIN, "optimizer", "lion")), adamw);
    ck_assert_uint_eq(
        2 * optim_bytes(PAIRS(PLAIN, "optimizer", "paged_lion", "optim_dtype", "fp32")), adamw);
    double small = (double)optim_bytes(PAIRS(PLAIN, "optimizer", "lion8bit"));
    ck_assert_double_lt(small / (double)adamw, 0.5 * 0.29);
    double factored = (double)optim_bytes(PAIRS(PLAIN, "optimizer", "adafactor"));
    ck_assert_double_gt(factored, 0);
    ck_assert_double_lt(factored / (double)adamw, 0.05);
}
END_TEST

START_TEST(adafactors_checkpoint_has_rows_and_columns) {
    char folder[256], path[512];
    hy_safetensors *st;
    temp_folder(folder);
    save_after_three(folder, PAIRS(PLAIN, "optimizer", "adafactor", "heads", "4"));
    snprintf(path, sizeof path, "%s/checkpoint-3/optimizer.safetensors", folder);
    must(hy_safetensors_open(path, &st));
    const hy_safetensors_entry *qkv = hy_safetensors_find(st, "v.blocks.0.attn.qkv.weight");
    ck_assert_ptr_nonnull(qkv);
    ck_assert_uint_eq(qkv->bytes, (3 * 64 + 64) * sizeof(float)); /* (192, 64) */
    hy_safetensors_close(st);
    must_refuse(folder, PAIRS(PLAIN), "optimizer adafactor");
    remove_folder(folder);
}
END_TEST

START_TEST(what_adafactor_does_not_go_with_is_named) {
    static const char *const wrong[][3] = {
        {"optim_dtype", "8bit", "optim_dtype is 8bit, but the state of optimizer adafactor"},
        {"optim_dtype", "bf16", "accepted: optim_dtype = auto or fp32"},
        {"offload_strategy", "compress", "accepted: none, cpu, pinned and drop"}};
    for (int i = 0; i < 3; i++) {
        hy_trainer *t;
        hy_config *config = small_run(FACTORED_RUN, "none", PAIRS(wrong[i][0], wrong[i][1]));
        must_fail(hy_trainer_create(config, NULL, &t), HY_ERR_INPUT, wrong[i][2]);
        hy_config_destroy(config);
    }
    hy_trainer *t = small_trainer(FACTORED_RUN, "none", NULL, PAIRS("optim_dtype", "fp32"));
    hy_trainer_destroy(t);
}
END_TEST

static Suite *optimizer_suite(void) {
    Suite *suite = suite_create("optimizers of runs");
    TCase *tests = tcase_create("optimizers of runs");
    tcase_set_timeout(tests, 120);
    tcase_add_test(tests, sgd_learns);
    tcase_add_test(tests, sgd_has_half_of_the_state_of_adamw_and_none_without_momentum);
    tcase_add_test(tests, sgd_resumes_to_the_same_bits);
    tcase_add_test(tests, where_state_lies_changes_no_bit);
    tcase_add_test(tests, state_may_be_compressed_or_dropped_in_predict);
    tcase_add_test(tests, a_checkpoint_names_the_momentum);
    tcase_add_test(tests, another_optimizers_state_is_refused_in_words);
    tcase_add_test(tests, an_older_checkpoint_is_adamws);
    tcase_add_test(tests, lion_and_adafactor_learn);
    tcase_add_test(tests, lion_and_adafactor_resume_to_the_same_bits);
    tcase_add_test(tests, where_their_state_lies_changes_no_bit);
    tcase_add_test(tests, their_state_may_be_dropped_in_predict_and_lions_compressed);
    tcase_add_test(tests, lion_has_half_of_the_state_of_adamw_and_adafactor_next_to_none);
    tcase_add_test(tests, adafactors_checkpoint_has_rows_and_columns);
    tcase_add_test(tests, what_adafactor_does_not_go_with_is_named);
    suite_add_tcase(suite, tests);
    return suite;
}

HY_TEST_MAIN(optimizer_suite)
