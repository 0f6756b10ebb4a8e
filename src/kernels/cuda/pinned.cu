/* pinned.cu: host memory that the card reads and writes by itself.
 *
 * A large block is mapped by us, in huge pages where the system has them, its pages are brought in by
 * several threads, and the driver then only pins what is there: its own way of taking memory does all
 * of that on one thread. Small blocks are taken from the driver, and so are large ones where a kernel
 * could not use a registered pointer as it is (WSL2) or registering is refused. A block is one
 * registration, because a copy must not span two of them. It begins on a page at least. */
#include "kernels/cuda/backend.cuh"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define REGISTERED_LEAST ((size_t)64 << 20) /* smaller blocks are taken from the driver */
#define HUGE_PAGE ((size_t)2 << 20)
#define SLICE_LEAST ((size_t)64 << 20) /* less is not worth a thread */
#define THREADS_MAX                                                                                \
    4 /* on an H200 host 8 GiB took 1.3 s with one, 0.4 with four, 0.9 with sixteen */

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14; an older system refuses it with EINVAL */
#endif

/* ---- pages ------------------------------------------------------------------------------------- */

static size_t page_bytes(void) { return (size_t)sysconf(_SC_PAGESIZE); }

static size_t round_up(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

/* A block begins on a huge page; the page before it, which the driver never sees, holds its size. */
static size_t *size_of(char *data) { return (size_t *)(data - page_bytes()); }

static void unmap_pages(char *data) {
    size_t bytes = *size_of(data);
    munmap(data - page_bytes(), page_bytes() + bytes);
}

/* What is mapped too much before and after is given back. NULL: errno says why. */
static char *map_pages(size_t bytes) {
    size_t room = bytes + 2 * HUGE_PAGE;
    void *all = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED) return NULL;
    char *data = (char *)round_up((size_t)all + page_bytes(), HUGE_PAGE);
    char *begin = data - page_bytes(), *end = data + bytes;
    if (begin > (char *)all) munmap(all, (size_t)(begin - (char *)all));
    munmap(end, (size_t)((char *)all + room - end));
    *size_of(data) = bytes;
    /* Hints: without huge pages it only takes longer. A child process must not share what the card
     * writes, or the parent's next write would move the page away from under it. */
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

/* Brings a slice's pages in. */
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

/* Slices are whole huge pages; the last one takes what remains. A slice whose thread cannot be started
 * is done here. Returns 0 or an errno. */
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

/* ---- blocks ------------------------------------------------------------------------------------ */

/* Registered memory. When the system has it and the driver does not register it, *out is NULL, the
 * status HY_OK and the reason in *refusal: the driver may still give it in its own way. */
static hy_status pin_pages(hy_cuda *cuda, size_t bytes, void **out, cudaError_t *refusal) {
    size_t rounded = round_up(bytes, page_bytes());
    char *data = map_pages(rounded);
    int error = data ? bring_in_all(data, rounded) : errno;
    if (error) {
        if (data) unmap_pages(data);
        return hy_cuda_fail(cuda, HY_ERR_MEMORY,
                            "%.1f MiB of pinned host memory could not be allocated: the system has "
                            "no such memory: %s",
                            (double)bytes / 0x1p20, strerror(error));
    }
    *refusal = cudaHostRegister(data, rounded, cudaHostRegisterPortable);
    if (*refusal == cudaSuccess) {
        *out = data;
        return HY_OK;
    }
    cudaGetLastError(); /* reported by the caller; it must not be seen again after a launch */
    unmap_pages(data);
    return HY_OK;
}

hy_status hy_cuda_pin(hy_cuda *cuda, size_t bytes, void **out) {
    cudaError_t refusal = cudaSuccess;
    int can_register = 0;
    *out = NULL;
    /* Not where a kernel could not use a registered pointer as it is: the driver then maps it elsewhere. */
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
    return hy_cuda_fail(
        cuda, HY_ERR_MEMORY,
        "%.1f MiB of pinned host memory could not be allocated: the driver refused: %s",
        (double)bytes / 0x1p20, cudaGetErrorString(refusal == cudaSuccess ? error : refusal));
}

/* What the driver does not know as registered, it gave itself. Copies under way must not lose their
 * memory: cudaFreeHost waits for them, unregistering does not promise to. */
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
