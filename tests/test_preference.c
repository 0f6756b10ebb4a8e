/* test_preference.c: losses of pairs of answers: the formulas, the op, the head's two passes over
 * the logits, and the reference. */
#include <math.h>

#include "kernels/ops.h"
#include "model_rig.h"
#include "pairs_rig.h"

/* ---- the formulas ---------------------------------------------------------------------------- */

static hy_pair_loss loss_at(const hy_loss *p, const double loss[2], double whole) {
    hy_answer_sums sides[2] = {
        {.loss = loss[0], .reference = 7, .whole = whole, .count = 5, .whole_count = 9},
        {.loss = loss[1], .reference = 4, .count = 3, .whole_count = 8}};
    return hy_pair_loss_of(*p, sides);
}

START_TEST(formulas) {
    const hy_loss *p = &all_losses[_i];
    for (int i = 0; i < 20; i++) {
        double loss[2] = {6 + 0.7 * i, 4 + 0.1 * i * i}, whole = loss[0] + 11;
        double logp[2] = {-loss[0], -loss[1]}, ref[2] = {-7, -4};
        hy_pair_loss got = loss_at(p, loss, whole);
        double right = pair_expected(p, logp, ref, (int32_t[2]){5, 3}, whole, 9);
        ck_assert_double_eq_tol(got.loss, right, 1e-9 * (1 + fabs(right)));
        for (int side = 0; side < 2; side++) {
            double up[2] = {loss[0], loss[1]}, down[2] = {loss[0], loss[1]}, step = 1e-5;
            up[side] += step;
            down[side] -= step;
            double slope = (loss_at(p, up, whole).loss - loss_at(p, down, whole).loss) / (2 * step);
            ck_assert_double_eq_tol(got.weight[side], slope, 1e-6 * (1 + fabs(slope)));
        }
        double slope =
            (loss_at(p, loss, whole + 1e-5).loss - loss_at(p, loss, whole - 1e-5).loss) / 2e-5;
        ck_assert_double_eq_tol(got.whole, slope, 1e-6);
    }
}
END_TEST

START_TEST(large_margins_are_finite) {
    for (int k = 0; k < ALL_LOSSES; k++) {
        for (int i = -1; i <= 1; i += 2) {
            hy_answer_sums sides[2] = {{.loss = 4e3 * (i + 1), .count = 2, .whole_count = 2},
                                       {.loss = 4e3 * (1 - i), .count = 2, .whole_count = 2}};
            hy_pair_loss got = hy_pair_loss_of(all_losses[k], sides);
            ck_assert(isfinite(got.loss) && isfinite(got.weight[0]) && isfinite(got.weight[1]));
        }
    }
}
END_TEST

/* ---- the op ---------------------------------------------------------------------------------- */

static void run_op(const hy_op_call *call) {
    hy_backend *backend;
    hy_stream *stream;
    must(hy_cpu_backend_create(&(hy_cpu_options){.threads = 2}, &backend));
    must(backend->stream_create(backend, "test", &stream));
    must(hy_op_check(call));
    must(backend->enqueue(stream, call));
    must(backend->stream_sync(stream));
    backend->stream_destroy(stream);
    backend->destroy(backend);
}

START_TEST(op) { check_pair_losses(&all_losses[_i], run_op); }
END_TEST

START_TEST(weights) { check_pair_weights(&all_losses[_i], run_op); }
END_TEST

START_TEST(op_refuses) {
    op_batch b;
    fill_op_batch(&b, false);
    hy_op_call call = op_call(&b, &all_losses[0]);
    call.attr.preference.seq = 7;
    must_fail(hy_op_check(&call), HY_ERR_INPUT, "72 tokens are no sequences of 7");
    call = op_call(&b, &all_losses[0]);
    call.t[HY_PREFERENCE_REFERENCE] = (hy_tensor){0};
    must_fail(hy_op_check(&call), HY_ERR_INPUT, "reference is missing");
    call = op_call(&b, &(hy_loss){.kind = HY_LOSS_SIMPO});
    must_fail(hy_op_check(&call), HY_ERR_INPUT, "beta is 0");
}
END_TEST

/* ---- a model --------------------------------------------------------------------------------- */

enum { VOCAB = 61, BATCH = 2 };

typedef struct pairs_model {
    model_rig rig;
    int32_t doc_starts[BATCH * SEQ];
    float token_losses[BATCH * SEQ], reference[BATCH * SEQ];
    double stats[HY_PAIRS_STATS];
} pairs_model;

static hy_shape model_shape(void) {
    return (hy_shape){.layers = 2,
                      .width = 16,
                      .heads = 2,
                      .mlp_width = 24,
                      .vocab = VOCAB,
                      .context = SEQ,
                      .is_rms = true,
                      .has_rope = true,
                      .is_gated = true,
                      .norm_eps = 1e-5,
                      .rope_theta = 10000,
                      .init_std = 0.2};
}

static void open_model(pairs_model *m, const hy_shape *shape, const hy_batch_options *given,
                       const hy_loss *loss) {
    hy_batch_options options = *given;
    options.batch = BATCH;
    options.seq = SEQ;
    options.has_doc_starts = true;
    rig_loss = loss;
    rig_open(&m->rig, shape, &options, 3);
    rig_loss = NULL;
    bool with_prompts = loss->kind == HY_LOSS_ORPO;
    pairs_fill(first_documents, 4, SEQ, VOCAB, 1, with_prompts, m->rig.tokens, m->rig.targets,
               m->doc_starts);
    pairs_fill((const pairs_document[]){{2, 7}, {2, 3}}, 2, SEQ, VOCAB, 2, with_prompts,
               m->rig.tokens + SEQ, m->rig.targets + SEQ, m->doc_starts + SEQ);
    for (int i = 0; i < BATCH * SEQ; i++) {
        m->token_losses[i] = NAN;
        m->reference[i] = (float)hy_rng_uniform(7, HY_RNG_TEST, (uint64_t)i) + 3;
    }
    for (int i = 0; i < HY_PAIRS_STATS; i++) m->stats[i] = 0;
}

static hy_batch_input model_input(pairs_model *m) {
    hy_batch_input input = rig_input(&m->rig, 0.5f, false);
    input.doc_starts = m->doc_starts;
    input.token_losses = m->token_losses;
    input.reference = m->reference;
    input.loss_stats = m->stats;
    return input;
}

static double train_loss(pairs_model *m) {
    hy_batch_input input = model_input(m);
    must(hy_batch_train(m->rig.plan, &input));
    rig_sync(&m->rig);
    return rig_loss_sum(&m->rig);
}

static double eval_loss(pairs_model *m) {
    hy_batch_input input = model_input(m);
    must(hy_batch_evaluate(m->rig.plan, &input));
    rig_sync(&m->rig);
    return rig_loss_sum(&m->rig);
}

static float *weight_of(pairs_model *m, int32_t param) {
    return hy_store_backing(&m->rig.weights, param);
}

static const hy_batch_options trains = {.is_training = true, .chunks = 3};

START_TEST(gradients) {
    const hy_loss *p = &all_losses[_i];
    pairs_model m;
    hy_shape shape = model_shape();
    open_model(&m, &shape, &trains, p);
    train_loss(&m);
    for (int32_t i = 0; i < m.rig.model->params.count; i++) {
        const hy_param *param = &m.rig.model->params.list[i];
        const float *gradient = hy_store_backing(&m.rig.grads, i);
        double along = 0, squares = 0, sums[2];
        for (int64_t k = 0; k < param->stored; k++) squares += pow((double)gradient[k], 2);
        double step = 2e-2 / sqrt(squares);
        float *values = weight_of(&m, i), *kept = malloc((size_t)param->count * sizeof *kept);
        memcpy(kept, values, (size_t)param->count * sizeof *kept);
        for (int way = 0; way < 2; way++) {
            for (int64_t k = 0; k < param->stored; k++) {
                values[k] = kept[k] + (float)((way ? step : -step) * (double)gradient[k]);
            }
            sums[way] = eval_loss(&m);
        }
        memcpy(values, kept, (size_t)param->count * sizeof *kept);
        free(kept);
        along = 0.5 * (sums[1] - sums[0]) / (2 * step); /* the scale of gradients is 0.5 */
        ck_assert_msg(fabs(along - squares) < 0.02 * squares, "%s: slope %g, gradient %g",
                      param->name, along, squares);
    }
    rig_close(&m.rig);
}
END_TEST

/* Losses of training have the bits of an evaluation, in any number of tiles. */
START_TEST(tiles) {
    const hy_loss *p = &all_losses[_i];
    float losses[BATCH * SEQ];
    hy_shape shape = model_shape();
    for (int32_t chunks = 1; chunks <= 4; chunks++) {
        hy_batch_options options = {.is_training = true, .chunks = chunks};
        pairs_model m;
        open_model(&m, &shape, &options, p);
        double trained = train_loss(&m);
        ck_assert_double_eq(m.stats[HY_PAIRS_COUNT], 3);
        if (chunks == 1) memcpy(losses, m.rig.losses, sizeof losses);
        for (int i = 0; i < BATCH * SEQ; i++) {
            ck_assert_float_eq_tol(losses[i], m.rig.losses[i], 1e-5f);
        }
        ck_assert_double_eq(eval_loss(&m), trained);
        rig_close(&m.rig);
    }
}
END_TEST

/* ---- the reference --------------------------------------------------------------------------- */

static hy_shape adapted_shape(void) {
    hy_shape shape = model_shape();
    shape.adapter = (hy_adapter){.rank = 3, .scale = 2, .parts = HY_ADAPT_ALL};
    return shape;
}

static void spoil_adapters(pairs_model *m) {
    for (int32_t i = 0; i < m->rig.model->params.count; i++) {
        const hy_param *param = &m->rig.model->params.list[i];
        if (!hy_is_adapter(param->kind)) continue;
        for (int64_t k = 0; k < param->count; k++) {
            weight_of(m, i)[k] =
                (float)hy_rng_uniform(9, HY_RNG_TEST, (uint64_t)(i * 1000 + k)) - 0.5f;
        }
    }
}

static void take_reference(pairs_model *m, float *out) {
    hy_batch_input input = model_input(m);
    input.token_losses = out;
    must(hy_batch_reference(m->rig.plan, &input));
    rig_sync(&m->rig);
}

/* With new adapters, policy and reference agree to the bit: the loss is ln 2, and no pair has a
 * margin. With others, the reference stays. */
START_TEST(new_adapters_agree_with_the_reference) {
    hy_batch_options options = trains;
    if (_i == 1) options.is_training = false;
    if (_i == 2) options.recompute = HY_KEEP_ALL;
    pairs_model m;
    hy_shape shape = adapted_shape();
    open_model(&m, &shape, &options, &all_losses[0]);
    double (*loss_of)(pairs_model *) = options.is_training ? train_loss : eval_loss;
    float reference[BATCH * SEQ], again[BATCH * SEQ];
    take_reference(&m, reference);
    memcpy(m.reference, reference, sizeof reference);
    ck_assert_double_eq_tol(loss_of(&m), 3 * log(2), 1e-6);
    ck_assert_mem_eq(m.token_losses, reference, sizeof reference);
    ck_assert_double_eq(m.stats[HY_PAIRS_CHOSEN], 0);
    ck_assert_double_eq(m.stats[HY_PAIRS_REJECTED], 0);
    spoil_adapters(&m);
    ck_assert(fabs(loss_of(&m) - 3 * log(2)) > 1e-3);
    ck_assert(memcmp(m.token_losses, reference, sizeof reference) != 0);
    take_reference(&m, again);
    ck_assert_mem_eq(again, reference, sizeof reference);
    rig_close(&m.rig);
}
END_TEST

/* ---- the suite ------------------------------------------------------------------------------- */

static Suite *make_suite(void) {
    Suite *suite = suite_create("preference");
    TCase *formula = tcase_create("formulas"), *ops = tcase_create("op"),
          *model = tcase_create("model");
    tcase_add_loop_test(formula, formulas, 0, ALL_LOSSES);
    tcase_add_test(formula, large_margins_are_finite);
    tcase_add_loop_test(ops, op, 0, ALL_LOSSES);
    tcase_add_loop_test(ops, weights, 0, ALL_LOSSES);
    tcase_add_test(ops, op_refuses);
    tcase_add_loop_test(model, gradients, 0, ALL_LOSSES);
    tcase_add_loop_test(model, tiles, 0, ALL_LOSSES);
    tcase_add_loop_test(model, new_adapters_agree_with_the_reference, 0, 3);
    suite_add_tcase(suite, formula);
    suite_add_tcase(suite, ops);
    suite_add_tcase(suite, model);
    return suite;
}

HY_TEST_MAIN(make_suite)
