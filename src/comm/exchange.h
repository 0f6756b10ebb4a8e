/* exchange.h: exchanges between ranks, in the order of streams.
 *
 * All that goes between ranks is a job on one stream of its own: sends and receives of device memory that begin when a
 * stream has come to where the job was sent off, and that streams wait for by its event. The host only enqueues. Every
 * rank sends off the same jobs in the same order, whatever its streams are doing. Memory of a card goes by NCCL, where
 * each rank has its own, or is staged through pinned memory; memory of a CPU goes as it is.
 *
 * A job that fails tells the other ranks why and leaves the stream failed; hy_exchange_check tells without waiting. */
#pragma once

#include <stdatomic.h>

#include "comm/nccl.h"
#include "comm/team.h"
#include "kernels/kernels.h"

typedef struct hy_exchange hy_exchange;

typedef struct hy_job {
    hy_exchange *net;
    hy_event *is_ready, *is_done;
    bool is_sent; /* once, since it was made */
    hy_piece *sends, *receives;
    int32_t send_count, receive_count;
    int32_t numbers; /* of a sum: how many */
} hy_job;

struct hy_exchange {
    hy_team *team; /* the owner's */
    hy_nccl *nccl; /* NULL: the team's link moves all */
    hy_backend *backend;
    hy_stream *stream;
    hy_job *jobs; /* a ring */
    int32_t job_count, next;
    hy_piece *pieces;
    char *staging; /* the owner's, pinned: for what a job moves at most; NULL: it goes as it is */
    uint64_t staging_bytes;
    double *numbers;           /* pinned: (HY_EXCHANGE_NUMBERS, ranks + 1) */
    atomic_uint_fast64_t busy; /* nanoseconds in exchanges so far */
};

#define HY_EXCHANGE_NUMBERS 8

/* jobs: how many may be on their way before the host waits. {0} is closed. Meets nobody: one rank that has no memory
 * for it keeps the others from nothing. */
hy_status hy_exchange_open(hy_exchange *net, hy_team *team, hy_backend *backend, int32_t jobs);
/* Before the first job; all ranks at once. */
hy_status hy_exchange_connect(hy_exchange *net);
void hy_exchange_close(hy_exchange *net);

/* A job to fill, and sending it off when `after` has come to here. */
hy_status hy_job_begin(hy_exchange *net, hy_job **out);
void hy_job_send(hy_job *job, int32_t peer, const void *data, uint64_t bytes);
void hy_job_receive(hy_job *job, int32_t peer, void *data, uint64_t bytes);
hy_status hy_job_go(hy_job *job, hy_stream *after);
/* The stream goes on when it is done. */
hy_status hy_job_await(const hy_job *job, hy_stream *stream);

/* Each number on the device becomes the sum over ranks, in their order; the stream goes on when they are. */
hy_status hy_exchange_sum(hy_exchange *net, hy_stream *stream, double *const *numbers,
                          int32_t count);

uint64_t hy_exchange_sent(const hy_exchange *net); /* bytes to other ranks, by any way */
/* That exchanges have taken so far; NAN: they are NCCL's on a card, and nobody has timed them. */
double hy_exchange_seconds(hy_exchange *net);
/* Whether anything failed, here or on another rank. */
hy_status hy_exchange_check(hy_exchange *net);
