/* stream.c: a stream is a worker thread with a ring of queue entries; events are counters.
 *
 * The ring is allocated with the stream; a caller that finds it full waits. The worker runs entries
 * in order, without holding the lock. The first failure stays on the stream: later ops, copies and
 * calls are skipped, but events are still waited for and fired, so that other streams continue,
 * until sync reports the failure and clears it. head, tail and the failure are accessed only with
 * the lock held.
 *
 * Each record of an event takes the next ticket; the event is done up to a ticket when the stream
 * has reached that record. A wait is for the last ticket at the time of the call. Records complete
 * in the order of their tickets even on different streams. A record or wait depends only on entries
 * queued before it, so streams cannot deadlock. */
#include "kernels/cpu/stream.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/rng.h"
#include "base/thread.h"
#include "kernels/cpu/cpu.h"

#define RING 1024

/* ---- events ---------------------------------------------------------------------------------- */

struct hy_event {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t recorded; /* last ticket taken */
    uint64_t done;     /* all tickets up to this one are done */
    uint64_t users;    /* queue entries that still refer to this event */
};

hy_status hy_cpu_event_create(hy_backend *b, hy_event **out) {
    (void)b;
    hy_event *e = calloc(1, sizeof *e);
    if (!e) return hy_fail(HY_ERR_MEMORY, "not enough memory for an event");
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->changed, NULL);
    *out = e;
    return HY_OK;
}

void hy_cpu_event_destroy(hy_event *e) {
    if (!e) return;
    pthread_mutex_lock(&e->lock);
    while (e->users > 0) pthread_cond_wait(&e->changed, &e->lock);
    pthread_mutex_unlock(&e->lock);
    pthread_cond_destroy(&e->changed);
    pthread_mutex_destroy(&e->lock);
    free(e);
}

static void await_ticket(hy_event *e, uint64_t ticket) {
    while (e->done < ticket) pthread_cond_wait(&e->changed, &e->lock);
}

/* A stream has reached a record or a wait. */
static void use_ticket(hy_event *e, uint64_t ticket, bool is_record) {
    pthread_mutex_lock(&e->lock);
    await_ticket(e, is_record ? ticket - 1 : ticket);
    if (is_record) e->done = ticket;
    /* The last user must signal before it releases the lock, because destroy then frees the
     * event. */
    e->users--;
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
}

hy_status hy_cpu_event_sync(hy_event *e) {
    pthread_mutex_lock(&e->lock);
    await_ticket(e, e->recorded);
    pthread_mutex_unlock(&e->lock);
    return HY_OK;
}

bool hy_cpu_event_is_done(hy_event *e) {
    pthread_mutex_lock(&e->lock);
    bool is_done = e->done == e->recorded;
    pthread_mutex_unlock(&e->lock);
    return is_done;
}

/* ---- the queue ------------------------------------------------------------------------------- */

typedef enum entry_kind {
    ENTRY_OP,
    ENTRY_COPY,
    ENTRY_CALL,
    ENTRY_RECORD,
    ENTRY_WAIT,
    ENTRY_STOP
} entry_kind;

typedef struct entry {
    entry_kind kind;
    union {
        hy_op_call op;
        struct {
            void *dst;
            const void *src;
            size_t bytes;
        } copy;
        struct {
            hy_status (*function)(void *argument);
            void *argument;
        } call;
        struct {
            hy_event *event;
            uint64_t ticket;
        } sync;
    };
} entry;

struct hy_stream {
    hy_stream_options options;
    char name[16]; /* as long as the system allows */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t has_work, has_room;
    uint64_t head,
        tail;      /* entries run, entries queued; both only grow, the ring index is modulo RING */
    double waited; /* seconds in ENTRY_WAIT */
    hy_error failure;
    entry *ring;
};

/* ---- the worker ------------------------------------------------------------------------------ */

static void delay(const hy_stream *s, uint64_t index) {
    uint64_t limit = (uint64_t)s->options.delay_microseconds;
    if (limit == 0) return;
    uint64_t microseconds = hy_rng_below(s->options.delay_seed, HY_RNG_TEST, index, limit + 1);
    struct timespec t = {.tv_sec = (time_t)(microseconds / 1000000),
                         .tv_nsec = (long)(microseconds % 1000000) * 1000};
    nanosleep(&t, NULL);
}

static hy_status run_entry(hy_stream *s, const entry *e, bool is_failed) {
    switch (e->kind) {
    case ENTRY_OP:
        if (is_failed) return HY_OK;
        return s->options.execute(s->options.context, &e->op);
    case ENTRY_COPY:
        if (!is_failed) memmove(e->copy.dst, e->copy.src, e->copy.bytes);
        return HY_OK;
    case ENTRY_CALL: return is_failed ? HY_OK : e->call.function(e->call.argument);
    case ENTRY_RECORD:
    case ENTRY_WAIT: use_ticket(e->sync.event, e->sync.ticket, e->kind == ENTRY_RECORD); break;
    case ENTRY_STOP: break;
    }
    return HY_OK;
}

static void *worker_main(void *argument) {
    hy_stream *s = argument;
    pthread_mutex_lock(&s->lock);
    for (bool goes_on = true; goes_on;) {
        while (s->head == s->tail) pthread_cond_wait(&s->has_work, &s->lock);
        const entry *e = &s->ring[s->head % RING];
        uint64_t index = s->head;
        bool is_failed = s->failure.status != HY_OK;
        pthread_mutex_unlock(&s->lock);

        delay(s, index);
        double begin = hy_clock();
        hy_status status = run_entry(s, e, is_failed);
        double waited = e->kind == ENTRY_WAIT ? hy_clock() - begin : 0;
        goes_on = e->kind != ENTRY_STOP;

        pthread_mutex_lock(&s->lock);
        s->waited += waited;
        if (status != HY_OK && !is_failed) hy_error_save(&s->failure, status);
        s->head++;
        pthread_cond_broadcast(&s->has_room);
    }
    pthread_mutex_unlock(&s->lock);
    hy_cpu_team_end();
    return NULL;
}

/* ---- calls of users -------------------------------------------------------------------------- */

/* Waits for room and returns the entry to fill, with the lock held; finish_put releases it. */
static entry *begin_put(hy_stream *s) {
    pthread_mutex_lock(&s->lock);
    while (s->tail - s->head == RING) pthread_cond_wait(&s->has_room, &s->lock);
    return &s->ring[s->tail % RING];
}

static hy_status finish_put(hy_stream *s) {
    s->tail++;
    pthread_cond_signal(&s->has_work);
    pthread_mutex_unlock(&s->lock);
    return HY_OK;
}

hy_status hy_cpu_stream_enqueue(hy_stream *s, const hy_op_call *call) {
    entry *e = begin_put(s);
    e->kind = ENTRY_OP;
    e->op = *call;
    return finish_put(s);
}

hy_status hy_cpu_stream_copy(hy_stream *s, void *dst, const void *src, size_t bytes) {
    entry *e = begin_put(s);
    e->kind = ENTRY_COPY;
    e->copy.dst = dst;
    e->copy.src = src;
    e->copy.bytes = bytes;
    return finish_put(s);
}

hy_status hy_cpu_stream_call(hy_stream *s, hy_status (*function)(void *argument), void *argument) {
    entry *e = begin_put(s);
    e->kind = ENTRY_CALL;
    e->call.function = function;
    e->call.argument = argument;
    return finish_put(s);
}

/* A record takes the next ticket, a wait reads the last one. Either counts as a user of the event
 * until it is fired or awaited; an event with users is not freed. The ticket is taken with the
 * stream's lock held, so tickets of one stream are queued in order. */
static hy_status put_ticket(hy_stream *s, hy_event *event, entry_kind kind) {
    entry *e = begin_put(s);
    e->kind = kind;
    e->sync.event = event;
    pthread_mutex_lock(&event->lock);
    e->sync.ticket = event->recorded += kind == ENTRY_RECORD;
    event->users++;
    pthread_mutex_unlock(&event->lock);
    return finish_put(s);
}

hy_status hy_cpu_event_record(hy_event *event, hy_stream *s) {
    return put_ticket(s, event, ENTRY_RECORD);
}

hy_status hy_cpu_stream_wait(hy_stream *s, hy_event *event) {
    return put_ticket(s, event, ENTRY_WAIT);
}

hy_status hy_cpu_stream_sync(hy_stream *s) {
    pthread_mutex_lock(&s->lock);
    uint64_t goal = s->tail;
    while (s->head < goal) pthread_cond_wait(&s->has_room, &s->lock);
    hy_status status = hy_error_restore(&s->failure);
    s->failure.status = HY_OK;
    pthread_mutex_unlock(&s->lock);
    return status;
}

double hy_cpu_stream_waited(hy_stream *s) {
    pthread_mutex_lock(&s->lock);
    double waited = s->waited;
    pthread_mutex_unlock(&s->lock);
    return waited;
}

/* ---- creating and destroying ----------------------------------------------------------------- */

static void free_stream(hy_stream *s) {
    pthread_cond_destroy(&s->has_work);
    pthread_cond_destroy(&s->has_room);
    pthread_mutex_destroy(&s->lock);
    free(s->ring);
    free(s);
}

hy_status hy_cpu_stream_create(const hy_stream_options *options, hy_stream **out) {
    hy_stream *s = calloc(1, sizeof *s);
    entry *ring = calloc(RING, sizeof *ring);
    if (!s || !ring) {
        free(s);
        free(ring);
        return hy_fail(HY_ERR_MEMORY, "stream %s: not enough memory for its queue of %zu bytes",
                       options->name, RING * sizeof *ring);
    }
    s->options = *options;
    s->ring = ring;
    snprintf(s->name, sizeof s->name, "%.15s", options->name ? options->name : "stream");
    s->options.name = s->name;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->has_work, NULL);
    pthread_cond_init(&s->has_room, NULL);
    /* The threads that it starts block signals, too. */
    int error = hy_thread_start(&s->thread, s->name, worker_main, s);
    if (error != 0) {
        hy_status status = hy_fail(HY_ERR_MEMORY, "stream %s: cannot start its thread: %s", s->name,
                                   strerror(error));
        free_stream(s);
        return status;
    }
    *out = s;
    return HY_OK;
}

void hy_cpu_stream_destroy(hy_stream *s) {
    if (!s) return;
    entry *e = begin_put(s);
    e->kind = ENTRY_STOP;
    finish_put(s);
    pthread_join(s->thread, NULL);
    free_stream(s);
}
