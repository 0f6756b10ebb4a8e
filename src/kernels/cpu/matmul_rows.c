/* matmul_rows.c: a matmul of few rows in which a row of d has the same bits for any number of rows:
 * d = alpha a b' + c + bias with attr.matmul.is_batch_invariant.
 *
 * a is first packed, as fp32. A task computes some columns of d for up to ROWS rows: for a block of
 * DEPTH elements of K it takes a few rows of b, converted into the worker's scratch memory if they
 * are not fp32, and multiplies them by all rows of a while they are in the cache. Each element of d
 * is the sum of its blocks in order, each summed as in dots.h: an order that depends on K alone. */
#include <string.h>

#include "kernels/cpu/dots.h"
#include "kernels/cpu/rows.h"

/* ROWS is a multiple of the rows of every tile. */
enum { ROWS = 252, DEPTH = HY_CPU_RUN, MOST_COLS = 48, ENOUGH_TASKS = 128 };

typedef struct shape {
    int64_t M, N, K;
    int64_t packed; /* length of a packed row of a */
    int64_t cols;   /* of a task */
    int64_t across; /* tasks per block of rows */
} shape;

static shape shape_of(const hy_op_call *call) {
    const hy_dots *dots = hy_dots_get();
    const hy_tensor *a = &call->t[HY_MATMUL_A], *d = &call->t[HY_MATMUL_D];
    shape s = {.M = hy_tensor_height(d), .N = hy_tensor_width(d), .K = hy_tensor_width(a)};
    s.packed = hy_dots_padded(dots, s.K);
    int64_t tiles = hy_min64(hy_ceil_div(s.N, ENOUGH_TASKS * dots->cols), MOST_COLS / dots->cols);
    s.cols = tiles * dots->cols;
    s.across = hy_ceil_div(s.N, s.cols);
    return s;
}

/* The workspace: a, packed, then for each worker a few rows of b and a part of d. */
typedef struct scratch {
    float *b, *d;
} scratch;

static scratch take_scratch(const hy_op_call *call, hy_cpu_workspace *workspace) {
    shape s = shape_of(call);
    size_t rows = (size_t)hy_min64(s.M, ROWS);
    return (scratch){
        .b = hy_cpu_take(workspace,
                         hy_buffer_bytes(&call->t[HY_MATMUL_B], hy_dots_get()->cols * DEPTH)),
        .d = hy_cpu_take(workspace, rows * (size_t)s.cols * sizeof(float)),
    };
}

static size_t packed_bytes(const hy_op_call *call) {
    shape s = shape_of(call);
    return hy_cpu_aligned((size_t)(s.M * s.packed) * sizeof(float));
}

static size_t scratch_bytes(const hy_op_call *call) {
    hy_cpu_workspace workspace = {0};
    take_scratch(call, &workspace);
    return workspace.used;
}

size_t hy_cpu_matmul_rows_workspace(const hy_op_call *call, int threads) {
    return packed_bytes(call) + scratch_bytes(call) * (size_t)threads;
}

/* ---- a --------------------------------------------------------------------------------------- */

static void pack_task(const hy_cpu_run *run, int64_t task, int worker) {
    (void)worker;
    const hy_dots *dots = hy_dots_get();
    const hy_op_call *call = run->call;
    shape s = shape_of(call);
    int64_t first = task * dots->rows;
    int rows = (int)hy_min64(dots->rows, s.M - first);
    float buffer[HY_CPU_RUN], *packed = (float *)call->workspace.data + first * s.packed;
    for (int r = 0; r < rows; r++) {
        for (int64_t k = 0, n; k < s.K; k += n) {
            n = hy_min64(HY_CPU_RUN, s.K - k);
            const float *x = hy_read(&call->t[HY_MATMUL_A], (first + r) * s.K + k, n, buffer);
            hy_dots_pack(dots, x, k, n, rows, r, packed);
        }
    }
}

/* ---- a task ---------------------------------------------------------------------------------- */

/* Rows [first, first + rows) and columns [col, col + cols) of d; `sums` has a row for each. */
typedef struct part {
    shape s;
    const hy_dots *dots;
    int64_t first, rows, col, cols;
    float *own_b, *sums;
} part;

/* Elements [k, k + depth) of the rows of b from `row` on. Rows beyond the part repeat its last. */
static void read_b(const hy_op_call *call, const part *p, int64_t row, int64_t k, int64_t depth,
                   const float **rows) {
    const hy_tensor *b = &call->t[HY_MATMUL_B];
    int64_t last = p->col + p->cols - 1;
    for (int c = 0; c < p->dots->cols; c++) {
        float *buffer = p->own_b + (int64_t)c * DEPTH;
        int64_t at = (row + c) * p->s.K + k;
        if (row + c > last) {
            rows[c] = rows[c - 1];
        } else if (hy_is_coded(b->dtype)) {
            hy_cpu_read_coded(b, at, depth, call->t[HY_MATMUL_A].dtype, buffer);
            rows[c] = buffer;
        } else {
            rows[c] = hy_read(b, at, depth, buffer);
        }
    }
}

/* Adds a block of K to the sums of some columns, from column `col` of the part on. */
static void add_block(const hy_op_call *call, const part *p, int64_t col, int64_t k) {
    _Alignas(64) float tile[HY_DOTS_TILE];
    const float *b[HY_DOTS_COLS];
    int64_t depth = hy_min64(DEPTH, p->s.K - k), cols = hy_min64(p->dots->cols, p->cols - col);
    read_b(call, p, p->col + col, k, depth, b);
    for (int64_t row = 0; row < p->rows; row += p->dots->rows) {
        int64_t first = p->first + row;
        int rows = (int)hy_min64(p->dots->rows, p->s.M - first);
        const float *a = (const float *)call->workspace.data + first * p->s.packed + k * rows;
        p->dots->run(rows, depth, a, b, tile);
        for (int r = 0; r < rows; r++) {
            float *sums = p->sums + (row + r) * p->s.cols + col;
            const float *more = tile + r * p->dots->cols;
            for (int64_t c = 0; c < cols; c++) sums[c] = k > 0 ? sums[c] + more[c] : more[c];
        }
    }
}

HY_CLONES static void finish(float alpha, const float *sums, const float *start, float *out,
                             int64_t n) {
    if (start) {
        HY_SIMD
        for (int64_t i = 0; i < n; i++) out[i] = alpha * sums[i] + start[i];
    } else {
        HY_SIMD
        for (int64_t i = 0; i < n; i++) out[i] = alpha * sums[i];
    }
}

/* Writes a row of the part: its sums plus c and bias, or plus the old d. */
static void write_row(const hy_op_call *call, const part *p, int64_t row) {
    const hy_tensor *d = &call->t[HY_MATMUL_D], *bias = &call->t[HY_MATMUL_BIAS];
    const hy_tensor *added = call->attr.accumulate ? d : &call->t[HY_MATMUL_C];
    float of_bias[MOST_COLS], of_added[MOST_COLS], both[MOST_COLS], result[MOST_COLS];
    int64_t at = (p->first + row) * p->s.N + p->col, n = p->cols;
    const float *start = bias->data ? hy_read(bias, p->col, n, of_bias) : NULL;
    if (added->data) {
        const float *more = hy_read(added, at, n, of_added);
        if (start) hy_cpu_add(more, start, both, n);
        start = start ? both : more;
    }
    float *out = hy_target(d, at, result);
    finish(call->attr.matmul.alpha, p->sums + row * p->s.cols, start, out, n);
    hy_write(d, at, n, out);
}

static void rows_task(const hy_cpu_run *run, int64_t task, int worker) {
    const hy_op_call *call = run->call;
    size_t begin = packed_bytes(call) + scratch_bytes(call) * (size_t)worker;
    hy_cpu_workspace workspace = {.base = call->workspace.data, .used = begin};
    scratch own = take_scratch(call, &workspace);
    part p = {.s = shape_of(call), .dots = hy_dots_get(), .own_b = own.b, .sums = own.d};
    p.first = task / p.s.across * ROWS, p.rows = hy_min64(ROWS, p.s.M - p.first);
    p.col = task % p.s.across * p.s.cols, p.cols = hy_min64(p.s.cols, p.s.N - p.col);
    for (int64_t k = 0; k < p.s.K; k += DEPTH) {
        for (int64_t col = 0; col < p.cols; col += p.dots->cols) add_block(call, &p, col, k);
    }
    for (int64_t row = 0; row < p.rows; row++) write_row(call, &p, row);
}

hy_status hy_cpu_matmul_rows(const hy_cpu_run *run) {
    shape s = shape_of(run->call);
    hy_cpu_for_each(run, hy_ceil_div(s.M, hy_dots_get()->rows), pack_task);
    hy_cpu_for_each(run, s.across * hy_ceil_div(s.M, ROWS), rows_task);
    return HY_OK;
}
