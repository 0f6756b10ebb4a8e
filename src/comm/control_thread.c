/* control_thread.c: heartbeats, reading, and detecting lost ranks. See control_parts.h. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/control_parts.h"
#include "comm/net.h"

#define LONGEST_BEAT 1.0 /* seconds between heartbeats */
#define BEATS_IN_TIMEOUT 4

/* ---- failures -------------------------------------------------------------------------------- */

static void tell(hy_control *c, int32_t to) {
    hy_wire_head head = {.kind = HY_WIRE_FAILURE,
                         .what = (uint16_t)c->failure.status,
                         .rank = (uint32_t)c->failed_rank,
                         .size = (uint32_t)strlen(c->failure.text)};
    hy_line_send(c, to, &head, c->failure.text);
}

void hy_control_record(hy_control *c, hy_status status, int32_t rank, const char *message) {
    uint64_t one = 1;
    if (c->has_failed) return;
    c->failure.status = status == HY_OK ? HY_ERR_INTERNAL : status;
    c->failed_rank = rank;
    snprintf(c->failure.text, sizeof c->failure.text, "%s", message);
    atomic_store(&c->has_failed, true);
    if (c->ranks.rank == 0) {
        for (int32_t r = 1; r < c->ranks.count; r++) tell(c, r);
    } else if (rank == c->ranks.rank) {
        tell(c, 0);
    }
    ssize_t ignored = write(c->failure_fd, &one, sizeof one);
    (void)ignored;
    hy_control_wake(c); /* for the listeners */
    pthread_cond_broadcast(&c->is_changed);
}

static void lose(hy_control *c, int32_t rank, const char *how) {
    char message[HY_ERROR_MESSAGE_MAX];
    snprintf(message, sizeof message, "%s %s", hy_control_name(c, rank).text, how);
    hy_control_record(c, HY_ERR_IO, rank, message);
}

/* Calls the registered functions, without the lock. */
static void tell_listeners(hy_control *c) {
    for (int i = 0; i < HY_LISTENERS && c->has_failed; i++) {
        listener *l = &c->listeners[i];
        if (!l->function || l->is_told) continue;
        listener copy = *l;
        l->is_told = true;
        c->is_telling = true;
        pthread_mutex_unlock(&c->lock);
        copy.function(copy.user);
        pthread_mutex_lock(&c->lock);
        c->is_telling = false;
        pthread_cond_broadcast(&c->is_changed);
    }
}

/* ---- reading --------------------------------------------------------------------------------- */

static void hear_failure(hy_control *c, int32_t from, const hy_wire_message *m) {
    char message[HY_ERROR_MESSAGE_MAX];
    int size = m->head.size < sizeof message ? (int)m->head.size : (int)sizeof message - 1;
    int32_t rank = c->ranks.rank == 0 ? from : (int32_t)m->head.rank;
    snprintf(message, sizeof message, "%.*s", size, (const char *)m->data);
    hy_control_record(c, (hy_status)m->head.what, rank, message);
}

static void hear(hy_control *c, int32_t from, const hy_wire_message *m) {
    bool is_first = c->ranks.rank == 0;
    switch (m->head.kind) {
    case HY_WIRE_BEAT: break;
    case HY_WIRE_CALL:
        if (is_first) hy_control_arrive_wire(c, from, m);
        break;
    case HY_WIRE_RESULT:
        if (!is_first) hy_control_answer(c, m);
        break;
    case HY_WIRE_FAILURE: hear_failure(c, from, m); break;
    case HY_WIRE_BYE:
        c->lines[from].state = LINE_LEFT;
        if (is_first) hy_control_left(c, from);
        pthread_cond_broadcast(&c->is_changed);
        break;
    default: lose(c, from, "sent an unexpected control message"); break;
    }
}

static void read_line(hy_control *c, int32_t r) {
    line *l = &c->lines[r];
    hy_wire_message message;
    hy_wire_found found;
    bool is_open = hy_line_read(l);
    while ((found = hy_wire_take(&l->in, &message)) == HY_WIRE_ONE) hear(c, r, &message);
    if (found == HY_WIRE_NONSENSE) {
        lose(c, r, "sent bytes that are not control messages");
        is_open = false;
    }
    if (is_open) return;
    if (l->state == LINE_OPEN)
        lose(c, r, "is gone: it ended without a message (killed, or crashed)");
    l->state = LINE_LEFT;
    hy_line_close(l);
    pthread_cond_broadcast(&c->is_changed);
}

/* ---- the thread ------------------------------------------------------------------------------ */

static double beat_seconds(const hy_control *c) {
    double share = c->options.timeout / BEATS_IN_TIMEOUT;
    return share < LONGEST_BEAT ? share : LONGEST_BEAT;
}

/* polled[r] belongs to line r, the last one to the owner. */
static void prepare(hy_control *c) {
    int32_t n = c->ranks.count;
    for (int32_t r = 0; r < n; r++) {
        const line *l = &c->lines[r];
        bool has_more = l->out.begin < l->out.end;
        c->polled[r] = (struct pollfd){.fd = l->fd, .events = POLLIN | (has_more ? POLLOUT : 0)};
    }
    c->polled[n] = (struct pollfd){.fd = c->wake_fd, .events = POLLIN};
}

static void serve_lines(hy_control *c) {
    for (int32_t r = 0; r < c->ranks.count; r++) {
        line *l = &c->lines[r];
        if (l->fd < 0 || c->polled[r].fd != l->fd || c->polled[r].revents == 0) continue;
        hy_line_flush(l);
        if (c->polled[r].revents & (POLLIN | POLLHUP | POLLERR)) read_line(c, r);
    }
    if (hy_line_is_idle(c)) pthread_cond_broadcast(&c->is_changed);
}

static void beat(hy_control *c) {
    hy_wire_head head = {.kind = HY_WIRE_BEAT};
    for (int32_t r = 0; r < c->ranks.count; r++) {
        line *l = &c->lines[r];
        /* Messages that wait to be sent also show life once they are read. */
        if (l->state == LINE_OPEN && l->out.begin == l->out.end) hy_line_send(c, r, &head, NULL);
    }
}

static void judge(hy_control *c, double now) {
    char how[96];
    for (int32_t r = 0; r < c->ranks.count && !c->has_failed; r++) {
        const line *l = &c->lines[r];
        if (l->state != LINE_OPEN || now - l->heard <= c->options.timeout) continue;
        struct pollfd again = {.fd = l->fd, .events = POLLIN};
        if (poll(&again, 1, 0) > 0) continue; /* it has said something meanwhile */
        snprintf(how, sizeof how,
                 "has been silent for %.1f s: it is stopped, hangs or lost its connection",
                 now - l->heard);
        lose(c, r, how);
    }
}

/* A process that was stopped itself cannot judge the others' silence. */
static void forgive(hy_control *c, double now) {
    for (int32_t r = 0; r < c->ranks.count; r++) c->lines[r].heard = now;
}

static void *run(void *argument) {
    hy_control *c = argument;
    double every = beat_seconds(c), seen = hy_clock(), next_beat = seen;
    pthread_mutex_lock(&c->lock);
    while (!c->is_stopping) {
        uint64_t ignored;
        prepare(c);
        pthread_mutex_unlock(&c->lock);
        poll(c->polled, (nfds_t)c->ranks.count + 1, (int)(1e3 * every / 2) + 1);
        pthread_mutex_lock(&c->lock);
        while (read(c->wake_fd, &ignored, sizeof ignored) > 0) continue;
        double now = hy_clock();
        serve_lines(c);
        if (now - seen > c->options.timeout / 2) forgive(c, now);
        seen = now;
        if (now >= next_beat) {
            beat(c);
            next_beat = now + every;
        }
        judge(c, now);
        tell_listeners(c);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

hy_status hy_control_start(hy_control *c) {
    sigset_t all, before;
    forgive(c, hy_clock());
    sigfillset(&all); /* signals are the main thread's business */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    c->has_thread = true;
    int error = pthread_create(&c->thread, NULL, run, c);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0) c->has_thread = false;
    HY_FAIL_IF(error != 0, HY_ERR_MEMORY, "cannot start the control thread: %s", strerror(error));
    return HY_OK;
}

void hy_control_stop(hy_control *c) {
    if (!c->has_thread) return;
    pthread_mutex_lock(&c->lock);
    c->is_stopping = true;
    hy_control_wake(c);
    pthread_mutex_unlock(&c->lock);
    pthread_join(c->thread, NULL);
    c->has_thread = false;
}
