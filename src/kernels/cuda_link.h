/* cuda_link.h: the seam between the program and the CUDA backend, which is a shared object of its own.
 *
 * The program opens libhybrid_cuda.so when a device is wanted and asks it for a backend; nothing of CUDA
 * is linked into the program, so it starts on a machine without a driver. The shared object calls back
 * only what is handed to it here: messages, and the check of the op table. Both sides are built from one
 * source; the version and the size of a call tell a mix of builds apart. */
#pragma once

#include <stdarg.h>

#include "kernels/kernels.h"

#define HY_CUDA_LINK_VERSION 8
#define HY_CUDA_ENTRY "hy_cuda_entry"
#define HY_CUDA_LIBRARY "libhybrid_cuda.so"

/* What the shared object may ask of the program. */
typedef struct hy_cuda_host {
    int32_t version;
    uint64_t call_bytes; /* sizeof(hy_op_call) */
    hy_status (*fail)(hy_status status, const char *format, va_list arguments);
    const char *(*error_message)(void); /* of the calling thread */
    hy_status (*op_check)(const hy_op_call *call);
    const char *(*op_name)(hy_op_kind kind);
    const char *(*tensor_name)(hy_op_kind kind, int position);
} hy_cuda_host;

/* HY_ERR_STATE, without a message, when the two are not of one build. */
typedef hy_status (*hy_cuda_entry_function)(const hy_cuda_host *host,
                                            const hy_cuda_options *options, hy_backend **out);
