/* test_gpu_engine.c: the memory engine on a card: places, rings, disk, pending updates, waiting
 * activations.
 *
 * The same lists of choices as on the CPU (engine_rows.h), bit for bit against a run with
 * everything on the card. Then budgets that force the planner to stream, and checkpoints that move
 * between places and between card and CPU. HYBRID_GPU_TESTS_DEVICE=cpu tries the tests
 * themselves. */
#include "engine_rows.h"
#include "gpu/gpu_harness.h"

#include <math.h>

static void open_card(void) {
    const char *device = getenv("HYBRID_GPU_TESTS_DEVICE");
    engine_device = device ? device : "cuda";
    set_up();
}

static int models_here(void) { return gpu.is_small ? 1 : MODELS; }

START_TEST(each_choice_alone_changes_no_bit) {
    if (_i >= models_here()) return;
    run_plain(_i);
    for (int i = 0; i < SETTINGS; i++) {
        for (int v = 1; v < value_count(i); v++) {
            row r = {{0}};
            const row next = {{0}};
            r.value[i] = v;
            check_row(_i, &r, &next);
        }
    }
}
END_TEST

START_TEST(pairs_of_choices_change_no_bit) {
    row rows[MOST_ROWS];
    if (_i >= models_here()) return;
    int count = make_rows((uint64_t)_i + 1, rows);
    run_plain(_i);
    for (int i = 0; i < count; i++) check_row(_i, &rows[i], &rows[(i + 1) % count]);
}
END_TEST

/* ---- larger shapes --------------------------------------------------------------------------- */

/* Copies that take longer than a kernel's launch: layers of 6 MB in bf16, a head of 2 MB. The small
 * ones are for slow machines. */
#define WIDE ENGINE_RUN ENGINE_LLAMA "layers 6 grad_accum_steps 2 predictor none precision bf16 "
#define WIDE_SHAPE                                                                                 \
    "width 512 heads 8 kv_heads 4 mlp_width 1408 vocab 2048 seq_len 256 context 256 batch_size 4 "
#define NARROW_SHAPE "width 64 heads 4 kv_heads 2 mlp_width 128 vocab 300 "
#define SMALL_STATE "master_dtype bf16 optimizer adamw8bit grad_dtype bf16 tied_head false "
#define ALL_PINNED                                                                                 \
    "weights_place", "pinned", "master_place", "pinned", "grads_place", "pinned", "optim_place",   \
        "pinned"

static void wide_losses(const char *words, const char *const *pairs, double losses[10]) {
    hy_trainer *t = small_trainer(words, "none", engine_device, pairs);
    next_losses(t, 10, losses);
    hy_trainer_destroy(t);
}

static void check_wide(const char *words, const double expected[10], const char *what,
                       const char *const *pairs) {
    double losses[10];
    wide_losses(words, pairs, losses);
    ck_assert_msg(memcmp(losses, expected, sizeof losses) == 0, "%s", what);
}

START_TEST(ten_streamed_steps_of_wider_layers_change_no_bit) {
    const char *words[] = {gpu.is_small ? WIDE NARROW_SHAPE : WIDE WIDE_SHAPE,
                           gpu.is_small ? WIDE NARROW_SHAPE SMALL_STATE
                                        : WIDE WIDE_SHAPE SMALL_STATE};
    double here[10];
    wide_losses(words[_i], NULL, here);
    check_wide(words[_i], here, "all pinned", PAIRS(ALL_PINNED, "update", "gather"));
    check_wide(words[_i], here, "rings of two", PAIRS(ALL_PINNED, "ring_depth", "2"));
    check_wide(words[_i], here, "resident layers",
               PAIRS(ALL_PINNED, "update", "gather", "resident_units", "3", "ring_depth", "4"));
    check_wide(words[_i], here, "recomputed",
               PAIRS(ALL_PINNED, "recompute", "all", "recompute_layers", "4"));
    check_wide(words[_i], here, "activations", PAIRS("activations_place", "pinned"));
    check_wide(words[_i], here, "activations and state",
               PAIRS(ALL_PINNED, "activations_place", "pinned", "recompute", "mlp"));
    check_wide(words[_i], here, "disk",
               PAIRS("weights_place", "disk", "master_place", "disk", "grads_place", "disk",
                     "optim_place", "disk", "update", "gather", "offload_folder", disk));
}
END_TEST

static void check_same_losses(const hy_trainer *t, const double here[10], const double there[10]) {
    char *plan;
    must(hy_trainer_plan_json(t, &plan));
    for (int i = 0; i < 10; i++) {
        ck_assert_msg(here[i] == there[i], "step %d: %.17g, expected %.17g; %s", i + 1, there[i],
                      here[i], plan);
    }
    hy_free(plan);
}

/* Less and less of the card is allowed: the planner streams, the losses stay. */
START_TEST(budgets_are_kept_and_change_no_bit) {
    hy_plan_facts facts;
    double here[10], there[10];
    char limit[32];
    int streamed = 0;
    const char *words = gpu.is_small ? WIDE NARROW_SHAPE : WIDE WIDE_SHAPE;
    hy_trainer *t = small_trainer(words, "none", engine_device, NULL);
    hy_trainer_plan_facts(t, &facts);
    next_losses(t, 10, here);
    hy_trainer_destroy(t);
    for (uint64_t share = 90; share >= 50; share -= 20) {
        uint64_t allowed = facts.vram_bytes * share / 100;
        hy_plan_facts tight;
        hy_memory_state memory;
        snprintf(limit, sizeof limit, "%llu", (unsigned long long)allowed);
        t = small_trainer(words, "none", engine_device,
                          PAIRS("max_gpu_mem", limit, "small_types", "none"));
        hy_trainer_plan_facts(t, &tight);
        ck_assert_uint_le(tight.vram_bytes, allowed);
        next_losses(t, 10, there);
        must(hy_trainer_memory(t, &memory));
        ck_assert_uint_le(memory.device.peak, allowed);
        check_same_losses(t, here, there);
        streamed += !plan_says(t, "choices.optim_place", "device") ||
                    !plan_says(t, "choices.grads_place", "device");
        hy_trainer_destroy(t);
    }
    ck_assert_int_gt(streamed, 0);
}
END_TEST

/* ---- checkpoints ----------------------------------------------------------------------------- */

/* Five steps at each stop of a journey, against as many on the CPU. */
static void check_journey(const char *words, double bound) {
    const char *const stops[][4] = {{engine_device, "pinned", "device", "gather"},
                                    {"cpu", "disk", "pinned", "now"},
                                    {engine_device, "disk", "disk", "gather"},
                                    {"cpu", "device", "device", "now"},
                                    {engine_device, "device", "pinned", "now"}};
    double straight[25], moved[25];
    hy_trainer *t = small_trainer(words, "none", "cpu", NULL);
    next_losses(t, 25, straight);
    hy_trainer_destroy(t);
    for (int i = 0; i < 5; i++) {
        t = small_trainer(words, folder, stops[i][0],
                          PAIRS("weights_place", stops[i][1], "master_place", stops[i][1],
                                "grads_place", stops[i][2], "optim_place", stops[i][2], "update",
                                stops[i][3], "offload_folder", disk, "resume", i ? "auto" : ""));
        next_losses(t, 5, moved + 5 * i);
        must(hy_trainer_save(t));
        hy_trainer_destroy(t);
    }
    for (int i = 0; i < 25; i++) {
        ck_assert_msg(fabs(moved[i] / straight[i] - 1) <= bound, "step %d: %.8g, expected %.8g",
                      i + 1, moved[i], straight[i]);
    }
}

START_TEST(a_checkpoint_moves_between_places_card_and_cpu) {
#define JOURNEY ENGINE_RUN ENGINE_LLAMA "steps 25 predictor none "
    check_journey(JOURNEY "precision fp32 ", 1e-4);
    remove_folder(folder);
    temp_folder(folder);
    check_journey(JOURNEY "precision bf16 ", 0.01);
    remove_folder(folder);
    temp_folder(folder);
    check_journey(JOURNEY "precision bf16 width 64 master_dtype bf16 optimizer adamw8bit ", 0.01);
}
END_TEST

static char case_names[MODELS][16];

static Suite *make_suite(void) {
    Suite *suite = suite_create("cuda: memory engine");
    TCase *wide = tcase_create("wide");
    tcase_add_checked_fixture(wide, open_card, tear_down);
    for (int i = 0; i < MODELS; i++) { /* a case each: CK_RUN_CASE can run them in parallel */
        snprintf(case_names[i], sizeof case_names[i], "model%d", i);
        TCase *exact = tcase_create(case_names[i]);
        tcase_add_checked_fixture(exact, open_card, tear_down);
        if (i < 2) tcase_add_loop_test(exact, each_choice_alone_changes_no_bit, i, i + 1);
        tcase_add_loop_test(exact, pairs_of_choices_change_no_bit, i, i + 1);
        suite_add_tcase(suite, exact);
    }
    tcase_add_loop_test(wide, ten_streamed_steps_of_wider_layers_change_no_bit, 0, 2);
    tcase_add_test(wide, budgets_are_kept_and_change_no_bit);
    tcase_add_test(wide, a_checkpoint_moves_between_places_card_and_cpu);
    suite_add_tcase(suite, wide);
    return suite;
}

GPU_TEST_MAIN(make_suite)
