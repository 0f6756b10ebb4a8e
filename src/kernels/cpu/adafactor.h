/* adafactor.h: the elementwise part of HY_OP_ADAFACTOR. */
#pragma once

#include "kernels/cpu/cpu.h"

/* Updates elements [at, at + n) of the parameter, n at most HY_CPU_RUN: p and grad have these
 * elements; the rest is in the call's state and workspace. */
void hy_cpu_adafactor_apply(const hy_op_call *call, const float *grad, float *p, int64_t at,
                            int64_t n);
