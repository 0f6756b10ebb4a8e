/* selftest.h: the parts of the self-test: calls, known answers, rates. See hybrid.h.
 *
 * A call is created on the host from a table, so that the CPU can run it directly and a GPU on a
 * copy. */
#pragma once

#include "hybrid.h"
#include "hybrid_tools.h"
#include "kernels/kernels.h"

/* A device being tested. */
typedef struct hy_selftest_device {
    hy_backend *backend;
    hy_stream *stream;
} hy_selftest_device;

/* Device memory of one test or measurement, released together. Begin with {.backend = b}. */
typedef struct hy_selftest_memory {
    hy_backend *backend;
    void *taken[8];
    int count;
} hy_selftest_memory;

typedef struct hy_selftest_run {
    hy_selftest_device cpu, gpu; /* gpu.backend NULL: the CPU itself is tested */
    const hy_selftest_observer *observer;
    hy_selftest_result *result;
} hy_selftest_run;

/* Creates call number i with random numbers in host memory and activations of type `dtype`. False:
 * i is past the last, or the op does not exist in this type. */
bool hy_selftest_call_make(int i, hy_dtype dtype, hy_op_call *call);
/* Whether call i exists in any type. */
bool hy_selftest_call_exists(int i);
void hy_selftest_call_free(hy_op_call *call);
/* The bytes of a tensor, including the scales behind the values of int8 and fp8; and a tensor in
 * these bytes. */
size_t hy_selftest_bytes(const hy_tensor *t);
void hy_selftest_place(hy_tensor *t, void *data);

/* The tolerance for an op's output in this type. */
double hy_selftest_allowed(hy_op_kind kind, hy_dtype dtype);

void hy_selftest_close_device(hy_selftest_device *device);
hy_status hy_selftest_take(hy_selftest_memory *m, size_t bytes, void **out);
/* Fills the tensor with normal random numbers: equal numbers would use less power and run faster
 * than a model. */
hy_status hy_selftest_take_tensor(hy_selftest_memory *m, hy_stream *stream, hy_dtype dtype,
                                  int64_t rows, int64_t cols, hy_tensor *out);
/* Makes a call ready to be enqueued, with its workspace. */
hy_status hy_selftest_prepare(hy_selftest_memory *m, hy_op_call *call);
/* A matmul of two square matrices, ready to be enqueued. */
hy_status hy_selftest_matmul(hy_selftest_memory *m, hy_stream *stream, hy_dtype dtype, int64_t size,
                             hy_op_call *call);
void hy_selftest_release(hy_selftest_memory *m);
/* Prepares, runs and waits; the workspace is allocated for this call only. */
hy_status hy_selftest_run_call(const hy_selftest_device *device, hy_op_call *call);

void hy_selftest_report_op(hy_selftest_run *run, const hy_selftest_op *op);
void hy_selftest_report_rate(hy_selftest_run *run, const char *name, double value,
                             const char *unit);

hy_status hy_selftest_parity(hy_selftest_run *run); /* parity.c: compares GPU and CPU */
/* answers.c: compares the CPU with known answers */
hy_status hy_selftest_answers(hy_selftest_run *run);
hy_status hy_selftest_rates(hy_selftest_run *run); /* rates.c */
