/* queue.h: the requests of a generator that are not answered yet, in the order of their arrival.
 *
 * Any thread adds and cancels. One thread schedules: it takes requests from the front, begins their
 * answers, and removes them. A request keeps its place until all its answers have begun, so none
 * overtakes another. */
#pragma once

#include "generate/task.h"

typedef struct hy_queue hy_queue;

hy_status hy_queue_create(int32_t most_waiting, hy_queue **out); /* 0: no limit */
void hy_queue_destroy(hy_queue *queue); /* with all its tasks; NULL is allowed */

/* ---- any thread ------------------------------------------------------------------------------ */

/* Gives the task an id, and takes it over. HY_ERR_STATE: too many wait; the caller keeps it. */
hy_status hy_queue_add(hy_queue *queue, hy_task *task, int64_t *id);
bool hy_queue_cancel(hy_queue *queue, int64_t id); /* false: there is no such request now */
void hy_queue_wake(hy_queue *queue); /* ends hy_queue_wait; safe in a signal handler */
/* What has happened so far; `running` and `cache_tokens_used` are as last counted. */
void hy_queue_read(hy_queue *queue, hy_generator_state *out);

/* ---- the thread that schedules --------------------------------------------------------------- */

/* Waits until a request was added or cancelled since the last wait, or hy_queue_wake. */
void hy_queue_wait(hy_queue *queue);
hy_task *hy_queue_front(hy_queue *queue); /* the first with answers that have not begun, or NULL */
hy_task *hy_queue_next_cancelled(hy_queue *queue);   /* NULL: none; each is returned once */
void hy_queue_begin(hy_queue *queue, hy_task *task); /* it does not wait any more */
void hy_queue_remove(hy_queue *queue,
                     hy_task *task); /* it counts as finished; the caller frees it */
/* Adds to the counts of prompt_tokens, tokens and busy_seconds, and sets running and
 * cache_tokens_used. */
void hy_queue_count(hy_queue *queue, const hy_generator_state *more);
