/* nccl.c: a stand-in for NCCL, for machines without a card: the same functions, host memory,
 * sockets.
 *
 * A communicator has a thread that connects (Unix sockets in $STANDIN_NCCL_FOLDER) and then moves
 * one group after the other, as kernels on a stream would; all streams are one. As with NCCL
 * nothing checks that sizes agree, and one that waits for a dead rank waits until it is aborted.
 * $STANDIN_NCCL_VERSION is the version it says it is. With -DWITHOUT_RECV it lacks a function.
 *
 * standin_wait() is what cudaStreamSynchronize would be. With $STANDIN_NCCL_WAITS a group is moved
 * when it ends: for who has no stream to wait for. $STANDIN_NCCL_FLIP="rank,bytes" damages what
 * that rank receives: the lowest bit of the last byte of each piece that is so long (0: of any). */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define MOST_RANKS 16
#define MOST_OPS 256

enum { OK = 0, SYSTEM_ERROR = 2, INVALID_USAGE = 5, REMOTE_ERROR = 6, IN_PROGRESS = 7 };

typedef struct op {
    bool is_send, is_over;
    char *data;
    size_t bytes, done;
    int peer;
} op;

typedef struct standin {
    int rank, count, fds[MOST_RANKS], listener;
    char id[128];
    pthread_t thread;
    pthread_mutex_t lock;
    int state;
    bool is_aborted, is_ending;
    op ops[MOST_OPS]; /* handed over, in order */
    int op_count;
} standin;

typedef struct unique_id {
    char internal[128];
} unique_id;

/* What lies between ncclGroupStart and ncclGroupEnd. */
static _Thread_local struct {
    int depth, count;
    op ops[MOST_OPS];
    standin *comm;
} group;

int ncclGetVersion(int *out);
int ncclGetUniqueId(unique_id *out);
int ncclCommInitRankConfig(standin **out, int count, unique_id id, int rank, void *config);
int ncclCommFinalize(standin *c);
int ncclCommDestroy(standin *c);
int ncclCommAbort(standin *c);
int ncclCommGetAsyncError(standin *c, int *out);
int ncclSend(const void *data, size_t n, int type, int peer, standin *c, void *stream);
int ncclRecv(void *data, size_t n, int type, int peer, standin *c, void *stream);
int ncclGroupStart(void);
int ncclGroupEnd(void);
const char *ncclGetErrorString(int result);
int standin_wait(void);

/* One communicator in a process is enough here. */
static standin *latest;
static pthread_mutex_t latest_lock = PTHREAD_MUTEX_INITIALIZER;

int ncclGetVersion(int *out) {
    const char *given = getenv("STANDIN_NCCL_VERSION");
    *out = given ? atoi(given) : 22105;
    return OK;
}

int ncclGetUniqueId(unique_id *out) {
    static int count;
    memset(out, 0, sizeof *out);
    snprintf(out->internal, sizeof out->internal, "id-%d-%d", (int)getpid(), count++);
    return OK;
}

const char *ncclGetErrorString(int result) {
    return result == REMOTE_ERROR ? "remote process exited" : "some error";
}

/* ---- connecting ------------------------------------------------------------------------------ */

static struct sockaddr_un name_of(const standin *c, int rank) {
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    snprintf(name.sun_path, sizeof name.sun_path, "%.72s/%.30s-%d", getenv("STANDIN_NCCL_FOLDER"),
             c->id, rank);
    return name;
}

static void nap(void) { nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL); }

static bool must_stop(standin *c) {
    pthread_mutex_lock(&c->lock);
    bool stops = c->is_aborted;
    pthread_mutex_unlock(&c->lock);
    return stops;
}

static void set_state(standin *c, int state) {
    pthread_mutex_lock(&c->lock);
    c->state = state;
    pthread_mutex_unlock(&c->lock);
}

static int accept_one(standin *c) {
    char rank;
    int fd = accept(c->listener, NULL, NULL);
    if (fd < 0) return 0;
    if (read(fd, &rank, 1) == 1) c->fds[(int)rank] = fd;
    return 1;
}

static bool connect_all(standin *c) {
    char rank = (char)c->rank;
    for (int p = 0; p < c->rank; p++) {
        struct sockaddr_un name = name_of(c, p);
        c->fds[p] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        while (connect(c->fds[p], (struct sockaddr *)&name, sizeof name) != 0) {
            if (must_stop(c)) return false;
            nap();
        }
        if (write(c->fds[p], &rank, 1) != 1) return false;
    }
    for (int left = c->count - c->rank - 1; left > 0; left -= accept_one(c)) {
        if (must_stop(c)) return false;
        struct pollfd polled = {.fd = c->listener, .events = POLLIN};
        poll(&polled, 1, 5);
    }
    for (int p = 0; p < c->count; p++) {
        if (c->fds[p] >= 0) fcntl(c->fds[p], F_SETFL, O_NONBLOCK);
    }
    return true;
}

/* ---- moving ---------------------------------------------------------------------------------- */

/* Whether an earlier one of the same way is not over. */
static bool has_to_wait(const standin *c, int at) {
    for (int i = 0; i < at; i++) {
        const op *o = &c->ops[i];
        if (!o->is_over && o->is_send == c->ops[at].is_send && o->peer == c->ops[at].peer)
            return true;
    }
    return false;
}

static void damage(const standin *c, const op *o) {
    const char *text = getenv("STANDIN_NCCL_FLIP");
    int rank;
    size_t bytes;
    if (!text || sscanf(text, "%d,%zu", &rank, &bytes) != 2 || rank != c->rank) return;
    if (!o->is_send && (bytes == 0 || bytes == o->bytes)) o->data[o->bytes - 1] ^= 1;
}

static bool copy_to_itself(standin *c, int at) {
    op *o = &c->ops[at];
    for (int i = 0; i < c->op_count && o->is_send; i++) {
        op *r = &c->ops[i];
        if (r->is_send || r->is_over || r->peer != c->rank) continue;
        memmove(r->data, o->data, o->bytes); /* it may be the same memory */
        r->is_over = o->is_over = true;
        damage(c, r);
        return true;
    }
    return false;
}

/* Moves some of one; false: the peer is gone. */
static bool move_some(standin *c, int at) {
    op *o = &c->ops[at];
    if (o->peer == c->rank) {
        copy_to_itself(c, at);
        return true;
    }
    int fd = c->fds[o->peer];
    ssize_t n = o->is_send ? send(fd, o->data + o->done, o->bytes - o->done, MSG_NOSIGNAL)
                           : recv(fd, o->data + o->done, o->bytes - o->done, 0);
    if (n > 0) o->done += (size_t)n;
    o->is_over = o->done == o->bytes;
    if (o->is_over && n > 0) damage(c, o);
    return n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
}

static bool is_all_over(const standin *c) {
    for (int i = 0; i < c->op_count; i++) {
        if (!c->ops[i].is_over) return false;
    }
    return true;
}

static void *run(void *argument) {
    standin *c = argument;
    bool is_connected = connect_all(c);
    set_state(c, is_connected ? OK : SYSTEM_ERROR);
    for (bool is_over = !is_connected; !is_over;) {
        pthread_mutex_lock(&c->lock);
        for (int i = 0; i < c->op_count && c->state != REMOTE_ERROR; i++) {
            if (!c->ops[i].is_over && !has_to_wait(c, i) && !move_some(c, i))
                c->state = REMOTE_ERROR;
        }
        if (is_all_over(c)) c->op_count = 0;
        if (c->state == IN_PROGRESS) c->state = OK; /* the group is on its way */
        is_over = c->is_aborted || (c->is_ending && c->op_count == 0);
        bool is_idle = c->op_count == 0;
        pthread_mutex_unlock(&c->lock);
        if (is_idle) nap();
    }
    return NULL;
}

/* ---- communicators --------------------------------------------------------------------------- */

int ncclCommInitRankConfig(standin **out, int count, unique_id id, int rank, void *config) {
    const struct {
        size_t size;
        unsigned magic, version;
        int blocking;
    } *how = config;
    if (how->magic != 0xcafebeef || how->blocking != 0 || count > MOST_RANKS) return INVALID_USAGE;
    standin *c = calloc(1, sizeof *c);
    c->rank = rank;
    c->count = count;
    c->state = IN_PROGRESS;
    memcpy(c->id, id.internal, sizeof c->id);
    for (int p = 0; p < MOST_RANKS; p++) c->fds[p] = -1;
    struct sockaddr_un name = name_of(c, rank);
    c->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (bind(c->listener, (struct sockaddr *)&name, sizeof name) != 0 ||
        listen(c->listener, 16) != 0)
        return SYSTEM_ERROR;
    pthread_mutex_init(&c->lock, NULL);
    pthread_create(&c->thread, NULL, run, c);
    pthread_mutex_lock(&latest_lock);
    *out = latest = c;
    pthread_mutex_unlock(&latest_lock);
    return IN_PROGRESS;
}

int ncclCommGetAsyncError(standin *c, int *out) {
    pthread_mutex_lock(&c->lock);
    *out = c->state;
    pthread_mutex_unlock(&c->lock);
    return OK;
}

int ncclCommFinalize(standin *c) {
    pthread_mutex_lock(&c->lock);
    c->is_ending = true;
    pthread_mutex_unlock(&c->lock);
    return IN_PROGRESS;
}

static int end(standin *c) {
    pthread_mutex_lock(&latest_lock);
    latest = NULL;
    pthread_mutex_unlock(&latest_lock);
    pthread_join(c->thread, NULL);
    for (int p = 0; p < c->count; p++) {
        if (c->fds[p] >= 0) close(c->fds[p]);
    }
    close(c->listener);
    unlink(name_of(c, c->rank).sun_path);
    pthread_mutex_destroy(&c->lock);
    free(c);
    return OK;
}

int ncclCommDestroy(standin *c) { return end(c); }

int ncclCommAbort(standin *c) {
    pthread_mutex_lock(&c->lock);
    c->is_aborted = true;
    pthread_mutex_unlock(&c->lock);
    return end(c);
}

/* ---- groups ---------------------------------------------------------------------------------- */

static int add(op o, standin *c) {
    if (group.depth == 0 || group.count == MOST_OPS || o.peer >= c->count) return INVALID_USAGE;
    group.ops[group.count++] = o;
    group.comm = c;
    return OK;
}

int ncclSend(const void *data, size_t n, int type, int peer, standin *c, void *stream) {
    (void)stream;
    if (type != 0) return INVALID_USAGE;
    return add((op){.is_send = true, .data = (char *)data, .bytes = n, .peer = peer}, c);
}

#ifndef WITHOUT_RECV
int ncclRecv(void *data, size_t n, int type, int peer, standin *c, void *stream) {
    (void)stream;
    if (type != 0) return INVALID_USAGE;
    return add((op){.data = data, .bytes = n, .peer = peer}, c);
}
#endif

int ncclGroupStart(void) {
    group.depth++;
    return OK;
}

int ncclGroupEnd(void) {
    standin *c = group.comm;
    int result = OK;
    group.depth--;
    if (!c || group.count == 0) return OK;
    pthread_mutex_lock(&c->lock);
    if (c->op_count + group.count > MOST_OPS) {
        result = INVALID_USAGE;
    } else {
        memcpy(c->ops + c->op_count, group.ops, sizeof *group.ops * (size_t)group.count);
        c->op_count += group.count;
        if (c->state == OK) c->state = IN_PROGRESS;
        result = c->state == IN_PROGRESS ? IN_PROGRESS : c->state;
    }
    pthread_mutex_unlock(&c->lock);
    group.count = 0;
    group.comm = NULL;
    if (getenv("STANDIN_NCCL_WAITS")) (void)standin_wait();
    return result;
}

/* Until nothing is on its way any more, or it was aborted: 0, or 1 where not all was moved. */
int standin_wait(void) {
    for (;;) {
        pthread_mutex_lock(&latest_lock);
        standin *c = latest;
        bool is_gone = !c, is_over = false;
        if (c) {
            pthread_mutex_lock(&c->lock);
            is_over = c->op_count == 0;
            pthread_mutex_unlock(&c->lock);
        }
        pthread_mutex_unlock(&latest_lock);
        if (is_gone || is_over) return is_gone;
        nap();
    }
}
