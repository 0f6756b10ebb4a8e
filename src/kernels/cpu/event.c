/* event.c: events count. Each record draws the next ticket; the event is done up to a ticket once
 * the stream has come to that record.
 *
 * A wait means the last ticket drawn when the wait was asked for. Records are done in the order of
 * their tickets even when they lie on different streams; since a record or wait only ever looks
 * back at what was queued before it, streams cannot wait for each other in a circle. */
#include "kernels/cpu/event.h"

#include <stdlib.h>

#include "base/error.h"
#include "kernels/cpu/stream.h"

struct hy_event {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t recorded; /* last ticket drawn */
    uint64_t done;     /* all tickets up to this one are done */
    uint64_t users;    /* queue entries that still point here */
};

hy_status hy_cpu_event_create(hy_backend *b, hy_event **out) {
    (void)b;
    hy_event *e = calloc(1, sizeof *e);
    if (!e) return hy_fail(HY_ERR_MEMORY, "no memory for an event");
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

uint64_t hy_cpu_event_draw(hy_event *e) {
    pthread_mutex_lock(&e->lock);
    uint64_t ticket = ++e->recorded;
    e->users++;
    pthread_mutex_unlock(&e->lock);
    return ticket;
}

uint64_t hy_cpu_event_last(hy_event *e) {
    pthread_mutex_lock(&e->lock);
    uint64_t ticket = e->recorded;
    e->users++;
    pthread_mutex_unlock(&e->lock);
    return ticket;
}

static void await_ticket(hy_event *e, uint64_t ticket) {
    while (e->done < ticket) pthread_cond_wait(&e->changed, &e->lock);
}

/* The last user's signal must come before it lets go of the lock: destroy frees the event then. */
static void drop_user(hy_event *e) {
    e->users--;
    pthread_cond_broadcast(&e->changed);
}

void hy_cpu_event_fire(hy_event *e, uint64_t ticket) {
    pthread_mutex_lock(&e->lock);
    await_ticket(e, ticket - 1);
    e->done = ticket;
    drop_user(e);
    pthread_mutex_unlock(&e->lock);
}

void hy_cpu_event_await(hy_event *e, uint64_t ticket) {
    pthread_mutex_lock(&e->lock);
    await_ticket(e, ticket);
    drop_user(e);
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
