/* pinned.cu: host memory that the card accesses directly.
 *
 * For a large block, we map memory, in huge pages if the system has them, several threads touch its
 * pages, and the driver only pins them; the driver's own allocation does all of that on one thread.
 * Small blocks are allocated by the driver. So are large ones if a kernel cannot use a registered
 * pointer directly (WSL2) or if registering fails. A block is one registration, because a copy must
 * not span two of them. It begins at least at a page. */
#include "kernels/cuda/backend.cuh"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define REGISTERED_LEAST ((size_t)64 << 20) /* the driver allocates smaller blocks */
#define HUGE_PAGE ((size_t)2 << 20)
#define SLICE_LEAST ((size_t)64 << 20) /* less is not worth a thread */
#define THREADS_MAX                                                                                \
    4 /* on an H200 host, 8 GiB took 1.3 s with one, 0.4 with four, 0.9 with sixteen */

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14; an older system returns EINVAL */
#endif

/* ---- pages ----------------------------------------------------------------------------------- */

static size_t page_bytes(void) { return (size_t)sysconf(_SC_PAGESIZE); }

static size_t round_up(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

/* A block begins at a huge page; the page before it, which the driver never sees, holds its
 * size. */
static size_t *size_of(char *data) { return (size_t *)(data - page_bytes()); }

static void unmap_pages(char *data) {
    size_t bytes = *size_of(data);
    munmap(data - page_bytes(), page_bytes() + bytes);
}

/* Unmaps the excess before and after. NULL: errno says why. */
static char *map_pages(size_t bytes) {
    size_t room = bytes + 2 * HUGE_PAGE;
    void *all = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED) return NULL;
    char *data = (char *)round_up((size_t)all + page_bytes(), HUGE_PAGE);
    char *begin = data - page_bytes(), *end = data + bytes;
    if (begin > (char *)all) munmap(all, (size_t)(begin - (char *)all));
    munmap(end, (size_t)((char *)all + room - end));
    *size_of(data) = bytes;
    /* Hints: without huge pages it only takes longer. A child process must not share memory that
     * the card writes, or the next write of the parent would replace the page. */
    madvise(data, bytes, MADV_HUGEPAGE);
    madvise(data, bytes, MADV_DONTFORK);
    return data;
}

typedef struct page_slice {
    pthread_t thread;
    bool has_thread;
    char *data;
    size_t bytes;
    int error; /* errno */
} page_slice;

/* Touches the pages of a slice. */
static void *bring_in(void *argument) {
    page_slice *slice = (page_slice *)argument;
    int result;
    do {
        result = madvise(slice->data, slice->bytes, MADV_POPULATE_WRITE);
    } while (result != 0 && (errno == EINTR || errno == EAGAIN));
    if (result == 0) return NULL;
    if (errno != EINVAL) {
        slice->error = errno;
        return NULL;
    }
    for (size_t at = 0; at < slice->bytes; at += page_bytes()) {
        *(volatile char *)(slice->data + at) = 0;
    }
    return NULL;
}

/* Makes the system provide all pages, with several threads. Slices consist of whole huge pages; the
 * last one takes the rest. If a thread cannot be started, its slice is processed here. Returns 0 or
 * an errno. */
static int bring_in_all(char *data, size_t bytes) {
    page_slice slices[THREADS_MAX] = {};
    cpu_set_t set;
    int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1, error = 0;
    size_t most = bytes / SLICE_LEAST < THREADS_MAX ? bytes / SLICE_LEAST : THREADS_MAX;
    int count = cores < (int)most ? cores : (int)most;
    if (count < 1) count = 1;
    size_t share = bytes / (size_t)count / HUGE_PAGE * HUGE_PAGE;
    for (int i = 0; i < count; i++) {
        page_slice *slice = &slices[i];
        slice->data = data + (size_t)i * share;
        slice->bytes = i + 1 < count ? share : bytes - (size_t)i * share;
        slice->has_thread =
            i + 1 < count && pthread_create(&slice->thread, NULL, bring_in, slice) == 0;
    }
    for (int i = count - 1; i >= 0; i--) {
        if (slices[i].has_thread)
            pthread_join(slices[i].thread, NULL);
        else
            bring_in(&slices[i]);
        if (slices[i].error) error = slices[i].error;
    }
    return error;
}

/* ---- blocks ---------------------------------------------------------------------------------- */

/* Allocates registered memory. If the system has the memory but the driver does not register it,
 * *out is NULL, the status is HY_OK and *refusal is the reason: the driver may still allocate it in
 * its own way. */
static hy_status pin_pages(hy_cuda *cuda, size_t bytes, void **out, cudaError_t *refusal) {
    size_t rounded = round_up(bytes, page_bytes());
    char *data = map_pages(rounded);
    int error = data ? bring_in_all(data, rounded) : errno;
    if (error) {
        if (data) unmap_pages(data);
        return hy_cuda_fail(
            cuda, HY_ERR_MEMORY,
            "cannot allocate %.1f MiB of pinned host memory: the system does not have it: %s",
            (double)bytes / 0x1p20, strerror(error));
    }
    *refusal = cudaHostRegister(data, rounded, cudaHostRegisterPortable);
    if (*refusal == cudaSuccess) {
        *out = data;
        return HY_OK;
    }
    cudaGetLastError(); /* the caller reports it; it must not appear again after a launch */
    unmap_pages(data);
    return HY_OK;
}

hy_status hy_cuda_pin(hy_cuda *cuda, size_t bytes, void **out) {
    cudaError_t refusal = cudaSuccess;
    int can_register = 0;
    *out = NULL;
    /* Not if a kernel cannot use a registered pointer directly: the driver then maps it
     * elsewhere. */
    cudaDeviceGetAttribute(&can_register, cudaDevAttrCanUseHostPointerForRegisteredMem,
                           cuda->options.device);
    if (bytes >= REGISTERED_LEAST && can_register) {
        HY_TRY(pin_pages(cuda, bytes, out, &refusal));
        if (*out) return HY_OK;
    }
    cudaError_t error = cudaHostAlloc(out, bytes, cudaHostAllocPortable);
    if (error == cudaSuccess) return HY_OK;
    cudaGetLastError();
    *out = NULL;
    return hy_cuda_fail(cuda, HY_ERR_MEMORY,
                        "cannot allocate %.1f MiB of pinned host memory: the driver refused: %s",
                        (double)bytes / 0x1p20,
                        cudaGetErrorString(refusal == cudaSuccess ? error : refusal));
}

/* Memory that is not registered was allocated by the driver. Copies in flight must not lose their
 * memory: cudaFreeHost waits for them, unregistering is not guaranteed to. */
void hy_cuda_unpin(void *data) {
    if ((size_t)data % HUGE_PAGE == 0) {
        cudaDeviceSynchronize();
        if (cudaHostUnregister(data) == cudaSuccess) {
            unmap_pages((char *)data);
            return;
        }
        cudaGetLastError();
    }
    cudaFreeHost(data);
}
