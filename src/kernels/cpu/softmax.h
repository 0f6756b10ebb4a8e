/* softmax.h: the row loops shared by attention and the loss (softmax.c). */
#pragma once

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
