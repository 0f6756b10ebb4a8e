/* backend.cuh: streams and events of the CUDA backend (stream.cu) and its pinned memory
 * (pinned.cu), for the function table. */
#pragma once

#include "kernels/cuda/cuda.cuh"

/* Sets the functions of streams, events, copies and graphs. */
void hy_cuda_add_streams(hy_backend *b);
void *hy_cuda_stream_driver(hy_stream *s); /* its cudaStream_t */
hy_cuda *hy_cuda_stream_owner(hy_stream *s);

/* The op table (backend.cu); `run` is NULL: no such op. */
hy_cuda_op hy_cuda_op_of(hy_op_kind kind);

/* op_time.cu */
double hy_cuda_op_seconds(hy_backend *b, const hy_op_call *call);

/* Pinned host memory; unpin frees what pin returned. */
hy_status hy_cuda_pin(hy_cuda *cuda, size_t bytes, void **out);
void hy_cuda_unpin(void *data);
