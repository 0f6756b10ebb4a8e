/* add_parts.c: the sum of numbers over ranks, from rank 0 on, in whatever order they arrived.
 * Elementwise, in fp32. */
#include "kernels/cpu/rows.h"

#define ELEMENTS_PER_TASK (64 * 1024)

/* The numbers of a rank: this rank's own, or one of the others. */
static const float *read_rank(const hy_op_call *call, int64_t rank, int64_t at, int64_t n,
                              float *buffer) {
    int64_t here = call->attr.add_parts.rank, part = rank < here ? rank : rank - 1;
    if (rank == here) return hy_read(&call->t[HY_ADD_PARTS_OWN], at, n, buffer);
    return hy_read(&call->t[HY_ADD_PARTS_PARTS], part * call->attr.add_parts.stride + at, n,
                   buffer);
}

static void add_elements(const hy_op_call *call, int64_t at, int64_t n) {
    const hy_tensor *out = &call->t[HY_ADD_PARTS_OUT];
    float total[HY_CPU_RUN], buffer[HY_CPU_RUN];
    const float *sum = read_rank(call, 0, at, n, total);
    for (int64_t rank = 1; rank < call->attr.add_parts.count; rank++) {
        hy_cpu_add(sum, read_rank(call, rank, at, n, buffer), total, n);
        sum = total;
    }
    if (call->attr.accumulate) {
        hy_cpu_add(hy_read(out, at, n, buffer), sum, total, n);
        sum = total;
    }
    if (sum != hy_element(out, at)) hy_cpu_narrow(out->dtype, sum, hy_element(out, at), n);
}

hy_status hy_cpu_add_parts(const hy_cpu_run *run) {
    int64_t count = hy_tensor_count(&run->call->t[HY_ADD_PARTS_OWN]);
    return hy_cpu_for_elements(run, count, ELEMENTS_PER_TASK, add_elements);
}
