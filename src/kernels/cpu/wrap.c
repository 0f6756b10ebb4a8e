/* wrap.c: stores bf16 numbers in a byte each, and recovers them with numbers near them. See
 * grid.h. */
#include "kernels/cpu/cpu.h"
#include "kernels/grid.h"

#define ELEMENTS_PER_TASK (64 * 1024)

HY_CLONES static void wrap(const uint16_t *restrict x, int32_t exponent, uint8_t *restrict codes,
                           int64_t n) {
    for (int64_t i = 0; i < n; i++) codes[i] = hy_grid_wrap(x[i], exponent);
}

HY_CLONES static void unwrap(const uint8_t *restrict codes, const uint16_t *restrict near,
                             int32_t exponent, uint16_t *restrict x, int64_t n) {
    for (int64_t i = 0; i < n; i++) x[i] = hy_grid_unwrap(codes[i], near[i], exponent);
}

static void wrap_elements(const hy_op_call *call, int64_t at, int64_t n) {
    const hy_tensor *t = call->t;
    int32_t exponent = call->attr.grid.exponent;
    if (call->kind == HY_OP_WRAP) {
        wrap((const uint16_t *)t[HY_WRAP_X].data + at, exponent,
             (uint8_t *)t[HY_WRAP_CODES].data + at, n);
    } else {
        unwrap((const uint8_t *)t[HY_UNWRAP_CODES].data + at,
               (const uint16_t *)t[HY_UNWRAP_NEAR].data + at, exponent,
               (uint16_t *)t[HY_UNWRAP_X].data + at, n);
    }
}

hy_status hy_cpu_wrap(const hy_cpu_run *run) {
    return hy_cpu_for_rows(run, hy_tensor_count(run->call->t), ELEMENTS_PER_TASK, wrap_elements);
}
