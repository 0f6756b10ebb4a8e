/* nccl.c: NCCL, with only the declarations that are needed here. See nccl.h.
 *
 * Communicators are non-blocking, so every library call returns soon and `lock` is never held
 * for long: the control's thread can always take it to abort. After an abort `comm` is NULL. */
#include "comm/nccl.h"

#include <dlfcn.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "kernels/cuda_files.h"

#define OLDEST 21400 /* 2.14: ncclCommInitRankConfig, ncclCommFinalize */
#define CONFIG_MAGIC 0xcafebeefu
#define BYTES 0 /* ncclInt8 */

enum { SUCCESS = 0, IN_PROGRESS = 7 };

typedef void *communicator;
typedef struct unique_id {
    char internal[128];
} unique_id;

/* As in version 2.14; newer versions recognise it by size and version. */
typedef struct config {
    size_t size;
    unsigned magic, version;
    int blocking;
} config;

typedef struct functions {
    int (*get_version)(int *out);
    int (*get_unique_id)(unique_id *out);
    int (*init)(communicator *out, int count, unique_id id, int rank, config *how);
    int (*finalize)(communicator comm);
    int (*destroy)(communicator comm);
    int (*abort)(communicator comm);
    int (*async_error)(communicator comm, int *out);
    int (*send)(const void *data, size_t count, int type, int peer, communicator comm,
                void *stream);
    int (*receive)(void *data, size_t count, int type, int peer, communicator comm, void *stream);
    int (*group_start)(void);
    int (*group_end)(void);
    const char *(*error_string)(int result);
} functions;

struct hy_nccl {
    functions api;
    hy_control *control;
    char version[16];
    uint64_t sent, received;
    pthread_mutex_t lock;
    communicator comm; /* NULL: not created yet, or aborted */
};

/* ---- the library ----------------------------------------------------------------------------- */

static hy_status open_library(void **out) {
    const char *given = getenv("HYBRID_NCCL");
    bool is_given = given && *given;
    char other[512];
    *out = is_given ? dlopen(given, RTLD_NOW | RTLD_LOCAL)
                    : hy_open_nvidia("libnccl.so.2", other, sizeof other);
    HY_FAIL_IF(!*out && is_given, HY_ERR_DEVICE, "cannot open the library in HYBRID_NCCL: %s",
               dlerror());
    HY_FAIL_IF(!*out, HY_ERR_DEVICE,
               "NCCL was not found (libnccl.so.2, package libnccl2 or pip's nvidia-nccl-cu13): "
               "install it, set HYBRID_NCCL to its path, or use sockets");
    return HY_OK;
}

/* Finds the functions and the version of the library. It stays open: CUDA does not survive being
 * unloaded. */
static hy_status load_library(functions *api, int *version) {
    const struct {
        const char *name;
        void *slot;
    } wanted[] = {{"ncclGetVersion", &api->get_version},
                  {"ncclGetUniqueId", &api->get_unique_id},
                  {"ncclCommInitRankConfig", &api->init},
                  {"ncclCommFinalize", &api->finalize},
                  {"ncclCommDestroy", &api->destroy},
                  {"ncclCommAbort", &api->abort},
                  {"ncclCommGetAsyncError", &api->async_error},
                  {"ncclSend", &api->send},
                  {"ncclRecv", &api->receive},
                  {"ncclGroupStart", &api->group_start},
                  {"ncclGroupEnd", &api->group_end},
                  {"ncclGetErrorString", &api->error_string}};
    void *library;
    *version = 0;
    HY_TRY(open_library(&library));
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        void *found = dlsym(library, wanted[i].name);
        memcpy(wanted[i].slot, &found, sizeof found);
        /* The version is checked first, so that an old library is reported as old. */
        if (i == 0 && found && (api->get_version(version) != SUCCESS || *version < OLDEST)) {
            int unit = *version < 10000 ? 1000 : 10000; /* versions before 2.9 had fewer digits */
            return hy_fail(HY_ERR_DEVICE, "the NCCL version is %d.%d (%d): expected 2.14 or newer",
                           *version / unit, *version % unit / 100, *version);
        }
        HY_FAIL_IF(!found, HY_ERR_DEVICE,
                   "the NCCL library has no function %s: expected NCCL 2.14 or newer",
                   wanted[i].name);
    }
    return HY_OK;
}

/* ---- failures -------------------------------------------------------------------------------- */

/* Aborts the communicator unless that has been done. The control's thread calls it too. */
static void abort_all(void *user) {
    hy_nccl *n = user;
    pthread_mutex_lock(&n->lock);
    if (n->comm) n->api.abort(n->comm);
    n->comm = NULL;
    pthread_mutex_unlock(&n->lock);
}

/* An NCCL error usually means that a peer died; the control channel knows which one. */
static hy_status failed(hy_nccl *n, const char *what, int result) {
    struct pollfd failure = {.fd = hy_control_failure_fd(n->control), .events = POLLIN};
    abort_all(n);
    bool is_local = result == 4 || result == 5; /* invalid argument, invalid usage */
    if (failure.fd >= 0 && !is_local)
        poll(&failure, 1, (int)(1e3 * hy_control_timeout(n->control)));
    HY_TRY(hy_control_check(n->control));
    return hy_fail(HY_ERR_DEVICE, "NCCL %s: %s failed: %s%s", n->version, what,
                   n->api.error_string(result),
                   result == 5 ? " (for example, two ranks on one device)" : "");
}

static bool is_fine(int result) { return result == SUCCESS || result == IN_PROGRESS; }

/* Waits until the library has enqueued the request. */
static hy_status settle(hy_nccl *n, const char *what) {
    for (long nap = 1000;; nap = nap < 1000000 ? 2 * nap : nap) {
        int state = IN_PROGRESS, result = SUCCESS;
        pthread_mutex_lock(&n->lock);
        bool is_there = n->comm != NULL;
        if (is_there) result = n->api.async_error(n->comm, &state);
        pthread_mutex_unlock(&n->lock);
        if (!is_there) {
            HY_TRY(hy_control_check(n->control));
            return hy_fail(HY_ERR_STATE, "%s was called after NCCL was aborted", what);
        }
        if (result != SUCCESS) return failed(n, what, result);
        if (state == SUCCESS) return HY_OK;
        if (state != IN_PROGRESS) return failed(n, what, state);
        nanosleep(&(struct timespec){.tv_nsec = nap}, NULL);
    }
}

/* ---- opening and closing --------------------------------------------------------------------- */

static void write_version(int version, char out[16]) {
    snprintf(out, 16, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
}

static hy_status check_versions(hy_nccl *n, int version) {
    int32_t count = hy_control_count(n->control);
    double *all = calloc((size_t)count, sizeof *all), mine = version;
    HY_FAIL_IF(!all, HY_ERR_MEMORY, "not enough memory for %d ranks", count);
    hy_status status = hy_control_gather(n->control, &mine, 1, all);
    for (int32_t r = 0; r < count && status == HY_OK; r++) {
        char theirs[16], first[16];
        write_version((int)all[r], theirs);
        write_version((int)all[0], first);
        if (all[r] != all[0])
            status = hy_fail(HY_ERR_DEVICE,
                             "rank %d has NCCL %s, but rank 0 has NCCL %s: use the same version on "
                             "all ranks",
                             r, theirs, first);
    }
    free(all);
    return status;
}

static hy_status connect_all(hy_nccl *n) {
    unique_id id = {{0}};
    config how = {.size = sizeof how, .magic = CONFIG_MAGIC, .version = OLDEST};
    int32_t rank = hy_control_rank(n->control), count = hy_control_count(n->control);
    int result = rank == 0 ? n->api.get_unique_id(&id) : SUCCESS;
    if (result != SUCCESS) return failed(n, "ncclGetUniqueId", result);
    HY_TRY(hy_control_share(n->control, &id, sizeof id, 0));
    pthread_mutex_lock(&n->lock);
    result = n->api.init(&n->comm, count, id, rank, &how);
    pthread_mutex_unlock(&n->lock);
    if (!is_fine(result)) return failed(n, "ncclCommInitRankConfig", result);
    hy_control_on_failure(n->control, abort_all, n);
    return settle(n, "connecting");
}

hy_status hy_nccl_look(hy_nccl_library *out) {
    functions api;
    int version;
    void *function;
    Dl_info found;
    HY_TRY(load_library(&api, &version));
    if (!out) return HY_OK;
    *out = (hy_nccl_library){0};
    write_version(version, out->version);
    memcpy(&function, &api.get_version, sizeof function);
    if (!dladdr(function, &found) || !found.dli_fname) return HY_OK;
    size_t length = strlen(found.dli_fname), size = sizeof out->path;
    snprintf(out->path, size, "%s", found.dli_fname + (length < size ? 0 : length + 1 - size));
    return HY_OK;
}

hy_status hy_nccl_open(hy_control *control, hy_nccl **out) {
    functions api;
    int version;
    *out = NULL;
    HY_TRY(load_library(&api, &version));
    hy_nccl *n = calloc(1, sizeof *n);
    HY_FAIL_IF(!n, HY_ERR_MEMORY, "not enough memory for NCCL");
    n->api = api;
    n->control = control;
    write_version(version, n->version);
    pthread_mutex_init(&n->lock, NULL);
    hy_status status = check_versions(n, version);
    if (status == HY_OK) status = connect_all(n);
    if (status == HY_OK)
        *out = n;
    else
        hy_nccl_close(n);
    return status;
}

void hy_nccl_close(hy_nccl *n) {
    if (!n) return;
    hy_control_on_failure(n->control, NULL, NULL);
    if (n->comm && hy_control_check(n->control) == HY_OK && is_fine(n->api.finalize(n->comm)) &&
        settle(n, "closing") == HY_OK && n->comm) {
        n->api.destroy(n->comm);
        n->comm = NULL;
    }
    abort_all(n);
    pthread_mutex_destroy(&n->lock);
    free(n);
}

/* ---- exchanges ------------------------------------------------------------------------------- */

static uint64_t bytes_of(const hy_nccl *n, const hy_transfer *list, int32_t count) {
    uint64_t sum = 0;
    for (int32_t i = 0; i < count; i++) {
        if (list[i].peer != hy_control_rank(n->control)) sum += list[i].bytes;
    }
    return sum;
}

/* Needs the lock. Empty transfers are skipped on both sides. */
static int enqueue(hy_nccl *n, const hy_transfer *sends, int32_t send_count,
                   const hy_transfer *receives, int32_t receive_count, void *stream) {
    const functions *api = &n->api;
    int result = api->group_start();
    for (int32_t i = 0; i < send_count + receive_count && is_fine(result); i++) {
        const hy_transfer *p = i < send_count ? &sends[i] : &receives[i - send_count];
        if (p->bytes == 0) continue;
        result = i < send_count ? api->send(p->data, p->bytes, BYTES, p->peer, n->comm, stream)
                                : api->receive(p->data, p->bytes, BYTES, p->peer, n->comm, stream);
    }
    int ended = api->group_end(); /* a group must end even if a call in it failed */
    return is_fine(result) ? ended : result;
}

hy_status hy_nccl_exchange(hy_nccl *n, const hy_transfer *sends, int32_t send_count,
                           const hy_transfer *receives, int32_t receive_count, void *stream) {
    int result = SUCCESS;
    HY_TRY(hy_control_check(n->control));
    pthread_mutex_lock(&n->lock);
    if (n->comm) result = enqueue(n, sends, send_count, receives, receive_count, stream);
    pthread_mutex_unlock(&n->lock);
    if (!is_fine(result)) return failed(n, "an exchange", result);
    HY_TRY(settle(n, "an exchange")); /* fails if NCCL was aborted */
    n->sent += bytes_of(n, sends, send_count);
    n->received += bytes_of(n, receives, receive_count);
    return HY_OK;
}

hy_status hy_nccl_check(hy_nccl *n) {
    HY_TRY(hy_control_check(n->control));
    return settle(n, "an exchange");
}

const char *hy_nccl_version(const hy_nccl *n) { return n->version; }
uint64_t hy_nccl_bytes_sent(const hy_nccl *n) { return n->sent; }
uint64_t hy_nccl_bytes_received(const hy_nccl *n) { return n->received; }
