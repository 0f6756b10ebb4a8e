/* ranks_bench.h: exchanges of known numbers between ranks, as the engine does, in separate memory.
 *
 * A buffer of 32-bit words is cut among ranks as the engine cuts a unit, at multiples of 64, so
 * that parts differ in size and small buffers have empty parts. Word i of rank r is a formula of
 * both, so every receiver can check it. */
#pragma once

#include "comm/collectives.h"
#include "selftest/ranks.h"

#define HY_BENCH_MOST ((uint64_t)64 << 20) /* bytes of a buffer */

typedef struct hy_bench {
    hy_ranks_run *run;
    hy_exchange net;
    int32_t rank, count, peers;   /* peers: the other ranks; a single rank has itself */
    int64_t words;                /* words of the buffer now */
    hy_selftest_memory memory;    /* of the next two lines */
    char *whole, *arriving, *sum; /* on the device; sum: of this rank's part */
    double *numbers;              /* on the device: (HY_EXCHANGE_NUMBERS) */
    uint32_t *host;
} hy_bench;

hy_status hy_bench_open(hy_bench *b, hy_ranks_run *run, bool is_nccl);
void hy_bench_close(hy_bench *b); /* {0} is closed */

/* Where a rank's part begins; for `count`, the end of the last part. */
int64_t hy_bench_cut(const hy_bench *b, int32_t rank);

/* Where a gathered buffer is stored: in its place, or elsewhere for a single rank, so that data is
 * moved. */
static inline char *hy_bench_gathered(const hy_bench *b) {
    return b->count > 1 ? b->whole : b->arriving;
}

/* One exchange of the buffer, enqueued after `after`. */
hy_status hy_bench_gather(hy_bench *b, hy_stream *after, hy_comm_op **out);
hy_status hy_bench_scatter(hy_bench *b, hy_stream *after, hy_reduction *out);

/* waits for both streams; returns failures of exchanges too */
hy_status hy_bench_sync(hy_bench *b);
