/* link.h: moves host memory between ranks with one primitive: a group of sends and receives.
 *
 * A link is made by one of its kinds: sockets (hy_link_open_sockets) or MPI (link_mpi.h). All ranks
 * make the same exchanges in the same order, from one thread at a time. The n-th transfer that a
 * rank sends to a peer is the n-th that the peer receives from it, and their sizes must be equal; a
 * rank may be its own peer. All transfers of a group run at the same time in both directions, so
 * there is no deadlock.
 *
 * An exchange ends with all transfers done, or with an error that names a rank: a lost peer,
 * different sizes, or a failure from the control channel (control.h). After an error the link is
 * unusable; report the error with hy_control_fail(). A rank that is slow but alive is waited
 * for. */
#pragma once

#include "comm/control.h"

typedef struct hy_link hy_link;

typedef struct hy_transfer {
    int32_t peer;
    void *data; /* read only where it is sent */
    uint64_t bytes;
} hy_transfer;

typedef struct hy_link_options {
    /* Sockets, for tests: limits the bytes per second that leave a rank, and delays each
     * exchange by some seconds; 0: no limit. */
    double bytes_per_second, latency;
    bool is_tcp; /* sockets: TCP also between ranks of one machine, instead of Unix sockets */
} hy_link_options;

/* Connects every rank with every other: by Unix sockets on one machine, else by TCP. All ranks
 * call it. `options` may be NULL. The control channel must outlive the link. */
hy_status hy_link_open_sockets(hy_control *control, const hy_link_options *options, hy_link **out);
void hy_link_destroy(hy_link *link); /* NULL is fine */

/* Any list may be empty. */
hy_status hy_link_exchange(hy_link *link, const hy_transfer *sends, int32_t send_count,
                           const hy_transfer *receives, int32_t receive_count);

const char *hy_link_name(const hy_link *link); /* "sockets", "MPI" */
int32_t hy_link_rank(const hy_link *link);
int32_t hy_link_count(const hy_link *link);
/* Bytes sent to and received from other ranks so far. Any thread. */
uint64_t hy_link_bytes_sent(const hy_link *link);
uint64_t hy_link_bytes_received(const hy_link *link);
