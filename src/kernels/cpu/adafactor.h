/* adafactor.h: the part of HY_OP_ADAFACTOR that goes element by element. */
#pragma once

#include "kernels/cpu/cpu.h"

/* Moves elements [at, at + n) of the parameter, n at most HY_CPU_RUN: p and grad are theirs, the rest is in
 * the call's state and workspace. */
void hy_cpu_adafactor_apply(const hy_op_call *call, const float *grad, float *p, int64_t at,
                            int64_t n);
