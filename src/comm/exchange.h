/* exchange.h: transfers between ranks, in the order of streams.
 *
 * A hy_comm_op is a group of sends and receives of device memory. All ops run on their own stream:
 * an op begins when the stream that started it reaches that point, and other streams wait for its
 * event. The host only enqueues. Every rank starts the same ops in the same order, whatever its
 * streams are doing. If each rank has its own card, NCCL moves device memory, otherwise pinned
 * memory is used; CPU memory is sent directly.
 *
 * An op that fails reports its error to the other ranks and leaves the stream failed;
 * hy_exchange_check reports it without waiting. collectives.h says what ops are used for. */
#pragma once

#include <stdatomic.h>

#include "comm/nccl.h"
#include "comm/team.h"
#include "kernels/kernels.h"

typedef struct hy_exchange hy_exchange;

typedef struct hy_comm_op {
    hy_exchange *net;
    hy_event *is_ready, *is_done;
    bool was_started; /* is_done has been recorded at least once */
    hy_transfer *sends, *receives;
    int32_t send_count, receive_count;
    int32_t numbers; /* number of values of an all-reduce */
} hy_comm_op;

struct hy_exchange {
    int32_t rank, count; /* of the ranks; count 0: closed, and collectives do nothing */
    hy_team *team;       /* the owner's */
    hy_nccl *nccl;       /* NULL: the team's link moves everything */
    hy_backend *backend;
    hy_stream *stream;
    hy_comm_op *ops; /* used in turn */
    int32_t op_count, next;
    hy_transfer *transfers;
    char *staging; /* the owner's pinned memory for the largest op; NULL: sent directly */
    uint64_t staging_bytes;
    double *numbers;           /* pinned: (HY_EXCHANGE_NUMBERS, ranks + 1) */
    atomic_uint_fast64_t busy; /* nanoseconds in exchanges so far */
    /* A dry exchange moves nothing and counts the bytes that this rank would send. */
    bool is_dry;
    hy_comm_op dry_op;
    uint64_t dry_bytes;
    int64_t dry_ops;
};

#define HY_EXCHANGE_NUMBERS 8

/* ops: the number of ops that may run before the host waits. {0} is closed. Opening sends nothing
 * to other ranks, so a rank without memory for it does not block the others. */
hy_status hy_exchange_open(hy_exchange *net, hy_team *team, hy_backend *backend, int32_t ops);
void hy_exchange_open_dry(hy_exchange *net, int32_t rank, int32_t count);
/* All ranks call it before the first op. */
hy_status hy_exchange_connect(hy_exchange *net);
void hy_exchange_close(hy_exchange *net);

/* Returns an op. Add its transfers, then start it: it runs when the stream `after` reaches that
 * point. */
hy_status hy_comm_begin(hy_exchange *net, hy_comm_op **out);
void hy_comm_send(hy_comm_op *op, int32_t peer, const void *data, uint64_t bytes);
void hy_comm_receive(hy_comm_op *op, int32_t peer, void *data, uint64_t bytes);
hy_status hy_comm_start(hy_comm_op *op, hy_stream *after);
/* The stream waits for the op. NULL: no wait. */
hy_status hy_comm_wait(const hy_comm_op *op, hy_stream *stream);

uint64_t hy_exchange_sent(const hy_exchange *net); /* bytes to other ranks, over link and NCCL */
/* Seconds of all exchanges so far; NAN: NCCL runs them on a card, and they are not timed. */
double hy_exchange_seconds(hy_exchange *net);
/* Whether anything failed, here or on another rank. */
hy_status hy_exchange_check(hy_exchange *net);

/* Inside comm: runs the op's transfers over the team's link, in the order of the stream. */
hy_status hy_comm_exchange(void *op);
