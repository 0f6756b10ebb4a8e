/* mpi_seam.h: the interface between the program and MPI, which is in its own shared object.
 *
 * The program opens libhybrid_mpi.so if MPI started the ranks or MPI is requested, so the
 * program itself does not link MPI. The shared object calls only the functions that are passed
 * here. The version detects mixed builds. MPI can be started only once per process, so these
 * functions have one global state. */
#pragma once

#include <stdarg.h>
#include <stdbool.h>

#include "comm/link.h"

#define HY_MPI_SEAM_VERSION 1
#define HY_MPI_ENTRY "hy_mpi_entry"

typedef struct hy_mpi_host {
    int32_t version;
    hy_status (*fail)(hy_status status, const char *format, va_list arguments);
    hy_status (*check)(hy_control *control); /* hy_control_check */
} hy_mpi_host;

typedef struct hy_mpi_calls {
    /* Starts MPI unless it runs, and returns this process's rank. */
    hy_status (*start)(int32_t *rank, int32_t *count);
    /* Copies rank 0's `data` to all ranks; HY_ERR_IO after this many seconds. */
    hy_status (*share)(void *data, size_t bytes, double seconds);
    hy_status (*exchange)(const hy_transfer *sends, int32_t send_count, const hy_transfer *receives,
                          int32_t receive_count, hy_control *control);
    /* Ends MPI; not after a failure, because ending waits for all ranks. */
    void (*finish)(bool has_failed);
} hy_mpi_calls;

/* HY_ERR_STATE, without a message, if the builds differ. */
typedef hy_status (*hy_mpi_entry_function)(const hy_mpi_host *host, hy_mpi_calls *out);
