/* test_phase_rows.c: phases as rows of a table: a phase that only this test defines borrows memory
 * between steps, and Evaluate has a larger batch than training at the same peak. */
#include "inside.h"
#include "run_facts.h"
#include "small_run.h"

#include "phases/table.h"

/* Short sequences beside wide layers: passes need little memory, and state much. */
#define WIDE_RUN                                                                                   \
    "model nano layers 3 width 192 heads 4 mlp_width 576 seq_len 16 batch_size 1 "                 \
    "grad_accum_steps 4 steps 12 lr 3e-3 builtin_bytes 60000 lr_warmup_steps 3 eval_batches 40 "   \
    "sample_tokens 0 threads 2 device cpu max_gpu_mem 64MiB "

/* State streams through rings of the device, which are idle between steps. */
#define STREAMING                                                                                  \
    "weights_place", "pinned", "master_place", "pinned", "grads_place", "pinned", "optim_place",   \
        "pinned", "predictor", "none"

/* Everything stays on the device, and gradients are large enough for the batch. */
#define RESIDENT "predictor", "none"

/* Gradients in bf16 are too small for it: m and v go to the host meanwhile. */
#define LEAVING                                                                                    \
    "predictor", "outer", "predict_from", "0.9", "precision", "bf16", "grad_dtype", "bf16",        \
        "recompute", "all", "offload_strategy", "pinned"

static hy_trainer *begin(const char *const *pairs) {
    return small_trainer(WIDE_RUN, "none", NULL, pairs);
}

/* A phase that runs forward passes and borrows what they may borrow. */
static const hy_phase_row calibrate = {.phase = (hy_phase)HY_PHASE_COUNT,
                                       .passes = HY_RUNS_FORWARD,
                                       .precision = HY_FULL,
                                       .borrower = HY_BORROWS_BATCH,
                                       .back = HY_RETURNS_AT_END};

/* A phase that borrows nothing. */
static const hy_phase_row measure = {
    .phase = (hy_phase)HY_PHASE_COUNT, .passes = HY_RUNS_FORWARD, .precision = HY_FULL};

static const char *const *const places[] = {PAIRS(STREAMING), PAIRS(RESIDENT), PAIRS(LEAVING)};

START_TEST(a_new_phase_borrows_memory_and_changes_no_bit) {
    double plain[8], disturbed[8];
    hy_trainer *t = begin(places[_i]);
    next_losses(t, 8, plain);
    hy_trainer_destroy(t);
    t = begin(places[_i]);
    for (int i = 0; i < 8; i++) {
        void *lent;
        uint64_t bytes, peak, planned;
        must(inside_enter(t, &calibrate, &lent, &bytes));
        ck_assert_ptr_nonnull(lent);
        ck_assert_uint_gt(bytes, 0);
        memset(lent, 0xff, bytes); /* whoever reads it gets NaN */
        inside_phase_bytes(t, HY_PHASE_COUNT, &peak, &planned);
        ck_assert_uint_eq(peak, planned);
        must(inside_enter(t, NULL, NULL, NULL));
        next_losses(t, 1, &disturbed[i]);
    }
    hy_trainer_destroy(t);
    ck_assert_mem_eq(plain, disturbed, sizeof plain);
}
END_TEST

START_TEST(a_phase_that_borrows_nothing_uses_what_is_planned_and_leaves_the_rest) {
    uint64_t peak, planned, borrowed;
    double plain[2], disturbed[2];
    hy_trainer *t = begin(places[_i]);
    next_losses(t, 2, plain);
    hy_trainer_destroy(t);
    t = begin(places[_i]);
    next_losses(t, 1, disturbed);
    must(inside_enter(t, &measure, NULL, NULL));
    inside_phase_bytes(t, HY_PHASE_COUNT, &peak, &planned);
    ck_assert_uint_eq(peak, planned);
    must(inside_enter(t, &calibrate, NULL, NULL));
    inside_phase_bytes(t, HY_PHASE_COUNT, &peak, &borrowed);
    bool has_left = _i == 2; /* calibrate moves m and v to the host, measure does not */
    ck_assert(has_left ? planned > borrowed : planned < borrowed);
    must(inside_enter(t, NULL, NULL, NULL));
    next_losses(t, 1, &disturbed[1]);
    hy_trainer_destroy(t);
    ck_assert_mem_eq(plain, disturbed, sizeof plain);
}
END_TEST

START_TEST(evaluation_has_four_times_the_batch_at_the_same_peak) {
    hy_trainer *t = begin(places[_i]);
    hy_plan_facts facts = facts_of(t);
    hy_eval_info eval;
    hy_step_info info;
    must(hy_trainer_step(t, &info));
    ck_assert(facts.eval_borrows);
    ck_assert_int_ge(facts.eval_batch_size, 4 * facts.batch_size);
    must(hy_trainer_evaluate(t, &eval));
    hy_summary summary;
    hy_trainer_summary(t, &summary);
    const hy_phase_summary *evaluate = &summary.phases[HY_EVALUATE];
    ck_assert_int_eq(evaluate->steps, 1);
    ck_assert_double_gt(evaluate->seconds, 0);
    ck_assert_uint_eq(evaluate->vram_peak_bytes, evaluate->vram_planned_bytes);
    ck_assert_uint_le(evaluate->vram_peak_bytes, summary.phases[HY_WARMUP].vram_peak_bytes);
    ck_assert_int_eq(evaluate->memory[HY_OPTIM].place,
                     _i == 1 ? HY_DEVICE : HY_PINNED); /* streamed, resident, away */
    hy_trainer_destroy(t);
}
END_TEST

START_TEST(evaluation_between_steps_changes_no_bit) {
    double plain[8], disturbed[8];
    hy_trainer *t = begin(places[_i]);
    next_losses(t, 8, plain);
    hy_trainer_destroy(t);
    t = begin(places[_i]);
    for (int i = 0; i < 8; i++) {
        hy_eval_info eval;
        must(hy_trainer_evaluate(t, &eval));
        next_losses(t, 1, &disturbed[i]);
    }
    hy_trainer_destroy(t);
    ck_assert_mem_eq(plain, disturbed, sizeof plain);
}
END_TEST

START_TEST(every_phase_has_its_row) {
    for (int i = 0; i < HY_PHASE_COUNT; i++) {
        ck_assert_int_eq(hy_phase_table[i].phase, i);
        ck_assert(hy_phase_table[i].passes & HY_RUNS_FORWARD);
    }
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("phases: rows");
    TCase *cases = tcase_create("rows");
    tcase_set_timeout(cases, 120);
    tcase_add_test(cases, every_phase_has_its_row);
    tcase_add_loop_test(cases, a_new_phase_borrows_memory_and_changes_no_bit, 0, 3);
    tcase_add_loop_test(
        cases, a_phase_that_borrows_nothing_uses_what_is_planned_and_leaves_the_rest, 0, 3);
    tcase_add_loop_test(cases, evaluation_has_four_times_the_batch_at_the_same_peak, 0, 3);
    tcase_add_loop_test(cases, evaluation_between_steps_changes_no_bit, 0, 3);
    suite_add_tcase(suite, cases);
    return suite;
}

HY_TEST_MAIN(make_suite)
