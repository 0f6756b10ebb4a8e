/* control.h: ranks find each other, notice who is lost, and decide together.
 *
 * Each rank holds a TCP connection to rank 0, whatever moves the data. A thread in each process
 * sends heartbeats and listens; the owner makes calls from one thread at a time. What always holds:
 *
 * - A rank that is killed is noticed at once; one that is stopped, hung or cut off after `timeout`;
 *   one that fails says why (hy_control_fail). All others then fail at their next call, or in the
 *   one they wait in, with the same status and a message that names that rank. The first failure
 *   counts. There is no way back: close, and end.
 * - A rank that is slow but alive is waited for, however long.
 * - Calls are numbered and typed. Ranks that are at different calls are found and named.
 *
 * With one rank there are no sockets and no thread, and calls answer at once. */
#pragma once

#include <stdbool.h>

#include "base/say.h"
#include "comm/ranks.h"

typedef struct hy_control hy_control;

typedef struct hy_control_options {
    double timeout;          /* seconds of silence after which a rank is lost; 0: 60 */
    double open_timeout;     /* seconds in which all ranks have to come; 0: 600 */
    double say_after;        /* seconds of waiting before the observer hears of it; 0: 10 */
    uint64_t agreed;         /* must be alike on all ranks, as a hash of the settings */
    const char *agreed_name; /* what it stands for, in messages; NULL: "settings" */
    hy_observer
        observer; /* messages while ranks come together; called by the opening thread alone */
} hy_control_options;

/* One process of the job, as all ranks know it. */
typedef struct hy_member {
    char host[64];
    char address[64]; /* where its host is reached from here */
    uint64_t machine; /* alike where processes reach each other over loopback: hy_net_machine() */
    int32_t pid;
    int32_t reserved;
} hy_member;

/* Waits until all ranks are there. HY_ERR_INPUT where they do not fit together: another version,
 * other settings, another count, one rank twice; HY_ERR_IO where some do not come, which are named.
 * Options are copied. */
hy_status hy_control_open(const hy_ranks *ranks, const hy_control_options *options,
                          hy_control **out);
/* Says goodbye. Rank 0 waits for the others to do so, unless something failed. NULL is fine. */
void hy_control_close(hy_control *control);

int32_t hy_control_rank(const hy_control *control);
int32_t hy_control_count(const hy_control *control);
double hy_control_timeout(const hy_control *control);
const hy_member *hy_control_member(const hy_control *control, int32_t rank);
/* Place and number among the ranks of this machine, counted rather than believed. */
void hy_control_local(const hy_control *control, int32_t *rank, int32_t *count);

/* ---- failure --------------------------------------------------------------------------------- */

/* Whether anything has failed, anywhere: the failure's status, with its message. One atomic read
 * where not. Any thread. */
hy_status hy_control_check(hy_control *control);
/* The rank that failed first; -1: none. */
int32_t hy_control_failed_rank(hy_control *control);
/* Last words: all ranks fail with this status and "rank R (host, pid P): message". Returns once
 * they are sent, or after two seconds; returns `status`, with the message of the first failure. Any
 * thread. */
hy_status hy_control_fail(hy_control *control, hy_status status, const char *message);
/* Becomes readable when something fails, and stays so; for poll(). -1 with one rank. */
int hy_control_failure_fd(const hy_control *control);
/* `function` is called once, by the control's thread, when something fails; at most 8 of them. One
 * that is added after a failure is called too. It may call hy_control_check and
 * hy_control_failed_rank. */
hy_status hy_control_on_failure(hy_control *control, void (*function)(void *user), void *user);
/* Takes it away; when this returns it is not running and will not be called. */
void hy_control_off_failure(hy_control *control, void (*function)(void *user), void *user);

/* ---- calls: all ranks, in the same order ----------------------------------------------------- */

hy_status hy_control_barrier(hy_control *control);
/* all[r * count + i] is what rank r gave as mine[i]. count may be 0. */
hy_status hy_control_gather(hy_control *control, const double *mine, int32_t count, double *all);
/* Every rank's `data` becomes that of `root`. */
hy_status hy_control_share(hy_control *control, void *data, size_t size, int32_t root);
/* Gather of bytes: all[r * size .. ) is rank r's. */
hy_status hy_control_gather_bytes(hy_control *control, const void *mine, size_t size, void *all);
