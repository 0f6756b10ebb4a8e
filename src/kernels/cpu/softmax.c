/* softmax.c: maximum and exponentials of a run of numbers. See softmax.h. */
#include "kernels/cpu/softmax.h"

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vector_math.h"

/* Four independent stretches: each comparison depends only on the one before it in its own
 * stretch. */
HY_CLONES float hy_cpu_max(const float *x, int64_t n) {
    int64_t quarter = n / 4;
    const float *second = x + quarter, *third = second + quarter, *fourth = third + quarter;
    float a = x[0], b = a, c = a, d = a;
    HY_SIMD_MAX(a, b, c, d)
    for (int64_t i = 0; i < quarter; i++) {
        a = x[i] > a ? x[i] : a;
        b = second[i] > b ? second[i] : b;
        c = third[i] > c ? third[i] : c;
        d = fourth[i] > d ? fourth[i] : d;
    }
    a = a > b ? a : b;
    c = c > d ? c : d;
    a = a > c ? a : c;
    for (int64_t i = 4 * quarter; i < n; i++) a = x[i] > a ? x[i] : a;
    return a;
}

/* Sums use fp32 over SHORT elements and are added in double, so long rows lose no precision. */
enum { SHORT = 256 };

static inline __attribute__((always_inline)) float exp_sum(const float *x, float *kept, float shift,
                                                           int64_t n) {
    double total = 0;
    for (int64_t at = 0; at < n; at += SHORT) {
        int64_t end = hy_min64(at + SHORT, n);
        float sum = 0;
        HY_SIMD_SUM(sum)
        for (int64_t i = at; i < end; i++) {
            float e = hy_exp(x[i] - shift);
            if (kept) kept[i] = e;
            sum += e;
        }
        total += (double)sum;
    }
    return (float)total;
}

HY_CLONES float hy_cpu_exp_sum(const float *x, float shift, int64_t n) {
    return exp_sum(x, NULL, shift, n);
}

HY_CLONES float hy_cpu_exp_sum_kept(float *x, float shift, int64_t n) {
    return exp_sum(x, x, shift, n);
}

HY_CLONES void hy_cpu_cap(float *x, float cap, int64_t n) {
    HY_SIMD
    for (int64_t i = 0; i < n; i++) x[i] = cap * hy_tanh(x[i]);
}

HY_CLONES void hy_cpu_scale(float *x, float factor, int64_t n) {
    HY_SIMD
    for (int64_t i = 0; i < n; i++) x[i] *= factor;
}

HY_CLONES void hy_cpu_shape_logits(hy_logit_shape s, const float *x, float *z, int64_t n) {
    if (s.cap > 0) {
        HY_SIMD
        for (int64_t i = 0; i < n; i++) z[i] = s.cap * hy_tanh(s.inner * x[i]);
    } else {
        HY_SIMD
        for (int64_t i = 0; i < n; i++) z[i] = s.inner * x[i];
    }
}
