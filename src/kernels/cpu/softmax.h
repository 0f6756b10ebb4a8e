/* softmax.h: the row loops that attention and the loss share (softmax.c). */
#pragma once

#include <stdint.h>

/* Largest of n >= 1 numbers; a NaN among them is passed over. */
float hy_cpu_max(const float *x, int64_t n);

/* Sum of exp(x - shift). The second form also leaves the exponentials in place of x. */
float hy_cpu_exp_sum(const float *x, float shift, int64_t n);
float hy_cpu_exp_sum_kept(float *x, float shift, int64_t n);

/* x *= factor */
void hy_cpu_scale(float *x, float factor, int64_t n);
