/* test_kernels_reference.c: the reference's backward ops against finite differences of its forward
 * ops.
 *
 * The scalar is L = sum(dy * out) with random dy. Each input element is moved both ways by a small
 * step; in double precision the quotient is good to about nine digits. */
#include "delta_calls.h"
#include "expert_calls.h"

#define STEP 1e-5

static double weighted_sum(const hy_tensor *out, const double *dy) {
    double sum = 0;
    for (int64_t i = 0; i < hy_tensor_count(out); i++)
        sum += ((const double *)out->data)[i] * dy[i];
    return sum;
}

/* dL/d(tensor `input`) of a forward call by central differences. `out` is the position of the
 * result; what is in place is restored before each run. */
static double *differences(hy_op_call *forward, int input, int out, const double *dy) {
    int64_t count = hy_tensor_count(&forward->t[input]);
    double *gradient = malloc((size_t)count * sizeof *gradient);
    hy_tensor at = copy_tensor(&forward->t[input]);
    for (int64_t i = 0; i < count; i++) {
        double side[2];
        for (int s = 0; s < 2; s++) {
            memcpy(forward->t[input].data, at.data, hy_tensor_bytes(&at));
            ((double *)forward->t[input].data)[i] += s ? STEP : -STEP;
            reference_run(forward);
            side[s] = weighted_sum(&forward->t[out], dy);
        }
        gradient[i] = (side[1] - side[0]) / (2 * STEP);
    }
    memcpy(forward->t[input].data, at.data, hy_tensor_bytes(&at));
    free(at.data);
    return gradient;
}

/* Tensor `at` of the backward call equals dL/d(tensor `input`) of the forward call. */
static void check_gradient(const hy_op_call *backward, int at, hy_op_call *forward, int input,
                           int out, const double *dy) {
    double *expected = differences(forward, input, out, dy);
    double found = distance(&backward->t[at], expected);
    ck_assert_msg(found < 1e-7, "%s: %s differs from finite differences by %.3g",
                  hy_op_name(backward->kind), hy_op_tensor_name(backward->kind, at), found);
    free(expected);
}

/* The backward call takes over tensors of the forward call: pairs {backward, forward}, ended by
 * -1. */
static void share(trial *backward, const trial *forward, const int (*pairs)[2]) {
    backward->exact.attr = forward->exact.attr;
    for (; (*pairs)[0] >= 0; pairs++) {
        backward->exact.t[(*pairs)[0]] = copy_tensor(&forward->exact.t[(*pairs)[1]]);
    }
}

START_TEST(norm_backward) {
    for (int variant = 0; variant < 4; variant++) {
        bool is_rms = variant & 1, has_residual = variant & 2;
        trial f = trial_begin(HY_OP_NORM, (uint64_t)variant), b = trial_begin(HY_OP_NORM_BWD, 9);
        f.exact.attr.norm.eps = 1e-3f;
        f.exact.attr.norm.is_rms = is_rms;
        f.exact.attr.norm.offset = has_residual ? 0.75f : 0;
        trial_normal(&f, HY_NORM_X, HY_F64, 5, 13, 0.5, 1);
        trial_normal(&f, HY_NORM_WEIGHT, HY_F64, 0, 13, 1, 0.5);
        trial_normal(&f, HY_NORM_BIAS, HY_F64, 0, 13, 0, 0.5);
        trial_tensor(&f, HY_NORM_Y, HY_F64, 5, 13);
        trial_tensor(&f, HY_NORM_MEAN, HY_F64, 0, 5);
        trial_tensor(&f, HY_NORM_RSTD, HY_F64, 0, 5);
        reference_run(&f.exact);
        trial_normal(&b, HY_NORM_BWD_DY, HY_F64, 5, 13, 0, 1);
        share(&b, &f,
              (const int[][2]){{HY_NORM_BWD_X, HY_NORM_X},
                               {HY_NORM_BWD_WEIGHT, HY_NORM_WEIGHT},
                               {HY_NORM_BWD_MEAN, HY_NORM_MEAN},
                               {HY_NORM_BWD_RSTD, HY_NORM_RSTD},
                               {-1, -1}});
        if (has_residual) trial_normal(&b, HY_NORM_BWD_RESIDUAL, HY_F64, 5, 13, 0, 1);
        trial_tensor(&b, HY_NORM_BWD_DX, HY_F64, 5, 13);
        trial_tensor(&b, HY_NORM_BWD_DWEIGHT, HY_F64, 0, 13);
        trial_tensor(&b, HY_NORM_BWD_DBIAS, HY_F64, 0, 13);
        reference_run(&b.exact);
        double *dx = b.exact.t[HY_NORM_BWD_DX].data;
        for (int i = 0; has_residual && i < 5 * 13; i++)
            dx[i] -= ((double *)b.exact.t[HY_NORM_BWD_RESIDUAL].data)[i];
        const double *dy = b.exact.t[HY_NORM_BWD_DY].data;
        check_gradient(&b.exact, HY_NORM_BWD_DX, &f.exact, HY_NORM_X, HY_NORM_Y, dy);
        check_gradient(&b.exact, HY_NORM_BWD_DWEIGHT, &f.exact, HY_NORM_WEIGHT, HY_NORM_Y, dy);
        check_gradient(&b.exact, HY_NORM_BWD_DBIAS, &f.exact, HY_NORM_BIAS, HY_NORM_Y, dy);
        trial_end(&f);
        trial_end(&b);
    }
}
END_TEST

static void set_heads(hy_op_attr *attr, int32_t batch, int32_t seq, int32_t window) {
    attr->heads.batch = batch;
    attr->heads.seq = seq;
    attr->heads.heads = 4;
    attr->heads.kv_heads = 2;
    attr->heads.head_dim = 6;
    attr->heads.window = window;
    attr->heads.scale = 0.4f;
    attr->heads.eps = 1e-3f;
}
enum { WIDTH = (4 + 2 * 2) * 6 };

static void check_head_norm_backward(bool is_whole) {
    int64_t wq = is_whole ? 4 * 6 : 6, wk = is_whole ? 2 * 6 : 6;
    trial f = trial_begin(HY_OP_HEAD_NORM, 1), b = trial_begin(HY_OP_HEAD_NORM_BWD, 2);
    set_heads(&f.exact.attr, 1, 3, 0);
    f.exact.attr.heads.is_whole = is_whole;
    f.exact.attr.heads.norm_offset = is_whole ? 0.5f : 0;
    trial_normal(&f, HY_HEAD_NORM_QKV, HY_F64, 3, WIDTH, 0, 1);
    trial_normal(&f, HY_HEAD_NORM_WQ, HY_F64, 0, wq, 1, 0.5);
    trial_normal(&f, HY_HEAD_NORM_WK, HY_F64, 0, wk, 1, 0.5);
    trial_tensor(&f, HY_HEAD_NORM_OUT, HY_F64, 3, WIDTH);
    trial_tensor(&f, HY_HEAD_NORM_RSTD, HY_F64, 3, is_whole ? 2 : 6);
    reference_run(&f.exact);
    trial_normal(&b, HY_HEAD_NORM_BWD_DOUT, HY_F64, 3, WIDTH, 0, 1);
    share(&b, &f,
          (const int[][2]){{HY_HEAD_NORM_BWD_QKV, HY_HEAD_NORM_QKV},
                           {HY_HEAD_NORM_BWD_WQ, HY_HEAD_NORM_WQ},
                           {HY_HEAD_NORM_BWD_WK, HY_HEAD_NORM_WK},
                           {HY_HEAD_NORM_BWD_RSTD, HY_HEAD_NORM_RSTD},
                           {-1, -1}});
    trial_tensor(&b, HY_HEAD_NORM_BWD_DQKV, HY_F64, 3, WIDTH);
    trial_tensor(&b, HY_HEAD_NORM_BWD_DWQ, HY_F64, 0, wq);
    trial_tensor(&b, HY_HEAD_NORM_BWD_DWK, HY_F64, 0, wk);
    reference_run(&b.exact);
    const double *dout = b.exact.t[HY_HEAD_NORM_BWD_DOUT].data;
    check_gradient(&b.exact, HY_HEAD_NORM_BWD_DQKV, &f.exact, HY_HEAD_NORM_QKV, HY_HEAD_NORM_OUT,
                   dout);
    check_gradient(&b.exact, HY_HEAD_NORM_BWD_DWQ, &f.exact, HY_HEAD_NORM_WQ, HY_HEAD_NORM_OUT,
                   dout);
    check_gradient(&b.exact, HY_HEAD_NORM_BWD_DWK, &f.exact, HY_HEAD_NORM_WK, HY_HEAD_NORM_OUT,
                   dout);
    trial_end(&f);
    trial_end(&b);
}

START_TEST(head_norm_backward) {
    check_head_norm_backward(false);
    check_head_norm_backward(true);
}
END_TEST

START_TEST(attention_backward) {
    for (int variant = 0; variant < 16; variant++) {
        trial f = trial_begin(HY_OP_ATTENTION, (uint64_t)variant);
        trial b = trial_begin(HY_OP_ATTENTION_BWD, (uint64_t)variant + 9);
        set_heads(&f.exact.attr, 2, 7, variant & 1 ? 3 : 0);
        trial_normal(&f, HY_ATTENTION_QKV, HY_F64, 14, WIDTH, 0, 1);
        if (variant & 2) {
            trial_tensor(&f, HY_ATTENTION_DOC_STARTS, HY_I32, 0, 14);
            for (int i = 0; i < 14; i++)
                trial_put(&f, HY_ATTENTION_DOC_STARTS, i, i % 7 < 4 ? 0 : 4);
        }
        f.exact.attr.heads.softcap = variant & 4 ? 1.5f : 0;
        if (variant & 8) trial_normal(&f, HY_ATTENTION_SINKS, HY_F64, 0, 4, 0, 1);
        trial_tensor(&f, HY_ATTENTION_OUT, HY_F64, 14, 24);
        trial_tensor(&f, HY_ATTENTION_LSE, HY_F64, 0, 2 * 4 * 7);
        reference_run(&f.exact);
        trial_normal(&b, HY_ATTENTION_BWD_DOUT, HY_F64, 14, 24, 0, 1);
        share(&b, &f,
              (const int[][2]){{HY_ATTENTION_BWD_QKV, HY_ATTENTION_QKV},
                               {HY_ATTENTION_BWD_DOC_STARTS, HY_ATTENTION_DOC_STARTS},
                               {HY_ATTENTION_BWD_OUT, HY_ATTENTION_OUT},
                               {HY_ATTENTION_BWD_LSE, HY_ATTENTION_LSE},
                               {HY_ATTENTION_BWD_SINKS, HY_ATTENTION_SINKS},
                               {-1, -1}});
        trial_tensor(&b, HY_ATTENTION_BWD_DQKV, HY_F64, 14, WIDTH);
        if (variant & 8) trial_tensor(&b, HY_ATTENTION_BWD_DSINKS, HY_F64, 0, 4);
        reference_run(&b.exact);
        check_gradient(&b.exact, HY_ATTENTION_BWD_DQKV, &f.exact, HY_ATTENTION_QKV,
                       HY_ATTENTION_OUT, b.exact.t[HY_ATTENTION_BWD_DOUT].data);
        if (variant & 8) {
            check_gradient(&b.exact, HY_ATTENTION_BWD_DSINKS, &f.exact, HY_ATTENTION_SINKS,
                           HY_ATTENTION_OUT, b.exact.t[HY_ATTENTION_BWD_DOUT].data);
        }
        trial_end(&f);
        trial_end(&b);
    }
}
END_TEST

/* Two calls of a pair on the same numbers; what the forward call leaves is not rounded. */
static void run_pair(trial *f, trial *b) {
    f->exact.attr = f->call.attr;
    b->exact.attr = b->call.attr;
    reference_run(&f->exact);
    reference_run(&b->exact);
}

START_TEST(convolution_backward) {
    static const conv_case cases[] = {{2, 9, 3, 4, true}, {1, 2, 4, 8, false}, {3, 5, 2, 2, true}};
    for (int i = 0; i < 3; i++) {
        trial f = conv_trial(&cases[i], 0), b = conv_bwd_trial(&cases[i], 0, true);
        run_pair(&f, &b);
        const double *dy = b.exact.t[HY_CONV_BWD_DY].data;
        check_gradient(&b.exact, HY_CONV_BWD_DX, &f.exact, HY_CONV_X, HY_CONV_Y, dy);
        check_gradient(&b.exact, HY_CONV_BWD_DWEIGHT, &f.exact, HY_CONV_WEIGHT, HY_CONV_Y, dy);
        trial_end(&f);
        trial_end(&b);
    }
}
END_TEST

START_TEST(delta_rule_backward) {
    static const delta_case cases[] = {
        {2, 19, 1, 2, 5, 3, true, 0}, {1, 12, 2, 2, 4, 6, false, -4}, {1, 7, 1, 3, 1, 1, true, 2}};
    for (int i = 0; i < 3; i++) {
        trial f = delta_trial(&cases[i], 0), b = delta_bwd_trial(&cases[i], 0, true);
        static const int pairs[][2] = {{HY_DELTA_BWD_DQKV, HY_DELTA_QKV},
                                       {HY_DELTA_BWD_DGATES, HY_DELTA_GATES},
                                       {HY_DELTA_BWD_DA_LOG, HY_DELTA_A_LOG},
                                       {HY_DELTA_BWD_DDT_BIAS, HY_DELTA_DT_BIAS}};
        run_pair(&f, &b);
        for (int k = 0; k < 4; k++) {
            check_gradient(&b.exact, pairs[k][0], &f.exact, pairs[k][1], HY_DELTA_OUT,
                           b.exact.t[HY_DELTA_BWD_DOUT].data);
        }
        trial_end(&f);
        trial_end(&b);
    }
}
END_TEST

/* The reference's statistics in full precision; elements that no gradient belongs to are 0. */
static void share_exactly(trial *b, int statistics, const trial *f, int of, int gradient) {
    hy_tensor *to = &b->exact.t[statistics], *cleared = &b->exact.t[gradient];
    if (to->data) memcpy(to->data, f->exact.t[of].data, hy_tensor_bytes(to));
    memset(cleared->data, 0, hy_tensor_bytes(cleared));
}

START_TEST(gate_backward) {
    static const gate_case cases[] = {{3, 40, 2, 6, 5, 11, false}, {4, 40, 3, 7, 2, 9, true}};
    for (int i = 0; i < 2; i++) {
        trial f = gate_trial(&cases[i], 0), b = gate_bwd_trial(&cases[i], 0, true);
        run_pair(&f, &b);
        share_exactly(&b, HY_GATE_BWD_RSTD, &f, HY_GATE_RSTD, HY_GATE_BWD_DGATE);
        reference_run(&b.exact);
        const double *dy = b.exact.t[HY_GATE_BWD_DY].data;
        check_gradient(&b.exact, HY_GATE_BWD_DX, &f.exact, HY_GATE_X, HY_GATE_Y, dy);
        check_gradient(&b.exact, HY_GATE_BWD_DGATE, &f.exact, HY_GATE_GATE, HY_GATE_Y, dy);
        if (i > 0) {
            check_gradient(&b.exact, HY_GATE_BWD_DWEIGHT, &f.exact, HY_GATE_WEIGHT, HY_GATE_Y, dy);
        }
        trial_end(&f);
        trial_end(&b);
    }
}
END_TEST

START_TEST(head_norm_backward_with_gates) {
    gated_norm_case k = {5, 4, 2, 6};
    trial f = gated_norm_trial(&k, 0), b = gated_norm_bwd_trial(&k, 0);
    run_pair(&f, &b);
    share_exactly(&b, HY_HEAD_NORM_BWD_RSTD, &f, HY_HEAD_NORM_RSTD, HY_HEAD_NORM_BWD_DQKV);
    reference_run(&b.exact);
    const double *dout = b.exact.t[HY_HEAD_NORM_BWD_DOUT].data;
    check_gradient(&b.exact, HY_HEAD_NORM_BWD_DQKV, &f.exact, HY_HEAD_NORM_QKV, HY_HEAD_NORM_OUT,
                   dout);
    check_gradient(&b.exact, HY_HEAD_NORM_BWD_DWQ, &f.exact, HY_HEAD_NORM_WQ, HY_HEAD_NORM_OUT,
                   dout);
    check_gradient(&b.exact, HY_HEAD_NORM_BWD_DWK, &f.exact, HY_HEAD_NORM_WK, HY_HEAD_NORM_OUT,
                   dout);
    trial_end(&f);
    trial_end(&b);
}
END_TEST

START_TEST(activations_backward) {
    for (int i = 0; i < 2 * HY_ACT_COUNT; i++) {
        bool is_swiglu = i % 2;
        trial f = trial_begin(is_swiglu ? HY_OP_SWIGLU : HY_OP_GELU, 1);
        trial b = trial_begin(is_swiglu ? HY_OP_SWIGLU_BWD : HY_OP_GELU_BWD, 2);
        int64_t width = is_swiglu ? 34 : 17;
        int x = is_swiglu ? HY_SWIGLU_GATE_UP : HY_GELU_X, y = is_swiglu ? HY_SWIGLU_Y : HY_GELU_Y;
        int dy = is_swiglu ? HY_SWIGLU_BWD_DY : HY_GELU_BWD_DY;
        int dx = is_swiglu ? HY_SWIGLU_BWD_DGATE_UP : HY_GELU_BWD_DX;
        int x_again = is_swiglu ? HY_SWIGLU_BWD_GATE_UP : HY_GELU_BWD_X;
        f.exact.attr.act.kind = (hy_act)(i / 2);
        trial_normal(&f, x, HY_F64, 3, width, 0, 2);
        trial_tensor(&f, y, HY_F64, 3, 17);
        trial_normal(&b, dy, HY_F64, 3, 17, 0, 1);
        share(&b, &f, (const int[][2]){{x_again, x}, {-1, -1}});
        trial_tensor(&b, dx, HY_F64, 3, width);
        reference_run(&b.exact);
        check_gradient(&b.exact, dx, &f.exact, x, y, b.exact.t[dy].data);
        trial_end(&f);
        trial_end(&b);
    }
}
END_TEST

START_TEST(embedding_backward) {
    trial f = trial_begin(HY_OP_EMBED, 1), b = trial_begin(HY_OP_EMBED_BWD, 2);
    f.exact.attr.embed.seq = 5;
    f.exact.attr.embed.scale = 2.5f;
    trial_ints(&f, HY_EMBED_TOKENS, 10, 0, 3);
    trial_normal(&f, HY_EMBED_WTE, HY_F64, 4, 3, 0, 1);
    trial_normal(&f, HY_EMBED_WPE, HY_F64, 6, 3, 0, 1);
    trial_tensor(&f, HY_EMBED_X, HY_F64, 10, 3);
    share(&b, &f, (const int[][2]){{HY_EMBED_BWD_TOKENS, HY_EMBED_TOKENS}, {-1, -1}});
    trial_normal(&b, HY_EMBED_BWD_DX, HY_F64, 10, 3, 0, 1);
    trial_normal(&b, HY_EMBED_BWD_DWTE, HY_F64, 4, 3, 0, 1);
    trial_normal(&b, HY_EMBED_BWD_DWPE, HY_F64, 6, 3, 0, 1);
    reference_run(&b.exact);
    const double *dx = b.exact.t[HY_EMBED_BWD_DX].data;
    check_gradient(&b.exact, HY_EMBED_BWD_DWTE, &f.exact, HY_EMBED_WTE, HY_EMBED_X, dx);
    check_gradient(&b.exact, HY_EMBED_BWD_DWPE, &f.exact, HY_EMBED_WPE, HY_EMBED_X, dx);
    trial_end(&f);
    trial_end(&b);
}
END_TEST

static void check_cross_entropy_gradient(float factor, float softcap) {
    trial f = trial_begin(HY_OP_CROSS_ENTROPY, 1), b = trial_begin(HY_OP_CROSS_ENTROPY, 1);
    f.exact.attr.loss.vocab = 9;
    f.exact.attr.loss.factor = factor;
    f.exact.attr.loss.softcap = softcap;
    trial_normal(&f, HY_CROSS_ENTROPY_LOGITS, HY_F64, 4, 11, 0, 2);
    trial_ints(&f, HY_CROSS_ENTROPY_TARGETS, 4, 0, 8);
    trial_put(&f, HY_CROSS_ENTROPY_TARGETS, 2, -1);
    trial_tensor(&f, HY_CROSS_ENTROPY_LOSSES, HY_F64, 0, 4);
    double scale[4] = {0.5, 0.5, 0.5, 0.5};
    share(&b, &f,
          (const int[][2]){{HY_CROSS_ENTROPY_LOGITS, HY_CROSS_ENTROPY_LOGITS},
                           {HY_CROSS_ENTROPY_TARGETS, HY_CROSS_ENTROPY_TARGETS},
                           {HY_CROSS_ENTROPY_LOSSES, HY_CROSS_ENTROPY_LOSSES},
                           {-1, -1}});
    b.exact.attr.loss.wants_grad = true;
    b.exact.attr.loss.scale = 0.5f;
    reference_run(&b.exact);
    check_gradient(&b.exact, HY_CROSS_ENTROPY_LOGITS, &f.exact, HY_CROSS_ENTROPY_LOGITS,
                   HY_CROSS_ENTROPY_LOSSES, scale);
    trial_end(&f);
    trial_end(&b);
}

START_TEST(cross_entropy_gradient) {
    check_cross_entropy_gradient(0, 0);
    check_cross_entropy_gradient(0.5f, 0);
    check_cross_entropy_gradient(0, 3);
    check_cross_entropy_gradient(1.5f, 2);
}
END_TEST

/* matmul, in the two transposes a linear layer's backward uses, and the column sums of its bias. */
START_TEST(linear_layer_backward) {
    trial f = trial_begin(HY_OP_MATMUL, 1), dx = trial_begin(HY_OP_MATMUL, 2);
    trial dw = trial_begin(HY_OP_MATMUL, 3), db = trial_begin(HY_OP_BIAS_GRAD, 4);
    f.exact.attr.matmul.alpha = dx.exact.attr.matmul.alpha = dw.exact.attr.matmul.alpha = 1;
    f.exact.attr.matmul.trans_b = dw.exact.attr.matmul.trans_a = true;
    trial_normal(&f, HY_MATMUL_A, HY_F64, 5, 7, 0, 1); /* x (N,C) */
    trial_normal(&f, HY_MATMUL_B, HY_F64, 4, 7, 0, 1); /* w (F,C) */
    trial_tensor(&f, HY_MATMUL_D, HY_F64, 5, 4);
    trial_normal(&f, HY_MATMUL_BIAS, HY_F64, 0, 4, 0, 1);
    trial_normal(&dx, HY_MATMUL_A, HY_F64, 5, 4, 0, 1); /* dy */
    dx.exact.t[HY_MATMUL_B] = copy_tensor(&f.exact.t[HY_MATMUL_B]);
    trial_tensor(&dx, HY_MATMUL_D, HY_F64, 5, 7);
    dw.exact.t[HY_MATMUL_A] = copy_tensor(&dx.exact.t[HY_MATMUL_A]);
    dw.exact.t[HY_MATMUL_B] = copy_tensor(&f.exact.t[HY_MATMUL_A]);
    trial_tensor(&dw, HY_MATMUL_D, HY_F64, 4, 7);
    db.exact.t[HY_BIAS_GRAD_DY] = copy_tensor(&dx.exact.t[HY_MATMUL_A]);
    trial_tensor(&db, HY_BIAS_GRAD_DBIAS, HY_F64, 0, 4);
    reference_run(&dx.exact);
    reference_run(&dw.exact);
    reference_run(&db.exact);
    const double *dy = dx.exact.t[HY_MATMUL_A].data;
    check_gradient(&dx.exact, HY_MATMUL_D, &f.exact, HY_MATMUL_A, HY_MATMUL_D, dy);
    check_gradient(&dw.exact, HY_MATMUL_D, &f.exact, HY_MATMUL_B, HY_MATMUL_D, dy);
    check_gradient(&db.exact, HY_BIAS_GRAD_DBIAS, &f.exact, HY_MATMUL_BIAS, HY_MATMUL_D, dy);
    trial_end(&f);
    trial_end(&dx);
    trial_end(&dw);
    trial_end(&db);
}
END_TEST

START_TEST(weighted_rows_backward) {
    trial f = weighted_swiglu_trial(HY_OP_SWIGLU, 5, 4, 0);
    trial b = weighted_swiglu_trial(HY_OP_SWIGLU_BWD, 5, 4, 0);
    for (int i = 0; i < 3; i++) {
        static const int pairs[3][2] = {{HY_SWIGLU_BWD_GATE_UP, HY_SWIGLU_GATE_UP},
                                        {HY_SWIGLU_BWD_WEIGHTS, HY_SWIGLU_WEIGHTS},
                                        {HY_SWIGLU_BWD_ORDER, HY_SWIGLU_ORDER}};
        const hy_tensor *from = &f.exact.t[pairs[i][1]];
        memcpy(b.exact.t[pairs[i][0]].data, from->data, hy_tensor_bytes(from));
    }
    reference_run(&b.exact);
    const double *dy = b.exact.t[HY_SWIGLU_BWD_DY].data;
    check_gradient(&b.exact, HY_SWIGLU_BWD_DGATE_UP, &f.exact, HY_SWIGLU_GATE_UP, HY_SWIGLU_Y, dy);
    check_gradient(&b.exact, HY_SWIGLU_BWD_DWEIGHTS, &f.exact, HY_SWIGLU_WEIGHTS, HY_SWIGLU_Y, dy);
    trial_end(&f);
    trial_end(&b);
}
END_TEST

/* The gradient of the weights, then that of the losses. */
START_TEST(routing_backward) {
    static const route_case cases[] = {{2, 4, 8, 2, HY_ROUTE_SOFTMAX, true, false},
                                       {1, 6, 9, 4, HY_ROUTE_SOFTMAX, false, true},
                                       {2, 3, 12, 3, HY_ROUTE_SIGMOID, true, true},
                                       {1, 7, 5, 5, HY_ROUTE_SIGMOID, false, false}};
    for (int i = 0; i < 8; i++) {
        bool is_of_losses = i % 2;
        const route_case *c = &cases[i / 2];
        trial f = route_trial(c, 0), b = route_bwd_trial(c, 0, 0.25f * is_of_losses, is_of_losses);
        int out = is_of_losses ? HY_ROUTE_LOSSES : HY_ROUTE_WEIGHTS;
        int64_t count = hy_tensor_count(&f.exact.t[out]);
        double *dy = calloc((size_t)count, sizeof *dy);
        reference_run((f.exact.attr = f.call.attr, &f.exact));
        memcpy(b.exact.t[HY_ROUTE_BWD_CHOICE].data, f.exact.t[HY_ROUTE_CHOICE].data,
               hy_tensor_bytes(&f.exact.t[HY_ROUTE_CHOICE]));
        memcpy(b.exact.t[HY_ROUTE_BWD_LOGITS].data, f.exact.t[HY_ROUTE_LOGITS].data,
               hy_tensor_bytes(&f.exact.t[HY_ROUTE_LOGITS]));
        double *dweights = b.exact.t[HY_ROUTE_BWD_DWEIGHTS].data;
        for (int64_t k = 0; k < count; k++) {
            static const double factors[HY_ROUTE_LOSSES_COUNT] = {0.25, 1, 0};
            dy[k] = is_of_losses ? factors[k % HY_ROUTE_LOSSES_COUNT] : dweights[k];
        }
        if (is_of_losses) memset(dweights, 0, hy_tensor_bytes(&b.exact.t[HY_ROUTE_BWD_DWEIGHTS]));
        reference_run((b.exact.attr = b.call.attr, &b.exact));
        check_gradient(&b.exact, HY_ROUTE_BWD_DLOGITS, &f.exact, HY_ROUTE_LOGITS, out, dy);
        free(dy);
        trial_end(&f);
        trial_end(&b);
    }
}
END_TEST

/* The gradients of both operands of a grouped matmul, as a layer computes them: that of an input
 * that was read through rows is a sum of rows. */
START_TEST(grouped_matmul_backward) {
    static const experts_case c = {5, 4, 2, 3, 4, LOAD_SOME};
    trial sorted = sorted_trial(&c), f = grouped_trial(&c, &grouped_forms[0], 0);
    trial dx = trial_begin(HY_OP_GROUPED_MATMUL, 2), dw = trial_begin(HY_OP_GROUPED_GRAD, 3);
    trial sum = trial_begin(HY_OP_SUM_ROWS, 4);
    f.exact.attr = dx.exact.attr = dw.exact.attr = f.call.attr;
    dx.exact.attr.grouped.trans_b = false;
    trial_normal(&dx, HY_GROUPED_MATMUL_A, HY_F64, 10, c.out, 0, 1); /* dy */
    dx.exact.t[HY_GROUPED_MATMUL_B] = copy_tensor(&f.exact.t[HY_GROUPED_MATMUL_B]);
    take_sorted(&dx, HY_GROUPED_MATMUL_OFFSETS, &sorted, HY_SORT_EXPERTS_OFFSETS);
    trial_tensor(&dx, HY_GROUPED_MATMUL_D, HY_F64, 10, c.in);
    reference_run(&dx.exact);
    sum.exact.t[HY_SUM_ROWS_Y] = copy_tensor(&dx.exact.t[HY_GROUPED_MATMUL_D]);
    take_sorted(&sum, HY_SUM_ROWS_PLACE, &sorted, HY_SORT_EXPERTS_PLACE);
    trial_tensor(&sum, HY_SUM_ROWS_OUT, HY_F64, c.tokens, c.in);
    reference_run(&sum.exact);
    dw.exact.t[HY_GROUPED_GRAD_A] = copy_tensor(&dx.exact.t[HY_GROUPED_MATMUL_A]);
    dw.exact.t[HY_GROUPED_GRAD_B] = copy_tensor(&f.exact.t[HY_GROUPED_MATMUL_A]);
    take_sorted(&dw, HY_GROUPED_GRAD_OFFSETS, &sorted, HY_SORT_EXPERTS_OFFSETS);
    take_sorted(&dw, HY_GROUPED_GRAD_ROWS_B, &sorted, HY_SORT_EXPERTS_ORDER);
    trial_tensor(&dw, HY_GROUPED_GRAD_D, HY_F64, c.experts * c.out, c.in);
    stack_experts(&dw, HY_GROUPED_GRAD_D, c.experts);
    reference_run(&dw.exact);
    const double *dy = dx.exact.t[HY_GROUPED_MATMUL_A].data;
    check_gradient(&sum.exact, HY_SUM_ROWS_OUT, &f.exact, HY_GROUPED_MATMUL_A, HY_GROUPED_MATMUL_D,
                   dy);
    check_gradient(&dw.exact, HY_GROUPED_GRAD_D, &f.exact, HY_GROUPED_MATMUL_B, HY_GROUPED_MATMUL_D,
                   dy);
    trial_end(&sorted);
    trial_end(&f);
    trial_end(&dx);
    trial_end(&sum);
    trial_end(&dw);
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("kernels: reference");
    TCase *all = tcase_create("finite differences");
    tcase_set_timeout(all, 120);
    tcase_add_test(all, norm_backward);
    tcase_add_test(all, head_norm_backward);
    tcase_add_test(all, attention_backward);
    tcase_add_test(all, convolution_backward);
    tcase_add_test(all, delta_rule_backward);
    tcase_add_test(all, gate_backward);
    tcase_add_test(all, head_norm_backward_with_gates);
    tcase_add_test(all, activations_backward);
    tcase_add_test(all, embedding_backward);
    tcase_add_test(all, cross_entropy_gradient);
    tcase_add_test(all, linear_layer_backward);
    tcase_add_test(all, weighted_rows_backward);
    tcase_add_test(all, routing_backward);
    tcase_add_test(all, grouped_matmul_backward);
    suite_add_tcase(suite, all);
    return suite;
}

HY_TEST_MAIN(make_suite)
