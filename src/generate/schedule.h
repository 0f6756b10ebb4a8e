/* schedule.h: which request is computed when: slots, chunks of prompts, steps.
 *
 * One round ends cancelled requests, begins the next request if there is room for it, enqueues at
 * most one chunk of a prompt, and a step of all answers that have their first token. Then it reads
 * results, except the last that it enqueued: so the device has the next step before the host looks
 * at the tokens of the one before. An answer may therefore be in one step too many, whose token is
 * not read; the host knows beforehand when max_tokens ends an answer, and enqueues no step more.
 *
 * One request at a time is *filled*: its prompt is computed. It begins only then, so it finds the
 * chunks of the prompts before it. Its answers share the prompt. If not all of them have room, the
 * others begin later and the prompt's last chunk is computed again. */
#pragma once

#include "generate/queue.h"
#include "generate/sequence.h"

typedef struct hy_schedule hy_schedule;

/* The decoder is placed; all its slots and blocks belong to the schedule. */
hy_status hy_schedule_create(hy_batch_decoder *decoder, const hy_codec *codec, hy_queue *queue,
                             hy_schedule **out);
void hy_schedule_destroy(hy_schedule *schedule); /* NULL is allowed; nothing is told */

/* *is_idle: there is nothing more to do. */
hy_status hy_schedule_round(hy_schedule *schedule, bool *is_idle);
/* Reads the results that rounds have left. */
hy_status hy_schedule_drain(hy_schedule *schedule);
/* After a failure: ends the requests that have begun, and forgets what was enqueued. The decoder
 * has to be placed again before the next round. */
void hy_schedule_abandon(hy_schedule *schedule);
