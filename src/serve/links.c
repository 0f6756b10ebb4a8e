/* links.c: watches connections. See links.h.
 *
 * A connection is cut with shutdown(), never closed here: its own thread notices and closes it. The
 * mutex is held meanwhile, so a descriptor cannot belong to another connection. */
#include "serve/links.h"

#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/thread.h"

#define TICK 0.1 /* seconds between two looks */

struct hy_link {
    hy_links *links;
    hy_link *next, **from;
    int fd;
    double deadline;
    bool is_busy;
    hy_job *job;
};

struct hy_links {
    double patience;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed; /* the first connection, or the end */
    bool has_ended;
    hy_link *first;
};

/* ---- the watch ------------------------------------------------------------------------------- */

static bool has_left(const hy_link *link) {
    struct pollfd it = {.fd = link->fd, .events = POLLRDHUP};
    return poll(&it, 1, 0) > 0 && (it.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

static void cut(hy_link *link) {
    shutdown(link->fd, SHUT_RDWR);
    link->deadline = INFINITY;
}

static void look(hy_link *link, double now) {
    if (link->job && has_left(link)) hy_job_end(link->job, HY_JOB_LEFT);
    bool is_slow = link->job && hy_job_now(link->job) == HY_JOB_SLOW;
    if (is_slow || now > link->deadline) cut(link);
}

/* Waits a moment; without connections, for the first. */
static void pause_watch(hy_links *links) {
    struct timespec until;
    if (!links->first) {
        pthread_cond_wait(&links->changed, &links->mutex);
        return;
    }
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += (long)(TICK * 1e9);
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    while (!links->has_ended &&
           pthread_cond_timedwait(&links->changed, &links->mutex, &until) == 0) {}
}

static void *watch(void *argument) {
    hy_links *links = argument;
    pthread_mutex_lock(&links->mutex);
    while (!links->has_ended) {
        pause_watch(links);
        double now = hy_clock();
        for (hy_link *link = links->first; link; link = link->next) look(link, now);
    }
    pthread_mutex_unlock(&links->mutex);
    return NULL;
}

hy_status hy_links_create(double patience, hy_links **out) {
    pthread_condattr_t monotonic;
    hy_links *links = calloc(1, sizeof *links);
    HY_FAIL_IF(!links, HY_ERR_MEMORY, "out of memory for connections");
    links->patience = patience;
    pthread_mutex_init(&links->mutex, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&links->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (hy_thread_start(&links->thread, "hy-watch", watch, links) != 0) {
        free(links);
        return hy_fail(HY_ERR_MEMORY, "no thread can be started to watch connections");
    }
    *out = links;
    return HY_OK;
}

void hy_links_destroy(hy_links *links) {
    if (!links) return;
    pthread_mutex_lock(&links->mutex);
    links->has_ended = true;
    pthread_cond_signal(&links->changed);
    pthread_mutex_unlock(&links->mutex);
    pthread_join(links->thread, NULL);
    pthread_cond_destroy(&links->changed);
    pthread_mutex_destroy(&links->mutex);
    free(links);
}

/* ---- connections ----------------------------------------------------------------------------- */

hy_link *hy_link_open(hy_links *links, int fd) {
    hy_link *link = calloc(1, sizeof *link);
    if (!link) return NULL;
    *link = (hy_link){.links = links, .fd = fd, .deadline = hy_clock() + links->patience};
    pthread_mutex_lock(&links->mutex);
    link->next = links->first;
    link->from = &links->first;
    if (links->first) links->first->from = &link->next;
    links->first = link;
    if (!link->next) pthread_cond_signal(&links->changed);
    pthread_mutex_unlock(&links->mutex);
    return link;
}

void hy_link_close(hy_link *link) {
    if (!link) return;
    pthread_mutex_lock(&link->links->mutex);
    *link->from = link->next;
    if (link->next) link->next->from = link->from;
    pthread_mutex_unlock(&link->links->mutex);
    free(link);
}

static void change(hy_link *link, bool is_busy, hy_job *job, double deadline) {
    if (!link) return;
    pthread_mutex_lock(&link->links->mutex);
    link->is_busy = is_busy;
    link->job = job;
    link->deadline = deadline;
    pthread_mutex_unlock(&link->links->mutex);
}

void hy_link_expects_request(hy_link *link) {
    change(link, false, NULL, hy_clock() + (link ? link->links->patience : 0));
}
void hy_link_waits(hy_link *link, hy_job *job) { change(link, true, job, INFINITY); }
void hy_link_reads(hy_link *link, hy_job *job) {
    change(link, true, job, hy_clock() + (link ? link->links->patience : 0));
}

int hy_links_busy(hy_links *links) {
    int count = 0;
    pthread_mutex_lock(&links->mutex);
    for (hy_link *link = links->first; link; link = link->next) count += link->is_busy;
    pthread_mutex_unlock(&links->mutex);
    return count;
}

void hy_links_cut_idle(hy_links *links) {
    pthread_mutex_lock(&links->mutex);
    for (hy_link *link = links->first; link; link = link->next)
        if (!link->is_busy) cut(link);
    pthread_mutex_unlock(&links->mutex);
}

void hy_links_stop_jobs(hy_links *links) {
    pthread_mutex_lock(&links->mutex);
    for (hy_link *link = links->first; link; link = link->next)
        if (link->job) hy_job_end(link->job, HY_JOB_STOPPED);
    pthread_mutex_unlock(&links->mutex);
}
