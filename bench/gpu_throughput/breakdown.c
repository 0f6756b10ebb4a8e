/* breakdown.c: time per op, measured between trainer and backend. See breakdown.h.
 *
 * For one step, the backend's enqueue is replaced by a function that waits for the stream before
 * and after each op and times it. The time of an empty op is measured in the same way and
 * subtracted. Waiting prevents overlap of ops, so the sum differs somewhat from the step; both are
 * printed. Only one run at a time, because enqueue has no context argument. */
#include "gpu_throughput/breakdown.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "kernels/ops.h"

#define ENTRIES_MAX 256
#define EMPTY_CALLS 200

typedef struct entry {
    hy_op_kind kind;
    char label[72]; /* of a matmul: its shape; else the name of the op */
    int64_t calls;
    double seconds, flops, bytes;
} entry;

typedef struct table {
    entry list[ENTRIES_MAX];
    int count;
    double total;
} table;

static struct {
    hy_backend *backend;
    hy_status (*enqueue)(hy_stream *, const hy_op_call *);
    double empty; /* seconds of an empty op */
    table kinds, products;
} watch;

/* ---- tables ---------------------------------------------------------------------------------- */

static entry *find(table *t, hy_op_kind kind, const char *label) {
    for (int i = 0; i < t->count; i++) {
        if (t->list[i].kind == kind && strcmp(t->list[i].label, label) == 0) return &t->list[i];
    }
    if (t->count == ENTRIES_MAX) return &t->list[ENTRIES_MAX - 1];
    entry *e = &t->list[t->count++];
    *e = (entry){.kind = kind};
    snprintf(e->label, sizeof e->label, "%s", label);
    return e;
}

/* "16384 x 3072 x 768 nt bias": rows, columns, summed over; which of the two is transposed. */
static void describe_product(const hy_op_call *c, char *out, size_t size) {
    const hy_tensor *a = &c->t[HY_MATMUL_A], *d = &c->t[HY_MATMUL_D];
    int64_t batch = hy_matmul_batch(c);
    int64_t inner = c->attr.matmul.trans_a ? a->shape[0] / batch : a->shape[1];
    char many[24] = "";
    if (batch > 1) snprintf(many, sizeof many, "%lld of ", (long long)batch);
    snprintf(out, size, "%s%lld x %lld x %lld %c%c %s%s%s%s%s%s", many,
             (long long)(d->shape[0] / batch), (long long)d->shape[1], (long long)inner,
             c->attr.matmul.trans_a ? 't' : 'n', c->attr.matmul.trans_b ? 't' : 'n',
             hy_dtype_name(d->dtype), c->attr.accumulate ? " adds" : "",
             c->t[HY_MATMUL_BIAS].data ? " bias" : "", c->t[HY_MATMUL_C].data ? " residual" : "",
             c->attr.matmul.is_gelu || c->t[HY_MATMUL_ACT].data ? " gelu" : "",
             c->t[HY_MATMUL_PRE].data ? " gelu-back" : "");
}

/* The bytes that the op must read and write at least. */
static double bytes_of(const hy_op_call *c) {
    double bytes = 0;
    for (int i = 0; i < HY_OP_TENSORS; i++) {
        int access = c->t[i].data ? hy_op_access(c->kind, i) : HY_ACCESS_NONE;
        double size = c->t[i].data ? (double)hy_tensor_bytes(&c->t[i]) : 0;
        bytes += size * (((access & HY_ACCESS_READ) != 0) + ((access & HY_ACCESS_WRITE) != 0));
    }
    return bytes;
}

static void note(table *t, const char *label, const hy_op_call *call, double seconds) {
    entry *e = find(t, call->kind, label);
    e->calls++;
    e->seconds += seconds;
    e->flops += hy_op_flops(call);
    e->bytes += bytes_of(call);
    t->total += seconds;
}

/* ---- timing ---------------------------------------------------------------------------------- */

static hy_status watched_enqueue(hy_stream *stream, const hy_op_call *call) {
    char label[72];
    HY_TRY(watch.backend->stream_sync(stream));
    double begin = hy_clock();
    HY_TRY(watch.enqueue(stream, call));
    HY_TRY(watch.backend->stream_sync(stream));
    double seconds = hy_clock() - begin - watch.empty;
    if (seconds < 0) seconds = 0;
    note(&watch.kinds, hy_op_name(call->kind), call, seconds);
    if (call->kind != HY_OP_MATMUL) return HY_OK;
    describe_product(call, label, sizeof label);
    note(&watch.products, label, call, seconds);
    return HY_OK;
}

/* The time to fill one number: mostly launching and waiting. */
static hy_status time_empty(hy_trainer *t, double *out) {
    double seconds[EMPTY_CALLS];
    hy_op_call fill = {.kind = HY_OP_FILL};
    fill.t[HY_FILL_DST] = hy_tensor_1d(t->engine->work->buffers.loss_sum, HY_F32, 1);
    for (int i = 0; i < EMPTY_CALLS; i++) {
        double begin = hy_clock();
        HY_TRY(t->engine->device.backend->enqueue(t->engine->device.compute, &fill));
        HY_TRY(t->engine->device.backend->stream_sync(t->engine->device.compute));
        seconds[i] = hy_clock() - begin;
    }
    *out = gt_describe(seconds, EMPTY_CALLS).median;
    return HY_OK;
}

static hy_status watch_step(hy_trainer *t) {
    watch.kinds.count = watch.products.count = 0;
    watch.kinds.total = watch.products.total = 0;
    HY_TRY(time_empty(t, &watch.empty));
    watch.backend = t->engine->device.backend;
    watch.enqueue = t->engine->device.backend->enqueue;
    t->engine->device.backend->enqueue = watched_enqueue;
    hy_status (*capture_begin)(hy_stream *) = t->engine->device.backend->capture_begin;
    /* The hook would not see a captured pass. */
    t->engine->device.backend->capture_begin = NULL;
    hy_status status = hy_trainer_step(t, NULL);
    t->engine->device.backend->capture_begin = capture_begin;
    t->engine->device.backend->enqueue = watch.enqueue;
    return status;
}

/* ---- printing -------------------------------------------------------------------------------- */

static int by_time(const void *a, const void *b) {
    double x = ((const entry *)a)->seconds, y = ((const entry *)b)->seconds;
    return (x < y) - (x > y);
}

/* FLOP/s for compute-bound ops, bytes per second for others. */
static void print_entry(const entry *e, double total) {
    bool is_compute =
        e->kind == HY_OP_MATMUL || e->kind == HY_OP_ATTENTION || e->kind == HY_OP_ATTENTION_BWD;
    double rate =
        e->seconds > 0 ? (is_compute ? e->flops * 1e-12 : e->bytes * 1e-9) / e->seconds : 0;
    printf("    %-46s %6lld  %9.2f ms  %5.1f %%  %8.1f %s\n", e->label, (long long)e->calls,
           e->seconds * 1e3, 100 * e->seconds / total, rate, is_compute ? "TFLOP/s" : "GB/s");
}

static void print_table(table *t, const char *title, double total) {
    qsort(t->list, (size_t)t->count, sizeof t->list[0], by_time);
    printf("  %-48s %6s  %12s  %7s\n", title, "calls", "time", "share");
    for (int i = 0; i < t->count; i++) print_entry(&t->list[i], total);
}

hy_status gt_breakdown(gt_work *w, double step) {
    HY_TRY(watch_step(w->trainer));
    double total = watch.kinds.total;
    if (total <= 0) return hy_fail(HY_ERR_STATE, "no op took any time");
    printf("  one step, op by op: %.1f ms in total (%.1f ms in a real step; %.1f us of each op's "
           "time are launching)\n",
           total * 1e3, step * 1e3, watch.empty * 1e6);
    print_table(&watch.kinds, "op", total);
    print_table(&watch.products, "products (rows x columns x summed over)", total);
    return HY_OK;
}
