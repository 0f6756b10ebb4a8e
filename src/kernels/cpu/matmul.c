/* matmul.c: d = alpha op(a) op(b) + c + bias, divided into tiles of d.
 *
 * Each tile is one task and computes its whole sum over K, so the number of threads does not affect
 * the result; tile sizes follow from the shape. fp32 operands are passed to sgemm directly. Narrow
 * ones are converted in blocks of K into the worker's scratch memory, and a narrow d is rounded
 * once, at the end. */
#include <string.h>

#include "kernels/cpu/rows.h"

/* Larger tiles need less packing in sgemm; more tiles balance better. The first size that gives
 * ENOUGH_TILES is used. Narrow operands start at a smaller one, because their scratch memory should
 * fit into a core's cache. Columns are multiples of the register tile of every kernel. */
static const struct {
    int64_t rows, cols;
} tile_sizes[] = {{256, 768}, {256, 384}, {128, 384}, {128, 192}, {64, 192}, {64, 96}};

enum { FIRST_NARROW = 1, NARROW_ROWS = 256, NARROW_COLS = 384 };
enum { ENOUGH_TILES = 12, MAX_COLS = 768, DEPTH = 512 };

static bool is_narrow(const hy_op_call *call) {
    return call->t[HY_MATMUL_A].dtype != HY_F32 || call->t[HY_MATMUL_B].dtype != HY_F32 ||
           call->t[HY_MATMUL_D].dtype != HY_F32;
}

typedef struct shape {
    int64_t M, N, K;
    int64_t rows, cols; /* of a tile */
    int64_t across;     /* tiles per row of tiles */
    int64_t tiles;      /* tiles per matrix */
} shape;

static shape shape_of(const hy_op_call *call) {
    const hy_tensor *a = &call->t[HY_MATMUL_A], *d = &call->t[HY_MATMUL_D];
    int64_t batch = hy_matmul_batch(call);
    shape s = {.M = hy_tensor_height(d) / batch, .N = hy_tensor_width(d)};
    s.K = call->attr.matmul.trans_a ? hy_tensor_height(a) / batch : hy_tensor_width(a);
    for (size_t i = is_narrow(call) ? FIRST_NARROW : 0;
         i < sizeof tile_sizes / sizeof tile_sizes[0]; i++) {
        s.rows = tile_sizes[i].rows;
        s.cols = tile_sizes[i].cols;
        s.across = hy_ceil_div(s.N, s.cols);
        s.tiles = s.across * hy_ceil_div(s.M, s.rows);
        if (s.tiles >= ENOUGH_TILES) break;
    }
    return s;
}

/* The scratch memory of a worker: blocks of a and b and a tile of d, only for narrow types. */
typedef struct scratch {
    float *a, *b, *d;
} scratch;

static scratch take_scratch(const hy_op_call *call, hy_cpu_workspace *workspace) {
    return (scratch){
        .a = hy_cpu_take(workspace, hy_buffer_bytes(&call->t[HY_MATMUL_A], NARROW_ROWS * DEPTH)),
        .b = hy_cpu_take(workspace, hy_buffer_bytes(&call->t[HY_MATMUL_B], DEPTH * NARROW_COLS)),
        .d = hy_cpu_take(workspace,
                         hy_buffer_bytes(&call->t[HY_MATMUL_D], NARROW_ROWS * NARROW_COLS)),
    };
}

static size_t scratch_bytes(const hy_op_call *call) {
    hy_cpu_workspace workspace = {0};
    take_scratch(call, &workspace);
    return workspace.used;
}

size_t hy_cpu_matmul_workspace(const hy_op_call *call, int threads) {
    if (call->attr.matmul.is_batch_invariant) return hy_cpu_matmul_rows_workspace(call, threads);
    hy_op_call plain = hy_matmul_behind_cast(call, false);
    return hy_matmul_cast_bytes(call, false) + scratch_bytes(&plain) * (size_t)threads;
}

/* Writes c + bias (or the old d) into the tile. False: there is nothing to add the product to. */
static bool start_tile(const hy_op_call *call, int64_t row, int64_t rows, int64_t col, int64_t cols,
                       float *tile, int64_t ld) {
    const hy_tensor *d = &call->t[HY_MATMUL_D], *bias = &call->t[HY_MATMUL_BIAS];
    const hy_tensor *start = call->attr.accumulate ? d : &call->t[HY_MATMUL_C];
    bool has_start = hy_tensor_is_given(start), has_bias = hy_tensor_is_given(bias);
    bool is_in_place = has_start && start->data == d->data && d->dtype == HY_F32;
    float bias_buffer[MAX_COLS], start_buffer[MAX_COLS];
    if (!has_start && !has_bias) return false;
    if (is_in_place && !has_bias) return true;
    const float *added = has_bias ? hy_read(bias, col, cols, bias_buffer) : NULL;
    for (int64_t r = 0; r < rows; r++) {
        float *out = tile + r * ld;
        const float *from = added;
        if (has_start) {
            from = hy_read(start, (row + r) * hy_tensor_width(d) + col, cols, start_buffer);
        }
        if (has_start && has_bias) {
            hy_cpu_add(from, added, out, cols);
        } else {
            memcpy(out, from, (size_t)cols * sizeof *out);
        }
    }
    return true;
}

/* One matmul of a batch as a separate call. */
static hy_op_call one_of_batch(const hy_op_call *call, int64_t index) {
    static const int positions[] = {HY_MATMUL_A, HY_MATMUL_B, HY_MATMUL_C, HY_MATMUL_D};
    hy_op_call one = *call;
    int64_t batch = hy_matmul_batch(call);
    one.attr.matmul.batch = 0;
    for (int i = 0; i < 4; i++) {
        hy_tensor *t = &one.t[positions[i]];
        if (!hy_tensor_is_given(t)) continue;
        int64_t rows = hy_tensor_height(t) / batch, cols = hy_tensor_width(t);
        size_t bytes = (size_t)(index * rows * cols) * hy_dtype_size(t->dtype);
        *t = hy_tensor_2d((char *)t->data + bytes, t->dtype, rows, cols);
    }
    return one;
}

static void matmul_tile(const hy_cpu_run *run, int64_t index, int worker) {
    shape s = shape_of(run->call);
    int64_t task = index % s.tiles;
    bool is_batch = run->call->attr.matmul.batch > 0;
    hy_op_call one;
    if (is_batch) one = one_of_batch(run->call, index / s.tiles);
    const hy_op_call *call = is_batch ? &one : run->call;
    const hy_tensor *a = &call->t[HY_MATMUL_A], *b = &call->t[HY_MATMUL_B],
                    *d = &call->t[HY_MATMUL_D];
    bool trans_a = call->attr.matmul.trans_a, trans_b = call->attr.matmul.trans_b;
    int64_t row = task / s.across * s.rows, rows = hy_min64(s.rows, s.M - row);
    int64_t col = task % s.across * s.cols, cols = hy_min64(s.cols, s.N - col);

    hy_cpu_workspace workspace = {.base = call->workspace.data,
                                  .used = scratch_bytes(call) * (size_t)worker};
    scratch own = take_scratch(call, &workspace);
    bool is_direct = d->dtype == HY_F32;
    float *tile = is_direct ? (float *)d->data + row * s.N + col : own.d;
    int64_t ld = is_direct ? s.N : cols;

    hy_gemm g = {.m = rows,
                 .n = cols,
                 .c = tile,
                 .ldc = ld,
                 .alpha = call->attr.matmul.alpha,
                 .trans_a = trans_a,
                 .trans_b = trans_b};
    g.beta = start_tile(call, row, rows, col, cols, tile, ld) ? 1 : 0;
    int64_t depth = a->dtype == HY_F32 && b->dtype == HY_F32 ? s.K : DEPTH;
    for (int64_t k = 0; k < s.K; k += depth) {
        g.k = hy_min64(depth, s.K - k);
        g.a = trans_a ? hy_read_block(a, k, g.k, row, rows, own.a, &g.lda)
                      : hy_read_block(a, row, rows, k, g.k, own.a, &g.lda);
        g.b = trans_b ? hy_read_block(b, col, cols, k, g.k, own.b, &g.ldb)
                      : hy_read_block(b, k, g.k, col, cols, own.b, &g.ldb);
        hy_sgemm(run->blas, &g);
        g.beta = 1;
    }
    if (is_direct) return;
    for (int64_t r = 0; r < rows; r++) hy_write(d, (row + r) * s.N + col, cols, tile + r * ld);
}

hy_status hy_cpu_matmul(const hy_cpu_run *run) {
    if (run->call->attr.matmul.is_batch_invariant) return hy_cpu_matmul_rows(run);
    hy_op_call plain = hy_matmul_behind_cast(run->call, false);
    hy_cpu_run behind = *run;
    behind.call = &plain;
    if (hy_matmul_cast_bytes(run->call, false) > 0) {
        hy_op_call cast = {
            .kind = HY_OP_CAST,
            .t = {[HY_CAST_SRC] = run->call->t[HY_MATMUL_B], [HY_CAST_DST] = plain.t[HY_MATMUL_B]}};
        hy_cpu_run before = *run;
        before.call = &cast;
        HY_TRY(hy_cpu_cast(&before));
    }
    shape s = shape_of(&plain);
    hy_cpu_for_each(&behind, s.tiles * hy_matmul_batch(&plain), matmul_tile);
    return HY_OK;
}
