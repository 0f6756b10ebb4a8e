/* fp8.c: the largest magnitude of a tensor, and its fp8 values (fp8.h), in the same layout and
 * transposed.
 *
 * A maximum and a count do not depend on the order, so tasks update the result directly. */
#include <string.h>

#include "kernels/cpu/rows.h"

#define ELEMENTS_PER_TASK (64 * 1024)
#define ROWS_PER_TASK 64 /* transposed: a cache line of values */

void hy_cpu_read_fp8(const hy_tensor *t, int64_t at, int64_t n, float *out) {
    const uint8_t *codes = (const uint8_t *)t->data + at;
    float scale = *t->quant.scale;
    for (int64_t i = 0; i < n; i++) out[i] = scale * hy_fp8_decode(t->dtype, codes[i]);
}

/* ---- the largest magnitude ------------------------------------------------------------------- */

/* As an integer: the bits of NaN are larger than those of any number. */
HY_CLONES static uint32_t largest_of(const float *x, int64_t n) {
    uint32_t largest = 0;
    HY_SIMD_MAX(largest)
    for (int64_t i = 0; i < n; i++) {
        uint32_t size = hy_float_bits(x[i]) & 0x7fffffff;
        largest = size > largest ? size : largest;
    }
    return largest;
}

static void raise_to(uint32_t *out, uint32_t bits) {
    uint32_t now = __atomic_load_n(out, __ATOMIC_RELAXED);
    while (bits > now && !__atomic_compare_exchange_n(out, &now, bits, false, __ATOMIC_RELAXED,
                                                      __ATOMIC_RELAXED)) {}
}

static void largest_elements(const hy_op_call *call, int64_t at, int64_t n) {
    float buffer[HY_CPU_RUN];
    const float *x = hy_read(&call->t[HY_LARGEST_X], at, n, buffer);
    raise_to(call->t[HY_LARGEST_OUT].data, largest_of(x, n));
}

hy_status hy_cpu_largest(const hy_cpu_run *run) {
    memset(run->call->t[HY_LARGEST_OUT].data, 0, sizeof(float));
    int64_t count = hy_tensor_count(&run->call->t[HY_LARGEST_X]);
    return hy_cpu_for_elements(run, count, ELEMENTS_PER_TASK, largest_elements);
}

hy_status hy_cpu_largest_of(const hy_cpu_run *run) {
    int of, at = hy_op_largest(run->call->kind, &of);
    if (at < 0 || !run->call->t[at].data) return HY_OK;
    hy_op_call call = {.kind = HY_OP_LARGEST};
    call.t[HY_LARGEST_X] = run->call->t[of];
    call.t[HY_LARGEST_OUT] = run->call->t[at];
    hy_cpu_run behind = *run;
    behind.call = &call;
    return hy_cpu_largest(&behind);
}

/* ---- fp8 values ------------------------------------------------------------------------------ */

static void add_to(double *out, double count) {
    double now;
    __atomic_load(out, &now, __ATOMIC_RELAXED);
    double sum = now + count;
    while (!__atomic_compare_exchange(out, &now, &sum, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
        sum = now + count;
    }
}

/* Writes a row of values into a column. */
static void transpose_row(const uint8_t *codes, int64_t n, int64_t height, uint8_t *out) {
    for (int64_t i = 0; i < n; i++) out[i * height] = codes[i];
}

static int64_t encode_run(hy_dtype dtype, const float *x, float inverse, int64_t n, uint8_t *out) {
    int64_t lost = 0;
    for (int64_t i = 0; i < n; i++) {
        out[i] = hy_fp8_encode(dtype, x[i] * inverse);
        lost += (out[i] & 0x7f) == 0 && x[i] != 0;
    }
    return lost;
}

static void encode_rows(const hy_op_call *call, int64_t first, int64_t rows) {
    const hy_tensor *x = &call->t[HY_TO_FP8_X], *codes = &call->t[HY_TO_FP8_CODES],
                    *transposed = &call->t[HY_TO_FP8_TRANSPOSED], *seen = &call->t[HY_TO_FP8_SEEN];
    hy_dtype dtype = codes->data ? codes->dtype : transposed->dtype;
    int64_t C = hy_tensor_width(x), M = hy_tensor_height(x), lost = 0;
    float inverse = hy_fp8_inverse(dtype, *(const float *)call->t[HY_TO_FP8_LARGEST].data);
    float buffer[HY_CPU_RUN];
    uint8_t made[HY_CPU_RUN];
    for (int64_t row = first; row < first + rows; row++) {
        for (int64_t at = 0; at < C; at += HY_CPU_RUN) {
            int64_t n = hy_min64(HY_CPU_RUN, C - at), from = row * C + at;
            lost += encode_run(dtype, hy_read(x, from, n, buffer), inverse, n, made);
            if (codes->data) memcpy((uint8_t *)codes->data + from, made, (size_t)n);
            if (transposed->data)
                transpose_row(made, n, M, (uint8_t *)transposed->data + at * M + row);
        }
    }
    if (seen->data) add_to((double *)seen->data + 1, (double)lost);
}

static void transpose_rows(const hy_op_call *call, int64_t first, int64_t rows) {
    const hy_tensor *x = &call->t[HY_TO_FP8_X];
    int64_t C = hy_tensor_width(x), M = hy_tensor_height(x);
    const uint8_t *codes = x->data;
    uint8_t *out = call->t[HY_TO_FP8_TRANSPOSED].data;
    for (int64_t row = first; row < first + rows; row++) {
        transpose_row(codes + row * C, C, M, out + row);
    }
}

hy_status hy_cpu_to_fp8(const hy_cpu_run *run) {
    const hy_tensor *t = run->call->t, *x = &t[HY_TO_FP8_X];
    bool is_transposing = hy_is_fp8(x->dtype);
    hy_dtype dtype = t[t[HY_TO_FP8_CODES].data ? HY_TO_FP8_CODES : HY_TO_FP8_TRANSPOSED].dtype;
    float largest = is_transposing ? 0 : *(const float *)t[HY_TO_FP8_LARGEST].data;
    float scale = is_transposing ? *x->quant.scale : hy_fp8_scale(dtype, largest);
    double *seen = t[HY_TO_FP8_SEEN].data;
    if (t[HY_TO_FP8_CODES].data) *t[HY_TO_FP8_CODES].quant.scale = scale;
    if (t[HY_TO_FP8_TRANSPOSED].data) *t[HY_TO_FP8_TRANSPOSED].quant.scale = scale;
    if (seen) { /* NaN counts as larger than all numbers */
        bool has_number = seen[0] == seen[0];
        if (has_number && !((double)largest <= seen[0])) seen[0] = (double)largest;
        seen[2] += (double)hy_tensor_count(x);
    }
    return hy_cpu_for_rows(run, hy_tensor_height(x), ROWS_PER_TASK,
                           is_transposing ? transpose_rows : encode_rows);
}
