/* disk_uring.c: the disk tier with io_uring, through direct system calls. See disk_engine.h.
 *
 * One thread submits to the ring and reaps completions: it takes requests until `depth` are in
 * flight, enters the kernel, and ends those that are done. It sleeps in the kernel. A pending read
 * of an eventfd wakes it when callers bring new work. Only this thread accesses the ring. Moving a
 * block at the start shows whether the kernel has io_uring and the container allows it. */
#include <assert.h>
#include <errno.h>
#include <linux/io_uring.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "base/thread.h"
#include "memory/disk_engine.h"

#define WAKE UINT64_MAX /* user data of the eventfd's read; for a request it is its number */

/* The two rings and the entries, shared with the kernel. */
typedef struct rings {
    int fd;
    void *map; /* both rings */
    size_t map_bytes, entries_bytes;
    struct io_uring_sqe *entries;
    uint32_t *put_head, *put_tail, put_mask; /* submissions; the kernel moves the head */
    uint32_t *got_head, *got_tail, got_mask; /* completions; we move the head */
    struct io_uring_cqe *got;
    uint32_t tail; /* our tail of submissions, published by submit */
} rings;

typedef struct uring {
    hy_spill *spill;
    rings rings;
    pthread_t thread;
    int wake_fd;
    uint64_t wake_count; /* target of the eventfd's read */
    bool is_asleep;      /* locked: new work must signal the eventfd */
    int32_t depth;
    hy_spill_request *requests; /* `depth` of them */
    uint32_t *idle, *ended;     /* numbers of free requests; of requests to end */
    int32_t idle_count, ended_count;
    char *bounces;
} uring;

/* ---- the ring -------------------------------------------------------------------------------- */

static hy_status fail_call(const char *call, const char *hint) {
    char reason[128];
    int error = errno;
    return hy_fail(HY_ERR_INPUT, "io_uring is not available: %s: %s%s", call,
                   strerror_r(error, reason, sizeof reason), hint);
}

static void *map_part(int fd, size_t bytes, off_t part) {
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, part);
    return at == MAP_FAILED ? NULL : at;
}

static hy_status rings_map(rings *g, const struct io_uring_params *p) {
    size_t put = p->sq_off.array + p->sq_entries * sizeof(uint32_t);
    size_t got = p->cq_off.cqes + p->cq_entries * sizeof(struct io_uring_cqe);
    g->map_bytes = put > got ? put : got;
    g->entries_bytes = p->sq_entries * sizeof(struct io_uring_sqe);
    g->map = map_part(g->fd, g->map_bytes, IORING_OFF_SQ_RING);
    if (g->map) g->entries = map_part(g->fd, g->entries_bytes, IORING_OFF_SQES);
    if (!g->entries) return fail_call("mmap of the ring", "");
    char *base = g->map;
    g->put_head = (uint32_t *)(base + p->sq_off.head);
    g->put_tail = (uint32_t *)(base + p->sq_off.tail);
    g->put_mask = *(uint32_t *)(base + p->sq_off.ring_mask);
    g->got_head = (uint32_t *)(base + p->cq_off.head);
    g->got_tail = (uint32_t *)(base + p->cq_off.tail);
    g->got_mask = *(uint32_t *)(base + p->cq_off.ring_mask);
    g->got = (struct io_uring_cqe *)(base + p->cq_off.cqes);
    uint32_t *array = (uint32_t *)(base + p->sq_off.array);
    for (uint32_t i = 0; i < p->sq_entries; i++) array[i] = i; /* entry i is at index i */
    g->tail = *g->put_tail;
    return HY_OK;
}

static hy_status rings_open(rings *g, uint32_t entries) {
    struct io_uring_params p = {0};
    *g = (rings){.fd = (int)syscall(__NR_io_uring_setup, entries, &p)};
    if (g->fd < 0) {
        bool is_forbidden = errno == EPERM || errno == EACCES;
        return fail_call("io_uring_setup",
                         is_forbidden
                             ? " (forbidden by a container's filter or kernel.io_uring_disabled)"
                         : errno == ENOSYS ? " (the kernel does not have it)"
                         : errno == ENOMEM ? " (the limit on locked memory)"
                                           : "");
    }
    HY_FAIL_IF(!(p.features & IORING_FEAT_SINGLE_MMAP), HY_ERR_INPUT,
               "io_uring is not available: the kernel is older than 5.4");
    return rings_map(g, &p);
}

/* There is always room: the ring has an entry for each request and one for the eventfd. */
static void put(rings *g, int op, int fd, const hy_spill_call *call, uint64_t user_data) {
    assert(g->entries);
    struct io_uring_sqe *e = &g->entries[g->tail++ & g->put_mask];
    *e = (struct io_uring_sqe){.opcode = (uint8_t)op,
                               .fd = fd,
                               .addr = (uint64_t)(uintptr_t)call->data,
                               .len = (uint32_t)call->bytes,
                               .off = call->offset,
                               .user_data = user_data};
}

/* Submits the entries and waits for a completion. Returns 0 or an errno. */
static int submit_and_wait(rings *g) {
    uint32_t head = __atomic_load_n(g->put_head, __ATOMIC_ACQUIRE);
    __atomic_store_n(g->put_tail, g->tail, __ATOMIC_RELEASE);
    long result = syscall(__NR_io_uring_enter, g->fd, g->tail - head, 1, IORING_ENTER_GETEVENTS,
                          NULL, (size_t)0);
    return result < 0 ? errno : 0;
}

static bool get(rings *g, struct io_uring_cqe *out) {
    uint32_t head = *g->got_head; /* only we move it */
    if (head == __atomic_load_n(g->got_tail, __ATOMIC_ACQUIRE)) return false;
    *out = g->got[head & g->got_mask];
    __atomic_store_n(g->got_head, head + 1, __ATOMIC_RELEASE);
    return true;
}

/* ---- the submitting thread ------------------------------------------------------------------- */

static void put_wake(uring *u) {
    hy_spill_call call = {&u->wake_count, sizeof u->wake_count, 0};
    put(&u->rings, IORING_OP_READ, u->wake_fd, &call, WAKE);
}

/* A call that a test makes fail becomes a no-op. */
static void put_request(uring *u, uint32_t number) {
    hy_spill_request *r = &u->requests[number];
    hy_spill_call call = hy_spill_next_call(u->spill, r);
    int op = r->doomed ? IORING_OP_NOP : r->is_write ? IORING_OP_WRITE : IORING_OP_READ;
    if (r->doomed) call = (hy_spill_call){0};
    put(&u->rings, op, r->doomed ? -1 : u->spill->file.fd, &call, number);
}

static void take_results(uring *u) {
    struct io_uring_cqe got;
    while (get(&u->rings, &got)) {
        uint32_t number = (uint32_t)got.user_data;
        if (got.user_data == WAKE) {
            put_wake(u);
        } else if (hy_spill_accept(u->spill, &u->requests[number], got.res)) {
            u->ended[u->ended_count++] = number;
        } else {
            put_request(u, number);
        }
    }
}

/* The kernel has not accepted the entries from put_head on, possibly for a permanent reason, so
 * their requests fail. Earlier requests are in flight and complete by themselves. */
static void fail_unsent(uring *u, int error) {
    rings *g = &u->rings;
    uint32_t head = __atomic_load_n(g->put_head, __ATOMIC_ACQUIRE);
    bool was_wake = false;
    for (uint32_t at = head; at != g->tail; at++) {
        uint64_t number = g->entries[at & g->put_mask].user_data;
        if (number == WAKE) {
            was_wake = true;
        } else {
            u->requests[number].error = error;
            u->ended[u->ended_count++] = (uint32_t)number;
        }
    }
    g->tail = head;
    if (was_wake) put_wake(u); /* submitted with the next successful call */
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL); /* the kernel cannot wait now */
}

/* Ends completed requests and takes new ones. False: it is time to stop. */
static bool exchange(uring *u) {
    hy_spill *s = u->spill;
    pthread_mutex_lock(&s->lock);
    for (int32_t i = 0; i < u->ended_count; i++) {
        hy_spill_end(s, &u->requests[u->ended[i]]);
        u->idle[u->idle_count++] = u->ended[i];
    }
    int32_t first = u->idle_count;
    while (u->idle_count > 0 && hy_spill_take(s, &u->requests[u->idle[u->idle_count - 1]])) {
        u->idle_count--;
    }
    /* If all requests are in use, the next completion triggers another look. */
    u->is_asleep = u->idle_count > 0;
    bool goes_on = !s->is_stopping;
    pthread_mutex_unlock(&s->lock);
    u->ended_count = 0;
    for (int32_t i = first - 1; i >= u->idle_count; i--) put_request(u, u->idle[i]);
    return goes_on;
}

static void *ring_main(void *argument) {
    uring *u = argument;
    put_wake(u);
    while (exchange(u)) {
        int error = submit_and_wait(&u->rings);
        bool will_pass =
            error == 0 || error == EINTR || error == EAGAIN || error == EBUSY || error == ENOMEM;
        if (error == ENOMEM) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        if (!will_pass) fail_unsent(u, error);
        take_results(u);
    }
    return NULL;
}

static void wake(void *state) {
    uring *u = state;
    if (!u->is_asleep) return;
    u->is_asleep = false;
    uint64_t one = 1;
    while (write(u->wake_fd, &one, sizeof one) < 0 && errno == EINTR) {}
}

/* ---- opening and closing --------------------------------------------------------------------- */

/* Moves a block before anything relies on the ring: setup alone does not show whether entering it
 * is allowed and whether it can read this file. */
static hy_status try_ring(uring *u) {
    hy_spill_call call = {u->bounces, HY_SPILL_BLOCK, 0};
    struct io_uring_cqe got;
    put(&u->rings, IORING_OP_READ, u->spill->file.fd, &call, 0);
    for (int busy = 0; !get(&u->rings, &got);) {
        int error = submit_and_wait(&u->rings);
        busy += error == EAGAIN; /* not submitted yet, because memory is short */
        if ((error && error != EINTR && error != EAGAIN) || busy > 1000) {
            errno = error;
            return fail_call("io_uring_enter", "");
        }
    }
    if (got.res == (int32_t)HY_SPILL_BLOCK) return HY_OK;
    errno = got.res < 0 ? -got.res : EIO;
    return fail_call("a read through the ring", "");
}

static hy_status make(uring *u) {
    size_t depth = (size_t)u->depth;
    u->requests = calloc(depth, sizeof *u->requests);
    u->idle = calloc(depth, sizeof *u->idle);
    u->ended = calloc(depth, sizeof *u->ended);
    u->bounces = hy_spill_alloc(depth * HY_SPILL_BLOCK);
    if (!u->requests || !u->idle || !u->ended || !u->bounces) {
        return hy_fail(HY_ERR_MEMORY, "not enough memory for %zu disk requests", depth);
    }
    for (uint32_t i = 0; i < depth; i++) {
        u->requests[i].bounce = u->bounces + i * HY_SPILL_BLOCK;
        u->idle[u->idle_count++] = i;
    }
    u->wake_fd = eventfd(0, EFD_CLOEXEC);
    if (u->wake_fd < 0) return fail_call("eventfd", "");
    HY_TRY(rings_open(&u->rings, (uint32_t)depth + 1));
    return try_ring(u);
}

static void unmake(uring *u) {
    rings *g = &u->rings;
    if (g->entries) munmap(g->entries, g->entries_bytes);
    if (g->map) munmap(g->map, g->map_bytes);
    if (g->fd >= 0) close(g->fd);
    if (u->wake_fd >= 0) close(u->wake_fd);
    free(u->requests);
    free(u->idle);
    free(u->ended);
    free(u->bounces);
    free(u);
}

static void stop(void *state) {
    uring *u = state;
    pthread_join(u->thread, NULL);
    unmake(u);
}

static hy_status start(hy_spill *s, void **state) {
    uring *u = calloc(1, sizeof *u);
    if (!u) return hy_fail(HY_ERR_MEMORY, "not enough memory for a ring");
    u->spill = s;
    u->rings.fd = u->wake_fd = -1;
    u->depth = s->options.depth;
    hy_status status = make(u);
    if (status == HY_OK) {
        errno = hy_thread_start(&u->thread, "hybrid-disk", ring_main, u);
        if (errno != 0) status = fail_call("starting its thread", "");
    }
    if (status != HY_OK) {
        unmake(u);
        return status;
    }
    *state = u;
    return HY_OK;
}

const hy_spill_engine hy_spill_uring = {"io_uring", start, stop, wake};
