/* team.h: a run's connection to its ranks: its own rank, the control channel and the link for data.
 *
 * A process that was not started as one of several is alone: it has no team, nothing is opened,
 * and callers check `team` first. Only if NCCL is requested is there a team of one, which
 * exchanges with itself. Every rank opens its team once, before it opens its device, and closes
 * it at the end; MPI cannot be started a second time in a process. */
#pragma once

#include "comm/link.h"

typedef enum hy_link_choice {
    HY_LINK_AUTO = 0, /* MPI if MPI started all ranks and works on all, else sockets */
    HY_LINK_SOCKETS = 1,
    HY_LINK_MPI = 2,
    HY_LINK_NCCL = 3
} hy_link_choice;

typedef struct hy_team {
    hy_ranks who; /* from the launcher's variables */
    /* Position among the ranks of this machine and their number. They are counted, so they are
     * known even if the launcher does not set them. */
    int32_t local_rank, local_count;
    /* The number of ranks that may run on the same cores, including this one: a launcher that
     * binds ranks gives each its own cores. */
    int32_t core_sharers;
    hy_control *control;
    hy_link *link;
    const char *link_name; /* "sockets", "MPI"; "NCCL" if that moves device memory */
    /* NCCL moves device memory, and the link only small data. The owner sets this when it knows
     * the cards. */
    bool uses_nccl;
} hy_team;

typedef struct hy_team_options {
    hy_link_choice link;
    double timeout;          /* seconds of silence after which a rank is lost (control.h); 0: 60 */
    uint64_t agreed;         /* must be equal on all ranks: a hash of the settings */
    const char *agreed_name; /* its name in messages; NULL: "settings" */
    hy_link_options link_options;
    hy_observer observer; /* messages while ranks connect */
} hy_team_options;

/* Waits until all ranks are connected. *out is NULL if this process is alone. If the requested link
 * does not work, the error (HY_ERR_INPUT or HY_ERR_DEVICE) says what to install. If one rank fails
 * here, all do. For tests, HYBRID_TEST_LINK="bytes_per_second,latency" slows down sockets and
 * overrides the options. */
hy_status hy_team_open(const hy_team_options *options, hy_team **out);

/* Closes link, MPI and control in the right order. Without a failure it also waits for the
 * others to close. hy_error_message() does not change. NULL is allowed. */
void hy_team_close(hy_team *team);

/* Sends this rank's last error to the others, so that they end too. Returns `status`, with the
 * message of the first failure; if that was another rank's, its status. For HY_OK, HY_STOPPED or
 * a NULL team: sends nothing and returns `status`. */
hy_status hy_team_fail(hy_team *team, hy_status status);
