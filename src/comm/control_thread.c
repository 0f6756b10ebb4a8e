/* control_thread.c: the connections of the control channel, and the thread that reads them, sends
 * heartbeats and detects lost ranks. See control_parts.h. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/control_parts.h"
#include "comm/net.h"

#define LONGEST_BEAT 1.0 /* seconds between heartbeats */
#define BEATS_IN_TIMEOUT 4
#define READ_AT_ONCE ((size_t)64 << 10)

/* ---- connections ----------------------------------------------------------------------------- */

void hy_control_wake(hy_control *c) {
    uint64_t one = 1;
    ssize_t ignored = write(c->wake_fd, &one, sizeof one);
    (void)ignored; /* it fails if the counter is full: the thread is awake then */
}

void hy_line_flush(line *l) {
    while (l->fd >= 0 && l->out.begin < l->out.end) {
        ssize_t n =
            send(l->fd, l->out.data + l->out.begin, l->out.end - l->out.begin, MSG_NOSIGNAL);
        if (n > 0) {
            l->out.begin += (size_t)n;
        } else {
            /* The other side no longer reads; reading will detect that the connection is dead. */
            bool is_dead = errno != EAGAIN && errno != EINTR;
            if (is_dead) l->out.begin = l->out.end;
            if (errno != EINTR) return;
        }
    }
}

void hy_line_send(hy_control *c, int32_t to, const hy_wire_head *head, const void *data) {
    line *l = &c->lines[to];
    hy_wire_head whole = *head;
    whole.magic = HY_WIRE_MAGIC;
    if (l->state != LINE_OPEN) return;
    if (!hy_wire_add(&l->out, &whole, data)) {
        /* A message is lost, so the two ranks no longer have the same state. */
        if (!c->has_failed)
            hy_control_record(c, HY_ERR_MEMORY, c->ranks.rank,
                              "not enough memory for a control message");
        return;
    }
    hy_line_flush(l);
    if (l->out.begin < l->out.end && c->has_thread) hy_control_wake(c);
}

bool hy_line_read(line *l) {
    for (;;) {
        if (!hy_wire_reserve(&l->in, READ_AT_ONCE)) return false;
        ssize_t n = recv(l->fd, l->in.data + l->in.end, l->in.room - l->in.end, 0);
        if (n == 0) return false;
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return errno == EAGAIN;
        l->in.end += (size_t)n;
        l->heard = hy_clock();
        if ((size_t)n < READ_AT_ONCE) return true; /* poll() reports it when more bytes arrive */
    }
}

void hy_line_close(line *l) {
    hy_net_close(&l->fd);
    hy_wire_free(&l->in);
    hy_wire_free(&l->out);
}

bool hy_line_is_idle(const hy_control *c) {
    for (int32_t r = 0; r < c->ranks.count; r++) {
        const line *l = &c->lines[r];
        if (l->state == LINE_OPEN && l->out.begin < l->out.end) return false;
    }
    return true;
}

/* ---- failures -------------------------------------------------------------------------------- */

static void send_failure(hy_control *c, int32_t to) {
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
        for (int32_t r = 1; r < c->ranks.count; r++) send_failure(c, r);
    } else if (rank == c->ranks.rank) {
        send_failure(c, 0);
    }
    ssize_t ignored = write(c->failure_fd, &one, sizeof one);
    (void)ignored;
    hy_control_wake(c); /* to call on_failure */
    pthread_cond_broadcast(&c->is_changed);
}

void hy_control_lose(hy_control *c, int32_t rank, const char *how) {
    char message[HY_ERROR_MESSAGE_MAX];
    snprintf(message, sizeof message, "%s %s", hy_control_name(c, rank).text, how);
    hy_control_record(c, HY_ERR_IO, rank, message);
}

/* Calls the owner's function, without the lock. */
static void call_on_failure(hy_control *c) {
    void (*function)(void *user) = c->on_failure;
    void *user = c->on_failure_user;
    if (!c->has_failed || !function) return;
    c->on_failure = NULL;
    c->is_calling = true;
    pthread_mutex_unlock(&c->lock);
    function(user);
    pthread_mutex_lock(&c->lock);
    c->is_calling = false;
    pthread_cond_broadcast(&c->is_changed);
}

/* ---- reading --------------------------------------------------------------------------------- */

static void take_message(hy_control *c, int32_t from, const hy_wire_message *m) {
    bool is_first = c->ranks.rank == 0;
    char text[HY_ERROR_MESSAGE_MAX];
    int size = m->head.size < sizeof text ? (int)m->head.size : (int)sizeof text - 1;
    switch (m->head.kind) {
    case HY_WIRE_BEAT: break;
    case HY_WIRE_CALL:
        if (is_first) hy_control_arrive(c, from, m);
        break;
    case HY_WIRE_RESULT:
        if (!is_first) hy_control_answer(c, m);
        break;
    case HY_WIRE_FAILURE:
        snprintf(text, sizeof text, "%.*s", size, (const char *)m->data);
        hy_control_record(c, (hy_status)m->head.what, is_first ? from : (int32_t)m->head.rank,
                          text);
        break;
    case HY_WIRE_BYE:
        c->lines[from].state = LINE_LEFT;
        if (is_first) hy_control_left(c, from);
        pthread_cond_broadcast(&c->is_changed);
        break;
    default: hy_control_lose(c, from, "sent an unexpected control message"); break;
    }
}

static void read_line(hy_control *c, int32_t r) {
    line *l = &c->lines[r];
    hy_wire_message message;
    hy_wire_found found;
    bool is_open = hy_line_read(l);
    while ((found = hy_wire_take(&l->in, &message)) == HY_WIRE_ONE) take_message(c, r, &message);
    if (found == HY_WIRE_NONSENSE) {
        hy_control_lose(c, r, "sent bytes that are not control messages");
        is_open = false;
    }
    if (is_open) return;
    if (l->state == LINE_OPEN)
        hy_control_lose(
            c, r, "is gone without a message: it was killed, it crashed, or its connection broke");
    l->state = LINE_LEFT;
    hy_line_close(l);
    pthread_cond_broadcast(&c->is_changed);
}

/* ---- the thread ------------------------------------------------------------------------------ */

/* polled[r] belongs to line r, the last one to wake_fd. */
static void prepare_poll(hy_control *c) {
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
        /* A message that waits to be sent will serve as a heartbeat. */
        if (l->state == LINE_OPEN && l->out.begin == l->out.end) hy_line_send(c, r, &head, NULL);
    }
}

static void detect_silence(hy_control *c, double now) {
    char how[96];
    for (int32_t r = 0; r < c->ranks.count && !c->has_failed; r++) {
        const line *l = &c->lines[r];
        if (l->state != LINE_OPEN || now - l->heard <= c->options.timeout) continue;
        struct pollfd again = {.fd = l->fd, .events = POLLIN};
        if (poll(&again, 1, 0) > 0) continue; /* a message has just arrived */
        snprintf(how, sizeof how,
                 "has been silent for %.1f s: its process is stopped, or it lost its connection",
                 now - l->heard);
        hy_control_lose(c, r, how);
    }
}

/* Starts all timeouts anew: while this process was stopped, it could not read messages. */
static void restart_timeouts(hy_control *c, double now) {
    for (int32_t r = 0; r < c->ranks.count; r++) c->lines[r].heard = now;
}

static void *run(void *argument) {
    hy_control *c = argument;
    double every = c->options.timeout / BEATS_IN_TIMEOUT, seen = hy_clock(), next_beat = seen;
    if (every > LONGEST_BEAT) every = LONGEST_BEAT;
    pthread_mutex_lock(&c->lock);
    while (!c->is_stopping) {
        uint64_t ignored;
        prepare_poll(c);
        pthread_mutex_unlock(&c->lock);
        poll(c->polled, (nfds_t)c->ranks.count + 1, (int)(1e3 * every / 2) + 1);
        pthread_mutex_lock(&c->lock);
        while (read(c->wake_fd, &ignored, sizeof ignored) > 0) continue;
        double now = hy_clock();
        serve_lines(c);
        if (now - seen > c->options.timeout / 2) restart_timeouts(c, now);
        seen = now;
        if (now >= next_beat) {
            beat(c);
            next_beat = now + every;
        }
        detect_silence(c, now);
        call_on_failure(c);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

hy_status hy_control_start(hy_control *c) {
    sigset_t all, before;
    restart_timeouts(c, hy_clock());
    sigfillset(&all); /* the main thread handles signals */
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
