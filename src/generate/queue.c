/* queue.c: a list under a lock, and a semaphore that wakes the scheduling thread. See queue.h. */
#include "generate/queue.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>

#include "base/error.h"

struct hy_queue {
    pthread_mutex_t lock; /* of all but `news` */
    sem_t news;
    hy_task *first, *last;
    hy_task *front; /* no task before it has answers that have not begun */
    int32_t most_waiting;
    int32_t cancelled; /* tasks that were cancelled and not returned yet */
    int64_t last_id;
    hy_generator_state state;
};

hy_status hy_queue_create(int32_t most_waiting, hy_queue **out) {
    hy_queue *q = calloc(1, sizeof *q);
    *out = q;
    if (!q) return hy_fail(HY_ERR_MEMORY, "not enough memory for a queue of requests");
    q->most_waiting = most_waiting;
    pthread_mutex_init(&q->lock, NULL);
    sem_init(&q->news, 0, 0);
    return HY_OK;
}

void hy_queue_destroy(hy_queue *q) {
    if (!q) return;
    for (hy_task *t = q->first, *next; t; t = next) {
        next = t->next;
        hy_task_destroy(t);
    }
    pthread_mutex_destroy(&q->lock);
    sem_destroy(&q->news);
    free(q);
}

/* ---- any thread ------------------------------------------------------------------------------ */

static void append(hy_queue *q, hy_task *t) {
    t->before = q->last;
    if (q->last)
        q->last->next = t;
    else
        q->first = t;
    q->last = t;
    if (!q->front) q->front = t;
    t->id = ++q->last_id;
    q->state.waiting++;
}

hy_status hy_queue_add(hy_queue *q, hy_task *t, int64_t *id) {
    pthread_mutex_lock(&q->lock);
    bool is_full = q->most_waiting > 0 && q->state.waiting >= q->most_waiting;
    if (!is_full) append(q, t);
    if (!is_full && id) *id = t->id;
    pthread_mutex_unlock(&q->lock);
    HY_FAIL_IF(is_full, HY_ERR_STATE, "%d requests wait already, and no more may", q->most_waiting);
    hy_queue_wake(q);
    return HY_OK;
}

bool hy_queue_cancel(hy_queue *q, int64_t id) {
    pthread_mutex_lock(&q->lock);
    hy_task *t = q->first;
    while (t && t->id != id) t = t->next;
    if (t && !t->is_cancelled) {
        t->is_cancelled = true;
        q->cancelled++;
    }
    pthread_mutex_unlock(&q->lock);
    if (t) hy_queue_wake(q);
    return t != NULL;
}

/* A full semaphore wakes as well. */
void hy_queue_wake(hy_queue *q) { (void)sem_post(&q->news); }

void hy_queue_read(hy_queue *q, hy_generator_state *out) {
    pthread_mutex_lock(&q->lock);
    *out = q->state;
    pthread_mutex_unlock(&q->lock);
}

/* ---- the thread that schedules --------------------------------------------------------------- */

void hy_queue_wait(hy_queue *q) {
    while (sem_wait(&q->news) != 0 && errno == EINTR) {}
    while (sem_trywait(&q->news) == 0) {} /* one look at the queue is enough for all of them */
}

hy_task *hy_queue_front(hy_queue *q) {
    pthread_mutex_lock(&q->lock);
    while (q->front && q->front->begun == q->front->answers) q->front = q->front->next;
    hy_task *t = q->front;
    pthread_mutex_unlock(&q->lock);
    return t;
}

hy_task *hy_queue_next_cancelled(hy_queue *q) {
    pthread_mutex_lock(&q->lock);
    hy_task *t = q->cancelled > 0 ? q->first : NULL;
    while (t && !t->is_cancelled) t = t->next;
    if (t) {
        t->is_cancelled = false;
        q->cancelled--;
    }
    pthread_mutex_unlock(&q->lock);
    return t;
}

void hy_queue_begin(hy_queue *q, hy_task *t) {
    pthread_mutex_lock(&q->lock);
    if (!t->has_begun) q->state.waiting--;
    t->has_begun = true;
    pthread_mutex_unlock(&q->lock);
}

static void unlink_task(hy_queue *q, hy_task *t) {
    if (q->front == t) q->front = t->next;
    if (t->before)
        t->before->next = t->next;
    else
        q->first = t->next;
    if (t->next)
        t->next->before = t->before;
    else
        q->last = t->before;
}

void hy_queue_remove(hy_queue *q, hy_task *t) {
    pthread_mutex_lock(&q->lock);
    if (!t->has_begun) q->state.waiting--;
    if (t->is_cancelled) q->cancelled--;
    unlink_task(q, t);
    q->state.finished++;
    pthread_mutex_unlock(&q->lock);
}

void hy_queue_count(hy_queue *q, const hy_generator_state *more) {
    pthread_mutex_lock(&q->lock);
    q->state.running = more->running;
    q->state.cache_tokens_used = more->cache_tokens_used;
    q->state.prompt_tokens += more->prompt_tokens;
    q->state.tokens += more->tokens;
    q->state.busy_seconds += more->busy_seconds;
    pthread_mutex_unlock(&q->lock);
}
