/* answers.c: tests the CPU backend against known answers. See selftest.h.
 *
 * Without a second device to compare with, a few ops run on numbers with a result that is known on
 * paper. They cover what differs between machines: the matrix library and its core type, vector
 * code chosen at run time, threads. */
#include <math.h>
#include <stdlib.h>

#include "base/error.h"
#include "kernels/kernels.h"
#include "selftest/selftest.h"

#define SIZE 300 /* larger than a tile of any matrix library */

static void check(hy_selftest_run *run, const char *name, const char *tensor, double found,
                  double expected) {
    double scale = fabs(expected) > 0 ? fabs(expected) : 1;
    hy_selftest_op op = {.size = sizeof op,
                         .name = name,
                         .dtype = "fp32",
                         .tensor = tensor,
                         .error = fabs(found - expected) / scale,
                         .allowed = 1e-5,
                         .message = ""};
    if (isnan(op.error)) op.error = INFINITY;
    op.is_ok = op.error <= op.allowed;
    if (!op.is_ok) op.message = "differs from the known answer";
    hy_selftest_report_op(run, &op);
}

static float sum_of(const float *x, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += (double)x[i];
    return (float)sum;
}

/* a[i][k] = i / SIZE, b[k][j] = j / SIZE: an element of d is i j / SIZE. */
static hy_status test_matmul(hy_selftest_run *run, float *memory) {
    float *a = memory, *b = a + SIZE * SIZE, *d = b + SIZE * SIZE;
    for (int i = 0; i < SIZE; i++) {
        for (int k = 0; k < SIZE; k++) {
            a[i * SIZE + k] = (float)i / SIZE;
            b[k * SIZE + i] = (float)i / SIZE;
        }
    }
    hy_op_call call = {.kind = HY_OP_MATMUL, .attr.matmul.alpha = 1};
    call.t[HY_MATMUL_A] = hy_tensor_2d(a, HY_F32, SIZE, SIZE);
    call.t[HY_MATMUL_B] = hy_tensor_2d(b, HY_F32, SIZE, SIZE);
    call.t[HY_MATMUL_D] = hy_tensor_2d(d, HY_F32, SIZE, SIZE);
    HY_TRY(hy_selftest_run_call(&run->cpu, &call));
    double triangle = (SIZE - 1) / 2.0;
    check(run, "matmul", "sum of d", sum_of(d, SIZE * SIZE), SIZE * triangle * triangle);
    check(run, "matmul", "last of d", d[SIZE * SIZE - 1], (double)(SIZE - 1) * (SIZE - 1) / SIZE);
    return HY_OK;
}

/* All logits are equal: the loss is the logarithm of their number. */
static hy_status test_loss(hy_selftest_run *run, float *memory) {
    int32_t target = 17;
    hy_op_call call = {.kind = HY_OP_CROSS_ENTROPY,
                       .attr.loss = {.vocab = SIZE, .scale = 1, .wants_grad = true}};
    for (int i = 0; i < SIZE; i++) memory[i] = 40;
    call.t[HY_CROSS_ENTROPY_LOGITS] = hy_tensor_2d(memory, HY_F32, 1, SIZE);
    call.t[HY_CROSS_ENTROPY_TARGETS] = hy_tensor_1d(&target, HY_I32, 1);
    call.t[HY_CROSS_ENTROPY_LOSSES] = hy_tensor_1d(memory + SIZE, HY_F32, 1);
    HY_TRY(hy_selftest_run_call(&run->cpu, &call));
    check(run, "cross-entropy", "losses", memory[SIZE], log(SIZE));
    check(run, "cross-entropy", "logits", memory[17], 1.0 / SIZE - 1);
    return HY_OK;
}

/* All keys are equal: every query gets the mean of the values it attends to; v of token j is j. */
static hy_status test_attention(hy_selftest_run *run, float *memory) {
    enum { TOKENS = 100, HEAD = 32 };
    float *qkv = memory, *out = qkv + TOKENS * 3 * HEAD, *lse = out + TOKENS * HEAD;
    for (int token = 0; token < TOKENS; token++)
        for (int i = 0; i < 3 * HEAD; i++)
            qkv[token * 3 * HEAD + i] = i < 2 * HEAD ? 1 : (float)token;
    const hy_heads_attr heads = {
        .batch = 1, .seq = TOKENS, .heads = 1, .kv_heads = 1, .head_dim = HEAD, .scale = 0.5f};
    hy_op_call call = {.kind = HY_OP_ATTENTION, .attr.heads = heads};
    call.t[HY_ATTENTION_QKV] = hy_tensor_2d(qkv, HY_F32, TOKENS, 3 * HEAD);
    call.t[HY_ATTENTION_OUT] = hy_tensor_2d(out, HY_F32, TOKENS, HEAD);
    call.t[HY_ATTENTION_LSE] = hy_tensor_1d(lse, HY_F32, TOKENS);
    HY_TRY(hy_selftest_run_call(&run->cpu, &call));
    check(run, "attention", "out", out[TOKENS * HEAD - 1], (TOKENS - 1) / 2.0);
    check(run, "attention", "lse", lse[TOKENS - 1], HEAD * 0.5 + log(TOKENS));
    return HY_OK;
}

/* Numbers 0, 1, ..: mean (n - 1) / 2, variance (n^2 - 1) / 12. */
static hy_status test_norm(hy_selftest_run *run, float *memory) {
    float *x = memory, *w = x + SIZE, *y = w + SIZE, *mean = y + SIZE, *rstd = mean + 1;
    for (int i = 0; i < SIZE; i++) {
        x[i] = (float)i;
        w[i] = 2;
    }
    hy_op_call call = {.kind = HY_OP_NORM};
    call.t[HY_NORM_X] = hy_tensor_2d(x, HY_F32, 1, SIZE);
    call.t[HY_NORM_WEIGHT] = hy_tensor_1d(w, HY_F32, SIZE);
    call.t[HY_NORM_Y] = hy_tensor_2d(y, HY_F32, 1, SIZE);
    call.t[HY_NORM_MEAN] = hy_tensor_1d(mean, HY_F32, 1);
    call.t[HY_NORM_RSTD] = hy_tensor_1d(rstd, HY_F32, 1);
    HY_TRY(hy_selftest_run_call(&run->cpu, &call));
    double deviation = sqrt(((double)SIZE * SIZE - 1) / 12);
    check(run, "norm", "mean", *mean, (SIZE - 1) / 2.0);
    check(run, "norm", "y", y[SIZE - 1], 2 * (SIZE - 1) / 2.0 / deviation);
    return HY_OK;
}

/* gelu and silu of 1 and 3, from their definitions. */
static hy_status test_activations(hy_selftest_run *run, float *memory) {
    float *x = memory, *y = x + 2 * SIZE;
    for (int i = 0; i < SIZE; i++) {
        x[i] = 1;
        x[SIZE + i] = 3;
    }
    hy_op_call gelu = {.kind = HY_OP_GELU}, swiglu = {.kind = HY_OP_SWIGLU};
    gelu.t[HY_GELU_X] = hy_tensor_2d(x, HY_F32, 2, SIZE);
    gelu.t[HY_GELU_Y] = hy_tensor_2d(y, HY_F32, 2, SIZE);
    HY_TRY(hy_selftest_run_call(&run->cpu, &gelu));
    check(run, "gelu", "y", y[SIZE - 1], 0.8411920);
    swiglu.t[HY_SWIGLU_GATE_UP] = hy_tensor_2d(x, HY_F32, 1, 2 * SIZE); /* gate 1, up 3 */
    swiglu.t[HY_SWIGLU_Y] = hy_tensor_2d(y, HY_F32, 1, SIZE);
    HY_TRY(hy_selftest_run_call(&run->cpu, &swiglu));
    check(run, "swiglu", "y", y[SIZE - 1], 3 / (1 + exp(-1)));
    return HY_OK;
}

/* The length of Adam's first step is the learning rate, whatever the gradient. */
static hy_status test_adamw(hy_selftest_run *run, float *memory) {
    float *p = memory, *g = p + SIZE, *m = g + SIZE, *v = m + SIZE, *clip = v + SIZE;
    for (int i = 0; i < SIZE; i++) {
        p[i] = 1;
        g[i] = (float)(i + 1);
        m[i] = v[i] = 0;
    }
    clip[0] = clip[1] = 1;
    const hy_adamw_attr adamw = {
        .lr = 0.25f, .beta1 = 0.9f, .beta2 = 0.95f, .correction1 = 0.1f, .correction2 = 0.05f};
    hy_op_call call = {.kind = HY_OP_ADAMW, .attr.adamw = adamw};
    call.t[HY_UPDATE_PARAM] = hy_tensor_1d(p, HY_F32, SIZE);
    call.t[HY_UPDATE_GRAD] = hy_tensor_1d(g, HY_F32, SIZE);
    call.t[HY_UPDATE_M] = hy_tensor_1d(m, HY_F32, SIZE);
    call.t[HY_UPDATE_V] = hy_tensor_1d(v, HY_F32, SIZE);
    call.t[HY_UPDATE_CLIP] = hy_tensor_1d(clip, HY_F32, 2);
    HY_TRY(hy_selftest_run_call(&run->cpu, &call));
    check(run, "adamw", "param", sum_of(p, SIZE), 0.75 * SIZE);
    return HY_OK;
}

hy_status hy_selftest_answers(hy_selftest_run *run) {
    static hy_status (*const tests[])(hy_selftest_run *, float *) = {
        test_matmul, test_loss, test_attention, test_norm, test_activations, test_adamw};
    float *memory = calloc(3 * SIZE * SIZE, sizeof *memory);
    hy_status status = HY_OK;
    if (!memory) return hy_fail(HY_ERR_MEMORY, "no memory for the self-test");
    for (size_t i = 0; i < sizeof tests / sizeof tests[0] && status == HY_OK; i++)
        status = tests[i](run, memory);
    free(memory);
    return status;
}
