/* in_order.c: threads that share numbered work and deliver results in order. See in_order.h.
 *
 * Work is numbered as it is taken. A thread that has finished number n waits until n results were
 * delivered; it never waits for a later one, so there is no deadlock. Error messages belong to
 * threads; the first one is copied to the caller. */
#include "base/in_order.h"

#include <pthread.h>
#include <stdio.h>

#include "base/error.h"
#include "base/thread.h"

typedef struct shared {
    const hy_in_order *job;
    pthread_mutex_t lock;
    pthread_cond_t handed_in;
    uint64_t given, finished;
    hy_error failure;
} shared;

typedef struct worker {
    shared *all;
    void *slot;
    bool is_caller;
} worker;

static void *run(void *argument) {
    const worker *w = argument;
    shared *s = w->all;
    pthread_mutex_lock(&s->lock);
    while (s->failure.status == HY_OK && s->job->next(s->job->context, w->slot)) {
        uint64_t number = s->given++;
        pthread_mutex_unlock(&s->lock);
        hy_status worked = s->job->work(s->job->context, w->slot);
        pthread_mutex_lock(&s->lock);
        /* Wait for earlier results, then deliver. The lock is held. */
        while (s->job->done && s->finished != number) pthread_cond_wait(&s->handed_in, &s->lock);
        if (s->job->done && worked == HY_OK && s->failure.status == HY_OK) {
            worked = s->job->done(s->job->context, w->slot, w->is_caller);
        }
        if (worked != HY_OK && s->failure.status == HY_OK) hy_error_save(&s->failure, worked);
        s->finished++;
        pthread_cond_broadcast(&s->handed_in);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

hy_status hy_in_order_run(const hy_in_order *job) {
    shared s = {.job = job};
    pthread_t threads[HY_MOST_WORKERS];
    worker workers[HY_MOST_WORKERS];
    int32_t started = 1; /* the calling thread is the first */
    pthread_mutex_init(&s.lock, NULL);
    pthread_cond_init(&s.handed_in, NULL);
    for (int32_t i = 0; i < job->workers; i++) {
        void *slot = (char *)job->slots + (size_t)i * job->slot_size;
        workers[i] = (worker){.all = &s, .slot = slot, .is_caller = i == 0};
    }
    /* A thread that does not start is simply missing. */
    while (started < job->workers &&
           hy_thread_start(&threads[started], NULL, run, &workers[started]) == 0) {
        started++;
    }
    run(&workers[0]);
    for (int32_t i = 1; i < started; i++) pthread_join(threads[i], NULL);
    pthread_cond_destroy(&s.handed_in);
    pthread_mutex_destroy(&s.lock);
    return hy_error_restore(&s.failure);
}
