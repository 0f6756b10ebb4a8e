/* ranks_exchanges.c: the exchanges of training, compared bit by bit and timed. See ranks.h.
 *
 * For each transport: every rank's part to all ranks (weights), parts to their owners and their sum
 * (gradients), and sums of doubles (norm and loss). Each size runs once and is compared, then many
 * times and is compared again. Memory for parts of other ranks is overwritten before, so that
 * missing data shows. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "selftest/ranks_bench.h"

enum { MOST_TIMES = 200 };
#define ENOUGH_SECONDS 0.1
#define NOT_YET 0xfeedfaceu

static const uint64_t sizes[] = {512, 4096, 65536, 1 << 20, 8 << 20, HY_BENCH_MOST};
enum { SIZES = sizeof sizes / sizeof sizes[0] };

typedef struct exchange_kind {
    const char *name;
    hy_status (*fill)(hy_bench *b);
    hy_status (*run)(hy_bench *b);
    hy_status (*compare)(hy_bench *b, hy_finding *finding);
} exchange_kind;

/* ---- numbers that every rank knows ----------------------------------------------------------- */

static uint32_t word_of(int32_t rank, int64_t i) {
    uint64_t x =
        ((uint64_t)i + 1) * 0x9e3779b97f4a7c15u ^ ((uint64_t)rank + 1) * 0xbf58476d1ce4e5b9u;
    x ^= x >> 29;
    return (uint32_t)(x * 0x94d049bb133111ebu >> 32);
}

/* 24 bits and an exponent: exact in fp32, and sums of several depend on their order. */
static float real_of(int32_t rank, int64_t i) {
    uint32_t word = word_of(rank, i);
    return (float)((int32_t)(word >> 8) - (1 << 23)) * (1.0f / (float)(1u << (word & 15)));
}

static double number_of(int32_t rank, int i) { return 1.0 / (3 + 7 * i + rank); }

static hy_status copy_up(hy_bench *b) {
    hy_selftest_device *d = &b->run->device;
    HY_TRY(d->backend->copy(d->stream, b->whole, b->host, (size_t)b->words * sizeof *b->host));
    return d->backend->stream_sync(d->stream);
}

static hy_status copy_down(hy_bench *b, const void *from, size_t bytes) {
    hy_selftest_device *d = &b->run->device;
    HY_TRY(d->backend->copy(d->stream, b->host, from, bytes));
    return hy_bench_sync(b);
}

/* ---- every rank's part to all ---------------------------------------------------------------- */

static hy_status fill_own(hy_bench *b) {
    int64_t begin = hy_bench_cut(b, b->rank), end = hy_bench_cut(b, b->rank + 1);
    for (int64_t i = 0; i < b->words; i++)
        b->host[i] = i >= begin && i < end ? word_of(b->rank, i) : NOT_YET;
    return copy_up(b);
}

static hy_status gather(hy_bench *b) {
    hy_comm_op *op;
    HY_TRY(hy_bench_gather(b, b->run->device.stream, &op));
    return hy_comm_wait(op, b->run->device.stream);
}

static hy_status compare_gathered(hy_bench *b, hy_finding *finding) {
    HY_TRY(copy_down(b, hy_bench_gathered(b), (size_t)b->words * sizeof *b->host));
    for (int32_t r = 0; r < b->count; r++) {
        for (int64_t i = hy_bench_cut(b, r); i < hy_bench_cut(b, r + 1); i++) {
            uint32_t expected = word_of(r, i);
            if (b->host[i] == expected) continue;
            hy_finding_add(finding, "word %lld of %lld, from rank %d, is %08x, expected %08x%s",
                           (long long)i, (long long)b->words, r, b->host[i], expected,
                           b->host[i] == NOT_YET ? ": it did not arrive" : "");
            return HY_OK;
        }
    }
    return HY_OK;
}

/* ---- parts to their owners, and their sum ---------------------------------------------------- */

static hy_status fill_reals(hy_bench *b) {
    hy_selftest_device *d = &b->run->device;
    int64_t own = hy_bench_cut(b, b->rank + 1) - hy_bench_cut(b, b->rank);
    size_t arriving = (size_t)(own * b->peers) * sizeof *b->host;
    for (int64_t i = 0; i < b->words; i++) b->host[i] = NOT_YET;
    /* one or two grains more than a share */
    if (arriving > HY_BENCH_MOST) arriving = HY_BENCH_MOST;
    HY_TRY(d->backend->copy(d->stream, b->arriving, b->host, arriving));
    HY_TRY(d->backend->stream_sync(d->stream));
    for (int64_t i = 0; i < b->words; i++) {
        float x = real_of(b->rank, i);
        memcpy(&b->host[i], &x, sizeof x);
    }
    return copy_up(b);
}

static hy_status scatter(hy_bench *b) {
    hy_reduction sums;
    HY_TRY(hy_bench_scatter(b, b->run->device.stream, &sums));
    return hy_reduce_scatter_end(&sums, b->run->device.stream, HY_F32, false, b->sum);
}

static hy_status compare_sums(hy_bench *b, hy_finding *finding) {
    int64_t begin = hy_bench_cut(b, b->rank), own = hy_bench_cut(b, b->rank + 1) - begin;
    HY_TRY(copy_down(b, b->sum, (size_t)own * sizeof *b->host));
    for (int64_t i = 0; i < own; i++) {
        float sum = real_of(0, begin + i), found;
        uint32_t bits;
        for (int32_t r = 1; r < b->count; r++) sum += real_of(r, begin + i);
        memcpy(&bits, &sum, sizeof bits);
        if (b->host[i] == bits) continue;
        memcpy(&found, &b->host[i], sizeof found);
        hy_finding_add(finding, "sum %lld of this rank's %lld is %.9g, expected %.9g", (long long)i,
                       (long long)own, (double)found, (double)sum);
        return HY_OK;
    }
    return HY_OK;
}

/* ---- sums of doubles ------------------------------------------------------------------------- */

static hy_status fill_numbers(hy_bench *b) {
    hy_selftest_device *d = &b->run->device;
    double own[HY_EXCHANGE_NUMBERS];
    for (int i = 0; i < HY_EXCHANGE_NUMBERS; i++) own[i] = number_of(b->rank, i);
    HY_TRY(d->backend->copy(d->stream, b->numbers, own, sizeof own));
    return d->backend->stream_sync(d->stream);
}

static hy_status sum_numbers(hy_bench *b) {
    double *each[HY_EXCHANGE_NUMBERS];
    for (int i = 0; i < HY_EXCHANGE_NUMBERS; i++) each[i] = b->numbers + i;
    return hy_all_reduce(&b->net, b->run->device.stream, each, HY_EXCHANGE_NUMBERS);
}

static hy_status compare_numbers(hy_bench *b, hy_finding *finding) {
    double found[HY_EXCHANGE_NUMBERS];
    HY_TRY(copy_down(b, b->numbers, sizeof found));
    memcpy(found, b->host, sizeof found);
    for (int i = 0; i < HY_EXCHANGE_NUMBERS; i++) {
        double sum = number_of(0, i);
        for (int32_t r = 1; r < b->count; r++) sum += number_of(r, i);
        if (found[i] != sum)
            hy_finding_add(finding, "sum %d is %.17g, expected %.17g", i, found[i], sum);
    }
    return HY_OK;
}

/* ---- one size -------------------------------------------------------------------------------- */

static hy_status run_times(hy_bench *b, const exchange_kind *kind, int times, double *seconds) {
    HY_TRY(hy_control_barrier(b->run->team->control));
    double begin = hy_clock();
    for (int i = 0; i < times; i++) HY_TRY(kind->run(b));
    HY_TRY(hy_bench_sync(b));
    *seconds = (hy_clock() - begin) / times;
    return hy_ranks_largest(b->run, seconds);
}

/* Runs once and compares; then runs as often as the time allows, with cleared memory, and
 * compares. */
static hy_status try_exchange(hy_bench *b, const exchange_kind *kind, bool is_repeated,
                              hy_finding *finding, double *seconds) {
    HY_TRY(kind->fill(b));
    HY_TRY(run_times(b, kind, 1, seconds));
    HY_TRY(kind->compare(b, finding));
    HY_TRY(kind->fill(b));
    HY_TRY(run_times(b, kind, 1, seconds)); /* the first exchange connects the ranks */
    double fitting = ENOUGH_SECONDS / (*seconds + 1e-6);
    int times = fitting > MOST_TIMES ? MOST_TIMES : fitting < 1 ? 1 : (int)fitting;
    if (is_repeated) HY_TRY(run_times(b, kind, times, seconds));
    return kind->compare(b, finding);
}

static hy_status test_size(hy_bench *b, const exchange_kind *kind, uint64_t bytes) {
    char name[80], text[80];
    double seconds, sent = (double)bytes * b->peers / b->count;
    hy_finding finding = {0};
    int unit = bytes >= 1 << 20 ? 2 : bytes >= 1024 ? 1 : 0;
    snprintf(name, sizeof name, "%s, %d %s", kind->name, (int)(bytes >> 10 * unit),
             (const char *const[]){"bytes", "KiB", "MiB"}[unit]);
    hy_ranks_progress(b->run, name);
    b->words = (int64_t)(bytes / sizeof *b->host);
    HY_TRY(try_exchange(b, kind, true, &finding, &seconds));
    snprintf(text, sizeof text, "%10.1f us  %8.3f GB/s", 1e6 * seconds, 1e-9 * sent / seconds);
    return hy_ranks_judge(b->run, &finding, name, text);
}

/* ---- the part -------------------------------------------------------------------------------- */

static hy_status test_way(hy_bench *b, double share) {
    static const exchange_kind kinds[] = {
        {"all-gather", fill_own, gather, compare_gathered},
        {"reduce-scatter", fill_reals, scatter, compare_sums},
    };
    static const exchange_kind sum = {"sum of doubles", fill_numbers, sum_numbers, compare_numbers};
    char text[80];
    double seconds;
    hy_finding finding = {0};
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < SIZES; i++) {
            HY_TRY(test_size(b, &kinds[k], sizes[i]));
            b->run->done += share / (2 * SIZES);
        }
    }
    HY_TRY(try_exchange(b, &sum, false, &finding, &seconds));
    snprintf(text, sizeof text, "%10.1f us", 1e6 * seconds);
    return hy_ranks_judge(b->run, &finding, sum.name, text);
}

hy_status hy_ranks_test_exchanges(hy_ranks_run *run) {
    int ways = run->has_nccl ? 2 : 1;
    for (int way = 2 - ways; way < 2; way++) {
        bool is_nccl = way == 0, is_gpu = run->device.backend->facts.is_gpu;
        hy_bench bench;
        snprintf(run->part, sizeof run->part, "exchanges over %s%s", hy_ranks_way(run, is_nccl),
                 is_gpu && !is_nccl ? ", through pinned memory" : "");
        hy_ranks_progress(run, "connecting");
        hy_status status = hy_bench_open(&bench, run, is_nccl);
        if (status == HY_OK) status = test_way(&bench, 0.4 / ways);
        hy_bench_close(&bench);
        HY_TRY(status);
    }
    return HY_OK;
}
