/* grouped.c: matmuls of the rows of each expert, their gradient, and the sum of a token's rows.
 *
 * One expert after the other is a matmul of its own (matmul.c, matmul_rows.c), over rows that are
 * gathered into the workspace if they are read through an index. A quantised expert is decoded
 * there first. */
#include <string.h>

#include "kernels/cpu/rows.h"
#include "kernels/grouped.h"

#define ELEMENTS_PER_TASK (32 * 1024)

/* The workspace: gathered rows of a and b, a decoded expert, and that of the matmul. */
typedef struct parts {
    hy_tensor a, b; /* data NULL: not gathered */
    void *expert;
    hy_tensor matmul;
} parts;

static bool is_forward(const hy_op_call *call) { return call->kind == HY_OP_GROUPED_MATMUL; }

static const hy_tensor *rows_of(const hy_op_call *call, int operand) {
    if (is_forward(call)) return &call->t[HY_GROUPED_MATMUL_ROWS];
    return &call->t[operand == HY_GROUPED_GRAD_A ? HY_GROUPED_GRAD_ROWS_A : HY_GROUPED_GRAD_ROWS_B];
}

/* The matmul of an expert with `rows` rows, without addresses. */
static hy_op_call one_expert(const hy_op_call *call, int64_t rows) {
    const hy_tensor *a = &call->t[HY_GROUPED_MATMUL_A], *b = &call->t[HY_GROUPED_MATMUL_B];
    hy_op_call one = {
        .kind = HY_OP_MATMUL,
        .attr = {.accumulate = call->attr.accumulate, .matmul.alpha = call->attr.grouped.alpha}};
    one.t[HY_MATMUL_A] = hy_tensor_2d(NULL, a->dtype, rows, hy_tensor_width(a));
    if (is_forward(call)) {
        const hy_tensor *d = &call->t[HY_GROUPED_MATMUL_D];
        hy_dtype dtype = hy_is_coded(b->dtype) ? a->dtype : b->dtype;
        one.attr.matmul.trans_b = call->attr.grouped.trans_b;
        one.attr.matmul.is_batch_invariant = call->attr.grouped.is_batch_invariant;
        one.t[HY_MATMUL_B] = hy_tensor_2d(NULL, dtype, b->shape[1], b->shape[2]);
        one.t[HY_MATMUL_D] = hy_tensor_2d(NULL, d->dtype, rows, hy_tensor_width(d));
    } else {
        const hy_tensor *d = &call->t[HY_GROUPED_GRAD_D];
        one.attr.matmul.trans_a = true;
        one.t[HY_MATMUL_B] = hy_tensor_2d(NULL, b->dtype, rows, hy_tensor_width(b));
        one.t[HY_MATMUL_D] = hy_tensor_2d(NULL, d->dtype, d->shape[1], d->shape[2]);
    }
    return one;
}

static hy_tensor take_gathered(const hy_op_call *call, int operand, hy_cpu_workspace *w) {
    hy_tensor gathered = call->t[operand];
    if (is_forward(call) && operand == HY_GROUPED_MATMUL_B) return (hy_tensor){0};
    if (!rows_of(call, operand)->data) return (hy_tensor){0};
    int64_t rows = hy_grouped_rows(call), width = hy_tensor_width(&gathered);
    gathered = hy_tensor_2d(NULL, gathered.dtype, rows, width);
    gathered.data = hy_cpu_take(w, hy_tensor_bytes(&gathered));
    return gathered;
}

static parts take_parts(const hy_op_call *call, int threads, hy_cpu_workspace *w) {
    const hy_tensor *b = &call->t[HY_GROUPED_MATMUL_B];
    hy_op_call largest = one_expert(call, hy_grouped_rows(call));
    bool is_decoded = is_forward(call) && hy_is_coded(b->dtype);
    parts p = {.a = take_gathered(call, HY_GROUPED_MATMUL_A, w),
               .b = take_gathered(call, HY_GROUPED_MATMUL_B, w)};
    /* presence matters to the size of the workspace, the address does not */
    for (int i = HY_MATMUL_A; i <= HY_MATMUL_D; i++) largest.t[i].data = &largest;
    size_t bytes = hy_cpu_matmul_workspace(&largest, threads);
    if (is_decoded) p.expert = hy_cpu_take(w, hy_tensor_bytes(&largest.t[HY_MATMUL_B]));
    p.matmul = hy_tensor_1d(hy_cpu_take(w, bytes), HY_U8, (int64_t)bytes);
    return p;
}

size_t hy_cpu_grouped_workspace(const hy_op_call *call, int threads) {
    hy_cpu_workspace w = {0};
    take_parts(call, threads, &w);
    return w.used;
}

/* ---- gathering and decoding ------------------------------------------------------------------ */

/* Copies rows through an index: t[0] (X,C) is read at t[1] / share for each row of t[2]. */
typedef struct gathering {
    hy_op_call call;
    int64_t share;
} gathering;

static void gather_rows(const hy_op_call *call, int64_t first, int64_t rows) {
    const gathering *g = (const gathering *)call;
    const hy_tensor *from = &call->t[0], *to = &call->t[2];
    const int32_t *index = call->t[1].data;
    size_t bytes = hy_dtype_bytes(from->dtype, hy_tensor_width(from));
    for (int64_t p = first; p < first + rows; p++) {
        memcpy((char *)to->data + (size_t)p * bytes,
               (const char *)from->data + (size_t)(index[p] / g->share) * bytes, bytes);
    }
}

static hy_status gather(const hy_cpu_run *run, int operand, const hy_tensor *to) {
    const hy_tensor *from = &run->call->t[operand], *rows = rows_of(run->call, operand);
    if (!to->data) return HY_OK;
    const int32_t *index = rows->data;
    int64_t R = hy_grouped_rows(run->call);
    for (int64_t p = 0; p < R; p++) {
        HY_FAIL_IF(index[p] < 0 || index[p] >= R, HY_ERR_INPUT,
                   "%s: row %lld of position %lld does not exist, expected 0 to %lld",
                   hy_op_name(run->call->kind), (long long)index[p], (long long)p,
                   (long long)R - 1);
    }
    gathering g = {.call = {.kind = run->call->kind, .t = {*from, *rows, *to}},
                   .share = R / hy_tensor_height(from)};
    hy_cpu_run other = *run;
    other.call = &g.call;
    return hy_cpu_for_rows(&other, R, hy_max64(1, ELEMENTS_PER_TASK / hy_tensor_width(from)),
                           gather_rows);
}

/* Decodes t[0] from element attr.first on into t[1]. */
static void decode_elements(const hy_op_call *call, int64_t at, int64_t n) {
    const hy_tensor *to = &call->t[1];
    float buffer[HY_CPU_RUN];
    hy_cpu_read_coded(&call->t[0], (int64_t)call->attr.first + at, n, to->dtype, buffer);
    hy_cpu_narrow(to->dtype, buffer, hy_element(to, at), n);
}

static hy_status decode(const hy_cpu_run *run, int64_t expert, const hy_tensor *to) {
    hy_op_call call = {.kind = run->call->kind, .t = {run->call->t[HY_GROUPED_MATMUL_B], *to}};
    int64_t count = hy_tensor_count(to);
    hy_cpu_run other = *run;
    call.attr.first = (uint64_t)(expert * count);
    other.call = &call;
    return hy_cpu_for_elements(&other, count, ELEMENTS_PER_TASK, decode_elements);
}

/* ---- experts --------------------------------------------------------------------------------- */

static hy_status run_expert(const hy_cpu_run *run, const parts *p, int64_t expert, int64_t first,
                            int64_t rows) {
    const hy_tensor *t = run->call->t;
    hy_op_call one = one_expert(run->call, rows);
    hy_tensor *a = &one.t[HY_MATMUL_A], *b = &one.t[HY_MATMUL_B], *d = &one.t[HY_MATMUL_D];
    *a = hy_tensor_rows(p->a.data ? &p->a : &t[HY_GROUPED_MATMUL_A], first, rows);
    if (is_forward(run->call)) {
        const hy_tensor *bias = &t[HY_GROUPED_MATMUL_BIAS];
        int64_t N = hy_tensor_width(d);
        b->data = p->expert ? p->expert
                            : hy_element(&t[HY_GROUPED_MATMUL_B], expert * hy_tensor_count(b));
        d->data = hy_element(&t[HY_GROUPED_MATMUL_D], first * N);
        if (bias->data) {
            one.t[HY_MATMUL_BIAS] = hy_tensor_1d(hy_element(bias, expert * N), bias->dtype, N);
        }
        if (p->expert) HY_TRY(decode(run, expert, b));
    } else {
        *b = hy_tensor_rows(p->b.data ? &p->b : &t[HY_GROUPED_GRAD_B], first, rows);
        d->data = hy_element(&t[HY_GROUPED_GRAD_D], expert * hy_tensor_count(d));
    }
    one.workspace = p->matmul;
    hy_cpu_run other = *run;
    other.call = &one;
    return hy_cpu_matmul(&other);
}

/* An expert without rows has no gradient. */
static void clear_expert(const hy_op_call *call, int64_t expert) {
    const hy_tensor *d = &call->t[HY_GROUPED_GRAD_D];
    int64_t each = d->shape[1] * d->shape[2];
    if (is_forward(call) || call->attr.accumulate) return;
    memset(hy_element(d, expert * each), 0, hy_dtype_bytes(d->dtype, each));
}

hy_status hy_cpu_grouped(const hy_cpu_run *run) {
    const hy_op_call *call = run->call;
    const int32_t *offsets = call->t[HY_GROUPED_MATMUL_OFFSETS].data;
    int64_t E = hy_tensor_count(&call->t[HY_GROUPED_MATMUL_OFFSETS]) - 1;
    int64_t R = hy_grouped_rows(call);
    hy_cpu_workspace w = {.base = call->workspace.data};
    parts p = take_parts(call, run->threads, &w);
    for (int64_t e = 0; e < E; e++) {
        HY_FAIL_IF(offsets[e] < 0 || offsets[e] > offsets[e + 1] || offsets[e + 1] > R,
                   HY_ERR_INPUT,
                   "%s: expert %lld has the positions %d to %d, expected ascending ones up to %lld",
                   hy_op_name(call->kind), (long long)e, offsets[e], offsets[e + 1], (long long)R);
    }
    HY_TRY(gather(run, HY_GROUPED_MATMUL_A, &p.a));
    HY_TRY(gather(run, HY_GROUPED_MATMUL_B, &p.b));
    for (int64_t e = 0; e < E; e++) {
        int64_t rows = offsets[e + 1] - offsets[e];
        if (rows == 0)
            clear_expert(call, e);
        else
            HY_TRY(run_expert(run, &p, e, offsets[e], rows));
    }
    return HY_OK;
}

/* ---- the sum of a token's rows --------------------------------------------------------------- */

static void sum_rows(const hy_op_call *call, int64_t first, int64_t rows) {
    const hy_tensor *y = &call->t[HY_SUM_ROWS_Y], *residual = &call->t[HY_SUM_ROWS_RESIDUAL];
    const hy_tensor *out = &call->t[HY_SUM_ROWS_OUT], *place = &call->t[HY_SUM_ROWS_PLACE];
    int64_t C = hy_tensor_width(y), k = hy_tensor_width(place);
    float sum[HY_CPU_RUN], buffer[HY_CPU_RUN];
    for (int64_t row = first; row < first + rows; row++) {
        const int32_t *at = (const int32_t *)place->data + row * k;
        for (int64_t c = 0, n; c < C; c += n) {
            n = hy_min64(HY_CPU_RUN, C - c);
            if (residual->data) {
                memcpy(sum, hy_read(residual, row * C + c, n, buffer), (size_t)n * sizeof *sum);
            } else {
                memset(sum, 0, (size_t)n * sizeof *sum);
            }
            for (int64_t j = 0; j < k; j++) {
                hy_cpu_add(sum, hy_read(y, at[j] * C + c, n, buffer), sum, n);
            }
            hy_cpu_narrow(out->dtype, sum, hy_element(out, row * C + c), n);
        }
    }
}

hy_status hy_cpu_sum_rows(const hy_cpu_run *run) {
    const hy_tensor *place = &run->call->t[HY_SUM_ROWS_PLACE], *y = &run->call->t[HY_SUM_ROWS_Y];
    const int32_t *at = place->data;
    int64_t R = hy_tensor_height(y), C = hy_tensor_width(y);
    for (int64_t i = 0; i < hy_tensor_count(place); i++) {
        HY_FAIL_IF(at[i] < 0 || at[i] >= R, HY_ERR_INPUT,
                   "sum of rows: element %lld of place is %d, expected 0 to %lld", (long long)i,
                   at[i], (long long)R - 1);
    }
    return hy_cpu_for_rows(run, hy_tensor_height(place), hy_max64(1, ELEMENTS_PER_TASK / C),
                           sum_rows);
}
