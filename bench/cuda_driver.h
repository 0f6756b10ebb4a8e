/* cuda_driver.h: the few driver calls that measurements make themselves.
 *
 * The driver's library is opened at run time, so that programs build and start without one. Calls
 * use the context of the calling thread: one created here, or the trainer's. */
#ifndef BENCH_CUDA_DRIVER_H
#define BENCH_CUDA_DRIVER_H

#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct cuda_driver {
    void *library;
    int (*init)(unsigned flags);
    int (*device_get)(int *device, int ordinal);
    int (*retain_context)(void **context, int device);
    int (*set_context)(void *context);
    int (*mem_info)(size_t *free_bytes, size_t *total);
    int (*alloc)(uint64_t *address, size_t bytes);
    int (*release)(uint64_t address);
} cuda_driver;

/* False: there is no driver, or it lacks a call. */
static inline bool cuda_driver_open(cuda_driver *d) {
    const struct {
        const char *name;
        void **call;
    } calls[] = {{"cuInit", (void **)&d->init},
                 {"cuDeviceGet", (void **)&d->device_get},
                 {"cuDevicePrimaryCtxRetain", (void **)&d->retain_context},
                 {"cuCtxSetCurrent", (void **)&d->set_context},
                 {"cuMemGetInfo_v2", (void **)&d->mem_info},
                 {"cuMemAlloc_v2", (void **)&d->alloc},
                 {"cuMemFree_v2", (void **)&d->release}};
    *d = (cuda_driver){.library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)};
    if (!d->library) return false;
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        *calls[i].call = dlsym(d->library, calls[i].name);
        if (!*calls[i].call) return false;
    }
    return true;
}

static inline void cuda_driver_close(cuda_driver *d) {
    if (d->library) dlclose(d->library);
    d->library = NULL;
}

/* Bytes in use on the card by all programs; 0 without a context on this thread. */
static inline uint64_t cuda_driver_in_use(void) {
    cuda_driver d;
    size_t free_bytes = 0, total = 0;
    bool is_told = cuda_driver_open(&d) && d.mem_info(&free_bytes, &total) == 0;
    cuda_driver_close(&d);
    return is_told ? total - free_bytes : 0;
}

#endif
