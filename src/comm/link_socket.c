/* link_socket.c: a link of sockets, one between every two ranks. See link.h.
 *
 * A transfer is a head (its number between the two ranks, its size) and its bytes. All sockets
 * are non-blocking: a rank moves what it can, in both directions and with any peer, and
 * otherwise sleeps in ppoll(), which also wakes up when the control channel reports a failure. */
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "comm/link_kind.h"
#include "comm/net.h"
#include "comm/pending.h"

#define TRANSFER_MAGIC 0x31504b48u
#define BUFFER_BYTES (4 << 20) /* requested; the system may give less */
#define OPEN_SECONDS 60.0
#define NAP_SECONDS 1
#define ACCEPTED_MOST 64 /* connections at once, before those that are there are read */
#define MOST_LATE 5e-4   /* seconds by which a sleeping thread wakes up late */
#define MOST_AT_ONCE ((uint64_t)1 << 30) /* bytes per system call */

typedef struct transfer_head {
    uint32_t magic, reserved;
    uint64_t number, bytes;
} transfer_head;

/* One direction between this rank and a peer, and its progress in the current exchange. */
typedef struct direction {
    const hy_transfer *list; /* transfers with all peers */
    int32_t count, peer;
    int32_t at;         /* the current transfer in the list; count: all with this peer are done */
    transfer_head head; /* of the current transfer: to send, or as far as it was received */
    uint64_t number;    /* transfers completed since the link was opened */
    uint64_t done;      /* bytes of the current transfer, head first */
} direction;

typedef struct connection {
    int fd; /* -1: this rank itself */
    direction out, in;
} connection;

typedef struct socket_link {
    hy_link base; /* must be first: see link_kind.h */
    hy_link_options options;
    connection *connections;    /* (count) */
    struct pollfd *polled;      /* (count + 1) */
    double began;               /* of the exchange, with its latency */
    double free_at, ended;      /* artificial rate: when the wire was free, end of last exchange */
    uint64_t sent_now, to_send; /* bytes of this exchange, heads included */
} socket_link;

/* ---- transfers ------------------------------------------------------------------------------- */

static bool is_over(const direction *d) { return d->at >= d->count; }

static transfer_head expected_head(const direction *d) {
    return (transfer_head){
        .magic = TRANSFER_MAGIC, .number = d->number, .bytes = d->list[d->at].bytes};
}

/* Goes to the next transfer with this peer. */
static void next_transfer(direction *d) {
    do d->at++;
    while (d->at < d->count && d->list[d->at].peer != d->peer);
    d->done = 0;
    if (!is_over(d)) d->head = expected_head(d);
}

static void begin_direction(direction *d, int32_t peer, const hy_transfer *list, int32_t count) {
    *d = (direction){.list = list, .count = count, .peer = peer, .at = -1, .number = d->number};
    next_transfer(d);
}

/* The parts of the current transfer that are left: of its head, and at most `most` of its bytes.
 * Returns the number of parts. */
static size_t parts_left(direction *d, uint64_t most, struct iovec parts[2]) {
    const hy_transfer *transfer = &d->list[d->at];
    size_t count = 0;
    uint64_t data_done = d->done > sizeof d->head ? d->done - sizeof d->head : 0;
    if (d->done < sizeof d->head)
        parts[count++] = (struct iovec){(char *)&d->head + d->done, sizeof d->head - d->done};
    uint64_t left = transfer->bytes - data_done;
    if (left > most) left = most;
    if (left) parts[count++] = (struct iovec){(char *)transfer->data + data_done, left};
    return count;
}

/* ---- an artificial wire ---------------------------------------------------------------------- */

static bool is_limited(const socket_link *s) {
    return s->options.bytes_per_second > 0 || s->options.latency > 0;
}

/* The time at which the next bytes may be sent: two milliseconds' worth, or the rest. */
static double next_send_time(const socket_link *s) {
    double rate = s->options.bytes_per_second;
    if (rate <= 0) return s->began;
    double left = (double)(s->to_send - s->sent_now), some = rate * 2e-3;
    return s->began + ((double)s->sent_now + (left < some ? left : some)) / rate;
}

/* The bytes that may be sent now. */
static uint64_t allowed(const socket_link *s) {
    double now = hy_clock(), rate = s->options.bytes_per_second;
    if (now < next_send_time(s)) return 0;
    if (rate <= 0) return MOST_AT_ONCE;
    double bytes = ceil((now - s->began) * rate) - (double)s->sent_now;
    if (bytes < 1) return 0; /* a rounding error: a little later there are some */
    return bytes < (double)MOST_AT_ONCE ? (uint64_t)bytes : MOST_AT_ONCE;
}

/* An exchange that waited for the previous one begins when the wire became free, not when the
 * thread woke up. Time lost because the peer was late is not made up. */
static void begin_wire(socket_link *s) {
    double now = hy_clock();
    bool was_waiting = now - s->ended < 1e-4;
    s->began = (was_waiting && s->free_at < now ? s->free_at : now) + s->options.latency;
}

static void end_wire(socket_link *s) {
    double rate = s->options.bytes_per_second;
    s->ended = hy_clock();
    double sent_at = s->began + (rate > 0 ? (double)s->to_send / rate : 0);
    s->free_at = sent_at > s->ended - MOST_LATE ? sent_at : s->ended - MOST_LATE;
}

/* ---- an exchange ----------------------------------------------------------------------------- */

typedef enum moved { MOVED_NOTHING, MOVED_SOME, MOVED_CLOSED, MOVED_INVALID } moved;

/* Moves as many bytes in one direction as the socket takes now. Head and bytes are received in
 * one call: a wrong head ends the exchange anyway. */
static moved move_some(socket_link *s, int fd, direction *d, bool is_send) {
    struct iovec parts[2];
    uint64_t most = is_send && is_limited(s) ? allowed(s) : MOST_AT_ONCE;
    if (is_over(d) || most == 0) return MOVED_NOTHING;
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = parts_left(d, most, parts)};
    ssize_t n = is_send ? sendmsg(fd, &message, MSG_NOSIGNAL) : recvmsg(fd, &message, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return MOVED_NOTHING;
    if (n <= 0) return MOVED_CLOSED;
    d->done += (uint64_t)n;
    if (is_send) s->sent_now += (uint64_t)n;
    transfer_head expected = expected_head(d);
    bool has_head = d->done >= sizeof d->head;
    if (has_head && memcmp(&d->head, &expected, sizeof expected) != 0) return MOVED_INVALID;
    if (d->done == sizeof d->head + expected.bytes) {
        d->number++;
        next_transfer(d);
    }
    return MOVED_SOME;
}

static hy_status refuse_head(const socket_link *s, const direction *d) {
    bool is_transfer = d->head.magic == TRANSFER_MAGIC && d->head.number == d->number;
    HY_FAIL_IF(!is_transfer, HY_ERR_INTERNAL, "rank %d received invalid data from rank %d",
               s->base.rank, d->peer);
    return hy_fail(
        HY_ERR_INTERNAL,
        "rank %d sends %llu bytes, but rank %d expects %llu (transfer %llu between them)", d->peer,
        (unsigned long long)d->head.bytes, s->base.rank, (unsigned long long)d->list[d->at].bytes,
        (unsigned long long)d->number);
}

/* Moves the bytes that can be moved with one peer now. */
static hy_status serve(socket_link *s, connection *c, bool *has_moved) {
    moved received = move_some(s, c->fd, &c->in, false);
    if (received == MOVED_INVALID) return refuse_head(s, &c->in);
    moved sent = move_some(s, c->fd, &c->out, true);
    if (sent == MOVED_CLOSED || received == MOVED_CLOSED)
        return hy_link_lost(&s->base, c->in.peer, "closed its connection");
    *has_moved = *has_moved || sent == MOVED_SOME || received == MOVED_SOME;
    return HY_OK;
}

/* Sleeps until bytes can be moved, or until the control channel reports a failure. */
static hy_status sleep_until_ready(socket_link *s) {
    int32_t n = s->base.count;
    bool may_send = !is_limited(s) || allowed(s) > 0, has_to_send = false;
    for (int32_t r = 0; r < n; r++) {
        const connection *c = &s->connections[r];
        bool sends = !is_over(&c->out), receives = !is_over(&c->in);
        has_to_send = has_to_send || sends;
        s->polled[r] =
            (struct pollfd){.fd = sends || receives ? c->fd : -1,
                            .events = (receives ? POLLIN : 0) | (sends && may_send ? POLLOUT : 0)};
    }
    s->polled[n] = (struct pollfd){.fd = hy_control_failure_fd(s->base.control), .events = POLLIN};
    struct timespec nap = {.tv_sec = NAP_SECONDS};
    if (has_to_send && !may_send) {
        double seconds = next_send_time(s) - hy_clock();
        long nanoseconds = seconds <= 0 ? 0 : seconds < 1 ? (long)(seconds * 1e9) : 999999999;
        nap = (struct timespec){.tv_nsec = nanoseconds};
    }
    ppoll(s->polled, (nfds_t)n + 1, &nap, NULL);
    return s->polled[n].revents ? hy_control_check(s->base.control) : HY_OK;
}

static hy_status exchange(hy_link *link, const hy_transfer *sends, int32_t send_count,
                          const hy_transfer *receives, int32_t receive_count) {
    socket_link *s = (socket_link *)link;
    s->sent_now = s->to_send = 0;
    for (int32_t i = 0; i < send_count; i++) {
        if (sends[i].peer != link->rank) s->to_send += sends[i].bytes + sizeof(transfer_head);
    }
    if (is_limited(s)) begin_wire(s);
    for (int32_t r = 0; r < link->count; r++) {
        if (r == link->rank) continue;
        begin_direction(&s->connections[r].out, r, sends, send_count);
        begin_direction(&s->connections[r].in, r, receives, receive_count);
    }
    for (bool has_work = true; has_work;) {
        bool has_moved = false;
        has_work = false;
        for (int32_t r = 0; r < link->count; r++) {
            connection *c = &s->connections[r];
            if (is_over(&c->out) && is_over(&c->in)) continue;
            HY_TRY(serve(s, c, &has_moved));
            has_work = has_work || !is_over(&c->out) || !is_over(&c->in);
        }
        if (has_work && !has_moved) HY_TRY(sleep_until_ready(s));
    }
    if (is_limited(s)) end_wire(s);
    return HY_OK;
}

/* ---- opening --------------------------------------------------------------------------------- */

/* The address of a rank, which it sends over the control channel. */
typedef struct endpoint {
    uint8_t nonce[HY_SHA256_BYTES];
    uint16_t port;
    char address[62]; /* that it listens on; "": all */
    char name[64];    /* of its Unix socket, which every user can see */
} endpoint;

/* The first bytes on a new connection. The nonces of both ranks are new and came over the control
 * channel, so one message is enough, and proves nothing later. The rank that accepts proves itself
 * at the barrier: it is reached when it has the connections of all its peers. */
typedef struct proof {
    int32_t rank, reserved;
    uint8_t tag[HY_SHA256_BYTES];
} proof;

typedef struct opening {
    socket_link *link;
    endpoint *endpoints; /* (count) */
    int here, tcp;       /* listeners, or -1 */
    hy_pending pending;
    double deadline;
} opening;

static bool is_on_same_machine(const opening *o, int32_t peer) {
    const hy_control *c = o->link->base.control;
    uint64_t mine = hy_control_member(c, o->link->base.rank)->machine;
    return hy_control_member(c, peer)->machine == mine;
}

static hy_status listen_for_peers(opening *o, endpoint *mine) {
    hy_link *link = &o->link->base;
    bool needs_others = false, needs_here = false, is_taken;
    for (int32_t r = 0; r < link->count; r++) {
        needs_here = needs_here || (r != link->rank && is_on_same_machine(o, r));
        needs_others = needs_others || !is_on_same_machine(o, r);
    }
    bool uses_tcp = o->link->options.is_tcp, needs_tcp = uses_tcp || needs_others;
    bool needs_unix = needs_here && !uses_tcp;
    uint64_t number;
    HY_TRY(hy_random_bytes(mine->nonce, sizeof mine->nonce));
    HY_TRY(hy_random_bytes(&number, sizeof number));
    snprintf(mine->name, sizeof mine->name, "hybrid-train-link-%d-%016llx", (int)getpid(),
             (unsigned long long)number);
    hy_control_own_address(link->control, mine->address, sizeof mine->address);
    if (!needs_others && !mine->address[0])
        snprintf(mine->address, sizeof mine->address, "127.0.0.1");
    if (needs_unix) HY_TRY(hy_net_listen_here(mine->name, &o->here, &is_taken));
    if (needs_tcp) HY_TRY(hy_net_listen(mine->address, 0, &o->tcp, &is_taken));
    if (needs_tcp) mine->port = hy_net_port(o->tcp);
    return HY_OK;
}

/* The tag of a connection from a rank to another. */
static void sign(const opening *o, int32_t from, int32_t to, uint8_t out[HY_SHA256_BYTES]) {
    struct {
        char purpose[8];
        int32_t from, to;
        uint8_t nonces[2][HY_SHA256_BYTES];
    } said = {.purpose = "link", .from = from, .to = to};
    memcpy(said.nonces[0], o->endpoints[from].nonce, HY_SHA256_BYTES);
    memcpy(said.nonces[1], o->endpoints[to].nonce, HY_SHA256_BYTES);
    hy_control_sign(o->link->base.control, &said, sizeof said, out);
}

/* Unix sockets get larger buffers; TCP chooses better sizes by itself. */
static void enlarge_buffers(int fd) {
    int bytes = BUFFER_BYTES;
    if (!hy_net_is_unix(fd)) return;
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
}

static hy_status connect_to(opening *o, int32_t peer) {
    const hy_link *link = &o->link->base;
    const endpoint *to = &o->endpoints[peer];
    bool is_here = is_on_same_machine(o, peer), is_unix = is_here && !o->link->options.is_tcp;
    const char *here = to->address[0] ? to->address : "127.0.0.1";
    const char *address = is_here ? here : hy_control_member(link->control, peer)->address;
    proof p = {.rank = link->rank};
    int *fd = &o->link->connections[peer].fd;
    hy_status status = is_unix ? hy_net_connect_here(to->name, fd)
                               : hy_net_connect(address, to->port, o->deadline, fd);
    sign(o, link->rank, peer, p.tag);
    if (status == HY_OK && !hy_net_send(*fd, &p, sizeof p, o->deadline))
        status = hy_fail(HY_ERR_IO, "the connection broke");
    if (status != HY_OK)
        return hy_fail_context(status, "rank %d cannot reach rank %d", link->rank, peer);
    enlarge_buffers(*fd);
    return HY_OK;
}

/* Makes a newcomer the connection of a peer if its proof is right. */
static void take_peer(opening *o, hy_newcomer *one) {
    const hy_link *link = &o->link->base;
    uint8_t expected[HY_SHA256_BYTES];
    proof p;
    memcpy(&p, one->proof, sizeof p);
    bool is_peer = p.rank > link->rank && p.rank < link->count;
    if (is_peer) sign(o, p.rank, link->rank, expected);
    if (!is_peer || !hy_hmac_is_equal(p.tag, expected) || o->link->connections[p.rank].fd >= 0) {
        hy_pending_drop(&o->pending, one, "it could not prove that it is a rank of this job");
        return;
    }
    int fd = hy_pending_take(&o->pending, one);
    o->link->connections[p.rank].fd = fd;
    enlarge_buffers(fd);
}

static void accept_peers(opening *o, int listener) {
    for (int i = 0; i < ACCEPTED_MOST && hy_pending_accept(&o->pending, listener); i++) continue;
}

static int32_t missing_peer(const socket_link *s) {
    for (int32_t r = 0; r < s->base.count; r++) {
        if (r != s->base.rank && s->connections[r].fd < 0) return r;
    }
    return -1;
}

/* Connects to lower ranks and waits for higher ones. */
static hy_status connect_all(opening *o) {
    hy_link *link = &o->link->base;
    int32_t missing;
    for (int32_t r = 0; r < link->rank; r++) HY_TRY(connect_to(o, r));
    while ((missing = missing_peer(o->link)) >= 0) {
        HY_FAIL_IF(hy_clock() > o->deadline, HY_ERR_IO,
                   "rank %d did not connect to rank %d within %.0f s", missing, link->rank,
                   OPEN_SECONDS);
        struct pollfd polled[4] = {{.fd = o->here, .events = POLLIN},
                                   {.fd = o->tcp, .events = POLLIN},
                                   {.fd = hy_control_failure_fd(link->control), .events = POLLIN},
                                   {.fd = o->pending.fd, .events = POLLIN}};
        hy_newcomer *one;
        poll(polled, 4, 1000 * NAP_SECONDS);
        HY_TRY(hy_control_check(link->control));
        if (polled[0].revents) accept_peers(o, o->here);
        if (polled[1].revents) accept_peers(o, o->tcp);
        while ((one = hy_pending_next(&o->pending))) take_peer(o, one);
    }
    return HY_OK;
}

static hy_status open_mesh(socket_link *s) {
    endpoint mine = {0};
    opening o = {.link = s,
                 .endpoints = calloc((size_t)s->base.count, sizeof *o.endpoints),
                 .here = -1,
                 .tcp = -1,
                 .deadline = hy_clock() + OPEN_SECONDS};
    HY_FAIL_IF(!o.endpoints, HY_ERR_MEMORY, "not enough memory to open a link of %d ranks",
               s->base.count);
    hy_status status =
        hy_pending_init(&o.pending, sizeof(proof), hy_control_observer(s->base.control));
    if (status == HY_OK) status = listen_for_peers(&o, &mine);
    if (status == HY_OK)
        status = hy_control_gather_bytes(s->base.control, &mine, sizeof mine, o.endpoints);
    if (status == HY_OK) status = connect_all(&o);
    if (status == HY_OK) status = hy_control_barrier(s->base.control);
    hy_net_close(&o.here);
    hy_net_close(&o.tcp);
    hy_pending_fini(&o.pending);
    free(o.endpoints);
    return status;
}

static void destroy(hy_link *link) {
    socket_link *s = (socket_link *)link;
    for (int32_t r = 0; s->connections && r < link->count; r++) hy_net_close(&s->connections[r].fd);
    free(s->connections);
    free(s->polled);
    free(s);
}

static const hy_link_kind sockets = {.name = "sockets", .exchange = exchange, .destroy = destroy};

hy_status hy_link_open_sockets(hy_control *control, const hy_link_options *options, hy_link **out) {
    size_t count = (size_t)hy_control_count(control);
    *out = NULL;
    socket_link *s = calloc(1, sizeof *s);
    HY_FAIL_IF(!s, HY_ERR_MEMORY, "not enough memory for a link");
    s->connections = calloc(count, sizeof *s->connections);
    s->polled = calloc(count + 1, sizeof *s->polled);
    for (size_t r = 0; s->connections && r < count; r++) s->connections[r].fd = -1;
    hy_status status = HY_OK;
    hy_link_init(&s->base, &sockets, control);
    if (options) s->options = *options;
    if (!s->connections || !s->polled)
        status = hy_fail(HY_ERR_MEMORY, "not enough memory for a link of %zu ranks", count);
    if (status == HY_OK && count > 1) status = open_mesh(s);
    if (status != HY_OK)
        destroy(&s->base);
    else
        *out = &s->base;
    return status;
}
