/* disk_measure.c: measures the speed of the offload folder, for the planner's cost model. See
 * disk.h.
 *
 * There are three passes over a file like that of the disk tier: one over blocks never written,
 * then two that count, writing and reading. Each keeps a window of chunks in flight, as a run does.
 * A fast disk repeats the file several times; a slow one does not reach its end. */
#include <stdlib.h>

#include "base/clock.h"
#include "base/error.h"
#include "memory/disk_engine.h"

#define CHUNK ((uint64_t)1 << 20)
#define CHUNKS 64 /* 64 MiB */
#define WINDOW 16 /* chunks in flight; each has a buffer */
#define PASS_SECONDS 0.1

typedef struct probe {
    hy_spill *spill;
    char *buffers;
    hy_spill_ticket ticket[WINDOW];
} probe;

/* Measures bytes per second over at most *chunks chunks; *chunks becomes the number that fits into
 * the time of the next pass. */
static hy_status pass(probe *p, bool is_write, uint64_t *chunks, double *rate) {
    double began = hy_clock();
    uint64_t done = 0;
    for (; done < *chunks && hy_clock() - began < PASS_SECONDS; done++) {
        uint64_t offset = done % CHUNKS * CHUNK;
        char *buffer = p->buffers + done % WINDOW * CHUNK;
        hy_spill_ticket *ticket = &p->ticket[done % WINDOW];
        HY_TRY(hy_spill_wait(p->spill, *ticket));
        HY_TRY(is_write ? hy_spill_write(p->spill, offset, CHUNK, buffer, ticket)
                        : hy_spill_read(p->spill, offset, CHUNK, buffer, ticket));
    }
    for (int i = 0; i < WINDOW; i++) HY_TRY(hy_spill_wait(p->spill, p->ticket[i]));
    double seconds = hy_clock() - began;
    *rate = (double)(done * CHUNK) / (seconds > 1e-9 ? seconds : 1e-9);
    *chunks = 1 + (uint64_t)(*rate * PASS_SECONDS / (double)CHUNK);
    /* Only a disk that reached the end of the file may start again; the others would read blocks
     * that were never written. */
    if (done<CHUNKS && * chunks> done) *chunks = done;
    return HY_OK;
}

hy_status hy_spill_measure(const char *folder, double *read_rate, double *write_rate) {
    probe p = {.buffers = hy_spill_alloc(WINDOW * CHUNK)};
    if (!p.buffers)
        return hy_fail(HY_ERR_MEMORY, "not enough memory to measure the offload folder with");
    /* Some file systems and disks compress, so the bytes must not repeat. */
    uint64_t *words = (uint64_t *)(void *)p.buffers, chunks = CHUNKS;
    for (uint64_t i = 0; i < WINDOW * CHUNK / sizeof *words; i++) {
        words[i] = (i + 1) * 0x9E3779B97F4A7C15u ^ i << 17; /* golden ratio: all bits change */
    }
    double first_rate;
    hy_status status = hy_spill_open(folder, CHUNKS * CHUNK, NULL, &p.spill);
    if (status == HY_OK) status = pass(&p, true, &chunks, &first_rate);
    if (status == HY_OK) status = pass(&p, true, &chunks, write_rate);
    if (status == HY_OK) status = pass(&p, false, &chunks, read_rate);
    hy_status closed = hy_spill_close(p.spill);
    free(p.buffers);
    return status != HY_OK ? status : closed; /* report the first failure */
}
