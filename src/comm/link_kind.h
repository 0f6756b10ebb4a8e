/* link_kind.h: the functions of a kind of link, for the files that implement one. A kind's own
 * struct begins with a hy_link. */
#pragma once

#include <stdatomic.h>

#include "comm/link.h"

typedef struct hy_link_kind {
    const char *name;
    /* Peers are in range; transfers of the rank to itself must be skipped. */
    hy_status (*exchange)(hy_link *link, const hy_transfer *sends, int32_t send_count,
                          const hy_transfer *receives, int32_t receive_count);
    void (*destroy)(hy_link *link); /* frees the struct too */
} hy_link_kind;

struct hy_link {
    const hy_link_kind *kind;
    hy_control *control;
    int32_t rank, count;
    atomic_uint_fast64_t sent, received; /* counted where exchanges run, read anywhere */
};

void hy_link_init(hy_link *link, const hy_link_kind *kind, hy_control *control);
/* Call it when the connection to a peer is broken. Returns the failure that the control channel
 * reports now or within its timeout, or else "rank 2 (host, pid 77) WHAT". */
hy_status hy_link_lost(hy_link *link, int32_t peer, const char *what);
