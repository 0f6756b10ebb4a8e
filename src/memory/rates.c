/* rates.c: measures copies up, down and both ways together, host memory and device memory. See
 * rates.h.
 *
 * Each measurement runs once untimed, to exclude first-time costs, and then repeatedly for a
 * twentieth of a second: many rounds on a fast link, one or two on a slow one. A rate is all bytes
 * over all seconds, because a plan needs the sustained rate. */
#include "memory/rates.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "kernels/cpu/machine.h"
#include "memory/disk.h"

#define CHUNK ((size_t)64 << 20)          /* bytes of one copy */
#define DEVICE_BUFFER ((size_t)128 << 20) /* two of them exceed the cache of any card */
#define HOST_BYTES ((size_t)256 << 20)    /* of all threads together */
#define PER_ROUND 2                       /* copies each way without a pause */
#define SECONDS 0.05
#define THREADS_MAX 16

/* ---- the device ------------------------------------------------------------------------------ */

typedef struct probe {
    hy_backend *backend;
    hy_stream *up, *down;
    char *device[2]; /* DEVICE_BUFFER bytes each */
    char *pinned[2]; /* CHUNK bytes each */
} probe;

/* The work of a round. */
enum { UP = 1, DOWN = 2, ON_DEVICE = 4 };

/* Copies one buffer to the other: each element is read once and written once. */
static hy_op_call copy_call(const probe *p) {
    int64_t count = (int64_t)(DEVICE_BUFFER / sizeof(float));
    return (hy_op_call){.kind = HY_OP_COMBINE,
                        .attr.combine.coefficient = {1},
                        .t = {[HY_COMBINE_OUT] = hy_tensor_1d(p->device[1], HY_F32, count),
                              [HY_COMBINE_X0] = hy_tensor_1d(p->device[0], HY_F32, count)}};
}

static hy_status run_round(probe *p, int what) {
    hy_backend *b = p->backend;
    hy_op_call call = copy_call(p);
    for (int i = 0; i < PER_ROUND; i++) {
        if (what & UP) HY_TRY(b->copy(p->up, p->device[0], p->pinned[0], CHUNK));
        if (what & DOWN) HY_TRY(b->copy(p->down, p->pinned[1], p->device[1], CHUNK));
        if (what & ON_DEVICE) HY_TRY(b->enqueue(p->up, &call));
    }
    HY_TRY(b->stream_sync(p->up));
    return b->stream_sync(p->down);
}

/* Bytes per second of rounds that move `bytes` each. */
static hy_status time_rounds(probe *p, int what, size_t bytes, double *rate) {
    HY_TRY(run_round(p, what));
    double began = hy_clock(), seconds;
    int rounds = 0;
    do {
        HY_TRY(run_round(p, what));
        rounds++;
        seconds = hy_clock() - began;
    } while (seconds < SECONDS);
    *rate = (double)rounds * (double)bytes / seconds;
    return HY_OK;
}

static hy_status take(probe *p) {
    hy_backend *b = p->backend;
    HY_TRY(b->stream_create(b, "rates up", &p->up));
    HY_TRY(b->stream_create(b, "rates down", &p->down));
    for (int i = 0; i < 2; i++) {
        HY_TRY(b->alloc(b, HY_DEVICE, DEVICE_BUFFER, (void **)&p->device[i]));
        HY_TRY(b->alloc(b, HY_PINNED, CHUNK, (void **)&p->pinned[i]));
        memset(p->pinned[i], 0, CHUNK);
        /* Fill both chunks of the buffer, so that the op reads numbers instead of random bits. */
        HY_TRY(b->copy(p->up, p->device[i], p->pinned[i], CHUNK));
        HY_TRY(b->copy(p->up, p->device[i] + CHUNK, p->pinned[i], CHUNK));
    }
    return b->stream_sync(p->up);
}

static void give_back(probe *p) {
    hy_backend *b = p->backend;
    if (p->up) b->stream_destroy(p->up); /* executes queued work before the memory is freed */
    if (p->down) b->stream_destroy(p->down);
    for (int i = 0; i < 2; i++) {
        if (p->device[i]) b->release(b, HY_DEVICE, p->device[i], DEVICE_BUFFER);
        if (p->pinned[i]) b->release(b, HY_PINNED, p->pinned[i], CHUNK);
    }
}

static hy_status measure_device(probe *p, hy_rates *out) {
    HY_TRY(take(p));
    HY_TRY(time_rounds(p, UP, PER_ROUND * CHUNK, &out->copy_up));
    HY_TRY(time_rounds(p, DOWN, PER_ROUND * CHUNK, &out->copy_down));
    HY_TRY(time_rounds(p, UP | DOWN, PER_ROUND * CHUNK, &out->copy_both));
    if (!p->backend->facts.is_gpu) return HY_OK;
    /* The device's own clock does not count what the host does between rounds. */
    hy_op_call call = copy_call(p);
    double seconds = p->backend->op_seconds ? p->backend->op_seconds(p->backend, &call) : 0;
    if (seconds > 0) {
        out->device_bandwidth = 2 * (double)DEVICE_BUFFER / seconds;
        return HY_OK;
    }
    return time_rounds(p, ON_DEVICE, PER_ROUND * 2 * DEVICE_BUFFER, &out->device_bandwidth);
}

/* ---- host memory ----------------------------------------------------------------------------- */

/* Makes threads start copying together, after each has touched its memory. */
typedef struct gate {
    sem_t is_ready, may_go;
} gate;

typedef struct copier {
    pthread_t thread;
    gate *gate;
    char *from, *to;
    size_t bytes;
    double rate; /* bytes read plus bytes written, per second */
} copier;

static void wait_for(sem_t *semaphore) {
    while (sem_wait(semaphore) != 0) {} /* interrupted by a signal */
}

static void *copy_for_a_while(void *argument) {
    copier *c = argument;
    memset(c->from, 1, c->bytes);
    memset(c->to, 2, c->bytes);
    sem_post(&c->gate->is_ready);
    wait_for(&c->gate->may_go);
    double began = hy_clock(), seconds;
    size_t rounds = 0;
    do {
        memcpy(c->to, c->from, c->bytes);
        /* reads the result, so the compiler keeps the copy */
        c->from[rounds] = c->to[c->bytes - 1 - rounds];
        rounds++;
        seconds = hy_clock() - began;
    } while (seconds < SECONDS && rounds < c->bytes);
    c->rate = 2.0 * (double)rounds * (double)c->bytes / seconds;
    return NULL;
}

/* Fewer threads than cores are accepted, but at least one. */
static hy_status run_copiers(char *memory, size_t bytes, int wanted, double *rate) {
    gate start;
    sem_init(&start.is_ready, 0, 0);
    sem_init(&start.may_go, 0, 0);
    copier copiers[THREADS_MAX];
    size_t share = bytes / 2 / (size_t)wanted;
    int count = 0, error = 0;
    while (count < wanted && error == 0) {
        char *mine = memory + (size_t)count * 2 * share;
        copiers[count] = (copier){.gate = &start, .from = mine, .to = mine + share, .bytes = share};
        error = pthread_create(&copiers[count].thread, NULL, copy_for_a_while, &copiers[count]);
        if (error == 0) count++;
    }
    for (int i = 0; i < count; i++) wait_for(&start.is_ready);
    for (int i = 0; i < count; i++) sem_post(&start.may_go);
    *rate = 0;
    for (int i = 0; i < count; i++) {
        pthread_join(copiers[i].thread, NULL);
        *rate += copiers[i].rate;
    }
    sem_destroy(&start.is_ready);
    sem_destroy(&start.may_go);
    if (count > 0) return HY_OK;
    return hy_fail(HY_ERR_MEMORY, "cannot start a thread to measure host memory: %s",
                   strerror(error));
}

hy_status hy_rates_host(double *bandwidth) {
    int threads = hy_machine_threads();
    size_t total, available, bytes = HOST_BYTES;
    hy_machine_memory(&total, &available);
    /* A measurement must not exhaust the memory of a small machine. */
    if (available && available / 4 < bytes) bytes = available / 4;
    if (threads > THREADS_MAX) threads = THREADS_MAX;
    char *memory = malloc(bytes);
    if (!memory)
        return hy_fail(HY_ERR_MEMORY, "not enough memory to measure the speed of host memory");
    hy_status status = run_copiers(memory, bytes, threads, bandwidth);
    free(memory);
    return status;
}

/* ---- all rates ------------------------------------------------------------------------------- */

hy_status hy_rates_measure(hy_backend *b, hy_rates *out) {
    probe p = {.backend = b};
    *out = (hy_rates){.gemm_flops = b->facts.matmul_flops};
    hy_status status = measure_device(&p, out);
    give_back(&p);
    if (status != HY_OK) return hy_fail_context(status, "measuring copies");
    HY_TRY(hy_rates_host(&out->host_bandwidth));
    if (!b->facts.is_gpu) out->device_bandwidth = out->host_bandwidth;
    return HY_OK;
}

hy_status hy_rates_disk(const char *folder, hy_rates *rates) {
    return hy_spill_measure(folder, &rates->disk_read, &rates->disk_write);
}
