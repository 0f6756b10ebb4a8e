/* control.c: opens and closes the control channel and reports failures to its owner. See
 * control.h. The other files of the channel are control_open.c (ranks connect), control_calls.c
 * (calls of all ranks) and control_thread.c (the thread and its connections). */
#include "comm/control.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "comm/control_parts.h"
#include "comm/net.h"

#define LAST_MESSAGE_SECONDS 2 /* to send goodbyes and failures */

static const hy_control_options standard = {.timeout = 60, .open_timeout = 600, .say_after = 10};

/* ---- opening --------------------------------------------------------------------------------- */

static hy_status allocate(hy_control *c) {
    size_t count = (size_t)c->ranks.count;
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->is_changed, &attributes);
    pthread_condattr_destroy(&attributes);
    c->members = calloc(count, sizeof *c->members);
    c->lines = calloc(count, sizeof *c->lines);
    c->arrivals = calloc(count, sizeof *c->arrivals);
    c->polled = calloc(count + 1, sizeof *c->polled);
    HY_FAIL_IF(!c->members || !c->lines || !c->arrivals || !c->polled, HY_ERR_MEMORY,
               "no memory for the control channel of %zu ranks", count);
    for (size_t r = 0; r < count; r++) c->lines[r].fd = -1;
    if (count == 1) return HY_OK;
    c->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    c->failure_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    HY_FAIL_IF(c->wake_fd < 0 || c->failure_fd < 0, HY_ERR_IO, "cannot open an event descriptor");
    return HY_OK;
}

static void free_control(hy_control *c) {
    for (int32_t r = 0; r < c->ranks.count; r++) {
        if (c->lines) hy_line_close(&c->lines[r]);
        if (c->arrivals) free(c->arrivals[r].data);
    }
    hy_net_close(&c->wake_fd);
    hy_net_close(&c->failure_fd);
    free(c->polled);
    free(c->arrivals);
    free(c->lines);
    free(c->members);
    free(c->answer);
    free(c->call);
    pthread_cond_destroy(&c->is_changed);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

hy_status hy_control_open(const hy_ranks *ranks, const hy_control_options *options,
                          hy_control **out) {
    *out = NULL;
    HY_FAIL_IF(ranks->count > 1 && !ranks->address[0], HY_ERR_INPUT,
               "the address of rank 0 is not known: set HYBRID_ADDRESS=host:port");
    hy_control *c = calloc(1, sizeof *c);
    HY_FAIL_IF(!c, HY_ERR_MEMORY, "no memory for the control channel");
    *c = (hy_control){.ranks = *ranks,
                      .options = options ? *options : standard,
                      .wake_fd = -1,
                      .failure_fd = -1,
                      .failed_rank = -1};
    hy_control_options *o = &c->options;
    if (o->timeout <= 0) o->timeout = standard.timeout;
    if (o->open_timeout <= 0) o->open_timeout = standard.open_timeout;
    if (o->say_after <= 0) o->say_after = standard.say_after;
    hy_status status = allocate(c);
    if (status == HY_OK) status = hy_control_meet(c);
    if (status == HY_OK && ranks->count > 1) status = hy_control_start(c);
    if (status != HY_OK)
        free_control(c);
    else
        *out = c;
    return status;
}

/* ---- closing --------------------------------------------------------------------------------- */

/* Waits until everything is sent, or until sending takes too long. */
static void wait_until_sent(hy_control *c) {
    struct timespec until;
    int error = 0;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += LAST_MESSAGE_SECONDS;
    while (!hy_line_is_idle(c) && error == 0)
        error = pthread_cond_timedwait(&c->is_changed, &c->lock, &until);
}

/* Rank 0 waits for the goodbyes of the others and then answers them. */
static void say_goodbye(hy_control *c) {
    hy_wire_head head = {.kind = HY_WIRE_BYE};
    for (int32_t r = 1; r < c->ranks.count && c->ranks.rank == 0; r++) {
        while (c->lines[r].state == LINE_OPEN && !c->has_failed)
            pthread_cond_wait(&c->is_changed, &c->lock);
    }
    for (int32_t r = 0; r < c->ranks.count && !c->has_failed; r++) hy_line_send(c, r, &head, NULL);
    wait_until_sent(c);
}

void hy_control_close(hy_control *c) {
    if (!c) return;
    if (c->has_thread) {
        pthread_mutex_lock(&c->lock);
        say_goodbye(c);
        pthread_mutex_unlock(&c->lock);
        hy_control_stop(c);
    }
    free_control(c);
}

/* ---- who ------------------------------------------------------------------------------------- */

int32_t hy_control_rank(const hy_control *c) { return c->ranks.rank; }
int32_t hy_control_count(const hy_control *c) { return c->ranks.count; }
double hy_control_timeout(const hy_control *c) { return c->options.timeout; }
const hy_member *hy_control_member(const hy_control *c, int32_t rank) { return &c->members[rank]; }

void hy_control_local(const hy_control *c, int32_t *rank, int32_t *count) {
    uint64_t machine = c->members[c->ranks.rank].machine;
    *rank = *count = 0;
    for (int32_t r = 0; r < c->ranks.count; r++) {
        if (c->members[r].machine != machine) continue;
        *rank += r < c->ranks.rank;
        *count += 1;
    }
}

/* ---- failure --------------------------------------------------------------------------------- */

hy_status hy_control_check(hy_control *c) {
    if (!atomic_load(&c->has_failed)) return HY_OK;
    pthread_mutex_lock(&c->lock);
    hy_status status = hy_error_restore(&c->failure);
    pthread_mutex_unlock(&c->lock);
    return status;
}

int32_t hy_control_failed_rank(hy_control *c) {
    pthread_mutex_lock(&c->lock);
    int32_t rank = c->failed_rank;
    pthread_mutex_unlock(&c->lock);
    return rank;
}

hy_status hy_control_fail(hy_control *c, hy_status status, const char *message) {
    char whole[HY_ERROR_MESSAGE_MAX];
    int32_t rank = c->ranks.rank;
    if (c->ranks.count == 1) return hy_fail(status, "%s", message);
    snprintf(whole, sizeof whole, "%s: %s", hy_control_name(c, rank).text, message);
    pthread_mutex_lock(&c->lock);
    hy_control_record(c, status, rank, whole);
    wait_until_sent(c);
    pthread_mutex_unlock(&c->lock);
    return hy_control_check(c);
}

int hy_control_failure_fd(const hy_control *c) { return c->failure_fd; }

void hy_control_on_failure(hy_control *c, void (*function)(void *user), void *user) {
    if (c->ranks.count == 1) return;
    pthread_mutex_lock(&c->lock);
    while (c->is_calling) pthread_cond_wait(&c->is_changed, &c->lock);
    assert(!function || !c->on_failure);
    c->on_failure = function;
    c->on_failure_user = user;
    hy_control_wake(c);
    pthread_mutex_unlock(&c->lock);
}
