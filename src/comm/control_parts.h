/* control_parts.h: declarations shared by the files of the control channel; no other file includes
 * it.
 *
 * `lock` guards everything below it. A function that adds a message tries to send it at once;
 * the thread is woken to send the rest. Only the thread reads. */
#pragma once

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/error.h"
#include "comm/control.h"
#include "comm/wire.h"

typedef enum line_state { LINE_NONE = 0, LINE_OPEN = 1, LINE_LEFT = 2 } line_state;

/* A connection: rank 0 has one to each other rank, the others have one to rank 0. */
typedef struct line {
    int fd;
    line_state state;
    hy_wire_buffer in, out;
    double heard; /* hy_clock() when the last bytes arrived */
} line;

typedef enum call_kind { CALL_BARRIER = 1, CALL_GATHER = 2, CALL_SHARE = 3 } call_kind;

/* The call that a rank is in. It is sent in front of the call's data and compared bytewise. */
typedef struct call_place {
    uint64_t number;
    uint64_t bytes; /* of one rank */
    int32_t root;
    int32_t kind; /* call_kind; 0: not in a call */
} call_place;
_Static_assert(sizeof(call_place) == 24, "no padding");

/* On rank 0: a rank that has reached its next call, with its data. */
typedef struct arrival {
    call_place place;
    uint8_t *data;
    size_t room;
} arrival;

struct hy_control {
    hy_ranks ranks;
    hy_control_options options;
    hy_member *members; /* (count) */
    int wake_fd, failure_fd;
    struct pollfd *polled; /* (count + 1), the thread's */
    pthread_t thread;
    bool has_thread;
    atomic_bool has_failed;

    pthread_mutex_t lock;
    pthread_cond_t is_changed;
    line *lines;       /* (count); on other ranks than rank 0 only lines[0] is used */
    arrival *arrivals; /* (count), rank 0 */
    uint64_t number;   /* of this rank's last call */
    uint64_t answered; /* number of the last answered call, and the answer */
    uint8_t *answer;
    size_t answer_size, answer_room;
    uint8_t *call; /* buffer in which a call is assembled */
    size_t call_room;
    hy_error failure; /* the first one, on any rank */
    int32_t failed_rank;
    void (*on_failure)(void *user); /* NULL: none, or it was called */
    void *on_failure_user;
    bool is_calling; /* on_failure is running */
    bool is_stopping;
};

/* ---- control_open.c -------------------------------------------------------------------------- */

hy_status hy_control_meet(hy_control *c); /* fills lines and members */
/* "rank 2 (host, pid 77)" */
typedef struct rank_name {
    char text[128];
} rank_name;
rank_name hy_control_name(const hy_control *c, int32_t rank);

/* ---- control_calls.c ------------------------------------------------------------------------- */

/* On rank 0: the message says that a rank has reached a call. */
void hy_control_arrive(hy_control *c, int32_t rank, const hy_wire_message *m);
/* On other ranks: the result of a call has arrived. */
void hy_control_answer(hy_control *c, const hy_wire_message *m);
/* On rank 0: `rank` has ended. This is a failure if other ranks wait for it in a call. */
void hy_control_left(hy_control *c, int32_t rank);

/* ---- control_thread.c ------------------------------------------------------------------------ */

void hy_line_send(hy_control *c, int32_t to, const hy_wire_head *head, const void *data);
void hy_line_flush(line *l);
/* Reads the available bytes; false: the other side has closed. */
bool hy_line_read(line *l);
void hy_line_close(line *l);
bool hy_line_is_idle(const hy_control *c); /* everything is sent */
void hy_control_wake(hy_control *c);       /* the thread */
hy_status hy_control_start(hy_control *c);
void hy_control_stop(hy_control *c);
/* Keeps the first failure and sends it to all ranks. Needs the lock. `message` names the rank. */
void hy_control_record(hy_control *c, hy_status status, int32_t rank, const char *message);
/* Records that a rank is lost: `how` follows its name. */
void hy_control_lose(hy_control *c, int32_t rank, const char *how);
