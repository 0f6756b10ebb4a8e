/* fake_driver.c: a driver's library with a card of FAKE_MIB mebibytes, for bench/hold_memory.
 *
 * run.sh compiles it as libcuda.so.1. It refuses pieces larger than FAKE_LARGEST MiB, as a card
 * with memory in pieces does, counts what is held, and writes what was given back to FAKE_LOG. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define MIB ((size_t)1 << 20)

static size_t sizes[8192], held;
static uint64_t count;

static size_t setting(const char *name) {
    const char *text = getenv(name);
    return (text ? strtoull(text, NULL, 10) : 0) * MIB;
}

int cuInit(unsigned flags) { return (int)flags; }

int cuDeviceGet(int *device, int ordinal) {
    *device = ordinal;
    return ordinal == 0 ? 0 : 101;
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
    *context = &sizes;
    return device;
}

int cuCtxSetCurrent(void *context) { return context == &sizes ? 0 : 1; }

int cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    *total = setting("FAKE_MIB");
    *free_bytes = *total - held;
    return 0;
}

int cuMemAlloc_v2(uint64_t *address, size_t bytes) {
    if (bytes > setting("FAKE_LARGEST") || held + bytes > setting("FAKE_MIB")) return 2;
    sizes[++count] = bytes;
    held += bytes;
    *address = count;
    return 0;
}

int cuMemFree_v2(uint64_t address) {
    held -= sizes[address];
    if (held > 0) return 0;
    FILE *log = fopen(getenv("FAKE_LOG"), "w");
    if (log) fputs("all given back\n", log);
    return log ? fclose(log) : 1;
}
