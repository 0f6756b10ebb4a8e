/* conv.c: the causal convolution of columns with silu, its backward, and the form for new tokens of
 * sequences whose last rows are kept.
 *
 * A task is a block of rows and a stripe of columns. Rows are read once, and the last few stay in a
 * ring: in backward, one of x and one of the gradients before silu. Gradients of rows at the end of
 * a block need those of the rows behind it, which are computed twice; sums for the weights have each
 * row once (columns.h). */
#include <string.h>

#include "kernels/cpu/columns.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/vector_math.h"

enum { TAPS = HY_CONV_TAPS_MAX, STRIPE = 256, ROWS = 64 };

/* ---- a stripe of columns --------------------------------------------------------------------- */

/* Columns [column, column + n) with their weights by tap; the last tap is the row itself. */
typedef struct stripe {
    int64_t C, T, J, column, n;
    const int32_t *doc_starts;
    float weight[TAPS][STRIPE];
    float ring[TAPS][STRIPE]; /* row p is ring[p % TAPS] */
} stripe;

static int64_t stripes_of(int64_t C) { return hy_ceil_div(C, STRIPE); }

static void stripe_init(stripe *s, const hy_op_call *call, const hy_tensor *weight, int64_t i) {
    float buffer[TAPS * STRIPE];
    s->C = hy_tensor_height(weight), s->J = hy_tensor_width(weight), s->T = call->attr.conv.seq;
    s->column = i * STRIPE, s->n = hy_min64(STRIPE, s->C - s->column);
    s->doc_starts = NULL;
    const float *w = hy_read(weight, s->column * s->J, s->n * s->J, buffer);
    for (int64_t c = 0; c < s->n; c++) {
        for (int64_t j = 0; j < s->J; j++) s->weight[j][c] = w[c * s->J + j];
    }
}

/* Row `row` of a tensor (.., C), into the ring as row `place`. */
static void keep_row(stripe *s, const hy_tensor *of, int64_t row, int64_t place) {
    float *kept = s->ring[place % TAPS];
    const float *x = hy_read(of, row * s->C + s->column, s->n, kept);
    if (x != kept) memcpy(kept, x, (size_t)s->n * sizeof *x);
}

/* How many rows before row n belong to its document; at most J - 1. */
static int64_t seen_before(const stripe *s, int64_t n) {
    int64_t position = n % s->T, start = s->doc_starts ? s->doc_starts[n] : 0;
    return hy_min64(s->J - 1, position - start);
}

HY_CLONES static void add_product(const float *x, const float *w, float *sum, int64_t n) {
    HY_SIMD
    for (int64_t i = 0; i < n; i++) sum[i] += x[i] * w[i];
}

/* z of row `place` of the ring, which sees `before` rows before it. */
static void sum_taps(const stripe *s, int64_t place, int64_t before, float *z) {
    memset(z, 0, (size_t)s->n * sizeof *z);
    for (int64_t back = before; back >= 0; back--) {
        add_product(s->ring[(place - back) % TAPS], s->weight[s->J - 1 - back], z, s->n);
    }
}

HY_CLONES static void silu(const float *z, float *y, int64_t n) {
    HY_SIMD
    for (int64_t i = 0; i < n; i++) y[i] = z[i] * hy_sigmoid(z[i]);
}

/* ---- forward --------------------------------------------------------------------------------- */

/* Tasks of all blocks of at most ROWS rows and all stripes. */
static void conv_task(const hy_cpu_run *run, int64_t task, int worker) {
    (void)worker;
    const hy_tensor *t = run->call->t, *x = &t[HY_CONV_X], *y = &t[HY_CONV_Y];
    int64_t N = hy_tensor_height(x), stripes = stripes_of(hy_tensor_width(x));
    int64_t first = task / stripes * ROWS, end = hy_min64(first + ROWS, N);
    float z[STRIPE], buffer[STRIPE];
    stripe s;
    stripe_init(&s, run->call, &t[HY_CONV_WEIGHT], task % stripes);
    s.doc_starts = t[HY_CONV_DOC_STARTS].data;
    for (int64_t n = first - seen_before(&s, first); n < first; n++) keep_row(&s, x, n, n);
    for (int64_t n = first; n < end; n++) {
        int64_t at = n * s.C + s.column;
        float *out = hy_target(y, at, buffer);
        keep_row(&s, x, n, n);
        sum_taps(&s, n, seen_before(&s, n), z);
        silu(z, out, s.n);
        hy_write(y, at, s.n, out);
    }
}

hy_status hy_cpu_conv(const hy_cpu_run *run) {
    const hy_tensor *t = run->call->t, *x = &t[HY_CONV_X];
    int64_t N = hy_tensor_height(x);
    HY_TRY(hy_check_doc_starts(run->call, t[HY_CONV_DOC_STARTS].data, N, run->call->attr.conv.seq));
    hy_cpu_for_each(run, hy_ceil_div(N, ROWS) * stripes_of(hy_tensor_width(x)), conv_task);
    return HY_OK;
}

/* ---- backward -------------------------------------------------------------------------------- */

/* dz = dy silu'(z); z is replaced. */
HY_CLONES static void silu_gradient(const float *dy, float *z, int64_t n) {
    HY_SIMD
    for (int64_t i = 0; i < n; i++) {
        float part = hy_sigmoid(z[i]);
        z[i] = dy[i] * part * (1.0f + z[i] * (1.0f - part));
    }
}

HY_CLONES static void add_to_weight(const float *dz, const float *x, double *sum, int64_t n) {
    HY_SIMD
    for (int64_t i = 0; i < n; i++) sum[i] += (double)(dz[i] * x[i]);
}

static int64_t block_rows(const hy_op_call *call) {
    return hy_block_rows(hy_tensor_height(&call->t[HY_CONV_BWD_X]));
}

/* Sums of the weight, (J, C), for each block of rows. */
size_t hy_cpu_conv_bwd_workspace(const hy_op_call *call, int threads) {
    (void)threads;
    int64_t blocks = hy_block_count(hy_tensor_height(&call->t[HY_CONV_BWD_X]));
    return (size_t)(blocks * hy_tensor_count(&call->t[HY_CONV_BWD_WEIGHT])) * sizeof(double);
}

/* Whether row n, which may not exist, sees row n - back. */
static bool sees(const stripe *s, int64_t n, int64_t back, int64_t N) {
    return n < N && seen_before(s, n) >= back;
}

/* The gradient of row m from those of the rows that see it, which are in `dz`. */
static void write_dx(const stripe *s, const hy_tensor *dx, int64_t m, int64_t N,
                     float (*dz)[STRIPE]) {
    float buffer[STRIPE];
    int64_t at = m * s->C + s->column;
    float *out = hy_target(dx, at, buffer);
    memset(out, 0, (size_t)s->n * sizeof *out);
    for (int64_t back = 0; back < s->J; back++) {
        if (!sees(s, m + back, back, N)) continue;
        add_product(dz[(m + back) % TAPS], s->weight[s->J - 1 - back], out, s->n);
    }
    hy_write(dx, at, s->n, out);
}

static void conv_bwd_task(const hy_cpu_run *run, int64_t task, int worker) {
    (void)worker;
    const hy_tensor *t = run->call->t, *x = &t[HY_CONV_BWD_X];
    int64_t N = hy_tensor_height(x), C = hy_tensor_width(x), stripes = stripes_of(C);
    int64_t rows = block_rows(run->call), block = task / stripes, first = block * rows;
    int64_t end = hy_min64(first + rows, N);
    float dz[TAPS][STRIPE], buffer[STRIPE];
    stripe s;
    stripe_init(&s, run->call, &t[HY_CONV_BWD_WEIGHT], task % stripes);
    s.doc_starts = t[HY_CONV_BWD_DOC_STARTS].data;
    double *sums = (double *)run->call->workspace.data + block * C * s.J + s.column;
    for (int64_t j = 0; j < s.J; j++) memset(sums + j * C, 0, (size_t)s.n * sizeof *sums);
    for (int64_t n = first - seen_before(&s, first); n < first; n++) keep_row(&s, x, n, n);
    for (int64_t n = first; n < end + s.J - 1; n++) {
        if (n < N) {
            int64_t before = seen_before(&s, n);
            float *z = dz[n % TAPS];
            keep_row(&s, x, n, n);
            sum_taps(&s, n, before, z);
            silu_gradient(hy_read(&t[HY_CONV_BWD_DY], n * C + s.column, s.n, buffer), z, s.n);
            for (int64_t back = 0; n < end && back <= before; back++) {
                add_to_weight(z, s.ring[(n - back) % TAPS], sums + (s.J - 1 - back) * C, s.n);
            }
        }
        if (n >= first + s.J - 1) write_dx(&s, &t[HY_CONV_BWD_DX], n - s.J + 1, N, dz);
    }
}

/* dweight (C, J) from the sums of all blocks, (J, C) each. */
static void fold_weight(const hy_op_call *call) {
    const hy_tensor *dw = &call->t[HY_CONV_BWD_DWEIGHT];
    int64_t C = hy_tensor_height(dw), J = hy_tensor_width(dw);
    int64_t blocks = hy_block_count(hy_tensor_height(&call->t[HY_CONV_BWD_X]));
    const double *sums = call->workspace.data;
    for (int64_t c = 0; c < C; c++) {
        float buffer[TAPS];
        double total[TAPS] = {0};
        for (int64_t b = 0; b < blocks; b++) {
            for (int64_t j = 0; j < J; j++) total[j] += sums[(b * J + j) * C + c];
        }
        if (call->attr.accumulate) hy_cpu_add_to_sums(total, hy_read(dw, c * J, J, buffer), J);
        float *values = hy_target(dw, c * J, buffer);
        for (int64_t j = 0; j < J; j++) values[j] = (float)total[j];
        hy_write(dw, c * J, J, values);
    }
}

hy_status hy_cpu_conv_bwd(const hy_cpu_run *run) {
    const hy_op_call *call = run->call;
    const hy_tensor *t = call->t, *x = &t[HY_CONV_BWD_X];
    int64_t N = hy_tensor_height(x);
    HY_TRY(hy_check_doc_starts(call, t[HY_CONV_BWD_DOC_STARTS].data, N, call->attr.conv.seq));
    hy_cpu_for_each(run, hy_block_count(N) * stripes_of(hy_tensor_width(x)), conv_bwd_task);
    if (t[HY_CONV_BWD_DWEIGHT].data) fold_weight(call);
    return HY_OK;
}

/* ---- sequences with states ------------------------------------------------------------------- */

hy_status hy_check_slots(const hy_op_call *call, const hy_tensor *first, const hy_tensor *slots,
                         int64_t count) {
    const int32_t *firsts = first->data, *numbers = slots->data;
    for (int64_t b = 0; b < hy_tensor_count(first); b++) {
        if (firsts[b] < 0 || (numbers[b] >= 0 && numbers[b] < count)) continue;
        return hy_fail(HY_ERR_INPUT, "%s: slot of sequence %lld is %d, expected 0 to %lld",
                       hy_op_name(call->kind), (long long)b, numbers[b], (long long)(count - 1));
    }
    return HY_OK;
}

/* Row `place` of the ring becomes row `row` of the states. */
static void store_row(const stripe *s, const hy_tensor *state, int64_t row, int64_t place) {
    hy_cpu_narrow(state->dtype, s->ring[place % TAPS], hy_element(state, row * s->C + s->column),
                  s->n);
}

/* The kept rows are rows 0 to J - 2 of the ring, the new ones follow. */
static void cached_task(const hy_cpu_run *run, int64_t task, int worker) {
    (void)worker;
    const hy_tensor *t = run->call->t, *x = &t[HY_CONV_CACHED_X], *y = &t[HY_CONV_CACHED_Y],
                    *state = &t[HY_CONV_CACHED_STATE];
    int64_t stripes = stripes_of(hy_tensor_width(x)), b = task / stripes;
    int32_t first = ((const int32_t *)t[HY_CONV_CACHED_FIRST].data)[b];
    int64_t slot = ((const int32_t *)t[HY_CONV_CACHED_SLOTS].data)[b];
    float z[STRIPE], buffer[STRIPE];
    if (first < 0) return;
    stripe s;
    stripe_init(&s, run->call, &t[HY_CONV_CACHED_WEIGHT], task % stripes);
    int64_t kept = s.J - 1;
    for (int64_t i = 0; i < kept; i++) {
        if (first > 0)
            keep_row(&s, state, slot * kept + i, i);
        else
            memset(s.ring[i], 0, sizeof s.ring[i]);
    }
    for (int64_t i = 0; i < s.T; i++) {
        int64_t row = b * s.T + i, at = row * s.C + s.column;
        float *out = hy_target(y, at, buffer);
        keep_row(&s, x, row, kept + i);
        sum_taps(&s, kept + i, kept, z);
        silu(z, out, s.n);
        hy_write(y, at, s.n, out);
    }
    for (int64_t i = 0; i < kept; i++) store_row(&s, state, slot * kept + i, s.T + i);
}

hy_status hy_cpu_conv_cached(const hy_cpu_run *run) {
    const hy_tensor *t = run->call->t, *first = &t[HY_CONV_CACHED_FIRST];
    HY_TRY(hy_check_slots(run->call, first, &t[HY_CONV_CACHED_SLOTS],
                          t[HY_CONV_CACHED_STATE].shape[0]));
    int64_t stripes = stripes_of(hy_tensor_width(&t[HY_CONV_CACHED_X]));
    hy_cpu_for_each(run, hy_tensor_count(first) * stripes, cached_task);
    return HY_OK;
}
