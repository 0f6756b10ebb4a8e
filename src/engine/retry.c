/* retry.c: restores a consistent state after memory ran out, so that work can be repeated. See
 * engine.h.
 *
 * All memory is allocated before the first step, so a later shortage has an outside cause: the
 * driver loads code, or another program uses memory. That memory is often free again soon, so a
 * pause helps. After too many retries in a row, the error is returned. */
#include <time.h>

#include "base/error.h"
#include "engine/engine.h"

#define FIRST_PAUSE_MS 20

static void backoff(int times) {
    long ms = (long)FIRST_PAUSE_MS * times;
    struct timespec length = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    nanosleep(&length, NULL);
}

/* Writing rows to their backing stores launches work, so memory may run out here too. With several
 * ranks, these attempts are counted locally, because retries.in_a_row must be the same on all
 * ranks. */
hy_status hy_engine_settle_again(hy_engine *e) {
    hy_status status;
    int own = 0, *tries = e->team ? &own : &e->retries.in_a_row;
    while ((status = hy_engine_settle(e)) == HY_ERR_MEMORY && *tries < e->retries.most) {
        backoff(++*tries);
    }
    return status;
}

hy_status hy_engine_recover(hy_engine *e, hy_status status, hy_error *error) {
    hy_error_save(error, status);
    /* With several ranks, work is repeated only if all ranks have agreed that it failed. */
    bool may_retry = !e->team || error->origin == HY_ERROR_AGREED;
    if (status != HY_ERR_MEMORY || e->work->is_gone || !may_retry) return status;
    if (e->retries.in_a_row >= e->retries.most) {
        (void)hy_engine_settle(e);
        return hy_error_restore(error);
    }
    e->retries.in_a_row++;
    e->retries.count++;
    return hy_engine_settle_again(e);
}

void hy_engine_pause_and_report(hy_engine *e, const char *message, const char *how) {
    backoff(e->retries.in_a_row);
    if (e->retries.on_retry) e->retries.on_retry(e->retries.user, message, how);
}

hy_status hy_engine_prepare_retry(hy_engine *e, hy_status status) {
    hy_error error;
    HY_TRY(hy_engine_recover(e, status, &error));
    hy_engine_pause_and_report(e, error.text, "as it was");
    return HY_OK;
}
