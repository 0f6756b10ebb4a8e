/* event.h: the side of an event that streams use. A ticket drawn or read counts as a user of the
 * event until it is fired or awaited; an event with users is not freed. */
#ifndef HY_KERNELS_CPU_EVENT_H
#define HY_KERNELS_CPU_EVENT_H

#include <pthread.h>

#include "kernels/kernels.h"

uint64_t hy_cpu_event_draw(hy_event *e); /* a record was queued: its ticket */
uint64_t hy_cpu_event_last(hy_event *e); /* a wait was queued: the ticket it waits for */
void hy_cpu_event_fire(hy_event *e, uint64_t ticket);
void hy_cpu_event_await(hy_event *e, uint64_t ticket);

#endif
