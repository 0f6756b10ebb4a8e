/* control_open.c: connects the ranks. See control.h.
 *
 * Rank 0 listens on the first free port of a fixed range; the others try the same range. Both sides
 * prove that they know the job's secret before anything else they say counts:
 *
 *   rank 0   greeting: a nonce and its keyed hash, by which ranks recognise the job's port.
 *            Strangers learn nothing from it, and a rank sends nothing to a foreign port.
 *   a rank   answer: its own nonce, who it is, and the keyed hash of both nonces and that.
 *   rank 0   welcome: another keyed hash of the same; then either the list of all ranks, when all
 *            have connected, or an error.
 *
 * Without a secret, ranks of one machine meet at a Unix socket instead of a port, where the system
 * says which user is at the other end; the key is then the job's number, which is no secret. */
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
#include "comm/pending.h"
#include "hybrid.h"

#define GREETING_SECONDS 1.0 /* after this a silent port is assumed to be another program's */
#define WELCOME_SECONDS 10.0 /* longer: the port has sent the job's greeting */
#define CONNECT_SECONDS 2.0
#define AGAIN_SECONDS 0.1 /* between two attempts */
#define ACCEPTED_MOST 64  /* connections at once, before rank 0 reads from those it has */
#define NAMED_MISSING 4
#define REFUSING_SECONDS 3.0 /* after a failed start, rank 0 waits this long to inform late ranks */

typedef struct hello {
    uint32_t protocol;
    int32_t rank, count, pid;
    uint64_t agreed, machine;
    char version[32], host[64];
} hello;

typedef uint8_t hash[HY_SHA256_BYTES];

typedef struct greeting {
    hy_wire_head head;
    uint64_t protocol;
    hash nonce, tag;
} greeting;

typedef struct answer {
    hy_wire_head head;
    hash nonce;
    hello hello;
    hash tag;
} answer;
_Static_assert(sizeof(answer) <= HY_PROOF_MOST, "pending.h keeps a whole answer");

typedef struct welcome {
    hy_wire_head head;
    hash tag;
} welcome;

/* The keyed hash in a message. `second` and `h` are NULL in a greeting. */
static void sign(const hy_control *c, hy_wire_kind kind, const hash first, const uint8_t *second,
                 const hello *h, hash out) {
    struct {
        uint64_t kind;
        hash nonces[2];
        hello hello;
    } said = {.kind = kind};
    memcpy(said.nonces[0], first, sizeof(hash));
    if (second) memcpy(said.nonces[1], second, sizeof(hash));
    if (h) said.hello = *h;
    hy_control_sign(c, &said, sizeof said, out);
}

static hy_wire_head head_of(hy_wire_kind kind, size_t whole) {
    return (hy_wire_head){.magic = HY_WIRE_MAGIC,
                          .kind = (uint16_t)kind,
                          .size = (uint32_t)(whole - sizeof(hy_wire_head))};
}

static bool is_head_of(const hy_wire_head *head, hy_wire_kind kind, size_t whole) {
    hy_wire_head expected = head_of(kind, whole);
    return memcmp(head, &expected, sizeof expected) == 0;
}

/* Where ranks of one machine meet without a secret, in place of the i-th port. */
static void name_place(const hy_ranks *ranks, int i, char *out, size_t size) {
    snprintf(out, size, "hybrid-train-%d-%016llx-%d", (int)geteuid(),
             (unsigned long long)ranks->job, ranks->port + i);
}

static bool meets_at_port(const hy_control *c) { return c->ranks.secret.from[0] != 0; }

/* For messages: the places i to last where rank 0 may listen. */
typedef struct place_text {
    char text[HY_ADDRESS_MAX + 48];
} place_text;

static place_text places_text(const hy_control *c, int i, int last) {
    const hy_ranks *ranks = &c->ranks;
    place_text place;
    char name[96], to[32] = "";
    int port = ranks->port + i;
    name_place(ranks, i, name, sizeof name);
    if (last > i) snprintf(to, sizeof to, " to %d", ranks->port + last);
    if (meets_at_port(c))
        snprintf(place.text, sizeof place.text, "%s, port %d%s", ranks->address, port, to);
    else
        snprintf(place.text, sizeof place.text, "Unix socket %s%s", name, to);
    return place;
}

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
    hy_pending pending;
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

/* The numeric address that rank 0 listens on; "": all interfaces, where the host name does not say
 * which one the other machines reach. */
static hy_status choose_interface(const hy_control *c, char *out, size_t size) {
    const hy_ranks *ranks = &c->ranks;
    HY_TRY(hy_net_find_own(ranks->address, out, size));
    bool is_local = hy_net_is_loopback(ranks->address) || ranks->local_count == ranks->count;
    bool is_useless = hy_net_is_loopback(out) && !is_local;
    if (out[0] && !is_useless) return HY_OK;
    hy_say_to(&c->options.observer, HY_WARNING,
              "rank 0 listens on all interfaces, because %s is %s%s: to listen on one address "
              "only, set HYBRID_ADDRESS to an address of this machine",
              ranks->address, is_useless ? "here only " : "not an address of this machine", out);
    out[0] = 0;
    return HY_OK;
}

static hy_status listen_somewhere(const hy_control *c, int *fd) {
    const hy_ranks *ranks = &c->ranks;
    bool is_taken = true;
    char name[96] = "";
    hy_status status = HY_ERR_IO;
    if (meets_at_port(c)) HY_TRY(choose_interface(c, name, sizeof name));
    for (int i = 0; i < HY_PORTS && is_taken && ranks->port + i <= 65535; i++) {
        if (!meets_at_port(c)) name_place(ranks, i, name, sizeof name);
        status = meets_at_port(c) ? hy_net_listen(name, (uint16_t)(ranks->port + i), fd, &is_taken)
                                  : hy_net_listen_here(name, fd, &is_taken);
        if (status == HY_OK) return HY_OK;
    }
    return hy_fail_context(status, "rank 0 cannot listen at %s",
                           places_text(c, 0, HY_PORTS - 1).text);
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
               "a process (%s, pid %d) says that it is rank %d of %d, but rank 0 expects ranks 1 "
               "to %d of %d",
               h->host, h->pid, h->rank, h->count, c->ranks.count - 1, c->ranks.count);
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

/* A rank has proven itself: it becomes a line, or gets the error if it does not fit or if the start
 * has failed. */
static hy_status let_in(reception *r, line *l, const hello *h) {
    hy_control *c = r->c;
    hy_status status = r->refusal != HY_OK ? r->refusal : check_hello(c, h);
    if (status != HY_OK) {
        r->refused += refuse(c, l, status);
        return r->refusal != HY_OK ? HY_OK : status;
    }
    enter(c, h);
    hy_net_peer(l->fd, c->members[h->rank].address, sizeof c->members[h->rank].address);
    if (hy_net_is_loopback(c->members[h->rank].address)) c->members[h->rank].address[0] = 0;
    l->state = LINE_OPEN;
    c->lines[h->rank] = *l;
    return HY_OK;
}

/* Checks a newcomer's answer. A stranger is dropped. */
static hy_status identify(reception *r, hy_newcomer *one) {
    hy_control *c = r->c;
    answer a;
    hash expected;
    welcome w = {.head = head_of(HY_WIRE_WELCOME, sizeof w)};
    memcpy(&a, one->proof, sizeof a);
    sign(c, HY_WIRE_HELLO, one->nonce, a.nonce, &a.hello, expected);
    if (!is_head_of(&a.head, HY_WIRE_HELLO, sizeof a) || !hy_hmac_is_equal(a.tag, expected)) {
        hy_pending_drop(&r->pending, one, "it could not prove that it is a rank of this job");
        return HY_OK;
    }
    sign(c, HY_WIRE_WELCOME, one->nonce, a.nonce, &a.hello, w.tag);
    line l = {.fd = hy_pending_take(&r->pending, one), .heard = hy_clock()};
    if (hy_wire_add(&l.out, &w.head, w.tag)) hy_line_flush(&l);
    a.hello.version[sizeof a.hello.version - 1] = a.hello.host[sizeof a.hello.host - 1] = 0;
    return let_in(r, &l, &a.hello);
}

static hy_status accept_connections(reception *r) {
    greeting g = {.head = head_of(HY_WIRE_GREETING, sizeof g), .protocol = HY_WIRE_PROTOCOL};
    for (int i = 0; i < ACCEPTED_MOST; i++) {
        hy_newcomer *one = hy_pending_accept(&r->pending, r->listener);
        if (!one) break;
        HY_TRY(hy_random_bytes(g.nonce, sizeof g.nonce));
        memcpy(one->nonce, g.nonce, sizeof g.nonce);
        sign(r->c, HY_WIRE_GREETING, g.nonce, NULL, NULL, g.tag);
        (void)hy_net_send(one->fd, &g, sizeof g, 0); /* it fails if the newcomer is gone */
    }
    return HY_OK;
}

/* Polls all connections once. */
static hy_status poll_once(reception *r) {
    hy_control *c = r->c;
    int32_t n = c->ranks.count;
    hy_newcomer *one;
    for (int32_t i = 0; i <= n; i++) {
        int fd = i == 0 ? r->listener : i < n ? c->lines[i].fd : r->pending.fd;
        r->polled[i] = (struct pollfd){.fd = fd, .events = POLLIN};
    }
    poll(r->polled, (nfds_t)n + 1, (int)(1e3 * AGAIN_SECONDS));
    if (r->polled[0].revents) HY_TRY(accept_connections(r));
    for (int32_t i = 1; i < n; i++) {
        HY_FAIL_IF(r->polled[i].revents && !hy_line_read(&c->lines[i]), HY_ERR_IO,
                   "%s ended before all ranks were connected", hy_control_name(c, i).text);
    }
    while ((one = hy_pending_next(&r->pending))) HY_TRY(identify(r, one));
    return HY_OK;
}

static hy_status wait_for_all(reception *r, patience *wait) {
    const hy_control *c = r->c;
    char who[128], why[128] = "";
    for (;;) {
        HY_TRY(poll_once(r));
        if (missing_count(c) == 0) return HY_OK;
        double waited = is_due(wait);
        name_missing(c, who, sizeof who);
        if (r->pending.silent > 0 && meets_at_port(c))
            snprintf(why, sizeof why,
                     "; %lld connections ended at the greeting: do all ranks have "
                     "the secret of rank 0?",
                     (long long)r->pending.silent);
        if (waited > 0)
            hy_say_to(&c->options.observer, HY_NOTE, "rank 0 has waited %.0f s for %s%s", waited,
                      who, why);
        HY_FAIL_IF(hy_clock() > wait->deadline, HY_ERR_IO, "%s did not connect within %.0f s%s",
                   who, c->options.open_timeout, why);
    }
}

/* Sends the error of a failed start to the connected ranks, and for some seconds to ranks that
 * connect late: otherwise these would look for rank 0 until their timeout. */
static void refuse_all(reception *r, hy_status status, double deadline) {
    hy_control *c = r->c;
    double until = hy_clock() + REFUSING_SECONDS;
    r->refusal = status;
    for (int32_t i = 1; i < c->ranks.count; i++) refuse(c, &c->lines[i], status);
    if (hy_clock() >= deadline) return;
    while (r->refused < missing_count(c) && hy_clock() < until) (void)poll_once(r);
}

static hy_status receive_ranks(hy_control *c) {
    reception r = {.c = c, .listener = -1};
    patience wait = begin_to_wait(c);
    r.polled = calloc((size_t)c->ranks.count + 1, sizeof *r.polled);
    HY_FAIL_IF(!r.polled, HY_ERR_MEMORY, "not enough memory to wait for %d ranks", c->ranks.count);
    hy_status status = hy_pending_init(&r.pending, sizeof(answer), &c->options.observer);
    if (status == HY_OK) status = listen_somewhere(c, &r.listener);
    if (status == HY_OK) {
        status = wait_for_all(&r, &wait);
        if (status != HY_OK) refuse_all(&r, status, wait.deadline);
    }
    hy_wire_head roster = {.kind = HY_WIRE_ROSTER,
                           .size = (uint32_t)(sizeof *c->members * (size_t)c->ranks.count)};
    for (int32_t i = 1; i < c->ranks.count && status == HY_OK; i++)
        hy_line_send(c, i, &roster, c->members);
    hy_pending_fini(&r.pending);
    hy_net_close(&r.listener);
    free(r.polled);
    return status;
}

/* ---- the others ------------------------------------------------------------------------------ */

/* Greeting, answer and welcome on a new connection. false: this is not rank 0 of this job;
 * *is_other: it is rank 0 of another job, or has another secret. */
static bool prove(const hy_control *c, int fd, bool *is_other) {
    greeting g;
    answer a = {.head = head_of(HY_WIRE_HELLO, sizeof a), .hello = own_hello(c)};
    welcome w;
    hash expected;
    bool is_greeted = hy_net_receive(fd, &g, sizeof g, hy_clock() + GREETING_SECONDS) &&
                      is_head_of(&g.head, HY_WIRE_GREETING, sizeof g);
    if (!is_greeted) return false;
    sign(c, HY_WIRE_GREETING, g.nonce, NULL, NULL, expected);
    *is_other = !hy_hmac_is_equal(g.tag, expected);
    if (*is_other || hy_random_bytes(a.nonce, sizeof a.nonce) != HY_OK) return false;
    sign(c, HY_WIRE_HELLO, g.nonce, a.nonce, &a.hello, a.tag);
    sign(c, HY_WIRE_WELCOME, g.nonce, a.nonce, &a.hello, expected);
    double deadline = hy_clock() + WELCOME_SECONDS;
    return hy_net_send(fd, &a, sizeof a, deadline) && hy_net_receive(fd, &w, sizeof w, deadline) &&
           is_head_of(&w.head, HY_WIRE_WELCOME, sizeof w) && hy_hmac_is_equal(w.tag, expected);
}

/* Connects to the i-th port. HY_ERR_IO: rank 0 of this job does not listen there, or not yet. */
static hy_status try_port(hy_control *c, int i, double deadline, bool *is_other) {
    const hy_ranks *ranks = &c->ranks;
    line *l = &c->lines[0];
    char name[96];
    double until = hy_clock() + CONNECT_SECONDS;
    name_place(ranks, i, name, sizeof name);
    *is_other = false;
    HY_TRY(meets_at_port(c) ? hy_net_connect(ranks->address, (uint16_t)(ranks->port + i),
                                             until < deadline ? until : deadline, &l->fd)
                            : hy_net_connect_here(name, &l->fd));
    bool is_rank0 = prove(c, l->fd, is_other);
    if (!is_rank0) hy_net_close(&l->fd);
    HY_FAIL_IF(!is_rank0, HY_ERR_IO, "%s does not belong to rank 0 of this job",
               places_text(c, i, i).text);
    return HY_OK;
}

static hy_status find_rank0(hy_control *c) {
    patience wait = begin_to_wait(c);
    const hy_ranks *ranks = &c->ranks;
    const place_text where = places_text(c, 0, HY_PORTS - 1);
    for (int other = -1;;) {
        bool is_late = false, is_other;
        for (int i = 0; i < HY_PORTS && ranks->port + i <= 65535 && !is_late; i++) {
            if (try_port(c, i, wait.deadline, &is_other) == HY_OK) return HY_OK;
            if (is_other) other = i;
            is_late = hy_clock() > wait.deadline;
        }
        HY_FAIL_IF(is_late && other >= 0, HY_ERR_IO,
                   "rank %d found no rank 0 at %s in %.0f s: %s answers, but for another job%s%s",
                   ranks->rank, where.text, c->options.open_timeout,
                   places_text(c, other, other).text,
                   meets_at_port(c) ? " or with another secret than the one from " : "",
                   ranks->secret.from);
        if (is_late)
            return hy_fail_context(HY_ERR_IO, "rank %d found no rank 0 at %s in %.0f s",
                                   ranks->rank, where.text, c->options.open_timeout);
        double waited = is_due(&wait);
        if (waited > 0)
            hy_say_to(&c->options.observer, HY_NOTE, "rank %d has waited %.0f s for rank 0 at %s",
                      ranks->rank, waited, where.text);
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
    hy_wire_message m;
    HY_TRY(find_rank0(c));
    l->state = LINE_OPEN;
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
