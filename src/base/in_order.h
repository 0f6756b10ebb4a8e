/* in_order.h: several threads share work, and the results are taken in the order of the work.
 *
 * The result does not depend on the number of threads: tokens lie in a file in the order of their rows.
 * The calling thread is one of the workers. Each worker has its own slot, so the number of workers bounds
 * the memory. */
#pragma once

#include <stdbool.h>

#include "hybrid_types.h"

#define HY_MOST_WORKERS 256

typedef struct hy_in_order {
    void *context;
    /* One at a time: fills a slot; false: nothing is left. */
    bool (*next)(void *context, void *slot);
    hy_status (*work)(void *context, void *slot); /* many at a time */
    /* One at a time, in order. is_caller: on the thread that called hy_in_order_run. NULL: nothing is
     * handed in and nobody waits for those before it. */
    hy_status (*done)(void *context, void *slot, bool is_caller);
    void *slots; /* one for each worker, of slot_size bytes; the first is the calling thread's */
    size_t slot_size;
    int32_t workers; /* 1 to HY_MOST_WORKERS */
} hy_in_order;

/* Runs until nothing is left or something fails; then the first failure in order is returned. */
hy_status hy_in_order_run(const hy_in_order *job);
