/* link.c: code shared by all kinds of link. See link.h. */
#include "comm/link.h"

#include <poll.h>
#include <string.h>

#include "base/error.h"
#include "comm/link_kind.h"

void hy_link_init(hy_link *link, const hy_link_kind *kind, hy_control *control) {
    *link = (hy_link){.kind = kind,
                      .control = control,
                      .rank = hy_control_rank(control),
                      .count = hy_control_count(control)};
}

void hy_link_destroy(hy_link *link) {
    if (link) link->kind->destroy(link);
}

const char *hy_link_name(const hy_link *link) { return link->kind->name; }
int32_t hy_link_rank(const hy_link *link) { return link->rank; }
int32_t hy_link_count(const hy_link *link) { return link->count; }
uint64_t hy_link_bytes_sent(const hy_link *link) { return atomic_load(&link->sent); }
uint64_t hy_link_bytes_received(const hy_link *link) { return atomic_load(&link->received); }

hy_status hy_link_lost(hy_link *link, int32_t peer, const char *what) {
    const hy_member *m = hy_control_member(link->control, peer);
    struct pollfd failure = {.fd = hy_control_failure_fd(link->control), .events = POLLIN};
    /* The control channel detects a killed process at about the same time and knows the reason. */
    poll(&failure, 1, (int)(1e3 * hy_control_timeout(link->control)));
    HY_TRY(hy_control_check(link->control));
    return hy_fail(HY_ERR_IO, "rank %d (%s, pid %d) %s", peer, m->host, m->pid, what);
}

/* Checks peers and counts the bytes sent and received. */
static hy_status count_bytes(const hy_link *link, const hy_transfer *list, int32_t count,
                             uint64_t *out) {
    *out = 0;
    for (int32_t i = 0; i < count; i++) {
        HY_FAIL_IF(list[i].peer < 0 || list[i].peer >= link->count, HY_ERR_INPUT,
                   "a transfer with rank %d: expected 0 to %d", list[i].peer, link->count - 1);
        if (list[i].peer != link->rank) *out += list[i].bytes;
    }
    return HY_OK;
}

static int32_t next_own(const hy_link *link, const hy_transfer *list, int32_t count, int32_t from) {
    while (from < count && list[from].peer != link->rank) from++;
    return from;
}

/* Copies what this rank sends to itself. */
static hy_status copy_own(const hy_link *link, const hy_transfer *sends, int32_t send_count,
                          const hy_transfer *receives, int32_t receive_count) {
    int32_t s = -1, r = -1;
    for (;;) {
        s = next_own(link, sends, send_count, s + 1);
        r = next_own(link, receives, receive_count, r + 1);
        if (s == send_count && r == receive_count) return HY_OK;
        HY_FAIL_IF(s == send_count || r == receive_count || sends[s].bytes != receives[r].bytes,
                   HY_ERR_INTERNAL, "rank %d sends itself other sizes than it expects from itself",
                   link->rank);
        if (sends[s].bytes) memmove(receives[r].data, sends[s].data, (size_t)sends[s].bytes);
    }
}

hy_status hy_link_exchange(hy_link *link, const hy_transfer *sends, int32_t send_count,
                           const hy_transfer *receives, int32_t receive_count) {
    uint64_t out, in;
    HY_TRY(count_bytes(link, sends, send_count, &out));
    HY_TRY(count_bytes(link, receives, receive_count, &in));
    HY_TRY(hy_control_check(link->control));
    HY_TRY(copy_own(link, sends, send_count, receives, receive_count));
    HY_TRY(link->kind->exchange(link, sends, send_count, receives, receive_count));
    atomic_fetch_add(&link->sent, out);
    atomic_fetch_add(&link->received, in);
    return HY_OK;
}
