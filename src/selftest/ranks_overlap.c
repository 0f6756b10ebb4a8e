/* ranks_overlap.c: times exchanges and matmuls alone and in parallel. See ranks.h.
 *
 * Training hides exchanges behind passes. It works here if both in parallel take hardly longer than
 * the longer one alone. If they take as long as one after the other, something blocks them: a
 * transport in which the host moves every byte, or cores that both need. That is slow but not
 * wrong, so it is reported and never a failure. */
#include <stdio.h>

#include "base/clock.h"
#include "base/error.h"
#include "selftest/ranks_bench.h"

#define SECONDS 0.3 /* seconds of each part alone */
enum { MOST_TIMES = 2000 };

typedef struct overlap_test {
    hy_bench bench;
    hy_selftest_memory memory; /* of the matmul */
    hy_op_call matmul;
    hy_stream *free; /* a stream without work, so that exchanges wait for nothing */
    int matmuls, exchanges;
} overlap_test;

/* Enqueues some matmuls for each exchange, so that neither queue runs empty. */
static hy_status enqueue_both(overlap_test *r, int matmuls, int exchanges) {
    hy_selftest_device *d = &r->bench.run->device;
    int rounds = exchanges > 0 ? exchanges : 1;
    hy_comm_op *op;
    for (int i = 0; i < rounds; i++) {
        if (exchanges > 0) HY_TRY(hy_bench_gather(&r->bench, r->free, &op));
        int until = (int)((int64_t)matmuls * (i + 1) / rounds);
        for (int k = (int)((int64_t)matmuls * i / rounds); k < until; k++)
            HY_TRY(d->backend->enqueue(d->stream, &r->matmul));
    }
    return HY_OK;
}

static hy_status seconds_of(overlap_test *r, int matmuls, int exchanges, double *seconds) {
    HY_TRY(hy_bench_sync(&r->bench));
    HY_TRY(hy_control_barrier(r->bench.run->team->control));
    double begin = hy_clock();
    HY_TRY(enqueue_both(r, matmuls, exchanges));
    HY_TRY(hy_bench_sync(&r->bench));
    *seconds = hy_clock() - begin;
    return hy_ranks_largest(r->bench.run, seconds);
}

/* The number of repetitions for a long enough time; equal on all ranks. */
static int times_for(double seconds) {
    double times = SECONDS / (seconds + 1e-6);
    return times > MOST_TIMES ? MOST_TIMES : times < 2 ? 2 : (int)times;
}

static hy_status measure(overlap_test *r) {
    hy_ranks_run *run = r->bench.run;
    double matmul, exchange, both;
    HY_TRY(seconds_of(r, 1, 1, &both));       /* the first of each is slow */
    for (int tries = 0; tries < 2; tries++) { /* a few at first, then about as many as needed */
        HY_TRY(seconds_of(r, r->matmuls, 0, &matmul));
        HY_TRY(seconds_of(r, 0, r->exchanges, &exchange));
        r->matmuls = times_for(matmul / r->matmuls);
        r->exchanges = times_for(exchange / r->exchanges);
    }
    HY_TRY(seconds_of(r, r->matmuls, 0, &matmul));
    HY_TRY(seconds_of(r, 0, r->exchanges, &exchange));
    HY_TRY(seconds_of(r, r->matmuls, r->exchanges, &both));
    double longer = matmul > exchange ? matmul : exchange, ratio = both / longer;
    hy_ranks_report(run, "matmuls alone", "%8.3f s", matmul);
    hy_ranks_report(run, "exchanges alone", "%8.3f s", exchange);
    hy_ranks_report(run, "both together", "%8.3f s, %.2f times the longer one%s", both, ratio,
                    ratio > 1.5 ? ": they slow each other down" : "");
    return HY_OK;
}

/* ---- the part -------------------------------------------------------------------------------- */

static hy_status open_and_measure(overlap_test *r, hy_ranks_run *run) {
    hy_selftest_device *d = &run->device;
    const hy_device_facts *facts = &d->backend->facts;
    hy_dtype narrow = facts->capability >= 80 ? HY_BF16 : HY_F16;
    HY_TRY(hy_bench_open(&r->bench, run, run->has_nccl));
    r->bench.words = (int64_t)((facts->is_gpu ? HY_BENCH_MOST : 8 << 20) / 4);
    HY_TRY(d->backend->stream_create(d->backend, "free", &r->free));
    HY_TRY(hy_selftest_matmul(&r->memory, d->stream, facts->is_gpu ? narrow : HY_F32,
                              facts->is_gpu ? 4096 : 384, &r->matmul));
    return measure(r);
}

hy_status hy_ranks_test_overlap(hy_ranks_run *run) {
    overlap_test r = {.memory.backend = run->device.backend, .matmuls = 4, .exchanges = 4};
    snprintf(run->part, sizeof run->part, "exchanges over %s in parallel with matmuls",
             hy_ranks_way(run, run->has_nccl));
    hy_ranks_progress(run, "timing");
    hy_status status = open_and_measure(&r, run);
    hy_bench_close(&r.bench);
    (void)run->device.backend->stream_sync(run->device.stream); /* the failure has been reported */
    hy_selftest_release(&r.memory);
    if (r.free) run->device.backend->stream_destroy(r.free);
    run->done += 0.1;
    return status;
}
