/* update.h: what the CPU ops of element-wise optimizers share (adamw.c, sgd.c).
 *
 * Such an op brings a function that updates a short run of fp32 numbers; everything around it is here:
 * cutting the tensor into tasks, reading and writing whatever types parameter, gradient and state
 * have, the noise of stochastic rounding, 8-bit codes, and the clip factor of 0 that leaves all as it
 * was. */
#ifndef HY_KERNELS_CPU_UPDATE_H
#define HY_KERNELS_CPU_UPDATE_H

#include "kernels/cpu/rows.h"

#define HY_CPU_UPDATE_STATES 2

/* A call, seen as an update. */
typedef struct hy_cpu_update {
    const hy_tensor *param, *grad, *clip, *master; /* master: data NULL where there is none */
    const hy_tensor *state[HY_CPU_UPDATE_STATES];  /* the first in use; data NULL: kept by nobody */
    int states;
    bool is_signed[HY_CPU_UPDATE_STATES]; /* which codes its 8 bits are */
    uint64_t seed, first;                 /* of the noise */
    /* Updates elements [0, n) of p and state, n at most HY_CPU_RUN; grad_scale: the clip factor. */
    void (*step)(const hy_op_call *call, float grad_scale, const float *grad, float *p,
                 float *const state[HY_CPU_UPDATE_STATES], int64_t n);
} hy_cpu_update;

/* Runs `task` over the elements, which for each task makes the update and calls hy_cpu_update_task. */
hy_status hy_cpu_update_run(const hy_cpu_run *run, const hy_cpu_update *update, hy_cpu_task task);
void hy_cpu_update_task(const hy_op_call *call, const hy_cpu_update *update, int64_t task);

#endif
