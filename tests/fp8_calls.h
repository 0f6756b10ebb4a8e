/* fp8_calls.h: calls of the ops of fp8, and what must hold of them on every backend: codes and
 * scales are those of fp8.h bit by bit, `largest` is that of what was stored, and a matmul is one
 * of the numbers that codes stand for. */
#ifndef HY_TESTS_FP8_CALLS_H
#define HY_TESTS_FP8_CALLS_H

#include "kernel_rig.h"
#include "kernels/fp8.h"
#include "kernels/ops.h"

/* ---- tensors --------------------------------------------------------------------------------- */

/* Numbers of either sign over 31 powers of two, some of them zero: more than a code has. */
static inline float wide_number(int64_t i, uint64_t seed) {
    uint64_t h = ((uint64_t)i + 1) * 0x9E3779B97F4A7C15ull + seed * 0xD1B54A32D192ED03ull;
    h = (h ^ h >> 29) * 0xBF58476D1CE4E5B9ull;
    h ^= h >> 32;
    if (h % 61 == 0) return 0;
    float mantissa = (float)((int32_t)(h >> 40) - 0x800000) * 0x1p-23f;
    return mantissa * hy_bits_float((uint32_t)(127 - 24 + (int)(h % 31)) << 23);
}

static inline hy_tensor wide_tensor(hy_dtype dtype, int64_t rows, int64_t cols, uint64_t seed) {
    hy_tensor t = hy_tensor_2d(malloc(hy_dtype_bytes(dtype, rows * cols)), dtype, rows, cols);
    ck_assert_ptr_nonnull(t.data);
    for (int64_t i = 0; i < rows * cols; i++) put_real(&t, i, (double)wide_number(i, seed));
    return t;
}

/* Codes to be written, and their scale. */
static inline hy_tensor codes_tensor(hy_dtype dtype, int64_t rows, int64_t cols) {
    hy_tensor t = hy_tensor_2d(calloc((size_t)(rows * cols), 1), dtype, rows, cols);
    t.quant.scale = calloc(1, sizeof(float));
    ck_assert(t.data && t.quant.scale);
    return t;
}

/* Codes of finite numbers, all that there are. */
static inline hy_tensor drawn_codes(hy_dtype dtype, int64_t rows, int64_t cols, float scale,
                                    uint64_t seed) {
    hy_tensor t = codes_tensor(dtype, rows, cols);
    uint32_t largest = dtype == HY_E4M3 ? 0x7e : 0x7b;
    for (int64_t i = 0; i < rows * cols; i++) {
        uint32_t h = (uint32_t)((uint64_t)(i + 1) * 0x9E3779B97F4A7C15ull >> 32) ^ (uint32_t)seed;
        ((uint8_t *)t.data)[i] = (uint8_t)((h % (largest + 1)) | (h >> 8 & 0x80));
    }
    *t.quant.scale = scale;
    return t;
}

static inline hy_tensor one_float(float value) {
    hy_tensor t = hy_tensor_1d(malloc(sizeof(float)), HY_F32, 1);
    *(float *)t.data = value;
    return t;
}

static inline void free_call(hy_op_call *call) {
    for (int i = 0; i < HY_OP_TENSORS; i++) {
        free(call->t[i].data);
        free(call->t[i].quant.scale);
    }
}

/* ---- the largest magnitude ------------------------------------------------------------------- */

static inline float largest_stored(const hy_tensor *t) {
    uint32_t largest = 0;
    for (int64_t i = 0; i < hy_tensor_count(t); i++) {
        uint32_t size = hy_float_bits((float)real_at(t, i)) & 0x7fffffff;
        if (size > largest) largest = size;
    }
    return hy_bits_float(largest);
}

/* Equal, or neither is a number. */
static inline void check_float(float found, float expected, const char *what) {
    bool is_same = isnan(expected) ? isnan(found) : found == expected;
    ck_assert_msg(is_same, "%s is %.9g, expected %.9g", what, (double)found, (double)expected);
}

static inline void check_largest_of(const hy_tensor *x, call_runner run) {
    hy_op_call call = {.kind = HY_OP_LARGEST};
    call.t[HY_LARGEST_X] = *x;
    call.t[HY_LARGEST_OUT] = one_float(-5);
    run(&call);
    check_float(*(float *)call.t[HY_LARGEST_OUT].data, largest_stored(x), "largest magnitude");
    free(call.t[HY_LARGEST_OUT].data);
}

/* The largest anywhere, of either sign; zeros alone; what is not finite. */
static inline void check_largest(hy_dtype dtype, int64_t count, call_runner run) {
    static const double odd[] = {200, -300, INFINITY, -INFINITY, NAN};
    hy_tensor x = wide_tensor(dtype, 1, count, 5);
    check_largest_of(&x, run);
    for (int k = 0; k < 5; k++) { /* each is larger than what was put in before */
        int64_t places[] = {count - 1, 0, count / 2, count / 3, count - 1};
        put_real(&x, places[k], odd[k]);
        check_largest_of(&x, run);
    }
    memset(x.data, 0, hy_tensor_bytes(&x));
    check_largest_of(&x, run);
    free(x.data);
}

/* `largest` of a call that has run: that of its result. And it changes nothing of the result. */
static inline void check_call_largest(hy_op_call *call, call_runner run) {
    int of, at = hy_op_largest(call->kind, &of);
    hy_tensor *result = &call->t[of];
    ck_assert_int_ge(at, 0);
    run(call);
    hy_tensor without = copy_tensor(result);
    call->t[at] = one_float(-5);
    run(call);
    check_float(*(float *)call->t[at].data, largest_stored(result), hy_op_name(call->kind));
    ck_assert_msg(memcmp(without.data, result->data, hy_tensor_bytes(result)) == 0,
                  "%s: another result with largest than without", hy_op_name(call->kind));
    free(without.data);
    free_call(call);
}

static inline void check_norm_largest(hy_dtype dtype, int64_t N, int64_t C, bool is_rms,
                                      call_runner run) {
    hy_op_call call = {.kind = HY_OP_NORM, .attr.norm = {.eps = 1e-5f, .is_rms = is_rms}};
    call.t[HY_NORM_X] = wide_tensor(dtype, N, C, 1);
    call.t[HY_NORM_WEIGHT] = wide_tensor(dtype, 1, C, 2);
    call.t[HY_NORM_WEIGHT].shape[0] = C, call.t[HY_NORM_WEIGHT].ndim = 1;
    call.t[HY_NORM_Y] = wide_tensor(dtype, N, C, 3);
    call.t[HY_NORM_RSTD] = hy_tensor_1d(calloc((size_t)N, sizeof(float)), HY_F32, N);
    check_call_largest(&call, run);
}

/* kind: gelu, its backward, swiglu, its backward, that with active. */
static inline void check_activation_largest(int kind, hy_dtype dtype, int64_t N, int64_t F,
                                            double odd, call_runner run) {
    static const hy_op_kind kinds[] = {HY_OP_GELU, HY_OP_GELU_BWD, HY_OP_SWIGLU, HY_OP_SWIGLU_BWD,
                                       HY_OP_SWIGLU_BWD};
    static const int widths[][4] = {{1, 1}, {1, 1, 1}, {2, 1}, {1, 2, 2}, {1, 2, 2, 1}};
    hy_op_call call = {.kind = kinds[kind]};
    for (int i = 0; i < 4 && widths[kind][i]; i++) {
        call.t[i] = wide_tensor(dtype, N, F * widths[kind][i], (uint64_t)(10 * kind + i));
    }
    if (odd != 0) put_real(&call.t[0], N * F / 2, odd);
    check_call_largest(&call, run);
}

static inline void check_largest_of_ops(hy_dtype dtype, call_runner run) {
    static const int64_t shapes[][2] = {{1, 1}, {3, 40}, {37, 1536}, {5, 1001}, {9, 8192}};
    for (int s = 0; s < 5; s++) {
        int64_t N = shapes[s][0], C = shapes[s][1];
        check_norm_largest(dtype, N, C, s % 2 == 0, run);
        for (int kind = 0; kind < 5; kind++) {
            check_activation_largest(kind, dtype, N, C, 0, run);
            check_activation_largest(kind, dtype, N, C, NAN, run);
        }
    }
    check_norm_largest(dtype, 700, 64, false, run);
    check_norm_largest(dtype, 3, 70000, true, run); /* wider than a block holds */
}

/* ---- codes ----------------------------------------------------------------------------------- */

typedef struct fp8_case {
    int64_t M, C;
    hy_dtype x, codes;
    bool has_codes, has_transposed, has_seen;
} fp8_case;

static inline hy_op_call to_fp8_call(const fp8_case *c, uint64_t seed) {
    static const double before[] = {0.5, 7, 11};
    hy_op_call call = {.kind = HY_OP_TO_FP8};
    call.t[HY_TO_FP8_X] = wide_tensor(c->x, c->M, c->C, seed);
    call.t[HY_TO_FP8_LARGEST] = one_float(largest_stored(&call.t[HY_TO_FP8_X]));
    if (c->has_codes) call.t[HY_TO_FP8_CODES] = codes_tensor(c->codes, c->M, c->C);
    if (c->has_transposed) call.t[HY_TO_FP8_TRANSPOSED] = codes_tensor(c->codes, c->C, c->M);
    if (c->has_seen) {
        call.t[HY_TO_FP8_SEEN] = hy_tensor_1d(malloc(sizeof before), HY_F64, 3);
        memcpy(call.t[HY_TO_FP8_SEEN].data, before, sizeof before);
    }
    return call;
}

static inline void check_code(const hy_tensor *t, int64_t at, uint8_t expected, float x) {
    uint8_t found = ((const uint8_t *)t->data)[at];
    if (found == expected) return;
    ck_abort_msg("element %lld of %lld x %lld is code %02x, expected %02x of %.9g", (long long)at,
                 (long long)t->shape[0], (long long)t->shape[1], found, expected, (double)x);
}

static inline void check_seen(const hy_op_call *call, double lost) {
    const double *seen = call->t[HY_TO_FP8_SEEN].data;
    double largest = (double)*(float *)call->t[HY_TO_FP8_LARGEST].data;
    if (!seen) return;
    check_float((float)seen[0], (float)(largest <= 0.5 ? 0.5 : largest),
                "the largest that was seen");
    ck_assert_double_eq(seen[1], 7 + lost);
    ck_assert_double_eq(seen[2], 11 + (double)hy_tensor_count(&call->t[HY_TO_FP8_X]));
}

/* What a call that has run wrote: codes and scales of fp8.h, as they lie and transposed. */
static inline void check_codes(const hy_op_call *call) {
    const hy_tensor *x = &call->t[HY_TO_FP8_X], *codes = &call->t[HY_TO_FP8_CODES],
                    *transposed = &call->t[HY_TO_FP8_TRANSPOSED];
    hy_dtype dtype = codes->data ? codes->dtype : transposed->dtype;
    float largest = *(float *)call->t[HY_TO_FP8_LARGEST].data;
    float inverse = hy_fp8_inverse(dtype, largest), scale = hy_fp8_scale(dtype, largest);
    int64_t M = hy_tensor_height(x), C = hy_tensor_width(x), lost = 0;
    for (int64_t i = 0; i < M * C; i++) {
        float value = (float)real_at(x, i);
        uint8_t code = hy_fp8_encode(dtype, value * inverse);
        lost += (code & 0x7f) == 0 && value != 0;
        if (codes->data) check_code(codes, i, code, value);
        if (transposed->data) check_code(transposed, i % C * M + i / C, code, value);
    }
    if (codes->data) check_float(*codes->quant.scale, scale, "the scale of codes");
    if (transposed->data)
        check_float(*transposed->quant.scale, scale, "the scale of transposed codes");
    check_seen(call, (double)lost);
}

static inline void check_to_fp8(const fp8_case *c, uint64_t seed, call_runner run) {
    hy_op_call call = to_fp8_call(c, seed);
    run(&call);
    check_codes(&call);
    free_call(&call);
}

/* Every type, both kinds of codes, each and both of the results, with and without seen. */
static inline void check_to_fp8_forms(int64_t M, int64_t C, call_runner run) {
    static const hy_dtype reals[] = {HY_F32, HY_BF16, HY_F16};
    for (int i = 0; i < 36; i++) {
        fp8_case c = {.M = M,
                      .C = C,
                      .x = reals[i % 3],
                      .codes = i / 3 % 2 ? HY_E5M2 : HY_E4M3,
                      .has_codes = i / 6 % 3 != 1,
                      .has_transposed = i / 6 % 3 != 0,
                      .has_seen = i / 18};
        check_to_fp8(&c, (uint64_t)i, run);
    }
}

/* Something that is not finite: no code is a number, nor is the scale. */
static inline void check_no_numbers(int64_t M, int64_t C, double odd, call_runner run) {
    fp8_case c = {M, C, HY_BF16, HY_E5M2, true, true, true};
    hy_op_call call = to_fp8_call(&c, 3);
    put_real(&call.t[HY_TO_FP8_X], M * C / 2, odd);
    *(float *)call.t[HY_TO_FP8_LARGEST].data = largest_stored(&call.t[HY_TO_FP8_X]);
    run(&call);
    check_codes(&call);
    ck_assert(isnan(*call.t[HY_TO_FP8_CODES].quant.scale));
    for (int64_t i = 0; i < M * C; i++) {
        ck_assert_uint_eq(((uint8_t *)call.t[HY_TO_FP8_CODES].data)[i], 0x7f);
    }
    free_call(&call);
}

/* All bf16 numbers at a scale of 1: each way of rounding, both ends. */
static inline void check_every_bf16(hy_dtype dtype, call_runner run) {
    fp8_case c = {256, 256, HY_BF16, dtype, true, true, true};
    hy_op_call call = to_fp8_call(&c, 1);
    for (int i = 0; i < 65536; i++) {
        ((uint16_t *)call.t[HY_TO_FP8_X].data)[i] = (i & 0x7f80) == 0x7f80 ? 0 : (uint16_t)i;
    }
    *(float *)call.t[HY_TO_FP8_LARGEST].data = dtype == HY_E4M3 ? 448 : 57344;
    run(&call);
    ck_assert_float_eq(*call.t[HY_TO_FP8_CODES].quant.scale, 1);
    check_codes(&call);
    free_call(&call);
}

static inline void check_transposing(hy_dtype dtype, int64_t M, int64_t C, call_runner run) {
    hy_op_call call = {.kind = HY_OP_TO_FP8};
    call.t[HY_TO_FP8_X] = drawn_codes(dtype, M, C, 0.125f, 9);
    call.t[HY_TO_FP8_TRANSPOSED] = codes_tensor(dtype, C, M);
    run(&call);
    const uint8_t *from = call.t[HY_TO_FP8_X].data;
    for (int64_t i = 0; i < M * C; i++) {
        check_code(&call.t[HY_TO_FP8_TRANSPOSED], i % C * M + i / C, from[i], 0);
    }
    ck_assert_float_eq(*call.t[HY_TO_FP8_TRANSPOSED].quant.scale, 0.125f);
    free_call(&call);
}

/* ---- matmul ---------------------------------------------------------------------------------- */

typedef struct fp8_matmul {
    int64_t M, N, K;
    hy_dtype a, b, d;
    bool has_bias, has_c, accumulate, is_fast;
} fp8_matmul;

static const fp8_matmul fp8_matmuls[] = {
    {64, 256, 512, HY_E4M3, HY_E4M3, HY_BF16, false, false, false, false},
    {64, 256, 512, HY_E4M3, HY_E4M3, HY_BF16, true, false, false, true},
    {272, 144, 80, HY_E4M3, HY_E4M3, HY_BF16, true, true, false, false},
    {272, 144, 80, HY_E5M2, HY_E4M3, HY_BF16, false, false, false, false},
    {128, 96, 2048, HY_E5M2, HY_E4M3, HY_F32, false, false, true, false},
    {128, 96, 2048, HY_E4M3, HY_E5M2, HY_F32, false, false, false, true},
    {128, 96, 512, HY_E4M3, HY_E4M3, HY_F32, true, false, false, false},
    {96, 128, 512, HY_E4M3, HY_E4M3, HY_F16, true, true, false, false},
};
enum { FP8_MATMULS = sizeof fp8_matmuls / sizeof fp8_matmuls[0] };

/* Codes of normal numbers: those drawn evenly are all as large as the largest few. */
static inline hy_tensor normal_codes(hy_dtype dtype, int64_t rows, int64_t cols, float scale,
                                     uint64_t seed) {
    hy_tensor t = codes_tensor(dtype, rows, cols);
    for (int64_t i = 0; i < rows * cols; i++) {
        double z = hy_rng_normal(seed, HY_RNG_TEST, (uint64_t)i);
        ((uint8_t *)t.data)[i] = hy_fp8_encode(dtype, (float)z);
    }
    *t.quant.scale = scale;
    return t;
}

static inline hy_tensor normal_tensor(hy_dtype dtype, int64_t rows, int64_t cols, uint64_t seed) {
    hy_tensor t = hy_tensor_2d(malloc(hy_dtype_bytes(dtype, rows * cols)), dtype, rows, cols);
    for (int64_t i = 0; i < rows * cols; i++) {
        put_real(&t, i, hy_rng_normal(seed, HY_RNG_TEST, (uint64_t)i));
    }
    return t;
}

static inline hy_op_call fp8_matmul_call(const fp8_matmul *m) {
    hy_op_call call = {.kind = HY_OP_MATMUL};
    call.attr.matmul.trans_b = true;
    call.attr.matmul.alpha = 0.5f;
    call.attr.matmul.is_fast = m->is_fast;
    call.attr.accumulate = m->accumulate;
    call.t[HY_MATMUL_A] = normal_codes(m->a, m->M, m->K, 0.25f, 1);
    call.t[HY_MATMUL_B] = normal_codes(m->b, m->N, m->K, 2, 2);
    call.t[HY_MATMUL_D] = normal_tensor(m->d, m->M, m->N, 3);
    if (m->has_c) call.t[HY_MATMUL_C] = normal_tensor(m->d, m->M, m->N, 4);
    if (m->has_bias) {
        call.t[HY_MATMUL_BIAS] = normal_tensor(m->d == HY_F16 ? HY_F16 : HY_BF16, 1, m->N, 5);
        call.t[HY_MATMUL_BIAS].shape[0] = m->N, call.t[HY_MATMUL_BIAS].ndim = 1;
    }
    return call;
}

/* Codes as doubles, without the scale. */
static inline double *decoded(const hy_tensor *t) {
    int64_t count = hy_tensor_count(t);
    double *x = malloc((size_t)count * sizeof *x);
    for (int64_t i = 0; i < count; i++) {
        x[i] = (double)hy_fp8_decode(t->dtype, ((const uint8_t *)t->data)[i]);
    }
    return x;
}

/* What the call should write into d, to be freed. */
static inline double *fp8_matmul_expected(const hy_op_call *call) {
    const hy_tensor *t = call->t, *d = &t[HY_MATMUL_D];
    const hy_tensor *start = call->attr.accumulate ? d : &t[HY_MATMUL_C];
    int64_t M = d->shape[0], N = d->shape[1], K = t[HY_MATMUL_A].shape[1];
    double *a = decoded(&t[HY_MATMUL_A]), *b = decoded(&t[HY_MATMUL_B]);
    double *out = malloc((size_t)(M * N) * sizeof *out);
    double scale = (double)call->attr.matmul.alpha * (double)*t[HY_MATMUL_A].quant.scale *
                   (double)*t[HY_MATMUL_B].quant.scale;
    for (int64_t i = 0; i < M * N; i++) {
        const double *row = a + i / N * K, *column = b + i % N * K;
        double sum = 0;
        for (int64_t k = 0; k < K; k++) sum += row[k] * column[k];
        out[i] = scale * sum + (start->data ? real_at(start, i) : 0);
        if (t[HY_MATMUL_BIAS].data) out[i] += real_at(&t[HY_MATMUL_BIAS], i % N);
    }
    free(a);
    free(b);
    return out;
}

/* `served` runs a call and says whether it did; the result may be off by `allowed` beside its
 * rounding. */
static inline bool check_fp8_matmul(const fp8_matmul *m, double allowed,
                                    bool (*served)(const hy_op_call *call)) {
    hy_op_call call = fp8_matmul_call(m);
    double *expected = fp8_matmul_expected(&call);
    bool has_run = served(&call);
    if (has_run) {
        double found = distance(&call.t[HY_MATMUL_D], expected);
        allowed += tolerance_of(m->d);
        ck_assert_msg(found <= allowed, "%lld x %lld x %lld, %s by %s into %s: off by %.3g of %.3g",
                      (long long)m->M, (long long)m->N, (long long)m->K, hy_dtype_name(m->a),
                      hy_dtype_name(m->b), hy_dtype_name(m->d), found, allowed);
    }
    free(expected);
    free_call(&call);
    return has_run;
}

/* What is not finite in x is not lost on the way to the product, wherever it stands. */
static inline void check_nan_product(double odd, call_runner run) {
    fp8_case c = {32, 64, HY_BF16, HY_E4M3, true, false, false};
    fp8_matmul m = {32, 48, 64, HY_E4M3, HY_E4M3, HY_BF16, false, false, false, false};
    hy_op_call codes = to_fp8_call(&c, 1), matmul = fp8_matmul_call(&m);
    put_real(&codes.t[HY_TO_FP8_X], 77, odd);
    *(float *)codes.t[HY_TO_FP8_LARGEST].data = largest_stored(&codes.t[HY_TO_FP8_X]);
    run(&codes);
    hy_tensor made = codes.t[HY_TO_FP8_CODES];
    memcpy(matmul.t[HY_MATMUL_A].data, made.data, hy_tensor_bytes(&made));
    *matmul.t[HY_MATMUL_A].quant.scale = *made.quant.scale;
    run(&matmul);
    for (int64_t i = 0; i < m.M * m.N; i++) {
        ck_assert(isnan(real_at(&matmul.t[HY_MATMUL_D], i)));
    }
    free_call(&codes);
    free_call(&matmul);
}

#endif
