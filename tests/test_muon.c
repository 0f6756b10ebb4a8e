/* test_muon.c: Muon as a whole: its updates compared with the formulas in double precision, which
 * parameters AdamW updates, and its state. */
#include "muon_checks.h"

#include "run_facts.h"
#include "small_run.h"

#define MUON_RUN SMALL_RUN "width 64 mlp_width 128 optimizer muon lr 0.02 "

static muon_device cpu;

static void set_up(void) {
    hy_cpu_options options = {.threads = 2};
    must(hy_cpu_backend_create(&options, &cpu.backend));
    must(cpu.backend->stream_create(cpu.backend, "muon", &cpu.stream));
}

static void tear_down(void) {
    cpu.backend->stream_destroy(cpu.stream);
    cpu.backend->destroy(cpu.backend);
}

START_TEST(updates_are_those_of_the_formulas) { check_muon(&cpu, &muon_cases[_i]); }
END_TEST

/* However different the gradient's rows are in size, those of the step are about as long as each
 * other; weights that begin as zero are the step. */
START_TEST(a_step_goes_equally_far_in_all_directions) {
    enum { ROWS = 24, COLS = 64 };
    const muon_case c = {ROWS, COLS, 0, {0}, HY_F32, HY_F32, true, false, 5, 0, 0};
    double gradient[ROWS * COLS], zero[ROWS * COLS] = {0};
    float w[ROWS * COLS];
    muon_state s;
    for (int i = 0; i < ROWS * COLS; i++) {
        double row = pow(10, -2.0 * (i / COLS) / ROWS); /* over two decades */
        gradient[i] = row * hy_rng_normal(5, HY_RNG_TEST, (uint64_t)i);
    }
    muon_begin(&cpu, &c, &s);
    muon_put(&cpu, &s.update.weight, zero);
    muon_put(&cpu, &s.update.arrays[0], zero);
    muon_put(&cpu, &s.update.grad, gradient);
    muon_update(&cpu, &s);
    muon_copy(&cpu, w, s.update.weight.data, sizeof w);
    for (int i = 0; i < ROWS; i++) {
        double square = 0;
        for (int k = 0; k < COLS; k++) square += (double)w[i * COLS + k] * (double)w[i * COLS + k];
        double length = sqrt(square) / (MUON_LR * 0.2 * sqrt(COLS));
        ck_assert_msg(length > 0.5 && length < 1.3, "row %d has length %g", i, length);
    }
    muon_end(&cpu, &s);
}
END_TEST

/* Which parameters are whose, and what each keeps. */
START_TEST(matrices_of_the_blocks_have_momentum_alone) {
    char folder[256], name[100];
    uint64_t all = 0, kept = 0;
    temp_folder(folder);
    hy_trainer *t = small_trainer(MUON_RUN, folder, NULL, PAIRS("predictor", "none"));
    must(hy_trainer_save(t));
    hy_safetensors *weights = open_saved(folder, "weights.safetensors");
    hy_safetensors *state = open_saved(folder, "optimizer.safetensors");
    for (size_t i = 0; i < hy_safetensors_count(weights); i++) {
        const hy_safetensors_entry *p = hy_safetensors_at(weights, i);
        bool is_matrix = strncmp(p->name, "blocks.", 7) == 0 && p->ndim == 2;
        snprintf(name, sizeof name, "m.%s", p->name);
        ck_assert_msg(hy_safetensors_find(state, name) != NULL, "%s", name);
        snprintf(name, sizeof name, "v.%s", p->name);
        ck_assert_msg((hy_safetensors_find(state, name) != NULL) == !is_matrix, "%s", name);
        uint64_t bytes = hy_align(p->bytes); /* fp32, as both arrays are */
        all += bytes;
        kept += is_matrix ? bytes : 2 * bytes;
    }
    ck_assert_uint_gt(kept, all);
    ck_assert_uint_eq(cell_of(t, HY_OPTIM, HY_FULL).planned_bytes, kept);
    hy_safetensors_close(weights);
    hy_safetensors_close(state);
    hy_trainer_destroy(t);
    remove_folder(folder);
}
END_TEST

/* More matrices than a window holds, together and unit by unit. */
START_TEST(windows_change_no_bit) {
    static const char *const pinned[] = {"predictor",     "none",   "layers",      "17",
                                         "weights_place", "pinned", "optim_place", "pinned",
                                         "grads_place",   "pinned", NULL};
    double together[6], apart[6];
    hy_trainer *t =
        small_trainer(MUON_RUN, "none", NULL, PAIRS("predictor", "none", "layers", "17"));
    ck_assert_int_gt(4 * 17, HY_WINDOW_PARAMS);
    next_losses(t, 6, together);
    hy_trainer_destroy(t);
    t = small_trainer(MUON_RUN, "none", NULL, pinned);
    next_losses(t, 6, apart);
    hy_trainer_destroy(t);
    ck_assert_mem_eq(together, apart, sizeof apart);
}
END_TEST

static double last_loss(const char *const *pairs) {
    double losses[60], last = 0;
    hy_trainer *t = small_trainer(MUON_RUN, "none", NULL, pairs);
    next_losses(t, 60, losses);
    for (int k = 55; k < 60; k++) last += losses[k] / 5;
    hy_trainer_destroy(t);
    return last;
}

/* At the rates that are best for each of them here. */
START_TEST(it_learns_faster_than_adamw) {
#define PLAIN "predictor", "none", "steps", "60"
    double muon = last_loss(PAIRS(PLAIN));
    double adamw = last_loss(PAIRS(PLAIN, "optimizer", "adamw", "lr", "0.01"));
    ck_assert_msg(muon < adamw, "muon %g, adamw %g", muon, adamw);
    static const char *const others[][2] = {{"optim_dtype", "8bit"},    {"optim_dtype", "bf16"},
                                            {"precision", "bf16"},      {"cautious_decay", "true"},
                                            {"muon_nesterov", "false"}, {"adamw_lr", "0.01"}};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        double other = last_loss(PAIRS(PLAIN, others[i][0], others[i][1]));
        ck_assert_msg(other < 1.1 * muon, "%s %s: %g, plain %g", others[i][0], others[i][1], other,
                      muon);
    }
}
END_TEST

static Suite *muon_suite(void) {
    Suite *suite = suite_create("muon");
    TCase *all = tcase_create("muon");
    tcase_add_checked_fixture(all, set_up, tear_down);
    tcase_add_loop_test(all, updates_are_those_of_the_formulas, 0, MUON_CASES);
    tcase_add_test(all, a_step_goes_equally_far_in_all_directions);
    tcase_add_test(all, matrices_of_the_blocks_have_momentum_alone);
    tcase_add_test(all, windows_change_no_bit);
    tcase_add_test(all, it_learns_faster_than_adamw);
    suite_add_tcase(suite, all);
    return suite;
}

HY_TEST_MAIN(muon_suite)
