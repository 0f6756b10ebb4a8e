/* test_kernels_reference.c: the reference's backward ops against finite differences of its forward
 * ops.
 *
 * The scalar is L = sum(dy * out) with random dy. Each input element is moved both ways by a small
 * step; in double precision the quotient is good to about nine digits. */
#include "kernel_rig.h"

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
        trial_normal(&f, 0, HY_F64, 5, 13, 0.5, 1);
        trial_normal(&f, 1, HY_F64, 0, 13, 1, 0.5);
        trial_normal(&f, 2, HY_F64, 0, 13, 0, 0.5);
        trial_tensor(&f, 3, HY_F64, 5, 13);
        trial_tensor(&f, 4, HY_F64, 0, 5);
        trial_tensor(&f, 5, HY_F64, 0, 5);
        reference_run(&f.exact);
        trial_normal(&b, 0, HY_F64, 5, 13, 0, 1);
        share(&b, &f, (const int[][2]){{1, 0}, {2, 1}, {3, 4}, {4, 5}, {-1, -1}});
        if (has_residual) trial_normal(&b, 5, HY_F64, 5, 13, 0, 1);
        trial_tensor(&b, 6, HY_F64, 5, 13);
        trial_tensor(&b, 7, HY_F64, 0, 13);
        trial_tensor(&b, 8, HY_F64, 0, 13);
        reference_run(&b.exact);
        double *dx = b.exact.t[6].data;
        for (int i = 0; has_residual && i < 5 * 13; i++) dx[i] -= ((double *)b.exact.t[5].data)[i];
        for (int i = 0; i < 3; i++)
            check_gradient(&b.exact, 6 + i, &f.exact, i, 3, b.exact.t[0].data);
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

START_TEST(head_norm_backward) {
    trial f = trial_begin(HY_OP_HEAD_NORM, 1), b = trial_begin(HY_OP_HEAD_NORM_BWD, 2);
    set_heads(&f.exact.attr, 1, 3, 0);
    trial_normal(&f, 0, HY_F64, 3, WIDTH, 0, 1);
    trial_normal(&f, 1, HY_F64, 0, 6, 1, 0.5);
    trial_normal(&f, 2, HY_F64, 0, 6, 1, 0.5);
    trial_tensor(&f, 3, HY_F64, 3, WIDTH);
    trial_tensor(&f, 4, HY_F64, 3, 6);
    reference_run(&f.exact);
    trial_normal(&b, 0, HY_F64, 3, WIDTH, 0, 1);
    share(&b, &f, (const int[][2]){{1, 0}, {2, 1}, {3, 2}, {4, 4}, {-1, -1}});
    trial_tensor(&b, 5, HY_F64, 3, WIDTH);
    trial_tensor(&b, 6, HY_F64, 0, 6);
    trial_tensor(&b, 7, HY_F64, 0, 6);
    reference_run(&b.exact);
    for (int i = 0; i < 3; i++) check_gradient(&b.exact, 5 + i, &f.exact, i, 3, b.exact.t[0].data);
    trial_end(&f);
    trial_end(&b);
}
END_TEST

START_TEST(attention_backward) {
    for (int variant = 0; variant < 4; variant++) {
        trial f = trial_begin(HY_OP_ATTENTION, (uint64_t)variant);
        trial b = trial_begin(HY_OP_ATTENTION_BWD, (uint64_t)variant + 9);
        set_heads(&f.exact.attr, 2, 7, variant & 1 ? 3 : 0);
        trial_normal(&f, 0, HY_F64, 14, WIDTH, 0, 1);
        if (variant & 2) {
            trial_tensor(&f, 1, HY_I32, 0, 14);
            for (int i = 0; i < 14; i++) trial_put(&f, 1, i, i % 7 < 4 ? 0 : 4);
        }
        trial_tensor(&f, 2, HY_F64, 14, 24);
        trial_tensor(&f, 3, HY_F64, 0, 2 * 4 * 7);
        reference_run(&f.exact);
        trial_normal(&b, 0, HY_F64, 14, 24, 0, 1);
        share(&b, &f, (const int[][2]){{1, 0}, {2, 1}, {3, 2}, {4, 3}, {-1, -1}});
        trial_tensor(&b, 5, HY_F64, 14, WIDTH);
        reference_run(&b.exact);
        check_gradient(&b.exact, 5, &f.exact, 0, 2, b.exact.t[0].data);
        trial_end(&f);
        trial_end(&b);
    }
}
END_TEST

START_TEST(activations_backward) {
    for (int is_swiglu = 0; is_swiglu < 2; is_swiglu++) {
        trial f = trial_begin(is_swiglu ? HY_OP_SWIGLU : HY_OP_GELU, 1);
        trial b = trial_begin(is_swiglu ? HY_OP_SWIGLU_BWD : HY_OP_GELU_BWD, 2);
        int64_t width = is_swiglu ? 34 : 17;
        trial_normal(&f, 0, HY_F64, 3, width, 0, 2);
        trial_tensor(&f, 1, HY_F64, 3, 17);
        trial_normal(&b, 0, HY_F64, 3, 17, 0, 1);
        share(&b, &f, (const int[][2]){{1, 0}, {-1, -1}});
        trial_tensor(&b, 2, HY_F64, 3, width);
        reference_run(&b.exact);
        check_gradient(&b.exact, 2, &f.exact, 0, 1, b.exact.t[0].data);
        trial_end(&f);
        trial_end(&b);
    }
}
END_TEST

START_TEST(embedding_backward) {
    trial f = trial_begin(HY_OP_EMBED, 1), b = trial_begin(HY_OP_EMBED_BWD, 2);
    f.exact.attr.embed.seq = 5;
    trial_ints(&f, 0, 10, 0, 3);
    trial_normal(&f, 1, HY_F64, 4, 3, 0, 1);
    trial_normal(&f, 2, HY_F64, 6, 3, 0, 1);
    trial_tensor(&f, 3, HY_F64, 10, 3);
    share(&b, &f, (const int[][2]){{0, 0}, {-1, -1}});
    trial_normal(&b, 1, HY_F64, 10, 3, 0, 1);
    trial_normal(&b, 2, HY_F64, 4, 3, 0, 1);
    trial_normal(&b, 3, HY_F64, 6, 3, 0, 1);
    reference_run(&b.exact);
    check_gradient(&b.exact, 2, &f.exact, 1, 3, b.exact.t[1].data);
    check_gradient(&b.exact, 3, &f.exact, 2, 3, b.exact.t[1].data);
    trial_end(&f);
    trial_end(&b);
}
END_TEST

START_TEST(cross_entropy_gradient) {
    trial f = trial_begin(HY_OP_CROSS_ENTROPY, 1), b = trial_begin(HY_OP_CROSS_ENTROPY, 1);
    f.exact.attr.loss.vocab = 9;
    trial_normal(&f, 0, HY_F64, 4, 11, 0, 2);
    trial_ints(&f, 1, 4, 0, 8);
    trial_put(&f, 1, 2, -1);
    trial_tensor(&f, 2, HY_F64, 0, 4);
    double scale[4] = {0.5, 0.5, 0.5, 0.5};
    share(&b, &f, (const int[][2]){{0, 0}, {1, 1}, {2, 2}, {-1, -1}});
    b.exact.attr.loss.wants_grad = true;
    b.exact.attr.loss.scale = 0.5f;
    reference_run(&b.exact);
    check_gradient(&b.exact, 0, &f.exact, 0, 2, scale);
    trial_end(&f);
    trial_end(&b);
}
END_TEST

/* matmul, in the two transposes a linear layer's backward uses, and the column sums of its bias. */
START_TEST(linear_layer_backward) {
    trial f = trial_begin(HY_OP_MATMUL, 1), dx = trial_begin(HY_OP_MATMUL, 2);
    trial dw = trial_begin(HY_OP_MATMUL, 3), db = trial_begin(HY_OP_BIAS_GRAD, 4);
    f.exact.attr.matmul.alpha = dx.exact.attr.matmul.alpha = dw.exact.attr.matmul.alpha = 1;
    f.exact.attr.matmul.trans_b = dw.exact.attr.matmul.trans_a = true;
    trial_normal(&f, 0, HY_F64, 5, 7, 0, 1); /* x (N,C) */
    trial_normal(&f, 1, HY_F64, 4, 7, 0, 1); /* w (F,C) */
    trial_tensor(&f, 2, HY_F64, 5, 4);
    trial_normal(&f, 3, HY_F64, 0, 4, 0, 1);
    trial_normal(&dx, 0, HY_F64, 5, 4, 0, 1); /* dy */
    dx.exact.t[1] = copy_tensor(&f.exact.t[1]);
    trial_tensor(&dx, 2, HY_F64, 5, 7);
    dw.exact.t[0] = copy_tensor(&dx.exact.t[0]);
    dw.exact.t[1] = copy_tensor(&f.exact.t[0]);
    trial_tensor(&dw, 2, HY_F64, 4, 7);
    db.exact.t[0] = copy_tensor(&dx.exact.t[0]);
    trial_tensor(&db, 1, HY_F64, 0, 4);
    reference_run(&dx.exact);
    reference_run(&dw.exact);
    reference_run(&db.exact);
    const double *dy = dx.exact.t[0].data;
    check_gradient(&dx.exact, 2, &f.exact, 0, 2, dy);
    check_gradient(&dw.exact, 2, &f.exact, 1, 2, dy);
    check_gradient(&db.exact, 1, &f.exact, 3, 2, dy);
    trial_end(&f);
    trial_end(&dx);
    trial_end(&dw);
    trial_end(&db);
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("kernels: reference");
    TCase *all = tcase_create("finite differences");
    tcase_set_timeout(all, 120);
    tcase_add_test(all, norm_backward);
    tcase_add_test(all, head_norm_backward);
    tcase_add_test(all, attention_backward);
    tcase_add_test(all, activations_backward);
    tcase_add_test(all, embedding_backward);
    tcase_add_test(all, cross_entropy_gradient);
    tcase_add_test(all, linear_layer_backward);
    suite_add_tcase(suite, all);
    return suite;
}

HY_TEST_MAIN(make_suite)
