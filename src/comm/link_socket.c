/* link_socket.c: a link of sockets, one between every two ranks. See link.h.
 *
 * A transfer is a head (its number between the two ranks, its size) and its bytes. All sockets
 * are non-blocking: a rank moves what it can, in both directions and with any peer, and
 * otherwise sleeps in poll(), which also reports failures. */
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "comm/link_kind.h"
#include "comm/net.h"

#define TRANSFER_MAGIC 0x31504b48u
#define BUFFER_BYTES (4 << 20) /* asked for; the system may give less */
#define OPEN_SECONDS 60.0
#define NAP_SECONDS 1
#define MOST_LATE 5e-4                   /* seconds: of a sleeper */
#define MOST_AT_ONCE ((uint64_t)1 << 30) /* of one call to the system */

typedef struct transfer_head {
    uint32_t magic, reserved;
    uint64_t number, bytes;
} transfer_head;

/* One direction between this rank and a peer, and its progress. */
typedef struct way {
    int32_t at;         /* in the list; -1: none yet */
    bool is_over;       /* of this exchange */
    transfer_head head; /* sent, or being received */
    uint64_t number;    /* of transfers over, ever */
    uint64_t done;      /* bytes of the current transfer, head first */
} way;

typedef struct lane {
    int fd;
    way out, in;
} lane;

typedef struct socket_link {
    hy_link base; /* first: kinds share it */
    hy_link_options options;
    lane *lanes;                /* (count) */
    struct pollfd *polled;      /* (count + 1) */
    double began;               /* of the exchange, with its latency */
    double free_at, ended;      /* for an artificial rate: the wire, and the last exchange */
    uint64_t sent_now, to_send; /* of the exchange, heads too */
} socket_link;

/* ---- transfers ------------------------------------------------------------------------------- */

/* Goes to the next transfer for this peer. */
static void next_transfer(way *w, int32_t peer, const hy_transfer *list, int32_t count) {
    do w->at++;
    while (w->at < count && list[w->at].peer != peer);
    w->is_over = w->at >= count;
    w->done = 0;
    if (!w->is_over)
        w->head = (transfer_head){
            .magic = TRANSFER_MAGIC, .number = w->number, .bytes = list[w->at].bytes};
}

/* The rest of head and bytes; returns the number of parts. */
static int parts_left(way *w, const hy_transfer *transfer, uint64_t most, struct iovec parts[2]) {
    int count = 0;
    uint64_t data_done = w->done > sizeof w->head ? w->done - sizeof w->head : 0;
    if (w->done < sizeof w->head)
        parts[count++] = (struct iovec){(char *)&w->head + w->done, sizeof w->head - w->done};
    uint64_t left = transfer->bytes - data_done;
    if (left > most) left = most;
    if (left) parts[count++] = (struct iovec){(char *)transfer->data + data_done, left};
    return count;
}

/* ---- an artificial wire ---------------------------------------------------------------------- */

/* When the next bytes may be sent: two milliseconds' worth, or the rest. The delay uses no
 * processor time. */
static double next_leave(const socket_link *s) {
    double rate = s->options.bytes_per_second;
    if (rate <= 0) return s->began;
    double left = (double)(s->to_send - s->sent_now), some = rate * 2e-3;
    return s->began + ((double)s->sent_now + (left < some ? left : some)) / rate;
}

/* Bytes that may leave now. */
static uint64_t allowed(const socket_link *s) {
    double now = hy_clock(), rate = s->options.bytes_per_second;
    if (now < next_leave(s)) return 0;
    if (rate <= 0) return MOST_AT_ONCE;
    double bytes = ceil((now - s->began) * rate) - (double)s->sent_now;
    if (bytes < 1) return 0; /* rounding; the clock goes on */
    return bytes < (double)MOST_AT_ONCE ? (uint64_t)bytes : MOST_AT_ONCE;
}

/* An exchange that waited for the one before begins when the wire became free, not when the
 * thread woke up. Lateness caused by the other side is not made up. */
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

/* A sleep until bytes may leave. */
static struct timespec until_leave(const socket_link *s) {
    double seconds = next_leave(s) - hy_clock();
    long nanoseconds = seconds <= 0 ? 0 : seconds < 1 ? (long)(seconds * 1e9) : 999999999;
    return (struct timespec){.tv_nsec = nanoseconds};
}

static bool is_limited(const socket_link *s) {
    return s->options.bytes_per_second > 0 || s->options.latency > 0;
}

typedef enum moved { MOVED_NOTHING, MOVED_SOME, MOVED_NEVER } moved;

static moved outcome(ssize_t n) {
    if (n > 0) return MOVED_SOME;
    return n < 0 && (errno == EAGAIN || errno == EINTR) ? MOVED_NOTHING : MOVED_NEVER;
}

static moved send_some(socket_link *s, int32_t peer, const hy_transfer *list, int32_t count) {
    lane *l = &s->lanes[peer];
    struct iovec parts[2];
    uint64_t most = is_limited(s) ? allowed(s) : MOST_AT_ONCE;
    if (most == 0) return MOVED_NOTHING;
    struct msghdr message = {
        .msg_iov = parts, .msg_iovlen = (size_t)parts_left(&l->out, &list[l->out.at], most, parts)};
    ssize_t n = sendmsg(l->fd, &message, MSG_NOSIGNAL);
    moved result = outcome(n);
    if (result != MOVED_SOME) return result;
    l->out.done += (uint64_t)n;
    s->sent_now += (uint64_t)n;
    if (l->out.done == sizeof l->out.head + list[l->out.at].bytes) {
        l->out.number++;
        next_transfer(&l->out, peer, list, count);
    }
    return MOVED_SOME;
}

/* Head and bytes are read in one call: a wrong head ends the exchange anyway. */
static moved receive_some(socket_link *s, int32_t peer, const hy_transfer *list, int32_t count,
                          bool *is_wrong) {
    way *w = &s->lanes[peer].in;
    struct iovec parts[2];
    transfer_head expected = {
        .magic = TRANSFER_MAGIC, .number = w->number, .bytes = list[w->at].bytes};
    struct msghdr message = {
        .msg_iov = parts, .msg_iovlen = (size_t)parts_left(w, &list[w->at], MOST_AT_ONCE, parts)};
    ssize_t n = recvmsg(s->lanes[peer].fd, &message, 0);
    moved result = outcome(n);
    if (result != MOVED_SOME) return result;
    w->done += (uint64_t)n;
    if (w->done >= sizeof w->head) *is_wrong = memcmp(&w->head, &expected, sizeof expected) != 0;
    if (!*is_wrong && w->done == sizeof w->head + list[w->at].bytes) {
        w->number++;
        next_transfer(w, peer, list, count);
    }
    return MOVED_SOME;
}

/* ---- an exchange ----------------------------------------------------------------------------- */

typedef struct group {
    const hy_transfer *sends, *receives;
    int32_t send_count, receive_count;
} group;

static hy_status wrong_head(const socket_link *s, int32_t peer, const hy_transfer *expected) {
    const way *w = &s->lanes[peer].in;
    bool is_transfer = w->head.magic == TRANSFER_MAGIC && w->head.number == w->number;
    HY_FAIL_IF(!is_transfer, HY_ERR_INTERNAL, "rank %d received invalid data from rank %d",
               s->base.rank, peer);
    return hy_fail(
        HY_ERR_INTERNAL,
        "rank %d sends %llu bytes, but rank %d expects %llu (transfer %llu between them)", peer,
        (unsigned long long)w->head.bytes, s->base.rank, (unsigned long long)expected->bytes,
        (unsigned long long)w->number);
}

/* Moves what can be moved with one peer. */
static hy_status serve(socket_link *s, int32_t peer, const group *g, bool *has_moved) {
    lane *l = &s->lanes[peer];
    bool is_wrong = false;
    moved sent = MOVED_NOTHING, received = MOVED_NOTHING;
    const hy_transfer *expected = l->in.is_over ? NULL : &g->receives[l->in.at];
    if (!l->in.is_over) received = receive_some(s, peer, g->receives, g->receive_count, &is_wrong);
    if (is_wrong) return wrong_head(s, peer, expected);
    if (!l->out.is_over) sent = send_some(s, peer, g->sends, g->send_count);
    if (sent == MOVED_NEVER || received == MOVED_NEVER)
        return hy_link_lost(&s->base, peer, "closed its connection");
    *has_moved = *has_moved || sent == MOVED_SOME || received == MOVED_SOME;
    return HY_OK;
}

/* Until something can be moved; or a failure. */
static hy_status sleep_until_ready(socket_link *s) {
    int32_t n = s->base.count;
    bool may_send = !is_limited(s) || allowed(s) > 0, has_to_send = false;
    for (int32_t r = 0; r < n; r++) {
        const lane *l = &s->lanes[r];
        bool sends = l->fd >= 0 && !l->out.is_over, receives = l->fd >= 0 && !l->in.is_over;
        has_to_send = has_to_send || sends;
        s->polled[r] =
            (struct pollfd){.fd = sends || receives ? l->fd : -1,
                            .events = (receives ? POLLIN : 0) | (sends && may_send ? POLLOUT : 0)};
    }
    s->polled[n] = (struct pollfd){.fd = hy_control_failure_fd(s->base.control), .events = POLLIN};
    struct timespec nap = {.tv_sec = NAP_SECONDS};
    if (has_to_send && !may_send) nap = until_leave(s);
    ppoll(s->polled, (nfds_t)n + 1, &nap, NULL);
    return s->polled[n].revents ? hy_control_check(s->base.control) : HY_OK;
}

static bool begin(socket_link *s, const group *g) {
    bool has_work = false;
    s->sent_now = s->to_send = 0;
    for (int32_t i = 0; i < g->send_count; i++) {
        if (g->sends[i].peer != s->base.rank)
            s->to_send += g->sends[i].bytes + sizeof(transfer_head);
    }
    if (is_limited(s)) begin_wire(s);
    for (int32_t r = 0; r < s->base.count; r++) {
        lane *l = &s->lanes[r];
        l->out.at = l->in.at = -1;
        l->out.is_over = l->in.is_over = true;
        if (l->fd < 0) continue;
        next_transfer(&l->out, r, g->sends, g->send_count);
        next_transfer(&l->in, r, g->receives, g->receive_count);
        has_work = has_work || !l->out.is_over || !l->in.is_over;
    }
    return has_work;
}

static hy_status exchange(hy_link *link, const hy_transfer *sends, int32_t send_count,
                          const hy_transfer *receives, int32_t receive_count) {
    socket_link *s = (socket_link *)link;
    group g = {sends, receives, send_count, receive_count};
    bool has_work = begin(s, &g);
    while (has_work) {
        bool has_moved = false;
        has_work = false;
        for (int32_t r = 0; r < link->count; r++) {
            lane *l = &s->lanes[r];
            if (l->out.is_over && l->in.is_over) continue;
            HY_TRY(serve(s, r, &g, &has_moved));
            has_work = has_work || !l->out.is_over || !l->in.is_over;
        }
        if (has_work && !has_moved) HY_TRY(sleep_until_ready(s));
    }
    if (is_limited(s)) end_wire(s);
    return HY_OK;
}

/* ---- opening --------------------------------------------------------------------------------- */

/* How to reach a rank. The secret keeps foreign processes out: it is sent over the control
 * channel. */
typedef struct door {
    uint64_t secret;
    uint16_t port;
    char name[54];
} door;

typedef struct knock {
    uint64_t secret; /* the other's */
    int32_t rank, reserved;
} knock;

typedef struct opening {
    socket_link *link;
    door *doors;   /* (count) */
    int here, tcp; /* listeners, or -1 */
    double deadline;
} opening;

static bool is_near(const opening *o, int32_t peer) {
    const hy_control *c = o->link->base.control;
    uint64_t mine = hy_control_member(c, o->link->base.rank)->machine;
    return hy_control_member(c, peer)->machine == mine;
}

static hy_status listen_for_all(opening *o, door *mine) {
    hy_link *link = &o->link->base;
    bool has_near = false, has_far = o->link->options.is_tcp, is_taken;
    for (int32_t r = 0; r < link->count; r++) {
        if (r == link->rank) continue;
        has_near = has_near || is_near(o, r);
        has_far = has_far || !is_near(o, r);
    }
    HY_FAIL_IF(getrandom(&mine->secret, sizeof mine->secret, 0) != sizeof mine->secret, HY_ERR_IO,
               "cannot read random bytes from the system");
    snprintf(mine->name, sizeof mine->name, "hybrid-train-%d-%016llx", (int)getpid(),
             (unsigned long long)mine->secret);
    if (has_near && !o->link->options.is_tcp) HY_TRY(hy_net_listen_here(mine->name, &o->here));
    if (has_far) HY_TRY(hy_net_listen("", 0, &o->tcp, &is_taken));
    if (has_far) mine->port = hy_net_port(o->tcp);
    return HY_OK;
}

static void make_room(int fd, bool is_unix) {
    int bytes = BUFFER_BYTES;
    if (!is_unix) return; /* TCP chooses its own size, unless one is set */
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
}

static hy_status connect_to(opening *o, int32_t peer) {
    const hy_link *link = &o->link->base;
    const door *d = &o->doors[peer];
    bool near = is_near(o, peer), is_unix = near && !o->link->options.is_tcp;
    const char *address = near ? "127.0.0.1" : hy_control_member(link->control, peer)->address;
    knock k = {.secret = d->secret, .rank = link->rank};
    int *fd = &o->link->lanes[peer].fd;
    hy_status status = is_unix ? hy_net_connect_here(d->name, fd)
                               : hy_net_connect(address, d->port, o->deadline, fd);
    if (status == HY_OK && !hy_net_send(*fd, &k, sizeof k, o->deadline))
        status = hy_fail(HY_ERR_IO, "the connection broke");
    if (status != HY_OK)
        return hy_fail_context(status, "rank %d cannot reach rank %d", link->rank, peer);
    make_room(*fd, is_unix);
    return HY_OK;
}

/* Accepts a connection that knows the secret. */
static void let_in(opening *o, int listener) {
    const hy_link *link = &o->link->base;
    knock k;
    int fd = hy_net_accept(listener);
    if (fd < 0) return;
    bool is_peer = hy_net_receive(fd, &k, sizeof k, hy_clock() + 1) &&
                   k.secret == o->doors[link->rank].secret && k.rank > link->rank &&
                   k.rank < link->count && o->link->lanes[k.rank].fd < 0;
    if (is_peer)
        o->link->lanes[k.rank].fd = fd;
    else
        close(fd);
    if (is_peer) make_room(fd, listener == o->here);
}

static int32_t missing_peer(const socket_link *s) {
    for (int32_t r = 0; r < s->base.count; r++) {
        if (r != s->base.rank && s->lanes[r].fd < 0) return r;
    }
    return -1;
}

static hy_status connect_all(opening *o) {
    hy_link *link = &o->link->base;
    for (int32_t r = 0; r < link->rank; r++) HY_TRY(connect_to(o, r));
    while (missing_peer(o->link) >= 0) {
        struct pollfd polled[3] = {{.fd = o->here, .events = POLLIN},
                                   {.fd = o->tcp, .events = POLLIN},
                                   {.fd = hy_control_failure_fd(link->control), .events = POLLIN}};
        poll(polled, 3, 1000 * NAP_SECONDS);
        HY_TRY(hy_control_check(link->control));
        if (polled[0].revents) let_in(o, o->here);
        if (polled[1].revents) let_in(o, o->tcp);
        int32_t missing = missing_peer(o->link);
        HY_FAIL_IF(missing >= 0 && hy_clock() > o->deadline, HY_ERR_IO,
                   "rank %d did not connect to rank %d within %.0f s", missing, link->rank,
                   OPEN_SECONDS);
    }
    return HY_OK;
}

static hy_status open_mesh(socket_link *s) {
    door mine = {0};
    opening o = {.link = s,
                 .doors = calloc((size_t)s->base.count, sizeof *o.doors),
                 .here = -1,
                 .tcp = -1,
                 .deadline = hy_clock() + OPEN_SECONDS};
    HY_FAIL_IF(!o.doors, HY_ERR_MEMORY, "no memory to open a link of %d ranks", s->base.count);
    hy_status status = listen_for_all(&o, &mine);
    if (status == HY_OK)
        status = hy_control_gather_bytes(s->base.control, &mine, sizeof mine, o.doors);
    if (status == HY_OK) status = connect_all(&o);
    if (status == HY_OK) status = hy_control_barrier(s->base.control);
    hy_net_close(&o.here);
    hy_net_close(&o.tcp);
    free(o.doors);
    return status;
}

static void destroy(hy_link *link) {
    socket_link *s = (socket_link *)link;
    for (int32_t r = 0; s->lanes && r < link->count; r++) hy_net_close(&s->lanes[r].fd);
    free(s->lanes);
    free(s->polled);
    free(s);
}

static const hy_link_kind sockets = {.name = "sockets", .exchange = exchange, .destroy = destroy};

hy_status hy_link_open_sockets(hy_control *control, const hy_link_options *options, hy_link **out) {
    size_t count = (size_t)hy_control_count(control);
    *out = NULL;
    socket_link *s = calloc(1, sizeof *s);
    HY_FAIL_IF(!s, HY_ERR_MEMORY, "no memory for a link");
    s->lanes = calloc(count, sizeof *s->lanes);
    s->polled = calloc(count + 1, sizeof *s->polled);
    for (size_t r = 0; s->lanes && r < count; r++) s->lanes[r].fd = -1;
    hy_status status = HY_OK;
    hy_link_init(&s->base, &sockets, control);
    if (options) s->options = *options;
    if (!s->lanes || !s->polled)
        status = hy_fail(HY_ERR_MEMORY, "no memory for a link of %zu ranks", count);
    if (status == HY_OK && count > 1) status = open_mesh(s);
    if (status != HY_OK)
        destroy(&s->base);
    else
        *out = &s->base;
    return status;
}
