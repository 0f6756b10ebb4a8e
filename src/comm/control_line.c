/* control_line.c: the connections of the control channel: sending and receiving bytes. See
 * control_parts.h. */
#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/control_parts.h"
#include "comm/net.h"

#define READ_AT_ONCE ((size_t)64 << 10)

void hy_control_wake(hy_control *c) {
    uint64_t one = 1;
    ssize_t ignored = write(c->wake_fd, &one, sizeof one);
    (void)ignored; /* full: it is awake */
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
            hy_control_record(c, HY_ERR_MEMORY, c->ranks.rank, "no memory for a control message");
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
        if ((size_t)n < READ_AT_ONCE) return true; /* poll() says when there is more */
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
