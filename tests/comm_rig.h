/* comm_rig.h: ranks as forked processes, for tests of src/comm.
 *
 * rig_start forks `count` processes that run `body` as ranks of one job on this machine. Each has a
 * page that it shares with the test, for what it found. rig_wait ends those that are still there
 * after a time and says so: a hang is a failure, not a stuck suite. A body uses require(), because
 * Check knows nothing of these processes. */
#ifndef HY_TESTS_DIST_RIG_H
#define HY_TESTS_DIST_RIG_H

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>

#include "base/clock.h"
#include "base/rng.h"
#include "comm/control.h"
#include "comm/net.h"
#include "harness.h"

#define RIG_MOST 8
#define RIG_SECONDS 100 /* of any case on a busy machine */

typedef struct rig_result {
    hy_status status;
    char message[HY_ERROR_MESSAGE_MAX];
    double seconds;
    int64_t number;
    atomic_int stage; /* for a test that waits until a rank is somewhere */
} rig_result;

typedef void (*rig_body)(const hy_ranks *ranks, rig_result *mine, const void *user);

typedef struct rig {
    int count;
    pid_t pids[RIG_MOST];
    int codes[RIG_MOST]; /* exit codes; 128 + signal */
    rig_result *results; /* (count), shared with the processes */
    hy_ranks ranks;      /* of rank 0 */
} rig;

#define require(condition)                                                                         \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition,                     \
                    hy_error_message());                                                           \
            fflush(stderr);                                                                        \
            _exit(99);                                                                             \
        }                                                                                          \
    } while (0)

static inline void rig_sleep(double seconds) {
    struct timespec time = {.tv_sec = (time_t)seconds,
                            .tv_nsec = (long)(1e9 * (seconds - (double)(time_t)seconds))};
    nanosleep(&time, NULL);
}

/* What a call came to, for the test to look at. */
static inline void rig_keep(rig_result *mine, hy_status status) {
    mine->status = status;
    snprintf(mine->message, sizeof mine->message, "%s", status == HY_OK ? "" : hy_error_message());
}

static inline uint16_t rig_port(void) {
    int fd;
    bool is_taken;
    must(hy_net_listen("127.0.0.1", 0, &fd, &is_taken));
    uint16_t port = hy_net_port(fd);
    close(fd);
    return port;
}

static inline hy_ranks rig_ranks(int count) {
    static uint64_t jobs;
    hy_ranks ranks = {.count = count,
                      .local_count = count,
                      .source = HY_RANKS_LAUNCHER,
                      .address = "127.0.0.1",
                      .port = rig_port(),
                      .job = (uint64_t)getpid() << 20 | jobs++,
                      .secret = {.bytes = "known to the ranks of a rig", .from = "the rig"}};
    return ranks;
}

static inline rig rig_start_as(const hy_ranks *of_rank_0, rig_body body, const void *user) {
    int count = of_rank_0->count;
    rig it = {.count = count, .ranks = *of_rank_0};
    it.results = mmap(NULL, sizeof *it.results * RIG_MOST, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(it.results, MAP_FAILED);
    fflush(NULL);
    for (int r = 0; r < count; r++) {
        it.pids[r] = fork();
        ck_assert_int_ge(it.pids[r], 0);
        if (it.pids[r] > 0) continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        hy_ranks ranks = it.ranks;
        ranks.rank = ranks.local_rank = r;
        body(&ranks, &it.results[r], user);
        _exit(0);
    }
    return it;
}

static inline rig rig_start(int count, rig_body body, const void *user) {
    hy_ranks ranks = rig_ranks(count);
    return rig_start_as(&ranks, body, user);
}

/* Collects the ranks that have ended; how many are still there. */
static inline int rig_collect(rig *it) {
    int running = 0;
    for (int r = 0; r < it->count; r++) {
        int status;
        if (it->pids[r] > 0 && waitpid(it->pids[r], &status, WNOHANG) == it->pids[r]) {
            it->codes[r] = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
            it->pids[r] = 0;
        }
        running += it->pids[r] > 0;
    }
    return running;
}

/* Until all have ended but those in `except` (bits), which are killed then. */
static inline void rig_wait_except(rig *it, double seconds, unsigned except) {
    double deadline = hy_clock() + seconds;
    unsigned stuck = 0;
    for (;;) {
        rig_collect(it);
        stuck = 0;
        for (int r = 0; r < it->count; r++) {
            if (it->pids[r] > 0 && !(except >> r & 1)) stuck |= 1u << r;
        }
        if (!stuck || hy_clock() > deadline) break;
        rig_sleep(0.002);
    }
    for (int r = 0; r < it->count; r++) {
        if (it->pids[r] > 0) kill(it->pids[r], SIGKILL);
    }
    while (rig_collect(it) > 0) rig_sleep(0.001);
    ck_assert_msg(stuck == 0, "ranks (bits %x) hung for %.0f s", stuck, seconds);
}

static inline void rig_wait(rig *it) { rig_wait_except(it, RIG_SECONDS, 0); }

static inline void rig_free(rig *it) { munmap(it->results, sizeof *it->results * RIG_MOST); }

/* Ranks that must all end well. */
static inline void rig_run(int count, rig_body body, const void *user) {
    rig it = rig_start(count, body, user);
    rig_wait(&it);
    for (int r = 0; r < count; r++)
        ck_assert_msg(it.codes[r] == 0, "rank %d of %d ended with %d", r, count, it.codes[r]);
    rig_free(&it);
}

static inline void rig_wait_for_stage(const rig *it, int rank, int stage) {
    double deadline = hy_clock() + RIG_SECONDS;
    while (atomic_load(&it->results[rank].stage) < stage && hy_clock() < deadline) rig_sleep(0.001);
    ck_assert_int_ge(atomic_load(&it->results[rank].stage), stage);
}

static inline void must_mention(const rig *it, int rank, const char *fragment) {
    const rig_result *r = &it->results[rank];
    ck_assert_msg(r->status != HY_OK, "rank %d did not fail", rank);
    ck_assert_msg(strstr(r->message, fragment) != NULL, "rank %d lacks \"%s\": %s", rank, fragment,
                  r->message);
}

/* A control channel with short times. */
static inline hy_control *rig_open(const hy_ranks *ranks, double timeout) {
    hy_control *control;
    hy_control_options options = {.timeout = timeout, .open_timeout = 20};
    require(hy_control_open(ranks, &options, &control) == HY_OK);
    return control;
}

#endif
