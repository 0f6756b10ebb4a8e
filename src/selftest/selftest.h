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

/* Prepares, runs and waits; the workspace is allocated for this call only. */
hy_status hy_selftest_run_call(const hy_selftest_device *device, hy_op_call *call);

void hy_selftest_tell_op(hy_selftest_run *run, const hy_selftest_op *op);
void hy_selftest_tell_rate(hy_selftest_run *run, const char *name, double value, const char *unit);

hy_status hy_selftest_parity(hy_selftest_run *run); /* parity.c: compares GPU and CPU */
/* answers.c: compares the CPU with known answers */
hy_status hy_selftest_answers(hy_selftest_run *run);
hy_status hy_selftest_rates(hy_selftest_run *run); /* rates.c */
