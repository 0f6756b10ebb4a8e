/* bulk.c: a ring of blocks; each has a thread that writes it. See bulk.h. */
#include "base/bulk.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/disk.h"
#include "base/file.h"
#include "base/thread.h"

#define BLOCKS 4
#define BLOCK_SIZE ((size_t)8 << 20)

typedef struct block {
    hy_bulk *bulk;
    char *data;
    uint64_t offset; /* in the file */
    bool is_full;    /* owned by its thread */
    pthread_t thread;
} block;

struct hy_bulk {
    int fd;
    int threads;
    uint64_t written; /* bytes passed to blocks */
    size_t filled;    /* bytes in the current block */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool is_over;
    int error; /* errno of the first failure */
    block block[BLOCKS];
};

/* The flag belongs to the open file: if one direct write fails here, all later writes are normal
 * ones. */
static int set_direct(int fd, bool is_direct) {
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0) return -1;
    return fcntl(fd, F_SETFL, is_direct ? flags | O_DIRECT : flags & ~O_DIRECT);
}

static int write_block(hy_bulk *b, const block *k) {
    int result = hy_disk_write_at(b->fd, k->data, BLOCK_SIZE, k->offset);
    if (result == 0 || errno != EINVAL || set_direct(b->fd, false) != 0) return result;
    return hy_disk_write_at(b->fd, k->data, BLOCK_SIZE, k->offset);
}

static void *run(void *argument) {
    block *k = argument;
    hy_bulk *b = k->bulk;
    pthread_mutex_lock(&b->lock);
    while (true) {
        while (!k->is_full && !b->is_over) pthread_cond_wait(&b->changed, &b->lock);
        if (!k->is_full) break;
        bool is_wanted = b->error == 0;
        pthread_mutex_unlock(&b->lock);
        int error = is_wanted && write_block(b, k) != 0 ? errno : 0;
        pthread_mutex_lock(&b->lock);
        if (error && !b->error) b->error = error;
        k->is_full = false;
        pthread_cond_broadcast(&b->changed);
    }
    pthread_mutex_unlock(&b->lock);
    return NULL;
}

/* Ends the threads; full blocks are written first unless there was a failure. */
static void stop(hy_bulk *b) {
    pthread_mutex_lock(&b->lock);
    b->is_over = true;
    pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&b->lock);
    for (int i = 0; i < b->threads; i++) pthread_join(b->block[i].thread, NULL);
}

static void release(hy_bulk *b) {
    pthread_cond_destroy(&b->changed);
    pthread_mutex_destroy(&b->lock);
    for (int i = 0; i < BLOCKS; i++) free(b->block[i].data);
    free(b);
}

static bool start_threads(hy_bulk *b) {
    for (int i = 0; i < BLOCKS; i++) {
        block *k = &b->block[i];
        k->bulk = b;
        k->data = aligned_alloc(HY_DIRECT, BLOCK_SIZE);
        if (!k->data || hy_thread_start(&k->thread, NULL, run, k) != 0) break;
        b->threads++;
    }
    return b->threads == BLOCKS;
}

hy_bulk *hy_bulk_begin(int fd, uint64_t size) {
    hy_bulk *b = calloc(1, sizeof *b);
    errno = 0;
    if (!b) return NULL;
    b->fd = fd;
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->changed, NULL);
    bool has_threads = start_threads(b);
    int error = has_threads && hy_disk_reserve(fd, size) != 0 ? errno : 0;
    if (has_threads && error == 0) {
        (void)set_direct(fd, true);
        return b;
    }
    stop(b);
    release(b);
    errno = error;
    return NULL;
}

/* Passes the full block to its thread and waits until the next one is free. */
static void hand_over(hy_bulk *b) {
    pthread_mutex_lock(&b->lock);
    block *k = &b->block[b->written / BLOCK_SIZE % BLOCKS];
    k->offset = b->written;
    k->is_full = true;
    b->written += BLOCK_SIZE;
    b->filled = 0;
    pthread_cond_broadcast(&b->changed);
    k = &b->block[b->written / BLOCK_SIZE % BLOCKS];
    while (k->is_full) pthread_cond_wait(&b->changed, &b->lock);
    pthread_mutex_unlock(&b->lock);
}

static int failure(hy_bulk *b) {
    pthread_mutex_lock(&b->lock);
    int error = b->error;
    pthread_mutex_unlock(&b->lock);
    errno = error;
    return error ? -1 : 0;
}

void *hy_bulk_room(hy_bulk *b, size_t *size) {
    *size = BLOCK_SIZE - b->filled;
    return b->block[b->written / BLOCK_SIZE % BLOCKS].data + b->filled;
}

int hy_bulk_commit(hy_bulk *b, size_t size) {
    b->filled += size;
    if (b->filled == BLOCK_SIZE) hand_over(b);
    return failure(b);
}

int hy_bulk_put(hy_bulk *b, const void *data, size_t size) {
    const char *from = data;
    int result = 0;
    for (size_t some; size > 0 && result == 0; from += some, size -= some) {
        void *to = hy_bulk_room(b, &some);
        if (some > size) some = size;
        memcpy(to, from, some);
        result = hy_bulk_commit(b, some);
    }
    return result;
}

int hy_bulk_end(hy_bulk *b) {
    stop(b);
    const char *rest = b->block[b->written / BLOCK_SIZE % BLOCKS].data;
    int error = b->error;
    (void)set_direct(b->fd, false); /* the rest is not a multiple of the sector size */
    if (!error && b->filled > 0 && hy_disk_write_at(b->fd, rest, b->filled, b->written) != 0) {
        error = errno;
    }
    release(b);
    errno = error;
    return error ? -1 : 0;
}

void hy_bulk_abandon(hy_bulk *b) {
    if (!b) return;
    pthread_mutex_lock(&b->lock);
    if (!b->error) b->error = ECANCELED;
    pthread_mutex_unlock(&b->lock);
    stop(b);
    release(b);
}
