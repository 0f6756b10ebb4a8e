/* selftest.h: the parts of the self-test: calls to try, known answers, rates. See hybrid.h.
 *
 * A call is made on the host from a table, so that the CPU can run it as it is and a GPU on a copy. */
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

/* Makes call number i, its activations of type `dtype`, of random numbers in host memory. False when i
 * is past the last, or the op does not come in this type. */
bool hy_selftest_call_make(int i, hy_dtype dtype, hy_op_call *call);
/* Whether number i exists in any type. */
bool hy_selftest_call_exists(int i);
void hy_selftest_call_free(hy_op_call *call);
/* Bytes of a tensor, of int8 and fp8 with the scales that lie behind its codes; and a tensor of these
 * bytes. */
size_t hy_selftest_bytes(const hy_tensor *t);
void hy_selftest_place(hy_tensor *t, void *data);

/* How far an op's output may be off in this type. */
double hy_selftest_allowed(hy_op_kind kind, hy_dtype dtype);

/* Prepares, runs and waits; the workspace is taken for the call alone. */
hy_status hy_selftest_run_call(const hy_selftest_device *device, hy_op_call *call);

void hy_selftest_tell_op(hy_selftest_run *run, const hy_selftest_op *op);
void hy_selftest_tell_rate(hy_selftest_run *run, const char *name, double value, const char *unit);

hy_status hy_selftest_parity(hy_selftest_run *run);  /* parity.c: GPU against CPU */
hy_status hy_selftest_answers(hy_selftest_run *run); /* answers.c: CPU, known answers */
hy_status hy_selftest_rates(hy_selftest_run *run);   /* rates.c */
