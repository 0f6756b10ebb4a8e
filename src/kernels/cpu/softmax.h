/* softmax.h: the row loops shared by attention and the loss (softmax.c). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* The largest of n >= 1 numbers; NaN is ignored. */
float hy_cpu_max(const float *x, int64_t n);

/* The sum of exp(x - shift). The second form also replaces x by the exponentials. */
float hy_cpu_exp_sum(const float *x, float shift, int64_t n);
float hy_cpu_exp_sum_kept(float *x, float shift, int64_t n);

/* x = cap tanh(x) */
void hy_cpu_cap(float *x, float cap, int64_t n);

/* x *= factor */
void hy_cpu_scale(float *x, float factor, int64_t n);

/* Logits as the softmax sees them: inner x, or with a cap: cap tanh(inner x). */
typedef struct hy_logit_shape {
    float factor, inner, cap;
    bool is_plain; /* just x */
} hy_logit_shape;

/* factor 0: 1; softcap 0: none */
static inline hy_logit_shape hy_logit_shape_of(float factor, float softcap) {
    float of = factor != 0 ? factor : 1;
    return (hy_logit_shape){of, softcap > 0 ? of / softcap : of, softcap, of == 1 && softcap == 0};
}

/* z: x as the softmax sees it; may be x */
void hy_cpu_shape_logits(hy_logit_shape s, const float *x, float *z, int64_t n);
