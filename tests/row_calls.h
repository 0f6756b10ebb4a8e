/* row_calls.h: calls of ops over rows, of random numbers, and what must hold of them on every
 * backend: matmuls, norms, activations, embedding, loss, casts. */
#ifndef HY_TESTS_ROW_CALLS_H
#define HY_TESTS_ROW_CALLS_H

#include "kernel_rig.h"
#include "kernels/coded.h"

/* ---- matmul ---------------------------------------------------------------------------------- */

typedef struct matmul_case {
    int64_t M, N, K;
    bool trans_a, trans_b, has_bias, has_c, accumulate;
} matmul_case;

/* Single rows, sizes that no tile divides, every transpose, each thing that may be added. */
static const matmul_case matmul_cases[] = {
    {1, 1, 1, false, false, false, false, false},
    {1, 777, 130, false, true, true, false, false},
    {3, 5, 700, true, false, false, true, false},
    {129, 67, 33, false, true, true, true, false},
    {300, 515, 70, false, true, false, false, true},
    {70, 200, 1030, true, false, false, false, true},
    {257, 385, 19, true, true, true, false, false},
    {64, 96, 513, false, false, false, false, false},
};
enum { MATMUL_CASES = sizeof matmul_cases / sizeof matmul_cases[0] };

static inline trial matmul_trial(const matmul_case *m, int mixture, uint64_t seed) {
    trial t = trial_begin(HY_OP_MATMUL, seed);
    double size = 1 / sqrt((double)m->K);
    t.call.attr.matmul.alpha = mixture == 0 || mixture == TRAINING_TYPES ? 1.0f : -0.5f;
    t.call.attr.matmul.trans_a = m->trans_a;
    t.call.attr.matmul.trans_b = m->trans_b;
    t.call.attr.accumulate = m->accumulate;
    trial_normal(&t, HY_MATMUL_A, pick_dtype(mixture, &t.dice), m->trans_a ? m->K : m->M,
                 m->trans_a ? m->M : m->K, 0, 1);
    trial_normal(&t, HY_MATMUL_B, pick_dtype(mixture, &t.dice), m->trans_b ? m->N : m->K,
                 m->trans_b ? m->K : m->N, 0, size);
    /* what is added to is a gradient of parameters */
    hy_dtype d = m->accumulate ? pick_grad_dtype(mixture, &t.dice) : pick_dtype(mixture, &t.dice);
    trial_normal(&t, HY_MATMUL_D, d, m->M, m->N, 0, 1);
    if (m->has_bias) trial_normal(&t, HY_MATMUL_BIAS, pick_dtype(mixture, &t.dice), 0, m->N, 0, 1);
    if (m->has_c) trial_normal(&t, HY_MATMUL_C, pick_dtype(mixture, &t.dice), m->M, m->N, 0, 1);
    return t;
}

/* A batch of five matrices behind each other. */
static inline trial batch_trial(const matmul_case *m, int mixture, int32_t most) {
    enum { BATCH = 5 };
    static const int positions[] = {HY_MATMUL_A, HY_MATMUL_B, HY_MATMUL_C, HY_MATMUL_D};
    trial t = matmul_trial(m, mixture, (uint64_t)most);
    for (int i = 0; i < 4; i++) {
        hy_tensor first = t.call.t[positions[i]];
        if (!first.data) continue;
        free(first.data);
        free(t.exact.t[positions[i]].data);
        trial_normal(&t, positions[i], first.dtype, BATCH * first.shape[0], first.shape[1], 0, 0.3);
    }
    t.call.attr.matmul.batch = BATCH;
    t.call.attr.matmul.batch_most = most;
    return t;
}

/* Runs it: each matrix has the bits that it has alone, as long as both are chosen for the same
 * number. */
static inline void check_batch_bits(trial *t, call_runner run) {
    static const int positions[] = {HY_MATMUL_A, HY_MATMUL_B, HY_MATMUL_C, HY_MATMUL_D};
    int32_t batch = t->call.attr.matmul.batch;
    run(&t->call);
    for (int i = 0; i < batch; i++) {
        hy_op_call one = t->call;
        one.attr.matmul.batch = 1;
        for (int k = 0; k < 4; k++) {
            hy_tensor *x = &one.t[positions[k]];
            if (x->data) *x = hy_tensor_rows(x, i * x->shape[0] / batch, x->shape[0] / batch);
        }
        hy_tensor *d = &one.t[HY_MATMUL_D], in_batch = copy_tensor(d);
        memset(d->data, 0xff, hy_tensor_bytes(d));
        run(&one);
        ck_assert_msg(memcmp(d->data, in_batch.data, hy_tensor_bytes(d)) == 0,
                      "matrix %d of %lld x %lld, chosen for %d", i, (long long)d->shape[0],
                      (long long)d->shape[1], t->call.attr.matmul.batch_most);
        free(in_batch.data);
    }
}

static inline void check_matmul_batch(const matmul_case *m, int mixture, int32_t most,
                                      call_runner run) {
    trial t = batch_trial(m, mixture, most);
    check_batch_bits(&t, run);
    t.exact.attr = t.call.attr;
    reference_run(&t.exact);
    trial_check(&t, HY_MATMUL_D, 2);
    trial_end(&t);
}

/* As Muon multiplies: both sides, and sizes that no tile divides. */
static inline void check_matmul_batches(int mixture, call_runner run) {
    static const matmul_case forms[] = {
        {64, 64, 64, false, true, false, false, false},
        {64, 64, 192, false, true, false, false, false},
        {96, 96, 64, true, false, false, false, false},
        {128, 128, 128, false, false, false, true, false},
        {33, 33, 70, false, true, false, false, false},
        {33, 70, 33, false, false, false, true, false},
    };
    static const int32_t most[] = {1, 2, 32};
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        for (int k = 0; k < 3; k++) check_matmul_batch(&forms[i], mixture, most[k], run);
    }
}

/* ---- coded weights --------------------------------------------------------------------------- */

/* Codes and scales of a matrix of two pieces, as they are stored; `t` has room. */
static inline void code_rows(const float *x, hy_tensor *t) {
    int64_t count = hy_tensor_count(t), blocks = count / t->quant.block, half = blocks / 2;
    int32_t group = t->quant.group;
    float *scales = malloc((size_t)blocks * sizeof *scales), *pairs = t->quant.scale;
    hy_coded_encode(t->dtype, x, count, t->quant.block, t->data, scales);
    if (group == 0) {
        memcpy(t->quant.scale, scales, (size_t)blocks * sizeof *scales);
    } else {
        uint8_t *codes = (uint8_t *)(pairs + blocks / group * 2);
        half -= half % group;
        for (int64_t at = 0, n = half; at < blocks; at += n, n = blocks - half) {
            float offset = n > 0 ? hy_nf4_offset(scales + at, n) : 0;
            hy_nf4_put_scales(scales + at, n, offset, group, pairs + at / group * 2, codes + at);
        }
    }
    free(scales);
}

/* Whether the next rows have fp32 scales in any case. */
static bool coded_rows_are_plain;

/* Rows of normal numbers, some of zeros, and the codes of them; data and scales are to be freed.
 * Groups, where there are any, are as large as they can be and leave two of them. */
static inline hy_tensor coded_rows(hy_dtype dtype, int64_t rows, int64_t cols, uint64_t seed) {
    int64_t count = rows * cols;
    int32_t block = hy_coded_block(dtype, rows, cols);
    int32_t group = coded_rows_are_plain ? 0 : hy_coded_most(dtype);
    while (group > 1 && count / block % (2 * group)) group /= 2;
    hy_tensor t = hy_tensor_2d(malloc(hy_dtype_bytes(dtype, count)), dtype, rows, cols);
    t.quant = (hy_quant){.block = block, .group = group};
    t.quant.scale = malloc(hy_tensor_scale_bytes(&t));
    float *x = malloc((size_t)count * sizeof *x);
    for (int64_t i = 0; i < count; i++) {
        int64_t r = i / cols;
        double normal = hy_rng_normal(seed, HY_RNG_TEST, (uint64_t)i);
        x[i] = r % 7 == 5 ? 0 : (float)(normal * (1 + (double)(r % 3)) * 0.1);
    }
    code_rows(x, &t);
    free(x);
    return t;
}

static inline void free_rows(hy_tensor *t) {
    free(t->data);
    free(t->quant.scale);
}

/* The same numbers in a real type, one rounding each; data is to be freed. */
static inline hy_tensor real_rows(const hy_tensor *codes, hy_dtype dtype) {
    int64_t count = hy_tensor_count(codes), blocks = count / codes->quant.block;
    hy_tensor t =
        hy_tensor_2d(malloc(hy_dtype_bytes(dtype, count)), dtype, codes->shape[0], codes->shape[1]);
    float *x = malloc((size_t)count * sizeof *x), *scales = malloc((size_t)blocks * sizeof *x);
    hy_coded_open_scales(codes->quant.group, 0, blocks, codes->quant.scale, scales);
    hy_coded_decode(codes->dtype, codes->data, 0, count, codes->quant.block, scales, x);
    for (int64_t i = 0; i < count; i++) put_real(&t, i, (double)x[i]);
    free(x);
    free(scales);
    return t;
}

/* A matmul by coded rows has the bits of one by the numbers they stand for. */
static inline void check_coded_matmul(hy_dtype dtype, const matmul_case *m, int mixture,
                                      call_runner run) {
    trial t = matmul_trial(m, mixture, 31);
    hy_tensor *b = &t.call.t[HY_MATMUL_B], before = *b;
    hy_dtype operand = t.call.t[HY_MATMUL_A].dtype;
    hy_tensor codes = coded_rows(dtype, before.shape[0], before.shape[1], 5);
    hy_tensor real = real_rows(&codes, operand);
    hy_tensor start = copy_tensor(&t.call.t[HY_MATMUL_D]);
    size_t bytes = hy_tensor_bytes(&start);
    *b = real;
    run(&t.call);
    hy_tensor expected = copy_tensor(&t.call.t[HY_MATMUL_D]);
    memcpy(t.call.t[HY_MATMUL_D].data, start.data, bytes);
    *b = codes;
    run(&t.call);
    ck_assert_msg(memcmp(expected.data, t.call.t[HY_MATMUL_D].data, bytes) == 0,
                  "%s matmul of %lld x %lld x %lld in %s", hy_dtype_name(dtype), (long long)m->M,
                  (long long)m->N, (long long)m->K, hy_dtype_name(operand));
    *b = before;
    free(start.data);
    free(expected.data);
    free(real.data);
    free_rows(&codes);
    trial_end(&t);
}

/* Casts to codes are those of coded.h, bit for bit. */
static inline void check_cast_to_codes(const hy_tensor *real, call_runner run, hy_dtype dtype) {
    hy_tensor made = coded_rows(dtype, real->shape[0], real->shape[1], 10);
    hy_tensor expected = coded_rows(dtype, real->shape[0], real->shape[1], 11);
    int64_t count = hy_tensor_count(real);
    float *x = malloc((size_t)count * sizeof *x);
    for (int64_t k = 0; k < count; k++) { /* ties and all between */
        put_real(real, k, real_at(real, k) * (1 + 0.013 * (double)(k % 11)));
        x[k] = (float)real_at(real, k);
    }
    hy_op_call cast = {.kind = HY_OP_CAST, .t = {[HY_CAST_SRC] = *real, [HY_CAST_DST] = made}};
    run(&cast);
    code_rows(x, &expected);
    ck_assert_mem_eq(expected.quant.scale, made.quant.scale, hy_tensor_scale_bytes(&made));
    ck_assert_mem_eq(expected.data, made.data, hy_tensor_bytes(&made));
    free(x);
    free_rows(&made);
    free_rows(&expected);
}

/* Casts from codes too; those to nf4, or to one scale for all, do not exist. */
static inline void check_coded_casts(hy_dtype dtype, int64_t rows, int64_t cols, call_runner run) {
    static const hy_dtype reals[] = {HY_F32, HY_BF16, HY_F16};
    hy_tensor codes = coded_rows(dtype, rows, cols, 9);
    for (int i = 0; i < 3; i++) {
        hy_tensor real = real_rows(&codes, reals[i]), found = copy_tensor(&real);
        memset(found.data, 0xff, hy_tensor_bytes(&found));
        hy_op_call cast = {.kind = HY_OP_CAST, .t = {[HY_CAST_SRC] = codes, [HY_CAST_DST] = found}};
        run(&cast);
        ck_assert_mem_eq(real.data, found.data, hy_tensor_bytes(&real));
        if (dtype == HY_I8) check_cast_to_codes(&real, run, dtype);
        free(real.data);
        free(found.data);
    }
    free_rows(&codes);
}

/* Rows looked up in a coded table are those of the numbers it stands for; with positions beside. */
static inline void check_coded_embedding(hy_dtype stored, int64_t C, bool has_positions,
                                         hy_dtype dtype, call_runner run) {
    enum { V = 19, T = 6, N = 4 * T };
    int32_t tokens[N];
    hy_tensor codes = coded_rows(stored, V, C, 3), real = real_rows(&codes, dtype);
    hy_tensor positions = coded_rows(stored, T, C, 4), table = real_rows(&positions, dtype);
    hy_tensor x = hy_tensor_2d(malloc((size_t)(N * C) * 4), dtype, N, C), expected;
    for (int i = 0; i < N; i++) tokens[i] = i * 7 % V;
    hy_op_call call = {.kind = HY_OP_EMBED, .attr.embed.seq = T};
    call.t[HY_EMBED_TOKENS] = hy_tensor_1d(tokens, HY_I32, N);
    if (has_positions) call.t[HY_EMBED_WPE] = table;
    call.t[HY_EMBED_X] = x;
    call.t[HY_EMBED_WTE] = real;
    run(&call);
    expected = copy_tensor(&x);
    call.t[HY_EMBED_WTE] = codes;
    run(&call);
    ck_assert_mem_eq(expected.data, x.data, hy_tensor_bytes(&x));
    free(x.data);
    free(expected.data);
    free(real.data);
    free(table.data);
    free_rows(&codes);
    free_rows(&positions);
}

/* ---- norms ----------------------------------------------------------------------------------- */

typedef struct norm_case {
    int64_t N, C;
    uint64_t seed;
    bool is_rms, has_bias, has_residual, wants_dw, wants_db;
    bool adds_residual; /* forward */
    float offset;
} norm_case;

static inline trial norm_trial(const norm_case *n, int mixture) {
    trial t = trial_begin(HY_OP_NORM, n->seed);
    t.call.attr.norm.eps = 1e-5f;
    t.call.attr.norm.is_rms = n->is_rms;
    t.call.attr.norm.offset = n->offset;
    trial_normal(&t, HY_NORM_X, pick_dtype(mixture, &t.dice), n->N, n->C, 0.7, 1);
    trial_normal(&t, HY_NORM_WEIGHT, pick_dtype(mixture, &t.dice), 0, n->C, n->offset ? 0 : 1, 0.5);
    if (n->has_bias) trial_normal(&t, HY_NORM_BIAS, pick_dtype(mixture, &t.dice), 0, n->C, 0, 0.5);
    trial_tensor(&t, HY_NORM_Y, pick_dtype(mixture, &t.dice), n->N, n->C);
    if (!n->is_rms) trial_tensor(&t, HY_NORM_MEAN, HY_F32, 0, n->N);
    trial_tensor(&t, HY_NORM_RSTD, HY_F32, 0, n->N);
    if (n->adds_residual) {
        trial_normal(&t, HY_NORM_RESIDUAL, t.call.t[HY_NORM_Y].dtype, n->N, n->C, 0, 1);
    }
    return t;
}

/* A norm may be added to the residual in place. */
static inline void check_norm_onto_residual(const norm_case *n, int mixture, call_runner run) {
    trial t = norm_trial(n, mixture);
    hy_op_call same = t.call;
    hy_tensor residual = copy_tensor(&t.call.t[HY_NORM_RESIDUAL]);
    same.t[HY_NORM_RESIDUAL] = same.t[HY_NORM_Y] = residual;
    run(&same);
    run(&t.call);
    ck_assert_mem_eq(residual.data, t.call.t[HY_NORM_Y].data, hy_tensor_bytes(&residual));
    free(residual.data);
    trial_end(&t);
}

/* Backward of a forward trial: statistics from the reference, the rest random. */
static inline trial norm_bwd_trial(const norm_case *n, int mixture) {
    trial f = norm_trial(n, mixture), t = trial_begin(HY_OP_NORM_BWD, n->seed + 77);
    f.exact.attr = t.call.attr = f.call.attr;
    reference_run(&f.exact);
    trial_normal(&t, HY_NORM_BWD_DY, pick_dtype(mixture, &t.dice), n->N, n->C, 0, 1);
    for (int i = 0; i < 2; i++) {
        trial_tensor(&t, 1 + i, f.call.t[i].dtype, i == 0 ? n->N : 0, n->C);
        trial_adopt(&t, 1 + i, f.exact.t[i].data);
    }
    if (!n->is_rms) {
        trial_tensor(&t, HY_NORM_BWD_MEAN, HY_F32, 0, n->N);
        trial_adopt(&t, HY_NORM_BWD_MEAN, f.exact.t[HY_NORM_MEAN].data);
    }
    trial_tensor(&t, HY_NORM_BWD_RSTD, HY_F32, 0, n->N);
    trial_adopt(&t, HY_NORM_BWD_RSTD, f.exact.t[HY_NORM_RSTD].data);
    if (n->has_residual)
        trial_normal(&t, HY_NORM_BWD_RESIDUAL, pick_dtype(mixture, &t.dice), n->N, n->C, 0, 1);
    hy_dtype dx =
        n->has_residual ? t.call.t[HY_NORM_BWD_RESIDUAL].dtype : pick_dtype(mixture, &t.dice);
    trial_tensor(&t, HY_NORM_BWD_DX, dx, n->N, n->C);
    if (n->wants_dw)
        trial_normal(&t, HY_NORM_BWD_DWEIGHT, pick_grad_dtype(mixture, &t.dice), 0, n->C, 0, 1);
    if (n->wants_db)
        trial_normal(&t, HY_NORM_BWD_DBIAS, pick_grad_dtype(mixture, &t.dice), 0, n->C, 0, 1);
    trial_end(&f);
    return t;
}

/* The gradient may be written over the residual it is added to. */
static inline void check_norm_over_residual(const norm_case *n, int mixture, call_runner run) {
    trial t = norm_bwd_trial(n, mixture);
    hy_op_call same = t.call;
    hy_tensor residual = copy_tensor(&t.call.t[HY_NORM_BWD_RESIDUAL]);
    same.t[HY_NORM_BWD_RESIDUAL] = same.t[HY_NORM_BWD_DX] = residual;
    run(&same);
    run(&t.call);
    ck_assert_mem_eq(residual.data, t.call.t[HY_NORM_BWD_DX].data, hy_tensor_bytes(&residual));
    free(residual.data);
    trial_end(&t);
}

/* ---- activations ----------------------------------------------------------------------------- */

/* gelu or swiglu, forward or backward; *out is the position of the result. */
static inline trial activation_trial(hy_op_kind op, hy_act kind, int64_t N, int64_t F, int mixture,
                                     int *out) {
    trial t = trial_begin(op, (uint64_t)(F * 10 + mixture));
    bool is_gated = op == HY_OP_SWIGLU || op == HY_OP_SWIGLU_BWD;
    bool is_backward = op == HY_OP_GELU_BWD || op == HY_OP_SWIGLU_BWD;
    int64_t width = is_gated ? 2 * F : F;
    t.call.attr.act.kind = kind;
    if (is_backward) trial_normal(&t, HY_GELU_BWD_DY, pick_dtype(mixture, &t.dice), N, F, 0, 1);
    trial_normal(&t, is_backward, pick_dtype(mixture, &t.dice), N, width, 0, 3);
    *out = is_backward + 1;
    trial_tensor(&t, *out, pick_dtype(mixture, &t.dice), N, is_backward ? width : F);
    return t;
}

/* gelu backward over dy, swiglu backward over gate_up. */
static inline void check_activation_in_place(bool is_swiglu, int64_t N, int64_t F, int mixture,
                                             call_runner run) {
    int dy = is_swiglu ? HY_SWIGLU_BWD_DY : HY_GELU_BWD_DY;
    int x = is_swiglu ? HY_SWIGLU_BWD_GATE_UP : HY_GELU_BWD_X, over = is_swiglu ? x : dy;
    int dx = is_swiglu ? HY_SWIGLU_BWD_DGATE_UP : HY_GELU_BWD_DX;
    trial t = trial_begin(is_swiglu ? HY_OP_SWIGLU_BWD : HY_OP_GELU_BWD, (uint64_t)(F + mixture));
    hy_dtype dtype = pick_dtype(mixture, &t.dice);
    trial_normal(&t, dy, dtype, N, F, 0, 1);
    trial_normal(&t, x, dtype, N, is_swiglu ? 2 * F : F, 0, 2);
    trial_tensor(&t, dx, dtype, N, is_swiglu ? 2 * F : F);
    hy_op_call same = t.call;
    hy_tensor both = copy_tensor(&t.call.t[over]);
    same.t[over] = same.t[dx] = both;
    run(&same);
    run(&t.call);
    ck_assert_mem_eq(both.data, t.call.t[dx].data, hy_tensor_bytes(&both));
    free(both.data);
    trial_end(&t);
}

/* swiglu backward gives swiglu's own bits again, beside dy and in place of it, and the gradient
 * does not change by it. */
static inline void check_swiglu_again(hy_act kind, int64_t N, int64_t F, int mixture,
                                      call_runner run) {
    trial f = trial_begin(HY_OP_SWIGLU, (uint64_t)(F + mixture));
    trial b = trial_begin(HY_OP_SWIGLU_BWD, (uint64_t)(F + mixture));
    hy_dtype dtype = pick_dtype(mixture, &b.dice);
    trial_normal(&b, HY_SWIGLU_BWD_DY, dtype, N, F, 0, 1);
    trial_normal(&b, HY_SWIGLU_BWD_GATE_UP, dtype, N, 2 * F, 0, 2);
    trial_tensor(&b, HY_SWIGLU_BWD_DGATE_UP, dtype, N, 2 * F);
    trial_normal(&f, HY_SWIGLU_Y, dtype, N, F, 0, 1);
    f.call.attr.act.kind = b.call.attr.act.kind = kind;
    f.call.t[HY_SWIGLU_GATE_UP] = b.call.t[HY_SWIGLU_BWD_GATE_UP];
    run(&f.call);
    run(&b.call);
    for (int is_in_place = 0; is_in_place < 2; is_in_place++) {
        hy_op_call call = b.call;
        hy_tensor both = copy_tensor(&b.call.t[HY_SWIGLU_BWD_GATE_UP]),
                  dy = copy_tensor(&b.call.t[HY_SWIGLU_BWD_DY]),
                  active = copy_tensor(&b.call.t[HY_SWIGLU_BWD_DY]);
        call.t[HY_SWIGLU_BWD_DY] = dy;
        call.t[HY_SWIGLU_BWD_ACTIVE] = is_in_place ? dy : active;
        call.t[HY_SWIGLU_BWD_DGATE_UP] = both;
        if (is_in_place) call.t[HY_SWIGLU_BWD_GATE_UP] = both;
        run(&call);
        ck_assert_mem_eq(call.t[HY_SWIGLU_BWD_ACTIVE].data, f.call.t[HY_SWIGLU_Y].data,
                         hy_tensor_bytes(&dy));
        ck_assert_mem_eq(call.t[HY_SWIGLU_BWD_DGATE_UP].data, b.call.t[HY_SWIGLU_BWD_DGATE_UP].data,
                         hy_tensor_bytes(&both));
        free(both.data);
        free(dy.data);
        free(active.data);
    }
    f.call.t[HY_SWIGLU_GATE_UP] = (hy_tensor){0};
    trial_end(&f);
    trial_end(&b);
}

static inline void check_gelu_ends(call_runner run) {
    float ends[] = {-1e30f, -300, -20, -0.0f, 0, 20, 300, 1e30f}, out[8], ones[8], slope[8];
    hy_op_call call = {.kind = HY_OP_GELU}, back = {.kind = HY_OP_GELU_BWD};
    for (int i = 0; i < 8; i++) ones[i] = 1;
    call.t[HY_GELU_X] = back.t[HY_GELU_BWD_X] = hy_tensor_2d(ends, HY_F32, 1, 8);
    call.t[HY_GELU_Y] = hy_tensor_2d(out, HY_F32, 1, 8);
    back.t[HY_GELU_BWD_DY] = hy_tensor_2d(ones, HY_F32, 1, 8);
    back.t[HY_GELU_BWD_DX] = hy_tensor_2d(slope, HY_F32, 1, 8);
    run(&call);
    run(&back);
    for (int i = 0; i < 8; i++) {
        ck_assert_float_eq(out[i], ends[i] > 0 ? ends[i] : 0);
        if (fabsf(ends[i]) > 1e6f)
            continue; /* the slope's cube overflows there, on a CPU as well */
        ck_assert_float_eq_tol(slope[i], i < 3 ? 0.0f : i < 5 ? 0.5f : 1.0f, 1e-6f);
    }
}

/* ---- embedding and loss ---------------------------------------------------------------------- */

/* Documents of 1 to 9 tokens: many begin in a sequence, so that early positions are frequent. */
static inline void embed_doc_starts(trial *t, int64_t B, int64_t T) {
    trial_tensor(t, HY_EMBED_BWD_DOC_STARTS, HY_I32, 0, B * T);
    for (int64_t n = 0, begin = 0, next = 0; n < B * T; n++) {
        if (n % T == 0 || n == next) {
            begin = n % T;
            next = n + 1 + (7 * n + B) % 9;
        }
        trial_put(t, HY_EMBED_BWD_DOC_STARTS, n, (double)begin);
    }
}

/* Of the next calls; 0: none. */
static float embed_scale, logit_factor, logit_softcap;

/* One token in every third place, so that sums are long. variant: 2 adds; 4 alone wants positions
 * and not tokens, with bit 2 both; 8: positions begin anew with each document. */
enum { EMBED_VARIANTS = 16 };
static inline bool embed_wants_tokens(int variant) { return (variant & 7) != 4; }
static inline trial embed_bwd_trial(int variant, int mixture, int64_t B, int64_t T, int64_t V,
                                    int64_t C) {
    trial t = trial_begin(HY_OP_EMBED_BWD, (uint64_t)(10000 * variant + 100 * mixture + C % 97));
    t.call.attr.embed.seq = (int32_t)T;
    t.call.attr.embed.scale = embed_scale;
    t.call.attr.accumulate = variant & 2;
    trial_ints(&t, HY_EMBED_BWD_TOKENS, B * T, 0, V - 1);
    for (int64_t i = 0; 3 * i < B * T; i++)
        trial_put(&t, HY_EMBED_BWD_TOKENS, 3 * i, V > 7 ? 7 : 0);
    trial_normal(&t, HY_EMBED_BWD_DX, pick_dtype(mixture, &t.dice), B * T, C, 0, 1);
    if (embed_wants_tokens(variant)) {
        trial_normal(&t, HY_EMBED_BWD_DWTE, pick_grad_dtype(mixture, &t.dice), V, C, 0, 1);
    }
    if (variant & 4)
        trial_normal(&t, HY_EMBED_BWD_DWPE, pick_grad_dtype(mixture, &t.dice), T + 3, C, 0, 1);
    if (variant & 8) embed_doc_starts(&t, B, T);
    return t;
}

static inline trial loss_trial(int64_t N, int64_t vocab, int64_t V, bool wants_grad, int mixture) {
    trial t = trial_begin(HY_OP_CROSS_ENTROPY, (uint64_t)(vocab * 10 + mixture));
    t.call.attr.loss.vocab = (int32_t)vocab;
    t.call.attr.loss.scale = 0.25f;
    t.call.attr.loss.wants_grad = wants_grad;
    t.call.attr.loss.factor = logit_factor;
    t.call.attr.loss.softcap = logit_softcap;
    trial_normal(&t, HY_CROSS_ENTROPY_LOGITS, pick_dtype(mixture, &t.dice), N, V, 30, 4);
    trial_ints(&t, HY_CROSS_ENTROPY_TARGETS, N, 0, vocab - 1);
    if (N > 1) trial_put(&t, HY_CROSS_ENTROPY_TARGETS, 1, -1);
    trial_tensor(&t, HY_CROSS_ENTROPY_LOSSES, HY_F32, 0, N);
    return t;
}

/* Logits times a factor, capped ones, and both. */
enum { LOGIT_VARIANTS = 3 };
static inline void set_logit_options(int variant) {
    logit_factor = variant == 1 ? 0 : 0.125f;
    logit_softcap = variant == 0 ? 0 : variant == 1 ? 30 : 4;
}

static inline void check_huge_logits(call_runner run) {
    enum { V = 5000 };
    trial t = trial_begin(HY_OP_CROSS_ENTROPY, 1);
    t.call.attr.loss.vocab = V;
    t.call.attr.loss.scale = 1;
    t.call.attr.loss.wants_grad = true;
    trial_tensor(&t, HY_CROSS_ENTROPY_LOGITS, HY_F32, 2, V);
    trial_tensor(&t, HY_CROSS_ENTROPY_TARGETS, HY_I32, 0, 2);
    trial_tensor(&t, HY_CROSS_ENTROPY_LOSSES, HY_F32, 0, 2);
    for (int64_t i = 0; i < V; i++) {
        trial_put(&t, HY_CROSS_ENTROPY_LOGITS, i, i == 3000 ? 1e30 : -1e30);
        trial_put(&t, HY_CROSS_ENTROPY_LOGITS, V + i,
                  i < 4500 ? -INFINITY : 1); /* whole blocks of minus infinity */
    }
    trial_put(&t, HY_CROSS_ENTROPY_TARGETS, 0, 3000);
    trial_put(&t, HY_CROSS_ENTROPY_TARGETS, 1, 4600);
    run(&t.call);
    const float *losses = t.call.t[HY_CROSS_ENTROPY_LOSSES].data,
                *gradient = t.call.t[HY_CROSS_ENTROPY_LOGITS].data;
    ck_assert_float_eq(losses[0], 0);
    ck_assert_float_eq_tol(losses[1], logf(500), 1e-5f);
    for (int64_t i = 0; i < 2 * V; i++) {
        if (!isfinite(gradient[i])) ck_abort_msg("gradient %lld", (long long)i);
    }
    ck_assert_float_eq(gradient[V], 0);
    ck_assert_float_eq_tol(gradient[V + 4600], 1.0f / 500 - 1, 1e-6f);
    trial_end(&t);
}

static inline void check_nan_logits(call_runner run) {
    float logits[6] = {1, 2, NAN, 4, 5, 6}, loss;
    int32_t target = 0;
    hy_op_call call = {.kind = HY_OP_CROSS_ENTROPY, .attr.loss = {.vocab = 6, .scale = 1}};
    call.t[HY_CROSS_ENTROPY_LOGITS] = hy_tensor_2d(logits, HY_F32, 1, 6);
    call.t[HY_CROSS_ENTROPY_TARGETS] = hy_tensor_1d(&target, HY_I32, 1);
    call.t[HY_CROSS_ENTROPY_LOSSES] = hy_tensor_1d(&loss, HY_F32, 1);
    run(&call);
    ck_assert(isnan(loss));
}

/* ---- casts and fills ------------------------------------------------------------------------- */

static inline void check_casts(int64_t count, call_runner run) {
    static const hy_dtype reals[] = {HY_F32, HY_BF16, HY_F16};
    for (int pair = 0; pair < 9; pair++) {
        trial t = trial_begin(HY_OP_CAST, (uint64_t)pair);
        trial_normal(&t, HY_CAST_SRC, reals[pair / 3], 0, count, 0, 1);
        trial_tensor(&t, HY_CAST_DST, reals[pair % 3], 0, count);
        if (count > 3) { /* a tie, a subnormal of fp16, one that is too large for it */
            trial_put(&t, HY_CAST_SRC, 0, 1 + 0x1p-8);
            trial_put(&t, HY_CAST_SRC, 1, 3e-7);
            trial_put(&t, HY_CAST_SRC, 2, 7e4);
        }
        run(&t.call);
        for (int64_t i = 0; i < count; i++) {
            double found = real_at(&t.call.t[HY_CAST_DST], i);
            trial_put(&t, HY_CAST_DST, i,
                      real_at(&t.call.t[HY_CAST_SRC], i)); /* rounds one number, by half.h */
            if (found != real_at(&t.call.t[HY_CAST_DST], i))
                ck_abort_msg("element %lld", (long long)i);
        }
        trial_end(&t);
    }
}

static inline void check_fill(int64_t count, call_runner run) {
    static const hy_dtype all[] = {HY_F32, HY_BF16, HY_F16, HY_F64, HY_I32};
    for (int i = 0; i < 5; i++) {
        trial t = trial_begin(HY_OP_FILL, 0);
        t.call.attr.fill.value = -3;
        trial_tensor(&t, HY_FILL_DST, all[i], 0, count);
        run(&t.call);
        for (int64_t k = 0; k < count; k++) {
            if (real_at(&t.call.t[HY_FILL_DST], k) != -3)
                ck_abort_msg("element %lld", (long long)k);
        }
        trial_end(&t);
    }
}

#endif
