/* in_order.h: several threads share work, and results are delivered in the order of the work.
 *
 * So the result does not depend on the number of threads: tokens are in a file in the order of
 * their rows. The calling thread is one of the workers. Each worker has its own slot, so the number
 * of workers limits the memory. */
#pragma once

#include <stdbool.h>

#include "hybrid_types.h"

#define HY_MOST_WORKERS 256

typedef struct hy_in_order {
    void *context;
    /* Called by one thread at a time: fills a slot; false: no work is left. */
    bool (*next)(void *context, void *slot);
    hy_status (*work)(void *context, void *slot); /* called by many threads at a time */
    /* Called by one thread at a time, in order. is_caller: on the thread that called
     * hy_in_order_run. NULL: results are not delivered, and threads do not wait for earlier
     * ones. */
    hy_status (*done)(void *context, void *slot, bool is_caller);
    void *slots; /* one per worker, of slot_size bytes; the first is for the calling thread */
    size_t slot_size;
    int32_t workers; /* 1 to HY_MOST_WORKERS */
} hy_in_order;

/* Runs until no work is left or something fails; returns the first failure in order. */
hy_status hy_in_order_run(const hy_in_order *job);
