/* rope.c: rotary positions, in place on the query and key heads of packed qkv rows.
 *
 * Each pair (i, i + R/2) of the first R elements of a head is rotated by the angle in the table for
 * the row's position; the backward pass rotates by the opposite angle. */
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

/* The position of a row; below 0: it is left as it is. */
static int64_t position_of(const hy_op_call *call, int64_t row) {
    const int32_t *first = call->t[HY_ROPE_FIRST].data;
    int64_t T = call->attr.heads.seq;
    if (!first) return row % T;
    return first[row / T] < 0 ? -1 : first[row / T] + row % T;
}

static void rope_rows(const hy_op_call *call, int64_t first, int64_t rows) {
    const hy_tensor *qkv = &call->t[HY_ROPE_QKV];
    const hy_heads_attr *a = &call->attr.heads;
    int64_t heads = a->heads + a->kv_heads, D = a->head_dim, P = hy_tensor_width(qkv);
    int64_t turned = a->rotary ? a->rotary : D;
    const float *query = call->t[HY_ROPE_QUERY].data;
    float direction = a->inverse ? -1 : 1, buffer[MAX_HEAD];
    for (int64_t row = first; row < first + rows; row++) {
        int64_t position = position_of(call, row);
        if (position < 0) continue;
        const float *table = (const float *)call->t[HY_ROPE_TABLE].data + position * turned;
        for (int64_t h = 0; h < heads; h++) {
            bool is_scaled = query && h < a->heads;
            int64_t at = row * P + h * D, n = is_scaled ? D : turned;
            float *x = hy_target(qkv, at, buffer);
            hy_read(qkv, at, n, buffer);
            rotate_head(x, table, direction, turned / 2);
            if (is_scaled) hy_cpu_scale(x, query[position], D);
            hy_write(qkv, at, n, x);
        }
    }
}

static hy_status check_positions(const hy_op_call *call) {
    const hy_tensor *query = &call->t[HY_ROPE_QUERY];
    const int32_t *first = call->t[HY_ROPE_FIRST].data;
    int64_t T = call->attr.heads.seq, rows = call->t[HY_ROPE_TABLE].shape[0];
    if (query->data) rows = hy_min64(rows, hy_tensor_count(query));
    for (int64_t b = 0; first && b < call->attr.heads.batch; b++) {
        HY_FAIL_IF(first[b] >= 0 && first[b] + T > rows, HY_ERR_INPUT,
                   "rope: sequence %lld ends at position %lld, but the table has %lld rows",
                   (long long)b, (long long)(first[b] + T), (long long)rows);
    }
    return HY_OK;
}

hy_status hy_cpu_rope(const hy_cpu_run *run) {
    const hy_tensor *qkv = &run->call->t[HY_ROPE_QKV];
    HY_TRY(check_positions(run->call));
    int64_t each = hy_max64(1, 32 * 1024 / hy_tensor_width(qkv));
    return hy_cpu_for_rows(run, hy_tensor_height(qkv), each, rope_rows);
}
