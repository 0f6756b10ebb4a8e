/* link_mpi.c: finds and opens MPI's shared object, and makes a link over it. See link_mpi.h. */
#include "comm/link_mpi.h"
#include <errno.h>
#include <string.h>

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/beside.h"
#include "base/error.h"
#include "comm/link_kind.h"
#include "comm/mpi_seam.h"

#define LIBRARY "libhybrid_mpi.so"
#define SHARE_SECONDS 600.0

/* There is one MPI per process, so there is one of this too. */
static hy_mpi_calls mpi;
static bool is_running;

hy_status hy_mpi_find(void) {
    static const hy_mpi_host host = {
        .version = HY_MPI_SEAM_VERSION, .fail = hy_fail_list, .check = hy_control_check};
    char why[512];
    if (mpi.start) return HY_OK;
    void *library = hy_open_beside(LIBRARY, "HYBRID_MPI_LIBRARY", why, sizeof why);
    HY_FAIL_IF(!library && why[0], HY_ERR_DEVICE,
               "cannot open MPI: %s (Debian: package openmpi-bin); sockets work without it", why);
    HY_FAIL_IF(!library, HY_ERR_DEVICE,
               LIBRARY " was not found: build it with mpicc installed (Debian: packages "
                       "libopenmpi-dev and openmpi-bin); sockets work without it");
    hy_mpi_entry_function entry;
    *(void **)&entry = dlsym(library, HY_MPI_ENTRY);
    HY_FAIL_IF(!entry || entry(&host, &mpi) != HY_OK, HY_ERR_DEVICE,
               LIBRARY " comes from another build than this program: build both again, or set "
                       "HYBRID_MPI_LIBRARY to the matching library");
    return HY_OK;
}

hy_status hy_mpi_start(int32_t rank, int32_t count) {
    int32_t its_rank, its_count;
    HY_TRY(hy_mpi_find());
    HY_TRY(mpi.start(&its_rank, &its_count));
    is_running = true;
    HY_FAIL_IF(its_rank != rank || its_count != count, HY_ERR_INPUT,
               "MPI says that this is rank %d of %d, but the launcher's variables say %d of %d: "
               "start all ranks with one mpirun, from the MPI that hybrid-train was built with",
               its_rank, its_count, rank, count);
    return HY_OK;
}

bool hy_mpi_is_running(void) { return is_running; }

hy_status hy_mpi_find_address(hy_ranks *ranks) {
    struct {
        char host[HY_ADDRESS_MAX];
        hy_secret secret;
    } first = {.secret = ranks->secret};
    if (ranks->count == 1 || ranks->address[0]) return HY_OK;
    HY_TRY(hy_mpi_start(ranks->rank, ranks->count));
    HY_FAIL_IF(ranks->rank == 0 && gethostname(first.host, sizeof first.host - 1) != 0, HY_ERR_IO,
               "the host name could not be read (%s): set HYBRID_ADDRESS=host:port to the address "
               "of rank 0",
               strerror(errno));
    if (!first.secret.from[0]) HY_TRY(hy_secret_make(&first.secret));
    HY_TRY(mpi.share(&first, sizeof first, SHARE_SECONDS));
    first.host[sizeof first.host - 1] = first.secret.from[sizeof first.secret.from - 1] = 0;
    snprintf(ranks->address, sizeof ranks->address, "%s", first.host);
    ranks->secret = first.secret;
    return HY_OK;
}

void hy_mpi_finish(bool has_failed) {
    if (mpi.finish) mpi.finish(has_failed);
    is_running = false;
}

/* ---- the link -------------------------------------------------------------------------------- */

static hy_status exchange(hy_link *link, const hy_transfer *sends, int32_t send_count,
                          const hy_transfer *receives, int32_t receive_count) {
    return mpi.exchange(sends, send_count, receives, receive_count, link->control);
}

static void destroy(hy_link *link) { free(link); }

static const hy_link_kind kind = {.name = "MPI", .exchange = exchange, .destroy = destroy};

hy_status hy_link_open_mpi(hy_control *control, hy_link **out) {
    *out = NULL;
    HY_TRY(hy_mpi_start(hy_control_rank(control), hy_control_count(control)));
    hy_link *link = calloc(1, sizeof *link);
    HY_FAIL_IF(!link, HY_ERR_MEMORY, "not enough memory for a link");
    hy_link_init(link, &kind, control);
    hy_status status = hy_control_barrier(control);
    if (status != HY_OK)
        destroy(link);
    else
        *out = link;
    return status;
}
