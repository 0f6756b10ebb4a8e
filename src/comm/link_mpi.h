/* link_mpi.h: a link over MPI, and what MPI knows of the ranks it started.
 *
 * MPI is in libhybrid_mpi.so, which is looked for where HYBRID_MPI_LIBRARY says and beside the
 * program. It was built against one MPI and runs with that one. MPI runs from the first call here
 * to hy_mpi_finish(), and not again. */
#pragma once

#include "comm/link.h"

/* Where MPI started ranks on several machines and nobody said where rank 0 waits (ranks.h): asks
 * MPI. Does nothing where the address is known. All ranks call it. */
hy_status hy_mpi_find_address(hy_ranks *ranks);

/* Opens the shared object. HY_ERR_DEVICE where it or MPI is missing. Starts nothing: a rank that
 * starts MPI alone may wait for the others for ever. */
hy_status hy_mpi_find(void);
/* Starts MPI unless it runs. HY_ERR_INPUT where it counts ranks otherwise than its caller. All
 * ranks call it. */
hy_status hy_mpi_start(int32_t rank, int32_t count);
bool hy_mpi_is_running(void);

/* Starts MPI unless it runs. All ranks call it. */
hy_status hy_link_open_mpi(hy_control *control, hy_link **out);

/* At the end of a process that called one of the above, after its links and before it closes the
 * control channel; does nothing otherwise. Where something failed MPI is left as it is: the process
 * should end, and mpirun ends the others. */
void hy_mpi_finish(bool has_failed);
