/* mpi_seam.h: the seam between the program and MPI, which is in a shared object of its own.
 *
 * The program opens libhybrid_mpi.so when ranks were started by MPI or MPI is asked for, so that
 * nothing of MPI is linked into it. The shared object calls back only what is handed to it here.
 * The version tells a mix of builds apart. MPI can be started once in a process and is one for all
 * of it; so is what is behind these calls. */
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
    /* Starts MPI unless it runs, and says who this is. */
    hy_status (*start)(int32_t *rank, int32_t *count);
    /* Everybody's `data` becomes that of rank 0; HY_ERR_IO after so many seconds. */
    hy_status (*share)(void *data, size_t bytes, double seconds);
    hy_status (*exchange)(const hy_transfer *sends, int32_t send_count, const hy_transfer *receives,
                          int32_t receive_count, hy_control *control);
    /* Ends MPI; where something failed it is left alone, because ending waits for all ranks. */
    void (*finish)(bool has_failed);
} hy_mpi_calls;

/* HY_ERR_STATE, without a message, when the two are not of one build. */
typedef hy_status (*hy_mpi_entry_function)(const hy_mpi_host *host, hy_mpi_calls *out);
