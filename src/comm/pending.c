/* pending.c: connections that have not proven themselves. See pending.h. */
#include "comm/pending.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "comm/net.h"

#define PENDING 256 /* as many as there may be ranks, which may all connect at once */
#define PROOF_SECONDS 5.0

hy_status hy_pending_init(hy_pending *p, size_t proof_size, const hy_observer *observer) {
    *p = (hy_pending){.list = calloc(PENDING, sizeof *p->list),
                      .fd = epoll_create1(EPOLL_CLOEXEC),
                      .proof_size = proof_size,
                      .observer = *observer};
    if (!p->list) {
        hy_net_close(&p->fd);
        return hy_fail(HY_ERR_MEMORY, "not enough memory for connections of ranks");
    }
    for (int i = 0; i < PENDING; i++) p->list[i].fd = -1;
    HY_FAIL_IF(p->fd < 0, HY_ERR_IO, "cannot wait for ranks: epoll: %s", strerror(errno));
    return HY_OK;
}

void hy_pending_fini(hy_pending *p) {
    if (!p->list) return;
    for (int i = 0; i < PENDING; i++) hy_net_close(&p->list[i].fd);
    hy_net_close(&p->fd);
    free(p->list);
    p->list = NULL;
}

/* ---- strangers ------------------------------------------------------------------------------- */

void hy_pending_drop(hy_pending *p, hy_newcomer *one, const char *why) {
    char who[96];
    int user = 0;
    bool is_unix = hy_net_is_unix(one->fd);
    hy_net_peer(one->fd, who, sizeof who);
    (void)hy_net_is_own_user(one->fd, &user);
    if (is_unix) snprintf(who, sizeof who, "user %d", user);
    if (p->strangers++ == 0)
        hy_say_to(&p->observer, HY_WARNING,
                  "dropped a connection from %s: %s (later ones are dropped without a message)",
                  who, why);
    hy_net_close(&one->fd);
}

/* The newcomer that has been here longest; NULL: nobody is here. */
static hy_newcomer *oldest(hy_pending *p) {
    hy_newcomer *found = NULL;
    for (int i = 0; i < PENDING; i++) {
        hy_newcomer *one = &p->list[i];
        if (one->fd >= 0 && (!found || one->since < found->since)) found = one;
    }
    return found;
}

static void drop_late(hy_pending *p) {
    hy_newcomer *one;
    while ((one = oldest(p)) && hy_clock() - one->since > PROOF_SECONDS)
        hy_pending_drop(p, one, "it did not prove in time that it is a rank of this job");
}

/* ---- coming and going ------------------------------------------------------------------------ */

/* A free place; if there is none, that of the oldest newcomer. */
static hy_newcomer *make_place(hy_pending *p) {
    for (int i = 0; i < PENDING; i++) {
        if (p->list[i].fd < 0) return &p->list[i];
    }
    hy_newcomer *one = oldest(p);
    hy_pending_drop(p, one,
                    "it did not prove that it is a rank of this job before many others came");
    return one;
}

hy_newcomer *hy_pending_accept(hy_pending *p, int listener) {
    for (;;) {
        struct epoll_event event = {.events = EPOLLIN};
        int user, fd = hy_net_accept(listener);
        bool has_no_more = fd < 0 && (errno == EMFILE || errno == ENFILE);
        hy_newcomer *one = has_no_more ? oldest(p) : NULL;
        if (one) { /* its descriptor makes room for the next */
            hy_pending_drop(
                p, one, "it did not prove that it is a rank of this job before many others came");
            continue;
        }
        if (fd < 0) return NULL;
        one = make_place(p);
        *one = (hy_newcomer){.fd = fd, .since = hy_clock()};
        event.data.ptr = one;
        if (!hy_net_is_own_user(fd, &user))
            hy_pending_drop(p, one, "another user runs it");
        else if (epoll_ctl(p->fd, EPOLL_CTL_ADD, fd, &event) != 0)
            hy_pending_drop(p, one, "the system cannot watch another connection");
        else
            return one;
    }
}

int hy_pending_take(hy_pending *p, hy_newcomer *one) {
    int fd = one->fd;
    (void)epoll_ctl(p->fd, EPOLL_CTL_DEL, fd, NULL);
    one->fd = -1;
    return fd;
}

hy_newcomer *hy_pending_next(hy_pending *p) {
    struct epoll_event event;
    while (epoll_wait(p->fd, &event, 1, 0) == 1) {
        hy_newcomer *one = event.data.ptr;
        ssize_t n = recv(one->fd, one->proof + one->size, p->proof_size - one->size, 0);
        bool is_broken = n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
        if (is_broken && one->size == 0) {
            p->silent++;
            hy_net_close(&one->fd);
        } else if (is_broken) {
            hy_pending_drop(p, one, "it ended before it proved that it is a rank of this job");
        } else if (n > 0 && (one->size += (size_t)n) == p->proof_size) {
            return one;
        }
    }
    drop_late(p);
    return NULL;
}
