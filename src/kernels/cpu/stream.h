/* stream.h: streams and events of the CPU backend.
 *
 * A stream is a thread with a queue of fixed length. It runs ops, copies, functions of the caller,
 * event records and event waits in order, in parallel with the caller and with other streams. See
 * stream.c. */
#pragma once

#include "kernels/kernels.h"

/* Runs one op on the calling thread (backend.c). */
typedef hy_status (*hy_cpu_execute)(void *context, const hy_op_call *call);

typedef struct hy_stream_options {
    const char *name;
    hy_cpu_execute execute;
    void *context;          /* for execute */
    int delay_microseconds; /* tests: wait up to this before each entry */
    uint64_t delay_seed;
} hy_stream_options;

hy_status hy_cpu_stream_create(const hy_stream_options *options, hy_stream **out);
void hy_cpu_stream_destroy(hy_stream *s); /* runs queued entries first */
hy_status hy_cpu_stream_sync(hy_stream *s);
double hy_cpu_stream_waited(hy_stream *s); /* seconds it has waited for events so far */
hy_status hy_cpu_stream_enqueue(hy_stream *s, const hy_op_call *call);
hy_status hy_cpu_stream_copy(hy_stream *s, void *dst, const void *src, size_t bytes);
hy_status hy_cpu_stream_call(hy_stream *s, hy_status (*function)(void *argument), void *argument);
hy_status hy_cpu_stream_wait(hy_stream *s, hy_event *e);

hy_status hy_cpu_event_create(hy_backend *b, hy_event **out);
void hy_cpu_event_destroy(hy_event *e); /* waits for queued records and waits of it */
hy_status hy_cpu_event_record(hy_event *e, hy_stream *s);
hy_status hy_cpu_event_sync(hy_event *e);
bool hy_cpu_event_is_done(hy_event *e);
