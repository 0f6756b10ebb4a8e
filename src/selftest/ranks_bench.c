/* ranks_bench.c: memory for exchanges of known numbers, and the exchanges. See ranks_bench.h.
 *
 * The parts that compare exchanges and that time them beside matmuls use it. Closing it waits for
 * exchanges in flight. */
#include "selftest/ranks_bench.h"

#include <stdlib.h>

#include "base/error.h"

enum { JOBS = 16, GRAIN = 64 };

/* The engine cuts at 256 elements; a smaller grain here divides even small buffers among
 * several ranks. */
int64_t hy_bench_cut(const hy_bench *b, int32_t rank) {
    return rank == b->count ? b->words : b->words * rank / b->count / GRAIN * GRAIN;
}

hy_status hy_bench_open(hy_bench *b, hy_ranks_run *run, bool is_nccl) {
    hy_team *team = run->team;
    hy_backend *backend = run->device.backend;
    /* Parts are at most a grain larger than an even share. */
    uint64_t arriving = HY_BENCH_MOST + (uint64_t)(team->who.count + 1) * GRAIN * sizeof(uint32_t);
    *b = (hy_bench){.run = run,
                    .memory.backend = backend,
                    .rank = team->who.rank,
                    .count = team->who.count,
                    .peers = team->who.count > 1 ? team->who.count - 1 : 1};
    team->uses_nccl = is_nccl;
    HY_TRY(hy_exchange_open(&b->net, team, backend, JOBS));
    if (backend->facts.is_gpu && !is_nccl) { /* for what a card sends and receives */
        b->net.staging_bytes = HY_BENCH_MOST + arriving;
        HY_TRY(backend->alloc(backend, HY_PINNED, b->net.staging_bytes, (void **)&b->net.staging));
    }
    HY_TRY(hy_selftest_take(&b->memory, HY_BENCH_MOST, (void **)&b->whole));
    HY_TRY(hy_selftest_take(&b->memory, arriving, (void **)&b->arriving));
    HY_TRY(hy_selftest_take(&b->memory, HY_BENCH_MOST, (void **)&b->sum));
    HY_TRY(hy_selftest_take(&b->memory, HY_EXCHANGE_NUMBERS * sizeof *b->numbers,
                            (void **)&b->numbers));
    b->host = malloc(HY_BENCH_MOST);
    HY_FAIL_IF(!b->host, HY_ERR_MEMORY, "not enough memory to compare exchanged data");
    return hy_exchange_connect(&b->net);
}

void hy_bench_close(hy_bench *b) {
    if (!b->run) return;
    hy_backend *backend = b->run->device.backend;
    char *staging = b->net.staging;
    if (b->net.backend) hy_exchange_close(&b->net); /* waits for exchanges in flight */
    hy_selftest_release(&b->memory);
    if (staging) backend->release(backend, HY_PINNED, staging, 0);
    free(b->host);
    b->run->team->uses_nccl = false;
    *b = (hy_bench){0};
}

/* ---- collectives ----------------------------------------------------------------------------- */

static void cut(const hy_bench *b, hy_comm_part *parts) {
    for (int32_t r = 0; r < b->count; r++) {
        uint64_t begin = (uint64_t)hy_bench_cut(b, r), end = (uint64_t)hy_bench_cut(b, r + 1);
        parts[r] = (hy_comm_part){begin * sizeof(uint32_t), (end - begin) * sizeof(uint32_t)};
    }
}

hy_status hy_bench_gather(hy_bench *b, hy_stream *after, hy_comm_op **out) {
    hy_comm_part parts[HY_RANKS_MOST];
    cut(b, parts);
    return hy_all_gather(&b->net, after,
                         b->whole + (uint64_t)hy_bench_cut(b, b->rank) * sizeof(uint32_t),
                         hy_bench_gathered(b), parts, out);
}

hy_status hy_bench_scatter(hy_bench *b, hy_stream *after, hy_reduction *out) {
    hy_comm_part parts[HY_RANKS_MOST];
    cut(b, parts);
    return hy_reduce_scatter(&b->net, after, b->whole, parts, b->arriving, out);
}

hy_status hy_bench_sync(hy_bench *b) {
    hy_backend *backend = b->run->device.backend;
    HY_TRY(backend->stream_sync(b->net.stream));
    HY_TRY(backend->stream_sync(b->run->device.stream));
    return hy_exchange_check(&b->net);
}
