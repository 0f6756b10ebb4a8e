/* test_policy.c: the loss of answers with rewards: the formula, the op, and the head's passes. */
#include "model_rig.h"
#include "policy_rig.h"

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

START_TEST(op) { check_policy(&all_policies[_i], run_op); }
END_TEST

START_TEST(op_refuses) {
    static policy_batch b;
    policy_fill(&b);
    hy_op_call call = policy_call(&b, &(hy_policy){.clip_low = 1.5f});
    must_fail(hy_op_check(&call), HY_ERR_INPUT, "[1 - 1.5, 1 + 0]");
    call = policy_call(&b, &(hy_policy){.kl = -1});
    must_fail(hy_op_check(&call), HY_ERR_INPUT, "kl is -1");
    call = policy_call(&b, &(hy_policy){.kl = 1});
    call.t[HY_POLICY_REFERENCE] = (hy_tensor){0};
    must_fail(hy_op_check(&call), HY_ERR_INPUT, "reference is missing");
}
END_TEST

/* Log-probabilities far apart give finite losses and weights. */
START_TEST(far_apart_is_finite) {
    static const float far[] = {-1e4f, -50, 50, 1e4f};
    for (int k = 0; k < ALL_POLICIES; k++) {
        for (int i = 0; i < 64; i++) {
            hy_policy_token token = {.advantage = i & 1 ? 1.f : -1.f,
                                     .share = 1,
                                     .sampled = far[i >> 1 & 3],
                                     .old = far[i >> 3 & 3]};
            hy_policy_loss got = hy_policy_loss_of(&all_policies[k], &token, 3, -2e3);
            ck_assert(isfinite(got.loss) && isfinite(got.weight));
            for (int s = 0; s < HY_POLICY_STATS; s++) ck_assert(isfinite(got.stats[s]));
        }
    }
}
END_TEST

/* ---- a model --------------------------------------------------------------------------------- */

enum { VOCAB = 61, BATCH = 2, SEQ = 24, ROWS = BATCH * SEQ };

typedef struct policy_model {
    model_rig rig;
    float token_losses[ROWS], reference[ROWS];
    hy_policy_token policy[ROWS];
    double stats[HY_POLICY_STATS];
} policy_model;

static void open_model(policy_model *m, const hy_policy *policy, int32_t chunks) {
    hy_shape shape = {.layers = 2,
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
    shape.more.logit_softcap = 5;
    hy_loss loss = {.kind = HY_LOSS_POLICY, .policy = *policy};
    hy_batch_options options = {.batch = BATCH, .seq = SEQ, .is_training = true, .chunks = chunks};
    rig_loss = &loss;
    rig_open(&m->rig, &shape, &options, 3);
    rig_loss = NULL;
    for (int i = 0; i < ROWS; i++) {
        bool counts = i % SEQ > 4 && i % SEQ < 20;
        m->rig.tokens[i] = (int32_t)(VOCAB * policy_dice(i, 20));
        m->rig.targets[i] = counts ? (int32_t)(VOCAB * policy_dice(i, 21)) : -1;
        m->policy[i] = (hy_policy_token){.advantage = i < SEQ ? 1.5f : -0.5f,
                                         .share = counts ? 0.25f : 0,
                                         .sampled = 4 + policy_dice(i, 22),
                                         .old = 4 + policy_dice(i, 23)};
        m->reference[i] = 4 + policy_dice(i, 24);
        m->token_losses[i] = NAN;
    }
    memset(m->stats, 0, sizeof m->stats);
}

static hy_batch_input model_input(policy_model *m) {
    hy_batch_input input = rig_input(&m->rig, 0.5f, false);
    input.token_losses = m->token_losses;
    input.reference = m->reference;
    input.policy = m->policy;
    input.loss_stats = m->stats;
    return input;
}

static double train_loss(policy_model *m) {
    hy_batch_input input = model_input(m);
    must(hy_batch_train(m->rig.plan, &input));
    rig_sync(&m->rig);
    return rig_loss_sum(&m->rig);
}

static double eval_loss(policy_model *m) {
    hy_batch_input input = model_input(m);
    must(hy_batch_evaluate(m->rig.plan, &input));
    rig_sync(&m->rig);
    return rig_loss_sum(&m->rig);
}

static hy_policy at_temperature(int which) {
    hy_policy policy = all_policies[which];
    policy.temperature = which % 2 ? 0.7f : 1;
    policy.clip_low = policy.clip_high = 0.9f; /* no ratio is at a bend */
    return policy;
}

/* The loss changes along the gradient as the gradient says. */
START_TEST(gradients) {
    policy_model m;
    hy_policy policy = at_temperature(_i);
    open_model(&m, &policy, 3);
    train_loss(&m);
    for (int32_t i = 0; i < m.rig.model->params.count; i++) {
        const hy_param *param = &m.rig.model->params.list[i];
        const float *gradient = hy_store_backing(&m.rig.grads, i);
        float *values = hy_store_backing(&m.rig.weights, i);
        double squares = 0, sums[2];
        for (int64_t k = 0; k < param->stored; k++) squares += pow((double)gradient[k], 2);
        double step = 1e-2 / sqrt(squares);
        float *kept = malloc((size_t)param->count * sizeof *kept);
        memcpy(kept, values, (size_t)param->count * sizeof *kept);
        for (int way = 0; way < 2; way++) {
            for (int64_t k = 0; k < param->stored; k++)
                values[k] = kept[k] + (float)((way ? step : -step) * (double)gradient[k]);
            sums[way] = eval_loss(&m);
        }
        memcpy(values, kept, (size_t)param->count * sizeof *kept);
        free(kept);
        double along = 0.5 * (sums[1] - sums[0]) / (2 * step); /* gradients are scaled by 0.5 */
        ck_assert_msg(fabs(along - squares) < 0.02 * squares, "%s: slope %g, gradient %g",
                      param->name, along, squares);
    }
    rig_close(&m.rig);
}
END_TEST

/* Any number of tiles, training and evaluation. Tokens that do not count have no loss. */
START_TEST(tiles) {
    float losses[ROWS];
    hy_policy policy = at_temperature(_i);
    for (int32_t chunks = 1; chunks <= 4; chunks++) {
        policy_model m;
        open_model(&m, &policy, chunks);
        double trained = train_loss(&m);
        ck_assert_double_eq(m.stats[HY_POLICY_TOKENS], 2 * 15);
        if (chunks == 1) memcpy(losses, m.rig.losses, sizeof losses);
        for (int i = 0; i < ROWS; i++) {
            ck_assert_float_eq_tol(losses[i], m.rig.losses[i], 1e-5f);
            if (m.rig.targets[i] < 0) ck_assert_float_eq(m.rig.losses[i], 0);
        }
        ck_assert_double_eq(eval_loss(&m), trained);
        rig_close(&m.rig);
    }
}
END_TEST

/* A temperature divides the logits, after the cap. */
START_TEST(temperature) {
    policy_model m;
    hy_policy policy = {.clip_low = 0.2f, .clip_high = 0.2f, .temperature = 1e6f};
    open_model(&m, &policy, 1);
    train_loss(&m);
    for (int i = 0; i < ROWS; i++) {
        if (m.rig.targets[i] >= 0)
            ck_assert_float_eq_tol(m.token_losses[i], logf((float)VOCAB), 1e-4f);
    }
    rig_close(&m.rig);
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("policy");
    TCase *ops = tcase_create("op"), *model = tcase_create("model");
    tcase_add_loop_test(ops, op, 0, ALL_POLICIES);
    tcase_add_test(ops, op_refuses);
    tcase_add_test(ops, far_apart_is_finite);
    tcase_add_loop_test(model, gradients, 0, ALL_POLICIES);
    tcase_add_loop_test(model, tiles, 0, ALL_POLICIES);
    tcase_add_test(model, temperature);
    suite_add_tcase(suite, ops);
    suite_add_tcase(suite, model);
    return suite;
}

HY_TEST_MAIN(make_suite)
