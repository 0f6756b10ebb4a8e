/* loop.h: a loop and its calls; inside this module only. See loop.c. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "custom/custom.h"
#include "trainer/resize.h"

typedef enum order { ORDER_ANSWER, ORDER_SAVE, ORDER_PLAN, ORDER_STOP, ORDER_ABANDON } order;

/* What the caller does with the units of its loop. */
typedef struct hy_held_units {
    int32_t *holds; /* (units) holds without their release */
    int32_t held;   /* their sum */
    int64_t tokens; /* targets of the gradients that were added; 0: none */
    bool is_broken; /* a unit could not be used, so gradients of the step are missing */
} hy_held_units;

struct hy_loop {
    hy_custom_provider custom; /* first member: operations get a pointer to it */
    hy_provider_ops ops;
    const hy_config *config; /* used while the run is made, like the observer */
    const hy_observer *observer;
    hy_trainer *trainer; /* NULL: not made yet */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t turned;
    bool
        is_runs_turn; /* guarded by the lock; what follows belongs to the thread whose turn it is */
    order order;
    hy_error ordered;            /* the result of the order */
    const hy_loop_step *request; /* NULL: no request is open */
    hy_program_answer given;
    bool is_over;
    hy_error result; /* result of the run, once it is over */
    hy_held_units units;
    hy_callers_part caller; /* of ORDER_PLAN */
    hy_step_info *last;     /* the newest step; step 0: none yet */
    atomic_flag is_busy;    /* a call is in progress */
    hy_loop *next;          /* next in the list of all loops */
};

/* Enters a loop for a call, if it exists and no other call is in progress; `removes`: the last one.
 * hy_loop_leave ends the call and returns the given status. */
hy_status hy_loop_enter(hy_loop *loop, const char *call, bool removes);
hy_status hy_loop_leave(hy_loop *loop, hy_status status);
hy_status hy_loop_no_parameter(const hy_loop *loop, int32_t parameter); /* HY_ERR_INPUT */
/* hy_loop_enter between two steps: gradients are requested, and the run's thread waits. */
hy_status hy_loop_begin_call(hy_loop *loop, const char *call, hy_trainer **out);
