/* rope.c: rotary positions, in place on the query and key heads of packed qkv rows.
 *
 * Each pair (i, i + R/2) of the first R elements of a head is rotated by the angle in the table for
 * the row's position; the backward pass rotates by the opposite angle. Row n of the batch is at
 * position n mod T. */
#include "kernels/cpu/rows.h"
#include "kernels/cpu/softmax.h"

#define MAX_HEAD 1024 /* ops.c accepts no larger head */

/* table: cos, sin, cos, sin, ... */
HY_CLONES static void rotate_head(float *x, const float *table, float direction, int64_t half) {
    HY_SIMD
    for (int64_t i = 0; i < half; i++) {
        float c = table[2 * i], s = table[2 * i + 1] * direction;
        float first = x[i], second = x[i + half];
        x[i] = first * c - second * s;
        x[i + half] = first * s + second * c;
    }
}

static void rope_rows(const hy_op_call *call, int64_t first, int64_t rows) {
    const hy_tensor *qkv = &call->t[HY_ROPE_QKV];
    const hy_heads_attr *a = &call->attr.heads;
    int64_t heads = a->heads + a->kv_heads, D = a->head_dim, T = a->seq, P = hy_tensor_width(qkv);
    int64_t turned = a->rotary ? a->rotary : D;
    const float *query = call->t[HY_ROPE_QUERY].data;
    float direction = a->inverse ? -1 : 1, buffer[MAX_HEAD];
    for (int64_t row = first; row < first + rows; row++) {
        const float *table = (const float *)call->t[HY_ROPE_TABLE].data + row % T * turned;
        for (int64_t h = 0; h < heads; h++) {
            bool is_scaled = query && h < a->heads;
            int64_t at = row * P + h * D, n = is_scaled ? D : turned;
            float *x = hy_target(qkv, at, buffer);
            hy_read(qkv, at, n, buffer);
            rotate_head(x, table, direction, turned / 2);
            if (is_scaled) hy_cpu_scale(x, query[row % T], D);
            hy_write(qkv, at, n, x);
        }
    }
}

hy_status hy_cpu_rope(const hy_cpu_run *run) {
    const hy_tensor *qkv = &run->call->t[HY_ROPE_QKV];
    int64_t each = hy_max64(1, 32 * 1024 / hy_tensor_width(qkv));
    return hy_cpu_for_rows(run, hy_tensor_height(qkv), each, rope_rows);
}
