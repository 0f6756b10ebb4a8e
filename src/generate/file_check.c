/* file_check.c: reads all rows of a file before the first is asked. See file.h.
 *
 * A mistake in the last row is then known at once and not after hours. Several threads do it,
 * because each prompt becomes tokens. */
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/in_order.h"
#include "generate/file.h"

enum { ROWS_AT_A_TIME = 64, MOST_THREADS = 32 };
#define SHOW_SECONDS 0.1

typedef struct batch {
    hy_row rows[ROWS_AT_A_TIME];
    int32_t count;
    double share; /* of the data, up to its last row */
    hy_asked_row asked;
} batch;

typedef struct checking {
    const hy_file_check *check;
    hy_row_scan scan;
    const char *begin;
    atomic_bool *stop_requested;
    double shown;
} checking;

static bool take_rows(void *context, void *slot) {
    checking *c = context;
    batch *b = slot;
    if (atomic_load(c->stop_requested)) return false;
    for (b->count = 0; b->count < ROWS_AT_A_TIME; b->count++)
        if (!hy_rows_next(&c->scan, &b->rows[b->count])) break;
    b->share = (double)(c->scan.at - c->begin) / (double)(c->scan.end - c->begin);
    return b->count > 0;
}

static hy_status read_rows(void *context, void *slot) {
    const checking *c = context;
    batch *b = slot;
    for (int32_t i = 0; i < b->count; i++) {
        hy_status status = hy_asked_row_read(&b->asked, c->check->how, &b->rows[i], 0);
        bool is_skipped = status == HY_ERR_INPUT && c->check->options->skips_bad;
        if (!is_skipped) HY_TRY(status);
    }
    return HY_OK;
}

static hy_status count_rows(void *context, void *slot, bool is_caller) {
    checking *c = context;
    const batch *b = slot;
    const hy_generate_file_options *o = c->check->options;
    hy_generate_file_state *state = c->check->state;
    state->rows += b->count;
    state->checked = b->share;
    if (!is_caller || !o->on_progress || hy_clock() - c->shown < SHOW_SECONDS) return HY_OK;
    c->shown = hy_clock();
    o->on_progress(o->user, state);
    return HY_OK;
}

static int32_t count_threads(void) {
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    return cores < 1 ? 1 : cores > MOST_THREADS ? MOST_THREADS : (int32_t)cores;
}

hy_status hy_file_check_rows(const hy_file_check *check, const hy_row_source *source) {
    hy_generator_parts parts = hy_generator_look_inside(check->generator);
    checking c = {.check = check,
                  .scan = source->scan,
                  .begin = source->file.data,
                  .stop_requested = parts.stop_requested};
    hy_in_order job = {.context = &c,
                       .next = take_rows,
                       .work = read_rows,
                       .done = count_rows,
                       .slot_size = sizeof(batch),
                       .workers = count_threads()};
    batch *slots = calloc((size_t)job.workers, sizeof *slots);
    HY_FAIL_IF(!slots, HY_ERR_MEMORY, "not enough memory to read %s", source->name);
    job.slots = slots;
    check->state->rows = 0;
    check->state->is_checking = true;
    hy_status status = hy_in_order_run(&job);
    check->state->is_checking = false;
    for (int32_t i = 0; i < job.workers; i++) hy_asked_row_free(&slots[i].asked);
    free(slots);
    if (status == HY_OK && atomic_exchange(c.stop_requested, false))
        return hy_fail(HY_STOPPED, "checking %s was stopped", source->name);
    return status;
}
