/* control_open.c: connects the ranks. See control.h.
 *
 * Rank 0 listens on the first free port of a fixed range; the others try the same range. The
 * accepting side sends first and names the job, so nothing is sent to a foreign port and two
 * jobs on one machine do not mix. A rank then identifies itself; when all have done so, every
 * rank gets the list of all ranks. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/text.h"
#include "comm/control_parts.h"
#include "comm/net.h"
#include "hybrid.h"

#define GREETING_SECONDS 1.0 /* for a stranger to say nothing */
#define CONNECT_SECONDS 2.0
#define AGAIN_SECONDS 0.1
#define GUESTS 256 /* connections that have not identified themselves yet */
#define NAMED_MISSING 4
#define TURNED_AWAY_SECONDS 3.0 /* seconds that rank 0 stays to inform late ranks */

typedef struct hello {
    uint32_t protocol;
    int32_t rank, count, pid;
    uint64_t agreed, machine;
    char version[32], host[64];
} hello;

rank_name hy_control_name(const hy_control *c, int32_t rank) {
    rank_name name;
    const hy_member *m = rank >= 0 && rank < c->ranks.count ? &c->members[rank] : NULL;
    if (m && m->pid)
        snprintf(name.text, sizeof name.text, "rank %d (%.63s, pid %d)", rank, m->host, m->pid);
    else
        snprintf(name.text, sizeof name.text, "rank %d", rank);
    return name;
}

static hello own_hello(const hy_control *c) {
    hello h = {.protocol = HY_WIRE_PROTOCOL,
               .rank = c->ranks.rank,
               .count = c->ranks.count,
               .pid = (int32_t)getpid(),
               .agreed = c->options.agreed,
               .machine = hy_net_machine(),
               .version = HYBRID_VERSION};
    if (gethostname(h.host, sizeof h.host - 1) != 0) snprintf(h.host, sizeof h.host, "?");
    return h;
}

static void enter(hy_control *c, const hello *h) {
    hy_member *m = &c->members[h->rank];
    snprintf(m->host, sizeof m->host, "%.63s", h->host);
    m->machine = h->machine;
    m->pid = h->pid;
}

/* Messages while waiting: the first after say_after, then whenever the waiting time has doubled. */
typedef struct patience {
    double began, next, deadline;
} patience;

static patience begin_to_wait(const hy_control *c) {
    double now = hy_clock();
    return (patience){
        .began = now, .next = c->options.say_after, .deadline = now + c->options.open_timeout};
}

/* Seconds waited, if it is time for a message; else 0. */
static double is_due(patience *p) {
    double waited = hy_clock() - p->began;
    if (waited < p->next) return 0;
    p->next = 2 * waited;
    return waited;
}

/* ---- rank 0 ---------------------------------------------------------------------------------- */

/* "rank 3 of 4", "ranks 1, 2, 3, 4 and 11 more of 16" */
static void missing_ranks(const hy_control *c, char *out, size_t size) {
    int32_t missing = 0, named = 0;
    for (int32_t r = 1; r < c->ranks.count; r++) missing += c->lines[r].state == LINE_NONE;
    int used = snprintf(out, size, missing == 1 ? "rank" : "ranks");
    for (int32_t r = 1; r < c->ranks.count && named < NAMED_MISSING; r++) {
        if (c->lines[r].state != LINE_NONE) continue;
        used += snprintf(out + used, size - (size_t)used, "%s%d", named++ ? ", " : " ", r);
    }
    if (missing > named)
        used += snprintf(out + used, size - (size_t)used, " and %d more", missing - named);
    snprintf(out + used, size - (size_t)used, " of %d", c->ranks.count);
}

static hy_status listen_somewhere(const hy_control *c, int *fd) {
    const hy_ranks *ranks = &c->ranks;
    bool is_taken = true;
    hy_status status = HY_ERR_IO;
    for (int i = 0; i < HY_PORTS && is_taken && ranks->port + i <= 65535; i++) {
        status = hy_net_listen(ranks->address, (uint16_t)(ranks->port + i), fd, &is_taken);
        if (status == HY_OK) return HY_OK;
    }
    return hy_fail_context(status, "rank 0 found no free port from %d to %d", ranks->port,
                           ranks->port + HY_PORTS - 1);
}

/* Checks whether a new connection may be the rank that it says it is. */
static hy_status judge_hello(const hy_control *c, const hello *h) {
    const char *what = c->options.agreed_name ? c->options.agreed_name : "settings";
    HY_FAIL_IF(h->protocol != HY_WIRE_PROTOCOL || strcmp(h->version, HYBRID_VERSION) != 0,
               HY_ERR_INPUT,
               "rank %d (%s, pid %d) runs hybrid-train %s with protocol %u, but rank 0 runs %s "
               "with %d: use the same version on all ranks",
               h->rank, h->host, h->pid, h->version, h->protocol, HYBRID_VERSION, HY_WIRE_PROTOCOL);
    HY_FAIL_IF(h->count != c->ranks.count || h->rank <= 0 || h->rank >= c->ranks.count,
               HY_ERR_INPUT,
               "a process (%s, pid %d) says that it is rank %d of %d, but rank 0 expects %d ranks",
               h->host, h->pid, h->rank, h->count, c->ranks.count);
    HY_FAIL_IF(c->lines[h->rank].state != LINE_NONE, HY_ERR_INPUT,
               "two processes say that they are rank %d: %s, pid %d, and %s, pid %d", h->rank,
               c->members[h->rank].host, c->members[h->rank].pid, h->host, h->pid);
    HY_FAIL_IF(h->agreed != c->options.agreed, HY_ERR_INPUT,
               "rank %d (%s, pid %d) has different %s than rank 0: use the same on all ranks",
               h->rank, h->host, h->pid, what);
    return HY_OK;
}

static void say_failure(hy_control *c, line *l, hy_status status) {
    hy_wire_head head = {.magic = HY_WIRE_MAGIC,
                         .kind = HY_WIRE_FAILURE,
                         .what = (uint16_t)status,
                         .rank = (uint32_t)c->ranks.rank,
                         .size = (uint32_t)strlen(hy_error_message())};
    if (l->fd >= 0 && hy_wire_add(&l->out, &head, hy_error_message())) hy_line_flush(l);
}

/* A new connection identifies itself and becomes a line. Foreign connections are closed. */
static hy_status hear_guest(hy_control *c, line *guest) {
    hy_wire_message m;
    hello h;
    bool is_open = hy_line_read(guest);
    hy_wire_found found = hy_wire_take(&guest->in, &m);
    bool is_hello = found == HY_WIRE_ONE && m.head.kind == HY_WIRE_HELLO && m.head.size == sizeof h;
    if (found == HY_WIRE_NONE && is_open) return HY_OK;
    if (!is_hello) {
        hy_line_close(guest);
        return HY_OK;
    }
    memcpy(&h, m.data, sizeof h);
    h.version[sizeof h.version - 1] = h.host[sizeof h.host - 1] = 0;
    HY_TRY(judge_hello(c, &h));
    enter(c, &h);
    hy_net_peer(guest->fd, c->members[h.rank].address, sizeof c->members[h.rank].address);
    if (hy_net_is_loopback(c->members[h.rank].address)) c->members[h.rank].address[0] = 0;
    c->lines[h.rank] = *guest;
    c->lines[h.rank].state = LINE_OPEN;
    *guest = (line){.fd = -1};
    return HY_OK;
}

static void greet(hy_control *c, line *guests, int listener_fd) {
    uint32_t protocol = HY_WIRE_PROTOCOL;
    hy_wire_head head = {.magic = HY_WIRE_MAGIC,
                         .kind = HY_WIRE_GREETING,
                         .size = sizeof protocol,
                         .number = c->ranks.job};
    for (int i = 0; i < GUESTS; i++) {
        if (guests[i].fd >= 0) continue;
        int fd = hy_net_accept(listener_fd);
        if (fd < 0) return;
        guests[i] = (line){.fd = fd, .heard = hy_clock()};
        if (hy_wire_add(&guests[i].out, &head, &protocol)) hy_line_flush(&guests[i]);
    }
}

/* A rank that connected and ended before all were connected. */
static hy_status hear_member(hy_control *c, int32_t r) {
    bool is_open = hy_line_read(&c->lines[r]);
    HY_FAIL_IF(!is_open, HY_ERR_IO, "%s ended before all ranks were connected",
               hy_control_name(c, r).text);
    return HY_OK;
}

/* Polls all connections once: polled[0] is the listener, then lines, then new connections. */
static hy_status look(hy_control *c, struct pollfd *polled, line *guests, int listener_fd) {
    int32_t n = c->ranks.count;
    polled[0] = (struct pollfd){.fd = listener_fd, .events = POLLIN};
    for (int32_t r = 1; r < n; r++)
        polled[r] = (struct pollfd){.fd = c->lines[r].fd, .events = POLLIN};
    for (int i = 0; i < GUESTS; i++)
        polled[n + i] = (struct pollfd){.fd = guests[i].fd, .events = POLLIN};
    poll(polled, (nfds_t)n + GUESTS, (int)(1e3 * AGAIN_SECONDS));
    if (polled[0].revents) greet(c, guests, listener_fd);
    for (int32_t r = 1; r < n; r++) {
        if (polled[r].revents) HY_TRY(hear_member(c, r));
    }
    for (int i = 0; i < GUESTS; i++) {
        if (polled[n + i].fd >= 0 && polled[n + i].revents) HY_TRY(hear_guest(c, &guests[i]));
        if (guests[i].fd >= 0 && hy_clock() - guests[i].heard > 10 * CONNECT_SECONDS)
            hy_line_close(&guests[i]);
    }
    return HY_OK;
}

static bool are_all_here(const hy_control *c) {
    for (int32_t r = 1; r < c->ranks.count; r++) {
        if (c->lines[r].state == LINE_NONE) return false;
    }
    return true;
}

static hy_status wait_for_all(hy_control *c, struct pollfd *polled, line *guests, int listener_fd,
                              patience *wait) {
    char who[128];
    while (!are_all_here(c)) {
        HY_TRY(look(c, polled, guests, listener_fd));
        double waited = is_due(wait);
        missing_ranks(c, who, sizeof who);
        if (waited > 0 && !are_all_here(c))
            hy_say_to(&c->options.observer, HY_NOTE, "waiting for %s for %.0f s", who, waited);
        HY_FAIL_IF(hy_clock() > wait->deadline && !are_all_here(c), HY_ERR_IO,
                   "%s did not connect within %.0f s", who, c->options.open_timeout);
    }
    return HY_OK;
}

static void send_roster(hy_control *c) {
    hy_wire_head head = {.kind = HY_WIRE_ROSTER,
                         .size = (uint32_t)(sizeof *c->members * (size_t)c->ranks.count)};
    for (int32_t r = 1; r < c->ranks.count; r++) hy_line_send(c, r, &head, c->members);
}

/* Tells all connected ranks why the start failed. */
static void turn_away(hy_control *c, line *guests, hy_status status) {
    for (int32_t r = 1; r < c->ranks.count; r++) say_failure(c, &c->lines[r], status);
    for (int i = 0; i < GUESTS; i++) say_failure(c, &guests[i], status);
}

/* A rank that connects late; false: none yet, or a foreign connection. */
static bool turn_away_guest(hy_control *c, line *guest, hy_status status) {
    hy_wire_message m;
    bool is_open = hy_line_read(guest); /* unread bytes would make close() discard our message */
    bool is_rank = hy_wire_take(&guest->in, &m) == HY_WIRE_ONE;
    if (is_rank) say_failure(c, guest, status);
    if (is_rank || !is_open) hy_line_close(guest);
    return is_rank;
}

/* Without this, late ranks would look for rank 0 until their timeout. */
static void turn_away_late(hy_control *c, struct pollfd *polled, line *guests, int listener_fd,
                           hy_status status) {
    int32_t missing = 0;
    double until = hy_clock() + TURNED_AWAY_SECONDS;
    for (int32_t r = 1; r < c->ranks.count; r++) missing += c->lines[r].state == LINE_NONE;
    for (int i = 0; i < GUESTS; i++) {
        missing -= guests[i].fd >= 0; /* it has just been turned away */
        hy_line_close(&guests[i]);
    }
    while (missing > 0 && hy_clock() < until) {
        polled[0] = (struct pollfd){.fd = listener_fd, .events = POLLIN};
        for (int i = 0; i < GUESTS; i++)
            polled[1 + i] = (struct pollfd){.fd = guests[i].fd, .events = POLLIN};
        poll(polled, 1 + GUESTS, (int)(1e3 * AGAIN_SECONDS));
        greet(c, guests, listener_fd);
        for (int i = 0; i < GUESTS; i++) {
            if (polled[1 + i].fd >= 0 && polled[1 + i].revents)
                missing -= turn_away_guest(c, &guests[i], status);
        }
    }
}

static hy_status receive_with(hy_control *c, struct pollfd *polled, line *guests) {
    int listener_fd = -1;
    patience wait = begin_to_wait(c);
    for (int i = 0; i < GUESTS; i++) guests[i].fd = -1;
    HY_TRY(listen_somewhere(c, &listener_fd));
    hy_status status = wait_for_all(c, polled, guests, listener_fd, &wait);
    if (status == HY_OK) {
        send_roster(c);
    } else {
        turn_away(c, guests, status);
        if (hy_clock() < wait.deadline) turn_away_late(c, polled, guests, listener_fd, status);
    }
    for (int i = 0; i < GUESTS; i++) hy_line_close(&guests[i]);
    hy_net_close(&listener_fd);
    return status;
}

static hy_status receive_ranks(hy_control *c) {
    struct pollfd *polled = calloc((size_t)c->ranks.count + GUESTS, sizeof *polled);
    line *guests = calloc(GUESTS, sizeof *guests);
    hy_status status = HY_ERR_MEMORY;
    if (polled && guests)
        status = receive_with(c, polled, guests);
    else
        hy_fail(status, "no memory to wait for %d ranks", c->ranks.count);
    free(guests);
    free(polled);
    return status;
}

/* ---- the others ------------------------------------------------------------------------------ */

/* Is rank 0 of this job at this port? HY_ERR_IO: no, or not yet; HY_ERR_INPUT: it is another
 * build. */
static hy_status try_port(hy_control *c, uint16_t port, double deadline) {
    struct {
        hy_wire_head head;
        uint32_t protocol;
    } said;
    line *l = &c->lines[0];
    double now = hy_clock(), until = now + CONNECT_SECONDS;
    HY_TRY(hy_net_connect(c->ranks.address, port, until < deadline ? until : deadline, &l->fd));
    bool is_heard =
        hy_net_receive(l->fd, &said.head, sizeof said.head, hy_clock() + GREETING_SECONDS);
    bool is_ours =
        is_heard && said.head.magic == HY_WIRE_MAGIC && said.head.kind == HY_WIRE_GREETING &&
        said.head.size == sizeof said.protocol && said.head.number == c->ranks.job &&
        hy_net_receive(l->fd, &said.protocol, sizeof said.protocol, hy_clock() + GREETING_SECONDS);
    if (!is_ours) hy_net_close(&l->fd);
    HY_FAIL_IF(!is_ours, HY_ERR_IO, "port %d of %s does not belong to rank 0", port,
               c->ranks.address);
    return HY_OK;
}

static hy_status find_first(hy_control *c) {
    patience wait = begin_to_wait(c);
    const hy_ranks *ranks = &c->ranks;
    for (;;) {
        for (int i = 0; i < HY_PORTS && ranks->port + i <= 65535; i++) {
            if (try_port(c, (uint16_t)(ranks->port + i), wait.deadline) == HY_OK) return HY_OK;
            if (hy_clock() > wait.deadline) break;
        }
        if (hy_clock() > wait.deadline)
            return hy_fail_context(HY_ERR_IO, "rank %d found no rank 0 at %s, port %d, in %.0f s",
                                   ranks->rank, ranks->address, ranks->port,
                                   c->options.open_timeout);
        double waited = is_due(&wait);
        if (waited > 0)
            hy_say_to(&c->options.observer, HY_NOTE,
                      "rank %d waits for rank 0 at %s, port %d, for %.0f s", ranks->rank,
                      ranks->address, ranks->port, waited);
        struct timespec pause = {.tv_nsec = (long)(1e9 * AGAIN_SECONDS)};
        nanosleep(&pause, NULL);
    }
}

static hy_status take_roster(hy_control *c, const hy_wire_message *m) {
    size_t size = sizeof *c->members * (size_t)c->ranks.count;
    char first[sizeof c->members->address];
    HY_FAIL_IF(m->head.kind == HY_WIRE_FAILURE, (hy_status)m->head.what, "%.*s", (int)m->head.size,
               (const char *)m->data);
    HY_FAIL_IF(m->head.kind != HY_WIRE_ROSTER || m->head.size != size, HY_ERR_IO,
               "rank 0 did not answer with the list of ranks");
    memcpy(c->members, m->data, size);
    hy_net_peer(c->lines[0].fd, first, sizeof first);
    /* Ranks that rank 0 sees over loopback run on rank 0's machine. */
    for (int32_t r = 0; r < c->ranks.count; r++) {
        hy_member *member = &c->members[r];
        member->host[sizeof member->host - 1] = member->address[sizeof member->address - 1] = 0;
        if (!member->address[0]) memcpy(member->address, first, sizeof first);
    }
    return HY_OK;
}

static hy_status join_ranks(hy_control *c) {
    line *l = &c->lines[0];
    hello h = own_hello(c);
    hy_wire_message m;
    hy_wire_head head = {.kind = HY_WIRE_HELLO, .size = sizeof h};
    HY_TRY(find_first(c));
    l->state = LINE_OPEN;
    hy_line_send(c, 0, &head, &h);
    double deadline = hy_clock() + c->options.open_timeout + CONNECT_SECONDS;
    for (bool is_open = true; hy_clock() < deadline;) {
        hy_wire_found found = hy_wire_take(&l->in, &m);
        if (found == HY_WIRE_ONE) return take_roster(c, &m);
        HY_FAIL_IF(found == HY_WIRE_NONSENSE || !is_open, HY_ERR_IO,
                   "rank 0 ended before all ranks were connected");
        struct pollfd polled = {.fd = l->fd, .events = POLLIN};
        if (poll(&polled, 1, 1000) > 0) is_open = hy_line_read(l);
    }
    return hy_fail(HY_ERR_IO, "rank %d waited %.0f s, but not all ranks connected", c->ranks.rank,
                   c->options.open_timeout);
}

hy_status hy_control_meet(hy_control *c) {
    hello own = own_hello(c);
    enter(c, &own);
    if (c->ranks.count == 1) return HY_OK;
    return c->ranks.rank == 0 ? receive_ranks(c) : join_ranks(c);
}
