/* retry.c: what memory that runs out leaves behind is put in order, so that work can be done again. See
 * engine.h.
 *
 * Memory is taken before the first step, so a shortage later comes from outside: a driver that cannot load
 * what it needs, another program, the machine. Whoever took it may give it back at once, so that a pause
 * often helps; after too many shortages in a row the status is handed on. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "engine/engine.h"

#define FIRST_PAUSE_MS 20

static void backoff(int times) {
    long ms = (long)FIRST_PAUSE_MS * times;
    struct timespec length = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    nanosleep(&length, NULL);
}

/* Writing rows to their backing stores needs launches, too. Of several ranks this is one's own, and how often work was
 * done again is not: it is counted apart. */
hy_status hy_engine_settle_again(hy_engine *e) {
    hy_status status;
    int own = 0, *tries = e->team ? &own : &e->retries.in_a_row;
    while ((status = hy_engine_settle(e)) == HY_ERR_MEMORY &&
           *tries < e->settings->memory.recovery_tries) {
        backoff(++*tries);
    }
    return status;
}

static bool is_everybodys(const hy_retries *r, const char *message) {
    size_t length = r->agreed ? strlen(r->agreed) : 0;
    return length > 0 && strncmp(message, r->agreed, length) == 0;
}

hy_status hy_engine_recover(hy_engine *e, hy_status status, char message[HY_ERROR_MESSAGE_MAX]) {
    snprintf(message, HY_ERROR_MESSAGE_MAX, "%s", hy_error_message());
    /* Of several ranks none does again alone what the others have done, or wait for. */
    bool may_retry = !e->team || is_everybodys(&e->retries, message);
    if (status != HY_ERR_MEMORY || e->work.is_gone || !may_retry) return status;
    if (e->retries.in_a_row >= e->settings->memory.recovery_tries) {
        (void)hy_engine_settle(e);
        return hy_fail(status, "%s", message);
    }
    e->retries.in_a_row++;
    e->retries.count++;
    return hy_engine_settle_again(e);
}

void hy_engine_tell_retry(hy_engine *e, const char *message, const char *how) {
    backoff(e->retries.in_a_row);
    if (e->retries.on_retry) e->retries.on_retry(e->retries.user, message, how);
}

hy_status hy_engine_retry(hy_engine *e, hy_status status) {
    char message[HY_ERROR_MESSAGE_MAX];
    HY_TRY(hy_engine_recover(e, status, message));
    hy_engine_tell_retry(e, message, "as it was");
    return HY_OK;
}
