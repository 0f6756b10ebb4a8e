/* link_mpi.h: a link over MPI, and MPI's information about its ranks.
 *
 * MPI is in libhybrid_mpi.so, which is searched at HYBRID_MPI_LIBRARY and in the program's
 * folder. It was built against one MPI and runs only with that one. MPI runs from the first call
 * here to hy_mpi_finish(), and cannot start again. */
#pragma once

#include "comm/link.h"

/* Asks MPI for the address of rank 0 if it is not known: if MPI started ranks on several machines
 * and no variable sets it (ranks.h). All ranks call it. */
hy_status hy_mpi_find_address(hy_ranks *ranks);

/* Opens the shared object. HY_ERR_DEVICE: it or MPI is missing. Does not start MPI: a rank that
 * starts MPI alone may wait for the others forever. */
hy_status hy_mpi_find(void);
/* Starts MPI unless it runs. HY_ERR_INPUT if its ranks differ from the caller's. All ranks call
 * it. */
hy_status hy_mpi_start(int32_t rank, int32_t count);
bool hy_mpi_is_running(void);

/* Starts MPI unless it runs. All ranks call it. */
hy_status hy_link_open_mpi(hy_control *control, hy_link **out);

/* Ends MPI if it runs. Call it at the end of the process, after its links are destroyed and before
 * the control channel is closed. After a failure MPI is not ended: the process should exit, and
 * mpirun ends the others. */
void hy_mpi_finish(bool has_failed);
