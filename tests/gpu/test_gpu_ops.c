/* test_gpu_ops.c: ops over rows on CUDA against the double-precision reference: sums, norms,
 * activations, embedding, loss, casts. Matmuls, heads and the optimizer have files of their own.
 *
 * Shapes are odd on purpose: one row, one column, rows that no pack of 16 bytes divides, rows
 * longer than a block holds at once; then shapes drawn by chance. */
#include "gpu_rig.h"

#include "row_calls.h"

enum { DRAWN = 4 };

/* Shape number i: of the list, then drawn: rows to 300, columns to 2000. */
static void shape_at(const int64_t (*list)[2], int count, int i, dice *d, int64_t *N, int64_t *C) {
    if (i < count) {
        *N = list[i][0];
        *C = list[i][1];
        return;
    }
    *N = roll(d, 1, 300);
    *C = roll(d, 1, 2000);
}

static uint64_t seed_of(int i, int mixture, int variant) {
    return (uint64_t)(10000 * i + 100 * mixture + variant);
}

/* ---- sums ------------------------------------------------------------------------------------ */

static const int64_t sum_shapes[][2] = {{1, 1},     {1, 1300},  {700, 3},   {1003, 515},
                                        {4100, 64}, {64, 4096}, {3001, 768}};
enum { SUM_SHAPES = sizeof sum_shapes / sizeof sum_shapes[0] };

EACH_TYPE(bias_gradient_sums_the_columns, GPU_MIXTURES) {
    for (int i = 0; i < SUM_SHAPES + DRAWN; i++) {
        for (int accumulate = 0; accumulate < 2; accumulate++) {
            trial t = trial_begin(HY_OP_BIAS_GRAD, seed_of(i, mixture, accumulate));
            int64_t N, C;
            shape_at(sum_shapes, SUM_SHAPES, i, &t.dice, &N, &C);
            if (gpu_leaves_out(N * C)) continue;
            t.call.attr.accumulate = accumulate;
            trial_normal(&t, HY_BIAS_GRAD_DY, pick_dtype(mixture, &t.dice), N, C, 0.5, 1);
            trial_normal(&t, HY_BIAS_GRAD_DBIAS, pick_grad_dtype(mixture, &t.dice), 0, C, 0, 10);
            if (gpu_run_both(&t, mixture)) gpu_check(&t, HY_BIAS_GRAD_DBIAS, 1);
            trial_end(&t);
        }
    }
}

/* Sums are taken in fp32 or wider and in pieces; a square and a few sums are rounded by 2^-24 each,
 * and the roundings of many pieces average out. */
EACH_TYPE(sums_and_square_sums_are_close_to_double_precision, 4) {
    static const int64_t counts[] = {1, 31, 1023, 65536, 200001, 3000017};
    for (int i = 0; i < 12; i++) {
        int64_t count = counts[i / 2];
        if (gpu_leaves_out(count)) continue;
        trial t = trial_begin(mixture < 3 ? HY_OP_SQ_NORM : HY_OP_SUM, seed_of(i, mixture, 0));
        t.call.attr.accumulate = i % 2;
        trial_normal(&t, HY_REDUCE_X, mixture < 3 ? pick_dtype(mixture, &t.dice) : HY_F32, 0, count,
                     1, 1);
        trial_normal(&t, HY_REDUCE_OUT, HY_F64, 0, 1, 1000, 1);
        ck_assert(gpu_run_both(&t, 0));
        double found = *(double *)t.call.t[HY_REDUCE_OUT].data;
        double expected = *(double *)t.exact.t[HY_REDUCE_OUT].data;
        double share = fabs(found - expected) / fabs(expected);
        ck_assert_msg(share <= 2e-7, "%s of %lld numbers is off by %.2e", hy_op_name(t.call.kind),
                      (long long)count, share);
        trial_end(&t);
    }
}

START_TEST(a_square_sum_keeps_what_is_not_finite) {
    static const float wrong[] = {NAN, INFINITY};
    for (int k = 0; k < 2; k++) {
        trial t = trial_begin(HY_OP_SQ_NORM, 1);
        trial_normal(&t, HY_REDUCE_X, HY_F32, 0, 5000, 0, 1);
        trial_tensor(&t, HY_REDUCE_OUT, HY_F64, 0, 1);
        ((float *)t.call.t[HY_REDUCE_X].data)[4321] = wrong[k];
        gpu_must_run(&t.call);
        ck_assert(!isfinite(*(double *)t.call.t[HY_REDUCE_OUT].data));
        trial_end(&t);
    }
}
END_TEST

/* ---- norms ----------------------------------------------------------------------------------- */

static const int64_t norm_shapes[][2] = {{1, 1},   {1, 4099}, {37, 768},  {600, 17}, {9, 1001},
                                         {130, 8}, {3, 8192}, {70, 1536}, {2, 20000}};
enum { NORM_SHAPES = sizeof norm_shapes / sizeof norm_shapes[0] };

/* variant: bit 0 rmsnorm, bit 1 a bias, or a residual in backward, bit 2 gradients of weights */
static norm_case norm_at(int shape, int mixture, int variant) {
    norm_case n = {.seed = seed_of(shape, mixture, variant & 1),
                   .is_rms = variant & 1,
                   .has_bias = variant & 2,
                   .has_residual = variant & 2,
                   .wants_dw = variant & 4,
                   .wants_db = (variant & 4) && !(variant & 1)};
    dice d = {.seed = n.seed};
    shape_at(norm_shapes, NORM_SHAPES, shape, &d, &n.N, &n.C);
    return n;
}

EACH_TYPE(norm_agrees_with_the_reference, 5) {
    for (int shape = 0; shape < NORM_SHAPES + DRAWN; shape++) {
        for (int variant = 0; variant < 4; variant++) {
            norm_case n = norm_at(shape, mixture, variant);
            trial t = norm_trial(&n, mixture);
            int64_t C = hy_tensor_width(&t.call.t[HY_NORM_X]);
            /* the layernorm of one number is 0, of two is +1 and -1 whatever their distance */
            bool is_flat = C < 3 && !(variant & 1);
            if (!is_flat && !gpu_leaves_out(hy_tensor_count(&t.call.t[HY_NORM_X])) &&
                gpu_run_both(&t, mixture)) {
                gpu_check(&t, HY_NORM_Y, 1);
                if (!(variant & 1)) gpu_check(&t, HY_NORM_MEAN, 1);
                gpu_check(&t, HY_NORM_RSTD, 1);
            }
            trial_end(&t);
        }
    }
}

START_TEST(layernorm_of_equal_numbers_is_the_bias) {
    norm_case n = norm_at(2, 0, 2);
    trial t = norm_trial(&n, 0);
    for (int64_t i = 0; i < hy_tensor_count(&t.call.t[HY_NORM_X]); i++)
        trial_put(&t, HY_NORM_X, i, 1000.5);
    gpu_must_run(&t.call);
    for (int64_t i = 0; i < hy_tensor_count(&t.call.t[HY_NORM_Y]); i++) {
        double expected = real_at(&t.call.t[HY_NORM_BIAS], i % 768);
        if (fabs(real_at(&t.call.t[HY_NORM_Y], i) - expected) > 0.05)
            ck_abort_msg("%lld", (long long)i);
    }
    trial_end(&t);
}
END_TEST

EACH_TYPE(norm_backward_agrees_with_the_reference, GPU_MIXTURES) {
    for (int shape = 1; shape < NORM_SHAPES + DRAWN; shape++) {
        for (int variant = 0; variant < 8; variant++) {
            norm_case n = norm_at(shape, mixture, variant);
            trial t = norm_bwd_trial(&n, mixture);
            t.call.attr.accumulate = variant & 2;
            bool is_flat = hy_tensor_width(&t.call.t[HY_NORM_BWD_DY]) < 3;
            if (!is_flat && !gpu_leaves_out(hy_tensor_count(&t.call.t[HY_NORM_BWD_DY])) &&
                gpu_run_both(&t, mixture)) {
                gpu_check(&t, HY_NORM_BWD_DX, 2);
                if (variant & 4) gpu_check(&t, HY_NORM_BWD_DWEIGHT, 1);
                if (t.call.t[HY_NORM_BWD_DBIAS].data) gpu_check(&t, HY_NORM_BWD_DBIAS, 1);
            }
            trial_end(&t);
        }
    }
}

/* Bit 1 of a variant also adds a residual in the forward pass. */
EACH_TYPE(norms_with_an_offset_agree_with_the_reference, GPU_MIXTURES) {
    for (int i = 0; i < 4 * (NORM_SHAPES + DRAWN - 1); i++) {
        norm_case n = norm_at(1 + i / 4, mixture, 4 + i % 4);
        n.offset = i % 2 ? 1 : 0.5f;
        n.adds_residual = i & 2;
        if (n.C < 3 || gpu_leaves_out(n.N * n.C)) continue;
        trial f = norm_trial(&n, mixture), b = norm_bwd_trial(&n, mixture);
        if (gpu_run_both(&f, mixture)) gpu_check(&f, HY_NORM_Y, 1);
        if (gpu_run_both(&b, mixture)) {
            gpu_check(&b, HY_NORM_BWD_DX, 2);
            gpu_check(&b, HY_NORM_BWD_DWEIGHT, 1);
        }
        trial_end(&f);
        trial_end(&b);
    }
}

EACH_TYPE(a_norm_may_be_added_to_the_residual_in_place, PURE_TYPES) {
    for (int i = 0; i < 4 * NORM_SHAPES; i++) {
        norm_case n = norm_at(i / 4, mixture, i % 4);
        n.adds_residual = true;
        if (!gpu_leaves_out(n.N * n.C)) check_norm_onto_residual(&n, mixture, gpu_must_run);
    }
}

EACH_TYPE(norm_backward_may_write_over_the_residual, PURE_TYPES) {
    for (int shape = 2; shape < 5; shape++) {
        norm_case n = norm_at(shape, mixture, shape % 2 ? 7 : 6);
        check_norm_over_residual(&n, mixture, gpu_must_run);
    }
}

/* ---- activations ----------------------------------------------------------------------------- */

static const int64_t activation_shapes[][2] = {{1, 1}, {3, 1025}, {17, 3072}, {1, 70001}, {257, 8}};
enum { ACTIVATION_SHAPES = sizeof activation_shapes / sizeof activation_shapes[0] };

EACH_TYPE(gelu_and_its_backward_agree_with_the_reference, 5) {
    for (int i = 0; i < 2 * (ACTIVATION_SHAPES + DRAWN); i++) {
        bool is_backward = i % 2;
        trial t = trial_begin(is_backward ? HY_OP_GELU_BWD : HY_OP_GELU, seed_of(i, mixture, 0));
        int64_t N, F;
        shape_at(activation_shapes, ACTIVATION_SHAPES, i / 2, &t.dice, &N, &F);
        if (gpu_leaves_out(N * F)) continue;
        for (int k = 0; k < (is_backward ? 2 : 1); k++) {
            trial_normal(&t, k, pick_dtype(mixture, &t.dice), N, F, 0, 3);
        }
        trial_tensor(&t, is_backward ? 2 : 1, pick_dtype(mixture, &t.dice), N, F);
        if (gpu_run_both(&t, mixture)) gpu_check(&t, is_backward ? 2 : 1, 1);
        trial_end(&t);
    }
}

START_TEST(gelu_is_quiet_at_the_ends) { check_gelu_ends(gpu_must_run); }
END_TEST

EACH_TYPE(swiglu_and_its_backward_agree_with_the_reference, 5) {
    for (int i = 0; i < 2 * (ACTIVATION_SHAPES + DRAWN); i++) {
        trial t = trial_begin(i % 2 ? HY_OP_SWIGLU_BWD : HY_OP_SWIGLU, seed_of(i, mixture, 0));
        int64_t N, F;
        shape_at(activation_shapes, ACTIVATION_SHAPES, i / 2, &t.dice, &N, &F);
        if (gpu_leaves_out(N * F)) continue;
        if (i % 2) {
            trial_normal(&t, HY_SWIGLU_BWD_DY, pick_dtype(mixture, &t.dice), N, F, 0, 1);
            trial_normal(&t, HY_SWIGLU_BWD_GATE_UP, pick_dtype(mixture, &t.dice), N, 2 * F, 0, 3);
            trial_tensor(&t, HY_SWIGLU_BWD_DGATE_UP, pick_dtype(mixture, &t.dice), N, 2 * F);
        } else {
            trial_normal(&t, HY_SWIGLU_GATE_UP, pick_dtype(mixture, &t.dice), N, 2 * F, 0, 3);
            trial_tensor(&t, HY_SWIGLU_Y, pick_dtype(mixture, &t.dice), N, F);
        }
        if (gpu_run_both(&t, mixture))
            gpu_check(&t, i % 2 ? HY_SWIGLU_BWD_DGATE_UP : HY_SWIGLU_Y, 1);
        trial_end(&t);
    }
}

EACH_TYPE(activations_of_each_kind_agree_with_the_reference, 5) {
    static const hy_op_kind ops[] = {HY_OP_GELU, HY_OP_GELU_BWD, HY_OP_SWIGLU, HY_OP_SWIGLU_BWD};
    static const int64_t shapes[][2] = {{1, 1}, {3, 1025}, {9, 704}};
    for (int i = 0; i < 4 * 3 * HY_ACT_COUNT; i++) {
        const int64_t *shape = shapes[i / 4 % 3];
        int out;
        trial t = activation_trial(ops[i % 4], (hy_act)(i / 12), shape[0], shape[1], mixture, &out);
        if (gpu_run_both(&t, mixture)) gpu_check(&t, out, 1);
        trial_end(&t);
    }
}

EACH_TYPE(activations_backward_work_in_place, PURE_TYPES) {
    static const int64_t widths[] = {1030, 1024, 77};
    for (int i = 0; i < 6; i++) {
        check_activation_in_place(i % 2, 9, widths[i / 2], mixture, gpu_must_run);
    }
}

EACH_TYPE(swiglu_backward_gives_swiglu_again, PURE_TYPES) {
    static const int64_t widths[] = {1030, 1024, 77};
    for (int i = 0; i < 3 * HY_ACT_COUNT; i++) {
        check_swiglu_again((hy_act)(i / 3), 9, widths[i % 3], mixture, gpu_must_run);
    }
}

/* ---- embedding ------------------------------------------------------------------------------- */

EACH_TYPE(embedding_agrees_with_the_reference, 5) {
    static const int64_t widths[] = {1, 8, 33, 768, 1027};
    for (int i = 0; i < 15; i++) {
        bool has_positions = i % 3 > 0, has_doc_starts = i % 3 == 2;
        trial t = trial_begin(HY_OP_EMBED, seed_of(i, mixture, 0));
        int64_t B = 3, T = i < 8 ? 11 : 129, V = 50, C = widths[i / 3];
        t.call.attr.embed.scale = i % 2 ? 11.25f : 0;
        t.call.attr.embed.seq = (int32_t)T;
        trial_ints(&t, HY_EMBED_TOKENS, B * T, 0, V - 1);
        trial_normal(&t, HY_EMBED_WTE, pick_dtype(mixture, &t.dice), V, C, 0, 1);
        if (has_positions)
            trial_normal(&t, HY_EMBED_WPE, pick_dtype(mixture, &t.dice), T + 2, C, 0, 1);
        trial_tensor(&t, HY_EMBED_X, pick_dtype(mixture, &t.dice), B * T, C);
        if (has_doc_starts) embed_doc_starts(&t, B, T);
        if (gpu_run_both(&t, mixture)) gpu_check(&t, HY_EMBED_X, 1);
        trial_end(&t);
    }
}

EACH_TYPE(embedding_backward_sums_tokens_that_repeat, GPU_MIXTURES) {
    static const int64_t shapes[][4] = {/* B T V C */
                                        {4, 50, 30, 131},  {4, 50, 70000, 3}, {1, 1, 1, 1},
                                        {2, 700, 257, 64}, {8, 129, 13, 768}, {3, 33, 5000, 40}};
    for (int i = 0; i < 6; i++) {
        for (int variant = 0; variant < EMBED_VARIANTS; variant++) {
            const int64_t *s = shapes[i];
            embed_scale = variant % 3 == 1 ? 11.25f : 0;
            if (gpu_leaves_out(s[0] * s[1] * s[3] + s[2] * s[3])) continue;
            trial t = embed_bwd_trial(variant, mixture, s[0], s[1], s[2], s[3]);
            if (gpu_run_both(&t, mixture)) {
                if (embed_wants_tokens(variant)) gpu_check(&t, HY_EMBED_BWD_DWTE, 1);
                if (variant & 4) gpu_check(&t, HY_EMBED_BWD_DWPE, 1);
            }
            trial_end(&t);
        }
    }
    embed_scale = 0;
}

/* ---- loss ------------------------------------------------------------------------------------ */

/* exp of a logit near 40 in fp32 is exact to 40 roundings: 40 * 2^-24, twice the usual bound. */
EACH_TYPE(cross_entropy_agrees_with_the_reference, PURE_TYPES) {
    static const int64_t shapes[][3] = {{1, 1, 1},       {5, 50257, 50304}, {70, 257, 257},
                                        {3, 4096, 4100}, {300, 259, 264},   {2, 151936, 151936},
                                        {9, 31, 33}};
    for (int i = 0; i < 14; i++) {
        const int64_t *s = shapes[i / 2];
        if (gpu_leaves_out(s[0] * s[2])) continue;
        trial t = loss_trial(s[0], s[1], s[2], i % 2, mixture);
        ck_assert(gpu_run_both(&t, mixture));
        gpu_check(&t, HY_CROSS_ENTROPY_LOGITS,
                  i % 2 ? 2 : 0); /* without a gradient the logits stay as they are */
        if (s[1] > 1) gpu_check(&t, HY_CROSS_ENTROPY_LOSSES, 2);
        trial_end(&t);
    }
}

EACH_TYPE(cross_entropy_of_scaled_and_capped_logits_agrees_with_the_reference, PURE_TYPES) {
    static const int64_t shapes[][3] = {{1, 1, 1},         {5, 50257, 50304},   {70, 257, 257},
                                        {300, 6001, 6008}, {2, 262144, 262144}, {9, 31, 33}};
    for (int i = 0; i < 12 * LOGIT_VARIANTS; i++) {
        const int64_t *s = shapes[i / 2 % 6];
        if (gpu_leaves_out(s[0] * s[2])) continue;
        set_logit_options(i / 12);
        trial t = loss_trial(s[0], s[1], s[2], i % 2, mixture);
        t.call.attr.loss.scale = 256; /* flat probabilities are too small for fp16 */
        ck_assert(gpu_run_both(&t, mixture));
        gpu_check(&t, HY_CROSS_ENTROPY_LOGITS, i % 2 ? 3 : 0);
        if (s[1] > 1) gpu_check(&t, HY_CROSS_ENTROPY_LOSSES, 2);
        trial_end(&t);
    }
    logit_factor = logit_softcap = 0;
}

START_TEST(losses_and_targets_of_a_chunk_begin_anywhere) {
    gpu.shifted = 1u << 1 | 1u << 2;
    for (int wants_grad = 0; wants_grad < 2; wants_grad++) {
        trial t = loss_trial(11, 500, 512, wants_grad, 1);
        ck_assert(gpu_run_both(&t, 0));
        gpu_check(&t, HY_CROSS_ENTROPY_LOSSES, 2);
        trial_end(&t);
    }
    gpu.shifted = 0;
}
END_TEST

START_TEST(cross_entropy_of_huge_and_missing_logits_is_finite) { check_huge_logits(gpu_must_run); }
END_TEST

START_TEST(nan_logits_give_a_nan_loss) { check_nan_logits(gpu_must_run); }
END_TEST

/* Nobody waits for a card to look at its tokens: what has no row becomes NaN, which the loss shows
 * and the gradient's norm refuses; nothing outside of the table is read or written. */
START_TEST(tokens_and_targets_outside_the_vocabulary_become_nan) {
    static const int32_t wrong[] = {-1, 10, INT32_MAX, INT32_MIN};
    if (!gpu.backend->facts.is_gpu) return; /* the CPU refuses them */
    for (int k = 0; k < 4; k++) {
        trial t = trial_begin(HY_OP_EMBED, 1), back = embed_bwd_trial(0, 0, 1, 4, 10, 8);
        t.call.attr.embed.seq = 4;
        trial_ints(&t, HY_EMBED_TOKENS, 4, 0, 9);
        trial_normal(&t, HY_EMBED_WTE, HY_F32, 10, 8, 0, 1);
        trial_tensor(&t, HY_EMBED_X, HY_F32, 4, 8);
        ((int32_t *)t.call.t[HY_EMBED_TOKENS].data)[2] =
            ((int32_t *)back.call.t[HY_EMBED_BWD_TOKENS].data)[2] = wrong[k];
        gpu_must_run(&t.call);
        for (int i = 0; i < 32; i++) {
            ck_assert_int_eq(isnan(((float *)t.call.t[HY_EMBED_X].data)[i]) != 0, i / 8 == 2);
        }
        gpu_must_run(&back.call);
        for (int i = 0; i < 80; i++)
            ck_assert(isfinite(((float *)back.call.t[HY_EMBED_BWD_DWTE].data)[i]));
        trial_end(&t);
        trial_end(&back);
    }
    for (int k = 1; k < 3; k++) { /* below 0 means that a target does not count */
        trial t = loss_trial(3, 10, 12, true, 0);
        ((int32_t *)t.call.t[HY_EMBED_WTE].data)[1] = 3;
        ((int32_t *)t.call.t[HY_EMBED_WTE].data)[2] = wrong[k];
        gpu_must_run(&t.call);
        for (int i = 0; i < 3; i++) {
            ck_assert_int_eq(isnan(((float *)t.call.t[HY_EMBED_WPE].data)[i]) != 0, i == 2);
        }
        trial_end(&t);
    }
}
END_TEST

/* ---- casts and fills ------------------------------------------------------------------------- */

START_TEST(casts_round_once_to_nearest) {
    static const int64_t counts[] = {1, 4096, 5001, 70013};
    for (int i = 0; i < 4; i++) {
        if (!gpu_leaves_out(counts[i])) check_casts(counts[i], gpu_must_run);
    }
}
END_TEST

START_TEST(fill_writes_every_element_of_every_type) {
    static const int64_t counts[] = {1, 77, 65540};
    for (int i = 0; i < 3; i++) check_fill(counts[i], gpu_must_run);
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("cuda: ops over rows");
    TCase *all = tcase_create("rows");
    tcase_add_test(all, bias_gradient_sums_the_columns);
    tcase_add_test(all, sums_and_square_sums_are_close_to_double_precision);
    tcase_add_test(all, a_square_sum_keeps_what_is_not_finite);
    tcase_add_test(all, norm_agrees_with_the_reference);
    tcase_add_test(all, layernorm_of_equal_numbers_is_the_bias);
    tcase_add_test(all, norm_backward_agrees_with_the_reference);
    tcase_add_test(all, norms_with_an_offset_agree_with_the_reference);
    tcase_add_test(all, a_norm_may_be_added_to_the_residual_in_place);
    tcase_add_test(all, norm_backward_may_write_over_the_residual);
    tcase_add_test(all, gelu_and_its_backward_agree_with_the_reference);
    tcase_add_test(all, gelu_is_quiet_at_the_ends);
    tcase_add_test(all, swiglu_and_its_backward_agree_with_the_reference);
    tcase_add_test(all, activations_of_each_kind_agree_with_the_reference);
    tcase_add_test(all, activations_backward_work_in_place);
    tcase_add_test(all, swiglu_backward_gives_swiglu_again);
    tcase_add_test(all, embedding_agrees_with_the_reference);
    tcase_add_test(all, embedding_backward_sums_tokens_that_repeat);
    tcase_add_test(all, cross_entropy_agrees_with_the_reference);
    tcase_add_test(all, cross_entropy_of_scaled_and_capped_logits_agrees_with_the_reference);
    tcase_add_test(all, losses_and_targets_of_a_chunk_begin_anywhere);
    tcase_add_test(all, cross_entropy_of_huge_and_missing_logits_is_finite);
    tcase_add_test(all, nan_logits_give_a_nan_loss);
    tcase_add_test(all, tokens_and_targets_outside_the_vocabulary_become_nan);
    tcase_add_test(all, casts_round_once_to_nearest);
    tcase_add_test(all, fill_writes_every_element_of_every_type);
    suite_add_tcase(suite, all);
    return suite;
}

GPU_TEST_MAIN(make_suite)
