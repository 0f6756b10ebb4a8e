/* collectives.h: all-gather, reduce-scatter, broadcast and all-reduce between ranks.
 *
 * A buffer is divided into parts, and each rank owns one; a part may be empty. An op begins when
 * the stream `after` reaches the call, and a stream that needs its result waits for it
 * (hy_comm_wait). Sums are computed in the order of ranks, so they have the same bits on all ranks.
 *
 * A single rank has nothing to exchange. Its exchange is closed ({0}): no op begins, *out is
 * NULL, and the buffers already hold the result. Only if NCCL is requested is there a team of
 * one (team.h), which sends to itself, so that the real calls can be tested with one card. */
#pragma once

#include "comm/exchange.h"

typedef struct hy_comm_part {
    uint64_t begin, bytes;
} hy_comm_part;

/* Every rank gets all parts: (ranks) `parts` of `whole`. `own` is this rank's part; it is not
 * copied into `whole`. */
hy_status hy_all_gather(hy_exchange *net, hy_stream *after, const char *own, char *whole,
                        const hy_comm_part *parts, hy_comm_op **out);

/* A reduce-scatter in progress. */
typedef struct hy_reduction {
    hy_exchange *net;
    hy_comm_op *op;
    char *own;      /* this rank's contribution to its part */
    char *arriving; /* the contributions of the other ranks, in the order of ranks */
    uint64_t bytes; /* of one part */
} hy_reduction;

/* Every rank gets the sum of its part of `whole` over all ranks. `arriving` has room for the
 * contributions of the other ranks; with one rank it may be NULL. */
hy_status hy_reduce_scatter(hy_exchange *net, hy_stream *after, char *whole,
                            const hy_comm_part *parts, char *arriving, hy_reduction *out);
/* After the parts have arrived: sets `out` to their sum, or adds the sum to it. With one rank,
 * `out` may be its part itself, which then is the sum. */
hy_status hy_reduce_scatter_end(const hy_reduction *reduction, hy_stream *stream, hy_dtype dtype,
                                bool accumulates, char *out);

/* Every rank gets the bytes of rank `root`. */
hy_status hy_broadcast(hy_exchange *net, hy_stream *after, int32_t root, void *data, uint64_t bytes,
                       hy_comm_op **out);

/* Replaces each number on the device by its sum over ranks; the stream waits for it. At most
 * HY_EXCHANGE_NUMBERS. */
hy_status hy_all_reduce(hy_exchange *net, hy_stream *stream, double *const *numbers, int32_t count);
