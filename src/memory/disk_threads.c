/* disk_threads.c: the disk tier with worker threads that call pread and pwrite. See disk_engine.h.
 *
 * Works on every system. Each thread executes one request at a time, so a few threads keep a disk
 * busy. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/thread.h"
#include "memory/disk_engine.h"

typedef struct pool pool;

typedef struct worker {
    pool *pool;
    pthread_t thread;
    hy_spill_request request;
} worker;

struct pool {
    hy_spill *spill;
    pthread_cond_t has_work;
    int count; /* running threads */
    worker worker[HY_SPILL_THREADS_MAX];
    char *bounces; /* one block per thread */
};

static void serve(hy_spill *s, hy_spill_request *r) {
    for (bool is_finished = false; !is_finished;) {
        hy_spill_call call = hy_spill_next_call(s, r);
        ssize_t moved = 0;
        if (!r->doomed && r->is_write) {
            moved = pwrite(s->file.fd, call.data, (size_t)call.bytes, (off_t)call.offset);
        } else if (!r->doomed) {
            moved = pread(s->file.fd, call.data, (size_t)call.bytes, (off_t)call.offset);
        }
        is_finished = hy_spill_accept(s, r, moved < 0 ? -(int64_t)errno : (int64_t)moved);
    }
}

static void *worker_main(void *argument) {
    worker *w = argument;
    hy_spill *s = w->pool->spill;
    pthread_mutex_lock(&s->lock);
    while (true) {
        if (hy_spill_take(s, &w->request)) {
            pthread_mutex_unlock(&s->lock);
            serve(s, &w->request);
            pthread_mutex_lock(&s->lock);
            hy_spill_end(s, &w->request);
        } else if (s->is_stopping) {
            break;
        } else {
            pthread_cond_wait(&w->pool->has_work, &s->lock);
        }
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* Wakes all threads, because a transfer may have chunks for all of them. */
static void wake(void *state) {
    pool *p = state;
    pthread_cond_broadcast(&p->has_work);
}

static void stop(void *state) {
    pool *p = state;
    for (int i = 0; i < p->count; i++) pthread_join(p->worker[i].thread, NULL);
    pthread_cond_destroy(&p->has_work);
    free(p->bounces);
    free(p);
}

/* Fewer threads than requested are accepted, but at least one. */
static hy_status start(hy_spill *s, void **state) {
    int wanted = s->options.depth; /* at most HY_SPILL_THREADS_MAX */
    pool *p = calloc(1, sizeof *p);
    if (p) p->bounces = hy_spill_alloc((uint64_t)wanted * HY_SPILL_BLOCK);
    if (!p || !p->bounces) {
        free(p);
        return hy_fail(HY_ERR_MEMORY, "not enough memory for %d disk threads", wanted);
    }
    p->spill = s;
    pthread_cond_init(&p->has_work, NULL);
    int error = 0;
    while (p->count < wanted && error == 0) {
        worker *w = &p->worker[p->count];
        w->pool = p;
        w->request.bounce = p->bounces + (size_t)p->count * HY_SPILL_BLOCK;
        error = hy_thread_start(&w->thread, "hybrid-disk", worker_main, w);
        if (error == 0) p->count++;
    }
    if (p->count == 0) {
        stop(p);
        return hy_fail(HY_ERR_MEMORY, "a disk thread could not be started: %s", strerror(error));
    }
    *state = p;
    return HY_OK;
}

const hy_spill_engine hy_spill_threads = {"threads", start, stop, wake};
