/* cuda_link.h: the interface between the program and the CUDA backend, which is a separate shared
 * object.
 *
 * The program opens libhybrid_cuda.so when a device is needed and requests a backend from it. No
 * CUDA is linked into the program, so it starts on a machine without a driver. Of the program
 * it calls only the functions in hy_cuda_host. Both sides are built from the same source; the
 * version and sizeof(hy_op_call) detect a mix of builds. */
#pragma once

#include <stdarg.h>

#include "kernels/kernels.h"

#define HY_CUDA_LINK_VERSION 9
#define HY_CUDA_ENTRY "hy_cuda_entry"
#define HY_CUDA_LIBRARY "libhybrid_cuda.so"

/* The functions that the shared object may call. */
typedef struct hy_cuda_host {
    int32_t version;
    uint64_t call_bytes; /* sizeof(hy_op_call) */
    hy_status (*fail)(hy_status status, const char *format, va_list arguments);
    const char *(*error_message)(void); /* of the calling thread */
    hy_status (*op_check)(const hy_op_call *call);
    hy_status (*check_fp8)(const hy_op_call *call, const char *card, int capability);
    const char *(*op_name)(hy_op_kind kind);
    const char *(*tensor_name)(hy_op_kind kind, int position);
} hy_cuda_host;

/* HY_ERR_STATE, without a message: the two are from different builds. */
typedef hy_status (*hy_cuda_entry_function)(const hy_cuda_host *host,
                                            const hy_cuda_options *options, hy_backend **out);
