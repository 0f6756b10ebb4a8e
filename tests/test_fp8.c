/* test_fp8.c: training with matmuls in fp8, on the CPU: what is in fp8, what it makes of numbers, and what is
 * refused. That no choice of memory changes a bit of it: test_engine_exact.c; the codes: test_kernels_fp8.c. */
#include "small_run.h"

#include <math.h>

#include "base/text.h"
#include "trainer/trainer.h"

#define FP8 "precision", "fp8", "predictor", "none"

static hy_status try_plan(const char *const *pairs) {
    hy_config *config = small_run(SMALL_RUN, "none", pairs);
    hy_trainer *t;
    hy_status status = hy_trainer_plan(config, NULL, &t);
    if (status == HY_OK) hy_trainer_destroy(t);
    hy_config_destroy(config);
    return status;
}

/* ---- what is asked for --------------------------------------------------------------------------- */

START_TEST(no_phase_is_coarser_than_full_and_predict_is_never_in_fp8) {
    static const struct {
        const char *key, *message;
    } wrong[] = {{"precision_predict", "Predict only evaluates"},
                 {"precision_warmup", "precision_warmup is fp8 and precision_full is not"},
                 {"precision_correct", "precision_correct is fp8 and precision_full is not"}};
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
              "(sm_86) has none: it begins with sm_89");
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
        is_told |= strstr(facts.reasons[i], "fp8 in 6 of 12 matmuls of a block; in bf16") &&
                   strstr(facts.reasons[i], "mlp up, mlp down");
    }
    ck_assert(is_told);
    hy_trainer_destroy(t);
    /* None at all: a run in bf16. */
    t = plan_words(SMALL_RUN, PAIRS(FP8, "card", "rtx5080", "width", "40", "mlp_width", "40"));
    hy_trainer_summary(t, &s);
    ck_assert_int_eq(s.fp8_matmuls, 0);
    ck_assert(!hy_has_row(&t->engine, HY_ROW_FP8));
    facts = facts_of(t);
    ck_assert_ptr_nonnull(strstr(facts.reasons[0], "widths are no multiples of 16"));
    hy_trainer_destroy(t);
    /* A micro-batch may be cut down to a sequence. */
    t = plan_words(SMALL_RUN, PAIRS(FP8, "card", "rtx5080", "seq_len", "24", "batch_size", "2"));
    facts = facts_of(t);
    ck_assert_ptr_nonnull(strstr(facts.reasons[0], "seq_len is no multiple of 16"));
    hy_trainer_destroy(t);
}
END_TEST

/* ---- what it computes ---------------------------------------------------------------------------- */

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

/* From that share of the run on steps are those of a run in bf16: the same weights give the same loss. */
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

START_TEST(every_layer_says_what_fp8_made_of_its_numbers) {
    double seen[2];
    hy_step_info info;
    hy_trainer *t = small_trainer(SMALL_RUN, "none", NULL, PAIRS(FP8, "grad_accum_steps", "3"));
    must(hy_trainer_step(t, &info));
    for (int i = 0; i < 4; i++) {
        ck_assert(hy_engine_seen(&t->engine, i / 2, i % 2, seen));
        ck_assert(seen[0] > 0 && seen[0] <= info.fp8_largest);
        ck_assert(seen[1] >= 0 && seen[1] < 0.05 && seen[1] <= info.fp8_zeros);
    }
    /* Of a token: what is counted is what went in, once. */
    const double *counted = t->engine.work.seen + HY_SEEN; /* of the first layer */
    double in = 32 + 32 + 32 + 48, back = (32 + 2 * 32) + 32 + 96 + 32;
    ck_assert_double_eq(counted[2], 3 * 4 * 32 * in);
    ck_assert_double_eq(counted[HY_SEEN_GRADIENTS + 2], 3 * 4 * 32 * back);
    hy_trainer_destroy(t);
}
END_TEST

static void poison(hy_trainer *t, float value) {
    hy_engine *e = &t->engine;
    hy_store *master = hy_store_of(e, HY_ROW_MASTER);
    int32_t item = hy_store_item_of(master, hy_params_find(&e->model->params, 2, HY_P_NORM2));
    must(hy_update_finish(e));
    must(e->backend->stream_sync(e->compute));
    ((float *)hy_store_device(master, item))[5] = value;
    hy_row_changed(e, HY_ROW_MASTER);
}

/* An infinity or a NaN anywhere must come through the codes: the step is skipped as it is in bf16. */
START_TEST(what_is_not_finite_skips_the_step_as_in_bf16) {
    static const float values[] = {INFINITY, -INFINITY, NAN};
    for (int i = 0; i < 6; i++) {
        const char *precision = i % 2 ? "fp8" : "bf16";
        hy_step_info info;
        hy_trainer *t = small_trainer(SMALL_RUN, "none", NULL,
                                      PAIRS("precision", precision, "predictor", "none"));
        must(hy_trainer_step(t, &info));
        ck_assert(!info.was_skipped);
        poison(t, values[i / 2]);
        must(hy_trainer_step(t, &info));
        ck_assert_msg(info.was_skipped, "%s with %g", precision, (double)values[i / 2]);
        poison(t, 1); /* the codes are made anew of what is there then */
        must(hy_trainer_step(t, &info));
        ck_assert(!info.was_skipped && isfinite(info.loss));
        hy_trainer_destroy(t);
    }
}
END_TEST

/* One number far above the others takes their bits, and the run goes on. */
START_TEST(an_outlier_is_reported_and_the_run_goes_on) {
    hy_step_info before, after;
    hy_trainer *t = small_trainer(SMALL_RUN, "none", NULL, PAIRS(FP8));
    must(hy_trainer_step(t, &before));
    poison(t, 10000);
    must(hy_trainer_step(t, &after));
    ck_assert(!after.was_skipped);
    ck_assert_double_gt(after.fp8_largest, 100 * before.fp8_largest);
    ck_assert_int_eq(after.fp8_largest_layer, 1);
    ck_assert_double_gt(after.fp8_zeros, before.fp8_zeros);
    hy_trainer_destroy(t);
}
END_TEST

/* ---- frozen matrices ------------------------------------------------------------------------------ */

static int64_t fp8_matmuls_of(hy_trainer *t, int64_t *of) {
    hy_summary s;
    hy_trainer_summary(t, &s);
    *of = s.block_matmuls;
    return s.fp8_matmuls;
}

static bool is_told(hy_trainer *t, const char *words) {
    hy_plan_facts facts = facts_of(t);
    for (int i = 0; i < facts.reason_count; i++) {
        if (strstr(facts.reasons[i], words)) return true;
    }
    return false;
}

/* A base in fp8 is multiplied as it is stored, forward and back; one in another type never. */
START_TEST(adapters_stand_beside_a_base_in_fp8) {
    static const struct {
        const char *dtype, *said;
        int64_t expected;
    } cases[] = {{"fp8", "fp8 in 8 of 8 matmuls of a block", 2 * 8},
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
    hy_trainer *t = plan_words(SMALL_RUN, PAIRS(FP8, "lora", "true")); /* nobody said it */
    ck_assert_int_eq(t->engine.model->params.frozen_codes, HY_E4M3);
    hy_trainer_destroy(t);
    t = plan_words(SMALL_RUN, PAIRS("precision", "bf16", "lora", "true"));
    ck_assert_int_ne(t->engine.model->params.frozen_codes, HY_E4M3);
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

/* Matmuls in fp8 differ from those in bf16 by the same codes of the base by the rounding of inputs alone. */
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

/* ---- what is kept -------------------------------------------------------------------------------- */

START_TEST(a_resumed_run_keeps_which_matmuls_are_in_fp8) {
    char folder[256];
    double straight[3], resumed[3];
    temp_folder(folder);
    hy_config *config = small_run(SMALL_RUN, folder, PAIRS(FP8));
    hy_trainer *t;
    must(hy_trainer_create(config, NULL, &t));
    hy_config_destroy(config);
    /* As a card would have chosen: mlp down stays in bf16. */
    ck_assert(t->engine.request.fixed.has_fp8);
    t->engine.request.fixed.fp8 = (hy_fp8_use){.weights = 7, .grads = 3, .gradient = HY_E4M3};
    must(hy_trainer_save(t));
    hy_trainer_destroy(t);
    for (int i = 0; i < 2; i++) {
        t = small_trainer(SMALL_RUN "resume auto ", folder, NULL, PAIRS(FP8));
        ck_assert_uint_eq(t->engine.plan.types.fp8.weights, 7);
        ck_assert_uint_eq(t->engine.plan.types.fp8.grads, 3);
        next_losses(t, 3, i ? resumed : straight);
        hy_trainer_destroy(t);
    }
    ck_assert_mem_eq(straight, resumed, sizeof straight);
    remove_folder(folder);
}
END_TEST

/* The row of codes is what the table says it is. */
START_TEST(the_plan_counts_the_codes_of_the_blocks) {
    hy_trainer *t = small_trainer(SMALL_RUN, "none", NULL, PAIRS(FP8));
    const hy_row *row = &t->engine.rows.row[HY_ROW_FP8];
    ck_assert(row->is_there && row->cls == HY_QUANTS && row->file == NULL);
    for (int32_t i = 0; i < t->engine.model->params.count; i++) {
        const hy_param *param = &t->engine.model->params.list[i];
        int32_t item = hy_store_item_of(&row->store, i);
        bool is_block = param->unit > 0 && param->unit < 3;
        ck_assert_int_eq(item >= 0, is_block);
        if (is_block) {
            ck_assert_int_eq(row->layout.items[item].dtype,
                             hy_linear_bit(param->kind) ? HY_E4M3 : HY_BF16);
        }
    }
    ck_assert_uint_eq(t->engine.ledger.live[HY_QUANTS][HY_DEVICE], row->layout.bytes);
    hy_trainer_destroy(t);
}
END_TEST

static Suite *fp8_suite(void) {
    Suite *suite = suite_create("fp8");
    TCase *asked = tcase_create("asked"), *computed = tcase_create("computed"),
          *frozen = tcase_create("frozen"), *kept = tcase_create("kept");
    tcase_set_timeout(frozen, 120);
    tcase_set_timeout(asked, 60);
    tcase_set_timeout(computed, 120);
    tcase_set_timeout(kept, 60);
    tcase_add_test(asked, no_phase_is_coarser_than_full_and_predict_is_never_in_fp8);
    tcase_add_test(asked, a_card_without_fp8_is_named);
    tcase_add_test(asked, matrices_that_a_card_cannot_multiply_in_fp8_stay_in_bf16);
    tcase_add_test(computed, losses_in_fp8_are_near_those_in_bf16_and_not_the_same);
    tcase_add_test(computed, the_last_part_of_a_run_may_be_in_bf16);
    tcase_add_test(computed, every_layer_says_what_fp8_made_of_its_numbers);
    tcase_add_test(computed, what_is_not_finite_skips_the_step_as_in_bf16);
    tcase_add_test(computed, an_outlier_is_reported_and_the_run_goes_on);
    tcase_add_test(frozen, adapters_stand_beside_a_base_in_fp8);
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
