/* backend.cuh: streams and events of the CUDA backend (stream.cu) and its pinned memory
 * (pinned.cu), for the function table. */
#pragma once

#include "kernels/cuda/cuda.cuh"

hy_status hy_cuda_stream_create(hy_backend *b, const char *name, hy_stream **out);
void *hy_cuda_stream_driver(hy_stream *s);
hy_status hy_cuda_stream_adopt(hy_backend *b, void *handle, hy_stream **out);
void hy_cuda_stream_destroy(hy_stream *s);
hy_status hy_cuda_stream_sync(hy_stream *s);
double hy_cuda_stream_waited(hy_stream *s);
hy_status hy_cuda_stream_copy(hy_stream *s, void *dst, const void *src, size_t bytes);
hy_status hy_cuda_stream_call(hy_stream *s, hy_status (*function)(void *argument), void *argument);
hy_status hy_cuda_stream_wait(hy_stream *s, hy_event *e);
hy_status hy_cuda_capture_begin(hy_stream *s);
hy_status hy_cuda_capture_end(hy_stream *s, hy_graph **out);
hy_status hy_cuda_replay(hy_stream *s, hy_graph *graph);
void hy_cuda_graph_destroy(hy_graph *graph);
hy_cuda *hy_cuda_stream_owner(hy_stream *s);

hy_status hy_cuda_event_create(hy_backend *b, hy_event **out);
void hy_cuda_event_destroy(hy_event *e);
hy_status hy_cuda_event_record(hy_event *e, hy_stream *s);
hy_status hy_cuda_event_sync(hy_event *e);
bool hy_cuda_event_is_done(hy_event *e);

/* The op table (backend.cu); `run` is NULL: no such op. */
hy_cuda_op hy_cuda_op_of(hy_op_kind kind);

/* op_time.cu */
double hy_cuda_op_seconds(hy_backend *b, const hy_op_call *call);

/* Pinned host memory; unpin frees what pin returned. */
hy_status hy_cuda_pin(hy_cuda *cuda, size_t bytes, void **out);
void hy_cuda_unpin(void *data);
