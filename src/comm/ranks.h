/* ranks.h: which rank this process is, of how many, and at which address rank 0 listens.
 *
 * A launcher says so in environment variables. They are looked for in this order: our own launcher
 * (launch.h), torchrun, Open MPI, MPICH and other launchers that speak PMI, Slurm's srun. Without
 * any of them there is one rank. HY_ERR_INPUT if a set of variables is incomplete or contradictory,
 * or if two launchers disagree. Only Slurm's variables may differ from another launcher's, because
 * every other launcher may run inside a Slurm step.
 *
 *   HYBRID_RANK, HYBRID_RANKS, HYBRID_LOCAL_RANK, HYBRID_LOCAL_RANKS, HYBRID_ADDRESS=host:port
 *   RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT
 *   OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE
 *   PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS
 *   SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID, SLURM_STEP_ID, SLURM_STEP_NODELIST
 *
 * With any launcher, HYBRID_ADDRESS, or MASTER_ADDR with MASTER_PORT, sets rank 0's address. */
#pragma once

#include <stdbool.h>

#include "hybrid_types.h"

#define HY_ADDRESS_MAX 256

typedef enum hy_ranks_source {
    HY_RANKS_ALONE = 0,
    HY_RANKS_LAUNCHER = 1,
    HY_RANKS_TORCHRUN = 2,
    HY_RANKS_OPENMPI = 3,
    HY_RANKS_PMI = 4,
    HY_RANKS_SLURM = 5
} hy_ranks_source;

typedef struct hy_ranks {
    int32_t rank, count;
    int32_t local_rank, local_count; /* on this machine; local_count 0: not known */
    hy_ranks_source source;
    /* The address of rank 0: the first free one of HY_PORTS ports from `port` on. address is ""
     * if MPI started several machines and only MPI knows it: hy_mpi_find_address() (link_mpi.h). */
    char address[HY_ADDRESS_MAX];
    uint16_t port;
    uint64_t job; /* equal on all ranks of a job, and very likely different in other jobs */
} hy_ranks;

#define HY_PORTS 16

/* HY_ERR_INPUT names the variables, their values and what is expected. */
hy_status hy_ranks_find(hy_ranks *out);

/* "torchrun", "Open MPI", ...; for messages. "": no launcher. */
const char *hy_ranks_source_name(hy_ranks_source source);
/* The variable with the number of ranks: "WORLD_SIZE". */
const char *hy_ranks_count_variable(hy_ranks_source source);

/* Splits "host:port" or "[2001:db8::1]:port". `name`: the variable, for messages. */
hy_status hy_address_parse(const char *name, const char *text, char host[HY_ADDRESS_MAX],
                           uint16_t *port);
