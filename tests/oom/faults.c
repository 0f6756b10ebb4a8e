/* faults.c: wrappers around the calls with which the library gets resources of the system. See
 * faults.h.
 *
 * Live blocks are stored in a hash table with open addressing under one lock; a removed entry
 * leaves a mark that later entries may reuse. A free of a block that is not in the table (allocated
 * by the C library, or before arming) passes through. */
#include "faults.h"

#include <dirent.h>
#include <errno.h>
#include <execinfo.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/disk.h"
#include "base/error.h"
#include "kernels/cpu/stream.h"

#define SLOTS (1 << 17)
#define REMOVED ((void *)-1)
#define OUR_FRAMES 2 /* of a stack: the wrapper and what it calls */

typedef struct block {
    void *data;
    size_t bytes;
    fault_stack stack;
} block;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static block blocks[SLOTS];
static fault_plan plan;
static fault_counts counts;
static int64_t number; /* of allocations of the plan's kinds */
static uint64_t ceiling;
static bool is_counting;
static _Thread_local int parsing; /* depth of calls inside libconfig: one may call the other */

/* ---- live blocks ----------------------------------------------------------------------------- */

static size_t place_of(const void *data) {
    return (size_t)(((uintptr_t)data >> 4) * 0x9E3779B97F4A7C15ULL >> 40) & (SLOTS - 1);
}

static void note_stack(fault_stack *stack) {
    void *all[FAULT_STACK + OUR_FRAMES + 1];
    int depth = backtrace(all, FAULT_STACK + OUR_FRAMES + 1) - OUR_FRAMES - 1;
    stack->depth = depth < 0 ? 0 : depth;
    if (depth > 0) memcpy(stack->at, all + OUR_FRAMES + 1, (size_t)depth * sizeof *all);
}

static void remember(void *data, size_t bytes) {
    size_t i = place_of(data);
    while (blocks[i].data && blocks[i].data != REMOVED) i = (i + 1) & (SLOTS - 1);
    blocks[i].data = data;
    blocks[i].bytes = bytes;
    note_stack(&blocks[i].stack);
    counts.live_blocks++;
    counts.live_bytes += bytes;
    if (counts.live_bytes > counts.peak_bytes) counts.peak_bytes = counts.live_bytes;
}

static size_t forget(void *data) {
    size_t i = place_of(data);
    for (int tried = 0; tried < SLOTS && blocks[i].data; tried++, i = (i + 1) & (SLOTS - 1)) {
        if (blocks[i].data != data) continue;
        size_t bytes = blocks[i].bytes;
        blocks[i].data = REMOVED;
        counts.live_blocks--;
        counts.live_bytes -= bytes;
        return bytes;
    }
    return 0;
}

/* ---- who fails ------------------------------------------------------------------------------- */

static bool is_over_budget(size_t bytes) {
    if (!plan.budget) return false;
    if (!plan.is_squeeze) return counts.live_bytes + bytes > plan.budget;
    if (number < plan.at) return false;
    if (!ceiling) ceiling = counts.live_bytes + plan.budget;
    return counts.live_bytes + bytes > ceiling;
}

static bool is_chosen(void) {
    int64_t times = plan.times ? plan.times : 1;
    return plan.at && !plan.is_squeeze && number >= plan.at && number < plan.at + times;
}

/* True when this one is to fail; called with the lock held. */
static bool fails(fault_kind kind, size_t bytes) {
    if (!is_counting || parsing) return false;
    counts.asked[kind]++;
    if (!(plan.kinds & FAULT_BIT(kind))) return false;
    number++;
    if (!is_chosen() && !is_over_budget(bytes)) return false;
    if (plan.signal) {
        kill(getpid(), plan.signal);
        return false; /* it was stopped and continues */
    }
    if (counts.failed++ == 0) {
        counts.first_failed_bytes = bytes;
        note_stack(&counts.first_failed);
    }
    return true;
}

static bool refuses(fault_kind kind, size_t bytes) {
    pthread_mutex_lock(&lock);
    bool is_refused = fails(kind, bytes);
    pthread_mutex_unlock(&lock);
    return is_refused;
}

static void *took(void *data, size_t bytes) {
    if (!data) return NULL;
    pthread_mutex_lock(&lock);
    if (is_counting) remember(data, bytes);
    pthread_mutex_unlock(&lock);
    return data;
}

/* ---- for tests ------------------------------------------------------------------------------- */

void fault_arm(const fault_plan *asked) {
    fault_stack unused;
    note_stack(&unused); /* the first one loads a library */
    pthread_mutex_lock(&lock);
    if (is_counting) memset(blocks, 0, sizeof blocks);
    counts = (fault_counts){0};
    plan = *asked;
    number = 0;
    ceiling = 0;
    is_counting = true;
    pthread_mutex_unlock(&lock);
}

void fault_spare(void) {
    pthread_mutex_lock(&lock);
    plan = (fault_plan){0};
    pthread_mutex_unlock(&lock);
}

void fault_read(fault_counts *out) {
    pthread_mutex_lock(&lock);
    *out = counts;
    for (size_t i = 0; i < SLOTS; i++) {
        if (!blocks[i].data || blocks[i].data == REMOVED) continue;
        out->first_live = blocks[i].stack;
        out->first_live_bytes = blocks[i].bytes;
        break;
    }
    pthread_mutex_unlock(&lock);
}

void fault_print_stack(const fault_stack *stack, const char *indent) {
    char **names = backtrace_symbols(stack->at, stack->depth);
    for (int i = 0; names && i < stack->depth; i++) {
        const char *name = strrchr(names[i], '(');
        printf("%s%s\n", indent, name ? name : names[i]);
    }
    free(names);
}

/* ---- the wrappers ---------------------------------------------------------------------------- */

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *data, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
int __real_posix_memalign(void **out, size_t alignment, size_t bytes);
void __real_free(void *data);
void *__real_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset);
FILE *__real_fopen(const char *path, const char *mode);
DIR *__real_opendir(const char *path);
ssize_t __real_getline(char **line, size_t *room, FILE *file);
int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                          void *argument);

static void *no_memory(void) {
    errno = ENOMEM;
    return NULL;
}

void *__wrap_malloc(size_t bytes) {
    return refuses(FAULT_HEAP, bytes) ? no_memory() : took(__real_malloc(bytes), bytes);
}

void *__wrap_calloc(size_t count, size_t size) {
    size_t bytes = count * size;
    return refuses(FAULT_HEAP, bytes) ? no_memory() : took(__real_calloc(count, size), bytes);
}

void *__wrap_aligned_alloc(size_t alignment, size_t bytes) {
    if (refuses(FAULT_HEAP, bytes)) return no_memory();
    return took(__real_aligned_alloc(alignment, bytes), bytes);
}

/* Only the CPU backend asks this way: for what plays the memory of a device. */
int __wrap_posix_memalign(void **out, size_t alignment, size_t bytes) {
    if (refuses(FAULT_ARENA, bytes)) return ENOMEM;
    int error = __real_posix_memalign(out, alignment, bytes);
    if (error == 0) took(*out, bytes);
    return error;
}

/* One that fails leaves the old block as it was; one that succeeds counts as a new one. */
void *__wrap_realloc(void *data, size_t bytes) {
    if (refuses(FAULT_HEAP, bytes)) return no_memory();
    pthread_mutex_lock(&lock);
    bool was_known = data && is_counting && forget(data) > 0;
    void *grown = __real_realloc(data, bytes);
    if (grown && is_counting && (was_known || !data)) remember(grown, bytes);
    pthread_mutex_unlock(&lock);
    return grown;
}

void __wrap_free(void *data) {
    pthread_mutex_lock(&lock);
    if (data && is_counting) forget(data);
    pthread_mutex_unlock(&lock);
    __real_free(data);
}

char *__wrap_strndup(const char *text, size_t most) {
    size_t size = strnlen(text, most);
    char *copy = refuses(FAULT_HEAP, size + 1) ? no_memory() : __real_malloc(size + 1);
    if (!copy) return NULL;
    memcpy(copy, text, size);
    copy[size] = 0;
    return took(copy, size + 1);
}

char *__wrap_strdup(const char *text) { return __wrap_strndup(text, SIZE_MAX); }

void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset) {
    if (!refuses(FAULT_SYSTEM, 0)) return __real_mmap(at, bytes, protection, flags, fd, offset);
    errno = ENOMEM;
    return MAP_FAILED;
}

FILE *__wrap_fopen(const char *path, const char *mode) {
    return refuses(FAULT_SYSTEM, 0) ? no_memory() : __real_fopen(path, mode);
}

DIR *__wrap_opendir(const char *path) {
    return refuses(FAULT_SYSTEM, 0) ? no_memory() : __real_opendir(path);
}

ssize_t __wrap_getline(char **line, size_t *room, FILE *file) {
    if (!refuses(FAULT_SYSTEM, 0)) return __real_getline(line, room, file);
    errno = ENOMEM;
    return -1;
}

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                          void *argument) {
    return refuses(FAULT_SYSTEM, 0) ? EAGAIN
                                    : __real_pthread_create(thread, attributes, run, argument);
}

/* ---- libconfig ------------------------------------------------------------------------------- */

/* libconfig ends the process when memory is refused while it parses (docs/troubleshooting.md).
 * Where it is linked statically its allocations come here, too: they are never refused. */
void __real_config_init(void *config);
int __real_config_read_string(void *config, const char *text);

void __wrap_config_init(void *config) {
    parsing++;
    __real_config_init(config);
    parsing--;
}

int __wrap_config_read_string(void *config, const char *text) {
    parsing++;
    int is_read = __real_config_read_string(config, text);
    parsing--;
    return is_read;
}

/* ---- launches -------------------------------------------------------------------------------- */

hy_status __real_hy_cpu_stream_enqueue(hy_stream *s, const hy_op_call *call);
hy_status __real_hy_cpu_stream_copy(hy_stream *s, void *dst, const void *src, size_t bytes);
hy_status __real_hy_cpu_stream_call(hy_stream *s, hy_status (*function)(void *argument),
                                    void *argument);
hy_status __real_hy_cpu_event_record(hy_event *event, hy_stream *s);
hy_status __real_hy_cpu_stream_wait(hy_stream *s, hy_event *event);

static hy_status no_launch(const char *what) {
    return hy_fail(HY_ERR_MEMORY, "%s could not be enqueued: no memory, a test says", what);
}

hy_status __wrap_hy_cpu_stream_enqueue(hy_stream *s, const hy_op_call *call) {
    return refuses(FAULT_LAUNCH, 0) ? no_launch(hy_op_name(call->kind))
                                    : __real_hy_cpu_stream_enqueue(s, call);
}

hy_status __wrap_hy_cpu_stream_copy(hy_stream *s, void *dst, const void *src, size_t bytes) {
    return refuses(FAULT_LAUNCH, 0) ? no_launch("a copy")
                                    : __real_hy_cpu_stream_copy(s, dst, src, bytes);
}

hy_status __wrap_hy_cpu_stream_call(hy_stream *s, hy_status (*function)(void *argument),
                                    void *argument) {
    return refuses(FAULT_LAUNCH, 0) ? no_launch("a call")
                                    : __real_hy_cpu_stream_call(s, function, argument);
}

hy_status __wrap_hy_cpu_event_record(hy_event *event, hy_stream *s) {
    return refuses(FAULT_LAUNCH, 0) ? no_launch("an event") : __real_hy_cpu_event_record(event, s);
}

hy_status __wrap_hy_cpu_stream_wait(hy_stream *s, hy_event *event) {
    return refuses(FAULT_LAUNCH, 0) ? no_launch("a wait") : __real_hy_cpu_stream_wait(s, event);
}

/* ---- parts of a checkpoint ------------------------------------------------------------------- */

int __real_hy_disk_write_at(int fd, const void *data, size_t size, uint64_t offset);

int __wrap_hy_disk_write_at(int fd, const void *data, size_t size, uint64_t offset) {
    if (!refuses(FAULT_WRITE, 0)) return __real_hy_disk_write_at(fd, data, size, offset);
    errno = ENOSPC;
    return -1;
}
