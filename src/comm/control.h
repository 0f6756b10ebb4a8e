/* control.h: ranks find each other, detect lost ranks, and decide together.
 *
 * Each rank has a TCP connection to rank 0, whatever moves the data. A thread in each process sends
 * heartbeats and listens; the owner makes calls from one thread at a time. What always holds:
 *
 * - A killed rank is detected at once; a rank that is stopped, hangs or is cut off, after
 *   `timeout`; a rank that fails reports why (hy_control_fail). All others then fail in their
 *   current or next call, with the same status and a message that names that rank. The first
 *   failure counts. After a failure, close the channel and end.
 * - A rank that is slow but alive is waited for without limit.
 * - Calls are numbered and typed. Ranks that make different calls are detected and named.
 *
 * With one rank there are no sockets and no thread, and calls return at once. */
#pragma once

#include <stdbool.h>

#include "base/say.h"
#include "comm/ranks.h"

typedef struct hy_control hy_control;

typedef struct hy_control_options {
    double timeout;          /* seconds of silence after which a rank is lost; 0: 60 */
    double open_timeout;     /* seconds within which all ranks must connect; 0: 600 */
    double say_after;        /* seconds of waiting before the observer is informed; 0: 10 */
    uint64_t agreed;         /* must be equal on all ranks, like a hash of the settings */
    const char *agreed_name; /* its name in messages; NULL: "settings" */
    hy_observer observer;    /* messages while ranks connect; called only by the opening thread */
} hy_control_options;

/* One process of the job, as all ranks know it. */
typedef struct hy_member {
    char host[64];
    char address[64]; /* of its host, as this rank reaches it */
    uint64_t machine; /* equal if processes reach each other over loopback: hy_net_machine() */
    int32_t pid;
    int32_t reserved;
} hy_member;

/* Waits until all ranks are connected. HY_ERR_INPUT if they do not match: another version, other
 * settings, another count, a rank twice; HY_ERR_IO if some do not connect, with their numbers.
 * Options are copied. */
hy_status hy_control_open(const hy_ranks *ranks, const hy_control_options *options,
                          hy_control **out);
/* Closes the connection. Rank 0 waits for the others to close theirs, unless something failed.
 * NULL is allowed. */
void hy_control_close(hy_control *control);

int32_t hy_control_rank(const hy_control *control);
int32_t hy_control_count(const hy_control *control);
double hy_control_timeout(const hy_control *control);
const hy_member *hy_control_member(const hy_control *control, int32_t rank);
/* Position and number of ranks on this machine, counted here instead of taken from the
 * environment. */
void hy_control_local(const hy_control *control, int32_t *rank, int32_t *count);

/* ---- failure --------------------------------------------------------------------------------- */

/* Has anything failed on any rank? Returns the failure's status, with its message. Costs one
 * atomic read if not. Any thread. */
hy_status hy_control_check(hy_control *control);
/* The rank that failed first; -1: none. */
int32_t hy_control_failed_rank(hy_control *control);
/* Reports a failure: all ranks fail with this status and "rank R (host, pid P): message".
 * Returns once it is sent, or after two seconds; returns `status`, with the message of the first
 * failure. Any thread. */
hy_status hy_control_fail(hy_control *control, hy_status status, const char *message);
/* Becomes readable when something fails, and stays readable; for poll(). -1 with one rank. */
int hy_control_failure_fd(const hy_control *control);
/* Sets the function that the control's thread calls once when something fails, also if that was
 * before this call. It may call hy_control_check and hy_control_failed_rank. There is one function
 * at a time: set NULL before another one. After this returns, the previous function is not running
 * and will not be called. */
void hy_control_on_failure(hy_control *control, void (*function)(void *user), void *user);

/* ---- calls: all ranks, in the same order ----------------------------------------------------- */

hy_status hy_control_barrier(hy_control *control);
/* Sets all[r * count + i] to rank r's mine[i]. count may be 0. */
hy_status hy_control_gather(hy_control *control, const double *mine, int32_t count, double *all);
/* Copies the `data` of rank `root` to all ranks. */
hy_status hy_control_share(hy_control *control, void *data, size_t size, int32_t root);
/* As hy_control_gather, for bytes: rank r's begin at all[r * size]. */
hy_status hy_control_gather_bytes(hy_control *control, const void *mine, size_t size, void *all);
