/* pending.h: connections that have not yet proven that they know the job's secret.
 *
 * Anybody can connect to a rank that listens. What a stranger sends, or does not send, must delay
 * no rank and cost no memory: a connection sends exactly `proof_size` bytes within a few seconds,
 * or it is dropped; the number of connections is limited, and a new one replaces the oldest. Ranks
 * prove themselves in milliseconds and try again if they were dropped. On Unix sockets, other users
 * are dropped at once. The first stranger is named to the observer, the others are counted.
 *
 * The owner polls `fd` and its listeners. */
#pragma once

#include <stdbool.h>

#include "base/say.h"
#include "base/sha.h"

#define HY_PROOF_MOST 256

typedef struct hy_newcomer {
    int fd; /* -1: free */
    double since;
    size_t size;                    /* bytes received */
    uint8_t nonce[HY_SHA256_BYTES]; /* the owner's, which the proof must contain */
    uint8_t proof[HY_PROOF_MOST];
} hy_newcomer;

typedef struct hy_pending {
    hy_newcomer *list; /* (PENDING) */
    int fd;            /* readable if a newcomer has sent something */
    size_t proof_size;
    hy_observer observer;
    int64_t strangers; /* dropped */
    int64_t silent;    /* left by themselves without a word, as ranks of other jobs do */
} hy_pending;

hy_status hy_pending_init(hy_pending *pending, size_t proof_size, const hy_observer *observer);
void hy_pending_fini(hy_pending *pending); /* {0} and a failed init are fine */

/* The next connection that waits at the listener; NULL: none. */
hy_newcomer *hy_pending_accept(hy_pending *pending, int listener);
/* The next newcomer with a whole proof: take or drop it before the next call. NULL: none. */
hy_newcomer *hy_pending_next(hy_pending *pending);
/* Gives the descriptor to the caller. */
int hy_pending_take(hy_pending *pending, hy_newcomer *one);
void hy_pending_drop(hy_pending *pending, hy_newcomer *one, const char *why);
