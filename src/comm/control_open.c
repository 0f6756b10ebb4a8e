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

#define GREETING_SECONDS 1.0 /* after this a silent port is assumed to be another program's */
#define CONNECT_SECONDS 2.0
#define AGAIN_SECONDS 0.1 /* between two attempts */
#define PENDING 256       /* connections that have not identified themselves yet */
#define NAMED_MISSING 4
#define REFUSING_SECONDS 3.0 /* after a failed start, rank 0 waits this long to inform late ranks */

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

/* While waiting, the observer gets a message after say_after seconds, and then whenever the waiting
 * time has doubled. */
typedef struct patience {
    double began, next, deadline;
} patience;

static patience begin_to_wait(const hy_control *c) {
    double now = hy_clock();
    return (patience){
        .began = now, .next = c->options.say_after, .deadline = now + c->options.open_timeout};
}

/* Returns the seconds waited if it is time for a message, else 0. */
static double is_due(patience *p) {
    double waited = hy_clock() - p->began;
    if (waited < p->next) return 0;
    p->next = 2 * waited;
    return waited;
}

/* ---- rank 0 ---------------------------------------------------------------------------------- */

/* Rank 0 while the others connect. */
typedef struct reception {
    hy_control *c;
    int listener;
    struct pollfd *polled; /* the listener, lines 1 .. count - 1, then `pending` */
    line pending[PENDING]; /* connections that have not identified themselves; fd -1: free */
    hy_status refusal; /* not HY_OK: the start failed, and ranks that connect now get this error */
    int32_t refused;   /* ranks that got the error before they identified themselves */
} reception;

static int32_t missing_count(const hy_control *c) {
    int32_t missing = 0;
    for (int32_t r = 1; r < c->ranks.count; r++) missing += c->lines[r].state == LINE_NONE;
    return missing;
}

/* "rank 3 of 4", "ranks 1, 2, 3, 4 and 11 more of 16" */
static void name_missing(const hy_control *c, char *out, size_t size) {
    int32_t missing = missing_count(c), named = 0;
    int used = snprintf(out, size, missing == 1 ? "rank" : "ranks");
    for (int32_t r = 1; r < c->ranks.count && named < NAMED_MISSING; r++) {
        if (c->lines[r].state != LINE_NONE) continue;
        used += snprintf(out + used, size - (size_t)used, "%s%d", named++ ? ", " : " ", r);
    }
    if (missing > named)
        used += snprintf(out + used, size - (size_t)used, " and %d more", missing - named);
    snprintf(out + used, size - (size_t)used, " of %d", c->ranks.count);
}

static hy_status listen_somewhere(const hy_ranks *ranks, int *fd) {
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
static hy_status check_hello(const hy_control *c, const hello *h) {
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

/* Sends the last error, closes the connection, and returns whether it was open. */
static bool refuse(hy_control *c, line *l, hy_status status) {
    hy_wire_head head = {.magic = HY_WIRE_MAGIC,
                         .kind = HY_WIRE_FAILURE,
                         .what = (uint16_t)status,
                         .rank = (uint32_t)c->ranks.rank,
                         .size = (uint32_t)strlen(hy_error_message())};
    bool is_open = l->fd >= 0;
    if (is_open && hy_wire_add(&l->out, &head, hy_error_message())) hy_line_flush(l);
    hy_line_close(l);
    return is_open;
}

/* Reads from a connection that has not identified itself. A rank becomes a line, or is refused if
 * the start failed; the connection of another program is closed. */
static hy_status identify(reception *r, line *l) {
    hy_control *c = r->c;
    hy_wire_message m;
    hello h;
    bool is_open = hy_line_read(l);
    hy_wire_found found = hy_wire_take(&l->in, &m);
    bool is_hello = found == HY_WIRE_ONE && m.head.kind == HY_WIRE_HELLO && m.head.size == sizeof h;
    if (found == HY_WIRE_NONE && is_open) return HY_OK;
    if (is_hello && r->refusal != HY_OK) r->refused += refuse(c, l, r->refusal);
    if (!is_hello) hy_line_close(l);
    if (l->fd < 0) return HY_OK;
    memcpy(&h, m.data, sizeof h);
    h.version[sizeof h.version - 1] = h.host[sizeof h.host - 1] = 0;
    HY_TRY(check_hello(c, &h));
    enter(c, &h);
    hy_net_peer(l->fd, c->members[h.rank].address, sizeof c->members[h.rank].address);
    if (hy_net_is_loopback(c->members[h.rank].address)) c->members[h.rank].address[0] = 0;
    c->lines[h.rank] = *l;
    c->lines[h.rank].state = LINE_OPEN;
    *l = (line){.fd = -1};
    return HY_OK;
}

static void accept_connections(reception *r) {
    uint32_t protocol = HY_WIRE_PROTOCOL;
    hy_wire_head head = {.magic = HY_WIRE_MAGIC,
                         .kind = HY_WIRE_GREETING,
                         .size = sizeof protocol,
                         .number = r->c->ranks.job};
    for (int i = 0; i < PENDING; i++) {
        line *l = &r->pending[i];
        if (l->fd >= 0) continue;
        int fd = hy_net_accept(r->listener);
        if (fd < 0) return;
        *l = (line){.fd = fd, .heard = hy_clock()};
        if (hy_wire_add(&l->out, &head, &protocol)) hy_line_flush(l);
    }
}

/* Polls all connections once. */
static hy_status poll_once(reception *r) {
    hy_control *c = r->c;
    int32_t n = c->ranks.count;
    for (int32_t i = 0; i < n + PENDING; i++) {
        int fd = i == 0 ? r->listener : i < n ? c->lines[i].fd : r->pending[i - n].fd;
        r->polled[i] = (struct pollfd){.fd = fd, .events = POLLIN};
    }
    poll(r->polled, (nfds_t)n + PENDING, (int)(1e3 * AGAIN_SECONDS));
    if (r->polled[0].revents) accept_connections(r);
    for (int32_t i = 1; i < n; i++) {
        HY_FAIL_IF(r->polled[i].revents && !hy_line_read(&c->lines[i]), HY_ERR_IO,
                   "%s ended before all ranks were connected", hy_control_name(c, i).text);
    }
    for (int i = 0; i < PENDING; i++) {
        line *l = &r->pending[i];
        if (r->polled[n + i].fd >= 0 && r->polled[n + i].revents) HY_TRY(identify(r, l));
        if (l->fd >= 0 && hy_clock() - l->heard > 10 * CONNECT_SECONDS) hy_line_close(l);
    }
    return HY_OK;
}

static hy_status wait_for_all(reception *r, patience *wait) {
    const hy_control *c = r->c;
    char who[128];
    for (;;) {
        HY_TRY(poll_once(r));
        if (missing_count(c) == 0) return HY_OK;
        double waited = is_due(wait);
        name_missing(c, who, sizeof who);
        if (waited > 0)
            hy_say_to(&c->options.observer, HY_NOTE, "waiting for %s for %.0f s", who, waited);
        HY_FAIL_IF(hy_clock() > wait->deadline, HY_ERR_IO, "%s did not connect within %.0f s", who,
                   c->options.open_timeout);
    }
}

/* Sends the error of a failed start to the connected ranks, and for some seconds to ranks that
 * connect late: otherwise these would look for rank 0 until their timeout. */
static void refuse_all(reception *r, hy_status status, double deadline) {
    hy_control *c = r->c;
    double until = hy_clock() + REFUSING_SECONDS;
    r->refusal = status;
    for (int32_t i = 1; i < c->ranks.count; i++) refuse(c, &c->lines[i], status);
    for (int i = 0; i < PENDING; i++) r->refused += refuse(c, &r->pending[i], status);
    if (hy_clock() >= deadline) return;
    while (r->refused < missing_count(c) && hy_clock() < until) (void)poll_once(r);
}

static hy_status receive_ranks(hy_control *c) {
    reception r = {.c = c, .listener = -1};
    patience wait = begin_to_wait(c);
    for (int i = 0; i < PENDING; i++) r.pending[i].fd = -1;
    r.polled = calloc((size_t)c->ranks.count + PENDING, sizeof *r.polled);
    HY_FAIL_IF(!r.polled, HY_ERR_MEMORY, "no memory to wait for %d ranks", c->ranks.count);
    hy_status status = listen_somewhere(&c->ranks, &r.listener);
    if (status == HY_OK) {
        status = wait_for_all(&r, &wait);
        if (status != HY_OK) refuse_all(&r, status, wait.deadline);
    }
    hy_wire_head roster = {.kind = HY_WIRE_ROSTER,
                           .size = (uint32_t)(sizeof *c->members * (size_t)c->ranks.count)};
    for (int32_t i = 1; i < c->ranks.count && status == HY_OK; i++)
        hy_line_send(c, i, &roster, c->members);
    for (int i = 0; i < PENDING; i++) hy_line_close(&r.pending[i]);
    hy_net_close(&r.listener);
    free(r.polled);
    return status;
}

/* ---- the others ------------------------------------------------------------------------------ */

/* Connects to this port. HY_ERR_IO: rank 0 of this job does not listen there, or not yet. */
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

static hy_status find_rank0(hy_control *c) {
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
    HY_TRY(find_rank0(c));
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
