/* collectives.h: all-gather, reduce-scatter, broadcast and all-reduce between ranks.
 *
 * A buffer is cut into parts, one of which each rank owns; a part may be empty. An op begins when
 * `after` has come to the call, and a stream that needs its result waits for it (hy_comm_wait).
 * Sums are taken in the order of ranks, so they have the same bits on all of them.
 *
 * One rank has nothing to exchange. Its exchange is closed ({0}): no op begins, *out is NULL, and
 * the buffers are right as they are. Only where NCCL is asked for there is a team of one (team.h),
 * which sends to itself, so that the real calls can be tested with one card. */
#pragma once

#include "comm/exchange.h"

typedef struct hy_comm_part {
    uint64_t begin, bytes;
} hy_comm_part;

/* Every rank gets all parts: (ranks) `parts` of `whole`. `own` is where this rank's is now; it is
 * not copied into `whole`. */
hy_status hy_all_gather(hy_exchange *net, hy_stream *after, const char *own, char *whole,
                        const hy_comm_part *parts, hy_comm_op **out);

/* A reduce-scatter whose parts are on their way. */
typedef struct hy_reduction {
    hy_exchange *net;
    hy_comm_op *op;
    char *own;      /* this rank's part, as this rank has it */
    char *arriving; /* and as the others have it, in the order of ranks */
    uint64_t bytes; /* of one part */
} hy_reduction;

/* Every rank gets the sum of its part of `whole` over all ranks. `arriving` has room for this
 * rank's part as often as there are others; with one rank it may be NULL. */
hy_status hy_reduce_scatter(hy_exchange *net, hy_stream *after, char *whole,
                            const hy_comm_part *parts, char *arriving, hy_reduction *out);
/* When the parts are here: out becomes their sum, or its sum with what is there. Where `out` is
 * this rank's part itself, and there is no other rank, it is the sum already. */
hy_status hy_reduce_scatter_end(const hy_reduction *reduction, hy_stream *stream, hy_dtype dtype,
                                bool accumulates, char *out);

/* Every rank gets the bytes of rank `root`. */
hy_status hy_broadcast(hy_exchange *net, hy_stream *after, int32_t root, void *data, uint64_t bytes,
                       hy_comm_op **out);

/* Each number on the device becomes its sum over ranks; the stream goes on when it has. At most
 * HY_EXCHANGE_NUMBERS. */
hy_status hy_all_reduce(hy_exchange *net, hy_stream *stream, double *const *numbers, int32_t count);
